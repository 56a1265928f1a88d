"""Hold what an API took against what was sent, what is in the table, and what the receipts say."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from router_demo import landed
from router_demo.landed import DEAD
from router_demo.wins import Win

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from router_demo.api import Api
    from router_demo.landed import Landed
    from router_demo.wins import Wins

PAUSE = 0.5
"""Seconds without a call that are a pause: an outage, or the time between two batches of a sink."""
WINS, RECEIPTS = "silver.big_wins", "ops.receipts"


@dataclass(frozen=True)
class Course:
    """Be when the games began to play on, the API was out and was back again, in monotonic seconds.

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
    """Hold what became of big wins.

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
        stats, tables = api.stats(), landed.tables(lake)
        every = api.requests(last=stats.arrived)
        calls = [call for call in every if call["processed"]]
        receipts = _columns(tables[RECEIPTS], "status", "idempotency_key")
        times = [call["at"] for call in calls]
        games = sum(table.rows for name, table in tables.items() if name.startswith("silver.") and name != WINS)
        return cls(
            limit=limit,
            course=course,
            records=wins.records,
            landed=games,
            sent=Counter(wins.sent),
            refusable=wins.millions,
            table=Counter(Win(*row) for row in _columns(tables[WINS], "gamer_id", "amount", "ts")),
            taken=Counter(map(_win, calls)),
            keys=Counter(call["key"].strip('"') for call in calls),
            receipts=Counter(status for status, _ in receipts),
            receipted=Counter(key for status, key in receipts if status == "delivered"),
            letters=landed.letters(tables[DEAD]) if DEAD in tables else Counter(),
            highest=round(stats.highest),
            held_up=stats.lag,
            statuses=stats.statuses,
            refused=api.stats(since=course.out, until=course.back).statuses.get(503, 0),
            used=used([call["at"] for call in every if call["status"] not in (429, 503)], limit),
            again=min((at for at in times if at > course.back), default=course.back) - course.back,
            tables_after=ended - course.began,
            api_after=max(times, default=course.began) - course.began,
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
        said = [f"{what}: {one:,} expected, {other:,} there" for what, (one, other) in counts.items() if one != other]
        same = {
            "the big wins in the table are not those that were sent": self.table == self.sent,
            "the big wins at the API are not those that were sent": self.taken == self.sent - self.refusable,
            "the receipts do not name the calls that the API took": self.receipted == self.keys,
        }
        return said + [what for what, is_so in same.items() if not is_so]


def _win(call: dict[str, Any]) -> Win:
    """Return the win that a call told the API of: .../players/{gamer}/notes."""
    body = json.loads(call["body"])
    return Win.read(unquote(call["path"].split("/")[2]), body["amount"], body["at"])


def used(times: list[float], limit: int) -> float | None:
    """Return the share of a limit that was used, but for pauses; None where all was pause."""
    gaps = np.diff(times)
    busy = gaps[gaps <= PAUSE]
    return len(busy) / (limit * float(busy.sum())) if len(busy) else None


def _columns(table: Landed, *names: str) -> Iterable[tuple[Any, ...]]:
    rows = table.table.to_pyarrow_table(columns=list(names))
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
