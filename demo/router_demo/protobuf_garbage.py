"""Make the records that a topic of framed Protobuf holds and nobody admits to have sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from router_demo.framed_garbage import FRAMED_GARBAGE
from router_demo.garbage import BAD_NAMES
from router_schemas.wire_format import prefix

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Maker = Callable[[bytes, Random, Any], bytes]

FRAME = len(prefix(0, (0,)))


def _truncated(event: bytes, random: Random, message: Any) -> bytes:
    """Cut the event short, not between two fields: what is left there is a message."""
    while True:
        cut = event[: random.randrange(1, len(event))]
        if len(cut) < FRAME or not _is_message(cut[FRAME:], message):
            return cut


def _random_payload(event: bytes, random: Random, message: Any) -> bytes:
    """Put random bytes into a good frame; some are a message, of fields nobody knows, and are not taken."""
    while True:
        payload = random.randbytes(random.randrange(1, 2 * len(event)))
        if not _is_message(payload, message):
            return event[:FRAME] + payload


def _json_text(event: bytes, random: Random, message: Any) -> bytes:
    """Write the event as a producer does that was never told of the registry."""
    text: str = MessageToJson(message.FromString(event[FRAME:]), preserving_proto_field_name=True, indent=None)
    return text.encode()


def _no_game(event: bytes, random: Random, message: Any) -> bytes:
    changed = message.FromString(event[FRAME:])
    changed.ClearField("game")
    return event[:FRAME] + bytes(changed.SerializeToString())


def _named(*names: str) -> Maker:
    """Replace the game by a name that no table may get; the event stays a valid message."""

    def rename(event: bytes, random: Random, message: Any) -> bytes:
        changed = message.FromString(event[FRAME:])
        changed.game = random.choice(names)
        return event[:FRAME] + bytes(changed.SerializeToString())

    return rename


_MAKERS: dict[str, Maker] = {
    "truncated": _truncated,
    "random_payload": _random_payload,
    "json_text": _json_text,
    "no_game": _no_game,
} | {kind: _named(*names) for kind, names in BAD_NAMES.items()}
PROTOBUF_GARBAGE = (*_MAKERS, *FRAMED_GARBAGE)
"""The kinds of garbage."""


def spoil(event: bytes, random: Random, message: Any) -> tuple[str, bytes | None]:
    """Turn a good event, framed, into garbage; return its kind and the value. `message` is the class of the event."""
    kind = random.choice(PROTOBUF_GARBAGE)
    if kind in FRAMED_GARBAGE:
        return kind, FRAMED_GARBAGE[kind](event, random)
    return kind, _MAKERS[kind](event, random, message)


def _is_message(payload: bytes, message: Any) -> bool:
    try:
        message.FromString(payload)
    except DecodeError:
        return False
    return True
