"""Payloads to events, compared value by value with google's own decoder."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.decode import (
    MessageReader,
    decode_payloads,
    handler_of,
    make_message_reader,
    read_natively,
)
from router_schemas.protobuf.descriptors import compile_schema
from router_schemas.protobuf.kinds import Kind
from router_schemas.protobuf.merge import MessageVersion, merge_messages
from router_schemas.protobuf.model import Column
from tests.light import drawn
from tests.schemas.proto_strategies import Schema, Spec, class_of, descriptors_of, messages, row_of, same, schemas

EVENT = "game.v1.Event"


def reader_of(descriptors: bytes) -> MessageReader:
    """Return the reader of one version."""
    return make_message_reader(merge_messages([MessageVersion.of("v1", descriptors, EVENT)])[0])


def simple(*fields: Spec, syntax: str = "proto3") -> tuple[Any, MessageReader]:
    """Return google's class and the reader of a message with these fields."""
    descriptors = descriptors_of({"Event": list(fields), "Leaf": [Spec("x", 1, "int32")], "Nothing": []}, syntax)
    return class_of(descriptors), reader_of(descriptors)


def array(*payloads: bytes | None) -> pa.BinaryArray:
    """Return payloads as an array."""
    return pa.array(payloads, pa.binary())


def one(payload: bytes, read: MessageReader) -> Any:
    """Return the event of one payload."""
    found = decode_payloads(array(payload), read)
    assert found.reasons.to_pylist() == [None]
    return found.events[0].as_py()


@pytest.mark.parametrize("syntax", ["proto3", "proto2"])
@settings(max_examples=drawn(60))
@given(data=st.data(), schema=schemas())
def test_every_value_is_what_google_reads(syntax: str, data: st.DataObject, schema: Schema) -> None:
    """A wrong value in a table is worse than a dead letter."""
    descriptors = descriptors_of(schema, syntax)
    rows = data.draw(st.lists(messages(class_of(descriptors)), min_size=1, max_size=5))
    read = reader_of(descriptors)

    found = decode_payloads(array(*(row.SerializeToString() for row in rows)), read)

    found.events.validate(full=True)
    assert found.events.type == read.type
    assert found.reasons.null_count == len(rows)
    for row, event in zip(rows, found.events.to_pylist(), strict=True):
        assert same(row_of(row, descriptors), event)


FUZZED = [
    Spec("id", 1, "string"),
    Spec("n", 2, "int64", "optional"),
    Spec("u", 3, "uint32"),
    Spec("leaf", 4, "game.v1.Leaf"),
    Spec("many", 5, "game.v1.Leaf", "repeated"),
    Spec("by", 6, "game.v1.Leaf", "string"),
    Spec("kinds", 7, "game.v1.Color", "repeated"),
    Spec("at", 8, "google.protobuf.Timestamp"),
    Spec("left", 9, "game.v1.Leaf", "oneof"),
    Spec("right", 10, "int32", "oneof"),
    Spec("again", 11, "game.v1.Event"),
    Spec("free", 12, "google.protobuf.Struct"),
    Spec("wrapped", 13, "google.protobuf.UInt64Value"),
    Spec("times", 14, "google.protobuf.Timestamp", "uint64"),
]


def mutated(data: st.DataObject, kind: Any) -> bytes:
    """Draw the bytes of a message with a few of them changed, cut or doubled."""
    raw = bytearray(data.draw(messages(kind, 2)).SerializeToString() or b"\0")
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["set", "cut", "double", "insert"])):
            case "set":
                raw[at] = data.draw(st.integers(0, 255))
            case "cut":
                raw = raw[:at] or raw
            case "double":
                raw += raw[at:]
            case "insert":
                raw[at:at] = data.draw(st.binary(max_size=3))
    return bytes(raw)


@settings(max_examples=drawn(60))
@given(data=st.data())
def test_hostile_bytes_have_one_verdict_whatever_their_neighbours(data: st.DataObject) -> None:
    """A batch that one row can fail is lost; a verdict that depends on neighbours makes replays differ."""
    kind, read = simple(*FUZZED)
    rows = [mutated(data, kind) for _ in range(4)] + [data.draw(st.binary(max_size=20))]

    together = decode_payloads(array(None, *rows, b""), read)

    together.events.validate(full=True)
    for place, row in enumerate(rows, 1):
        alone = decode_payloads(array(row), read)
        assert alone.reasons[0] == together.reasons[place]
        assert repr(alone.events[0].as_py()) == repr(together.events[place].as_py())
        assert alone.events[0].is_valid == (alone.reasons[0].as_py() is None)


@settings(max_examples=drawn(60))
@given(data=st.data())
def test_bytes_of_unusual_encoders_are_read_as_google_reads_them(data: st.DataObject) -> None:
    """Values twice, two members of a oneof, entries without a value: legal, and easily read otherwise."""
    fields = [spec for spec in FUZZED if spec.name not in ("at", "times")]  # whose range google does not check
    kind, read = simple(*fields)
    descriptors = descriptors_of({"Event": fields, "Leaf": [Spec("x", 1, "int32")], "Nothing": []})
    raw = b"".join(data.draw(messages(kind, 2)).SerializeToString() for _ in range(2)) + data.draw(
        st.sampled_from([b"", b"\x32\x00", b"\x32\x03\x0a\x01a", b"\x32\x02\x12\x00", b"\x0a\x00", b"\x28\x01"])
    )

    event = one(raw, read)

    assert same(row_of(kind.FromString(raw), descriptors), event)


def test_a_null_payload_is_neither_an_event_nor_an_error() -> None:
    """A tombstone among dead letters would alarm somebody."""
    _, read = simple(Spec("id", 1, "int32"))

    found = decode_payloads(array(None, b"\x08\x05"), read)

    assert found.events.to_pylist() == [None, {"id": 5}]
    assert found.reasons.to_pylist() == [None, None]


def test_a_slice_of_payloads_is_decoded_as_a_slice() -> None:
    """Arrow arrays start anywhere in their buffers."""
    _, read = simple(Spec("id", 1, "int32"))
    payloads = array(b"\x08", b"\x08\x05", b"\x08\x06", b"\xff")[1:3]

    assert decode_payloads(payloads, read).events.to_pylist() == [{"id": 5}, {"id": 6}]
    assert decode_payloads(payloads.cast(pa.large_binary()), read).events.to_pylist() == [{"id": 5}, {"id": 6}]
    assert len(decode_payloads(payloads[:0], read).events) == 0


def test_a_refused_row_says_why_without_its_data() -> None:
    """Who looks at a dead letter needs the message and the fault."""
    _, read = simple(Spec("id", 1, "string"))

    reasons = decode_payloads(array(b"\x0a\x02\xff\xfe", b"\x0a\x09a", b"\x0a\x01a"), read).reasons.to_pylist()

    assert reasons[:2] == [
        "protobuf: not a game.v1.Event: string field had bad UTF-8",
        "protobuf: not a game.v1.Event: wire format was corrupt",
    ]
    assert reasons[2] is None


@pytest.mark.parametrize("form", ["", "repeated", "uint32"])
def test_a_time_out_of_range_is_refused_and_not_bent(form: str) -> None:
    """The native decoder would make the end of the 64-bit range of it."""
    kind, read = simple(
        Spec("at", 1, "google.protobuf.Timestamp", form), Spec("d", 2, "google.protobuf.Duration", form)
    )
    rows = [kind() for _ in range(6)]
    times = [253_402_300_799, 253_402_300_800, -62_135_596_801, 2**62, 0, 5]
    spans = [315_576_000_000, 0, 0, 0, -315_576_000_001, 0]
    for row, seconds, span in zip(rows, times, spans, strict=True):
        at, d = (
            (row.at, row.d)
            if not form
            else (row.at.add(), row.d.add())
            if form == "repeated"
            else (row.at[7], row.d[7])
        )
        at.seconds, d.seconds = seconds, span

    reasons = decode_payloads(array(*(row.SerializeToString() for row in rows)), read).reasons.to_pylist()

    assert [reason is None for reason in reasons] == [True, False, False, False, False, True]


def test_null_is_not_zero() -> None:
    """Whether a player has zero coins or is not known to have any is a question of money."""
    _, read = simple(
        Spec("implicit", 1, "int32"),
        Spec("explicit", 2, "int32", "optional"),
        Spec("left", 3, "int32", "oneof"),
        Spec("right", 4, "int32", "oneof"),
        Spec("wrapped", 5, "google.protobuf.Int32Value"),
        Spec("leaf", 6, "game.v1.Leaf"),
        Spec("nothing", 7, "game.v1.Nothing"),
    )
    absent = dict.fromkeys(("explicit", "left", "right", "wrapped", "leaf", "nothing"))

    assert one(b"", read) == {"implicit": 0, **absent}
    zeros = one(b"\x08\x00\x10\x00\x18\x00\x2a\x00\x32\x00\x3a\x00", read)
    assert zeros == {
        "implicit": 0,
        **absent,
        "explicit": 0,
        "left": 0,
        "wrapped": 0,
        "leaf": {"x": 0},
        "nothing": {"_present": True},
    }


def test_json_values_are_written_as_json() -> None:
    """A Struct is JSON by another name; numbers that JSON lacks are words, as ProtoJSON has them."""
    kind, read = simple(
        Spec("v", 1, "google.protobuf.Struct"),
        Spec("any", 2, "google.protobuf.Value", "repeated"),
        Spec("list", 3, "google.protobuf.ListValue"),
        Spec("absent", 4, "google.protobuf.Value"),
    )
    event = kind()
    event.v.update({"b": [1, 2.5, None, True, "é"], "a": {"x": 1e300}})
    for name, number in (("n", float("nan")), ("i", float("-inf"))):
        event.v.fields[name].number_value = number
    event.v.fields["unset"].Clear()
    event.any.add(string_value="x")
    event.any.add(null_value=0)
    event.list.extend([1, []])

    found = one(event.SerializeToString(), read)

    assert found["v"] == '{"a":{"x":1e+300},"b":[1,2.5,null,true,"é"],"i":"-Infinity","n":"NaN","unset":null}'
    assert (found["any"], found["list"], found["absent"]) == (['"x"', "null"], "[1,[]]", None)


def test_unknown_fields_are_counted_when_asked_for() -> None:
    """`freeze` promises a counter of the rows that have more than the table shows."""
    _, read = simple(Spec("id", 1, "int32"), Spec("leaf", 2, "game.v1.Leaf"))
    rows = array(b"\x08\x01", b"\x08\x01\x78\x05", b"\x12\x02\x78\x05", b"\x08\x00", b"\xff", None)

    assert decode_payloads(rows, read, count_unknown=True).unknown == 2
    assert decode_payloads(rows, read).unknown == -1


class PanicException(BaseException):
    """What a panic of Rust raises."""


class Faulty:
    """A native decoder that fails on batches with a row that is `poison`."""

    def __init__(self, handler: Any, error: BaseException) -> None:
        self.handler, self.error = handler, error

    def array_to_record_batch(self, payloads: pa.BinaryArray) -> pa.RecordBatch:
        if b"\x08\x07" in payloads.to_pylist():
            raise self.error
        return self.handler.array_to_record_batch(payloads)


@pytest.mark.parametrize("error", [PanicException("slice index"), ValueError("invalid varint")], ids=repr)
def test_a_row_that_fails_the_native_decoder_does_not_take_its_batch_along(error: BaseException) -> None:
    """One row among ten thousand, and none of them landed."""
    handler = handler_of((Column("id", 1, Kind.INT32),))

    rows, bad = read_natively(Faulty(handler, error), array(b"\x08\x01", b"\x08\x07", None, b"\x08\x02", b"\x08\x07"))

    assert (len(rows), bad) == (5, [1, 4])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()], ids=repr)
def test_an_end_asked_for_is_not_taken_for_a_bad_row(error: BaseException) -> None:
    """A task that is killed must not write good rows to dead letters first."""
    with pytest.raises(type(error)):
        read_natively(Faulty(None, error), array(b"\x08\x07"))


def test_a_reader_travels() -> None:
    """Executors get it in the plan."""
    _, read = simple(Spec("id", 1, "int32"), Spec("at", 2, "google.protobuf.Timestamp", "repeated"))

    assert pickle.loads(pickle.dumps(read)) == read


def test_a_message_without_fields_is_refused_at_the_start() -> None:
    """A table needs a column."""
    with pytest.raises(ValueError, match="no fields"):
        simple()


def test_equal_maps_have_their_entries_in_one_order() -> None:
    """Without it the same map is another value when it was sent in another order, and a merge updates for nothing."""
    google, read = simple(Spec("scores", 1, "int32", "int32"))
    entries = [bytes(google(scores={key: 1}).SerializeToString()) for key in (5, -3, 10, 0)]
    first = one(b"".join(entries), read)
    assert one(b"".join(reversed(entries)), read) == first
    assert dict(first["scores"]) == {5: 1, -3: 1, 10: 1, 0: 1}


@pytest.mark.parametrize(
    "syntax", ['syntax = "proto2"', 'edition = "2023"; option features.json_format = LEGACY_BEST_EFFORT']
)
def test_fields_of_one_json_name_are_read(syntax: str) -> None:
    """Both names are legal where JSON names are not checked: their numbers tell the fields apart."""
    label = "optional " if "proto2" in syntax else ""
    text = f"{syntax}; package t; message M {{ {label}int32 a_b = 1; {label}int32 aB = 2; }}"
    files = compile_schema(ResolvedSchema(RegisteredSchema(1, "PROTOBUF", text)))
    (merged,) = merge_messages([MessageVersion.of("v1", files, "t.M")])

    events = decode_payloads(pa.array([b"\x08\x05\x10\x06"], pa.binary()), make_message_reader(merged)).events

    assert events.to_pylist() == [{"a_b": 5, "aB": 6}]
