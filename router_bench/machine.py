"""What a figure depends on: the machine, the code, the day, and other processes; and the memory of a process tree.

Every measured cell has a `Label`. Only figures of the same machine (`same_machine`) may be compared.
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
"""If these facts of two machines are equal, they are the same machine to a benchmark."""
NOISY = 0.15
"""A cell is noisy if other processes used more cores than this."""
MB = 1 << 20
KERNEL_THREADS = 2
"""The id of the process that is the parent of all threads of the kernel."""
NEIGHBOUR_SECONDS = 2.0
FOOTPRINT_SECONDS = 0.5
"""The seconds between two samples of the memory of a process tree. For each the kernel walks all pages."""


@dataclass(frozen=True)
class Label:
    """Where, from which code and when a cell was measured.

    `machine` has processor, cores, memory, system and versions; it is empty if it was not recorded. `commit` is that of
    a checkout, "" for an installed package, whose version is in `machine`. `dirty`: files differed from the commit.
    """

    machine: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    dirty: bool = False
    date: str = ""

    @classmethod
    def now(cls, date: str = "") -> Self:
        """Return the label of this machine and this code, with a date or today's."""
        commit, dirty = _commit(Path(__file__).resolve().parents[1])
        return cls(machine(), commit, dirty, date or f"{datetime.now().astimezone():%Y-%m-%d}")

    @classmethod
    def of(cls, content: Mapping[str, Any] | None) -> Self:
        """Return the label in a result file; that of an unknown machine if there is none."""
        return cls(**content) if content else cls()

    def same_machine(self, other: Label) -> bool:
        """Return whether two labels are of the same processor, cores and memory; never for an unknown machine."""
        return bool(self.machine) and all(self.machine.get(key) == other.machine.get(key) for key in IDENTITY)

    def machine_text(self) -> str:
        """Return the machine in a few words."""
        if not self.machine:
            return "unknown machine"
        processor, cores, memory, system = [self.machine.get(key, "?") for key in (*IDENTITY, "system")]
        return f"{processor}, {cores} cores, {memory}, {system}"

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
        """Return the label as it is in a result file."""
        return asdict(self)


def summary(labels: Iterable[Label]) -> list[str]:
    """Return a line for each machine of some figures: its cells, its versions, the commits and dates."""
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
    return "; ".join(filter(None, [cells, codes, dates, ", ".join(versions)]))


def machine() -> dict[str, str]:
    """Return this machine, and the versions of the packages that a figure depends on."""
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
            # A process or file may have ended or vanished meanwhile.
            with contextlib.suppress(psutil.Error, OSError):
                self._sample()


class Neighbours:
    """The cores that processes of others use during a `with` block."""

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
        # A process that has started since the last sample has used all of its seconds.
        self._used += sum(max(0.0, seconds - self._seen.get(pid, 0.0)) for pid, seconds in now.items())
        self._seen = now

    def _foreign(self) -> dict[int, float]:
        """Return the processor seconds of every process that is neither ours nor the kernel's."""
        # Kept: a child of a killed child belongs to the init process for a moment, but it is still ours.
        self._ours |= {os.getpid()} | {process.pid for process in psutil.Process().children(recursive=True)}
        seconds = {}
        for process in psutil.process_iter(["pid", "ppid", "cpu_times"]):
            info = process.info
            is_of_kernel = KERNEL_THREADS in (info["pid"], info["ppid"])
            if info["cpu_times"] and info["pid"] not in self._ours and not is_of_kernel:
                seconds[info["pid"]] = info["cpu_times"].user + info["cpu_times"].system
        return seconds


class Footprint(Sampler):
    """The peak memory of a process and all its descendants: the sum of their PSS (/proc/PID/smaps_rollup).

    PSS divides the size of a page by the number of processes that map it, so that the sum counts it once. The sum of
    resident sizes counts the pages of forked Python workers many times. Linux only: elsewhere the peak stays 0.
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
        # The process has ended, or belongs to another user.
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

    A package that is installed in the folder of another project is no part of that project's repository.
    """
    if not _git(package, "ls-files", "--error-unmatch", "__init__.py"):
        return "", False
    # The results that a benchmark writes into its own checkout are no change of the code.
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
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
