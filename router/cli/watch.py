"""`--watch`: what a command prints, again and again; redrawn in a terminal, a line for each change in a pipe.

A stream with `ui` is asked once a second. The list of a command is read as without `--watch`: soon after the stream
reports something new, else every ten seconds; and so is the state of a stream that does not answer. Only reads.
"""

from __future__ import annotations

import io
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from deltalake.exceptions import DeltaError
from rich.console import Console
from rich.live import Live
from rich.text import Text

from router.cli import configuration_file
from router.cli.listing import show_listings, show_sentences
from router.cli.session import watch_until_interrupted
from router.cli.status import findings_of, headline_of, reason_lines, subject_sentences
from router.engine.status.background import REST_PER_READING
from router.engine.status.summary import summary_of_lake, summary_of_stream
from router.errors import RouterError, commands_with_file, first_line
from router.states import FINDINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    from router.cli.listing import Listing
    from router.config.models import Config
    from router.engine.status.summary import StreamSummary

FRAME_SECONDS = 1.0
"""Seconds between two questions to the stream, and two frames: ages keep counting."""
READ_SECONDS = 10.0
"""Seconds between two readings of a lake of which nothing new is reported."""
MISSED_ANSWERS = 3
"""Answers that a stream may miss until its lake is read in its place."""

SUBJECTS_OF_LIST = 2
"""Sentences above a list, beside what is wrong: who has seen it, and the last batch."""
REPORTED_PARTS = ("source", "state", "cause", "batch", "blocked", "quarantined", "outboxes", "dead_letters")
"""Parts of a summary that tell that a list may have changed."""
_DATED = [kind for kind, facts in FINDINGS.items() if facts.is_dated]
"""Findings whose text changes by itself, which is no change."""


def watch_stream(
    config: Config,
    read: Callable[[], Sequence[Listing]] | None = None,
    *,
    as_json: bool = False,
    nothing: str = "",
    max_age: timedelta | None = None,
) -> None:
    """Show the state of a stream, and the listings of a command if it has some, until Ctrl-C or SIGTERM.

    `nothing` is what a terminal shows of listings without rows. Raises UsageError if a document is asked for.
    """
    stream = WatchedStream(config, str(configuration_file()), read, max_age)
    console = Console(highlight=False)
    with watch_until_interrupted(as_json=as_json):
        if console.is_terminal and not console.is_dumb_terminal:
            _redraw_screen(stream, console, nothing)
        else:
            _print_changes(stream)


class WatchedStream:
    """A stream, and the listings of a command about it, as they were read last. Without `read` there are none."""

    def __init__(
        self,
        config: Config,
        file: str,
        read: Callable[[], Sequence[Listing]] | None = None,
        max_age: timedelta | None = None,
    ) -> None:
        self.config = config
        self.file = file
        self.max_age = max_age
        self.summary: StreamSummary = {}
        self.listings: Sequence[Listing] = ()
        self._read = read
        self._unreadable = ""
        """Why the listings could not be read again."""
        self._answered = 0.0
        self._missed = 0
        self._facts: tuple[Any, ...] | None = None
        """What the stream reported when the listings were read."""
        self._rest_until = 0.0
        self._valid_until = 0.0

    def look_at_stream(self) -> None:
        """Ask the stream, and read its lake if that is due."""
        answer = summary_of_stream(self.config)
        was_asked = self.summary.get("source") == "stream"
        now = time.monotonic()
        if answer is not None:
            self.summary = answer
            self._answered = time.time()
            self._missed = 0
            if self._read is None or now < self._rest_until:
                return
            if now < self._valid_until and _reported_facts(answer) == self._facts:
                return
        elif was_asked:
            # A stream that is busy, or is starting again, may miss an answer: its last one says more than its lake.
            self._missed += 1
            if self._missed < MISSED_ANSWERS:
                return
        elif now < max(self._rest_until, self._valid_until):
            return
        self._read_lake(answer)

    def _read_lake(self, answer: StreamSummary | None) -> None:
        began = time.monotonic()
        self.summary = answer or summary_of_lake(self.config, self.file)
        self._facts = _reported_facts(self.summary)
        self._missed = 0
        self._unreadable = ""
        if self._read is not None:
            try:
                self.listings = self._read()
            except (OSError, RouterError, DeltaError, pa.ArrowException, ValueError) as error:
                # Storage that is unavailable, or files that maintenance has removed: the next reading may succeed.
                self._unreadable = f"the list cannot be read: {first_line(error)}"
        now = time.monotonic()
        self._rest_until = now + REST_PER_READING * (now - began)
        self._valid_until = now + READ_SECONDS

    def all_findings(self, now: float) -> list[dict[str, Any]]:
        """Return the findings of the stream, then the reasons why nothing new is known of it."""
        problems = [self._unreadable]
        if self._missed:
            problems.append(f"no answer; this is how it was at {_utc_text(self._answered)}")
        findings = findings_of(self.summary, self.max_age, self.file, now)
        return findings + [{"kind": "watch", "text": text, "command": ""} for text in problems if text]

    def state_sentences(self, now: float) -> tuple[str, list[tuple[str, str]]]:
        """Return the headline of the stream, and a sentence for each subject; above a list only some."""
        subjects = subject_sentences(self.summary, now)
        if self._read is not None:
            subjects = subjects[:SUBJECTS_OF_LIST]
        return headline_of(self.summary, now), [
            *reason_lines(self.all_findings(now), self.summary["verdict"]),
            *subjects,
        ]


def _reported_facts(summary: StreamSummary) -> tuple[Any, ...]:
    """Return the facts that a stream reports of its tables, without those that change by themselves."""
    views = [(view["refreshed"], view["failed"]) for view in summary["views"]]
    return *(summary[name] for name in REPORTED_PARTS), views


def _redraw_screen(stream: WatchedStream, console: Console, nothing: str) -> None:
    with Live(f"{stream.config.name}: reading", console=console, screen=True, auto_refresh=False) as live:
        while True:
            stream.look_at_stream()
            lines = screen_lines(stream, nothing, console.width, console.height)
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            time.sleep(FRAME_SECONDS)


def screen_lines(stream: WatchedStream, nothing: str, width: int, height: int) -> list[str]:
    """Return the lines of a screen: as many as it has room for, as the command prints them."""
    paper = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False)
    # Rows below the edge are not laid out: a stream may have thousands of tables.
    listings = [replace(listing, rows=listing.rows[:height]) for listing in stream.listings]
    with paper.capture() as printed:
        name, subjects = stream.state_sentences(time.time())
        paper.print(Text(name, style="bold"), soft_wrap=True)
        show_sentences(subjects, paper)
        show_listings(stream.config.name, listings, nothing=nothing, console=paper)
    lines = printed.get().splitlines()
    if len(lines) <= height:
        return lines
    rows = sum(len(listing.rows) for listing in stream.listings)
    if not rows:
        return lines[:height]
    return [*lines[: height - 1], f"... not all of {rows:,} rows fit: --sort and --only choose"]


def _print_changes(stream: WatchedStream) -> None:
    known: dict[tuple[Any, ...], str] = {}
    while True:
        stream.look_at_stream()
        for line in changed_lines(stream, known):
            click.echo(line)
        time.sleep(FRAME_SECONDS)


def changed_lines(stream: WatchedStream, known: dict[tuple[Any, ...], str]) -> Iterator[str]:
    """Yield a line for the state and for each row that are not as they are `known`, and note them there.

    A time alone is no change. A row that is not there any more has a line if it had a key.
    """
    now = time.time()
    time_of_line = _utc_text(now)
    wrong = []
    for finding in stream.all_findings(now):
        is_dated = finding["kind"] in _DATED
        wrong.append(f"{finding['kind']} {finding['places']}" if is_dated else finding["text"])
    state = f"{stream.summary['state']} {stream.summary['cause']} {stream.summary['batch']} {wrong}"
    if known.get(("state",)) != state:
        known["state",] = state
        name, subjects = stream.state_sentences(now)
        sentences_of_line = "  ".join(f"{subject} {text}" for subject, text in subjects if text != "-")
        yield commands_with_file(f"{time_of_line} {name}  {sentences_of_line}", configuration_file())
    for listing in stream.listings:
        rows = {}
        for row in listing.rows:
            cells = [(field, field.text_of(row).replace("\n", "; ")) for field in listing.fields]
            compared = "  ".join(f"{field.header} {text}" for field, text in cells if field.compared)
            key = (listing.name, *(row[name] for name in listing.keys)) if listing.keys else (listing.name, compared)
            rows[key] = compared
            if known.get(key) != compared:
                yield f"{time_of_line} {'  '.join(f'{field.header} {text}' for field, text in cells if text)}"
        for key in [key for key in known if key[0] == listing.name and key not in rows]:
            if listing.keys:
                yield f"{time_of_line} gone: {known[key]}"
            del known[key]
        known.update(rows)


def _utc_text(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
