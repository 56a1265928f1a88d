"""What is wrong with a stream, in words, and the command that shows or mends it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from router.engine.status.snapshot import QuarantineStatus, StreamSnapshot

NAMES_SHOWN = 3
"""Tables and sinks that a sentence names."""


@dataclass(frozen=True)
class StreamFinding:
    """Something that is wrong. `act`: the stream does not do its work; `look`: it does, and a person should look.

    `command` is what to type next; empty if there is nothing to type.
    """

    severity: Literal["act", "look"]
    text: str
    command: str = ""


def findings(snapshot: StreamSnapshot, file: str, stuck_after: float, now: float) -> tuple[StreamFinding, ...]:
    """Return what is wrong, the worst first; `file` is the configuration, `stuck_after` is in seconds."""
    file = shlex.quote(file)
    found: list[StreamFinding] = []
    if snapshot.state == "failed":
        cause = snapshot.cause.rstrip(".")
        text = f"The stream has failed: {cause}. Mend this, then start it: it continues where it ended."
        found.append(StreamFinding("act", text, f"router run {file}"))
    if snapshot.state == "down":
        found.append(
            StreamFinding("act", "No stream runs. Start it: it continues where it ended.", f"router run {file}")
        )
    idle = now - snapshot.progress
    if snapshot.state == "running" and snapshot.progress and idle > stuck_after:
        text = f"No step for {idle / 60:.0f} min ({snapshot.place}). Restart the process: it continues where it ended."
        found.append(StreamFinding("act", text))
    if snapshot.state == "waiting":
        text = f"It waits, and continues by itself: {snapshot.cause}"
        found.append(StreamFinding("look", text, f"router doctor {file}"))
    blocked = [table.table for table in snapshot.tables if table.blocked]
    if blocked:
        text = f"Tables that cannot be written: {join_names(blocked)}. Their rows are quarantined."
        found.append(StreamFinding("look", text, f"router tables {file}"))
    if snapshot.quarantined:
        found.append(StreamFinding("look", _of_quarantine(snapshot.quarantined), f"router quarantine list {file}"))
    failed = [view.view for view in snapshot.views if view.failed]
    if failed:
        text = (
            f"Views that cannot be refreshed: {join_names(failed)}. Their tables stay as they are until it works again."
        )
        found.append(StreamFinding("look", text, f"router views {file}"))
    for sink in snapshot.sinks:
        if sink.circuit_open:
            text = f"The API of {sink.route}/{sink.sink} is unavailable: {sink.backlog:,} rows wait until it answers."
            found.append(StreamFinding("look", text))
    return tuple(found)


def _of_quarantine(quarantined: tuple[QuarantineStatus, ...]) -> str:
    rows = sum(waiting.rows for waiting in quarantined)
    tables = sorted({waiting.table for waiting in quarantined})
    return f"Quarantined rows: {rows:,}, of {join_names(tables)}."


def join_names(names: list[str]) -> str:
    """Return the first names, and how many others there are."""
    text = ", ".join(names[:NAMES_SHOWN])
    others = len(names) - NAMES_SHOWN
    return f"{text} and {others:,} more" if others > 0 else text
