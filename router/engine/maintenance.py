"""Maintain tables beside batches, and from the command line beside a running stream.

delta-rs does it where it can. Delta on Spark does what delta-rs must not write, and files that lack statistics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from delta.exceptions import DeltaConcurrentModificationException

from router.columns import quoted
from router.config.models import UNASKED, interval
from router.delta.commit import retry_on_conflict
from router.delta.maintenance import (
    TRIES,
    WAIT_SECONDS,
    MaintenanceOptions,
    MaintenanceResult,
    maintain,
    size_of,
    small_files,
)
from router.errors import TableError, first_line
from router.spark_internals import recompute_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from router.config.models import Maintenance
    from router.delta.lake import Lake
    from router.delta.maintenance_process import MaintenanceProcess


log = logging.getLogger("router")
CLOSING_SECONDS = 60.0
"""How long the end of a run waits for the table that is being maintained."""


@dataclass
class TableMaintenance:
    """The maintenance of a query's tables, when it is due. What it counts begins anew with each process.

    With `beside` it is done in a thread, so that no batch waits for it, one table at a time; with a `process` delta-rs
    does its part there. The tables in `left` are not touched: the outboxes of detached sinks. Their queries read each
    commit that brings rows, and compaction brings none: rows that are not sent yet would be deleted with the old files.
    They compact what they have read.
    """

    lake: Lake
    session: Callable[[], SparkSession]
    plans: tuple[Maintenance, ...]
    left: frozenset[str] = frozenset()
    beside: bool = False
    process: MaintenanceProcess | None = None
    commits: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def after_batch(self, tables: Iterable[str], files: Callable[[str], int] = lambda table: 0) -> None:
        """Count one batch more for some tables, and maintain those that are due, as far as the time budget allows.

        `files` says how many files a table has: what former processes have left is counted, too.
        """
        with self.lock:
            for table in tables:
                if table not in self.last:
                    self.commits[table] = files(table)
                    self.last[table] = time.monotonic()
                self.commits[table] += 1
        if not self.beside:
            self._work()
        elif (self.thread is None or not self.thread.is_alive()) and next(self._due(), None):
            self.thread = threading.Thread(target=self._work, name="maintenance", daemon=True)
            self.thread.start()

    def close(self, *, finish: bool = False) -> None:
        """Return when the table that is being maintained is done, or, to `finish`, all that are due and in the budget.

        A run that ends with its source has no other time for it.
        """
        if not finish:
            self.stop.set()
        if self.thread:
            self.thread.join(CLOSING_SECONDS)
        self.stop.set()

    def plan(self, table: str) -> Maintenance | None:
        """Return how a table is maintained."""
        if table in self.left:
            return None
        plan = next((plan for plan in self.plans if fnmatchcase(table, plan.tables)), None)
        return plan if plan and plan.enabled else None

    def maintain(self, table: str, plan: Maintenance, *, dry: bool = False) -> MaintenanceResult:
        """Maintain one table, with Delta on Spark where delta-rs must not write it. Raises TableError."""
        log_retention = interval(plan.log_retention) if plan.log_retention else None
        options = MaintenanceOptions(
            plan.file_bytes,
            plan.zorder,
            interval(plan.retention),
            plan.statistics,
            log_commits=plan.log_commits,
            log_retention=log_retention,
            gradual=plan is UNASKED,
            unasked=plan is UNASKED,
        )
        by_delta_rs = self.process.maintain if self.process else maintain
        found = by_delta_rs(self.lake, table, options, dry=dry)
        if found.by_spark or (found.without_statistics and not dry):
            return SparkMaintenance(self.session(), self.lake, table, options, dry).done(found)
        return found

    def _due(self) -> Iterator[tuple[str, Maintenance]]:
        """Yield the tables that are due, those with the most commits first."""
        now = time.monotonic()
        with self.lock:
            counted = self.commits.most_common()
        for table, commits in counted:
            plan = self.plan(table)
            since = now - self.last.get(table, now)
            if plan and commits and (commits >= plan.commits or since >= interval(plan.every).total_seconds()):
                yield table, plan

    def _work(self) -> None:
        """Maintain what is due, within the budgets."""
        began = time.monotonic()
        for table, plan in self._due():
            if not self.stop.is_set() and time.monotonic() < began + interval(plan.budget).total_seconds():
                self._maintain(table, plan)
        if self.process:
            self.process.end()

    def _maintain(self, table: str, plan: Maintenance) -> None:
        began = time.monotonic()
        with self.lock:
            del self.commits[table]
            self.last[table] = began
        try:
            found = self.maintain(table, plan)
        except TableError as error:
            log.warning("maintenance: %s", error)
            return
        except Exception as error:
            if not self.beside:
                raise
            log.warning("maintenance: %s: %s", table, first_line(error))  # of a thread nobody would see it
            return
        text = f"{found.files} files became {found.into}, {found.deleted} old ones deleted"
        text += f", {found.without_statistics} got statistics" if found.without_statistics else ""
        log.info("maintenance: %s: %s, %.2f s", table, text, time.monotonic() - began)


T = TypeVar("T")


@dataclass(frozen=True)
class SparkMaintenance:
    """The maintenance of one table by Delta on Spark; `dry` only says what would be done."""

    spark: SparkSession
    lake: Lake
    table: str
    options: MaintenanceOptions
    dry: bool

    def done(self, found: MaintenanceResult) -> MaintenanceResult:
        """Do what delta-rs has left, and return all that was done. Waits for another writer. Raises TableError."""
        try:
            if found.by_spark:
                found = self._compacted(found)
            if found.without_statistics and not self.dry:
                self._tried(self._recompute)
        except Exception as error:  # whatever Spark raises concerns this table only
            raise TableError(self.table, f"it could not be maintained: {str(error).splitlines()[0]}") from error
        return found

    def _compacted(self, found: MaintenanceResult) -> MaintenanceResult:
        handle = self.lake.open(self.table)
        assert handle is not None
        session, address = self._session(), self.lake.spark_address(self.table)
        table = f"delta.{quoted(address)}"
        vacuum = f"VACUUM {table} RETAIN {self.options.hours} HOURS"
        old = [row["path"].removeprefix("file:") for row in session.sql(f"{vacuum} DRY RUN").collect()]
        freed = size_of(self.lake, self.table, [path.removeprefix(f"{address}/") for path in old])
        found = replace(found, deleted=len(old), freed=freed)
        if self.dry:
            files, into = small_files(handle, self.options)
            return replace(found, files=files, into=into)
        columns = () if "clustering" in found.by_spark else self.options.zorder
        order = f" ZORDER BY ({', '.join(map(quoted, columns))})" if columns else ""
        optimize = f"OPTIMIZE {table}{order}"
        (done,) = self._tried(lambda: session.sql(optimize).select("metrics.*").collect())
        session.sql(vacuum).collect()
        return replace(found, files=done["numFilesRemoved"], into=done["numFilesAdded"])

    def _session(self) -> SparkSession:
        session = self.spark.newSession()
        # the configuration is checked
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        # VACUUM lists a table in as many tasks as this says, 10 000 of them if nobody does
        tasks = self.spark.sparkContext.defaultParallelism
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", tasks)
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(self.options.file_bytes))
        session.conf.set("spark.databricks.delta.optimize.minFileSize", str(self.options.file_bytes))
        return session

    def _recompute(self) -> None:
        """Let Delta read the files and note their statistics. Its command for that is not in the open version."""
        recompute_statistics(self.spark, self.lake.spark_address(self.table))

    def _tried(self, work: Callable[[], T]) -> T:
        return retry_on_conflict(work, DeltaConcurrentModificationException, TRIES, WAIT_SECONDS)
