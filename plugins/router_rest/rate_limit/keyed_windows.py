"""The same rate limits for each value of a key: an account, a host. Runs on the driver.

Pure: the caller gives the time. Memory is bounded by `MOST_KEYS` and `GROUPS`, however many values there are.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING
from zlib import crc32

from router_rest.rate_limit.sliding_window import SHORT, SlidingWindows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router_rest.rate_limit.sliding_window import RateLimit

MOST_KEYS = 10_000
"""Keys whose windows are kept, those used last."""
GROUPS = 1 << 14
"""Groups of keys whose windows are not kept any more."""


@dataclass
class ForgottenKeys:
    """The most that any key of a group has used: one that comes back begins with as much."""

    free: float = -inf
    until: list[float] = field(default_factory=list)
    used: list[int] = field(default_factory=list)


class KeyedWindows:
    """Windows for each key, of which those used last are kept.

    The windows of a key that are forgotten while they count something leave that to their group of keys (by hash). A
    key without windows begins with what its group counts: it may wait longer than it had to, and never gets more than
    a limit.
    """

    keyed = True
    rate = None
    """There is no rate for all keys together."""

    def __init__(self, limits: Iterable[RateLimit], share: float, most: int = MOST_KEYS) -> None:
        self._limits = tuple(limits)
        self._share = share
        self._most = most
        self._kept: OrderedDict[str, SlidingWindows] = OrderedDict()
        self._forgotten: dict[int, ForgottenKeys] = {}
        self.paced = any(limit.seconds <= SHORT for limit in self._limits)
        self.sized = any(limit.rows is not None for limit in self._limits)

    def __len__(self) -> int:
        """Return the number of keys whose windows are kept."""
        return len(self._kept)

    def of(self, key: str, now: float) -> SlidingWindows:
        """Return the windows of a key."""
        windows = self._kept.get(key)
        if windows is None:
            windows = self._kept[key] = self._begin(key, now)
            if len(self._kept) > self._most:
                self._forget(now, *self._kept.popitem(last=False))
        self._kept.move_to_end(key)
        return windows

    def next(self, now: float, rows: int) -> float:
        """Return when a call may be sent at the earliest: now, for there are keys that have sent nothing."""
        return now

    def used_share(self, now: float) -> float | None:
        """Return nothing: each key has its own limit."""
        return None

    def shift(self, part: float) -> None:
        """Do nothing: calls of many keys are not evenly spaced."""

    def succeed(self, before: KeyedWindows | SlidingWindows) -> None:
        """Take over the counts of windows of the same length, so that a restated limit does not begin at zero."""
        if isinstance(before, KeyedWindows):
            for key, windows in before._kept.items():
                self._kept[key] = SlidingWindows(self._limits, self._share)
                self._kept[key].succeed(windows)

    def _begin(self, key: str, now: float) -> SlidingWindows:
        windows = SlidingWindows(self._limits, self._share)
        group = self._forgotten.get(crc32(key.encode()) % GROUPS)
        if group is not None:
            windows.adopt(now, group.free, zip(group.until, group.used, strict=True))
        return windows

    def _forget(self, now: float, key: str, windows: SlidingWindows) -> None:
        free, counted = windows.counted(now)
        if free <= now and not any(used for _, used in counted):
            return
        group = self._forgotten.setdefault(crc32(key.encode()) % GROUPS, ForgottenKeys())
        if not group.until:
            group.until = [-inf] * len(counted)
            group.used = [0] * len(counted)
        group.free = max(free, group.free)
        for number, (until, used) in enumerate(counted):
            if group.until[number] <= now:  # what the group has counted is in no window any more
                group.used[number] = 0
            group.until[number] = max(group.until[number], until)
            group.used[number] = max(group.used[number], used)
