"""The configuration as a tree of values that know where they stand."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Value = str | int | float | bool | None
Path = tuple[str, ...]


@dataclass(frozen=True)
class Scalar:
    """Hold one value; `text` is how it is written, `plain` says that it stands without quotes.

    A tainted scalar holds text from a variable or a file, which no message may show; a broken one stands for a value
    that could not be had, about which a problem exists already.
    """

    line: int
    column: int
    text: str = field(repr=False)
    value: Value = field(repr=False)
    plain: bool = False
    tainted: bool = False
    broken: bool = False


@dataclass(frozen=True)
class Items:
    """Hold a list."""

    line: int
    column: int
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Entry:
    """Hold one value of a mapping and the place of its key."""

    line: int
    column: int
    value: Node


@dataclass(frozen=True)
class Keys:
    """Hold a mapping. All keys are text, as written."""

    line: int
    column: int
    entries: dict[str, Entry]


Node = Scalar | Items | Keys


def children(node: Node) -> Iterator[tuple[str, Node]]:
    """Return the values directly inside a node, by key or index."""
    if isinstance(node, Keys):
        yield from ((key, entry.value) for key, entry in node.entries.items())
    elif isinstance(node, Items):
        yield from ((str(index), item) for index, item in enumerate(node.items))


def plain_data(node: Node, as_text: frozenset[int] = frozenset()) -> Any:
    """Return a tree as dicts, lists and scalars; scalars whose `id` is in `as_text` come as they are written."""
    if isinstance(node, Keys):
        return {key: plain_data(entry.value, as_text) for key, entry in node.entries.items()}
    if isinstance(node, Items):
        return [plain_data(item, as_text) for item in node.items]
    return node.text if id(node) in as_text else node.value


def _whole(text: str) -> int:
    """Return a whole number; one with a leading zero is decimal."""
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    base = {"0x": 16, "0o": 8}.get(digits[:2], 10)
    return sign * int(digits if base == 10 else digits[2:], base)


def _fraction(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


CORE: dict[str, tuple[str, Callable[[str], Value]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _whole),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        _fraction,
    ),
}
"""YAML 1.2's core schema: the type of a plain scalar, by a pattern of its whole text."""


def typed(text: str) -> Value:
    """Return what a plain scalar means."""
    for pattern, convert in CORE.values():
        if re.fullmatch(pattern, text):
            return converted(convert, text)
    return text


def converted(convert: Callable[[str], Value], text: str) -> Value:
    """Convert a text that has the pattern of a type."""
    try:
        return convert(text)
    except ValueError:  # Python refuses to convert numbers of thousands of digits
        return text


def printable(text: str) -> str:
    """Return text fit for one line of a terminal: whatever is not printable as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
