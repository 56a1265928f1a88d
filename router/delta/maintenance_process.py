"""Maintain tables in a process of its own, so that batches share only cores with it.

A compaction in the driver's process would share delta-rs's threads, the interpreter's lock and memory with the batches.
This process runs at low priority and ends with the one that started it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from router.delta.maintenance import MaintenanceOptions, MaintenanceResult, maintain_table
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from router.delta.lake import Lake

LOWER = 10
"""Steps of priority below the driver: while that is busy, the process gets about a tenth of a core."""
_ENDING_SECONDS = 10.0
"""How long the idle process may take to end before it is killed."""


@dataclass
class MaintenanceProcess:
    """The process that maintains tables. It is started for the first table, and runs until `end`."""

    running: subprocess.Popen[bytes] | None = None

    def maintain_table(
        self, lake: Lake, table: str, options: MaintenanceOptions, *, dry: bool = False
    ) -> MaintenanceResult:
        """Maintain one table in the process, as `maintenance.maintain_table` does. Raises TableError."""
        self.running = self.running or _start_process()
        assert self.running.stdin
        assert self.running.stdout
        try:
            pickle.dump((lake, table, options, dry), self.running.stdin)
            self.running.stdin.flush()
            answer: MaintenanceResult | tuple[str, str] = pickle.load(self.running.stdout)
        except (EOFError, OSError) as error:
            code = self.end_process()
            raise TableError(table, f"it could not be maintained: the process for it ended with {code}") from error
        if isinstance(answer, MaintenanceResult):
            return answer
        raise TableError(*answer)

    def end_process(self) -> int:
        """End the process, if it runs, and return its exit code."""
        process = self.running
        if process is None:
            return 0
        self.running = None
        with process:
            try:
                process.communicate(timeout=_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.returncode


def _start_process() -> subprocess.Popen[bytes]:
    """Start the process. It gets the tables by a pipe, not as arguments: the lake's options may hold secrets."""
    code = "from router.delta.maintenance_process import serve_requests; serve_requests()"
    path = os.pathsep.join(sys.path)  # the router may be on a path that only this process knows
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def serve_requests() -> None:
    """Maintain the tables that are requested on stdin, one after the other; end when stdin does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then ends this process
    os.nice(LOWER)
    # A thread reads stdin, so that the process notices its end in the middle of a compaction.
    requests = SimpleQueue[Any]()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    # Answers go to the real stdout. Anything that a library prints goes to stderr, or it would be taken for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        lake, table, options, dry = requests.get()
        pickle.dump(_maintain_or_error(lake, table, options, dry), answers)
        answers.flush()


def _read_requests(requests: SimpleQueue[Any]) -> None:
    """Queue requests; exit at once when stdin ends, as a compaction that is cut off changes nothing."""
    while True:
        try:
            requests.put(pickle.load(sys.stdin.buffer))
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(0)


def _maintain_or_error(
    lake: Lake, table: str, options: MaintenanceOptions, dry: bool
) -> MaintenanceResult | tuple[str, str]:
    """Return the result, or table and text of a TableError: not every exception can be pickled."""
    try:
        return maintain_table(lake, table, options, dry=dry)
    except TableError as error:
        return error.table, error.what
    except Exception as error:  # the process continues with the next table
        return table, f"it could not be maintained: {first_line(error)}"
