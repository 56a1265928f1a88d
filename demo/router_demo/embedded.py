"""Run a real server for as long as a `with` block: loopback only, a folder of its own, gone afterwards.

Its jars or its archive are fetched once, with the resolver that ships inside PySpark.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from router import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self

HOST = "127.0.0.1"
_IVY_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="router" module="demo"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
OLDEST_JAVA = 17
"""Kafka 4 needs it; Spark 4 runs on 17 and 21 only, the broker also on newer ones."""
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

# Waits for the end of its standard input, which the kernel brings about however this process ends, even by SIGKILL.
# The server may write for a moment after its own SIGKILL, so the folder is removed when it is gone.
_WATCHDOG = """\
read -r _
kill -9 "$0" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$0" 2>/dev/null || break; sleep 0.1; done
rm -rf "$1"
"""

log = logging.getLogger(__name__)


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
            if process is None:
                continue
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
            self._folder = None
            self._port = 0
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
        folder = Path(tempfile.mkdtemp(prefix=f"router-{self.what.lower()}-"))
        self._folder = folder
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
                raise StartError(f"the embedded {self.what} gave no answer for {self.start_seconds} s:\n{tail(folder)}")
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Pick ports below the range the kernel hands to clients.

    From inside that range a client that keeps trying to reach a stopped server may be given the server's own port,
    connect to itself, and so hold the port when the server wants it back.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randint(20_000, 32_000)
        if port not in ports and not is_open(port):
            ports.append(port)
    return ports


def is_open(port: int) -> bool:
    """Say whether anything listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def tail(folder: Path, lines: int = 30) -> str:
    """Return the end of the log of the server in a folder."""
    text = (folder / "server.log").read_text(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


# The files of servers, fetched once


def fetched_once(name: str, what: str, fetch: Callable[[Path], Path]) -> Path:
    """Return a folder of fetched files; when it is missing, let one process fetch it, and appear when it is complete.

    `fetch` gets a temporary folder next to it and returns what is in it then; `what` is what the log says of it.
    """
    folder = _cache_home() / name
    if folder.is_dir():
        return folder
    with _lock(folder):
        if not folder.is_dir():  # no other process has fetched it while this one waited for the lock
            log.info("fetching %s", what)
            _fetch(folder, fetch)
    return folder


def _fetch(folder: Path, fetch: Callable[[Path], Path]) -> None:
    prefix = f"{folder.name}.part-"
    # Left by processes that were killed: no other one fetches now, because the caller holds the lock.
    for abandoned_part in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(abandoned_part, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        fetch(part).replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _cache_home() -> Path:
    """Return the folder of fetched servers: ROUTER_CACHE, or one below the user's cache folder."""
    cache = os.environ.get("ROUTER_CACHE")
    if cache:
        return Path(cache)
    return Path.home() / ".cache" / "spark-event-router"


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch this folder; the kernel frees the lock of a killed one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def resolve(names: str, dependencies: str, part: Path, *options: str) -> None:
    """Run the resolver in `part`, with a cache of its own: it does not lock the shared one, where damage would last.

    `dependencies` is XML of Ivy. Raises StartError, which calls them `names`, when they cannot be fetched.
    """
    wanted = part / "wanted.xml"
    wanted.write_text(_IVY_MODULE.format(dependencies=dependencies))
    command = [str(find_java()), "-jar", str(_resolver()), "-cache", str(part / "cache"), "-ivy", str(wanted), *options]
    resolver = subprocess.run(command, capture_output=True, text=True, check=False)
    if resolver.returncode != 0:
        output = (resolver.stdout + resolver.stderr).strip()
        last_lines = "\n".join(output.splitlines()[-20:])
        raise StartError(f"{names} could not be fetched: is the network up, and the proxy set for Java?\n{last_lines}")


def _resolver() -> Path:
    """Return the resolver's jar without importing PySpark, which takes a while."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StartError("pyspark is not installed: install this project with its dependencies")
    folder = Path(spec.origin).with_name("jars")
    jars = sorted(folder.glob("ivy-*.jar"))
    if not jars:
        raise StartError(f"no ivy-*.jar in {folder}: reinstall pyspark")
    return jars[-1]


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, or else of PATH; raise StartError when it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java")
    where = "PATH"
    if home:
        java = str(Path(home, "bin", "java"))
        where = f"JAVA_HOME={home}"
    if java is None or not os.access(java, os.X_OK):
        raise StartError(f"no java found by {where}: install Java 17 or 21, or point JAVA_HOME at one")
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise StartError(f"the java found by {where} is version {version}: set JAVA_HOME to a Java 17 or 21")
    return Path(java)


def java_version(java: str) -> int:
    """Return the feature version of an executable: 17 for 17.0.15, 8 for 1.8.0, 0 when it does not say."""
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = _VERSION.search(answer.stderr)
    if version is None:
        return 0
    major, minor = version.groups()
    if major == "1":  # until Java 8
        return int(minor or 0)
    return int(major)
