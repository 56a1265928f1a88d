"""Render events as Avro in the frame of a schema registry."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from router_demo.avro_schema import event_schema, schema_text
from router_demo.framed_garbage import FRAMED_GARBAGE
from router_demo.games import GAMES, game_names, gamer_names
from router_demo.garbage import BAD_NAMES
from router_demo.values import draw_amounts, draw_ends
from router_schemas.wire_format import prefix

if TYPE_CHECKING:
    from random import Random

    from router_demo.games import Fields
    from router_demo.subject import Subject
    from router_demo.traffic import Traffic
    from router_demo.values import Drawn

    Texts = list[bytes]

AVRO_GARBAGE = ("truncated", "random_payload", "json_text", *FRAMED_GARBAGE, "no_game", *BAD_NAMES)
_FRAME = 5
_NO_BRANCH = b"\x7f"
"""A branch of a union, -64, that there never is."""
_FIELDS_OF_THE_HEAD = 5


class AvroValues:
    """Put events together from bytes rendered before; a version is registered when its first events are rendered.

    A record is the concatenation of its fields, each here a union of null and one type.
    """

    def __init__(self, subject: Subject, traffic: Traffic) -> None:
        self._traffic = traffic
        self._subject = subject
        self._names = [_encoded(["null", "string"], name) for name in game_names(traffic.games)]
        self._gamers = [name.encode() for name in gamer_names(traffic.gamers)]
        self._gamer_ids = [_encoded(["null", "string"], name.decode()) for name in self._gamers]
        self._amounts = [_encoded(["null", "double"], float(text)) for text in draw_amounts(traffic)]
        self._rendered: tuple[int, Texts, list[Texts]] = (-1, [], [])

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""
        begins, ends = self._begun(drawn.version)
        ids, gamers, amounts, session = self._gamer_ids, self._gamers, self._amounts, self._session(drawn.session)
        times = [_encoded(["null", "long"], time) for time in drawn.times.astype("int64").tolist()]
        columns = (drawn.games, drawn.gamers, drawn.amounts, drawn.ends, times)
        return [
            b"".join((begins[game], ids[who], time, session, gamers[who], amounts[much], ends[game % len(ends)][end]))
            for game, who, much, end, time in zip(*columns, strict=True)
        ]

    def spoil(self, event: bytes, random: Random) -> tuple[str, bytes | None]:
        """Turn a good event into garbage; return its kind and the value."""
        kind = random.choice(AVRO_GARBAGE)
        if kind in FRAMED_GARBAGE:
            return kind, FRAMED_GARBAGE[kind](event, random)
        if kind == "truncated":  # an end is needed to the last byte, wherever it is cut
            return kind, event[: random.randrange(1, len(event))]
        frame, game, rest = _apart(event)
        if kind == "random_payload":
            return kind, frame + _NO_BRANCH + random.randbytes(random.randrange(1, 2 * len(event)))
        if kind == "json_text":
            return kind, json.dumps({"game": game}).encode()
        name = None if kind == "no_game" else random.choice(BAD_NAMES[kind])
        return kind, frame + _encoded(["null", "string"], name) + rest

    def _begun(self, version: int) -> tuple[Texts, list[Texts]]:
        """Return beginnings by game and ends by kind of game of a version; only the newest version is held."""
        if self._rendered[0] != version:
            frame = prefix(self._subject.register("AVRO", schema_text(version)))
            members = event_schema(version)["fields"][_FIELDS_OF_THE_HEAD:]

            def tail(kind: int, fields: Fields) -> bytes:
                own = {name: value for name, value in fields.items() if name != "type" and "col_foo" not in name}
                event = fields | {GAMES[kind]: own}
                return b"".join(_encoded(member["type"], event.get(member["name"])) for member in members)

            self._rendered = (version, [frame + name for name in self._names], draw_ends(self._traffic, version, tail))
        return self._rendered[1:]

    def _session(self, number: int) -> bytes:
        """Return the session's field up to the gamer, whose names are all of one length."""
        gamer = self._gamers[0]
        return _encoded(["null", "string"], f"s{number:04d}-{gamer.decode()}").removesuffix(gamer)


def _apart(event: bytes) -> tuple[bytes, str, bytes]:
    """Return the frame of an event, its game and the rest; no game's name has 64 bytes."""
    begin = _FRAME + 2
    end = begin + (event[begin - 1] >> 1)
    return event[:_FRAME], event[begin:end].decode(), event[end:]


def _encoded(schema: Any, value: Any) -> bytes:
    """Encode a value: Avro's specification, "Binary Encoding"."""
    if isinstance(schema, list):  # null and one type
        return _long(0) if value is None else _long(1) + _encoded(schema[1], value)
    form = schema["type"] if isinstance(schema, dict) else schema
    if form == "record":
        return b"".join(_encoded(field["type"], value[field["name"]]) for field in schema["fields"])
    if form == "array":
        items = b"".join(_encoded(schema["items"], item) for item in value)
        return _long(len(value)) + items + _long(0) if value else _long(0)
    return _primitive(form, value)


def _primitive(form: str, value: Any) -> bytes:
    if form == "string":
        text = value.encode()
        return _long(len(text)) + bytes(text)
    if form == "double":
        return struct.pack("<d", value)
    return bytes([value]) if form == "boolean" else _long(value)


def _long(number: int) -> bytes:
    """Encode a whole number, seven bits a byte, the sign in the lowest."""
    left = number << 1 if number >= 0 else ~(number << 1)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
