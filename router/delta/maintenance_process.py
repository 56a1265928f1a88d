"""Table maintenance in a process of its own, so that a batch shares nothing with it but the cores that are left over.

A compaction in the process of the batches would share delta-rs's threads, the interpreter's lock and memory with them.
The process runs at low priority and ends with the one that started it.
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

from router.delta.maintenance import MaintenanceOptions, MaintenanceResult, maintain
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from router.delta.lake import Lake

LOWER = 10
"""Steps of priority below the driver: beside one that has work, the process gets about a tenth of a core."""
SECONDS = 10.0
"""How long its end is waited for, when it has nothing to do any more."""


@dataclass
class MaintenanceProcess:
    """The process that maintains tables; there is one from the first table that is asked for until `end`."""

    running: subprocess.Popen[bytes] | None = None

    def maintain(self, lake: Lake, table: str, options: MaintenanceOptions, *, dry: bool = False) -> MaintenanceResult:
        """Maintain one table there, as `maintenance.maintain` does here. Raises TableError."""
        self.running = self.running or _started()
        assert self.running.stdin
        assert self.running.stdout
        try:
            pickle.dump((lake, table, options, dry), self.running.stdin)
            self.running.stdin.flush()
            found: MaintenanceResult | tuple[str, str] = pickle.load(self.running.stdout)
        except (EOFError, OSError) as error:
            code = self.end()
            raise TableError(table, f"it could not be maintained: the process for it ended with {code}") from error
        if isinstance(found, MaintenanceResult):
            return found
        raise TableError(*found)

    def end(self) -> int:
        """End the process, where there is one; return what it exits with."""
        process, self.running = self.running, None
        if process is None:
            return 0
        with process:
            try:
                process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.returncode


def _started() -> subprocess.Popen[bytes]:
    """Start the process. What it is asked for comes by a pipe: the lake's options may hold secrets."""
    code = "from router.delta.maintenance_process import serve; serve()"
    path = os.pathsep.join(sys.path)  # as this process finds the router
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def serve() -> None:
    """Maintain the tables that stdin asks for, one after the other; end with the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends this process
    os.nice(LOWER)
    asked = SimpleQueue[Any]()
    threading.Thread(target=_read, args=(asked,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    while True:
        pickle.dump(_answer(*asked.get()), answers)
        answers.flush()


def _read(asked: SimpleQueue[Any]) -> None:
    """Read what is asked for. At the end nobody waits for answers: a compaction that is cut off changes nothing."""
    while True:
        try:
            asked.put(pickle.load(sys.stdin.buffer))
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(0)


def _answer(lake: Lake, table: str, options: MaintenanceOptions, dry: bool) -> MaintenanceResult | tuple[str, str]:
    try:
        return maintain(lake, table, options, dry=dry)
    except TableError as error:
        return error.table, error.what
    except Exception as error:  # the process goes on with the next table
        return table, f"it could not be maintained: {first_line(error)}"
