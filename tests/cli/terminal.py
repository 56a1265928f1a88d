"""Run a command whose output goes to a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_in_terminal(command: Sequence[str], columns: str, stream: Literal["stdout", "stderr"]) -> tuple[str, str]:
    """Run a command with one of its streams in a terminal of so many columns; return what that shows, and the other."""
    controller, terminal = pty.openpty()
    environ = {**os.environ, "COLUMNS": columns, "TERM": "xterm"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: terminal}
    done = subprocess.run(command, **streams, env=environ, check=True, text=True)  # type: ignore[call-overload]
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65_536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(controller)
    return shown.decode(), done.stderr if stream == "stdout" else done.stdout
