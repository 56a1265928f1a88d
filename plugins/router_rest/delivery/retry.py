"""When a call is sent again: back-off, retry budget, and what a response says about it. Runs on executors.

Every attempt but the first takes a token of the retry budget. Whoever waits keeps its place meanwhile, so that a broken
API is not asked by more and more calls.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenacity import AsyncRetrying, retry_if_result

from router_rest.delivery.response_status import Action, Unreadable, action_for, doubtful, throttles
from router_rest.rate_limit.headers import Remaining, left, pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tenacity import RetryCallState

    from router_rest.delivery.batcher import Call
    from router_rest.delivery.response_status import BulkResults, Result
    from router_rest.http_client.response import Response


@dataclass(frozen=True)
class Policy:
    """When a call is sent again, and what tells its rows apart; travels to tasks.

    `attempts` and `elapsed` (seconds) bound what is done for a call at a stretch, waits for the retry budget included;
    `first` and `longest` are seconds between two attempts, where the API does not say more. `again`: statuses that are
    tried again in place of the usual.
    """

    attempts: int = 5
    elapsed: float = 60.0
    first: float = 0.2
    longest: float = 10.0
    again: frozenset[int] | None = None
    results: BulkResults | None = None


@dataclass
class Attempt:
    """What came of one attempt. `pause`: seconds after which the API wants to be called again."""

    action: Action
    why: str
    status: int | None = None
    seconds: float | None = None
    body: bytes = b""
    pause: float | None = None
    results: list[Result] | None = None


class Ending(Exception):  # noqa: N818 - it says what happens
    """The end of the task: what waits does not go out."""


@dataclass
class Retries:
    """The attempts of calls. `allowed` takes a token of the retry budget, if there is one; `ending` ends all waits."""

    policy: Policy
    allowed: Callable[[], bool]
    ending: asyncio.Event

    async def until_classified(self, attempt: Callable[[], Awaitable[Attempt]]) -> Attempt:
        """Make attempts until one is classified for good, or as often and as long as the policy says. Raises Ending."""
        until = self.deadline()
        made = await attempt()
        if made.action is not Action.AGAIN:
            return made
        first = iter([made])  # tenacity counts it as its first

        async def once() -> Attempt:
            nonlocal made
            if next(first, None) is None and await self.budget(until):
                made = await attempt()
            return made

        retrying = AsyncRetrying(
            sleep=self.sleep,
            stop=lambda state: state.attempt_number >= self.policy.attempts or self._late(state, until),
            wait=self._wait,
            retry=retry_if_result(_is_again),
            retry_error_callback=_last,
        )
        final: Attempt = await retrying(once)
        return final

    def deadline(self) -> float:
        """Return when a call that begins now is not tried any more, by the clock of the loop."""
        return asyncio.get_running_loop().time() + self.policy.elapsed

    async def budget(self, until: float) -> bool:
        """Wait for a token of the retry budget: while most calls fail, further ones are not to make it worse.

        False: there was none until then. Raises Ending.
        """
        while not self.allowed():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await self.sleep(min(left, self.backoff(3)))
        return True

    def backoff(self, attempts: int) -> float:
        """Return the seconds to wait after so many attempts: a random share of what doubles with each."""
        return random.uniform(0, min(self.policy.longest, self.policy.first * 2 ** (attempts - 1)))

    async def sleep(self, seconds: float) -> None:
        """Wait. Raises Ending."""
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except asyncio.TimeoutError:
            return
        raise Ending("the task ends")

    def _wait(self, state: RetryCallState) -> float:
        """Return the seconds before the next attempt: never fewer than the API says."""
        return (_last(state).pause or 0.0) + self.backoff(state.attempt_number)

    @staticmethod
    def _late(state: RetryCallState, until: float) -> bool:
        return asyncio.get_running_loop().time() + state.upcoming_sleep >= until


def _is_again(attempt: Attempt) -> bool:
    return attempt.action is Action.AGAIN


def _last(state: RetryCallState) -> Attempt:
    assert state.outcome is not None
    last: Attempt = state.outcome.result()
    return last


_LOOK = 0.05
"""Seconds between two looks at the headers of answers that say nothing new."""


@dataclass
class Classifier:
    """What answers mean for the calls of one task. `keyed`: they carry idempotency keys."""

    policy: Policy
    keyed: bool
    clock: Callable[[], float] = time.time
    _looked: float = 0.0

    def classified(self, call: Call, answer: Response) -> tuple[Attempt, dict[str, Any]]:
        """Return what an answer means for a call, and what of it matters to the lease."""
        status = answer.status
        meant = action_for(status, keyed=self.keyed, url_of_data=bool(call.url), again=self.policy.again)
        attempt = Attempt(meant, "", status, answer.seconds, answer.body)
        if doubtful(status) or answer.resent:
            call.doubtful = frozenset(call.offsets)
        if meant is Action.DONE:
            throttled = self._read(call, attempt)
        else:
            attempt.why = f"the API answers {status}{excerpt(answer.body)}"
            attempt.pause = pause(answer.headers, self.clock()) if meant is Action.AGAIN else None
            throttled = throttles(status, attempt.pause is not None)
        return attempt, {
            "status": status,
            "ok": meant in {Action.DONE, Action.REFUSED, Action.SPLIT} and not throttled,
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
            attempt.action = Action.WRONG
            attempt.why = f"`results` does not go with what the API answers: {error}"
            call.doubtful = frozenset(call.offsets)
            return False
        return any(result.status == 429 for result in attempt.results)

    def _left(self, headers: Mapping[str, str]) -> tuple[float, float] | None:
        """Return what the headers say of the limit, now and then: what they say changes slowly, and is not all used."""
        now = self.clock()
        if now - self._looked < _LOOK:
            return None
        self._looked = now
        remaining: Remaining | None = left(headers, now)
        return None if remaining is None else (remaining.calls, remaining.seconds)


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer, for a reason."""
    text = body[:200].decode(errors="replace").strip()
    return f": {text}" if text else ""
