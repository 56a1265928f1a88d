"""Run the router as a process of its own, which can be killed, stopped and waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.waiting import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    import signal

HERE = Path(__file__).parent


class RouterProcess:
    """One running router: `command` follows `python`, output goes to `log`."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        # what a killed process leaves behind lies in the folder of the test
        temporary = log.parent / "tmp"
        temporary.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
            "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={temporary}",
        }
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env=env,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(errors="replace")

    def says(self, text: str, times: int = 1) -> None:
        """Wait until it has written a text so many times."""

        def said() -> bool:
            assert self.process.poll() is None or self.said.count(text) >= times, f"ended before {text!r}:\n{self.said}"
            return self.said.count(text) >= times

        wait_until(said, f"{text!r} in {self.log}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the router itself, not to its children."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(PATIENCE_SECONDS)

    def clear(self) -> None:
        """Kill what is left of it: itself, its JVM and its Python workers."""
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid:
                    process.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        self.process.wait()
