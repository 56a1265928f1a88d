"""What is wrong with a stream, in words, and the command that shows or mends it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.delta.lake import is_damaged
from router.engine.checkpoint_store import held_topics
from router.engine.quarantine.table import WAITS_FOR, sentence_on_blocked
from router.errors import join_names, shorten_cause
from router.moments import format_age, format_clock
from router.states import FINDINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.engine.status.snapshot import BatchStatus, QuarantineStatus, SinkStatus, StreamSnapshot
    from router.states import FindingKind, Severity, Verdict

SILENT_SECONDS = 60.0
"""Seconds without an answer to a call, though rows wait, after which a sink is named."""
SLOW_VIEW = 10
"""How many times its interval a refresh of a view takes that is named."""
RISE = 10
"""How many times as many dead letters a record as in the hour before are a rise."""
RISE_SECONDS = 300.0
FEWEST_DEAD_LETTERS = 100
"""Dead letters in RISE_SECONDS that can be a rise."""
LIMIT_IS_USED = 0.9
"""The share of a rate limit from which on a sink that makes no call waits for it."""


@dataclass(frozen=True)
class StreamFinding:
    """Something that is wrong, of one of `FINDINGS`.

    `command` is what to type next; empty if there is nothing to type. `places` are views and sinks that it is about:
    view/NAME, sink/ROUTE/NAME.
    """

    severity: Severity
    kind: FindingKind
    text: str
    command: str = ""
    places: tuple[str, ...] = ()

    @classmethod
    def of_kind(cls, kind: FindingKind, text: str, command: str = "", places: tuple[str, ...] = ()) -> StreamFinding:
        """Return a finding with the severity of its kind."""
        return cls(FINDINGS[kind].severity, kind, text, command, places)


def find_troubles(snapshot: StreamSnapshot, file: str, stuck_after: float, now: float) -> tuple[StreamFinding, ...]:
    """Return the findings of a stream, the worst first; `file` is the configuration, `stuck_after` is in seconds."""
    file = shlex.quote(file)
    found: list[StreamFinding] = []
    if snapshot.state == "failed":
        cause = snapshot.cause.rstrip(".")
        text = f"The stream has failed: {cause}. Mend this, then start it: it continues where it ended."
        found.append(StreamFinding.of_kind("failed", text, f"router run {file}"))
    if snapshot.state == "down":
        text = "No stream runs. Start it: it continues where it ended."
        found.append(StreamFinding.of_kind("down", text, f"router run {file}"))
    stuck = stuck_finding(snapshot, stuck_after, now)
    if stuck is not None:
        found.append(stuck)
    if snapshot.state == "waiting":
        text = f"It waits, and continues by itself: {snapshot.cause}"
        found.append(StreamFinding.of_kind("waiting", text, f"router doctor {file}"))
    if snapshot.held_topics:
        found.append(StreamFinding.of_kind("topic", held_topics(snapshot.held_topics)))
    blocked = snapshot.blocked_tables
    damaged = {table: cause for table, cause in blocked.items() if is_damaged(cause)}
    unwritable = {table: cause for table, cause in blocked.items() if table not in damaged}
    # Of a blocked table there may also be rows that wait for a person: they are among the others.
    for_tables = [waiting for waiting in snapshot.quarantined if waiting.waits_for == WAITS_FOR["unblock"]]
    for tables in filter(None, (damaged, unwritable)):
        rows = sum(waiting.rows for waiting in for_tables if waiting.table in tables)
        found.append(StreamFinding.of_kind("blocked", *sentence_on_blocked(tables, rows, file)))
    others = tuple(row for row in snapshot.quarantined if row not in for_tables or row.table not in blocked)
    if others:
        command = f"router quarantine list {file}"
        text = f"{'Other quarantined' if blocked else 'Quarantined'} rows: {_of_quarantine(others)}."
        text += (
            " After a look, `router quarantine release` gives them to their tables, `discard` makes them dead letters."
        )
        found.append(StreamFinding.of_kind("quarantine", text, command))
    text = _of_rise(snapshot.batches, now)
    if text:
        found.append(StreamFinding.of_kind("dead letters", text, f"router dead-letters {file}"))
    failed = {view.view: view.failed for view in snapshot.views if view.failed}
    if failed:
        text = (
            f"Views that cannot be refreshed: {join_names(list(failed))}. Their tables stay as they are until it "
            f"works again. Why: {shorten_cause(next(iter(failed.values())))}"
        )
        places = tuple(f"view/{name}" for name in failed)
        found.append(StreamFinding.of_kind("view", text, f"router views {file}", places))
    slow = [view for view in snapshot.views if view.every and (view.seconds or 0.0) >= SLOW_VIEW * view.every]
    if slow:
        named = [f"{view.view} ({view.seconds:.0f} s, every {view.every:.0f} s)" for view in slow]
        text = f"Views that take {SLOW_VIEW} times their interval: {join_names(named)}. Give them a longer one."
        places = tuple(f"view/{view.view}" for view in slow)
        found.append(StreamFinding.of_kind("view", text, f"router views {file} --plan", places))
    for sink in snapshot.sinks:
        text, command = _of_sink(sink, snapshot, now), ""
        if sink.waits and not sink.circuit_open:
            command = f"router doctor {file}"
        if text:
            found.append(StreamFinding.of_kind("sink", text, command, (f"sink/{sink.key}",)))
    for subject, cause in snapshot.unread.items():
        found.append(StreamFinding.of_kind("unread", f"{subject} cannot be read: {cause}", f"router doctor {file}"))
    return tuple(found)


def stuck_finding(snapshot: StreamSnapshot, stuck_after: float, now: float) -> StreamFinding | None:
    """Return that a running stream has made no step for longer than so many seconds, if so."""
    idle = now - snapshot.progress
    if snapshot.state != "running" or not snapshot.progress or idle <= stuck_after:
        return None
    text = f"No step for {idle / 60:.0f} min ({snapshot.place}). Restart the process: it continues where it ended."
    return StreamFinding.of_kind("stuck", text)


def verdict(snapshot: StreamSnapshot, wrong: Sequence[StreamFinding]) -> Verdict:
    """Return how a stream is. That all is well is known once a batch has ended, or if no record waits."""
    if wrong:
        return wrong[0].severity  # the worst one comes first
    is_known = bool(snapshot.batches) or (snapshot.state == "running" and snapshot.lag == 0)
    if snapshot.state == "starting" or not is_known:
        return "unknown"
    return "well"


def _of_rise(batches: tuple[BatchStatus, ...], now: float) -> str:
    """Return the sentence on dead letters that have become many; empty if they have not."""
    recent = [batch for batch in batches if batch.ended > now - RISE_SECONDS]
    earlier = [batch for batch in batches if now - 3600 <= batch.ended <= now - RISE_SECONDS]
    dead, read = sum(batch.dead_letters for batch in recent), sum(batch.read for batch in recent)
    dead_before, read_before = sum(batch.dead_letters for batch in earlier), sum(batch.read for batch in earlier)
    if dead < FEWEST_DEAD_LETTERS or not read_before or dead * read_before < RISE * dead_before * max(read, 1):
        return ""
    before = f"{dead_before:,} of {read_before:,} in the hour before"
    return f"Dead letters rise: {dead:,} of {read:,} records in the last 5 min, {before}."


def _of_sink(sink: SinkStatus, snapshot: StreamSnapshot, now: float) -> str:
    """Return the sentence on a sink that cannot send, or does not though rows wait; empty if neither is so."""
    since = ""
    if sink.fails_since is not None:
        since = f" since {format_clock(sink.fails_since)} ({format_age(sink.fails_since, now)})"
    # Rows of a sink in the batch are counted when the batch ends.
    waiting = f"{sink.backlog:,} rows wait" if sink.backlog else "its rows of the batch wait"
    if sink.circuit_open:
        answer = f": {sink.url} {sink.failure}" if sink.failure else ""
        return f"The API of {sink.key} is unavailable{since}{answer}; {waiting}, and are sent when it answers again."
    if sink.waits:
        return f"{sink.key} cannot send{since}; {waiting}, and are tried again. Why: {shorten_cause(sink.waits)}"
    silent_since = _silent_since(sink, snapshot)
    if silent_since is None or now - silent_since < SILENT_SECONDS:
        return ""
    return f"No call of {sink.key} was answered for {format_age(silent_since, now)}, though {waiting}."


def _silent_since(sink: SinkStatus, snapshot: StreamSnapshot) -> float | None:
    """Return since when no call of a sink that counts them was answered, though rows wait; None if none wait."""
    # A limit of one call in five minutes makes none for as long.
    if not sink.answers or (sink.limit_used or 0.0) >= LIMIT_IS_USED:
        return None
    # Rows of a batch of its own are in no count, but somebody calls for them.
    if sink.failing is not None:
        return sink.failing
    since = [sink.called or snapshot.started]
    if snapshot.step == f"apply {sink.key}":
        since.append(snapshot.progress)
    elif not sink.backlog:
        return None
    return max(*since, sink.oldest or 0.0)


def overdue_findings(
    lag: int | None, ended: float | None, max_age: float, file: str, now: float
) -> tuple[StreamFinding, ...]:
    """Return that no batch has ended for too long, if so: the last one `ended`, `max_age` is in seconds.

    Without records that wait, no batch is due. An unknown lag counts as one: cron is to hear of a stream of which
    nothing is known.
    """
    if lag == 0 or (ended is not None and now - ended <= max_age):
        return ()
    text = "No batch has ended yet."
    if ended is not None:
        text = f"The last batch ended {(now - ended) / 60:.0f} min ago."
    return (StreamFinding.of_kind("overdue", text, f"router doctor {shlex.quote(file)}"),)


def _of_quarantine(quarantined: tuple[QuarantineStatus, ...]) -> str:
    rows = sum(waiting.rows for waiting in quarantined)
    tables = sorted({waiting.table for waiting in quarantined})
    return f"{rows:,}, of {join_names(tables)}"
