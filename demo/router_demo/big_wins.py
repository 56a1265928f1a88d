"""Send big wins to a table and to an API with a limit, which is out for a while, and compare what arrived at both."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from router_demo import landed
from router_demo.api import Api, Failure, Limit, Poison
from router_demo.games import LARGEST_AMOUNT
from router_demo.landed import DEAD
from router_demo.records import records
from router_demo.running import failed, routing
from router_demo.simulator import send
from router_demo.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from router_demo.games import Record
    from router_demo.kafka import EmbeddedKafka
    from router_demo.landed import Landed
    from router_demo.running import Demo, Router

ROUTES = Path("routes/big_wins.yaml")
TOPIC = "game-events-json"
LIMIT = 200
"""Calls per second that the API takes."""
BURST = 20
"""How many of them at once."""
LATENCY = 0.03
OPENING = 0.02
"""The share of the big wins that is sent while the router starts."""
FIRST = 0.75
"""The share that is sent by the outage."""
OUTAGE_SECONDS = 3.0
"""How long the API is out at least: longer if the tables need longer for what is sent meanwhile."""
STATUS = 503
LOOK_SECONDS = 0.1
PAUSE = 0.5
"""Seconds without a call that are a pause: an outage, or the time between two batches of a sink."""
WINS = "gold.big_wins"
RECEIPTS = "ops.receipts"
BIG = 9000
"""A win is big above it, as in routes/big_wins.yaml."""
JACKPOTS = 50
"""One of so many events is made a big win: the API is to have something to do."""
MILLION = 1_000_000.0
"""What the API never takes."""
MILLIONS = 250
"""One of so many big wins is of a million."""


class Win(NamedTuple):
    """What tells one big win from another, in whichever place it is found."""

    gamer: str
    amount: float
    at: datetime

    @classmethod
    def read(cls, gamer: str, amount: float, at: str) -> Win:
        """Return a win whose time is text in ISO 8601, in UTC."""
        return cls(gamer, amount, datetime.fromisoformat(at.replace("Z", "+00:00")))


@dataclass
class Wins:
    """Events of the games as JSON, and which of them are big wins. `records` counts all events."""

    games: int = 7
    seed: int = 9
    sent: Counter[Win] = field(default_factory=Counter)
    records: int = 0

    def __post_init__(self) -> None:
        self._events = records(Traffic(games=self.games, seed=self.seed))
        self._random = Random(self.seed)

    @property
    def millions(self) -> Counter[Win]:
        """Return those that the API refuses."""
        return Counter({win: times for win, times in self.sent.items() if win.amount == MILLION})

    def events(self, count: int) -> Iterator[Record]:
        """Yield events until so many big wins were among all that were ever yielded."""
        while self.sent.total() < count:
            key, value, headers = next(self._events)
            event = json.loads(value or b"{}")
            if self.records % JACKPOTS == 0:
                event["amount"] = round(self._random.uniform(BIG + 1, LARGEST_AMOUNT), 2)
            if event["amount"] > BIG:
                # The middle one of so many, so that a run with few big wins has one as well.
                if self.sent.total() % MILLIONS == MILLIONS // 2:
                    event["amount"] = MILLION
                self.sent[Win.read(event["gamer_id"], event["amount"], event["ts"])] += 1
            self.records += 1
            yield key, json.dumps(event).encode(), headers


@contextmanager
def crm(demo: Demo, kafka: EmbeddedKafka, environ: Mapping[str, str]) -> Iterator[Crm]:
    """Run the API, and a router that has something to begin with: its start takes longest."""
    token = secrets.token_urlsafe()
    wins = Wins(demo.options.games)
    lake = demo.folder / "wins"
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
        settings = {"LAKE": str(lake), "TOPIC": TOPIC, "CRM": api.url, "CRM_TOKEN": token, "CRM_LIMIT": str(LIMIT)}
        send(kafka.servers, TOPIC, wins.events(ceil(demo.options.wins * OPENING)))
        with routing(demo, ROUTES, {**environ, **settings}) as router:
            yield Crm(
                demo=demo,
                servers=kafka.servers,
                api=api,
                script=script,
                wins=wins,
                router=router,
                lake=lake,
            )


@dataclass
class Crm:
    """The CRM's API, what is sent to it, and the router that sends it."""

    demo: Demo
    servers: str
    api: Api
    script: dict[str, Any] = field(repr=False)
    wins: Wins
    router: Router
    lake: Path

    def post(self) -> Posted | int:
        """Let the games play on while the API is out for a while; return what became of the wins, or the exit code."""
        course = self._course()
        code = self.router.stop()
        if code or course is None:
            return failed(self.demo, self.router, sent=self.wins.records, code=code)
        return Posted.read(
            lake=self.lake,
            api=self.api,
            wins=self.wins,
            course=course,
            ended=self.router.ended,
            limit=LIMIT,
        )

    def _course(self) -> Course | None:
        """Let the games play on through an outage; return its times, None if the router did not deliver all."""
        # What was sent while the router started is out of the way before any time is measured.
        if not self._until(self._is_settled):
            return None
        wins = self.demo.options.wins
        began = time.monotonic()
        self.demo.say("[bold]the games play on,[/] and every big win is a call to the API as well")
        send(self.servers, TOPIC, self.wins.events(round(wins * FIRST)))
        # The outage begins in the middle of the calls.
        if not self._until(lambda: self.api.stats().processed >= wins * FIRST // 2):
            return None
        course = self._outage(began)
        if course is None or not self._until(self._is_settled):
            return None
        return course

    def _outage(self, began: float) -> Course | None:
        """Let the API be out while the tables take the rest; None if they did not."""
        records_before = self.wins.records
        out = self.api.play(**self.script, failures=[Failure(status=STATUS, body='{"error": "out of order"}')])
        self.demo.say(f"[bold red]the API is out of order:[/] it answers {STATUS} to every call; the games play on")
        send(self.servers, TOPIC, self.wins.events(self.demo.options.wins))
        if not self.router.wait_for(self.wins.records, self.demo.options.timeout):
            return None
        # The tables may have been quick: the outage is to last for some seconds, unless the router ends.
        self.router.over.wait(max(0, out + OUTAGE_SECONDS - time.monotonic()))
        back = self.api.play(**self.script)
        records = self.wins.records - records_before
        self.demo.say(
            f"[bold green]the API is back[/] after {back - out:.1f} s; the tables took {records:,} records meanwhile"
        )
        return Course(began=began, out=out, back=back, landed=records)

    def _is_settled(self) -> bool:
        """Say whether the router is done with every big win that was sent: each has a receipt."""
        return landed.count(self.lake, RECEIPTS) == self.wins.sent.total()

    def _until(self, is_so: Callable[[], bool]) -> bool:
        """Wait until something is so; say whether it is. The end of the router, or of the time, ends the wait."""
        deadline = time.monotonic() + self.demo.options.timeout
        while not is_so():
            if self.router.over.wait(LOOK_SECONDS) or time.monotonic() >= deadline:
                return False
        return True


@dataclass(frozen=True)
class Course:
    """The times when the games continued, the API was out and was back again, in monotonic seconds.

    `landed` are the records that tables took while it was out.
    """

    began: float
    out: float
    back: float
    landed: int

    @property
    def outage(self) -> float:
        """Return how many seconds the API was out."""
        return self.back - self.out


@dataclass(frozen=True)
class Posted:
    """What became of big wins.

    `sent` are those of the games, `refusable` those among them that the API never takes; `table` and `taken` are what
    the table and the API have, `keys` what the API took by idempotency key. `receipts` counts by status, `receipted`
    are the keys of those delivered, `letters` counts dead letters by stage and reason. `highest` is the most calls in
    any second; `held_up` the most seconds that the API was held up, by which a call may seem to come later. `used` is
    the share of the limit but for pauses, `again` the seconds from the outage's end to the first call that was taken.
    `tables_after` and `api_after` are the seconds until all had landed.
    """

    limit: int
    course: Course
    records: int
    landed: int
    sent: Counter[Win]
    refusable: Counter[Win]
    table: Counter[Win]
    taken: Counter[Win]
    keys: Counter[str]
    receipts: Counter[str]
    receipted: Counter[str]
    letters: Counter[tuple[str, str]]
    highest: int
    held_up: float
    statuses: dict[int, int]
    refused: int
    used: float | None
    again: float
    tables_after: float
    api_after: float

    @classmethod
    def read(cls, lake: Path, api: Api, wins: Wins, course: Course, ended: float, limit: int) -> Posted:
        """Ask the API for its record, and read the tables; `ended` is when the last of them was done."""
        stats = api.stats()
        tables = landed.tables(lake)
        requests = api.requests(last=stats.arrived)
        calls = [request for request in requests if request["processed"]]
        call_times = [call["at"] for call in calls]
        times_after_outage = [at for at in call_times if at > course.back]
        # Neither the calls over the limit count as use of it, nor those of the outage.
        let_in_times = [request["at"] for request in requests if request["status"] not in (429, 503)]
        receipts = _columns(tables[RECEIPTS], "status", "idempotency_key")
        rows_of_games = 0
        for name, table in tables.items():
            if name.startswith("silver.") and name != WINS:
                rows_of_games += table.rows
        return cls(
            limit=limit,
            course=course,
            records=wins.records,
            landed=rows_of_games,
            sent=Counter(wins.sent),
            refusable=wins.millions,
            table=Counter(Win(*row) for row in _columns(tables[WINS], "gamer_id", "amount", "ts")),
            taken=Counter(_win(call) for call in calls),
            keys=Counter(call["key"].strip('"') for call in calls),
            receipts=Counter(status for status, _ in receipts),
            receipted=Counter(key for status, key in receipts if status == "delivered"),
            letters=landed.letters(tables[DEAD]) if DEAD in tables else Counter(),
            highest=round(stats.highest),
            held_up=stats.lag,
            statuses=stats.statuses,
            refused=api.stats(since=course.out, until=course.back).statuses.get(503, 0),
            used=used(let_in_times, limit),
            again=min(times_after_outage, default=course.back) - course.back,
            tables_after=ended - course.began,
            api_after=max(call_times, default=course.began) - course.began,
        )

    @property
    def twice(self) -> int:
        """Return how many calls took effect again."""
        return self.keys.total() - len(self.keys)

    @property
    def wrong(self) -> list[str]:
        """Return what does not balance, one sentence each."""
        dead = self.refusable.total()
        counts = {
            "records in the games' tables": (self.records, self.landed),
            "big wins in the table": (self.sent.total(), self.table.total()),
            "big wins at the API": (self.sent.total() - dead, self.taken.total()),
            "calls that took effect twice": (0, self.twice),
            "receipts of what was delivered": (self.sent.total() - dead, self.receipts["delivered"]),
            "receipts of what was refused": (dead, self.receipts["dead"]),
            "dead letters of the API": (dead, self.letters.total()),
        }
        sentences = []
        for name, (expected, counted) in counts.items():
            if expected != counted:
                sentences.append(f"{name}: {expected:,} expected, {counted:,} there")
        # Equal numbers are not enough: they could count other wins.
        if self.table != self.sent:
            sentences.append("the big wins in the table are not those that were sent")
        if self.taken != self.sent - self.refusable:
            sentences.append("the big wins at the API are not those that were sent")
        if self.receipted != self.keys:
            sentences.append("the receipts do not name the calls that the API took")
        return sentences


def _win(call: dict[str, Any]) -> Win:
    """Return the win of a call: its path is .../players/{gamer}/notes."""
    body = json.loads(call["body"])
    return Win.read(unquote(call["path"].split("/")[2]), body["amount"], body["at"])


def used(times: list[float], limit: int) -> float | None:
    """Return the share of a limit that was used, but for pauses; None if all was pause."""
    gaps = np.diff(times)
    busy_gaps = gaps[gaps <= PAUSE]
    if not len(busy_gaps):
        return None
    return len(busy_gaps) / (limit * float(busy_gaps.sum()))


def _columns(table: Landed, *names: str) -> Iterable[tuple[Any, ...]]:
    """Return some columns of a table, a tuple per row."""
    rows = table.table.to_pyarrow_table(columns=list(names))
    columns = [rows.column(name).to_pylist() for name in names]
    return list(zip(*columns, strict=True))
