"""Watch the memory of processes."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable


class Peak:
    """Watch the memory of the largest process below this one that is of a kind."""

    def __init__(self, of_kind: Callable[[psutil.Process], bool]) -> None:
        self.of_kind, self.megabytes, self.ended = of_kind, 0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if self.of_kind(process):
                        self.megabytes = max(self.megabytes, process.memory_info().rss >> 20)


def is_driver(process: psutil.Process) -> bool:
    """Say whether a process is the JVM."""
    return "java" in process.name()


def is_worker(process: psutil.Process) -> bool:
    """Say whether a process is a Python worker of Spark."""
    return not is_driver(process) and "pyspark" in " ".join(process.cmdline())
