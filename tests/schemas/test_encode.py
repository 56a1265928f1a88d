"""What a route test writes is what the libraries of producers write, or refused with the place."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, timezone
from typing import Any

import fastavro
import pytest

from router_demo.protobuf_values import MESSAGE, message_class, schema_text
from router_schemas.avro.encode import encoded_event
from router_schemas.avro.parser import parse_text
from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema
from router_schemas.protobuf.encode import encoded_event as written_message

FIELDS: dict[str, Any] = {
    "flag": "boolean",
    "small": "int",
    "big": "long",
    "ratio": "float",
    "amount": "double",
    "text": "string",
    "raw": "bytes",
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "suit": {"type": "enum", "name": "Suit", "symbols": ["H", "S"]},
    "hash": {"type": "fixed", "name": "Hash", "size": 2},
    "tags": {"type": "array", "items": "string"},
    "more": {"type": "map", "values": ["null", "long", "string"]},
    "inner": {"type": "record", "name": "Inner", "fields": [{"name": "suit", "type": "Suit"}]},
    "maybe": ["null", "string"],
}
SCHEMA = {"type": "record", "name": "All", "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()]}
EVENT: dict[str, Any] = {
    "flag": True,
    "small": -1,
    "big": 2**40,
    "ratio": 0.5,
    "amount": 3,
    "text": "ä",
    "raw": "bytes",
    "day": "2026-01-31",
    "at": "2026-01-31T12:00:00.000001Z",
    "suit": "S",
    "hash": "ab",
    "tags": ["a", "b"],
    "more": {"a": 1, "b": "two", "c": None},
    "inner": {"suit": "H"},
}


def test_an_avro_event_is_as_another_library_reads_it() -> None:
    read = fastavro.schemaless_reader(io.BytesIO(encoded_event(EVENT, parse_text(json.dumps(SCHEMA)))), SCHEMA, None)

    at = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=timezone.utc)
    assert read == {**EVENT, "raw": b"bytes", "hash": b"ab", "day": date(2026, 1, 31), "at": at, "maybe": None}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"small": "1"}, "small"),
        ({"small": True}, "small"),
        ({"suit": "D"}, "suit"),
        ({"hash": "abc"}, "hash"),
        ({"inner": {}}, "inner.suit"),
        ({"tags": "a"}, "tags"),
        ({"smal": 1}, "smal"),
    ],
    ids=["text", "boolean", "symbol", "size", "missing", "no list", "unknown"],
)
def test_what_an_avro_schema_does_not_take_is_refused_with_its_place(wrong: dict[str, Any], told: str) -> None:
    """A test that writes something else than it says proves nothing."""
    with pytest.raises(ValueError, match=told):
        encoded_event(EVENT | wrong, parse_text(json.dumps(SCHEMA)))


def test_a_message_is_as_google_reads_it() -> None:
    files = compile_schema(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", schema_text(1))))
    event = {"game": "uno", "ts": "2026-01-31T12:00:00Z", "uno": {"players": [{"seat": 1}]}, "col_foo_1": 7}

    message = message_class(1).FromString(written_message(event, files, MESSAGE))

    assert (message.game, message.uno.players[0].seat, message.col_foo_1) == ("uno", 1, 7)
    assert message.ts.ToDatetime(timezone.utc) == datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    with pytest.raises(ValueError, match="gmae"):
        written_message({"gmae": "uno"}, files, MESSAGE)
