"""The lease of one task: wait for the moment when a call may be sent, and report to the driver how calls went.

`LeaseClient` talks to the driver, in the one asyncio loop of a task. `TaskTokens`, which is pure, counts the tokens
that the task holds, its calls in flight and what it has to report. Runs on executors.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from copy import copy
from dataclasses import dataclass, replace
from itertools import count, groupby
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from router_rest.channel.client import DriverChannel, Gone, TaskEnded
from router_rest.channel.protocol import TICK_SECONDS, TICKS_PER_HEARTBEAT
from router_rest.limits.backpressure import MIN_ANSWERS
from router_rest.limits.messages import MIN_MESSAGE_GAP_SECONDS, Grant, TaskReport, Want
from router_rest.limits.sliding_window import LOOSE_LIFE_SECONDS, MAX_KEPT_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from router_rest.limits.sliding_window import Run

CATCH_UP_STEP_SHARE = 0.6
"""The part of the usual step between two calls of a task when the first went out late: calls make up for the time."""
STRICT_STEP_SHARE = 0.985
"""The same at an API that refuses calls for coming early: nginx counts milliseconds."""


class CallToken(NamedTuple):
    """A token in use: until when a call may go out with it, by this machine's clock.

    `early`: the call before it was less than a step away.
    """

    until: float
    early: bool = False


class LeaseClient(DriverChannel):
    """The lease of one task: `acquire()` before each attempt of a call, and exactly one `release()` after it.

    `HeldToken.in_time` stands right before the request is written: what comes between, as a new connection, may take
    longer than a token lives.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Mapping[str, Any]) -> None:
        super().__init__(reader, writer, welcome)
        self._loop = asyncio.get_running_loop()
        self._sized: bool = welcome["sized"]
        """Rows are limited, so the driver needs to know how many a call has."""
        self._keyed: bool = welcome["keyed"]
        """Each key has its own limit."""
        self._tokens = TaskTokens()
        self._ended: TaskEnded | None = None
        self.over = asyncio.Event()
        """Set when the lease ends: no token will come any more."""
        self.stopped = asyncio.Event()
        """Set when the sink stops."""
        self._waiting: deque[WaitingCall] = deque()
        # The fastest of the last messages tells best how far the clocks are apart; 256 are those of half a minute.
        self._ahead: deque[float] = deque([self._loop.time() - welcome["now"]], maxlen=256)
        """By how much this machine's clock was ahead of the driver's, by each of the last messages."""
        self._reported = 0.0
        self._reporting: asyncio.TimerHandle | None = None
        self._waking: asyncio.TimerHandle | None = None
        self._tasks.append(asyncio.ensure_future(self._keep_reporting()))

    async def acquire(self, rows: int = 1, key: str = "") -> CallToken:
        """Wait until a call of so many rows may be sent, at once. Raises Leave or Gone."""
        if self._ended is not None:
            raise copy(self._ended)  # each has a traceback of its own
        rows = rows if self._sized else 1  # without a limit of rows a token is good for any call
        key = key if self._keyed else ""
        now = self._loop.time()
        token = None
        if self._keyed or not self._waiting:  # else those that wait come first
            token = self._tokens.acquire(now, rows, key)
        if token is None:
            token = await self._wait_for_token(rows, key)
        elif self._tokens.low:
            self._send_report_soon()
        return token

    async def replace_token(self, rows: int, key: str) -> CallToken:
        """Wait for another token of a call. Raises Leave or Gone; the call has the old one then."""
        self._tokens.in_flight -= 1
        try:
            token = await self.acquire(rows, key)
        except BaseException:
            self._tokens.in_flight += 1
            raise
        self._tokens.add_count("lapsed", 1)
        return token

    def release(
        self,
        status: int | None,
        *,
        ok: bool,
        throttled: bool,
        partly: bool = False,
        pause: float | None = None,
        remaining: tuple[float, float] | None = None,
        seconds: float = 0.0,
        timeout: bool = False,
        key: str = "",
        early: bool = False,
    ) -> None:
        """Note how the attempt ended for which a token was taken.

        Args:
            status: The status of the answer; None: there was none.
            ok: The API works: it took the call, or refused it for its content (400, 409, 413, 422).
            throttled: The API refused the call because there were too many.
            partly: Of a call that was refused so, some rows were taken.
            pause: Seconds of a Retry-After.
            remaining: Calls left, and the seconds that they are for, of RateLimit headers.
            seconds: How long the attempt took.
            timeout: The attempt ended because it took too long.
            key: The key that the token was for.
            early: The token was used early after the one before.
        """
        tokens = self._tokens
        tokens.in_flight -= 1
        tokens.add_count("ok" if ok else "throttled" if throttled else "failed", 1)
        tokens.add_count("partly", partly)
        tokens.add_count("seconds", seconds)
        if not ok and status is not None:
            tokens.set_value("bad_status", status)
        tokens.add_count("timeouts", timeout)
        if remaining is not None:
            tokens.set_value("remaining", remaining)
        if pause is not None:
            tokens.add_count("asking", 1)
            tokens.set_value("pause", max(pause, tokens.retry_after or 0.0))
        if early and (ok or throttled):
            tokens.note_early(self._loop.time(), refused=throttled)
        if throttled and self._keyed:
            tokens.note_refused_key(key)
        if self._waiting:
            self._serve_waiting()
        if not ok or (self._waiting and tokens.in_flight < tokens.cap):  # calls that wait for an answer need no tokens
            self._send_report_soon()

    def count_delivered(self, rows: int) -> None:
        """Note rows that were delivered: the driver shows them while their batch runs."""
        self._tokens.add_count("delivered", rows)

    def may_retry(self) -> bool:
        """Take a retry from the budget of all tasks; False: it is used up for now, ask again later.

        Raises Leave or Gone: nothing is added to the budget any more.
        """
        if self._ended is not None:
            raise copy(self._ended)  # each has a traceback of its own
        allowed = self._tokens.take_retry()
        if not allowed:
            self._send_report_soon()
        return allowed

    async def close(self) -> None:
        """Send the last report, and close the connection."""
        self._send_report()
        await super().close()

    async def _wait_for_token(self, rows: int, key: str) -> CallToken:
        waiter: asyncio.Future[CallToken] = self._loop.create_future()
        self._waiting.append(WaitingCall(rows, key, waiter))
        self._serve_waiting()
        self._send_report_soon()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._tokens.in_flight -= 1  # the call that this token was for is not sent
                self._tokens.add_count("lapsed", 1)
            self._waiting = deque(call for call in self._waiting if call.waiter is not waiter)
            raise

    def _serve_waiting(self) -> None:
        """Give tokens to waiting calls whose time has come, and schedule the next."""
        now = self._loop.time()
        # With a limit per key a later call may have a token though the first one has none; else the order is kept.
        behind = deque[WaitingCall]()
        while self._waiting:
            call = self._waiting.popleft()
            token = self._tokens.acquire(now, call.rows, call.key)
            if token is None:
                behind.append(call)
                if not self._keyed:
                    break
            elif not call.waiter.done():
                call.waiter.set_result(token)
        self._waiting.extendleft(reversed(behind))
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if self._waiting:
            due = self._tokens.next_due(now)
            if due is not None:
                self._waking = self._loop.call_at(due, self._serve_waiting)

    def _send_report_soon(self) -> None:
        """Send a report within milliseconds, together with what else happens until then."""
        if self._reporting is None and self._ended is None:
            self._reporting = self._loop.call_at(
                max(self._loop.time(), self._reported + MIN_MESSAGE_GAP_SECONDS), self._send_report
            )

    def _send_report(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None
        self._reported = self._loop.time()
        named = self._sized or self._keyed
        report = self._tokens.take_report(
            self._reported, [(call.rows, call.key) for call in self._waiting], sized=named
        )
        self.send_message({"report": report.to_message()})

    async def _keep_reporting(self) -> None:
        """Send reports that are not urgent."""
        for tick in count(1):
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            self._tokens.estimate_rate(now)
            is_due = self._tokens.has_report or tick % TICKS_PER_HEARTBEAT == 0
            if is_due and now >= self._reported + TICK_SECONDS / 2:
                self._send_report()

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Take a message of the driver."""
        self._ahead.append(self._loop.time() - message["now"])
        if "grant" in message:
            self._accept_grant(Grant.from_message(message["grant"]))

    def _accept_grant(self, grant: Grant) -> None:
        tokens = self._tokens
        cap = self._tokens.cap
        tokens.apply_allowance(grant.number, grant.cap, grant.retries)
        if grant.state in {"hold", "leave", "stop"}:
            tokens.drop_tokens()
        if grant.state in {"leave", "stop"}:
            if grant.state == "stop":
                self.stopped.set()
            self.on_end(Leave(grant.retry_after, stopped=grant.state == "stop"))
            return
        # The fastest message says best how far the clocks are apart: with it no token is used too early.
        tokens.add_runs(grant.runs, min(self._ahead))
        self._serve_waiting()
        if tokens.low or (self._waiting and tokens.cap > cap):
            self._send_report_soon()

    def on_end(self, why: TaskEnded) -> None:
        """End the lease, and every wait for a token with it."""
        # A driver that is gone counts more than an order to leave: there will be no retries or credentials either.
        if self._ended is None or isinstance(why, Gone):
            self._ended = why
        self.over.set()
        self._tokens.drop_tokens()
        for call in self._waiting:
            if not call.waiter.done():
                call.waiter.set_exception(why)
        self._waiting.clear()
        for timer in (self._reporting, self._waking):
            if timer is not None:
                timer.cancel()
        self._reporting = self._waking = None


class WaitingCall(NamedTuple):
    """A call that waits for a token."""

    rows: int
    key: str
    waiter: asyncio.Future[CallToken]


@dataclass
class HeldToken:
    """The token of one attempt, and others in its place. `resent`: the request may have gone out once already."""

    lease: LeaseClient
    rows: int
    key: str
    token: CallToken
    resent: bool = False

    async def acquire_again(self) -> None:
        """Wait for another token, for the request is sent a second time. Raises Leave or Gone."""
        self.resent = True
        self.token = await self.lease.replace_token(self.rows, self.key)

    async def in_time(self) -> None:
        """Wait for another token where this one has expired. Raises Leave or Gone."""
        while asyncio.get_running_loop().time() > self.token.until:
            self.token = await self.lease.replace_token(self.rows, self.key)


class TaskTokens:
    """The tokens of one task, dropped when they expire, and an estimate of how many more it will use.

    Runs are used in order; a call of few rows may take a token that is good for more.
    """

    def __init__(self) -> None:
        self.cap = 0
        """Calls in flight at most."""
        self.in_flight = 0
        """Calls in flight."""
        self.low = False
        """Few tokens are left for what is expected: ask for more."""
        self._runs: deque[Run] = deque()
        """What is left of runs, on this machine's clock."""
        self._last_use: dict[str, float] = {}
        """When the last token of each key was used, where tokens are held."""
        self._strict_until = -inf
        self._early_refused = 0.0
        """The part of the last early calls that were refused."""
        self._held = 0
        self._received = self._number = 0
        self._lives = 0.0
        self._rate = 0.0
        """Tokens used per second."""
        self._used = 0
        self._ticked: float | None = None
        self._counts: dict[str, Any] = {}
        self._retries = 0

    def acquire(self, now: float, rows: int = 1, key: str = "") -> CallToken | None:
        """Take a token for a call of so many rows now; None: there is none, or too many calls are in flight."""
        if self.in_flight >= self.cap:
            return None
        for run in self._runs:
            if run.key != key or self._opens_at(run) > now:
                continue
            if now > run.first + run.lives:
                self._drop_expired(now)
                return self.acquire(now, rows, key)
            if run.rows >= rows:
                early = now < self._last_use.get(key, 0.0) + run.step * STRICT_STEP_SHARE
                token = CallToken(run.first + run.lives, early)
                # Not when the call is written: what lies between, some 0.5 ms each time, would add up to lost tokens.
                self.note_use(now, key)
                self._use_token(run)
                return token
        return None

    def note_early(self, now: float, *, refused: bool, weight: float = 1 / 16, strict_seconds: float = 10.0) -> None:
        """Note how an early call ended, and let no call make up for time for a while if the API refuses such calls.

        A single refusal says little, for some APIs refuse a few calls at random, early or not. So it is a quarter of
        the early calls, by a mean in which the last one has this `weight`.
        """
        self._early_refused += weight * (refused - self._early_refused)
        if refused and self._early_refused >= 0.25:
            self._strict_until = now + strict_seconds

    def note_use(self, now: float, key: str) -> None:
        """Note that a token of a key is used now: the next call is kept apart from this one."""
        if len(self._last_use) >= MAX_KEPT_KEYS:
            self._last_use.clear()
        self._last_use[key] = now

    def next_due(self, now: float) -> float | None:
        """Return the time of the next token that can be used; None: there is none, or no call may be in flight now."""
        self._drop_expired(now)
        if not self._runs or self.in_flight >= self.cap:
            return None
        return min((opens for run in self._runs if (opens := self._opens_at(run)) > now), default=None)

    def _opens_at(self, run: Run) -> float:
        """Return the time of the next token of a run: calls stay apart when one goes out late."""
        if run.step < 0.002:  # servers count milliseconds
            return run.first
        last_use = self._last_use.get(run.key, 0.0)
        closest = STRICT_STEP_SHARE if last_use < self._strict_until else CATCH_UP_STEP_SHARE
        return max(run.first, last_use + run.step * closest)

    def add_runs(self, runs: Iterable[Run], offset: float) -> None:
        """Add tokens; `offset` is by how much this machine's clock is ahead of the driver's."""
        for run in runs:
            self._runs.append(replace(run, first=run.first + offset))
            self._held += run.calls
            self._received += run.calls
            self._lives = run.lives
        self.low = self._held < self._expected_use() // 2

    def apply_allowance(self, number: int, cap: int, retries: int) -> None:
        """Set how many calls may be in flight, unless a newer message has said it, and add retries."""
        if number >= self._number:
            self._number = number
            self.cap = cap
        self._retries += retries

    def drop_tokens(self) -> None:
        """Drop all tokens."""
        self.add_count("lapsed", self._held)
        self._runs.clear()
        self._held = 0

    def take_retry(self) -> bool:
        """Take a retry, if there is one."""
        if self._retries < 1:
            self.add_count("denied", 1)
            return False
        self._retries -= 1
        self.add_count("retried", 1)
        return True

    def add_count(self, name: str, many: float) -> None:
        """Add to a count of the next report."""
        if many:
            self._counts[name] = self._counts.get(name, 0) + many

    def set_value(self, name: str, value: Any) -> None:
        """Set a value of the next report."""
        self._counts[name] = value

    def note_refused_key(self, key: str) -> None:
        """Note a key whose call was refused: the first few say whether it is one key or many."""
        keys = self._counts.get("refused_keys", ())
        number = crc32(key.encode())
        if number not in keys and len(keys) < MIN_ANSWERS:
            self.set_value("refused_keys", (*keys, number))

    @property
    def retry_after(self) -> float | None:
        """Return the pause of the next report."""
        return self._counts.get("pause")

    @property
    def has_report(self) -> bool:
        """Say whether there is something to report."""
        return bool(self._counts)

    def estimate_rate(self, now: float) -> None:
        """Estimate how many tokens are used per second, from those used since the last tick."""
        if self._ticked is not None and now > self._ticked:
            self._rate = (self._rate + self._used / (now - self._ticked)) / 2
        self._used = 0
        self._ticked = now

    def take_report(self, now: float, waiting: Sequence[tuple[int, str]], *, sized: bool) -> TaskReport:
        """Return the next report; `waiting` has the rows and the key of each call that waits for a token."""
        self._drop_expired(now)
        counts = self._counts
        self._counts = {}
        self.low = False  # it is asked for now
        return TaskReport(
            **counts,
            received=self._received,
            number=self._number,
            in_flight=self.in_flight,
            waiting=len(waiting),
            wants=self._list_wants(waiting, sized=sized),
        )

    def _list_wants(self, waiting: Sequence[tuple[int, str]], *, sized: bool) -> tuple[Want, ...]:
        usable = max(0, min(len(waiting), self.cap - self.in_flight))
        if sized:  # the rows and the key of a call that does not wait yet are not known
            held = Counter[str]()
            for run in self._runs:
                held[run.key] += run.calls
            not_held = []
            for rows, key in waiting[:usable]:
                held[key] -= 1
                if held[key] < 0:
                    not_held.append((rows, key))
            return tuple(Want(rows, len(list(alike)), key) for (rows, key), alike in groupby(not_held))
        many = max(usable, self._expected_use()) - self._held
        return (Want(1, many),) if many > 0 else ()

    def _expected_use(self) -> int:
        """Return how many tokens will probably be used before they expire."""
        if self.in_flight == 0:
            return 0
        # While tokens live long a quarter more is asked for: hardly any expires.
        factor = 1.25 if self._lives >= LOOSE_LIFE_SECONDS else 1.0
        return ceil(self._rate * self._held_seconds * factor)

    @property
    def _held_seconds(self) -> float:
        """Return for how many seconds tokens are held. Under a long limit they live longer, so hardly any expires."""
        return min(LOOSE_LIFE_SECONDS, self._lives)

    def _use_token(self, run: Run) -> None:
        run.first += run.step
        run.calls -= 1
        if not run.calls:
            self._runs.remove(run)
        self._held -= 1
        self._used += 1
        self.in_flight += 1
        self._counts["sent"] = self._counts.get("sent", 0) + 1
        if self._rate and 2 * self._held < self._rate * self._held_seconds:
            self.low = True

    def _drop_expired(self, now: float) -> None:
        before = self._held
        for run in self._runs:
            late = now - run.lives - run.first
            if late > 0:
                gone = min(run.calls, floor(late / run.step) + 1) if run.step else run.calls
                run.first += gone * run.step
                run.calls -= gone
                self._held -= gone
        if self._held < before:
            self.add_count("lapsed", before - self._held)
            self._runs = deque(run for run in self._runs if run.calls)


class Leave(TaskEnded):
    """The driver's order to end the task: nothing may be sent for `retry_after` seconds, or the sink stops."""

    def __init__(self, retry_after: float, *, stopped: bool = False) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after
        self.stopped = stopped

    def __str__(self) -> str:
        if self.stopped:
            return "the sink stops"
        # A circuit has opened, or a key is free again, while the task was sent away.
        if self.retry_after < 0.1:
            return "no call could go out for some seconds; the rest follows at once"
        return f"nothing may go out for {self.retry_after:.1f} s or more"
