"""The router: run by its command line when cold and by its engine in one session when warm; decoding alone."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from benchmarks.verify import bronze_and_tables, records_read
from router import Preparation
from router.config.loader import load
from router.config.models import Trigger
from router.engine.memory import Forgotten
from router.engine.session import build_session
from router.engine.source import sample
from router.engine.stream import Options, run
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Task
    from router import ArrowDecoding, BatchReport, Decoder
    from router.config.loader import Loaded


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


def _ours_run(spark: SparkSession, task: Task) -> Run:
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


ROUTER = Subject("router", "router", start_session, _ours_run, bronze_and_tables, _command)


def written(task: Task, configuration: Mapping[str, Any]) -> Path:
    """Write a configuration into the folder of a task."""
    path = Path(task.folder, "benchmark.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(configuration), sort_keys=False))
    return path


def loaded(task: Task, configuration: Mapping[str, Any]) -> Loaded:
    """Write a configuration, and return what the router reads."""
    return load(written(task, configuration), load_registry())


ROWS = 10_000
"""Records of a batch as Spark hands them to Python by default."""


def _decoding_run(spark: SparkSession, task: Task) -> Run:
    """Decode the topic's records from memory: in this thread, or as Spark's expressions in one task."""
    config = load(write_configuration(task), load_registry()).config
    raw = sample(spark, config, task.events).coalesce(1).cache()
    read = raw.count()
    nothing = Preparation(Path(task.folder), False, raw.limit, Forgotten())
    decoder = config.decode.prepare(nothing).refresh(frozenset())
    decoding = decoder.decoding()
    seconds = _native(decoder, raw) if decoding is None else _in_python(decoding, raw)
    raw.unpersist()
    return Run(seconds, read=read)


def _in_python(decoding: ArrowDecoding, raw: DataFrame) -> float:
    batches = raw.toArrow().combine_chunks().to_batches(max_chunksize=ROWS)
    began = time.perf_counter()
    for records in batches:
        decoding.function(records, decoding.argument)
    return time.perf_counter() - began


def _native(decoder: Decoder, raw: DataFrame) -> float:
    """Return what decoding adds to reading the same records from memory; the first of each warms the JVM up."""
    reading, decoding = raw, decoder.decode(raw).select("event", "_error")
    for _ in range(2):
        both = _seconds(lambda: _drain(decoding)), _seconds(lambda: _drain(reading))
    return both[0] - both[1]


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


DECODING = Subject("decoding", "decoding alone", start_session, _decoding_run, records_read)
