"""When views are refreshed: beside the stream, in a thread and a job pool of their own; at the end of a run that ends.

The batches go on meanwhile: their jobs come first (router/engine/spark/pools.xml). A view that cannot be refreshed is
tried again when it is due the next time, and holds back no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from router.config.models import View, reads
from router.delta.table_cache import SparkTables, TableCache
from router.engine.spark.executors import Executors
from router.engine.views.refresh import Refresher
from router.engine.views.sources import ViewTables
from router.errors import ViewError, first_line

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
GROUP = "router views"
LOOK_SECONDS = 0.5
ENDING_SECONDS = 60.0
"""How long the end of a run waits for a refresh that is cancelled."""


class RefreshObserver(Protocol):
    """Whoever is told how refreshes went, by the thread that makes them."""

    def view_refreshed(self, view: str, note: Note | None) -> None:
        """Note a refresh that went well, also if nothing had changed; None if the view reads nothing yet."""

    def view_failed(self, view: str, cause: str) -> None:
        """Note a refresh that failed."""


def refresher(
    config: Config, spark: SparkSession, lake: Lake, store: CheckpointStore, executors: Executors | None = None
) -> Refresher:
    """Return what refreshes the views of a configuration."""
    only_spark = config.commit == "spark"
    tables = ViewTables(config, lake, SparkTables(spark, lake) if only_spark else TableCache(lake))
    folder = f"_staged/{config.name}" if only_spark else None
    return Refresher(tables, spark, store, executors or Executors(), folder)


def in_order(views: Iterable[View]) -> list[View]:
    """Return views so that each comes after those it reads: validation has refused circles."""
    left, found = list(views), list[View]()
    while left:
        ready = [view for view in left if not any(reads(view, other) for other in left if other is not view)]
        found += ready or left[:1]
        left = [view for view in left if view not in found]
    return found


@dataclass
class ViewSchedule:
    """The refreshes of a run. `batch` counts what the batches bring; `finish` ends the thread."""

    refresher: Refresher
    views: list[View]
    pending: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    observer: RefreshObserver | None = None

    def start(self) -> None:
        """Refresh views that are due, beside the caller, until `finish`."""
        if any(not view.on_demand for view in self.views) and self.thread is None:
            self.thread = threading.Thread(target=self._work, name="views", daemon=True)
            self.thread.start()

    def batch(self, tables: Iterable[str]) -> set[str]:
        """Count one batch more into some tables; return the tables that refreshes have written since the last call."""
        if not self.views:
            return set()
        touched = [*tables]
        with self.lock:
            for view in self.views:
                if view.commits and (not touched or self._has(view, touched)):
                    self.pending[view.name] += 1
            written, self.written = self.written, set()
        return written

    def finish(self, *, refresh: bool) -> None:
        """End the thread. `refresh`: afterwards every view that nobody has to ask for is refreshed once more."""
        self.stop.set()
        if self.thread:
            self.refresher.spark.sparkContext.cancelJobGroup(GROUP)
            self.thread.join(ENDING_SECONDS)
            self.thread = None
        if refresh:
            for view in self.views:
                if not view.on_demand:
                    self._refresh(view)

    def _has(self, view: View, tables: list[str]) -> bool:
        """Return whether a view reads some of these tables.

        It runs on the batch's thread, so it looks at names only: a fault of storage here would restart the query.
        """
        if view.source.route is not None:
            return True
        is_source = self.refresher.tables.is_source(view)
        return any(is_source(table) for table in tables)

    def _work(self) -> None:
        context = self.refresher.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(GROUP, "a view", interruptOnCancel=True)
        while not self.stop.wait(LOOK_SECONDS):
            for view in self.views:
                if not self.stop.is_set() and self._due(view):
                    self._refresh(view)

    def _due(self, view: View) -> bool:
        if view.commits:
            with self.lock:
                return self.pending[view.name] >= view.commits
        return view.seconds is not None and time.monotonic() >= self.last.get(view.name, 0.0) + view.seconds

    def _refresh(self, view: View) -> None:
        with self.lock:
            self.pending[view.name] = 0
        self.last[view.name] = time.monotonic()
        try:
            done = self.refresher.refresh(view)
        except Exception as error:  # a view holds nobody back, whatever is wrong with it
            if self.stop.is_set() and self.thread is threading.current_thread():
                return  # it was cancelled
            said = str(error) if isinstance(error, ViewError) else f"view {view.name}: {first_line(error)}"
            if self.failed.get(view.name) != said:
                log.warning("%s; its tables stay as they are, and it is tried again", said)
            self.failed[view.name] = said
            if self.observer:
                self.observer.view_failed(view.name, said)
            return
        self.failed.pop(view.name, None)
        if self.observer:
            self.observer.view_refreshed(view.name, done.note)
        tell(done)
        with self.lock:
            self.written |= set(done.commits)


def tell(done: RefreshedView) -> None:
    """Log what a refresh did, where it did anything."""
    if done.way:
        what = f"{len(done.commits)} of {done.tables} tables ({done.way}: {done.why}), {done.rows:,} rows"
        log.info("view %s: %s, %.1f s", done.view, what, done.seconds)
