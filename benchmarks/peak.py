"""Watch the memory of processes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from benchmarks.sampling import MB, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 0.05


class Peak(Sampler):
    """Watch the memory of the largest process below this one that is of a kind."""

    def __init__(self, of_kind: Callable[[psutil.Process], bool]) -> None:
        super().__init__(self._look, SECONDS)
        self.of_kind, self.megabytes = of_kind, 0

    def _look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if self.of_kind(process):
                    self.megabytes = max(self.megabytes, process.memory_info().rss // MB)


def is_driver(process: psutil.Process) -> bool:
    """Say whether a process is the JVM."""
    return "java" in process.name()


def is_worker(process: psutil.Process) -> bool:
    """Say whether a process is a Python worker of Spark."""
    return not is_driver(process) and "pyspark" in " ".join(process.cmdline())
