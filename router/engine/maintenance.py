"""Maintain tables between or during batches, and from the command line while the stream runs.

delta-rs does it if it can. Delta on Spark maintains the tables that delta-rs must not write, and files without
statistics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from router.api.columns import quote_identifier
from router.config.models import DEFAULT_MAINTENANCE, parse_interval
from router.delta.commit import retry_on_conflict, size_of
from router.delta.constraints import features_against_merges
from router.delta.kept_versions import KeptVersion
from router.delta.maintenance import (
    MAINTENANCE_TRIES,
    MAINTENANCE_WAIT_SECONDS,
    MaintenanceOptions,
    MaintenanceResult,
    maintain_table,
    shorten_log,
    small_files,
)
from router.delta.replace_by_spark import CONFLICTS, name_folders_at_random
from router.errors import TableError, first_line
from router.own_names import OWN_LAYERS
from router.spark_internals import first_cause, recompute_statistics
from router.storage.locations import may_make_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from router.config.models import Maintenance, View
    from router.delta.lake import Lake
    from router.delta.maintenance_process import MaintenanceProcess
    from router.engine.deploys import Deploy


log = logging.getLogger("router")
REWRITTEN_COMMITS = 20
REWRITTEN_SECONDS = 60.0
"""When a table that merges or views rewrite is due, after its first turn: each commit may have left a copy of it."""
_CLOSING_SECONDS = 60.0
"""How long the end of a run waits for the table that is being maintained."""


@dataclass
class TableMaintenance:
    """The maintenance of a query's tables, when it is due. Each process counts from zero.

    With `in_thread` no batch waits for it: a thread maintains one table at a time. With a `process` delta-rs does its
    part there. `views` read and rewrite tables. The tables in `excluded` are the outboxes of detached sinks. A detached
    query reads each commit with new rows, and a compaction has none: rows that are not sent yet would be deleted with
    the old files. It compacts the rows that it has read by itself. The versions that tables had when a deploy began are
    kept for the time `keep`.
    """

    lake: Lake
    session: Callable[[], SparkSession]
    plans: tuple[Maintenance, ...]
    excluded: frozenset[str] = frozenset()
    in_thread: bool = False
    process: MaintenanceProcess | None = None
    views: tuple[View, ...] = ()
    keep: timedelta = timedelta(0)
    read_deploys: Callable[[], Sequence[Deploy]] = tuple
    commits: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def after_batch(self, tables: Iterable[str], files: Callable[[str], int] = lambda table: 0) -> None:
        """Count one batch more for some tables, and maintain those that are due, as far as the time budget allows.

        `files` returns how many files a table has: those of former processes count as well.
        """
        with self.lock:
            for table in tables:
                if table not in self.last:
                    self.commits[table] = files(table)
                    self.last[table] = time.monotonic()
                self.commits[table] += 1
        if not self.in_thread:
            self._maintain_due()
            return
        is_at_work = self.thread is not None and self.thread.is_alive()
        if not is_at_work and next(self._due_tables(), None):
            self.thread = threading.Thread(target=self._maintain_due, name="maintenance", daemon=True)
            self.thread.start()

    def close(self, *, finish: bool = False) -> None:
        """Wait until the table that is being maintained is done.

        With `finish` wait for all tables that are due and within the budget: a run that ends with its source has no
        other time for them.
        """
        if not finish:
            self.stop.set()
        if self.thread:
            self.thread.join(_CLOSING_SECONDS)
        self.stop.set()

    def plan_for(self, table: str) -> Maintenance | None:
        """Return how a table is maintained; None if it is not."""
        if table in self.excluded:
            return None
        for plan in self.plans:
            if fnmatchcase(table, plan.tables):
                return plan if plan.enabled else None
        return None

    def maintain_table(self, table: str, plan: Maintenance, *, dry: bool = False) -> MaintenanceResult:
        """Maintain one table, with Delta on Spark if delta-rs must not write it. Raises TableError."""
        kept_since = int((time.time() - self.keep.total_seconds()) * 1000)
        options = MaintenanceOptions(
            file_bytes=plan.file_bytes,
            zorder=plan.zorder,
            retention=parse_interval(plan.retention),
            statistics=plan.statistics,
            log_commits=plan.log_commits,
            log_retention=parse_interval(plan.log_retention) if plan.log_retention else None,
            rewritten=any(may_make_name(view.into, table) for view in self.views),
            # A refresh reads what has changed since the one before, and takes its time.
            followed=2 * timedelta(seconds=max((view.refresh_seconds or 0.0 for view in self.views), default=0.0)),
            gradual=plan is DEFAULT_MAINTENANCE,
            unasked=plan is DEFAULT_MAINTENANCE,
            kept=self._versions_to_keep(table, kept_since),
            kept_since=kept_since,
        )
        by_delta_rs = self.process.maintain_table if self.process else maintain_table
        result = by_delta_rs(self.lake, table, options, dry=dry)
        if result.by_spark or (result.without_statistics and not dry):
            return SparkMaintenance(self.session(), self.lake, table, options, dry).complete_by_spark(result)
        return result

    @cached_property
    def _deploys(self) -> Sequence[Deploy]:
        """Return all deploys; a process notes its own before its first batch, and so before it maintains a table."""
        return self.read_deploys()

    def _versions_to_keep(self, table: str, kept_since: int) -> tuple[KeptVersion, ...]:
        # Rows in outboxes and quarantines are on their way.
        if table.startswith(OWN_LAYERS):
            return ()
        deploys = [deploy for deploy in self._deploys if table in deploy.tables and deploy.since >= kept_since]
        return tuple(KeptVersion(deploy.tables[table], deploy.since) for deploy in deploys)

    def _due_tables(self) -> Iterator[tuple[str, Maintenance]]:
        """Yield the tables that are due, those with the most commits first."""
        now = time.monotonic()
        with self.lock:
            counts = self.commits.most_common()
        for table, commits in counts:
            plan = self.plan_for(table)
            if plan is None or not commits:
                continue
            age = now - self.last.get(table, now)
            is_due = commits >= plan.commits or age >= parse_interval(plan.every).total_seconds()
            if plan is DEFAULT_MAINTENANCE and table in self.rewritten:
                is_due |= commits >= REWRITTEN_COMMITS and age >= REWRITTEN_SECONDS
            if is_due:
                yield table, plan

    def _maintain_due(self) -> None:
        """Maintain the tables that are due, within the budgets."""
        began = time.monotonic()
        for table, plan in self._due_tables():
            if not self.stop.is_set() and time.monotonic() < began + parse_interval(plan.budget).total_seconds():
                self._maintain_and_log(table, plan)
        if self.process:
            self.process.end_process()

    def _maintain_and_log(self, table: str, plan: Maintenance) -> None:
        began = time.monotonic()
        with self.lock:
            del self.commits[table]
            self.last[table] = began
        try:
            result = self.maintain_table(table, plan)
        except TableError as error:
            log.warning("maintenance: %s", error)
            return
        except Exception as error:
            if not self.in_thread:
                raise
            log.warning("maintenance: %s: %s", table, first_line(error))  # an error of a thread is not seen otherwise
            return
        if result.rewritten:
            self.rewritten.add(table)
        if result.refused and self.refused.get(table) != result.refused:
            message = (
                "maintenance: %s: its files cannot be joined and stay as they are: %s; "
                "`router verify FILE %s --contents` finds rows that are lost, `router rebuild FILE %s` mends them"
            )
            log.warning(message, table, result.refused, table, table)
            self.refused[table] = result.refused
        text = f"{result.files} files became {result.into}, {result.deleted} old ones deleted"
        if result.without_statistics:
            text += f", {result.without_statistics} got statistics"
        log.info("maintenance: %s: %s, %.2f s", table, text, time.monotonic() - began)


T = TypeVar("T")


@dataclass(frozen=True)
class SparkMaintenance:
    """The maintenance of one table by Delta on Spark; `dry` only returns what would be done."""

    spark: SparkSession
    lake: Lake
    table: str
    options: MaintenanceOptions
    dry: bool

    def complete_by_spark(self, result: MaintenanceResult) -> MaintenanceResult:
        """Do what delta-rs could not, and return all that was done. Waits for another writer. Raises TableError."""
        try:
            if result.by_spark:
                result = self._compact_files(result)
            if result.without_statistics and not self.dry and not result.refused:
                # Delta's own command for statistics is not in the open version.
                address = self.lake.spark_address(self.table)
                self._retry_conflicts(lambda: recompute_statistics(self.spark, address))
        except Exception as error:  # whatever Spark raises concerns this table only
            raise TableError(self.table, f"it could not be maintained: {str(error).splitlines()[0]}") from error
        return result

    def _compact_files(self, result: MaintenanceResult) -> MaintenanceResult:
        handle = self.lake.open(self.table)
        assert handle is not None
        session = self._new_session()
        address = self.lake.spark_address(self.table)
        vacuum = f"VACUUM delta.{quote_identifier(address)} RETAIN {self.options.retention_hours} HOURS"
        old_paths = [row["path"].removeprefix("file:") for row in session.sql(f"{vacuum} DRY RUN").collect()]
        freed = size_of(self.lake, self.table, [path.removeprefix(f"{address}/") for path in old_paths])
        result = replace(result, deleted=len(old_paths), freed=freed)
        if self.dry:
            files, into = small_files(handle, self.options)
            return self._shorten_log(replace(result, files=files, into=into))
        name_folders_at_random(session, address, handle)
        optimize = f"OPTIMIZE delta.{quote_identifier(address)}"
        # Delta refuses to order the rows of a table that is clustered.
        if self.options.zorder and "clustering" not in result.by_spark:
            optimize += f" ZORDER BY ({', '.join(map(quote_identifier, self.options.zorder))})"
        try:
            (metrics,) = self._retry_conflicts(lambda: session.sql(optimize).select("metrics.*").collect())
            result = replace(result, files=metrics["numFilesRemoved"], into=metrics["numFilesAdded"])
        except CONFLICTS:
            raise
        except Exception as error:  # a damaged file, for one: what else is to be done does not need it
            result = replace(result, refused=first_cause(error))
            if not features_against_merges(handle):
                handle.create_checkpoint()  # for the log: without new files Spark makes none
        session.sql(vacuum).collect()
        return self._shorten_log(result)

    def _shorten_log(self, result: MaintenanceResult) -> MaintenanceResult:
        """Delete what only old versions refer to, up to a checkpoint of Spark: it makes one in ten commits."""
        handle = self.lake.open(self.table)
        assert handle is not None
        unreadable = shorten_log(self.lake, self.table, handle, self.options, dry=self.dry)
        freed = result.freed + sum(size for _, size in unreadable)
        return replace(result, deleted=result.deleted + len(unreadable), freed=freed)

    def _new_session(self) -> SparkSession:
        session = self.spark.newSession()
        # Delta refuses a short retention; the configuration of the router has been checked for it.
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        # VACUUM lists a table in as many tasks as this number, by default in up to 10 000.
        tasks = self.spark.sparkContext.defaultParallelism
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", tasks)
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(self.options.file_bytes))
        session.conf.set("spark.databricks.delta.optimize.minFileSize", str(self.options.file_bytes))
        return session

    def _retry_conflicts(self, work: Callable[[], T]) -> T:
        return retry_on_conflict(work, CONFLICTS, MAINTENANCE_TRIES, MAINTENANCE_WAIT_SECONDS)
