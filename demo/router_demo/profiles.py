"""Change the profiles of the games' players: what is sent, and what tables of the latest profiles must then hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from router_demo.games import game_names, gamer_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_demo.records import Record

COUNTRIES = ("AT", "BR", "DE", "FR", "IN", "JP", "US")
DELETED = 0.02
"""The share of changes that delete a profile."""
Player = tuple[str, str]
"""A game and a gamer."""


@dataclass
class Profiles:
    """Make changes of profiles, and know them all.

    `levels` has what is left: the level of each player's profile. `states` counts those that ever were, `records` all
    changes, deletions included.
    """

    games: int = 7
    gamers: int = 500
    seed: int = 7
    levels: dict[Player, int] = field(default_factory=dict)
    states: int = 0
    records: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._players = [(game, gamer) for game in game_names(self.games) for gamer in gamer_names(self.gamers)]

    def changes(self, count: int) -> Iterator[Record]:
        """Yield so many changes: key and value are JSON, a deletion has no value."""
        for _ in range(count):
            player = self._random.choice(self._players)
            key = json.dumps({"game": player[0], "gamer_id": player[1]}).encode()
            self.records += 1
            if self._random.random() < DELETED:
                self.levels.pop(player, None)
                yield key, None, []
                continue
            self.states += 1
            self.levels[player] = self.levels.get(player, 0) + 1
            yield key, json.dumps(self._profile(player)).encode(), []

    def _profile(self, player: Player) -> dict[str, str | int]:
        game, gamer = player
        country = COUNTRIES[int(gamer[1:]) % len(COUNTRIES)]
        names = {"game": game, "gamer_id": gamer, "nickname": f"{gamer}_the_{game}_player", "country": country}
        return {**names, "level": self.levels[player]}
