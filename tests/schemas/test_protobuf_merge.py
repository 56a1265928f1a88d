"""One reader for all versions of a message, and none where a value would come out wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from router_schemas.model import RegisteredSchema, ResolvedSchema, SchemaConflict, SchemaOrigin
from router_schemas.protobuf.decode import decode_payloads, make_message_reader
from router_schemas.protobuf.descriptors import compile_schema as compiled
from router_schemas.protobuf.library import MessageUse
from router_schemas.protobuf.merge import MergedMessage, MessageVersion, merge_messages
from tests.light import drawn
from tests.schemas.proto_strategies import (
    EVENT,
    KEYS,
    PROTO,
    Schema,
    Spec,
    class_of,
    described,
    descriptors_of,
    messages,
    row_of,
    same,
    schemas,
    specs,
)


def versions(*schemas: Schema, syntax: str = "proto3") -> list[MessageVersion]:
    """Return the versions v1, v2 and so on of an event."""
    sets = [descriptors_of(schema, syntax) for schema in schemas]
    return [MessageVersion.of(f"v{number}", one, EVENT) for number, one in enumerate(sets, 1)]


def schema(*fields: Spec, **messages: list[Spec]) -> Schema:
    """Return a schema with these fields of an event."""
    return {"Event": list(fields), "Leaf": [Spec("x", 1, "int32")], "Part": [], "Nothing": [], **messages}


def events(merged: MergedMessage, *payloads: bytes) -> list[Any]:
    """Decode payloads with merged versions."""
    found = decode_payloads(pa.array(payloads, pa.binary()), make_message_reader(merged))
    assert found.reasons.null_count == len(payloads)
    rows: list[Any] = found.events.to_pylist()
    return rows


@st.composite
def histories(draw: st.DrawFn) -> list[Schema]:
    """Draw ten versions of a schema: fields come, go and are renamed, in the event and below it."""
    first = draw(schemas())
    fresh = iter(range(300, 400))
    renamed = {one.number: replace(one, name=f"n{one.number}") for one in first["Event"]}
    history = [{**first, "Event": list(renamed.values())}]
    for _ in range(9):
        schema = {name: list(fields) for name, fields in history[-1].items()}
        fields = schema[draw(st.sampled_from(["Event", "Event", "Part", "Leaf"]))]
        message = next(name for name, some in schema.items() if some is fields)
        match draw(st.sampled_from(["add", "add", "remove", "rename"])):
            case "add":
                number = next(fresh)
                fields.append(draw(specs(message, f"n{number}", [number])))
            case "remove" if len(fields) > 1:
                fields.pop(draw(st.integers(0, len(fields) - 1)))
            case "rename":
                at = draw(st.integers(0, len(fields) - 1))
                fields[at] = replace(fields[at], name=f"r{next(fresh)}")
        history.append(schema)
    return history


@settings(max_examples=drawn(25))
@given(data=st.data(), history=histories())
def test_ten_versions_in_one_batch_are_each_read_right(data: st.DataObject, history: list[Schema]) -> None:
    """Producers are upgraded one by one: all versions are in a topic at once."""
    sets = [descriptors_of(schema) for schema in history]
    rows = [data.draw(messages(class_of(one), 2)) for one in sets]

    (merged,) = merge_messages([MessageVersion.of(str(number), one, EVENT) for number, one in enumerate(sets)])

    assert merged.refused == ()
    for row, event in zip(rows, events(merged, *(row.SerializeToString() for row in rows)), strict=True):
        assert same(row_of(row, *sets), event)


@settings(max_examples=drawn(25))
@given(history=histories())
def test_a_further_version_only_adds_columns_at_the_end(history: list[Schema]) -> None:
    """Delta adds columns at the end; any other order is another table."""
    renames_aside = [[one.number for one in schema["Event"]] for schema in history]
    seen: list[int] = []
    for numbers in renames_aside:
        seen += [number for number in numbers if number not in seen]

    (merged,) = merge_messages(versions(*history))

    root = descriptor_pb2.FileDescriptorSet.FromString(merged.descriptors).file[-1].message_type[0]
    assert [field.number for field in root.field] == seen


REFUSED = {
    "int32 to sint32": (Spec("n", 1, "int32"), Spec("n", 1, "sint32"), "int32 and is sint32"),
    "int64 to uint64": (Spec("n", 1, "int64"), Spec("n", 1, "uint64"), "int64 and is uint64"),
    "uint32 to uint64": (Spec("n", 1, "uint32"), Spec("n", 1, "uint64"), "uint32 and is uint64"),
    "fixed32 to sfixed32": (Spec("n", 1, "fixed32"), Spec("n", 1, "sfixed32"), "fixed32 and is sfixed32"),
    "float to double": (Spec("n", 1, "float"), Spec("n", 1, "double"), "float and is double"),
    "bool to int32": (Spec("n", 1, "bool"), Spec("n", 1, "int32"), "bool and is int32"),
    "enum to int32": (Spec("n", 1, "game.v1.Color"), Spec("n", 1, "int32"), "enum game.v1.Color and is int32"),
    "string to bytes": (Spec("n", 1, "string"), Spec("n", 1, "bytes"), "string and is bytes"),
    "bytes to message": (Spec("n", 1, "bytes", "optional"), Spec("n", 1, "game.v1.Leaf"), "bytes and is message"),
    "wrapper": (Spec("n", 1, "google.protobuf.UInt32Value"), Spec("n", 1, "google.protobuf.Int64Value"), "Int64Value"),
    "single to repeated": (Spec("n", 1, "int32"), Spec("n", 1, "int32", "repeated"), "single and is repeated"),
    "repeated to map": (Spec("n", 1, "game.v1.Leaf", "repeated"), Spec("n", 1, "game.v1.Leaf", "string"), "a map"),
    "map key": (Spec("n", 1, "int32", "string"), Spec("n", 1, "int32", "int32"), "keys were string"),
    "map value": (Spec("n", 1, "int32", "string"), Spec("n", 1, "sint32", "string"), "int32 and is sint32"),
    "zero to null": (Spec("n", 1, "int32"), Spec("n", 1, "int32", "optional"), "was zero and is null"),
    "null to zero": (Spec("n", 1, "int32", "oneof"), Spec("n", 1, "int32"), "was null and is zero"),
}


@pytest.mark.parametrize(("old", "new", "what"), REFUSED.values(), ids=REFUSED)
def test_a_change_that_would_give_wrong_values_is_refused(old: Spec, new: Spec, what: str) -> None:
    """The bytes decode without an error: 7 as int32 is -4 as sint32. Only the descriptors tell."""
    first, second = merge_messages(versions(schema(old), schema(new), schema(old, Spec("more", 2, "int32"))))

    (conflict,) = first.refused
    assert (conflict.field, conflict.old, conflict.new) == ("n", "v1", "v2")
    assert what in conflict.what
    assert second.refused == ()


@pytest.mark.parametrize(
    ("old", "new", "value", "kind"),
    [
        ("int32", "int64", -(2**31), pa.int64()),
        ("int64", "int32", -(2**63), pa.int64()),
        ("uint32", "int32", 2**32 - 1, pa.int64()),
        ("int32", "uint32", -1, pa.int64()),
        ("uint32", "int64", 2**32 - 1, pa.int64()),
        ("sint32", "sint64", -(2**31), pa.int64()),
    ],
)
@pytest.mark.parametrize("form", ["", "optional", "repeated", "string"])
def test_integers_widen(old: str, new: str, value: int, kind: pa.DataType, form: str) -> None:
    """The one type change that tables follow; old values must stay what they were."""
    before, after = schema(Spec("n", 1, old, form)), schema(Spec("n", 1, new, form))
    row = class_of(descriptors_of(before))()
    if form == "string":
        row.n["a"] = value
    elif form == "repeated":
        row.n.append(value)
    else:
        row.n = value
    expected = {"string": [("a", value)], "repeated": [value]}.get(form, value)

    (merged,) = merge_messages(versions(before, after))

    assert events(merged, row.SerializeToString()) == [{"n": expected}]
    column = make_message_reader(merged).type.field("n").type
    assert (column.item_type if form == "string" else column.value_type if form == "repeated" else column) == kind


def test_the_finding_names_the_versions_and_the_path() -> None:
    """With forty versions and nested messages, `incompatible` alone helps nobody."""
    nested = [Spec("leaf", 3, "game.v1.Leaf", "string")]
    event = Spec("parts", 2, "game.v1.Part", "repeated")
    old = schema(event, Part=nested, Leaf=[Spec("x", 1, "int32"), Spec("y", 2, "string")])
    new = schema(event, Part=nested, Leaf=[Spec("x", 1, "sint32"), Spec("y", 2, "bytes")])

    first, _ = merge_messages(versions(old, old, new))

    assert first.refused == (
        SchemaConflict("parts[].leaf{}.x", "v2", "v3", "it was int32 and is sint32"),
        SchemaConflict("parts[].leaf{}.y", "v2", "v3", "it was string and is bytes"),
    )


def test_an_added_field_of_zero_presence_reads_as_zero_and_an_optional_one_as_null() -> None:
    """What google reads from older bytes as well."""
    (merged,) = merge_messages(
        versions(schema(Spec("a", 1, "int32")), schema(Spec("b", 2, "int32"), Spec("c", 3, "int32", "optional")))
    )

    assert events(merged, b"\x08\x05") == [{"a": 5, "b": 0, "c": None}]


def test_the_newest_name_wins_and_a_removed_field_keeps_its_data() -> None:
    """With the newest version as the reader, data of old records would be lost."""
    old, new = schema(Spec("a", 1, "int32"), Spec("b", 2, "int32")), schema(Spec("c", 1, "int32"))

    (merged,) = merge_messages(versions(old, new))

    assert events(merged, b"\x08\x05\x10\x06") == [{"c": 5, "b": 6}]


def test_a_name_that_is_given_to_another_number_does_not_mix_two_columns() -> None:
    """The way to change a type in Protobuf: a new number, often with the old name."""
    old, new = schema(Spec("amount", 1, "int32")), schema(Spec("Amount", 2, "string"))

    (merged,) = merge_messages(versions(old, new))

    assert events(merged, b"\x08\x05", b"\x12\x01x") == [{"amount": 5, "Amount_2": ""}, {"amount": 0, "Amount_2": "x"}]


def test_a_type_that_is_renamed_is_the_same_type() -> None:
    """Moving a nested message to the top of its file is a change of text only."""
    old = schema(Spec("it", 1, "game.v1.Leaf"), Leaf=[Spec("x", 1, "int32")])
    new = schema(Spec("it", 1, "game.v1.Part"), Part=[Spec("x", 1, "int32"), Spec("y", 2, "int32")])

    (merged,) = merge_messages(versions(old, new))

    assert events(merged, b"\x0a\x02\x08\x05") == [{"it": {"x": 5, "y": 0}}]


def test_fields_that_were_once_alternatives_and_are_not_any_more_are_both_kept() -> None:
    """A merged oneof that still held both would drop the first of them from new records."""
    old = schema(Spec("a", 1, "int32", "oneof"), Spec("b", 2, "int32", "oneof"))
    new = schema(Spec("a", 1, "int32", "oneof"), Spec("b", 2, "int32", "optional"), Spec("c", 3, "int32", "oneof"))

    (merged,) = merge_messages(versions(old, new))

    assert events(merged, b"\x08\x05\x10\x06", b"\x10\x06\x18\x07") == [
        {"a": 5, "b": 6, "c": None},
        {"a": None, "b": 6, "c": 7},
    ]


def enum_version(label: str, *values: tuple[str, int], syntax: str = "proto3", alias: bool = False) -> MessageVersion:
    """Return a version with one field of an enum."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="game.v1", syntax=syntax)
    file.message_type.add(name="Event").field.add(name="k", number=1, label=1, type=14, type_name=".game.v1.Kind")
    enum = file.enum_type.add(name="Kind")
    for name, number in values:
        enum.value.add(name=name, number=number)
    if alias:
        enum.options.allow_alias = True
    return MessageVersion.of(label, described(file), EVENT)


def test_enums_take_new_values_and_the_newest_names() -> None:
    """A reader of v1 would show digits for what v2 added."""
    old, new = enum_version("v1", ("NONE", 0), ("RED", 1)), enum_version("v2", ("NONE", 0), ("CRIMSON", 1), ("BLUE", 2))

    (merged,) = merge_messages([old, new])

    found = events(merged, b"\x08\x00", b"\x08\x01", b"\x08\x02", b"\x08\x05", b"\x08" + b"\xff" * 9 + b"\x01")
    assert [row["k"] for row in found] == ["NONE", "CRIMSON", "BLUE", "5", "-1"]


def test_enums_whose_names_changed_places_are_refused() -> None:
    """All old records would show the other name."""
    old, new = (
        enum_version("v1", ("NONE", 0), ("RED", 1), ("BLUE", 2)),
        enum_version("v2", ("NONE", 0), ("BLUE", 1), ("RED", 2)),
    )

    first, _ = merge_messages([old, new])

    assert {(conflict.field, conflict.old, conflict.new) for conflict in first.refused} == {("k", "v1", "v2")}
    assert "BLUE was 2 and is 1" in first.refused[1].what or "BLUE was 2 and is 1" in first.refused[0].what


def test_a_refused_version_is_named_whichever_message_has_the_enum() -> None:
    """The conflict is how the version is found whose records are refused."""

    def version(label: str, fields: dict[str, int], *values: tuple[str, int]) -> MessageVersion:
        file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="game.v1", syntax="proto3")
        event, part = file.message_type.add(name="Event"), file.message_type.add(name="Part")
        part.field.add(name="k", number=1, label=1, type=14, type_name=".game.v1.Kind")
        for name, number in fields.items():
            of, kind = ("Kind", 14) if name == "k" else ("Part", 11)
            event.field.add(name=name, number=number, label=1, type=kind, type_name=f".game.v1.{of}")
        enum = file.enum_type.add(name="Kind")
        for value, number in values:
            enum.value.add(name=value, number=number)
        return MessageVersion.of(label, described(file), EVENT)

    old = version("v1", {"k": 1, "part": 2}, ("NONE", 0), ("RED", 1))

    first, _ = merge_messages([old, version("v2", {"k": 1}, ("NONE", 0), ("RED", 2))])

    (conflict,) = first.refused
    assert (conflict.old, conflict.new) == ("v1", "v2")


def test_enums_of_proto2_keep_numbers_without_a_name_and_show_the_first_of_two_names() -> None:
    """google sets such a number aside; the column would show nothing."""
    version = enum_version("v1", ("ONE", 1), ("UNO", 1), ("TWO", 2), syntax="proto2", alias=True)

    (merged,) = merge_messages([version])

    assert [row["k"] for row in events(merged, b"", b"\x08\x01", b"\x08\x07")] == [None, "ONE", "7"]


def test_required_fields_and_defaults_of_proto2_are_forgotten_and_extensions_are_fields() -> None:
    """A version that requires a field would refuse all records before it."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="game.v1", syntax="proto2")
    message = file.message_type.add(name="Event")
    message.field.add(name="a", number=1, label=PROTO.LABEL_REQUIRED, type=5)
    message.field.add(name="b", number=2, label=PROTO.LABEL_OPTIONAL, type=5, default_value="7")
    message.extension_range.add(start=100, end=200)
    file.extension.add(name="later", number=101, label=1, type=9, extendee=".game.v1.Event")

    (merged,) = merge_messages([MessageVersion.of("v1", described(file), EVENT)])

    assert events(merged, b"", b"\xaa\x06\x01x") == [
        {"a": None, "b": None, "later": None},
        {"a": None, "b": None, "later": "x"},
    ]


def test_a_message_set_is_refused_as_a_schema() -> None:
    """Its fields would be null in every row, without a word."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="game.v1", syntax="proto2")
    message = file.message_type.add(name="Event")
    message.options.message_set_wire_format = True
    message.extension_range.add(start=4, end=100)

    with pytest.raises(ValueError, match="message set"):
        MessageVersion.of("v1", described(file), EVENT)


PROTO2_GROUPS = """\
syntax = "proto2";
package game.v1;
message Event {
  optional int32 first = 1;
  repeated group Old = 2 {
    optional int32 first = 1;
    repeated group In = 3 { optional string text = 1; optional fixed64 wide = 2; }
    optional fixed32 narrow = 4;
  }
  oneof choice {
    group Chosen = 5 { optional int32 n = 1; }
    string text = 6;
  }
  optional Leaf leaf = 7;
  repeated Leaf leaves = 8;
  map<string, Leaf> by = 9;
  extensions 100 to 200;
  required int32 last = 20;
}
message Leaf {
  optional int32 n = 1;
  optional group Deep = 2 { optional Leaf leaf = 1; }
  optional Only only = 3;
}
message Only { optional group Alone = 1 { optional int32 n = 1; } }
extend Event { optional group Later = 101 { optional int32 n = 1; } }
"""
EDITION_GROUPS = """\
edition = "2023";
package game.v1;
option features.message_encoding = DELIMITED;
message Event {
  int32 first = 1;
  repeated Old old = 2;
  oneof choice { Old chosen = 5; string text = 6; }
  Leaf leaf = 7 [features.message_encoding = LENGTH_PREFIXED];
  repeated Leaf leaves = 8 [features.message_encoding = LENGTH_PREFIXED];
  map<string, Leaf> by = 9;
  extensions 100 to 200;
  int32 last = 20;
}
message Old { int32 first = 1; repeated Inner in = 3; fixed32 narrow = 4; }
message Inner { string text = 1; fixed64 wide = 2; }
message Leaf { int32 n = 1; Deep deep = 2; Only only = 3 [features.message_encoding = LENGTH_PREFIXED]; }
message Deep { Leaf leaf = 1; }
message Only { Alone alone = 1; }
message Alone { int32 n = 1; }
message Later { int32 n = 1; }
extend Event { Later later = 101; }
"""


@pytest.mark.parametrize("text", [PROTO2_GROUPS, EDITION_GROUPS], ids=["proto2", "edition"])
def test_a_group_alone_is_left_out(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without it one old field of a message makes dead letters of all its records."""
    files = compiled(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", text)))
    full = class_of(files)()
    full.first, full.last, full.text = -1, 300, "chosen"
    for _ in range(2):
        old = full.old.add(first=2**31 - 1, narrow=5)
        inner = getattr(old, "in").add(text="\x0b\x0c", wide=2**64 - 1)
        inner.text += "x" * 300
    full.leaf.n = 7
    full.leaf.deep.leaf.deep.leaf.n = 8
    full.leaf.only.alone.n = 9
    full.leaves.add(n=1).deep.leaf.n = 2
    full.leaves.add(n=3)
    full.by["a"].n = 4
    full.by["a"].deep.leaf.n = 5
    full.Extensions[full.DESCRIPTOR.file.extensions_by_name["later"]].n = 6
    grouped = class_of(files)(last=1)
    grouped.chosen.SetInParent()

    with caplog.at_level("WARNING", "router"):
        use = MessageUse.of(SchemaOrigin("games-value version 3 (schema 9)"), files, EVENT)
    read = make_message_reader(merge_messages([use.version])[0])
    payloads = [full.SerializeToString(), grouped.SerializeToString(), full.SerializeToString()[:-1], b"\x13", b"\x0b"]
    found = decode_payloads(pa.array(payloads, pa.binary()), read, count_unknown=True)

    first, second = found.events[:2].to_pylist()
    assert (first["first"], first["last"], first["text"]) == (full.first, full.last, full.text)
    assert first["leaf"] == {"n": 7, "only": {"_present": True}}
    assert first["leaves"] == [{"n": 1, "only": None}, {"n": 3, "only": None}]
    assert first["by"] == [("a", {"n": 4, "only": None})]
    assert {*first} == {"first", "text", "leaf", "leaves", "by", "last"}
    assert (second["last"], second["text"]) == (1, None)
    assert found.unknown == 2
    assert found.reasons.is_valid().to_pylist() == [False, False, True, True, True]
    warned = [record.getMessage() for record in caplog.records]
    assert all(warning.startswith("games-value version 3 (schema 9): ") for warning in warned)
    for field in ("Event.old", "Event.chosen", "Leaf.deep", "Only.alone", "later"):
        assert any(f"game.v1.{field} " in warning for warning in warned), field
    assert len(warned) == 5


def test_a_message_that_is_not_there_is_named_with_those_that_are() -> None:
    """A typing error in a configuration."""
    with pytest.raises(ValueError, match=r"'game.v1.Evnt'; there is game.v1.Event, "):
        MessageVersion.of("v1", descriptors_of(schema(Spec("a", 1, "int32"))), "game.v1.Evnt")


def test_map_keys_of_every_kind_survive() -> None:
    """Unsigned keys have no type of their own in Spark."""
    fields = [Spec(f"m{place}", place, "int32", key) for place, key in enumerate(KEYS, 1)]
    row = class_of(descriptors_of(schema(*fields)))()
    values: list[Any] = ["a", -1, 2**32 - 1, 2**64 - 1, -(2**63), 2**32 - 1, True]
    for place, value in enumerate(values, 1):
        getattr(row, f"m{place}")[value] = place

    (merged,) = merge_messages(versions(schema(*fields)))

    (event,) = events(merged, row.SerializeToString())
    assert [event[f"m{place}"] for place in range(1, 8)] == [[(value, place)] for place, value in enumerate(values, 1)]
