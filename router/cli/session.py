"""The Spark session of a command: started, given the rights of the lake, and stopped again.

No other module of the command line builds or stops a session. So no command can be written that reads a lake by Spark
without the lake's storage options.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from router.errors import RunningError, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.reprocess.context import ReprocessContext

log = logging.getLogger("router")
_warm_sessions: ExitStack | None = None
"""What stops the sessions that stay warm; None if each is stopped at its own end."""
SILENT_AFTER_TERM = 25.0
"""Seconds without progress after SIGTERM: process managers kill a process after 30 s, as Kubernetes does."""
SILENT_AFTER_INT = 6.0
"""The same after Ctrl-C, since somebody waits; longer than the four seconds that calls to APIs get for answers."""


def start_jvm_early(file: Path, master: str | None = None) -> None:
    """Start the JVM for a configuration, ahead of all other imports of a command: it takes as long as they do."""
    # It hooks into forks: imported while the JVM is forked off, it says with a traceback that its lock was not held.
    import concurrent.futures.thread  # noqa: F401

    from router.engine.spark.session import start_jvm_ahead

    start_jvm_ahead(file, master)


@contextmanager
def spark_session(config: Config, master: str | None = None) -> Iterator[SparkSession]:
    """Start Spark for a configuration, and stop it at the end.

    For what makes its lake reachable by itself, as a stream does, or has a lake of its own. Every other command takes
    `session_on_lake` or `watched_session`.
    """
    from router.engine.spark.session import build_session, stop_session

    session = build_session(config, master)
    with ExitStack() as stack:
        (_warm_sessions or stack).callback(stop_session, session)
        yield session


@contextmanager
def warm_sessions() -> Iterator[None]:
    """Leave Spark running where a session would be stopped, for the next one; stop it at the end.

    What stands under `spark:` of a configuration, and in its options of the JVM, is that of the first session.
    """
    global _warm_sessions  # noqa: PLW0603 - of the process, as Spark is
    try:
        with ExitStack() as _warm_sessions:
            yield
    finally:
        _warm_sessions = None


@contextmanager
def session_on_lake(
    config: Config, master: str | None = None, *, by_spark: bool = False, writes: bool = True
) -> Iterator[SparkSession]:
    """Start Spark, and let it reach lake and checkpoint; stop it at the end.

    With `by_spark` Spark itself must have a file system for both places. Raises StartError if one cannot be reached, or
    cannot be written if the command `writes`.
    """
    from router.engine.checkpoint_store import lake_and_checkpoint
    from router.engine.start.checks import make_reachable

    with spark_session(config, master) as session:
        # The settings hold the credentials of the lake: without them Spark takes those of the environment, or none.
        for place in lake_and_checkpoint(config):
            make_reachable(session, place, needed_for=("this command",) if by_spark else (), writes=writes)
        yield session


@contextmanager
def watched_session(
    config: Config,
    master: str | None = None,
    stop: threading.Event | None = None,
    *,
    by_spark: bool = False,
    writes: bool = True,
) -> Iterator[SparkSession]:
    """Start Spark as `session_on_lake` does, for work that takes a while: it is logged to standard error.

    A terminal also shows how many tasks of Spark are done, and a pipe gets that every 30 s. `stop` is set at SIGTERM
    and Ctrl-C.
    """
    from router.cli.progress import SparkProgress, in_pipe
    from router.cli.watching import Watcher

    with (
        stopped_by_signals(stop or threading.Event()),
        Watcher(config.name) as watcher,
        session_on_lake(config, master, by_spark=by_spark, writes=writes) as session,
        ExitStack() as shown,
    ):
        show = watcher.status.update if watcher.status is not None else in_pipe()
        shown.enter_context(SparkProgress(session, config.name, show))
        yield session


@contextmanager
def reprocess_context(
    loaded: Loaded, master: str | None, *, by_spark: bool, writes: bool = True
) -> Iterator[ReprocessContext]:
    """Start Spark as `watched_session` does, for a command that processes records again."""
    from router.engine.reprocess.context import ReprocessContext

    stop = threading.Event()
    with watched_session(loaded.config, master, stop, by_spark=by_spark, writes=writes) as spark:
        yield ReprocessContext.of(loaded, spark, stop)


@contextmanager
def stream_held_off(checkpoint: Lake, name: str, refusal: str) -> Iterator[None]:
    """Hold the lock of a stream, so that it cannot start meanwhile. Raises StartError with `refusal` if it runs."""
    from router.engine.start.run_lock import hold_run_lock

    with ExitStack() as lock:
        try:
            lock.enter_context(hold_run_lock(checkpoint, name))
        except RunningError as error:
            raise StartError(refusal) from error
        yield


@contextmanager
def watch_until_interrupted(*, as_json: bool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a block that goes on for ever, wherever it is. Raises UsageError for a document."""
    if as_json:
        raise click.UsageError("--json prints one document: it goes without --watch")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt, click.Abort):
        yield


@contextmanager
def stopped_by_signals(stop: threading.Event, progress: Callable[[], float] | None = None) -> Iterator[threading.Event]:
    """Set `stop` at SIGTERM and Ctrl-C, which ends a run after its current batch; a second Ctrl-C ends it at once.

    With `progress`, which returns when something last went on (seconds since 1970), a run that does nothing more after
    the first signal is ended as by a second Ctrl-C, since a sink may sleep for ever. Whoever sets the event that is
    yielded has ended its work.
    """
    ended = threading.Event()

    def set_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if progress and not stop.is_set():
            silent = (SILENT_AFTER_TERM if number == signal.SIGTERM else SILENT_AFTER_INT, progress, ended)
            threading.Thread(target=_cut_off_if_silent, args=silent, name="cut-off", daemon=True).start()
        stop.set()

    former = {number: signal.signal(number, set_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        ended.set()
        for number, handler in former.items():
            signal.signal(number, handler)


def _cut_off_if_silent(seconds: float, progress: Callable[[], float], ended: threading.Event) -> None:
    """Interrupt the main thread once nothing has gone on for some seconds, unless its work has ended."""
    began = time.time()
    while not ended.wait(0.2):
        if time.time() - max(began, progress()) > seconds:
            log.warning(
                "nothing has gone on for %.0f s after the signal: the run ends at once, and the next start does the "
                "rest of its batch",
                seconds,
            )
            os.kill(os.getpid(), signal.SIGINT)
            return
