"""A configuration of very many tables: what a batch that touches all of them takes, and the memory of the driver.

The first batch makes the tables, the others append to them; all in one run of the engine, each batch one file.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from benchmarks.feeds.json_events import JSON
from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from benchmarks.subjects.router import sweep_file, write_and_load
from router.config.models import Config, Trigger
from router.engine.spark.session import build_session
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from router_bench.machine import MB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router.api.parts import BatchReport


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="wide", spark=settings()))


@dataclass
class _Batches:
    """The reports of batches, with the wall seconds from the end of one to the end of the next, and the memory then."""

    reports: list[BatchReport] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)
    last: float = field(default_factory=time.perf_counter)

    def add(self, report: BatchReport, _: int | None) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now
        self.reports.append(report)
        driver = psutil.Process()
        java_bytes = 0
        for child in driver.children(recursive=True):
            if child.name() == "java":
                java_bytes = max(java_bytes, child.memory_info().rss)
        self.samples.append(
            {
                "batches": float(len(self.reports)),
                "seconds": self.seconds[-1],
                "python_mb": driver.memory_info().rss / MB,
                "java_mb": java_bytes / MB,
            }
        )


def _run(spark: SparkSession, task: Task) -> Run:
    """Route one file after the other; the figure is the median of the batches after the first."""
    batches = int(task.options["batches"])
    incoming = Path(task.folder, "incoming")
    incoming.mkdir(parents=True, exist_ok=True)
    for number in range(batches):
        with Path(incoming, f"{number:04d}.json").open("wb") as file:
            file.writelines(value + b"\n" for value, _ in JSON.values(task.events, task.games, number))
    content: dict[str, Any] = yaml.safe_load(sweep_file("tables").read_text())
    content |= {"name": "wide", "lake": str(task.lake), "checkpoint": str(task.checkpoint), "spark": settings()}
    content |= {"source": {"files": {"path": str(incoming), "files_per_batch": 1}}, "decode": JSON.decode()}
    content["routes"][0]["sinks"][0]["tables"]["at_most"] = task.games
    done = _Batches()
    run(
        write_and_load(task, content), load_registry(), spark, RunOptions(trigger=Trigger(once=True), finished=done.add)
    )
    # The first batch makes the tables: another question. Steps are the mean of the others.
    warm = done.reports[1:]
    steps: Counter[str] = Counter()
    for report in warm:
        steps.update({name: seconds / len(warm) for name, seconds in report.seconds.items()})
    read = [report.read for report in done.reports]
    problem = ""
    if read != [task.events] * batches:
        problem = f"batches have read {read}"
    return Run(
        statistics.median(done.seconds[1:]),
        read=sum(read),
        batches=batches,
        tables=warm[-1].tables,
        steps=dict(steps),
        peaks={"python_mb": _peak(), "java_mb": max(sample["java_mb"] for sample in done.samples)},
        samples=done.samples,
        problem=problem,
    )


def _peak() -> float:
    """Return the megabytes that this process, the driver's Python, has had at most."""
    match = re.search(r"VmHWM: *\s*(\d+)", Path("/proc/self/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


WIDE = Subject("wide", "router, very many tables", _session, _run, lambda task, run: run.problem)
