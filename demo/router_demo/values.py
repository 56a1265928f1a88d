"""Say what chance chooses for the events of a chunk, and what a format makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

from router_demo.games import GAMES, event_fields, render_amounts

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from router_demo.games import Fields
    from router_demo.traffic import Traffic

T = TypeVar("T")

TAILS = 512
"""Different ends of events per kind of game and schema version."""
AMOUNTS = 65_536


@dataclass(frozen=True)
class Drawn:
    """Hold what chance chose for events that follow each other and have one schema version.

    `games`, `gamers`, `amounts` and `ends` are places in lists that a format renders before; `times` are in
    milliseconds, `session` is the number of the session that all of them are in.
    """

    version: int
    session: int
    games: list[int]
    gamers: list[int]
    amounts: list[int]
    ends: list[int]
    times: npt.NDArray[np.datetime64]


class Values(Protocol):
    """Render the values of records in one format."""

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""

    def spoil(self, event: bytes, random: Random) -> tuple[str, bytes | None]:
        """Turn a good event into garbage; return its kind and the value sent in its place (None is a tombstone)."""


def draw_amounts(traffic: Traffic) -> list[str]:
    """Return the amounts that events of some traffic have."""
    return render_amounts(AMOUNTS, Random(traffic.seed))


def draw_ends(traffic: Traffic, version: int, write: Callable[[int, Fields], T]) -> list[list[T]]:
    """Return the ends of events of a schema version, a list per kind of game; `write` takes the kind and the fields."""
    random = Random(f"{traffic.seed}/{version}")
    kinds = range(min(len(GAMES), traffic.games))
    return [[write(kind, event_fields(kind, version, random)) for _ in range(TAILS)] for kind in kinds]
