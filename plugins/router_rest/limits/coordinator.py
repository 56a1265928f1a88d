"""Decide who may call an API and when: one coordinator per limit, for all tasks of all sinks that share it.

A state machine: tasks report what they saw and want, `allocate_grants` says what each is granted, `next_due` when to
allocate again. The clock is given; nothing here waits, sends or runs on a thread of its own. Runs on the driver.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from router_rest.limits.backpressure import (
    MIN_ANSWERS,
    AdaptiveRate,
    CircuitBreaker,
    ConcurrencyLimit,
    RetryBudget,
    SharedPause,
    StatedPace,
    WindowPace,
)
from router_rest.limits.messages import MIN_MESSAGE_GAP_SECONDS, Grant, Outlook, Want
from router_rest.limits.sliding_window import KeyedWindows, SlidingWindows

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_rest.limits.messages import Pace, TaskReport
    from router_rest.limits.sliding_window import Run

AHEAD_SECONDS = 0.1
"""Seconds by which tokens are given out ahead: a message for many calls. The tokens of a task that dies are lost."""
MAX_TOKEN_WAIT_SECONDS = 2.0
"""Seconds that a task waits for a token before it is sent away: others need its core."""
MAX_RETRY_CREDIT = 16
"""Unused retries that a task may have at a time: few enough that others also get some of a small budget."""


class Coordinator:
    """The state of one limit: who calls the API, how often, and how the API has responded.

    Tasks take turns; a task with more rows than the others gets the tokens that they leave. `chance` returns random
    numbers from 0 to 1.
    """

    def __init__(
        self,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.pace = pace
        self.totals: dict[str, float] = dict.fromkeys(SUMMED_FIELDS, 0)
        """The sums of all reports so far, by name."""
        self.failure = ""
        """How the last call that failed has ended."""
        kind = KeyedWindows if pace.keyed else SlidingWindows
        self.windows: KeyedWindows | SlidingWindows = kind(pace.limits, pace.share)
        self._all_keys = SlidingWindows((), pace.share)
        self._clock = clock
        self._chance = chance
        self._stated_pace = StatedPace()
        self._adaptive_rate = AdaptiveRate()
        self._window_pace = WindowPace()
        self._shared_pause = SharedPause()
        self._circuit = CircuitBreaker()
        self._concurrency = ConcurrencyLimit(pace.in_flight)
        self._budget = RetryBudget(pace.retry_share, pace.retry_floor)
        self._tasks: dict[str, TaskState] = {}
        self._turns: deque[str] = deque()
        self._paused = -inf
        """Nothing is sent until then."""
        self._remaining = inf
        self._reset = -inf
        """Calls that the API still takes by its headers, and until when."""
        self._refused_keys: dict[int, float] = {}
        """When calls of a key were last refused: some keys."""
        self._hold = False
        self._used_up = -inf
        """Until then all keys that tasks asked for had used up their limits."""
        self._settled = -inf
        self._unsettled = False
        self._grants: defaultdict[str, Grant] = defaultdict(Grant)
        """The next grants of tasks, which are sent with the next allocation."""

    @property
    def answers(self) -> dict[str, int]:
        """Return how many calls have ended in which way: `ok` are those that were taken, or refused for good."""
        timed_out = int(self.totals["timeouts"])
        return {
            "ok": int(self.totals["ok"]),
            "throttled": int(self.totals["throttled"]),
            "failed": int(self.totals["failed"]) - timed_out,
            "timed out": timed_out,
        }

    def add_task(self, who: str) -> None:
        """Begin to serve a task."""
        now = self._clock()
        self._window_pace.note_busy(now)
        self._tasks[who] = TaskState(now)
        self._turns.append(who)
        self._concurrency.add_task(who)
        self._settled = -inf

    def remove_task(self, who: str) -> None:
        """Stop serving a task. The tokens that it had expire."""
        if self._tasks.pop(who, None) is not None:
            self._turns.remove(who)
            self._concurrency.remove_task(who)
            self._settled = -inf
            self._unsettled = True
        if not self._tasks:
            self._window_pace.note_idle(self._clock())

    def stop_task(self, who: str) -> None:
        """Send a task away with the next deal: also one that was sent away before, for its last calls may take long."""
        task = self._tasks[who]
        if not task.stopped:
            task.stopped = True
            task.away = False

    def on_report(self, who: str, report: TaskReport) -> None:
        """Take in a report: learn from its results, and note the tokens that the task wants."""
        now = self._clock()
        task = self._tasks[who]
        for name in SUMMED_FIELDS:
            self.totals[name] += getattr(report, name)
        if report.failed or report.throttled:
            self.failure = f"answers {report.bad_status}" if report.bad_status else "gives no answer"
        task.ended += report.ok + report.throttled + report.failed + report.lapsed
        task.credit -= report.retried
        # The report may have been sent before the last grant arrived: tokens on their way are not granted twice.
        task.wants = task.unmet_wants(report)
        demand = report.in_flight + max(report.waiting, sum(many for _, many, *_ in report.wants))
        self._unsettled = True
        self._concurrency.note_demand(now, who, number=report.number, in_flight=report.in_flight, demand=demand)
        self._budget.count_calls(now, report.sent - report.retried)
        self._adapt_to_results(now, report)
        self._obey_headers(now, report)
        self._give_retries(who, now, report.denied)

    def allocate_grants(self) -> dict[str, Grant]:
        """Allocate tokens, caps and retries; return the grants to send now, by task."""
        now = self._clock()
        self._allocate_caps(now)
        # Tasks drop the tokens that they hold when a circuit opens or a pause begins: later grants replace them.
        if self._hold:
            self._hold = False
            for who in self._tasks:
                self._change_grant(who, state="hold")
        self._send_away(now)
        if now >= self._shut_until(now):
            if self._circuit.since is not None:
                self._allocate_probe(now)
            else:
                self._allocate_round(now)
        grants = {}
        for who, grant in self._grants.items():
            if who in self._tasks:
                share = self._concurrency.shares[who]
                grants[who] = replace(grant, number=share.number, cap=share.cap)
        self._grants.clear()
        return grants

    def next_due(self) -> float | None:
        """Return the time of the next allocation if no report comes before; None: only after a report."""
        now = self._clock()
        # Three things are due by time alone: a task that has waited too long, tokens, and a change of calls in flight.
        wanting = self._next_turn()
        times = [
            task.since + MAX_TOKEN_WAIT_SECONDS
            for task in self._tasks.values()
            if now < task.since + MAX_TOKEN_WAIT_SECONDS
        ]
        if wanting is not None:
            times.append(self._opens_at(now, *(self._tasks if self.windows.keyed else [wanting])))
        if self._unsettled or self._circuit.pace_factor(now) < 1:
            times.append(self._settled + MIN_MESSAGE_GAP_SECONDS)
        return min(times, default=None) if self._tasks else None

    def outlook(self) -> Outlook:
        """Return the seconds until a call may be sent, and the state of the circuit."""
        now = self._clock()
        next_start = self.windows.next_start(now, 1)
        again = max(self._shut_until(now), next_start, self._used_up, self._circuit.next_probe())
        return Outlook(self._circuit.since is not None, again - now, len(self._tasks))

    def _adapt_to_results(self, now: float, report: TaskReport) -> None:
        """Adapt the circuit breaker, the rate and the concurrency to the results of calls."""
        was_out = self._circuit.since is not None
        bad = report.failed + report.throttled - report.partly
        self._hold |= self._circuit.on_result(now, report.ok + report.partly, bad)
        refused = report.throttled if self._of_many_keys(now, report) else 0
        # Only a short stated limit has a pace to lower; else the limit is learned. Ramps and pauses say nothing of it.
        if not self.windows.is_paced:
            self._adaptive_rate.on_result(now, sent=report.sent, refused=refused)
            self._window_pace.on_result(now, ok=report.ok, refused=refused)
        elif self._circuit.since is None and self._circuit.pace_factor(now) == 1 and now >= self._shut_until(now):
            self._stated_pace.on_result(now, ok=report.ok, refused=refused)
            if refused:
                # Two clients with the same pace keep their distance: if an API wants calls apart, all calls of one
                # would come too soon after those of the other. The one that is refused moves away.
                self.windows.shift_pace(0.25 * self._chance())
        else:
            self._stated_pace.restart_count()
        self._concurrency.adapt_limit(now, report.timeouts, report.ok)
        if was_out and self._circuit.since is None:
            self._concurrency.restore_limit()

    def _of_many_keys(self, now: float, report: TaskReport, seconds: float = 2.0) -> bool:
        """Return whether refusals say something of the pace of all: so many keys were refused in the last seconds."""
        if not self.windows.keyed:
            return True
        lately = {key: at for key, at in self._refused_keys.items() if now - at < seconds}
        lately.update(dict.fromkeys(report.refused_keys, now))
        self._refused_keys = dict(list(lately.items())[-MIN_ANSWERS:])
        return len(self._refused_keys) == MIN_ANSWERS

    def _obey_headers(self, now: float, report: TaskReport, shortest_reset: float = 2.0) -> None:
        """Do as the API's headers say: Retry-After pauses all tasks, RateLimit headers bound their calls for a time.

        A Retry-After is its call's first: all pause when most answers of the last second have one. RateLimit headers
        about a shorter time than `shortest_reset` are those of a bucket that is refilled all the time.
        """
        answers = report.ok + report.throttled + report.failed
        if self._shared_pause.on_result(now, answers=answers, asking=report.asking) and report.pause:
            self._pause_all(now, min(report.pause, self.pace.longest_pause))
        if report.remaining is not None and report.remaining[1] >= shortest_reset:
            under_way = sum(task.granted - task.ended for task in self._tasks.values())
            self._remaining = max(0.0, report.remaining[0] - under_way)
            self._reset = now + min(report.remaining[1], self.pace.longest_pause)

    def _pause_all(self, now: float, seconds: float) -> None:
        """Send nothing for some seconds; begin again on a ramp, and at a lower pace."""
        # Up to a tenth longer: else drivers that were paused together would resume together.
        until = now + seconds * (1 + 0.1 * self._chance())
        if until <= self._paused:
            return
        self._hold = self._hold or now >= self._paused
        self._paused = until
        self._circuit.ramp_after(until)
        self._stated_pace.lower_pace(now)

    def _give_retries(self, who: str, now: float, denied: int) -> None:
        task = self._tasks[who]
        if task.credit <= MAX_RETRY_CREDIT // 4 or denied:
            retries = self._budget.allocate_retries(now, MAX_RETRY_CREDIT - task.credit, len(self._tasks))
            task.credit += retries
            if retries:
                self._change_grant(who, retries=self._grants[who].retries + retries)

    def _allocate_caps(self, now: float) -> None:
        if (self._unsettled or self._circuit.pace_factor(now) < 1) and now >= self._settled + MIN_MESSAGE_GAP_SECONDS:
            self._settled = now
            self._unsettled = False
            for who in self._concurrency.allocate_caps(self._circuit.pace_factor(now)):
                self._change_grant(who)

    def _shut_until(self, now: float) -> float:
        """Return the end of the time in which nothing is sent."""
        if self._remaining < 1 and now < self._reset:
            return max(self._paused, self._reset)
        return self._paused

    def _opens_at(self, now: float, *those: str) -> float:
        """Return the earliest time at which one of some tasks that want tokens can get one."""
        next_start = min(self._next_start_of(now, who) for who in those)
        return max(self._shut_until(now), next_start - AHEAD_SECONDS / 2, self._circuit.next_probe())

    def _next_start_of(self, now: float, who: str) -> float:
        """Return the time from which the windows allow a token that a task wants: the first, or that of any key."""
        task = self._tasks[who]
        if task.away:
            return inf
        wants = list(task.wants)
        if not self.windows.keyed:
            wants = wants[:1]
        return min((self.windows.of_key(want.key, now).next_start(now, want.rows) for want in wants), default=inf)

    def _next_turn(self) -> str | None:
        """Return the next task in turn that wants tokens; None: no task does."""
        for _ in range(len(self._turns)):
            task = self._tasks[self._turns[0]]
            if task.wants and not task.away:
                return self._turns[0]
            self._turns.rotate(-1)
        return None

    def _allocate_probe(self, now: float) -> None:
        who = self._next_turn()
        if who is None or now < self._opens_at(now, who):
            self._turns.rotate(-self.windows.keyed)
            return
        if self._allocate_to_task(who, now, now + AHEAD_SECONDS, 1, 1.0):
            self._circuit.note_probe(now)
            self._change_grant(who, state="probe")

    def _allocate_round(self, now: float) -> None:
        """Give out the tokens of the next AHEAD_SECONDS, a turn for each task that wants some.

        A turn is at most a task's part of half that time. A task whose keys have none left does not make others wait.
        """
        who = self._next_turn()
        keyed = self.windows.keyed
        factor = self._circuit.pace_factor(now) * self._stated_pace.factor
        if who is None or (not keyed and now < self._opens_at(now, who)):
            return
        rate = min(filter(None, (self._adaptive_rate.current_limit(now), self._window_pace.rate)), default=None)
        wanting = sum(1 for task in self._tasks.values() if task.wants)
        idle = 0
        fast = min(filter(None, (rate, self.windows.rate)), default=inf)
        turn = inf
        if fast < inf:
            # Sixteen tokens at least: fewer are a message for a few calls.
            turn = max(16, ceil(fast * AHEAD_SECONDS / 2 / wanting))
        # With one limit for all the first task without a token ends the round; with keys each may have another key.
        most_idle = len(self._turns) if keyed else 1
        while who is not None and idle < most_idle:
            if self._allocate_to_task(who, now, now + AHEAD_SECONDS, turn, factor, rate):
                self._tasks[who].since = now
                idle = 0
            else:
                self._turns.rotate(-keyed)
                idle += 1
            who = self._next_turn()

    def _allocate_to_task(
        self, who: str, now: float, until: float, most: float, factor: float, rate: float | None = None
    ) -> int:
        """Give a task up to `most` tokens, which ends its turn; return how many."""
        task = self._tasks[who]
        most = min(most, self._remaining if now < self._reset else inf)
        wants = task.wants
        task.wants = deque()
        granted = 0
        blocked = set()
        for want in wants:
            calls_left = want.calls
            while calls_left and granted + 1 <= most and want.key not in blocked:
                many = int(min(calls_left, most - granted))
                run = self._allocate_run(want.key, now, until, calls=many, rows=want.rows, factor=factor, rate=rate)
                if run is None:  # the key is used up: later wants of it need not be looked at, those of others do
                    blocked.add(want.key)
                    break
                self._change_grant(who, runs=(*self._grants[who].runs, replace(run, key=want.key)))
                task.note_granted(want.key, run.calls)
                granted += run.calls
                calls_left -= run.calls
            if calls_left:
                task.wants.append(want._replace(calls=calls_left))
        if granted:
            self._remaining -= granted
            self._turns.rotate(-1)
        return granted

    def _allocate_run(
        self, key: str, now: float, until: float, *, calls: int, rate: float | None, **how: Any
    ) -> Run | None:
        """Return tokens of the windows of a key, as many as the rate of all keys together allows."""
        windows = self.windows.of_key(key, now)
        if rate is None or not self.windows.keyed:
            return windows.allocate_run(now, until, calls=calls, rate=rate, **how)
        allowed = self._all_keys.allocate_run(now, until, calls=calls, rows=1, rate=rate)
        if allowed is None:
            return None
        return windows.allocate_run(now, until, calls=allowed.calls, **how)

    def _send_away(self, now: float, worth_waiting: float = 3.0, longest_used_up: float = 30.0) -> None:
        """Send away tasks that would wait for longer than is `worth_waiting`, in seconds: others need their cores.

        If the keys that tasks asked for have used up their limits, other keys are looked for after `longest_used_up`.
        """
        circuit = self._circuit.since
        for who, task in self._tasks.items():
            waited = now - task.since >= MAX_TOKEN_WAIT_SECONDS
            out = circuit is not None and now - circuit >= MAX_TOKEN_WAIT_SECONDS and waited
            # one that wants no tokens now may have calls that wait for as long as the API has told them to
            opens = self._opens_at(now, who) if task.wants else self._shut_until(now)
            far = waited and opens - now > worth_waiting
            if not task.away and (task.stopped or out or far):
                if far and self.windows.keyed:
                    opens = min(opens, now + longest_used_up)
                    self._used_up = opens if self._used_up <= now else min(opens, self._used_up)
                task.away = True
                state = "stop" if task.stopped else "leave"
                self._change_grant(who, state=state, retry_after=self.outlook().retry_after)

    def _change_grant(self, who: str, **changes: Any) -> None:
        self._grants[who] = replace(self._grants[who], **changes)


SUMMED_FIELDS = ("sent", "ok", "throttled", "failed", "timeouts", "lapsed", "retried", "denied", "seconds")


@dataclass
class TaskState:
    """The state of one task."""

    since: float
    """When it started, or got its last token."""
    wants: deque[Want] = field(default_factory=deque)
    granted: int = 0
    ended: int = 0
    """Tokens whose calls have ended, or that expired."""
    credit: int = 0
    stopped: bool = False
    away: bool = False
    """It has been sent away, and told to stop if its sink does."""
    under_way: deque[tuple[int, str, int]] = field(default_factory=deque)
    """Tokens that it may not have yet: all that were granted with these, their key, how many."""

    def note_granted(self, key: str, calls: int) -> None:
        """Note tokens that are sent to the task."""
        self.granted += calls
        self.under_way.append((self.granted, key, calls))

    def unmet_wants(self, report: TaskReport) -> deque[Want]:
        """Return the tokens that it wants in addition to those on their way to it."""
        # What the task had received when it wrote the report is not on its way any more.
        while self.under_way and self.under_way[0][0] <= report.received:
            self.under_way.popleft()
        coming: Counter[str] = Counter()
        for _, key, calls in self.under_way:
            coming[key] += calls
        rest: deque[Want] = deque()
        for fields in report.wants:
            want = Want(*fields)
            taken = min(want.calls, coming[want.key])
            coming[want.key] -= taken
            if taken < want.calls:
                rest.append(want._replace(calls=want.calls - taken))
        return rest
