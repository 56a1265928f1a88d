"""What `router top` shows: a screen that follows keys, or lines for a pipe. Both are drawn of the same readings.

A thread asks the stream once a second, or reads its lake if the stream does not answer, so that keys work meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import termios
import time
import tty
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from router.cli.top_lists import LISTS, TableRates, TopList, event_rate, utc
from router.config.models import Ui, interval
from router.engine.status.background import BackgroundThread
from router.engine.status.events import status_text
from router.engine.status.lake_board import LakeBoard
from router.engine.status.summary import age, ask_stream
from router.errors import printable

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from router.cli.top_lists import Row, TopColumn
    from router.config.models import Config
    from router.engine.status.snapshot import StreamSnapshot

_ASK_SECONDS = 1.0
"""Seconds between two readings."""
DRAW_SECONDS = 0.5
"""Seconds between two frames without a key: ages keep counting."""
MISSED = 3
"""Answers that a stream may miss until its lake is read in its place."""
NARROWEST_SENTENCE = 12
"""Characters that a sentence has at least, and those of its head."""
FINDINGS = 3
"""Findings that have a line on the screen."""
GAP = "  "
VERDICTS = {"act": "■ Action needed", "look": "▲ Needs a look", "": "✓ All is well"}
STYLES = {"act": "bold red", "look": "bold yellow", "": "bold green"}
_KEYS = "q quit  1-8 Tab list  s S sort  r reverse  / filter  ↑ ↓ scroll"
ESCAPES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[Z": "list before",
    "\t": "list after",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
KEY_PATTERN = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)


@dataclass(frozen=True)
class TopReading:
    """A status, the document of `/api/status`; who has reported it, when, and what is wrong with the next one."""

    status: dict[str, Any]
    seen_by: str
    read: float
    problem: str = ""


class TopReader(BackgroundThread):
    """A thread that reads the status of a stream again and again. Use it as a context."""

    closing_seconds = 1.0

    def __init__(self, config: Config, file: str) -> None:
        super().__init__("top")
        self.config = config
        self.file = file
        self.reading: TopReading | None = None
        self._missed = 0
        self._rates = TableRates()
        self._lake: LakeBoard | None = None
        self._snapshot: StreamSnapshot | None = None

    def _run(self) -> None:
        with ExitStack() as lake:
            while not self._ended.is_set():
                self._read(lake)
                self._ended.wait(_ASK_SECONDS)

    def _read(self, lake: ExitStack) -> None:
        answer = ask_stream(self.config)
        if answer is not None:
            if self._lake is not None:
                lake.close()
                self._lake = None
                self._rates = TableRates()
            self._missed = 0
            self._take(answer.status, f"the stream, at {answer.address}")
            return
        # A stream that is busy, or is starting again, may miss an answer: its last one says more than its lake.
        self._missed += 1
        if self.reading is not None and self._lake is None and self._missed < MISSED:
            last = self.reading
            problem = f"no answer; this is how it was at {utc(last.read)}"
            self.reading = TopReading(last.status, last.seen_by, last.read, problem)
            return
        if self._lake is None:
            self._lake = lake.enter_context(LakeBoard(self.config))
            self._rates = TableRates()
        snapshot = self._lake.snapshot()
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            stuck_after = interval((self.config.ui or Ui()).stuck_after).total_seconds()
            self._take(json.loads(status_text(snapshot, self.file, stuck_after)), "its lake and checkpoint")

    def _take(self, status: dict[str, Any], seen_by: str) -> None:
        # A stream of an older version does not have every list.
        for field_of_list in ("findings", *(shown.field for shown in LISTS)):
            status.setdefault(field_of_list, [])
        self._rates.add_to(status)
        self.reading = TopReading(status, seen_by, time.time())


@dataclass
class TopView:
    """What the user looks at: a list, the order of each, the text that rows must have, and the first row shown."""

    number: int = 0
    orders: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """By list the column that it is sorted by, and whether downwards."""
    wanted: str = ""
    is_typing: bool = False
    first: int = 0
    page: int = 10
    """Rows that the last frame had room for."""

    @property
    def list(self) -> TopList:
        """Return the list that is shown."""
        return LISTS[self.number]

    @property
    def order(self) -> tuple[int, bool]:
        """Return the column that the list is sorted by, and whether downwards; the newest batch stands first."""
        return self.orders.get(self.number, (0, self.list.field == "batches"))

    def press(self, key: str) -> bool:
        """Do what a key is for; return whether it ends the command."""
        if self.is_typing:
            self._type(key)
            return False
        if key == "q":
            return True
        column, descending = self.order
        columns = self.list.columns
        if key in ("s", "S"):
            column = (column + (1 if key == "s" else -1)) % len(columns)
            # Of numbers the large ones are looked for, of names the first ones.
            self.orders[self.number] = (column, not columns[column].is_text)
            self.first = 0
        elif key == "r":
            self.orders[self.number] = (column, not descending)
            self.first = 0
        elif key in ("list after", "list before"):
            self._show(self.number + (1 if key == "list after" else -1))
        elif key.isdecimal() and 1 <= int(key) <= len(LISTS):
            self._show(int(key) - 1)
        elif key == "/":
            self.is_typing = True
        elif key == "escape":
            self.wanted = ""
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self.page, "page down": self.page}
        self.first = max(0, self.first + steps.get(key, 0))
        return False

    def _show(self, number: int) -> None:
        self.number = number % len(LISTS)
        self.wanted = ""
        self.first = 0

    def _type(self, key: str) -> None:
        if key == "enter":
            self.is_typing = False
        elif key == "escape":
            self.is_typing = False
            self.wanted = ""
        elif key == "backspace":
            self.wanted = self.wanted[:-1]
        elif len(key) == 1 and key.isprintable():
            self.wanted += key
        self.first = 0


def follow(reader: TopReader, stop: threading.Event, console: Console) -> None:
    """Show a screen until `q`, or until `stop` is set. The terminal is then as it was."""
    view = TopView()
    with Live(console=console, screen=True, auto_refresh=False) as live, _unbuffered_keys() as keyboard:
        while not stop.is_set():
            lines = frame(reader.reading, view, reader.config.name, console.width, console.height)
            live.update(Group(*lines), refresh=True)
            for key in keyboard.read(DRAW_SECONDS):
                if view.press(key):
                    return
            if keyboard.is_closed:
                return


class _Keyboard:
    """The keys of a terminal, one by one and without their echo; of what is no terminal there are none."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor
        self.is_closed = False

    def read(self, seconds: float) -> list[str]:
        """Wait for keys, at most so long; return those that were pressed."""
        if self.descriptor is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if not ready:
            return []
        try:
            pressed = os.read(self.descriptor, 1024)
        except OSError:
            # The terminal was closed.
            pressed = b""
        self.is_closed = not pressed
        text = pressed.decode(errors="ignore")
        return [ESCAPES.get(key, key) for key in KEY_PATTERN.findall(text)]


@contextmanager
def _unbuffered_keys() -> Iterator[_Keyboard]:
    """Take keys without waiting for the end of a line, and give the terminal back as it was."""
    if not sys.stdin.isatty():
        yield _Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        # Signals stay on: Ctrl-C ends the command, Ctrl-Z stops it.
        tty.setcbreak(descriptor)
        yield _Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def frame(reading: TopReading | None, view: TopView, name: str, width: int, height: int) -> list[Text]:
    """Return the lines of a screen, none of them wider than it is."""
    if reading is None:
        return [_line(f"{name}: reading its status", width)]
    now = time.time()
    lines = [*_head(reading, now, width), _tabs(reading.status, view, width)]
    rows = _rows_of(reading, view.list)
    column, descending = view.order
    chosen = view.list.chosen(rows, view.wanted, column, descending=descending)
    view.page = max(1, height - len(lines) - 2)
    view.first = max(0, min(view.first, len(chosen) - view.page))
    shown = chosen[view.first : view.first + view.page]
    # Ages are those by the clock of the stream, which may be another machine's.
    stream_now = reading.status["now"] + now - reading.read
    lines += _table(view, shown, stream_now, width)
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(_foot(view, len(chosen), len(rows), len(shown), width))
    return lines


def _rows_of(reading: TopReading, shown: TopList) -> list[Row]:
    rows: list[Row] = reading.status[shown.field]
    return rows


def _head(reading: TopReading, now: float, width: int) -> Iterator[Text]:
    """Yield the state, what is wrong with what helps, and the figures."""
    status = reading.status
    yield _line(f"{status['query']}: {status['words']}", width, "bold")
    worst = _worst(status)
    verdict = VERDICTS[worst]
    if not worst and status["state"] != "running":
        verdict = f"● {status['state']}"
    yield _line(f"{verdict} · seen by {reading.seen_by}", width, STYLES[worst])
    if reading.problem:
        yield _line(f"▲ {reading.problem}", width, "bold red")
    for finding in status["findings"][:FINDINGS]:
        command = f"  $ {finding['command']}" if finding["command"] else ""
        # The command is what a user types next: if one has to be cut off, it is the text before it.
        room = max(0, width - cell_len(command) - 2)
        yield _line(f"  {_cut(printable(finding['text']), room)}{command}", width)
    others = len(status["findings"]) - FINDINGS
    if others > 0:
        yield _line(f"  and {others} more: router status FILE", width)
    yield _line(" · ".join(_figures(reading, now)), width)


def _worst(status: dict[str, Any]) -> str:
    severities = {finding["severity"] for finding in status["findings"]}
    for severity in ("act", "look"):
        if severity in severities:
            return severity
    return ""


def _figures(reading: TopReading, now: float) -> Iterator[str]:
    status = reading.status
    stream_now = status["now"] + now - reading.read
    per_second = event_rate(status)
    if per_second is not None:
        yield f"{per_second:,.0f} events/s"
    if status["step"]:
        yield f"batch {status['batch']}, {status['step']}"
    if status["batches"]:
        last = status["batches"][0]
        took = f" in {sum(last['seconds'].values()):.1f} s" if last["seconds"] else ""
        yield f"last batch {last['read']:,} records{took}, {age(last['ended'], stream_now)} ago"
    else:
        yield "no batch has ended yet"
    if status["freshness"] is not None:
        yield f"newest record {age(status['freshness']['newest'], stream_now)} old"
    dead = status["records"].get("dead_letters")
    if dead:
        yield f"{dead:,} dead letters"


def _tabs(status: dict[str, Any], view: TopView, width: int) -> Text:
    """Return the line of lists, each with its number and its rows; that which is shown is always in it."""
    tabs = []
    for number, shown in enumerate(LISTS):
        tabs.append((f" {number + 1} {shown.title} {len(status[shown.field]):,} ", number == view.number))
    first = 0
    while first < view.number and sum(cell_len(tab) for tab, _ in tabs[first : view.number + 1]) > width:
        first += 1
    line = Text(no_wrap=True)
    for tab, is_shown in tabs[first:]:
        room = width - cell_len(line.plain)
        if cell_len(tab) > room and not is_shown:
            break
        line.append(_cut(tab, room), "reverse" if is_shown else "dim")
    return line


def _table(view: TopView, rows: Sequence[Row], now: float, width: int) -> Iterator[Text]:
    """Yield the head and a line for each row."""
    sorted_by, descending = view.order
    texts: list[list[str]] = []
    for number, column in enumerate(view.list.columns):
        title = column.title
        if number == sorted_by:
            title += " ▼" if descending else " ▲"
        texts.append([title, *(column.text(row, now) for row in rows)])
    widths = _fitting_widths(view.list.columns, texts, sorted_by, width)
    cells = []
    for number, wide in widths.items():
        column = view.list.columns[number]
        is_left = column.is_text or column.kind == "trend"
        cells.append([_padded(_cut(text, wide), wide, is_left=is_left) for text in texts[number]])
    for number, line in enumerate(zip(*cells, strict=True)):
        yield Text(GAP.join(line), "bold" if number == 0 else "", no_wrap=True)


def _fitting_widths(columns: Sequence[TopColumn], texts: list[list[str]], sorted_by: int, width: int) -> dict[int, int]:
    """Return the widths of the columns that fit, by their numbers.

    Left out are first those without content, then others from the right; of what a user looks for last: the first
    column, the one that is sorted by, and sentences, which say what is wrong. Only sentences are cut off, and the first
    column of a screen that is narrower than it is.
    """
    widths = {}
    for number, column in enumerate(columns):
        widths[number] = max(map(cell_len, texts[number]))
        if column.kind == "sentence":
            widths[number] = min(widths[number], max(NARROWEST_SENTENCE, cell_len(texts[number][0])))

    def importance(number: int) -> tuple[int, int]:
        is_empty = all(text == "-" for text in texts[number][1:])
        if number in (0, sorted_by):
            return 3, -number
        if columns[number].kind == "sentence":
            return (0 if is_empty else 2), -number
        return (0 if is_empty else 1), -number

    for number in sorted(widths, key=importance):
        if _total_width(widths) <= width or len(widths) == 1:
            break
        del widths[number]
    # What is left over belongs to the sentences.
    for number, wide in list(widths.items()):
        if columns[number].kind == "sentence":
            room = width - _total_width(widths) + wide
            widths[number] = min(room, max(map(cell_len, texts[number])))
    return {number: min(wide, width) for number, wide in widths.items()}


def _total_width(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _foot(view: TopView, chosen: int, rows: int, shown: int, width: int) -> Text:
    if view.is_typing:
        return _line(f"/{view.wanted}█   Enter keeps it, Esc drops it", width, "reverse")
    counted = f"{view.first + 1:,} to {view.first + shown:,} of {chosen:,}" if shown else "none"
    if view.wanted:
        counted += f" with {printable(view.wanted)!r}, of all {rows:,}"
    return _line(f"{counted}   {_KEYS}", width, "dim")


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(_cut(printable(text), width), style, no_wrap=True)


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 0 else ""


def _padded(text: str, width: int, *, is_left: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return f"{text}{blanks}" if is_left else f"{blanks}{text}"


def print_changes(reader: TopReader, stop: threading.Event, *, once: bool) -> None:
    """Print a line for everything, then one for whatever has changed, until `stop` is set; `once`: the first ones."""
    known: dict[tuple[Any, ...], str] = {}
    seen: TopReading | None = None
    while not stop.wait(0.1):
        reading = reader.reading
        if reading is None or reading is seen:
            continue
        seen = reading
        for line in changed_lines(reading, known):
            click.echo(line)
        sys.stdout.flush()
        if once:
            return


def changed_lines(reading: TopReading, known: dict[tuple[Any, ...], str]) -> Iterator[str]:
    """Yield a line for each part of a status that is not as it is `known`, and note it there.

    A time alone is no change. Of the batches that ended before the first reading the last one has a line.
    """
    status = reading.status
    time_of_line = utc(reading.status["now"])
    is_first = not known
    batch = status["batches"][0]["batch"] if status["batches"] else None
    wrong = " ".join(finding["text"] for finding in status["findings"]) or f"{VERDICTS[''][2:]}."
    state = f"{status['state']} {status['cause']} {batch} {wrong} {reading.problem}"
    if known.get(("state",)) != state:
        known["state",] = state
        problem = f"; {reading.problem}" if reading.problem else ""
        yield printable(f"{time_of_line} {status['query']}: {status['words']}; {wrong}{problem}")
    for shown in LISTS:
        rows = _rows_of(reading, shown)
        if shown.field == "batches":
            # The oldest first, as they came.
            rows = rows[::-1]
        for number, row in enumerate(rows):
            key = (shown.field, *(row[name] for name in shown.keys))
            facts = [(column, column.text(row)) for column in shown.columns]
            fixed = "  ".join(f"{column.title} {text}" for column, text in facts if column.kind != "moment")
            if known.get(key) == fixed:
                continue
            known[key] = fixed
            if is_first and shown.field == "batches" and number < len(rows) - 1:
                continue
            texts = "  ".join(f"{column.title} {text}" for column, text in facts if text != "-")
            yield f"{time_of_line} {texts}"
