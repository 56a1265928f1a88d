"""Check every executor before it works: does it have the driver's lake, its versions, and every selected part?

The check is part of the first task of each Python worker, so that executors which join later are checked as well, and
one machine pays nothing for it. A task finds a mark of the driver in the lake and leaves one of its own, which the
driver looks for before it commits anything: staged files in a folder that is another one on each machine would be lost.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs
from pyspark import cloudpickle

from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake

_PACKAGES = ("pyspark", "deltalake", "pyarrow", "spark-event-router")
"""Distributions of which driver and executors must have the same version: what one writes, the other reads."""
_MARKS = "_executors"
"""The folder of the lake with the marks."""
FAULT = "this executor cannot work: "
"""The beginning of the message of a task that has found something missing."""
PROBES = 8
"""Tasks at most by which a start checks the executors."""
LOOKS = 5
PAUSE_SECONDS = 0.5
"""How often, and how far apart, the driver looks for the mark of an executor: a mounted folder may show it late."""
SHIP = "`router submit` sends what is missing; or install it on every machine"


def installed_versions() -> dict[str, str]:
    """Return the versions that driver and executors must have in common; a part that is not installed has none."""
    installed = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in _PACKAGES:
        # Of a checkout there is no package.
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


@dataclass(frozen=True)
class ExecutorCheck:
    """What a Python worker checks before its first task of a run. `token` names the run.

    `modules` are those of the parts, `lake` is None if driver and executors share one machine.
    """

    token: str
    modules: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    lake: Lake | None = None
    mark: str = ""

    def find_faults(self) -> list[str]:
        """Return the faults of the executor, as sentences. Raises OSError if the storage fails. Runs on an executor."""
        return [*self._import_faults(), *self._version_faults(), *self._lake_faults()]

    @property
    def own_mark(self) -> str:
        """Return the mark of this process."""
        return f"{self.mark}@{socket.gethostname()}-{os.getpid()}"

    def _import_faults(self) -> Iterator[str]:
        failed = []
        for name in self.modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                failed.append(f"{name} ({error})")
        if failed:
            yield f"it cannot import {', '.join(failed)}. {SHIP}"

    def _version_faults(self) -> Iterator[str]:
        if not self.versions:
            return
        installed = installed_versions()
        for name, of_driver in self.versions.items():
            if installed.get(name, of_driver) != of_driver:
                yield f"it has {name} {installed[name]} and the driver {of_driver}. Install the driver's version there"

    def _lake_faults(self) -> Iterator[str]:
        """Look for the driver's mark, and leave one here."""
        if self.lake is None:
            return
        # A missing folder is not read: that would create it.
        is_missing = self.lake.is_local and not Path(self.lake.root).is_dir()
        if is_missing or self.lake.read(self.mark) != self.token.encode():
            yield (
                f"{self.lake.root} is not the driver's lake there, but another folder or none. Give `lake` a place "
                "that all machines share: a folder mounted on each at the same path, or a URI such as s3://bucket/lake"
            )
            return
        self.lake.write(self.own_mark, self.token.encode())


passed: set[str] = set()
"""The tokens of the checks that this process has passed."""


def check_executor(check: ExecutorCheck) -> list[str]:
    """Return the faults of this executor, with its host; a process that has none is checked once."""
    if check.token in passed:
        return []
    faults = check.find_faults()
    if not faults:
        passed.add(check.token)
    return [f"{fault} (host {socket.gethostname()})" for fault in faults]


def guard_task(task: Callable[..., Any], check: ExecutorCheck, *, reports: bool) -> Callable[..., Any]:
    """Return a task that checks its executor first; if something is missing it does nothing else.

    With `reports` it returns that, and the mark of its process, in a row of its column `report`; without, it raises.
    """
    # The function travels by value, and unpacks check and task itself: if the executor lacks the router, nothing that
    # Spark unpickles may refer to it.
    pickled_check = cloudpickle.dumps(check)  # type: ignore[no-untyped-call]
    pickled_task = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]

    def run_checked(batches: Any) -> Any:
        import pickle  # noqa: PLC0415 - here, and by value: see above

        mark = None
        try:
            from router.engine.spark.executors import check_executor  # noqa: PLC0415

            own_check = pickle.loads(pickled_check)
            faults = check_executor(own_check)
            if own_check.lake:
                mark = own_check.own_mark
        except ImportError as error:
            faults = [f"it cannot import the router ({error}). {SHIP}"]
        if faults and not reports:
            raise RuntimeError(FAULT + "; ".join(faults))
        if reports and (faults or mark):
            report = json.dumps({"faults": faults, "mark": mark})
            yield pa.RecordBatch.from_arrays([pa.array([report], pa.string())], names=["report"])
        if faults:
            return
        from router.errors import TaskError  # noqa: PLC0415 - it is there, or there were faults

        try:
            yield from pickle.loads(pickled_task)(batches)
        except Exception as error:
            raise TaskError(error) from error

    return run_checked


@dataclass
class Executors:
    """The executors of a run, checked by its tasks. `seen` are the marks that the driver has found in the lake."""

    check: ExecutorCheck = field(default_factory=lambda: ExecutorCheck(uuid.uuid4().hex))
    seen: set[str] = field(default_factory=set)

    @classmethod
    def of_session(cls, spark: SparkSession, modules: Iterable[str], lake: Lake, who: str) -> Executors:
        """Return the executors of a session; leave the driver's mark if they are on other machines.

        `who` names the run: it has one mark in the lake, however often it starts.
        """
        check = ExecutorCheck(uuid.uuid4().hex, tuple(modules))
        if on_one_machine(spark):
            return cls(check)
        mark = f"{_MARKS}/{who}"
        _delete_old_marks(lake, mark)
        lake.write(mark, check.token.encode())
        return cls(replace(check, versions=installed_versions(), lake=lake, mark=mark))

    def check_started(self, spark: SparkSession) -> None:
        """Check the executors that have started; raise StartError if one lacks something."""
        # One task for each of the first cores: the first batch runs in their Python workers. By mapInArrow, as landing
        # tasks are: Spark does not use workers of another kind of task for them.
        tasks = min(spark.sparkContext.defaultParallelism, PROBES)
        job = spark.range(tasks, numPartitions=tasks).mapInArrow(
            self.guard_task(_read_nothing, reports=True), "report string"
        )
        try:
            self.without_looks(json.loads(row["report"]) for row in job.collect())
        except Exception as error:
            reason = refusal_by_executors(error)
            if reason is None:
                raise
            raise reason from error

    def guard_task(self, task: Callable[..., Any], *, reports: bool = False) -> Callable[..., Any]:
        """Return a task that checks its executor first; with `reports`, `without_looks` must be given its rows."""
        return guard_task(task, self.check, reports=reports)

    def without_looks(self, reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the reports of tasks without those of their checks; raise StartError if one lacks something."""
        of_work = []
        faults = set()
        marks = set()
        for report in reports:
            if "faults" not in report:
                of_work.append(report)
                continue
            faults.update(report["faults"])
            if report["mark"]:
                marks.add(report["mark"])
        if faults:
            raise StartError(f"an executor cannot work: {'; '.join(sorted(faults))}")
        for mark in marks - self.seen:
            self._find_mark(mark)
        return of_work

    def _find_mark(self, mark: str) -> None:
        """Find the mark of an executor in the lake and delete it. Raises StartError if it is not there."""
        lake = self.check.lake
        assert lake is not None  # a task that leaves a mark has one
        for attempt in range(LOOKS):
            if attempt:
                time.sleep(PAUSE_SECONDS)
            if lake.read(mark) == self.check.token.encode():
                lake.delete(mark)
                self.seen.add(mark)
                return
        host = mark.rpartition("@")[2].rpartition("-")[0]
        raise StartError(
            f"an executor cannot work: the driver does not see what host {host} writes to {lake.root}, so its files "
            "would be lost. Give `lake` a place that all machines share"
        )


def _delete_old_marks(lake: Lake, mark: str) -> None:
    """Delete the marks of executors that a killed driver did not look for; they begin with the driver's mark."""
    files = lake.files.get_file_info(fs.FileSelector(_MARKS, allow_not_found=True))
    old_marks = [file.path for file in files if file.path.startswith(f"{mark}@")]
    if old_marks:
        lake.delete(*old_marks)


def _read_nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass  # a worker that was not read to the end is not used again
    yield from ()


def on_one_machine(spark: SparkSession) -> bool:
    """Return whether the executors are threads of the driver's JVM."""
    return str(spark.sparkContext.master).partition("[")[0] == "local"


NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^:]*: (?:[^:]*error=2|.*No such file)')
OTHER_PYTHON = re.compile(r"has different version: ([\d.()', ]+) than that in driver:? ([\d.()', ]+),")
DEAD_PYTHON = re.compile(r"Error from python worker:\s*(\S[^\n]*)")
NO_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): (No module named '[\w.]+')")


def refusal_by_executors(error: BaseException) -> StartError | None:
    """Return why executors cannot work at all, by the error of a Spark job; None for other errors."""
    text = str(error)
    reason = ""
    # All but the first come from Spark's worker, before any code of the router runs there.
    if FAULT in text:
        reason = text.partition(FAULT)[2].splitlines()[0]
    elif match := OTHER_PYTHON.search(text):
        reason = (
            f"it runs Python {match[1].strip()} and the driver {match[2].strip()}. Point PYSPARK_PYTHON "
            "(spark.pyspark.python) to the driver's Python version on every machine"
        )
    elif match := NO_PYTHON.search(text):
        reason = (
            f"there is no {match[1]} on its machine. Point PYSPARK_PYTHON (spark.pyspark.python) to a Python that "
            "every machine has under the same path"
        )
    elif match := NO_MODULE.search(text):
        reason = f"{match[1]}. {SHIP}"
    elif match := DEAD_PYTHON.search(text):
        reason = f"its Python does not start: {match[1][:200]}"
    return StartError(f"an executor cannot work: {reason}") if reason else None
