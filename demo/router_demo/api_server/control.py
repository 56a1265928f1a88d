"""Answer on the control port, which no fault touches: play a script, tell the figures, forget."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError

from router_demo.api_server.messages import JSON, Reply, Request, error
from router_demo.api_server.page import page
from router_demo.api_server.record import Record
from router_demo.api_server.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_demo.api_server.server import Server

PREFIX = "/_control/"


class Control:
    """Serve `script` (GET, PUT), `reset` (POST), and by GET `stats`, `rows`, `requests`, and at `/` a page."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.script = Script()
        self.record = Record()
        """Of the connections to the control port: nobody asks for it."""

    def take(self, request: Request) -> Reply:
        """Return the answer to a request."""
        address = urlsplit(request.path.decode("latin-1"))
        if request.method == b"GET" and address.path == "/":
            return page(request, self._server.door.script, self._server.door.record)
        asked = (request.method.decode(), address.path.removeprefix(PREFIX))
        query = parse_qs(address.query)
        answers: dict[tuple[str, str], Callable[[], Any]] = {
            ("PUT", "script"): lambda: self._play(request.body),
            ("GET", "script"): self._server.door.script.model_dump,
            ("POST", "reset"): self._reset,
            ("GET", "stats"): lambda: self._stats(query),
            ("GET", "rows"): lambda: self._rows(query),
            ("GET", "requests"): lambda: self._server.door.record.calls(int(query.get("last", ["100"])[0])),
        }
        if asked not in answers:
            return error(404, f"there are {', '.join(f'{method} {PREFIX}{name}' for method, name in answers)}")
        try:
            return Reply(200, json.dumps(answers[asked]()).encode(), [JSON])
        except ValidationError as wrong:
            return error(400, str(wrong))

    def _play(self, body: bytes) -> dict[str, float]:
        return {"at": self._server.play(Script.model_validate_json(body))}

    def _reset(self) -> dict[str, float]:
        self._server.reset()
        return {"at": time.monotonic()}

    def _stats(self, query: dict[str, list[str]]) -> dict[str, Any]:
        door = self._server.door
        return door.record.stats(*_span(query), _number(query, "window", 1.0), door.script.rows)

    def _rows(self, query: dict[str, list[str]]) -> list[tuple[list[Any], int]]:
        door = self._server.door
        counts = door.record.counts(query.get("id", ["id"]), door.script.rows, *_span(query))
        return [(list(row), times) for row, times in counts.items()]


def _span(query: dict[str, list[str]]) -> tuple[float, float]:
    return _number(query, "since", -math.inf), _number(query, "until", math.inf)


def _number(query: dict[str, list[str]], name: str, otherwise: float) -> float:
    return float(query[name][0]) if name in query else otherwise
