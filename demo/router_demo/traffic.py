"""Describe what the simulated games send, what chance chooses for it, and the garbage among it, as in every real topic.

A format makes values of that. Here is the garbage that all formats share, and all that a registry frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

from router_demo.games import GAMES, event_fields, render_amounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    import numpy as np
    import numpy.typing as npt

    from router_demo.games import Fields

    Maker = Callable[[bytes, Random], bytes | None]

T = TypeVar("T")

EVENTS_PER_SECOND = 1000
"""The pace of event time when no rate is given."""
OPEN_EVENTS_PER_VERSION = 100_000
"""How long a schema version lasts when the run has no end."""
TAILS = 512
"""Different ends of events per kind of game and schema version."""
AMOUNTS = 65_536


@dataclass(frozen=True)
class Traffic:
    """What to send; the same description and `start` give the same records.

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
        mistakes = [message for message, is_so in wrong.items() if is_so]
        if mistakes:
            raise ValueError("; ".join(mistakes))

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


@dataclass(frozen=True)
class Drawn:
    """The random choices for events that follow each other and have one schema version.

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
    """A format of the values of records."""

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""

    def spoil(self, event: bytes, random: Random) -> tuple[str, bytes | None]:
        """Turn a good event into garbage; return its kind and the value sent in its place (None is a tombstone)."""


def concatenate_fields(
    drawn: Drawn,
    *,
    begins: list[bytes],
    gamer_ids: list[bytes],
    times: list[bytes],
    session: bytes,
    gamers: list[bytes],
    amounts: list[bytes],
    ends: list[list[bytes]],
) -> list[bytes]:
    """Return events of a format in which an event is the concatenation of its fields.

    A session's id is `session` and the gamer's name. `times` are those of the events, the others lists to draw from.
    """
    values = []
    for game, gamer, amount, end, time in zip(drawn.games, drawn.gamers, drawn.amounts, drawn.ends, times, strict=True):
        fields = (
            begins[game],
            gamer_ids[gamer],
            time,
            session,
            gamers[gamer],
            amounts[amount],
            ends[game % len(ends)][end],  # games past the known kinds have their ends in turn
        )
        values.append(b"".join(fields))
    return values


def draw_amounts(traffic: Traffic) -> list[str]:
    """Return the amounts that events of some traffic have."""
    return render_amounts(AMOUNTS, Random(traffic.seed))


def draw_ends(traffic: Traffic, version: int, write: Callable[[int, Fields], T]) -> list[list[T]]:
    """Return the ends of events of a schema version, a list per kind of game; `write` takes the kind and the fields."""
    random = Random(f"{traffic.seed}/{version}")
    ends: list[list[T]] = []
    for kind in range(min(len(GAMES), traffic.games)):
        ends.append([write(kind, event_fields(kind, version, random)) for _ in range(TAILS)])
    return ends


# Garbage

NO_SCHEMA = 2**31 - 1
"""An id that no registry has given: the largest there is."""
BAD_NAMES = {
    "path_name": ("../../x", "..", "/etc/passwd", "a/b", "a\\b", "C:\\x", "x\u0000y"),
    "emoji_name": ("🃏", "poker🂡"),
    "long_name": ("x" * 300,),
    "reserved_name": ("con", "nul", "_delta_log"),
}
"""Names of games that no table may get."""


def stage_of(kind: str) -> str:
    """Return the stage at which the router must refuse garbage of a kind, whatever the format."""
    if kind in BAD_NAMES:
        return "name"
    if kind == "no_game":
        return "match"
    return "decode"


def random_bytes(event: bytes, random: Random) -> bytes:
    """Begin with a byte of no UTF-8 text and no wire format, so that chance cannot write either."""
    return b"\xff" + random.randbytes(random.randrange(1, 2 * len(event)))


def empty(event: bytes, random: Random) -> bytes:
    """Return a value of no bytes."""
    return b""


def null(event: bytes, random: Random) -> None:
    """Return a tombstone."""
    return None


def _unknown_id(event: bytes, random: Random) -> bytes:
    return event[:1] + NO_SCHEMA.to_bytes(4, "big") + event[5:]


def _wrong_magic(event: bytes, random: Random) -> bytes:
    return bytes([random.randrange(1, 256)]) + event[1:]


FRAMED_GARBAGE: dict[str, Maker] = {
    "unknown_id": _unknown_id,
    "wrong_magic": _wrong_magic,
    "random_bytes": random_bytes,
    "empty": empty,
    "null": null,
}
"""A maker of each kind in the wire format of a schema registry: from a good event to the value sent in its place."""
