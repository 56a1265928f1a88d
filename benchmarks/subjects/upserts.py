"""Upserts: changes merged by the router's sink, against MERGE of Delta on Spark as people write it.

All runs of a cell share one session and the same tables; each brings newer rows, most for keys that there are. What is
merged is the option `into`: `many` small tables; one `large` table, changed all over its files; a `range` of 2 % of its
keys. `by` says who merges: `router`, `merge` (a MERGE for each table), or `spark` (the router with Delta on Spark).
"""

from __future__ import annotations

import time
from collections import Counter
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
from router.api.sinks import KeyedTable
from router.config.models import Config
from router.delta.lake import Lake
from router.delta.parquet_writer import Staging
from router.engine.merge.coordinator import TASKS_PER_CORE
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes, merge_by_tasks
from router.engine.merge.delta_spark import SparkMerger
from router.engine.spark.executors import Executors
from router.engine.spark.session import build_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Task

OUTBOX = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_table", "_deleted")
"""Columns of an outbox that describe the record; the others are those of the row."""
FILES = 16
"""Files of the large table; neighbouring keys share one."""
LARGE = "silver.large"
APART = 10_000_000
"""Between the offsets of two runs."""


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="upserts", spark=settings()))


def _run(spark: SparkSession, task: Task) -> Run:
    """Merge one batch of `events` changes into the tables of this process; the first run makes them."""
    folder = Path(task.folder)
    run_number = int(folder.name.removeprefix("run-"))
    # All runs share the tables: their folder is next to those of the runs.
    lake = Lake.at(str(folder.parent / "tables"))
    names = _tables(task)
    if run_number == 0:
        _make_tables(lake, names, int(task.options["rows"]))
    first = (run_number + 1) * APART
    changes = _changes(task, names, first)
    batch_file = folder / "batch.parquet"
    folder.mkdir(parents=True)
    pq.write_table(changes, batch_file)
    events = spark.read.parquet(str(batch_file))
    merged = names[: int(task.options.get("loop", len(names)))]
    merge = WAYS[task.options["by"]]
    began = time.perf_counter()
    merge(spark, lake, events, merged, run_number, task)
    seconds = time.perf_counter() - began
    changes_by_table = Counter(changes["_table"].to_pylist())
    expected = {name: changes_by_table[name] for name in merged}
    problem = compare(expected, {name: _count_newer(lake, name, first) for name in merged})
    counts = _file_counts(lake, names)
    return Run(seconds, read=len(changes), batches=1, tables=len(merged), counts=counts, problem=problem)


def _router(spark: SparkSession, lake: Lake, events: DataFrame, names: list[str], batch: int, task: Task) -> None:
    """Merge as the engine does: a sink with one table needs one task."""
    tasks = 1
    if len(names) > 1:
        tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    outcomes = merge_by_tasks(events, _job(lake, batch, task), tasks, Executors())
    assert not outcomes.failed, outcomes.failed
    assert not outcomes.spark, outcomes.spark


def _spark(spark: SparkSession, lake: Lake, events: DataFrame, names: list[str], batch: int, task: Task) -> None:
    """Merge as the engine does where Delta on Spark has to."""
    outcomes = MergeOutcomes()
    SparkMerger(spark, lake, _job(lake, batch, task)).merge_tables(events, outcomes)
    assert not outcomes.failed, outcomes.failed


def _merge(spark: SparkSession, lake: Lake, events: DataFrame, names: list[str], batch: int, task: Task) -> None:
    """Merge table by table as people write it: the latest row of each key, then MERGE."""
    for name in names:
        latest = events.filter(F.col("_table") == name).drop(*set(OUTBOX) - {"_topic", "_partition", "_offset"})
        target = SparkTable.forPath(spark, lake.address(name)).alias("t")
        merger = target.merge(latest.alias("s"), "t.k = s.k")
        merger.whenMatchedUpdateAll("s._offset > t._offset").whenNotMatchedInsertAll().execute()


WAYS: dict[str, Callable[..., None]] = {"router": _router, "merge": _merge, "spark": _spark}


def _job(lake: Lake, batch: int, task: Task) -> MergeJob:
    keyed = KeyedTable(("k",))
    if "memory" in task.options:
        keyed = KeyedTable(("k",), memory=int(task.options["memory"]) << 20)
    return MergeJob(
        staging=Staging(lake, file_bytes=128 << 20, buffer_bytes=64 << 20),
        keyed=keyed,
        app="bench:run/route/upsert",
        batch=batch + 1,
        route="route",
        sink="upsert",
        dead_letters="ops.dead",
        notes={},
    )


def _tables(task: Task) -> list[str]:
    if task.options["into"] == "many":
        return [f"silver.t{number:04d}" for number in range(task.games)]
    return [LARGE]


def _make_tables(lake: Lake, names: list[str], count: int) -> None:
    """Make the tables: of the large one, neighbouring keys in a file."""
    for name in names:
        files = FILES if name == LARGE else 1
        for keys in np.array_split(np.arange(count), files):
            write_deltalake(lake.address(name), rows(keys, 0), mode="append")


def _changes(task: Task, names: list[str], first: int) -> pa.Table:
    """Return a batch of newer rows, as an outbox has them."""
    choose_keys = KEYS[task.options["into"]]
    keys_of_table = choose_keys(int(task.options["rows"]), task.events // len(names), first)
    # The same keys for each table, table after table.
    keys = np.tile(keys_of_table, len(names))
    tables = np.repeat(names, len(keys_of_table))
    return outbox(rows(keys, first), tables)


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
    count = len(keys)
    numbers = np.arange(count, dtype=np.int64) + first
    countries = np.array(["fr", "de", "it", "es"])
    return pa.table(
        {
            "_topic": pa.repeat("events", count),
            "_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "_offset": numbers,
            "k": pa.array(np.asarray(keys, dtype=np.int64)),
            "level": numbers % 100,
            "score": numbers * 0.5,
            "name": pa.array([f"player {key * 2654435761 % 2**32:x}" for key in keys]),
            "country": pa.array(countries[numbers % 4]),
        }
    )


def outbox(changes: pa.Table, tables: Any) -> pa.Table:
    """Return rows as an outbox has them."""
    count = len(changes)
    columns = {
        "_timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), count),
        "_key": pa.nulls(count, pa.binary()),
        "_table": pa.array(tables),
        "_deleted": pa.repeat(False, count),
    }
    for name, column in columns.items():
        changes = changes.append_column(name, column)
    return changes


def _count_newer(lake: Lake, name: str, first: int) -> int:
    """Return how many rows of a table came with offsets from `first` on."""
    # The Parquet files and not a query: it must see what a reader sees, and read one column of a large table only.
    table = DeltaTable(lake.address(name))
    count = 0
    for file in table.file_uris():
        offsets = pq.read_table(file, columns=["_offset"])["_offset"].to_numpy()
        count += int((offsets >= first).sum())
    return count


def _file_counts(lake: Lake, names: list[str]) -> dict[str, float]:
    """Return the size of the large table, and which of its files the last commit touched, by its own metrics."""
    if names != [LARGE]:
        return {}
    table = DeltaTable(lake.address(LARGE))
    sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    metrics = table.history(1)[0].get("operationMetrics", {})
    counts = {"table_mb": sum(sizes) / (1 << 20)}
    for kind in ("removed", "added"):
        files = metrics.get(f"num_target_files_{kind}")
        if files is not None:
            counts[f"files_{kind}"] = float(files)
    if "files_removed" in counts and "files_added" in counts:
        counts["files_before"] = len(sizes) + counts["files_removed"] - counts["files_added"]
    return counts


def _verified(task: Task, run: Run) -> str:
    """Say nothing: every run has counted what it merged, before the next one changed it."""
    return ""


UPSERTS = Subject("upserts", "upserts", _session, _run, _verified)
