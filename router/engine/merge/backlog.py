"""Rows of a lane that wait for their table: it could not be written when they came, and the other tables go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from router.engine.label.safe_columns import any_of
from router.engine.upsert_columns import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.engine.balance import Partition
    from router.engine.checkpoint_store import CheckpointStore


Spans = dict[str, dict[int, tuple[int, int]]]
"""Topic -> partition -> first and last offset."""


@dataclass(frozen=True)
class Pending:
    """Be what waits for one table: how many rows, those of the lane that came from these offsets, and why."""

    rows: int
    spans: Spans
    why: str


@dataclass(frozen=True)
class PendingRows:
    """Remember, beside the checkpoint, the rows of one lane that wait."""

    store: CheckpointStore
    key: str

    def before(self, query: str, batch: int) -> dict[str, Pending]:
        """Return what waited by table when a batch began, also if that batch was taken to its end before."""
        found = self._read()
        return _tables(found["before" if found["after"] == [query, batch] else "now"])

    def now(self) -> dict[str, Pending]:
        """Return what waits by table."""
        return _tables(self._read()["now"])

    def note(self, query: str, batch: int, before: dict[str, Pending], now: dict[str, Pending]) -> None:
        """Note what waits now that a batch is at its end."""
        tables = {
            name: {table: asdict(pending) for table, pending in found.items()}
            for name, found in (("before", before), ("now", now))
        }
        self.store.write(self._path, json.dumps({"after": [query, batch], **tables}).encode())

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.read(self._path) or b'{"after": [], "before": {}, "now": {}}')
        return found

    @property
    def _path(self) -> str:
        return f"pending/{self.key.replace('/', '__')}.json"


def _tables(found: dict[str, Any]) -> dict[str, Pending]:
    return {table: _pending(**about) for table, about in found.items()}


def _pending(rows: int, spans: dict[str, dict[str, list[int]]], why: str) -> Pending:
    return Pending(rows, {t: {int(p): (a, b) for p, (a, b) in by.items()} for t, by in spans.items()}, why)


def joined(spans: Spans, partitions: Iterable[Partition]) -> Spans:
    """Return spans that reach over those of a later batch."""
    found = {topic: dict(by) for topic, by in spans.items()}
    for part in partitions:
        first, _ = found.setdefault(part.topic, {}).get(part.partition, (part.first, 0))
        found[part.topic][part.partition] = (first, part.last)
    return found


def with_pending(events: DataFrame, pending: dict[str, Pending], spark: SparkSession, lane: str) -> DataFrame:
    """Return the rows of a batch, and from the lane at an address those that waited."""
    if not pending:
        return events
    rows = spark.read.format("delta").load(lane)
    chosen = any_of((F.col(TABLE) == table) & _within(found.spans) for table, found in pending.items())
    return events.unionByName(rows.filter(chosen), allowMissingColumns=True)


def _within(spans: Spans) -> Column:
    return any_of(
        (F.col("_topic") == topic) & (F.col("_partition") == partition) & F.col("_offset").between(*span)
        for topic, by in spans.items()
        for partition, span in by.items()
    )
