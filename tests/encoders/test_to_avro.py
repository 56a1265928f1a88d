"""Rows written as Avro are read, by Avro's other libraries and by the router, as what they were."""

from __future__ import annotations

import io
import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from router_schemas.avro.encode import record_writer
from router_schemas.avro.model import NULL, Array, AvroRecord, MapOf, Ref, Union, text_of
from router_schemas.avro.parser import parse_text
from router_schemas.avro.spark_types import derive_schema, map_schema
from router_schemas.model import column_names
from tests.encoders.columns import OF_AVRO, encoded, plain, rows_of, struct, tables
from tests.schemas import avro_strategies as avro

UTC = timezone.utc
IDS, LIST, TEXT = T.LongType(), T.ArrayType(T.IntegerType()), T.StringType()


def read(schema: Any, data: bytes) -> Any:
    """Return what fastavro reads, which has to be all there is."""
    source = io.BytesIO(data)
    found = fastavro.schemaless_reader(source, fastavro.parse_schema(schema))
    assert source.read() == b""
    return found


def as_pairs(kind: T.DataType, value: Any) -> Any:
    """Return a value that fastavro read with maps as Spark has them."""
    if value is None:
        return None
    if isinstance(kind, T.StructType):
        return {one.name: as_pairs(one.dataType, value[one.name]) for one in kind}
    if isinstance(kind, T.ArrayType):
        return [as_pairs(kind.elementType, one) for one in value]
    if isinstance(kind, T.MapType):
        return [(key, as_pairs(kind.valueType, one)) for key, one in value.items()]
    return value


@given(tables(OF_AVRO, nested=True, nulls=True), st.data())
def test_a_row_is_read_as_it_was_written(table: Any, data: st.DataObject) -> None:
    """Without it a consumer sees other values than the table beside the topic."""
    columns, values = table
    rows = data.draw(st.lists(values, min_size=1, max_size=4))
    schema = derive_schema(columns, "games.Event")
    text = json.loads(text_of(schema))

    written = record_writer(schema, columns)(rows_of(columns, rows))

    assert [plain(as_pairs(columns, read(text, one))) for one in written] == [plain(row) for row in rows]


@given(tables(OF_AVRO, nested=True, nulls=True))
def test_a_schema_made_for_columns_is_read_as_these_columns(table: Any) -> None:
    """Without it an event that goes round through the router changes its table."""
    columns, _ = table
    wider = {"tinyint": "int", "smallint": "int"}

    found = map_schema(parse_text(text_of(derive_schema(columns, "games.Event")))).struct

    expected = columns.simpleString()
    for narrow, wide in wider.items():
        expected = expected.replace(narrow, wide)
    assert found.simpleString() == expected


@given(st.data())
def test_events_go_back_into_the_schema_they_were_read_with(data: st.DataObject) -> None:
    """Without it a topic cannot be filtered into another one with the producer's own schema."""
    text, values = data.draw(avro.records(avro.Names(), 3))
    schema = parse_text(json.dumps(text))
    try:
        columns = map_schema(schema).struct
        write = record_writer(schema, columns)
    except ValueError:  # nothing but nulls and records without fields: there is no column for them
        return
    rows = data.draw(st.lists(values, min_size=1, max_size=3))
    events = [event(schema, schema.root, columns, row) for row in rows]

    written = write(rows_of(columns, events))

    assert [event(schema, schema.root, columns, read(text, one)) for one in written] == events


def event(schema: Any, kind: Any, column: T.DataType, value: Any) -> Any:
    """Return a value of Avro as Spark has it."""
    if isinstance(kind, Union) and value is not None:
        others = [branch for branch in kind.branches if branch != NULL]
        if isinstance(column, T.StructType) and column.names[:1] == ["member0"]:
            kinds = {"string": str, "boolean": bool, "long": int}
            mine = [type(value) is kinds[branch.name] for branch in others]
            return {f"member{place}": value if own else None for place, own in enumerate(mine)}
        return event(schema, others[0], column, value)
    if value is None or isinstance(kind, Union):
        return value
    if isinstance(kind, Array):
        return [event(schema, kind.items, column.elementType, one) for one in value]
    if isinstance(kind, MapOf):
        return [(key, event(schema, kind.values, column.valueType, one)) for key, one in value.items()]
    if isinstance(kind, Ref) and isinstance(record_text := schema.types[kind.name], AvroRecord):
        called = column_names(field.name for field in record_text.fields)
        kept = [field for field in record_text.fields if called[field.name] in column.names]
        return {
            called[field.name]: event(schema, field.type, column[called[field.name]].dataType, value[field.name])
            for field in kept
        }
    return value


def record_text(**fields: Any) -> str:
    """Return the text of a record."""
    members = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Event", "namespace": "games", "fields": members})


def logical(kind: str, name: str, **more: Any) -> Any:
    """Return a logical type."""
    return {"type": kind, "logicalType": name, **more}


FITS: list[tuple[T.DataType, Any, Any, Any]] = [
    (T.IntegerType(), "long", 5, 5),
    (T.ByteType(), "int", -5, -5),
    (T.FloatType(), "double", 0.5, 0.5),
    (TEXT, {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    (TEXT, ["int", "null", "string"], "a", "a"),
    (T.BinaryType(), {"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
    (T.DecimalType(5, 2), logical("bytes", "decimal", precision=8, scale=4), Decimal("-1.25"), Decimal("-1.2500")),
    (
        T.DecimalType(5, 2),
        {**logical("fixed", "decimal", precision=5, scale=2), "name": "F", "size": 4},
        Decimal("-999.99"),
        Decimal("-999.99"),
    ),
    (
        T.TimestampType(),
        logical("long", "timestamp-millis"),
        datetime(1960, 1, 1, 0, 0, 0, 1000, UTC),
        datetime(1960, 1, 1, 0, 0, 0, 1000, UTC),
    ),
    (struct(member0=TEXT, member1=T.IntegerType()), ["string", "int"], {"member0": None, "member1": 3}, 3),
]


@pytest.mark.parametrize(("kind", "schema", "value", "expected"), FITS, ids=lambda one: str(one)[:40])
def test_a_column_goes_into_a_wider_type(kind: T.DataType, schema: Any, value: Any, expected: Any) -> None:
    """Without it only schemas made by the router can be written."""
    columns, text = struct(a=kind), record_text(a=schema)

    (written,) = record_writer(parse_text(text), columns)(rows_of(columns, [{"a": value}]))

    assert read(json.loads(text), written) == {"a": expected}


MISFITS: list[tuple[T.StructType, str, str]] = [
    (struct(a=IDS), record_text(a="int"), "field a: the column is bigint, and the schema has int"),
    (struct(a=IDS), record_text(a="double"), "field a: the column is bigint, and the schema has double"),
    (struct(a=T.DoubleType()), record_text(a="float"), "field a"),
    (struct(a=TEXT), record_text(a="bytes"), "field a"),
    (struct(a=TEXT), record_text(a=["null", "int"]), "field a: the column is string, and the schema has int"),
    (struct(a=TEXT), record_text(a=["null", "int", "long"]), "field a: .* a union of null, int, long"),
    (struct(a=T.TimestampType()), record_text(a="long"), "field a"),
    (struct(a=IDS), record_text(a=logical("long", "timestamp-micros")), "field a"),
    (struct(a=T.DecimalType(9, 2)), record_text(a=logical("bytes", "decimal", precision=9, scale=1)), "field a"),
    (struct(a=T.DecimalType(9, 2)), record_text(a=logical("bytes", "decimal", precision=9, scale=3)), "field a"),
    (struct(a=LIST), record_text(a={"type": "array", "items": "string"}), r"field a\[\]"),
    (struct(a=T.MapType(IDS, TEXT)), record_text(a={"type": "map", "values": "string"}), "field a"),
    (struct(a=IDS, b=TEXT), record_text(a="long"), "field b: record games.Event has no field for this column"),
    (struct(a=IDS), record_text(a="long", b="string"), "field b: no column is written to it"),
    (
        struct(a=struct(b=IDS)),
        record_text(a={**json.loads(record_text(c="long")), "name": "A"}),
        "field a.b: record games.A",
    ),
    (struct(a=IDS), json.dumps("long"), "the schema: the column is struct"),
]


@pytest.mark.parametrize(("columns", "text", "what"), MISFITS, ids=lambda one: str(one)[:60])
def test_a_column_without_a_place_is_named(columns: T.StructType, text: str, what: str) -> None:
    """Without it a stream starts that refuses every row, or writes wrong values."""
    with pytest.raises(ValueError, match=what):
        record_writer(parse_text(text), columns)


BROKEN: list[tuple[T.DataType, Any, list[Any], str]] = [
    (IDS, "long", [1, None, 3], "field a: it is null"),
    (LIST, {"type": "array", "items": "int"}, [[1], [2, None], []], r"field a\[\]: it is null"),
    (
        TEXT,
        {"type": "enum", "name": "E", "symbols": ["A"]},
        ["A", "B", "A"],
        "field a: enum games.E has no such symbol",
    ),
    (T.BinaryType(), {"type": "fixed", "name": "F", "size": 1}, [b"a", b"", b"b"], "field a: the schema takes 1 bytes"),
    (
        T.TimestampType(),
        logical("long", "timestamp-millis"),
        [datetime(2026, 1, 1, 0, 0, 0, micros, UTC) for micros in (0, 1, 1000)],
        "microseconds",
    ),
    (
        struct(member0=TEXT, member1=IDS),
        ["string", "long"],
        [{"member0": "a", "member1": None}, {"member0": "a", "member1": 1}, {"member0": None, "member1": 1}],
        "of the members of a union one has a value",
    ),
]


@pytest.mark.parametrize(("kind", "schema", "values", "what"), BROKEN, ids=lambda one: str(one)[:40])
def test_a_value_that_cannot_be_written_is_one_row_without_a_value(
    kind: T.DataType, schema: Any, values: list[Any], what: str
) -> None:
    """Without it one row stops the stream, takes its neighbours with it, or is written as something else."""
    columns, text = struct(a=kind), record_text(a=schema)
    write = record_writer(parse_text(text), columns)

    found = encoded(rows_of(columns, [{"a": value} for value in values]), write)

    assert [value is None for value in found.values] == [False, True, False]
    assert list(found.reasons) == [1]
    assert what.replace("\\", "") in found.reasons[1]
    good = write(rows_of(columns, [{"a": values[0]}, {"a": values[2]}]))
    assert [found.values[0], found.values[2]] == good


def test_a_name_that_avro_refuses_is_named() -> None:
    """Without it the registry refuses the schema with a riddle."""
    with pytest.raises(ValueError, match=r"field a\.größe: a name in Avro"):
        derive_schema(struct(a=struct(größe=IDS)), "games.Event")
    with pytest.raises(ValueError, match=r"field a\{\}: Avro has no type"):
        derive_schema(struct(a=T.MapType(TEXT, T.MapType(IDS, TEXT))), "games.Event")
