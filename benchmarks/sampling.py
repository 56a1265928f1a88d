"""Sample memory from inside the driver while a run goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from benchmarks.checkpoints import batches_done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from typing_extensions import Self

    from benchmarks.cells import Sample
    from benchmarks.runs import Run, Task

MB = 1 << 20
WORKER_SECONDS = 0.1
DRIVER_BATCHES = 50


class Sampler:
    """Call a sampling function in a thread, every so many seconds, until stopped."""

    def __init__(self, sample: Callable[[], None], seconds: float) -> None:
        self._sample, self._seconds = sample, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(self._seconds):
            with contextlib.suppress(psutil.Error, OSError):  # a process or file that is gone by now
                self._sample()


class Workers:
    """Follow the resident memory of Spark's Python workers: the largest one, and all together."""

    def __init__(self) -> None:
        self.by_process: dict[int, int] = {}
        self.together = 0

    def sample(self) -> None:
        """Look once."""
        sizes = {process.pid: process.memory_info().rss for process in _python_workers()}
        for pid, size in sizes.items():
            self.by_process[pid] = max(size, self.by_process.get(pid, 0))
        self.together = max(self.together, sum(sizes.values()))

    def peaks(self) -> dict[str, float]:
        """Return the peaks in megabytes and the number of worker processes seen."""
        largest = max(self.by_process.values(), default=0)
        return {
            "worker_mb": largest / MB,
            "workers_mb": self.together / MB,
            "workers": float(len(self.by_process)),
        }


class Driver:
    """Follow the memory of the driver, every so many batches: its Python and Java processes, and the heap after GC."""

    def __init__(self, spark: SparkSession, task: Task) -> None:
        self._spark, self._task = spark, task
        self._python = psutil.Process()
        self._java = next(child for child in self._python.children(recursive=True) if child.name() == "java")
        self._began = time.perf_counter()
        self.samples: list[dict[str, float]] = []

    def sample(self) -> None:
        """Look once; add a sample when enough batches were done since the last one."""
        batches = batches_done(self._task.checkpoint)
        if batches - (self.samples[-1]["batches"] if self.samples else 0) >= DRIVER_BATCHES:
            self.samples.append(self._now(batches))

    def _now(self, batches: int) -> dict[str, float]:
        java = self._spark._jvm.java.lang  # type: ignore[union-attr]  # no other door to the JVM
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
    if kind == "workers":
        workers = Workers()
        with Sampler(workers.sample, WORKER_SECONDS):
            yield lambda run: replace(run, peaks=workers.peaks())
    elif kind == "driver":
        driver = Driver(spark, task)
        with Sampler(driver.sample, 0.5):
            yield lambda run: replace(run, samples=driver.samples)
    else:
        yield lambda run: run


def _python_workers() -> list[psutil.Process]:
    """Return the workers: children of Spark's daemon, which is a child of Java."""
    below = psutil.Process().children(recursive=True)
    daemons = {process.pid for process in below if "pyspark.daemon" in process.cmdline()}
    return [process for process in below if process.pid in daemons and process.ppid() in daemons]
