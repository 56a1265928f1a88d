"""One run at a time: the lock of a checkpoint, and of other work that must not run twice. Runs on the driver.

On a disk it is a lock of the operating system, which the end of a process releases. An object store has no locks; there
it is a file that its holder rewrites every few seconds, each time only over its own last one. A process that finds such
a file watches it: a file that changes is held, and the start is refused; a file that stays as it is for `_EXPIRES`
belongs to a run that was killed, and one process takes it over. No clock is compared with another machine's.

The file contains the name of its holder if that is no stream, so that a refused start can name it. A question whether a
run is alive (`is_running`) refuses no start.
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
    from router.storage.files import Storage

log = logging.getLogger("router")
RENEWED = 5.0
"""Seconds from one renewal to the next: one request each."""
_EXPIRES = 20.0
"""Seconds without a renewal after which a lock is free: what a start waits after a run was killed."""
PATIENCE = 2.0
"""Seconds for which a start tries again on a disk: another process may be asking whether a run is alive."""


@contextmanager
def hold_run_lock(
    checkpoint: Lake, name: str, lost: Callable[[], object] = lambda: None, holder: str = ""
) -> Iterator[None]:
    """Hold the lock of a checkpoint; raise RunningError while another run holds it.

    `lost` is called if another run took the lock meanwhile, as after a pause of this machine; the block ends with
    RunningError then. `holder` is the name of the holder, for the message of a start that is refused meanwhile.
    """
    refusal = (
        f"{name} is running already: its checkpoint {checkpoint.root} is locked; stop that run, or give this "
        "one another name and checkpoint"
    )
    with hold_file_lock(checkpoint, RUN_LOCK, refusal, lost, holder=holder, patience=PATIENCE):
        yield


RUN_LOCK = "lock"
"""The file of a checkpoint that its run locks."""


def is_run_active(checkpoint: Lake) -> bool:
    """Return whether a run holds the lock of a checkpoint. Waits up to `_EXPIRES` if a killed run has left one.

    A start is not refused meanwhile: on a disk the lock is shared for an instant with others that ask, and a start
    tries again; in an object store only the stamp of the file is read.
    """
    if not checkpoint.is_local:
        stamp = checkpoint.store.read_stamp(RUN_LOCK)
        if stamp is None:
            return False
        # The file of a run that ends has no next stamp, and that of a killed one keeps its stamp.
        return _next_stamp(checkpoint.store, RUN_LOCK, stamp) not in (None, stamp)
    try:
        with Path(checkpoint.root, RUN_LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def hold_file_lock(
    checkpoint: Lake,
    file: str,
    refusal: str,
    lost: Callable[[], object] = lambda: None,
    *,
    holder: str = "",
    patience: float = 0.0,
) -> Iterator[None]:
    """Hold a lock that is a file in a checkpoint; raise RunningError while another process holds it.

    `lost` and `holder` are those of `hold_run_lock`. On a disk it is tried again for `patience` seconds.
    """
    if checkpoint.is_local:
        lock = _hold_flock(checkpoint, file, refusal, holder, patience)
    else:
        lock = _hold_lease(checkpoint, file, refusal, lost, holder)
    with lock:
        yield


@contextmanager
def _hold_flock(checkpoint: Lake, file: str, refusal: str, holder: str, patience: float) -> Iterator[None]:
    path = Path(checkpoint.root, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience
    with path.open("a+") as lock:
        while not _try_flock(lock):
            if time.monotonic() >= end:
                lock.seek(0)
                raise RunningError(_refusal_reason(lock.read(), refusal))
            time.sleep(0.05)
        # The name that a killed holder wrote is replaced, even by nothing.
        lock.truncate(0)
        lock.write(json.dumps({"holder": holder}) if holder else "")
        lock.flush()
        yield


def _try_flock(lock: TextIO) -> bool:
    """Take the lock of an open file; return False if another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refusal_reason(content: str | bytes | None, refusal: str) -> str:
    """Return why a start is refused: the holder's name if the lock's file contains one, else `refusal`."""
    holder = None
    with suppress(ValueError, TypeError, AttributeError):
        holder = json.loads(content or "{}").get("holder")
    if not holder:
        return refusal
    return f"{holder} is at work, and nothing else may run until it ends; try again then"


@contextmanager
def _hold_lease(checkpoint: Lake, file: str, refusal: str, lost: Callable[[], object], holder: str) -> Iterator[None]:
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
        """Take the lock, at once or when the existing one has expired. Raises RunningError."""
        stamp = self._create_lock()
        while stamp is None:
            existing = self.files.read_stamp(self.path)
            if existing is None:
                stamp = self._create_lock()  # its holder has just deleted it
                continue
            log.info("%s is there: waiting %.0f s to see whether its run is alive", self.path, _EXPIRES)
            if _next_stamp(self.files, self.path, existing) != existing:
                raise self._make_refusal()
            # Of several processes that have waited for it, one replaces it.
            stamp = self._replace_lock(existing)
            if stamp is None:
                raise self._make_refusal()
        self.stamp = stamp

    def _make_refusal(self) -> RunningError:
        return RunningError(_refusal_reason(self.files.read(self.path), self.refusal))

    def renew_until_ended(self) -> None:
        """Renew the lock every few seconds; call `lost` once if that fails for too long, or another run has it."""
        renewed = time.monotonic()
        while not self.ended.wait(RENEWED):
            began = time.monotonic()
            try:
                stamp = self._replace_lock(self.stamp)
                renewed = began
            except OSError as error:
                log.warning("%s could not be renewed: %s", self.path, first_line(error))
                # It is given up while there is time for one more renewal: others may take it after `_EXPIRES`.
                stamp = self.stamp if began - renewed < _EXPIRES - RENEWED else None
            if stamp is None:
                self.gone = True
                self.lost()
                return
            self.stamp = stamp

    def give_back(self) -> None:
        """Delete the lock if this process still has it."""
        with suppress(OSError):
            if not self.gone and self._is_own():
                self.files.delete([self.path])

    def _create_lock(self) -> str | None:
        """Return the stamp of a new lock; None if another process has one."""
        return self.files.create_if_absent(self.path, self._lock_content()) or self._own_stamp()

    def _replace_lock(self, stamp: str) -> str | None:
        """Return the new stamp of the lock; None if its stamp is not the given one any more."""
        self.number += 1
        return self.files.replace_if_unchanged(self.path, self._lock_content(), stamp) or self._own_stamp()

    def _own_stamp(self) -> str | None:
        """Return the stamp of a lock that a request has made whose answer was lost."""
        return self.files.read_stamp(self.path) if self._is_own() else None

    def _is_own(self) -> bool:
        content = self.files.read(self.path)
        try:
            return bool(content) and json.loads(content or b"{}")["owner"] == self.owner
        except (ValueError, KeyError, TypeError):  # another program has written it
            return False

    def _lock_content(self) -> bytes:
        content: dict[str, object] = {
            "owner": self.owner,
            "host": platform.node(),
            "process": os.getpid(),
            "renewed": self.number,
        }
        if self.holder:
            content["holder"] = self.holder
        return json.dumps(content).encode()


def _next_stamp(files: Storage, path: str, stamp: str) -> str | None:
    """Return the stamp that a lock gets when its holder renews it; the same one if the lock expires without that."""
    end = time.monotonic() + _EXPIRES
    while time.monotonic() < end:
        time.sleep(min(RENEWED, _EXPIRES) / 5)
        newer = files.read_stamp(path)
        if newer != stamp:
            return newer
    return stamp
