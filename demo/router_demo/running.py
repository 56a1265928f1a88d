"""Run the routers that the demo is about, each in a process of its own, and say what they report."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from router_demo.games import game_names
from router_demo.landed import Growth

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType

    from rich.console import Console

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GAIN = " " * 16
STOP_SECONDS = 60
PAGE_PORT = 4480
"""Where `router status` asks for a stream if its configuration does not name another port."""


@dataclass(frozen=True)
class Version:
    """A schema version that was registered while the demo ran.

    `column` is what it brought, `gained` says after how many seconds a reader saw it, by table.
    """

    number: int
    id: int
    column: str
    gained: dict[str, float]


class Demo:
    """What a demo remembers while it runs; it says what happens, a line each."""

    def __init__(self, console: Console, options: argparse.Namespace, folder: Path) -> None:
        self.console = console
        self.options = options
        self.folder = folder
        self.growth = Growth(folder / "lake", [f"silver.{game}" for game in game_names(options.games)])
        self.registered: dict[int, float] = {}

    def say(self, text: str) -> None:
        """Print a line with the time of day."""
        now = datetime.now().astimezone()
        self.console.print(f"[dim]{now:%H:%M:%S}[/]  {text}", highlight=False, soft_wrap=True)

    def register(self, number: int) -> None:
        """Say that a schema version was registered."""
        if number in self.registered:
            return
        self.registered[number] = time.monotonic()
        version = len(self.registered)
        brings = "" if version == 1 else f": it brings {_column(version)}"
        self.say(f"[cyan]the games register schema version {version}[/] (id {number}){brings}")

    def take(self, entry: dict[str, Any]) -> None:
        """Say what the router reports, and what its tables gained by it."""
        if "batch" not in entry:
            self.say(f"router: {escape(entry['message'])}")
            return
        batch = entry["batch"]
        seconds = sum(batch["seconds"].values())
        line = (
            f"[bold]{batch['query']} batch {batch['batch']:>2}[/]  {batch['read']:>7,} records into "
            f"{batch['tables']} tables, {batch['dead_letters']:,} dead letters, {seconds:.1f} s"
        )
        if batch["behind"]:
            line += f", {batch['behind']:,} behind"
        self.say(line)
        # Only a batch gives columns to tables, so that a look after each of them is enough.
        for column, tables in self.growth.look().items():
            noun = "table" if len(tables) == 1 else "tables"
            line = f"{GAIN}{len(tables)} {noun} gained {column}"
            registered = self._registered_at(column)
            if registered is not None:
                line += f", {time.monotonic() - registered:.1f} s after its version was registered"
            self.say(f"[green]{line}[/]")

    def versions(self) -> list[Version]:
        """Return the versions that were registered, and when tables gained what they brought."""
        versions = []
        for number, (schema_id, registered) in enumerate(self.registered.items(), 1):
            column = _column(number)
            gained = self.growth.gained.get(column, {})
            seconds = {table: at - registered for table, at in gained.items()}
            versions.append(Version(number=number, id=schema_id, column=column, gained=seconds))
        return versions

    def _registered_at(self, column: str) -> float | None:
        """Return when the version was registered that brought a column, None if none did."""
        for number, registered in enumerate(self.registered.values(), 1):
            if _column(number) == column:
                return registered
        return None


def _column(version: int) -> str:
    return f"col_foo_{version}"


@contextmanager
def routing(demo: Demo, routes: Path, environ: dict[str, str], page: str = "") -> Iterator[Router]:
    """Run a router during the block. At the end of the block it finishes its batch and stops.

    `page` is the address at which it shows its page; "" is for none.
    """
    demo.say(f"[bold]router run {routes} --continuous[/] starts, in a process of its own")
    if page:
        watch = f"[bold]watch it at http://{page}/[/]"
        # Another port stands in no configuration, and so `router status` does not find it.
        if page.endswith(f":{PAGE_PORT}"):
            watch += f", or by `router status {routes} --watch`"
        demo.say(watch)
    with ExitStack() as stops:
        try:
            with uninterrupted(*ENDING):  # or a router could be started that is not known here, and so never ended
                router = Router(routes, environ, log=demo.folder / "router.log", tell=demo.take, page=page)
                stops.callback(router.stop)
            yield router
        except KeyboardInterrupt:
            demo.say(f"[bold]stopping:[/] the router of {routes} ends after the batch at hand")
            raise


def page_address() -> str:
    """Return where a page can be shown: the usual address, or another port if something else has that."""
    for port in (PAGE_PORT, 0):  # 0: any that is free
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            host, free_port = probe.getsockname()
            return f"{host}:{free_port}"
    raise OSError("no port of 127.0.0.1 is free")


def failed(demo: Demo, router: Router, sent: int | None, code: int) -> int:
    """Say that a router ended before its time; return the demo's exit code."""
    of_sent = f" of {sent:,}" if sent else ""
    log = demo.folder / "router.log"
    demo.say(f"[bold red]the router read {router.read:,}{of_sent} records and ended with {code};[/] {log} says more")
    return 1


@contextmanager
def uninterrupted(*signals: int) -> Iterator[None]:
    """Hold signals back while a block runs; the first that came is raised after it.

    Handlers, not a signal mask: a process that is started in the block would inherit the mask.
    """
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)

    handlers_before = {number: signal.signal(number, note) for number in signals}
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


class Router:
    """A router that runs continuously, as `router run` in a process of its own.

    `tell` gets each of its log entries; its other output goes to a file. `read` counts the records of its batches,
    `began` and `ended` are the monotonic times of the first and the last one, `fastest` the records per second of the
    fastest. `over` is set when the process has ended. `page` is where it shows its page; it has none without.
    """

    def __init__(
        self,
        routes: Path,
        environ: Mapping[str, str],
        log: Path,
        tell: Callable[[dict[str, Any]], None],
        page: str = "",
    ):
        self._tell = tell
        self._log = log.open("a")
        self._changed = threading.Condition()
        self._reads = False
        self.read = 0
        self.began = 0.0
        self.ended = 0.0
        self.fastest = 0.0
        self.over = threading.Event()
        command = [sys.executable, "-m", "router", "run", str(routes), "--continuous", "--json-logs"]
        if page:
            command += ["--ui", page]
        # A session of its own: Ctrl-C on the terminal is the demo's to handle.
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def wait_until_it_reads(self, seconds: float) -> bool:
        """Wait until the router waits for records; say whether it does."""
        return self._wait(lambda: self._reads, seconds)

    def wait_for(self, records: int, seconds: float) -> bool:
        """Wait until so many records have been read; say whether they have."""
        return self._wait(lambda: self.read >= records, seconds)

    def stop(self) -> int:
        """Ask the router to end after its batch, kill it if it does not; return its exit code (again)."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except BaseException as error:  # also a second Ctrl-C
            self.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = self._process.wait()
        self._follower.join(5)
        self._log.close()
        return code

    def kill(self) -> None:
        """Kill the router and its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: done() or self.over.is_set(), seconds)
            return done()

    def _follow(self) -> None:
        assert self._process.stderr is not None  # opened with a pipe above
        for text in self._process.stderr:
            self._log.write(text)
            with suppress(ValueError):
                self._take(json.loads(text))
        self.over.set()
        with self._changed:
            self._changed.notify_all()

    def _take(self, entry: dict[str, Any]) -> None:
        self._tell(entry)
        with self._changed:
            self._reads = self._reads or ": reading " in entry["message"]
            batch = entry.get("batch")
            if batch:
                seconds = sum(batch["seconds"].values())
                self.ended = time.monotonic()
                if not self.began:
                    self.began = self.ended - seconds
                self.read += batch["read"]
                self.fastest = max(self.fastest, batch["read"] / seconds)
            self._changed.notify_all()
