"""Several rate limits at once, each kept in every window of its length; or the same ones for each value of a key.

Pure: the caller gives the time. Every token is for a moment, and tokens are given out in the order of time. Runs on the
driver. The memory for keys (an account, a host) is bounded by `MAX_KEPT_KEYS`, however many there are.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, field
from math import floor, inf
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

USED_LIMIT_SHARE = 0.98
"""The part of a limit that is used: the rest, its slack, is for calls that arrive earlier or later than planned."""
MAX_SHORT_LIMIT_SECONDS = 5.0
"""Seconds: calls under a limit of up to this length are spaced evenly, those under a longer one are only counted."""
LOOSE_LIFE_SECONDS = 0.1
"""Seconds that a token lives while less than half of every limit is used: APIs take small bursts."""
LOOSE_SHARE = 0.005
"""The part of a short limit whose tokens may live so long at a time; and of a long limit's window that a token may
live, by which the window counts it longer."""
MAX_KEPT_KEYS = 10_000
"""Keys whose windows the driver keeps, those used last: 16 MB with one limit. And keys whose last call a task knows."""


@dataclass(frozen=True)
class RateLimit:
    """A number of calls, or rows, or both, that an API takes in any window of so many seconds.

    A number above 1 is rounded down; one below 1 counts as one call in a longer window. All are above 0 and finite, as
    the options are that they come from.
    """

    calls: float | None
    rows: float | None
    seconds: float


@dataclass
class Run:
    """Tokens for `calls` calls, `step` seconds apart, each for up to `rows` rows and valid for `lives` seconds.

    A task uses them up from the front.
    """

    first: float
    step: float
    calls: int
    rows: int
    lives: float
    key: str = ""
    """What they are for, where each key has its own limit."""


@dataclass
class SlidingWindow:
    """The calls, or rows, that count in a window which ends at a given moment.

    A token counts from its start until one window after its *last* possible use. Tokens start in order, so when the
    last of those used within a window was given out, all others still counted: the API sees at most `most`, however
    late within its life each token is used.
    """

    most: int
    seconds: float
    grain: float
    _lumps: list[tuple[float, int]] = field(default_factory=list)
    """When each lump leaves every window, and how much it counts; in order of time."""
    _sum: int = 0
    _opened: float = -inf
    """When the first token of the last lump leaves."""

    def drop_expired(self, now: float) -> None:
        """Drop what is in no window that ends now or later."""
        gone = 0
        for leaves, cost in self._lumps:
            if leaves > now:
                break
            gone += 1
            self._sum -= cost
        if gone:
            del self._lumps[:gone]

    def count_used(self, at: float) -> int:
        """Return the sum of the costs in the window that ends at a moment, now or later."""
        used = self._sum
        for leaves, cost in self._lumps:
            if leaves > at:
                break
            used -= cost
        return used

    def opens_at(self, at: float, cost: int) -> float:
        """Return the first moment from `at` on with room for `cost`; more than `most` gets a window of its own."""
        most = max(0, self.most - cost)
        used = self._sum
        for leaves, counted in self._lumps:
            if used <= most and leaves > at:
                break
            if used > most:
                at = max(at, leaves)
            used -= counted
        return at

    def add_tokens(self, last_use: float, cost: int) -> None:
        """Count tokens, of which the last may be used at `last_use`."""
        leaves = last_use + self.seconds * max(1.0, cost / self.most)
        self._sum += cost
        if self._lumps and self._lumps[-1][0] <= leaves <= self._opened + self.grain:
            self._lumps[-1] = leaves, self._lumps[-1][1] + cost
            return
        if not self._lumps or leaves >= self._lumps[-1][0]:
            self._opened = leaves
        insort(self._lumps, (leaves, cost))

    def merge_counts(self, now: float, other: SlidingWindow) -> None:
        """Count as much as the one of both windows that counts more, and for as long as the one that does so longer."""
        for window in (self, other):
            window.drop_expired(now)
        self._sum = max(self._sum, other._sum)
        if self._sum:
            last_lump = max(self._lumps[-1:] + other._lumps[-1:])
            self._lumps = [(last_lump[0], self._sum)]

    def copy_counts(self, other: SlidingWindow) -> None:
        """Take over what another window counts."""
        self._lumps = list(other._lumps)
        self._sum = other._sum
        self._opened = other._opened


class Quota:
    """One number of a limit, of calls or of rows: its window, and its pace where the window is short."""

    def __init__(self, most: float, seconds: float, share: float) -> None:
        if most < 1:
            seconds = seconds / most
            most = 1
        slack = seconds / share - seconds
        self.short = seconds <= MAX_SHORT_LIMIT_SECONDS
        self.step = seconds / (most * share) if self.short else 0.0
        """Seconds between two calls or rows."""
        # Three quarters of the slack are for late use, a fifth for tokens that count as one lump, of one moment: there
        # are fewer to count. What is left is for the network.
        self.lives = min(LOOSE_LIFE_SECONDS, slack * 0.75)
        """Seconds for which a token may be used."""
        if not self.short:
            self.lives = min(1.0, max(LOOSE_LIFE_SECONDS, seconds * LOOSE_SHARE))
        # the pace of a short limit leaves its slack unused; a long limit has no pace, its window is longer by the slack
        self.window = SlidingWindow(floor(most), seconds if self.short else seconds / share, slack * 0.2)
        self.free = -inf
        """When the pace allows the next token."""

    def seconds_for(self, cost: int, factor: float) -> float:
        """Return the seconds that `cost` takes at a part of the pace."""
        whole = self.step * cost
        # A quarter of a second more at most: a tenth of 1 call per second would wait for ten.
        return min(whole / factor, whole + 0.25)


class SlidingWindows:
    """The tokens under several limits, each given out once.

    `share` of each limit is used. Runs start in order; unused tokens expire.
    """

    keyed = False

    def __init__(self, limits: Iterable[RateLimit], share: float) -> None:
        limits = tuple(limits)
        self._calls = [Quota(limit.calls, limit.seconds, share) for limit in limits if limit.calls is not None]
        self._rows = [Quota(limit.rows, limit.seconds, share) for limit in limits if limit.rows is not None]
        self._quotas = self._calls + self._rows
        self._free = -inf
        """When the `rate` that was asked for allows the next token."""
        self._last = -inf

    def of_key(self, key: str, now: float) -> SlidingWindows:
        """Return these windows, which are the same for all keys."""
        return self

    @property
    def limits_rows(self) -> bool:
        """Say whether the rows of a call matter."""
        return bool(self._rows)

    @property
    def is_paced(self) -> bool:
        """Say whether calls take evenly spaced slots: under a short limit."""
        return any(quota.short for quota in self._quotas)

    @property
    def rate(self) -> float | None:
        """Return the calls per second that short limits allow; None: no short limit is stated."""
        return min((1 / quota.step for quota in self._calls if quota.short), default=None)

    def next_start(self, now: float, rows: int) -> float:
        """Return the earliest time for a call of so many rows."""
        at = max(now, self._free, self._last, *(quota.free for quota in self._quotas))
        for quota, cost in self._quota_costs(rows):
            at = quota.window.opens_at(at, cost)
        return at

    def allocate_run(
        self, now: float, until: float, *, calls: int, rows: int, factor: float = 1.0, rate: float | None = None
    ) -> Run | None:
        """Give out up to `calls` tokens that start before `until`; None: the next one is later.

        Args:
            factor: The part of the stated pace to go at.
            rate: Calls per second at most, in addition to the limits.
        """
        for quota in self._quotas:
            quota.window.drop_expired(now)
        first = self.next_start(now, rows)
        if first > until:
            return None
        paces = [quota.seconds_for(cost, factor) for quota, cost in self._quota_costs(rows)]
        own = 1 / rate if rate else 0.0
        step = max(own, *paces, 0.0)
        loose = self._is_loose(now, first)
        room = [(quota.window.most - quota.window.count_used(first)) // cost for quota, cost in self._quota_costs(rows)]
        fit = floor((until - first) / step) + 1 if step else calls
        if loose:
            # Few at a time: those that live so long can go out together.
            room += [
                floor(quota.window.most * LOOSE_SHARE) // cost for quota, cost in self._quota_costs(rows) if quota.short
            ]
        run = Run(first, step, max(1, min(calls, fit, *room)), rows, self._token_life(loose=loose))
        self._count_run(run, paces, own)
        return run

    def shift_pace(self, part: float) -> None:
        """Let the next token be later by a part of a step, and with it all that follow at the same pace."""
        for quota in self._quotas:
            quota.free += part * quota.step

    def count_earlier(self, at: float, calls: int, rows: int) -> None:
        """Count calls that were sent before, those of an earlier driver for instance."""
        for quotas, cost in ((self._calls, calls), (self._rows, rows)):
            for quota in quotas if cost else ():
                quota.window.add_tokens(at, cost)

    def used_share(self, now: float) -> float | None:
        """Return the used share, 0 to 1, of the limit that is used the most; None without a limit."""
        shares = [quota.window.count_used(now) / quota.window.most for quota in self._quotas]
        return min(1.0, max(shares)) if shares else None

    def merge_counts(self, now: float, other: SlidingWindows) -> None:
        """Count the most that these windows count, or others of the same limits."""
        for quota, other_quota in zip(self._quotas, other._quotas, strict=True):
            quota.free = max(quota.free, other_quota.free)
            quota.window.merge_counts(now, other_quota.window)

    def take_over(self, before: KeyedWindows | SlidingWindows) -> None:
        """Take over the counts of windows of the same length, so that a restated limit does not begin at zero."""
        if not isinstance(before, SlidingWindows):
            return
        for own_quotas, old_quotas in ((self._calls, before._calls), (self._rows, before._rows)):
            for quota in own_quotas:
                for old in old_quotas:
                    if old.window.seconds == quota.window.seconds:
                        quota.window.copy_counts(old.window)
                        break

    def _quota_costs(self, rows: int) -> list[tuple[Quota, int]]:
        return [(quota, 1) for quota in self._calls] + [(quota, rows) for quota in self._rows]

    def _is_loose(self, now: float, at: float) -> bool:
        """Say whether no call waits for the pace, and at most half of every short limit is used.

        Tokens may then be used later than the slack allows.
        """
        short = [quota for quota in self._quotas if quota.short]
        return all(quota.free <= now and 2 * quota.window.count_used(at) <= quota.window.most for quota in short)

    def _token_life(self, *, loose: bool) -> float:
        """Return the seconds after which a token expires: at the full pace as many as the slack allows."""
        if not self.is_paced:
            return min((quota.lives for quota in self._quotas), default=LOOSE_LIFE_SECONDS)
        if loose:
            return LOOSE_LIFE_SECONDS
        return min(quota.lives for quota in self._quotas if quota.short)

    def _count_run(self, run: Run, paces: list[float], own: float) -> None:
        last = run.first + (run.calls - 1) * run.step
        self._last = last
        self._free = last + own
        for (quota, cost), pace in zip(self._quota_costs(run.rows), paces, strict=True):
            quota.free = last + pace
            lump = max(1, min(run.calls, floor(quota.window.grain / run.step) if run.step else run.calls))
            for done in range(0, run.calls, lump):
                many = min(lump, run.calls - done)
                quota.window.add_tokens(run.first + (done + many - 1) * run.step + run.lives, cost * many)


class KeyedWindows:
    """Windows for each key, of which those used last are kept.

    The windows of a key that are forgotten while they count something leave that to their group of keys (by hash). A
    key without windows begins with what its group counts: it may wait longer than it had to, and never gets more than
    a limit.
    """

    keyed = True
    rate = None
    """There is no rate for all keys together."""

    def __init__(self, limits: Iterable[RateLimit], share: float, most: int = MAX_KEPT_KEYS) -> None:
        self._limits = tuple(limits)
        self._share = share
        self._most = most
        self._kept: OrderedDict[str, SlidingWindows] = OrderedDict()
        self._forgotten: dict[int, SlidingWindows] = {}
        """The most that any key of a group has used: one that comes back begins with as much."""
        self.is_paced = any(limit.seconds <= MAX_SHORT_LIMIT_SECONDS for limit in self._limits)
        self.limits_rows = any(limit.rows is not None for limit in self._limits)

    def of_key(self, key: str, now: float) -> SlidingWindows:
        """Return the windows of a key."""
        windows = self._kept.get(key)
        if windows is None:
            windows = self._kept[key] = self._begin_key(key, now)
            if len(self._kept) > self._most:
                self._forget_key(now, *self._kept.popitem(last=False))
        self._kept.move_to_end(key)
        return windows

    def next_start(self, now: float, rows: int) -> float:
        """Return the earliest time for a call: now, for there are keys that have sent nothing."""
        return now

    def used_share(self, now: float) -> float | None:
        """Return nothing: each key has its own limit."""
        return None

    def shift_pace(self, part: float) -> None:
        """Do nothing: calls of many keys are not evenly spaced."""

    def take_over(self, before: KeyedWindows | SlidingWindows) -> None:
        """Take over the counts of windows of the same length, so that a restated limit does not begin at zero."""
        if isinstance(before, KeyedWindows):
            for key, windows in before._kept.items():
                self._kept[key] = SlidingWindows(self._limits, self._share)
                self._kept[key].take_over(windows)

    def _begin_key(self, key: str, now: float) -> SlidingWindows:
        windows = SlidingWindows(self._limits, self._share)
        group = self._forgotten.get(_group_of(key))
        if group is not None:
            windows.merge_counts(now, group)
        return windows

    def _forget_key(self, now: float, key: str, windows: SlidingWindows) -> None:
        if windows.next_start(now, 1) <= now and not windows.used_share(now):
            return
        group = self._forgotten.setdefault(_group_of(key), SlidingWindows(self._limits, self._share))
        group.merge_counts(now, windows)


def _group_of(key: str, groups: int = 1 << 14) -> int:
    """Return the group of a key whose windows are not kept any more: more groups than keys that are kept."""
    return crc32(key.encode()) % groups
