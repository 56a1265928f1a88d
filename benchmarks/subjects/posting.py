"""The router's REST sink, on its own: a batch as its lane holds it, with retries, receipts and a limit."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import arrivals, lanes
from benchmarks.configurations import loaded
from benchmarks.runs import Run
from benchmarks.settings import settings
from benchmarks.subjects import Subject
from benchmarks.verify import compare, count_rows
from router import ApplyingSink, Batch, Opening
from router.delta.lake import Lake
from router.delta.staged_files import StagedParts
from router.engine.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Task
    from router import Outcome
    from router_demo.api import Api

RECEIPTS = "ops.receipts"
NOWHERE = "http://127.0.0.1:9/events"
FAR = 20_000
"""Calls per second: a limit that is held like any other, and is too far away to be reached."""
BURST = 20
"""Calls of a limited API that may come at once."""


def configuration(task: Task, url: str) -> dict[str, Any]:
    """Return a configuration with a route that posts to a URL, as people write it, or with several such (`queries`)."""
    limit = float(task.options.get("limit", FAR))
    rest: dict[str, Any] = {"url": url, "rows_per_call": int(task.options["rows_per_call"]), "calls_per_second": limit}
    rest |= {"limit_name": "benchmark", "receipts": RECEIPTS, "headers": {"Authorization": "Bearer demo"}}
    rest |= {name: int(task.options[name]) for name in ("max_in_flight", "tasks") if name in task.options}
    return {
        "name": "benchmark",
        "lake": str(task.lake),
        "checkpoint": str(task.checkpoint),
        "source": {"kafka": {"servers": "127.0.0.1:9", "topics": [lanes.TOPIC]}},
        "decode": {"json": {"schema": "id LONG"}},
        "routes": [
            {"name": f"wins_{number}", "match": {"sql": "true"}, "sinks": [{"rest": rest}]}
            for number in range(int(task.options.get("queries", "1")))
        ],
        "dead_letters": "ops.dead_letters",
        "spark": settings(),
    }


def _session(task: Task) -> SparkSession:
    return build_session(loaded(task, configuration(task, NOWHERE)).config)


def _run(spark: SparkSession, task: Task) -> Run:
    """Post everything, by one sink, or by several at once that share a limit (the option `queries`)."""
    queries = int(task.options.get("queries", "1"))
    lane = lanes.write(Path(task.folder), sizes(task))
    with arrivals.api(int(task.options["rows_per_call"]), **_script(task)) as served:
        every = [lanes.read(spark, lane, range(number, task.partitions, queries)) for number in range(queries)]
        sinks = [_sink(task, served, events.limit(0)) for events in every]
        began = time.perf_counter()
        with ThreadPoolExecutor(queries) as threads:
            outcomes = list(threads.map(_apply, sinks, every, range(queries), [task] * queries))
        seconds = time.perf_counter() - began
        found = arrivals.counts(served)
    applied = sum(outcome.applied for outcome in outcomes)
    problem = compare({"applied": task.events}, {"applied": applied}) or arrivals.wrong(task.events, found)
    return Run(seconds, read=applied, batches=queries, counts=found, problem=problem)


def sizes(task: Task) -> list[int]:
    """Return the events of each partition: equal parts, or those of `skew` (70/10/10/10)."""
    if "skew" not in task.options:
        return lanes.evenly(task.events, task.partitions)
    shares = [int(share) for share in task.options["skew"].split("/")]
    parts = [task.events * share // sum(shares) for share in shares]
    return [parts[0] + task.events - sum(parts), *parts[1:]]


def _script(task: Task) -> dict[str, Any]:
    limit = task.options.get("limit")
    return {"limits": [{"rate": float(limit), "burst": BURST}]} if limit else {}


def _sink(task: Task, served: Api, nothing: DataFrame) -> ApplyingSink:
    route = loaded(task, configuration(task, f"{served.url}/events")).config.routes[0]
    (sink,) = route.sinks
    assert isinstance(sink, ApplyingSink)
    return sink.prepare(Opening(Path(task.folder), nothing))


def _apply(sink: ApplyingSink, events: DataFrame, number: int, task: Task) -> Outcome:
    lake = Lake.at(str(task.lake))

    def keeps(table: str) -> StagedParts:
        return StagedParts(lake, table, f"benchmark{number}:run/wins_0/rest", 0)

    return sink.apply(events, Batch(f"benchmark{number}", 0, "wins_0", "rest", False, threading.Event(), keeps))


def _receipts(task: Task, run: Run) -> str:
    """Say what is wrong where every row must have one receipt."""
    kept = task.lake / RECEIPTS.replace(".", "/")
    return compare(
        {"receipts": task.events, "applied": task.events}, {"receipts": count_rows(kept), "applied": run.read}
    )


POSTING = Subject("posting", "router", _session, _run, _receipts)
