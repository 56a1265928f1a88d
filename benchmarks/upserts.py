"""Measure upserts against MERGE of Delta on Spark: `python -m benchmarks.upserts`.

All runs of a figure share one session and the same tables; each brings newer rows, most for keys that there are.
The figure is the median. `many`: changes over many small tables, against a MERGE for each of them, as people write it.
`large`: changes spread over all files of one large table. `range`: changes within 2 % of its keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F
from rich.console import Console

from benchmarks.machine import machine
from router.config.models import Config
from router.delta.lake import Lake
from router.engine.merge import Job, Outcomes, outcomes
from router.engine.merger import TASKS_PER_CORE
from router.engine.session import build_session, stop_session
from router.engine.spark_merge import SparkMerger
from router.engine.write import Landing
from router.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

KEYED = Keyed(("k",))
LANE = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_table", "_deleted")
FILES = 16
"""Files of the large table; neighbouring keys share one."""


def main() -> None:
    """Measure what is asked for and write it down."""
    given = _arguments()
    console = Console()
    config = Config.model_construct(name="upserts", spark={"spark.driver.memory": given.driver_memory})
    spark = build_session(config)
    found: dict[str, Any] = {"machine": machine(), "arguments": vars(given)}
    try:
        for name in given.only:
            with TemporaryDirectory(dir=given.folder) as folder:
                found[name] = MEASURED[name](Bench(spark, Lake.at(folder)), given)
                console.print(f"{name}: {json.dumps(found[name])}", markup=False)
    finally:
        stop_session(spark)
    given.out.write_text(json.dumps(found, indent=1, default=str) + "\n")


@dataclass
class Bench:
    """Be one lake that takes batches from two sides."""

    spark: SparkSession
    lake: Lake
    batches: int = 0

    def many(self, given: argparse.Namespace) -> dict[str, Any]:
        """Change rows of many small tables."""
        names = [f"silver.t{number:04d}" for number in range(given.tables)]
        for name in names:
            write_deltalake(self.lake.address(name), rows(np.arange(given.rows_each), 0))
        each = given.changes // given.tables

        def batch(first: int) -> pa.Table:
            keys = np.tile(np.arange(given.rows_each - each // 2, given.rows_each + each - each // 2), given.tables)
            return lane(rows(keys + first % 7, first), np.repeat(names, each))

        some = names[: given.loop]
        ours = self.measured(given.repeat, batch, self.router)
        loop = self.measured(given.repeat, batch, lambda events: [self.merge(events, name) for name in some])
        whole = loop * given.tables / len(some)
        figures = {"router": ours, "merge_loop": whole, "extrapolated_from": len(some), "times": whole / ours}
        return {"tables": given.tables, "changes": given.changes, **figures}

    def large(self, given: argparse.Namespace) -> dict[str, Any]:
        """Change rows all over one large table."""
        step = given.rows // (given.some // 2)
        return self._one(given, lambda first: np.arange(given.some) * step + first % step)

    def range(self, given: argparse.Namespace) -> dict[str, Any]:
        """Change rows of a table within 2 % of its keys."""
        within = given.rows // 50
        found = self._one(given, lambda first: np.arange(within)[: given.some] + given.rows // 2 + first % 7)
        (last,) = DeltaTable(self.lake.address("silver.large")).history(1)
        return {**found, "files": FILES, "last_commit": last["operationMetrics"]}

    def spark_engine(self, given: argparse.Namespace) -> dict[str, Any]:
        """Change rows all over one large table, with the engine `spark`."""
        self._make_large(given.rows)
        step = given.rows // (given.some // 2)

        def merge(events: DataFrame) -> None:
            found = Outcomes()
            SparkMerger(self.spark, self.lake, self._job()).merge(events, found)
            assert not found.failed, found.failed

        def batch(first: int) -> pa.Table:
            keys = np.arange(given.some) * step + first % step
            return lane(rows(keys, first), np.repeat(["silver.large"], given.some))

        return {"rows": given.rows, "changes": given.some, "seconds": self.measured(given.repeat, batch, merge)}

    def _one(self, given: argparse.Namespace, keys: Callable[[int], Any]) -> dict[str, Any]:
        self._make_large(given.rows)

        def batch(first: int) -> pa.Table:
            chosen = keys(first)
            return lane(rows(chosen, first), np.repeat(["silver.large"], len(chosen)))

        spark = self.measured(given.repeat, batch, lambda events: self.merge(events, "silver.large"))
        with Peak() as peak:
            ours = self.measured(given.repeat, batch, self.router)
        figures = {"router": ours, "merge": spark, "times": spark / ours, "worker_mb": peak.megabytes}
        size = sum(DeltaTable(self.lake.address("silver.large")).get_add_actions()["size_bytes"].to_pylist())
        return {"rows": given.rows, "table_mb": size >> 20, "changes": len(keys(0)), **figures}

    def _make_large(self, count: int) -> None:
        for part in np.array_split(np.arange(count), FILES):
            write_deltalake(self.lake.address("silver.large"), rows(part, 0), mode="append")

    def measured(self, repeat: int, batch: Callable[[int], pa.Table], work: Callable[[DataFrame], Any]) -> float:
        """Return the median seconds of some runs after one that does not count."""
        seconds = []
        for _ in range(repeat + 1):
            self.batches += 1
            path = f"{self.lake.root}/batch-{self.batches}.parquet"
            pq.write_table(batch(self.batches * 10_000_000), path)
            events = self.spark.read.parquet(path)
            began = time.monotonic()
            work(events)
            seconds.append(round(time.monotonic() - began, 3))
        return round(statistics.median(seconds[1:]), 3)

    def router(self, events: DataFrame) -> None:
        """Merge as the engine does."""
        found = outcomes(events, self._job(), TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism)
        assert not found.failed, found.failed
        assert not found.spark, found.spark

    def merge(self, events: DataFrame, table: str) -> None:
        """Merge one table as people write it: the latest row of each key, then MERGE."""
        latest = events.filter(F.col("_table") == table).drop(*set(LANE) - {"_topic", "_partition", "_offset"})
        target = SparkTable.forPath(self.spark, self.lake.address(table)).alias("t")
        merger = target.merge(latest.alias("s"), "t.k = s.k")
        merger.whenMatchedUpdateAll("s._offset > t._offset").whenNotMatchedInsertAll().execute()

    def _job(self) -> Job:
        landing = Landing(self.lake, file_bytes=128 << 20, buffer_bytes=64 << 20)
        return Job(landing, KEYED, "bench:run/route/upsert", self.batches, "route", "upsert", "ops.dead", {})


def rows(keys: Any, first: int) -> pa.Table:
    """Return rows as a keyed table has them."""
    count, numbers = len(keys), np.arange(len(keys), dtype=np.int64) + first
    return pa.table({
        "_topic": pa.repeat("events", count), "_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "_offset": numbers, "k": pa.array(np.asarray(keys, dtype=np.int64)), "level": numbers % 100,
        "score": numbers * 0.5, "name": pa.array([f"player {number * 2654435761 % 2**32:x}" for number in keys]),
        "country": pa.array(np.array(["fr", "de", "it", "es"])[numbers % 4]),
    })  # fmt: skip


def lane(changes: pa.Table, tables: Any) -> pa.Table:
    """Return rows as a lane has them."""
    count = len(changes)
    more = {
        "_timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), count), "_key": pa.nulls(count, pa.binary()),
        "_table": pa.array(tables), "_deleted": pa.repeat(False, count),
    }  # fmt: skip
    for name, column in more.items():
        changes = changes.append_column(name, column)
    return changes


class Peak:
    """Watch the memory of the Python workers, of which one merges the table."""

    def __enter__(self) -> Peak:
        self.megabytes, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(0.05):
            self.megabytes = max([self.megabytes, *(size >> 20 for size in _workers())])


def _workers() -> Iterator[int]:
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark" in " ".join(process.cmdline()) and "java" not in process.name():
                yield process.memory_info().rss
        except psutil.Error:
            continue


MEASURED = {"many": Bench.many, "large": Bench.large, "range": Bench.range, "spark_engine": Bench.spark_engine}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upserts", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=MEASURED, default=["many", "large", "range"])
    add("--tables", type=int, default=200, help="many: tables")
    add("--rows-each", type=int, default=1_000, help="many: rows of a table at the beginning")
    add("--changes", type=int, default=100_000, help="many: changed rows of a batch")
    add("--loop", type=int, default=20, help="many: tables that the loop of MERGE is measured with")
    add("--rows", type=int, default=5_000_000, help="rows of the large table")
    add("--some", type=int, default=50_000, help="changed rows of the large table")
    add("--repeat", type=int, default=3)
    add("--driver-memory", default="4g")
    add("--folder", type=Path, help="where the tables are made")
    add("--out", type=Path, default=Path(__file__).parent / "results" / "upserts.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
