"""How far a command is that takes long, and how long it may still take: one line on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

SHOWN_AFTER = 2.0
"""Seconds until the line appears: what ends sooner needs none."""
ASK_SECONDS = 1.0
_FEW = 2
"""Things that must be done before the time of the others is estimated."""


class Estimate:
    """The seconds that the rest of some things takes, by those that are done since the first call of `rest`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._before: int | None = None

    def rest(self, done: int, of: int) -> float | None:
        """Return the seconds until all are done; None while too few are to tell."""
        if self._before is None:
            self._began = self._clock()
            self._before = done
        since = done - self._before
        if since < _FEW or done >= of:
            return None
        return (self._clock() - self._began) / since * (of - done)


def sentence(what: str, done: int, of: int, unit: str, rest: float | None) -> str:
    """Return the line: `games: 34 of 120 tables, about 40 s left`."""
    text = f"{what}: {done:,} of {of:,} {unit}"
    if rest is None:
        return text
    if rest >= 120:
        return f"{text}, about {rest / 60:.0f} min left"
    return f"{text}, about {max(1.0, rest):.0f} s left"


@contextmanager
def progress_line(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many of some things are done; yield what is told so: (done, of).

    Nothing appears in a pipe, or before SHOWN_AFTER.
    """
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda done, of: None
        return

    status = Status(f"{what}: starting", console=console)
    estimate = Estimate()
    latest = status.status
    ended = threading.Event()

    def tell(done: int, of: int) -> None:
        nonlocal latest
        latest = sentence(what, done, of, unit, estimate.rest(done, of))

    def show() -> None:
        if ended.wait(SHOWN_AFTER):
            return
        status.start()
        while True:
            status.update(latest)
            if ended.wait(ASK_SECONDS):
                break
        status.stop()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()


@contextmanager
def tasks_shown(session: SparkSession, what: str, show: Callable[[str], None]) -> Iterator[None]:
    """Show how many tasks of Spark's running stages are done, for as long as the block runs."""
    ended = threading.Event()

    def ask() -> None:
        estimates: dict[tuple[int, ...], Estimate] = {}
        while not ended.wait(ASK_SECONDS):
            try:
                stages, done, of = running_tasks(session)
            except Exception:
                return
            if not stages:
                show(what)
                continue
            # The next stage begins from scratch: its tasks may take longer than those before it.
            estimate = estimates.setdefault(stages, Estimate())
            show(sentence(what, done, of, "tasks of Spark", estimate.rest(done, of)))

    thread = threading.Thread(target=ask, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def running_tasks(session: SparkSession) -> tuple[tuple[int, ...], int, int]:
    """Return Spark's running stages, and of their tasks how many are done and how many there are."""
    tracker = session.sparkContext.statusTracker()
    stages: list[int] = []
    done = 0
    of = 0
    for stage in sorted(tracker.getActiveStageIds()):
        info = tracker.getStageInfo(stage)
        if info is not None:
            stages.append(stage)
            done += info.numCompletedTasks
            of += info.numTasks
    return tuple(stages), done, of
