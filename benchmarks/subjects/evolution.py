"""A new schema version in a running stream: when the table has its column, and what the batch takes longer."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from deltalake import DeltaTable

from benchmarks.feeds.evolving import Evolving
from benchmarks.registries import registry
from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.ours import start_session, write_configuration
from router.config.loader import load
from router.config.models import Trigger
from router.engine.stream import Options, run
from router.registry import load_registry
from router_demo.simulator import ensure_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router import BatchReport

VERSIONS = 10
PATIENCE = 120
POLL_SECONDS = 0.005


class Stream:
    """Be a router that runs in a thread, and what it reports."""

    def __init__(self, spark: SparkSession, task: Task) -> None:
        self.reports: list[BatchReport] = []
        self._known = 0
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._registry, self._spark = load_registry(), spark
        self._loaded = load(write_configuration(task), self._registry)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        trigger = Trigger(continuous=True)
        run(self._loaded, self._registry, self._spark, Options(trigger, finished=self._take, stop=self._stop))

    def _take(self, report: BatchReport, behind: int | None) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    @property
    def read(self) -> int:
        """Return how many records have been read."""
        return sum(report.read for report in self.reports)

    def batches_until(self, records: int) -> list[BatchReport]:
        """Wait until so many records are read; return the batches since the last such wait."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.read >= records, PATIENCE):
                raise TimeoutError(f"{self.read} of {records} records were read in {PATIENCE} s")
            new, self._known = self.reports[self._known :], len(self.reports)
            return new

    def end(self) -> None:
        """End the stream after the batch at hand."""
        self._stop.set()
        self._thread.join(PATIENCE)


def _run(spark: SparkSession, task: Task) -> Run:
    """Send `events` records of the version at hand, then as many of a new one, ten times over."""
    events = Evolving(f"evolution-{time.time_ns()}")
    topic, decode = events.subject, {"protobuf": {"registry": registry().url, "subjects": [events.subject]}}
    ensure_topic(task.servers, topic, task.partitions)
    producer = Producer({"bootstrap.servers": task.servers, "linger.ms": 5, "log_level": 3})
    events.register(1)
    stream = Stream(spark, replace(task, topic=topic, decode=decode, rows_per_batch=task.events))
    samples: list[dict[str, float]] = []
    try:
        sent = _send(producer, topic, events, 1, task)
        stream.batches_until(sent)
        table = DeltaTable(str(task.lake / "silver" / events.table))
        for version in range(2, VERSIONS + 2):
            sent += _send(producer, topic, events, version - 1, task)
            plain = _busiest(stream.batches_until(sent))
            registered = time.perf_counter()
            events.register(version)
            sent += _send(producer, topic, events, version, task)
            produced = time.perf_counter()
            seen = _visible(table, events.column(version))
            longer = _busiest(stream.batches_until(sent))
            after = {"after_registration": seen - registered, "after_last_record": seen - produced}
            samples.append({**after, "batch": longer, "plain_batch": plain, "delay": longer - plain})
    finally:
        stream.end()
    visible = statistics.median(sample["after_last_record"] for sample in samples)
    return Run(visible, read=stream.read, batches=len(stream.reports), samples=samples)


def _send(producer: Producer, topic: str, events: Evolving, version: int, task: Task) -> int:
    for index, value in enumerate(events.values(version, task.events)):
        producer.produce(topic, value, partition=index % task.partitions)
    producer.flush()
    return task.events


def _busiest(reports: list[BatchReport]) -> float:
    """Return the seconds of the slowest of some batches."""
    return max(sum(report.seconds.values()) for report in reports)


def _visible(table: DeltaTable, column: str) -> float:
    """Return when a reader of the table sees the column."""
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        table.update_incremental()
        if any(field.name == column for field in table.schema().fields):
            return time.perf_counter()
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no column {column} after {PATIENCE} s")


def _verified(task: Task, run: Run) -> str:
    expected = (1 + 2 * VERSIONS) * task.events
    missing: dict[str, Any] = {"read": run.read, "versions": len(run.samples)}
    wanted = {"read": expected, "versions": VERSIONS}
    return "" if missing == wanted else f"{missing}, {wanted} expected"


def _session(task: Task) -> SparkSession:
    return start_session(replace(task, topic="later", decode={"none": {}}))


EVOLUTION = Subject("evolution", "a new version in a running stream", _session, _run, _verified)
