"""Avro schemas and the columns that Spark makes of them, without Spark."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from router_schemas.avro.model import text_of
from router_schemas.avro.parser import parse_text
from router_schemas.avro.spark_types import Mapped, map_schema
from router_schemas.model import REFUSED_CHARACTERS, column_names
from tests.schemas import avro_strategies as avro
from tests.schemas.avro_records import Json, avro_record


def columns(*fields: tuple[str, Json]) -> Mapped:
    """Return the columns of a record."""
    return map_schema(parse_text(json.dumps(avro_record(*fields))))


def logical(kind: str, logical_type: str, **more: Json) -> Json:
    """Return a logical type."""
    return {"type": kind, "logicalType": logical_type, **more}


# What from_avro of spark-avro 4.0.0 declares for the schemas that `map_schema` returns; run, not read.
TYPES: list[tuple[Json, str]] = [
    *((one, one) for one in ("boolean", "int", "float", "double", "string")),
    ("long", "bigint"),
    ("bytes", "binary"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
    ({"type": "fixed", "name": "F", "size": 2}, "binary"),
    ({"type": "array", "items": ["null", "int"]}, "array<int>"),
    ({"type": "map", "values": {"type": "array", "items": "long"}}, "map<string,array<bigint>>"),
    (avro_record(("a", "int"), name="R"), "struct<a:int>"),
    (["null", "string"], "string"),
    (["string"], "string"),
    (["int", "long"], "bigint"),
    (["null", "double", "float"], "double"),
    (["string", "int"], "struct<member0:string,member1:int>"),
    (["null", "bytes", avro_record(("a", "int"), name="R")], "struct<member0:binary,member1:struct<a:int>>"),
    (["int", "long", "string"], "struct<member0:int,member1:bigint,member2:string>"),
    (logical("int", "date"), "date"),
    (logical("long", "timestamp-millis"), "timestamp"),
    (logical("long", "timestamp-micros"), "timestamp"),
    (logical("long", "timestamp-nanos"), "bigint"),
    (logical("long", "local-timestamp-millis"), "timestamp_ntz"),
    (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
    (logical("long", "local-timestamp-nanos"), "bigint"),
    (logical("int", "time-millis"), "int"),
    (logical("long", "time-micros"), "bigint"),
    (logical("bytes", "decimal", precision=9, scale=2), "decimal(9,2)"),
    (logical("bytes", "decimal", precision=38), "decimal(38,0)"),
    (logical("bytes", "decimal", precision=39), "binary"),
    (logical("fixed", "decimal", name="F", size=3, precision=6), "decimal(6,0)"),
    (logical("fixed", "duration", name="F", size=12), "binary"),
    (logical("fixed", "uuid", name="F", size=16), "binary"),
    (logical("string", "uuid"), "string"),
    (logical("bytes", "big-decimal"), "binary"),
]


@pytest.mark.parametrize(("kind", "expected"), TYPES, ids=str)
def test_a_type_becomes_the_documented_column(kind: Json, expected: str) -> None:
    """The table is made with these types before the first row is decoded."""
    assert columns(("it", kind)).struct["it"].dataType.simpleString() == expected


@pytest.mark.parametrize("kind", ["time-millis", "time-micros", "timestamp-nanos"])
def test_spark_is_not_told_what_a_later_one_maps_otherwise(kind: str) -> None:
    """A column would change its type with the version of Spark."""
    whole = logical("int" if kind == "time-millis" else "long", kind)

    assert "logicalType" not in text_of(columns(("it", whole)).reader)


def test_doubles_in_an_array_are_read_as_nullable_ones() -> None:
    """Spark 4.0 rounds the others to floats, and does not say so."""
    inner = {"type": "map", "values": {"type": "array", "items": "double"}}

    found = columns(
        ("a", {"type": "array", "items": "double"}), ("m", inner), ("f", {"type": "array", "items": "float"})
    )

    assert found.struct.simpleString() == "struct<a:array<double>,m:map<string,array<double>>,f:array<float>>"
    kinds = [field["type"] for field in json.loads(text_of(found.reader))["fields"]]
    assert [kinds[0]["items"], kinds[1]["values"]["items"], kinds[2]["items"]] == [["null", "double"]] * 2 + ["float"]


@given(avro.lineages())
def test_everything_may_be_null(lineage: Any) -> None:
    """In PERMISSIVE mode Spark declares it so, and one CASE needs one type."""

    def check(kind: T.DataType) -> None:
        if isinstance(kind, T.StructType):
            assert all(field.nullable for field in kind)
            for field in kind:
                check(field.dataType)
        elif isinstance(kind, T.ArrayType):
            assert kind.containsNull
            check(kind.elementType)
        elif isinstance(kind, T.MapType):
            assert kind.valueContainsNull
            check(kind.valueType)

    with suppress(ValueError):  # a union with a record that happens to have no fields
        check(map_schema(parse_text(json.dumps(lineage[2][-1].schema))).struct)


def test_fields_without_values_have_no_column() -> None:
    """Delta can keep neither a column of nulls nor a struct without fields, and would refuse the batch."""
    empty = avro_record(name="Empty")
    inner = avro_record(("gone", "null"), ("kept", "int"), name="Inner")

    found = columns(
        ("nothing", "null"),
        ("nothings", {"type": "array", "items": "null"}),
        ("empty", ["null", empty]),
        ("empties", {"type": "map", "values": "Empty"}),
        ("inner", inner),
    )

    assert found.struct.simpleString() == "struct<inner:struct<kept:int>>"
    assert found.left_out == ("Event.nothing", "Event.nothings", "Event.empty", "Event.empties", "Inner.gone")
    assert "nothing" not in text_of(found.reader)


def test_names_that_differ_by_case_become_two_columns() -> None:
    """Spark finds neither of them otherwise, and every row would come out null."""
    inner = {"type": "array", "items": avro_record(("a", "int"), ("A", "int"), name="Inner")}

    found = columns(("id", "int"), ("ID", "string"), ("in", inner))

    other, inside = column_names(["id", "ID"])["ID"], column_names(["a", "A"])["A"]
    assert found.struct.simpleString() == f"struct<id:int,{other}:string,in:array<struct<a:int,{inside}:int>>>"
    assert found.renamed == {"Event.ID": other, "Inner.A": inside}
    fields = json.loads(text_of(found.reader))["fields"]
    assert fields[1] == {"name": other, "type": "string", "aliases": ["ID"]}


def test_a_renamed_column_still_reads_what_was_written() -> None:
    """The alias is what leads from the record to the column."""
    schema = avro_record(("id", "int"), ("ID", "string"))
    found = columns(("id", "int"), ("ID", "string"))

    row = avro.read(avro.written(schema, {"id": 1, "ID": "x"}), schema, text_of(found.reader))

    assert row == {"id": 1, found.renamed["Event.ID"]: "x"}


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (avro_record(("a", ["null", "Event"])), "Event.a"),
        (avro_record(("a", {"type": "array", "items": "Event"})), "Event.a[]"),
        (avro_record(("a", avro_record(("b", {"type": "map", "values": "B"}), name="B"))), "Event.a.b{}"),
    ],
    ids=["itself", "items", "values"],
)
def test_a_recursive_type_is_refused_by_its_place(schema: Json, where: str) -> None:
    """Spark would fail when the plan is made, and every batch with it."""
    with pytest.raises(ValueError, match="contains itself") as caught:
        map_schema(parse_text(json.dumps(schema)))

    assert str(caught.value).startswith(f"{where}: ")


@pytest.mark.parametrize(
    "schema", ["int", {"type": "array", "items": "int"}, avro_record(), avro_record(("a", "null"))], ids=str
)
def test_an_event_is_a_record_with_fields(schema: Json) -> None:
    """There would be a table without columns."""
    with pytest.raises(ValueError, match="an event is a record"):
        map_schema(parse_text(json.dumps(schema)))


def test_a_union_with_a_member_that_cannot_be_kept_is_refused() -> None:
    """Leaving the member out would move the others to each other's columns."""
    with pytest.raises(ValueError, match=r"^Event\.a: .*member"):
        columns(("a", ["int", "string", avro_record(name="Empty")]))


def test_an_event_may_be_one_of_several_records() -> None:
    """Some topics have a union of the records that they carry."""
    union = [avro_record(("a", "int"), name="A"), avro_record(("b", "int"), name="B")]

    struct = map_schema(parse_text(json.dumps(union))).struct

    assert struct.simpleString() == "struct<member0:struct<a:int>,member1:struct<b:int>>"


def test_a_small_schema_cannot_describe_millions_of_columns() -> None:
    """Thirty lines in a registry would take the driver's memory."""
    imports = {"T0": json.dumps(avro_record(("x", "int"), name="T0"))}
    for level in range(1, 30):
        pair = avro_record(("l", f"T{level - 1}"), ("r", f"T{level - 1}"), name=f"T{level}")
        imports[f"T{level}"] = json.dumps(pair)

    with pytest.raises(ValueError, match="columns"):
        map_schema(parse_text('"T29"', imports))


def test_a_flat_text_cannot_describe_endless_levels() -> None:
    """Each type names the one before it, so no place of the text is deep, but the struct is."""
    types = [avro_record(("x", f"T{n - 1}" if n else "int"), name=f"T{n}") for n in range(150)]

    with pytest.raises(ValueError, match="levels"):
        columns(*((f"f{n}", one) for n, one in enumerate(types)))


@given(st.lists(st.text(max_size=4), unique=True), st.text(max_size=4))
def test_columns_are_distinct_and_stay_when_a_field_is_added(names: list[str], added: str) -> None:
    """A column that changes its name with a new version would split the table's history."""
    found = column_names(names)

    assert list(found) == names
    assert len({column.lower() for column in found.values()}) == len(names)
    assert not any(REFUSED_CHARACTERS.search(column) or not column for column in found.values())
    if added not in names:
        assert {name: column for name, column in column_names([*names, added]).items() if name != added} == found


def test_an_ordinary_name_is_its_column() -> None:
    """Nobody wants to look up what a column is called."""
    assert column_names(["id", "big win", "ID", "größe"]) == {
        "id": "id",
        "big win": "big_win",
        "ID": "ID__384397",
        "größe": "größe",
    }
