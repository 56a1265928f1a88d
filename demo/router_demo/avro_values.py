"""Render events as Avro in the wire format of a schema registry, with the schema of each version."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from router_demo.games import GAMES, game_names, gamer_names
from router_demo.traffic import BAD_NAMES, FRAMED_GARBAGE, concatenate_fields, draw_amounts, draw_ends
from router_schemas.byte_columns import encode_varint
from router_schemas.wire_format import payload_prefix

if TYPE_CHECKING:
    from random import Random

    from router_demo.games import Fields
    from router_demo.registry import Subject
    from router_demo.traffic import Drawn, Traffic

    Texts = list[bytes]

AVRO_GARBAGE = ("truncated", "random_payload", "json_text", *FRAMED_GARBAGE, "no_game", *BAD_NAMES)
_FRAME = 5
_NO_BRANCH = b"\x7f"
"""A branch of a union, -64, that there never is."""
_FIELDS_OF_THE_HEAD = 5
_COLUMNS = ("double", "long", "string")
_CARDS = {"type": "array", "items": "string"}


def _record(name: str, **fields: Any) -> dict[str, Any]:
    members = [{"name": field, "type": form} for field, form in fields.items()]
    return {"type": "record", "name": name, "fields": members}


_DETAILS: dict[str, dict[str, Any]] = {
    "rummy": _record(
        "Rummy", melds={"type": "array", "items": _CARDS}, hand=_record("Hand", size="int", deadwood="int")
    ),
    "spades": _record("Spades", bid="int", tricks="int", bags=_record("Bags", ours="int", theirs="int")),
    "euchre": _record("Euchre", trump="string", alone="boolean", score={"type": "array", "items": "int"}),
    "go_fish": _record("GoFish", asked="string", got="int", books=_CARDS),
    "uno": _record(
        "Uno",
        color="string",
        card="string",
        players={"type": "array", "items": _record("Player", seat="int", cards="int")},
    ),
    "hearts": _record("Hearts", passed=_CARDS, points="int", moon="boolean"),
    "poker": _record("Poker", pot="double", board=_CARDS, blinds=_record("Blinds", small="int", big="int")),
}
_HEAD: dict[str, Any] = {
    "game": "string",
    "gamer_id": "string",
    "ts": {"type": "long", "logicalType": "timestamp-millis"},
    "session_id": "string",
    "amount": "double",
    "type": "string",
}


def event_schema(version: int) -> dict[str, Any]:
    """Return the schema of a version, which has the fields col_foo_1 to col_foo_{version}; each may be null."""
    further = {f"col_foo_{number}": _COLUMNS[number % len(_COLUMNS)] for number in range(1, version + 1)}
    fields = _HEAD | {game: _DETAILS[game] for game in GAMES} | further
    members = [{"name": name, "type": ["null", form], "default": None} for name, form in fields.items()]
    return {"type": "record", "name": "Event", "namespace": "games", "fields": members}


def schema_text(version: int) -> str:
    """Return the schema of a version as it is registered."""
    return json.dumps(event_schema(version))


class AvroValues:
    """Events as Avro, put together from bytes rendered before.

    A version is registered when its first events are rendered. A record is the concatenation of its fields, each here
    a union of null and one type.
    """

    def __init__(self, subject: Subject, traffic: Traffic) -> None:
        self._traffic = traffic
        self._subject = subject
        self._names = [_encode(["null", "string"], name) for name in game_names(traffic.games)]
        self._gamers = [name.encode() for name in gamer_names(traffic.gamers)]
        self._gamer_ids = [_encode(["null", "string"], name.decode()) for name in self._gamers]
        self._amounts = [_encode(["null", "double"], float(text)) for text in draw_amounts(traffic)]
        self._version = -1
        self._begins: Texts = []
        """By game, of the version."""
        self._ends: list[Texts] = []
        """By kind of game, of the version."""

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""
        self._prepare(drawn.version)
        times = [_encode(["null", "long"], time) for time in drawn.times.astype("int64").tolist()]
        return concatenate_fields(
            drawn,
            begins=self._begins,
            gamer_ids=self._gamer_ids,
            times=times,
            session=self._session(drawn.session),
            gamers=self._gamers,
            amounts=self._amounts,
            ends=self._ends,
        )

    def spoil(self, event: bytes, random: Random) -> tuple[str, bytes | None]:
        """Turn a good event into garbage; return its kind and the value."""
        kind = random.choice(AVRO_GARBAGE)
        if kind in FRAMED_GARBAGE:
            return kind, FRAMED_GARBAGE[kind](event, random)
        if kind == "truncated":  # an end is needed to the last byte, wherever it is cut
            return kind, event[: random.randrange(1, len(event))]
        start, game, rest = _split_event(event)
        if kind == "random_payload":
            return kind, start + _NO_BRANCH + random.randbytes(random.randrange(1, 2 * len(event)))
        if kind == "json_text":
            return kind, json.dumps({"game": game}).encode()
        name = None if kind == "no_game" else random.choice(BAD_NAMES[kind])
        return kind, start + _encode(["null", "string"], name) + rest

    def _prepare(self, version: int) -> None:
        """Register a version, and render how its events begin and end; only the newest version is held."""
        if version == self._version:
            return
        start = payload_prefix(self._subject.register("AVRO", schema_text(version)))
        members = event_schema(version)["fields"][_FIELDS_OF_THE_HEAD:]

        def tail(kind: int, fields: Fields) -> bytes:
            # What only this kind of game has is a record of its own, in a field named after the game.
            details = {name: value for name, value in fields.items() if name != "type" and "col_foo" not in name}
            event = fields | {GAMES[kind]: details}
            return b"".join(_encode(member["type"], event.get(member["name"])) for member in members)

        self._begins = [start + name for name in self._names]
        self._ends = draw_ends(self._traffic, version, tail)
        self._version = version

    def _session(self, number: int) -> bytes:
        """Return the session's field up to the gamer, whose names are all of one length."""
        gamer = self._gamers[0]
        return _encode(["null", "string"], f"s{number:04d}-{gamer.decode()}").removesuffix(gamer)


def _split_event(event: bytes) -> tuple[bytes, str, bytes]:
    """Return the prefix of an event, its game and the rest; no game's name has 64 bytes."""
    begin = _FRAME + 2
    end = begin + (event[begin - 1] >> 1)
    return event[:_FRAME], event[begin:end].decode(), event[end:]


def _encode(schema: Any, value: Any) -> bytes:
    """Encode a value: Avro's specification, "Binary Encoding"."""
    if isinstance(schema, list):  # null and one type: the number of the branch stands before the value
        if value is None:
            return _encode_long(0)
        return _encode_long(1) + _encode(schema[1], value)
    form = schema["type"] if isinstance(schema, dict) else schema
    if form == "record":
        return b"".join(_encode(field["type"], value[field["name"]]) for field in schema["fields"])
    if form == "array":  # one block of items with their number before it, and an empty block at the end
        if not value:
            return _encode_long(0)
        items = b"".join(_encode(schema["items"], item) for item in value)
        return _encode_long(len(value)) + items + _encode_long(0)
    return _encode_primitive(form, value)


def _encode_primitive(form: str, value: Any) -> bytes:
    if form == "string":
        text = value.encode()
        return _encode_long(len(text)) + bytes(text)
    if form == "double":
        return struct.pack("<d", value)
    if form == "boolean":
        return bytes([value])
    return _encode_long(value)


def _encode_long(number: int) -> bytes:
    """Encode a whole number, seven bits a byte, the sign in the lowest."""
    return encode_varint(number << 1 if number >= 0 else ~(number << 1))
