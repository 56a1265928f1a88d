"""Answer a call: note it in the record, let the checks of the script look at it, process what passes them."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any

from router_demo.api_server.calls import JSON, UNANSWERED, Record, Reply, value
from router_demo.api_server.checks import Failures, Keys, Largest, Limits, Poisons, Tokens, Wants
from router_demo.api_server.page import page
from router_demo.api_server.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_demo.api_server.calls import Call
    from router_demo.api_server.script import Items

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
        """Put a script in the place of the last one; return the time.

        A check whose field did not change goes on where it was; limits and keys keep what was used up.
        """
        now, before = time.monotonic(), self.script
        if script.limits != before.limits:
            self.record.limit(now, script.limits)
        known, self._checks, self.script = self._checks, {}, script
        for name, make in CHECKS.items():
            asked = getattr(script, name)
            if name == "poison" and script.items is not None:
                continue  # a row that is poison is refused alone
            if asked is not None and asked not in ((), {}, ""):
                same = name in known and asked == getattr(before, name)
                self._checks[name] = known[name] if same else make(script, self.record, known.get(name))
        self._limits: Limits | None = self._checks.get("limits")
        self._keys: Keys | None = self._checks.get("idempotency")
        self._tokens: Tokens | None = self._checks.get("token")
        items = script.items
        self._process = Whole(script, self.record) if items is None else ItemByItem(script, self.record, items)
        self._key_header = script.idempotency or "Idempotency-Key"
        return now

    def reply(self, call: Call) -> Reply:
        """Return the reply to a call, which is noted, but for one that asks for a token or looks at the page."""
        if call.path == "/" and call.method == "GET":
            return page(call.header("Accept"), self.script, self.record)
        if self._tokens is not None and (given := self._tokens.give(call)) is not None:
            return given
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
        cover: Reply | None = None
        for check in self._checks.values():
            reply: Reply | None = check(call)
            if reply is None:
                continue
            if not reply.covers:
                return cover or reply
            cover = reply
        return self._processed(call, cover)

    def _processed(self, call: Call, cover: Reply | None) -> Reply:
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
        return Reply(200, call.body if self._echo else b'{"call": %d}' % call.number, [JSON])


class ItemByItem:
    """Processing of a call row by row: those that can be processed take effect, and each gets its own answer."""

    def __init__(self, script: Script, record: Record, items: Items) -> None:
        self._items = items
        self._poison = script.poison
        self._wrapped = script.rows
        self._record = record
        self._dice = random.Random(script.seed)

    def __call__(self, call: Call) -> Reply:
        every = call.rows(self._wrapped)
        statuses = [self._status(row) for row in every]
        taken = tuple(index for index, status in enumerate(statuses) if status < 300)
        self._record.process(call.number, taken)
        results = [self._result(row, status) for row, status in zip(every, statuses, strict=True)]
        if self._items.shuffled:
            self._dice.shuffle(results)
        return Reply(self._items.status, json.dumps({"items": results}).encode(), [JSON])

    def _status(self, row: Any) -> int:
        bad = next((poison for poison in self._poison if value(row, poison.field) in poison.values), None)
        if bad is not None:
            return bad.status
        return 429 if self._items.busy and self._dice.random() < self._items.busy else 201

    def _result(self, row: Any, status: int) -> dict[str, Any]:
        result: dict[str, Any] = {"id": value(row, self._items.id)} if self._items.id else {}
        result["status"] = status
        return result if status < 300 else {**result, "error": "busy" if status == 429 else "refused"}
