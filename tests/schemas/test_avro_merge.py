"""Versions of an Avro record merged into one reader's schema, against fastavro's resolution."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_schemas.avro.library import reader_text, writer_text
from router_schemas.avro.merge import MergedRecord, RecordVersion, merge_records
from router_schemas.avro.model import VALUE_END_BYTES, text_of
from router_schemas.avro.parser import parse_text
from tests.light import drawn
from tests.schemas import avro_strategies as avro
from tests.schemas.avro_records import Json, avro_record


def merged(*schemas: Json) -> MergedRecord:
    """Merge versions called v1, v2, ..."""
    return merge_records([RecordVersion(f"v{n}", parse_text(json.dumps(one))) for n, one in enumerate(schemas, 1)])


def reader(*schemas: Json) -> Json:
    """Return the reader's schema of versions that can be merged."""
    found = merged(*schemas)
    assert found.conflicts == ()
    return json.loads(text_of(found.reader))


def one_type(*types: Json) -> Json:
    """Return what the types of one field in several versions become."""
    (field,) = reader(*(avro_record(("it", kind)) for kind in types))["fields"]
    return field["type"]


@settings(max_examples=drawn(250))
@given(avro.lineages())
def test_every_version_reads_as_it_was_written(lineage: tuple[avro.Struct, avro.History, list[avro.Version]]) -> None:
    """A wrong value in a column would never be noticed; a missing one has to be null, and not another's default."""
    template, history, versions = lineage

    text = json.dumps(reader(*(version.schema for version in versions)))

    for version in versions:
        for value, expected in zip(version.writes, version.expected, strict=True):
            found = avro.read(avro.written(version.schema, value), version.schema, text)
            assert avro.same(expected, avro.by_number(template, history, found))


@settings(max_examples=drawn(250))
@given(st.data())
def test_strangers_are_refused_or_read_right(data: st.DataObject) -> None:
    """Somebody may register anything under a subject without a compatibility rule."""
    drawn = [data.draw(avro.records(avro.Names())) for _ in range(data.draw(st.integers(2, 3)))]

    found = merged(*(schema for schema, _ in drawn))

    refused = {conflict.new for conflict in found.conflicts}
    assert "v1" not in refused
    for label, (schema, values) in enumerate(drawn, 1):
        if f"v{label}" not in refused:
            value = data.draw(values)
            assert avro.same(value, avro.read(avro.written(schema, value), schema, text_of(found.reader)))


@settings(max_examples=drawn(100))
@given(avro.lineages())
def test_the_same_versions_again_change_nothing(lineage: Any) -> None:
    """A schema registered under two ids must not widen anything, or columns would come and go."""
    schemas = [version.schema for version in lineage[2]]

    assert reader(*schemas, schemas[-1]) == reader(*schemas)


@settings(max_examples=drawn(100))
@given(avro.lineages(), st.binary(min_size=1, max_size=12))
def test_a_record_that_is_cut_or_followed_by_bytes_is_found(lineage: Any, tail: bytes) -> None:
    """Spark reads both without a word, the one as nulls, the other as a good record."""
    template, history, versions = lineage
    writers = [parse_text(json.dumps(version.schema)) for version in versions]
    reader = merge_records([RecordVersion(f"v{n}", writer) for n, writer in enumerate(writers)]).reader
    frame = reader_text(reader)

    for version, writer in zip(versions, writers, strict=True):
        good, text = avro.written(version.schema, version.writes[0]), json.loads(writer_text(writer, reader))
        whole = avro.read(good + VALUE_END_BYTES, text, frame)
        assert whole["end"] == VALUE_END_BYTES
        assert avro.same(version.expected[0], avro.by_number(template, history, whole["value"]))
        for cut in range(len(good)):
            with pytest.raises((EOFError, ValueError, IndexError)):
                avro.read(good[:cut] + VALUE_END_BYTES, text, frame)
        if not (tail + VALUE_END_BYTES).startswith(VALUE_END_BYTES):
            assert avro.read(good + tail + VALUE_END_BYTES, text, frame)["end"] != VALUE_END_BYTES


def test_a_schema_with_the_envelopes_names_is_refused() -> None:
    """Two types of one name would be read as each other."""
    with pytest.raises(ValueError, match="Router_end"):
        reader_text(parse_text(json.dumps(avro_record(("it", {"type": "fixed", "name": "Router_end", "size": 3})))))


def test_a_writer_is_told_to_spark_in_the_readers_names() -> None:
    """Avro's Java library has no alias for a name without namespace; the rows would all be dead letters."""
    suit = {"type": "enum", "name": "Suit", "symbols": ["HEARTS"]}
    old = avro_record(("was", "int"), ("s", suit), name="Event")
    new = avro_record({"name": "is", "type": "int", "aliases": ["was"]}, ("s", suit), name="Event", namespace="cards")
    reader = merged(old, new).reader

    text = writer_text(parse_text(json.dumps(old)), reader)

    (value, _) = json.loads(text)["fields"]
    assert value["type"]["name"] == "cards.Event"
    assert [field["name"] for field in value["type"]["fields"]] == ["is", "s"]
    assert "aliases" not in text + reader_text(reader)


@pytest.mark.parametrize(
    "writer",
    [
        avro_record(("a", "int"), ("b", "int")),
        avro_record(("a", avro_record(name="Old")), ("c", avro_record(name="New"))),
    ],
    ids=["fields", "types"],
)
def test_a_writer_with_two_names_for_one_of_the_reader_is_refused(writer: Json) -> None:
    """The bytes of the one would be read as the other."""
    renamed = {"name": "b", "type": ["null", avro_record(name="New", aliases=["Old"])], "aliases": ["a"]}

    with pytest.raises(ValueError, match="two"):
        writer_text(parse_text(json.dumps(writer)), parse_text(json.dumps(avro_record(renamed))))


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["int", "long"], "long"),
        (["long", "int"], "long"),
        (["int", "float"], "double"),
        (["float", "double", "int"], "double"),
        (["string", "bytes"], "bytes"),
        (["bytes", "string"], "bytes"),
        (["int", ["null", "long"]], ["null", "long"]),
        ([["string", "null"], "string"], ["null", "string"]),
        (["null", "int"], ["null", "int"]),
        ([["int", "long"], "int"], "long"),
        ([["string"], "string"], "string"),
        ([["string", "int"], ["null", "int", "string"]], ["null", "string", "int"]),
        ([["string", "int"], ["string", "int", "boolean"]], ["string", "int", "boolean"]),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": ["null", "long"]}], ["null", "long"]),
        ([{"type": "map", "values": "int"}, {"type": "map", "values": "double"}], "double"),
        ([{"type": "string", "logicalType": "uuid"}, "string"], "string"),
        ([{"type": "string", "logicalType": "uuid"}, "bytes"], "bytes"),
    ],
    ids=str,
)
def test_a_column_gets_the_wider_type(types: list[Json], expected: Json) -> None:
    """Without it a topic would need a table per version."""
    found = one_type(*types)

    assert (found.get("items") or found["values"] if isinstance(found, dict) else found) == expected


def decimal(precision: int, scale: int, kind: str = "bytes") -> Json:
    """Return a decimal."""
    return {"type": kind, "logicalType": "decimal", "precision": precision, "scale": scale}


def timestamp(unit: str) -> Json:
    """Return a timestamp."""
    return {"type": "long", "logicalType": f"timestamp-{unit}"}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("string", "int", "string became int"),
        ("long", "double", "round"),
        ("float", "long", "round"),
        ("boolean", "int", "boolean became int"),
        ("string", {"type": "enum", "name": "E", "symbols": ["A"]}, "string became enum E"),
        ("bytes", {"type": "fixed", "name": "F", "size": 2}, "bytes became fixed F"),
        ("string", ["string", "int"], "string became a union of string, int"),
        (["string", "int"], ["null", "string"], "union"),
        ("string", {"type": "array", "items": "string"}, "an array"),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "an array became a map"),
        (avro_record(name="A"), avro_record(name="B"), "record A became record B"),
        (avro_record(name="A"), {"type": "enum", "name": "A", "symbols": []}, "record A became enum A"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "2 bytes became 3"),
        (timestamp("millis"), timestamp("micros"), "timestamp-millis became timestamp-micros"),
        ("long", timestamp("micros"), "none became timestamp-micros"),
        ("int", timestamp("millis"), "int became long"),
        ({"type": "int", "logicalType": "date"}, "long", "int (date) became long"),
        (decimal(4, 2), decimal(4, 1), "decimal(4,2) became decimal(4,1)"),
        (decimal(4, 2), "string", "became string"),
    ],
    ids=str,
)
def test_what_would_be_read_wrong_is_refused(old: Json, new: Json, what: str) -> None:
    """Avro's own rules let some of these through, and the column would hold other values than were sent."""
    found = merged(avro_record(("it", old)), avro_record(("it", new)))

    (conflict,) = found.conflicts
    assert (conflict.field, conflict.old, conflict.new) == ("it", "v1", "v2")
    assert what in conflict.what


def test_decimals_of_one_scale_get_the_larger_precision() -> None:
    """A price that grew by a digit is no other price."""
    assert one_type(decimal(4, 2), decimal(9, 2), decimal(6, 2))["precision"] == 9


def test_an_added_field_is_null_where_it_was_not_written() -> None:
    """A default of the new version would make up values that nobody sent."""
    found = reader(avro_record(("a", "int")), avro_record(("a", "int"), {"name": "b", "type": "int", "default": 7}))

    assert found["fields"] == [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "int"], "default": None},
    ]


def test_a_removed_field_stays() -> None:
    """Older records still come out of the topic, with values in it."""
    found = reader(avro_record(("a", "int"), ("b", "int")), avro_record(("a", "int")))

    assert [field["type"] for field in found["fields"]] == ["int", ["null", "int"]]


def test_a_renamed_field_is_one_column_with_its_newest_name() -> None:
    """Two half-empty columns would make every query ask both."""
    renamed = {"name": "amount", "type": "long", "aliases": ["sum"]}
    again = {"name": "total", "type": "long", "aliases": ["amount"]}

    (field,) = reader(avro_record(("sum", "int")), avro_record(renamed), avro_record(again))["fields"]

    assert (field["name"], field["type"]) == ("total", "long")
    assert sorted(field["aliases"]) == ["amount", "sum"]


def test_a_field_beside_its_own_alias_is_another_column() -> None:
    """While a producer writes both names, each column holds what was written under its name."""
    both = avro_record(("sum", "int"), {"name": "amount", "type": "int", "aliases": ["sum"]})

    assert [field["name"] for field in reader(avro_record(("sum", "int")), both)["fields"]] == ["sum", "amount"]


def test_a_former_name_beside_the_new_one_is_refused() -> None:
    """Both fields would be one column, and one value lost."""
    renamed = avro_record({"name": "amount", "type": "int", "aliases": ["sum"]})

    found = merged(avro_record(("sum", "int")), renamed, avro_record(("sum", "int"), ("amount", "int")))

    assert [(conflict.old, conflict.new) for conflict in found.conflicts] == [("v1", "v3")]
    assert "sum" in found.conflicts[0].what


def test_a_name_that_comes_back_is_the_same_column() -> None:
    """A rename that was taken back must not make a second column."""
    renamed = avro_record({"name": "amount", "type": "int", "aliases": ["sum"]})

    (field,) = reader(avro_record(("sum", "int")), renamed, avro_record(("sum", "int")))["fields"]

    assert (field["name"], field["aliases"]) == ("sum", ["amount"])


def test_a_record_in_another_namespace_is_the_same_record() -> None:
    """Companies rename packages; the tables stay."""
    found = reader(avro_record(("a", "int"), namespace="old"), avro_record(("b", "int"), namespace="new.owner"))

    assert (found["name"], found["aliases"]) == ("new.owner.Event", ["old.Event"])


def test_a_type_used_in_two_places_is_merged_for_both() -> None:
    """A name has one definition in a schema, so a field added in one place is there in the other."""
    small, large = avro_record(("x", "int"), name="Point"), avro_record(("x", "int"), ("y", "int"), name="Point")

    found = reader(avro_record(("from", small)), avro_record(("to", large), ("from", "Point")))

    assert [field["name"] for field in found["fields"]] == ["from", "to"]
    assert [field["name"] for field in found["fields"][0]["type"]["fields"]] == ["x", "y"]


@pytest.mark.parametrize("split", [True, False], ids=["one became two", "two became one"])
def test_types_that_split_or_join_are_refused(split: bool) -> None:
    """One name would stand for two layouts, and the one be read as the other."""
    two = avro_record(
        ("p", avro_record(("x", "int"), name="a.Point")), ("q", avro_record(("x", "int"), name="b.Point"))
    )
    one = avro_record(("p", avro_record(("x", "int"), name="c.Point")), ("q", "c.Point"))

    found = merged(one, two) if split else merged(two, one)

    assert [conflict.field for conflict in found.conflicts] == ["q"]


def test_the_finding_names_the_version_that_shaped_the_field() -> None:
    """Whoever repairs it has to know which two versions to look at."""
    found = merged(
        avro_record(("p", avro_record(("x", "int"), name="P"))),
        avro_record(("p", avro_record(("x", "long"), name="P"))),
        avro_record(("p", avro_record(("x", "string"), name="P"))),
    )

    (conflict,) = found.conflicts
    assert (conflict.field, conflict.old, conflict.new) == ("p.x", "v2", "v3")
    assert str(conflict) == "field 'p.x' differs between v2 and v3: long became string"


def test_paths_step_into_arrays_and_maps() -> None:
    """A conflict inside of a list must be found in the schema."""
    inside = {"type": "map", "values": {"type": "array", "items": "int"}}
    other = {"type": "map", "values": {"type": "array", "items": "string"}}

    assert merged(avro_record(("m", inside)), avro_record(("m", other))).conflicts[0].field == "m{}[]"


def test_versions_left_out_can_be_merged_with_each_other() -> None:
    """They are the next class; the versions after them that fit are not lost."""
    versions = [avro_record(("a", kind)) for kind in ("int", "string", "long", "bytes")]

    found = merged(*versions)

    assert [conflict.new for conflict in found.conflicts] == ["v2", "v4"]
    assert merged(versions[1], versions[3]).conflicts == ()


def test_a_recursive_record_is_merged() -> None:
    """The columns cannot have it, but the conflict must say that and the driver must not hang."""
    first = avro_record(("next", ["null", "Event"]), ("a", "int"))
    second = avro_record(("next", ["null", "Event"]), ("a", "long"))

    found = reader(first, second)

    assert [field["type"] for field in found["fields"]] == [["null", "Event"], "long"]


def test_a_thousand_types_in_ten_versions_take_seconds_at_most() -> None:
    """A batch waits for it."""
    types = [avro_record((f"f{n}", "int"), name=f"T{n}") for n in range(1000)]
    versions = [avro_record(*((f"t{n}", one) for n, one in enumerate(types[: 100 * (v + 1)]))) for v in range(10)]

    assert len(reader(*versions)["fields"]) == 1000
