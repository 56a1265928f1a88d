"""The states that people and programs see: of a stream and what is wrong with it, of tables, views, quarantined rows.

Status, metrics, webhook, `router status`, `router tables` and the tables on the pages take them from here. Meanings are
Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StreamState = Literal["starting", "running", "waiting", "ended", "failed", "down"]
STREAM_STATES: dict[StreamState, str] = {
    "starting": "looks at what it needs, before its first batch",
    "running": "reads its source",
    "waiting": "tries again until something is available; `cause` has what",
    "ended": "has been stopped, or has read all of its source with `trigger: {once: true}`",
    "failed": "was ended by an error; `cause` has it",
    "down": "does not run: this is what its lake, checkpoint and topic have",
}
"""What a stream does in each state."""

TableState = Literal["ok", "none", "behind", "blocked", "unreadable", "gone"]


@dataclass(frozen=True)
class TableCondition:
    """What a table in a state is or does, and what a person does then."""

    meaning: str
    todo: str = ""


TABLE_STATES: dict[TableState, TableCondition] = {
    "ok": TableCondition("can be read, and has every decided batch"),
    "none": TableCondition("gets its first row later"),
    "behind": TableCondition(
        "lacks rows: a batch is under way, or it is an older copy",
        todo="`router verify FILE TABLE`",
    ),
    "blocked": TableCondition(
        "cannot be written; its rows wait in the quarantine",
        todo="remove the cause (`why`); `router quarantine list FILE`",
    ),
    "unreadable": TableCondition("has a damaged log file, which `why` names", todo="`router rebuild FILE TABLE`"),
    "gone": TableCondition("had rows, and is not there any more", todo="`router rebuild FILE TABLE`"),
}

WaitsFor = Literal["approval", "table", "release"]
"""What quarantined rows wait for: a person approves columns, their table can be written, a person releases them."""

ViewWay = Literal["merge", "keys", "rows", "tables", "full"]
"""How a view follows changes: see docs/how-to/views.md."""
RefreshWay = Literal[ViewWay, ""]
"""How a refresh has followed changes; empty if nothing had changed, or if there was none."""

Severity = Literal["act", "look"]
"""How bad a finding is."""
Verdict = Literal[Severity, "unknown", "well"]
VERDICTS: dict[Verdict, str] = {
    "act": "the stream does not do its work",
    "look": "the stream does its work, and a person should look",
    "unknown": "no batch has ended yet, and nothing is wrong",
    "well": "nothing is wrong",
}
"""How a stream is, the worst first: the severity of its worst finding, or what it means that there is none."""

FindingKind = Literal[
    "failed",
    "down",
    "stuck",
    "overdue",
    "waiting",
    "topic",
    "blocked",
    "quarantine",
    "dead letters",
    "view",
    "sink",
    "unread",
]


@dataclass(frozen=True)
class FindingFacts:
    """What is wrong if there is a finding of a kind. `is_dated`: its text has an age or a count of the moment."""

    severity: Severity
    meaning: str
    is_dated: bool = False


FINDINGS: dict[FindingKind, FindingFacts] = {
    "failed": FindingFacts("act", "an error has ended the stream"),
    "down": FindingFacts("act", "no stream runs"),
    "stuck": FindingFacts("act", "no step for longer than `ui: stuck_after`", is_dated=True),
    "overdue": FindingFacts("act", "records wait, and the last batch is older than `--max-age`", is_dated=True),
    "waiting": FindingFacts("look", "the stream waits for something, and continues by itself"),
    "topic": FindingFacts("look", "topics were deleted and created again: they are held"),
    "blocked": FindingFacts("look", "tables cannot be written"),
    "quarantine": FindingFacts("look", "other rows are quarantined"),
    "dead letters": FindingFacts("look", "ten times as many a record as in the hour before", is_dated=True),
    "view": FindingFacts("look", "views cannot be refreshed, or take ten times their interval"),
    "sink": FindingFacts("look", "a sink cannot send, or has no answers though rows wait", is_dated=True),
    "unread": FindingFacts("look", "a part of the lake, or the topic, cannot be read"),
}
"""What is wrong with a stream, by what the finding is about."""

Event = Literal["waiting", "blocked", "recovered", "stopped"]
EVENTS: dict[Event, str] = {
    "waiting": (
        "broker, storage or registry is unavailable; or named sinks cannot send: their API's "
        "[circuit](../reference/glossary.md#circuit) opens, or a batch of theirs fails and is tried again"
    ),
    "blocked": "tables cannot be written: their rows wait",
    "recovered": (
        "the stream has finished a batch or run for a minute; named sinks could send for a minute; named tables can be "
        "written"
    ),
    "stopped": "an error ends the stream; not a signal, or a drained source",
}
"""When the webhook of `on_failure` gets a message of each kind."""
