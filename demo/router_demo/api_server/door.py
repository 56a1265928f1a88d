"""Take a request in: note it, let the checks of the script look at it, process what passes them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from router_demo.api_server.checks import Failures, Keys, Largest, Limits, Poisons, Wants
from router_demo.api_server.page import page
from router_demo.api_server.processing import ItemByItem, Whole
from router_demo.api_server.record import UNANSWERED, Record
from router_demo.api_server.script import Script
from router_demo.api_server.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_demo.api_server.messages import Reply, Request

CHECKS: dict[str, Callable[..., Callable[[Request], Reply | None]]] = {
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


class Door:
    """Answer the API's requests as the script says, and keep the record of them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all that came, and all that was told."""
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
        self._key_header = script.idempotency.lower().encode() or b"idempotency-key"
        return now

    def take(self, request: Request) -> Reply:
        """Return the reply to a request, which is noted, but for one that asks for a token or looks at the page."""
        if request.path == b"/" and request.method == b"GET":
            return page(request, self.script, self.record)
        if self._tokens is not None and (given := self._tokens.give(request)) is not None:
            return given
        record, headers = self.record, request.headers
        key, encoding = headers.get(self._key_header, b""), headers.get(b"content-encoding", b"")
        request.number = record.arrive(request.at, request.method, request.path, key, request.body, encoding)
        if self.script.show_headers:
            record.headers[request.number] = {a.decode("latin-1"): b.decode("latin-1") for a, b in headers.items()}
        reply = self._decide(request)
        record.statuses[request.number] = reply.status if reply.how in ANSWERED else UNANSWERED
        if self._limits is not None:
            reply.headers.extend(self._limits.headers(request.at))
        reply.headers.extend(self.script.headers.items())
        return reply

    def _decide(self, request: Request) -> Reply:
        cover: Reply | None = None
        for check in self._checks.values():
            reply: Reply | None = check(request)
            if reply is None:
                continue
            if not reply.covers:
                return cover or reply
            cover = reply
        return self._taken(request, cover)

    def _taken(self, request: Request, cover: Reply | None) -> Reply:
        """Return the answer to a request that is processed, or what its sender sees in place of it."""
        reply = self._process(request)
        reply.seconds = self.script.latency
        if self._keys is not None:
            self._keys.keep(request, reply)
        if cover is not None:
            cover.due = reply.due
        return cover or reply
