"""A budget for retries: a share of the calls, and a few besides. Pure; runs on the driver."""

from __future__ import annotations

from collections import deque
from math import ceil, floor

SPAN = 10
"""Seconds that a call counts."""


class RetryBudget:
    """Retries for a share of the calls of the last seconds, and so many per second in any case.

    As Finagle's, whose share is 20 % and whose floor is 10 per second.
    """

    def __init__(self, share: float, floor_: float) -> None:
        self._share = share
        self._floor = floor_
        self._seconds: deque[tuple[int, float, int]] = deque()
        """Second, calls, retries given away."""

    def earned(self, now: float, calls: int) -> None:
        """Count calls that were no retries."""
        self._note(now, calls, 0)

    def take(self, now: float, most: int, among: int = 1) -> int:
        """Return how many retries one of so many tasks is allowed, and count them as taken."""
        self._note(now, 0, 0)
        calls, taken = sum(one[1] for one in self._seconds), sum(one[2] for one in self._seconds)
        left = floor(self._floor * SPAN + self._share * calls - taken)
        given = max(0, min(most, ceil(left / among)))
        self._note(now, 0, given)
        return given

    def _note(self, now: float, calls: int, taken: int) -> None:
        second = floor(now)
        while self._seconds and self._seconds[0][0] <= second - SPAN:
            self._seconds.popleft()
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, 0, 0))
        _, before, given = self._seconds[-1]
        self._seconds[-1] = second, before + calls, given + taken
