"""What a figure depends on: the machine, the code and the day, what else was running, and what a process tree takes.

Every measured cell carries a `Label`. Figures of two machines are never put side by side as if they were of one:
`same_machine` says whether they may be.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

PACKAGES = (
    "spark-event-router", "pyspark", "delta-spark", "deltalake", "pyarrow", "msgspec", "confluent-kafka",
)  # fmt: skip
IDENTITY = ("processor", "cores", "memory")
"""What makes two machines the same one to a benchmark."""
NOISY = 0.15
"""Cores that others use from which a cell is called noisy."""
MB = 1 << 20
NEIGHBOUR_SECONDS = 2.0
FOOTPRINT_SECONDS = 0.5
"""Between two looks at the memory of a process tree: the kernel walks every page for one."""


@dataclass(frozen=True)
class Label:
    """Where, from which code and when a cell was measured.

    `machine` names processor, cores, memory, system and versions; empty where nobody wrote it down. `commit` is that of
    a checkout, "" for an installed package, whose version is in `machine`; `dirty` says that files differed from it.
    """

    machine: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    dirty: bool = False
    date: str = ""

    @classmethod
    def now(cls, date: str = "") -> Self:
        """Return the label of this machine and this code; `date` in place of today."""
        commit, dirty = _commit(Path(__file__).resolve().parents[1])
        return cls(machine(), commit, dirty, date or f"{datetime.now().astimezone():%Y-%m-%d}")

    @classmethod
    def of(cls, content: Mapping[str, Any] | None) -> Self:
        """Return the label in a result file; that of an unknown machine where there is none."""
        return cls(**content) if content else cls()

    def same_machine(self, other: Label) -> bool:
        """Say whether two labels are of the same processor, cores and memory; an unknown machine is like no other."""
        return bool(self.machine) and all(self.machine.get(key) == other.machine.get(key) for key in IDENTITY)

    def machine_text(self) -> str:
        """Return the machine in a few words."""
        if not self.machine:
            return "unknown machine"
        facts = {key: self.machine.get(key, "?") for key in (*IDENTITY, "system")}
        return f"{facts['processor']}, {facts['cores']} cores, {facts['memory']}, {facts['system']}"

    def code_text(self) -> str:
        """Return the commit, or the version of an installed package."""
        if self.commit:
            changes = " with changes" if self.dirty else ""
            return f"commit {self.commit[:10]}{changes}"
        release = self.machine.get("spark-event-router")
        return f"version {release}" if release else "unknown commit"

    def text(self) -> str:
        """Return machine, code and date in a line."""
        return "; ".join((self.machine_text(), self.code_text(), self.date or "unknown date"))

    def asdict(self) -> dict[str, Any]:
        """Return what a result file holds."""
        return asdict(self)


def summary(labels: Iterable[Label]) -> list[str]:
    """Return a line for each machine that figures come from: its cells, its versions, the commits and dates."""
    by_machine: dict[str, list[Label]] = {}
    for label in labels:
        by_machine.setdefault(label.machine_text(), []).append(label)
    return [f"{name}: {_summary_of(of_machine)}" for name, of_machine in by_machine.items()]


def _summary_of(labels: list[Label]) -> str:
    codes = ", ".join(sorted({label.code_text() for label in labels}))
    dates = ", ".join(sorted({label.date or "unknown date" for label in labels}))
    latest = max(labels, key=lambda label: label.date).machine
    versions = [f"{name} {value}" for name, value in latest.items() if name not in (*IDENTITY, "system")]
    cells = "1 cell" if len(labels) == 1 else f"{len(labels)} cells"
    parts = [cells, codes, dates]
    if versions:
        parts.append(", ".join(versions))
    return "; ".join(parts)


def machine() -> dict[str, str]:
    """Describe this machine and the versions that matter."""
    memory = psutil.virtual_memory().total / (1 << 30)
    kernel = ".".join(platform.release().split(".")[:2])
    described = {
        "processor": _processor(),
        "cores": str(_cores()),
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {kernel}",
        "python": platform.python_version(),
        "java": _java(),
    }
    for package in PACKAGES:
        installed = _version(package)
        if installed:
            described[package] = installed
    return described


class Sampler:
    """A thread that calls a sampling function every so many seconds, for as long as a `with` block."""

    def __init__(self, sample: Callable[[], None], seconds: float) -> None:
        self._sample = sample
        self._seconds = seconds
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
            # A process or file may be gone by now.
            with contextlib.suppress(psutil.Error, OSError):
                self._sample()


class Neighbours:
    """The cores that processes which are not ours use during a `with` block."""

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
        self._sampler = Sampler(self._look, NEIGHBOUR_SECONDS)
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


class Footprint(Sampler):
    """The peak memory of a process and all below it: the sum of their PSS (/proc/PID/smaps_rollup).

    PSS shares a page out among those that map it, so that the sum counts it once; the sum of resident sizes counts the
    pages of forked Python workers many times. Linux only: elsewhere the peak stays 0.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(self._look, FOOTPRINT_SECONDS)
        self._pid = pid
        self.peak = 0

    @property
    def megabytes(self) -> float:
        """Return the peak."""
        return self.peak / MB

    def _look(self) -> None:
        root = psutil.Process(self._pid)
        processes = [root, *root.children(recursive=True)]
        self.peak = max(self.peak, sum(_pss(process.pid) for process in processes))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        # It has ended, or is somebody else's.
        return 0
    for line in lines:
        if line.startswith("Pss:"):
            _, kilobytes, *_ = line.split()
            return int(kilobytes) << 10
    return 0


def bytes_on_disk(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _commit(package: Path) -> tuple[str, bool]:
    """Return the commit of the checkout that a package is part of, and whether files differ from it.

    A package that was installed into somebody's project is no part of that project's repository.
    """
    if not _git(package, "ls-files", "--error-unmatch", "__init__.py"):
        return "", False
    # What a benchmark writes down in its own checkout is no change of the code.
    changes = _git(package, "status", "--porcelain", "--", ":(top)", ":(top,exclude)benchmarks/results")
    return _git(package, "rev-parse", "HEAD"), bool(changes)


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            _, _, name = line.partition(":")
            return name.strip()
    return platform.processor()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return ""
    return answer.splitlines()[0] if answer else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
