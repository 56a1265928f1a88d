"""Hold what passes between a connection and what answers it: a call with its rows, and the reply to it."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router_demo.api_server.script import How

JSON = ("Content-Type", "application/json")


@dataclass(slots=True)
class Call:
    """A request that was whole at `at`, a monotonic time in seconds.

    `path` is as it was on the wire, `headers` finds a name in either case, `number` is its place in the record.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    number: int = -1

    def header(self, name: str) -> str:
        """Return a header, or ""."""
        return self.headers.get(name, "")

    def rows(self, wrapped: str) -> list[Any]:
        """Return the rows of the body; `wrapped` names the list in a body that wraps them."""
        return rows(self.body, self.header("Content-Encoding"), wrapped)


@dataclass(slots=True)
class Reply:
    """How a call is answered: after `seconds`, in the way of `how` (see `script.Failure`).

    `due` is called when its time has come. One that `covers` is sent in place of the answer: the call is processed all
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


def error(status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """Return a plain error."""
    return Reply(status, json.dumps({"error": text}).encode(), [JSON, *headers])


def rows(body: bytes, encoding: str, name: str) -> list[Any]:
    """Return the rows of a body, none when it is not JSON; gzip or not.

    A body is an object, an array, an object that wraps a list of rows under `name`, or one object a line.
    """
    try:
        text = gzip.decompress(body) if encoding == "gzip" else body
    except (OSError, EOFError):
        return []
    try:
        content = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _lines(text)
    if isinstance(content, dict) and isinstance(content.get(name), list):
        content = content[name]
    return content if isinstance(content, list) else [content]


def value(row: Any, path: str) -> Any:
    """Return what is at a dotted path of a row; None when there is nothing."""
    for step in path.split("."):
        row = row.get(step) if isinstance(row, dict) else None
    return row


def _lines(text: bytes) -> list[Any]:
    try:
        return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    except msgspec.DecodeError:
        return []
