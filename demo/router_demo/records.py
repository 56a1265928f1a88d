"""Generate the records of the simulated games: the same ones for the same seed, hundreds of thousands a second.

Nothing is rendered per event that can be rendered before: the ends of events come from a pool per kind of game and
schema version, amounts from another, times and sessions are rendered per chunk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from router_demo.games import GAMES, event_tail, game_names, render_amounts
from router_demo.garbage import spoil

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from router_demo.traffic import Traffic

Headers = list[tuple[str, str | bytes | None]]
Record = tuple[bytes, bytes | None, Headers]
"""Key, value and headers."""

CHUNK = 1000
CHUNKS_PER_SECOND = 20
"""How smoothly a slow rate is kept."""
TAILS = 512
"""Different ends of events per kind of game and schema version."""
AMOUNTS = 65_536
SESSION_SECONDS = 600


@dataclass(frozen=True)
class Chunk:
    """Hold records that follow each other, and what they are: good events by game, garbage by kind."""

    records: list[Record]
    games: Counter[str]
    garbage: Counter[str]


def records(traffic: Traffic) -> Iterator[Record]:
    """Yield the records of some traffic one by one."""
    for chunk in chunks(traffic):
        yield from chunk.records


def chunks(traffic: Traffic) -> Iterator[Chunk]:
    """Yield the records of some traffic in chunks of one schema version, short ones at a slow rate."""
    writer = _Writer(traffic)
    most = CHUNK if traffic.rate is None else max(1, min(CHUNK, int(traffic.rate / CHUNKS_PER_SECOND)))
    place = 0
    while traffic.events is None or place < traffic.events:
        version, end = traffic.version_at(place)
        count = min(most, end - place)
        yield writer.chunk(place, count, version)
        place += count


class _Writer:
    """Put records together from texts rendered before."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        start = traffic.start or datetime.now(timezone.utc)
        self._start = np.datetime64(start.astimezone(timezone.utc).replace(tzinfo=None), "ms")
        self._names = game_names(traffic.games)
        volumes = 1 / np.arange(1, traffic.games + 1) ** traffic.skew
        self._cuts = np.cumsum(volumes / volumes.sum())[:-1]
        self._gamers = [f"g{number:08d}" for number in range(1, traffic.gamers + 1)]
        self._amounts = render_amounts(AMOUNTS, Random(traffic.seed))
        self._ends: tuple[int, list[list[str]]] = (-1, [])

    def chunk(self, place: int, count: int, version: int) -> Chunk:
        """Write `count` records of one schema version, the first one at `place`.

        Only plain random numbers between 0 and 1 are drawn: their stream is the same in every release of numpy.
        """
        draws = np.random.Generator(np.random.PCG64([self._traffic.seed, place])).random((5, count))
        games = np.searchsorted(self._cuts, draws[0], side="right")
        bad = np.flatnonzero(draws[1] < self._traffic.bad)
        written = self._good(place, version, games, draws[2:])
        garbage = self._spoil(written, bad, place)
        volumes = np.bincount(np.delete(games, bad), minlength=len(self._names)).tolist()
        sent = Counter({name: volume for name, volume in zip(self._names, volumes, strict=True) if volume})
        return Chunk(written, sent, garbage)

    def _good(
        self, place: int, version: int, games: npt.NDArray[np.int64], draws: npt.NDArray[np.float64]
    ) -> list[Record]:
        names, gamers, amounts, ends = self._names, self._gamers, self._amounts, self._ends_of(version)
        headers: Headers = [("producer", b"simulator"), ("schema-version", b"%d" % version)]
        session = int(place * self._traffic.step) // SESSION_SECONDS
        columns = (
            games.tolist(),
            _places(draws[0], len(gamers)),
            _places(draws[1], len(amounts)),
            _places(draws[2], TAILS),
            self._times(place, len(games)),
        )
        return [
            (
                (gamer := gamers[who]).encode(),
                f'{{"game":"{names[game]}","gamer_id":"{gamer}","ts":"{time}Z","session_id":"s{session:04d}-{gamer}",'
                f'"amount":{amounts[much]},{ends[game % len(ends)][end]}'.encode(),
                headers,
            )
            for game, who, much, end, time in zip(*columns, strict=True)
        ]

    def _times(self, place: int, count: int) -> list[str]:
        """Render the times of a chunk in milliseconds."""
        passed = np.arange(place, place + count) * (1000 * self._traffic.step)
        return list(np.datetime_as_string(self._start + passed.astype("timedelta64[ms]")).tolist())

    def _ends_of(self, version: int) -> list[list[str]]:
        """Return the ends of events of a schema version, a list per kind of game; only the newest version is held."""
        if self._ends[0] != version:
            random = Random(f"{self._traffic.seed}/{version}")
            kinds = range(min(len(GAMES), len(self._names)))
            self._ends = (version, [[event_tail(kind, version, random) for _ in range(TAILS)] for kind in kinds])
        return self._ends[1]

    def _spoil(self, written: list[Record], bad: npt.NDArray[np.int64], place: int) -> Counter[str]:
        """Replace the values at some places by garbage; return how much of each kind."""
        random = Random(f"{self._traffic.seed}/{place}/garbage")
        garbage: Counter[str] = Counter()
        for index in bad.tolist():
            key, event, headers = written[index]
            kind, value = spoil(event or b"", random)
            written[index] = (key, value, headers)
            garbage[kind] += 1
        return garbage


def _places(draws: npt.NDArray[np.float64], count: int) -> list[int]:
    return list((draws * count).astype(np.int64).tolist())
