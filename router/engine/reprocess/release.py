"""Release quarantined rows into their tables, or discard them, once somebody approved it or a table can be written.

Only between two batches of the stream: a batch that was cut off must end first. Each step can be repeated from any
point: the release writes batch and number of rows into the approval, commits the rows under a transaction id, appends
to the ledger under another one, deletes the rows from the quarantine, and the approval last.
"""

from __future__ import annotations

import json
import logging
import sys
import time
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

from router.columns import quoted
from router.decoding import keep_archives
from router.delta.casting import cast_down, cast_to, has_value, type_within
from router.delta.commit import StagedFile, TableCommit, to_arrow, to_delta
from router.delta.constraints import constraints
from router.delta.parquet_writer import Staging, attempt
from router.delta.schema_diff import SchemaDiff, common_type, compare, delta_schema, limited_to
from router.delta.table_cache import TableCache
from router.delta.transaction_id import TransactionId
from router.delta.widening import way
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.lost_tables import CommittedBatches, accept_lost
from router.engine.commit.violations import VIOLATES, with_violations
from router.engine.json_rows import ROW
from router.engine.label.layout import BRONZE_SCHEMA, COORDINATES, DEAD_SCHEMA, HELD, quarantine_of
from router.engine.quarantine.table import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    OWN,
    PendingRelease,
    allowed,
    pending_releases,
    quarantined_in,
    released,
    write,
)
from router.engine.reprocess.records import bronze_tables
from router.engine.spark.executors import Executors
from router.engine.start.checks import Checkpoint
from router.errors import TableError, first_line
from router.sinks import Applied, TableSink
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalake import DeltaTable
    from pyspark.sql import Column, SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.commit.committers import Committers
    from router.engine.commit.violations import Conditions
    from router.engine.quarantine.table import Kind, Place, Quarantined

log = logging.getLogger("router")
Deliver = Callable[[str, str, int, DataFrame], Applied | None]
"""Called with route/sink, query (with its run), batch and rows of a quarantine; returns what the sink did with them."""
Kinds = dict[str, "pa.DataType | None"]
"""The type in which each column goes into a table; None for what does not."""


@dataclass(frozen=True)
class Release:
    """The approvals and blocked tables of a query, carried out.

    Rows that come into the quarantine before an approval is carried out are released too, as long as they need no
    change that nobody approved. `deliver` gives rows of an outbox to its sink.
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
        return [
            *pending_releases(self.store),
            *(note for note in pending_releases(self.store, "blocked") if note.due <= now),
        ]

    def idle(self) -> set[str]:
        """Carry out what is due before or between batches, unless one was cut off; return the tables that changed."""
        if not (found := self.due()):
            return set()
        run = Checkpoint.read(self.store.checkpoint).run
        table = self.lake.open(self.config.ledger)
        booked = table.transaction_version(str(TransactionId("ledger", f"{self.config.name}:{run}"))) if table else None
        cut_off = f"manifests/{run}/{-1 if booked is None else booked + 1:010d}.json"
        return self.carry_out(found) if self.store.read(cut_off) is None else set()

    def carry_out(self, found: list[PendingRelease]) -> set[str]:
        """Carry out approvals while no batch is under way; return the tables that changed."""
        for pending in found:
            try:
                if pending.cause and pending.place.table.startswith("outbox."):
                    self._deliver(pending)
                elif pending.cause:
                    self._unblock(pending)
                else:
                    self._carry_out(pending)
            except Exception as error:  # the stream must not stop for quarantined rows
                self._postpone(pending, error)
        return {pending.place.table for pending in found}

    def _carry_out(self, pending: PendingRelease) -> None:
        for query in pending.upto:
            if pending.discard:
                self._discard(pending, query)
            else:
                self._release(pending, query)
        self.store.delete(pending.path)

    def _postpone(self, pending: PendingRelease, error: Exception) -> None:
        if not pending.cause:
            text = "the quarantined rows of %s cannot be released now, it is tried again after the next batch: %s"
            log.warning(f"%s: {text}", self.config.name, pending.place.table, first_line(error))
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**pending.tries)
        text = "%s: %s can still not be written, the next try is in %.0f s: %s"
        log.warning(text, self.config.name, pending.place.table, pause, first_line(error))
        write(self.store, replace(pending, tries=pending.tries + 1, due=time.time() + pause))

    def _unblock(self, note: PendingRelease) -> None:
        """Release all rows that wait for a table that could not be written. Raises while it still cannot be."""
        self._look(note)
        upto, columns = self._waiting(note.place)
        cut_off = {query: last for query, (last, _) in note.decided.items()}
        for last in (cut_off, upto):  # a release that was cut off ends as it was decided, whatever came since
            found = replace(note, upto=last, columns=columns)
            for query in last:
                if not self._release(found, query):
                    raise _NotTaken("it has no place for all columns of its rows; see `router quarantine list`")
                note.decided.pop(query, None)
                write(self.store, note)
        self.store.delete(note.path)
        log.info("%s: %s can be written again", self.config.name, note.place.table)

    def _deliver(self, note: PendingRelease) -> None:
        """Give all rows that wait for an outbox to its sink, batch by batch. Raises while the outbox cannot take them.

        Each step can be repeated: the sink marks what it has applied, the ledger and the outbox have an id for it.
        """
        assert self.deliver is not None  # whoever carries out the note of an outbox can deliver
        place = note.place
        for query, batch in self._waiting_batches(place):
            pending = replace(note, discard=True, columns=to_delta(pa.schema([])))
            rows_of_query = _ReleasedRows.read(self, pending, query)
            rows = rows_of_query.waiting.filter(F.col("_batch_id") == batch)
            count = rows.count()
            applied = self.deliver(f"{place.route}/{place.sink}", query, batch, rows)
            done = Applied() if applied is None else applied
            counts = {"landed": count, "quarantined": -count, **done._asdict(), "backlog": count - done.done}
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
        named = rows.filter(F.col("_table") == place.table).select("_query", "_batch_id").distinct().collect()
        return sorted((row["_query"], row["_batch_id"]) for row in named)

    def _look(self, note: PendingRelease) -> None:
        """Raise while a blocked table cannot be read, or lacks batches, unless a person has said to go on."""
        table, checkpoint = note.place.table, self.store.checkpoint
        handle = TableCache(self.lake).open([table])[table]
        store = CheckpointStore(checkpoint, self.store.run or Checkpoint.read(checkpoint).run or "")
        committed = CommittedBatches.read(store, self.config, sys.maxsize)
        if not (lost := committed.lost({table: handle})):
            return
        if not note.forced:
            raise TableError(table, lost[table].blocks)
        accept_lost(store, committed, lost)

    def _waiting(self, place: Place) -> tuple[dict[str, int], str]:
        """Return the last batch of each query with rows for a blocked table, and the columns that they hold."""
        quarantine = quarantine_of(self.config.name, place.route, place.sink)
        handle = self.lake.open(quarantine)
        waiting: Iterable[Quarantined] = ()
        if handle is not None:
            waiting = quarantined_in(self.lake, handle, (place.route, place.sink, quarantine), table=place.table)
        for one in waiting:
            if one.place == place and one.kind == "unblock":
                return one.upto, to_delta(one.columns)
        return {}, to_delta(pa.schema([]))

    def _release(self, pending: PendingRelease, query: str) -> bool:
        """Release the rows of a query; say whether none is left."""
        rows_of_query = _ReleasedRows.read(self, pending, query)
        if query not in pending.decided:
            if not (decided := rows_of_query.decide(pending.upto[query])):
                return not pending.upto[query] > rows_of_query.after
            refused = rows_of_query.violating(decided[0])
            pending.decided[query] = decided[0], decided[1] - refused
            pending.refused[query], pending.demanded[query] = refused, rows_of_query.demanded
            write(self.store, pending)
        last, rows = pending.decided[query]
        counts, refused = {"released": rows}, pending.refused.get(query, 0)
        if rows:
            self._commit(rows_of_query, query, last)
        if refused:
            rows_of_query.refuse(last)
            counts |= {"quarantined": -refused, "refused": refused}
        self._book(pending, query, last, counts)
        rows_of_query.delete(last)
        log.info("%s: %d quarantined rows are in %s now", self.config.name, rows, pending.place.table)
        if refused:
            text = "%s: %d rows violate what %s demands, and are dead letters now"
            log.warning(text, self.config.name, refused, pending.place.table)
        return last >= pending.upto[query]

    def _commit(self, rows_of_query: _ReleasedRows, query: str, last: int) -> None:
        """Commit rows that are decided. Where that fails it is decided anew: the table may demand something else."""
        pending = rows_of_query.pending
        try:
            rows_of_query.commit(last)
        except TableError:
            if _ReleasedRows.read(self, pending, query).after < last:
                del pending.decided[query]
                write(self.store, pending)
            raise

    def _discard(self, pending: PendingRelease, query: str) -> None:
        rows_of_query, last = _ReleasedRows.read(self, pending, query), pending.upto[query]
        if query not in pending.decided:
            pending.decided[query] = last, rows_of_query.frame.filter(F.col("_batch_id") <= last).count()
            write(self.store, pending)
        rows = pending.decided[query][1]
        rows_of_query.add_dead_letters(last)
        self._book(pending, query, last, {"quarantined": -rows, "refused": rows})
        rows_of_query.delete(last)
        log.info("%s: %d quarantined rows for %s are dead letters now", self.config.name, rows, pending.place.table)

    def _book(self, pending: PendingRelease, query: str, last: int, counts: dict[str, int]) -> None:
        place, (name, _, run) = pending.place, query.rpartition(":")
        row = {"query": name, "run": run, "batch_id": last, "route": place.route, "sink": place.sink, **counts}
        reason = "discard" if pending.discard else pending.kind
        app = TransactionId("ledger_move", query, place.route, place.sink, place.table, reason)
        entry = ledger.LedgerEntry(self.config.ledger, str(app), last)
        ledger.append(self.committers, entry, [row])


class _NotTaken(Exception):  # noqa: N818 - it says what happened
    """Rows that their table does not take as it is now."""


@dataclass(frozen=True)
class _ReleasedRows:
    """The quarantined rows of one query for one table, and their release.

    `after` is the batch up to which the table has them; `kinds` has the type in which each column of the quarantine
    goes into the table; `table` the types of the table as it may be. `demanded` is what the table demands of its rows,
    `schema` its columns as Delta's JSON. `waiting` are the rows with those that the table has already.
    """

    of: Release
    pending: PendingRelease
    query: str
    quarantine: str
    frame: DataFrame
    have: pa.Schema | None
    kinds: Kinds
    after: int
    table: dict[str, pa.DataType]
    waiting: DataFrame
    schema: str
    demanded: Conditions

    @classmethod
    def read(cls, of: Release, pending: PendingRelease, query: str) -> _ReleasedRows:
        place, kind = pending.place, pending.kind
        quarantine = quarantine_of(of.config.name, place.route, place.sink)
        handle = None if pending.discard else TableCache(of.lake).open([place.table])[place.table]
        rows = of.lake.open(quarantine)
        assert rows is not None  # rows of it were approved
        after = released(handle, place, query, kind)
        have = delta_schema(to_arrow(handle)) if handle else None
        frame = of.spark.read.format("delta").load(of.lake.spark_address(quarantine))
        cause = frame["_cause"] if "_cause" in frame.columns else F.lit(None)
        frame = frame.withColumn("_cause", cause)
        mine = _mine(place, query, kind)
        rows_id = str(TransactionId("rows", query, place.route, place.sink, place.table))
        if handle and kind == "unblock" and (direct := handle.transaction_version(rows_id)) is not None:
            mine &= F.col("_batch_id") > direct  # the table was damaged after a commit that nobody could read any more
        came = [column for column in delta_schema(to_arrow(rows)) if column.name not in OWN]
        table, lossy = _may_have(of.config, pending, handle)
        kinds = {column.name: _kind(table.get(column.name), column.type) for column in came}
        kinds = {name: kind for name, kind in kinds.items() if kind is not None or not lossy}
        schema = handle.schema().to_json() if handle else ""
        demanded = pending.demanded.get(query) if query in pending.decided else None
        if demanded is None:
            demanded = constraints(schema, handle.metadata().configuration) if handle else {}
        waiting = frame.filter(mine)
        left = waiting.filter(F.col("_batch_id") > after)
        return cls(of, pending, query, quarantine, left, have, kinds, after, table, waiting, schema, demanded)

    @property
    def columns(self) -> DataFrame:
        """Return the rows as their table has them, with their batch."""
        return self.frame.select("_batch_id", *map(quoted, self.kinds))

    def decide(self, upto: int) -> tuple[int, int] | None:
        """Return the last batch whose rows are released, and the number of rows; None where there are none."""
        task = _checking(self.kinds, self.of.config.decode.zero_is_absent)
        rows: dict[int, int] = {}
        bad: list[int] = []
        for report in self._reports(self.columns, task):  # one for each task
            bad += report["bad"]
            for batch, count in report["rows"]:
                rows[batch] = rows.get(batch, 0) + count
        first_bad = min(bad, default=None)
        if first_bad is not None and first_bad <= upto:
            text = "rows from batch %d on stay quarantined for %s: the table has changed since they were approved"
            log.warning(f"%s: {text}", self.of.config.name, first_bad, self.pending.place.table)
        good = {batch: count for batch, count in rows.items() if first_bad is None or batch < first_bad}
        if not good:
            return None
        return (first_bad - 1 if first_bad is not None else max(good)), sum(good.values())

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Return the columns that go into the table, with the types in which they do."""
        return {name: limited_to(self.table[name], kind) for name, kind in self.kinds.items() if kind is not None}

    def judged(self, rows: DataFrame) -> DataFrame:
        """Add to quarantined rows what they violate of what their table demands, as they would be in it."""
        whole, columns = "_quarantined", pa.schema(list(self.types.items()))
        kinds = StructType([*rows.schema, StructField("_row", to_spark_columns(columns, ntz=True))])
        cast = rows.mapInArrow(self.of.executors.guarded(_casting(self.kinds, columns)), kinds)
        row = [F.col(f"_row.{quoted(name)}") for name in columns.names]
        flat = cast.select(F.struct(*map(quoted, rows.columns)).alias(whole), *row)
        return with_violations(flat, self.schema, self.demanded).select(f"{whole}.*", VIOLATES)

    def violating(self, last: int) -> int:
        """Return how many rows of batches up to the last violate what their table demands."""
        if not self.demanded:
            return 0
        return self.judged(self.frame.filter(F.col("_batch_id") <= last)).filter(F.col(VIOLATES).isNotNull()).count()

    def refuse(self, last: int) -> None:
        """Append the rows that violate what their table demands to the dead letters, once."""
        rows = self.judged(self.waiting.filter(F.col("_batch_id") <= last)).filter(F.col(VIOLATES).isNotNull())
        place, kind = self.pending.place, self.pending.kind
        why = F.concat(F.lit(f"table {place.table}: "), F.col(VIOLATES), F.lit(" does not hold"))
        app = TransactionId("refuse", self.query, place.route, place.sink, place.table, kind)
        self._append_dead_letters(rows, why, str(app), last)

    def commit(self, last: int) -> None:
        """Stage the rows of batches up to the last that may land, and commit them once."""
        if self.after >= last:
            return
        place, lake = self.pending.place, self.of.lake
        columns = self.types
        options = self.of.config.landing
        staging = Staging(lake, options.file_bytes, options.buffer_bytes)
        where = f"{place.route}/{place.sink}", place.table, last
        task = _staging(self.kinds, pa.schema(list(columns.items())), staging, where)
        frame = self.frame.filter(F.col("_batch_id") <= last)
        frame = self.judged(frame).filter(F.col(VIOLATES).isNull()) if self.pending.refused.get(self.query) else frame
        reports = self._reports(frame.select("_batch_id", *map(quoted, self.kinds)), task)
        files = tuple(map(StagedFile.of, reports))
        written = pa.schema([(name, kind) for name, kind in columns.items() if any(name in f.columns for f in files)])
        change = compare(self.have, written) if self.have is not None else SchemaDiff()
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
        made = 0
        try:
            made = self.of.committers.commit((work,), {}, notes)
        finally:
            for file in files if not made else ():
                lake.delete(file.path)

    def _reports(self, rows: DataFrame, task: Callable[..., Any]) -> list[dict[str, Any]]:
        """Return what the tasks of a job report; raise StartError where an executor lacks what the driver has."""
        executors = self.of.executors
        found = rows.mapInArrow(executors.guarded(task, reports=True), "report string").collect()
        return executors.without_looks(json.loads(row["report"]) for row in found)

    def add_dead_letters(self, last: int) -> None:
        """Append the rows of batches up to the last to the dead letters, once."""
        place = self.pending.place
        why = F.coalesce("_cause", F.lit(f"table {place.table}: nobody approved the change that the row needs"))
        rows = self.frame.filter(F.col("_batch_id") <= last)
        app = TransactionId("discard", self.query, place.route, place.sink, place.table)
        self._append_dead_letters(rows, why, str(app), last)

    def _append_dead_letters(self, rows: DataFrame, why: Column, app_id: str, last: int) -> None:
        """Append rows to the dead letters as received, where bronze has them.

        Without bronze, or where a row's coordinates are not known, the value is the row as JSON.
        """
        place, config, lake = self.pending.place, self.of.config, self.of.lake
        for name in {*COORDINATES} - {*rows.columns}:
            rows = rows.withColumn(name, F.lit(None))
        old = {new: F.col(name) for name, new in COORDINATES.items()}
        row = F.to_json(F.struct(*map(quoted, self.kinds))).cast("binary") if self.kinds else F.lit(None)
        row = F.coalesce(F.col(ROW).cast("binary"), row) if ROW in rows.columns else row
        stage = "expect" if self.pending.kind == "held" and self.pending.discard else "schema"
        about = {"stage": F.lit(stage), "reason": why, "route": F.lit(place.route), "sink": F.lit(place.sink)}
        letters = {**about, **old, "batch_id": F.col("_batch_id"), "value": row}
        found = rows.select(*(column.alias(name) for name, column in letters.items()))
        if tables := bronze_tables(lake, config):
            read = self.of.spark.read.format("delta")
            found = _as_received(
                found, reduce(DataFrame.unionByName, [read.load(lake.spark_address(t)) for t in tables])
            )
        kinds = to_spark_columns(DEAD_SCHEMA)
        found = found.select(*(_or_null(found, field.name).cast(field.dataType).alias(field.name) for field in kinds))
        work = TableCommit("/dead_letters", config.dead_letters, app_id, last, (), to_delta(DEAD_SCHEMA))
        self.of.committers.append(self.of.spark.newSession(), work, {"router.discarded": self.query}, found)

    def delete(self, last: int) -> None:
        """Delete the rows of batches up to the last from the quarantine."""
        mine = _mine(self.pending.place, self.query, self.pending.kind, there="_cause" in self._kept)
        table = SparkDeltaTable.forPath(self.of.spark, self.of.lake.spark_address(self.quarantine))
        table.delete(mine & (F.col("_batch_id") <= last))

    @property
    def _kept(self) -> list[str]:
        return self.of.spark.read.format("delta").load(self.of.lake.spark_address(self.quarantine)).columns


def _mine(place: Place, query: str, kind: Kind, *, there: bool = True) -> Column:
    """Return the condition of the rows of one query for one table, in a quarantine that has `_cause` or not."""
    mine = (F.col("_table") == place.table) & (F.col("_query") == query)
    if not there:
        return mine
    cause, held = F.col("_cause"), F.coalesce(F.col("_cause").startswith(HELD), F.lit(False))
    return mine & {"release": cause.isNull(), "unblock": cause.isNotNull() & ~held, "held": held}[kind]


def _as_received(found: DataFrame, bronze: DataFrame) -> DataFrame:
    """Return dead letters with key, value and headers of the records in bronze, where it has them."""
    where = ["topic", "partition", "offset"]
    kept = [name for name in BRONZE_SCHEMA.names if name not in (*where, "batch_id")]
    stored = [_or_null(bronze, name).alias(f"_{name}") for name in kept]
    records = bronze.select(*where, *stored, F.lit(True).alias("_there"))
    joined = found.join(records, where, "left")
    return joined.withColumns({
        name: F.when(F.col("_there"), F.col(f"_{name}")).otherwise(_or_null(found, name)) for name in kept
    })  # fmt: skip


def _or_null(frame: DataFrame, name: str) -> Column:
    return F.col(name) if name in frame.columns else F.lit(None)


def _may_have(
    config: Config, pending: PendingRelease, handle: DeltaTable | None
) -> tuple[dict[str, pa.DataType], bool]:
    """Return the columns and types that a table may have, and whether values that it has no place for are left out.

    What an approval says, goes; a blocked table gains by its release what its sink lets it gain.
    """
    place, have = pending.place, delta_schema(to_arrow(handle)) if handle else None
    sink = next((s for route, name, s in config.all_sinks() if (route, name) == (place.route, place.sink)), None)
    evolution = sink.evolution if isinstance(sink, TableSink) else "evolve"
    if not pending.cause or handle is None or have is None:
        return allowed(have, pending), False
    if evolution == "evolve":
        found, asked = allowed(have, pending), sink.widening if isinstance(sink, TableSink) else "rewrite"
        keeps = {*have.names} if way(handle, place.table, asked) is None else set()
        kept = {name: type_within(have.field(name).type, found[name], new_fields=True) for name in keeps}
        return {**found, **kept}, False
    return {column.name: column.type for column in have}, evolution == "freeze"


def _kind(to: pa.DataType | None, come: pa.DataType) -> pa.DataType | None:
    return type_within(to, come) if to is not None and common_type(to, come) is not None else None


def _checking(kinds: Kinds, blank: bool) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that counts rows by batch and lists the batches with rows that nobody approved."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: dict[int, int] = {}
        bad: set[int] = set()
        for batch in batches:
            numbers = batch.column("_batch_id").to_numpy()
            for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
                rows[int(number)] = rows.get(int(number), 0) + int(count)
            unfit = np.zeros(len(numbers), bool)
            for name, kind in kinds.items():
                values = batch.column(name)
                if kind is None:
                    unfit |= has_value(values, blank=blank)
                elif values.type != kind:
                    found = cast_down(values, kind, blank=blank)
                    unfit |= found.lost | found.too_wide
            bad |= {int(number) for number in np.unique(numbers[unfit])}
        report = json.dumps({"rows": sorted(rows.items()), "bad": sorted(bad)})
        yield pa.RecordBatch.from_arrays([pa.array([report])], names=["report"])

    return check


def _casting(kinds: Kinds, schema: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that adds to rows the struct `_row`: what of them goes into their table."""

    def cast(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = {n: cast_down(batch.column(n), kind).array for n, kind in kinds.items() if kind is not None}
            row = cast_to(pa.table(found), schema).combine_chunks().to_struct_array().combine_chunks()
            yield pa.RecordBatch.from_arrays([*batch.columns, row], names=[*batch.schema.names, "_row"])

    return cast


def _staging(
    kinds: Kinds, schema: pa.Schema, staging: Staging, where: tuple[str, str, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that stages rows for their table, in types that it may have."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        target, table, last = where
        writer = staging.writer(last, f"released-{attempt()}")
        for batch in batches:
            columns = {
                name: cast_down(batch.column(name), kind).array for name, kind in kinds.items() if kind is not None
            }
            rows = cast_to(pa.table(columns), schema).combine_chunks().to_batches()
            for part in rows:
                writer.hold(target, table, part, seen=True)
            writer.flush()
        reports = [json.dumps(asdict(file)) for file in writer.close()]
        yield pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], names=["report"])

    return stage
