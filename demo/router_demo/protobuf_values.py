"""Render events as Protobuf in the wire format of a schema registry, with the schema of each version, and garbage."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToJson, ParseDict  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from router_demo.games import GAMES, game_names, gamer_names
from router_demo.traffic import BAD_NAMES, FRAMED_GARBAGE, concatenate_fields, draw_amounts, draw_ends
from router_schemas.byte_columns import encode_varint
from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, message_of
from router_schemas.wire_format import payload_prefix

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from router_demo.games import Fields
    from router_demo.registry import Subject
    from router_demo.traffic import Drawn, Traffic

    Texts = list[bytes]
    Maker = Callable[[bytes, Random, Any], bytes]

MESSAGE = "games.Event"
FIRST_COLUMN = 100
"""The number of the field col_foo_1."""
FRAME = len(payload_prefix(0, (0,)))
_VARINT = 0
_EIGHT_BYTES = 1
_LENGTH = 2
_NANOS = 1_000_000
"""Nanoseconds of a millisecond."""
_COLUMNS = ("double", "int64", "string")

# What may be absent is `optional`: the router's rules then see null, and not an empty name.
_EVENT = """\
syntax = "proto3";
package games;

import "google/protobuf/timestamp.proto";

message Event {
  optional string game = 1;
  optional string gamer_id = 2;
  google.protobuf.Timestamp ts = 3;
  optional string session_id = 4;
  optional double amount = 5;
  optional string type = 6;
  oneof details {
    Rummy rummy = 10;
    Spades spades = 11;
    Euchre euchre = 12;
    GoFish go_fish = 13;
    Uno uno = 14;
    Hearts hearts = 15;
    Poker poker = 16;
  }
"""
_DETAILS = """\
}

message Rummy {
  message Meld { repeated string cards = 1; }
  message Hand { int32 size = 1; int32 deadwood = 2; }
  repeated Meld melds = 1;
  Hand hand = 2;
}

message Spades {
  message Bags { int32 ours = 1; int32 theirs = 2; }
  int32 bid = 1;
  int32 tricks = 2;
  Bags bags = 3;
}

message Euchre {
  string trump = 1;
  bool alone = 2;
  repeated int32 score = 3;
}

message GoFish {
  string asked = 1;
  int32 got = 2;
  repeated string books = 3;
}

message Uno {
  message Player { int32 seat = 1; int32 cards = 2; }
  string color = 1;
  string card = 2;
  repeated Player players = 3;
}

message Hearts {
  repeated string passed = 1;
  int32 points = 2;
  bool moon = 3;
}

message Poker {
  message Blinds { int32 small = 1; int32 big = 2; }
  double pot = 1;
  repeated string board = 2;
  Blinds blinds = 3;
}
"""


def message_class(version: int) -> Any:
    """Return google's class of the message of a version."""
    files = compile_schema(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", schema_text(version))))
    return message_factory.GetMessageClass(message_of(files, MESSAGE))


def schema_text(version: int) -> str:
    """Return the .proto text of a version, which has the fields col_foo_1 to col_foo_{version}."""
    columns = ""
    for number in range(1, version + 1):
        column_type = _COLUMNS[number % len(_COLUMNS)]
        columns += f"  optional {column_type} col_foo_{number} = {FIRST_COLUMN + number - 1};\n"
    return _EVENT + columns + _DETAILS


def as_message(kind: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that end an event of a kind of game as a message has them, for google's ParseDict."""
    shared = {name: value for name, value in fields.items() if name == "type" or name.startswith("col_foo_")}
    details = {name: value for name, value in fields.items() if name not in shared}
    if "melds" in details:  # Protobuf has no lists of lists
        details["melds"] = [{"cards": cards} for cards in details["melds"]]
    return shared | {GAMES[kind]: details}


class ProtobufValues:
    """Events as Protobuf, put together from bytes rendered before.

    A version is registered when its first events are rendered.

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
        self._version = -1
        self._begins: Texts = []
        """By game, of the version."""
        self._ends: list[Texts] = []
        """By kind of game, of the version."""

    def render(self, drawn: Drawn) -> list[bytes]:
        """Return the values of good events."""
        self._prepare(drawn.version)
        times = self._times(drawn)
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
        return _spoil(event, random, self._message)

    def _prepare(self, version: int) -> None:
        """Register a version, and render how its events begin and end; only the newest version is held."""
        if version == self._version:
            return
        start = payload_prefix(self._subject.register("PROTOBUF", schema_text(version)), (0,))
        self._message = message_class(version)
        self._begins = [start + name for name in self._names]
        self._ends = draw_ends(self._traffic, version, self._tail)
        self._version = version

    def _tail(self, kind: int, fields: Fields) -> bytes:
        message = ParseDict(as_message(kind, fields), self._message())
        return bytes(message.SerializeToString(deterministic=True))

    def _session(self, number: int) -> bytes:
        """Return the session's field up to the gamer, whose names are all of one length."""
        gamer = self._gamers[0]
        return _text(4, b"s%04d-" % number + gamer).removesuffix(gamer)

    def _times(self, drawn: Drawn) -> Texts:
        """Return the fields of the times. Events that follow each other share few seconds: each is encoded once."""
        encoded_seconds: dict[int, bytes] = {}
        times = []
        for milliseconds in drawn.times.astype("int64").tolist():
            second, rest = divmod(milliseconds, 1000)
            if second not in encoded_seconds:
                encoded_seconds[second] = _number(1, second)
            times.append(_text(3, encoded_seconds[second] + self._nanos[rest]))
        return times


def _text(number: int, content: bytes) -> bytes:
    """Encode a field that has a length: a string or a message."""
    return _key(number, _LENGTH) + _varint(len(content)) + content


def _number(number: int, content: int) -> bytes:
    """Encode a whole number that is zero where it is absent, and so is not written."""
    if not content:
        return b""
    return _key(number, _VARINT) + _varint(content)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    """Encode a whole number, negative ones in ten bytes: protobuf.dev, "Encoding"."""
    return encode_varint(number % 2**64)


def _truncate(event: bytes, random: Random, message: Any) -> bytes:
    """Cut the event short, not between two fields: what is left there is a message."""
    while True:
        cut = event[: random.randrange(1, len(event))]
        if len(cut) < FRAME or not _is_message(cut[FRAME:], message):
            return cut


def _random_payload(event: bytes, random: Random, message: Any) -> bytes:
    """Put random bytes behind a good prefix; some are a message, of unknown fields, and are not taken."""
    while True:
        payload = random.randbytes(random.randrange(1, 2 * len(event)))
        if not _is_message(payload, message):
            return event[:FRAME] + payload


def _json_text(event: bytes, random: Random, message: Any) -> bytes:
    """Write the event as a producer does that knows no registry."""
    text: str = MessageToJson(message.FromString(event[FRAME:]), preserving_proto_field_name=True, indent=None)
    return text.encode()


def _no_game(event: bytes, random: Random, message: Any) -> bytes:
    changed = message.FromString(event[FRAME:])
    changed.ClearField("game")
    return event[:FRAME] + bytes(changed.SerializeToString())


def _bad_name(*names: str) -> Maker:
    """Replace the game by one of some names that no table may get; the event stays a valid message."""

    def rename(event: bytes, random: Random, message: Any) -> bytes:
        changed = message.FromString(event[FRAME:])
        changed.game = random.choice(names)
        return event[:FRAME] + bytes(changed.SerializeToString())

    return rename


_MAKERS: dict[str, Maker] = {
    "truncated": _truncate,
    "random_payload": _random_payload,
    "json_text": _json_text,
    "no_game": _no_game,
} | {kind: _bad_name(*names) for kind, names in BAD_NAMES.items()}
PROTOBUF_GARBAGE = (*_MAKERS, *FRAMED_GARBAGE)
"""The kinds of garbage."""


def _spoil(event: bytes, random: Random, message: Any) -> tuple[str, bytes | None]:
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
