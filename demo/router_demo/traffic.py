"""Describe what the simulated games send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router_demo.games import GAMES

if TYPE_CHECKING:
    from datetime import datetime

EVENTS_PER_SECOND = 1000
"""The pace of event time when no rate is given."""
OPEN_EVENTS_PER_VERSION = 100_000
"""How long a schema version lasts when the run has no end."""


@dataclass(frozen=True)
class Traffic:
    """Describe what to send; the same description and `start` give the same records.

    `events`: how many records, garbage included; None never ends.
    `games`: how many games; past the seven known ones they get generated names.
    `skew`: 0 gives every game the same volume; 1 (Zipf) gives the game of rank r a volume in proportion to 1/r.
    `gamers`: how many players; each is a key.
    `bad`: the share of garbage, 0 to 1.
    `versions`: the schema version rises from 1 to this over the run, in equal parts; version v adds the columns
    col_foo_1 to col_foo_v; 0 means none of them.
    `rate`: events in a second of event time, which `simulate` also keeps to; None means 1000, sent without pause.
    `start`: the time of the first event; None means now.
    """

    events: int | None = None
    games: int = len(GAMES)
    skew: float = 1.0
    gamers: int = 10_000
    bad: float = 0.0
    versions: int = 0
    rate: float | None = None
    seed: int = 0
    start: datetime | None = None

    def __post_init__(self) -> None:
        wrong = {
            "events must not be negative": self.events is not None and self.events < 0,
            "games must be at least 1": self.games < 1,
            "skew must not be negative": self.skew < 0,
            "gamers must be at least 1": self.gamers < 1,
            "bad must be a share from 0 to 1": not 0 <= self.bad <= 1,
            "versions must not be negative": self.versions < 0,
            "rate must be positive": self.rate is not None and self.rate <= 0,
            "seed must not be negative": self.seed < 0,
            "start needs a time zone": self.start is not None and self.start.tzinfo is None,
        }
        if any(wrong.values()):
            raise ValueError("; ".join(what for what, is_so in wrong.items() if is_so))

    @property
    def step(self) -> float:
        """Return the seconds between two events."""
        return 1 / (self.rate or EVENTS_PER_SECOND)

    def version_at(self, place: int) -> tuple[int, int]:
        """Return the schema version of the record at a place, and the place where the next one (or the end) begins."""
        if self.events is None:
            past = place // OPEN_EVENTS_PER_VERSION
            return min(self.versions, past + 1), (past + 1) * OPEN_EVENTS_PER_VERSION
        if self.versions == 0:
            return 0, self.events
        past = place * self.versions // self.events
        return past + 1, -(-(past + 1) * self.events // self.versions)
