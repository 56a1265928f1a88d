"""Run the demo: a real Kafka and a real schema registry, a simulator, the router, and what landed where."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from router import RouterError
from router_demo import landed
from router_demo.big_wins import crm
from router_demo.games import Profiles
from router_demo.kafka import EmbeddedKafka
from router_demo.records import chunks, opened
from router_demo.registry import EmbeddedRegistry
from router_demo.running import ENDING, Demo, failed, page_address, routing
from router_demo.simulator import Sent, send, simulate
from router_demo.summary import Speed, show
from router_demo.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router_demo.embedded import Embedded
    from router_demo.running import Router
    from router_demo.traffic import Values

TOPIC = "game-events"
PROFILE_TOPIC = "gamer-profiles"
ROUTES = {
    "protobuf": Path("routes/games.yaml"),
    "avro": Path("routes/games_avro.yaml"),
    "json": Path("routes/games_json.yaml"),
}
PROFILES = Path("routes/profiles.yaml")
WITH_GOLD = {"protobuf"}
"""Of which formats the configuration has a view: gold.GAME_players."""
VERSIONS = {"json": 5, "protobuf": 10, "avro": 10}
"""How many schema versions appear while the stream runs; routes/games_json.schema.json knows five."""
BAD = 0.005
"""The share of garbage."""
OPENING = 10
"""One of so many records is sent before the first batch is done."""
MARK = ".made-by-the-demo"
NARROWEST = 100
"""Columns of text if there is no terminal."""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code: 0 when every record sent is accounted for, 130 when interrupted."""
    options = _options(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=NARROWEST)
    for number in ENDING:  # all of them as Ctrl-C: it unwinds what ends the router and the servers
        signal.signal(number, signal.default_int_handler)
    demo = Demo(console, options, _make_fresh_folder(Path(options.folder)))
    try:
        return _run(demo)
    except KeyboardInterrupt:
        demo.say(f"[bold]stopped:[/] nothing is left running; what has landed is in {demo.folder / 'lake'}")
        return INTERRUPTED
    except RouterError as error:
        console.print(f"[bold red]{error}[/]", soft_wrap=True)
        return 1


def _run(demo: Demo) -> int:
    """Run the games, then the profiles, then the big wins; return the exit code."""
    options = demo.options
    lake = demo.folder / "lake"
    routes = ROUTES[options.format]
    with ExitStack() as until_the_end:
        kafka, registry = _start_servers(demo, until_the_end)
        environ = {**os.environ, "LAKE": str(lake), "KAFKA": kafka.servers}
        if registry is not None:
            environ["REGISTRY"] = registry.url
        values = opened(
            options.format,
            registry=environ.get("REGISTRY"),
            subject=f"{TOPIC}-value",
            on_register=demo.register,
        )
        write = until_the_end.enter_context(values)
        next(chunks(_opening(options), write))  # registers the first version: a router needs one to begin with

        # The events of the games.
        page = page_address()
        with ExitStack() as while_games_play:
            router = while_games_play.enter_context(routing(demo, routes, environ, page))
            sent = _stream(demo, router, kafka, write)
            if sent and options.format in WITH_GOLD:
                _wait_for_gold(demo, router, sent)
            is_complete = sent is not None and router.read >= sent.events
            if options.keep and is_complete:
                # It runs on, so that its page shows what it has done: until the demo ends.
                until_the_end.enter_context(while_games_play.pop_all())
        if sent is None or not is_complete:
            code = router.stop()
            return failed(demo, router, sent=sent.events if sent else None, code=code)
        if not options.keep:
            code = router.stop()  # again: it has ended with the block above, and returns its code
            if code:
                return failed(demo, router, sent=sent.events, code=code)
        if sent.failed:
            demo.say(f"[bold red]{sent.failed:,} records were not delivered to Kafka[/]: {dict(sent.errors)}")
            return 1

        # The profiles, then the big wins, whose router starts before: its start takes longest.
        api = until_the_end.enter_context(crm(demo, kafka, environ))
        profiles = Profiles(options.games)
        with routing(demo, PROFILES, environ) as profile_router:
            _change_profiles(demo, profile_router, kafka, profiles)
        code = profile_router.stop()
        if code or profile_router.read < options.changes:
            return failed(demo, profile_router, sent=options.changes, code=code)
        posted = api.post()
        if isinstance(posted, int):
            return posted

        speed = Speed(seconds=router.ended - router.began, fastest=router.fastest)
        code = show(
            console=demo.console,
            lake=lake,
            routes=routes,
            sent=sent,
            versions=demo.versions(),
            profiles=profiles,
            posted=posted,
            speed=speed,
        )
        if options.keep:
            _keep_page(demo, router, page)
    return code


def _keep_page(demo: Demo, router: Router, page: str) -> None:
    """Leave the first router and its page as they are, until Ctrl-C."""
    demo.say(f"[bold]the page stays at http://{page}/[/] until Ctrl-C")
    with suppress(KeyboardInterrupt):
        router.over.wait()


def _start_servers(demo: Demo, until_the_end: ExitStack) -> tuple[EmbeddedKafka, EmbeddedRegistry | None]:
    """Start the servers side by side; they end with the stack."""
    began = time.monotonic()
    kafka = EmbeddedKafka()
    registry: EmbeddedRegistry | None = None
    servers: list[Embedded] = [kafka]
    names = "Kafka"
    if demo.options.format != "json":
        registry = EmbeddedRegistry()
        servers.append(registry)
        names = "Kafka and a schema registry (Apicurio)"
    demo.say(f"starting [bold]{names}[/]: the real thing, on this machine only")
    # Before the starts: Ctrl-C may come in the middle of one.
    for server in servers:
        until_the_end.callback(server.close)
    with ThreadPoolExecutor() as pool:
        starts = [pool.submit(server.start) for server in servers]
        for start in starts:
            start.result()
    kafka.create_topic(TOPIC, partitions=4)
    demo.say(f"up after {time.monotonic() - began:.1f} s")
    return kafka, registry


def _stream(demo: Demo, router: Router, kafka: EmbeddedKafka, write: Callable[[Traffic], Values]) -> Sent | None:
    """Let the games send, wait until all of it has been read; None if the router never read."""
    options = demo.options
    if not router.wait_until_it_reads(options.timeout):
        return None
    opening = _opening(options)
    traffic = _traffic(options)
    demo.say(
        f"[bold]{options.games} games open[/] with {opening.events:,} records; the router's first batch is its slowest"
    )
    sent = simulate(kafka.servers, TOPIC, opening, stop=router.over, write=write)
    router.wait_for(sent.events, options.timeout)
    demo.say(f"[bold]they go on[/] with {traffic.events:,} records, {options.rate:,.0f} a second")
    sent += simulate(kafka.servers, TOPIC, traffic, stop=router.over, write=write)
    demo.say(f"[bold]the games have sent {sent.events:,} records[/], {sent.garbage.total():,} of them garbage")
    router.wait_for(sent.events, options.timeout)
    return sent


def _wait_for_gold(demo: Demo, router: Router, sent: Sent) -> None:
    """Wait until the view has counted every event of every game; `summary` says what it has not."""
    deadline = time.monotonic() + demo.options.timeout
    while landed.players(demo.folder / "lake") != sent.games:
        if router.over.is_set() or time.monotonic() >= deadline:
            return
        time.sleep(0.5)


def _change_profiles(demo: Demo, router: Router, kafka: EmbeddedKafka, profiles: Profiles) -> None:
    """Let players change their profiles, half of them once their tables are there."""
    changes = demo.options.changes
    demo.say(f"[bold]players change their profiles[/] {changes:,} times, half of it once their tables are there")
    for count in (changes // 2, changes - changes // 2):
        send(kafka.servers, PROFILE_TOPIC, profiles.changes(count))
        if not router.wait_for(profiles.records, demo.options.timeout):
            return


def _opening(options: argparse.Namespace) -> Traffic:
    """Return what is sent at once, with the first schema version."""
    return Traffic(events=options.events // OPENING, games=options.games, bad=BAD, versions=1, seed=7)


def _traffic(options: argparse.Namespace) -> Traffic:
    """Return what is sent from then on, at a pace, while versions come."""
    events = options.events - options.events // OPENING
    versions = VERSIONS[options.format]
    return Traffic(events=events, games=options.games, bad=BAD, versions=versions, rate=options.rate, seed=8)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = "A real Kafka, a real schema registry, seven games and the router, for a minute."
    parser = argparse.ArgumentParser(prog="python -m router_demo", description=description)
    parser.add_argument("--format", choices=list(ROUTES), default="protobuf", help="of the events (protobuf)")
    parser.add_argument("--events", type=int, default=400_000, help="records to send (400000)")
    parser.add_argument("--rate", type=float, default=12_000, help="records per second (12000)")
    parser.add_argument("--games", type=int, default=7, help="how many games (7)")
    parser.add_argument("--changes", type=int, default=20_000, help="changes of players' profiles, afterwards (20000)")
    parser.add_argument("--wins", type=int, default=1000, help="big wins that go to an API, at last (1000)")
    parser.add_argument("--folder", default=".demo", help="where the lake is left (.demo)")
    parser.add_argument("--keep", action="store_true", help="keep the first router and its page up until Ctrl-C")
    parser.add_argument("--timeout", type=float, default=120, help="seconds to wait for the router (120)")
    return parser.parse_args(arguments)


def _make_fresh_folder(folder: Path) -> Path:
    """Return an empty folder; what an earlier demo left there is removed, anything else is not."""
    if folder.exists() and not (folder / MARK).exists():
        raise SystemExit(f"{folder} is not a demo's folder: give another one with --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


if __name__ == "__main__":
    sys.exit(main())
