"""Run `router run` as a process of its own, as anybody would, and follow what it reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

STOP_SECONDS = 60


@contextmanager
def uninterrupted(*signals: int) -> Iterator[None]:
    """Hold signals back while a block runs; the first that came is raised after it.

    Handlers, not a signal mask: a process that is started in the block would inherit the mask.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


class Router:
    """Be a router that runs continuously. `tell` gets each of its log entries; its other output goes to a file.

    `read` counts the records of its batches, `began` and `ended` are the monotonic times of the first and the last
    one, `fastest` the records per second of the fastest. `over` is set when the process has ended.
    """

    def __init__(self, routes: Path, environ: Mapping[str, str], log: Path, tell: Callable[[dict[str, Any]], None]):
        self._tell = tell
        self._log = log.open("a")
        self._changed = threading.Condition()
        self._reads = False
        self.read, self.began, self.ended, self.fastest = 0, 0.0, 0.0, 0.0
        self.over = threading.Event()
        command = [sys.executable, "-m", "router", "run", str(routes), "--continuous", "--json-logs"]
        # A session of its own: Ctrl-C on the terminal is the demo's to handle.
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def wait_until_it_reads(self, seconds: float) -> bool:
        """Wait until the router waits for records; say whether it does."""
        return self._wait(lambda: self._reads, seconds)

    def wait_for(self, records: int, seconds: float) -> bool:
        """Wait until so many records have been read; say whether they have."""
        return self._wait(lambda: self.read >= records, seconds)

    def stop(self) -> int:
        """Ask the router to end after its batch, kill it if it does not; return its exit code (again)."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except BaseException as error:  # also a second Ctrl-C
            self.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = self._process.wait()
        self._follower.join(5)
        self._log.close()
        return code

    def kill(self) -> None:
        """Kill the router and its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: done() or self.over.is_set(), seconds)
            return done()

    def _follow(self) -> None:
        assert self._process.stderr is not None  # opened with a pipe above
        for text in self._process.stderr:
            self._log.write(text)
            with suppress(ValueError):
                self._take(json.loads(text))
        self.over.set()
        with self._changed:
            self._changed.notify_all()

    def _take(self, entry: dict[str, Any]) -> None:
        self._tell(entry)
        with self._changed:
            self._reads = self._reads or ": reading " in entry["message"]
            if batch := entry.get("batch"):
                self.ended, seconds = time.monotonic(), sum(batch["seconds"].values())
                self.began = self.began or self.ended - seconds
                self.read += batch["read"]
                self.fastest = max(self.fastest, batch["read"] / seconds)
            self._changed.notify_all()
