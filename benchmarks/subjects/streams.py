"""Running streams, looked at from outside.

`evolution`: a new schema version: when the table has its column, and what the batch takes longer. `freshness`: the
router with tables and a detached sink, while events come and the API changes: how old tables let events get, by the log
of each table, where every commit has its time. `beside_views`: the same for tables whose views are refreshed meanwhile.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake

from benchmarks.feeds.wire_formats import Evolving, registry
from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from benchmarks.subjects.posting import LATENCY
from benchmarks.subjects.router import start_session, write_and_load, write_configuration
from benchmarks.verify import compare, count_rows
from router.config.loader import load_config
from router.config.models import Trigger
from router.engine.spark.session import build_session
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from router_demo.api import Api
from router_demo.simulator import ensure_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router import BatchReport

WRITTEN = "sent"
"""The column with the time at which an event was written to its source, in seconds since 1970."""


def ages(tables: Iterable[Path], since: float, until: float) -> list[float]:
    """Return the seconds from an event's writing to its commit, for every event written from `since` to `until`.

    A commit's file is written whole just before it is in the log: its time is that of the commit, or a bit earlier.
    """
    seconds: list[float] = []
    for table in tables:
        for commit in sorted((table / "_delta_log").glob("*.json")):
            committed = commit.stat().st_mtime
            for file in _added_files(table, commit):
                written_times = pq.read_table(file, columns=[WRITTEN]).column(0).to_pylist()
                seconds += [committed - written for written in written_times if since <= written < until]
    return seconds


def _added_files(table: Path, commit: Path) -> list[Path]:
    """Return the files with new rows that a commit adds to its table."""
    files = []
    for line in commit.read_text().splitlines():
        add = json.loads(line).get("add")
        if add and add["dataChange"]:  # compaction moves rows only
            files.append(table / add["path"])
    return files


def figures(seconds: list[float]) -> dict[str, float]:
    """Return the median age, the 99th percentile and the highest."""
    if not seconds:
        return {}
    in_order = sorted(seconds)
    return {"p50": statistics.median(in_order), "p99": in_order[int(len(in_order) * 0.99)], "max": in_order[-1]}


VERSIONS = 10
EVOLUTION_PATIENCE = 120
POLL_SECONDS = 0.005


class Stream:
    """A router that runs in a thread, and what it reports."""

    def __init__(self, spark: SparkSession, task: Task) -> None:
        self.reports: list[BatchReport] = []
        self._reports_returned = 0
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._spark = spark
        self._registry = load_registry()
        self._loaded = load_config(write_configuration(task), self._registry)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        trigger = Trigger(continuous=True)
        run(self._loaded, self._registry, self._spark, RunOptions(trigger, finished=self._take, stop=self._stop))

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
            if not self._changed.wait_for(lambda: self.read >= records, EVOLUTION_PATIENCE):
                raise TimeoutError(f"{self.read} of {records} records were read in {EVOLUTION_PATIENCE} s")
            new_reports = self.reports[self._reports_returned :]
            self._reports_returned = len(self.reports)
            return new_reports

    def end(self) -> None:
        """End the stream after the batch at hand."""
        self._stop.set()
        self._thread.join(EVOLUTION_PATIENCE)


def _evolution_run(spark: SparkSession, task: Task) -> Run:
    """Send `events` records of the version at hand, then as many of a new one, ten times over."""
    events = Evolving(f"evolution-{time.time_ns()}")
    topic = events.subject
    decode = {"protobuf": {"registry": registry().url, "subjects": [events.subject]}}
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
            # First a batch without news, to compare.
            plain_batch = _seconds_of_slowest(stream.batches_until(sent))
            registered = time.perf_counter()
            events.register(version)
            sent += _send(producer, topic, events, version, task)
            produced = time.perf_counter()
            seen = _wait_for_column(table, events.column(version))
            new_version_batch = _seconds_of_slowest(stream.batches_until(sent))
            samples.append(
                {
                    "after_registration": seen - registered,
                    "after_last_record": seen - produced,
                    "batch": new_version_batch,
                    "plain_batch": plain_batch,
                    "delay": new_version_batch - plain_batch,
                }
            )
    finally:
        stream.end()
    median_seconds = statistics.median(sample["after_last_record"] for sample in samples)
    return Run(median_seconds, read=stream.read, batches=len(stream.reports), samples=samples)


def _send(producer: Producer, topic: str, events: Evolving, version: int, task: Task) -> int:
    for index, value in enumerate(events.values(version, task.events)):
        producer.produce(topic, value, partition=index % task.partitions)
    producer.flush()
    return task.events


def _seconds_of_slowest(reports: list[BatchReport]) -> float:
    """Return the seconds of the slowest of some batches."""
    return max(sum(report.seconds.values()) for report in reports)


def _wait_for_column(table: DeltaTable, column: str) -> float:
    """Wait until a reader of the table sees the column; return when that was."""
    deadline = time.perf_counter() + EVOLUTION_PATIENCE
    while time.perf_counter() < deadline:
        table.update_incremental()
        if any(field.name == column for field in table.schema().fields):
            return time.perf_counter()
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no column {column} after {EVOLUTION_PATIENCE} s")


def _verify_evolution(task: Task, run: Run) -> str:
    counted = {"read": run.read, "versions": len(run.samples)}
    expected = {"read": (1 + 2 * VERSIONS) * task.events, "versions": VERSIONS}
    if counted == expected:
        return ""
    return f"{counted}, {expected} expected"


def _evolution_session(task: Task) -> SparkSession:
    return start_session(replace(task, topic="later", decode={"none": {}}))


EVOLUTION = Subject(
    "evolution", "a new version in a running stream", _evolution_session, _evolution_run, _verify_evolution
)


HEALTHY = {"latency": LATENCY[1]}
APIS: dict[str, dict[str, Any]] = {
    "healthy": HEALTHY,
    "ten times slower": {"latency": 10 * LATENCY[1]},
    "black-holed": {"failures": [{"how": "silent"}]},
    "refusing": {"outage": "refused"},
    "back again": HEALTHY,
}
"""What the API does, one after the other: `black-holed` takes calls and never answers, `refusing` no connection."""
ANSWERS = {"healthy", "ten times slower", "back again"}
PER_SECOND = 200
SECONDS = 10
"""How long each state lasts, and is looked at."""
FRESHNESS_PATIENCE = 60.0
"""Seconds that events may take to arrive, when the machine has other things to do."""
TOPIC = "freshness"
GAMERS = 100


@dataclass
class Traffic:
    """The events of a run, and the batches that took them; both by the wall clock."""

    task: Task
    producer: Producer
    stop: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    read: int = 0
    ended: list[float] = field(default_factory=list)

    def finished(self, report: BatchReport, behind: int | None) -> None:
        """Take note of a batch that is committed."""
        self.read += report.read
        self.ended.append(time.time())

    def flow(self) -> None:
        """Send events at an even pace until told to stop."""
        began = time.perf_counter()
        while not self.stop.wait(max(0.0, began + self.sent / PER_SECOND - time.perf_counter())):
            event = {
                "id": self.sent,
                "game": f"game_{self.sent % self.task.games}",
                WRITTEN: time.time(),
                "gamer_id": self.sent % GAMERS,
            }
            self.producer.produce(TOPIC, json.dumps(event).encode(), partition=self.sent % self.task.partitions)
            self.producer.poll(0)
            self.sent += 1
        self.producer.flush()

    def landed(self) -> bool:
        """Say whether all of them are in their tables."""
        return self.read >= self.sent


def configuration(task: Task, url: str) -> dict[str, Any]:
    """Return a configuration whose route writes a table per game, and posts every event."""
    rest = {"url": url, "mode": "detached", "timeouts": {"connect": "1 s", "read": "2 s"}}
    sinks = [{"tables": "silver.{event.game}"}, {"rest": rest}]
    return {
        "name": "benchmark",
        "lake": str(task.lake),
        "checkpoint": str(task.checkpoint),
        "source": {"kafka": {"servers": task.servers, "topics": [TOPIC], "start": "earliest"}},
        "decode": {"json": {"schema": f"id LONG, game STRING, {WRITTEN} DOUBLE"}},
        "routes": [{"name": "games", "match": {"sql": "event.id IS NOT NULL"}, "sinks": sinks}],
        "dead_letters": "ops.dead_letters",
        "spark": settings(),
    }


def _freshness_session(task: Task) -> SparkSession:
    return build_session(write_and_load(task, configuration(task, "http://127.0.0.1:9/events")).config)


def _freshness_run(spark: SparkSession, task: Task) -> Run:
    """Run one router while events come, and the API goes through its states."""
    admin = AdminClient({"bootstrap.servers": task.servers})
    admin.create_topics([NewTopic(TOPIC, task.partitions, 1)])[TOPIC].result()
    traffic = Traffic(task, Producer({"bootstrap.servers": task.servers, "linger.ms": 5}))
    stop = threading.Event()
    options = RunOptions(Trigger(continuous=True), finished=traffic.finished, stop=stop)
    with Api(**HEALTHY) as served:
        config = write_and_load(task, configuration(task, f"{served.url}/events"))
        router = threading.Thread(target=run, args=(config, load_registry(), spark, options))
        sender = threading.Thread(target=traffic.flow)
        router.start()
        sender.start()
        began = time.perf_counter()
        try:
            # the first batches of a process are another question, those of its sink too
            _wait(router, lambda: served.stats().processed > 0)
            spans = {api: _play(api, served, router) for api in APIS}
            traffic.stop.set()
            sender.join()
            _wait(router, traffic.landed)
        finally:
            traffic.stop.set()
            stop.set()
            router.join()
    counts = {"sent": float(traffic.sent)}
    for api, (since, until, calls_taken) in spans.items():
        of_span = _figures(task, traffic, since, until, calls_taken)
        counts |= {f"{api}: {name}": figure for name, figure in of_span.items()}
    return Run(time.perf_counter() - began, read=traffic.read, batches=len(traffic.ended), counts=counts)


def _play(api: str, served: Api, router: threading.Thread) -> tuple[float, float, int]:
    """Let the API be in a state, once its sink has noticed; return from when to when, and the calls it took."""
    changed = served.play(**APIS[api])
    if api != "refusing":  # no call arrives there; the sink has been waiting before
        _wait(router, lambda: served.stats(since=changed).arrived > 0)
    since = time.time()
    time.sleep(SECONDS)
    return since, time.time(), served.stats(since=changed).processed


def _figures(task: Task, traffic: Traffic, since: float, until: float, calls_taken: int) -> dict[str, float]:
    return {
        **figures(ages(_tables(task), since, until)),
        "taken": float(calls_taken),
        "batches": sum(since <= ended < until for ended in traffic.ended),
    }


def _tables(task: Task) -> list[Path]:
    """Return the folders of the tables that there are."""
    return [log.parent for log in sorted((task.lake / "silver").glob("*/_delta_log"))]


def _wait(router: threading.Thread, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + FRESHNESS_PATIENCE
    while router.is_alive() and not condition() and time.monotonic() < end:
        time.sleep(0.1)


def _verify_freshness(task: Task, run: Run) -> str:
    """Return "" if every event is in a table, and just those APIs took calls that answer; else what is wrong."""
    landed = sum(count_rows(table) for table in _tables(task))
    problem = compare({"events": int(run.counts["sent"])}, {"events": landed})
    if problem:
        return problem
    odd = []
    for api in APIS:
        took_calls = run.counts[f"{api}: taken"] > 0
        if took_calls != (api in ANSWERS):
            odd.append(api)
    return f"calls taken: {odd}" if odd else ""


FRESHNESS = Subject("freshness", "router", _freshness_session, _freshness_run, _verify_freshness)


BESIDE_SECONDS = 60
FIRST_SECONDS = 10
"""How long a stream runs before it is looked at: its first batches are another question."""
VIEW = {
    "name": "sessions",
    "from": {"route": "games"},
    "into": "gold.{table}_sessions",
    "every": "10 s",
    "sql": f"SELECT table, gamer_id, count(*) AS session_count, min({WRITTEN}) AS first_ts, max({WRITTEN}) AS last_ts "
    "FROM source GROUP BY table, gamer_id",
}


def _configuration_with_views(task: Task, *, views: bool) -> dict[str, Any]:
    """Return a configuration with a table per game and, `views`, one view of all of them."""
    content = configuration(task, "http://127.0.0.1:9/events")
    content["decode"]["json"]["schema"] += ", gamer_id INT"
    del content["routes"][0]["sinks"][1]  # the API
    if views:
        content["views"] = [VIEW]
    return content


def _beside_session(task: Task) -> SparkSession:
    return build_session(write_and_load(task, _configuration_with_views(task, views=True)).config)


def _beside_run(spark: SparkSession, task: Task) -> Run:
    """Fill the tables, and run one router while events come: first alone, then beside its view."""
    # Each table has rows from before the stream, which its view groups too.
    dice = np.random.default_rng(0)
    rows_per_table = task.events // task.games
    for game in range(task.games):
        rows = {
            "id": pa.array(range(rows_per_table), pa.int64()),
            "game": pa.array([f"game_{game}"] * rows_per_table),
            WRITTEN: dice.random(rows_per_table),
            "gamer_id": dice.integers(0, GAMERS, rows_per_table).astype("int32"),
        }
        write_deltalake(task.lake / "silver" / f"game_{game}", pa.table(rows))
    admin = AdminClient({"bootstrap.servers": task.servers})
    admin.create_topics([NewTopic(TOPIC, task.partitions, 1)])[TOPIC].result()
    began = time.perf_counter()
    counts: dict[str, float] = {}
    read = 0
    for span in ("alone", "beside views"):
        ages_of_span, read_in_span = _beside_span(spark, task, views=span == "beside views")
        counts |= {f"{span}: {name}": figure for name, figure in ages_of_span.items()}
        read += read_in_span
    counts["refreshes"] = len(list((task.lake / "gold" / "game_0_sessions" / "_delta_log").glob("*.json")))
    counts["sent"] = float(read)
    return Run(time.perf_counter() - began, read=read, counts=counts)


def _beside_span(spark: SparkSession, task: Task, *, views: bool) -> tuple[dict[str, float], int]:
    """Return the ages of events while a router runs, and how many it took."""
    traffic = Traffic(task, Producer({"bootstrap.servers": task.servers, "linger.ms": 5}))
    stop = threading.Event()
    options = RunOptions(Trigger(continuous=True), finished=traffic.finished, stop=stop)
    config = write_and_load(task, _configuration_with_views(task, views=views))
    router = threading.Thread(target=run, args=(config, load_registry(), spark, options))
    sender = threading.Thread(target=traffic.flow)
    router.start()
    sender.start()
    try:
        _wait(router, lambda: traffic.read > 0)
        if views:
            # Until the view has made its table of each game.
            _wait(router, lambda: len(list((task.lake / "gold").glob("*/_delta_log"))) == task.games)
        time.sleep(FIRST_SECONDS)
        since = time.time()
        time.sleep(BESIDE_SECONDS)
        until = time.time()
        traffic.stop.set()
        sender.join()
        _wait(router, traffic.landed)
    finally:
        traffic.stop.set()
        stop.set()
        router.join()
    return figures(ages(_tables(task), since, until)), traffic.read


def _verify_beside_views(task: Task, run: Run) -> str:
    """Return "" if every event is in a table, and the view was refreshed often enough; else what is wrong."""
    landed = sum(count_rows(table) for table in _tables(task))
    sent = task.events // task.games * task.games + int(run.counts["sent"])
    problem = compare({"events": sent}, {"events": landed})
    if problem:
        return problem
    # One is due every 10 seconds; half of them must have come.
    if run.counts["refreshes"] <= BESIDE_SECONDS // 10 // 2:
        return f"{run.counts['refreshes']} refreshes only"
    return ""


BESIDE_VIEWS = Subject("beside_views", "router, beside its views", _beside_session, _beside_run, _verify_beside_views)
