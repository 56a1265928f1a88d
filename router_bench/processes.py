"""Run a command in a process session of its own, with a time limit, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

# Becomes the command when it is told to; ends by itself when this process has ended before that.
_GATE = 'read -r _ && exec "$0" "$@" </dev/null'
# Waits for the end of its standard input, which comes however this process ends, even by SIGKILL.
_WATCHDOG = 'read -r _; kill -9 "-$0" 2>/dev/null'


@dataclass(frozen=True)
class Ended:
    """How a command ended: `code` is None when its time was up."""

    seconds: float
    code: int | None
    output: Path

    def problem(self) -> str:
        """Return what went wrong, with the last line of the output, or ""."""
        if self.code == 0:
            return ""
        end = "the time was up" if self.code is None else f"ended with code {self.code}"
        lines = self.output.read_text(errors="replace").strip().splitlines()
        last = lines[-1].strip()[:300] if lines else "it said nothing"
        return f"{end} after {self.seconds:.0f} s: {last}"


def run_command(
    command: list[str],
    output: Path,
    timeout: float,
    *,
    cwd: Path | None = None,
    watch: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> Ended:
    """Run a command with its output in a file; kill it and all it started when it ends or `timeout` seconds are up.

    `watch(pid)` is entered while the command runs: something that looks at its processes from outside.
    """
    # What was written before must not go to disk on this command's time.
    os.sync()
    began = time.perf_counter()
    with output.open("wb") as lines, _session(command, lines.fileno(), cwd) as process, watch(process.pid):
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.perf_counter() - began
    return Ended(seconds, code, output)


@contextmanager
def _session(command: list[str], output: int, cwd: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sh", "-c", _GATE, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=cwd,
        start_new_session=True,
    )
    watchdog = subprocess.Popen(
        ["sh", "-c", _WATCHDOG, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        if process.stdin:
            process.stdin.write(b"\n")
            process.stdin.close()
        yield process
    finally:
        watchdog.kill()
        watchdog.wait()
        if watchdog.stdin:
            watchdog.stdin.close()
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of the session: Spark's Python daemon leaves the group, but not the session."""
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(pid) == process.pid:
                members.append(psutil.Process(pid))
                os.kill(pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(members, timeout=10)  # a big Java takes a moment to go, and the next cell wants its memory
