"""Write events as a route's lane holds them: Parquet files with their coordinates, one per source partition."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SEED = 7
TOPIC = "big-wins"
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
NOTE_LENGTH = 300
"""Of a text without meaning, which lets an event be about 400 bytes as JSON."""


def write(folder: Path, sizes: Sequence[int]) -> Path:
    """Write so many events for each source partition; return the folder. Their `id` is unique."""
    lane = folder / "lane"
    lane.mkdir(parents=True, exist_ok=True)
    first = 0
    for partition, size in enumerate(sizes):
        pq.write_table(_events(partition, first, size), lane / f"part-{partition:05d}.parquet")
        first += size
    return lane


def read(spark: SparkSession, lane: Path, partitions: Sequence[int] | None = None) -> DataFrame:
    """Return the events of some source partitions, of all by default."""
    files = sorted(lane.glob("*.parquet"))
    chosen = files if partitions is None else [files[partition] for partition in partitions]
    return spark.read.parquet(*map(str, chosen))


def values(events: DataFrame) -> list[str]:
    """Return the columns that are of the events and not of their records."""
    return [name for name in events.columns if not name.startswith("_")]


def as_json(events: DataFrame) -> DataFrame:
    """Return one column, `content`: each event as JSON."""
    return events.select(F.to_json(F.struct(*values(events))).alias("content"))


def evenly(events: int, partitions: int) -> list[int]:
    """Return the sizes of partitions that are as equal as can be."""
    return [events // partitions + (number < events % partitions) for number in range(partitions)]


def _events(partition: int, first: int, size: int) -> pa.Table:
    dice = random.Random(SEED + partition)
    numbers = range(first, first + size)
    return pa.table(
        {
            "_topic": pa.array([TOPIC] * size),
            "_partition": pa.array([partition] * size, pa.int32()),
            "_offset": pa.array(range(size), pa.int64()),
            "_timestamp": pa.array(
                [BEGAN + timedelta(milliseconds=number) for number in numbers], pa.timestamp("us", "UTC")
            ),
            "_key": pa.array([b"player-%d" % (number % 1000) for number in numbers]),
            "id": pa.array(numbers, pa.int64()),
            "game": pa.array([f"game-{number % 50}" for number in numbers]),
            "player": pa.array([f"player-{number % 1000}" for number in numbers]),
            "amount": pa.array([dice.randrange(1, 100_000) / 100 for _ in numbers]),
            "note": pa.array([f"{dice.getrandbits(4 * NOTE_LENGTH):0{NOTE_LENGTH}x}" for _ in numbers]),
        }
    )
