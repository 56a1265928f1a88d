"""Render events as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from router_demo import garbage
from router_demo.games import game_names, gamer_names
from router_demo.values import draw_amounts, draw_ends

if TYPE_CHECKING:
    from random import Random

    from router_demo.games import Fields
    from router_demo.traffic import Traffic
    from router_demo.values import Drawn


class JsonValues:
    """Put events together from texts rendered before: amounts once, their ends once per schema version."""

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
        return garbage.spoil(event, random)

    def _ends_of(self, version: int) -> list[list[str]]:
        """Return the ends of events of a schema version; only the newest version is held."""
        if self._ends[0] != version:
            self._ends = (version, draw_ends(self._traffic, version, _tail))
        return self._ends[1]


def _tail(kind: int, fields: Fields) -> str:
    return json.dumps(fields, separators=(",", ":"))[1:]
