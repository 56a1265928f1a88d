"""Run the merging sinks of a query: after the commit of an outbox its rows are merged into their tables.

The rows of tables that cannot be written are the backlog of the outbox. Those of other tables are merged.
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
from router.delta.replace_by_spark import outbox_rows
from router.delta.table_cache import THREADS
from router.delta.transaction_id import TransactionId, merge_refusals_id
from router.engine.label.layout import DEAD_SCHEMA, TABLE, merge_options, with_order_columns
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
"""Tasks of a merge per core: tables of different sizes share a task by chance, and several tasks even that out."""

_CHANGES = ("inserted", "updated", "deleted", "late")
"""The counts of a merge that its line in the log shows."""
MERGES = {
    "auto": f"delta-rs merges tables of up to {LARGE >> 30} GiB that it may write, Delta on Spark the others",
    "arrow": "delta-rs merges all tables that it may write: the engine is given",
    "spark": "Delta on Spark merges all tables: the engine is given",
}
"""The reason for the way in which a sink is merged, by its option `engine`."""


@dataclass(frozen=True)
class OutboxRows:
    """The rows of a merging sink in one batch: `events` are those of `work`, read from `partitions`."""

    target: Target
    work: TableCommit
    events: DataFrame
    partitions: tuple[Partition, ...]
    notes: dict[str, str]


@dataclass(frozen=True)
class MergeCoordinator:
    """The merges of a query. `query` is the query with its run: transaction ids begin with it.

    `tables` are those merged since it was cleared, each with its sink (ROUTE/SINK). By sink: `known` are the tables
    that it has merged into, `merged` those of this process with the last batch that they have, and `left` those that it
    leaves to Delta on Spark, with the reason.
    """

    query: str
    lake: Lake
    spark: SparkSession
    store: CheckpointStore
    committers: Committers
    options: Options
    dead_letters: str
    executors: Executors
    tables: dict[str, str] = field(default_factory=dict)
    known: dict[str, MergedTables] = field(default_factory=dict)
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    merged: dict[str, dict[str, int]] = field(default_factory=dict)

    def merge(self, sink: MergingSink, rows: OutboxRows) -> Applied:
        """Merge the rows of one outbox into their tables; return the counts of rows.

        Doing it again changes nothing. The rows of a table that cannot be written join the backlog, and are merged with
        those of a later batch, which also counts them. Raises SinkError if a later try cannot help.
        """
        target = rows.target
        work = rows.work
        backlogs = BacklogStore(self.store, target.key)
        before = backlogs.before(self.query, work.version)
        outcomes = self._merge_tables(sink, rows, before)
        backlog = self._new_backlog(outcomes, rows, before)
        self._commit_dead_letters(outcomes, work, rows.notes)

        # No row may vanish: each is merged, a dead letter or in the backlog.
        applied = outcomes.counts.get("applied", 0)
        dead = outcomes.counts.get("refused", 0)
        all_rows = work.rows + _count_rows(before)
        waiting = _count_rows(backlog)
        if applied + dead + waiting != all_rows:
            problem = f"of {all_rows} rows {applied} were merged, {dead} refused, and {waiting} wait"
            raise SinkError(self.query, work.version, target.route, target.sink, problem)

        # The mark is last: until it is written, the next start merges the batch again, with the same backlog.
        self.tables.update(dict.fromkeys(outcomes.tables, target.key))
        self._note_committers(sink, target, outcomes)
        self._merged_tables(target).note(outcomes.tables)
        if before or backlog:
            backlogs.note(self.query, work.version, before, backlog)
        counts = Applied(applied, dead)
        self.store.mark_applied(work.version, target.key, counts, outcomes.committed)
        self.merged.setdefault(target.key, {}).update(dict.fromkeys(outcomes.committed, work.version))
        changes = ", ".join(f"{outcomes.counts.get(name, 0)} {name}" for name in _CHANGES)
        log.info("batch %d, %s: %d tables, %s", work.version, target.key, len(outcomes.tables), changes)
        return counts

    def _merge_tables(self, sink: MergingSink, rows: OutboxRows, before: dict[str, Backlog]) -> MergeOutcomes:
        """Merge with delta-rs the tables that it may write, and the others with Delta on Spark."""
        target = rows.target
        job = self._job(sink, rows)
        events = rows.events
        if before:
            waiting = outbox_rows(self.spark, self.lake, rows.work.table).filter(is_backlog(before))
            events = events.unionByName(waiting, allowMissingColumns=True)
        by_spark = SparkMerger(self.spark, self.lake, job)
        outcomes = MergeOutcomes()
        if target.key not in self.left:
            log.info("%s: %s", target.key, MERGES[job.keyed.engine])
            self.left[target.key] = {}
        if job.keyed.engine == "spark":
            by_spark.merge(events, outcomes)
            return outcomes

        left = self._still_left(target, job.keyed)
        # A small batch of one machine is merged without a Spark job, which would cost more than it divides.
        if not left and not before and on_one_machine(self.spark) and is_small(rows.work):
            outcomes = merge_here(rows.work, job)
        elif target.names_in_outbox or not left:
            by_delta_rs = events
            if left:
                by_delta_rs = events.filter(~F.col(TABLE).isin(*left))
            tasks = 1
            if target.names_in_outbox:
                tasks = TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism
            outcomes = merge_by_tasks(by_delta_rs, job, tasks, self.executors)

        # Tasks may have found more tables that only Delta on Spark can write: it merges their rows now.
        self._note_left(target, left | outcomes.spark)
        if self.left[target.key]:
            by_spark.merge(events.filter(F.col(TABLE).isin(*self.left[target.key])), outcomes)
        return outcomes

    def _job(self, sink: MergingSink, rows: OutboxRows) -> MergeJob:
        target = rows.target
        return MergeJob(
            staging=Staging(self.lake, self.options.file_bytes, self.options.buffer_bytes),
            keyed=merge_options(with_order_columns(sink), self.committers.only_spark),
            app=str(TransactionId("sink", self.query, target.route, target.sink)),
            batch=rows.work.version,
            route=target.route,
            sink=target.sink,
            dead_letters=self.dead_letters,
            notes=rows.notes,
            known=self._merged_tables(target).names,
            merged=self.merged.get(target.key, {}),
        )

    def _merged_tables(self, target: Target) -> MergedTables:
        return self.known.setdefault(target.key, MergedTables(self.store, target.key))

    def _still_left(self, target: Target, keyed: KeyedTable) -> dict[str, str]:
        """Return the tables that delta-rs still cannot write, and why: Delta on Spark gets their rows at once."""

        def reason(table: str) -> str | None:
            with suppress(DeltaError, OSError):  # the task that merges the table reports it
                chosen = merge_engine(self.lake.open(table), keyed)
                return chosen.why if chosen.engine == "spark" else None
            return None

        tables = list(self.left[target.key])
        still_left = {}
        with ThreadPoolExecutor(THREADS) as pool:
            for table, why in zip(tables, pool.map(reason, tables), strict=True):
                if why is not None:
                    still_left[table] = why
        return still_left

    def _note_left(self, target: Target, left: dict[str, str]) -> None:
        """Note the tables that are left to Delta on Spark; log which tables another engine merges from now on."""
        before = self.left[target.key]
        for table, why in sorted(left.items()):
            if before.get(table) != why:
                log.info("%s: Delta on Spark merges %s: %s", target.key, table, why)
        for table in sorted(before.keys() - left.keys()):
            log.info("%s: delta-rs merges %s again", target.key, table)
        self.left[target.key] = left

    def _note_committers(self, sink: MergingSink, target: Target, outcomes: MergeOutcomes) -> None:
        """Note what has merged each table."""
        only_spark = merge_options(with_order_columns(sink), self.committers.only_spark).engine == "spark"
        for table in outcomes.tables:
            by_spark = only_spark or table in self.left[target.key]
            self.committers.committed_by[table] = "Spark" if by_spark else "delta-rs"

    def _new_backlog(self, outcomes: MergeOutcomes, rows: OutboxRows, before: dict[str, Backlog]) -> dict[str, Backlog]:
        """Return the new backlog by table; raise SinkError if a later try cannot help."""
        target = rows.target
        batch = rows.work.version
        if outcomes.forbidden:
            self._delete_dead_letters(outcomes)  # the next try writes them again
            table = min(outcomes.forbidden)
            problem = f"table {table}: {outcomes.failed[table]}"
            raise SinkError(self.query, batch, target.route, target.sink, problem)
        for table, why in sorted(outcomes.failed.items()):
            log.warning("batch %d, %s: %d rows wait for %s: %s", batch, target.key, outcomes.left[table], table, why)
        for table in sorted(before.keys() - outcomes.failed.keys()):
            log.info("batch %d, %s: %d rows that waited are in %s", batch, target.key, before[table].rows, table)

        backlog = {}
        for table, why in outcomes.failed.items():
            spans: _Spans = {}
            if table in before:
                spans = before[table].spans
            backlog[table] = Backlog(outcomes.left[table], extended(spans, rows.partitions), why)
        return backlog

    def _commit_dead_letters(self, outcomes: MergeOutcomes, work: TableCommit, notes: dict[str, str]) -> None:
        """Commit the dead letters that the merges have written."""
        if not outcomes.files:
            return
        dead = TableCommit(
            target="/dead_letters",
            table=self.dead_letters,
            app_id=merge_refusals_id(work.app_id),
            version=work.version,
            files=tuple(outcomes.files),
            columns=to_delta(DEAD_SCHEMA),
        )
        if not self.committers.commit((dead,), {}, notes):
            self._delete_dead_letters(outcomes)  # an earlier try has committed others of the same rows

    def _delete_dead_letters(self, outcomes: MergeOutcomes) -> None:
        for file in outcomes.files:
            self.lake.files.delete_file(file.path)


def _count_rows(backlog: dict[str, Backlog]) -> int:
    return sum(of_table.rows for of_table in backlog.values())


@dataclass
class MergedTables:
    """The tables that one sink has merged into, in the checkpoint store. One that no longer exists was dropped."""

    store: CheckpointStore
    key: str
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.names = frozenset(self.store.load(self._path) or ())

    def note(self, tables: Iterable[str]) -> None:
        """Note tables that were merged into."""
        new = frozenset(tables) - self.names
        if new:
            self.names |= new
            self.store.write(self._path, json.dumps(sorted(self.names)).encode())

    @property
    def _path(self) -> str:
        return f"known/{self.key.replace('/', '__')}.json"


_Spans = dict[str, dict[int, tuple[int, int]]]
"""Topic -> partition -> first and last offset."""


@dataclass(frozen=True)
class Backlog:
    """The backlog of one table: the number of rows, the offsets that they came from, and why they wait."""

    rows: int
    spans: _Spans
    why: str


@dataclass(frozen=True)
class BacklogStore:
    """The backlog of one outbox by table, in the checkpoint store."""

    store: CheckpointStore
    key: str

    def before(self, query: str, batch: int) -> dict[str, Backlog]:
        """Return the backlog by table when a batch began, also if that batch was finished before."""
        note = self._read()
        was_finished = note["after"] == [query, batch]
        return _by_table(note["before"] if was_finished else note["now"])

    def now(self) -> dict[str, Backlog]:
        """Return the backlog by table."""
        return _by_table(self._read()["now"])

    def note(self, query: str, batch: int, before: dict[str, Backlog], now: dict[str, Backlog]) -> None:
        """Write the backlog after a batch."""
        note = {
            "after": [query, batch],
            "before": {table: asdict(backlog) for table, backlog in before.items()},
            "now": {table: asdict(backlog) for table, backlog in now.items()},
        }
        self.store.write(self._path, json.dumps(note).encode())

    def _read(self) -> dict[str, Any]:
        note: dict[str, Any] = self.store.load(self._path) or {"after": [], "before": {}, "now": {}}
        return note

    @property
    def _path(self) -> str:
        return f"backlog/{self.key.replace('/', '__')}.json"


def _by_table(note: dict[str, Any]) -> dict[str, Backlog]:
    """Return the backlog by table from its note, in which JSON has made texts of partitions and lists of spans."""
    backlogs = {}
    for table, backlog in note.items():
        spans: _Spans = {}
        for topic, by_partition in backlog["spans"].items():
            spans[topic] = {int(partition): (first, last) for partition, (first, last) in by_partition.items()}
        backlogs[table] = Backlog(backlog["rows"], spans, backlog["why"])
    return backlogs


def extended(spans: _Spans, partitions: Iterable[Partition]) -> _Spans:
    """Return spans extended by those of a later batch."""
    longer = {topic: dict(by_partition) for topic, by_partition in spans.items()}
    for part in partitions:
        of_topic = longer.setdefault(part.topic, {})
        first, _ = of_topic.get(part.partition, (part.first, 0))
        of_topic[part.partition] = (first, part.last)
    return longer


def is_backlog(backlog: dict[str, Backlog]) -> Column:
    """Return whether a row of an outbox belongs to its backlog."""
    return any_of((F.col(TABLE) == table) & within(waiting.spans) for table, waiting in backlog.items())


def within(spans: _Spans) -> Column:
    """Return whether a row's record is within some spans of offsets."""
    conditions = []
    for topic, by_partition in spans.items():
        for partition, (first, last) in by_partition.items():
            of_partition = (F.col("_topic") == topic) & (F.col("_partition") == partition)
            conditions.append(of_partition & F.col("_offset").between(first, last))
    return any_of(conditions)
