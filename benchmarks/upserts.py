"""Measure upserts against MERGE of Delta on Spark: `python -m benchmarks.upserts`.

All runs of a figure share one session and the same tables; each brings newer rows, most for keys that there are.
The figure is the median. `many`: changes over many small tables, against a MERGE for each of them, as people write it.
`large`: changes spread over all files of one large table. `range`: changes within 2 % of its keys. `memory`: the
largest Python worker while the large table is merged, with a limit and without one. `spark_engine`: a table four times
as large, merged by Delta on Spark.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.peak import Peak, is_driver, is_worker
from router.bench.machine import Neighbours, machine
from router.config.models import Config
from router.delta.lake import Lake
from router.engine.merge import Job, Outcomes, outcomes
from router.engine.merger import TASKS_PER_CORE
from router.engine.session import build_session, stop_session
from router.engine.spark_merge import SparkMerger
from router.engine.write import Landing
from router.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

KEYED = Keyed(("k",))
LANE = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_table", "_deleted")
FILES = 16
"""Files of the large table; neighbouring keys share one."""


def main() -> None:
    """Measure what is asked for, print it and write it down; what is not measured now stays as it was."""
    given = _arguments()
    console = Console(width=110)
    config = Config.model_construct(name="upserts", spark={"spark.driver.memory": given.driver_memory})
    spark = build_session(config)
    command = shlex.join(["python", "-m", "benchmarks.upserts", *sys.argv[1:]])
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    sizes = {name: value for name, value in vars(given).items() if not isinstance(value, Path | None)}
    found |= {"machine": machine(), "arguments": sizes}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for name in given.only:
            began = time.monotonic()
            with TemporaryDirectory(dir=given.folder) as folder, Neighbours() as others:
                found[name] = MEASURED[name](Bench(spark, Lake.at(folder)), given)
            found[name] |= {
                "command": command,
                "took": round(time.monotonic() - began),
                "foreign_cores": round(others.foreign_cores, 2),
            }
            console.print(f"{name}: {json.dumps(found[name])}", markup=False)
            given.out.write_text(json.dumps(found, indent=1, default=str) + "\n")
    finally:
        stop_session(spark)
    console.print(shown(found))


def shown(found: dict[str, Any]) -> Table:
    """Return what was measured beside what it has to reach."""
    table = Table("measurement", "found", "bar", box=SIMPLE_HEAD)
    if many := found.get("many"):
        marked = f", extrapolated from {many['loop']} tables" if many["loop"] < many["tables"] else ""
        what = f"{many['changes']:,} changes over {many['tables']} tables, against a loop of MERGE{marked}"
        table.add_row(what, f"{many['times']:.1f} times faster: {many['router']} s, {many['merge']:.1f} s", "40 times")
    for name, bar in (("large", "3 times"), ("range", "")):
        if one := found.get(name):
            what = f"{one['rows']:,} rows, {one['changes']:,} changes {one['where']}, against MERGE"
            table.add_row(what, f"{one['times']:.1f} times faster: {one['router']} s, {one['merge']} s", bar)
    if one := found.get("range"):
        told = f"{one['files_removed']} of {one['files']} files rewritten, {one['files_scanned']} scanned"
        table.add_row("the same, by the commit's metrics", told, "those of the range")
    if memory := found.get("memory"):
        told = f"{memory['free']['worker_mb']} MB in {memory['free']['router']} s"
        table.add_row(f"memory for {memory['rows']:,} rows ({memory['table_mb']} MB)", told, "stated")
        told = f"{memory['limited']['worker_mb']} MB in {memory['limited']['router']} s"
        table.add_row(f"the same with `memory: {memory['limit_mb']} MB`", told, "stated")
    if spark := found.get("spark_engine"):
        told = f"finishes in {spark['seconds']} s, driver {spark['driver_mb']} MB"
        table.add_row(f"{spark['rows']:,} rows, engine `spark`, driver {spark['driver']}", told, "finishes")
    return table


@dataclass
class Bench:
    """Be one lake that takes batches from two sides."""

    spark: SparkSession
    lake: Lake
    batches: int = 0
    keyed: Keyed = KEYED
    one_table: bool = False

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
        figures = {"router": ours, "merge": whole, "loop": len(some), "times": whole / ours}
        return {"tables": given.tables, "changes": each * given.tables, **figures}

    def large(self, given: argparse.Namespace) -> dict[str, Any]:
        """Change rows all over one large table."""
        self._make_large(given.rows)
        return {"where": "spread over all files", **self._against_merge(given, _spread(given.rows, given.some))}

    def range(self, given: argparse.Namespace) -> dict[str, Any]:
        """Change rows of a table within 2 % of its keys."""
        self._make_large(given.rows)
        within = given.rows // 50
        found = self._against_merge(given, lambda first: np.arange(within)[: given.some] + given.rows // 2 + first % 7)
        (last,) = DeltaTable(self.lake.address("silver.large")).history(1)
        metrics = last["operationMetrics"]
        files = {name: metrics[f"num_target_files_{name}"] for name in ("scanned", "removed", "added")}
        told = {f"files_{name}": count for name, count in files.items()}
        return {"where": "within 2 % of the keys", **found, "files": FILES, **told, "metrics": metrics}

    def memory(self, given: argparse.Namespace) -> dict[str, Any]:
        """State the memory of a merge all over one large table, with a limit and without one."""
        self._make_large(given.rows)
        batch = self._batch(_spread(given.rows, given.some))
        found: dict[str, Any] = {"rows": given.rows, "limit_mb": given.memory, "table_mb": self._megabytes()}
        for name, limit in (("limited", given.memory << 20), ("free", None)):
            self.keyed = replace(KEYED, memory=limit)
            with Peak(is_worker) as peak:
                seconds = self.measured(given.repeat, batch, self.router)
            found[name] = {"router": seconds, "worker_mb": peak.megabytes}
        return found

    def spark_engine(self, given: argparse.Namespace) -> dict[str, Any]:
        """Change rows all over one larger table, with the engine `spark`."""
        self._make_large(given.spark_rows)

        def merge(events: DataFrame) -> None:
            found = Outcomes()
            SparkMerger(self.spark, self.lake, self._job()).merge(events, found)
            assert not found.failed, found.failed

        with Peak(is_driver) as peak:
            seconds = self.measured(given.repeat, self._batch(_spread(given.spark_rows, given.some)), merge)
        about = {"driver": given.driver_memory, "driver_mb": peak.megabytes, "table_mb": self._megabytes()}
        return {"rows": given.spark_rows, "changes": given.some, "seconds": seconds, **about}

    def _against_merge(self, given: argparse.Namespace, keys: Callable[[int], Any]) -> dict[str, Any]:
        batch = self._batch(keys)
        spark = self.measured(given.repeat, batch, lambda events: self.merge(events, "silver.large"))
        with Peak(is_worker) as peak:
            ours = self.measured(given.repeat, batch, self.router)
        figures = {"router": ours, "merge": spark, "times": spark / ours, "worker_mb": peak.megabytes}
        return {"rows": given.rows, "table_mb": self._megabytes(), "changes": len(keys(0)), **figures}

    def _batch(self, keys: Callable[[int], Any]) -> Callable[[int], pa.Table]:
        def batch(first: int) -> pa.Table:
            chosen = keys(first)
            return lane(rows(chosen, first), np.repeat(["silver.large"], len(chosen)))

        return batch

    def _megabytes(self) -> int:
        return sum(DeltaTable(self.lake.address("silver.large")).get_add_actions()["size_bytes"].to_pylist()) >> 20

    def _make_large(self, count: int) -> None:
        self.one_table = True
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
        """Merge as the engine does: a sink with one table needs one task."""
        several = TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism
        found = outcomes(events, self._job(), 1 if self.one_table else several)
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
        return Job(landing, self.keyed, "bench:run/route/upsert", self.batches, "route", "upsert", "ops.dead", {})


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


def _spread(count: int, some: int) -> Callable[[int], Any]:
    """Return keys all over a table; half of them are new to it."""
    step = count // (some // 2)
    return lambda first: np.arange(some) * step + first % step


MEASURED = {
    "many": Bench.many,
    "large": Bench.large,
    "range": Bench.range,
    "memory": Bench.memory,
    "spark_engine": Bench.spark_engine,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upserts", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=MEASURED, default=[*MEASURED])
    add("--tables", type=int, default=200, help="many: tables")
    add("--rows-each", type=int, default=1_000, help="many: rows of a table at the beginning")
    add("--changes", type=int, default=100_000, help="many: changed rows of a batch")
    add("--loop", type=int, default=20, help="many: tables that the loop of MERGE is measured with")
    add("--rows", type=int, default=5_000_000, help="rows of the large table")
    add("--some", type=int, default=50_000, help="changed rows of the large table")
    add("--memory", type=int, default=512, help="memory: the limit of a merge in MB")
    add("--spark-rows", type=int, default=20_000_000, help="spark_engine: rows of the table")
    add("--repeat", type=int, default=3)
    add("--driver-memory", default="4g")
    add("--folder", type=Path, help="where the tables are made")
    add("--out", type=Path, default=Path(__file__).parent / "results" / "full" / "upserts.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
