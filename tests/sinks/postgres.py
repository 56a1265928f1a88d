"""A PostgreSQL of the machine's own, where it has one: `apt-get install postgresql`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

FOLDERS = (*os.environ.get("PATH", "").split(os.pathsep), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin"))))
PLACE = os.pathsep.join(FOLDERS)
THERE = all(shutil.which(name, path=PLACE) for name in ("initdb", "postgres"))
"""Whether this machine has PostgreSQL; tests that need it say so and are left out elsewhere."""


@dataclass
class Postgres:
    """A real server in a folder, on a free port of this machine; it takes every local login."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def make(self) -> None:
        """Make the database's files; they are small, and not kept safe from a power cut."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder.mkdir(parents=True)
        if os.getuid() == 0:  # PostgreSQL does not run as root
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        about = ["-D", f"{self.folder}/data", "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        subprocess.run(self._command("initdb", *about), check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        """Start the server, and return when it answers."""
        options = ["-c", f"port={self.port}", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        sockets = ["-c", f"unix_socket_directories={self.folder}"]
        command = self._command("postgres", "-D", f"{self.folder}/data", *options, *sockets)
        with (self.folder.parent / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + 60
        answers = self._command("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port))
        while subprocess.run(answers, check=False).returncode:
            assert time.monotonic() < end
            assert self.process.poll() is None
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the server at once; its data stays."""
        if self.process:
            self.process.send_signal(signal.SIGINT)  # at once, whoever is connected
            self.process.wait(30)
            self.process = None

    @property
    def url(self) -> str:
        """Return the URL of SQLAlchemy."""
        return f"postgresql+pg8000://postgres:secret-word@127.0.0.1:{self.port}/postgres"

    def _command(self, name: str, *arguments: str) -> list[str]:
        found = shutil.which(name, path=PLACE)
        assert found
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        return [*user, found, *arguments]
