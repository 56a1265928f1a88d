"""Lay a message out as columns: a tree, cut off where a table cannot follow.

Every path of fields is a column of its own, so a message that contains itself has no end: the field by which a path
comes back to a message that it went through holds the raw bytes, as does everything below `DEEPEST` messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router_schemas.protobuf.shape import SPECIAL, column_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_schemas.protobuf.shape import Shape

DEEPEST = 16
"""Messages within messages; Arrow's own format ends at 64 levels, and a map of messages takes three."""
MOST = 10_000
"""Columns that a message may have in all."""


@dataclass(frozen=True)
class Column:
    """Be one column.

    `kind` is a scalar as .proto files name it, or enum, timestamp, duration, json, struct, empty (a message without
    fields) or raw (the bytes of a message). `of` is the full name of a special message or enum, `key` the kind of a
    map's keys, `columns` those of a struct, `values` the (name, number) pairs of an enum.
    """

    name: str
    number: int
    kind: str
    of: str = ""
    key: str = ""
    repeated: bool = False
    presence: bool = False
    columns: tuple[Column, ...] = ()
    values: tuple[tuple[str, int], ...] = ()


def columns_of(shape: Shape) -> tuple[Column, ...]:
    """Return the columns of a message; raise ValueError where it has none or more than `MOST`."""
    if not shape.messages[shape.root]:
        raise ValueError(f"{shape.root}: the message has no fields, so there is nothing to decode")
    return tuple(_Layout(shape).columns(shape.root, ()))


class _Layout:
    """Lay out one message, counting its columns."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.count = 0

    def columns(self, message: str, above: tuple[str, ...]) -> Iterator[Column]:
        """Yield the columns of a message below the messages `above`."""
        fields = self.shape.messages[message]
        for one, name in zip(fields, column_names(fields), strict=True):
            self.count += 1
            if self.count > MOST:
                raise ValueError(f"{self.shape.root}: more than {MOST} columns, nested ones counted")
            kind = self.kind(one.kind, one.of, (*above, message))
            yield Column(
                name=name,
                number=one.number,
                kind=kind,
                of=one.of,
                key=one.key,
                repeated=one.repeated,
                presence=one.presence,
                columns=tuple(self.columns(one.of, (*above, message))) if kind == "struct" else (),
                values=self.shape.enums.get(one.of, ()),
            )

    def kind(self, kind: str, of: str, above: tuple[str, ...]) -> str:
        """Return what a column is."""
        if kind != "message":
            return kind
        if of not in self.shape.messages:
            return SPECIAL[of]
        if of in above or len(above) >= DEEPEST:
            return "raw"
        return "struct" if self.shape.messages[of] else "empty"
