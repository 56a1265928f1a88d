"""Release quarantined rows into their tables, or discard them, once a person approves it or a table can be written.

A release runs only between two batches of the stream; a batch that was cut off must end first. It has five steps, and
can be repeated from any of them:

1. write the last batch and the number of rows into the approval, or into the note of the blocked table
2. commit the rows to their table, under a transaction id
3. append to the ledger, under another transaction id
4. delete the rows from the quarantine
5. delete the approval, or the note
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from router.api.columns import quote_identifier
from router.api.decoding import keep_archives
from router.api.sinks import Applied, TableSink
from router.delta.casting import cast_down, cast_to, has_value, type_within
from router.delta.commit import TableCommit, to_arrow, to_delta
from router.delta.constraints import row_constraints
from router.delta.parquet_writer import Staging, attempt_name
from router.delta.schema_diff import SchemaDiff, common_type, compare_schemas, delta_schema, limited_to
from router.delta.staged_files import StagedFile
from router.delta.table_cache import TableCache
from router.delta.transaction_id import TransactionId
from router.delta.widening import choose_widening_way
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.lost_tables import CommittedBatches, accept_lost
from router.engine.commit.violations import VIOLATES, with_violations
from router.engine.json_rows import ROW
from router.engine.label.layout import BRONZE_SCHEMA, COORDINATES, DEAD_SCHEMA, HELD_REASON, quarantine_of
from router.engine.quarantine.table import (
    SYSTEM_COLUMNS,
    PendingRelease,
    allowed_types,
    last_released_batch,
    pause_after,
    pending_releases,
    quarantined_in,
    write_pending,
)
from router.engine.reprocess.records import bronze_tables
from router.engine.spark.executors import Executors
from router.engine.start.checks import Checkpoint, was_cut_off
from router.errors import TableError, first_line
from router.own_names import BATCH_ID, CAUSE, OUTBOX, QUERY, TABLE
from router.record import PLACE
from router.spark_internals import map_in_arrow, to_spark_columns
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalake import DeltaTable
    from pyspark.sql import Column, SparkSession

    from router.api.sinks import Evolution, Widening
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.delta.transaction_id import ReleaseKind
    from router.engine.commit.committers import Committers
    from router.engine.commit.violations import Conditions
    from router.engine.quarantine.table import Place

log = logging.getLogger("router")
Deliver = Callable[[str, str, int, DataFrame], Applied | None]
"""Called with route/sink, query (with its run), batch and rows of a quarantine; returns what the sink did with them."""
TargetTypes = dict[str, "pa.DataType | None"]
"""The type in which each column of a quarantine goes into the table; None if the table cannot store its values."""
_Task = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]
"""A function for `mapInArrow`."""


@dataclass(frozen=True)
class Release:
    """The approvals and blocked tables of a query, carried out.

    Rows that come into the quarantine before an approval is carried out are also released, as long as they need no
    change that was not approved. `deliver` gives rows of an outbox to its sink.
    """

    config: Config
    spark: SparkSession
    lake: Lake
    store: CheckpointStore
    committers: Committers
    executors: Executors = field(default_factory=Executors)
    deliver: Deliver | None = None

    def due(self) -> list[PendingRelease]:
        """Return the approvals, and the notes of blocked tables whose next try is due."""
        now = time.time()
        due_notes = [note for note in pending_releases(self.store, "blocked") if note.due <= now]
        return [*pending_releases(self.store), *due_notes]

    def idle(self) -> set[str]:
        """Carry out what is due before or between batches, unless one was cut off; return the tables that changed."""
        due = self.due()
        if not due:
            return set()
        if was_cut_off(self.lake, self.store, self.config):
            return set()
        return self.carry_out(due)

    def carry_out(self, due: list[PendingRelease]) -> set[str]:
        """Carry out approvals and notes while no batch is under way; return the tables that changed."""
        for pending in due:
            try:
                if pending.cause and pending.place.table.startswith(OUTBOX):
                    self._deliver(pending)
                elif pending.cause:
                    self._unblock(pending)
                else:
                    self._carry_out(pending)
            except Exception as error:  # the stream must not stop for quarantined rows
                self._postpone(pending, error)
        return {pending.place.table for pending in due}

    def _carry_out(self, approval: PendingRelease) -> None:
        for query in approval.upto:
            if approval.discard:
                self._discard(approval, query)
            else:
                self._release(approval, query)
        self.store.delete(approval.path)

    def _postpone(self, pending: PendingRelease, error: Exception) -> None:
        if not pending.cause:
            text = "%s: the quarantined rows of %s cannot be released now, it is tried again after the next batch: %s"
            log.warning(text, self.config.name, pending.place.table, first_line(error))
            return
        failures = pending.tries + 1
        pause = pause_after(failures)
        # As the note has it: without the name of the table.
        cause = first_line(error).removeprefix(f"table {pending.place.table}: ")
        # The first failure was logged with its cause: it is said again only when it is another one.
        level = logging.DEBUG if cause == pending.cause else logging.WARNING
        text = "%s: %s can still not be written, the next try is in %.0f s: %s"
        log.log(level, text, self.config.name, pending.place.table, pause, cause)
        write_pending(self.store, replace(pending, tries=failures, due=time.time() + pause, cause=cause))

    def _unblock(self, note: PendingRelease) -> None:
        """Release all rows that wait for a table that could not be written. Raises while it still cannot be."""
        self._refuse_lost_batches(note)
        last_batches, columns = self._waiting(note.place)
        # A release that was cut off ends as it was decided; rows that came since are released after it.
        decided_batches = {query: last for query, (last, _) in note.decided.items()}
        for upto in (decided_batches, last_batches):
            pending = replace(note, upto=upto, columns=columns)  # has the same dictionary `decided` as the note
            for query in upto:
                if not self._release(pending, query):
                    raise _StillBlocked("it cannot store all columns of its rows; see `router quarantine list FILE`")
                note.decided.pop(query, None)
                write_pending(self.store, note)
        self.store.delete(note.path)
        log.info("%s: %s can be written again", self.config.name, note.place.table)

    def _deliver(self, note: PendingRelease) -> None:
        """Give all rows that wait for an outbox to its sink, batch by batch. Raises while the outbox cannot take them.

        Each step can be repeated: the sink marks what it has applied, the ledger and the outbox have an id for it.
        """
        assert self.deliver is not None  # whoever carries out the note of an outbox can deliver
        place = note.place
        # The rows go to the sink, not into their table: it need not be read, as for rows that are discarded.
        pending = replace(note, discard=True, columns=to_delta(pa.schema([])))
        for query, batch in self._waiting_batches(place):
            rows_of_query = _ReleasedRows.read(self, pending, query)
            rows = rows_of_query.all_rows.filter(F.col(BATCH_ID) == batch)
            count = rows.count()
            applied = self.deliver(f"{place.route}/{place.sink}", query, batch, rows) or Applied()
            counts = {
                "landed": count,
                "quarantined": -count,
                **applied._asdict(),
                "backlog": count - applied.finished_rows,
            }
            self._book(note, query, batch, counts)
            rows_of_query.delete(batch)
            log.info("%s: %d rows of batch %d are in %s now", self.config.name, count, batch, place.table)
        self.store.delete(note.path)

    def _waiting_batches(self, place: Place) -> list[tuple[str, int]]:
        """Return query and number of each batch with rows for an outbox, in the order in which they came."""
        quarantine = quarantine_of(self.config.name, place.route, place.sink)
        if self.lake.open(quarantine) is None:
            return []
        rows = self.spark.read.format("delta").load(self.lake.spark_address(quarantine))
        batches = rows.filter(F.col(TABLE) == place.table).select(QUERY, BATCH_ID).distinct().collect()
        return sorted((row[QUERY], row[BATCH_ID]) for row in batches)

    def _refuse_lost_batches(self, note: PendingRelease) -> None:
        """Raise while a blocked table cannot be read, or lacks batches, unless a person has forced the release."""
        table = note.place.table
        checkpoint = self.store.checkpoint
        handle = TableCache(self.lake).open_tables([table])[table]
        store = CheckpointStore(checkpoint, self.store.run or Checkpoint.read(checkpoint).run or "")
        committed = CommittedBatches.from_manifests(store, self.config, sys.maxsize)
        lost = committed.find_lost_tables({table: handle})
        if not lost:
            return
        if not note.forced:
            raise TableError(table, lost[table].blocks)
        accept_lost(store, committed, lost)

    def _waiting(self, place: Place) -> tuple[dict[str, int], str]:
        """Return the last batch of each query with rows for a blocked table, and the columns of these rows."""
        quarantine = quarantine_of(self.config.name, place.route, place.sink)
        handle = self.lake.open(quarantine)
        if handle is not None:
            where = (place.route, place.sink, quarantine)
            for waiting in quarantined_in(self.lake, handle, where, table=place.table):
                if waiting.place == place and waiting.kind == "unblock":
                    return waiting.upto, to_delta(waiting.columns)
        return {}, to_delta(pa.schema([]))

    def _release(self, pending: PendingRelease, query: str) -> bool:
        """Release the rows of a query; return whether all of them, up to `pending.upto`, have left the quarantine."""
        rows_of_query = _ReleasedRows.read(self, pending, query)
        if query not in pending.decided:
            decision = rows_of_query.decide(pending.upto[query])
            if decision is None:
                return pending.upto[query] <= rows_of_query.after
            last, count = decision
            refused = rows_of_query.count_violating(last)
            pending.decided[query] = (last, count - refused)
            pending.refused[query] = refused
            pending.demanded[query] = rows_of_query.demanded
            write_pending(self.store, pending)

        # After a crash these steps are repeated: each has a transaction id, or deletes the same rows again.
        last, count = pending.decided[query]
        counts = {"released": count}
        if count:
            self._commit(rows_of_query, query, last)
        refused = pending.refused.get(query, 0)
        if refused:
            rows_of_query.refuse(last)
            counts.update(quarantined=-refused, refused=refused)
        self._book(pending, query, last, counts)
        rows_of_query.delete(last)
        log.info("%s: %d quarantined rows are in %s now", self.config.name, count, pending.place.table)
        if refused:
            text = "%s: %d rows violate what %s demands, and are dead letters now"
            log.warning(text, self.config.name, refused, pending.place.table)
        return last >= pending.upto[query]

    def _commit(self, rows_of_query: _ReleasedRows, query: str, last: int) -> None:
        """Commit rows that are decided. If that fails, they are decided again: the table may have changed."""
        pending = rows_of_query.pending
        try:
            rows_of_query.commit(last)
        except TableError:
            if _ReleasedRows.read(self, pending, query).after < last:
                del pending.decided[query]
                write_pending(self.store, pending)
            raise

    def _discard(self, approval: PendingRelease, query: str) -> None:
        rows_of_query = _ReleasedRows.read(self, approval, query)
        last = approval.upto[query]
        if query not in approval.decided:
            count = rows_of_query.rows.filter(F.col(BATCH_ID) <= last).count()
            approval.decided[query] = (last, count)
            write_pending(self.store, approval)
        _, count = approval.decided[query]
        rows_of_query.discard(last)
        self._book(approval, query, last, {"quarantined": -count, "refused": count})
        rows_of_query.delete(last)
        log.info("%s: %d quarantined rows for %s are dead letters now", self.config.name, count, approval.place.table)

    def _book(self, pending: PendingRelease, query: str, last: int, counts: dict[str, int]) -> None:
        """Append what became of the rows of a query to the ledger, once."""
        place = pending.place
        name, _, run = query.rpartition(":")
        row = {"query": name, "run": run, "batch_id": last, "route": place.route, "sink": place.sink, **counts}
        reason = "discard" if pending.discard else pending.kind
        app_id = TransactionId("ledger_move", query, place.route, place.sink, place.table, reason)
        entry = ledger.LedgerEntry(self.config.ledger, str(app_id), last)
        ledger.append(self.committers, entry, [row])


class _StillBlocked(Exception):  # noqa: N818 - it is a state of the table
    """Rows that their table does not take as it is now."""


@dataclass(frozen=True)
class _ReleasedRows:
    """The quarantined rows of one query for one table, and their release.

    `all_rows` are the rows in the quarantine, `rows` those of batches behind `after`, up to which the table has them
    already. `handle` is the open table, `table_types` are the columns that it may have, `target_types` those of the
    quarantine as they go into it. `demanded` are the constraints of the table.
    """

    release: Release
    pending: PendingRelease
    query: str
    quarantine: str
    all_rows: DataFrame
    rows: DataFrame
    after: int
    table_types: dict[str, pa.DataType]
    target_types: TargetTypes
    handle: Any
    demanded: Conditions

    @classmethod
    def read(cls, release: Release, pending: PendingRelease, query: str) -> _ReleasedRows:
        """Return the rows as they are now. Rows that are discarded do not need their table: it is not opened."""
        lake = release.lake
        place = pending.place
        handle = None
        demanded: Conditions = {}
        if not pending.discard:
            handle = TableCache(lake).open_tables([place.table])[place.table]
        if handle is not None:
            demanded = row_constraints(handle.schema().to_json(), handle.metadata().configuration)
        # Rows that are counted as refused must be refused, though the table's constraints may have changed since.
        if query in pending.decided:
            demanded = pending.demanded.get(query, demanded)

        quarantine = quarantine_of(release.config.name, place.route, place.sink)
        frame = release.spark.read.format("delta").load(lake.spark_address(quarantine))
        if CAUSE not in frame.columns:
            frame = frame.withColumn(CAUSE, F.lit(None))
        waits = _waits(place, query, pending.kind)
        if handle is not None and pending.kind == "unblock":
            # The commit of a batch may have succeeded though the table could no longer be read.
            rows_id = TransactionId("rows", query, place.route, place.sink, place.table)
            committed = handle.transaction_version(str(rows_id))
            if committed is not None:
                waits &= F.col(BATCH_ID) > committed
        all_rows = frame.filter(waits)
        after = last_released_batch(handle, place, query, pending.kind)

        table_types, may_leave_out = _allowed_types(release.config, pending, handle)
        quarantine_handle = lake.open(quarantine)
        assert quarantine_handle is not None  # rows of it were approved
        target_types: TargetTypes = {}
        for column in delta_schema(to_arrow(quarantine_handle)):
            if column.name in SYSTEM_COLUMNS:
                continue
            kind = _target_type(table_types.get(column.name), column.type)
            if kind is not None or not may_leave_out:
                target_types[column.name] = kind
        return cls(
            release=release,
            pending=pending,
            query=query,
            quarantine=quarantine,
            all_rows=all_rows,
            rows=all_rows.filter(F.col(BATCH_ID) > after),
            after=after,
            table_types=table_types,
            target_types=target_types,
            handle=handle,
            demanded=demanded,
        )

    @property
    def stored_types(self) -> dict[str, pa.DataType]:
        """Return the columns that go into the table, with the types in which they are stored."""
        types = {}
        for name, kind in self.target_types.items():
            if kind is not None:
                types[name] = limited_to(self.table_types[name], kind)
        return types

    def decide(self, upto: int) -> tuple[int, int] | None:
        """Return the last batch whose rows are released, and the number of rows; None if there are none."""
        task = _check_task(self.target_types, blank=self.release.config.decode.zero_is_absent)
        counts: Counter[int] = Counter()
        unfit_batches: set[int] = set()
        for report in self._run(task, self._table_columns(self.rows)):  # one for each task
            unfit_batches.update(report["unfit"])
            for batch, count in report["rows"]:
                counts[batch] += count
        if not unfit_batches:
            return (max(counts), counts.total()) if counts else None

        # The rows land in the order of their batches: those from the first unfit batch on stay.
        first_unfit = min(unfit_batches)
        if first_unfit <= upto:
            text = "%s: rows from batch %d on stay quarantined for %s: the table has changed since they were approved"
            log.warning(text, self.release.config.name, first_unfit, self.pending.place.table)
        fitting = [count for batch, count in counts.items() if batch < first_unfit]
        return (first_unfit - 1, sum(fitting)) if fitting else None

    def count_violating(self, last: int) -> int:
        """Return how many rows of batches up to the last violate a constraint of their table."""
        if not self.demanded:
            return 0
        rows = self._with_violations(self.rows.filter(F.col(BATCH_ID) <= last))
        return rows.filter(F.col(VIOLATES).isNotNull()).count()

    def refuse(self, last: int) -> None:
        """Append the rows that violate a constraint of their table to the dead letters, once."""
        place = self.pending.place
        rows = self._with_violations(self.all_rows.filter(F.col(BATCH_ID) <= last))
        reason = F.concat(F.lit(f"table {place.table}: "), F.col(VIOLATES), F.lit(" does not hold"))
        app_id = TransactionId("refuse", self.query, place.route, place.sink, place.table, self.pending.kind)
        self._append_dead_letters(rows.filter(F.col(VIOLATES).isNotNull()), reason, str(app_id), last)

    def discard(self, last: int) -> None:
        """Append the rows of batches up to the last to the dead letters, once."""
        place = self.pending.place
        not_approved = F.lit(f"table {place.table}: the change that the row needs was not approved")
        app_id = TransactionId("discard", self.query, place.route, place.sink, place.table)
        rows = self.rows.filter(F.col(BATCH_ID) <= last)
        self._append_dead_letters(rows, F.coalesce(CAUSE, not_approved), str(app_id), last)

    def commit(self, last: int) -> None:
        """Stage the rows of batches up to the last that may land, and commit them once."""
        if self.after >= last:
            return
        rows = self.rows.filter(F.col(BATCH_ID) <= last)
        if self.pending.refused.get(self.query):
            rows = self._with_violations(rows).filter(F.col(VIOLATES).isNull())
        place = self.pending.place
        lake = self.release.lake
        landing = self.release.config.landing
        task = _stage_task(
            self.target_types,
            pa.schema(list(self.stored_types.items())),
            Staging(lake, landing.file_bytes, landing.buffer_bytes),
            target=f"{place.route}/{place.sink}",
            table=place.table,
            batch=last,
        )
        files = tuple(StagedFile.from_dict(report) for report in self._run(task, self._table_columns(rows)))

        # The files lack columns without a value: the table need not gain these.
        valued = set().union(*(file.columns for file in files))
        written = pa.schema([(name, kind) for name, kind in self.stored_types.items() if name in valued])
        change = SchemaDiff()
        if self.handle is not None:
            change = compare_schemas(delta_schema(to_arrow(self.handle)), written)
        work = TableCommit(
            target=f"{place.route}/{place.sink}",
            table=place.table,
            app_id=place.app_id(self.query, self.pending.kind),
            version=last,
            files=files,
            columns=to_delta(written),
            added=to_delta(pa.schema(list(change.added))) if change.added else None,
            widened=to_delta(pa.schema(list(change.widened))) if change.widened else None,
        )
        notes = {"router.released": self.query, "router.up_to_batch": str(last)}
        commits = 0
        try:
            commits = self.release.committers.commit_all((work,), {}, notes)
        finally:
            if not commits:
                lake.delete(*(file.path for file in files))

    def delete(self, last: int) -> None:
        """Delete the rows of batches up to the last from the quarantine."""
        address = self.release.lake.spark_address(self.quarantine)
        table = SparkDeltaTable.forPath(self.release.spark, address)
        has_cause = CAUSE in table.toDF().columns
        waits = _waits(self.pending.place, self.query, self.pending.kind, has_cause=has_cause)
        table.delete(waits & (F.col(BATCH_ID) <= last))

    def _table_columns(self, rows: DataFrame) -> DataFrame:
        """Return the columns of rows that are for their table, with their batch."""
        return rows.select(BATCH_ID, *map(quote_identifier, self.target_types))

    def _with_violations(self, rows: DataFrame) -> DataFrame:
        """Add the constraint to quarantined rows that each would violate in its table."""
        schema = pa.schema(list(self.stored_types.items()))
        # The constraints are evaluated on the rows as the table would have them: `_row` is that.
        with_row = StructType([*rows.schema, StructField("_row", to_spark_columns(schema, ntz=True))])
        task = _cast_task(self.target_types, schema)
        cast = map_in_arrow(rows, self.release.executors.guard_task(task), with_row)
        quarantined_row = F.struct(*map(quote_identifier, rows.columns)).alias("_quarantined")
        table_columns = [F.col(f"_row.{quote_identifier(name)}") for name in schema.names]
        flat = cast.select(quarantined_row, *table_columns)
        table_json = self.handle.schema().to_json() if self.handle is not None else to_delta(schema)
        return with_violations(flat, table_json, self.demanded).select("_quarantined.*", VIOLATES)

    def _run(self, task: _Task, rows: DataFrame) -> list[dict[str, Any]]:
        """Run a task over rows and return its reports; raise StartError if an executor lacks what the driver has."""
        executors = self.release.executors
        rows_of_reports = map_in_arrow(rows, executors.guard_task(task, reports=True), "report string").collect()
        return executors.without_looks(json.loads(row["report"]) for row in rows_of_reports)

    def _append_dead_letters(self, rows: DataFrame, reason: Column, app_id: str, last: int) -> None:
        """Append rows to the dead letters as received, if bronze has them.

        Without bronze, and if a row's coordinates are not known, the value is the row as JSON.
        """
        place = self.pending.place
        config = self.release.config
        stage = Stage.EXPECT if self.pending.kind == "held" and self.pending.discard else Stage.SCHEMA
        columns = {
            "stage": F.lit(stage),
            "reason": reason,
            "route": F.lit(place.route),
            "sink": F.lit(place.sink),
            "batch_id": F.col(BATCH_ID),
            "value": self._row_as_json(rows),
        }
        for name, received_name in COORDINATES.items():
            columns[received_name] = _column_or_null(rows, name)
        dead_letters = rows.select(*(column.alias(name) for name, column in columns.items()))
        # Bronze has the records as received; of a row without its record in bronze the JSON above stays.
        tables = bronze_tables(self.release.lake, config)
        if tables:
            reader = self.release.spark.read.format("delta")
            bronze = [reader.load(self.release.lake.spark_address(table)) for table in tables]
            dead_letters = _as_received(dead_letters, reduce(DataFrame.unionByName, bronze))
        kinds = to_spark_columns(DEAD_SCHEMA)
        typed = [_column_or_null(dead_letters, kind.name).cast(kind.dataType).alias(kind.name) for kind in kinds]
        work = TableCommit(
            target="/dead_letters",
            table=config.dead_letters,
            app_id=app_id,
            version=last,
            files=(),
            columns=to_delta(DEAD_SCHEMA),
        )
        notes = {"router.discarded": self.query}
        self.release.committers.append_rows(self.release.spark.newSession(), work, notes, dead_letters.select(*typed))

    def _row_as_json(self, rows: DataFrame) -> Column:
        """Return quarantined rows as JSON; those of an outbox are kept so."""
        row = F.lit(None)
        if self.target_types:
            row = F.to_json(F.struct(*map(quote_identifier, self.target_types))).cast("binary")
        if ROW in rows.columns:
            row = F.coalesce(F.col(ROW).cast("binary"), row)
        return row


def _waits(place: Place, query: str, kind: ReleaseKind, *, has_cause: bool = True) -> Column:
    """Return a boolean column over a quarantine: the row is of a query, for a table, and waits for a kind of release.

    The quarantine of an older version has no column `_cause`.
    """
    is_of_query = (F.col(TABLE) == place.table) & (F.col(QUERY) == query)
    if not has_cause:
        return is_of_query
    cause = F.col(CAUSE)
    is_held = F.coalesce(cause.startswith(HELD_REASON), F.lit(False))
    if kind == "release":
        return is_of_query & cause.isNull()
    if kind == "held":
        return is_of_query & is_held
    return is_of_query & cause.isNotNull() & ~is_held


def _as_received(dead_letters: DataFrame, bronze: DataFrame) -> DataFrame:
    """Return dead letters with key, value and headers of their records, if bronze has these."""
    coordinates = list(PLACE)
    names = [name for name in BRONZE_SCHEMA.names if name not in (*coordinates, "batch_id")]
    stored = [_column_or_null(bronze, name).alias(f"_{name}") for name in names]
    records = bronze.select(*coordinates, *stored, F.lit(True).alias("_in_bronze"))
    columns = {}
    for name in names:
        received = F.when(F.col("_in_bronze"), F.col(f"_{name}"))
        columns[name] = received.otherwise(_column_or_null(dead_letters, name))
    return dead_letters.join(records, coordinates, "left").withColumns(columns)


def _column_or_null(frame: DataFrame, name: str) -> Column:
    return F.col(name) if name in frame.columns else F.lit(None)


def _allowed_types(
    config: Config, pending: PendingRelease, handle: DeltaTable | None
) -> tuple[dict[str, pa.DataType], bool]:
    """Return the columns and types that a table may have, and whether values that it cannot store are left out.

    An approval lets the table change as its rows need. A blocked table may change as its sink lets it.
    """
    table_schema = None if handle is None else delta_schema(to_arrow(handle))
    if not pending.cause or table_schema is None:
        return allowed_types(table_schema, pending), False

    place = pending.place
    evolution: Evolution = "evolve"
    widening: Widening = "rewrite"
    for route, name, sink in config.all_sinks():
        if (route, name) == (place.route, place.sink) and isinstance(sink, TableSink):
            evolution = sink.evolution
            widening = sink.widening
    if evolution != "evolve":
        return {column.name: column.type for column in table_schema}, evolution == "freeze"
    types = allowed_types(table_schema, pending)
    # A table that cannot become wider may still gain columns and nested fields.
    if choose_widening_way(handle, place.table, widening) is None:
        for column in table_schema:
            types[column.name] = type_within(column.type, types[column.name], new_fields=True)
    return types, False


def _target_type(table_type: pa.DataType | None, row_type: pa.DataType) -> pa.DataType | None:
    if table_type is None or common_type(table_type, row_type) is None:
        return None
    return type_within(table_type, row_type)


def _check_task(target_types: TargetTypes, *, blank: bool) -> _Task:
    """Return the function of a task that counts rows by batch and finds the batches with unapproved rows."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: Counter[int] = Counter()
        unfit_batches: set[int] = set()
        for batch in batches:
            numbers = batch.column(BATCH_ID).to_numpy()
            for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
                counts[int(number)] += int(count)
            unfit = np.zeros(len(numbers), bool)
            for name, kind in target_types.items():
                values = batch.column(name)
                # A row is unfit if a value would be lost or changed on its way into the table.
                if kind is None:
                    unfit |= has_value(values, blank=blank)
                elif values.type != kind:
                    cast = cast_down(values, kind, blank=blank)
                    unfit |= cast.lost | cast.too_wide
            unfit_batches.update(np.unique(numbers[unfit]).tolist())
        report = json.dumps({"rows": sorted(counts.items()), "unfit": sorted(unfit_batches)})
        yield pa.RecordBatch.from_arrays([pa.array([report])], names=["report"])

    return check


def _cast_task(target_types: TargetTypes, schema: pa.Schema) -> _Task:
    """Return the function of a task that adds to rows the struct `_row`: what of them goes into their table."""

    def cast(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            row = _cast_rows(batch, target_types, schema).to_struct_array().combine_chunks()
            yield pa.RecordBatch.from_arrays([*batch.columns, row], names=[*batch.schema.names, "_row"])

    return cast


def _stage_task(
    target_types: TargetTypes, schema: pa.Schema, staging: Staging, *, target: str, table: str, batch: int
) -> _Task:
    """Return the function of a task that stages rows for their table, in types that it may have."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        writer = staging.open_writer(batch, f"released-{attempt_name()}")
        for rows in batches:
            for part in _cast_rows(rows, target_types, schema).to_batches():
                writer.hold_rows(target, table, part, seen=True)
            writer.flush()
        reports = [json.dumps(asdict(file)) for file in writer.close()]
        yield pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], names=["report"])

    return stage


def _cast_rows(rows: pa.RecordBatch, target_types: TargetTypes, schema: pa.Schema) -> pa.Table:
    """Return the columns of rows that go into their table, in its types."""
    columns = {}
    for name, kind in target_types.items():
        if kind is not None:
            columns[name] = cast_down(rows.column(name), kind).array
    return cast_to(pa.table(columns), schema).combine_chunks()
