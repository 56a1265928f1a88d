"""Run a real server for as long as a `with` block: loopback only, a folder of its own, gone afterwards."""

from __future__ import annotations

import atexit
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from router import StartError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

HOST = "127.0.0.1"

# Waits for the end of its standard input, which the kernel brings about however this process ends, even by SIGKILL.
# The server may write for a moment after its own SIGKILL, so the folder is removed when it is gone.
_WATCHDOG = """\
read -r _
kill -9 "$0" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$0" 2>/dev/null || break; sleep 0.1; done
rm -rf "$1"
"""


class Embedded(ABC):
    """A server with its own ports and its own temporary folder.

    `stop()` or `kill()` and then `start()` keep data and port, so a test can take the server away and bring it back;
    `close()` ends it and removes the folder.
    """

    what: ClassVar[str]
    """What messages call it."""
    start_seconds: ClassVar[int]

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def elsewhere(cls, port: int) -> Self:
        """Return a handle on a server that another process runs: it has the address, and nothing to end."""
        handle = cls()
        handle._port = port
        return handle

    @property
    def port(self) -> int:
        """Return the port for clients; 0 before the start."""
        return self._port

    @property
    def running(self) -> bool:
        """Say whether the server's process lives."""
        return self._server is not None and self._server.poll() is None

    def start(self) -> None:
        """Start the server, or start it again on the same port with the same data; return when it answers."""
        if self.running:
            return
        self.kill()
        try:
            folder = self._folder or self._make_folder()
            self._launch(folder)
            self._await_answer(folder)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """End the server; its data stays."""
        self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a power cut would; its data stays."""
        for process in (self._server, self._watchdog):  # the server first: until it has ended the watchdog is needed
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._server = self._watchdog = None

    def close(self) -> None:
        """End the server and remove its folder; its data does not matter any more, so it is not shut down in order."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder, self._port = None, 0
        atexit.unregister(self.close)

    @abstractmethod
    def _prepare(self, folder: Path) -> None:
        """Choose ports and make what the server needs before its first start."""

    @abstractmethod
    def _command(self, folder: Path) -> list[str]:
        """Return what starts the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Say whether the server is in service."""

    def _address(self) -> str:
        """Return `host:port`; the same after a restart."""
        if not self._port:
            raise StartError(f"the embedded {self.what} has no address before its start: use it in a `with` block")
        return f"{HOST}:{self._port}"

    def _make_folder(self) -> Path:
        self._folder = folder = Path(tempfile.mkdtemp(prefix=f"router-{self.what.lower()}-"))
        atexit.register(self.close)
        self._prepare(folder)
        return folder

    def _launch(self, folder: Path) -> None:
        with (folder / "server.log").open("ab") as output:
            # A session of its own, or Ctrl-C on the terminal would take it away from a stream that is ending.
            self._server = subprocess.Popen(
                self._command(folder),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, str(self._server.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _await_answer(self, folder: Path) -> None:
        deadline = time.monotonic() + self.start_seconds
        while not self._answers():
            if not self.running:
                raise StartError(f"the embedded {self.what} ended at its start:\n{tail(folder)}")
            if time.monotonic() > deadline:
                waited = f"gave no answer for {self.start_seconds} s"
                raise StartError(f"the embedded {self.what} {waited}:\n{tail(folder)}")
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Pick ports below the range the kernel hands to clients.

    From inside that range a client that keeps trying to reach a stopped server may be given the server's own port,
    connect to itself, and so hold the port when the server wants it back.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randint(20_000, 32_000)
        if port not in found and not is_open(port):
            found.append(port)
    return found


def is_open(port: int) -> bool:
    """Say whether anything listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def tail(folder: Path, lines: int = 30) -> str:
    """Return the end of the log of the server in a folder."""
    return "\n".join((folder / "server.log").read_text(errors="replace").splitlines()[-lines:])
