"""Render events as Protobuf in the frame of a schema registry."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]

from router_demo.games import game_names, gamer_names
from router_demo.protobuf_garbage import spoil
from router_demo.protobuf_schema import as_message, message_class, schema_text
from router_demo.values import draw_amounts, draw_ends
from router_schemas.wire_format import prefix

if TYPE_CHECKING:
    from random import Random

    from router_demo.games import Fields
    from router_demo.subject import Subject
    from router_demo.traffic import Traffic
    from router_demo.values import Drawn

    Texts = list[bytes]

_VARINT, _EIGHT_BYTES, _LENGTH = 0, 1, 2
_NANOS = 1_000_000
"""Nanoseconds of a millisecond."""


class ProtobufValues:
    """Put events together from bytes rendered before; a version is registered when its first events are rendered.

    A message is the concatenation of its fields, so that google's runtime is needed for the ends of events only: a
    message made by it for every event would take ten times as long. The fields are in the order of their numbers, as
    the runtime writes them.
    """

    def __init__(self, subject: Subject, traffic: Traffic) -> None:
        self._traffic = traffic
        self._subject = subject
        self._names = [_text(1, name.encode()) for name in game_names(traffic.games)]
        self._gamers = [name.encode() for name in gamer_names(traffic.gamers)]
        self._gamer_ids = [_text(2, name) for name in self._gamers]
        self._amounts = [_key(5, _EIGHT_BYTES) + struct.pack("<d", float(text)) for text in draw_amounts(traffic)]
        self._nanos = [_number(2, rest * _NANOS) for rest in range(1000)]
        self._message: Any = None
        self._rendered: tuple[int, Texts, list[Texts]] = (-1, [], [])

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""
        begins, ends = self._begun(drawn.version)
        ids, gamers, amounts, session = self._gamer_ids, self._gamers, self._amounts, self._session(drawn.session)
        columns = (drawn.games, drawn.gamers, drawn.amounts, drawn.ends, self._times(drawn))
        return [
            b"".join(
                (begins[game], ids[who], time, session, gamers[who], amounts[much], ends[game % len(ends)][end]),
            )
            for game, who, much, end, time in zip(*columns, strict=True)
        ]

    def spoil(self, event: bytes, random: Random) -> tuple[str, bytes | None]:
        """Turn a good event into garbage; return its kind and the value."""
        return spoil(event, random, self._message)

    def _begun(self, version: int) -> tuple[Texts, list[Texts]]:
        """Return beginnings by game and ends by kind of game of a version; only the newest version is held."""
        if self._rendered[0] != version:
            frame = prefix(self._subject.register("PROTOBUF", schema_text(version)), (0,))
            self._message = message_class(version)
            ends = draw_ends(self._traffic, version, self._tail)
            self._rendered = (version, [frame + name for name in self._names], ends)
        return self._rendered[1:]

    def _tail(self, kind: int, fields: Fields) -> bytes:
        message = ParseDict(as_message(kind, fields), self._message())
        return bytes(message.SerializeToString(deterministic=True))

    def _session(self, number: int) -> bytes:
        """Return the session's field up to the gamer, whose names are all of one length."""
        gamer = self._gamers[0]
        return _text(4, b"s%04d-" % number + gamer).removesuffix(gamer)

    def _times(self, drawn: Drawn) -> Texts:
        stamps = [divmod(time, 1000) for time in drawn.times.astype("int64").tolist()]
        seconds = {second: _number(1, second) for second in {second for second, _ in stamps}}
        nanos = self._nanos
        return [_text(3, seconds[second] + nanos[rest]) for second, rest in stamps]


def _text(number: int, content: bytes) -> bytes:
    """Encode a field that has a length: a string or a message."""
    return _key(number, _LENGTH) + _varint(len(content)) + content


def _number(number: int, content: int) -> bytes:
    """Encode a whole number that is zero where it is absent, and so is not written."""
    return _key(number, _VARINT) + _varint(content) if content else b""


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    """Encode a whole number, negative ones in ten bytes: protobuf.dev, "Encoding"."""
    left = number % 2**64
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
