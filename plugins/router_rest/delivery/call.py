"""Bring a call to its end: its request, attempts, new credentials, smaller calls, and an action for each row.

Runs on executors, in the event loop of a task. `requests` prepares one request for each URL; those of calls are copies
of it, which is a tenth of the work. Every attempt takes a token of the rate limit, and every attempt but the first one
of the retry budget. A call that waits for its next attempt still counts as in flight, so that a broken API is not asked
by more and more calls.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

from requests import PreparedRequest, Request
from requests.structures import CaseInsensitiveDict

from router_rest.answers.actions import SERVER_STATUSES, Action
from router_rest.answers.classifier import Attempt, Classifier
from router_rest.channel.client import TaskEnded
from router_rest.delivery.receipts import PART_PAUSE_SECONDS, Settled
from router_rest.http_client.response import InDoubt, Unsent
from router_rest.limits.lease_client import HeldToken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from router_rest.answers.classifier import Policy
    from router_rest.delivery.batcher import Call
    from router_rest.delivery.receipts import Status
    from router_rest.http_client.client import HttpClient
    from router_rest.limits.lease_client import LeaseClient
    from router_rest.logins.task_login import TaskLogin
    from router_rest.templates import Body


class Headers(CaseInsensitiveDict[Any]):
    """The headers of a request, copied and listed as a whole: `requests` does both name by name, which is slower."""

    _store: OrderedDict[str, tuple[str, Any]]
    """The attribute of CaseInsensitiveDict: names and values by names in lower case."""

    @classmethod
    def copy_of(cls, other: Any) -> Headers:
        """Return a copy of headers of this class, or of that of `requests`."""
        made = cls.__new__(cls)
        made._store = OrderedDict(other._store)
        return made

    def items(self) -> Any:
        """Return pairs of names and values."""
        return self._store.values()


IDEMPOTENCY_NAMESPACE = uuid.UUID("6a5f2c1e-8f0b-5d53-9d0e-6f1f7c3b2a10")
"""The namespace of idempotency keys."""
MAX_PREPARED_REQUESTS = 1024
"""Prepared requests that are kept: where URLs are made of data there may be as many as rows."""


@dataclass(frozen=True)
class RequestForm:
    """What all requests of a sink have in common; it is pickled to tasks.

    `method`, `url`: empty if rows name theirs. `key_header` carries the idempotency key, where there is one of our
    own. `named` are the headers whose values rows name, with `row_key` the last one the idempotency key.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: Body
    key_header: str | None = None
    named: tuple[str, ...] = ()
    row_key: bool = False
    quoted: bool = True

    def idempotency_key(self, call: Call, name: str, owner: bytes) -> str | None:
        """Return the idempotency key of a call; None: it has none. `name` is that of the call, `owner` its sink's."""
        if self.key_header is not None:
            return str(uuid.uuid5(IDEMPOTENCY_NAMESPACE, f"{owner.decode()} {name}"))
        return self.call_target(call.url)[2][-1] if self.row_key else None

    def call_target(self, url: str) -> tuple[str, str, list[str]]:
        """Return the method, the URL and the values of headers of a call, which names them by its `url`."""
        named, *values = url.split("\n")
        return self.method or values.pop(0), named or self.url, values


@dataclass
class RequestBuilder:
    """A builder of requests without their login."""

    form: RequestForm

    def __post_init__(self) -> None:
        self._prepare_request = lru_cache(MAX_PREPARED_REQUESTS)(self._prepare_uncached)

    def build_request(self, url: str, body: bytes, key: str) -> PreparedRequest:
        """Return the request of a call. Raises ValueError for an invalid URL."""
        base = self._prepare_request(url)
        request = PreparedRequest()
        request.method = base.method
        request.url = base.url
        request.headers = Headers.copy_of(base.headers)
        request.hooks = {"response": []}
        request.body = self.form.body.pack_body(body)
        request.headers["Content-Length"] = str(len(request.body))
        if self.form.key_header is not None:
            # A string of a structured field: draft-ietf-httpapi-idempotency-key-header-07, 2.1.
            request.headers[self.form.key_header] = f'"{key}"' if self.form.quoted else key
        return request

    def _prepare_uncached(self, url: str) -> PreparedRequest:
        method, target, values = self.form.call_target(url)
        named = dict(zip(self.form.named, values, strict=True))
        headers = {**self.form.body.headers, **self.form.headers, **named}
        prepared = Request(method, target, headers=headers).prepare()
        prepared.headers = Headers.copy_of(prepared.headers)
        return prepared


MAX_WRONG_CALLS_IN_ROW = 10
"""Calls in a row that need another setting, after which nothing more is sent although others were taken before."""
MAX_UNREAD_ANSWERS = 10
"""Answers without the status of any row, before one has it, after which nothing more is sent."""


@dataclass
class Delivery:
    """The delivery of one task's calls. `owner` names the sink, for keys.

    `admitted` is told of each token that a call has got. `waits` gets the rows that the API tells to wait, and until
    when, in seconds since 1970: the next round has to keep to it.

    `why` says what the last trouble was, `wrong_setting` what must be changed before anything can be delivered. `read`
    and `unread` count answers with the status of a row, and without; `no_status` says why.
    """

    policy: Policy
    builder: RequestBuilder
    client: HttpClient
    lease: LeaseClient
    login: TaskLogin
    owner: bytes
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""
    read: int = 0
    unread: int = 0
    no_status: str = ""
    _taken: bool = False
    _wrong_first: str = ""
    _wrong_often: str = ""
    _wrong_in_row: int = 0
    clock: Callable[[], float] = time.time
    admitted: Callable[[Call], None] = lambda call: None
    waits: list[tuple[str | None, int, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._classifier = Classifier(self.policy, self.clock)

    async def deliver_call(self, call: Call) -> AsyncIterator[Settled | Call]:
        """Deliver the rows of a call, in smaller calls where that is needed.

        Yields rows that are settled as soon as they are, and calls of the rows that are left.
        """
        waiting = [call]
        while waiting:
            part = waiting.pop()
            is_left = False
            async for ended in self._send_until_settled(part, waiting):
                yield ended
                is_left = is_left or not isinstance(ended, Settled)
            if is_left and (part.order is not None or self.ending.is_set()):
                for behind in waiting:
                    behind.attempts = 0  # it was tried as a part of a larger call only, and waits for this one
                    yield behind
                return

    @property
    def wrong_setting(self) -> str:
        """Return the reason why calls need another setting; empty if one odd call does: others may have been taken."""
        return self._wrong_often or ("" if self._taken else self._wrong_first)

    def stop_sending(self) -> None:
        """Send nothing more; calls in flight continue."""
        self.ending.set()

    async def _send_until_settled(self, call: Call, waiting: list[Call]) -> AsyncIterator[Settled | Call]:
        """Send a call and yield its rows: those that are settled, and at last a call of those that are left.

        Smaller calls that are to be sent are added to `waiting`, the first one last.
        """
        body = self.builder.form.body.join_rows(call.rows)
        key = call.call_id(body, self.owner)
        try:
            attempt = await self._attempt_until_classified(call, body, key)
        except TaskEnded as error:
            self.why = self.why or str(error)
            self.stop_sending()
            yield call
            return
        # Which row an API refuses, or fails on, is unknown: halves find it and let all others go, and only a row that
        # stands alone is dead. An outage opens the circuit, which ends this.
        refused = attempt.action in {Action.REFUSED, Action.SPLIT}
        failed = attempt.action is Action.AGAIN and call.answered and not attempt.throttled and attempt.status
        if attempt.action is Action.DONE:
            async for ended in self._settle_taken(call, attempt, key, waiting):
                yield ended
        elif (refused or failed) and len(call) > 1:
            waiting += reversed(call.split_halves())
        elif attempt.action is Action.PARK:
            yield self._park_call(call, attempt, key, attempt.why)
            self._count_unread(attempt.why)
        elif refused or attempt.action in _STATUS_OF_ACTION:
            yield self._settle_call(call, _STATUS_OF_ACTION.get(attempt.action, "dead"), attempt, key, attempt.why)
        else:
            if attempt.action is Action.WRONG:
                self._count_wrong(call, attempt)
            yield call

    async def _attempt_until_classified(self, call: Call, body: bytes, key: str) -> Attempt:
        """Make attempts until one is not to be repeated, or as often and as long as the policy says.

        Raises TaskEnded.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.policy.elapsed
        for attempts in count(1):
            attempt = await self._attempt_call(call, body, key)
            if attempt.action is not Action.AGAIN or attempts >= self.policy.attempts:
                break
            # Never sooner than the API says. A call that was refused waits for a slot besides, so that its wait does
            # not grow, and that is bound enough: the budget is for failures.
            pause = (attempt.pause or 0.0) + self._backoff(1 if attempt.throttled else attempts)
            if loop.time() + pause >= until:
                break
            await self._sleep(pause)
            if not attempt.throttled and not await self._wait_for_budget(until):
                break
        return attempt

    async def _wait_for_budget(self, until: float) -> bool:
        """Wait for a token of the retry budget, which keeps retries from making an overload worse.

        False: there was none until then, by the clock of the loop. Raises TaskEnded.
        """
        while not self.lease.may_retry():
            seconds_left = until - asyncio.get_running_loop().time()
            if seconds_left <= 0:
                return False
            await self._sleep(min(seconds_left, self._backoff(3)))
        return True

    def _backoff(self, attempts: int) -> float:
        """Return the seconds to wait after so many attempts: a random share of what doubles with each."""
        return random.uniform(0, min(self.policy.longest, self.policy.first * 2 ** min(attempts - 1, 30)))

    async def _sleep(self, seconds: float) -> None:
        """Wait. Raises TaskEnded when calls that wait are not sent any more."""
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except asyncio.TimeoutError:
            return
        raise TaskEnded("the task ends")

    async def _attempt_call(self, call: Call, body: bytes, key: str) -> Attempt:
        """Send a call once, or twice where its credentials had expired."""
        await self.login.refresh_credentials()
        version = self.login.version
        attempt = await self._send_once(call, body, key)
        if attempt.action is Action.LOGIN and await self.login.has_renewed(version):
            attempt = await self._send_once(call, body, key)
        if attempt.action is Action.LOGIN:
            attempt.action = Action.AGAIN
        # A shorter pause is over before another attempt could read of it.
        if attempt.pause and attempt.pause > PART_PAUSE_SECONDS:
            until = self.clock() + attempt.pause
            self.waits += [(call.topic, call.partition, offset, until) for offset in call.offsets]
        if attempt.action in {Action.AGAIN, Action.LATER}:
            self.why = call.why = attempt.why
            # an API that has told a call to wait, and does so again when it comes back, speaks of this call
            busy = attempt.status in SERVER_STATUSES or (attempt.throttled and call.attempts < 2)
            call.answered = attempt.came and not busy
        return attempt

    async def _send_once(self, call: Call, body: bytes, key: str) -> Attempt:
        try:
            request = self.builder.build_request(
                call.url, body, self.builder.form.idempotency_key(call, key, self.owner) or ""
            )
        except ValueError:  # values of headers were checked before
            return Attempt(Action.REFUSED, "its URL is not valid")
        token = HeldToken(self.lease, len(call), call.limit, await self.lease.acquire(len(call), call.limit))
        self.admitted(call)
        saw: dict[str, Any] = {"status": None, "ok": False, "throttled": False}
        try:
            authorised = self.login.authorise_request(request)
            mask = self.login.mask  # before the wait: others may get new credentials meanwhile
            answer = await self.client.send(authorised, again=token.acquire_again, ready=token.in_time)
            attempt, saw = self._classifier.classify_answer(call, answer, mask.hide, method=str(request.method))
        except Unsent as error:
            attempt = Attempt(Action.AGAIN, error.what, came=False)
        except InDoubt as error:
            call.doubtful = frozenset(call.offsets)
            saw["timeout"] = error.timeout
            # A row may be what ends a connection; an API that says nothing says nothing of the row.
            attempt = Attempt(Action.LATER if error.unreadable else Action.AGAIN, error.what, came=not error.timeout)
        except TaskEnded:
            if token.resent:  # the first of the two times that the client would have sent it
                call.doubtful = frozenset(call.offsets)
            raise
        finally:
            # once for each token, whatever happens: it counts what is in flight
            self.lease.release(**saw, key=call.limit, early=token.token.early)
        call.attempts += 1
        return attempt

    async def _settle_taken(
        self, call: Call, attempt: Attempt, key: str, waiting: list[Call]
    ) -> AsyncIterator[Settled | Call]:
        """Yield the rows of a call that was taken, each as the answer says; add calls to send again to `waiting`."""
        if attempt.results is None:
            self._note_taken()
            yield self._settle_call(call, "delivered", attempt, key)
            return
        by_action: dict[Action, list[int]] = {}
        for at, row in enumerate(attempt.results):
            by_action.setdefault(row.action, []).append(at)
        unknown = by_action.pop(Action.PARK, [])
        # Together: each settled part keeps the whole answer.
        by_reason: dict[str, list[int]] = {}
        for at in unknown:
            by_reason.setdefault(attempt.results[at].why, []).append(at)
        for why, chosen in by_reason.items():
            yield self._park_call(call.select_rows(chosen), attempt, key, why)
        if len(unknown) < len(call):
            self.read += 1
        else:
            self._count_unread(attempt.results[0].why)
        if done := by_action.pop(Action.DONE, []):
            yield self._settle_call(call.select_rows(done), "delivered", attempt, key)
        again = by_action.pop(Action.AGAIN, [])
        split = by_action.pop(Action.SPLIT, [])
        wrong = by_action.pop(Action.WRONG, [])
        if len(split) == 1:  # it is alone already
            by_action.setdefault(Action.DEAD, []).append(split.pop())
        for action, chosen in by_action.items():
            for at in chosen:
                row = attempt.results[at]
                of_row = replace(attempt, status=row.status or attempt.status, body=row.text)
                yield self._settle_call(call.select_rows([at]), _STATUS_OF_ACTION[action], of_row, key, row.why)
        if len(wrong) < len(call):
            self._note_taken()
        rest = call.select_rows(sorted([*again, *split, *wrong]))
        if wrong:
            attempt.why = attempt.results[wrong[0]].why
            self._count_wrong(rest, attempt)
            yield rest
            return
        if again:
            if not await self._wait_for_attempt(len(again), call.attempts, attempt.pause or 0.0):
                yield rest
                return
            waiting.append(call.select_rows(again))
        if split:
            waiting += reversed(call.select_rows(split).split_halves())

    def _note_taken(self) -> None:
        """Note that the API takes calls: one that needs another setting is an odd one then."""
        self._taken = True
        self._wrong_in_row = 0

    def _count_wrong(self, call: Call, attempt: Attempt) -> None:
        """Note a call that needs another setting; send nothing more where all do, or many in a row.

        One such call among others that are taken is odd, and no reason to stop them.
        """
        self._wrong_in_row += 1
        self.why = call.why = attempt.why
        call.answered = True
        if self._wrong_in_row >= MAX_WRONG_CALLS_IN_ROW:
            self._wrong_often = self._wrong_often or attempt.why
        if self._wrong_often or not self._taken:
            self._wrong_first = self._wrong_first or attempt.why
            self.stop_sending()

    def _park_call(self, call: Call, attempt: Attempt, key: str, why: str) -> Settled:
        call.doubtful = frozenset(call.offsets)
        return self._settle_call(call, "parked", attempt, key, why)

    def _count_unread(self, why: str) -> None:
        """Count an answer without any status; send nothing more when the first ones all are so."""
        self.unread += 1
        self.no_status = self.no_status or why
        if not self.read and self.unread >= MAX_UNREAD_ANSWERS:
            self.stop_sending()

    async def _wait_for_attempt(self, rows: int, attempts: int, pause: float) -> bool:
        """Wait until rows of a call may be sent again; False: they had all attempts, or the pause is too long."""
        self.why = f"the API does not take {rows} rows of a call now"
        if attempts >= self.policy.attempts or pause >= self.policy.elapsed:
            return False
        try:
            await self._sleep(pause + self._backoff(attempts))
            return await self._wait_for_budget(asyncio.get_running_loop().time() + self.policy.elapsed)
        except TaskEnded:
            return False

    def _settle_call(
        self, call: Call, status: Status, attempt: Attempt, key: str, reason: str | None = None
    ) -> Settled:
        """Return the rows of a call, settled by the last attempt."""
        if status == "delivered":
            self.lease.count_delivered(len(call))
        own = self.builder.form.idempotency_key(call, key, self.owner)
        return Settled(call, status, self.clock(), attempt.status, attempt.seconds, attempt.body, key, own, reason)


_STATUS_OF_ACTION: dict[Action, Status] = {Action.DEAD: "dead", Action.SET_ASIDE: "parked"}
