"""The router: a configuration file, run by its command line when cold and by its engine in one session when warm."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.configurations import written
from benchmarks.runs import Run
from benchmarks.settings import settings
from benchmarks.subjects import Subject
from benchmarks.verify import bronze_and_tables
from router.config.loader import load
from router.config.models import Trigger
from router.engine.session import build_session
from router.engine.stream import Options, run
from router.registry import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router import BatchReport


def configuration(task: Task) -> dict[str, Any]:
    """Return the router's configuration of a task: bronze, and one table per game."""
    kafka = {"servers": task.servers, "topics": [task.topic], "start": "earliest"}
    tables = {"table": "silver.{event.game}", "at_most": max(1000, task.games)}
    return {
        "name": "benchmark",
        "lake": str(task.lake),
        "checkpoint": str(task.checkpoint),
        "source": {"kafka": {**kafka, "rows_per_batch": task.rows_per_batch}},
        "decode": task.decode,
        "bronze": "bronze.game_events",
        "routes": [{"name": "games", "match": {"sql": "event.game IS NOT NULL"}, "sinks": [{"tables": tables}]}],
        "dead_letters": "ops.dead_letters",
        "spark": settings(),
        **({"engine": task.options["engine"]} if "engine" in task.options else {}),
        **({"maintenance": [{"tables": task.options["maintain"]}]} if "maintain" in task.options else {}),
    }


def write_configuration(task: Task) -> Path:
    """Write the configuration of a task into its folder."""
    return written(task, configuration(task))


def start_session(task: Task) -> SparkSession:
    """Return the session that the router starts for a task."""
    return build_session(load(write_configuration(task), load_registry()).config)


def _run(spark: SparkSession, task: Task) -> Run:
    """Drain the topic with the engine in this process: with `start_session` the place that knows the engine's names."""
    reports: list[BatchReport] = []
    registry = load_registry()
    loaded = load(write_configuration(task), registry)
    options = Options(trigger=Trigger(once=True), finished=lambda report, _: reports.append(report))
    began = time.perf_counter()
    run(loaded, registry, spark, options)
    return summary(time.perf_counter() - began, reports)


def summary(seconds: float, reports: list[BatchReport]) -> Run:
    """Return the run that some batch reports describe: their steps and rows summed up."""
    steps: Counter[str] = Counter()
    for report in reports:
        steps.update(report.seconds)
    return Run(
        seconds,
        read=sum(report.read for report in reports),
        batches=len(reports),
        tables=max((report.tables for report in reports), default=0),
        steps=dict(steps),
    )


def _command(task: Task) -> list[str]:
    # The console script beside this Python, as a user starts it.
    return [str(Path(sys.executable).with_name("router")), "run", str(write_configuration(task)), "--once"]


ROUTER = Subject("router", "router", start_session, _run, bronze_and_tables, _command)
