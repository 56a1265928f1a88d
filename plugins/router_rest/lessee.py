"""Know one task: what it has, what it wants, what it is to be told. Plain data; on the driver."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_rest.terms import State
    from router_rest.timeline import Run


@dataclass
class Lessee:
    """Hold what is known of one task."""

    since: float
    """Of its start, or its last slot."""
    wants: deque[tuple[int, int]] = field(default_factory=deque)
    granted: int = 0
    ended: int = 0
    """Slots that were answered for, or lapsed."""
    credit: int = 0
    stopped: bool = False
    away: bool = False
    """It was told to leave."""


@dataclass
class Draft:
    """Gather what a task is told."""

    runs: list[Run] = field(default_factory=list)
    state: State = "go"
    again: float = 0.0
    cap: bool = False
    retries: int = 0


def beyond(wants: tuple[tuple[int, int], ...], taken: int) -> deque[tuple[int, int]]:
    """Return what is wanted beyond so many slots."""
    rest: deque[tuple[int, int]] = deque()
    for rows, many in wants:
        more = max(0, many - taken)
        taken = max(0, taken - many)
        if more:
            rest.append((rows, more))
    return rest
