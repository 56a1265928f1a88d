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
"""Seconds without any event, after which a meter starts anew."""
BELOW = 0.97
"""The next rate, as a part of the rate that the API let through."""
DEEPEST = 0.5
"""The deepest single cut, as a part of the rate before: few calls let through mean little when few were sent."""
SETTLING = 1.0
"""Seconds after a cut in which refusals do not count: these calls were in flight already."""
RATE_CALM = 2.0
"""Seconds without a refusal before the rate grows; twice as long each time the same limit is found again."""
LONGEST_RATE_CALM = 60.0
RATE_GROWTH = 0.02
"""Growth of the rate per second at first; it doubles each second without a refusal, for the limit may be gone."""
MOST_RATE_GROWTH = 0.25
TOLERATED = 0.01
"""The part of a stated limit that may be refused without a cut: some calls arrive a little early or late."""
ALIKE = 0.15
"""Limits that differ by a smaller part than this are the same one."""
FORGOTTEN = 10.0
"""The rate, as a multiple of the limit that was found, at which this limit is given up."""
LEAST_RATE = 0.1
"""Calls per second."""


class RateMeter:
    """A count of events per second, over the last second."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque()
        self._began = self._last = -inf

    def add(self, now: float, many: int) -> None:
        """Count `many` events now."""
        self._drop(now)
        if many:
            self._began = now if now - self._last > METER_REST else self._began
            self._last = now
        bucket = floor(now * BUCKETS)
        if self._buckets and self._buckets[-1][0] == bucket:
            many += self._buckets.pop()[1]
        self._buckets.append((bucket, many))

    def rate(self, now: float) -> float:
        """Return the events of the last second; within the first one, also after a rest, their rate so far."""
        self._drop(now)
        span = now - (floor(now * BUCKETS) / BUCKETS - 1)
        return self.count(now) / min(span, max(0.3, now - self._began))

    def count(self, now: float) -> int:
        """Return the events of the last second: of a few within a moment a rate would say too much."""
        self._drop(now)
        return sum(many for _, many in self._buckets)

    def settled(self, now: float) -> bool:
        """Say whether the first second is over, also that after a rest."""
        return now - self._began >= 1

    def _drop(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] < floor(now * BUCKETS) - BUCKETS:
            self._buckets.popleft()


class AdaptiveRate:
    """A rate that falls to what the API let through when it refused calls, and grows again later.

    `stated` is the rate of the configured limits, in calls per second; None: there is none. It counts as right while
    only a few calls are refused. Refusals without a single success say nothing about a rate: the circuit breaker deals
    with them.
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
        """Count the results of calls; return whether the rate was cut."""
        self._ok.add(now, ok)
        self._sent.add(now, sent)
        self._throttled.add(now, throttled)
        passed = self._ok.rate(now)
        if not throttled or not passed or now < self._settled or self.tolerated(now):
            return False
        # a rate measured in the first second is not reliable: a stated one is used instead
        known = self.stated is None or self._sent.settled(now)
        asked = self.rate or self._sent.rate(now)
        self._lower(now, max(LEAST_RATE, passed * BELOW, DEEPEST * asked) if known else inf, pause)
        return True

    def tolerated(self, now: float) -> bool:
        """Return whether so few calls were refused in the last second that a stated limit may be right."""
        if self.stated is None or self.rate is not None or not self._ok.rate(now):
            return False
        few = self._throttled.count(now) <= TOLERATED * self._sent.count(now)
        return few or self._throttled.rate(now) <= TOLERATED * max(self.stated, self._sent.rate(now))

    def current(self, now: float) -> float | None:
        """Return the calls per second at most, more as time passes without a refusal; None: as configured."""
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
"""Seconds for which a task's highest demand counts."""
CONCURRENCY_CUT = 0.7
"""The part of the limit that is left after timeouts; it is cut at most once a second."""
LEAST_CONCURRENCY = 0.1
CONCURRENCY_GROWTH = 2.0
"""The factor of growth after each second without a timeout."""


@dataclass
class TaskShare:
    """The calls that one task may have in flight, by the last message and by those that it may still go by."""

    cap: int = 0
    """The cap of the last message."""
    number: int = 0
    """The number of that message."""
    unread: deque[tuple[int, int]] = field(default_factory=deque)
    """Number and cap of earlier messages, one of which may be the last that the task has read."""
    out: int = 0
    demand: int = 0
    peak: int = 0
    """The highest demand of late."""
    peaked: float = -inf

    @property
    def promised(self) -> int:
        """Return how many calls the task may have in flight at most, whichever message it has read."""
        return max(self.out, self.cap, *(cap for _, cap in self.unread), 0)


class ConcurrencyLimit:
    """A bound on the calls in flight of all tasks, which a task with more demand uses up where others leave some.

    The sum never exceeds the total: the cap of one task is lowered first, and others get more once that task has
    reported that it knows.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.part = 1.0
        """The part of the total that is left after timeouts."""
        self._late = self._moved = -inf
        self._shares: dict[str, TaskShare] = {}

    def enter(self, who: str) -> None:
        """Begin to count a task."""
        self._shares[who] = TaskShare()

    def leave(self, who: str) -> None:
        """Stop counting a task: others may have its share."""
        self._shares.pop(who, None)

    def heard(self, now: float, who: str, *, number: int, out: int, demand: int) -> None:
        """Note how many calls a task has and wants in flight, and the number of the last message it has read."""
        share = self._shares[who]
        share.out, share.demand = out, demand
        while share.unread and share.unread[0][0] < number:
            share.unread.popleft()
        if demand >= share.peak or now - share.peaked > DEMAND_HELD:
            share.peak, share.peaked = demand, now

    def timeouts(self, now: float, many: int, good: int) -> None:
        """Lower the limit after calls that timed out, and raise it again after a second without."""
        if many:
            self._late = now
        if many and now - self._moved >= 1:
            self.part, self._moved = max(LEAST_CONCURRENCY, self.part * CONCURRENCY_CUT), now
        elif good and self.part < 1 and now - max(self._moved, self._late) >= 1:
            self.part, self._moved = min(1.0, self.part * CONCURRENCY_GROWTH), now

    def restore(self) -> None:
        """Forget the timeouts: an outage is over, and the circuit breaker's ramp limits what follows."""
        self.part = 1.0

    def deal(self, factor: float) -> dict[str, tuple[int, int]]:
        """Return the caps that change, by task: the number of the message, and how many calls may be in flight."""
        total = max(1, int(self.total * factor * self.part))
        wanted = self._wanted(total)
        caps = {}
        for who, cap in wanted.items():
            if cap < self._shares[who].cap:
                caps[who] = self._change(who, cap)
        free = total - sum(share.promised for share in self._shares.values())
        for who, cap in sorted(wanted.items(), key=lambda one: self._shares[one[0]].cap):
            share = self._shares[who]
            more = min(cap - share.cap, free + share.promised - share.cap)
            if more > 0:
                free -= max(0, share.cap + more - share.promised)
                caps[who] = self._change(who, share.cap + more)
        return caps

    def _change(self, who: str, cap: int) -> tuple[int, int]:
        share = self._shares[who]
        share.unread.append((share.number, share.cap))
        share.number += 1
        share.cap = cap
        return share.number, cap

    def _wanted(self, total: int) -> dict[str, int]:
        """Return fair shares: a task that wants less than an even part gets that, the others share the rest evenly."""
        left, wanted = total, {}
        ordered = sorted(self._shares, key=lambda who: self._shares[who].peak)
        for place, who in enumerate(ordered):
            wanted[who] = min(self._shares[who].peak, -(-left // (len(ordered) - place)))
            left -= wanted[who]
        if ordered and left > 0:  # beyond all demand: shared evenly, so that a little more demand needs no message
            for place, who in enumerate(ordered):
                wanted[who] += left // len(ordered) + (place < left % len(ordered))
        return wanted


FEWEST_FAILURES = 10
"""Calls in a row that failed, of all tasks together."""
SILENCE = 0.5
"""Seconds without any success: ten failures in a row alone mean little at a thousand calls per second."""
PROBE_PAUSE = 1.0
"""Seconds from probe to probe."""
RAMP = 2.0
"""Seconds from the first success to the full pace."""
RAMP_START = 0.1
"""The part of the full pace at the start of the ramp."""


class CircuitBreaker:
    """A circuit that opens after failures without a success, and closes with the first success.

    After it has closed, the pace rises along a ramp.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        """When the circuit opened; None: it is closed."""
        self._row = 0
        self._good = -inf
        self._probed = -inf
        self._closed = -inf

    def heard(self, now: float, good: int, bad: int) -> bool:
        """Count successes and failures; return whether these opened the circuit."""
        if good:
            self._row, self._good = 0, now
            if self.since is not None:
                self.since, self._closed = None, now
            return False
        self._row += bad
        if not bad or self.since is not None or self._row < FEWEST_FAILURES or now - self._good < SILENCE:
            return False
        # the calls that failed count as a probe: the next one is due after a pause
        self.since = self._probed = now
        return True

    def next_probe(self) -> float:
        """Return when the next probe is due."""
        return self._probed + PROBE_PAUSE

    def probe(self, now: float) -> None:
        """Note that a probe is sent."""
        self._probed = now

    def pace(self, now: float) -> float:
        """Return the part of the full pace that is allowed."""
        return min(1.0, RAMP_START + (1 - RAMP_START) * max(0.0, now - self._closed) / RAMP)


BUDGET_SPAN = 10
"""Seconds for which a call counts."""


class RetryBudget:
    """A bound on retries: a share of the calls of the last seconds, and so many per second in any case.

    As in Finagle, where the share is 20 % and the floor is 10 per second.
    """

    def __init__(self, share: float, floor_: float) -> None:
        self._share = share
        self._floor = floor_
        self._seconds: deque[tuple[int, float, int]] = deque()
        """The second, its calls, and the retries that were allowed in it."""

    def earned(self, now: float, calls: int) -> None:
        """Count calls that were no retries."""
        self._note(now, calls, 0)

    def take(self, now: float, most: int, among: int = 1) -> int:
        """Return how many retries one of `among` tasks may make, `most` at most, and count them as taken."""
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
