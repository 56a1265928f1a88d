"""Process a batch from its offsets to its report: nine steps, each one call of `Batches.process`.

| step | what it does | if the process is killed after it, the next start |
|---|---|---|
| 1 read, 2 decode, 3 label | plans lazily how raw records become labelled rows (`label`) | reads the batch again |
| 4 land | stages a Parquet file per table and task, in one Spark job (`land`) | the same; unreferenced files stay |
| 5 decide | compares files with tables (`commit.schema_evolution`), writes the manifest | finishes what it decided |
| 6 commit | makes one Delta commit per table (`commit.committers`) | skips the tables that have it |
| 7 quarantine | keeps rows whose table cannot be written (`quarantine`); `land` does if it is known before | the same |
| 8 apply | gives each outbox to its sink (`outbox`, `merge`) | continues with the sinks without a mark |
| 9 ledger | writes what became of every record | writes it once, by its transaction id |

A `BatchDecider` does steps 1 to 5 and writes staged files only. Writing the manifest is the commit point: before it a
batch may be read and decided again, after it no row goes elsewhere. A batch is in the ledger before Spark commits its
offsets. A `Destination` holds the choices in which a stream and a replay differ.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from router.delta.commit import is_committed
from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.balance import UnknownFieldReport
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas, Manifest, frozen_as_text
from router.engine.commit.committers import Committers
from router.engine.decision import BatchDecider
from router.engine.destination import CarriedOut
from router.engine.outbox.apply import Outboxes
from router.engine.quarantine.table import Quarantine, faults_of_size
from router.engine.retryable_errors import never_passes
from router.engine.source.position import RecordNumbers, arrival_of
from router.engine.source.unreadable import RawRecords
from router.engine.spark.executors import Executors
from router.engine.start.run_order import ordinal_of
from router.engine.steps import Steps
from router.errors import BatchError, RunningError, StartError, TableError
from router.own_names import OUTBOX

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from router.api.parts import BatchReport
    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.engine.batch_decision import BatchDecision
    from router.engine.destination import Destination
    from router.engine.label.layout import Layout
    from router.engine.label.planner import Plan, Planner
    from router.engine.source.failing_records import Span
    from router.engine.steps import Watch
    from router.engine.topic_ids import TopicIds

log = logging.getLogger("router")
TRIES_WITHOUT_QUARANTINE = 3
"""Tries of a commit that can never succeed, of a table without a quarantine: after them an outbox is quarantined, and
any other table stops the stream. The rows of a table with a quarantine go there after the first failure."""


@dataclass
class Batches:
    """The batches of one query.

    `fingerprint` is that of the configuration. `prepared` is a planner that may have planned before. `tables` opens
    tables; if it is None, the batches open them through a cache of their own. A stream from Kafka has `topics`, and
    `spans`, which returns the records of a batch that has begun.
    """

    config: Config
    fingerprint: str
    spark: SparkSession
    lake: Lake
    store: CheckpointStore
    destination: Destination
    watch: Watch | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    prepared: Planner | None = None
    executors: Executors = field(default_factory=Executors)
    tables: Any = None
    topics: TopicIds | None = None
    spans: Callable[[int], tuple[Span, ...]] | None = None

    def __post_init__(self) -> None:
        config = self.config
        self.query = f"{config.name}:{self.store.run}"
        self.committers = Committers.of(config, self.spark, self.lake)
        self.decider = BatchDecider.of(
            config,
            self.spark,
            self.lake,
            self.query,
            planner=self.prepared,
            tables=self.tables,
            executors=self.executors,
            memory=LearntSchemas(self.store),
            stop=self.stop,
        )
        self.tables = self.decider.tables
        self.outboxes = Outboxes(
            config,
            self.spark,
            self.lake,
            self.store,
            self.query,
            self.committers,
            self.stop,
            self.executors,
            resending=self.store.run if self.destination.resends else None,
        )
        self.quarantine = Quarantine(config, self.lake, self.store, self.committers, self.query)
        # The notes of blocked tables are read with delta-rs, which `commit: spark` must not use.
        if not self.committers.only_spark:
            self.quarantine.note_again()
        self.decider.forget_released(self.quarantine.blocked_reasons())
        by_spark = self.spark if self.committers.only_spark else None
        self.ordinal = ordinal_of(self.store, self.lake, config.ledger, by_spark=by_spark)
        self.numbers = RecordNumbers(
            self.lake, config.ledger, config.name, self.store.run, self.ordinal, by_spark=by_spark
        )
        self.unknown = UnknownFieldReport()

    def process(self, raw: DataFrame | RawRecords, batch: int) -> BatchReport:
        """Process one batch of raw records to its end. Calling it again with the same batch id changes nothing."""
        steps = Steps(batch, self.watch)
        if isinstance(raw, RawRecords):
            records = raw
        else:
            records = RawRecords(raw, partial(self.spans, batch) if self.spans else None, self._not_held)
        with steps.step("plan"):
            earlier_manifest = self.store.read_manifest(batch)
            manifest_to_finish = None
            if earlier_manifest is not None:
                manifest_to_finish = self._manifest_to_finish(earlier_manifest)
            arrival = arrival_of(self.ordinal, batch)
            # 1 read, 2 decode, 3 label: lazy. A decided batch needs no new schemas: its rows are staged already.
            plan = self.decider.plan_batch(self._not_held(records.frame), arrival, refresh=manifest_to_finish is None)
        if manifest_to_finish is not None:
            return self.carry_out(manifest_to_finish, plan, steps, replay=True)

        # Some tables may have been released since the last batch.
        if self.decider.demands.blocked:
            self.decider.forget_released(self.quarantine.blocked_reasons())
        frozen_before = self.decider.demands.frozen
        decision = self._land_and_decide(records, plan, steps)  # 4 land, 5 decide
        self._log_frozen_columns(decision.plan.layout, frozen_before)
        manifest = self._write_manifest(decision, steps, new=earlier_manifest is None)
        self.unknown.log_new_fields(self.config.name, manifest.partitions)
        return self.carry_out(manifest, decision.plan, steps, decision.tables)

    def _not_held(self, raw: DataFrame) -> DataFrame:
        return self.topics.without_held(raw) if self.topics else raw

    def _land_and_decide(self, records: RawRecords, plan: Plan, steps: Steps) -> BatchDecision:
        """Return the decision of a batch, in which records that cannot be read are dead letters."""
        while True:
            decision = self.decider.land_readable(records, plan, steps, self.destination, self.store)
            # A topic that was made again before its records were read: without it the batch lands again.
            if not (self.topics and self.topics.compare_ids({partition.topic for partition in decision.partitions})):
                return decision
            self.decider.landing.discard_files(decision.landed)
            plan = self.decider.plan_batch(self._not_held(records.frame), plan.arrival, refresh=False)

    def carry_out(
        self,
        manifest: Manifest,
        plan: Plan,
        steps: Steps,
        opened: dict[str, Any] | None = None,
        *,
        replay: bool = False,
    ) -> BatchReport:
        """Do what a manifest decides, from the commits to the report.

        `opened` has tables that are open already. `replay`: parts of the manifest may have been done before.
        """
        with steps.step("commit", len(manifest.commits)):
            failed = self._commit_tables(manifest, opened, steps)  # 6 commit
            manifest = self._quarantine_failed(manifest, failed, plan.layout)  # 7 quarantine
        with steps.step("apply"):
            applied = self.outboxes.apply_batch(plan.layout, manifest, steps, replay=replay)  # 8 apply
        with steps.step("ledger"):  # 9 ledger
            entry = ledger.LedgerEntry(self.config.ledger, str(TransactionId("ledger", self.query)), manifest.batch)
            rows = self.destination.ledger_rows(manifest, applied.counts)
            ledger.append(self.committers, entry, rows, tables=self.tables)
        tables = {commit.table for commit in manifest.commits} | applied.merged.keys()
        done = CarriedOut(
            manifest=manifest,
            plan=plan,
            applied=applied.counts,
            tables=tables,
            blocked={**self.decider.demands.blocked, **self.outboxes.waiting_reasons()},
            merged=applied.merged,
            committed_by=self.committers.committed_by,
        )
        self.destination.follow(done, steps)
        return ledger.make_report(self.config.name, plan.layout, manifest, steps.seconds, applied.counts)

    def _manifest_to_finish(self, manifest: Manifest) -> Manifest | None:
        """Return the manifest of a batch that a crash interrupted; None if the batch must be decided again.

        Without its staged files a batch is decided again; tables that have its rows already skip them. Raises
        BatchError if a second decision would write rows twice, or under another configuration.
        """
        tables = self.tables.open_readable_tables({commit.table for commit in manifest.commits})
        unfinished = [
            commit for commit in manifest.commits if not self._is_done(commit, tables[commit.table], manifest)
        ]
        # The sink of an outbox reads the staged files after their commit, so those must still be there as well.
        missing = self.committers.missing_files([*unfinished, *self.outboxes.unapplied_commits(manifest)])
        if not missing:
            return manifest

        problem = f"{missing[0]} is missing or truncated"
        finished = [commit for commit in manifest.commits if commit not in unfinished]
        if any(commit.note_key in manifest.quarantined for commit in finished):
            what = f"{problem}, and other rows of the batch are in the quarantine already: restore that file"
            raise BatchError(self.config.name, manifest.batch, what)
        if manifest.config != self.fingerprint and finished:
            raise BatchError(
                self.config.name,
                manifest.batch,
                "it was cut off when some tables had it, and must be read again for the others; but the configuration "
                f"has changed since ({manifest.config}), and {problem}. Start once with the former one, then change it",
            )
        log.warning(
            "%s, batch %d: deciding it again, it was cut off, and %s", self.config.name, manifest.batch, problem
        )
        return None

    def _is_done(self, commit: TableCommit, table: Any, manifest: Manifest) -> bool:
        """Return whether the rows of a commit are in their table, or in the quarantine."""
        if commit.note_key in manifest.quarantined:
            return self.quarantine.has_rows_of(commit)
        if table is None or isinstance(table, TableError):
            return False
        return is_committed(table, commit)

    def _write_manifest(self, decision: BatchDecision, steps: Steps, *, new: bool) -> Manifest:
        """Write the manifest of a decision, and return it.

        `new`: the batch has never been decided before. Raises BatchError or StartError if the batch must not be
        committed, and RunningError if another run has decided it; its staged files are deleted then.
        """
        batch = steps.batch
        demands = self.decider.demands
        try:
            faults = faults_of_size(self.config, self.lake, decision.landed.files)
            faults = faults or self.destination.faults_of_decision(decision, batch)
            if faults:
                raise BatchError(self.config.name, batch, f"{'; '.join(faults)}; nothing was committed")
            commits = self.destination.choose_commits(decision, batch)
            manifest = Manifest(
                batch=batch,
                config=self.fingerprint,
                targets=tuple(target.key for target in decision.plan.layout.targets),
                commits=commits,
                partitions=decision.partitions,
                conflicts=demands.conflicts,
                allowed={key: sorted(names) for key, names in demands.allowed.items()},
                frozen=frozen_as_text(demands.frozen),
                lookups=self.decider.planner.lookups.loaded_versions(),
                quarantined=self._outboxes_behind_quarantine(commits),
                topic_ids=dict(self.topics.noted) if self.topics else {},
                held_topics=tuple(sorted(self.topics.held)) if self.topics else (),
            )
            with steps.step("manifest"):
                self.quarantine.note_blocked(demands.blocked)
                self.store.write_manifest(manifest, new=new)
        except (BatchError, RunningError, StartError):
            self.decider.landing.discard_files(decision.landed)
            raise
        return manifest

    def _outboxes_behind_quarantine(self, commits: tuple[TableCommit, ...]) -> dict[str, str]:
        """Return the outboxes whose earlier rows are quarantined, with the cause: later rows queue behind those."""
        blocked = self.decider.demands.blocked
        causes: dict[str, str] = {}
        for commit in commits:
            if commit.table.startswith(OUTBOX) and commit.note_key in blocked:
                causes[commit.note_key] = blocked[commit.note_key]
        return causes

    def _log_frozen_columns(self, layout: Layout, before: dict[str, dict[str, Any]]) -> None:
        """Log once which columns tables leave out, or put into the quarantine, from now on."""
        quarantines: dict[str, str | None] = {}
        evolving = set()
        for target in layout.targets:
            if target.evolution == "quarantine" and target.quarantine:
                quarantines[target.key] = target.quarantine.table
            if target.evolution == "evolve":
                evolving.add(target.key)

        for place, columns in self.decider.demands.frozen.items():
            new = sorted(set(columns) - set(before.get(place, {})))
            if not new:
                continue
            target_key, _ = place.rsplit("/", 1)
            outcome = "rows land without it"
            if target_key in quarantines:
                outcome = f"rows that need it wait in {quarantines[target_key]} for `router quarantine approve FILE`"
            elif target_key in evolving:
                outcome = "rows with values that do not fit are dead letters; see `widening` of the sink"
            log.warning("%s: %s cannot store all of %s; %s", self.config.name, place, ", ".join(new), outcome)

    def _commit_tables(self, manifest: Manifest, tables: dict[str, Any] | None, steps: Steps) -> list[TableError]:
        """Make the commits of a manifest; return the errors of tables that could not be written."""
        commits = tuple(commit for commit in manifest.commits if commit.note_key not in manifest.quarantined)
        if not tables:
            tables = self.tables.open_readable_tables({commit.table for commit in commits})
        tell = partial(steps.report_progress, "commit", of=len(commits))
        _, failed = self.committers.attempt_commits(commits, tables, manifest.commit_notes(self.query), tell)
        failed_tables = {error.table for error in failed}
        self.decider.evolution.note_committed([commit for commit in commits if commit.table not in failed_tables])
        return failed

    def _quarantine_failed(self, manifest: Manifest, failed: list[TableError], layout: Layout) -> Manifest:
        """Move the rows of tables that could not be written into the quarantine; return the manifest as it is then.

        Raises the TableError of a table that has no quarantine: the stream waits for the router's own tables. If the
        error can never pass, an outbox is quarantined after three tries, and any other table raises StartError.
        """
        have_quarantine = {target.key for target in layout.targets if target.quarantine}
        for error in failed:
            failed_commits = [commit for commit in manifest.commits if commit.table == error.table]
            if not {commit.target for commit in failed_commits} <= have_quarantine:
                manifest = self._count_try(manifest, failed_commits, error)
            handle = self.tables.open_readable_tables([error.table])[error.table]
            causes = {}
            for commit in failed_commits:
                if not self._is_done(commit, handle, manifest):
                    causes[commit.note_key] = error.what
            manifest = replace(manifest, quarantined={**manifest.quarantined, **causes})

        # The manifest first: after a crash it says which rows still have to be moved.
        if failed:
            demands = self.decider.demands
            self.decider.demands = replace(demands, blocked={**manifest.quarantined, **demands.blocked})
            self.quarantine.note_blocked(self.decider.demands.blocked)
            self.store.write_manifest(manifest)
        for commit in manifest.commits:
            if commit.note_key in manifest.quarantined and not self.quarantine.has_rows_of(commit):
                self.quarantine.take_rows(commit, manifest)
        return manifest

    def _count_try(self, manifest: Manifest, commits: list[TableCommit], error: TableError) -> Manifest:
        """Count a failure of a table without a quarantine; return the manifest with it, or raise the error.

        The manifest keeps the number of tries, so that a process that is started again continues counting.
        """
        if not never_passes(error):
            raise error
        tries = {commit.note_key: manifest.tries.get(commit.note_key, 0) + 1 for commit in commits}
        manifest = replace(manifest, tries={**manifest.tries, **tries})
        self.store.write_manifest(manifest)
        if max(tries.values()) < TRIES_WITHOUT_QUARANTINE:
            raise error
        if not all(commit.table.startswith(OUTBOX) for commit in commits):
            what = f"{self.config.name}, batch {manifest.batch}: {error}. That cannot pass by itself, and"
            todo = "nothing lands without this table: make it writable again, or move it away for a new one"
            raise StartError(f"{what} {todo}") from error
        return manifest
