"""Make garbage, as every real topic holds some: what all formats share, and all that a registry frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Maker = Callable[[bytes, Random], bytes | None]

NO_SCHEMA = 2**31 - 1
"""An id that no registry has given: the largest there is."""
BAD_NAMES = {
    "path_name": ("../../x", "..", "/etc/passwd", "a/b", "a\\b", "C:\\x", "x\u0000y"),
    "emoji_name": ("🃏", "poker🂡"),
    "long_name": ("x" * 300,),
    "reserved_name": ("con", "nul", "_delta_log"),
}
"""Names of games that no table may get."""


def stage_of(kind: str) -> str:
    """Return the stage at which the router must refuse garbage of a kind, whatever the format."""
    return "name" if kind in BAD_NAMES else "match" if kind == "no_game" else "decode"


def random_bytes(event: bytes, random: Random) -> bytes:
    """Begin with a byte that no UTF-8 text contains and no frame begins with, so that chance cannot write either."""
    return b"\xff" + random.randbytes(random.randrange(1, 2 * len(event)))


def empty(event: bytes, random: Random) -> bytes:
    """Return a value of no bytes."""
    return b""


def null(event: bytes, random: Random) -> None:
    """Return a tombstone."""
    return None


def _unknown_id(event: bytes, random: Random) -> bytes:
    return event[:1] + NO_SCHEMA.to_bytes(4, "big") + event[5:]


def _wrong_magic(event: bytes, random: Random) -> bytes:
    return bytes([random.randrange(1, 256)]) + event[1:]


FRAMED_GARBAGE: dict[str, Maker] = {
    "unknown_id": _unknown_id,
    "wrong_magic": _wrong_magic,
    "random_bytes": random_bytes,
    "empty": empty,
    "null": null,
}
"""A maker of each kind in the frame of a schema registry: from a good event to the value sent in its place."""
