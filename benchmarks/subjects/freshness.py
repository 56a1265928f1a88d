"""The router with tables and a detached sink, while events come and the API changes: how old tables let events get."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.ages import WRITTEN, ages, figures
from benchmarks.arrivals import LATENCY
from benchmarks.configurations import loaded
from benchmarks.runs import Run
from benchmarks.settings import settings
from benchmarks.subjects import Subject
from benchmarks.verify import compare, count_rows
from router.config.models import Trigger
from router.engine.session import build_session
from router.engine.stream import Options, run
from router.registry import load_registry
from router_demo.api import Api

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router import BatchReport

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
PATIENCE = 60.0
"""Seconds that events may take to arrive, when the machine has other things to do."""
TOPIC = "freshness"


@dataclass
class Traffic:
    """Be the events of a run, and the batches that took them; both are told by the wall clock."""

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
            event = {"id": self.sent, "game": f"game_{self.sent % self.task.games}", WRITTEN: time.time()}
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


def _session(task: Task) -> SparkSession:
    return build_session(loaded(task, configuration(task, "http://127.0.0.1:9/events")).config)


def _run(spark: SparkSession, task: Task) -> Run:
    """Run one router while events come, and the API goes through its states."""
    admin = AdminClient({"bootstrap.servers": task.servers})
    admin.create_topics([NewTopic(TOPIC, task.partitions, 1)])[TOPIC].result()
    traffic, stop = Traffic(task, Producer({"bootstrap.servers": task.servers, "linger.ms": 5})), threading.Event()
    options = Options(Trigger(continuous=True), finished=traffic.finished, stop=stop)
    with Api(**HEALTHY) as served:
        work = (loaded(task, configuration(task, f"{served.url}/events")), load_registry(), spark, options)
        router, sender = threading.Thread(target=run, args=work), threading.Thread(target=traffic.flow)
        router.start()
        sender.start()
        began = time.perf_counter()
        try:
            # the first batches of a process are another question, those of its sink too
            _wait(router, lambda: served.stats().processed > 0)
            spans = {api: _through(api, served, router) for api in APIS}
            traffic.stop.set()
            sender.join()
            _wait(router, traffic.landed)
        finally:
            traffic.stop.set()
            stop.set()
            router.join()
    counts = {"sent": float(traffic.sent)}
    for api, span in spans.items():
        counts |= {f"{api}: {name}": figure for name, figure in _figures(task, traffic, *span).items()}
    return Run(time.perf_counter() - began, read=traffic.read, batches=len(traffic.ended), counts=counts)


def _through(api: str, served: Api, router: threading.Thread) -> tuple[float, float, int]:
    """Let the API be in a state, once its sink has noticed; return from when to when, and the calls it took."""
    at = served.play(**APIS[api])
    if api != "refusing":  # no call arrives there; the sink has been waiting before
        _wait(router, lambda: served.stats(since=at).arrived > 0)
    since = time.time()
    time.sleep(SECONDS)
    return since, time.time(), served.stats(since=at).processed


def _figures(task: Task, traffic: Traffic, since: float, until: float, taken: int) -> dict[str, float]:
    tables = [log.parent for log in sorted((task.lake / "silver").glob("*/_delta_log"))]
    found = {**figures(ages(tables, since, until)), "taken": float(taken)}
    return {**found, "batches": sum(since <= ended < until for ended in traffic.ended)}


def _wait(router: threading.Thread, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while router.is_alive() and not condition() and time.monotonic() < end:
        time.sleep(0.1)


def _all_there(task: Task, run: Run) -> str:
    """Say what is wrong where every event must be in a table, and calls be taken by an API that takes any."""
    landed = sum(count_rows(log.parent) for log in (task.lake / "silver").glob("*/_delta_log"))
    odd = [api for api in APIS if (run.counts[f"{api}: taken"] > 0) != (api in ANSWERS)]
    return compare({"events": int(run.counts["sent"])}, {"events": landed}) or (f"calls taken: {odd}" if odd else "")


FRESHNESS = Subject("freshness", "router", _session, _run, _all_there)
