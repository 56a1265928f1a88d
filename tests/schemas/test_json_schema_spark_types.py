"""JSON Schema to Spark types and back, without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from router_schemas.json_schema.spark_types import TypeMapping, json_schema_of

PLAYER = {"type": "object", "properties": {"id": {"type": "string"}}}


def struct_of(document: Any) -> T.StructType:
    """Return the struct of a schema file's document."""
    return TypeMapping(document).root_struct()


def mapped(schema: Any, **document: Any) -> str:
    """Return the Spark type of one property."""
    return struct_of({"type": "object", "properties": {"it": schema}, **document})["it"].dataType.simpleString()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "integer"}, "bigint"),
        ({"type": "integer", "format": "int32"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        (PLAYER, "struct<id:string>"),
        ({"properties": {"id": {"type": "integer"}}}, "struct<id:bigint>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
        ({**PLAYER, "additionalProperties": False}, "struct<id:string>"),
        ({**PLAYER, "additionalProperties": {"type": "integer"}}, "struct<id:string>"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "array<array<bigint>>"),
        ({"items": PLAYER}, "array<struct<id:string>>"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": ["string", "null"], "format": "date-time"}, "timestamp"),
        ({"type": ["integer", "number"]}, "double"),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "boolean"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "maxLength": 3}, {"const": None}]}, "string"),
        ({"anyOf": [PLAYER, {"enum": [None]}]}, "struct<id:string>"),
        ({"allOf": [{"$ref": "#/$defs/player"}], "description": "who"}, "struct<id:string>"),
        ({"$ref": "#/$defs/player"}, "struct<id:string>"),
        ({"$ref": "#/$defs/a~1b%20c"}, "date"),
        ({"$ref": "#/$defs/list/1"}, "boolean"),
        ({"type": "array", "items": {"$ref": "#/$defs/player"}}, "array<struct<id:string>>"),
        ({"enum": ["red", "black"]}, "string"),
        ({"enum": ["red", None]}, "string"),
        ({"enum": [1, 2.5]}, "double"),
        ({"const": True}, "boolean"),
    ],
    ids=str,
)
def test_a_schema_has_the_documented_type(schema: dict[str, Any], expected: str) -> None:
    """A wrong type would send every record of a topic to dead letters."""
    defs = {"player": PLAYER, "a/b c": {"type": "string", "format": "date"}, "list": [{}, {"type": "boolean"}]}

    assert mapped(schema, **{"$defs": defs}) == expected


@pytest.mark.parametrize(
    ("schema", "pointer", "word"),
    [
        ({}, "#/properties/it", "none"),
        (True, "#/properties/it", "true"),
        ({"type": "null"}, "#/properties/it", "none"),
        ({"type": "text"}, "#/properties/it", "text"),
        ({"type": 5}, "#/properties/it", "a name or a list of names"),
        ({"type": None}, "#/properties/it", "a name or a list of names"),
        ({"enum": 5}, "#/properties/it", "none"),
        ({"type": ["string", "integer"]}, "#/properties/it", "integer or string"),
        ({"enum": ["a", 1]}, "#/properties/it", "integer or string"),
        ({"type": "object"}, "#/properties/it", "properties"),
        ({"type": "object", "additionalProperties": True}, "#/properties/it", "additionalProperties"),
        ({"type": "object", "properties": ["a"]}, "#/properties/it/properties", "object"),
        ({"type": "array"}, "#/properties/it", "items"),
        ({"type": "array", "prefixItems": [{}], "items": {"type": "string"}}, "#/properties/it", "items"),
        ({"type": "array", "items": {"type": "x"}}, "#/properties/it/items", "x"),
        ({"type": "object", "additionalProperties": {"type": "x"}}, "#/properties/it/additionalProperties", "x"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "#/properties/it/oneOf", "string or bigint"),
        ({"oneOf": [{"type": "null"}]}, "#/properties/it/oneOf", "null only"),
        ({"anyOf": []}, "#/properties/it/anyOf", "list"),
        ({"anyOf": [{"type": "x"}]}, "#/properties/it/anyOf/0", "x"),
        ({"allOf": [PLAYER, PLAYER]}, "#/properties/it/allOf", "merged"),
        ({"$ref": "#/$defs/missing"}, "#/properties/it", "missing"),
        ({"$ref": "other.json#/a"}, "#/properties/it", "other.json"),
        ({"$ref": "#"}, "#/properties/it", "itself"),
        ({"$ref": "#/$defs/tree"}, "#/$defs/tree/properties/left", "itself"),
        ({"$ref": "#/$defs/ping"}, "#/$defs/pong/items", "itself"),
        ({"properties": {"a/b": {"type": "x"}}}, "#/properties/it/properties/a~1b", "x"),
    ],
    ids=str,
)
def test_what_cannot_be_mapped_is_named_by_its_pointer(schema: Any, pointer: str, word: str) -> None:
    """Without the pointer nobody finds the place in a schema of a thousand lines."""
    defs = {
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}},
        "ping": {"type": "array", "items": {"$ref": "#/$defs/pong"}},
        "pong": {"type": "array", "items": {"$ref": "#/$defs/ping"}},
    }

    with pytest.raises(ValueError, match=word) as caught:
        mapped(schema, **{"$defs": defs})

    assert str(caught.value).startswith(f"{pointer}: ")


@pytest.mark.parametrize("document", [[], "x", {"type": "string"}, {"type": "array", "items": PLAYER}], ids=str)
def test_an_event_is_an_object(document: Any) -> None:
    """A file that is no schema of an event must not start a stream."""
    with pytest.raises(ValueError, match="#: "):
        struct_of(document)


def test_properties_keep_their_order() -> None:
    """Columns in another order than in the schema would surprise who reads the table."""
    names = ["z", "a", "m"]

    struct = struct_of({"type": "object", "properties": {name: {"type": "string"} for name in names}})

    assert struct.fieldNames() == names


SCALARS = [T.StringType(), T.LongType(), T.DoubleType(), T.BooleanType(), T.TimestampType(), T.DateType()]


def structs(children: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.DataType]:
    """Draw structs of the given types."""
    fields = st.dictionaries(st.text(min_size=1, max_size=5), children, min_size=1, max_size=4)
    return fields.map(lambda found: T.StructType([T.StructField(name, kind) for name, kind in found.items()]))


def nested(children: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.DataType]:
    """Draw arrays, maps and structs of the given types."""
    maps = children.map(lambda kind: T.MapType(T.StringType(), kind))
    return st.one_of(children.map(T.ArrayType), maps, structs(children))


@given(structs(st.recursive(st.sampled_from(SCALARS), nested, max_leaves=6)))
def test_an_inferred_schema_survives_its_file(struct: T.StructType) -> None:
    """Otherwise the second start of a stream would decode to other types than the first."""
    assert struct_of(json_schema_of(struct)) == struct


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (T.IntegerType(), "bigint"),
        (T.DecimalType(20, 0), "double"),
        (T.FloatType(), "double"),
        (T.BinaryType(), "string"),
    ],
    ids=str,
)
def test_a_type_that_json_schema_lacks_becomes_the_nearest(kind: T.DataType, expected: str) -> None:
    """Inference finds decimals for huge integers; the file must still be one that can be read."""
    assert mapped(json_schema_of(kind)) == expected
