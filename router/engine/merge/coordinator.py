"""Run the merging sinks of a query: after the commit of an outbox its rows are merged into their tables.

The rows of tables that cannot be written are the backlog of the outbox. Those of other tables are merged.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from router.api.columns import any_of
from router.api.sinks import Applied
from router.delta.commit import TableCommit, to_delta
from router.delta.keyed.upsert import LARGE, merge_engine
from router.delta.parquet_writer import Staging
from router.delta.replace_by_spark import in_types_of, outbox_rows
from router.delta.table_cache import THREADS
from router.delta.transaction_id import TransactionId, merge_refusals_id, table_id
from router.engine import ledger
from router.engine.label.layout import DEAD_SCHEMA, merge_options, with_order_columns
from router.engine.merge.backlog import Backlog, BacklogStore, MergedBacklog, extend_spans
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes, is_small, merge_by_tasks, merge_here
from router.engine.merge.delta_spark import SparkMerger
from router.engine.merge.refused_keys import RefusedKeys
from router.engine.spark.executors import on_one_machine
from router.errors import RouterError, SinkError, first_line
from router.own_names import OFFSET, PARTITION, TABLE, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.api.sinks import KeyedTable, MergingSink
    from router.config.models import Landing as Options
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.commit.committers import Committers
    from router.engine.label.layout import Target
    from router.engine.merge.backlog import Spans
    from router.engine.spark.executors import Executors

log = logging.getLogger("router")
TASKS_PER_CORE = 4
"""Tasks of a merge per core: tables of different sizes share a task by chance, and several tasks even that out."""

_MERGE_COUNTS = ("inserted", "updated", "deleted", "late")
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
    that it has merged into, `merged` those of this process with the last batch that they have, `left` those that it
    leaves to Delta on Spark, with the reason, `waiting` those that cannot be written, with their backlog, and `refused`
    the keys that they refuse.
    """

    query: str
    lake: Lake
    spark: SparkSession
    store: CheckpointStore
    committers: Committers
    options: Options
    dead_letters: str
    ledger: str
    executors: Executors
    tables: dict[str, str] = field(default_factory=dict)
    known: dict[str, MergedTables] = field(default_factory=dict)
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    merged: dict[str, dict[str, int]] = field(default_factory=dict)
    waiting: dict[str, dict[str, Backlog]] = field(default_factory=dict)
    refused: dict[str, RefusedKeys] = field(default_factory=dict)

    def merge_outbox(self, sink: MergingSink, rows: OutboxRows) -> Applied:
        """Merge the rows of one outbox into their tables; return the counts of rows.

        Doing it again changes nothing. The rows of a table that cannot be written join the backlog, and are merged with
        those of a later batch, which also counts them. Raises SinkError if a later try cannot help.
        """
        target = rows.target
        work = rows.work
        backlogs = BacklogStore(self.store, target.key)
        before = backlogs.read_before(self.query, work.version)
        outcomes = self.merge_tables(sink, rows, before)
        backlog = self._new_backlog(outcomes, rows, before)
        refused_files = [file for files in outcomes.files.values() for file in files]
        self._commit_dead_letters(merge_refusals_id(work.app_id), work.version, refused_files, rows.notes)
        counts = self._balance_counts(outcomes, rows, before, backlog)

        # The mark is last: until it is written, the next start merges the batch again, with the same backlog.
        self.tables.update(dict.fromkeys(outcomes.tables, target.key))
        self._note_committers(sink, target, outcomes)
        self._merged_tables(target).note_tables(outcomes.committed)
        if before or backlog:
            backlogs.write_backlog(self.query, work.version, before, backlog)
        self.waiting[target.key] = backlog
        self.store.mark_applied(work.version, target.key, counts, outcomes.committed)
        self.merged.setdefault(target.key, {}).update(dict.fromkeys(outcomes.committed, work.version))
        changes = ", ".join(f"{outcomes.counts.get(name, 0)} {name}" for name in _MERGE_COUNTS)
        log.info("batch %d, %s: %d tables, %s", work.version, target.key, len(outcomes.tables), changes)
        return counts

    def merge_backlog(self, sink: MergingSink, target: Target) -> None:
        """Merge the backlog of a sink while no batch is under way, under the id of the last batch that is in it.

        So a batch that follows finds these rows in their tables, or in the backlog. Can be repeated from any step:
        each table, its dead letters and its counts in the ledger have a transaction id.
        """
        backlogs = BacklogStore(self.store, target.key)
        self._append_to_ledger(target, backlogs.read_unbooked())
        before = backlogs.read_now()
        if not before:
            return
        query, batch = backlogs.read_last_batch()
        of_query = replace(self, query=query)
        notes = {"router.query": query, "router.batch": str(batch)}
        work = TableCommit(target.key, str(target.table), "", batch, (), to_delta(target.schema))
        outbox = outbox_rows(self.spark, self.lake, work.table)
        rows = OutboxRows(target, work, outbox.filter(F.lit(False)), (), notes)
        outcomes = of_query.merge_tables(sink, rows, before)
        backlog = of_query._new_backlog(outcomes, rows, before)
        app = str(TransactionId("sink", query, target.route, target.sink))
        for table, files in outcomes.files.items():
            self._commit_dead_letters(merge_refusals_id(table_id(app, table)), batch, files, notes)
        self._balance_counts(outcomes, rows, before, backlog)

        self._merged_tables(target).note_tables(outcomes.committed)
        merged = []
        for table in sorted(outcomes.tables):
            counts = outcomes.by_table[table]
            merged.append(MergedBacklog(table, query, batch, counts["applied"], counts["refused"]))
        # First the note, then the ledger: a table that cannot be written again in between would count its rows twice.
        backlogs.write_backlog(query, batch, before, backlog, merged)
        self._append_to_ledger(target, merged)
        self.waiting[target.key] = backlog

    def _append_to_ledger(self, target: Target, merged: Iterable[MergedBacklog]) -> None:
        """Append to the ledger what became of backlogs, once for each table."""
        for of_table in merged:
            name, _, run = of_table.query.rpartition(":")
            counts = Applied(of_table.applied, of_table.dead)
            row = {"query": name, "run": run, "batch_id": of_table.batch, **ledger.of_sink(target.key, counts)}
            app_id = TransactionId("ledger_move", of_table.query, target.route, target.sink, of_table.table, "backlog")
            entry = ledger.LedgerEntry(self.ledger, str(app_id), of_table.batch)
            ledger.append(self.committers, entry, [row])

    def _balance_counts(
        self, outcomes: MergeOutcomes, rows: OutboxRows, before: dict[str, Backlog], backlog: dict[str, Backlog]
    ) -> Applied:
        """Return the counts of a merge. Raises SinkError if a row is not merged, a dead letter or in the backlog."""
        counts = Applied(outcomes.counts.get("applied", 0), outcomes.counts.get("refused", 0))
        all_rows = rows.work.rows + _count_rows(before)
        waiting = _count_rows(backlog)
        if counts.finished_rows + waiting != all_rows:
            problem = f"of {all_rows} rows {counts.applied} were merged, {counts.dead} refused, and {waiting} wait"
            raise SinkError(self.query, rows.work.version, rows.target.route, rows.target.sink, problem)
        return counts

    def merge_tables(self, sink: MergingSink, rows: OutboxRows, before: dict[str, Backlog]) -> MergeOutcomes:
        """Merge the rows of a batch, and a backlog with them.

        If the outbox cannot be read, tables with a backlog go on waiting, and the others are merged.
        """
        job = self._merge_job(sink, rows)
        if not before:
            return self._merge_rows(job, rows, rows.events, small=is_small(rows.work))
        try:
            waiting = outbox_rows(self.spark, self.lake, rows.work.table).filter(is_backlog(before))
            # By name at every depth: fields in maps and arrays come in another order, perhaps, which Spark refuses.
            events = in_types_of(rows.events, waiting.schema).unionByName(waiting, allowMissingColumns=True)
            return self._merge_rows(job, rows, events, small=False)
        except RouterError:
            raise
        except Exception as error:  # if the outbox is not the cause, the same is raised without its rows
            # Tables that were merged already have the batch's id, and are not merged again.
            is_waiting = F.col(TABLE).isin(*before)
            outcomes = self._merge_rows(job, rows, rows.events.filter(~is_waiting), small=False)
            more = {row[TABLE]: row["count"] for row in rows.events.filter(is_waiting).groupBy(TABLE).count().collect()}
            for table, backlog in before.items():
                outcomes.failed[table] = f"the outbox {rows.work.table} cannot be read: {first_line(error)}"
                outcomes.left[table] = backlog.rows + more.get(table, 0)
            return outcomes

    def _merge_rows(self, job: MergeJob, rows: OutboxRows, events: DataFrame, *, small: bool) -> MergeOutcomes:
        """Merge with delta-rs the tables that it may write, and the others with Delta on Spark.

        `events` are of the outbox; with `small` they are all rows of the batch, and few.
        """
        target = rows.target
        if target.key not in self.refused:
            self.refused[target.key] = RefusedKeys(self.store, target.key)
        refused = self.refused[target.key]
        by_spark = SparkMerger(self.spark, self.lake, job, refused)
        outcomes = MergeOutcomes()
        if target.key not in self.left:
            log.info("%s: %s", target.key, MERGES[job.keyed.engine])
            self.left[target.key] = {}
        if job.keyed.engine == "spark":
            by_spark.merge_tables(events, outcomes)
            return outcomes

        left = self._still_left(target, job.keyed)
        left |= dict.fromkeys(refused.read_reasons(job), "it refuses rows of this batch")
        # A small batch of one machine is merged without a Spark job, which would cost more than it divides.
        if small and not left and on_one_machine(self.spark):
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
            by_spark.merge_tables(events.filter(F.col(TABLE).isin(*self.left[target.key])), outcomes)
        return outcomes

    def _merge_job(self, sink: MergingSink, rows: OutboxRows) -> MergeJob:
        target = rows.target
        return MergeJob(
            staging=Staging(self.lake, self.options.file_bytes, self.options.buffer_bytes),
            keyed=with_order_columns(sink, only_spark=self.committers.only_spark),
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

        def reason_of_spark(table: str) -> str | None:
            with suppress(DeltaError, OSError):  # the task that merges the table reports it
                chosen = merge_engine(self.lake.open(table), keyed)
                return chosen.why if chosen.engine == "spark" else None
            return None

        tables = list(self.left[target.key])
        still_left = {}
        with ThreadPoolExecutor(THREADS) as pool:
            for table, why in zip(tables, pool.map(reason_of_spark, tables), strict=True):
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
        only_spark = merge_options(sink, only_spark=self.committers.only_spark).engine == "spark"
        for table in outcomes.tables:
            by_spark = only_spark or table in self.left[target.key]
            self.committers.committed_by[table] = "Spark" if by_spark else "delta-rs"

    def _new_backlog(self, outcomes: MergeOutcomes, rows: OutboxRows, before: dict[str, Backlog]) -> dict[str, Backlog]:
        """Return the new backlog by table; raise SinkError if a later try cannot help."""
        target = rows.target
        batch = rows.work.version
        if outcomes.forbidden:
            for files in outcomes.files.values():
                self._delete_files(files)  # the next try writes them again
            table = min(outcomes.forbidden)
            problem = f"table {table}: {outcomes.failed[table]}"
            raise SinkError(self.query, batch, target.route, target.sink, problem)
        for table, why in sorted(outcomes.failed.items()):
            log.warning("batch %d, %s: %d rows wait for %s: %s", batch, target.key, outcomes.left[table], table, why)
        for table in sorted(before.keys() - outcomes.failed.keys()):
            log.info("batch %d, %s: %d rows that waited are in %s", batch, target.key, before[table].rows, table)

        backlog = {}
        for table, why in outcomes.failed.items():
            spans: Spans = {}
            if table in before:
                spans = before[table].spans
            backlog[table] = Backlog(outcomes.left[table], extend_spans(spans, rows.partitions), why)
        return backlog

    def _commit_dead_letters(self, app_id: str, batch: int, files: Sequence[StagedFile], notes: dict[str, str]) -> None:
        """Commit the dead letters that merges have written."""
        if not files:
            return
        dead = TableCommit(
            target="/dead_letters",
            table=self.dead_letters,
            app_id=app_id,
            version=batch,
            files=tuple(files),
            columns=to_delta(DEAD_SCHEMA),
        )
        if not self.committers.commit_all((dead,), {}, notes):
            self._delete_files(files)  # an earlier try has committed others of the same rows

    def _delete_files(self, files: Iterable[StagedFile]) -> None:
        for file in files:
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
        self.names = frozenset(self.store.load(self._note_path) or ())

    def note_tables(self, tables: Iterable[str]) -> None:
        """Note tables that were merged into."""
        new = frozenset(tables) - self.names
        if new:
            self.names |= new
            self.store.write(self._note_path, json.dumps(sorted(self.names)).encode())

    @property
    def _note_path(self) -> str:
        return f"known/{self.key.replace('/', '__')}.json"


def is_backlog(backlog: dict[str, Backlog]) -> Column:
    """Return whether a row of an outbox belongs to its backlog."""
    return any_of((F.col(TABLE) == table) & is_within_spans(waiting.spans) for table, waiting in backlog.items())


def is_within_spans(spans: Spans) -> Column:
    """Return whether a row's record is within some spans of offsets."""
    conditions = []
    for topic, by_partition in spans.items():
        for partition, (first, last) in by_partition.items():
            of_partition = (F.col(TOPIC) == topic) & (F.col(PARTITION) == partition)
            conditions.append(of_partition & F.col(OFFSET).between(first, last))
    return any_of(conditions)
