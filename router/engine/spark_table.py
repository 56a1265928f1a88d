"""Merge one table with Delta on Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import IntegralType, LongType, StructField, StructType

from router.delta import state
from router.delta.commit import PROPERTIES, has, to_arrow, to_delta
from router.delta.fitted import own_names, refuse_lost_keys, wanted_schema
from router.delta.latest import CLOSE, DELETE, FLAG, INSERT, OP, PATCH, UPDATE
from router.delta.merge import assigned, touched
from router.delta.newer import DELETED, HELD, REFUSED, SINCE
from router.delta.order import ordered, placed
from router.delta.schema import Difference, compare, plain_schema
from router.delta.upsert import refuse_absent
from router.engine.columns import quoted
from router.engine.commit import widen
from router.engine.decide import BURIED, DELETION, LETTER, REPORT, STATE, TOLD, Question, task
from router.engine.guard import holds
from router.engine.merge import COUNTS

if TYPE_CHECKING:
    import deltalake

    from router.delta.lake import Lake
    from router.delta.upsert import Upsert
    from router.engine.merge import Job
    from router.keyed import Keyed


CHECK = "delta.constraints."
"""What the names of a table's CHECK constraints begin with among its properties."""


@dataclass(frozen=True)
class Share:
    """Be what is known of the rows of one table: how many they are, which columns have a value in one that deletes
    nothing, and the bounds of the keys."""

    rows: int
    valued: set[str]
    bounds: dict[str, tuple[Any, Any]]


@dataclass
class Table:
    """Be one table and the rows that are for it."""

    spark: SparkSession
    lake: Lake
    job: Job
    work: Upsert
    rows: DataFrame
    share: Share
    address: str = field(init=False)
    checks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.address = self.lake.address(self.work.table)

    def merge(self) -> dict[str, Any]:
        """Return the report."""
        once, deleting = self.work.ids
        handle = self._grown()
        have = to_arrow(handle)
        again = has(handle, once)
        settings = handle.metadata().configuration
        self.checks = {name.removeprefix(CHECK): sql for name, sql in settings.items() if name.startswith(CHECK)}
        question = Question(self.work.table, have, self.work.keyed, self.job.route, self.job.sink, self.job.batch)
        decided = self._decided(question, again=again).persist()
        try:
            told = json.loads(decided.filter(F.col(OP) == REPORT).collect()[0][TOLD])
            if "failed" in told:
                return {"failed": told["failed"], "unfit": told["unfit"]}
            if told["ops"] and not again:
                self._write(decided, told, have, once.app_id)
            if told["remembered"] and not state.remembers(self.lake, self.work.table, deleting):
                self._remember(decided, question, deleting.app_id)
            if told["refused"]:
                letters = decided.filter(F.col(OP) == BURIED).select(f"{LETTER}.*")
                self._append(letters, self.lake.address(self.job.dead_letters), f"{self.work.app_id}/dead_letters")
        finally:
            decided.unpersist()
        return {"counts": {name: told[name] for name in COUNTS}}

    def _grown(self) -> deltalake.DeltaTable:
        """Return the table with every column that the rows have a value for, unless it must not change."""
        keyed = self.work.keyed
        rows = ordered(plain_schema(to_arrow_schema(self.rows.schema, timestamp_utc=True)).empty_table(), keyed)
        wanted = wanted_schema(rows.schema, self.share.valued, keyed)
        handle = self.lake.open(self.work.table)
        if handle is None:
            refuse_absent(self.lake, self.work)
            self._create(wanted)
            return self._opened()
        have = to_arrow(handle)
        refuse_lost_keys(have, self.work.table, keyed)
        if keyed.evolution == "evolve":
            found = compare(plain_schema(have), wanted)
        else:
            lacking = own_names(keyed) - set(have.names)
            found = Difference(added=tuple(field for field in wanted if field.name in lacking))
        if found.added:
            self._add(handle, [*found.added])
        if found.widened:
            widen(self.spark.newSession(), self.address, to_delta(pa.schema(found.widened)))
        return self._opened() if found.added or found.widened else handle

    def _opened(self) -> deltalake.DeltaTable:
        handle = self.lake.open(self.work.table)
        assert handle is not None
        return handle

    def _create(self, schema: pa.Schema) -> None:
        keyed = self.work.keyed
        first = [schema.field(name) for name in keyed.cluster_by]  # Delta clusters by columns with statistics only
        schema = pa.schema([*first, *(field for field in schema if field.name not in keyed.cluster_by)])
        builder = DeltaTable.createIfNotExists(self.spark.newSession()).location(self.address)
        builder = builder.addColumns(_commented(schema))
        for name, value in {**PROPERTIES, **keyed.properties}.items():
            builder = builder.property(name, str(value))
        if keyed.comment:
            builder = builder.comment(keyed.comment)
        if keyed.partition_by:
            builder = builder.partitionedBy(*keyed.partition_by)
        if keyed.cluster_by:
            builder = builder.clusterBy(*keyed.cluster_by)
        builder.execute()

    def _add(self, handle: deltalake.DeltaTable, columns: list[pa.Field]) -> None:
        """Add columns by rows that are none; those of a partitioned table have to name its partition."""
        named = {column.name for column in columns}
        divided = [name for name in handle.metadata().partition_columns if name not in named]
        schema = pa.schema([*columns, *(to_arrow(handle).field(name) for name in divided)])
        self._append(self.spark.createDataFrame([], _commented(schema)), self.address)

    def _decided(self, question: Question, *, again: bool) -> DataFrame:
        kinds = {field.name: from_arrow_type(field.type, prefer_timestamp_ntz=True) for field in question.have}
        schema = state.state_schema(question.have, question.keyed)
        kind = from_arrow_type(pa.struct(list(schema)), prefer_timestamp_ntz=True)
        given = self._checked(question.have).withColumn(STATE, F.lit(None).cast(kind))
        keys = self.rows.select(*[F.col(quoted(k)).cast(kinds[k]).alias(k) for k in question.keyed.keys]).distinct()
        for found in (self._held(question.keyed, again=again), self._deletions()):
            if (held := found) is not None:
                for key, (low, high) in self.share.bounds.items():  # they leave out files, which a join does not
                    held = held.filter(F.col(quoted(key)).between(F.lit(low), F.lit(high)))
                some = held.join(keys, on=list(question.keyed.keys), how="left_semi")
                columns = [_known(some, name, kinds.get(name)) for name in schema.names]
                one = F.struct(*columns).cast(kind).alias(STATE)
                given = given.unionByName(some.select(one), allowMissingColumns=True)
        answers = from_arrow_schema(question.answers, prefer_timestamp_ntz=True)
        return given.repartition(1).mapInArrow(task(question), answers)

    def _checked(self, have: pa.Schema) -> DataFrame:
        """Return the rows with `_refused` where they violate a CHECK of the table, which would fail the whole MERGE.

        With `columns` the values of an event are not those that the row will have, and the table is left to itself.
        """
        checks = {} if self.work.keyed.columns else self.checks
        if not checks:
            return self.rows
        kinds = {field.name: from_arrow_type(field.type, prefer_timestamp_ntz=True) for field in have}
        frame = self.rows.withColumns(
            {name: F.lit(None).cast(kind) for name, kind in kinds.items() if name not in self.rows.columns}
        )
        stays = ~F.col(DELETED)
        broken = [
            F.when(stays & ~holds(stays, F.expr(sql)), F.lit(f"the table's CHECK {name} ({sql}) does not hold"))
            for name, sql in checks.items()
        ]
        return frame.withColumn(REFUSED, F.coalesce(*broken)).select(*map(quoted, self.rows.columns), REFUSED)

    def _held(self, keyed: Keyed, *, again: bool) -> DataFrame:
        """Return the rows of the table as a state."""
        table = self.spark.read.format("delta").load(self.address)
        there, since = F.lit(True), F.lit(None).cast("timestamp")
        live = ~F.coalesce(F.col(quoted(keyed.soft_delete)), F.lit(False)) if keyed.soft_delete else there
        if keyed.history:
            there = live = F.coalesce(F.col("is_current"), F.lit(False))
            since = F.coalesce("valid_to", "valid_from")
            table = table if again else table.filter("is_current")
        return table.withColumns(dict(zip((*HELD, SINCE), (there, live, since), strict=True)))

    def _deletions(self) -> DataFrame | None:
        """Return the remembered deletions as a state."""
        if state.memory(self.lake, self.work.table) is None:
            return None
        table = self.spark.read.format("delta").load(f"{self.address}/{state.DELETIONS}")
        since = _known(table, SINCE, None)
        return table.withColumns({**dict.fromkeys(HELD, F.lit(False)), SINCE: since.cast("timestamp")})

    def _write(self, decided: DataFrame, told: dict[str, Any], have: pa.Schema, app: str) -> None:
        session = self.spark.newSession()
        session.conf.set("spark.databricks.delta.write.txnAppId", app)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(self.work.version))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps(self.work.notes))
        keyed = self.work.keyed
        own = own_names(keyed)
        names = [field.name for field in have if field.name in own or field.name in self.rows.columns]
        changes = decided.filter(F.col(OP) <= CLOSE)
        merger = DeltaTable.forPath(session, self.address).alias("t").merge(changes.alias("s"), told["condition"])
        for op in told["ops"]:
            if op in (UPDATE, PATCH, FLAG, CLOSE):
                values = assigned(touched(op, names, keyed), quoted)
                merger = merger.whenMatchedUpdate(condition=f"s.{OP} = {op}", set=values)  # type: ignore[arg-type]
        if DELETE in told["ops"]:
            merger = merger.whenMatchedDelete(condition=f"s.{OP} = {DELETE}")
        if INSERT in told["ops"]:
            merger = merger.whenNotMatchedInsert(condition=f"s.{OP} = {INSERT}", values=assigned(names, quoted))  # type: ignore[arg-type]
        merger.execute()

    def _remember(self, decided: DataFrame, question: Question, app: str) -> None:
        names = placed(question.have.empty_table(), question.keyed).schema.names
        gone = decided.filter(F.col(OP) == DELETION)
        columns = [
            F.col(quoted(f.name)).cast(LongType() if isinstance(f.dataType, IntegralType) else f.dataType).alias(f.name)
            for f in gone.select(*map(quoted, names)).schema
        ]
        rows = gone.select(*columns, SINCE, F.current_timestamp().alias(state.DELETED_AT))
        self._append(rows, f"{self.address}/{state.DELETIONS}", app)

    def _append(self, rows: DataFrame, address: str, app: str | None = None) -> None:
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        if app is not None:
            writer = writer.option("txnAppId", app).option("txnVersion", self.work.version)
        writer.save(address)


def _commented(schema: pa.Schema) -> StructType:
    """Return a schema as Spark's, with the comments of its columns."""
    found = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    texts = [(field.metadata or {}).get(b"comment", b"").decode() for field in schema]
    made = zip(found, texts, strict=True)
    return StructType([StructField(f.name, f.dataType, True, {"comment": text} if text else None) for f, text in made])


def _known(frame: DataFrame, name: str, kind: Any) -> Column:
    """Return a column, null where the frame does not have it."""
    column = F.col(quoted(name)) if name in frame.columns else F.lit(None)
    return (column.cast(kind) if kind is not None else column).alias(name)
