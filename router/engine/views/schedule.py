"""When views are refreshed: while the stream runs, by a thread of their own; and at the end of a run that ends.

Batches continue meanwhile: their jobs come first, refreshes have a job pool of their own (router/engine/spark/
pools.xml). A view that cannot be refreshed is tried again when it is due the next time, and does not stop others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from router.config.models import View, reads_tables_of
from router.delta.table_cache import SparkTables, TableCache
from router.engine.spark.executors import Executors
from router.engine.views.note import note_failed_refresh
from router.engine.views.refresh import Refresher
from router.engine.views.sources import ViewTables
from router.errors import RouterError, ViewError, first_line
from router.own_names import STAGING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.views.note import Note
    from router.engine.views.refresh import RefreshedView

log = logging.getLogger("router")
POOL = "views"
_JOB_GROUP = "router views"
_SCHEDULE_LOOK_SECONDS = 0.5
ENDING_SECONDS = 60.0
"""How long the end of a run waits for a refresh that is cancelled."""


class RefreshObserver(Protocol):
    """An observer of refreshes. The thread that makes them calls it."""

    def view_refreshed(self, view: str, note: Note | None) -> None:
        """Note a refresh that succeeded, also if nothing had changed; `note` is None if the view reads nothing yet."""

    def view_failed(self, view: str, cause: str) -> None:
        """Note a refresh that failed."""


def create_refresher(
    config: Config, spark: SparkSession, lake: Lake, store: CheckpointStore, executors: Executors | None = None
) -> Refresher:
    """Return the object that refreshes the views of a configuration."""
    only_spark = config.commit == "spark"
    cache = SparkTables(spark, lake) if only_spark else TableCache(lake)
    folder = f"{STAGING}/{config.name}" if only_spark else None
    return Refresher(ViewTables(config, lake, cache), spark, store, executors or Executors(), folder)


def in_order(views: Iterable[View]) -> list[View]:
    """Return views so that each comes after those it reads: validation has refused circles."""
    pending = list(views)
    ordered: list[View] = []
    while pending:
        ready = [view for view in pending if not _reads_any(view, pending)]
        ordered += ready
        pending = [view for view in pending if view not in ordered]
    return ordered


def _reads_any(view: View, others: Iterable[View]) -> bool:
    return any(other is not view and reads_tables_of(view, other) for other in others)


@dataclass
class ViewSchedule:
    """The refreshes of a run.

    `pending`: view -> batches since its last refresh. `last`: view -> when that was (monotonic seconds). `written` are
    tables that refreshes have written since `batch` was called. `failed`: view -> the error of its last refresh.
    """

    refresher: Refresher
    views: list[View]
    pending: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    failed: dict[str, ViewError] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    observer: RefreshObserver | None = None

    def start_thread(self) -> None:
        """Refresh views that are due in a thread, until `end_thread` is called."""
        if any(not view.on_demand for view in self.views) and self.thread is None:
            self.thread = threading.Thread(target=self._refresh_due_views, name="views", daemon=True)
            self.thread.start()

    def count_batch(self, tables: Iterable[str]) -> set[str]:
        """Count a batch into some tables, or into unknown ones; return the tables that refreshes have written since."""
        if not self.views:
            return set()
        batch_tables = list(tables)
        with self.lock:
            for view in self.views:
                if view.refresh_commits and (not batch_tables or self._may_read(view, batch_tables)):
                    self.pending[view.name] += 1
            written = self.written
            self.written = set()
        return written

    def end_thread(self, *, refresh: bool) -> None:
        """End the thread. `refresh`: afterwards refresh each view that is not `on_demand`, once."""
        self.stop.set()
        if self.thread:
            self.refresher.spark.sparkContext.cancelJobGroup(_JOB_GROUP)
            self.thread.join(ENDING_SECONDS)
            self.thread = None
        if refresh:
            for view in self.views:
                if not view.on_demand:
                    self._try_refresh(view)

    def raise_failure(self) -> None:
        """Raise the error of the first view whose last refresh failed; the log has those of the others."""
        for failure in self.failed.values():
            raise failure

    def _may_read(self, view: View, tables: list[str]) -> bool:
        """Return whether a view may read some of these tables.

        It runs on the batch's thread, so it looks at names only: a fault of storage here would restart the query.
        """
        if view.source.route is not None:
            return True
        is_source = self.refresher.tables.is_source(view)
        return any(is_source(table) for table in tables)

    def _refresh_due_views(self) -> None:
        context = self.refresher.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(_JOB_GROUP, "a view", interruptOnCancel=True)
        while not self.stop.wait(_SCHEDULE_LOOK_SECONDS):
            for view in self.views:
                if not self.stop.is_set() and self._is_due(view):
                    self._try_refresh(view)

    def _is_due(self, view: View) -> bool:
        if view.refresh_commits:
            with self.lock:
                return self.pending[view.name] >= view.refresh_commits
        return (
            view.refresh_seconds is not None
            and time.monotonic() >= self.last.get(view.name, 0.0) + view.refresh_seconds
        )

    def _try_refresh(self, view: View) -> None:
        with self.lock:
            self.pending[view.name] = 0
        self.last[view.name] = time.monotonic()
        try:
            refreshed = self.refresher.refresh_view(view)
        except Exception as error:  # no error of a view stops the others
            # `end_thread` has cancelled the jobs of this refresh.
            if self.stop.is_set() and self.thread is threading.current_thread():
                return
            self._note_failure(view, error)
            return
        self.failed.pop(view.name, None)
        if self.observer:
            self.observer.view_refreshed(view.name, refreshed.note)
        log_refresh(refreshed)
        with self.lock:
            self.written |= set(refreshed.commits)

    def _note_failure(self, view: View, error: Exception) -> None:
        """Log why a refresh failed, once while the cause stays the same, and note it for whoever looks later."""
        failure = error if isinstance(error, ViewError) else ViewError(view.name, first_line(error))
        cause = str(failure)
        if str(self.failed.get(view.name, "")) != cause:
            log.warning("%s; its tables stay as they are, and it is tried again", cause)
        self.failed[view.name] = failure
        # Storage that is unavailable may be why the refresh failed: the log has it, and the note gets it the next time.
        with suppress(OSError, RouterError):
            note_failed_refresh(self.refresher.store, view.name, failure.what)
        if self.observer:
            self.observer.view_failed(view.name, cause)


def log_refresh(refreshed: RefreshedView) -> None:
    """Log what a refresh did, if it did anything."""
    if not refreshed.way:
        return
    tables = f"{len(refreshed.commits)} of {refreshed.tables} tables ({refreshed.way}: {refreshed.why})"
    log.info("view %s: %s, %s rows, %.1f s", refreshed.view, tables, f"{refreshed.rows:,}", refreshed.seconds)
