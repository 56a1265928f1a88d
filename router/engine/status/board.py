"""The status of a stream while it runs: its threads note what happens, and anybody may ask for a snapshot."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from router.engine.status.snapshot import (
    BatchStatus,
    PartitionStatus,
    SinkStatus,
    StreamSnapshot,
    TableStatus,
    Warned,
)
from router.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.engine.checkpoint_store import Manifest
    from router.engine.status.snapshot import State
    from router.parts import BatchReport
    from router.sinks import Applied

BATCHES = 200
"""Finished batches that are kept."""
WARNINGS = 100
"""Warnings that are kept."""
STEP_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the histogram of a step's seconds; the last bucket has no bound."""
OUTCOMES = ("read", "decoded", "failed", "unmatched", "dead_letters")


class StatusBoard(logging.Handler):
    """The status of one stream. Every method may be called by any thread, and costs by what has changed.

    It is a handler of the log, too: warnings are kept.
    """

    def __init__(self, query: str) -> None:
        super().__init__(logging.WARNING)
        now = time.time()
        self._guard = threading.Lock()
        self._snapshot = StreamSnapshot(query, _version(), "starting", since=now, started=now, progress=now)
        self._records: Counter[str] = Counter()
        self._routes: dict[str, Counter[str]] = {}
        self._batches: deque[BatchStatus] = deque(maxlen=BATCHES)
        self._tables: dict[str, TableStatus] = {}
        self._sinks: dict[str, SinkStatus] = {}
        self._partitions: dict[tuple[str, int], PartitionStatus] = {}
        self._steps: dict[str, list[float]] = {}
        self._warnings: deque[Warned] = deque(maxlen=WARNINGS)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the warnings that the router logs meanwhile."""
        logger = logging.getLogger("router")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        warned = Warned(record.created, record.levelname.lower(), printable(record.getMessage()))
        with self._guard:
            self._warnings.appendleft(warned)

    def enter(self, state: State, cause: str = "") -> None:
        """Note what the stream is doing from now on; `cause` says why it waits or has failed."""
        with self._guard:
            before = self._snapshot
            now = time.time()
            same = before.state == state and before.cause == cause
            since = before.since if same else now
            self._snapshot = replace(before, state=state, cause=printable(cause), since=since, progress=now)

    def alive(self) -> None:
        """Note that the stream's thread is at work, though no batch is."""
        with self._guard:
            self._snapshot = replace(self._snapshot, progress=time.time())

    def step(self, batch: int, step: str, done: int, of: int) -> None:
        """Note the step of a batch that has begun, or its end."""
        with self._guard:
            before = self._snapshot
            # A batch is at work: what was waited for is there.
            state = before.state
            if state in ("starting", "waiting"):
                state = "running"
            now = time.time()
            since = before.since if state == before.state else now
            self._snapshot = replace(
                before,
                batch=batch,
                step="" if done == of else step,
                state=state,
                since=since,
                cause="" if state == "running" else before.cause,
                progress=now,
            )

    def carried_out(self, manifest: Manifest, applied: Mapping[str, Applied], blocked: Mapping[str, str]) -> None:
        """Note what a batch brought: its rows by table, what sinks did, how far the source is processed.

        `blocked` says by place (ROUTE/SINK/TABLE) why tables cannot be written.
        """
        now = time.time()
        why = {place.rpartition("/")[2]: cause for place, cause in blocked.items()}
        with self._guard:
            for table, status in self._tables.items():
                if status.blocked and table not in why:
                    self._tables[table] = replace(status, blocked="")
            for table, cause in why.items():
                self._tables[table] = replace(self._table(table), blocked=printable(cause))
            for work in manifest.commits:
                if work.place in manifest.quarantined:
                    continue
                status = self._table(work.table)
                self._tables[work.table] = replace(
                    status, rows=status.rows + work.rows, batch=manifest.batch, committed=now
                )
            for part in manifest.partitions:
                self._move(part.topic, part.partition, position=part.last + 1)
            for key, counts in applied.items():
                self._add_applied(key, counts, sum(part.landed.get(key, 0) for part in manifest.partitions))

    def _table(self, table: str) -> TableStatus:
        return self._tables.get(table) or TableStatus(table)

    def _add_applied(self, key: str, counts: Applied, landed: int) -> None:
        route, _, sink = key.partition("/")
        before = self._sinks.get(key) or SinkStatus(route, sink)
        self._sinks[key] = replace(
            before,
            applied=before.applied + counts.applied,
            dead=before.dead + counts.dead,
            parked=before.parked + counts.parked,
            in_doubt=before.in_doubt + counts.in_doubt,
            backlog=before.backlog + landed - counts.done,
        )

    def finished(self, report: BatchReport) -> None:
        """Note the report of a batch."""
        batch = BatchStatus(
            batch=report.batch,
            ended=time.time(),
            read=report.read,
            decoded=report.decoded,
            failed=report.failed,
            unmatched=report.unmatched,
            dead_letters=report.dead_letters,
            tables=report.tables,
            files=report.files,
            seconds=dict(report.seconds),
        )
        with self._guard:
            self._batches.appendleft(batch)
            self._snapshot = replace(self._snapshot, finished=self._snapshot.finished + 1)
            for outcome in OUTCOMES:
                self._records[outcome] += getattr(report, outcome)
            for route, counts in report.routes.items():
                self._routes.setdefault(route, Counter()).update(counts)
            for step, seconds in report.seconds.items():
                self._observe(step, seconds)

    def _observe(self, step: str, seconds: float) -> None:
        """Count the seconds of a step: the buckets up to each bound, of all, then the sum."""
        counts = self._steps.setdefault(step, [0.0] * (len(STEP_SECONDS) + 2))
        for place, bound in enumerate(STEP_SECONDS):
            counts[place] += seconds <= bound
        counts[-2] += 1
        counts[-1] += seconds

    def source_is_at(self, positions: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> None:
        """Note how far partitions of the source are processed, and where they end."""
        with self._guard:
            for (topic, partition), position in positions.items():
                self._move(topic, partition, position=position)
            for (topic, partition), end in ends.items():
                self._move(topic, partition, end=end)

    def _move(self, topic: str, partition: int, *, position: int | None = None, end: int | None = None) -> None:
        known = self._partitions.get((topic, partition)) or PartitionStatus(topic, partition)
        if position is not None:
            known = replace(known, position=position)
        if end is not None:
            known = replace(known, end=end)
        self._partitions[topic, partition] = known

    def snapshot(self) -> StreamSnapshot:
        """Return the stream as it is now."""
        with self._guard:
            return replace(
                self._snapshot,
                records=dict(self._records),
                routes={route: dict(counts) for route, counts in self._routes.items()},
                batches=tuple(self._batches),
                tables=tuple(self._tables.values()),
                sinks=tuple(self._sinks.values()),
                partitions=tuple(self._partitions.values()),
                step_seconds={step: tuple(counts) for step, counts in self._steps.items()},
                warnings=tuple(self._warnings),
            )


def _version() -> str:
    try:
        return version("spark-event-router")
    except PackageNotFoundError:  # from an archive
        return "unknown"
