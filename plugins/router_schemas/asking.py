"""Ask a registry for what may be there in a moment, and leave it alone for a while about what is not."""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Generic, TypeVar

from router_schemas.connection import NotFound
from router_schemas.places import Place
from router_schemas.references import Unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

K = TypeVar("K", "int", "UUID")
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")

PAUSES = (0.1, 0.3, 0.6)
"""Seconds before what is not there is asked for again: a schema registered just now may not be visible yet."""
HOLD = 30.0
"""Seconds for which what was not there stays unknown."""
AT_ONCE = 8
"""Requests that a registry gets at the same time: garbage can look like frames with as many ids as there are rows."""


@dataclass(frozen=True)
class Unknown:
    """Be what the registry does not have, or has nothing usable for; `reason` is for dead letters."""

    reason: str


class Asking(Generic[K, V]):
    """Find what ids or GUIDs stand for.

    `recall` returns what is known without asking, `fetch` asks; it raises NotFound or Unusable, and what else it
    raises says nothing about the key; several threads call it. `clock` and `sleep` are in seconds. The caller holds a
    lock.
    """

    def __init__(
        self,
        recall: Callable[[K], V | Unknown | None],
        fetch: Callable[[K], V],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._recall: Callable[[K], V | Unknown | None] = recall
        self._fetch: Callable[[K], V] = fetch
        self._clock = clock
        self._sleep = sleep
        self._unknown: dict[K, tuple[Unknown, float]] = {}

    def found(self, keys: Iterable[K]) -> dict[K, V | Unknown]:
        """Return what each key stands for: from memory, or from the registry, about a second for all together."""
        keys, now = list(dict.fromkeys(keys)), self._clock()
        self._unknown = {key: held for key, held in self._unknown.items() if held[1] > now}
        found: dict[K, V | Unknown] = {}
        for key in keys:
            told = self._unknown[key][0] if key in self._unknown else self._recall(key)
            if told is not None:
                found[key] = told
        absent: dict[K, NotFound] = {}
        for pause in (0.0, *PAUSES):
            missing = [key for key in keys if key not in found]
            if missing and pause:
                self._sleep(pause)
            for key, answer in together(self._fetch, missing).items():
                if isinstance(answer, NotFound):
                    absent[key] = answer
                elif isinstance(answer, Unusable):
                    found[key] = self._hold(key, f"{Place(key)} cannot be used: {answer}")
                else:
                    found[key] = answer
        return found | {key: self._hold(key, _absence(key, fault)) for key, fault in absent.items() if key not in found}

    def forget(self, key: K) -> None:
        """Ask for a key again, though it was not there."""
        self._unknown.pop(key, None)

    def _hold(self, key: K, reason: str) -> Unknown:
        """Remember for a short time that there is nothing."""
        unknown = Unknown(reason)
        self._unknown[key] = unknown, self._clock() + HOLD
        return unknown


def together(ask: Callable[[A], B], keys: Iterable[A]) -> dict[A, B | NotFound | Unusable]:
    """Return what is answered for each key, in the order of the keys, AT_ONCE asked at a time.

    Raises what says nothing about a key, such as RegistryAway, and then asks for no more.
    """

    over = Event()

    def answer(key: A) -> B | NotFound | Unusable:
        if over.is_set():
            raise CancelledError
        try:
            return ask(key)
        except (NotFound, Unusable) as fault:
            return fault
        except BaseException:
            over.set()
            raise

    wanted = list(keys)
    if len(wanted) < 2:
        return {key: answer(key) for key in wanted}
    with ThreadPoolExecutor(AT_ONCE, "schemas") as threads:
        asked = {key: threads.submit(answer, key) for key in wanted}
        try:
            wait(asked.values())
        except BaseException:  # the stream is to end
            over.set()
            raise
    faults = [fault for future in asked.values() if (fault := future.exception()) is not None]
    for fault in faults:
        if not isinstance(fault, CancelledError):
            raise fault
    return {key: future.result() for key, future in asked.items()}


def _absence(key: int | UUID, fault: NotFound) -> str:
    """Say what matters first: where the registry was asked stands at the end."""
    return f"the registry does not give {Place(key)}: {fault.what} ({fault.where})"
