"""How far a command is that takes long, and how long it may still take: one line on a terminal."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status

from router.engine.status.background import BackgroundThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

SHOWN_AFTER = 2.0
"""Seconds until the line appears: what ends sooner needs none."""
ASK_SPARK_SECONDS = 1.0
PIPE_SECONDS = 30.0
"""Seconds between two lines about work in a pipe."""
log = logging.getLogger("router")
_LEAST_DONE = 2
"""Things that must be done before the time of the others is estimated."""


class Estimate:
    """The seconds that the rest of some things takes, by those done since the first call of `remaining_seconds`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = 0.0
        self._before: int | None = None
        """What was done at the first call."""

    def remaining_seconds(self, done: int, of: int) -> float | None:
        """Return the seconds until all are done; None while too few are to tell."""
        if self._before is None:
            self._began = self._clock()
            self._before = done
        since = done - self._before
        if since < _LEAST_DONE or done >= of:
            return None
        return (self._clock() - self._began) / since * (of - done)


def progress_sentence(what: str, done: int, of: int, unit: str, rest: float | None) -> str:
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
    with _CountedProgress(what, unit, console) as progress:
        yield progress.set_count


class _CountedProgress(BackgroundThread):
    """A line with the count that was told last."""

    def __init__(self, what: str, unit: str, console: Console) -> None:
        super().__init__("progress")
        self._what = what
        self._unit = unit
        self._estimate = Estimate()
        self._latest = f"{what}: starting"
        self._status = Status(self._latest, console=console)

    def set_count(self, done: int, of: int) -> None:
        """Take the next count."""
        self._latest = progress_sentence(self._what, done, of, self._unit, self._estimate.remaining_seconds(done, of))

    def _run(self) -> None:
        if self._ended.wait(SHOWN_AFTER):
            return
        with self._status:
            self._status.update(self._latest)
            while not self._ended.wait(ASK_SPARK_SECONDS):
                self._status.update(self._latest)


def in_pipe() -> Callable[[str], None]:
    """Return a function that takes the state of a work each second, and logs it every PIPE_SECONDS."""
    said = time.monotonic()

    def log_sometimes(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= PIPE_SECONDS:
            said = time.monotonic()
            log.info("%s", text)

    return log_sometimes


class SparkProgress(BackgroundThread):
    """How many tasks of Spark's running stages are done, told to `show` for as long as the block runs."""

    def __init__(self, session: SparkSession, what: str, show: Callable[[str], None]) -> None:
        super().__init__("progress")
        self._session = session
        self._what = what
        self._show = show

    def _run(self) -> None:
        estimate = Estimate()
        estimated: tuple[int, ...] = ()
        while not self._ended.wait(ASK_SPARK_SECONDS):
            try:
                stages, done, of = running_tasks(self._session)
            except Exception:  # Spark stops; whatever else fails here is no reason to end the command
                return
            if not stages:
                self._show(f"{self._what}: at work, without a task of Spark")
                continue
            # The next stages begin from scratch: their tasks may take longer than those before them.
            if stages != estimated:
                estimate = Estimate()
                estimated = stages
            self._show(progress_sentence(self._what, done, of, "tasks of Spark", estimate.remaining_seconds(done, of)))


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
