"""Several rate limits at once, each kept in every window of its length. Pure: whoever asks says what time it is.

Tokens are for moments on one line of time. Runs on the driver.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from math import floor, inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORT = 5.0
"""Seconds: calls under a limit of up to this length are spaced evenly, those under a longer one are only counted."""
LOOSE = 0.1
"""Seconds that a token lives while less than half of every limit is used."""
FEW = 0.005
"""The part of a limit that lives so long at a time: what is late comes in a bunch, and APIs take only a small one."""
LATE = 0.75
"""The part of a limit's slack that a token may be late; the rest is for counting in lumps and for the network."""
LUMPS = 0.2
"""The part of a limit's slack that is counted as one moment."""
GENTLE = 0.25
"""Seconds: a slower pace adds at most so much to the distance of two calls, or 1 per second would wait for ten."""


@dataclass(frozen=True)
class RateLimit:
    """So many calls, or rows, or both, in any window of so many seconds.

    A fraction above 1 counts as the whole number below it; below 1 it is one call in a longer time.
    """

    calls: float | None
    rows: float | None
    seconds: float

    def __post_init__(self) -> None:
        stated = [most for most in (self.calls, self.rows) if most is not None]
        if not stated or not all(0 < most < inf for most in (*stated, self.seconds)):
            raise ValueError("a limit has a number of calls or rows above 0, and a number of seconds above 0")


@dataclass(frozen=True)
class Run:
    """`calls` tokens, `step` seconds apart, each for up to `rows` rows and good for `lives` seconds."""

    first: float
    step: float
    calls: int
    rows: int
    lives: float


class SlidingWindow:
    """What may still be seen in a window that ends at a moment.

    A token counts from its start until a window after its *last* use. Tokens start in order, so the latest of those
    used in a window has counted all others: `most` holds at the receiver, however late within its life each is used.
    """

    def __init__(self, most: int, seconds: float, grain: float) -> None:
        self.most = most
        self.seconds = seconds
        self.grain = grain
        self._lumps: list[tuple[float, int]] = []
        """When they leave every window, and what they count; in order."""
        self._sum = 0
        self._opened = -inf
        """When the first token of the last lump leaves."""

    def forget(self, now: float) -> None:
        """Let go of what no window from now on can hold."""
        gone = 0
        for left, cost in self._lumps:
            if left > now:
                break
            gone += 1
            self._sum -= cost
        if gone:
            del self._lumps[:gone]

    def used(self, at: float) -> int:
        """Return what counts at a moment from now on."""
        used = self._sum
        for left, cost in self._lumps:
            if left > at:
                break
            used -= cost
        return used

    def opens(self, at: float, cost: int) -> float:
        """Return the first moment from `at` on when so much more has room; what never has is alone in its window."""
        most, used = max(0, self.most - cost), self._sum
        for left, one in self._lumps:
            if used <= most and left > at:
                break
            used -= one
            at = max(at, left) if used + one > most else at
        return at

    def take(self, last_use: float, cost: int) -> None:
        """Count a token."""
        left = last_use + self.seconds * max(1.0, cost / self.most)
        self._sum += cost
        if self._lumps and self._lumps[-1][0] <= left <= self._opened + self.grain:
            self._lumps[-1] = left, self._lumps[-1][1] + cost
            return
        if not self._lumps or left >= self._lumps[-1][0]:
            self._opened = left
        insort(self._lumps, (left, cost))

    def copy(self, other: SlidingWindow) -> None:
        """Count what another window counts."""
        self._lumps, self._sum, self._opened = list(other._lumps), other._sum, other._opened

    def __len__(self) -> int:
        return len(self._lumps)


class Quota:
    """One number of one limit: its window, and the pace when it is short."""

    def __init__(self, most: float, seconds: float, share: float) -> None:
        if most < 1:
            most, seconds = 1, seconds / most
        slack = seconds / share - seconds
        self.short = seconds <= SHORT
        self.step = seconds / (most * share) if self.short else 0.0
        """Seconds that one call or row takes."""
        self.lives = min(LOOSE, slack * LATE) if self.short else LOOSE
        # The pace leaves the slack to a short limit; a longer one has no pace, and is counted in longer windows.
        self.window = SlidingWindow(floor(most), seconds if self.short else seconds / share, slack * LUMPS)
        self.free = -inf
        """When the pace allows the next token."""

    def pace(self, cost: int, factor: float) -> float:
        """Return how long so much takes at a part of the pace."""
        whole = self.step * cost
        return min(whole / factor, whole + GENTLE)


class SlidingWindows:
    """Tokens under several limits, never two lives of one.

    `share` of each limit is used. TokenRun start in order; those that nobody uses lapse.
    """

    def __init__(self, limits: Iterable[RateLimit], share: float) -> None:
        limits = tuple(limits)
        self._calls = [Quota(one.calls, one.seconds, share) for one in limits if one.calls is not None]
        self._rows = [Quota(one.rows, one.seconds, share) for one in limits if one.rows is not None]
        self._quotas = self._calls + self._rows
        self._free = -inf
        """When the pace that was asked for allows the next token."""
        self._last = -inf

    @property
    def sized(self) -> bool:
        """Say whether the rows of a call matter."""
        return bool(self._rows)

    @property
    def rate(self) -> float | None:
        """Return the calls per second of the pace; None: none is stated."""
        return min((1 / one.step for one in self._calls if one.short), default=None)

    def next(self, now: float, rows: int) -> float:
        """Return when a call of so many rows may go out at the earliest."""
        at = max(now, self._free, self._last, *(quota.free for quota in self._quotas))
        for quota, cost in self._costs(rows):
            at = quota.window.opens(at, cost)
        return at

    def deal(
        self, now: float, until: float, *, calls: int, rows: int, factor: float = 1.0, rate: float | None = None
    ) -> Run | None:
        """Take up to so many tokens that start until a moment; None: the next one is later.

        Args:
            factor: The part of the stated pace to go at.
            rate: Calls per second at most, beside the limits.
        """
        for quota in self._quotas:
            quota.window.forget(now)
        first = self.next(now, rows)
        if first > until:
            return None
        paces = [quota.pace(cost, factor) for quota, cost in self._costs(rows)]
        own = 1 / rate if rate else 0.0
        step = max(own, *paces, 0.0)
        loose = self._loose(now, first)
        room = [(quota.window.most - quota.window.used(first)) // cost for quota, cost in self._costs(rows)]
        if loose:
            room += [floor(quota.window.most * FEW) // cost for quota, cost in self._costs(rows) if quota.short]
        fit = floor((until - first) / step) + 1 if step else calls
        run = Run(first, step, max(1, min(calls, fit, *room)), rows, LOOSE if loose else self._lives)
        self._take(run, paces, own)
        return run

    def spent(self, at: float, calls: int, rows: int) -> None:
        """Count calls of the past, those of an earlier driver for instance."""
        for quotas, cost in ((self._calls, calls), (self._rows, rows)):
            for quota in quotas if cost else ():
                quota.window.take(at, cost)

    def succeed(self, before: SlidingWindows) -> None:
        """Take over what was counted under limits that are the same, or longer windows would begin anew."""
        for own, old in ((self._calls, before._calls), (self._rows, before._rows)):
            for quota in own:
                same = [one.window for one in old if one.window.seconds == quota.window.seconds]
                if same:
                    quota.window.copy(same[0])

    def _costs(self, rows: int) -> list[tuple[Quota, int]]:
        return [(quota, 1) for quota in self._calls] + [(quota, rows) for quota in self._rows]

    def _loose(self, now: float, at: float) -> bool:
        """Say whether there is room anyway, and nobody waits for the pace: a token may be used later than the slack."""
        short = [quota for quota in self._quotas if quota.short]
        return all(quota.free <= now and 2 * quota.window.used(at) <= quota.window.most for quota in short)

    @property
    def _lives(self) -> float:
        """Return how late a token may be used at the pace: as late as the slack allows."""
        return min(quota.lives for quota in self._quotas if quota.short)

    def _take(self, run: Run, paces: list[float], own: float) -> None:
        last = run.first + (run.calls - 1) * run.step
        self._last, self._free = last, last + own
        for (quota, cost), pace in zip(self._costs(run.rows), paces, strict=True):
            quota.free = last + pace
            lump = max(1, min(run.calls, floor(quota.window.grain / run.step) if run.step else run.calls))
            for done in range(0, run.calls, lump):
                many = min(lump, run.calls - done)
                quota.window.take(run.first + (done + many - 1) * run.step + run.lives, cost * many)
