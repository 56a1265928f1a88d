"""Describe the games: what an event of each has in addition to the common fields, and the players' profiles.

Every event carries `game`, `gamer_id`, `ts`, `session_id`, `type` and `amount`; the fields here come after them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GAMES = ("rummy", "spades", "euchre", "go_fish", "uno", "hearts", "poker")
TYPES = ("deal", "play", "play", "play", "win", "chat", "leave")

_RANKS = "23456789TJQKA"
_SUITS = "SHDC"
_COLORS = ("red", "green", "blue", "yellow")
_UNO_CARDS = ("skip", "reverse", "draw_two", "wild", "0", "5", "9")
LARGEST_AMOUNT = 10_000

Fields = dict[str, object]
Headers = list[tuple[str, str | bytes | None]]
Record = tuple[bytes, bytes | None, Headers]
"""Key, value and headers."""


def _cards(random: Random, count: int) -> list[str]:
    return [random.choice(_RANKS) + random.choice(_SUITS) for _ in range(count)]


def _rummy(random: Random) -> Fields:
    hand = {"size": random.randint(1, 10), "deadwood": random.randint(0, 60)}
    return {"melds": [_cards(random, 3)], "hand": hand}


def _spades(random: Random) -> Fields:
    bags = {"ours": random.randint(0, 9), "theirs": random.randint(0, 9)}
    return {"bid": random.randint(0, 13), "tricks": random.randint(0, 13), "bags": bags}


def _euchre(random: Random) -> Fields:
    score = [random.randint(0, 10), random.randint(0, 10)]
    return {"trump": random.choice(("spades", "hearts", "clubs")), "alone": random.random() < 0.1, "score": score}


def _go_fish(random: Random) -> Fields:
    books = random.sample(_RANKS, random.randint(0, 4))
    return {"asked": random.choice(_RANKS), "got": random.randint(0, 3), "books": books}


def _uno(random: Random) -> Fields:
    players = [{"seat": seat, "cards": random.randint(1, 9)} for seat in (1, 2)]
    return {"color": random.choice(_COLORS), "card": random.choice(_UNO_CARDS), "players": players}


def _hearts(random: Random) -> Fields:
    return {"passed": _cards(random, 3), "points": random.randint(0, 26), "moon": random.random() < 0.02}


def _poker(random: Random) -> Fields:
    small = random.choice((1, 2, 5, 10))
    blinds = {"small": small, "big": 2 * small}
    return {"pot": random.randint(100, 900_000) / 100, "board": _cards(random, 3), "blinds": blinds}


_FIELDS: tuple[Callable[[Random], Fields], ...] = (_rummy, _spades, _euchre, _go_fish, _uno, _hearts, _poker)


def game_names(count: int) -> list[str]:
    """Return `count` names: the seven games, then generated ones that borrow the fields of the seven in turn."""
    generated = [f"game_{number:04d}" for number in range(len(GAMES) + 1, count + 1)]
    return [*GAMES[:count], *generated]


def render_amounts(count: int, random: Random) -> list[str]:
    """Render amounts: most of them small, one in a hundred above 9000."""
    amounts = []
    for _ in range(count):
        amount = 0.01 + round((LARGEST_AMOUNT - 0.01) * random.random() ** 10, 2)
        amounts.append(f"{amount:.2f}")
    return amounts


def gamer_names(count: int) -> list[str]:
    """Return the names of so many players, all of one length."""
    return [f"g{number:08d}" for number in range(1, count + 1)]


def event_fields(game: int, version: int, random: Random) -> Fields:
    """Return what ends an event of the game at this place: its type, its own fields and the columns of a version.

    Schema version v has the columns col_foo_1 to col_foo_v: whole numbers, texts and fractions in turn.
    """
    fields: Fields = {"type": random.choice(TYPES)} | _FIELDS[game % len(_FIELDS)](random)
    return fields | {f"col_foo_{number}": _column_value(number, random) for number in range(1, version + 1)}


def _column_value(number: int, random: Random) -> object:
    """Return a value of the column col_foo_{number}, of the type that the schemas of all formats give it."""
    value = random.randint(0, 9999)
    column_type = number % 3
    if column_type == 0:
        return value / 100
    if column_type == 1:
        return value
    return f"foo-{value}"


COUNTRIES = ("AT", "BR", "DE", "FR", "IN", "JP", "US")
DELETED = 0.02
"""The share of changes that delete a profile."""
Player = tuple[str, str]
"""A game and a gamer."""


@dataclass
class Profiles:
    """Changes of the profiles of the games' players, and what tables of the latest profiles must then hold.

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
        self._players = list(product(game_names(self.games), gamer_names(self.gamers)))

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
        return {
            "game": game,
            "gamer_id": gamer,
            "nickname": f"{gamer}_the_{game}_player",
            "country": country,
            "level": self.levels[player],
        }
