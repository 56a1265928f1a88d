"""What slows a job down when an API refuses, times out or fails. Pure; runs on the driver.

The stated pace goes at a stated limit, and below it while that costs no accepted call; the adaptive rate finds a limit
that is not stated, and the window pace one of many seconds. The pause stops all calls when most answers ask for it, the
concurrency limit shares the calls in flight among tasks, the circuit breaker tells an API that is out from one that
fails now and then, and the retry budget bounds retries.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, floor, inf

from router_rest.limits.sliding_window import USED_LIMIT_SHARE


@dataclass
class Meter:
    """A count of late events, by the part of a second: those of this part and of as many `kept` before it."""

    per_second: int = 10
    kept: int = 10
    _parts: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, now: float, many: int) -> None:
        """Count `many` events now."""
        part = floor(now * self.per_second)
        if self._parts and self._parts[-1][0] == part:
            many += self._parts.pop()[1]
        self._parts.append((part, many))

    def count(self, now: float) -> int:
        """Return the events that are late enough."""
        oldest = floor(now * self.per_second) - self.kept
        while self._parts and self._parts[0][0] < oldest:
            self._parts.popleft()
        return sum(many for _, many in self._parts)

    def clear(self) -> None:
        """Forget all events."""
        self._parts.clear()


TOLERATED_REFUSED_SHARE = 0.05
"""The part of the calls that may be refused before the pace is lowered: some APIs refuse a few at random."""
MIN_ANSWERS = 5
"""Answers of a time that say something: fewer may be those of one call, or by chance."""
PACE_PERIOD_SECONDS = 5.0
"""Seconds for which answers are counted before another pace is tried: a fifth of it while one is, and after a change
for as long no answer counts, for calls of the pace before are under way, and have left something in a window."""
PACE_PERIOD_ANSWERS = 300
"""Answers that are counted in that time at least, or it lasts longer: a share of 60 shows what differs by a tenth."""
TRY_PERIOD_SHARE = 0.2
"""The part of both that is enough for a try: windows of a second are its own then."""
TRY_STEP_FACTOR = 0.9
"""The pace of a try, as a part of the pace before, at most."""
ACCEPTED_MARGIN = 0.04
"""The pace of a try is higher than the accepted calls by this part, for a limit that is lower than stated is about as
high as these; accepted calls that fell by less than it did not fall with the pace."""
FIRST_TRY_WAIT_SECONDS = 30.0
"""Seconds before the next try, at first: a try that fails costs two to three seconds at half of the accepted calls."""
MIN_PACE_FACTOR = 0.01
"""The part of the stated limit that is used at least, so that something shows when the API takes more again."""


@dataclass
class StatedPace:
    """The part of a stated limit at which calls go out.

    Refusals alone say little: some APIs refuse a few calls at random, and one that wants calls evenly spaced refuses
    those that the network pushed together. So a lower pace is tried: that of the accepted calls, and a little more. It
    stays when as many calls are accepted as at the one before, for the limit is lower than stated; else that one comes
    back. A higher one is tried in the same way. The measurements: docs/decisions/0018-how-calls-keep-to-a-limit.md.
    """

    factor: float = 1.0
    """The part of the stated limit."""
    _before: float | None = None
    """While a pace is tried: the most calls per second that were accepted before, in as many tries as stayed."""
    _former: float = 1.0
    _lower_in_vain: bool = False
    """Whether the last try was of a lower pace, and failed: the next one is of a higher pace."""
    _wait: float = FIRST_TRY_WAIT_SECONDS
    _next_try: float = -inf
    _began: float | None = None
    _ok: int = 0
    _refused: int = 0

    def on_result(self, now: float, *, ok: int, refused: int) -> None:
        """Count the answers to calls, and change the pace when a period is over."""
        if self._began is None:
            self._began = now
        if now < self._began:
            return
        self._ok += ok
        self._refused += refused
        answers = self._ok + self._refused
        if not self._is_period_over(now, answers):
            return
        accepted = self._ok / (now - self._began)
        refused_share = self._refused / answers
        self._began = now
        self._ok = self._refused = 0
        before = self._before
        if before is None:
            self._begin_try(now, accepted, refused_share)
        elif self._end_try(now, accepted, before, crowded=refused_share > TOLERATED_REFUSED_SHARE):
            # each further step is compared with the best of all: else many steps would each lose a little
            self._begin_try(now, max(accepted, before), refused_share)

    def restart_count(self) -> None:
        """Count from the next answer on: calls went out at another pace for a while."""
        self.factor = self.factor if self._before is None else self._former
        self._before = self._began = None
        self._ok = self._refused = 0

    def lower_pace(self, now: float, wait_seconds: float = 10.0) -> None:
        """Lower the pace without a try, until some seconds later: so many calls were refused that all had to pause."""
        self.restart_count()
        self.factor = max(MIN_PACE_FACTOR, self.factor * TRY_STEP_FACTOR)
        self._next_try = now + wait_seconds

    def _is_period_over(self, now: float, answers: int) -> bool:
        """Return whether enough answers are counted to say something of the pace."""
        assert self._began is not None
        if self._before is None:
            return now >= max(self._began + PACE_PERIOD_SECONDS, self._next_try) and answers >= PACE_PERIOD_ANSWERS
        # the farther a try is from the former pace, the fewer answers show a difference
        lower, higher = sorted((self.factor, self._former))
        share = max(TRY_PERIOD_SHARE, min(1.0, ((1 - TRY_STEP_FACTOR) / (1 - lower / higher)) ** 2))
        seconds = TRY_PERIOD_SHARE * PACE_PERIOD_SECONDS
        return now >= self._began + seconds and answers >= share * PACE_PERIOD_ANSWERS

    def _end_try(
        self, now: float, accepted: float, before: float, *, crowded: bool, longest_wait: float = 160.0
    ) -> bool:
        """End a try: return whether its pace stays; else the former one comes back.

        The next try waits twice as long each time one fails, up to `longest_wait` seconds: a limit may have changed.
        """
        self._before = None
        lower = self.factor < self._former
        unchanged = 1 - ACCEPTED_MARGIN
        enough = unchanged * before if lower else before / unchanged
        if accepted >= enough or not (lower or crowded):
            self._lower_in_vain = False
            self._wait = FIRST_TRY_WAIT_SECONDS
            self._try_again(now if lower or not crowded else now + self._wait)
            return True
        self._lower_in_vain = lower
        self._set_factor(now, self._former)
        if lower and self.factor < 1:
            self._try_again(now)  # a higher pace: this one may have stayed by chance
        else:
            self._try_again(now + self._wait)
            self._wait = min(longest_wait, 2 * self._wait)
        return False

    def _try_again(self, when: float) -> None:
        """Set when the next try begins; only the last answers before it count, for a limit may change until then."""
        self._next_try = when
        self._began = max(self._began or when, when - FIRST_TRY_WAIT_SECONDS)

    def _begin_try(self, now: float, before: float, refused_share: float) -> None:
        """Begin to try another pace, where it is time for that."""
        crowded = refused_share > TOLERATED_REFUSED_SHARE
        if now < self._next_try or not (crowded or self.factor < 1):
            return
        # The accepted calls say where a limit is that is lower than stated; a smaller step would show nothing.
        step = min(TRY_STEP_FACTOR, (1 + ACCEPTED_MARGIN) * (1 - refused_share))
        if crowded and not (self._lower_in_vain and self.factor < 1):
            factor = max(MIN_PACE_FACTOR, self.factor * step)
        else:
            factor = min(1.0, self.factor / max(step, MIN_PACE_FACTOR))
        if factor == self.factor:
            return
        self._before = before
        self._former = self.factor
        self._set_factor(now, factor)

    def _set_factor(self, now: float, factor: float) -> None:
        self.factor = factor
        self._began = now + TRY_PERIOD_SHARE * PACE_PERIOD_SECONDS


CUT_FACTOR = 0.7
"""The part that is left of a rate when calls are refused (`beta` of CUBIC), of the calls in flight after timeouts."""
MIN_CALLS_PER_SECOND = 0.1
"""Calls per second that a rate allows at least: one in ten seconds shows whether the API takes calls."""


@dataclass
class AdaptiveRate:
    """A rate for an API whose limit is not stated: none until calls are refused, then a CUBIC one.

    As in the adaptive retry mode of botocore: after a cut the rate grows fast, then slowly near the rate at which calls
    were refused before, then fast again.
    """

    _highest: float = 0.0
    """The rate at the last cut."""
    _cut: float = -inf
    _sent: Meter = field(default_factory=Meter)
    _refused: Meter = field(default_factory=Meter)

    def on_result(self, now: float, *, sent: int, refused: int, cut_pause: float = 1.0) -> None:
        """Count calls and refusals; cut the rate when too many of the last second were refused.

        For `cut_pause` seconds after a cut refusals do not count: these calls were in flight already.
        """
        self._sent.add(now, sent)
        self._refused.add(now, refused)
        sent_lately = self._sent.count(now)
        if (
            not refused
            or now < self._cut + cut_pause
            or self._refused.count(now) <= TOLERATED_REFUSED_SHARE * sent_lately
        ):
            return
        self._highest = max(MIN_CALLS_PER_SECOND, min(sent_lately, self.current_limit(now) or inf))
        self._cut = now

    def current_limit(self, now: float, growth: float = 0.4, forgotten: float = 10) -> float | None:
        """Return the calls per second at most; None: any number.

        `growth`: calls per second, per cube of a second (`C` of CUBIC). A cut is `forgotten` at so many times its rate.
        """
        plateau: float = (self._highest * (1 - CUT_FACTOR) / growth) ** (1 / 3)
        rate = self._highest + growth * (now - self._cut - plateau) ** 3
        if rate >= forgotten * self._highest:
            return None
        return max(MIN_CALLS_PER_SECOND, rate)


FIRST_TRY_WINDOWS = 2
"""Windows before a higher pace is tried, twice as many each time one was too high; and the windows of a try: one may
have been an outage, or had begun before."""


@dataclass
class WindowPace:
    """The pace at a limit of many seconds that is not stated: none until two windows in a row were used up.

    Such an API takes every call until its window is used up, and then none until the next one begins. A rate that
    reacts to refusals in seconds wastes calls on it: as many as it takes would be refused. Evenly spread, the calls of
    a window last until its end. If they do not, the limit has fallen; if they do not once more, there is no window, but
    an API that is out now and then.
    """

    rate: float | None = None
    """Calls per second; None: any number."""
    _opened: float | None = None
    """When the API began to take calls again."""
    _accepted: int = 0
    _taken: float = -inf
    """When it took the last call."""
    _refused: int = 0
    """Calls that were refused since then."""
    _idle: float = 0.0
    _idle_since: float | None = None
    _span: float = 0.0
    """Seconds from one window to the next."""
    _spans: int = FIRST_TRY_WINDOWS
    _lowered: bool = False
    """The last window was used up although its calls were spread."""
    _next: float = inf
    """When a try begins or ends."""
    _former: float | None = None
    """The pace before the one that is tried."""
    _answers: int = 0
    _refusals: int = 0

    def on_result(self, now: float, *, ok: int, refused: int, used_up_after: float = 2.0) -> None:
        """Count the answers to calls; learn from a window that is used up, and try more after some that were not.

        A window counts as used up after so many seconds without an accepted call, and with several refused ones.
        """
        self._answers += ok + refused
        self._refusals += refused
        if ok:
            if self._refused >= MIN_ANSWERS and now - self._taken >= used_up_after:
                self._begin_window(now)
            self._accepted += ok
            self._taken = now
            self._refused = 0
        self._refused += refused
        if now >= self._next:
            self._advance_try(now)

    def note_idle(self, now: float) -> None:
        """Note that no task is left."""
        self._idle_since = now

    def note_busy(self, now: float) -> None:
        """Note that there is a task."""
        # While the window is used up, tasks have left because they would have had to wait.
        if self._idle_since is not None and self._refused < MIN_ANSWERS:
            self._idle += now - self._idle_since
        self._idle_since = None

    def _begin_window(self, now: float) -> None:
        """Begin a window: the one before was used up."""
        # If more than a tenth of it passed without any task, the calls in it say nothing of its limit.
        if self._opened is not None and self._idle <= 0.1 * (now - self._opened):
            spread = self.rate is not None and self._former is None
            if spread and self._lowered:
                self._forget_window()
            else:
                self._lowered = spread
                self._span = now - self._opened
                self.rate = USED_LIMIT_SHARE * self._accepted / self._span
                self._schedule_try(now)
        self._opened = now
        self._accepted = 0
        self._idle = 0.0

    def _forget_window(self) -> None:
        self.rate = self._former = None
        self._lowered = False
        self._spans = FIRST_TRY_WINDOWS
        self._next = inf

    def _schedule_try(self, now: float, most_windows: int = 32) -> None:
        """Leave the pace as it is for some windows, for longer after a try in vain."""
        if self._former is not None:
            self._spans = min(most_windows, 2 * self._spans)
        self._former = None
        self._next = now + self._spans * self._span

    def _advance_try(self, now: float) -> None:
        """Try a higher pace, or end a try: if it was not too high, nothing is limited any more, or never was."""
        self._lowered = False
        if self._former is None:
            assert self.rate is not None
            self._former = self.rate
            self.rate *= 2 - TRY_STEP_FACTOR
            self._next = now + FIRST_TRY_WINDOWS * self._span
        elif self._refusals > 0.02 * self._answers:  # more than some APIs refuse at random
            self.rate = self._former
            self._schedule_try(now)
        else:
            self._forget_window()
        self._answers = self._refusals = 0


@dataclass
class SharedPause:
    """The answers of the last second, most of which have to carry a Retry-After before all calls pause."""

    _answers: Meter = field(default_factory=Meter)
    _asking: Meter = field(default_factory=Meter)

    def on_result(self, now: float, *, answers: int, asking: int) -> bool:
        """Count answers, and those that ask for a pause; return whether all calls are to pause."""
        self._answers.add(now, answers)
        self._asking.add(now, asking)
        answered = self._answers.count(now)
        if not asking or answered < MIN_ANSWERS or 2 * self._asking.count(now) <= answered:
            return False
        self._answers.clear()
        self._asking.clear()
        return True


@dataclass
class TaskShare:
    """The calls that one task may have in flight, by the last message and by those that it may still go by."""

    cap: int = 0
    """The cap of the last message."""
    number: int = 0
    """The number of that message."""
    unread: deque[tuple[int, int]] = field(default_factory=deque)
    """Number and cap of earlier messages, one of which may be the last that the task has read."""
    in_flight: int = 0
    demand: int = 0
    peak: int = 0
    """The highest demand of late."""
    peaked: float = -inf

    @property
    def in_flight_bound(self) -> int:
        """Return how many calls the task may have in flight at most, whichever message it has read."""
        return max(self.in_flight, self.cap, *(cap for _, cap in self.unread), 0)


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
        self.shares: dict[str, TaskShare] = {}

    def add_task(self, who: str) -> None:
        """Begin to count a task."""
        self.shares[who] = TaskShare()

    def remove_task(self, who: str) -> None:
        """Stop counting a task: others may have its share."""
        self.shares.pop(who, None)

    def note_demand(
        self, now: float, who: str, *, number: int, in_flight: int, demand: int, held_seconds: float = 1.0
    ) -> None:
        """Note how many calls a task has and wants in flight, and the number of the last message it has read.

        Its highest demand counts for `held_seconds`.
        """
        share = self.shares[who]
        share.in_flight = in_flight
        share.demand = demand
        while share.unread and share.unread[0][0] < number:
            share.unread.popleft()
        if demand >= share.peak or now - share.peaked > held_seconds:
            share.peak = demand
            share.peaked = now

    def adapt_limit(self, now: float, many: int, good: int) -> None:
        """Lower the limit after calls that timed out, to a tenth at least; double it after each second without."""
        if many:
            self._late = now
        if many and now - self._moved >= 1:
            self.part = max(0.1, self.part * CUT_FACTOR)
            self._moved = now
        elif good and self.part < 1 and now - max(self._moved, self._late) >= 1:
            self.part = min(1.0, self.part * 2)
            self._moved = now

    def restore_limit(self) -> None:
        """Forget the timeouts: an outage is over, and the circuit breaker's ramp limits what follows."""
        self.part = 1.0

    def allocate_caps(self, factor: float) -> dict[str, tuple[int, int]]:
        """Return the caps that change, by task: the number of the message, and how many calls may be in flight."""
        total = max(1, int(self.total * factor * self.part))
        wanted = self._fair_shares(total)
        caps = {}
        # Lower caps first: others get what a task has given up only once it has read its message, so the sum holds.
        for who, cap in wanted.items():
            if cap < self.shares[who].cap:
                caps[who] = self._set_cap(who, cap)
        free = total - sum(share.in_flight_bound for share in self.shares.values())
        for who in sorted(wanted, key=lambda who: self.shares[who].cap):
            share = self.shares[who]
            more = min(wanted[who] - share.cap, free + share.in_flight_bound - share.cap)
            if more > 0:
                free -= max(0, share.cap + more - share.in_flight_bound)
                caps[who] = self._set_cap(who, share.cap + more)
        return caps

    def _set_cap(self, who: str, cap: int) -> tuple[int, int]:
        share = self.shares[who]
        share.unread.append((share.number, share.cap))
        share.number += 1
        share.cap = cap
        return share.number, cap

    def _fair_shares(self, total: int) -> dict[str, int]:
        """Return fair shares: a task that wants less than an even part gets that, the others share the rest evenly."""
        rest = total
        wanted = {}
        ordered = sorted(self.shares, key=lambda who: self.shares[who].peak)
        for place, who in enumerate(ordered):
            wanted[who] = min(self.shares[who].peak, -(-rest // (len(ordered) - place)))
            rest -= wanted[who]
        if ordered and rest > 0:  # beyond all demand: shared evenly, so that a little more demand needs no message
            for place, who in enumerate(ordered):
                wanted[who] += rest // len(ordered) + (place < rest % len(ordered))
        return wanted


MIN_FAILURES_TO_OPEN = 10
"""Calls in a row that failed, of all tasks together, after which a circuit opens."""
PROBE_PAUSE = 1.0
"""Seconds from probe to probe: how long an API that works again is not noticed."""
RAMP_SECONDS = 2.0
"""Seconds from the first success to the full pace: all calls at once could end what has just begun to work."""


@dataclass
class CircuitBreaker:
    """A circuit that opens after failures without a success, and closes with the first success.

    After it has closed, and after a pause, the pace rises along a ramp.
    """

    since: float | None = None
    """When the circuit opened; None: it is closed."""
    _row: int = 0
    _good: float = -inf
    _probed: float = -inf
    _closed: float = -inf

    def on_result(self, now: float, good: int, bad: int, silent_seconds: float = 1.0) -> bool:
        """Count successes and failures; return whether these opened the circuit.

        It opens after `silent_seconds` without a success: failures in a row mean little at a thousand calls a second.
        """
        if good:
            self._row = 0
            self._good = now
            if self.since is not None:
                self.since = None
                self._closed = now
            return False
        self._row += bad
        if not bad or self.since is not None or self._row < MIN_FAILURES_TO_OPEN or now - self._good < silent_seconds:
            return False
        # the calls that failed count as a probe: the next one is due after a pause
        self.since = self._probed = now
        return True

    def next_probe(self) -> float:
        """Return when the next probe is due; none is while the circuit is closed."""
        return -inf if self.since is None else self._probed + PROBE_PAUSE

    def note_probe(self, now: float) -> None:
        """Note that a probe is sent."""
        self._probed = now

    def ramp_after(self, pause_end: float) -> None:
        """Let the pace rise along the ramp when a pause ends."""
        self._closed = max(self._closed, pause_end)

    def pace_factor(self, now: float, start: float = 0.1) -> float:
        """Return the part of the full pace that is allowed; `start` at the beginning of the ramp."""
        return min(1.0, start + (1 - start) * max(0.0, now - self._closed) / RAMP_SECONDS)


class RetryBudget:
    """A bound on retries: a share of the calls of the last `seconds`, and so many per second in any case.

    As in Finagle, where the share is 20 % and the floor is 10 per second.
    """

    def __init__(self, share: float, floor_: float, seconds: int = 10) -> None:
        self._length = seconds
        self._share = share
        self._floor = floor_
        self._calls = Meter(per_second=1, kept=seconds - 1)
        self._taken = Meter(per_second=1, kept=seconds - 1)

    def count_calls(self, now: float, calls: int) -> None:
        """Count calls that were no retries."""
        self._calls.add(now, calls)

    def allocate_retries(self, now: float, most: int, among: int = 1) -> int:
        """Return how many retries one of `among` tasks may make, `most` at most, and count them as taken."""
        allowed = self._floor * self._length + self._share * self._calls.count(now)
        retries = max(0, min(most, ceil(floor(allowed - self._taken.count(now)) / among)))
        self._taken.add(now, retries)
        return retries
