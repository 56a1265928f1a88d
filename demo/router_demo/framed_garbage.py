"""Make garbage of framed values, whatever is in the frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

NO_SCHEMA = 2**31 - 1
"""An id that no registry has given: the largest there is."""


def _unknown_id(event: bytes, random: Random) -> bytes:
    return event[:1] + NO_SCHEMA.to_bytes(4, "big") + event[5:]


def _wrong_magic(event: bytes, random: Random) -> bytes:
    return bytes([random.randrange(1, 256)]) + event[1:]


def _random_bytes(event: bytes, random: Random) -> bytes:
    """Begin as no frame does, so that chance cannot write one."""
    return b"\xff" + random.randbytes(random.randrange(1, 2 * len(event)))


def _empty(event: bytes, random: Random) -> bytes:
    return b""


def _null(event: bytes, random: Random) -> None:
    return None


FRAMED_GARBAGE: dict[str, Callable[[bytes, Random], bytes | None]] = {
    "unknown_id": _unknown_id,
    "wrong_magic": _wrong_magic,
    "random_bytes": _random_bytes,
    "empty": _empty,
    "null": _null,
}
"""A maker of each kind: from a good event to the value sent in its place (None is a tombstone)."""
