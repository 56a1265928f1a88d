"""The state of a stream at one moment, as everything that shows it reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router.errors import to_printable
from router.moments import format_clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.engine.commit.committers import Committer
    from router.states import RefreshWay, StreamState, WaitsFor

NAMED_TARGETS = 20
"""Tables of a view that are named; of more there is the number."""
SAMPLES = 2
"""Records of dead letters that are kept for each cause, if any are."""
VALUE_LETTERS = 300
"""Letters of a record's value that are kept."""
SAMPLED_BYTES = 4 * VALUE_LETTERS
"""Bytes that so many letters may have."""


@dataclass(frozen=True)
class BatchStatus:
    """A finished batch. Counts are records; `seconds` has the wall time of each step, `ended` is since 1970."""

    batch: int
    ended: float
    read: int
    decoded: int
    failed: int
    unmatched: int
    dead_letters: int
    tables: int
    files: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class TableStatus:
    """A table since the stream started: rows that it got, its last batch, and when that was committed.

    Of a table that a sink merges into it is not known how many rows it got: `rows` is None.
    `newest_record` is the time of its newest record, in seconds since 1970; None if that is not known. `blocked` says
    why the table cannot be written now, so that its rows are quarantined; empty if it can. `target` wrote it last: a
    sink as ROUTE/SINK, `/bronze` or `/dead_letters`; empty if that is not known. `committer` is what commits to it,
    None before the first commit of this process.
    """

    table: str
    rows: int | None = 0
    batch: int = -1
    committed: float = 0.0
    blocked: str = ""
    newest_record: float | None = None
    target: str = ""
    committer: Committer | None = None


@dataclass(frozen=True)
class SinkStatus:
    """What an applying sink did since the stream started, in rows; `backlog` has those that it still has to send.

    `sending` are rows of a batch which has not ended that are delivered already: not in `applied` yet, and no more in
    `backlog`.
    `oldest` is when the first of the backlog came into the outbox, in seconds since 1970; None if nothing waits.
    `waits` is why the last batch of a detached sink failed and is tried again; empty if it did not fail.
    Since `fails_since` it does so, or its circuit is open; `url` is where it sends, without query, and `failure` how
    the last call that failed ended. `called` is when a call was last answered, `failing` since when calls fail or time
    out instead. `circuit_open`, `limit_used` and `answers` are about the sink's API and all sinks that share its limit:
    see `ApiState`; None or empty if they are not known. `last_answers` are those of the last minute.
    """

    route: str
    sink: str
    applied: int = 0
    sending: int = 0
    dead: int = 0
    parked: int = 0
    in_doubt: int = 0
    backlog: int = 0
    oldest: float | None = None
    waits: str = ""
    fails_since: float | None = None
    url: str = ""
    failure: str = ""
    called: float | None = None
    failing: float | None = None
    circuit_open: bool | None = None
    limit_used: float | None = None
    answers: dict[str, int] = field(default_factory=dict)
    last_answers: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return ROUTE/SINK."""
        return f"{self.route}/{self.sink}"


@dataclass(frozen=True)
class DeadLetterSample:
    """A record that became a dead letter: where it stood, and the begin of its value, as text."""

    topic: str
    partition: int
    offset: int
    value: str

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> DeadLetterSample:
        """Return the sample of a row of the dead letters."""
        value = (row["value"] or b"")[:SAMPLED_BYTES].decode(errors="backslashreplace")
        return cls(row["topic"] or "", row["partition"] or 0, row["offset"] or 0, to_printable(value)[:VALUE_LETTERS])


@dataclass(frozen=True)
class DeadLetterStatus:
    """Dead letters of one stage, route, sink and reason since the stream started, and when the last of them came.

    Without a reason they are those with all other reasons, or those whose files could not be read. `samples` are some
    of the last records, only with `ui: {samples: true}`.
    """

    stage: str
    route: str
    sink: str
    reason: str | None
    count: int
    last: float
    samples: tuple[DeadLetterSample, ...] = ()


@dataclass(frozen=True)
class QuarantineStatus:
    """The quarantined rows of a table that wait for one thing.

    `oldest` is the time of the oldest record, in seconds since 1970, if that is known.
    """

    table: str
    route: str
    sink: str
    waits_for: WaitsFor
    rows: int
    cause: str | None = None
    oldest: float | None = None


@dataclass(frozen=True)
class ViewStatus:
    """A view, its tables and how its last refresh went.

    `into` is the name of its tables: `tables` of them have `rows`, and `targets` are the first ones. `refreshed` is
    when a refresh last found something new, None if never; `way` is how it went, and `why` so; it took `seconds` and
    wrote `commits` tables. `checked` is when this process last looked for changes. `every` is its interval in seconds,
    None if it has none. `failed` is why the last refresh failed, empty if it did not; refreshes fail since
    `failed_since`.
    """

    view: str
    into: str
    targets: tuple[str, ...] = ()
    tables: int = 0
    rows: int = 0
    refreshed: float | None = None
    way: RefreshWay = ""
    why: str = ""
    seconds: float | None = None
    commits: int = 0
    checked: float | None = None
    failed: str = ""
    failed_since: float | None = None
    every: float | None = None


@dataclass(frozen=True)
class ExpectationStatus:
    """An expectation: the events that it was asked of, and those on which it did not hold (`violated`).

    `of` is a route, `bronze` or `view NAME`. The counts of a route and of bronze are since the stream started, and
    `trend` has those of each of the last batches, the oldest first; those of a view are about the rows of its tables as
    they are, and `trend` has those of its last refreshes. `last` is when it last did not hold, None if never.
    `otherwise` is what becomes of the events.
    """

    of: str
    name: str
    otherwise: str
    events: int = 0
    violated: int = 0
    last: float | None = None
    trend: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class FreshnessStatus:
    """How old records were when they were in their tables: a histogram, and the time of the newest record.

    `counts` has the records up to each bound of `AGE_SECONDS`, then all of them, then the sum of their ages. A record
    that is in three tables counts three times. `recent` are the same of the last five minutes.
    """

    counts: tuple[float, ...]
    newest: float
    recent: tuple[float, ...] = ()


@dataclass(frozen=True)
class PartitionStatus:
    """A partition of the source: the offset after the last one that was processed, and the end of the partition.

    `read` is when the end was asked for, in seconds since 1970. What is not known yet is None.
    """

    topic: str
    partition: int
    position: int | None = None
    end: int | None = None
    read: float | None = None

    @property
    def lag(self) -> int | None:
        """Return how many records are still to be processed."""
        if self.end is None or self.position is None:
            return None
        return max(0, self.end - self.position)


@dataclass(frozen=True)
class Warned:
    """A warning or an error that was logged, and when, in seconds since 1970."""

    at: float
    level: str
    message: str


@dataclass(frozen=True)
class StreamSnapshot:
    """A stream at a moment. Times are in seconds since 1970.

    `cause` says what a waiting or failed stream waits for, or failed of, since `since`. `progress` is the time of the
    last step. `records` has totals since the start by outcome, `routes` those of each route. `finished` batches there
    were since the start, and `batches` are the last of them, the newest first. `read` says when what stands in files
    was read last: `dead_letters`, `outboxes`, `quarantine`, `views`. Without `ui` the first three are not known, no
    `freshness` is, and of `views` only what this process has refreshed. `held_topics` were deleted and created again.
    `unknown_fields` are some that the schema lacks, with the events that have them, since the start.
    `unread` is about a stream that cannot be asked: which subjects of its lake could not be read, and why.
    """

    query: str
    version: str
    state: StreamState
    since: float
    started: float
    cause: str = ""
    batch: int | None = None
    step: str = ""
    progress: float = 0.0
    records: dict[str, int] = field(default_factory=dict)
    routes: dict[str, dict[str, int]] = field(default_factory=dict)
    finished: int = 0
    batches: tuple[BatchStatus, ...] = ()
    tables: tuple[TableStatus, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    step_seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    dead_letters: tuple[DeadLetterStatus, ...] = ()
    quarantined: tuple[QuarantineStatus, ...] = ()
    views: tuple[ViewStatus, ...] = ()
    expectations: tuple[ExpectationStatus, ...] = ()
    freshness: FreshnessStatus | None = None
    read: dict[str, float] = field(default_factory=dict)
    warnings: tuple[Warned, ...] = ()
    held_topics: tuple[str, ...] = ()
    unknown_fields: dict[str, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """Return how many records of the source are still to be processed; None if that is not known."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if known else None

    @property
    def blocked_tables(self) -> dict[str, str]:
        """Return why tables cannot be written."""
        return {table.table: table.blocked for table in self.tables if table.blocked}

    @property
    def place(self) -> str:
        """Return where the stream's thread is: in a step of a batch, in a step of the start, or between two."""
        if self.batch is None and self.step:
            return self.step
        return f"batch {self.batch}, {self.step}" if self.step else "between two batches"

    @property
    def words(self) -> str:
        """Return the state in words."""
        if self.state == "running":
            lag = self.lag
            return "running" if lag is None else f"running, {lag:,} records behind"
        cause = self.step if self.state == "starting" else self.cause
        if cause:
            return f"{self.state} since {format_clock(self.since)}: {cause}"
        return self.state
