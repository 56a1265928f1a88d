"""Render events as JSON, and garbage among them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from router_demo.games import game_names, gamer_names
from router_demo.traffic import BAD_NAMES, draw_amounts, draw_ends, empty, null, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from router_demo.games import Fields
    from router_demo.traffic import Drawn, Maker, Traffic


class JsonValues:
    """Events as JSON, put together from texts rendered before: amounts once, ends once per schema version."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._names = game_names(traffic.games)
        self._gamers = gamer_names(traffic.gamers)
        self._amounts = draw_amounts(traffic)
        self._ends: tuple[int, list[list[str]]] = (-1, [])

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""
        names, gamers, amounts, ends = self._names, self._gamers, self._amounts, self._ends_of(drawn.version)
        times, session = np.datetime_as_string(drawn.times).tolist(), drawn.session
        columns = (drawn.games, drawn.gamers, drawn.amounts, drawn.ends, times)
        return [
            (
                f'{{"game":"{names[game]}","gamer_id":"{(gamer := gamers[who])}","ts":"{time}Z",'
                f'"session_id":"s{session:04d}-{gamer}","amount":{amounts[much]},{ends[game % len(ends)][end]}'
            ).encode()
            for game, who, much, end, time in zip(*columns, strict=True)
        ]

    def spoil(self, event: bytes, random: Random) -> tuple[str, bytes | None]:
        """Turn a good event into garbage; return its kind and the value."""
        kind = random.choice(list(JSON_GARBAGE))
        return kind, JSON_GARBAGE[kind](event, random)

    def _ends_of(self, version: int) -> list[list[str]]:
        """Return the ends of events of a schema version; only the newest version is held."""
        if self._ends[0] != version:
            self._ends = (version, draw_ends(self._traffic, version, _tail))
        return self._ends[1]


def _tail(kind: int, fields: Fields) -> str:
    return json.dumps(fields, separators=(",", ":"))[1:]


def _broken_json(event: bytes, random: Random) -> bytes:
    """Cut the event short: without its last brace it is never valid."""
    return event[: random.randrange(1, len(event))]


def _no_game(event: bytes, random: Random) -> bytes:
    fields = json.loads(event)
    del fields["game"]
    return json.dumps(fields, separators=(",", ":")).encode()


def _named(*names: str) -> Callable[[bytes, Random], bytes]:
    """Replace the game by a name that no table may get; the event stays valid JSON."""

    def rename(event: bytes, random: Random) -> bytes:
        fields = json.loads(event) | {"game": random.choice(names)}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()

    return rename


JSON_GARBAGE: dict[str, Maker] = {
    "broken_json": _broken_json,
    "random_bytes": random_bytes,
    "empty": empty,
    "null": null,
    "no_game": _no_game,
} | {kind: _named(*names) for kind, names in BAD_NAMES.items()}
"""A maker of each kind: from a good event to the value sent in its place (None is a tombstone)."""
