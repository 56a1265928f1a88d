"""Answer a call: note it in the record, let the checks of the script look at it, process what passes them.

A check lets a call through, or replies. It is made from a script, the record, and the check of the script before, whose
state it may take over.
"""

from __future__ import annotations

import base64
import json
import math
import random
import secrets
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from router_demo.api_server.calls import JSON, UNANSWERED, Call, Record, Reply, error, value
from router_demo.api_server.page import page
from router_demo.api_server.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_demo.api_server.script import Failure, Items, Limit, Poison, RetryAfter, Token

YEAR = 365 * 24 * 3600


class Wants:
    """A check for headers that are wanted: 401 without them."""

    def __init__(self, script: Script, record: Record, before: Wants | None) -> None:
        self._wants = script.wants

    def __call__(self, call: Call) -> Reply | None:
        for name, text in self._wants.items():
            if call.header(name) != text:
                return error(401, f"{name} is not what it should be")
        return None


class Tokens:
    """A check for bearer tokens, given out for client credentials: 401 without a good one.

    It keeps which tokens are good, until when, and for how many calls (negative: any number).
    """

    def __init__(self, script: Script, record: Record, before: Tokens | None) -> None:
        assert script.token is not None  # or this check is not requested
        self._token: Token = script.token
        self._record = record
        self._good: dict[str, tuple[float, int]] = {}

    def __call__(self, call: Call) -> Reply | None:
        token = call.header("authorization").removeprefix("Bearer ")
        expiry, uses_left = self._good.get(token, (0.0, 0))
        if call.at >= expiry or uses_left == 0:
            return error(401, "no good token", [("WWW-Authenticate", 'Bearer error="invalid_token"')])
        self._good[token] = (expiry, uses_left - 1)
        return None

    def give(self, call: Call) -> Reply | None:
        """Return the answer to a call that asks for a token; None when it is for something else."""
        token = self._token
        if call.path != token.path:
            return None
        if (token.client, token.secret) not in (_basic_credentials(call), _form_credentials(call)):
            return error(401, "invalid_client")
        access_token = secrets.token_urlsafe(16)
        self._good[access_token] = (call.at + token.seconds, token.uses or -1)
        self._record.tokens += 1
        expires_in = token.seconds if token.declared is None else token.declared
        content = {"access_token": access_token, "token_type": "Bearer", "expires_in": expires_in}
        return Reply(200, json.dumps(content).encode(), [JSON])


def _basic_credentials(call: Call) -> tuple[str, str] | None:
    """Return the client's id and secret of a header for basic authentication."""
    scheme, _, credentials = call.header("authorization").partition(" ")
    if scheme != "Basic":
        return None
    try:
        client, _, secret = base64.b64decode(credentials).decode().partition(":")
    except ValueError:
        return None
    return client, secret


def _form_credentials(call: Call) -> tuple[str, str]:
    """Return the client's id and secret of a body that is a form."""
    form = parse_qs(call.body.decode("latin-1"))
    client = form.get("client_id", [""])[0]
    secret = form.get("client_secret", [""])[0]
    return client, secret


class Largest:
    """A check for the length of a body: 413 when it is too long."""

    def __init__(self, script: Script, record: Record, before: Largest | None) -> None:
        self._largest = script.largest or 0

    def __call__(self, call: Call) -> Reply | None:
        if len(call.body) > self._largest:
            return error(413, f"at most {self._largest} bytes")
        return None


class Limits:
    """A check of all rate limits: 429 when one bucket has too few tokens; nothing is taken from the others then."""

    def __init__(self, script: Script, record: Record, before: Limits | None) -> None:
        buckets_before: dict[str, Bucket] = before.buckets if before else {}
        self.buckets: dict[str, Bucket] = {}
        for limit in script.limits:
            bucket = buckets_before.get(limit.name)
            self.buckets[limit.name] = bucket.becomes(limit) if bucket else Bucket(limit)
        self._wrapped = script.rows
        self._has_headers = any(limit.headers for limit in script.limits)

    def __call__(self, call: Call) -> Reply | None:
        demands = [(bucket, self._units(bucket.limit, call)) for bucket in self.buckets.values()]
        # Look at all buckets before a token is taken: a call that one limit refuses uses up nothing of the others.
        waits = [(bucket.wait(units, call.at), bucket.limit) for bucket, units in demands]
        longest, limit = max(waits, key=lambda each: each[0])
        if longest > 0:
            wait = longest if limit.wait is None else limit.wait
            return error(429, f"limit {limit.name} reached", retry_after(limit.retry_after, wait))
        for bucket, units in demands:
            bucket.take(units)
        return None

    def headers(self, now: float) -> list[tuple[str, str]]:
        """Return the headers in which every reply says what is left of the limits."""
        if not self._has_headers:
            return []
        headers: list[tuple[str, str]] = []
        for bucket in self.buckets.values():
            headers.extend(bucket.headers(now))
        return headers

    def _units(self, limit: Limit, call: Call) -> float:
        if limit.unit == "calls":
            return 1
        return len(call.rows(self._wrapped))


class Bucket:
    """The token bucket of one limit, or the count of its window; times are monotonic seconds."""

    def __init__(self, limit: Limit, now: float | None = None) -> None:
        self.limit = limit
        self._full = limit.rate * limit.window if limit.window else limit.burst
        self._tokens = self._full
        self._since = time.monotonic() if now is None else now

    def becomes(self, limit: Limit, now: float | None = None) -> Bucket:
        """Return the bucket under another limit: what was used up stays used up."""
        changed = Bucket(limit, now)
        self._fill(changed._since)
        changed._tokens = min(changed._full, self._tokens)
        if limit.window:
            changed._since = self._since
        return changed

    def wait(self, units: float, now: float) -> float:
        """Return the seconds until so many tokens are there; 0 when they are."""
        self._fill(now)
        lacking = min(units, self._full) - self._tokens
        if lacking <= 1e-9:  # what rounding leaves over is no token that lacks
            return 0.0
        if self.limit.window:
            return self._since + self.limit.window - now
        return lacking / self.limit.rate

    def take(self, units: float) -> None:
        """Take tokens; a call that needs more than the bucket can hold leaves it in debt."""
        self._tokens -= units

    def headers(self, now: float) -> list[tuple[str, str]]:
        """Return the headers that say what is left of this limit."""
        self._fill(now)
        remaining = max(0.0, self._tokens)
        if self.limit.window:
            seconds = self.limit.window
            reset = math.ceil(self._since + seconds - now)
        else:
            # The headers know windows only. A bucket is shown as one of a second, in which what fills it is also left.
            seconds = 1.0
            reset = 1
            remaining += self.limit.rate
        return _limit_headers(
            self.limit,
            quota=math.floor(self.limit.rate * seconds),
            remaining=math.floor(remaining),
            reset=reset,
            seconds=math.ceil(seconds),
        )

    def _fill(self, now: float) -> None:
        if not self.limit.window:
            self._tokens = min(self._full, self._tokens + (now - self._since) * self.limit.rate)
            self._since = now
        elif now >= self._since + self.limit.window:
            self._since += (now - self._since) // self.limit.window * self.limit.window
            self._tokens = self._full


def _limit_headers(limit: Limit, *, quota: int, remaining: int, reset: int, seconds: int) -> list[tuple[str, str]]:
    """Return the headers of a limit in its form (see `script.LimitHeaders`); `reset` is in seconds from now."""
    if not limit.headers:
        return []
    if limit.headers == "draft":
        policy = f'"{limit.name}";q={quota};w={seconds}'
        return [("RateLimit-Policy", policy), ("RateLimit", f'"{limit.name}";r={remaining};t={reset}')]
    prefix = "RateLimit" if limit.headers == "three" else "X-RateLimit"
    if limit.headers == "x_epoch":
        reset += math.floor(time.time())
    return [
        (f"{prefix}-Limit", str(quota)),
        (f"{prefix}-Remaining", str(remaining)),
        (f"{prefix}-Reset", str(reset)),
    ]


class Failures:
    """Failures that a script asks for: the first that matches a call replies; every run of a script draws the same."""

    def __init__(self, script: Script, record: Record, before: Failures | None) -> None:
        self._failures = script.failures
        self._times_left = [failure.times for failure in script.failures]
        """How often each failure may still come; None is without an end."""
        self._dice = random.Random(script.seed)

    def __call__(self, call: Call) -> Reply | None:
        for index, failure in enumerate(self._failures):
            times_left = self._times_left[index]
            if times_left == 0 or not call.path.startswith(failure.path):
                continue
            if failure.share < 1 and self._dice.random() >= failure.share:
                continue
            if times_left is not None:
                self._times_left[index] = times_left - 1
            return self._failure_reply(failure)
        return None

    @staticmethod
    def _failure_reply(failure: Failure) -> Reply:
        return Reply(
            status=failure.status,
            body=failure.body.encode(),
            headers=[JSON, *failure.headers.items(), *retry_after(failure.retry_after, failure.wait)],
            seconds=failure.seconds,
            how=failure.how,
            size=failure.size,
            covers=failure.processed,
        )


def retry_after(form: RetryAfter, wait: float) -> list[tuple[str, str]]:
    """Return a Retry-After header that tells so many seconds, in one of its forms."""
    whole = math.ceil(wait)
    texts = {
        "seconds": str(whole),
        "date": formatdate(math.ceil(time.time() + wait), usegmt=True),
        "absurd": str(YEAR),
        "malformed": "in a while",
    }
    if form not in texts:
        return []
    return [("Retry-After", texts[form])]


class Keys:
    """Idempotency keys: a call whose key was processed is not processed again, and gets the same answer.

    A key that is used while its first call still runs gets 409, one with another body 422.
    """

    def __init__(self, script: Script, record: Record, before: Keys | None) -> None:
        self._name = script.idempotency
        self._needed = script.key_needed
        self._record = record
        self._replies: dict[str, tuple[bytes, Reply | None]] = before._replies if before else {}
        """By key: the body of the call, and the reply to it, None until its time has come."""

    def __call__(self, call: Call) -> Reply | None:
        key = call.header(self._name)
        if key not in self._replies:
            if self._needed and not key:
                return error(400, f"{self._name} is missing")
            return None
        body, reply = self._replies[key]
        if body != call.body:
            return error(422, f"{self._name} was used with another body")
        if reply is None:
            return error(409, "the first request with this key still runs")
        self._record.replayed += 1
        return Reply(reply.status, reply.body, [*reply.headers, ("Idempotent-Replayed", "true")])

    def keep(self, call: Call, reply: Reply) -> None:
        """Note that a call was processed, and will get this reply when its time has come."""
        key = call.header(self._name)
        if not key:
            return
        self._replies[key] = (call.body, None)

        def keep_reply() -> None:
            self._replies[key] = (call.body, reply)

        reply.due = keep_reply


class Poisons:
    """A check for rows that this API never takes: a call that holds one is refused whole."""

    def __init__(self, script: Script, record: Record, before: Poisons | None) -> None:
        self._poison = script.poison
        self._wrapped = script.rows

    def __call__(self, call: Call) -> Reply | None:
        for row in call.rows(self._wrapped):
            poison = _poison_in(row, self._poison)
            if poison is not None:
                return error(poison.status, f"a value of {poison.field} is refused")
        return None


def _poison_in(row: Any, poisons: tuple[Poison, ...]) -> Poison | None:
    """Return the first poison that a row holds."""
    for poison in poisons:
        if value(row, poison.field) in poison.values:
            return poison
    return None


# The handler

CHECKS: dict[str, Callable[..., Callable[[Call], Reply | None]]] = {
    "wants": Wants,
    "token": Tokens,
    "largest": Largest,
    "limits": Limits,
    "failures": Failures,
    "idempotency": Keys,
    "poison": Poisons,
}
"""The check that each field of a script asks for, in the order in which they are made."""
ANSWERED = {"answer", "huge", "endless", "drip", "cut"}
"""The ways of a reply that begin with a status."""


class Handler:
    """The checks and the processing that a script asks for, and the record of the calls that came."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all calls, and the script."""
        self.script = Script()
        self.record = Record()
        self._checks: dict[str, Any] = {}
        self.play(self.script)

    def play(self, script: Script) -> float:
        """Replace the script; return the time.

        A check whose field did not change keeps its state; limits and keys keep what was used up in any case.
        """
        now = time.monotonic()
        before = self.script
        if script.limits != before.limits:
            self.record.limit(now, script.limits)
        checks_before = self._checks
        self._checks = {}
        self.script = script
        for name, make_check in CHECKS.items():
            options = getattr(script, name)
            if options is None or options in ((), {}, ""):
                continue
            if name == "poison" and script.items is not None:
                continue  # a row that is poison is refused alone
            check_before = checks_before.get(name)
            if check_before is not None and options == getattr(before, name):
                self._checks[name] = check_before
            else:
                self._checks[name] = make_check(script, self.record, check_before)
        self._limits: Limits | None = self._checks.get("limits")
        self._keys: Keys | None = self._checks.get("idempotency")
        self._tokens: Tokens | None = self._checks.get("token")
        self._process: Whole | ItemByItem
        if script.items is None:
            self._process = Whole(script, self.record)
        else:
            self._process = ItemByItem(script, self.record, script.items)
        self._key_header = script.idempotency or "Idempotency-Key"
        return now

    def reply(self, call: Call) -> Reply:
        """Note a call and return the reply to it. A call for a token, or a look at the page, is not noted."""
        if call.path == "/" and call.method == "GET":
            return page(call.header("Accept"), self.script, self.record)
        if self._tokens is not None:
            token_reply = self._tokens.give(call)
            if token_reply is not None:
                return token_reply
        call.number = self.record.arrive(call, self._key_header)
        if self.script.show_headers:
            self.record.headers[call.number] = {name.lower(): text for name, text in call.headers.items()}
        reply = self._decide(call)
        self.record.statuses[call.number] = reply.status if reply.how in ANSWERED else UNANSWERED
        if self._limits is not None:
            reply.headers.extend(self._limits.headers(call.at))
        reply.headers.extend(self.script.headers.items())
        return reply

    def _decide(self, call: Call) -> Reply:
        """Return the reply of the first check that refuses the call, or process the call.

        A failure that covers does not refuse. The checks after it still look at the call, but its sender sees only the
        failure.
        """
        cover: Reply | None = None
        for check in self._checks.values():
            reply: Reply | None = check(call)
            if reply is None:
                continue
            if not reply.covers:
                return cover or reply
            cover = reply
        return self._process_call(call, cover)

    def _process_call(self, call: Call, cover: Reply | None) -> Reply:
        """Return the answer to a call that is processed, or what its sender sees in place of it."""
        reply = self._process(call)
        reply.seconds = self.script.latency
        if self._keys is not None:
            self._keys.keep(call, reply)
        if cover is not None:
            cover.due = reply.due
        return cover or reply


class Whole:
    """Processing of a call as one: all its rows take effect."""

    def __init__(self, script: Script, record: Record) -> None:
        self._record = record
        self._echo = script.answer == "echo"

    def __call__(self, call: Call) -> Reply:
        self._record.process(call.number)
        body = call.body if self._echo else b'{"call": %d}' % call.number
        return Reply(200, body, [JSON])


class ItemByItem:
    """Processing of a call row by row: those that can be processed take effect, and each gets its own answer."""

    def __init__(self, script: Script, record: Record, items: Items) -> None:
        self._items = items
        self._poison = script.poison
        self._wrapped = script.rows
        self._record = record
        self._dice = random.Random(script.seed)

    def __call__(self, call: Call) -> Reply:
        taken: list[int] = []
        results: list[dict[str, Any]] = []
        for index, row in enumerate(call.rows(self._wrapped)):
            status = self._status(row)
            if status < 300:
                taken.append(index)
            results.append(self._result(row, status))
        self._record.process(call.number, tuple(taken))
        if self._items.shuffled:
            self._dice.shuffle(results)
        return Reply(self._items.status, json.dumps({"items": results}).encode(), [JSON])

    def _status(self, row: Any) -> int:
        poison = _poison_in(row, self._poison)
        if poison is not None:
            return poison.status
        if self._items.busy and self._dice.random() < self._items.busy:
            return 429
        return 201

    def _result(self, row: Any, status: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        if self._items.id:
            result["id"] = value(row, self._items.id)
        result["status"] = status
        if status >= 300:
            result["error"] = "busy" if status == 429 else "refused"
        return result
