"""Look at every executor before it works: does it have the driver's lake, its versions, and every selected part?

The look rides in the first task of each Python worker, so that executors which join later are looked at, too, and one
machine pays nothing for it. A task finds a mark of the driver in the lake and leaves one of its own, which the driver
looks for before it commits anything: a folder that is another one on each machine would take staged files that nobody
finds again.
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
from dataclasses import dataclass, field
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

PACKAGES = ("pyspark", "deltalake", "pyarrow", "spark-event-router")
"""Distributions of which driver and executors must have the same version: what one writes, the other reads."""
MARKS = "_executors"
"""The folder of the lake with the marks."""
FAULT = "this executor cannot work: "
"""What the message of a task begins with that has found something missing."""
PROBES = 8
LOOKS = 5
PAUSE_SECONDS = 0.5
"""How often, and how far apart, the driver looks for the mark of an executor: a mounted folder may show it late."""
SHIP = "`router submit` sends what is missing; or install it on every machine"


def versions() -> dict[str, str]:
    """Return the versions that driver and executors must have in common; a part that is not installed has none."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # on the path of a checkout
            continue
    return found


@dataclass(frozen=True)
class ExecutorCheck:
    """What a Python worker looks for before its first task of a run. `token` names the run.

    `modules` are those of the parts, `lake` is None where driver and executors share one machine.
    """

    token: str
    modules: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    lake: Lake | None = None
    mark: str = ""

    def faults(self) -> list[str]:
        """Return what is missing here, as sentences. Raises OSError where the storage fails. Runs on an executor."""
        return [*self._imports(), *self._versions(), *self._lake()]

    @property
    def own_mark(self) -> str:
        """Return the mark of this process."""
        return f"{self.mark}@{socket.gethostname()}-{os.getpid()}"

    def _imports(self) -> Iterator[str]:
        failed = []
        for name in self.modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                failed.append(f"{name} ({error})")
        if failed:
            yield f"it cannot import {', '.join(failed)}. {SHIP}"

    def _versions(self) -> Iterator[str]:
        here = versions() if self.versions else {}
        for name, wanted in self.versions.items():
            if here.get(name, wanted) != wanted:
                yield f"it has {name} {here[name]} and the driver {wanted}. Install the driver's version there"

    def _lake(self) -> Iterator[str]:
        """Look for the driver's mark, and leave one here."""
        if self.lake is None:
            return
        there = not self.lake.local or Path(self.lake.root).is_dir()  # reading would make the folder
        if not there or self.lake.read(self.mark) != self.token.encode():
            yield (
                f"{self.lake.root} is not the driver's lake there, but another folder or none. Give `lake` a place "
                "that all machines share: a folder mounted on each at the same path, or a URI such as s3://bucket/lake"
            )
            return
        self.lake.write(self.own_mark, self.token.encode())


passed: set[str] = set()
"""The tokens of the checks that this process has passed."""


def look(check: ExecutorCheck) -> list[str]:
    """Return what is missing on this executor; look once in each process that has everything."""
    if check.token in passed:
        return []
    if not (found := check.faults()):
        passed.add(check.token)
    return [f"{fault} (host {socket.gethostname()})" for fault in found]


def guarded(task: Callable[..., Any], check: ExecutorCheck, *, reports: bool) -> Callable[..., Any]:
    """Return a task that looks at its executor first; where something is missing it does nothing else.

    With `reports` it says so in a row of its column `report`, after the mark of its process, and without it raises.
    The function travels by value and unpacks the task only then: where the router is missing, nothing of it may be
    named by what Spark unpickles.
    """
    about, work = cloudpickle.dumps(check), cloudpickle.dumps(task)  # type: ignore[no-untyped-call]

    def run(batches: Any) -> Any:
        import pickle  # noqa: PLC0415 - here, and by value: see above

        mark = None
        try:
            from router.engine.spark.executors import look  # noqa: PLC0415

            known = pickle.loads(about)
            found = look(known)
            mark = known.own_mark if known.lake else None
        except ImportError as error:
            found = [f"it cannot import the router ({error}). {SHIP}"]
        if found and not reports:
            raise RuntimeError(FAULT + "; ".join(found))
        if reports and (found or mark):
            told = json.dumps({"faults": found, "mark": mark})
            yield pa.RecordBatch.from_arrays([pa.array([told], pa.string())], names=["report"])
        if not found:
            yield from pickle.loads(work)(batches)

    return run


@dataclass
class Executors:
    """The executors of a run, looked at by its tasks. `seen` are the marks that the driver has found in the lake."""

    check: ExecutorCheck = field(default_factory=lambda: ExecutorCheck(uuid.uuid4().hex))
    seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, spark: SparkSession, modules: Iterable[str], lake: Lake, who: str) -> Executors:
        """Return the executors of a session; leave the driver's mark where they are on other machines.

        `who` names the run: it has one mark in the lake, however often it starts.
        """
        token, found = uuid.uuid4().hex, tuple(modules)
        if on_one_machine(spark):
            return cls(ExecutorCheck(token, found))
        mark = f"{MARKS}/{who}"
        _forget(lake, mark)
        lake.write(mark, token.encode())
        return cls(ExecutorCheck(token, found, versions(), lake, mark))

    def look(self, spark: SparkSession) -> None:
        """Look at the executors that are there; raise StartError where one lacks something.

        One task for each of the first cores: their Python workers are the ones that the first batch runs in. As landing
        tasks are, by mapInArrow: workers of another kind of task are not taken for them.
        """
        tasks = min(spark.sparkContext.defaultParallelism, PROBES)
        job = spark.range(tasks, numPartitions=tasks).mapInArrow(self.guarded(_read, reports=True), "report string")
        try:
            self.without_looks(json.loads(row["report"]) for row in job.collect())
        except Exception as error:
            if refused := refusal(error):
                raise refused from error
            raise

    def guarded(self, task: Callable[..., Any], *, reports: bool = False) -> Callable[..., Any]:
        """Return a task that looks at its executor first; with `reports`, `without_looks` must be given its rows."""
        return guarded(task, self.check, reports=reports)

    def without_looks(self, reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what tasks report beside their looks; raise StartError where one has found something missing."""
        rest, faults, marks = [], set[str](), set[str]()
        for report in reports:
            if "faults" not in report:
                rest.append(report)
                continue
            faults.update(report["faults"])
            marks |= {report["mark"]} if report["mark"] else set()
        if faults:
            raise StartError(f"an executor cannot work: {'; '.join(sorted(faults))}")
        for mark in marks - self.seen:
            self._find(mark)
        return rest

    def _find(self, mark: str) -> None:
        lake, host = self.check.lake, mark.rpartition("@")[2].rpartition("-")[0]
        assert lake is not None  # a task that leaves a mark has one
        for last in range(LOOKS):
            if lake.read(mark) == self.check.token.encode():
                lake.delete(mark)
                self.seen.add(mark)
                return
            if last < LOOKS - 1:
                time.sleep(PAUSE_SECONDS)
        raise StartError(
            f"an executor cannot work: the driver does not see what host {host} writes to {lake.root}, so its files "
            "would be lost. Give `lake` a place that all machines share"
        )


def _forget(lake: Lake, mark: str) -> None:
    """Delete the marks of executors that a driver which was killed did not look for; they have its mark's name."""
    found = lake.files.get_file_info(fs.FileSelector(MARKS, allow_not_found=True))
    if old := [info.path for info in found if info.path.startswith(f"{mark}@")]:
        lake.delete(*old)


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass  # a worker that was not read to the end is not used again
    yield from ()


def on_one_machine(spark: SparkSession) -> bool:
    """Say whether the executors are threads of the driver's JVM."""
    return str(spark.sparkContext.master).partition("[")[0] == "local"


NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^:]*: (?:[^:]*error=2|.*No such file)')
OTHER_PYTHON = re.compile(r"has different version: ([\d.()', ]+) than that in driver:? ([\d.()', ]+),")
DEAD_PYTHON = re.compile(r"Error from python worker:\s*(\S[^\n]*)")
NO_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): (No module named '[\w.]+')")


def refusal(error: BaseException) -> StartError | None:
    """Return why executors cannot work at all, where an error of a Spark job says that; None for other errors.

    These come from Spark's worker before any code of the router runs there.
    """
    text = str(error)
    if FAULT in text:
        return StartError(f"an executor cannot work: {text.partition(FAULT)[2].splitlines()[0]}")
    if found := OTHER_PYTHON.search(text):
        return StartError(
            f"an executor cannot work: it runs Python {found[1].strip()} and the driver {found[2].strip()}. Point "
            "PYSPARK_PYTHON (spark.pyspark.python) to the driver's Python version on every machine"
        )
    if found := NO_PYTHON.search(text):
        return StartError(
            f"an executor cannot work: there is no {found[1]} on its machine. Point PYSPARK_PYTHON "
            "(spark.pyspark.python) to a Python that every machine has under the same path"
        )
    if found := NO_MODULE.search(text):
        return StartError(f"an executor cannot work: {found[1]}. {SHIP}")
    if found := DEAD_PYTHON.search(text):
        return StartError(f"an executor cannot work: its Python does not start: {found[1][:200]}")
    return None
