"""What slows a job down when an API refuses, times out or fails. Pure; runs on the driver.

The adaptive rate finds the limit that an API really has, the concurrency limit shares the calls in flight among tasks,
the circuit breaker tells an API that is out from one that fails now and then, and the retry budget bounds retries.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, floor, inf

BUCKETS = 10
"""Of a second."""
METER_REST = 2.0
"""Seconds without any, after which what is counted begins anew."""
BELOW = 0.97
"""The part of what was let through that is asked for next."""
DEEPEST = 0.5
"""No single cut goes deeper: what was let through says little when little was asked for."""
SETTLING = 1.0
"""Seconds after a cut in which refusals are those of calls that were already under way."""
RATE_CALM = 2.0
"""Seconds without a refusal before more is tried, at first; each time the same limit is found again, twice as long."""
LONGEST_RATE_CALM = 60.0
RATE_GROWTH = 0.02
"""More per second at first; twice as much each second without a refusal, as a limit that is gone is far away."""
MOST_RATE_GROWTH = 0.25
STRAY = 0.01
"""The part of a limit that is stated that may be refused: somebody was a little early or late."""
ALIKE = 0.15
"""Limits that differ by less are the same one."""
FORGOTTEN = 10.0
"""Times the limit that was found, where it is no longer believed in."""
LEAST_RATE = 0.1
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
            self._began = now if now - self._last > METER_REST else self._began
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
        self._calm = RATE_CALM
        self._settled = self._grown = -inf
        self._growth = RATE_GROWTH
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
        self._lower(now, max(LEAST_RATE, passed * BELOW, DEEPEST * asked) if known else inf, pause)
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
            self._growth = min(MOST_RATE_GROWTH, self._growth * 2)
            top = self._found * FORGOTTEN if self.stated is None else self.stated
            if self.rate >= top:
                self.rate = None
        return self.rate

    def _lower(self, now: float, rate: float, pause: float) -> None:
        rate = min(rate, *(top * BELOW for top in (self.rate, self.stated) if top is not None), inf)
        again = abs(rate - self._found) <= ALIKE * self._found
        self._calm = min(LONGEST_RATE_CALM, self._calm * 2) if again else RATE_CALM
        self.rate = self._found = rate
        self._settled = now + max(SETTLING, pause)
        self._grown, self._growth = now + pause + self._calm - 1, RATE_GROWTH


DEMAND_HELD = 1.0
"""Seconds that a task's highest demand counts."""
CONCURRENCY_CUT = 0.7
"""What is left after timeouts; at most once a second."""
LEAST_CONCURRENCY = 0.1
CONCURRENCY_GROWTH = 2.0
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
        if demand >= share.peak or now - share.peaked > DEMAND_HELD:
            share.peak, share.peaked = demand, now

    def timeouts(self, now: float, many: int, good: int) -> None:
        """Have fewer in flight after calls that timed out, and more again after a second without."""
        if many:
            self._late = now
        if many and now - self._moved >= 1:
            self.part, self._moved = max(LEAST_CONCURRENCY, self.part * CONCURRENCY_CUT), now
        elif good and self.part < 1 and now - max(self._moved, self._late) >= 1:
            self.part, self._moved = min(1.0, self.part * CONCURRENCY_GROWTH), now

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


FEWEST_FAILURES = 10
"""Calls in a row that failed, of all tasks together."""
SILENCE = 0.5
"""Seconds without any success: ten failures in a row mean little at a thousand calls per second."""
PROBE_PAUSE = 1.0
"""Seconds from probe to probe."""
RAMP = 2.0
"""Seconds from the first success to the full pace."""
RAMP_START = 0.1
"""The part of the full pace to begin with."""


class CircuitBreaker:
    """A circuit that opens after failures without a success, closes with the first success, and then goes up a ramp."""

    def __init__(self) -> None:
        self.since: float | None = None
        """Open since; None: closed."""
        self._row = 0
        self._good = -inf
        self._probed = -inf
        self._closed = -inf

    def heard(self, now: float, good: int, bad: int) -> bool:
        """Count what came back; say whether this opened the circuit."""
        if good:
            self._row, self._good = 0, now
            if self.since is not None:
                self.since, self._closed = None, now
            return False
        self._row += bad
        if not bad or self.since is not None or self._row < FEWEST_FAILURES or now - self._good < SILENCE:
            return False
        # The calls that failed were probe enough: the next one is due in a while.
        self.since = self._probed = now
        return True

    def next_probe(self) -> float:
        """Return when the next probe is due."""
        return self._probed + PROBE_PAUSE

    def probe(self, now: float) -> None:
        """Note that a probe goes out."""
        self._probed = now

    def pace(self, now: float) -> float:
        """Return the part of the full pace to go at."""
        return min(1.0, RAMP_START + (1 - RAMP_START) * max(0.0, now - self._closed) / RAMP)


BUDGET_SPAN = 10
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
        left = floor(self._floor * BUDGET_SPAN + self._share * calls - taken)
        given = max(0, min(most, ceil(left / among)))
        self._note(now, 0, given)
        return given

    def _note(self, now: float, calls: int, taken: int) -> None:
        second = floor(now)
        while self._seconds and self._seconds[0][0] <= second - BUDGET_SPAN:
            self._seconds.popleft()
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, 0, 0))
        _, before, given = self._seconds[-1]
        self._seconds[-1] = second, before + calls, given + taken
