"""Hold what a demo remembers while it runs, say what happens, and run the routers that it is about."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from router_demo.games import game_names
from router_demo.growth import Growth
from router_demo.process import Router, uninterrupted
from router_demo.summary import Version

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GAIN = " " * 16


class Demo:
    """Hold what a demo remembers while it runs, and say what happens, a line each."""

    def __init__(self, console: Console, options: argparse.Namespace, folder: Path) -> None:
        self.console, self.options, self.folder = console, options, folder
        self.growth = Growth(folder / "lake", [f"silver.{game}" for game in game_names(options.games)])
        self.registered: dict[int, float] = {}

    def say(self, text: str) -> None:
        """Print a line with the time of day."""
        now = datetime.now().astimezone()
        self.console.print(f"[dim]{now:%H:%M:%S}[/]  {text}", highlight=False, soft_wrap=True)

    def register(self, number: int) -> None:
        """Say that a schema version was registered."""
        if number not in self.registered:
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
        seconds, behind = sum(batch["seconds"].values()), batch["behind"]
        self.say(
            f"[bold]{batch['query']} batch {batch['batch']:>2}[/]  {batch['read']:>7,} records into "
            f"{batch['tables']} tables, {batch['dead_letters']:,} dead letters, {seconds:.1f} s"
            + (f", {behind:,} behind" if behind else "")
        )
        for column, tables in self.growth.look().items():
            since = self._since(column)
            after = f", {time.monotonic() - since:.1f} s after its version was registered" if since else ""
            those = f"{len(tables)} {'table' if len(tables) == 1 else 'tables'}"
            self.say(f"[green]{GAIN}{those} gained {column}{after}[/]")

    def versions(self) -> list[Version]:
        """Return the versions that were registered, and when tables gained what they brought."""
        seen = []
        for number, (schema_id, since) in enumerate(self.registered.items(), 1):
            gained = self.growth.gained.get(_column(number), {})
            seen.append(Version(number, schema_id, _column(number), {name: at - since for name, at in gained.items()}))
        return seen

    def _since(self, column: str) -> float | None:
        registered = {_column(number): since for number, since in enumerate(self.registered.values(), 1)}
        return registered.get(column)


def _column(version: int) -> str:
    return f"col_foo_{version}"


@contextmanager
def routing(demo: Demo, routes: Path, environ: dict[str, str]) -> Iterator[Router]:
    """Run a router for as long as the block; it ends after the batch at hand."""
    demo.say(f"[bold]router run {routes} --continuous[/] starts, in a process of its own")
    with ExitStack() as held:
        try:
            with uninterrupted(*ENDING):  # or a router could be started that nobody knows of, and so nobody ends
                router = Router(routes, environ, demo.folder / "router.log", demo.take)
                held.callback(router.stop)
            yield router
        except KeyboardInterrupt:
            demo.say(f"[bold]stopping:[/] the router of {routes} ends after the batch at hand")
            raise


def failed(demo: Demo, router: Router, sent: int | None, code: int) -> int:
    """Say that a router ended before its time; return the demo's exit code."""
    of = f" of {sent:,}" if sent else ""
    log = demo.folder / "router.log"
    demo.say(f"[bold red]the router read {router.read:,}{of} records and ended with {code};[/] {log} says more")
    return 1
