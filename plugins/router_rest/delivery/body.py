"""Join the encoded rows of a call to its body. Runs on executors."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

BodyForm = Literal["object", "array", "ndjson"]

ROWS = "$rows"
"""What stands for the array of rows in what is wrapped around it."""
MEDIA_TYPES = {"object": "application/json", "array": "application/json", "ndjson": "application/x-ndjson"}


@dataclass(frozen=True)
class Body:
    """The way rows become one body; travels to tasks.

    `several`: more than one row can be in it. The same rows make the same bytes, always.
    """

    content_type: str
    before: bytes = b""
    between: bytes = b""
    after: bytes = b""
    several: bool = False
    compressed: bool = False

    def join(self, rows: Sequence[bytes]) -> bytes:
        """Return the body of a call, not yet compressed: keys of calls are made of these bytes."""
        if not rows or (len(rows) > 1 and not self.several):
            raise ValueError(f"a body of {len(rows)} rows")
        return b"".join((self.before, self.between.join(rows), self.after))

    def frame(self, rows: int) -> int:
        """Return the bytes that a body of so many rows has beside them."""
        return len(self.before) + len(self.between) * (rows - 1) + len(self.after)

    def fault(self, row: bytes) -> str | None:
        """Say why a row can be in no body; it would break the others."""
        if self.several and not row:
            return "its value is empty"
        if self.between == b"\n" and (b"\n" in row or b"\r" in row):
            return "its value has a line break, and each line is a row"
        return None

    def packed(self, body: bytes) -> bytes:
        """Return a body as it is sent."""
        return gzip.compress(body, mtime=0) if self.compressed else body

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that say what a body is."""
        said = {"Content-Type": self.content_type}
        return {**said, "Content-Encoding": "gzip"} if self.compressed else said


def body_of(form: BodyForm, content_type: str, *, wrap: Any = None, compressed: bool = False) -> Body:
    """Return how bodies of a form are made; `wrap` is JSON with ROWS once in it, as `check_wrap` allows."""
    if form == "ndjson":
        return Body(content_type, b"", b"\n", b"\n", several=True, compressed=compressed)
    if form == "array":
        before, after = _around(wrap)
        return Body(content_type, before, b",", after, several=True, compressed=compressed)
    return Body(content_type, compressed=compressed)


def check_wrap(wrap: Any) -> None:
    """Raise ValueError where the place of the rows is not said once."""
    if (found := _places(wrap)) != 1:
        raise ValueError(f"the text {ROWS} stands once for the array of rows, and is here {found} times")


def _places(node: Any) -> int:
    if isinstance(node, (dict, list)):
        return sum(map(_places, node.values() if isinstance(node, dict) else node))
    return int(node == ROWS)


def _around(wrap: Any) -> tuple[bytes, bytes]:
    """Return what stands before and after the rows."""
    if wrap is None:
        return b"[", b"]"
    mark = ROWS
    while mark in json.dumps(wrap):  # a key, or a part of another text, may say the same
        mark += "$"
    before, after = json.dumps(_marked(wrap, mark), separators=(",", ":")).split(json.dumps(mark))
    return f"{before}[".encode(), f"]{after}".encode()


def _marked(node: Any, mark: str) -> Any:
    if isinstance(node, dict):
        return {name: _marked(value, mark) for name, value in node.items()}
    if isinstance(node, list):
        return [_marked(value, mark) for value in node]
    return mark if node == ROWS else node
