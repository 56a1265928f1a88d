"""A whole run on an S3 server, a small file of events each batch: the requests of the server, by table."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import yaml

from benchmarks.runs import Run
from benchmarks.s3_server import s3_server
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from router.config.loader import load_config
from router.config.models import Config, Trigger
from router.engine import stream
from router.engine.spark.session import build_session
from router.registry import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from benchmarks.s3_server import Request, S3Server
    from router import BatchReport

ROWS = 20
"""Events of a batch, and one more that is no JSON."""
RARE = "silver.rare"
"""A table that the first batch touches only."""


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="requests", spark=settings()))


def _run(spark: SparkSession, task: Task) -> Run:
    """Take `events` batches for `games` tables; count the requests after the batch that makes the tables."""
    registry = load_registry([])
    with s3_server("lake") as server:
        loaded = load_config(_configuration(Path(task.folder), server, task), registry)
        requests_of_first_batch: list[int] = []

        def note_first_batch(report: BatchReport, behind: int | None) -> None:
            if not requests_of_first_batch:
                requests_of_first_batch.append(len(server.asked()))

        options = stream.RunOptions(trigger=Trigger(once=True), finished=note_first_batch)
        began = time.perf_counter()
        stream.run(loaded, registry, spark, options)
        seconds = time.perf_counter() - began
        requests = server.asked(requests_of_first_batch[0])
    requests_by_name: Counter[str] = Counter()
    for request in requests:
        name = _name_of(request)
        if name:
            requests_by_name[name] += 1
    later_batches = task.events - 1
    counts = {name: number / later_batches for name, number in requests_by_name.items()}
    # A name with a space is that of a table's data files.
    tables = sum(" " not in name for name in counts)
    return Run(seconds, task.events * ROWS, batches=task.events, tables=tables, counts=counts)


def _configuration(folder: Path, server: S3Server, task: Task) -> Path:
    events = folder / "events"
    events.mkdir(parents=True)
    for batch in range(task.events):
        games = [f"g{number % task.games}" for number in range(ROWS)]
        if batch == 0:
            games.append("rare")
        lines = [json.dumps({"game": game, "n": number}) for number, game in enumerate(games)]
        file = events / f"{batch:05}.jsonl"
        file.write_text("\n".join([*lines, "no JSON"]))
        # Files are read in the order of their times, one a batch.
        os.utime(file, (batch + 1, batch + 1))
    text = {
        "name": "requests",
        "lake": "s3://lake/tables",
        "storage_options": server.options,
        "checkpoint": str(folder / "checkpoint"),
        "source": {"files": {"path": str(events), "files_per_batch": 1}},
        "decode": {"json": {"schema": "game string, n int"}},
        "bronze": "bronze.events",
        "routes": [{"name": "games", "match": {"sql": "true"}, "sinks": [{"tables": "silver.{event.game}"}]}],
        "dead_letters": "ops.dead_letters",
    }
    path = folder / "requests.yaml"
    path.write_text(yaml.safe_dump(text))
    return path


def _name_of(request: Request) -> str:
    """Return the table that a request is for, with the method if it is for a data file; "" if it is for no table."""
    path = request.path
    if "prefix" in request.query:  # a listing
        path = f"/lake/{parse_qs(request.query)['prefix'][0]}"
    parts = path.strip("/").split("/")
    if len(parts) < 4 or parts[2].startswith("_"):
        return ""
    table = f"{parts[2]}.{parts[3]}"
    is_data_file = parts[-1].endswith(".parquet") and "_delta_log" not in parts
    return f"{table} {request.method}" if is_data_file else table


REQUESTS = Subject("requests", "requests", _session, _run, lambda *_: "")
