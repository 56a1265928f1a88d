"""What passes between a connection and what answers it: a request, a reply."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from router_demo.api_server.bodies import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router_demo.api_server.script import How

JSON = ("Content-Type", "application/json")
PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(slots=True)
class Request:
    """Be a request that was whole at `at`; header names are in lower case, `path` is as it was on the wire."""

    method: bytes
    path: bytes
    headers: dict[bytes, bytes]
    body: bytes
    at: float
    number: int = -1

    def header(self, name: str) -> str:
        """Return a header, or ""."""
        return self.headers.get(name.lower().encode(), b"").decode("latin-1")

    def rows(self, wrapped: str) -> list[Any]:
        """Return the rows of the body; `wrapped` names the list in a body that wraps them."""
        return rows(self.body, self.headers.get(b"content-encoding", b""), wrapped)


@dataclass(slots=True)
class Reply:
    """Say how a request is answered: after `seconds`, in the way of `how` (see `script.Failure`).

    `due` is called when its time has come. One that `covers` is sent in place of the answer: the request is taken all
    the same.
    """

    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    how: How = "answer"
    size: int = 0
    due: Callable[[], None] | None = None
    covers: bool = False

    def head(self, length: str) -> bytes:
        """Return the bytes before the body; `length` is the header that tells where the body ends."""
        lines = [f"HTTP/1.1 {self.status} {PHRASES.get(self.status, 'Unknown')}"]
        lines += [f"{name}: {text}" for name, text in self.headers]
        return "\r\n".join([*lines, length, "\r\n"]).encode("latin-1")

    def whole(self, *, close: bool) -> bytes:
        """Return all bytes of a plain answer."""
        end = "\r\nConnection: close" if close else ""
        return self.head(f"Content-Length: {len(self.body)}{end}") + self.body


def error(status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """Return a plain error."""
    return Reply(status, json.dumps({"error": text}).encode(), [JSON, *headers])
