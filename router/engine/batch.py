"""A batch, from its offsets to its report: nine steps, each one call of `Batches.process`.

| step | does | killed after it, the next start |
|---|---|---|
| 1 read, 2 decode, 3 label | say lazily how raw records become labelled rows (`label`) | reads the batch again |
| 4 land | stages a Parquet file per table and task, in one Spark job (`land`) | the same; files nobody refers to stay |
| 5 decide | compares files with tables, writes the manifest (`commit.schema_evolution`) | finishes what it says |
| 6 commit | one Delta commit per table (`commit.committers`) | skips the tables that have it |
| 7 quarantine | keeps rows whose table cannot be written (`quarantine`); `land` does where it is known | the same |
| 8 apply | gives each outbox to its sink (`outbox`, `merge`) | goes on with the sinks without a mark |
| 9 ledger | says what became of every record | writes it once, by its transaction id |

The manifest is the line: before it a batch may be read and decided anew, after it no row changes its kind. A batch is
in the ledger before Spark commits its offsets.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from router.delta.commit import is_committed
from router.delta.maintenance_process import MaintenanceProcess
from router.delta.table_cache import SparkTables, TableCache
from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.balance import BRONZE, UnknownFieldReport, imbalances, keyed, partitions, total
from router.engine.checkpoint_store import CheckpointStore, Manifest, frozen_as_text
from router.engine.commit.committers import Catalog, Committers
from router.engine.commit.schema_evolution import SchemaEvolution
from router.engine.dead_letter_share import SHARE, DeadLetterLimit, dead_letter_share
from router.engine.label.layout import Demands
from router.engine.label.planner import Plan, Planner
from router.engine.land.job import Landed, LandingJob, UndecodedError
from router.engine.maintenance import TableMaintenance
from router.engine.outbox.apply import Outboxes
from router.engine.outbox.detached import detached_outboxes
from router.engine.position import RecordNumbers, with_arrival
from router.engine.quarantine.release import Release
from router.engine.quarantine.table import Quarantine
from router.engine.retryable_errors import never_passes
from router.engine.spark.executors import Executors
from router.engine.start.run_order import ordinal_of
from router.errors import BatchError, RunningError, StartError, TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.label.layout import Layout
    from router.engine.views.schedule import ViewSchedule
    from router.parts import BatchReport

log = logging.getLogger("router")
TRIES = 5
"""How often a batch is landed again because its tables have changed, before the batch stops the stream."""
STAGING = "_staged"
HOPELESS = 3
"""Tries after which a commit that can never succeed leaves the batch."""


@dataclass
class Batches:
    """The batches of one query.

    `fingerprint` is the configuration's. What the object keeps between batches (demands, known names, the size of
    files) only saves work: a new process starts without it. `prepared` is a planner that may have begun already,
    `opened` has tables that are open. `views` hears of every batch. `dead_letter_limit` is that of the stream: a replay
    or a backfill has none.
    """

    config: Config
    fingerprint: str
    spark: SparkSession
    lake: Lake
    store: CheckpointStore
    watch: Watch | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    demands: Demands = field(default_factory=Demands)
    prepared: Planner | None = None
    executors: Executors = field(default_factory=Executors)
    opened: TableCache | None = None
    views: ViewSchedule | None = None
    dead_letter_limit: DeadLetterLimit = field(default_factory=DeadLetterLimit)

    def __post_init__(self) -> None:
        config = self.config
        self.query = f"{config.name}:{self.store.run}"
        self.committers = Committers.of(config, self.spark, self.lake)
        only_spark = self.committers.only_spark
        staging = f"{STAGING}/{config.name}" if only_spark else None
        self.tables: Any = SparkTables(self.spark, self.lake) if only_spark else self.opened or TableCache(self.lake)
        self.planner = self.prepared or Planner(config, config.decode)
        self.landing = LandingJob(self.spark, self.lake, config.landing, self.query, staging, executors=self.executors)
        self.evolution = SchemaEvolution(self.lake, self.tables, self.query, self.spark, config.table_options())
        about = self.lake, self.store, self.query, self.committers, self.stop, self.executors
        self.outboxes = Outboxes(config, self.spark, *about)
        self.quarantine = Quarantine(config, self.lake, self.store, self.committers, self.query)
        if not only_spark:  # it looks with delta-rs
            self.quarantine.note_again()
        self.demands = replace(self.demands, blocked=self.quarantine.blocked())
        deliver = self.outboxes.deliver
        self.release = Release(config, self.spark, self.lake, self.store, self.committers, self.executors, deliver)
        plans = config.maintenance if only_spark else config.maintenance_plans()
        self.maintenance = TableMaintenance(
            self.lake, lambda: self.spark, plans, detached_outboxes(config), beside=True, process=MaintenanceProcess()
        )
        self.catalog = Catalog(self.spark, self.lake)
        self.ordinal = ordinal_of(self.store, self.lake, config.ledger, config.name)
        self.numbers = RecordNumbers(self.lake, config.ledger, config.name, self.store.run)
        self.unknown = UnknownFieldReport()

    def process(self, raw: DataFrame, batch: int) -> BatchReport:
        """Take one batch of raw records to its end. Calling it again with the same batch id changes nothing."""
        steps = Steps(batch, self.watch)
        with steps.step("plan"):
            known = self.store.manifest(batch)
            manifest = self._cut_off(known) if known else None
            records = with_arrival(raw, self.ordinal, batch)
            plan = self._plan(records, replay=manifest is not None)  # 1 read, 2 decode, 3 label
        replay, tables = manifest is not None, None
        if manifest is None:
            manifest, tables, plan = self._decide(plan, steps, new=known is None)  # 4 land, 5 decide
            self.unknown.report(self.config.name, manifest.partitions)
        with steps.step("commit", len(manifest.commits)):
            failed = self._commit(manifest, tables, steps)  # 6 commit
            manifest = self._quarantine(manifest, failed, plan.layout)  # 7 quarantine
        with steps.step("apply"):
            applied = self.outboxes.apply(plan.layout, manifest, replay=replay)  # 8 apply
        with steps.step("ledger"):
            self._write_ledger(manifest, applied.counts)  # 9 ledger
        self._after(plan, {work.table for work in manifest.commits} | applied.tables, steps)
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

    def _plan(self, raw: DataFrame, *, replay: bool) -> Plan:
        if not replay:
            self.planner.refresh()
        return self.planner.plan(raw)

    def _decide(self, plan: Plan, steps: Steps, *, new: bool = True) -> tuple[Manifest, dict[str, Any], Plan]:
        """Land the batch, again while tables demand other rows, and write the manifest of what is to be committed."""
        batch = steps.batch
        if self.demands.blocked:  # some may have been released meanwhile
            blocked = self.quarantine.blocked()
            for place in self.demands.blocked.keys() - blocked.keys():
                self.evolution.committed_batches.forget(place.rpartition("/")[2])
            self.demands = replace(self.demands, blocked=blocked)
        for _ in range(TRIES):
            plan, landed = self._land(plan, steps)
            if landed.failed:
                self.landing.discard(landed)
                self.demands = replace(self.demands, blocked={**landed.failed, **self.demands.blocked})
                continue
            counted = partitions(landed.counts)
            self._stop_on(plan.layout, landed, counted, batch)
            with steps.step("decide"):
                waiting = keyed(counted, "quarantined")
                about = landed.files, self.demands, batch, waiting, landed.named
                decision = self.evolution.decide(plan.layout, *about)
            if decision.refused:
                self._stop(landed, batch, "; ".join(decision.refused))
            self._tell_frozen(plan.layout, decision.demands)
            before, self.demands = self.demands, decision.demands
            if not before.differ(decision.demands, {f"{f.target}/{f.table}" for f in landed.files} | set(waiting)):
                self._stop_above(landed, batch)
                self._judge_dead_letters(landed, total(counted, "read"), batch)
                manifest = Manifest(
                    batch=batch,
                    config=self.fingerprint,
                    targets=tuple(target.key for target in plan.layout.targets),
                    commits=decision.commits,
                    partitions=counted,
                    conflicts=self.demands.conflicts,
                    allowed={key: sorted(names) for key, names in self.demands.allowed.items()},
                    frozen=frozen_as_text(self.demands.frozen),
                    lookups=self.planner.lookups.versions(),
                    quarantined=self._behind_quarantined(decision.commits),
                )
                with steps.step("manifest"):
                    manifest = self._write_down(manifest, landed, new=new)
                return manifest, decision.handles, plan
            self.landing.discard(landed)
            log.info("%s, batch %d: landing again, tables ask for it", self.config.name, batch)
        raise BatchError(
            self.config.name, batch, f"tables changed {TRIES} times while the batch was landed; who else writes them?"
        )

    def _behind_quarantined(self, commits: tuple[TableCommit, ...]) -> dict[str, str]:
        """Return the outboxes whose earlier rows are quarantined, with the cause: later rows queue behind those."""
        blocked = self.demands.blocked
        outboxes = [work.place for work in commits if work.table.startswith("outbox.")]
        return {place: blocked[place] for place in outboxes if place in blocked}

    def _write_down(self, manifest: Manifest, landed: Landed, *, new: bool) -> Manifest:
        """Write the manifest of a batch that is decided, and return it."""
        self.quarantine.block(self.demands.blocked)
        try:
            self.store.decide(manifest, new=new)
        except RunningError:
            self.landing.discard(landed)
            raise
        return manifest

    def _land(self, plan: Plan, steps: Steps) -> tuple[Plan, Landed]:
        try:
            return self.landing.run_decoded(self.planner, plan, self.demands, steps.batch, steps.step)
        except UndecodedError as error:
            raise BatchError(self.config.name, steps.batch, str(error)) from error

    def _stop_on(self, layout: Layout, landed: Landed, counted: tuple[Partition, ...], batch: int) -> None:
        """Raise BatchError before anything is committed: the batch does not balance, or an expectation says `fail`."""
        violated = keyed(counted, "violated")
        failing = [f"{route.name}/{name}" for route in layout.routes for name in route.failing]
        failing += [f"{BRONZE}/{name}" for name in layout.bronze_failing]
        found = [f"{key.removeprefix('/')} on {violated[key]} rows" for key in sorted(failing) if violated[key]]
        if named := ", ".join(found):
            self._stop(landed, batch, f"expectations do not hold: {named}")
        if wrong := imbalances(layout, counted, landed.files, self.config.unmatched == "dead_letters"):
            self._stop(landed, batch, f"the batch does not balance: {'; '.join(wrong)}")

    def _stop_above(self, landed: Landed, batch: int) -> None:
        """Raise BatchError where the quarantine would get larger than it may be."""
        most = self.config.quarantine.at_most
        if (size := self.quarantine.size(landed.files)) > most:
            what = f"the quarantine would have {size:,} bytes of {most:,} that it may have (`quarantine: at_most`)"
            self._stop(landed, batch, f"{what}; see `router quarantine list`")

    def _judge_dead_letters(self, landed: Landed, read: int, batch: int) -> None:
        """Log a batch most of which becomes dead letters; raise BatchError where it has more than it may have."""
        share = dead_letter_share(self.lake, landed.files, read, above=self.dead_letter_limit.smallest_share)
        if share is None:
            return
        if self.dead_letter_limit.is_exceeded(share, batch):
            allowed = f"{self.dead_letter_limit.at_most:.1%} may (`dead_letters: at_most`)"
            todo = "correct the configuration, or start with --accept dead-letters to let this batch pass"
            self._stop(landed, batch, f"{share}; {allowed}; {todo}")
        if share.share > SHARE:
            log.warning("%s, batch %d: %s", self.config.name, batch, share)

    def _stop(self, landed: Landed, batch: int, what: str) -> None:
        self.landing.discard(landed)
        raise BatchError(self.config.name, batch, f"{what}; nothing was committed")

    def _tell_frozen(self, layout: Layout, demands: Demands) -> None:
        """Log once what tables leave out, or put into the quarantine, from now on."""
        asked = [target for target in layout.targets if target.evolution == "quarantine"]
        places = {target.key: target.quarantine.table for target in asked if target.quarantine}
        evolving = {target.key for target in layout.targets if target.evolution == "evolve"}
        for place, columns in demands.frozen.items():
            if new := sorted(set(columns) - set(self.demands.frozen.get(place, {}))):
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
        self.evolution.committed([work for work in commits if work.table not in bad])
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
            self.demands = replace(self.demands, blocked={**manifest.quarantined, **self.demands.blocked})
            self.quarantine.block(self.demands.blocked)
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

    def _write_ledger(self, manifest: Manifest, applied: dict[str, Any]) -> None:
        name, run = self.config.name, self.store.run
        found = ledger.rows(name, run, manifest.batch, manifest.targets, manifest.partitions, applied)
        found += ledger.of_moved(name, run, manifest)
        found = [{**row, "configuration": manifest.config} for row in found]
        entry = ledger.LedgerEntry(self.config.ledger, str(TransactionId("ledger", self.query)), manifest.batch)
        ledger.append(self.committers, entry, found, tables=self.tables)

    def _after(self, plan: Plan, tables: set[str], steps: Steps) -> None:
        """Release approved rows, maintain tables and register them in the catalog, once the batch is in the ledger."""
        if self.config.register_tables:
            self.catalog.register(tables)
        written = self.views.batch(tables) if self.views else set[str]()  # by refreshes, beside the batches
        self.maintenance.after_batch({*tables, *written, self.config.ledger}, self.tables.files)
        asked = any(target.evolution == "quarantine" or target.held for target in plan.layout.targets)
        if (asked or self.demands.blocked) and (due := self.release.due()):
            with steps.step("release"):
                self.release.carry_out(due)


Watch = Callable[[int, str, int, int], None]
"""Called with (batch id, step, done, of): at a step's start (0 done), on progress inside it, and at its end."""


@dataclass
class Steps:
    """The wall seconds of each step of one batch."""

    batch: int
    watch: Watch | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, of: int = 1) -> Iterator[None]:
        """Time a step; the watcher sees its start and, unless it failed, its end."""
        self.tell(name, 0, of)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        self.tell(name, of, of)

    def tell(self, name: str, done: int, of: int) -> None:
        """Report progress inside a step."""
        if self.watch:
            self.watch(self.batch, name, done, of)
