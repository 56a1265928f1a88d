"""The rate that an API really allows, found from what it refuses. Pure; runs on the driver."""

from __future__ import annotations

from collections import deque
from math import floor, inf

BUCKETS = 10
"""Of a second."""
REST = 2.0
"""Seconds without any, after which what is counted begins anew."""
BELOW = 0.97
"""The part of what was let through that is asked for next."""
DEEPEST = 0.5
"""No single cut goes deeper: what was let through says little when little was asked for."""
SETTLING = 1.0
"""Seconds after a cut in which refusals are those of calls that were already under way."""
CALM = 2.0
"""Seconds without a refusal before more is tried, at first; each time the same limit is found again, twice as long."""
LONGEST_CALM = 60.0
GROWTH = 0.02
"""More per second at first; twice as much each second without a refusal, as a limit that is gone is far away."""
MOST_GROWTH = 0.25
STRAY = 0.01
"""The part of a limit that is stated that may be refused: somebody was a little early or late."""
ALIKE = 0.15
"""Limits that differ by less are the same one."""
FORGOTTEN = 10.0
"""Times the limit that was found, where it is no longer believed in."""
LEAST = 0.1
"""Calls per second."""


class RateMeter:
    """A count per second, over the last second."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque()
        self._began = self._last = -inf

    def add(self, now: float, many: int) -> None:
        """Count so many now."""
        self._drop(now)
        if many:
            self._began = now if now - self._last > REST else self._began
            self._last = now
        bucket = floor(now * BUCKETS)
        if self._buckets and self._buckets[-1][0] == bucket:
            many += self._buckets.pop()[1]
        self._buckets.append((bucket, many))

    def rate(self, now: float) -> float:
        """Return how many came in the last second; in the first one, also after a rest, at the pace so far."""
        self._drop(now)
        span = now - (floor(now * BUCKETS) / BUCKETS - 1)
        return sum(many for _, many in self._buckets) / min(span, max(0.3, now - self._began))

    def settled(self, now: float) -> bool:
        """Say whether the first second is over, also that after a rest."""
        return now - self._began >= 1

    def _drop(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] < floor(now * BUCKETS) - BUCKETS:
            self._buckets.popleft()


class AdaptiveRate:
    """A rate that falls to what the API let through when it refused calls, and grows again later.

    `stated` is the rate of the configured limits, in calls per second; None: none. It is believed in while only a few
    calls are refused. Refusals without a single success say nothing about a rate: they are the circuit breaker's.
    """

    def __init__(self, stated: float | None) -> None:
        self.stated = stated
        self.rate: float | None = None
        """Calls per second at most; None: as configured."""
        self._found = 0.0
        self._calm = CALM
        self._settled = self._grown = -inf
        self._growth = GROWTH
        self._ok, self._sent, self._throttled = RateMeter(), RateMeter(), RateMeter()

    def heard(self, now: float, *, sent: int, ok: int, throttled: int, pause: float = 0.0) -> bool:
        """Count what came back; say whether the rate was cut."""
        self._ok.add(now, ok)
        self._sent.add(now, sent)
        self._throttled.add(now, throttled)
        passed = self._ok.rate(now)
        if not throttled or not passed or now < self._settled or self.stray(now):
            return False
        # what passed in a first second is no rate: one that is stated is rather believed in
        known = self.stated is None or self._sent.settled(now)
        asked = self.rate or self._sent.rate(now)
        self._lower(now, max(LEAST, passed * BELOW, DEEPEST * asked) if known else inf, pause)
        return True

    def stray(self, now: float) -> bool:
        """Say whether those refused in the last second are so few that a limit that is stated may be right."""
        if self.stated is None or self.rate is not None or not self._ok.rate(now):
            return False
        return self._throttled.rate(now) <= STRAY * max(self.stated, self._sent.rate(now))

    def current(self, now: float) -> float | None:
        """Return the calls per second to go at, more as time passes without a refusal."""
        while self.rate is not None and now >= self._grown + 1:
            self._grown += 1
            self.rate *= 1 + self._growth
            self._growth = min(MOST_GROWTH, self._growth * 2)
            top = self._found * FORGOTTEN if self.stated is None else self.stated
            if self.rate >= top:
                self.rate = None
        return self.rate

    def _lower(self, now: float, rate: float, pause: float) -> None:
        rate = min(rate, *(top * BELOW for top in (self.rate, self.stated) if top is not None), inf)
        again = abs(rate - self._found) <= ALIKE * self._found
        self._calm = min(LONGEST_CALM, self._calm * 2) if again else CALM
        self.rate = self._found = rate
        self._settled = now + max(SETTLING, pause)
        self._grown, self._growth = now + pause + self._calm - 1, GROWTH
