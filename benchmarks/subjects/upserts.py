"""Upserts: changes merged by the router's sink, against MERGE of Delta on Spark as people write it.

All runs of a cell share one session and the same tables; each brings newer rows, most for keys that there are. What is
merged is the option `into`: `many` small tables; one `large` table, changed all over its files; a `range` of 2 % of its
keys. `by` says who merges: `router`, `merge` (a MERGE for each table), or `spark` (the router with Delta on Spark).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from benchmarks.verify import compare
from router.config.models import Config
from router.delta.lake import Lake
from router.delta.parquet_writer import Staging
from router.engine.merge.coordinator import TASKS_PER_CORE
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes, merge_by_tasks
from router.engine.merge.delta_spark import SparkMerger
from router.engine.spark.executors import Executors
from router.engine.spark.session import build_session
from router.sinks import KeyedTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Task

OUTBOX = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_table", "_deleted")
"""Columns of an outbox that tell of the record, beside those of the row."""
FILES = 16
"""Files of the large table; neighbouring keys share one."""
LARGE = "silver.large"
APART = 10_000_000
"""Between the offsets of two runs."""


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="upserts", spark=settings()))


def _run(spark: SparkSession, task: Task) -> Run:
    """Merge one batch of `events` changes into the tables of this process; the first run makes them."""
    shared, number = Path(task.folder).parent, int(Path(task.folder).name.removeprefix("run-"))
    lake = Lake.at(str(shared / "tables"))
    names = _tables(task)
    if not number:
        _make(lake, names, int(task.options["rows"]))
    first = (number + 1) * APART
    changes = _changes(task, names, first)
    path = Path(task.folder, "batch.parquet")
    path.parent.mkdir(parents=True)
    pq.write_table(changes, path)
    events = spark.read.parquet(str(path))
    merged = names[: int(task.options.get("loop", len(names)))]
    began = time.perf_counter()
    WAYS[task.options["by"]](spark, lake, events, merged, number, task)
    seconds = time.perf_counter() - began
    wanted = {name: count for name, count in _counted(changes["_table"].to_pylist()).items() if name in merged}
    problem = compare(wanted, {name: _newer(lake, name, first) for name in merged})
    return Run(seconds, read=len(changes), batches=1, tables=len(merged), counts=_told(lake, names), problem=problem)


def _router(spark: SparkSession, lake: Lake, events: DataFrame, names: list[str], batch: int, task: Task) -> None:
    """Merge as the engine does: a sink with one table needs one task."""
    several = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    found = merge_by_tasks(events, _job(lake, batch, task), 1 if len(names) == 1 else several, Executors())
    assert not found.failed, found.failed
    assert not found.spark, found.spark


def _spark(spark: SparkSession, lake: Lake, events: DataFrame, names: list[str], batch: int, task: Task) -> None:
    """Merge as the engine does where Delta on Spark has to."""
    found = MergeOutcomes()
    SparkMerger(spark, lake, _job(lake, batch, task)).merge(events, found)
    assert not found.failed, found.failed


def _merge(spark: SparkSession, lake: Lake, events: DataFrame, names: list[str], batch: int, task: Task) -> None:
    """Merge table by table as people write it: the latest row of each key, then MERGE."""
    for name in names:
        latest = events.filter(F.col("_table") == name).drop(*set(OUTBOX) - {"_topic", "_partition", "_offset"})
        target = SparkTable.forPath(spark, lake.address(name)).alias("t")
        merger = target.merge(latest.alias("s"), "t.k = s.k")
        merger.whenMatchedUpdateAll("s._offset > t._offset").whenNotMatchedInsertAll().execute()


WAYS: dict[str, Callable[..., None]] = {"router": _router, "merge": _merge, "spark": _spark}


def _job(lake: Lake, batch: int, task: Task) -> MergeJob:
    memory = task.options.get("memory")
    keyed = KeyedTable(("k",), memory=int(memory) << 20) if memory else KeyedTable(("k",))
    staging = Staging(lake, file_bytes=128 << 20, buffer_bytes=64 << 20)
    return MergeJob(staging, keyed, "bench:run/route/upsert", batch + 1, "route", "upsert", "ops.dead", {})


def _tables(task: Task) -> list[str]:
    return [f"silver.t{number:04d}" for number in range(task.games)] if task.options["into"] == "many" else [LARGE]


def _make(lake: Lake, names: list[str], count: int) -> None:
    """Make the tables: of the large one, neighbouring keys in a file."""
    for name in names:
        for part in np.array_split(np.arange(count), FILES if name == LARGE else 1):
            write_deltalake(lake.address(name), rows(part, 0), mode="append")


def _changes(task: Task, names: list[str], first: int) -> pa.Table:
    """Return a batch of newer rows, as an outbox has them."""
    keys = KEYS[task.options["into"]](int(task.options["rows"]), task.events // len(names), first)
    every = np.tile(keys, len(names))
    return outbox(rows(every, first), np.repeat(names, len(keys)))


def _around_the_end(count: int, some: int, first: int) -> Any:
    """Return keys around a table's last one: half of them are new to it."""
    return np.arange(count - some // 2, count + some - some // 2) + first % 7


def _spread(count: int, some: int, first: int) -> Any:
    """Return keys all over a table; half of them are new to it."""
    step = max(1, count // (some // 2))
    return np.arange(some) * step + first % step


def _within(count: int, some: int, first: int) -> Any:
    """Return keys within 2 % of a table's."""
    return np.arange(count // 50)[:some] + count // 2 + first % 7


KEYS: dict[str, Callable[[int, int, int], Any]] = {"many": _around_the_end, "large": _spread, "range": _within}


def rows(keys: Any, first: int) -> pa.Table:
    """Return rows as a keyed table has them."""
    count, numbers = len(keys), np.arange(len(keys), dtype=np.int64) + first
    return pa.table({
        "_topic": pa.repeat("events", count), "_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "_offset": numbers, "k": pa.array(np.asarray(keys, dtype=np.int64)), "level": numbers % 100,
        "score": numbers * 0.5, "name": pa.array([f"player {number * 2654435761 % 2**32:x}" for number in keys]),
        "country": pa.array(np.array(["fr", "de", "it", "es"])[numbers % 4]),
    })  # fmt: skip


def outbox(changes: pa.Table, tables: Any) -> pa.Table:
    """Return rows as an outbox has them."""
    count = len(changes)
    more = {
        "_timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), count), "_key": pa.nulls(count, pa.binary()),
        "_table": pa.array(tables), "_deleted": pa.repeat(False, count),
    }  # fmt: skip
    for name, column in more.items():
        changes = changes.append_column(name, column)
    return changes


def _counted(names: list[str]) -> dict[str, int]:
    return {str(name): int(count) for name, count in zip(*np.unique(names, return_counts=True), strict=True)}


def _newer(lake: Lake, name: str, first: int) -> int:
    """Return how many rows of a table came with offsets from `first` on."""
    # The Parquet files and not a query: it must see what a reader sees, and read one column of a large table only.
    table = DeltaTable(lake.address(name))
    return sum(
        int((pq.read_table(file, columns=["_offset"])["_offset"].to_numpy() >= first).sum())
        for file in table.file_uris()
    )


def _told(lake: Lake, names: list[str]) -> dict[str, float]:
    """Return the size of the large table, and which of its files the last commit touched, by its own metrics."""
    if names != [LARGE]:
        return {}
    table = DeltaTable(lake.address(LARGE))
    sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    metrics = table.history(1)[0].get("operationMetrics", {})
    files = {kind: metrics.get(f"num_target_files_{kind}") for kind in ("removed", "added")}
    counts = {f"files_{kind}": float(n) for kind, n in files.items() if n is not None}
    if len(counts) == len(files):
        counts["files_before"] = len(sizes) + counts["files_removed"] - counts["files_added"]
    return {"table_mb": sum(sizes) / (1 << 20), **counts}


def _verified(task: Task, run: Run) -> str:
    """Say nothing: every run has counted what it merged, before the next one changed it."""
    return ""


UPSERTS = Subject("upserts", "upserts", _session, _run, _verified)
