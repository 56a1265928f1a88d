"""Merge outboxes with Delta on Spark: for storage that Python cannot reach, and for tables that delta-rs refuses.

What becomes of a row is decided by the same code as elsewhere (`decision_task`): the rows of a table meet what it holds
of their keys in one task. MERGE writes what was decided, in a session of its own for each table: it takes its
transaction id from the session's settings only.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, LongType

from router.columns import holds, quoted
from router.delta.casting import cast_to
from router.delta.commit import conflict_error, has_transaction, retry_on_conflict, to_arrow, to_delta
from router.delta.constraints import computed
from router.delta.keyed import row_versions
from router.delta.keyed.key_property import KEYED_BY, SHOWN, keyed_by, own_properties, refuse_other_keys, several_rows
from router.delta.keyed.row_checks import (
    EvolutionForbidden,
    check_rows,
    narrow,
    own_names,
    refuse_lost_keys,
    wanted_schema,
)
from router.delta.keyed.row_order import DELETED, HELD, REFUSED, comparable, keys_and_order
from router.delta.keyed.row_versions import versions_schema
from router.delta.keyed.scd import CLOSE, DELETE, FLAG, INSERT, OP, PATCH, UPDATE
from router.delta.keyed.upsert import (
    TRIES,
    WAIT_SECONDS,
    as_stored,
    assignments,
    changes_of,
    columns_set,
    merge_condition,
    refuse_absent,
    refuse_older,
)
from router.delta.replace_by_spark import (
    append_by_spark,
    create_by_spark,
    rewrite_by_spark,
    set_property_by_spark,
    spark_schema,
    widen,
)
from router.delta.schema_diff import SchemaDiff, compare, delta_schema
from router.delta.table_cache import THREADS
from router.delta.widening import rewrite, way
from router.engine.label.layout import DEAD_SCHEMA, TABLE
from router.engine.merge.delta_rs import COUNTS, as_dead_letters
from router.errors import TableError
from router.spark_internals import to_arrow_columns, to_spark_columns, to_spark_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    import deltalake
    from deltalake import Transaction

    from router.delta.keyed.scd import TableChanges
    from router.delta.keyed.upsert import TableUpsert
    from router.delta.lake import Lake
    from router.engine.merge.delta_rs import MergeJob, MergeOutcomes
    from router.sinks import KeyedTable


@dataclass(frozen=True)
class SparkMerger:
    """The merges of an outbox by Delta on Spark, each table in a thread of its own."""

    spark: SparkSession
    lake: Lake
    job: MergeJob

    def merge(self, events: DataFrame, found: MergeOutcomes) -> None:
        """Merge all tables that the rows name, and add to the outcomes what became of them."""
        summaries = _summaries(events, self.job.keyed)
        with ThreadPoolExecutor(THREADS) as pool:
            waiting = {
                table: pool.submit(self._table, table, events.filter(F.col(TABLE) == table), summary)
                for table, summary in summaries.items()
            }
            for table, future in waiting.items():
                try:
                    found.add({"table": table, "rows": summaries[table].rows, **future.result()})
                except Exception as error:  # whatever Spark raises concerns this table only
                    what = f"the merge failed: {error.what if isinstance(error, TableError) else _first(error)}"
                    found.add({"table": table, "rows": summaries[table].rows, "failed": what, "forbidden": False})

    def _table(self, table: str, rows: DataFrame, summary: RowSummary) -> dict[str, Any]:
        """Merge one table; begin again when another writer has committed first."""
        try:
            return retry_on_conflict(
                lambda: TableMerge(self.spark, self.lake, self.job, self.job.upsert(table), rows, summary).merge(),
                DeltaConcurrentModificationException,
                TRIES,
                WAIT_SECONDS,
            )
        except DeltaConcurrentModificationException as error:
            raise conflict_error(table, TRIES, error) from error


def _first(error: Exception) -> str:
    """Return the first cause of an error, in one line."""
    cause: Any = error.java_exception if isinstance(error, Py4JJavaError) else error
    while isinstance(error, Py4JJavaError) and cause.getCause() is not None:
        cause = cause.getCause()
    return (str(cause) if cause is error else cause.toString()).split("\n")[0]


def _summaries(events: DataFrame, keyed: KeyedTable) -> dict[str, RowSummary]:
    """Return the tables that rows are for, in one small job."""
    names = [name for name in events.columns if name != TABLE]
    sums = [F.count(F.when(~F.col(DELETED), F.col(quoted(name)))).alias(f"c{k}") for k, name in enumerate(names)]
    sums.append(F.count(F.lit(1)).alias("rows"))
    for k, key in enumerate(keyed.keys):
        sums += [F.min(quoted(key)).alias(f"low{k}"), F.max(quoted(key)).alias(f"high{k}")]
    return {
        row[TABLE]: RowSummary(
            row["rows"],
            {name for k, name in enumerate(names) if row[f"c{k}"]},
            {key: (row[f"low{k}"], row[f"high{k}"]) for k, key in enumerate(keyed.keys) if row[f"low{k}"] is not None},
        )
        for row in events.groupBy(TABLE).agg(*sums).collect()  # as many rows as tables
    }


CHECK = "delta.constraints."
"""What the names of a table's CHECK constraints begin with among its properties."""


@dataclass(frozen=True)
class RowSummary:
    """A summary of the rows of one table: their number, the columns with a value in rows that delete nothing, and the
    bounds of the keys."""

    rows: int
    valued: set[str]
    bounds: dict[str, tuple[Any, Any]]


@dataclass
class TableMerge:
    """The merge of rows into one table."""

    spark: SparkSession
    lake: Lake
    job: MergeJob
    work: TableUpsert
    rows: DataFrame
    summary: RowSummary
    address: str = field(init=False)
    checks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.address = self.lake.spark_address(self.work.table)

    def merge(self) -> dict[str, Any]:
        """Return the report."""
        once, deleting = self.work.ids
        handle = self._grown()
        have, widens = to_arrow(handle), way(handle, self.work.table, self.work.keyed.widening) is not None
        again = has_transaction(handle, once)
        settings = handle.metadata().configuration
        self.checks = {name.removeprefix(CHECK): sql for name, sql in settings.items() if name.startswith(CHECK)}
        about = self.job.route, self.job.sink, self.job.batch
        asked = DecisionInput(self.work.table, have, self.work.keyed, *about, widens=widens)
        decided = self._decided(asked).persist()
        try:
            report = json.loads(decided.filter(F.col(OP) == REPORT).collect()[0][REPORT_JSON])
            if "failed" in report:
                return {"failed": report["failed"], "forbidden": report["forbidden"]}
            if report["ops"] and not again:
                self._write(decided, report, have, once.app_id)
            if report["remembered"] and not row_versions.deletions_remembered(self.lake, self.work.table, deleting):
                self._remember(decided, asked, deleting)
            if report["refused"]:
                dead = decided.filter(F.col(OP) == REFUSED_ROW).select(f"{DEAD_LETTER}.*")
                append_by_spark(dead, self.lake.spark_address(self.job.dead_letters), self.work.refusals)
        finally:
            decided.unpersist()
        committed = again or (bool(report["ops"]) and has_transaction(self._opened(), once))
        return {"counts": {name: report[name] for name in COUNTS}, "committed": committed}

    def _grown(self) -> deltalake.DeltaTable:
        """Return the table with every column that the rows have a value for, unless it must not change."""
        keyed = self.work.keyed
        rows = comparable(delta_schema(to_arrow_columns(self.rows.schema)).empty_table(), keyed)
        wanted = wanted_schema(rows.schema, self.summary.valued, keyed)
        handle = self.lake.open(self.work.table)
        if handle is None:
            refuse_absent(self.lake, self.work)
            self._create(wanted)
            return self._opened()
        refuse_older(handle, self.work)
        refuse_other_keys(self.work.table, handle.metadata().configuration, keyed)
        self._take_over(handle)
        have = to_arrow(handle)
        refuse_lost_keys(have, self.work.table, keyed)
        if keyed.evolution == "evolve":
            handle, found = self._widened(handle, wanted)
        else:
            lacking = own_names(keyed) - set(have.names)
            found = SchemaDiff(added=tuple(field for field in wanted if field.name in lacking))
        if found.added:
            self._add(handle, [*found.added])
        return self._opened() if found.added else handle

    def _take_over(self, handle: deltalake.DeltaTable) -> None:
        """Give a table the property that says its keys, where it has none and one row for each."""
        keyed = self.work.keyed
        if KEYED_BY in handle.metadata().configuration:
            return
        rows = self.spark.read.format("delta").load(self.address)
        rows = rows.filter("is_current") if keyed.history and "is_current" in rows.columns else rows
        several = rows.groupBy(*map(quoted, keyed.keys)).count().filter("count > 1").limit(SHOWN).collect()
        if several:
            raise TableError(self.work.table, several_rows([row.asDict() for row in several]))
        set_property_by_spark(self.spark, self.address, KEYED_BY, keyed_by(keyed))

    def _widened(self, handle: deltalake.DeltaTable, wanted: pa.Schema) -> tuple[deltalake.DeltaTable, SchemaDiff]:
        """Make columns wider where the table may have them so; return it, and what else it lacks."""
        found = compare(delta_schema(to_arrow(handle)), wanted)
        if not found.widened:
            return handle, found
        chosen, widened = way(handle, self.work.table, self.work.keyed.widening), to_delta(pa.schema(found.widened))
        if chosen is None:
            return handle, narrow(to_arrow(handle), wanted, found)
        if chosen == "feature":
            widen(self.spark.newSession(), self.address, widened)
        elif self.work.keyed.engine == "spark":
            rewrite_by_spark(self.spark.newSession(), self.address, handle, widened, self.work.app_id)
        else:
            rewrite(self.lake, self.work.table, handle, widened, self.work.app_id)
        handle = self._opened()
        return handle, compare(delta_schema(to_arrow(handle)), wanted)

    def _opened(self) -> deltalake.DeltaTable:
        handle = self.lake.open(self.work.table)
        assert handle is not None
        return handle

    def _create(self, schema: pa.Schema) -> None:
        keyed = self.work.keyed
        create_by_spark(
            self.spark.newSession(),
            self.work.table,
            self.address,
            schema,
            options=keyed,
            properties=own_properties(keyed),
        )

    def _add(self, handle: deltalake.DeltaTable, columns: list[pa.Field]) -> None:
        """Add columns with a commit of no rows; it must name partitions, and what generated columns are made of."""
        own = computed(handle.schema().to_json())
        kept = to_arrow(handle).names if own else handle.metadata().partition_columns
        left = [name for name in kept if name not in own | {column.name for column in columns}]
        schema = pa.schema([*columns, *(to_arrow(handle).field(name) for name in left)])
        append_by_spark(self.spark.createDataFrame([], spark_schema(schema)), self.address)

    def _decided(self, asked: DecisionInput) -> DataFrame:
        kinds = {field.name: to_spark_type(field.type) for field in asked.have}
        schema = row_versions.versions_schema(asked.have, asked.keyed)
        kind = to_spark_type(pa.struct(list(schema)))
        given = self._checked(asked.have).withColumn(HELD_VERSION, F.lit(None).cast(kind))
        keys = self.rows.select(*[F.col(quoted(k)).cast(kinds[k]).alias(k) for k in asked.keyed.keys]).distinct()
        for found in (self._held(asked.keyed), self._deletions()):
            if (held := found) is not None:
                for key, (low, high) in self.summary.bounds.items():  # they leave out files, which a join does not
                    held = held.filter(F.col(quoted(key)).between(F.lit(low), F.lit(high)))
                some = held.join(keys, on=list(asked.keyed.keys), how="left_semi")
                columns = [_known(some, name, kinds.get(name)) for name in schema.names]
                one = F.struct(*columns).cast(kind).alias(HELD_VERSION)
                given = given.unionByName(some.select(one), allowMissingColumns=True)
        answers = to_spark_columns(asked.answers, ntz=True)
        return given.repartition(1).mapInArrow(decision_task(asked), answers)

    def _checked(self, have: pa.Schema) -> DataFrame:
        """Return the rows with `_refused` where they violate a CHECK of the table, which would fail the whole MERGE.

        With `columns` a row does not get all values of an event, so that MERGE itself has to check it.
        """
        checks = {} if self.work.keyed.columns else self.checks
        if not checks:
            return self.rows
        kinds = {field.name: to_spark_type(field.type) for field in have}
        frame = self.rows.withColumns(
            {name: F.lit(None).cast(kind) for name, kind in kinds.items() if name not in self.rows.columns}
        )
        stays = ~F.col(DELETED)
        broken = [
            F.when(stays & ~holds(stays, F.expr(sql)), F.lit(f"the table's CHECK {name} ({sql}) does not hold"))
            for name, sql in checks.items()
        ]
        return frame.withColumn(REFUSED, F.coalesce(*broken)).select(*map(quoted, self.rows.columns), REFUSED)

    def _held(self, keyed: KeyedTable) -> DataFrame:
        """Return the rows of the table as a state."""
        table = self.spark.read.format("delta").load(self.address)
        there = F.lit(True)
        live = ~F.coalesce(F.col(quoted(keyed.soft_delete)), F.lit(False)) if keyed.soft_delete else there
        return table.withColumns(dict(zip(HELD, (there, live), strict=True)))

    def _deletions(self) -> DataFrame | None:
        """Return the remembered deletions as a state."""
        if row_versions.deletions_table(self.lake, self.work.table) is None:
            return None
        table = self.spark.read.format("delta").load(f"{self.address}/{row_versions.DELETIONS}")
        return table.withColumns(dict.fromkeys(HELD, F.lit(False)))

    def _write(self, decided: DataFrame, report: dict[str, Any], have: pa.Schema, app: str) -> None:
        session = self.spark.newSession()
        session.conf.set("spark.databricks.delta.write.txnAppId", app)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(self.work.version))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps(self.work.notes))
        keyed = self.work.keyed
        own = own_names(keyed)
        names = [field.name for field in have if field.name in own or field.name in self.rows.columns]
        changes = decided.filter(F.col(OP) <= CLOSE)
        merger = DeltaTable.forPath(session, self.address).alias("t").merge(changes.alias("s"), report["condition"])
        for op in report["ops"]:
            if op in (UPDATE, PATCH, FLAG, CLOSE):
                values = assignments(columns_set(op, names, keyed), quoted)
                merger = merger.whenMatchedUpdate(condition=f"s.{OP} = {op}", set=values)  # type: ignore[arg-type]
        if DELETE in report["ops"]:
            merger = merger.whenMatchedDelete(condition=f"s.{OP} = {DELETE}")
        if INSERT in report["ops"]:
            merger = merger.whenNotMatchedInsert(condition=f"s.{OP} = {INSERT}", values=assignments(names, quoted))  # type: ignore[arg-type]
        merger.execute()

    def _remember(self, decided: DataFrame, asked: DecisionInput, once: Transaction) -> None:
        names = keys_and_order(asked.have.empty_table(), asked.keyed).schema.names
        gone = decided.filter(F.col(OP) == DELETION)
        columns = [
            F.col(quoted(f.name)).cast(LongType() if isinstance(f.dataType, IntegralType) else f.dataType).alias(f.name)
            for f in gone.select(*map(quoted, names)).schema
        ]
        rows = gone.select(*columns, F.current_timestamp().alias(row_versions.DELETED_AT))
        append_by_spark(rows, f"{self.address}/{row_versions.DELETIONS}", once)


def _known(frame: DataFrame, name: str, kind: Any) -> Column:
    """Return a column, null where the frame does not have it."""
    column = F.col(quoted(name)) if name in frame.columns else F.lit(None)
    return (column.cast(kind) if kind is not None else column).alias(name)


HELD_VERSION = "__held"
"""A struct column of what a task is given: what the table holds of a key; null in the rows of the batch."""
DEAD_LETTER = "__dead_letter"
REPORT_JSON = "__report"
REFUSED_ROW, DELETION, REPORT = 100, 101, 102
"""What else than a change can stand in `__op`: a refused row, a deletion to be remembered, the report in `__report`."""


@dataclass(frozen=True)
class DecisionInput:
    """What a task needs to decide about rows: the table's name and schema, its options, and the route and sink."""

    table: str
    have: pa.Schema
    keyed: KeyedTable
    route: str
    sink: str
    batch: int
    widens: bool = True

    @property
    def answers(self) -> pa.Schema:
        """Return the columns of the answers: those of the table, and what says which answer a row is."""
        letter = pa.struct(list(DEAD_SCHEMA))
        more = pa.schema([(OP, pa.int8()), (DEAD_LETTER, letter), (REPORT_JSON, pa.string())])
        return pa.schema([*(field.with_nullable(True) for field in self.have), *more])


def decision_task(asked: DecisionInput) -> Any:
    """Return the function of one task, for mapInArrow. It is given all rows of the table and what it holds of them."""

    def decide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if given:
            for answer in answers(asked, pa.Table.from_batches(given)):
                yield from answer.combine_chunks().to_batches()

    return decide


def answers(asked: DecisionInput, given: pa.Table) -> Iterator[pa.Table]:
    """Return the changes, the deletions, the refused rows and a report, each as answers."""
    held = given.column(HELD_VERSION)
    rows = comparable(given.filter(pc.is_null(held)).drop_columns([HELD_VERSION]), asked.keyed)
    try:
        checked = check_rows(rows, asked.have, asked.table, asked.keyed, widens=asked.widens)
    except TableError as error:
        report = {"failed": error.what, "forbidden": isinstance(error, EvolutionForbidden)}
        yield _answer(asked, REPORT, pa.table({REPORT_JSON: [json.dumps(report)]}))
        return
    kept = as_stored(checked.rows, asked.have)
    changes = changes_of(kept, _state(held, kept, asked.keyed), asked.keyed)
    dead = as_dead_letters(checked.refused, asked.route, asked.sink, asked.batch) if len(checked.refused) else None
    yield cast_to(changes.rows, asked.answers)
    yield _answer(asked, DELETION, changes.deletions)
    if dead is not None:
        yield _answer(asked, REFUSED_ROW, pa.table({DEAD_LETTER: dead.to_struct_array()}))
    report = {
        "applied": len(checked.rows),
        "refused": len(checked.refused),
        **changes.counts,
        **_operations(asked, changes),
    }
    yield _answer(asked, REPORT, pa.table({REPORT_JSON: [json.dumps(report)]}))


def _state(held: pa.ChunkedArray, rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return what the table holds, with the types of the rows."""
    schema = versions_schema(rows.schema, keyed)
    present = held.filter(pc.is_valid(held)).combine_chunks()
    if isinstance(present, pa.ChunkedArray):
        return schema.empty_table()
    return cast_to(pa.Table.from_batches([pa.RecordBatch.from_struct_array(present)]), schema)


def _operations(asked: DecisionInput, changes: TableChanges) -> dict[str, Any]:
    return {
        "remembered": len(changes.deletions),
        "ops": np.unique(np.asarray(changes.rows.column(OP))).tolist(),
        "condition": merge_condition(changes.rows, asked.keyed, quoted) if len(changes.rows) else "",
    }


def _answer(asked: DecisionInput, op: int, rows: pa.Table) -> pa.Table:
    return cast_to(rows.append_column(OP, pa.array([op] * len(rows), pa.int8())), asked.answers)
