"""Read the rows out of a request's body: an object, an array, rows under a name, or one object a line; gzip or not."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec


def rows(body: bytes, encoding: bytes, name: str) -> list[Any]:
    """Return the rows of a body, none when it is not JSON; `name` is that of the list in a body that wraps them."""
    try:
        text = gzip.decompress(body) if encoding == b"gzip" else body
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
