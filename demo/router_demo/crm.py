"""Let big wins go to a CRM, an API with a limit that is out for a while, while tables are filled as ever."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router_demo.api import Api, Failure, Limit, Poison
from router_demo.landed import count
from router_demo.posted import RECEIPTS, Course, Posted
from router_demo.running import failed, routing
from router_demo.simulator import send
from router_demo.wins import MILLION, Wins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from router_demo.kafka import EmbeddedKafka
    from router_demo.process import Router
    from router_demo.running import Demo

ROUTES = Path("routes/big_wins.yaml")
TOPIC = "game-events-json"
LIMIT, BURST = 200, 20
"""Calls per second that the API takes, and how many of them at once."""
LATENCY = 0.03
OPENING, FIRST = 0.02, 0.75
"""The shares of the big wins that are sent while the router starts, and by the outage."""
OUTAGE_SECONDS = 3.0
"""How long the API is out at least: longer where the tables need longer for what is sent meanwhile."""
STATUS = 503
LOOK_SECONDS = 0.1


@contextmanager
def crm(demo: Demo, kafka: EmbeddedKafka, environ: Mapping[str, str]) -> Iterator[Crm]:
    """Run the API, and a router that has something to begin with: its start takes longest."""
    token, wins, lake = secrets.token_urlsafe(), Wins(demo.options.games), demo.folder / "wins"
    script: dict[str, Any] = {
        "wants": {"Authorization": f"Bearer {token}"},
        "limits": [Limit(rate=LIMIT, burst=BURST)],
        "idempotency": "Idempotency-Key",
        "poison": [Poison(field="amount", values=(MILLION,), status=422)],
        "latency": LATENCY,
    }
    with Api(**script) as api:
        limit = f"[bold]{LIMIT} calls a second[/], 429 to more"
        demo.say(f"a mock API starts, for what comes last: it takes {limit}; look at {api.url}/")
        ours = {"LAKE": str(lake), "TOPIC": TOPIC, "CRM": api.url, "CRM_TOKEN": token, "CRM_LIMIT": str(LIMIT)}
        send(kafka.servers, TOPIC, wins.events(ceil(demo.options.wins * OPENING)))
        with routing(demo, ROUTES, {**environ, **ours}) as router:
            yield Crm(demo, kafka.servers, api, script, wins, router, lake)


@dataclass
class Crm:
    """Be the CRM's API, what is sent to it, and the router that sends it."""

    demo: Demo
    servers: str
    api: Api
    script: dict[str, Any] = field(repr=False)
    wins: Wins
    router: Router
    lake: Path

    def post(self) -> Posted | int:
        """Let the games play on, and the API be out in the middle; return what became of it, or the exit code."""
        course = self._course()
        if (code := self.router.stop()) or course is None:
            return failed(self.demo, self.router, self.wins.records, code)
        return Posted.read(self.lake, self.api, self.wins, course, self.router.ended, LIMIT)

    def _course(self) -> Course | None:
        """Return when it was; None where the router did not bring all."""
        if not self._until(lambda: self.settled == self.wins.sent.total()):
            return None
        wins, began = self.demo.options.wins, time.monotonic()
        self.demo.say("[bold]the games play on,[/] and every big win is a call to the API as well")
        send(self.servers, TOPIC, self.wins.events(round(wins * FIRST)))
        if not self._until(lambda: self.api.stats().processed >= wins * FIRST // 2):
            return None
        course = self._outage(began)
        done = course and self._until(lambda: self.settled == self.wins.sent.total())
        return course if done else None

    def _outage(self, began: float) -> Course | None:
        before = self.wins.records
        out = self.api.play(**self.script, failures=[Failure(status=STATUS, body='{"error": "out of order"}')])
        self.demo.say(f"[bold red]the API is out of order:[/] it answers {STATUS} to every call; the games play on")
        send(self.servers, TOPIC, self.wins.events(self.demo.options.wins))
        if not self.router.wait_for(self.wins.records, self.demo.options.patience):
            return None
        self.router.over.wait(max(0, out + OUTAGE_SECONDS - time.monotonic()))
        back, landed = self.api.play(**self.script), self.wins.records - before
        self.demo.say(
            f"[bold green]the API is back[/] after {back - out:.1f} s; the tables took {landed:,} records meanwhile"
        )
        return Course(began, out, back, landed)

    @property
    def settled(self) -> int:
        """Return how many big wins the router is done with."""
        return count(self.lake, RECEIPTS)

    def _until(self, done: Callable[[], bool]) -> bool:
        """Wait until something is so; say whether it is."""
        deadline = time.monotonic() + self.demo.options.patience
        while not (so := done()) and not self.router.over.wait(LOOK_SECONDS) and time.monotonic() < deadline:
            pass
        return so
