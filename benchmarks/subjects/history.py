"""A lake after very many batches: what a commit, a batch and a look at the ledger take then.

The first batch is real. The log of each table is then written on as later batches would have left it: commits of
the same form, a checkpoint by delta-rs; `maintained` as maintenance leaves it, which joins files and keeps the newest
commits, or with every commit and file. The ledger that is read has real rows.
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
from benchmarks.subjects.router import sweep_file, write_and_load
from router.config.models import Config, Trigger
from router.delta.commit import TableCommit, commit_files, to_delta
from router.delta.file_statistics import statistics_json as bounds
from router.delta.lake import Lake
from router.delta.staged_files import StagedFile
from router.engine.ledger import SCHEMA
from router.engine.spark.session import build_session
from router.engine.stream import RunOptions, run
from router.registry import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router.api.parts import BatchReport

SPARE = "silver.spare"
COMMITS = 9
KEPT = 1000
"""Commits that maintenance leaves in a log."""
FILES = 32
"""Files that maintenance leaves of a table."""
PER_FILE = 10_000
"""Batches of a file of the ledger."""
PARTITIONS = 4
"""Partitions of the source: in the ledger a batch has a row for each of them, and one for each sink of each."""
SINKS = 2
ASK = """
import json, re, sys, time
from router.config.models import Config, DeadLetters
from router.engine.ledger import read_last_batches
peak = lambda: int(re.search("VmHWM: *\\\\s*([0-9]+)", open("/proc/self/status").read())[1]) / 1024
tables = {"ledger": "ops.ledger", "dead_letter_options": DeadLetters(table="ops.dead_letters")}
config = Config.model_construct(name="history", lake=sys.argv[1], routes=(), **tables)
before, began, used = peak(), time.perf_counter(), time.process_time()
found = read_last_batches(config, 5)
seconds, used = time.perf_counter() - began, time.process_time() - used
print(json.dumps({"seconds": seconds, "cpu": used, "rows": len(found), "peak_mb": peak(), "more_mb": peak() - before}))
"""


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="history", spark=settings()))


def _run(spark: SparkSession, task: Task) -> Run:
    """Make the history, then measure: open and commit of a table, one batch, the query of the ledger."""
    batches = int(task.options["batches"])
    maintained = task.options["maintained"] == "yes"
    lake = Lake.at(str(task.lake))
    # A real batch, and a table for the commits that are timed. Their logs are then written on.
    first = _run_batch(spark, task, 0)
    _commit_to_spare_table(lake, 0)
    for layer in lake.layer_names():
        for table in lake.table_names(layer):
            write_history(lake, table, batches, maintained=maintained)
    open_seconds, commit_seconds = _measure_commits(lake, batches)
    second = _run_batch(spark, task, 1)
    ledger = _measure_ledger(Path(task.folder, "months"), batches)
    batch_seconds = sum(second.seconds.values())
    problem = ""
    if first.read != task.events or second.read != task.events:
        problem = "a batch lacks records"
    return Run(
        batch_seconds,
        read=first.read + second.read,
        batches=2,
        tables=second.tables,
        steps={"open": open_seconds, "commit": commit_seconds, "batch": batch_seconds, "ledger": ledger["seconds"]},
        counts={
            "ledger_mb": ledger["peak_mb"],
            "ledger_cpu_seconds": ledger["cpu"],
            "ledger_rows": batches * PARTITIONS * (1 + SINKS),
        },
        problem=problem,
    )


def _run_batch(spark: SparkSession, task: Task, number: int) -> BatchReport:
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
    run(write_and_load(task, content), load_registry(), spark, options)
    return reports[-1]


def write_history(lake: Lake, table: str, batches: int, *, maintained: bool) -> None:
    """Write a table's log on, up to a version, with commits like its last one and a checkpoint at the end."""
    log = Path(lake.address(table), "_delta_log")
    handle = lake.open(table)
    assert handle is not None
    last = handle.version()
    actions = [json.loads(line) for line in (log / f"{last:020}.json").read_text().splitlines()]
    # Only the first commit of a table sets its schema and its protocol.
    actions = [action for action in actions if not {"metaData", "protocol"} & action.keys()]
    first = last + 1
    if maintained and batches - KEPT > first:
        # The log begins with a checkpoint of what was before: that of the last commit, under a later version, and
        # this commit with it. Those before are gone.
        handle.create_checkpoint()
        first = batches - KEPT
        (log / f"{last:020}.checkpoint.parquet").rename(log / f"{first - 1:020}.checkpoint.parquet")
        (log / "_last_checkpoint").write_text(json.dumps({"version": first - 1, "size": 4}))
        for old_commit in log.glob("*.json"):
            if old_commit.name == f"{last:020}.json":
                old_commit.rename(log / f"{first - 1:020}.json")
            else:
                old_commit.unlink()
    for version in range(first, batches):
        with_file = not maintained or version >= batches - FILES
        (log / f"{version:020}.json").write_text(_commit_text(actions, version, with_file=with_file))
    handle = lake.open(table)
    assert handle is not None
    handle.create_checkpoint()


def _commit_text(actions: list[dict[str, Any]], version: int, *, with_file: bool) -> str:
    """Return a commit with these actions; each file that it adds has a name of its own."""
    text = ""
    for action in actions:
        if "add" not in action:
            text += json.dumps(action) + "\n"
        elif with_file:
            add = {**action["add"], "path": f"{version}-{action['add']['path']}"}
            text += json.dumps({"add": add}) + "\n"
    return text


def _commit_to_spare_table(lake: Lake, batch: int, handle: Any = None) -> None:
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    path = f"{SPARE.replace('.', '/')}/part-{batch:010d}.parquet"
    lake.files.create_dir(path.rpartition("/")[0], recursive=True)
    _commit_rows(lake, SPARE, path, rows, batch, handle)


def _commit_rows(lake: Lake, table: str, path: str, rows: pa.Table, batch: int, handle: Any = None) -> None:
    footers: list[pq.FileMetaData] = []
    with lake.files.open_output_stream(path) as stream:
        pq.write_table(rows, stream, store_schema=False, metadata_collector=footers)
        size = stream.tell()
    file = StagedFile(
        target="/history",
        table=table,
        path=path,
        bytes=size,
        rows=len(rows),
        columns=tuple(rows.column_names),
        statistics=bounds(footers[0]),
    )
    work = TableCommit(
        target="/history",
        table=table,
        app_id=f"history/{table}",
        version=batch,
        files=(file,),
        columns=to_delta(rows.schema),
    )
    commit_files(lake, work, {}, handle)


def _measure_commits(lake: Lake, batches: int) -> tuple[float, float]:
    """Return the median seconds of opening a table, and of a commit to it with a fresh handle."""
    open_seconds = []
    commit_seconds = []
    for number in range(COMMITS):
        began = time.perf_counter()
        handle = lake.open(SPARE)
        opened = time.perf_counter()
        _commit_to_spare_table(lake, batches + number, handle)
        committed = time.perf_counter()
        open_seconds.append(opened - began)
        commit_seconds.append(committed - opened)
    return statistics.median(open_seconds), statistics.median(commit_seconds)


def _measure_ledger(folder: Path, batches: int) -> dict[str, float]:
    """Write a ledger of so many batches, and ask for the last ones in a process of its own."""
    lake = Lake.at(str(folder))
    lake.files.create_dir("ops/ledger", recursive=True)
    for first in range(0, batches, PER_FILE):
        rows: list[dict[str, Any]] = []
        for batch in range(first, min(batches, first + PER_FILE)):
            rows += _ledger_rows(batch)
        path = f"ops/ledger/part-{first:010d}.parquet"
        _commit_rows(lake, "ops.ledger", path, pa.Table.from_pylist(rows, SCHEMA), first)
    process = subprocess.run(
        [sys.executable, "-c", ASK, lake.root], check=True, capture_output=True, text=True, env={**os.environ}
    )
    measured: dict[str, float] = json.loads(process.stdout)
    return measured


def _ledger_rows(batch: int) -> list[dict[str, Any]]:
    """Return the rows of a batch as the engine writes them: first those of the source, then those of the sinks."""
    of_batch = {"query": "history", "run": "run", "batch_id": batch, "topic": "events", "finished": batch * 10_000_000}
    source_counts = {"read": 10, "decoded": 10, "failed": 0, "bare": 0, "unmatched": 0}
    sink_counts = {"matched": 5, "landed": 5, "refused": 0, "dropped": 0}
    source_rows = []
    sink_rows = []
    for partition in range(PARTITIONS):
        span = {**of_batch, "partition": partition, "from_offset": batch * 10, "to_offset": batch * 10 + 9}
        source_rows.append({**span, **source_counts})
        for sink in range(SINKS):
            sink_rows.append({**span, "route": f"r{sink}", "sink": "tables", **sink_counts})
    return [*source_rows, *sink_rows]


HISTORY = Subject("history", "router, after many batches", _session, _run, lambda task, run: run.problem)
