"""Generate the records of the simulated games: the same ones for the same seed, hundreds of thousands a second.

A record has the same content in every format: JSON (here), and Avro and Protobuf under schemas of a registry.

Nothing is rendered per event that can be rendered before: the ends of events come from a pool per kind of game and
schema version, amounts from another, times and sessions are rendered per chunk.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from router import StartError
from router_demo.avro_values import AvroValues
from router_demo.games import game_names, gamer_names
from router_demo.registry import subject_in
from router_demo.traffic import AMOUNTS, BAD_NAMES, TAILS, Drawn, draw_amounts, draw_ends, empty, null, random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from router_demo.games import Fields, Headers, Record
    from router_demo.traffic import Maker, Traffic, Values

CHUNK = 1000
CHUNKS_PER_SECOND = 20
"""How smoothly a slow rate is kept."""
SESSION_SECONDS = 600


class JsonValues:
    """Events as JSON, put together from texts rendered before: amounts once, ends once per schema version."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._names = game_names(traffic.games)
        self._gamers = gamer_names(traffic.gamers)
        self._amounts = draw_amounts(traffic)
        self._version = -1
        self._ends: list[list[str]] = []
        """By kind of game, of the version."""

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""
        self._prepare(drawn.version)
        ends = self._ends
        times = np.datetime_as_string(drawn.times).tolist()
        session = f"s{drawn.session:04d}"
        values = []
        for game, gamer, amount, end, time in zip(
            drawn.games, drawn.gamers, drawn.amounts, drawn.ends, times, strict=True
        ):
            gamer_id = self._gamers[gamer]
            # Games past the known kinds have their ends in turn.
            text = (
                f'{{"game":"{self._names[game]}","gamer_id":"{gamer_id}","ts":"{time}Z",'
                f'"session_id":"{session}-{gamer_id}","amount":{self._amounts[amount]},{ends[game % len(ends)][end]}'
            )
            values.append(text.encode())
        return values

    def spoil(self, event: bytes, random: Random) -> tuple[str, bytes | None]:
        """Turn a good event into garbage; return its kind and the value."""
        kind = random.choice(list(JSON_GARBAGE))
        return kind, JSON_GARBAGE[kind](event, random)

    def _prepare(self, version: int) -> None:
        """Render how the events of a schema version end; only the newest version is held."""
        if version == self._version:
            return
        self._ends = draw_ends(self._traffic, version, _json_tail)
        self._version = version


def _json_tail(kind: int, fields: Fields) -> str:
    return json.dumps(fields, separators=(",", ":"))[1:]


def _broken_json(event: bytes, random: Random) -> bytes:
    """Cut the event short: without its last brace it is never valid."""
    return event[: random.randrange(1, len(event))]


def _no_game(event: bytes, random: Random) -> bytes:
    fields = json.loads(event)
    del fields["game"]
    return json.dumps(fields, separators=(",", ":")).encode()


def _bad_name(*names: str) -> Callable[[bytes, Random], bytes]:
    """Replace the game by one of some names that no table may get; the event stays valid JSON."""

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
} | {kind: _bad_name(*names) for kind, names in BAD_NAMES.items()}
"""A maker of each kind: from a good event to the value sent in its place (None is a tombstone)."""


@dataclass(frozen=True)
class Chunk:
    """Records that follow each other, and what they are: good events by game, garbage by kind."""

    version: int
    records: list[Record]
    games: Counter[str]
    garbage: Counter[str]


def records(traffic: Traffic, write: Callable[[Traffic], Values] = JsonValues) -> Iterator[Record]:
    """Yield the records of some traffic one by one."""
    for chunk in chunks(traffic, write):
        yield from chunk.records


def chunks(traffic: Traffic, write: Callable[[Traffic], Values] = JsonValues) -> Iterator[Chunk]:
    """Yield the records of some traffic in chunks of one schema version, short ones at a slow rate.

    `write` makes the format. The same traffic has the same events in every format; of garbage it is the places that
    are the same.
    """
    writer = _Writer(traffic, write(traffic))
    largest_chunk = CHUNK
    if traffic.rate is not None:
        largest_chunk = max(1, min(CHUNK, int(traffic.rate / CHUNKS_PER_SECOND)))
    place = 0
    while traffic.events is None or place < traffic.events:
        version, end = traffic.version_at(place)
        count = min(largest_chunk, end - place)
        yield writer.chunk(place, count, version)
        place += count


class _Writer:
    """A writer of chunks: it draws events, lets a format render them, and puts garbage among them."""

    def __init__(self, traffic: Traffic, values: Values) -> None:
        self._traffic = traffic
        self._values = values
        start = traffic.start or datetime.now(timezone.utc)
        self._start = np.datetime64(start.astimezone(timezone.utc).replace(tzinfo=None), "ms")
        self._names = game_names(traffic.games)
        # A random number between 0 and 1 lies between two cuts, and so chooses a game by its volume.
        volumes = 1 / np.arange(1, traffic.games + 1) ** traffic.skew
        self._cuts = np.cumsum(volumes / volumes.sum())[:-1]
        self._keys = [name.encode() for name in gamer_names(traffic.gamers)]

    def chunk(self, place: int, count: int, version: int) -> Chunk:
        """Write `count` records of one schema version, the first one at `place`.

        Only plain random numbers between 0 and 1 are drawn: their stream is the same in every release of numpy.
        """
        generator = np.random.Generator(np.random.PCG64([self._traffic.seed, place]))
        game_draws, bad_draws, gamer_draws, amount_draws, end_draws = generator.random((5, count))
        games = np.searchsorted(self._cuts, game_draws, side="right")
        drawn = Drawn(
            version=version,
            session=int(place * self._traffic.step) // SESSION_SECONDS,
            games=games.tolist(),
            gamers=_places(gamer_draws, len(self._keys)),
            amounts=_places(amount_draws, AMOUNTS),
            ends=_places(end_draws, TAILS),
            times=self._times(place, count),
        )
        written = self._write_good(drawn)
        # Garbage takes the place of good events, which then do not count.
        bad = np.flatnonzero(bad_draws < self._traffic.bad)
        garbage = self._write_garbage(written, bad, place)
        volumes = np.bincount(np.delete(games, bad), minlength=len(self._names)).tolist()
        events_by_game: Counter[str] = Counter()
        for name, volume in zip(self._names, volumes, strict=True):
            if volume:
                events_by_game[name] = volume
        return Chunk(version=version, records=written, games=events_by_game, garbage=garbage)

    def _write_good(self, drawn: Drawn) -> list[Record]:
        headers: Headers = [("producer", b"simulator"), ("schema-version", b"%d" % drawn.version)]
        keys = self._keys
        values = self._values.render(drawn)
        return [(keys[gamer], value, headers) for gamer, value in zip(drawn.gamers, values, strict=True)]

    def _times(self, place: int, count: int) -> npt.NDArray[np.datetime64]:
        """Return the times of a chunk in milliseconds."""
        passed = np.arange(place, place + count) * (1000 * self._traffic.step)
        return self._start + passed.astype("timedelta64[ms]")

    def _write_garbage(self, written: list[Record], bad: npt.NDArray[np.int64], place: int) -> Counter[str]:
        """Replace the values at some places by garbage; return how much of each kind."""
        random = Random(f"{self._traffic.seed}/{place}/garbage")
        garbage: Counter[str] = Counter()
        for index in bad.tolist():
            key, event, headers = written[index]
            kind, value = self._values.spoil(event or b"", random)
            written[index] = (key, value, headers)
            garbage[kind] += 1
        return garbage


def _places(draws: npt.NDArray[np.float64], count: int) -> list[int]:
    return list((draws * count).astype(np.int64).tolist())


@contextmanager
def opened(
    form: str, registry: str | None, subject: str, on_register: Callable[[int], None] | None = None
) -> Iterator[Callable[[Traffic], Values]]:
    """Hold what renders json, protobuf or avro; its connection to the registry is closed at the end.

    `on_register` gets the id of each schema that is registered. Raises StartError without a registry if the format
    needs one, or without the extra that it needs.
    """
    if form == "json":
        yield JsonValues
        return
    if registry is None:
        raise StartError(f"{form} needs a registry: give the URL of a Confluent-compatible one")
    with subject_in(registry, subject, on_register) as connected:
        values: Callable[..., Values] = AvroValues if form == "avro" else _protobuf()
        yield partial(values, connected)


def _protobuf() -> Callable[..., Values]:
    try:
        from router_demo.protobuf_values import ProtobufValues  # noqa: PLC0415 - an extra, which JSON does not need
    except ModuleNotFoundError as error:
        extra = "pip install 'spark-event-router[protobuf]'"
        raise StartError(f"protobuf needs the module {error.name}: {extra}") from error
    return ProtobufValues
