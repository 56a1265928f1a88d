"""Bring a call to its end: attempts, new credentials, smaller calls, and a verdict for each row.

Runs on executors, in the event loop of a task. Every attempt takes a slot of the lease.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router_rest.http_client.response import InDoubt, Unsent
from router_rest.judging import Judge, excerpt
from router_rest.policy import Attempt, Ending, Retries
from router_rest.reaching import LeaseEnded
from router_rest.receipts import Settled
from router_rest.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router_rest.cutting import Call
    from router_rest.http_client.client import HttpClient
    from router_rest.lease import Lease
    from router_rest.login import Login
    from router_rest.making import Maker
    from router_rest.policy import Policy


@dataclass
class Delivery:
    """Deliver the calls of one task. `settle` takes each row that is done with; `owner` is whose calls they are."""

    policy: Policy
    maker: Maker
    wire: HttpClient
    lease: Lease
    login: Login
    owner: bytes
    settle: Callable[[Settled], None]
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""
    wrong: str = ""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._judge = Judge(self.policy, self.maker.form.key_header is not None, self.clock)
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
            attempt = await self._retries.until_judged(lambda: self._attempt(call, body, key))
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
            answer = await self.wire.send(self.login.auth(request), again=lambda: self.lease.again(len(call)))
            attempt, saw = self._judge.judged(call, answer)
        except Unsent as error:
            attempt = Attempt(Verdict.AGAIN, error.what)
        except InDoubt as error:
            call.doubtful = frozenset(call.offsets)
            saw["timeout"] = error.timeout
            attempt = Attempt(Verdict.AGAIN, error.what)
        except LeaseEnded:  # between the first and the second time that the wire would have sent it
            call.doubtful = frozenset(call.offsets)
            raise
        finally:
            self.lease.saw(**saw)  # once for each slot, whatever happens: it counts what is in flight
        call.attempts += 1
        return attempt

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
            name = None if self.maker.form.key_header is None else key
            self.settle(
                Settled(call, status, self.clock(), attempt.status, attempt.seconds, attempt.body, key, name, reason)
            )


class _Undelivered(Exception):  # noqa: N818
    """Hold rows that are left."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
