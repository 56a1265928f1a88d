"""Bring a call to its end: attempts, new credentials, smaller calls, and an action for each row.

Runs on executors, in the event loop of a task. Every attempt takes a token of the rate limit.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router_rest.delivery.receipts import Settled
from router_rest.delivery.response_status import Action, action_for
from router_rest.delivery.retry import Attempt, Classifier, Ending, Retries, excerpt
from router_rest.http_client.response import InDoubt, Unsent
from router_rest.rate_limit.client import LeaseEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router_rest.credentials import TaskLogin
    from router_rest.delivery.batcher import Call
    from router_rest.delivery.request_builder import RequestBuilder
    from router_rest.delivery.retry import Policy
    from router_rest.http_client.client import HttpClient
    from router_rest.rate_limit.client import LeaseClient


@dataclass
class Delivery:
    """The delivery of one task's calls. `settle` takes each row that is done with; `owner` is whose calls they are."""

    policy: Policy
    builder: RequestBuilder
    wire: HttpClient
    lease: LeaseClient
    login: TaskLogin
    owner: bytes
    settle: Callable[[Settled], None]
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""
    wrong: str = ""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._classifier = Classifier(self.policy, self.builder.form.key_header is not None, self.clock)
        self._retries = Retries(self.policy, self.lease.may_retry, self.ending)

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
                if part.order is None and not self.ending.is_set():
                    continue
                return [*over, *waiting]
        return over

    def end(self) -> None:
        """Let nothing go out that is not under way."""
        self.ending.set()

    async def _pursued(self, call: Call) -> Sequence[Call]:
        """Send a call and settle its rows; return calls that its rows go on in."""
        body = self.builder.form.body.join(call.rows)
        key = call.id(body, self.owner)
        try:
            attempt = await self._retries.until_classified(lambda: self._attempt(call, body, key))
        except (LeaseEnded, Ending) as error:
            self.why = self.why or str(error)
            self.end()
            raise _Undelivered(call) from None
        if attempt.action is Action.DONE:
            return await self._done(call, attempt, key)
        if attempt.action is Action.WRONG:
            self.wrong = self.wrong or attempt.why
            self.end()
        if attempt.action in {Action.REFUSED, Action.SPLIT}:
            if len(call) > 1:
                return call.halves()
            self._settle(call, "dead", attempt, key, attempt.why)
            return ()
        raise _Undelivered(call)

    async def _attempt(self, call: Call, body: bytes, key: str) -> Attempt:
        """Send a call once, or twice where its credentials had expired."""
        version = self.login.version
        attempt = await self._sent(call, body, key)
        if attempt.action is Action.LOGIN and await self.login.renewed(version):
            attempt = await self._sent(call, body, key)
        if attempt.action is Action.LOGIN:
            attempt.action = Action.AGAIN
        if attempt.action is Action.AGAIN:
            self.why = attempt.why
        return attempt

    async def _sent(self, call: Call, body: bytes, key: str) -> Attempt:
        try:
            request = self.builder.request(call.url, body, key)
        except ValueError:
            return Attempt(Action.REFUSED, "its URL is none")
        await self.lease.token(len(call))
        saw: dict[str, Any] = {"status": None, "ok": False, "throttled": False}
        try:
            answer = await self.wire.send(self.login.auth(request), again=lambda: self.lease.again(len(call)))
            attempt, saw = self._classifier.classified(call, answer)
        except Unsent as error:
            attempt = Attempt(Action.AGAIN, error.what)
        except InDoubt as error:
            call.doubtful = frozenset(call.offsets)
            saw["timeout"] = error.timeout
            attempt = Attempt(Action.AGAIN, error.what)
        except LeaseEnded:  # between the first and the second time that the wire would have sent it
            call.doubtful = frozenset(call.offsets)
            raise
        finally:
            self.lease.saw(**saw)  # once for each token, whatever happens: it counts what is in flight
        call.attempts += 1
        return attempt

    async def _done(self, call: Call, attempt: Attempt, key: str) -> Sequence[Call]:
        """Settle the rows of a call that was taken, each as the answer says; return those to send again."""
        if attempt.results is None:
            self._settle(call, "delivered", attempt, key)
            return ()
        by_action: dict[Action, list[int]] = {}
        for at, result in enumerate(attempt.results):
            meant = action_for(result.status, keyed=False, again=self.policy.again)  # the key is the whole call's
            by_action.setdefault(meant, []).append(at)
        self._settle(call.of(by_action.pop(Action.DONE, [])), "delivered", attempt, key)
        again = call.of(by_action.pop(Action.AGAIN, []))
        for at in sorted(at for chosen in by_action.values() for at in chosen):
            result = attempt.results[at]
            of_row = Attempt(Action.REFUSED, "", result.status, attempt.seconds, result.text)
            self._settle(call.of([at]), "dead", of_row, key, f"the API answers {result.status}{excerpt(result.text)}")
        return await self._later(again)

    async def _later(self, call: Call) -> Sequence[Call]:
        """Return rows that an answer says to send again, after a wait; raise when that was said often enough."""
        if not len(call):
            return ()
        self.why = f"the API does not take {len(call)} rows of a call now"
        if call.attempts >= self.policy.attempts:
            raise _Undelivered(call)
        try:
            await self._retries.sleep(self._retries.backoff(call.attempts))
            if await self._retries.budget(self._retries.deadline()):
                return (call,)
        except Ending:
            pass
        raise _Undelivered(call)

    def _settle(self, call: Call, status: Any, attempt: Attempt, key: str, reason: str | None = None) -> None:
        if len(call):
            name = None if self.builder.form.key_header is None else key
            self.settle(
                Settled(call, status, self.clock(), attempt.status, attempt.seconds, attempt.body, key, name, reason)
            )


class _Undelivered(Exception):  # noqa: N818
    """Rows that are left."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
