"""Maintain tables between batches, and from the command line beside a running stream."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from router.config.intervals import interval
from router.delta.maintenance import Care, Maintained, maintain
from router.engine.spark_care import SparkCare
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from router.config.models import Maintenance
    from router.delta.lake import Lake

log = logging.getLogger("router")


@dataclass
class Caretaker:
    """Maintain the tables of a query when their time has come. What it counts begins anew with each process.

    The tables in `left` are not touched: the lanes of detached sinks. Their queries follow each commit that brings
    rows, and files that were joined bring none: what had not been sent yet would be deleted with the old files.
    """

    lake: Lake
    session: Callable[[], SparkSession]
    plans: tuple[Maintenance, ...]
    left: frozenset[str] = frozenset()
    commits: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)

    def after_batch(self, tables: Iterable[str]) -> None:
        """Count a batch into some tables, and maintain those whose time has come, as far as the budget goes."""
        self.commits.update(tables)
        for plan in self.plans:
            end = time.monotonic() + interval(plan.budget).total_seconds()
            for table, _ in self.commits.most_common():
                if self.plan(table) is plan and self._due(table, plan) and time.monotonic() < end:
                    self._maintain(table, plan)

    def plan(self, table: str) -> Maintenance | None:
        """Return how a table is maintained."""
        if table in self.left:
            return None
        return next((plan for plan in self.plans if fnmatchcase(table, plan.tables)), None)

    def maintain(self, table: str, plan: Maintenance, *, dry: bool = False) -> Maintained:
        """Maintain one table, with Delta on Spark where nothing else may write it. Raises TableError."""
        care = Care(plan.file_bytes, plan.zorder, interval(plan.retention), plan.statistics)
        found = maintain(self.lake, table, care, dry=dry)
        if found.by_spark or (found.bare and not dry):
            return SparkCare(self.session(), self.lake, table, care, dry).done(found)
        return found

    def _due(self, table: str, plan: Maintenance) -> bool:
        since = time.monotonic() - self.last.setdefault(table, time.monotonic())
        return self.commits[table] >= plan.commits or since >= interval(plan.every).total_seconds()

    def _maintain(self, table: str, plan: Maintenance) -> None:
        began = time.monotonic()
        del self.commits[table]
        self.last[table] = began
        try:
            found = self.maintain(table, plan)
        except TableError as error:
            log.warning("maintenance: %s", error)
            return
        told = f"{found.files} files became {found.into}, {found.deleted} old ones deleted"
        told += f", {found.bare} got statistics" if found.bare else ""
        log.info("maintenance: %s: %s, %.2f s", table, told, time.monotonic() - began)
