"""Bring a call to its end: attempts, waits, new credentials, smaller calls, and a verdict for each row.

Runs on executors, in the event loop of a task. Every attempt takes a slot of the lease, and every one but the first a
token of the retry budget. Whoever delivers keeps its place while it waits, so that a broken API is not asked by more
and more calls.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt
from tenacity.stop import stop_before_delay

from router_rest.lease import LeaseEnded
from router_rest.receipts import Settled
from router_rest.results import Unreadable
from router_rest.told import Left, left, pause
from router_rest.verdicts import Verdict, doubtful, throttles, verdict
from router_rest.wire import InDoubt, Unsent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tenacity import RetryCallState

    from router_rest.cutting import Call
    from router_rest.lease import Lease
    from router_rest.login import Login
    from router_rest.making import Maker
    from router_rest.results import Result, Results
    from router_rest.wire import Answer, Wire

_LOOK = 0.05
"""Seconds between two looks at the headers of answers that say nothing new."""


@dataclass(frozen=True)
class Policy:
    """Say when a call is sent again, and what its rows are told apart by; travels to tasks.

    `attempts` and `elapsed` (seconds) bound what is done for a call at a stretch; `first` and `longest` are seconds
    between two attempts, where the API does not say more. `again`: statuses that are tried again in place of the usual.
    """

    attempts: int = 5
    elapsed: float = 60.0
    first: float = 0.2
    longest: float = 10.0
    again: frozenset[int] | None = None
    results: Results | None = None


@dataclass
class Attempt:
    """Be what came of one attempt. `pause`: seconds after which the API wants to be called again."""

    verdict: Verdict
    why: str
    status: int | None = None
    seconds: float | None = None
    body: bytes = b""
    pause: float | None = None
    results: list[Result] | None = None


class Ending(Exception):  # noqa: N818 - it says what happens
    """Say that the task comes to its end, and that what waits does not go out."""


@dataclass
class Delivery:
    """Deliver the calls of one task. `settle` takes each row that is done with; `owner` is whose calls they are."""

    policy: Policy
    maker: Maker
    wire: Wire
    lease: Lease
    login: Login
    owner: bytes
    settle: Callable[[Settled], None]
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""
    wrong: str = ""
    clock: Callable[[], float] = time.time
    _looked: float = 0.0

    async def deliver(self, call: Call) -> list[Call]:
        """Deliver the rows of a call, in smaller ones where that is needed; return the rows that are left.

        `why` says what the last trouble was, `wrong` what must be changed before anything can be delivered.
        """
        waiting, over = [call], []
        while waiting:
            part = waiting.pop()
            try:
                waiting += reversed(await self._pursued(part))
            except _Undelivered as error:
                over.append(error.call)
                if part.lane is None and not self.ending.is_set():
                    continue
                return [*over, *waiting]
        return over

    def end(self) -> None:
        """Let nothing go out that is not under way."""
        self.ending.set()

    async def _pursued(self, call: Call) -> Sequence[Call]:
        """Send a call and settle its rows; return calls that its rows go on in."""
        body = self.maker.form.body.join(call.rows)
        key = call.id(body, self.owner)
        try:
            attempt = await self._attempts(call, body, key)
        except (LeaseEnded, Ending) as error:
            self.why = self.why or str(error)
            self.end()
            raise _Undelivered(call) from None
        if attempt.verdict is Verdict.DONE:
            return await self._done(call, attempt, key)
        if attempt.verdict is Verdict.WRONG:
            self.wrong = self.wrong or attempt.why
            self.end()
        if attempt.verdict in {Verdict.REFUSED, Verdict.SPLIT}:
            if len(call) > 1:
                return call.halves()
            self._settle(call, "dead", attempt, key, attempt.why)
            return ()
        raise _Undelivered(call)

    async def _attempts(self, call: Call, body: bytes, key: str) -> Attempt:
        """Send a call until it is judged for good, or as often and as long as the policy says."""
        attempt = await self._attempt(call, body, key)
        if attempt.verdict is not Verdict.AGAIN:
            return attempt
        made = iter([attempt])  # tenacity counts it as its first

        async def once() -> Attempt:
            earlier = next(made, None)
            if earlier is not None:
                return earlier
            await self._budget()
            return await self._attempt(call, body, key)

        retrying = AsyncRetrying(
            sleep=self._sleep,
            stop=stop_after_attempt(self.policy.attempts) | stop_before_delay(self.policy.elapsed),
            wait=self._wait,
            retry=retry_if_result(_is_again),
            retry_error_callback=_last,
        )
        final: Attempt = await retrying(once)
        return final

    async def _attempt(self, call: Call, body: bytes, key: str) -> Attempt:
        """Send a call once, or twice where its credentials had expired."""
        version = self.login.version
        attempt = await self._sent(call, body, key)
        if attempt.verdict is Verdict.LOGIN and await self.login.renewed(version):
            attempt = await self._sent(call, body, key)
        if attempt.verdict is Verdict.LOGIN:
            attempt.verdict = Verdict.AGAIN
        if attempt.verdict is Verdict.AGAIN:
            self.why = attempt.why
        return attempt

    async def _sent(self, call: Call, body: bytes, key: str) -> Attempt:
        try:
            request = self.maker.request(call.url, body, key)
        except ValueError:
            return Attempt(Verdict.REFUSED, "its URL is none")
        await self.lease.slot(len(call))
        saw: dict[str, Any] = {"status": None, "ok": False, "throttled": False}
        try:
            answer = await self.wire.send(self.login.auth(request))
            attempt, saw = self._judged(call, answer)
        except Unsent as error:
            attempt = Attempt(Verdict.AGAIN, error.what)
        except InDoubt as error:
            call.doubtful = frozenset(call.offsets)
            saw["timeout"] = error.timeout
            attempt = Attempt(Verdict.AGAIN, error.what)
        finally:
            self.lease.saw(**saw)  # once for each slot, whatever happens: it counts what is in flight
        call.attempts += 1
        return attempt

    def _judged(self, call: Call, answer: Answer) -> tuple[Attempt, dict[str, Any]]:
        """Return what an answer means for a call, and what of it matters to the lease."""
        status, keyed = answer.status, self.maker.form.key_header is not None
        meant = verdict(status, keyed=keyed, url_of_data=bool(call.url), again=self.policy.again)
        attempt = Attempt(meant, "", status, answer.seconds, answer.body)
        if doubtful(status) or getattr(answer, "resent", False):
            call.doubtful = frozenset(call.offsets)
        if meant is Verdict.DONE:
            throttled = self._read(call, attempt)
        else:
            attempt.why = f"the API answers {status}{_told(answer.body)}"
            attempt.pause = pause(answer.headers, self.clock()) if meant is Verdict.AGAIN else None
            throttled = throttles(status, attempt.pause is not None)
        return attempt, {
            "status": status,
            "ok": meant in {Verdict.DONE, Verdict.REFUSED, Verdict.SPLIT} and not throttled,
            "throttled": throttled,
            "pause": attempt.pause,
            "left": self._left(answer.headers),
            "seconds": answer.seconds,
        }

    def _read(self, call: Call, attempt: Attempt) -> bool:
        """Read what an answer says of each row; return whether it says that there were too many."""
        if self.policy.results is None:
            return False
        try:
            attempt.results = self.policy.results.by_row(attempt.body, call.rows)
        except Unreadable as error:
            attempt.verdict = Verdict.WRONG
            attempt.why = f"`results` does not go with what the API answers: {error}"
            call.doubtful = frozenset(call.offsets)
            return False
        return any(result.status == 429 for result in attempt.results)

    async def _done(self, call: Call, attempt: Attempt, key: str) -> Sequence[Call]:
        """Settle the rows of a call that was taken, each as the answer says; return those to send again."""
        if attempt.results is None:
            self._settle(call, "delivered", attempt, key)
            return ()
        by_verdict: dict[Verdict, list[int]] = {}
        for at, result in enumerate(attempt.results):
            meant = verdict(result.status, keyed=False, again=self.policy.again)  # the key is the whole call's
            by_verdict.setdefault(meant, []).append(at)
        self._settle(call.of(by_verdict.pop(Verdict.DONE, [])), "delivered", attempt, key)
        again = call.of(by_verdict.pop(Verdict.AGAIN, []))
        for at in sorted(at for chosen in by_verdict.values() for at in chosen):
            result = attempt.results[at]
            of_row = Attempt(Verdict.REFUSED, "", result.status, attempt.seconds, result.text)
            self._settle(call.of([at]), "dead", of_row, key, f"the API answers {result.status}{_told(result.text)}")
        return await self._later(again)

    async def _later(self, call: Call) -> Sequence[Call]:
        """Return rows that an answer says to send again, after a wait; raise when that was said often enough."""
        if not len(call):
            return ()
        self.why = f"the API does not take {len(call)} rows of a call now"
        if call.attempts >= self.policy.attempts:
            raise _Undelivered(call)
        try:
            await self._sleep(self._backoff(call.attempts))
            await self._budget()
        except Ending:
            raise _Undelivered(call) from None
        return (call,)

    def _settle(self, call: Call, status: Any, attempt: Attempt, key: str, reason: str | None = None) -> None:
        if len(call):
            name = None if self.maker.form.key_header is None else key
            self.settle(
                Settled(call, status, self.clock(), attempt.status, attempt.seconds, attempt.body, key, name, reason)
            )

    def _left(self, headers: Mapping[str, str]) -> tuple[float, float] | None:
        """Return what the headers say of the limit, now and then: what they say changes slowly, and is not all used."""
        now = self.clock()
        if now - self._looked < _LOOK:
            return None
        self._looked = now
        told: Left | None = left(headers, now)
        return None if told is None else (told.calls, told.seconds)

    def _wait(self, state: RetryCallState) -> float:
        """Return the seconds before the next attempt: what the API says, and a random share of what doubles."""
        assert state.outcome is not None
        told: Attempt = state.outcome.result()
        return (told.pause or 0.0) + self._backoff(state.attempt_number)

    def _backoff(self, attempts: int) -> float:
        return random.uniform(0, min(self.policy.longest, self.policy.first * 2 ** (attempts - 1)))

    async def _budget(self) -> None:
        """Wait for a token of the retry budget: while most calls fail, further ones are not to make it worse."""
        while not self.lease.may_retry():
            await self._sleep(self._backoff(3))

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except asyncio.TimeoutError:
            return
        raise Ending("the task ends")


class _Undelivered(Exception):  # noqa: N818
    """Hold rows that are left."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


def _is_again(attempt: Attempt) -> bool:
    return attempt.verdict is Verdict.AGAIN


def _last(state: RetryCallState) -> Attempt:
    assert state.outcome is not None
    last: Attempt = state.outcome.result()
    return last


def _told(body: bytes) -> str:
    text = body[:200].decode(errors="replace").strip()
    return f": {text}" if text else ""
