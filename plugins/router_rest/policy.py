"""Say when a call is sent again, and wait until then. Runs on executors, in the event loop of a task.

Every attempt but the first takes a token of the retry budget. Whoever waits keeps its place meanwhile, so that a broken
API is not asked by more and more calls.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_result

from router_rest.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

    from router_rest.results import Result, Results


@dataclass(frozen=True)
class Policy:
    """Say when a call is sent again, and what its rows are told apart by; travels to tasks.

    `attempts` and `elapsed` (seconds) bound what is done for a call at a stretch, waits for the retry budget included;
    `first` and `longest` are seconds between two attempts, where the API does not say more. `again`: statuses that are
    tried again in place of the usual.
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
class Retries:
    """Make attempts. `allowed` takes a token of the retry budget, if there is one; `ending` breaks off all waits."""

    policy: Policy
    allowed: Callable[[], bool]
    ending: asyncio.Event

    async def until_judged(self, attempt: Callable[[], Awaitable[Attempt]]) -> Attempt:
        """Make attempts until one is judged for good, or as often and as long as the policy says. Raises Ending."""
        until = self.deadline()
        made = await attempt()
        if made.verdict is not Verdict.AGAIN:
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
    return attempt.verdict is Verdict.AGAIN


def _last(state: RetryCallState) -> Attempt:
    assert state.outcome is not None
    last: Attempt = state.outcome.result()
    return last
