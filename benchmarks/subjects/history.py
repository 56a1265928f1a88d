"""A lake after very many batches: what a commit, a batch and a look at the ledger take then.

The first batch is real. The log of each table is then written on as later batches would have left it: commits of
the same form, a checkpoint by delta-rs; `maintained` as maintenance leaves it, which joins files and keeps the newest
commits, or with every commit and file. The ledger that is asked has real rows.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.feeds.json_events import JSON
from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from benchmarks.subjects.router import loaded, sweep_file
from router.config.models import Config, Trigger
from router.delta.commit import StagedFile, TableCommit, commit, to_delta
from router.delta.file_statistics import statistics as bounds
from router.delta.lake import Lake
from router.engine.ledger import SCHEMA
from router.engine.spark.session import build_session
from router.engine.stream import RunOptions, run
from router.registry import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router.parts import BatchReport

SPARE = "silver.spare"
COMMITS = 9
KEPT, FILES = 1000, 32
"""Commits that maintenance leaves in a log, and files of a table."""
PER_FILE, PARTITIONS, SINKS = 10_000, 4, 2
"""Batches of a file of the ledger, and the rows of a batch there: for each partition one, and one for each sink."""
ASK = """
import json, re, sys, time
from router.config.models import Config, DeadLetters
from router.engine.ledger import last
peak = lambda: int(re.search("VmHWM: *\\\\s*([0-9]+)", open("/proc/self/status").read())[1]) / 1024
tables = {"ledger": "ops.ledger", "dead_letter_options": DeadLetters(table="ops.dead_letters")}
config = Config.model_construct(name="history", lake=sys.argv[1], routes=(), **tables)
before, began, used = peak(), time.perf_counter(), time.process_time()
found = last(config, 5)
seconds, used = time.perf_counter() - began, time.process_time() - used
print(json.dumps({"seconds": seconds, "cpu": used, "rows": len(found), "peak_mb": peak(), "more_mb": peak() - before}))
"""


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="history", spark=settings()))


def _run(spark: SparkSession, task: Task) -> Run:
    """Make the history, then measure: open and commit of a table, one batch, the query of the ledger."""
    batches, maintained = int(task.options["batches"]), task.options["maintained"] == "yes"
    lake = Lake.at(str(task.lake))
    first = _batch(spark, task, 0)
    _spare(lake, 0)
    for layer in lake.layers():
        for table in lake.tables(layer):
            write_history(lake, table, batches, maintained=maintained)
    opening, committing = _commits(lake, batches)
    second = _batch(spark, task, 1)
    asked = _ledger(Path(task.folder, "months"), batches)
    steps = {"open": opening, "commit": committing, "batch": sum(second.seconds.values()), "ledger": asked["seconds"]}
    counts = {
        "ledger_mb": asked["peak_mb"],
        "ledger_cpu_seconds": asked["cpu"],
        "ledger_rows": batches * PARTITIONS * (1 + SINKS),
    }
    problem = "" if (first.read, second.read) == (task.events, task.events) else "a batch lacks records"
    return Run(steps["batch"], read=first.read + second.read, batches=2, tables=second.tables, steps=steps,
               counts=counts, problem=problem)  # fmt: skip


def _batch(spark: SparkSession, task: Task, number: int) -> BatchReport:
    """Give the router one file more, and return the report of the batch."""
    incoming = Path(task.folder, "incoming")
    incoming.mkdir(parents=True, exist_ok=True)
    values = [value for value, _ in JSON.values(task.events, task.games, number)]
    Path(incoming, f"{number}.json").write_bytes(b"\n".join(values) + b"\n")
    content: dict[str, Any] = yaml.safe_load(sweep_file("tables").read_text())
    content |= {"name": "history", "lake": str(task.lake), "checkpoint": str(task.checkpoint), "spark": settings()}
    content |= {"source": {"files": {"path": str(incoming)}}, "decode": JSON.decode()}
    content["maintenance"] = [{"tables": "*.*", "enabled": False}]  # another question
    reports: list[BatchReport] = []
    options = RunOptions(trigger=Trigger(once=True), finished=lambda report, _: reports.append(report))
    run(loaded(task, content), load_registry(), spark, options)
    return reports[-1]


def write_history(lake: Lake, table: str, batches: int, *, maintained: bool) -> None:
    """Write a table's log on, up to a version, with commits like its last one and a checkpoint at the end."""
    log = Path(lake.address(table), "_delta_log")
    handle = lake.open(table)
    assert handle is not None
    last, first = handle.version(), handle.version() + 1
    lines = [json.loads(line) for line in (log / f"{last:020}.json").read_text().splitlines()]
    lines = [line for line in lines if not {"metaData", "protocol"} & line.keys()]
    if maintained and batches - KEPT > first:  # the log begins with a checkpoint of what was before
        handle.create_checkpoint()
        first = batches - KEPT
        (log / f"{last:020}.checkpoint.parquet").rename(log / f"{first - 1:020}.checkpoint.parquet")
        (log / "_last_checkpoint").write_text(json.dumps({"version": first - 1, "size": 4}))
        for old in log.glob("*.json"):
            old.rename(log / f"{first - 1:020}.json") if old.name == f"{last:020}.json" else old.unlink()
    for version in range(first, batches):
        with_file = not maintained or version >= batches - FILES
        (log / f"{version:020}.json").write_text(_lines(lines, version, with_file=with_file))
    handle = lake.open(table)
    assert handle is not None
    handle.create_checkpoint()


def _lines(lines: list[dict[str, Any]], version: int, *, with_file: bool) -> str:
    found = [line if "add" not in line else {"add": {**line["add"], "path": f"{version}-{line['add']['path']}"}}
             for line in lines if with_file or "add" not in line]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in found)


def _spare(lake: Lake, batch: int, handle: Any = None) -> None:
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    path = f"{SPARE.replace('.', '/')}/part-{batch:010d}.parquet"
    lake.files.create_dir(path.rpartition("/")[0], recursive=True)
    _write(lake, SPARE, path, rows, batch, handle)


def _write(lake: Lake, table: str, path: str, rows: pa.Table, batch: int, handle: Any = None) -> None:
    footers: list[pq.FileMetaData] = []
    with lake.files.open_output_stream(path) as stream:
        pq.write_table(rows, stream, store_schema=False, metadata_collector=footers)
        size = stream.tell()
    file = StagedFile("/history", table, path, size, len(rows), tuple(rows.column_names), bounds(footers[0]))
    commit(lake, TableCommit("/history", table, f"history/{table}", batch, (file,), to_delta(rows.schema)), {}, handle)


def _commits(lake: Lake, batches: int) -> tuple[float, float]:
    """Return the median seconds of opening a table, and of a commit to it with a fresh handle."""
    opened, committed = [], []
    for number in range(COMMITS):
        began = time.perf_counter()
        handle = lake.open(SPARE)
        middle = time.perf_counter()
        _spare(lake, batches + number, handle)
        opened.append(middle - began)
        committed.append(time.perf_counter() - middle)
    return statistics.median(opened), statistics.median(committed)


def _ledger(folder: Path, batches: int) -> dict[str, float]:
    """Write a ledger of so many batches, and ask for the last ones in a process of its own."""
    lake = Lake.at(str(folder))
    lake.files.create_dir("ops/ledger", recursive=True)
    for first in range(0, batches, PER_FILE):
        rows = [row for batch in range(first, min(batches, first + PER_FILE)) for row in _booked(batch)]
        _write(lake, "ops.ledger", f"ops/ledger/part-{first:010d}.parquet", pa.Table.from_pylist(rows, SCHEMA), first)
    ended = subprocess.run(
        [sys.executable, "-c", ASK, lake.root], check=True, capture_output=True, text=True, env={**os.environ}
    )
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def _booked(batch: int) -> list[dict[str, Any]]:
    ended = {"query": "history", "run": "run", "batch_id": batch, "topic": "events", "finished": batch * 10_000_000}
    where = [{**ended, "partition": number, "from_offset": batch * 10, "to_offset": batch * 10 + 9}
             for number in range(PARTITIONS)]  # fmt: skip
    counts = {"matched": 5, "landed": 5, "refused": 0, "dropped": 0}
    source = {"read": 10, "decoded": 10, "failed": 0, "bare": 0, "unmatched": 0}
    sinks = [{**one, "route": f"r{sink}", "sink": "tables", **counts} for one in where for sink in range(SINKS)]
    return [*({**one, **source} for one in where), *sinks]


HISTORY = Subject("history", "router, after many batches", _session, _run, lambda task, run: run.problem)
