"""Run the demo: a real Kafka, a simulator, the router, and what landed where."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from router_demo.formats import opened
from router_demo.kafka import EmbeddedKafka
from router_demo.records import chunks
from router_demo.registry import EmbeddedRegistry
from router_demo.simulator import Sent, simulate
from router_demo.summary import show
from router_demo.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router_demo.values import Values

TOPIC = "game-events"
ROUTES = {"json": Path("routes/games.yaml"), "protobuf": Path("routes/games_protobuf.yaml")}
VERSIONS = {"json": 5, "protobuf": 10}
"""How many schema versions appear while the stream runs; routes/games.schema.json knows five."""
MARK = ".made-by-the-demo"


@dataclass
class Router:
    """Run `router run` as a process of its own and count what it reports."""

    console: Console
    routes: Path
    read: int = 0
    first: float | None = None
    last: float = 0.0
    process: subprocess.Popen[str] = field(init=False)
    changed: threading.Event = field(default_factory=threading.Event)

    def start(self, environ: dict[str, str], log: Path) -> None:
        """Start the router; its other output goes to `log`."""
        self.log = log.open("w")
        command = [sys.executable, "-m", "router", "run", str(self.routes), "--continuous", "--json-logs"]
        self.process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, stdout=self.log, text=True)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stderr is not None  # opened with a pipe above
        for text in self.process.stderr:
            try:
                self._take(json.loads(text))
            except ValueError:
                self.log.write(text)
        self.changed.set()

    def _take(self, entry: dict[str, Any]) -> None:
        self.console.print(f"[dim]{entry['time'][11:19]}[/] {entry['message']}", highlight=False, soft_wrap=True)
        if "batch" in entry:
            now = time.monotonic()
            self.first = self.first or now - sum(entry["batch"]["seconds"].values())
            self.last = now
            self.read += entry["batch"]["read"]
        self.changed.set()

    def wait_for(self, records: int, seconds: float) -> None:
        """Wait until so many records have been read; stop waiting when the router ends or the time is up."""
        until = time.monotonic() + seconds
        while self.read < records and self.process.poll() is None and time.monotonic() < until:
            self.changed.wait(0.5)
            self.changed.clear()

    def stop(self) -> int:
        """Ask the router to end after its batch; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code: 0 when every record sent is accounted for."""
    options = _options(arguments)
    console = Console()
    folder = _fresh(Path(options.folder))
    router = Router(console, ROUTES[options.format])
    with ExitStack() as held:
        console.print("[bold]Starting a Kafka broker[/] (KRaft, loopback, its own temporary folder)")
        kafka = held.enter_context(EmbeddedKafka())
        kafka.create_topic(TOPIC, partitions=4)
        environ = {**os.environ, "LAKE": str(folder / "lake"), "KAFKA": kafka.servers}
        if options.format != "json":
            console.print("[bold]Starting a schema registry[/] (Apicurio, the same way)")
            environ["REGISTRY"] = held.enter_context(EmbeddedRegistry()).url
        write = held.enter_context(opened(options.format, environ.get("REGISTRY"), f"{TOPIC}-value"))
        next(chunks(_traffic(options), write))  # registers the first version: a router needs one to begin with
        sent, code = _stream(options, router, environ, write)
    return _end(console, folder, router, sent, code)


def _stream(
    options: argparse.Namespace, router: Router, environ: dict[str, str], write: Callable[[Traffic], Values]
) -> tuple[Sent, int]:
    """Run the router and the games until all that they sent has been read; return that, and the router's exit code."""
    console, traffic = router.console, _traffic(options)
    console.print(
        f"[bold]Starting[/] router run {router.routes} --continuous, and {options.games} games that send to it"
    )
    router.start(environ, Path(options.folder) / "router.log")
    try:
        sent = simulate(environ["KAFKA"], TOPIC, traffic, write=write)
        garbage = sent.garbage.total()
        console.print(f"[bold]The games have sent {sent.events:,} records[/] ({garbage:,} of them garbage)")
        router.wait_for(sent.events, options.patience)
    finally:
        code = router.stop()
    return sent, code


def _traffic(options: argparse.Namespace) -> Traffic:
    return Traffic(
        events=options.events,
        games=options.games,
        bad=0.005,
        versions=VERSIONS[options.format],
        rate=options.rate,
        seed=7,
    )


def _end(console: Console, folder: Path, router: Router, sent: Sent, code: int) -> int:
    if code or router.read < sent.events:
        console.print(
            f"[red]The router read {router.read:,} of {sent.events:,} records (exit code {code});[/] "
            f"{folder / 'router.log'} has its output"
        )
        return 1
    seconds = router.last - (router.first or router.last)
    return show(console, folder / "lake", router.routes, sent, seconds)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description="Kafka, seven games and the router, for a minute.")
    parser.add_argument("--format", choices=list(ROUTES), default="json", help="of the events")
    parser.add_argument("--events", type=int, default=400_000, help="records to send")
    parser.add_argument("--rate", type=float, default=12_000, help="records per second")
    parser.add_argument("--games", type=int, default=7)
    parser.add_argument("--folder", default=".demo", help="where the lake is left")
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for the last records")
    return parser.parse_args(arguments)


def _fresh(folder: Path) -> Path:
    """Return an empty folder; what an earlier demo left there is removed, anything else is not."""
    if folder.exists() and not (folder / MARK).exists():
        raise SystemExit(f"{folder} is not a demo's folder: give another one with --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
