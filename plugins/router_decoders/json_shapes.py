"""Describe a schema to what decodes JSON in record batches: as plain data, to Arrow and to msgspec."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T

from router_decoders.json_types import children

SCALARS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
"""The types that are decoded in record batches, by Spark's names for them; a string has the default collation."""


@dataclass(frozen=True)
class Shape:
    """Be a type of Spark as plain data: a name of `SCALARS`, or `struct` or `array` with the types inside."""

    kind: str
    fields: tuple[tuple[str, Shape], ...] = ()


def shape(schema: T.StructType) -> Shape | None:
    """Return the shape of a schema; None when only the native expressions can decode to it."""
    return _shape(schema) if _is_known(schema) else None


def _is_known(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return bool(kind.fields) and all(_is_plain(field) and _is_known(field.dataType) for field in kind)
    if isinstance(kind, T.ArrayType):
        return _is_known(kind.elementType)
    return kind.simpleString() in SCALARS


def _is_plain(field: T.StructField) -> bool:
    """Say whether a field's name is written in JSON as it is, and its type has no more to it than its name says."""
    return json.dumps(field.name, ensure_ascii=False) == f'"{field.name}"' and set(field.metadata) <= {"comment"}


def _shape(kind: T.DataType) -> Shape:
    name = kind.typeName() if isinstance(kind, (T.StructType, T.ArrayType)) else kind.simpleString()
    return Shape(name, tuple((name, _shape(child)) for name, child in children(kind)))


def nullable(kind: T.DataType) -> Any:
    """Return a type of Spark with null allowed everywhere, as JSON has it."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, nullable(field.dataType)) for field in kind])
    return T.ArrayType(nullable(kind.elementType)) if isinstance(kind, T.ArrayType) else kind


@lru_cache(maxsize=256)
def arrow_type(shape: Shape) -> pa.DataType:
    """Return the type of Arrow that Spark has for a shape."""
    if shape.kind == "struct":
        return pa.struct([(name, arrow_type(child)) for name, child in shape.fields])
    if shape.kind == "array":
        [(_, child)] = shape.fields
        return pa.list_(pa.field("element", arrow_type(child)))
    return SCALARS[shape.kind]


@lru_cache(maxsize=16)
def decoder(shape: Shape) -> msgspec.json.Decoder[Any]:
    """Return the parser of a struct; a task makes it once."""
    return msgspec.json.Decoder(struct_class(shape))


@lru_cache(maxsize=256)
def struct_class(shape: Shape) -> type[msgspec.Struct]:
    """Return the class of a struct's objects: attributes f0, f1, ... for its fields, None where JSON lacks one.

    The garbage collector need not know of them: they hold no cycles, and there are thousands at a time.
    """
    fields = [(f"f{place}", _annotation(child), None) for place, (_, child) in enumerate(shape.fields)]
    names = {f"f{place}": name for place, (name, _) in enumerate(shape.fields)}
    return msgspec.defstruct("Object", fields, rename=names, gc=False)


def _annotation(shape: Shape) -> Any:
    """Return what msgspec is asked for; a time is parsed as text."""
    if shape.kind == "struct":
        return struct_class(shape) | None
    if shape.kind == "array":
        [(_, child)] = shape.fields
        return list[_annotation(child)] | None  # type: ignore[misc]
    if pa.types.is_integer(SCALARS[shape.kind]):
        limit = 2 ** (SCALARS[shape.kind].bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] | None
    return {"double": float, "boolean": bool}.get(shape.kind, str) | None
