"""`--watch` shows a stream live: redrawn in a terminal, line by line in a pipe. `--sort` and `--only` choose rows."""

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
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from router.api.parts import BatchReport
from router.cli import commands
from router.cli.dead_letters import LETTER_GROUP_FIELDS
from router.cli.listing import Listing, ListingField, ListOptions, number_fields
from router.cli.tables import STATE_FIELDS
from router.cli.watch import WatchedStream, changed_lines, screen_lines
from router.config.loader import load_config
from router.config.models import Config, Metrics, Ui
from router.engine.status import summary
from router.engine.status.board import StatusBoard
from router.engine.status.events import status_text
from router.engine.status.server import StatusServer
from router.engine.status.snapshot import DeadLetterStatus, SinkStatus
from router.registry import load_registry
from tests.browser.stream import finish_batch, table_names, told_board
from tests.cli.stream_status import TEXT, read_counts, write_ledger
from tests.engine.status.boards import landed_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.engine.status.snapshot import StreamSnapshot

SECONDS = 30.0
ESCAPE_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOSTILE = "silver.\x1b[2J\x1b]0;owned\x07line\nbreak\u202e"


def config_of(**fields: Any) -> Config:
    return Config.model_construct(name="games", ui=None, **fields)


def state_row(table: str, **facts: Any) -> dict[str, Any]:
    usual = {"state": "ok", "rows": 1, "lag": 0, "committer": "delta-rs", "why": "", "quarantined": 0}
    return {"table": table, **usual, **facts}


def states(*rows: dict[str, Any]) -> Listing:
    return Listing("tables", "tables of games", STATE_FIELDS, rows, keys=("table",))


def running(**fields: Any) -> StreamSnapshot:
    board = StatusBoard("games")
    board.enter_state("running")
    return replace(board.snapshot(), **fields)


def look(stream: WatchedStream, snapshot: StreamSnapshot) -> None:
    """Let a stream be looked at that answers as one in this state does."""
    status = json.loads(status_text(snapshot, "games.yaml", 600.0))
    with mock.patch.object(summary, "ask_stream", return_value={**status, "address": "127.0.0.1:4480"}):
        stream.look_at_stream()


def watched(*listings: Listing, snapshot: StreamSnapshot | None = None) -> WatchedStream:
    """Return a stream that was looked at once."""
    stream = WatchedStream(config_of(), "games.yaml", lambda: listings)
    look(stream, snapshot or running())
    return stream


def texts(stream: WatchedStream, width: int = 120, height: int = 30) -> list[str]:
    return [ESCAPE_CODES.sub("", line) for line in screen_lines(stream, "no rows", width, height)]


@contextmanager
def piped(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command whose output is a pipe."""
    command = [sys.executable, "-m", "router", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Return the next line that has a text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"it ended without {text}")


class Terminal:
    """A terminal in which a command with `--watch` runs."""

    def __init__(self, folder: Path, command: str, width: int, height: int, kind: str = "xterm-256color") -> None:
        self.here, self.there = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(self.there)
        self.output = ""
        environ = {**os.environ, "TERM": kind}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environ.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "router", command, "games.yaml", "--watch"],
            stdin=self.there,
            stdout=self.there,
            stderr=self.there,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.there, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self) -> None:
        ready, _, _ = select.select([self.here], [], [], 0.1)
        if ready:
            self.output += os.read(self.here, 65536).decode(errors="replace")

    def wait(self, *words: str) -> list[str]:
        """Wait for a frame with some words; return its lines."""
        until = time.monotonic() + SECONDS
        while True:
            self.read()
            # Each frame begins at the top left of the screen.
            shown = ESCAPE_CODES.sub("", self.output.rpartition("\x1b[H")[2])
            if all(word in shown for word in words):
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


def test_a_terminal_follows_the_stream(served: StatusBoard, tmp_path: Path) -> None:
    """Without it whoever has a shell only sees the state of one moment, or has to restart a command each second."""
    terminal = Terminal(tmp_path, "status", 120, 24)
    try:
        lines = terminal.wait("Tables that cannot be written: silver.poker.", "$ router tables games.yaml", "warning")
        assert lines[0].rstrip() == "big_wins: running, batch 80, land"
        served.enter_state("waiting", "no broker answers at broker:9092")
        terminal.wait("big_wins: waiting for", "It waits, and continues by itself: no broker")
        assert "\x1b[?1049h" in terminal.output, "what stood in the terminal before comes back at the end"
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert "\x1b[?1049l" in terminal.output
        assert "\x1b[?25h" in terminal.output
        assert termios.tcgetattr(terminal.there) == terminal.before, "else the shell has no echo"
    finally:
        terminal.close()


def test_an_order_to_stop_gives_the_terminal_back(served: StatusBoard, tmp_path: Path) -> None:
    """Without it a session that is ended leaves a shell in which nobody sees what is typed."""
    terminal = Terminal(tmp_path, "tables", 80, 24)
    try:
        terminal.wait("Tables that cannot be written: silver.poker.")
        terminal.resize(60, 10)
        assert max(len(line) for line in terminal.wait("Tables that cannot be written: silver.poker.")) <= 80
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0
        assert "\x1b[?1049l" in terminal.output
        assert termios.tcgetattr(terminal.there) == terminal.before
    finally:
        terminal.close()


def test_a_dumb_terminal_gets_lines(served: StatusBoard, tmp_path: Path) -> None:
    """Without it the window of an editor is full of codes."""
    terminal = Terminal(tmp_path, "status", 80, 24, kind="dumb")
    try:
        until = time.monotonic() + SECONDS
        while "\n" not in terminal.output and time.monotonic() < until:
            terminal.read()
        assert "Z big_wins: running, batch 80, land  why " in terminal.output
        assert "\x1b" not in terminal.output
    finally:
        terminal.close()


def test_a_pipe_gets_a_line_for_each_change_of_the_state(served: StatusBoard, tmp_path: Path) -> None:
    """Without it nobody keeps a night's states in a file."""
    with piped(tmp_path, "status", "games.yaml", "--watch") as process:
        first = line_with(process, "big_wins: running")
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ big_wins: running, batch 80, land  why Tables that", first)
        assert "see `router dead-letters games.yaml`" in first
        finish_batch(served, 81, ["silver.uno"], {})
        assert process.stdout is not None
        assert "last batch 81, " in process.stdout.readline(), "the next line is of the change, not of a second more"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def test_a_list_is_read_again_when_the_stream_reports_a_batch(served_board: StatusBoard, tmp_path: Path) -> None:
    """Without it a list is older than what stands above it."""
    write_ledger({**read_counts(100)}, {"route": "games", "sink": "delta", "matched": 97, "landed": 96, "refused": 1})
    with piped(tmp_path, "ledger", "games.yaml", "--watch", "--only", "games") as process:
        assert "landed 96" in line_with(process, "route games  sink delta")
        began = time.monotonic()
        write_ledger({"batch_id": 4, "route": "games", "sink": "delta", "matched": 7, "landed": 7})
        served_board.note_report(BatchReport("games", 4, 7, 7, 0, 0, 0, 1, 1, {}))
        assert "landed 7" in line_with(process, "batch 4  route games  sink delta")
        assert time.monotonic() - began < 9.0, "without the stream's word it takes ten seconds"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def test_a_lake_is_read_if_no_stream_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the command has nothing to say when it is needed most."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games.yaml").write_text(TEXT)
    write_ledger({**read_counts(100)}, {"route": "games", "sink": "delta", "matched": 97, "landed": 96, "refused": 1})
    with piped(tmp_path, "ledger", "games.yaml", "--watch") as process:
        assert (
            "games: down  why No stream runs. Start it: it continues where it ended.  $ router run games.yaml"
            in line_with(process, "games: ")
        )
        assert "batch 3  source t/0  offsets 0-99  read 100" in line_with(process, "source")
        assert "matched 97  landed 96  refused 1" in line_with(process, "route games")
        write_ledger({"route": "games", "sink": "more", "matched": 5, "landed": 5})
        assert "matched 5" in line_with(process, "sink more")


@pytest.mark.parametrize("width", [30, 80, 200])
def test_a_frame_is_no_longer_than_the_screen(width: int) -> None:
    """Without it the frame runs out of the screen; with all rows laid out each frame of a large lake takes seconds."""
    rows = [state_row(table, why="column `amount` is double, the table has string") for table in table_names(5_000)]
    stream = watched(states(*rows))
    began = time.monotonic()
    lines = texts(stream, width=width, height=20)
    assert time.monotonic() - began < 0.5
    assert len(lines) == 20
    assert lines[0] == "games: running"
    assert any(next(table_names(1)) in line for line in lines)
    assert "not all of 5,000 rows fit" in lines[-1]
    assert texts(watched(states()), width=width)[-1] == "no rows"


def test_rows_are_sorted_and_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it somebody reads 5,000 tables for the one that matters."""
    listing = states(state_row("b", rows=5), state_row("A", rows=None), state_row("c", rows=1_200, why="by Spark"))

    def chosen(**options: str) -> list[str]:
        (shown,) = ListOptions(**options).choose_rows([listing])
        return [row["table"] for row in shown.rows]

    assert chosen() == ["b", "A", "c"]
    assert chosen(sort="table") == ["A", "b", "c"]
    assert chosen(sort="rows") == ["A", "b", "c"], "what is not known comes first"
    assert chosen(sort="-rows") == ["c", "b", "A"]
    assert chosen(sort="-quarantine") == ["b", "A", "c"], "rows that are equal stay as they are"
    assert chosen(only="SPARK") == ["c"]
    assert chosen(only="1,2") == ["c"], "as it is printed"
    dashed = Listing("odd", "", (ListingField("-1"), *number_fields("x")), [{"-1": "a", "x": 1}, {"-1": "b", "x": 2}])
    assert [row["x"] for row in ListOptions(sort="--1").choose_rows([dashed])[0].rows] == [2, 1]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "games.yaml").write_text(TEXT)
    for sink, matched in (("delta", 7), ("more", 9)):
        write_ledger({"route": "games", "sink": sink, "matched": matched, "landed": matched})

    def ledger(*arguments: str) -> str:
        done = CliRunner().invoke(commands, ["ledger", "games.yaml", *arguments], prog_name="router")
        return f"{done.exit_code} {done.output}"

    shown = ledger("--sort", "-matched")
    assert shown.startswith("0 ")
    assert shown.index("more") < shown.index("delta")
    assert [row["sink"] for row in json.loads(ledger("--only", "mor", "--json")[2:])["sinks"]] == ["more"]
    assert ledger("--only", "nothing of it") == "0 no row has 'nothing of it'\n"
    assert "--sort size: the columns are batch, source, offsets, read," in ledger("--sort", "size")
    assert ledger("--sort", "size")[0] == ledger("--json", "--watch")[0] == "2"


def test_a_terminal_obeys_no_name() -> None:
    """Without it whoever names a game writes the title of somebody's terminal, or a line of the log."""
    letters = dict.fromkeys(("stage", "route", "sink", "reason", "first", "last"), HOSTILE)
    board = StatusBoard("games")
    board.enter_state("waiting", HOSTILE)
    board.carried_out(landed_manifest(0, HOSTILE), {}, {f"r/s/{HOSTILE}": HOSTILE})
    board.add_dead_letters([DeadLetterStatus("decode", HOSTILE, HOSTILE, HOSTILE, 1, time.time())])
    board.view_failed(HOSTILE, HOSTILE)
    stream = watched(
        states(state_row(HOSTILE, state=HOSTILE, why=HOSTILE)),
        Listing("dead_letters", "", LETTER_GROUP_FIELDS, [{"number": 1, "count": 1, **letters}], ("reason",)),
        snapshot=board.snapshot(),
    )
    whole = WatchedStream(config_of(), "games.yaml")
    look(whole, board.snapshot())
    for shown in (stream, whole):
        for width in (60, 400):
            assert all(line.isprintable() for line in texts(shown, width=width, height=200))
        known: dict[tuple[Any, ...], str] = {}
        lines = list(changed_lines(shown, known))
        shown.listings = [replace(listing, rows=[]) for listing in shown.listings]
        lines += changed_lines(shown, known)
        assert all(line.isprintable() for line in lines)
        assert len(lines) == (1 if shown is whole else 5)


def test_a_line_for_each_change_and_none_for_a_time() -> None:
    """Without it a pipe gets every table each second, or not that one cannot be written any more."""
    poker = state_row("silver.poker")
    stream = watched(states(poker, state_row("silver.uno")))
    known: dict[tuple[Any, ...], str] = {}
    first = [line.partition("Z ")[2] for line in changed_lines(stream, known)]
    assert first == [
        "games: running  why not known yet: no batch has ended  seen by the stream, at 127.0.0.1:4480  "
        "last batch none yet",
        "table silver.poker  state ok  rows 1  committer delta-rs",
        "table silver.uno  state ok  rows 1  committer delta-rs",
    ]
    assert list(changed_lines(stream, known)) == []
    stream.listings = [states({**poker, "state": "blocked", "why": "its log is damaged"})]
    assert [line.partition("Z ")[2] for line in changed_lines(stream, known)] == [
        "table silver.poker  state blocked  rows 1  committer delta-rs  why its log is damaged",
        "gone: table silver.uno  state ok  rows 1  lag   committer delta-rs  why   quarantine ",
    ]
    stream.listings = [states(poker)]
    assert len(list(changed_lines(stream, known))) == 1, "also back to what it was before"

    group = {"number": 1, "count": 4, "stage": "decode", "route": None, "sink": None, "reason": "no JSON"}

    def letters(number: int, count: int, second: int) -> Listing:
        moment = datetime(2025, 1, 1, 0, 0, second, tzinfo=timezone.utc)
        row = {**group, "number": number, "count": count, "first": moment, "last": moment}
        return Listing("dead_letters", "", LETTER_GROUP_FIELDS, [row], keys=("stage", "reason"))

    stream = watched(letters(1, 4, 0))
    known = {}
    assert len(list(changed_lines(stream, known))) == 2
    stream.listings = [letters(2, 4, 7)]
    assert list(changed_lines(stream, known)) == []
    stream.listings = [letters(2, 5, 8)]
    assert "count 5  stage decode  first 2025-01-01 00:00:08Z" in next(changed_lines(stream, known))


def test_a_stream_that_makes_no_step_is_a_change() -> None:
    """Without it a pipe is silent about a stream that hangs, or prints its age each second."""
    stream = WatchedStream(config_of(), "games.yaml")
    known: dict[tuple[Any, ...], str] = {}
    snapshots = [running(progress=time.time() - 60 * minutes) for minutes in (0, 60, 180)]
    look(stream, snapshots[0])
    assert "why not known yet" in next(changed_lines(stream, known))
    look(stream, snapshots[1])
    assert "why No step for 60 min" in next(changed_lines(stream, known))
    look(stream, snapshots[2])
    assert list(changed_lines(stream, known)) == []
    for minutes in (5, 6):
        away = SinkStatus("r", "api", circuit_open=True, fails_since=time.time() - 60 * minutes, backlog=minutes)
        look(stream, running(sinks=(away,)))
        assert len(list(changed_lines(stream, known))) == (minutes == 5)
    late = WatchedStream(config_of(), "games.yaml", max_age=timedelta(minutes=5))
    look(late, snapshots[0])
    assert "why No batch has ended yet." in next(changed_lines(late, {}))


def test_a_list_that_cannot_be_read_stays(served_board: StatusBoard, tmp_path: Path) -> None:
    """Without it a night's watch ends because a file was compacted away, or shows old rows as if they were of now."""

    def read() -> list[Listing]:
        if fails:
            raise OSError("no route to \x1b[2Jstorage")
        return [states(state_row("silver.uno"))]

    fails: list[str] = []
    stream = WatchedStream(load_config(tmp_path / "games.yaml", load_registry(), environ={}).config, "games.yaml", read)
    stream.look_at_stream()
    assert any("silver.uno" in line for line in texts(stream))
    fails.append("from now on")
    time.sleep(20 * 0.05)
    served_board.note_report(BatchReport("games", 4, 7, 7, 0, 0, 0, 1, 1, {}))
    stream.look_at_stream()
    assert "the list cannot be read: no route to \\x1b[2Jstorage" in texts(stream, width=200)[1]
    stream.look_at_stream()
    assert "the list cannot be read" in texts(stream)[1], "until it can"
    assert any("silver.uno" in line for line in texts(stream))


def test_a_stream_of_an_older_version_is_shown(served: StatusBoard) -> None:
    """Without it nobody can look at a stream from the moment of an upgrade to its next start."""
    status = json.loads(status_text(served.snapshot(), "games.yaml", 600.0))
    for name in ("views", "expectations", "findings"):
        del status[name]
    for table in status["tables"]:
        del table["committer"]
    for sink in status["sinks"]:
        del sink["last_answers"]

    class OlderServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

    with HTTPServer(("127.0.0.1", 0), OlderServer) as server:
        Thread(target=server.handle_request, daemon=True).start()
        ui = Ui(address=f"127.0.0.1:{server.server_port}")
        stream = WatchedStream(Config.model_construct(name="big_wins", ui=ui), "games.yaml")
        stream.look_at_stream()
    lines = texts(stream, width=400)
    assert lines[0] == "big_wins: running, batch 80, land"
    assert lines[2].split() == ["seen", "by", "the", "stream,", "at", ui.address]


def test_a_stream_that_ends_leaves_its_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the screen shows for ever that all was well, or nothing from the first answer that is missed."""
    monkeypatch.chdir(tmp_path)
    board = StatusBoard("games")
    board.enter_state("running")
    with StatusServer(board, Ui(address="127.0.0.1:0"), Metrics()) as server:
        assert server.address is not None
        file = tmp_path / "games.yaml"
        file.write_text(TEXT.replace("127.0.0.1:1", "{}:{}".format(*server.address)))
        stream = WatchedStream(load_config(file, load_registry(), environ={}).config, "games.yaml")
        stream.look_at_stream()
        assert texts(stream)[:2] == ["games: running", "why            not known yet: no batch has ended"]
    stream.look_at_stream()
    assert texts(stream)[0] == "games: running"
    assert "no answer; this is how it was at" in texts(stream)[1]
    for _ in range(2):
        stream.look_at_stream()
    assert texts(stream)[:2] == [
        "games: down",
        "why            No stream runs. Start it: it continues where it ended.  $ router run games.yaml",
    ]
    with StatusServer(board, Ui(address="{}:{}".format(*server.address)), Metrics()):
        stream.look_at_stream()
    assert texts(stream)[0] == "games: running"


def test_the_former_command_names_the_new_one() -> None:
    """Without it whoever types what they always typed is told that there is no such command."""
    done = CliRunner().invoke(commands, ["top", "games.yaml"], prog_name="router")
    assert done.exit_code == 2
    assert "`router top` is `router status --watch` now" in done.stderr
