"""One run at a time: the lock of a checkpoint, and of what must not run twice beside it. Runs on the driver.

On a disk it is a lock of the operating system, which the end of a process gives back. An object store has none; there
it is a file that its holder writes anew every few seconds, each time only over its own last one. Whoever finds such a
file watches it: one that changes is held, and the start is refused; one that stays as it is for `EXPIRES` belongs to a
run that was killed, and is taken over, by one only. No clock is compared with another machine's.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from router.errors import RunningError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.delta.lake import Lake
    from router.storage import Storage

log = logging.getLogger("router")
RENEWED = 5.0
"""Seconds from one renewal to the next: one request each."""
EXPIRES = 20.0
"""Seconds without a renewal after which a lock is free: what a start waits after a run was killed."""


@contextmanager
def alone(checkpoint: Lake, name: str, lost: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock of a checkpoint; raise RunningError while another run holds it.

    `lost` is called where another run took the lock meanwhile, as after a pause of this machine; the block ends with
    RunningError then.
    """
    refusal = (
        f"{name} is running already: its checkpoint {checkpoint.root} is locked; stop that run, or give this "
        "one another name and checkpoint"
    )
    with locked(checkpoint, "lock", refusal, lost):
        yield


@contextmanager
def locked(checkpoint: Lake, file: str, refusal: str, lost: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold a lock that is a file in a checkpoint; raise RunningError while another process holds it."""
    with _flocked(checkpoint, file, refusal) if checkpoint.local else _leased(checkpoint, file, refusal, lost):
        yield


@contextmanager
def _flocked(checkpoint: Lake, file: str, refusal: str) -> Iterator[None]:
    path = Path(checkpoint.root, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunningError(refusal) from None
        yield


@contextmanager
def _leased(checkpoint: Lake, file: str, refusal: str, lost: Callable[[], object]) -> Iterator[None]:
    lease = Lease(checkpoint.store, file, refusal, lost)
    lease.take()
    renewing = threading.Thread(target=lease.renew_until_ended, name=f"lock {file}", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        lease.ended.set()
        renewing.join()
        lease.give_back()
    if lease.gone:
        raise RunningError(f"another run took the lock {checkpoint.root}/{file} while this one could not renew it")


@dataclass
class Lease:
    """A lock in an object store: a file that its holder renews."""

    files: Storage
    path: str
    refusal: str
    lost: Callable[[], object] = lambda: None
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    number: int = 0
    stamp: str = ""
    gone: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self) -> None:
        """Take the lock, at once or when the one that is there has expired. Raises RunningError."""
        while (stamp := self._created()) is None:
            found = self.files.stamp(self.path)
            if found is not None:
                self._watch(found)
                if (stamp := self._replaced(found)) is None:
                    raise RunningError(self.refusal)
                break
        self.stamp = stamp

    def _watch(self, found: str) -> None:
        """Return when a lock has stayed as it was for as long as it lasts."""
        log.info("%s is there: waiting %.0f s to see whether its run is alive", self.path, EXPIRES)
        until = time.monotonic() + EXPIRES
        while time.monotonic() < until:
            time.sleep(min(RENEWED, EXPIRES) / 5)
            if self.files.stamp(self.path) != found:
                raise RunningError(self.refusal)

    def renew_until_ended(self) -> None:
        """Renew the lock every few seconds; call `lost` once where that failed for too long, or another run has it."""
        renewed = time.monotonic()
        while not self.ended.wait(RENEWED):
            began = time.monotonic()
            try:
                stamp = self._replaced(self.stamp)
            except OSError as error:
                log.warning("%s could not be renewed: %s", self.path, first_line(error))
                stamp = self.stamp if began - renewed < EXPIRES - RENEWED else None
            else:
                renewed = began
            if stamp is None:
                self.gone = True
                self.lost()
                return
            self.stamp = stamp

    def give_back(self) -> None:
        """Delete the lock, if it is this one's still."""
        with suppress(OSError):
            if not self.gone and self._mine():
                self.files.delete([self.path])

    def _created(self) -> str | None:
        """Return the stamp of a new lock; one that is there may be of a request whose answer was lost."""
        return self.files.create(self.path, self._content()) or self._own_stamp()

    def _replaced(self, stamp: str) -> str | None:
        self.number += 1
        return self.files.replace(self.path, self._content(), stamp) or self._own_stamp()

    def _own_stamp(self) -> str | None:
        return self.files.stamp(self.path) if self._mine() else None

    def _mine(self) -> bool:
        content = self.files.read(self.path)
        with suppress(ValueError):
            return bool(content) and json.loads(content or b"{}")["owner"] == self.owner
        return False

    def _content(self) -> bytes:
        about = {"owner": self.owner, "host": platform.node(), "process": os.getpid(), "renewed": self.number}
        return json.dumps(about).encode()
