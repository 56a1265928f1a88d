"""Rows written as Protobuf are read, by google's parser and by the router, as what they were."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyspark.sql import types as T

from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.decode import MessageReader, decode_payloads, make_message_reader
from router_schemas.protobuf.derive import derive_message, read_derived_message, text_of
from router_schemas.protobuf.descriptors import compile_schema
from router_schemas.protobuf.encode import message_writer
from router_schemas.protobuf.kinds import Kind
from router_schemas.protobuf.merge import MessageVersion, merge_messages
from tests.encoders.columns import OF_PROTOBUF, encoded, plain, rows_of, struct, tables
from tests.schemas import proto_strategies as proto

IDS, TEXT, UTC = T.LongType(), T.StringType(), timezone.utc
BODY = "game.v1.Event"


def compiled(text: str) -> bytes:
    """Return the descriptors of a text."""
    return compile_schema(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", text)))


def message(fields: str, more: str = "") -> bytes:
    """Return the descriptors of a message with some fields."""
    stems = [stem for stem in ("timestamp", "duration", "struct") if "google" in fields]
    imports = "".join(f'import "google/protobuf/{stem}.proto"; ' for stem in stems)
    return compiled(f'syntax = "proto3"; package game.v1; {imports} message Event {{ {fields} }} {more}')


def reading(files: bytes, name: str = BODY) -> MessageReader:
    """Return what reads a message."""
    return make_message_reader(merge_messages([MessageVersion.of("v1", files, name)])[0])


def events(written: list[Any], read: MessageReader) -> list[Any]:
    """Return the events that the router's decoder makes of messages; google's parser has checked them."""
    found = decode_payloads(pa.array(written, pa.binary()), read)
    assert found.reasons.null_count == len(written), found.reasons
    return found.events.to_pylist()


@given(tables(OF_PROTOBUF, nested=False, nulls=False), st.data())
def test_a_row_is_read_as_it_was_written(table: Any, data: st.DataObject) -> None:
    """Without it a consumer sees other values than the table beside the topic."""
    columns, values = table
    try:
        files = compiled(text_of(derive_message(columns, BODY)))
    except ValueError as refused:
        assume("in JSON" not in str(refused) and "the map needs" not in str(refused))
        raise
    rows = data.draw(st.lists(values, min_size=1, max_size=4))

    written = message_writer(files, BODY, columns)(rows_of(columns, rows))

    found = events(written, reading(files))
    assert [plain(row) for row in found] == [plain(row) for row in rows]


@given(proto.schemas(), st.data())
def test_events_go_back_into_the_message_they_were_read_with(schema: Any, data: st.DataObject) -> None:
    """Without it a topic cannot be filtered into another one with the producer's own schema."""
    files = proto.descriptors_of(schema)
    read, kind = reading(files), proto.class_of(files)
    raw = [one.SerializeToString(deterministic=True) for one in data.draw(st.lists(proto.messages(kind), min_size=1))]
    before = decode_payloads(pa.array(raw, pa.binary()), read).events

    written = message_writer(files, BODY, read.spark_type)(before)

    for one, event in zip(written, before.to_pylist(), strict=True):
        assert plain(events([one], read)) == plain([event])
        assert kind.FromString(one).ByteSize() == len(one), "not as google writes it"


@given(tables(OF_PROTOBUF, nested=False, nulls=False), tables(OF_PROTOBUF, nested=False, nulls=False))
def test_a_field_keeps_its_number_for_ever(first: Any, second: Any) -> None:
    """Without it a new column in the middle turns old records into garbage."""
    try:
        before = derive_message(first[0], BODY)
        after = derive_message(second[0], BODY, before)
    except ValueError:  # a column that changed its type, or names that are one in JSON
        return
    files = compiled(text_of(after))

    old, new = ({one.name: one.number for one in version.members} for version in (before, after))
    assert old.items() <= new.items()
    assert len(set(new.values())) == len(new)
    assert set(second[0].names) <= set(new)
    assert read_derived_message(files, BODY) == after
    assert derive_message(second[0], BODY, after) == after
    both = merge_messages(
        [MessageVersion.of("v1", compiled(text_of(before)), BODY), MessageVersion.of("v2", files, BODY)]
    )
    assert len(both) == 1, "the versions cannot be read together"


def test_a_schema_of_somebody_else_is_left_alone() -> None:
    """Without it what others declared, such as an enum or a reserved number, is lost from their subject."""
    assert read_derived_message(message("optional string a = 1;"), BODY)
    for fields in (
        "string a = 1;",
        "reserved 7; optional string a = 1;",
        "enum E { NONE = 0; } optional E a = 1;",
        "oneof one { string a = 1; string b = 2; }",
        "optional string a = 1 [deprecated = true];",
    ):
        assert read_derived_message(message(fields), BODY) is None, fields
    assert read_derived_message(message("optional string a = 1;", "message Other {}"), BODY) is None


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (struct(a=TEXT), "field a: it was int32 and cannot become string"),
        (struct(a=T.ArrayType(T.IntegerType())), r"field a\[\]: it was int32"),
        (struct(s=T.IntegerType()), "field s: it was S and cannot become int"),
        (struct(s=struct(x=T.DoubleType())), r"field s\.x: it was string"),
        (struct(d=T.DateType()), "field d: Protobuf has no type for date"),
        (struct(d=T.DecimalType(9, 2)), r"field d: Protobuf has no type for decimal\(9,2\)"),
        (struct(d=T.ArrayType(T.ArrayType(IDS))), r"field d\[\]: Protobuf has no type for array<bigint>"),
        (struct(d=T.MapType(T.DoubleType(), IDS)), r"field d\{\}: keys of maps"),
        (struct(größe=IDS), "field größe: a name in Protobuf"),
        (struct(player_id=IDS, playerId=IDS), "field playerId: in JSON it has the name of player_id"),
        (struct(b_g=T.MapType(TEXT, IDS), BGEntry=IDS), "field b_g: the map needs the name BGEntry"),
        (struct(bg=T.MapType(TEXT, IDS), Bg=T.MapType(TEXT, IDS)), "field Bg: the map needs the name BgEntry"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_declared_is_named(columns: T.StructType, what: str) -> None:
    """Without it a field changes its meaning, or the compiler answers with a riddle."""
    before = derive_message(struct(a=T.IntegerType(), s=struct(x=TEXT)), BODY)

    with pytest.raises(ValueError, match=what):
        derive_message(columns, BODY, before)


def test_numbers_grow_wider_but_not_narrower() -> None:
    """Without it a column that became bigint stops the stream, or loses digits."""
    before = derive_message(struct(a=T.IntegerType(), b=IDS), BODY)

    after = derive_message(struct(a=IDS, b=T.IntegerType()), BODY, before)

    assert [one.kind for one in after.members] == [Kind.INT64, Kind.INT64]


MISFITS: list[tuple[T.StructType, str, str]] = [
    (struct(b=IDS), "int64 a = 1;", "field b: message game.v1.Event has no field for this column"),
    (struct(a=IDS), "int32 a = 1;", "field a: the column is bigint, and the schema has int32"),
    (struct(a=IDS), "repeated int64 a = 1;", "field a: the column is bigint, and the schema has repeated int64"),
    (struct(a=IDS), "google.protobuf.Timestamp a = 1;", "the schema has google.protobuf.Timestamp"),
    (struct(a=T.ArrayType(TEXT)), "string a = 1;", "field a"),
    (struct(a=T.DecimalType(9, 2)), "uint64 a = 1;", "field a"),
    (struct(a=T.MapType(TEXT, IDS)), "map<int32, int64> a = 1;", "field a: .* has map<int32, int64>"),
    (struct(a=struct(b=TEXT)), "message A { int32 b = 1; } A a = 1;", r"field a\.b: .* int32"),
]


@pytest.mark.parametrize(("columns", "fields", "what"), MISFITS, ids=lambda one: str(one)[:60])
def test_a_column_without_a_place_is_named(columns: T.StructType, fields: str, what: str) -> None:
    """Without it a stream starts that loses a column, or writes it as something else."""
    with pytest.raises(ValueError, match=what):
        message_writer(message(fields), BODY, columns)


def test_a_required_field_is_refused_at_the_start() -> None:
    """Without it rows without that field are written, and no consumer can read them."""
    files = compiled('syntax = "proto2"; package game.v1; message Event { required string a = 1; }')

    with pytest.raises(ValueError, match=r"field a of game\.v1\.Event is required"):
        message_writer(files, BODY, struct(a=TEXT))


BROKEN: list[tuple[T.StructType, str, list[Any], str]] = [
    (struct(a=IDS), "uint32 a = 1;", [1, -1, 2], "more than 32 bits"),
    (struct(a=IDS), "fixed64 a = 1;", [1, -1, 2], "more than 64 bits"),
    (struct(a=T.DecimalType(20, 0)), "uint64 a = 1;", [Decimal(0), Decimal(2**64), Decimal(2)], "more than 64 bits"),
    (struct(a=TEXT), "enum E { NONE = 0; } E a = 1;", ["NONE", "SOME", "7"], "the enum has no such name"),
    (struct(a=TEXT), "google.protobuf.Struct a = 1;", ["{}", "[]", '{"x":[1,null]}'], "is not JSON that"),
    (struct(a=TEXT), "google.protobuf.Value a = 1;", ["1", "NaN", "null"], "is not JSON that"),
    (struct(a=T.ArrayType(IDS)), "repeated int64 a = 1;", [[1], [1, None], []], "a null inside"),
    (struct(a=T.MapType(TEXT, TEXT)), "map<string, string> a = 1;", [[], [("k", None)], [("k", "")]], "a null inside"),
    (struct(a=IDS), "google.protobuf.Duration a = 1;", [-1, 2**60, 1], "longer than 10 000 years"),
]


@pytest.mark.parametrize(("columns", "fields", "values", "what"), BROKEN, ids=lambda one: str(one)[:40])
def test_a_value_that_cannot_be_written_is_one_row_without_a_value(
    columns: T.StructType, fields: str, values: list[Any], what: str
) -> None:
    """Without it one row stops the stream, takes its neighbours with it, or is written as something else."""
    write = message_writer(message(fields), BODY, columns)

    found = encoded(rows_of(columns, [{"a": value} for value in values]), write)

    assert [value is None for value in found.values] == [False, True, False]
    assert list(found.reasons) == [1]
    assert what in found.reasons[1]


def test_two_members_of_a_oneof_are_refused() -> None:
    """Without it the second silently takes the place of the first."""
    columns = struct(a=TEXT, b=IDS)
    write = message_writer(message("oneof one { string a = 1; int64 b = 2; }"), BODY, columns)

    found = encoded(rows_of(columns, [{"a": "x", "b": None}, {"a": "x", "b": 0}, {"a": None, "b": 0}]), write)

    assert found.values == [b"\x0a\x01x", None, b"\x10\x00"]
    assert "two members of one oneof" in found.reasons[1]


def test_a_text_that_is_not_utf8_is_refused() -> None:
    """Without it one row that Spark made of bytes stops the batch, or every consumer of the topic."""
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"ok"], pa.binary()).buffers())
    rows = pa.StructArray.from_arrays([texts], names=["a"])

    found = encoded(rows, message_writer(message("string a = 1;"), BODY, struct(a=TEXT)))

    assert found.values == [None, b"\x0a\x02ok"]
    assert "not UTF-8" in found.reasons[0]


def test_times_before_1970_and_spans_below_zero_keep_their_sign() -> None:
    """Without it they are off by a second, which nobody notices."""
    columns = struct(at=T.TimestampType(), took=IDS)
    files = message("google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2;")
    rows = [{"at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "took": -1_500_001}]

    (written,) = message_writer(files, BODY, columns)(rows_of(columns, rows))

    parsed = proto.class_of(files).FromString(written)
    assert (parsed.at.seconds, parsed.at.nanos) == (-1, 999_999_000)
    assert (parsed.took.seconds, parsed.took.nanos) == (-1, -500_001_000)
