"""Run the merging sinks of a query: after the commit of an outbox its rows are merged into their tables.

The rows of tables that cannot be written are the backlog of the outbox. The rows of other tables go on.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from router.columns import any_of
from router.delta.commit import TableCommit, to_delta
from router.delta.keyed.upsert import LARGE, merge_engine
from router.delta.parquet_writer import Staging
from router.delta.table_cache import THREADS
from router.delta.transaction_id import TransactionId, merge_refusals_id
from router.engine.label.layout import DEAD_SCHEMA, TABLE, asked, counted
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes, is_small, merge_by_tasks, merge_here
from router.engine.merge.delta_spark import SparkMerger
from router.engine.spark.executors import on_one_machine
from router.errors import SinkError
from router.sinks import Applied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.config.models import Landing as Options
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.commit.committers import Committers
    from router.engine.label.layout import Target
    from router.engine.spark.executors import Executors
    from router.sinks import KeyedTable, MergingSink

log = logging.getLogger("router")
TASKS_PER_CORE = 4
"""Tables of different sizes share a task by chance: with several tasks for each core none has to wait for long."""

MERGES = {
    "auto": f"delta-rs merges tables of up to {LARGE >> 30} GiB that it may write, Delta on Spark the others",
    "arrow": "delta-rs merges all tables that it may write: the engine is given",
    "spark": "Delta on Spark merges all tables: the engine is given",
}
"""The reason for the way in which a sink is merged, by its option `engine`."""


@dataclass(frozen=True)
class OutboxRows:
    """What a merging sink got in one batch: `events` are the rows of `work`, read from `partitions`."""

    target: Target
    work: TableCommit
    events: DataFrame
    partitions: tuple[Partition, ...]
    notes: dict[str, str]


@dataclass(frozen=True)
class MergeCoordinator:
    """The merges of a query. `query` is the query with its run: transaction ids begin with it.

    `tables` are those merged since it was cleared; `known`, `merged` and `left` are by sink: the tables that it has
    merged into, those of this process with the last batch that they have, and those that it leaves to Delta on Spark,
    with the reason.
    """

    query: str
    lake: Lake
    spark: SparkSession
    store: CheckpointStore
    committers: Committers
    options: Options
    dead_letters: str
    executors: Executors
    tables: set[str] = field(default_factory=set)
    known: dict[str, MergedTables] = field(default_factory=dict)
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    merged: dict[str, dict[str, int]] = field(default_factory=dict)

    def merge(self, sink: MergingSink, rows: OutboxRows) -> Applied:
        """Merge the rows of one outbox into their tables; return the counts of rows.

        Doing it again changes nothing. The rows of a table that cannot be written join the backlog, and are merged with
        those of a later batch, which counts them too. Raises SinkError where a later try cannot help.
        """
        target, work = rows.target, rows.work
        backlogs = BacklogStore(self.store, target.key)
        before = backlogs.before(self.query, work.version)
        found = self._outcomes(sink, rows, before)
        backlog = self._backlog(found, rows, before)
        self._commit_dead_letters(found, work, rows.notes)
        applied, dead = found.counts.get("applied", 0), found.counts.get("refused", 0)
        given, left = work.rows + _rows(before), _rows(backlog)
        if applied + dead + left != given:
            what = f"of {given} rows {applied} were merged, {dead} refused, and {left} wait"
            raise SinkError(self.query, work.version, target.route, target.sink, what)
        self.tables.update(found.tables)
        self._known(target).note(found.tables)
        if before or backlog:
            backlogs.note(self.query, work.version, before, backlog)
        counts = Applied(applied, dead)
        self.store.mark_applied(work.version, target.key, counts, found.committed)
        self.merged.setdefault(target.key, {}).update(dict.fromkeys(found.committed, work.version))
        made = ", ".join(f"{found.counts.get(name, 0)} {name}" for name in ("inserted", "updated", "deleted", "late"))
        log.info("batch %d, %s: %d tables, %s", work.version, target.key, len(found.tables), made)
        return counts

    def _outcomes(self, sink: MergingSink, rows: OutboxRows, before: dict[str, Backlog]) -> MergeOutcomes:
        """Merge with delta-rs what it may write, and the other tables with Delta on Spark."""
        target, job = rows.target, self._job(sink, rows)
        events = with_backlog(rows.events, before, self.spark, self.lake.spark_address(rows.work.table))
        by_spark, found = SparkMerger(self.spark, self.lake, job), MergeOutcomes()
        if target.key not in self.left:
            log.info("%s: %s", target.key, MERGES[job.keyed.engine])
            self.left[target.key] = {}
        if job.keyed.engine == "spark":
            by_spark.merge(events, found)
            return found
        left = self._still_left(target, job.keyed)
        if not left and not before and on_one_machine(self.spark) and is_small(rows.work):
            found = merge_here(rows.work, job)
        elif target.names_in_outbox or not left:
            several = TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism
            rest = events.filter(~F.col(TABLE).isin(*left)) if left else events
            found = merge_by_tasks(rest, job, several if target.names_in_outbox else 1, self.executors)
        self._tell(target, left | found.spark)
        if self.left[target.key]:
            by_spark.merge(events.filter(F.col(TABLE).isin(*self.left[target.key])), found)
        return found

    def _job(self, sink: MergingSink, rows: OutboxRows) -> MergeJob:
        target, work, keyed = rows.target, rows.work, asked(counted(sink), self.committers.only_spark)
        staging = Staging(self.lake, self.options.file_bytes, self.options.buffer_bytes)
        app = str(TransactionId("sink", self.query, target.route, target.sink))
        about = work.version, target.route, target.sink, self.dead_letters, rows.notes
        return MergeJob(staging, keyed, app, *about, self._known(target).names, self.merged.get(target.key, {}))

    def _known(self, target: Target) -> MergedTables:
        return self.known.setdefault(target.key, MergedTables(self.store, target.key))

    def _still_left(self, target: Target, keyed: KeyedTable) -> dict[str, str]:
        """Return the tables that delta-rs still cannot write, and why: Delta on Spark gets their rows at once."""

        def why(table: str) -> str | None:
            with suppress(DeltaError, OSError):  # a task will say it
                chosen = merge_engine(self.lake.open(table), keyed)
                return chosen.why if chosen.engine == "spark" else None
            return None

        left = self.left[target.key]
        with ThreadPoolExecutor(THREADS) as pool:
            return {table: found for table, found in zip(left, pool.map(why, left), strict=True) if found is not None}

    def _tell(self, target: Target, left: dict[str, str]) -> None:
        """Log which tables another engine merges from now on, and why."""
        before = self.left[target.key]
        for table, why in sorted(left.items()):
            if before.get(table) != why:
                log.info("%s: Delta on Spark merges %s: %s", target.key, table, why)
        for table in sorted(before.keys() - left.keys()):
            log.info("%s: delta-rs merges %s again", target.key, table)
        self.left[target.key] = left

    def _backlog(self, found: MergeOutcomes, rows: OutboxRows, before: dict[str, Backlog]) -> dict[str, Backlog]:
        """Return the new backlog by table; raise SinkError where a later try cannot help."""
        target, batch, failed = rows.target, rows.work.version, found.failed
        if found.forbidden:
            for file in found.files:  # the next try writes them anew
                self.lake.files.delete_file(file.path)
            table = min(found.forbidden)
            raise SinkError(self.query, batch, target.route, target.sink, f"table {table}: {failed[table]}")
        for table, what in sorted(failed.items()):
            log.warning("batch %d, %s: %d rows wait for %s: %s", batch, target.key, found.left[table], table, what)
        for table in sorted(before.keys() - failed.keys()):
            log.info("batch %d, %s: %d rows that waited are in %s", batch, target.key, before[table].rows, table)
        spans = {table: extended(before[table].spans if table in before else {}, rows.partitions) for table in failed}
        return {table: Backlog(found.left[table], spans[table], what) for table, what in failed.items()}

    def _commit_dead_letters(self, found: MergeOutcomes, work: TableCommit, notes: dict[str, str]) -> None:
        """Commit the dead letters that the merges have written."""
        if not found.files:
            return
        dead = TableCommit(
            target="/dead_letters",
            table=self.dead_letters,
            app_id=merge_refusals_id(work.app_id),
            version=work.version,
            files=tuple(found.files),
            columns=to_delta(DEAD_SCHEMA),
        )
        if not self.committers.commit((dead,), {}, notes):
            for file in found.files:
                self.lake.files.delete_file(file.path)


def _rows(backlog: dict[str, Backlog]) -> int:
    return sum(found.rows for found in backlog.values())


@dataclass
class MergedTables:
    """The tables that one sink has merged into, in the checkpoint store: one that is gone was dropped."""

    store: CheckpointStore
    key: str
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.names = frozenset(self.store.load(self._path) or ())

    def note(self, tables: Iterable[str]) -> None:
        """Note tables that were merged into."""
        if new := frozenset(tables) - self.names:
            self.names |= new
            self.store.write(self._path, json.dumps(sorted(self.names)).encode())

    @property
    def _path(self) -> str:
        return f"known/{self.key.replace('/', '__')}.json"


Spans = dict[str, dict[int, tuple[int, int]]]
"""Topic -> partition -> first and last offset."""


@dataclass(frozen=True)
class Backlog:
    """The backlog of one table: the number of rows, the offsets that they came from, and why they wait."""

    rows: int
    spans: Spans
    why: str


@dataclass(frozen=True)
class BacklogStore:
    """The backlog of one outbox by table, in the checkpoint store."""

    store: CheckpointStore
    key: str

    def before(self, query: str, batch: int) -> dict[str, Backlog]:
        """Return the backlog by table when a batch began, also if that batch was finished before."""
        found = self._read()
        return _by_table(found["before" if found["after"] == [query, batch] else "now"])

    def now(self) -> dict[str, Backlog]:
        """Return the backlog by table."""
        return _by_table(self._read()["now"])

    def note(self, query: str, batch: int, before: dict[str, Backlog], now: dict[str, Backlog]) -> None:
        """Write the backlog after a batch."""
        tables = {
            name: {table: asdict(backlog) for table, backlog in found.items()}
            for name, found in (("before", before), ("now", now))
        }
        self.store.write(self._path, json.dumps({"after": [query, batch], **tables}).encode())

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.load(self._path) or {"after": [], "before": {}, "now": {}}
        return found

    @property
    def _path(self) -> str:
        return f"backlog/{self.key.replace('/', '__')}.json"


def _by_table(found: dict[str, Any]) -> dict[str, Backlog]:
    return {table: _backlog(**about) for table, about in found.items()}


def _backlog(rows: int, spans: dict[str, dict[str, list[int]]], why: str) -> Backlog:
    return Backlog(rows, {t: {int(p): (a, b) for p, (a, b) in by.items()} for t, by in spans.items()}, why)


def extended(spans: Spans, partitions: Iterable[Partition]) -> Spans:
    """Return spans extended by those of a later batch."""
    found = {topic: dict(by) for topic, by in spans.items()}
    for part in partitions:
        first, _ = found.setdefault(part.topic, {}).get(part.partition, (part.first, 0))
        found[part.topic][part.partition] = (first, part.last)
    return found


def with_backlog(events: DataFrame, backlog: dict[str, Backlog], spark: SparkSession, outbox: str) -> DataFrame:
    """Return the rows of a batch together with those of the backlog, read from the outbox at an address."""
    if not backlog:
        return events
    rows = spark.read.format("delta").load(outbox)
    chosen = any_of((F.col(TABLE) == table) & within(found.spans) for table, found in backlog.items())
    return events.unionByName(rows.filter(chosen), allowMissingColumns=True)


def within(spans: Spans) -> Column:
    return any_of(
        (F.col("_topic") == topic) & (F.col("_partition") == partition) & F.col("_offset").between(*span)
        for topic, by in spans.items()
        for partition, span in by.items()
    )
