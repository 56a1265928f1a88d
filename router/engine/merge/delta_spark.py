"""Merge outboxes with Delta on Spark: for storage that Python cannot reach, and for tables that delta-rs refuses.

The same code as elsewhere decides about rows (`decision_task`): one task gets the rows of a table and what the table
has of their keys. MERGE writes the decision, in a session of its own for each table, since it takes its transaction id
from the session's settings.
"""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, LongType

from router.api.columns import holds_where, quote_identifier
from router.delta.casting import cast_to
from router.delta.change_feed import has_feed, taken_by_feed
from router.delta.commit import conflict_error, has_transaction, retry_on_conflict, to_arrow, to_delta
from router.delta.constraints import columns_filled_by_delta
from router.delta.keyed import row_versions
from router.delta.keyed.key_property import (
    KEYED_BY,
    SHOWN_KEYS,
    keyed_by,
    own_properties,
    refuse_other_keys,
    several_rows,
)
from router.delta.keyed.row_checks import (
    EvolutionForbidden,
    check_rows,
    own_names,
    refuse_lost_keys,
    wanted_schema,
    without_wider_columns,
)
from router.delta.keyed.row_order import DELETED, HELD_COLUMNS, REFUSED, keys_and_order, with_comparable_order
from router.delta.keyed.row_versions import versions_schema
from router.delta.keyed.scd import CLOSE, DELETE, FLAG, INSERT, OP, PATCH, UPDATE
from router.delta.keyed.upsert import (
    MERGE_TRIES,
    MERGE_WAIT_SECONDS,
    as_stored,
    changes_of,
    columns_set,
    merge_condition,
    refuse_absent,
    refuse_older,
    sql_assignments,
)
from router.delta.partition_folders import long_folder
from router.delta.replace_by_spark import (
    CONFLICTS,
    append_by_spark,
    create_by_spark,
    name_folders_at_random,
    rewrite_by_spark,
    set_property_by_spark,
    spark_schema,
    widen_columns,
)
from router.delta.schema_diff import SchemaDiff, compare_schemas, delta_schema
from router.delta.table_cache import THREADS
from router.delta.widening import choose_widening_way, rewrite_table
from router.engine.label.layout import DEAD_SCHEMA
from router.engine.merge import refused_keys
from router.engine.merge.delta_rs import COUNTS, as_dead_letters
from router.errors import TableError
from router.own_names import DELETIONS, TABLE
from router.spark_internals import first_cause, map_in_arrow, to_arrow_columns, to_spark_columns, to_spark_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    import deltalake
    from deltalake import Transaction

    from router.api.sinks import KeyedTable
    from router.delta.keyed.scd import TableChanges
    from router.delta.keyed.upsert import TableUpsert
    from router.delta.lake import Lake
    from router.engine.merge.delta_rs import MergeJob, MergeOutcomes

log = logging.getLogger("router")


@dataclass(frozen=True)
class SparkMerger:
    """The merges of an outbox by Delta on Spark, each table in a thread of its own."""

    spark: SparkSession
    lake: Lake
    job: MergeJob
    refused: refused_keys.RefusedKeys | None = None

    def merge_tables(self, events: DataFrame, outcomes: MergeOutcomes) -> None:
        """Merge all tables that the rows name, and add their reports to the outcomes.

        If rows are why a table cannot be merged, these are refused, and its others are merged.
        """
        summaries = _summarize_rows(events, self.job.keyed)
        search_ends = 0.0
        with ThreadPoolExecutor(THREADS) as pool:
            futures = {}
            for table, summary in summaries.items():
                futures[table] = pool.submit(self._merge_table, table, self._rows_of(table, events), summary)
            for table, future in futures.items():
                report: dict[str, Any] = {"table": table, "rows": summaries[table].rows}
                try:
                    try:
                        report.update(future.result())
                    except Exception as error:
                        search_ends = search_ends or time.monotonic() + refused_keys.SEARCH_SECONDS
                        if not self._finds_refused(table, events, summaries[table], error, search_ends):
                            raise
                        report.update(self._merge_table(table, self._rows_of(table, events), summaries[table]))
                except Exception as error:  # whatever Spark raises concerns this table only
                    cause = error.what if isinstance(error, TableError) else first_cause(error)
                    report.update({"failed": f"the merge failed: {cause}", "forbidden": False})
                outcomes.add_report(report)

    def _rows_of(self, table: str, events: DataFrame) -> DataFrame:
        """Return the rows of a table, those that were found to be refused in this batch with the reason. Lazy."""
        rows = events.filter(F.col(TABLE) == table)
        if self.refused is None:
            return rows
        return refused_keys.without_refused(rows, self.job.keyed, self.refused.read_reasons(self.job).get(table, {}))

    def _finds_refused(self, table: str, events: DataFrame, summary: RowSummary, error: Exception, ends: float) -> bool:
        """Return whether rows are now found, and noted, because of which the merge of a table has failed."""
        # A rebuild has no batch, and notes nothing: it fails.
        if self.refused is None or table in self.refused.read_reasons(self.job) or table in self.refused.causes:
            return False
        if not refused_keys.is_caused_by_rows(error):
            return False

        def merge_empty_table(empty: str, rows: DataFrame) -> None:
            job = replace(self.job, dead_letters=f"{empty}.refused", known=frozenset(), merged={})
            replace(self, job=job)._merge_table(empty, rows, summary)

        rows = self._rows_of(table, events)
        reasons = refused_keys.find_refused(self.lake, table, rows, self.job.keyed, merge_empty_table, ends)
        if reasons is None:
            self.refused.causes.add(table)
        elif reasons:
            self.refused.note_reasons(self.job, table, reasons)
            what = "batch %d: the rows of %d keys become dead letters, all others of %s are merged; the first: %s"
            log.warning(what, self.job.batch, len(reasons), table, next(iter(reasons.values())))
        return bool(reasons)

    def _merge_table(self, table: str, rows: DataFrame, summary: RowSummary) -> dict[str, Any]:
        """Merge one table; begin again if another writer has committed first."""

        def merge_once() -> dict[str, Any]:
            work = self.job.table_upsert(table)
            return TableMerge(self.spark, self.lake, self.job, work, rows, summary).merge_rows()

        try:
            return retry_on_conflict(merge_once, CONFLICTS, MERGE_TRIES, MERGE_WAIT_SECONDS)
        except CONFLICTS as error:
            raise conflict_error(table, MERGE_TRIES, error) from error


def _summarize_rows(events: DataFrame, keyed: KeyedTable) -> dict[str, RowSummary]:
    """Return a summary of the rows of each table, in one small job."""
    names = [name for name in events.columns if name != TABLE]
    sums = [F.count(F.lit(1)).alias("rows")]
    for k, name in enumerate(names):
        sums.append(F.count(F.when(~F.col(DELETED), F.col(quote_identifier(name)))).alias(f"c{k}"))
    for k, key in enumerate(keyed.keys):
        sums += [F.min(quote_identifier(key)).alias(f"low{k}"), F.max(quote_identifier(key)).alias(f"high{k}")]

    summaries = {}
    for row in events.groupBy(TABLE).agg(*sums).collect():  # as many rows as tables
        valued = {name for k, name in enumerate(names) if row[f"c{k}"]}
        bounds = {}
        for k, key in enumerate(keyed.keys):
            if row[f"low{k}"] is not None:
                bounds[key] = (row[f"low{k}"], row[f"high{k}"])
        summaries[row[TABLE]] = RowSummary(row["rows"], valued, bounds)
    return summaries


_CHECK = "delta.constraints."
"""The prefix of a table's CHECK constraints among its properties."""


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

    def merge_rows(self) -> dict[str, Any]:
        """Return the report."""
        lake = self.lake
        once, deletions_once = self.work.transaction_ids
        handle = self._with_columns()
        have = to_arrow(handle)
        widens = choose_widening_way(handle, self.work.table, self.work.keyed.widening) is not None
        again = has_transaction(handle, once)
        for name, sql in handle.metadata().configuration.items():
            if name.startswith(_CHECK):
                self.checks[name.removeprefix(_CHECK)] = sql
        decision = DecisionInput(
            table=self.work.table,
            have=have,
            keyed=self.work.keyed,
            route=self.job.route,
            sink=self.job.sink,
            batch=self.job.batch,
            widens=widens,
            feed=has_feed(handle, self.work.keyed.new_table),
            address=handle.table_uri,
            partition_by=tuple(handle.metadata().partition_columns),
        )
        # Kept in memory: the report, the changes, the deletions and the dead letters are each read from it.
        answered = self._answer_by_task(decision).persist()
        try:
            report = json.loads(answered.filter(F.col(OP) == REPORT).collect()[0][REPORT_JSON])
            if "failed" in report:
                return {"failed": report["failed"], "forbidden": report["forbidden"]}
            if report["ops"] and not again:
                name_folders_at_random(self.spark.newSession(), self.address, handle, report["long_folder"])
                self._write_changes(answered, report, have, once.app_id)
            # In tables of their own, after the merge: a process that is killed in between writes them at the next try.
            if report["remembered"] and not row_versions.deletions_remembered(lake, self.work.table, deletions_once):
                self._remember_deletions(answered, decision, deletions_once)
            if report["refused"]:
                dead = answered.filter(F.col(OP) == REFUSED_ROW).select(f"{DEAD_LETTER}.*")
                append_by_spark(dead, lake.spark_address(self.job.dead_letters), self.work.refusal_transaction)
        finally:
            answered.unpersist()
        committed = again or (bool(report["ops"]) and has_transaction(self._open_table(), once))
        return {"counts": {name: report[name] for name in COUNTS}, "committed": committed}

    def _with_columns(self) -> deltalake.DeltaTable:
        """Return the table with every column that the rows have a value for, unless it must not change."""
        keyed = self.work.keyed
        rows = with_comparable_order(delta_schema(to_arrow_columns(self.rows.schema)).empty_table(), keyed)
        wanted = wanted_schema(rows.schema, self.summary.valued, keyed)
        handle = self.lake.open(self.work.table)
        in_table = [] if handle is None else to_arrow(handle).names
        feed = has_feed(handle, keyed.new_table)
        taken = taken_by_feed([column for column in wanted if column.name not in in_table], feed=feed)
        wanted = pa.schema([column for column in wanted if column.name not in taken])
        if handle is None:
            refuse_absent(self.lake, self.work)
            self._create_table(wanted)
            return self._open_table()
        refuse_older(handle, self.work)
        refuse_other_keys(self.work.table, handle.metadata().configuration, keyed)
        self._take_over(handle)
        have = to_arrow(handle)
        refuse_lost_keys(have, self.work.table, keyed)
        if keyed.evolution == "evolve":
            handle, difference = self._widen_columns(handle, wanted)
        else:
            # The table must not change, but for the columns in which the router keeps its own state.
            lacking = own_names(keyed) - set(have.names)
            difference = SchemaDiff(added=tuple(field for field in wanted if field.name in lacking))
        if not difference.added:
            return handle
        self._add_columns(handle, [*difference.added])
        return self._open_table()

    def _take_over(self, handle: deltalake.DeltaTable) -> None:
        """Give a table the property with its keys, if it has none, and has one row for each key."""
        keyed = self.work.keyed
        if KEYED_BY in handle.metadata().configuration:
            return
        rows = self.spark.read.format("delta").load(self.address)
        if keyed.history and "is_current" in rows.columns:
            rows = rows.filter("is_current")
        keys = [quote_identifier(key) for key in keyed.keys]
        several = rows.groupBy(*keys).count().filter("count > 1").limit(SHOWN_KEYS).collect()
        if several:
            raise TableError(self.work.table, several_rows(self.work.table, [row.asDict() for row in several]))
        set_property_by_spark(self.spark, self.address, KEYED_BY, keyed_by(keyed))

    def _widen_columns(
        self, handle: deltalake.DeltaTable, wanted: pa.Schema
    ) -> tuple[deltalake.DeltaTable, SchemaDiff]:
        """Make columns wider if the table may have them so; return the table, and what else it lacks."""
        difference = compare_schemas(delta_schema(to_arrow(handle)), wanted)
        if not difference.widened:
            return handle, difference
        widening_way = choose_widening_way(handle, self.work.table, self.work.keyed.widening)
        widened = to_delta(pa.schema(difference.widened))
        if widening_way is None:
            return handle, without_wider_columns(to_arrow(handle), wanted, difference)
        if widening_way == "feature":
            widen_columns(self.spark.newSession(), self.address, widened)
        elif self.work.keyed.engine == "spark":
            rewrite_by_spark(self.spark.newSession(), self.address, handle, widened, self.work.app_id)
        else:
            rewrite_table(self.lake, self.work.table, handle, widened, self.work.app_id)
        handle = self._open_table()
        return handle, compare_schemas(delta_schema(to_arrow(handle)), wanted)

    def _open_table(self) -> deltalake.DeltaTable:
        handle = self.lake.open(self.work.table)
        assert handle is not None
        return handle

    def _create_table(self, schema: pa.Schema) -> None:
        keyed = self.work.keyed
        create_by_spark(
            self.spark.newSession(),
            self.work.table,
            self.address,
            schema,
            options=keyed.new_table,
            properties=own_properties(keyed),
        )

    def _add_columns(self, handle: deltalake.DeltaTable, columns: list[pa.Field]) -> None:
        """Add columns with a commit of no rows.

        The commit must have the columns of partitions, and those that generated columns are computed from.
        """
        table_columns = to_arrow(handle)
        computed_columns = columns_filled_by_delta(handle.schema().to_json())
        needed = handle.metadata().partition_columns
        if computed_columns:
            needed = table_columns.names
        added_names = {column.name for column in columns}
        fields = list(columns)
        for name in needed:
            if name not in computed_columns and name not in added_names:
                fields.append(table_columns.field(name))
        schema = pa.schema(fields)
        append_by_spark(self.spark.createDataFrame([], spark_schema(schema)), self.address)

    def _answer_by_task(self, decision: DecisionInput) -> DataFrame:
        """Return the answers of a task that gets the rows and what the table has of their keys."""
        keyed = decision.keyed
        kinds = {field.name: to_spark_type(field.type) for field in decision.have}
        schema = versions_schema(decision.have, keyed)
        version_type = to_spark_type(pa.struct(list(schema)))
        task_rows = self._with_refusals(decision.have).withColumn(HELD_VERSION, F.lit(None).cast(version_type))
        keys = self.rows.select(
            *[F.col(quote_identifier(key)).cast(kinds[key]).alias(key) for key in keyed.keys]
        ).distinct()
        states = [self._table_rows(keyed)]
        deletions = self._remembered_deletions()
        if deletions is not None:
            states.append(deletions)
        for state in states:
            # The bounds of the keys leave out files, which the join does not.
            for key, (low, high) in self.summary.bounds.items():
                state = state.filter(F.col(quote_identifier(key)).between(F.lit(low), F.lit(high)))  # noqa: PLW2901
            of_keys = state.join(keys, on=list(keyed.keys), how="left_semi")
            columns = [_column_or_null(of_keys, name, kinds.get(name)) for name in schema.names]
            version = F.struct(*columns).cast(version_type).alias(HELD_VERSION)
            task_rows = task_rows.unionByName(of_keys.select(version), allowMissingColumns=True)
        # One task: rows and versions of a key must meet, and the report counts all of them.
        answers = to_spark_columns(decision.answer_schema, ntz=True)
        return map_in_arrow(task_rows.repartition(1), decision_task(decision), answers)

    def _with_refusals(self, have: pa.Schema) -> DataFrame:
        """Return the rows with `_refused` if they violate a CHECK of the table, which would fail the whole MERGE.

        With `columns` a row does not get all values of an event, so that MERGE itself has to check it.
        """
        if self.work.keyed.columns or not self.checks:
            return self.rows
        absent = {}
        for column in have:
            if column.name not in self.rows.columns:
                absent[column.name] = F.lit(None).cast(to_spark_type(column.type))
        complete_rows = self.rows.withColumns(absent)
        stays = ~F.col(DELETED)
        refusals = [F.col(REFUSED)] if REFUSED in self.rows.columns else []
        for name, sql in self.checks.items():
            violates = stays & ~holds_where(stays, F.expr(sql))
            refusals.append(F.when(violates, F.lit(f"the table's CHECK {name} ({sql}) does not hold")))
        columns = [quote_identifier(name) for name in self.rows.columns if name != REFUSED]
        return complete_rows.withColumn(REFUSED, F.coalesce(*refusals)).select(*columns, REFUSED)

    def _table_rows(self, keyed: KeyedTable) -> DataFrame:
        """Return the rows of the table as a state: all are there, and those that are not soft-deleted are live."""
        table = self.spark.read.format("delta").load(self.address)
        is_there = F.lit(True)
        is_live = is_there
        if keyed.soft_delete:
            is_live = ~F.coalesce(F.col(quote_identifier(keyed.soft_delete)), F.lit(False))
        return table.withColumns(dict(zip(HELD_COLUMNS, (is_there, is_live), strict=True)))

    def _remembered_deletions(self) -> DataFrame | None:
        """Return the remembered deletions as a state."""
        if row_versions.deletions_table(self.lake, self.work.table) is None:
            return None
        table = self.spark.read.format("delta").load(f"{self.address}/{DELETIONS}")
        return table.withColumns(dict.fromkeys(HELD_COLUMNS, F.lit(False)))

    def _write_changes(self, answered: DataFrame, report: dict[str, Any], have: pa.Schema, app: str) -> None:
        # MERGE takes transaction id and notes from the settings of its session.
        session = self.spark.newSession()
        session.conf.set("spark.databricks.delta.write.txnAppId", app)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(self.work.version))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps(self.work.notes))
        keyed = self.work.keyed
        own = own_names(keyed)
        names = [field.name for field in have if field.name in own or field.name in self.rows.columns]
        changes = answered.filter(F.col(OP) <= CLOSE)
        merger = DeltaTable.forPath(session, self.address).alias("t").merge(changes.alias("s"), report["condition"])
        for op in report["ops"]:
            if op in (UPDATE, PATCH, FLAG, CLOSE):
                values = sql_assignments(columns_set(op, names, keyed), quote_identifier)
                merger = merger.whenMatchedUpdate(condition=f"s.{OP} = {op}", set=values)  # type: ignore[arg-type]
        if DELETE in report["ops"]:
            merger = merger.whenMatchedDelete(condition=f"s.{OP} = {DELETE}")
        if INSERT in report["ops"]:
            merger = merger.whenNotMatchedInsert(
                condition=f"s.{OP} = {INSERT}",
                values=sql_assignments(names, quote_identifier),  # type: ignore[arg-type]
            )
        merger.execute()

    def _remember_deletions(self, answered: DataFrame, decision: DecisionInput, once: Transaction) -> None:
        """Append the deletions to the table that remembers them, once. Its integers are all longs."""
        names = keys_and_order(decision.have.empty_table(), decision.keyed).schema.names
        deletions = answered.filter(F.col(OP) == DELETION)
        columns = []
        for column in deletions.select(*[quote_identifier(name) for name in names]).schema:
            kind = LongType() if isinstance(column.dataType, IntegralType) else column.dataType
            columns.append(F.col(quote_identifier(column.name)).cast(kind).alias(column.name))
        rows = deletions.select(*columns, F.current_timestamp().alias(row_versions.DELETED_AT))
        append_by_spark(rows, f"{self.address}/{DELETIONS}", once)


def _column_or_null(frame: DataFrame, name: str, kind: Any) -> Column:
    """Return a column, null if the frame lacks it."""
    column = F.lit(None)
    if name in frame.columns:
        column = F.col(quote_identifier(name))
    if kind is not None:
        column = column.cast(kind)
    return column.alias(name)


HELD_VERSION = "__held"
"""A struct column of the rows of a task: what the table has of a key; null in the rows of the batch."""
DEAD_LETTER = "__dead_letter"
REPORT_JSON = "__report"
REFUSED_ROW = 100
DELETION = 101
REPORT = 102
"""The values of `__op` besides the changes: a refused row, a deletion to be remembered, the report in `__report`."""


@dataclass(frozen=True)
class DecisionInput:
    """The input of a decision about rows: the table's name and schema, its options, and the route and sink.

    `address` and `partition_by` are the table's.
    """

    table: str
    have: pa.Schema
    keyed: KeyedTable
    route: str
    sink: str
    batch: int
    widens: bool = True
    feed: bool = False
    address: str = ""
    partition_by: tuple[str, ...] = ()

    @property
    def answer_schema(self) -> pa.Schema:
        """Return the columns of the answers: those of the table, and those that give the kind of an answer."""
        letter = pa.struct(list(DEAD_SCHEMA))
        more = pa.schema([(OP, pa.int8()), (DEAD_LETTER, letter), (REPORT_JSON, pa.string())])
        return pa.schema([*(field.with_nullable(True) for field in self.have), *more])


def decision_task(decision: DecisionInput) -> Any:
    """Return the function of one task, for mapInArrow. It gets all rows of the table, and what it has of their keys."""

    def decide_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with_rows = [batch for batch in batches if batch.num_rows]
        if not with_rows:
            return
        for answer in decide_answers(decision, pa.Table.from_batches(with_rows)):
            yield from answer.combine_chunks().to_batches()

    return decide_batches


def decide_answers(decision: DecisionInput, task_rows: pa.Table) -> Iterator[pa.Table]:
    """Return the changes, the deletions, the refused rows and a report, each as answers."""
    held = task_rows.column(HELD_VERSION)
    rows = with_comparable_order(task_rows.filter(pc.is_null(held)).drop_columns([HELD_VERSION]), decision.keyed)
    try:
        checked = check_rows(
            rows, decision.have, decision.table, decision.keyed, widens=decision.widens, feed=decision.feed
        )
    except TableError as error:
        failure = {"failed": error.what, "forbidden": isinstance(error, EvolutionForbidden)}
        yield _as_answer(decision, REPORT, pa.table({REPORT_JSON: [json.dumps(failure)]}))
        return
    accepted = as_stored(checked.rows, decision.have)
    changes = changes_of(accepted, _held_state(held, accepted, decision.keyed), decision.keyed)
    yield cast_to(changes.rows, decision.answer_schema)
    yield _as_answer(decision, DELETION, changes.deletions)
    if len(checked.refused):
        dead = as_dead_letters(checked.refused, decision.route, decision.sink, decision.batch)
        yield _as_answer(decision, REFUSED_ROW, pa.table({DEAD_LETTER: dead.to_struct_array()}))
    report = {
        "applied": len(checked.rows),
        "refused": len(checked.refused),
        **changes.row_counts,
        **_operations_report(decision, changes),
    }
    yield _as_answer(decision, REPORT, pa.table({REPORT_JSON: [json.dumps(report)]}))


def _held_state(held: pa.ChunkedArray, rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return the state of the keys in the table, with the types of the rows."""
    schema = versions_schema(rows.schema, keyed)
    present = held.filter(pc.is_valid(held)).combine_chunks()
    if isinstance(present, pa.ChunkedArray):
        return schema.empty_table()
    return cast_to(pa.Table.from_batches([pa.RecordBatch.from_struct_array(present)]), schema)


def _operations_report(decision: DecisionInput, changes: TableChanges) -> dict[str, Any]:
    condition = ""
    if len(changes.rows):
        condition = merge_condition(changes.rows, decision.keyed, quote_identifier)
    return {
        "remembered": len(changes.deletions),
        "ops": np.unique(np.asarray(changes.rows.column(OP))).tolist(),
        "condition": condition,
        "long_folder": long_folder(decision.address, changes.rows, decision.partition_by),
    }


def _as_answer(decision: DecisionInput, op: int, rows: pa.Table) -> pa.Table:
    return cast_to(rows.append_column(OP, pa.array([op] * len(rows), pa.int8())), decision.answer_schema)
