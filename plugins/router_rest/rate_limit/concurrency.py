"""The calls in flight of a whole job, shared among its tasks. Pure; runs on the driver."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

HELD = 1.0
"""Seconds that a task's highest demand counts."""
CUT = 0.7
"""What is left after timeouts; at most once a second."""
LEAST = 0.1
GROWTH = 2.0
"""Times more after each second without a timeout."""


@dataclass
class TaskShare:
    """What one task has, and may believe that it has."""

    cap: int = 0
    """As told last."""
    number: int = 0
    """Of that message."""
    unsure: deque[tuple[int, int]] = field(default_factory=deque)
    """Messages that the task may not have read, and what each said."""
    out: int = 0
    demand: int = 0
    peak: int = 0
    """The highest demand of late."""
    peaked: float = -inf

    @property
    def promised(self) -> int:
        """Return what the task may have in flight at most."""
        return max(self.out, self.cap, *(cap for _, cap in self.unsure), 0)


class ConcurrencyLimit:
    """The calls in flight of all tasks: who wants more gets what others leave, and the sum never exceeds the total.

    A task's number is lowered first, and others get more when it has said that it knows.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.part = 1.0
        """What timeouts have left of it."""
        self._late = self._moved = -inf
        self._shares: dict[str, TaskShare] = {}

    def enter(self, who: str) -> None:
        """Begin to count a task."""
        self._shares[who] = TaskShare()

    def leave(self, who: str) -> None:
        """Give what a task had to the others."""
        self._shares.pop(who, None)

    def heard(self, now: float, who: str, *, number: int, out: int, demand: int) -> None:
        """Note what a task has in flight and wants in flight, and the last message it has read."""
        share = self._shares[who]
        share.out, share.demand = out, demand
        while share.unsure and share.unsure[0][0] < number:
            share.unsure.popleft()
        if demand >= share.peak or now - share.peaked > HELD:
            share.peak, share.peaked = demand, now

    def timeouts(self, now: float, many: int, good: int) -> None:
        """Have fewer in flight after calls that timed out, and more again after a second without."""
        if many:
            self._late = now
        if many and now - self._moved >= 1:
            self.part, self._moved = max(LEAST, self.part * CUT), now
        elif good and self.part < 1 and now - max(self._moved, self._late) >= 1:
            self.part, self._moved = min(1.0, self.part * GROWTH), now

    def restore(self) -> None:
        """Forget the timeouts: an outage is over, and its ramp takes care."""
        self.part = 1.0

    def deal(self, factor: float) -> dict[str, tuple[int, int]]:
        """Return what tasks are to be caps: the number of the message, and how many calls they may have in flight."""
        total = max(1, int(self.total * factor * self.part))
        wanted = self._wanted(total)
        caps = {}
        for who, cap in wanted.items():
            if cap < self._shares[who].cap:
                caps[who] = self._tell(who, cap)
        free = total - sum(share.promised for share in self._shares.values())
        for who, cap in sorted(wanted.items(), key=lambda one: self._shares[one[0]].cap):
            share = self._shares[who]
            more = min(cap - share.cap, free + share.promised - share.cap)
            if more > 0:
                free -= max(0, share.cap + more - share.promised)
                caps[who] = self._tell(who, share.cap + more)
        return caps

    def _tell(self, who: str, cap: int) -> tuple[int, int]:
        share = self._shares[who]
        share.unsure.append((share.number, share.cap))
        share.number += 1
        share.cap = cap
        return share.number, cap

    def _wanted(self, total: int) -> dict[str, int]:
        """Return the fair shares: who wants less than an even part gets it, the others share the rest evenly."""
        left, wanted = total, {}
        ordered = sorted(self._shares, key=lambda who: self._shares[who].peak)
        for place, who in enumerate(ordered):
            wanted[who] = min(self._shares[who].peak, -(-left // (len(ordered) - place)))
            left -= wanted[who]
        if ordered and left > 0:  # nobody wants it now: evenly, so that a little more demand needs no message
            for place, who in enumerate(ordered):
                wanted[who] += left // len(ordered) + (place < left % len(ordered))
        return wanted
