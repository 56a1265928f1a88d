"""What one kind of value is for the decoder it is for the encoder."""

from __future__ import annotations

import json
from typing import Any, get_args

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from router.spark_internals import to_arrow_columns
from router_schemas.avro.encode import record_writer
from router_schemas.avro.kinds import AvroKind
from router_schemas.avro.model import LogicalName, PrimitiveName, text_of
from router_schemas.avro.parser import parse_text
from router_schemas.avro.spark_types import derive_schema, map_schema
from router_schemas.protobuf.kinds import Kind
from router_schemas.protobuf.model import spark_struct

DIGITS = {"precision": 9, "scale": 2}


def schema_of(kind: AvroKind) -> Any:
    """Return the schema of a record with one field of a kind."""
    described = kind.value
    stored: dict[str, Any] = {"type": described.stored}
    if described.logical:
        stored |= {"logicalType": described.logical, **(DIGITS if described.logical == "decimal" else {})}
    if described.stored == "fixed":
        stored |= {"name": "F", "size": described.size or 8}
    return parse_text(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": stored}]}))


def test_every_type_of_avro_is_a_kind() -> None:
    """Without it a type that the parser accepts stops a stream when its first record comes."""
    assert {kind.value.logical for kind in AvroKind} == {None, *get_args(LogicalName)}
    assert {kind.value.stored for kind in AvroKind} == {*get_args(PrimitiveName), "fixed"} - {"null"}


@pytest.mark.parametrize("kind", AvroKind, ids=str)
def test_what_is_read_as_an_avro_kind_is_written_to_it(kind: AvroKind) -> None:
    """Without it an event that was decoded cannot be sent in the schema that it came in."""
    schema = schema_of(kind)
    struct = map_schema(schema).struct
    wanted = T.DecimalType(9, 2) if kind.value.logical == "decimal" else kind.value.column
    assert struct["a"].dataType == wanted

    record_writer(schema, struct)
    for column in kind.value.columns:
        a = T.DecimalType(9, 2) if column is T.DecimalType else column()
        write = record_writer(schema, T.StructType([T.StructField("a", a)]))
        assert write(pa.array([], pa.struct(list(to_arrow_columns(T.StructType([T.StructField("a", a)])))))) == []


@pytest.mark.parametrize("kind", AvroKind, ids=str)
def test_an_avro_kind_that_is_declared_is_read_as_that_column(kind: AvroKind) -> None:
    """Without it the schema that a sink registers gives another column than the one it was made for."""
    for column in kind.value.declares:
        made = derive_schema(T.StructType([T.StructField("a", column())]), "R")
        (stored,) = (part for part in json.loads(text_of(made))["fields"][0]["type"] if part != "null")
        described = stored if isinstance(stored, dict) else {"type": stored}
        assert (described["type"], described.get("logicalType")) == (kind.value.stored, kind.value.logical)
    assert set(kind.value.declares) <= set(kind.value.columns)


@pytest.mark.parametrize("kind", Kind, ids=str)
def test_what_is_read_as_a_protobuf_kind_is_written_to_it(kind: Kind) -> None:
    """Without it an event that was decoded cannot be sent in the schema that it came in."""
    (column,) = spark_struct(pa.struct([("a", kind.value.arrow)]))
    assert kind.accepts_column(column.dataType)
    assert set(kind.value.declares) <= set(kind.value.columns)
