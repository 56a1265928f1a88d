"""Run a configuration against filled topics, in a process of its own: `python -m router_bench.worker JOB`.

Every run drains a topic once into a fresh lake with a fresh checkpoint, all runs of a job in one Spark session.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from router.api.sinks import ApplyingSink
from router.config.loader import load_config
from router.config.models import Source, Trigger
from router.engine.spark.session import build_session, stop_session
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from router.spark_internals import collect_garbage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from router.api.parts import BatchReport
    from router.api.sinks import Sink
    from router.config.loader import Loaded
    from router.config.models import Config, KafkaSource, Route
    from router.registry import Registry

SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
"""RunOptions of the source that mean another broker than the embedded one."""


@dataclass(frozen=True)
class Job:
    """What one process does: drain each of `topics` (name by number of partitions) `runs` times.

    `embedded` says that the broker is not the configuration's own; `send` that its sinks may send for real. Lakes and
    checkpoints are made below `lake`, a folder or URI that executors reach, by default in the temporary `folder`. Each
    run is a line of JSON in `results`.
    """

    file: str
    plugins: tuple[str, ...]
    servers: str
    embedded: bool
    topics: dict[int, str]
    rows: int
    runs: int
    send: bool
    folder: str
    results: str
    master: str | None = None
    lake: str | None = None

    def write(self, path: Path) -> None:
        """Write this job for the process that does it."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Return the job in a file."""
        content = json.loads(path.read_text())
        topics = {int(partitions): name for partitions, name in content["topics"].items()}
        return cls(**{**content, "plugins": tuple(content["plugins"]), "topics": topics})


@dataclass(frozen=True)
class BenchRun:
    """One run: seconds from the start of the query to the end of its last batch, and what its batches reported."""

    partitions: int
    seconds: float
    process_seconds: float | None = None
    read: int = 0
    failed: int = 0
    unmatched: int = 0
    dead_letters: int = 0
    batches: int = 0
    tables: int = 0
    steps: dict[str, float] = field(default_factory=dict)


def main(path: Path) -> None:
    """Do the job in a file."""
    job = Job.read(path)
    loaded = load_config(Path(job.file), load_registry([Path(file) for file in job.plugins]))
    spark = build_session(loaded.config, job.master)
    try:
        for partitions, topic in job.topics.items():
            for number in range(job.runs):
                place = f"{job.lake or job.folder}/{topic}-{number}"
                measured = _drain(bound(loaded, job, topic, place), loaded.registry, spark, partitions)
                _append(Path(job.results), measured)
                shutil.rmtree(place, ignore_errors=True)
    finally:
        stop_session(spark)


def _drain(loaded: Loaded, registry: Registry, spark: SparkSession, partitions: int) -> BenchRun:
    """Run a configuration until its topic is drained."""
    reports: list[BatchReport] = []
    options = RunOptions(Trigger(once=True), finished=lambda report, _: reports.append(report))
    _settle(spark)
    began = time.perf_counter()
    run(loaded, registry, spark, options)
    return summed(partitions, time.perf_counter() - began, reports)


def _settle(spark: SparkSession) -> None:
    """Clear away what the run before left: it must not be done on the next one's time."""
    collect_garbage(spark)
    os.sync()


def bound(loaded: Loaded, job: Job, topic: str, place: str) -> Loaded:
    """Return the configuration with the benchmark's topic, lake and checkpoint in place of its own."""
    kafka = kafka_source(loaded.config)
    options = kafka.options
    if job.embedded:
        # The embedded broker takes everybody, and speaks in the clear.
        options = {name: value for name, value in options.items() if not name.startswith(SECURITY)}
    source = kafka.model_copy(
        update={
            "servers": job.servers,
            "topics": (topic,),
            "pattern": None,
            "start": "earliest",
            "start_time": None,
            "rows_per_batch": job.rows,
            "options": options,
        }
    )
    changes: dict[str, object] = {
        "lake": f"{place}/lake",
        "checkpoint": f"{place}/checkpoint",
        "source": Source(kafka=source),
        "register_tables": False,
    }
    if not job.lake:
        changes["storage_options"] = {}
    if not job.send:
        routes, left_out = quiet_routes(loaded.config)
        if left_out:
            # Events that only a sink which is left out would take are no dead letters.
            changes |= {"routes": routes, "unmatched": "drop"}
    return loaded.with_fields(**changes)


def kafka_source(config: Config) -> KafkaSource:
    """Return the Kafka source of a configuration; raise ValueError when it reads something else."""
    if config.source.kafka is None:
        raise ValueError("`router bench` fills a topic: it needs a configuration with `source: {kafka: ...}`")
    return config.source.kafka


def quiet_routes(config: Config) -> tuple[tuple[Route, ...], list[str]]:
    """Return the routes without the sinks that send to other systems, and where those were."""
    routes: list[Route] = []
    left_out: list[str] = []
    for route in config.routes:
        quiet: list[Sink] = []
        for sink in route.sinks:
            if isinstance(sink, ApplyingSink):
                left_out.append(f"{type(sink).__name__.lower()} of route {route.name}")
            else:
                quiet.append(sink)
        if quiet:
            routes.append(route.model_copy(update={"sinks": tuple(quiet)}))
    return tuple(routes), left_out


def summed(partitions: int, seconds: float, reports: Sequence[BatchReport]) -> BenchRun:
    """Return the run that some batch reports describe."""
    steps: Counter[str] = Counter()
    for report in reports:
        steps.update(report.seconds)
    return BenchRun(
        partitions,
        seconds,
        read=sum(report.read for report in reports),
        failed=sum(report.failed for report in reports),
        unmatched=sum(report.unmatched for report in reports),
        dead_letters=sum(report.dead_letters for report in reports),
        batches=len(reports),
        tables=max((report.tables for report in reports), default=0),
        steps=dict(steps),
    )


def read_runs(path: Path) -> list[BenchRun]:
    """Return the runs in a file of results; none when it is not there."""
    if not path.exists():
        return []
    return [BenchRun(**json.loads(line)) for line in path.read_text().splitlines()]


def _append(path: Path, measured: BenchRun) -> None:
    with path.open("a") as lines:
        lines.write(json.dumps(asdict(measured)) + "\n")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        traceback.print_exc()
        # The last line is what the command shows: Spark's errors end with pages of plans.
        first, _, _ = str(error).strip().partition("\n")
        sys.exit(f"{type(error).__name__}: {first}")
