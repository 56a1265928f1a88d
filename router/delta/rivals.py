"""Begin anew when another writer was faster."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def in_turn(
    work: Callable[[], T],
    faster: type[Exception],
    tries: int,
    seconds: float,
    before: Callable[[], object] = lambda: None,
) -> T:
    """Return the outcome of work that is begun anew when it raises `faster`; the last of the tries may raise it.

    Waits a random time before it does: up to so many `seconds` at first, then twice as many each time. `before` is what
    has to be done before it begins anew.
    """
    for attempt in range(tries - 1):
        try:
            return work()
        except faster:
            time.sleep(random.uniform(0, seconds * 2**attempt))
            before()
    return work()


def outrun(table: str, tries: int, error: Exception) -> TableError:
    """Return what is raised where no try was fast enough; `error` is the last one's."""
    why = str(error).split("\n")[0]
    return TableError(table, f"other writers were faster {tries} times, the last time: {why}; stop one of them")
