"""Send what the games play on, and know every big win of it: it must reach a table, and an API."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from router_demo.games import LARGEST_AMOUNT
from router_demo.records import records
from router_demo.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_demo.records import Record

BIG = 9000
"""A win is big above it: routes/big_wins.yaml says so."""
JACKPOTS = 50
"""One of so many events is made a big win: the API is to have something to do."""
MILLION = 1_000_000.0
"""What the API never takes."""
MILLIONS = 250
"""One of so many big wins is of a million."""


class Win(NamedTuple):
    """Be what tells one big win from another, in whichever place it is found."""

    gamer: str
    amount: float
    at: datetime

    @classmethod
    def read(cls, gamer: str, amount: float, at: str) -> Win:
        """Return a win whose time is text in ISO 8601, in UTC."""
        return cls(gamer, amount, datetime.fromisoformat(at.replace("Z", "+00:00")))


@dataclass
class Wins:
    """Make events of the games as JSON, and remember which are big wins. `records` counts all of them."""

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
                if self.sent.total() % MILLIONS == MILLIONS // 2:
                    event["amount"] = MILLION
                self.sent[Win.read(event["gamer_id"], event["amount"], event["ts"])] += 1
            self.records += 1
            yield key, json.dumps(event).encode(), headers
