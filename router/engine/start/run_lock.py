"""One run at a time: the lock of a checkpoint, and of what must not run twice beside it. Runs on the driver.

On a disk it is a lock of the operating system, which the end of a process gives back. An object store has none; there
it is a file that its holder writes anew every few seconds, each time only over its own last one. Whoever finds such a
file watches it: one that changes is held, and the start is refused; one that stays as it is for `EXPIRES` belongs to a
run that was killed, and is taken over, by one only. No clock is compared with another machine's.

The file has the name of what holds it, where that is no stream, for a start that is refused to say it. Whoever only
asks whether a run is alive (`is_running`) keeps no start away.
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
from typing import TYPE_CHECKING, TextIO

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
PATIENCE = 2.0
"""Seconds for which a start tries again on a disk: somebody may be asking whether a run is alive."""


@contextmanager
def alone(checkpoint: Lake, name: str, lost: Callable[[], object] = lambda: None, holder: str = "") -> Iterator[None]:
    """Hold the lock of a checkpoint; raise RunningError while another run holds it.

    `lost` is called where another run took the lock meanwhile, as after a pause of this machine; the block ends with
    RunningError then. `holder` is the name of what holds it, for the message of a start that is refused meanwhile.
    """
    refusal = (
        f"{name} is running already: its checkpoint {checkpoint.root} is locked; stop that run, or give this "
        "one another name and checkpoint"
    )
    if checkpoint.local:
        with _flocked(checkpoint, RUN_LOCK, refusal, holder, PATIENCE):
            yield
        return
    with _leased(checkpoint, RUN_LOCK, refusal, lost, holder):
        yield


RUN_LOCK = "lock"
"""The file of a checkpoint that its run locks."""


def is_running(checkpoint: Lake) -> bool:
    """Return whether a run holds the lock of a checkpoint. Waits up to `EXPIRES` where a killed run has left one.

    A start that comes meanwhile is not refused: on a disk the lock is shared with others that ask, for an instant,
    and a start tries again; in an object store only the stamp of the file is read.
    """
    if not checkpoint.local:
        stamp = checkpoint.store.stamp(RUN_LOCK)
        return stamp is not None and _next_stamp(checkpoint.store, RUN_LOCK, stamp) not in (None, stamp)
    try:
        with Path(checkpoint.root, RUN_LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def locked(checkpoint: Lake, file: str, refusal: str, lost: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold a lock that is a file in a checkpoint; raise RunningError while another process holds it."""
    with _flocked(checkpoint, file, refusal) if checkpoint.local else _leased(checkpoint, file, refusal, lost):
        yield


@contextmanager
def _flocked(checkpoint: Lake, file: str, refusal: str, holder: str = "", patience: float = 0.0) -> Iterator[None]:
    path = Path(checkpoint.root, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience
    with path.open("a+") as lock:
        while not _is_flocked(lock):
            if time.monotonic() >= end:
                lock.seek(0)
                raise RunningError(_refused(lock.read(), refusal))
            time.sleep(0.05)
        # What a holder that was killed wrote is replaced, also by nothing.
        lock.truncate(0)
        lock.write(json.dumps({"holder": holder}) if holder else "")
        lock.flush()
        yield


def _is_flocked(lock: TextIO) -> bool:
    """Take the lock of a file that is open; return whether nobody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refused(content: str | bytes | None, refusal: str) -> str:
    """Return why a start is refused, by the content of the lock's file: what holds it, where that has a name."""
    with suppress(ValueError, TypeError, AttributeError):
        if content and (holder := json.loads(content).get("holder")):
            return f"{holder} is at work, beside which nothing else may run; try again when it has ended"
    return refusal


@contextmanager
def _leased(checkpoint: Lake, file: str, refusal: str, lost: Callable[[], object], holder: str = "") -> Iterator[None]:
    lease = Lease(checkpoint.store, file, refusal, lost, holder)
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
    holder: str = ""
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
                    raise self._refusal()
                break
        self.stamp = stamp

    def _watch(self, found: str) -> None:
        """Return when a lock has stayed as it was for as long as it lasts."""
        log.info("%s is there: waiting %.0f s to see whether its run is alive", self.path, EXPIRES)
        if _next_stamp(self.files, self.path, found) != found:
            raise self._refusal()

    def _refusal(self) -> RunningError:
        return RunningError(_refused(self.files.read(self.path), self.refusal))

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
        about: dict[str, object] = {
            "owner": self.owner,
            "host": platform.node(),
            "process": os.getpid(),
            "renewed": self.number,
        }
        if self.holder:
            about["holder"] = self.holder
        return json.dumps(about).encode()


def _next_stamp(files: Storage, path: str, stamp: str) -> str | None:
    """Return the stamp that a lock gets when its holder renews it; the same one where nobody has until it expired."""
    end = time.monotonic() + EXPIRES
    while time.monotonic() < end:
        time.sleep(min(RENEWED, EXPIRES) / 5)
        newer = files.stamp(path)
        if newer != stamp:
            return newer
    return stamp
