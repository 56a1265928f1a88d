"""`router top` shows a stream live: in a terminal by keys, in a pipe line by line."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr
from rich.cells import cell_len

from router.cli import top_screen
from router.cli.top_lists import LISTS, TableRates
from router.cli.top_screen import TopReader, TopReading, TopView, changed_lines, frame
from router.config.loader import load
from router.config.models import Config, Metrics, Ui
from router.engine.status.board import StatusBoard
from router.engine.status.events import status_text
from router.engine.status.server import StatusServer
from router.engine.status.summary import StreamAnswer
from router.registry import load_registry
from tests.browser.stream import finish_batch, table_names, told_board
from tests.cli.test_status import TEXT, book, read_rows
from tests.engine.test_status import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.engine.status.snapshot import StreamSnapshot

SECONDS = 30.0
ESCAPE_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOSTILE = "silver.\x1b[2J\x1b]0;owned\x07line\nbreak\u202e"


def reading_of(snapshot: StreamSnapshot) -> TopReading:
    status = json.loads(status_text(snapshot, "games.yaml", 600.0))
    return TopReading(status, "the stream, at 127.0.0.1:4480", time.time())


def texts(reading: TopReading | None, view: TopView, width: int = 120, height: int = 30) -> list[str]:
    return [line.plain for line in frame(reading, view, "big_wins", width, height)]


def pressed(*keys: str) -> TopView:
    view = TopView()
    for key in keys:
        assert not view.press(key)
    return view


class Terminal:
    """A terminal in which `router top` runs."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self.here, self.there = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(self.there)
        self.output = ""
        environ = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environ.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "router", "top", "games.yaml"],
            stdin=self.there,
            stdout=self.there,
            stderr=self.there,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.there, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.here, keys.encode())

    def read(self) -> None:
        ready, _, _ = select.select([self.here], [], [], 0.1)
        if ready:
            self.output += os.read(self.here, 65536).decode(errors="replace")

    def wait(self, *words: str, without: str = "") -> list[str]:
        """Wait for a frame with some words; return its lines."""
        until = time.monotonic() + SECONDS
        while True:
            self.read()
            # Each frame begins at the top left of the screen.
            last = self.output.rpartition("\x1b[H")[2]
            shown = ESCAPE_CODES.sub("", last)
            # The last line says that the whole frame has come.
            if all(word in shown for word in (*words, "q quit")) and not (without and without in shown):
                return shown.splitlines()
            assert time.monotonic() < until, f"{words}\n{shown}"

    def end(self) -> int:
        until = time.monotonic() + SECONDS
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < until, self.output[-2000:]
        self.read()
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.here)
        os.close(self.there)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[StatusBoard]:
    """Return the board of a stream that runs, asks for a token, and has trouble."""
    board = told_board(list(table_names(40)), has_trouble=True)
    with StatusServer(board, Ui(address="127.0.0.1:0", token=SecretStr("s3cret")), Metrics()) as server:
        assert server.address is not None
        (tmp_path / "token").write_text("s3cret\n")
        address = "{}:{}".format(*server.address)
        text = TEXT.replace("name: games\n", "name: big_wins\n", 1).partition("ui: ")[0]
        (tmp_path / "games.yaml").write_text(
            f'{text}ui: {{address: "{address}", token: "${{file:{tmp_path}/token}}"}}\n'
        )
        yield board


def test_a_terminal_follows_the_stream_and_its_keys(served: StatusBoard, tmp_path: Path) -> None:
    """Without it whoever has a shell only sees the state of one moment, or has to restart a command each second."""
    terminal = Terminal(tmp_path, 120, 24)
    try:
        lines = terminal.wait("Needs a look", "silver.backgammon")
        assert lines[0] == "big_wins: running, 3,000 records behind".ljust(len(lines[0]))
        assert len(lines) == 24
        terminal.press("/tournament_0007\r")
        assert "1 to 1 of 1" in terminal.wait("silver.tournament_0007", without="silver.uno")[-1]
        terminal.press("2")
        terminal.wait("by change (keys)", "29,400")
        terminal.press("\x1b[Z")
        terminal.wait("silver.backgammon")
        served.enter("waiting", "no broker answers at broker:9092")
        terminal.wait("waiting since", "no broker answers at broker:9092")
        assert "\x1b[?1049h" in terminal.output, "what stood in the terminal before comes back at the end"
        terminal.press("q")
        assert terminal.end() == 0
        assert "\x1b[?1049l" in terminal.output
        assert "\x1b[?25h" in terminal.output
        assert termios.tcgetattr(terminal.there) == terminal.before, "else the shell has no echo"
    finally:
        terminal.close()


def test_an_order_to_stop_gives_the_terminal_back(served: StatusBoard, tmp_path: Path) -> None:
    """Without it a session that is ended leaves a shell in which nobody sees what is typed."""
    terminal = Terminal(tmp_path, 80, 24)
    try:
        terminal.wait("Needs a look")
        terminal.resize(60, 20)
        terminal.wait("Needs a look")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.there) == terminal.before
    finally:
        terminal.close()


def test_a_pipe_gets_lines_of_what_changes(served: StatusBoard, tmp_path: Path) -> None:
    """Without it nobody greps for a table, or keeps a night's states in a file."""
    command = [sys.executable, "-m", "router", "top", "games.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert "big_wins: running, 3,000 records behind; Tables that cannot be written: silver.poker" in first
            lines = [process.stdout.readline() for _ in range(40)]
            assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
            assert any("table silver.chess  rows " in line and "committer delta-rs" in line for line in lines)
            served.view_refreshed("players", None)
            finish_batch(served, 81, ["silver.uno"], {})
            seen = ""
            while "batch 81  ended" not in seen:
                seen += process.stdout.readline()
            assert "table silver.uno" in seen
            assert "table silver.chess" not in seen.partition("batch 81,")[2]
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def test_a_lake_is_read_if_no_stream_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the command has nothing to say when it is needed most."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games.yaml").write_text(TEXT)
    book({**read_rows(100)}, {"route": "games", "sink": "delta", "matched": 97, "landed": 96, "refused": 1})
    command = [sys.executable, "-m", "router", "top", "games.yaml", "--once"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert "games: down; No stream runs. Start it: it continues where it ended." in lines[0]
    assert any("batch 3  ended" in line and "read 100" in line for line in lines)


def test_before_the_first_reading_it_says_what_it_does() -> None:
    """Without it an empty screen looks like a command that hangs, while a large lake is read."""
    assert texts(None, TopView()) == ["big_wins: reading its status"]


@pytest.mark.parametrize("number", range(len(LISTS)), ids=[shown.field for shown in LISTS])
@pytest.mark.parametrize("width", [30, 80, 200])
def test_no_line_is_wider_or_more_than_the_screen(number: int, width: int) -> None:
    """Without it a line wraps, and the frame runs out of the screen."""
    reading = reading_of(told_board(list(table_names(231)), has_trouble=True).snapshot())
    view = pressed(str(number + 1))
    for _ in LISTS[number].columns:
        view.press("s")
        lines = texts(reading, view, width=width, height=20)
        assert max(map(cell_len, lines)) <= width
        assert len(lines) == 20
        assert any(f" {number + 1} {LISTS[number].title}"[:width] in line for line in lines)
        title = LISTS[number].columns[view.order[0]].title
        assert any(f"{title} ▲" in line or f"{title} ▼" in line for line in lines) or width == 30


def test_rows_are_sorted_and_filtered_by_keys() -> None:
    """Without it somebody scrolls through 5,000 tables for the one that matters."""
    reading = reading_of(told_board(list(table_names(5_000)), has_trouble=False).snapshot())
    lines = texts(reading, pressed("s"))
    rows = [line.split()[:2] for line in lines if line.startswith(("silver.", "bronze."))]
    counts = [int(count.replace(",", "")) for _, count in rows]
    assert counts == sorted(counts, reverse=True)
    assert rows[0][0] == "bronze.game_events"
    assert texts(reading, pressed("s", "r"))[5].split()[1] != "3,980,000"
    began = time.monotonic()
    lines = texts(reading, pressed(*"/ent_4321", "enter"))
    assert time.monotonic() - began < 0.5
    assert [line.split()[0] for line in lines if line.startswith("silver.")] == ["silver.tournament_4321"]
    assert "1 to 1 of 1 with 'ent_4321', of all 5,003" in lines[-1]
    assert "/ent█" in texts(reading, pressed(*"/ent"))[-1]
    assert "of 5,003 " in texts(reading, pressed(*"/ent", "escape"))[-1]
    assert "/en█" in texts(reading, pressed(*"/ent", "backspace"))[-1]


def test_rows_further_down_are_reached() -> None:
    """Without it the tables below the edge of the screen are for nobody."""
    reading = reading_of(told_board(list(table_names(100)), has_trouble=False).snapshot())
    view = TopView()
    texts(reading, view)
    view.press("page down")
    assert f"{view.page + 1} to {2 * view.page} of 103" in texts(reading, view)[-1]
    view.press("k")
    assert f"{view.page} to " in texts(reading, view)[-1]
    for _ in range(50):
        view.press("page down")
    assert "to 103 of 103" in texts(reading, view)[-1]


def test_what_is_wrong_has_its_command_on_a_narrow_screen() -> None:
    """Without it somebody reads that something is wrong, and types nothing."""
    reading = reading_of(told_board(list(table_names(20)), has_trouble=True).snapshot())
    lines = texts(reading, TopView(), width=60)
    assert "  $ router tables games.yaml" in next(line for line in lines if "Tables that" in line)
    poker = texts(reading, pressed(*"/poker", "enter"), width=60)
    assert any("silver.poker" in line and "column `am" in line for line in poker)


def test_a_terminal_obeys_no_name() -> None:
    """Without it whoever names a game writes the title of somebody's terminal, or a line of the log."""
    board = StatusBoard("games")
    board.enter("failed", HOSTILE)
    board.carried_out(manifest(0, HOSTILE), {}, {f"r/s/{HOSTILE}": HOSTILE})
    board.dead_letters_are({("decode", HOSTILE, HOSTILE, HOSTILE): 1})
    reading = reading_of(board.snapshot())
    for number in range(len(LISTS)):
        assert all(line.isprintable() for line in texts(reading, pressed(str(number + 1)), width=400))
    assert all(line.isprintable() for line in changed_lines(reading, {}))


def test_a_time_alone_is_no_change() -> None:
    """Without it a pipe gets every partition each second."""
    board = told_board(list(table_names(9)), has_trouble=False)
    known: dict[tuple[Any, ...], str] = {}
    first = list(changed_lines(reading_of(board.snapshot()), known))
    assert sum("  longest steps " in line for line in first) == 1, "those of before are in the ledger"
    board.source_is_at({}, {("game-events", 0): 9_000 * 80})
    assert list(changed_lines(reading_of(board.snapshot()), known)) == []


def test_rows_a_second_are_those_of_whole_batches() -> None:
    """Without it a table gets a million rows a second in the moment of a commit, and none in all others."""
    rates = TableRates()

    def add(ended: float, now: float, rows: int) -> Any:
        tables = [{"table": "silver.uno", "rows": rows}, {"table": "silver.profiles", "rows": None}]
        rates.add_to({"batches": [{"ended": ended}], "tables": tables, "now": now})
        return tables[0].get("rate"), tables[1].get("rate")

    assert add(100.0, 101.0, 500) == (None, None)
    assert add(100.0, 103.0, 500) == (None, None)
    assert add(110.0, 111.0, 1500) == (100.0, None)
    assert add(110.0, 119.0, 1500) == (100.0, None)
    assert add(110.0, 171.0, 1500) == (0.0, None), "a minute without a batch"


def test_a_stream_of_an_older_version_is_shown(served: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody can look at a stream from the moment of an upgrade to its next start."""
    status = json.loads(status_text(served.snapshot(), "games.yaml", 600.0))
    for name in ("views", "expectations", "findings"):
        del status[name]
    for table in status["tables"]:
        del table["committer"]
    for sink in status["sinks"]:
        del sink["last_answers"]
    config = Config.model_construct(name="big_wins", ui=None)
    monkeypatch.setattr(top_screen, "ask_stream", lambda config: StreamAnswer(status, "127.0.0.1:4480"))
    reader = TopReader(config, "games.yaml")
    reader._read(ExitStack())
    for number in range(len(LISTS)):
        assert len(texts(reader.reading, pressed(str(number + 1)))) == 30


def test_a_stream_that_ends_leaves_its_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the screen shows for ever that all was well, or nothing from the first answer that is missed."""
    monkeypatch.chdir(tmp_path)
    board = StatusBoard("games")
    board.enter("running")
    with ExitStack() as lake:
        with StatusServer(board, Ui(address="127.0.0.1:0"), Metrics()) as server:
            assert server.address is not None
            file = tmp_path / "games.yaml"
            file.write_text(TEXT.replace("127.0.0.1:1", "{}:{}".format(*server.address)))
            reader = TopReader(load(file, load_registry(), environ={}).config, "games.yaml")
            reader._read(lake)
            assert reader.reading is not None
            assert (reader.reading.status["state"], reader.reading.problem) == ("running", "")
        reader._read(lake)
        assert reader.reading.status["state"] == "running"
        assert "▲ no answer; this is how it was at" in texts(reader.reading, TopView())[2]
        for _ in range(2):
            reader._read(lake)
        assert (reader.reading.status["state"], reader.reading.problem) == ("down", "")
        assert texts(reader.reading, TopView())[1] == "■ Action needed · seen by its lake and checkpoint"
        with StatusServer(board, Ui(address="{}:{}".format(*server.address)), Metrics()):
            reader._read(lake)
        assert reader.reading.status["state"] == "running"
