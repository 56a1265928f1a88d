"""JSON events of about 190 bytes with ten fields, spread evenly over the games; with a map; and profiles of gamers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.feeds import Feed

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = (
    "game string, gamer_id string, session_id string, action string, ts timestamp, "
    "seq bigint, level int, score double, country string, won boolean"
)
_ACTIONS = ("deal", "draw", "fold", "play", "pass", "quit", "raise", "shuffle")
_COUNTRIES = ("AT", "BR", "CA", "DE", "FR", "GB", "IN", "JP", "KR", "MX", "NG", "PL", "SE", "TR", "US", "ZA")
_BEGIN = datetime(2026, 11, 1, tzinfo=timezone.utc)
_CHUNK = 100_000


def _values(events: int, games: int, seed: int) -> Iterator[tuple[bytes, str]]:
    random = np.random.default_rng(seed)
    names = [f"game_{number:04d}" for number in range(games)]
    for start in range(0, events, _CHUNK):
        yield from _chunk(random, names, start, min(_CHUNK, events - start))


def _chunk(random: np.random.Generator, names: list[str], start: int, count: int) -> Iterator[tuple[bytes, str]]:
    columns = (
        random.integers(0, len(names), count).tolist(),
        random.integers(1_000_000_000, 10_000_000_000, count).tolist(),
        random.integers(100_000_000_000, 1_000_000_000_000, count).tolist(),
        random.integers(0, len(_ACTIONS), count).tolist(),
        random.integers(1, 100, count).tolist(),
        random.integers(100_000, 1_000_000, count).tolist(),
        random.integers(0, len(_COUNTRIES), count).tolist(),
        random.integers(0, 2, count).tolist(),
    )
    second = ""
    for index, (game, gamer, session, action, level, score, country, won) in enumerate(
        zip(*columns, strict=True), start
    ):
        if not second or index % 1000 == 0:  # a thousand events a second; formatting each would double the cost
            second = (_BEGIN + timedelta(seconds=index // 1000)).strftime("%Y-%m-%dT%H:%M:%S")
        text = (
            f'{{"game":"{names[game]}","gamer_id":"g-{gamer}","session_id":"s-{session}",'
            f'"action":"{_ACTIONS[action]}","ts":"{second}.{index % 1000:03d}Z","seq":{index},"level":{level},'
            f'"score":{score / 100:.2f},"country":"{_COUNTRIES[country]}","won":{"true" if won else "false"}}}'
        )
        yield text.encode(), names[game]


def _with_map(events: int, games: int, seed: int) -> Iterator[tuple[bytes, str]]:
    for number, (value, table) in enumerate(_values(events, games, seed)):
        tags = b',"tags":{"source":"s%d","campaign":"c%d"}}' % (number % 7, number % 100)
        yield value[:-1] + tags, table


def _profiles(events: int, games: int, seed: int) -> Iterator[tuple[bytes, str]]:
    """Yield a profile of each of so many gamers."""
    for number in range(events):
        game = f"game_{number % games:04d}"
        names = f'"game":"{game}","gamer_id":"g-{number}","nickname":"gamer {number}"'
        yield f'{{{names},"level":{number % 99},"country":"{_COUNTRIES[number % 16]}"}}'.encode(), f"{game}_profiles"


def _profile_key(value: bytes) -> bytes:
    """Return the key of a profile: its game and gamer."""
    return value.partition(b',"nickname"')[0] + b"}"


JSON = Feed("json", SCHEMA, _values, lambda: {"json": {"schema": SCHEMA}})
DECIMALS = Feed("json_decimals", SCHEMA, _with_map, dict)
PROFILES = Feed("profiles", "", _profiles, dict, _profile_key)
