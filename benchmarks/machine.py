"""What the figures depend on: the machine, the versions, and what else was running."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.sampling import Sampler

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "msgspec", "confluent-kafka")
NOISY = 0.15
"""Cores that others use from which a cell is called noisy."""


def machine() -> dict[str, str]:
    """Describe this machine and the versions that matter."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "java": _java(),
        **{package: found for package in PACKAGES if (found := _version(package))},
    }


class Neighbours:
    """Measure how many cores processes that are not ours use during a `with` block."""

    def __init__(self) -> None:
        self._used = 0.0
        self._seen: dict[int, float] = {}
        self._ours: set[int] = set()
        self._began = 0.0
        self.load = 0.0
        self.foreign_cores = 0.0

    def __enter__(self) -> Self:
        self.load = os.getloadavg()[0]
        self._seen = self._foreign()
        self._began = time.perf_counter()
        self._sampler = Sampler(self._look, 2.0)
        self._sampler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.__exit__(kind, error, trace)
        self._look()
        self.foreign_cores = self._used / (time.perf_counter() - self._began)

    def _look(self) -> None:
        now = self._foreign()
        # One that was not there before has used all of its seconds since.
        self._used += sum(max(0.0, seconds - self._seen.get(pid, 0.0)) for pid, seconds in now.items())
        self._seen = now

    def _foreign(self) -> dict[int, float]:
        """Return the processor seconds of every process that is neither ours nor the kernel's."""
        # Kept: a child of a killed child belongs to the init process for a moment, but it is still ours.
        self._ours |= {os.getpid()} | {process.pid for process in psutil.Process().children(recursive=True)}
        used = {}
        for process in psutil.process_iter(["pid", "ppid", "cpu_times"]):
            info = process.info
            if info["cpu_times"] and info["pid"] not in self._ours and 2 not in (info["pid"], info["ppid"]):
                used[info["pid"]] = info["cpu_times"].user + info["cpu_times"].system
        return used


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _java() -> str:
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return answer.splitlines()[0] if answer else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:
        return ""
