"""Run one batch from raw records to its report: plan, land, manifest, commit, apply, ledger."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from router.applying import Applied, ApplyingSink, Batch
from router.delta.commit import done
from router.delta.table_cache import Handles
from router.engine import ledger
from router.engine.apply import Applier
from router.engine.arrow import ArrowEngine
from router.engine.balance import Partition, imbalances, keyed, partitions
from router.engine.catalog import Catalog
from router.engine.detached import detached_lanes
from router.engine.fit import Fitter
from router.engine.label.layout import Layout, Ruling, Target
from router.engine.maintenance import Caretaker
from router.engine.manifest import Manifest, Shelf, written
from router.engine.merge.coordinator import Lane, Merger
from router.engine.label.planner import Plan, Planner
from router.engine.release import Release
from router.engine.report import report
from router.engine.label.route import sink_names
from router.engine.spark import SparkEngine
from router.engine.progress import Steps, Watch
from router.engine.waiting import approvals
from router.errors import BatchError
from router.merging import MergingSink

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.commit import LandedFile
    from router.delta.lake import Lake
    from router.parts import BatchReport

log = logging.getLogger("router")
RULINGS = 5
"""Times a batch is landed again because tables turned out otherwise, before it stops the stream."""


@dataclass
class Batches:
    """Run the batches of one query.

    `run` is the id of the query's checkpoint. What is kept between batches (rulings, known names, the size of files)
    only saves work: a new process does without.
    """

    config: Config
    fingerprint: str
    run: str
    spark: SparkSession
    lake: Lake
    shelf: Shelf
    watch: Watch | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    ruling: Ruling = field(default_factory=Ruling)

    def __post_init__(self) -> None:
        self.query = f"{self.config.name}:{self.run}"
        self.planner = Planner(self.config, self.config.decode)
        self.handles = Handles(self.lake)
        self.fitter = Fitter(self.handles, self.query)
        where = self.lake, self.shelf, self.config.dead_letters, self.query
        self.applier = Applier(*where, sends=not self.config.debug)
        options = self.config.landing, self.config.dead_letters, self.config.engine
        self.merger = Merger(self.query, self.lake, self.spark, self.shelf, *options)
        self.catalog = Catalog(self.spark, self.lake)
        self.caretaker = Caretaker(self.lake, lambda: self.spark, self.config.maintenance, detached_lanes(self.config))
        self.engines: dict[str, ArrowEngine | SparkEngine] = {
            "arrow": ArrowEngine(self.spark, self.lake, self.config.landing, self.query),
            "spark": SparkEngine(self.spark, self.lake, self.query),
        }
        self.engine = self.engines[self.config.engine]
        self.release = Release(self.config, self.spark, self.lake, self.shelf.place)

    def process(self, raw: DataFrame, batch: int) -> BatchReport:
        """Take one batch of raw records to the end. Calling it again with the same batch id changes nothing."""
        try:
            return self._process(raw, Steps(batch, self.watch))
        finally:
            self.engine.release()
            self.engine = self.engines[self.config.engine]

    def _process(self, raw: DataFrame, steps: Steps) -> BatchReport:
        with steps.step("plan"):
            manifest = self._decided(steps.batch)
            if manifest is None:
                self.planner.refresh()
            planned = self.planner.plan(raw)
        handles, replay = None, manifest is not None
        if manifest is None:
            manifest, handles, planned = self._decide(planned, steps)
        commits = manifest.commits
        with steps.step("commit", len(commits)):
            handles = handles or self.handles.open({work.table for work in commits})
            tell = partial(steps.tell, "commit", of=len(commits))
            self.engine.commit(planned, manifest, handles, self._notes(manifest), tell)
            self.fitter.committed(work.table for work in commits)
        with steps.step("apply"):
            self.merger.tables.clear()
            applied = self._apply(planned, manifest, replay=replay)
            tables = {work.table for work in commits} | self.merger.tables
        if self.config.register_tables:
            self.catalog.register(tables)
        with steps.step("ledger"):
            name, counted = self.config.name, manifest.partitions
            found = ledger.rows(name, self.run, steps.batch, manifest.targets, counted, applied)
            ledger.append(self.handles, self.config.ledger, f"{self.query}/ledger", steps.batch, found)
        self.caretaker.after_batch({*tables, self.config.ledger})
        if any(target.waits for target in planned.layout.targets) and (approved := approvals(self.shelf.place)):
            with steps.step("release"):
                self.release.carry_out(approved)
        return report(self.config.name, planned.layout, manifest, steps, applied)

    def _decided(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch that was cut off, and finish it with the engine that decided it.

        Without what it needs (see `keeps`) the batch is decided again: what tables have of it already they skip.
        """
        manifest = self.shelf.read(batch)
        if manifest is None:
            return None
        handles = self.handles.open({work.table for work in manifest.commits})
        left = [work for work in manifest.commits if not ((have := handles[work.table]) and done(have, work))]
        if self.engines[manifest.engine].keeps(left):
            self.engine = self.engines[manifest.engine]
            return manifest
        if manifest.config != self.fingerprint and len(left) < len(manifest.commits):
            raise BatchError(
                self.config.name,
                batch,
                "it was cut off when some tables had it, and must be read again for the others; but the configuration "
                f"has changed since ({manifest.config}). Start once with the former one, then change it",
            )
        log.info("%s, batch %d: deciding it again, it was cut off", self.config.name, batch)
        return None

    def _decide(self, planned: Plan, steps: Steps) -> tuple[Manifest, dict[str, DeltaTable | None], Plan]:
        batch = steps.batch
        for _ in range(RULINGS):
            planned, files, counts = self._land(planned, steps)
            counted = partitions(counts)
            self._stop_on(planned.layout, counted, files, batch)
            with steps.step("fit"):
                waiting = keyed(counted, "waiting")
                fit = self.fitter.fit(planned.layout, files, self.ruling, batch, waiting, _named(counts))
            if fit.refused:
                self.engine.discard(files)
                raise BatchError(self.config.name, batch, f"{'; '.join(fit.refused)}; nothing was committed")
            self._tell_frozen(planned.layout, fit.ruling)
            settled = not _changes(self.ruling, fit.ruling, {f"{f.target}/{f.table}" for f in files} | set(waiting))
            self.ruling = fit.ruling
            if settled:
                manifest = Manifest(
                    batch=batch,
                    config=self.fingerprint,
                    engine=self.config.engine,
                    targets=tuple(target.key for target in planned.layout.targets),
                    commits=fit.commits,
                    partitions=counted,
                    conflicts=self.ruling.conflicts,
                    allowed={key: sorted(names) for key, names in self.ruling.allowed.items()},
                    frozen=written(self.ruling.frozen),
                )
                with steps.step("manifest"):
                    self.shelf.write(manifest)
                return manifest, fit.handles, planned
            self.engine.discard(files)
            log.info("%s, batch %d: landing again, tables ask for it", self.config.name, batch)
        raise BatchError(
            self.config.name, batch, f"tables changed {RULINGS} times while the batch was landed; who else writes them?"
        )

    def _tell_frozen(self, layout: Layout, ruling: Ruling) -> None:
        """Say what is left out, or waits, from now on, once."""
        lanes = {target.key: target.waits.table for target in layout.targets if target.waits}
        for place, columns in ruling.frozen.items():
            if new := sorted(set(columns) - set(self.ruling.frozen.get(place, {}))):
                lane = lanes.get(place.rsplit("/", 1)[0])
                what = f"rows with what is new wait in {lane} for `router approve`" if lane else "rows land without it"
                log.warning("%s: %s has no place for all of %s; %s", self.config.name, place, ", ".join(new), what)

    def _land(self, planned: Plan, steps: Steps) -> tuple[Plan, list[LandedFile], list[dict[str, Any]]]:
        """Land a batch, and again for as long as its rows want what the decoder can fetch."""
        asked: frozenset[str] = frozenset()
        while True:
            with steps.step("land"):
                files, counts = self.engine.land(planned, self.ruling, steps.batch)
            wanted = frozenset(value for count in counts for value in count.get("wanted") or ())
            if not wanted:
                return planned, files, counts
            self.engine.discard(files)
            if not wanted - asked:
                what = f"the decoder {self.config.decode.part_name} wants what it was asked for: {_some(wanted)}"
                raise BatchError(self.config.name, steps.batch, what)
            log.info("%s, batch %d: decoding again, with %s", self.config.name, steps.batch, _some(wanted))
            with steps.step("plan"):
                self.planner.refresh(wanted - asked)
                planned = self.planner.plan(planned.raw)
            asked |= wanted

    def _stop_on(self, layout: Layout, counted: tuple[Partition, ...], files: list[LandedFile], batch: int) -> None:
        """Stop before anything is committed: a batch that does not balance, or an expectation that says so."""
        broken = keyed(counted, "failing")
        if broken:
            self.engine.discard(files)
            named = ", ".join(f"{key} on {count} rows" for key, count in sorted(broken.items()))
            raise BatchError(self.config.name, batch, f"expectations do not hold: {named}; nothing was committed")
        wrong = imbalances(layout, counted, files, self.config.unmatched == "dead_letters")
        if wrong:
            raise BatchError(
                self.config.name, batch, f"the batch does not balance: {'; '.join(wrong)}; nothing was committed"
            )

    def _apply(self, planned: Plan, manifest: Manifest, *, replay: bool) -> dict[str, Applied]:
        lanes = {target.key: target for target in planned.layout.targets if target.lane}
        applied: dict[str, Applied] = {}
        for work in manifest.commits:
            if target := lanes.get(work.target):
                done = self.shelf.applied(work.version).get(target.key)
                sink = self._sink(target)
                if done:
                    applied[target.key] = done
                elif isinstance(sink, ApplyingSink) and sink.detached and self.applier.sends:
                    applied[target.key] = Applied()  # its own query takes them from the lane
                else:
                    events = self.engine.events(planned, manifest, target, work)
                    lane = Lane(target, work, events, manifest.partitions, self._notes(manifest))
                    applied[target.key] = self._given(sink, lane, replay=replay)
            elif work.target in manifest.targets and work.table.startswith("lanes."):
                where = f"its {work.rows} events stay in {work.table}"
                log.warning("%s, batch %d: no sink %s any more; %s", self.config.name, work.version, work.target, where)
        return applied

    def _given(self, sink: ApplyingSink | MergingSink, lane: Lane, *, replay: bool) -> Applied:
        """Give the rows of a lane to its sink."""
        if isinstance(sink, MergingSink):
            return self.merger.merge(sink, lane)
        target, number = lane.target, lane.work.version
        keeps = self.applier.keeper(number, target.key)
        batch = Batch(self.config.name, number, target.route, target.sink, replay, self.stop, keeps)
        return self.applier.apply(sink, lane.work.rows, lane.events, batch)

    def _sink(self, target: Target) -> ApplyingSink | MergingSink:
        route = next(route for route in self.config.routes if route.name == target.route)
        sink = dict(zip(sink_names(route.sinks), route.sinks, strict=True))[target.sink]
        assert isinstance(sink, (ApplyingSink, MergingSink))
        return sink

    def _notes(self, manifest: Manifest) -> dict[str, str]:
        """Return what every commit says about its batch: whose, which, and from which offsets."""
        spans = {f"{p.topic}/{p.partition}": [p.first, p.last] for p in manifest.partitions}
        return {
            "router.query": self.query,
            "router.batch": str(manifest.batch),
            "router.configuration": manifest.config,
            "router.offsets": str(spans),
        }


def _named(counts: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Return the tables that the rows of each lane are for."""
    found: dict[str, set[str]] = {}
    for count in counts:
        for key, tables in count.get("named", {}).items():
            found.setdefault(key, set()).update(tables)
    return found


def _some(names: frozenset[str]) -> str:
    """Return the first few of many names as text."""
    shown = sorted(names)[:5]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _changes(before: Ruling, after: Ruling, places: set[str]) -> bool:
    """Say whether the rows of this batch, which land or wait in these places, would do otherwise under a new ruling."""
    for place in places:
        if before.casts.get(place, {}) != after.casts.get(place, {}):
            return True
        if not set(after.conflicts.get(place, {})) <= set(before.conflicts.get(place, {})):
            return True
        if before.frozen.get(place, {}) != after.frozen.get(place, {}):
            return True
    return before.allowed != after.allowed
