"""Make the records a real topic holds and nobody admits to have sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def _broken_json(event: bytes, random: Random) -> bytes:
    """Cut the event short: without its last brace it is never valid."""
    return event[: random.randrange(1, len(event))]


def _random_bytes(event: bytes, random: Random) -> bytes:
    """Begin with a byte that no UTF-8 text contains, so that chance cannot write JSON."""
    return b"\xff" + random.randbytes(random.randrange(1, 2 * len(event)))


def _empty(event: bytes, random: Random) -> bytes:
    return b""


def _null(event: bytes, random: Random) -> None:
    return None


def _no_game(event: bytes, random: Random) -> bytes:
    fields = json.loads(event)
    del fields["game"]
    return json.dumps(fields, separators=(",", ":")).encode()


def _named(*names: str) -> Callable[[bytes, Random], bytes]:
    """Replace the game by a name that no table may get; the event stays valid JSON."""

    def rename(event: bytes, random: Random) -> bytes:
        fields = json.loads(event) | {"game": random.choice(names)}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()

    return rename


BAD_NAMES = {
    "path_name": ("../../x", "..", "/etc/passwd", "a/b", "a\\b", "C:\\x", "x\u0000y"),
    "emoji_name": ("🃏", "poker🂡"),
    "long_name": ("x" * 300,),
    "reserved_name": ("con", "nul", "_delta_log"),
}
"""Names of games that no table may get."""

GARBAGE: dict[str, Callable[[bytes, Random], bytes | None]] = {
    "broken_json": _broken_json,
    "random_bytes": _random_bytes,
    "empty": _empty,
    "null": _null,
    "no_game": _no_game,
} | {kind: _named(*names) for kind, names in BAD_NAMES.items()}
"""A maker of each kind of garbage: from a good event to the value sent in its place (None is a tombstone)."""


def stage_of(kind: str) -> str:
    """Return the stage at which the router must refuse garbage of a kind, whatever the format."""
    return "name" if kind in BAD_NAMES else "match" if kind == "no_game" else "decode"


def spoil(event: bytes, random: Random) -> tuple[str, bytes | None]:
    """Turn a good event into garbage; return its kind and the value."""
    kind = random.choice(list(GARBAGE))
    return kind, GARBAGE[kind](event, random)
