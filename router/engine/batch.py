"""A batch, from its offsets to its report: nine steps, each one call of `Batches.process`.

| step | does | killed after it, the next start |
|---|---|---|
| 1 read, 2 decode, 3 label | say lazily how raw records become labelled rows (`label`) | reads the batch again |
| 4 land | stages a Parquet file per table and task, in one Spark job (`land`) | the same; files nobody refers to stay |
| 5 decide | compares files with tables (`commit.schema_evolution`), writes the manifest | finishes what it says |
| 6 commit | one Delta commit per table (`commit.committers`) | skips the tables that have it |
| 7 quarantine | keeps rows whose table cannot be written (`quarantine`); `land` does where it is known | the same |
| 8 apply | gives each outbox to its sink (`outbox`, `merge`) | goes on with the sinks without a mark |
| 9 ledger | says what became of every record | writes it once, by its transaction id |

Steps 1 to 5 are a `BatchDecider`'s, which writes staged files only. The manifest is the line: before it a batch may be
read and decided again, after it no row changes its kind. A batch is in the ledger before Spark commits its offsets. In
what a stream and a replay differ, says their `Destination`.
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
from router.engine.checkpoint_store import CheckpointStore, Manifest, frozen_as_text
from router.engine.commit.committers import Committers
from router.engine.decision import BatchDecider
from router.engine.destination import CarriedOut
from router.engine.outbox.apply import Outboxes
from router.engine.position import RecordNumbers, with_arrival
from router.engine.quarantine.table import Quarantine
from router.engine.retryable_errors import never_passes
from router.engine.spark.executors import Executors
from router.engine.start.run_order import ordinal_of
from router.engine.steps import Steps
from router.errors import BatchError, RunningError, StartError, TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.engine.decision import BatchDecision
    from router.engine.destination import Destination
    from router.engine.label.layout import Layout
    from router.engine.label.planner import Plan, Planner
    from router.engine.steps import Watch
    from router.parts import BatchReport

log = logging.getLogger("router")
HOPELESS = 3
"""Tries after which a commit that can never succeed leaves the batch."""


@dataclass
class Batches:
    """The batches of one query.

    `fingerprint` is the configuration's. `prepared` is a planner that may have begun already. `tables` opens tables;
    None makes a cache of them.
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
        if not self.committers.only_spark:  # it looks with delta-rs
            self.quarantine.note_again()
        self.decider.forget_released(self.quarantine.blocked())
        self.ordinal = ordinal_of(self.store, self.lake, config.ledger, config.name)
        self.numbers = RecordNumbers(self.lake, config.ledger, config.name, self.store.run)
        self.unknown = UnknownFieldReport()

    def process(self, raw: DataFrame, batch: int) -> BatchReport:
        """Take one batch of raw records to its end. Calling it again with the same batch id changes nothing."""
        steps = Steps(batch, self.watch)
        with steps.step("plan"):
            known = self.store.manifest(batch)
            cut_off = self._cut_off(known) if known else None
            records = with_arrival(raw, self.ordinal, batch)
            plan = self.decider.plan(records, refresh=cut_off is None)  # 1 read, 2 decode, 3 label
        if cut_off is not None:
            return self.carry_out(cut_off, plan, steps, replay=True)
        if self.decider.demands.blocked:  # some may have been released meanwhile
            self.decider.forget_released(self.quarantine.blocked())
        frozen = self.decider.demands.frozen
        decision = self.decider.land_and_decide(plan, steps, self.destination)  # 4 land, 5 decide
        self._tell_frozen(decision.plan.layout, frozen)
        manifest = self._write_manifest(decision, steps, new=known is None)
        self.unknown.report(self.config.name, manifest.partitions)
        return self.carry_out(manifest, decision.plan, steps, decision.tables)

    def carry_out(
        self,
        manifest: Manifest,
        plan: Plan,
        steps: Steps,
        opened: dict[str, Any] | None = None,
        *,
        replay: bool = False,
    ) -> BatchReport:
        """Do what a manifest says, from the commits to the report.

        `opened` has tables that are open already; `replay`: it may have been done in part before.
        """
        with steps.step("commit", len(manifest.commits)):
            failed = self._commit(manifest, opened, steps)  # 6 commit
            manifest = self._quarantine(manifest, failed, plan.layout)  # 7 quarantine
        with steps.step("apply"):
            applied = self.outboxes.apply(plan.layout, manifest, replay=replay)  # 8 apply
        with steps.step("ledger"):  # 9 ledger
            entry = ledger.LedgerEntry(self.config.ledger, str(TransactionId("ledger", self.query)), manifest.batch)
            rows = self.destination.ledger_rows(manifest, applied.counts)
            ledger.append(self.committers, entry, rows, tables=self.tables)
        tables = {work.table for work in manifest.commits} | applied.tables
        blocked = self.decider.demands.blocked
        self.destination.follow(CarriedOut(manifest, plan, applied.counts, tables, blocked), steps)
        return ledger.report(self.config.name, plan.layout, manifest, steps.seconds, applied.counts)

    def _cut_off(self, manifest: Manifest) -> Manifest | None:
        """Return the manifest of a batch that a crash has interrupted; None where the batch must be decided again.

        Without its staged files a batch is decided again; tables that have its rows already skip them. The sink of an
        outbox reads them after their commit, too.
        """
        tables = self.tables.readable({work.table for work in manifest.commits})
        left = [work for work in manifest.commits if not self._done(work, tables[work.table], manifest)]
        missing = self.committers.missing([*left, *self.outboxes.unapplied(manifest)])
        if not missing:
            return manifest
        where = f"{missing[0]} is not there whole"
        if any(work.place in manifest.quarantined for work in manifest.commits if work not in left):
            what = f"{where}, and other rows of the batch are in the quarantine already: restore that file"
            raise BatchError(self.config.name, manifest.batch, what)
        if manifest.config != self.fingerprint and len(left) < len(manifest.commits):
            raise BatchError(
                self.config.name,
                manifest.batch,
                "it was cut off when some tables had it, and must be read again for the others; but the configuration "
                f"has changed since ({manifest.config}), and {where}. Start once with the former one, then change it",
            )
        log.warning("%s, batch %d: deciding it again, it was cut off, and %s", self.config.name, manifest.batch, where)
        return None

    def _done(self, work: TableCommit, table: Any, manifest: Manifest) -> bool:
        """Say whether the rows of a commit are in their table, or in the quarantine."""
        if work.place in manifest.quarantined:
            return self.quarantine.has(work)
        return table is not None and not isinstance(table, TableError) and is_committed(table, work)

    def _write_manifest(self, decision: BatchDecision, steps: Steps, *, new: bool) -> Manifest:
        """Write down what is decided, and return it. Raises BatchError or StartError, with no file left, if it may not.

        `new`: the batch has never been decided before.
        """
        batch = steps.batch
        demands = self.decider.demands
        try:
            faults = self._faults_of_size(decision) or self.destination.faults_of_decision(decision, batch)
            if faults:
                raise BatchError(self.config.name, batch, f"{'; '.join(faults)}; nothing was committed")
            commits = self.destination.chosen(decision, batch)
            manifest = Manifest(
                batch=batch,
                config=self.fingerprint,
                targets=tuple(target.key for target in decision.plan.layout.targets),
                commits=commits,
                partitions=decision.partitions,
                conflicts=demands.conflicts,
                allowed={key: sorted(names) for key, names in demands.allowed.items()},
                frozen=frozen_as_text(demands.frozen),
                lookups=self.decider.planner.lookups.versions(),
                quarantined=self._behind_quarantined(commits),
            )
            with steps.step("manifest"):
                self.quarantine.block(demands.blocked)
                self.store.decide(manifest, new=new)
        except (BatchError, RunningError, StartError):
            self.decider.landing.discard(decision.landed)
            raise
        return manifest

    def _faults_of_size(self, decision: BatchDecision) -> list[str]:
        """Return why a batch must not be committed: the quarantine would get larger than it may be."""
        most = self.config.quarantine.at_most
        size = self.quarantine.size(decision.landed.files)
        if size <= most:
            return []
        what = f"the quarantine would have {size:,} bytes of {most:,} that it may have (`quarantine: at_most`)"
        return [f"{what}; see `router quarantine list`"]

    def _behind_quarantined(self, commits: tuple[TableCommit, ...]) -> dict[str, str]:
        """Return the outboxes whose earlier rows are quarantined, with the cause: later rows queue behind those."""
        blocked = self.decider.demands.blocked
        outboxes = [work.place for work in commits if work.table.startswith("outbox.")]
        return {place: blocked[place] for place in outboxes if place in blocked}

    def _tell_frozen(self, layout: Layout, before: dict[str, dict[str, Any]]) -> None:
        """Log once what tables leave out, or put into the quarantine, from now on."""
        asked = [target for target in layout.targets if target.evolution == "quarantine"]
        places = {target.key: target.quarantine.table for target in asked if target.quarantine}
        evolving = {target.key for target in layout.targets if target.evolution == "evolve"}
        for place, columns in self.decider.demands.frozen.items():
            if new := sorted(set(columns) - set(before.get(place, {}))):
                target, _ = place.rsplit("/", 1)
                what = "rows land without it"
                if target in places:
                    what = f"rows with what is new wait in {places[target]} for `router approve`"
                elif target in evolving:
                    what = "values that do not fit make dead letters; see `widening` of the sink"
                log.warning("%s: %s has no place for all of %s; %s", self.config.name, place, ", ".join(new), what)

    def _commit(self, manifest: Manifest, tables: dict[str, Any] | None, steps: Steps) -> list[TableError]:
        """Commit what the manifest says; return the errors of tables that could not be written."""
        commits = tuple(work for work in manifest.commits if work.place not in manifest.quarantined)
        tables = tables or self.tables.readable({work.table for work in commits})
        tell = partial(steps.tell, "commit", of=len(commits))
        _, failed = self.committers.attempt(commits, tables, manifest.notes(self.query), tell)
        bad = {error.table for error in failed}
        self.decider.evolution.committed([work for work in commits if work.table not in bad])
        return failed

    def _quarantine(self, manifest: Manifest, failed: list[TableError], layout: Layout) -> Manifest:
        """Move the rows of tables that could not be written into the quarantine; return what the manifest says now.

        Raises the TableError of a table that has no quarantine: the stream waits for the router's own tables, unless
        what is wrong can never pass. Then an outbox is quarantined after three tries, and StartError names another one.
        """
        have_quarantine = {target.key for target in layout.targets if target.quarantine}
        for error in failed:
            works = [work for work in manifest.commits if work.table == error.table]
            if not {work.target for work in works} <= have_quarantine:
                manifest = self._tried(manifest, works, error)
            handle = self.tables.readable([error.table])[error.table]
            places = {work.place: error.what for work in works if not self._done(work, handle, manifest)}
            manifest = replace(manifest, quarantined={**manifest.quarantined, **places})
        if failed:
            demands = self.decider.demands
            self.decider.demands = replace(demands, blocked={**manifest.quarantined, **demands.blocked})
            self.quarantine.block(self.decider.demands.blocked)
            self.store.decide(manifest)
        for work in manifest.commits:
            if work.place in manifest.quarantined and not self.quarantine.has(work):
                self.quarantine.take(work, manifest)
        return manifest

    def _tried(self, manifest: Manifest, works: list[TableCommit], error: TableError) -> Manifest:
        """Count a failure of a table without a quarantine, and return what the manifest says now.

        The manifest has the number of tries, so that a process that dies, or is started again, goes on counting.
        """
        if not never_passes(error):
            raise error
        tries = {work.place: manifest.tries.get(work.place, 0) + 1 for work in works}
        manifest = replace(manifest, tries={**manifest.tries, **tries})
        self.store.decide(manifest)
        if max(tries.values()) < HOPELESS:
            raise error
        if not all(work.table.startswith("outbox.") for work in works):
            what = f"{self.config.name}, batch {manifest.batch}: {error}. That cannot pass by itself, and"
            todo = "nothing lands without this table: make it writable again, or move it away for a new one"
            raise StartError(f"{what} {todo}") from error
        return manifest
