"""Drive batches by hand: no stream, no broker, everything else as it is in a run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaProtocolError

from router.config.models import Config, FormatSource, Source
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import BRONZE_SCHEMA
from router.engine.reprocess.context import ReprocessContext
from router.engine.reprocess.refresh import Refresh
from router.engine.stream_destination import stream_batches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from router import BatchReport
    from router.engine.reprocess.repair_target import Repaired
    from router.engine.steps import Watch

RAW = pa.schema([field for field in BRONZE_SCHEMA if field.name not in ("arrival", "batch_id")])
SOURCE = Source(format=FormatSource(name="rate"))
RUN = "run-1"
BEGIN = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)
TIMES = {"finished"}
"""Columns that say when something was done."""


def records(values: Iterable[dict[str, Any] | bytes | None], first: int = 0, partitions: int = 1) -> pa.Table:
    """Return raw records, dealt to the partitions of one topic; an object becomes JSON."""
    found = []
    for i, value in enumerate(values):
        found.append({
            "key": f"key {i}".encode(),
            "value": json.dumps(value).encode() if isinstance(value, dict) else value,
            "topic": "events",
            "partition": i % partitions,
            "offset": first + i // partitions,
            "timestamp": BEGIN + timedelta(seconds=i),
            "timestamp_type": 0,
            "headers": [{"key": "trace", "value": b"\x00\xff"}, {"key": "empty", "value": None}] if i % 2 else None,
        })  # fmt: skip
    return pa.Table.from_pylist(found, RAW)


@dataclass
class Query:
    """One query on one lake: it takes batches and shows tables."""

    config: Config
    spark: SparkSession
    watch: Watch | None = None
    reports: list[BatchReport] = field(default_factory=list)
    taken: dict[int, pa.Table] = field(default_factory=dict)
    steps: list[tuple[int, str, int, int]] = field(default_factory=list)
    contents: dict[tuple[str, str, int], pa.Table] = field(default_factory=dict)
    """What was read, by table, its id and version: a version does not change."""

    def __post_init__(self) -> None:
        self.lake, checkpoint = lake_and_checkpoint(self.config)
        self.store = CheckpointStore(checkpoint, RUN)
        self.batches = stream_batches(self.config, "fingerprint", self.spark, self.lake, self.store, self.watch)

    def context(self, spark: SparkSession | None = None) -> ReprocessContext:
        """Return what processes records of the query again."""
        return ReprocessContext(
            self.config,
            spark or self.spark.newSession(),
            self.lake,
            self.store.checkpoint,
            fingerprint="fingerprint",
            folder=Path(self.folder),
        )

    def rebuilt(self, *tables: str, accept: bool = False, spark: SparkSession | None = None) -> list[Repaired]:
        """Rebuild tables; raise why one could not be."""
        outcome = Refresh(self.context(spark), tables, accept=accept).run()
        for error in outcome.failed.values():
            raise error
        return list(outcome.done)

    def take(self, records: pa.Table) -> BatchReport:
        """Process the next batch."""
        batch = len(self.taken)
        self.taken[batch] = records
        self.reports.append(self.again(batch))
        return self.reports[-1]

    def again(self, batch: int, raw: DataFrame | None = None) -> BatchReport:
        """Process a batch anew, of the same records or of others."""
        return self.batches.process(raw or self.spark.createDataFrame(self.taken[batch]), batch)

    def restarted(self, **changes: Any) -> Query:
        """Return the query as a new process would have it, with a changed configuration if need be."""
        known = {"reports": self.reports, "taken": self.taken, "contents": self.contents}
        return Query(self.config.model_copy(update=changes), self.spark, **known)

    def write_run_id(self) -> None:
        """Write into the checkpoint which run it is of, as Spark does for a stream."""
        self.lake.write("_router/games/spark/metadata", json.dumps({"id": RUN}).encode())

    @property
    def folder(self) -> Path:
        """Return the folder around the lake."""
        return Path(self.lake.root).parent

    def open(self, table: str) -> DeltaTable:
        handle = self.lake.open(table)
        assert handle is not None, f"there is no table {table}"
        return handle

    def content(self, table: str) -> pa.Table:
        """Return the content of a table; of an absent one nothing."""
        handle = self.lake.open(table)
        if handle is None:
            return pa.table({})
        version = (table, handle.metadata().id, handle.version())
        if version not in self.contents:
            self.contents[version] = self.read_version(handle, table)
        return self.contents[version]

    def read_version(self, handle: DeltaTable, table: str) -> pa.Table:
        """Return the rows of a version of a table."""
        try:
            return handle.to_pyarrow_table()
        except DeltaProtocolError:  # a widened table: only Spark reads it
            reader = self.spark.read.format("delta").option("versionAsOf", handle.version())
            return reader.load(self.lake.address(table)).toArrow()

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return rows in a stable order, of some columns."""
        content = self.content(table)
        return sorted(content.select(list(columns) or content.column_names).to_pylist(), key=repr)

    def ids(self, table: str) -> list[Any]:
        """Return the values of the column `id` of a table, sorted."""
        return sorted(row["id"] for row in self.rows(table))

    def tables(self) -> list[str]:
        return [table for layer in self.lake.layer_names() for table in self.lake.table_names(layer)]

    def versions(self) -> dict[str, int]:
        return {table: self.open(table).version() for table in self.tables()}

    def letters(self, *columns: str, **having: Any) -> Counter[Any]:
        """Return the dead letters that have given values, counted by some columns."""
        found = [row for row in self.rows(self.config.dead_letters) if having.items() <= row.items()]
        return Counter(row[columns[0]] if len(columns) == 1 else tuple(row[c] for c in columns) for row in found)


def shape(query: Query, table: str) -> list[tuple[str, pa.DataType]]:
    """Return the columns of a table with their types."""
    return [(column.name, column.type) for column in query.content(table).schema]


def multiset(query: Query, table: str) -> Counter[str]:
    """Return the rows of a table, each as text and as often as it is there, in whichever order its columns are."""
    rows = [sorted((name, value) for name, value in row.items() if name not in TIMES) for row in query.rows(table)]
    return Counter(repr(row) for row in rows)
