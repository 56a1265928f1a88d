"""What a scenario is: configurations as YAML, and the batches of records that they take."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from tests.expectations.adapter import Player

HERE = Path(__file__).parent
BEGIN = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)
RAW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.int32()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
    ]
)
HEAD = """\
name: games
lake: ${LAKE}
source: {format: {name: rate}}
bronze: bronze.all
dead_letters: ops.dead
"""


@dataclass(frozen=True)
class Given:
    """A record: bytes, or an object in the words of route tests (`event`, `value`, `base64`, `schema`, `message`)."""

    value: bytes | dict[str, Any] | None
    key: bytes | None = b"key"
    topic: str = "events"
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] | None = None


@dataclass(frozen=True)
class Taken:
    """One batch; before it the stream is started again with another configuration, or what waits is approved.

    `schemas` stand for a registry: subject -> files, the oldest first, from the folder of the scenario.
    """

    records: tuple[Given, ...]
    text: str | None = None
    schemas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    approve: bool = False


@dataclass(frozen=True)
class Scenario:
    """A history of a query. The first batch has the configuration; `folder` is where its files are."""

    name: str
    about: str
    batches: tuple[Taken, ...]
    folder: Path = HERE / "schemas"
    slow: bool = False

    def play(self, player: Player) -> list[str]:
        """Let a player take all batches; return why the stream stopped, where it did."""
        offsets: Counter[tuple[str, int]] = Counter()
        stops = []
        for number, batch in enumerate(self.batches):
            if batch.text is not None:
                player.start(batch.text, self.folder, batch.schemas)
            if batch.approve:
                player.approve()
            if why := player.take(_table(player, batch.records, offsets, number)):
                stops.append(f"batch {number}: {why}")
        return stops


def _table(player: Player, records: tuple[Given, ...], offsets: Counter[tuple[str, int]], number: int) -> pa.Table:
    rows = []
    for i, given in enumerate(records):
        place = (given.topic, given.partition)
        rows.append({
            "key": given.key,
            "value": player.value(given.value) if isinstance(given.value, dict) else given.value,
            "topic": given.topic,
            "partition": given.partition,
            "offset": offsets[place],
            "timestamp": BEGIN + timedelta(hours=number, seconds=i),
            "timestamp_type": 0,
            "headers": None if given.headers is None else [{"key": k, "value": v} for k, v in given.headers],
        })  # fmt: skip
        offsets[place] += 1
    return pa.Table.from_pylist(rows, RAW)


def given(values: Any, *, partitions: int = 1, keys: bool = True, headers: bool = False) -> tuple[Given, ...]:
    """Return records of values, dealt to partitions; an object becomes JSON."""
    made = []
    for i, value in enumerate(values):
        content = json.dumps(value).encode() if isinstance(value, dict) else value
        about = (("trace", b"\x00\xff"), ("empty", None)) if headers and i % 2 else None
        made.append(Given(content, f"key {i}".encode() if keys else None, partition=i % partitions, headers=about))
    return tuple(made)
