"""Do one job in a process of its own: `python -m benchmarks.worker JOB`; started by the harness."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.runs import Job, append_run, batches_done, footprint
from benchmarks.subjects import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from benchmarks.cells import Sample
    from benchmarks.runs import Run, Task


def main(path: Path) -> None:
    """Do the job in a file, in one Spark session, and append each run to the job's results."""
    job = Job.read(path)
    subject = _subject(job)
    spark = subject.session(job.task.nth(0))
    for number in range(job.runs):
        append_run(Path(job.results), _run(subject, spark, job, number))
    spark.stop()


def _subject(job: Job) -> Subject:
    values = vars(import_module(job.module)).values()
    subjects = [value for value in values if isinstance(value, Subject)]
    return next(subject for subject in subjects if subject.name == job.subject)


def _run(subject: Subject, spark: SparkSession, job: Job, number: int) -> Run:
    task = job.task.nth(number)
    if number:  # what the run before left must not be cleared away on this run's time
        from router.spark_internals import collect_garbage  # noqa: PLC0415  a cold contender must not import the router

        collect_garbage(spark)
        os.sync()
    before = _cpu_seconds()
    with sampled(job.sample, spark, task) as add_samples:
        run = subject.run(spark, task)
    return replace(add_samples(run), first=number == 0, cpu_seconds=_cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, those that have ended included."""
    seconds = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            # Those of a child move to its parent when it ends.
            seconds += sum(process.cpu_times()[:4])
    return seconds


MB = 1 << 20
WORKER_SECONDS = 0.1
DRIVER_BATCHES = 50
DAEMONS = {"pyspark.daemon", "router.engine.land.worker_daemon"}
"""Modules that Python workers are forked from: Spark's own, and that of local runs of the router."""


class Workers:
    """The resident memory of Spark's Python workers, of the largest and of all together, and that of the JVM."""

    def __init__(self) -> None:
        self.by_process: dict[int, int] = {}
        self.together = 0
        self.java = 0

    def sample(self) -> None:
        """Look once."""
        sizes = {process.pid: process.memory_info().rss for process in _python_workers()}
        for pid, size in sizes.items():
            self.by_process[pid] = max(size, self.by_process.get(pid, 0))
        self.together = max(self.together, sum(sizes.values()))
        for process in _java():
            self.java = max(self.java, process.memory_info().rss)

    def peaks(self) -> dict[str, float]:
        """Return the peaks in megabytes and the number of worker processes seen."""
        largest = max(self.by_process.values(), default=0)
        return {
            "worker_mb": largest / MB,
            "workers_mb": self.together / MB,
            "workers": float(len(self.by_process)),
            "java_mb": self.java / MB,
        }


class Driver:
    """The memory of the driver, every so many batches: its Python and Java processes, and the heap after GC."""

    def __init__(self, spark: SparkSession, task: Task) -> None:
        self._spark = spark
        self._task = task
        self._python = psutil.Process()
        (self._java,) = _java()
        self._began = time.perf_counter()
        self.samples: list[dict[str, float]] = []

    def sample(self) -> None:
        """Look once; add a sample when enough batches were done since the last one."""
        batches = batches_done(self._task.checkpoint)
        batches_of_last_sample = self.samples[-1]["batches"] if self.samples else 0
        if batches - batches_of_last_sample >= DRIVER_BATCHES:
            self.samples.append(self._now(batches))

    def _now(self, batches: int) -> dict[str, float]:
        from router.spark_internals import jvm  # noqa: PLC0415  a cold contender must not import the router

        java = jvm(self._spark).java.lang
        java.System.gc()
        runtime = java.Runtime.getRuntime()
        return {
            "batches": float(batches),
            "seconds": time.perf_counter() - self._began,
            "python_mb": self._python.memory_info().rss / MB,
            "java_mb": self._java.memory_info().rss / MB,
            "heap_mb": (runtime.totalMemory() - runtime.freeMemory()) / MB,
        }


@contextmanager
def sampled(kind: Sample, spark: SparkSession, task: Task) -> Iterator[Callable[[Run], Run]]:
    """Sample while the block runs; give back a function that puts what was seen into the run."""
    if not kind:
        yield lambda run: run
        return
    from router_bench.machine import Footprint, Sampler  # noqa: PLC0415  a cold contender must not import the router

    if kind == "workers":
        workers = Workers()
        with Sampler(workers.sample, WORKER_SECONDS):
            yield lambda run: replace(run, peaks=workers.peaks())
    elif kind == "driver":
        driver = Driver(spark, task)
        with Sampler(driver.sample, 0.5):
            yield lambda run: replace(run, samples=driver.samples)
    else:
        with Footprint(os.getpid()) as memory:
            yield lambda run: replace(run, peaks=footprint(memory, task))


def _java() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "java"]


def _python_workers() -> list[psutil.Process]:
    """Return the workers: children of Spark's daemon, which is a child of Java."""
    daemons: dict[int, psutil.Process] = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended, and the others are still to be seen
            if DAEMONS & set(process.cmdline()):
                daemons[process.pid] = process
    return [process for process in daemons.values() if process.ppid() in daemons]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
