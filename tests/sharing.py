"""Share a server between the processes of a test run: the first that needs it starts it, and leaves last."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router_demo.embedded import Embedded

E = TypeVar("E", bound="Embedded")


@contextmanager
def shared(kind: type[E], folder: Path) -> Iterator[E]:
    """Run a server, or use the one that another process runs, as the folder says; end it when nobody uses it."""
    folder.mkdir(exist_ok=True)
    port, me = folder / "port", folder / f"user-{os.getpid()}"
    with _alone(folder):
        me.touch()
        owned = None if port.exists() else kind()
        if owned:
            owned.start()
            port.write_text(str(owned.port))
        server = owned or kind.elsewhere(int(port.read_text()))
    try:
        yield server
    finally:
        me.unlink()
        if owned:
            _end(owned, folder, port)


def _end(server: Embedded, folder: Path, port: Path) -> None:
    while True:
        with _alone(folder):
            if not any(_lives(user) for user in folder.glob("user-*")):
                port.unlink()
                server.close()
                return
        time.sleep(0.1)


def _lives(user: Path) -> bool:
    try:
        os.kill(int(user.name.removeprefix("user-")), 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
