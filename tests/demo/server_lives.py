"""How long the processes of an embedded server live."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

from tests.waiting import wait_until

if TYPE_CHECKING:
    import signal
    from pathlib import Path


def assert_ends_with_its_parent(start_server: str, number: signal.Signals, folder: Path) -> None:
    """Signal a process that runs a server; assert that its two processes end, and no file is left in `folder`.

    start_server: Python code that starts the server, prints a line, and sleeps.
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", start_server], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline()
        started = psutil.Process(parent.pid).children(recursive=True)
        parent.send_signal(number)
    gone, left = psutil.wait_procs(started, timeout=20)

    assert len(gone) == 2
    assert left == []
    wait_until(lambda: not list(folder.iterdir()), "the server's folders are removed", seconds=10)
