"""The backlog of an outbox: the rows of tables that could not be written. The rows of other tables go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from router.columns import any_of
from router.engine.label.layout import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.engine.balance import Partition
    from router.engine.checkpoint_store import CheckpointStore


Spans = dict[str, dict[int, tuple[int, int]]]
"""Topic -> partition -> first and last offset."""


@dataclass(frozen=True)
class Backlog:
    """The backlog of one table: the number of rows, the offsets that they came from, and why they wait."""

    rows: int
    spans: Spans
    why: str


@dataclass(frozen=True)
class BacklogStore:
    """The backlog of one outbox by table, in the checkpoint store."""

    store: CheckpointStore
    key: str

    def before(self, query: str, batch: int) -> dict[str, Backlog]:
        """Return the backlog by table when a batch began, also if that batch was finished before."""
        found = self._read()
        return _tables(found["before" if found["after"] == [query, batch] else "now"])

    def now(self) -> dict[str, Backlog]:
        """Return the backlog by table."""
        return _tables(self._read()["now"])

    def note(self, query: str, batch: int, before: dict[str, Backlog], now: dict[str, Backlog]) -> None:
        """Write the backlog after a batch."""
        tables = {
            name: {table: asdict(backlog) for table, backlog in found.items()}
            for name, found in (("before", before), ("now", now))
        }
        self.store.write(self._path, json.dumps({"after": [query, batch], **tables}).encode())

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.read(self._path) or b'{"after": [], "before": {}, "now": {}}')
        return found

    @property
    def _path(self) -> str:
        return f"backlog/{self.key.replace('/', '__')}.json"


def _tables(found: dict[str, Any]) -> dict[str, Backlog]:
    return {table: _backlog(**about) for table, about in found.items()}


def _backlog(rows: int, spans: dict[str, dict[str, list[int]]], why: str) -> Backlog:
    return Backlog(rows, {t: {int(p): (a, b) for p, (a, b) in by.items()} for t, by in spans.items()}, why)


def extended(spans: Spans, partitions: Iterable[Partition]) -> Spans:
    """Return spans extended by those of a later batch."""
    found = {topic: dict(by) for topic, by in spans.items()}
    for part in partitions:
        first, _ = found.setdefault(part.topic, {}).get(part.partition, (part.first, 0))
        found[part.topic][part.partition] = (first, part.last)
    return found


def with_backlog(events: DataFrame, backlog: dict[str, Backlog], spark: SparkSession, outbox: str) -> DataFrame:
    """Return the rows of a batch together with those of the backlog, read from the outbox at an address."""
    if not backlog:
        return events
    rows = spark.read.format("delta").load(outbox)
    chosen = any_of((F.col(TABLE) == table) & _within(found.spans) for table, found in backlog.items())
    return events.unionByName(rows.filter(chosen), allowMissingColumns=True)


def _within(spans: Spans) -> Column:
    return any_of(
        (F.col("_topic") == topic) & (F.col("_partition") == partition) & F.col("_offset").between(*span)
        for topic, by in spans.items()
        for partition, span in by.items()
    )
