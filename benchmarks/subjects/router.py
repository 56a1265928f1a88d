"""The router: a configuration file, run by its command line when cold and by its engine in one session when warm.

`profiles` is the same with upserts. `bare` is a process that only reads the topic, with the router's session and
consumer, `plain` the same in a JVM as Spark starts it. `decoding` decodes alone, on one core: what a value costs before
it is labelled and landed.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.runs import Run
from benchmarks.subjects import Subject, bare
from benchmarks.subjects.baselines import settings
from benchmarks.verify import bronze_and_profiles, bronze_and_tables, offsets_read, records_read
from router import Preparation
from router.config.loader import load_config
from router.config.models import Trigger
from router.engine.checkpoint_store import LearntSchemas, lake_and_checkpoint
from router.engine.reprocess.context import ReprocessContext
from router.engine.reprocess.refresh import Refresh
from router.engine.source.source import CONSUMER, read_sample
from router.engine.spark.session import build_session, local_master, session_builder
from router.engine.start.checks import executors_of
from router.engine.stream import RunOptions, run
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Task
    from router import ArrowDecoding, BatchReport, Decoder
    from router.config.loader import Loaded
    from router.engine.status.board import StatusBoard
    from router.registry import Registry

SWEEPS = Path(__file__).parents[1] / "sweeps"
ROUTES = Path(__file__).parents[2] / "routes"


def configuration(task: Task) -> dict[str, Any]:
    """Return the router's configuration of a task: a file of the sweeps with the task's topic and folders.

    The option `sweep` names the file (default: bronze, and one table per game). With `router bench` the one place of
    the benchmarks that knows the keys of a configuration.
    """
    name = task.options.get("sweep", "tables")
    content: dict[str, Any] = yaml.safe_load(sweep_file(name).read_text())
    content |= {"name": "benchmark", "lake": str(task.lake), "checkpoint": str(task.checkpoint), "spark": settings()}
    kafka = {
        "servers": task.servers,
        "topics": [task.topic],
        "start": "earliest",
        "rows_per_batch": task.rows_per_batch,
    }
    content["source"] = {"kafka": kafka}
    if name == "tables":  # for every format, and for as many games as the task has
        content["decode"] = task.decode
        content["routes"][0]["sinks"][0]["tables"]["at_most"] = max(1000, task.games)
    if "maintain" in task.options:
        content["maintenance"] = [{"tables": task.options["maintain"]}]
    return content


def sweep_file(name: str) -> Path:
    """Return the configuration of a name: of the sweeps, or of the routes that ship with the project."""
    own = SWEEPS / f"{name}.yaml"
    return own if own.exists() else ROUTES / f"{name}.yaml"


def write_yaml(task: Task, content: Mapping[str, Any]) -> Path:
    """Write a configuration into the folder of a task."""
    path = Path(task.folder, "benchmark.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path


def write_and_load(task: Task, content: Mapping[str, Any]) -> Loaded:
    """Write a configuration, and return what the router reads."""
    return load_config(write_yaml(task, content), load_registry())


def write_configuration(task: Task) -> Path:
    """Write the configuration of a task into its folder."""
    return write_yaml(task, configuration(task))


def start_session(task: Task) -> SparkSession:
    """Return the session that the router starts for a task."""
    return build_session(load_config(write_configuration(task), load_registry()).config)


def _drain_topic(spark: SparkSession, task: Task) -> Run:
    """Drain the topic with the engine in this process: with `start_session` the place that knows the engine's names."""
    registry = load_registry()
    return drain(spark, load_config(write_configuration(task), registry), registry)


def drain(spark: SparkSession, loaded: Loaded, registry: Registry, status: StatusBoard | None = None) -> Run:
    """Drain the source of a configuration; `status` is the board that the run tells what it does."""
    reports: list[BatchReport] = []
    options = RunOptions(trigger=Trigger(once=True), finished=lambda report, _: reports.append(report), status=status)
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


ROUTER = Subject("router", "router", start_session, _drain_topic, bronze_and_tables, _command)
PROFILES = Subject("profiles", "router, upserts", start_session, _drain_topic, bronze_and_profiles, _command)


def _bare_command(task: Task) -> list[str]:
    return bare.command(task, session_settings(task), CONSUMER)


def _plain_command(task: Task) -> list[str]:
    """Return `bare` in a JVM as Spark starts it: without the router's collector, compiler's thresholds and archive."""
    settings = session_settings(task)
    del settings["spark.driver.defaultJavaOptions"]
    return bare.command(task, settings, CONSUMER)


def session_settings(task: Task) -> dict[str, str]:
    """Return what the router would start its session with on this machine."""
    config = load_config(write_configuration(task), load_registry()).config
    return {"spark.app.name": "benchmark", **session_builder(config.spark, local_master(config))._options}


BARE = Subject("bare", "bare PySpark, to nowhere", start_session, _drain_topic, offsets_read, _bare_command)
PLAIN = Subject(
    "plain", "bare PySpark in a plain JVM, to nowhere", start_session, _drain_topic, offsets_read, _plain_command
)


ROWS = 10_000
"""Records of a batch as Spark hands them to Python by default."""


def _decode(spark: SparkSession, task: Task) -> Run:
    """Decode the topic's records from memory: in this thread, or as Spark's expressions in one task."""
    config = load_config(write_configuration(task), load_registry()).config
    raw = read_sample(spark, config, task.events).coalesce(1).cache()
    read = raw.count()
    nothing = Preparation(Path(task.folder), False, raw.limit, LearntSchemas())
    decoder = config.decode.prepare(nothing).refresh(frozenset())
    decoding = decoder.decoding()
    # Avro has its values from Spark's expressions first.
    if decoding is None or decoding.before:
        seconds = _decode_in_spark(decoder, raw)
    else:
        seconds = _decode_in_python(decoding, raw)
    raw.unpersist()
    return Run(seconds, read=read)


def _decode_in_python(decoding: ArrowDecoding, raw: DataFrame) -> float:
    batches = raw.toArrow().combine_chunks().to_batches(max_chunksize=ROWS)
    began = time.perf_counter()
    for records in batches:
        decoding.function(records, decoding.argument)
    return time.perf_counter() - began


def _decode_in_spark(decoder: Decoder, raw: DataFrame) -> float:
    """Return what decoding adds to reading the same records from memory."""
    decoded = decoder.decode(raw).select("event", "_error")
    # The first of each warms the JVM up.
    for _ in range(2):
        decoding_seconds = _seconds(lambda: _write_to_nowhere(decoded))
        reading_seconds = _seconds(lambda: _write_to_nowhere(raw))
    return decoding_seconds - reading_seconds


def _write_to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


DECODING = Subject("decoding", "decoding alone", start_session, _decode, records_read)


def _measure_refresh(spark: SparkSession, task: Task) -> Run:
    """Drain the topic, and rebuild all its tables: from bronze, then from the topic; the figure is the first.

    Each is done twice, and the second time counts: the tables themselves are the same then.
    """
    drained = _drain_topic(spark, task)
    registry = load_registry()
    loaded = load_config(write_configuration(task), registry)
    lake, checkpoint = lake_and_checkpoint(loaded.config)
    preparation = Preparation(Path(task.folder), False, lambda rows: None, LearntSchemas())
    config = loaded.config.model_copy(update={"decode": loaded.config.decode.prepare(preparation)})
    executors = executors_of(spark, registry, config, lake, "refresh")
    executors.check_started(spark)
    context = ReprocessContext(config, spark, lake, checkpoint, executors=executors)
    steps = {"drained": drained.seconds}
    problem = ""
    for name, topic in [("bronze", False), ("topic", True)] * 2:
        began = time.perf_counter()
        outcome = Refresh(context, ("silver.*",), topic=topic).run()
        steps[name] = time.perf_counter() - began
        rows = sum(table.rows + table.later for table in outcome.done)
        if outcome.failed or rows != sum(task.expected.values()):
            problem = f"from {name}: {rows} rows, {len(outcome.failed)} tables failed"
    return replace(drained, seconds=steps["bronze"], steps=steps, problem=problem)


REFRESH = Subject("refresh", "router, tables made anew", start_session, _measure_refresh, bronze_and_tables)
