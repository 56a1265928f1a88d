"""What a request must pass before it is processed: each check lets it through, or replies.

A check is made from a script, the record, and the check of the script before, whose state it may take over.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from router_demo.api_server.bodies import value
from router_demo.api_server.buckets import Bucket, retry_after
from router_demo.api_server.messages import JSON, Reply, Request, error

if TYPE_CHECKING:
    from router_demo.api_server.record import Record
    from router_demo.api_server.script import Failure, Limit, Script


class Wants:
    """Answer 401 to who does not show the headers that are wanted."""

    def __init__(self, script: Script, record: Record, before: Wants | None) -> None:
        self._wants = script.wants

    def __call__(self, request: Request) -> Reply | None:
        missing = [name for name, text in self._wants.items() if request.header(name) != text]
        return error(401, f"{missing[0]} is not what it should be") if missing else None


class Largest:
    """Answer 413 to a body that is too long."""

    def __init__(self, script: Script, record: Record, before: Largest | None) -> None:
        self._largest = script.largest or 0

    def __call__(self, request: Request) -> Reply | None:
        return error(413, f"at most {self._largest} bytes") if len(request.body) > self._largest else None


class Limits:
    """Hold the buckets, and answer 429 when one has too little; nothing is taken from the others then."""

    def __init__(self, script: Script, record: Record, before: Limits | None) -> None:
        known: dict[str, Bucket] = before.buckets if before else {}
        self.buckets: dict[str, Bucket] = {
            limit.name: known[limit.name].becomes(limit) if limit.name in known else Bucket(limit)
            for limit in script.limits
        }
        self._wrapped = script.rows
        self._told = any(limit.told for limit in script.limits)

    def __call__(self, request: Request) -> Reply | None:
        asked = [(bucket, self._units(bucket.limit, request)) for bucket in self.buckets.values()]
        waits = [(bucket.wait(units, request.at), bucket.limit) for bucket, units in asked]
        longest, limit = max(waits, key=lambda each: each[0])
        if longest > 0:
            wait = longest if limit.wait is None else limit.wait
            return error(429, f"limit {limit.name} reached", retry_after(limit.retry_after, wait))
        for bucket, units in asked:
            bucket.take(units)
        return None

    def headers(self, now: float) -> list[tuple[str, str]]:
        """Return what every reply tells about the limits."""
        if not self._told:
            return []
        return [header for bucket in self.buckets.values() for header in bucket.headers(now)]

    def _units(self, limit: Limit, request: Request) -> float:
        return 1 if limit.unit == "calls" else len(request.rows(self._wrapped))


class Failures:
    """Fail as told, by the first failure that takes the request; the dice are the same in every run of a script."""

    def __init__(self, script: Script, record: Record, before: Failures | None) -> None:
        self._failures = script.failures
        self._left = [failure.times for failure in script.failures]
        self._dice = random.Random(script.seed)

    def __call__(self, request: Request) -> Reply | None:
        for index, failure in enumerate(self._failures):
            left = self._left[index]
            if left == 0 or not request.path.startswith(failure.path.encode()):
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


class Keys:
    """Honour idempotency keys: a call whose key was processed is not processed again, and gets the same answer.

    A key that is used while its first request still runs gets 409, one with another body 422.
    """

    def __init__(self, script: Script, record: Record, before: Keys | None) -> None:
        self._name = script.idempotency
        self._header = script.idempotency.lower().encode()
        self._needed = script.key_needed
        self._record = record
        self._kept: dict[bytes, tuple[bytes, Reply | None]] = before._kept if before else {}

    def __call__(self, request: Request) -> Reply | None:
        key = request.headers.get(self._header, b"")
        if key not in self._kept:
            return error(400, f"{self._name} is missing") if self._needed and not key else None
        body, reply = self._kept[key]
        if body != request.body:
            return error(422, f"{self._name} was used with another body")
        if reply is None:
            return error(409, "the first request with this key still runs")
        self._record.replayed += 1
        return Reply(reply.status, reply.body, [*reply.headers, ("Idempotent-Replayed", "true")])

    def keep(self, request: Request, reply: Reply) -> None:
        """Note that a request was processed, and will get this reply when its time has come."""
        key = request.headers.get(self._header, b"")
        if key:
            self._kept[key] = (request.body, None)
            reply.due = lambda: self._kept.update({key: (request.body, reply)})


class Poisons:
    """Refuse a call that holds a row which this API will never take."""

    def __init__(self, script: Script, record: Record, before: Poisons | None) -> None:
        self._poison = script.poison
        self._wrapped = script.rows

    def __call__(self, request: Request) -> Reply | None:
        every = request.rows(self._wrapped)
        bad = next((each for row in every for each in self._poison if value(row, each.field) in each.values), None)
        return error(bad.status, f"a value of {bad.field} is refused") if bad else None
