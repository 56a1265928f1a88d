"""Check a call before it is processed: each check lets it through, or replies.

A check is made from a script, the record, and the check of the script before, whose state it may take over.
"""

from __future__ import annotations

import base64
import json
import math
import random
import secrets
import time
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from router_demo.api_server.calls import JSON, Call, Reply, error, value

if TYPE_CHECKING:
    from router_demo.api_server.calls import Record
    from router_demo.api_server.script import Failure, Limit, RetryAfter, Script, Token

YEAR = 365 * 24 * 3600


class Wants:
    """A check for headers that are wanted: 401 without them."""

    def __init__(self, script: Script, record: Record, before: Wants | None) -> None:
        self._wants = script.wants

    def __call__(self, call: Call) -> Reply | None:
        missing = [name for name, text in self._wants.items() if call.header(name) != text]
        return error(401, f"{missing[0]} is not what it should be") if missing else None


class Tokens:
    """A check for bearer tokens, given out for client credentials: 401 without a good one.

    It keeps which tokens are good, until when, and for how many calls (negative: any number).
    """

    def __init__(self, script: Script, record: Record, before: Tokens | None) -> None:
        assert script.token is not None  # or nobody asks for this check
        self._token: Token = script.token
        self._record = record
        self._good: dict[str, tuple[float, int]] = {}

    def __call__(self, call: Call) -> Reply | None:
        shown = call.header("authorization").removeprefix("Bearer ")
        until, left = self._good.get(shown, (0.0, 0))
        if call.at >= until or left == 0:
            return error(401, "no good token", [("WWW-Authenticate", 'Bearer error="invalid_token"')])
        self._good[shown] = (until, left - 1)
        return None

    def give(self, call: Call) -> Reply | None:
        """Return the answer to a call that asks for a token; None when it is for something else."""
        token = self._token
        if call.path != token.path:
            return None
        if (token.client, token.secret) not in (_basic(call), _form(call)):
            return error(401, "invalid_client")
        made = secrets.token_urlsafe(16)
        self._good[made] = (call.at + token.seconds, token.uses or -1)
        self._record.tokens += 1
        seconds = token.seconds if token.declared is None else token.declared
        return Reply(
            200, json.dumps({"access_token": made, "token_type": "Bearer", "expires_in": seconds}).encode(), [JSON]
        )


def _basic(call: Call) -> tuple[str, str] | None:
    kind, _, shown = call.header("authorization").partition(" ")
    try:
        client, _, secret = base64.b64decode(shown).decode().partition(":")
    except ValueError:
        return None
    return (client, secret) if kind == "Basic" else None


def _form(call: Call) -> tuple[str, str]:
    form = parse_qs(call.body.decode("latin-1"))
    return (form.get("client_id", [""])[0], form.get("client_secret", [""])[0])


class Largest:
    """A check for the length of a body: 413 when it is too long."""

    def __init__(self, script: Script, record: Record, before: Largest | None) -> None:
        self._largest = script.largest or 0

    def __call__(self, call: Call) -> Reply | None:
        return error(413, f"at most {self._largest} bytes") if len(call.body) > self._largest else None


class Limits:
    """A check of all rate limits: 429 when one bucket has too few tokens; nothing is taken from the others then."""

    def __init__(self, script: Script, record: Record, before: Limits | None) -> None:
        known: dict[str, Bucket] = before.buckets if before else {}
        self.buckets: dict[str, Bucket] = {
            limit.name: known[limit.name].becomes(limit) if limit.name in known else Bucket(limit)
            for limit in script.limits
        }
        self._wrapped = script.rows
        self._has_headers = any(limit.headers for limit in script.limits)

    def __call__(self, call: Call) -> Reply | None:
        asked = [(bucket, self._units(bucket.limit, call)) for bucket in self.buckets.values()]
        waits = [(bucket.wait(units, call.at), bucket.limit) for bucket, units in asked]
        longest, limit = max(waits, key=lambda each: each[0])
        if longest > 0:
            wait = longest if limit.wait is None else limit.wait
            return error(429, f"limit {limit.name} reached", retry_after(limit.retry_after, wait))
        for bucket, units in asked:
            bucket.take(units)
        return None

    def headers(self, now: float) -> list[tuple[str, str]]:
        """Return the headers in which every reply says what is left of the limits."""
        if not self._has_headers:
            return []
        return [header for bucket in self.buckets.values() for header in bucket.headers(now)]

    def _units(self, limit: Limit, call: Call) -> float:
        return 1 if limit.unit == "calls" else len(call.rows(self._wrapped))


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
        return self._since + self.limit.window - now if self.limit.window else lacking / self.limit.rate

    def take(self, units: float) -> None:
        """Take tokens; more than there can ever be are owed."""
        self._tokens -= units

    def headers(self, now: float) -> list[tuple[str, str]]:
        """Return the headers that say what is left of this limit."""
        self._fill(now)
        seconds = self.limit.window or 1.0
        reset = math.ceil(self._since + seconds - now) if self.limit.window else 1
        left = math.floor(max(0.0, self._tokens) + (0 if self.limit.window else self.limit.rate))
        quota = math.floor(self.limit.rate * seconds)
        return _limit_headers(self.limit, quota, left, reset, math.ceil(seconds))

    def _fill(self, now: float) -> None:
        if not self.limit.window:
            self._tokens = min(self._full, self._tokens + (now - self._since) * self.limit.rate)
            self._since = now
        elif now >= self._since + self.limit.window:
            self._since += (now - self._since) // self.limit.window * self.limit.window
            self._tokens = self._full


def _limit_headers(limit: Limit, quota: int, left: int, reset: int, seconds: int) -> list[tuple[str, str]]:
    if limit.headers == "draft":
        policy = f'"{limit.name}";q={quota};w={seconds}'
        return [("RateLimit-Policy", policy), ("RateLimit", f'"{limit.name}";r={left};t={reset}')]
    prefix = "RateLimit" if limit.headers == "three" else "X-RateLimit"
    last = reset + math.floor(time.time()) if limit.headers == "x_epoch" else reset
    named = (("Limit", quota), ("Remaining", left), ("Reset", last))
    return [(f"{prefix}-{name}", str(number)) for name, number in named] if limit.headers else []


class Failures:
    """Failures that a script asks for: the first that matches a call replies; every run of a script draws the same."""

    def __init__(self, script: Script, record: Record, before: Failures | None) -> None:
        self._failures = script.failures
        self._left = [failure.times for failure in script.failures]
        self._dice = random.Random(script.seed)

    def __call__(self, call: Call) -> Reply | None:
        for index, failure in enumerate(self._failures):
            left = self._left[index]
            if left == 0 or not call.path.startswith(failure.path):
                continue
            if failure.share < 1 and self._dice.random() >= failure.share:
                continue
            self._left[index] = None if left is None else left - 1
            return self._fail(failure)
        return None

    @staticmethod
    def _fail(failure: Failure) -> Reply:
        headers = [JSON, *failure.headers.items(), *retry_after(failure.retry_after, failure.wait)]
        body = failure.body.encode()
        return Reply(
            failure.status, body, headers, failure.seconds, failure.how, failure.size, covers=failure.processed
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
    return [("Retry-After", texts[form])] if form in texts else []


class Keys:
    """Idempotency keys: a call whose key was processed is not processed again, and gets the same answer.

    A key that is used while its first call still runs gets 409, one with another body 422.
    """

    def __init__(self, script: Script, record: Record, before: Keys | None) -> None:
        self._name = script.idempotency
        self._needed = script.key_needed
        self._record = record
        self._kept: dict[str, tuple[bytes, Reply | None]] = before._kept if before else {}

    def __call__(self, call: Call) -> Reply | None:
        key = call.header(self._name)
        if key not in self._kept:
            return error(400, f"{self._name} is missing") if self._needed and not key else None
        body, reply = self._kept[key]
        if body != call.body:
            return error(422, f"{self._name} was used with another body")
        if reply is None:
            return error(409, "the first request with this key still runs")
        self._record.replayed += 1
        return Reply(reply.status, reply.body, [*reply.headers, ("Idempotent-Replayed", "true")])

    def keep(self, call: Call, reply: Reply) -> None:
        """Note that a call was processed, and will get this reply when its time has come."""
        key = call.header(self._name)
        if key:
            self._kept[key] = (call.body, None)
            reply.due = lambda: self._kept.update({key: (call.body, reply)})


class Poisons:
    """A check for rows that this API never takes: a call that holds one is refused whole."""

    def __init__(self, script: Script, record: Record, before: Poisons | None) -> None:
        self._poison = script.poison
        self._wrapped = script.rows

    def __call__(self, call: Call) -> Reply | None:
        every = call.rows(self._wrapped)
        bad = next((each for row in every for each in self._poison if value(row, each.field) in each.values), None)
        return error(bad.status, f"a value of {bad.field} is refused") if bad else None
