"""The status of a stream while it runs: its threads note what happens, and any thread may ask for a snapshot."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import TYPE_CHECKING

from router.counts import outcome_names
from router.engine.audit.dead_letters import REASONS
from router.engine.land.record_ages import TableAges
from router.engine.status.expectations import with_batch, with_view, without_counts
from router.engine.status.snapshot import (
    SAMPLES,
    BatchStatus,
    DeadLetterStatus,
    FreshnessStatus,
    PartitionStatus,
    QuarantineStatus,
    SinkStatus,
    StreamSnapshot,
    TableStatus,
    ViewStatus,
    Warned,
)
from router.engine.status.view_notes import with_note
from router.errors import to_printable
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from router.api.parts import BatchReport
    from router.api.sinks import ApiState, Applied
    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.engine.checkpoint_store import Manifest
    from router.engine.commit.committers import Committer
    from router.engine.status.snapshot import ExpectationStatus
    from router.engine.views.note import Note
    from router.states import StreamState

_ANSWER_WINDOW_SECONDS = 60.0
"""How long answers of an API are the last ones."""
FRESH_SECONDS = 300.0
"""Seconds for which records count as recent."""
KEPT_BATCHES = 200
"""Finished batches that are kept."""
WARNINGS = 100
"""Warnings that are kept."""
STEP_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the histogram of a step's seconds; the last bucket has no bound."""
FIELDS = 50
"""Fields that a schema lacks, of which a snapshot has the most frequent ones."""
UNREAD = 1_000
"""Batches whose dead letters may wait to be read; of more only the number is counted."""


@dataclass(frozen=True)
class CommittedFiles:
    """Files of one table that a batch has committed, and when."""

    paths: tuple[str, ...]
    rows: int
    committed: float


@dataclass(frozen=True)
class StagedAges:
    """How old the records of a batch were when it began (in seconds since 1970), by place: ROUTE/SINK/TABLE."""

    batch: int
    began: float
    by_place: Mapping[str, TableAges]


class StatusBoard(logging.Handler):
    """The status of one stream. Every method may be called by any thread, and costs by what has changed.

    It is also a handler of the log: warnings are kept.
    """

    def __init__(self, query: str) -> None:
        super().__init__(logging.WARNING)
        now = time.time()
        self._guard = threading.RLock()
        self._snapshot = StreamSnapshot(query, installed_version(), "starting", since=now, started=now, progress=now)
        self._records: Counter[str] = Counter()
        self._routes: dict[str, Counter[str]] = {}
        self._batches: deque[BatchStatus] = deque(maxlen=KEPT_BATCHES)
        self._tables: dict[str, TableStatus] = {}
        self._blocked: dict[str, str] = {}
        self._sinks: dict[str, SinkStatus] = {}
        self._partitions: dict[tuple[str, int], PartitionStatus] = {}
        self._steps: dict[str, list[float]] = {}
        self._warnings: deque[Warned] = deque(maxlen=WARNINGS)
        self._arrivals: dict[str, deque[list[float]]] = {}
        """For each outbox when rows came into it and how many of those are still there, the oldest first."""
        self._answers: dict[str, deque[tuple[float, Mapping[str, int]]]] = {}
        """For each sink the answers of its API until some moments of the last minute."""
        self._counted: dict[str, int | None] = {}
        """For each sink how many rows it had delivered when its last batch ended; None until that is asked."""
        self._dead_letters: dict[tuple[str, str, str, str | None], DeadLetterStatus] = {}
        """By stage, route, sink and reason; without a reason those with all other ones."""
        self._dead_letter_table = ""
        self._quarantined: tuple[QuarantineStatus, ...] = ()
        self._views: dict[str, ViewStatus] = {}
        self._expectations: dict[str, ExpectationStatus] = {}
        """The expectations of routes and of bronze, as a batch counts them (see `with_batch`), then those of views."""
        self._staged_ages = StagedAges(-1, 0.0, {})
        self._commit_ended = (-1, 0.0)
        """The last batch whose commits have ended, and when."""
        self._ages = TableAges()
        """How old all records were that are in tables since the start."""
        self._recent_ages: deque[tuple[float, TableAges]] = deque()
        """How old those of the last minutes were, by batch and table."""
        self._unknown_fields: Counter[str] = Counter()
        self._read: dict[str, float] = {}
        self._is_read = False
        self._unread: deque[CommittedFiles] = deque()

    @contextmanager
    def keep_warnings(self) -> Iterator[None]:
        """Keep the warnings that the router logs meanwhile."""
        logger = logging.getLogger("router")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        warned = Warned(record.created, record.levelname.lower(), to_printable(record.getMessage()))
        with self._guard:
            self._warnings.appendleft(warned)

    def note_configuration(self, config: Config) -> None:
        """Note the views and expectations of a configuration: they are shown before anything is known of them."""
        with self._guard:
            self._dead_letter_table = config.dead_letters
            self._views = {
                view.name: ViewStatus(view.name, view.into, every=view.refresh_seconds) for view in config.views
            }
            self._expectations = without_counts(config)

    def enter_state(self, state: StreamState, cause: str = "") -> None:
        """Note what the stream is doing from now on; `cause` says why it waits or has failed."""
        with self._guard:
            before = self._snapshot
            now = time.time()
            same = before.state == state and before.cause == cause
            since = before.since if same else now
            # The step of a start is over; that of a batch ends with the batch.
            step = "" if before.batch is None and state != "waiting" else before.step
            self._snapshot = replace(
                before, state=state, cause=to_printable(cause), since=since, step=step, progress=now
            )

    def note_start_step(self, step: str) -> None:
        """Note the step of a start that has begun: `the decoder`, `the sinks`."""
        with self._guard:
            before = self._snapshot
            now = time.time()
            # A step that is tried again may fail again: until the next one the stream waits.
            if before.state == "waiting" and (before.batch is not None or before.step == step):
                self._snapshot = replace(before, batch=None, step=step, progress=now)
                return
            since = before.since if before.state == "starting" else now
            self._snapshot = replace(
                before, state="starting", since=since, cause="", batch=None, step=step, progress=now
            )

    def note_alive(self) -> None:
        """Note that the stream's thread is at work, though no batch is."""
        with self._guard:
            self._snapshot = replace(self._snapshot, progress=time.time())

    def note_batch_step(self, batch: int, step: str, done: int, of: int) -> None:
        """Note the step of a batch that has begun, or its end."""
        with self._guard:
            before = self._snapshot
            # A batch is at work: what was waited for is there.
            state = before.state
            if state in ("starting", "waiting"):
                state = "running"
            now = time.time()
            if step == "commit" and done == of:
                self._commit_ended = (batch, now)
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

    def note_ages(self, batch: int, began: float, ages: Mapping[str, TableAges]) -> None:
        """Note how old the records of a batch were when it began; `carried_out` says which are in their tables."""
        with self._guard:
            self._staged_ages = StagedAges(batch, began, ages)

    def note_blocked(self, blocked: Mapping[str, str]) -> None:
        """Note, in a batch or between two, why tables cannot be written, by place (ROUTE/SINK/TABLE)."""
        why = {place.rpartition("/")[2]: cause for place, cause in blocked.items()}
        with self._guard:
            for table in self._blocked.keys() - why.keys():
                self._tables[table] = replace(self._table_status(table), blocked="")
            self._blocked = why
            for table, cause in why.items():
                self._tables[table] = replace(self._table_status(table), blocked=to_printable(cause))

    def carried_out(
        self,
        manifest: Manifest,
        applied: Mapping[str, Applied],
        blocked: Mapping[str, str],
        *,
        merged: Mapping[str, str] | None = None,
        committed_by: Mapping[str, Committer] | None = None,
    ) -> None:
        """Note what a batch brought: its rows by table, what sinks did, how far the source is processed.

        `blocked` says by place (ROUTE/SINK/TABLE) why tables cannot be written. `merged` has the tables that sinks
        merged into, each with its sink (ROUTE/SINK), and `committed_by` what wrote a table.
        """
        now = time.time()
        committed_by = committed_by or {}
        with self._guard:
            self.note_blocked(blocked)
            # Sinks may have worked for long since the commits.
            batch, commit_ended = self._commit_ended
            committed = commit_ended if batch == manifest.batch else now
            for work in manifest.commits:
                if work.note_key in manifest.quarantined:
                    continue
                self._note_files(work, now)
                status = self._table_status(work.table)
                self._tables[work.table] = replace(
                    status,
                    rows=(status.rows or 0) + work.rows,
                    batch=manifest.batch,
                    committed=committed,
                    target=work.target,
                    committer=committed_by.get(work.table, status.committer),
                )
            for table, target in (merged or {}).items():
                self._tables[table] = replace(
                    self._table_status(table),
                    rows=None,
                    batch=manifest.batch,
                    committed=now,
                    target=target,
                    committer=committed_by.get(table),
                )
            self._add_ages(manifest, committed)
            self._snapshot = replace(self._snapshot, held_topics=manifest.held_topics)
            self._expectations = with_batch(self._expectations, manifest, committed)
            for part in manifest.partitions:
                self._update_partition(part.topic, part.partition, position=part.last + 1)
                self._unknown_fields.update(part.unknown_fields)
            for key, counts in applied.items():
                self._add_applied(key, counts, sum(part.landed.get(key, 0) for part in manifest.partitions))

    def note_sent(self, key: str, counts: Applied) -> None:
        """Note what a detached sink (ROUTE/SINK) did with rows of its outbox."""
        with self._guard:
            self._add_applied(key, counts, landed=0)

    def sink_waits(self, key: str, cause: str) -> None:
        """Note why a detached sink (ROUTE/SINK) cannot send; an empty cause: it can again."""
        with self._guard:
            self._sinks[key] = _with_trouble(replace(self._sink_status(key), waits=to_printable(cause)))

    def note_waiting_rows(self, key: str, arrivals: Iterable[tuple[float, int]]) -> None:
        """Note rows that were in an outbox before the stream started: when they came, and how many."""
        with self._guard:
            status = self._sink_status(key)
            queue = self._arrivals.setdefault(key, deque())
            for time_of_arrival, rows in sorted(arrivals, reverse=True):
                queue.appendleft([time_of_arrival, rows])
                status = replace(status, backlog=status.backlog + rows)
            # Some may have been sent since: the board has counted that, but had no rows to take it from.
            self._take_sent(queue, int(sum(rows for _, rows in queue)) - status.backlog)
            self._sinks[key] = replace(status, oldest=queue[0][0] if queue else None)

    def _table_status(self, table: str) -> TableStatus:
        return self._tables.get(table) or TableStatus(table)

    def _sink_status(self, key: str) -> SinkStatus:
        route, _, sink = key.partition("/")
        return self._sinks.get(key) or SinkStatus(route, sink)

    def api_is(self, key: str, state: ApiState) -> None:
        """Note how the API of a sink (ROUTE/SINK) is."""
        with self._guard:
            before = self._sink_status(key)
            called, failing = before.called, before.failing
            if _count_answered(state.answers) > _count_answered(before.answers):
                called, failing = time.time(), None
            elif sum(state.answers.values()) > sum(before.answers.values()):
                failing = failing or time.time()
            delivered = state.delivered.get(f"{self._snapshot.query}/{before.route}/{before.sink}", 0)
            counted = self._counted.setdefault(key, 0)
            if counted is None or counted > delivered:
                counted = self._counted[key] = delivered
            status = replace(
                before,
                called=called,
                failing=failing,
                sending=delivered - counted,
                url=to_printable(state.url),
                failure=state.failure,
                circuit_open=state.circuit_open,
                limit_used=state.limit_used,
                answers=dict(state.answers),
                last_answers=self._last_answers(key, state.answers),
            )
            self._sinks[key] = _with_trouble(status)

    def _last_answers(self, key: str, answers: Mapping[str, int]) -> dict[str, int]:
        """Return by how many the answers of an API have grown in the last minute."""
        now = time.time()
        counts = self._answers.setdefault(key, deque())
        # Whoever asks does so each second, and answers come when they like: a minute of them is what is looked at.
        counts.append((now, answers))
        while len(counts) > 1 and counts[1][0] <= now - _ANSWER_WINDOW_SECONDS:
            counts.popleft()
        _, before = counts[0]
        return {answer: count - before.get(answer, 0) for answer, count in answers.items()}

    def _add_applied(self, key: str, counts: Applied, landed: int) -> None:
        before = self._sink_status(key)
        queue = self._arrivals.setdefault(key, deque())
        # Rows that have landed first: a sink of the batch may have sent them already.
        if landed:
            queue.append([time.time(), landed])
        self._take_sent(queue, counts.finished_rows)
        # A batch has ended: its rows are counted, and not those that were seen to be delivered meanwhile.
        sending = before.sending
        if counts.finished_rows:
            sending = 0
            self._counted[key] = None
        self._sinks[key] = replace(
            before,
            sending=sending,
            applied=before.applied + counts.applied,
            dead=before.dead + counts.dead,
            parked=before.parked + counts.parked,
            in_doubt=before.in_doubt + counts.in_doubt,
            backlog=before.backlog + landed - counts.finished_rows,
            oldest=queue[0][0] if queue else None,
        )
        if counts.dead and self._dead_letter_table:
            letters = self._table_status(self._dead_letter_table)
            rows = (letters.rows or 0) + counts.dead
            self._tables[letters.table] = replace(letters, rows=rows, target="/dead_letters", committed=time.time())
        if counts.dead:
            self._add_dead_letter(
                DeadLetterStatus(Stage.APPLY, before.route, before.sink, None, counts.dead, time.time())
            )

    def _take_sent(self, queue: deque[list[float]], rows: int) -> None:
        """Take the oldest rows out of a queue: a sink sends them in about the order in which they came."""
        while rows > 0 and queue:
            taken = min(rows, int(queue[0][1]))
            rows -= taken
            queue[0][1] -= taken
            if queue[0][1] <= 0:
                queue.popleft()

    def _note_files(self, work: TableCommit, now: float) -> None:
        """Keep the files of records and dead letters for whoever reads them."""
        if work.target == "/dead_letters":
            paths = tuple(file.path for file in work.files)
            if self._is_read and len(self._unread) < UNREAD:
                self._unread.append(CommittedFiles(paths, work.rows, now))
            elif self._is_read:
                self._add_dead_letter(DeadLetterStatus("unknown", "", "", None, work.rows, now))

    def _add_ages(self, manifest: Manifest, committed: float) -> None:
        """Add how old the records of a batch were when they were in their tables."""
        staged = self._staged_ages
        # A batch that is finished after a crash has been staged by another process.
        if staged.batch != manifest.batch:
            return
        for work in manifest.commits:
            ages = staged.by_place.get(work.note_key)
            if ages is None or not ages.newest or work.note_key in manifest.quarantined:
                continue
            in_table = ages.committed_later(committed - staged.began)
            self._ages += in_table
            self._recent_ages.append((committed, in_table))
            status = self._table_status(work.table)
            newest = max(ages.newest, status.newest_record or 0.0)
            self._tables[work.table] = replace(status, newest_record=newest)

    def read_files(self) -> None:
        """Note that files of batches are read from now on: see `unread_dead_letters`."""
        self._is_read = True

    def unread_dead_letters(self) -> CommittedFiles | None:
        """Return the oldest unread dead letters, and forget them; None if there are none."""
        with self._guard:
            return self._unread.popleft() if self._unread else None

    def add_dead_letters(self, letters: Iterable[DeadLetterStatus]) -> None:
        """Add dead letters to those of before."""
        with self._guard:
            for added in letters:
                self._add_dead_letter(added)

    def _add_dead_letter(self, added: DeadLetterStatus) -> None:
        key = (added.stage, added.route, added.sink, added.reason)
        if key not in self._dead_letters and len(self._dead_letters) >= REASONS:
            added = replace(added, reason=None)
            key = (added.stage, added.route, added.sink, None)
        before = self._dead_letters.get(key)
        if before is not None:
            # An older record of a backlog does not set the time back.
            added = replace(
                added,
                count=before.count + added.count,
                last=max(before.last, added.last),
                samples=(*added.samples, *before.samples)[:SAMPLES],
            )
        self._dead_letters[key] = added

    def quarantine_is(self, quarantined: Iterable[QuarantineStatus]) -> None:
        """Note all rows that are quarantined now."""
        with self._guard:
            self._read["quarantine"] = time.time()
            self._quarantined = tuple(quarantined)

    def view_refreshed(self, view: str, note: Note | None) -> None:
        """Note a refresh that went well, also if nothing had changed; without a note the view reads nothing yet."""
        with self._guard:
            if view not in self._views:
                return
            if note is not None:
                self._add_note(view, note)
            self._views[view] = replace(self._views[view], checked=time.time(), failed="", failed_since=None)

    def view_failed(self, view: str, cause: str) -> None:
        """Note a refresh that failed."""
        with self._guard:
            if view not in self._views:
                return
            status = self._views[view]
            now = time.time()
            since = status.failed_since or now
            self._views[view] = replace(status, checked=now, failed=to_printable(cause), failed_since=since)

    def views_are_noted(self, notes: Mapping[str, Note]) -> None:
        """Note what the checkpoint has about views: another process may have refreshed them."""
        with self._guard:
            self._read["views"] = time.time()
            for view, note in notes.items():
                if view in self._views:
                    self._add_note(view, note)

    def _add_note(self, view: str, note: Note) -> None:
        status = with_note(self._views[view], note)
        if status is not self._views[view]:
            self._views[view] = status
            self._expectations = with_view(self._expectations, view, note, status.refreshed)

    def was_read(self, kind: str) -> None:
        """Note that something was read now, also if it was as before."""
        with self._guard:
            self._read[kind] = time.time()

    def note_report(self, report: BatchReport) -> None:
        """Note the report of a batch."""
        outcomes = {name: getattr(report, name) for name in outcome_names("source", "batch")}
        batch = BatchStatus(
            batch=report.batch,
            ended=time.time(),
            **outcomes,
            tables=report.tables,
            files=report.files,
            seconds=dict(report.seconds),
        )
        with self._guard:
            self._batches.appendleft(batch)
            self._snapshot = replace(self._snapshot, finished=self._snapshot.finished + 1)
            self._records.update(outcomes)
            for route, counts in report.routes.items():
                self._routes.setdefault(route, Counter()).update(counts)
            for step, seconds in report.seconds.items():
                self._count_step_seconds(step, seconds)

    def _count_step_seconds(self, step: str, seconds: float) -> None:
        """Count the seconds of a step: the buckets up to each bound, of all, then the sum."""
        counts = self._steps.setdefault(step, [0.0] * (len(STEP_SECONDS) + 2))
        for place, bound in enumerate(STEP_SECONDS):
            counts[place] += seconds <= bound
        counts[-2] += 1
        counts[-1] += seconds

    def source_is_at(
        self,
        positions: Mapping[tuple[str, int], int],
        ends: Mapping[tuple[str, int], int],
        read: float | None = None,
    ) -> None:
        """Note how far partitions of the source are processed, and where they ended at a time; by default now."""
        read = time.time() if read is None else read
        with self._guard:
            for (topic, partition), position in positions.items():
                self._update_partition(topic, partition, position=position)
            for (topic, partition), end in ends.items():
                self._update_partition(topic, partition, end=end, read=read)

    def _update_partition(
        self, topic: str, partition: int, *, position: int | None = None, end: int | None = None, read: float = 0.0
    ) -> None:
        known = self._partitions.get((topic, partition)) or PartitionStatus(topic, partition)
        # Whoever reads the checkpoint may be later with an older batch.
        if position is not None and position >= (known.position or 0):
            known = replace(known, position=position)
        # Two ask for ends: an answer that is older than the one before would let the lag go back and forth.
        if end is not None and read >= (known.read or 0.0):
            known = replace(known, end=end, read=read)
        self._partitions[topic, partition] = known

    def snapshot(self) -> StreamSnapshot:
        """Return the stream as it is now."""
        # Copies of what changes, of values that do not: whoever renders them needs no lock, and holds up no batch.
        with self._guard:
            return replace(
                self._snapshot,
                records=dict(self._records),
                routes={route: dict(counts) for route, counts in self._routes.items()},
                batches=tuple(self._batches),
                tables=tuple(self._tables.values()),
                sinks=tuple(map(_without_sent, self._sinks.values())),
                partitions=tuple(self._partitions.values()),
                step_seconds={step: tuple(counts) for step, counts in self._steps.items()},
                dead_letters=tuple(self._dead_letters.values()),
                quarantined=self._quarantined,
                views=tuple(self._views.values()),
                expectations=tuple(self._expectations.values()),
                freshness=self._freshness_status(),
                unknown_fields=dict(self._unknown_fields.most_common(FIELDS)),
                read=dict(self._read),
                warnings=tuple(self._warnings),
            )

    def _freshness_status(self) -> FreshnessStatus | None:
        if not self._ages.newest:
            return None
        while self._recent_ages and self._recent_ages[0][0] < time.time() - FRESH_SECONDS:
            self._recent_ages.popleft()
        recent = sum((ages for _, ages in self._recent_ages), start=TableAges())
        whole, newest = [(*accumulate(ages.counts), ages.seconds) for ages in (self._ages, recent)]
        return FreshnessStatus(whole, self._ages.newest, newest)


def _with_trouble(status: SinkStatus) -> SinkStatus:
    """Return a sink with the time since when it cannot send: since its first call that failed."""
    fails = status.circuit_open or status.waits
    since = status.fails_since or (status.failing if status.circuit_open else None) or time.time()
    return replace(status, fails_since=since if fails else None)


def _count_answered(answers: Mapping[str, int]) -> int:
    """Return how many calls were taken or refused: one that fails or times out is no sign of life."""
    return sum(count for answer, count in answers.items() if answer not in ("failed", "timed out"))


def _without_sent(status: SinkStatus) -> SinkStatus:
    """Return a sink without the rows in its backlog that are delivered already."""
    return replace(status, backlog=max(0, status.backlog - status.sending))


def installed_version() -> str:
    """Return the version of the router; `unknown` if it runs from an archive."""
    try:
        return version("spark-event-router")
    except PackageNotFoundError:
        return "unknown"
