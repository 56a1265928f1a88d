"""The events of a benchmark topic: one module per kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Feed:
    """A kind of event.

    `values(events, games, seed)` yields each value with the name of its table; `schema` is the DDL of the decoded
    event; `decode()` returns the router's configuration under `decode:`, called when a topic has its events, so
    that a feed may start a registry first; `key` makes the key of a record from its value.
    """

    name: str
    schema: str
    values: Callable[[int, int, int], Iterator[tuple[bytes, str]]]
    decode: Callable[[], dict[str, Any]]
    key: Callable[[bytes], bytes] | None = None
