"""Write the Protobuf schema of the games' events, version by version."""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory  # type: ignore[import-untyped]

from router_demo.games import GAMES
from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import descriptors, message_of

MESSAGE = "games.Event"
FIRST_COLUMN = 100
"""The number of the field col_foo_1."""
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
    files = descriptors(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", schema_text(version))))
    return message_factory.GetMessageClass(message_of(files, MESSAGE))


def schema_text(version: int) -> str:
    """Return the .proto text of a version, which has the fields col_foo_1 to col_foo_{version}."""
    columns = (
        f"  optional {_COLUMNS[number % len(_COLUMNS)]} col_foo_{number} = {FIRST_COLUMN + number - 1};\n"
        for number in range(1, version + 1)
    )
    return _EVENT + "".join(columns) + _DETAILS


def as_message(kind: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that end an event of a kind of game as a message has them, for google's ParseDict."""
    shared = {name: value for name, value in fields.items() if name == "type" or name.startswith("col_foo_")}
    own = {name: value for name, value in fields.items() if name not in shared}
    if "melds" in own:  # Protobuf has no lists of lists
        own["melds"] = [{"cards": cards} for cards in own["melds"]]
    return shared | {GAMES[kind]: own}
