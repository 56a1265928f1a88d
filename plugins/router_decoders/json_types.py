"""Describe a schema to what decodes JSON in tasks: as plain data, to Arrow and to msgspec."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T

from router_schemas.json_schema.spark_json import children

SCALARS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "any": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
    "void": pa.null(),
    "variant": pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)]),
}
"""The scalar types by Spark's names for them; a decimal has its digits besides."""
INTEGERS = ("bigint", "int", "smallint")
TIMES = ("timestamp", "timestamp_ntz", "date")
COLLECTIONS = ("struct", "array", "map")


@dataclass(frozen=True)
class Shape:
    """A type of Spark as plain data: a name of `SCALARS`, or decimal, struct, array or map.

    `fields` are the types inside: a struct's by the keys of the JSON objects, an array's elements, a map's values.
    `columns` are what a table calls a struct's fields.
    """

    kind: str
    fields: tuple[tuple[str, Shape], ...] = ()
    columns: tuple[str, ...] = ()
    digits: tuple[int, int] = (0, 0)
    """Precision and scale of a decimal."""

    @property
    def inner(self) -> Shape:
        """Return the type of an array's elements or a map's values."""
        return self.fields[0][1]


def shape(kind: T.DataType, named: T.DataType | None = None) -> Shape:
    """Return the shape of a type; `named` is the same type with a table's names."""
    if isinstance(kind, T.DecimalType):
        return Shape("decimal", digits=(kind.precision, kind.scale))
    inside = [(name, child) for name, child in children(kind)]
    others = [child for _, child in children(named or kind)]
    fields = tuple((name, shape(child, other)) for (name, child), other in zip(inside, others, strict=True))
    if isinstance(kind, T.StructType):
        assert named is None or isinstance(named, T.StructType)
        return Shape("struct", fields, tuple((named or kind).fieldNames()))
    if fields:
        return Shape(kind.typeName(), fields)
    return Shape("string" if isinstance(kind, T.StringType) else kind.simpleString())


def nullable(kind: T.DataType) -> Any:
    """Return a type of Spark with null allowed everywhere, as JSON has it."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, nullable(field.dataType)) for field in kind])
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, nullable(kind.valueType))
    return T.ArrayType(nullable(kind.elementType)) if isinstance(kind, T.ArrayType) else kind


@lru_cache(maxsize=256)
def arrow_type(shape: Shape) -> pa.DataType:
    """Return the type of Arrow that Spark has for a shape."""
    if shape.kind == "struct":
        inside = [child for _, child in shape.fields]
        return pa.struct([(name, arrow_type(child)) for name, child in zip(shape.columns, inside, strict=True)])
    if shape.kind == "array":
        return pa.list_(pa.field("element", arrow_type(shape.inner)))
    if shape.kind == "map":
        return pa.map_(pa.string(), pa.field("value", arrow_type(shape.inner)))
    return pa.decimal128(*shape.digits) if shape.kind == "decimal" else SCALARS[shape.kind]


@lru_cache(maxsize=16)
def parsers(shape: Shape) -> tuple[tuple[Shape, msgspec.json.Decoder[Any]], ...]:
    """Return the parsers of a struct, to be tried in turn, and the shapes that they parse to; a task makes them once.

    The second one takes any value for a string, as `Raw` (the kind `any`). There is none where msgspec cannot have the
    name of a field.
    """
    loose = _loose(shape)
    kinds = [shape] if loose == shape else [shape, loose]
    return tuple((kind, msgspec.json.Decoder(struct_class(kind))) for kind in kinds) if _is_plain(shape) else ()


def _loose(shape: Shape) -> Shape:
    """Return a shape with any value in place of the strings in its structs."""
    if shape.kind == "struct":
        return replace(shape, fields=tuple((name, _loose(child)) for name, child in shape.fields))
    return replace(shape, kind="any") if shape.kind == "string" else shape


@lru_cache(maxsize=64)
def map_parser(shape: Shape) -> msgspec.json.Decoder[Any]:
    """Return the parser of a map's text."""
    return msgspec.json.Decoder(dict[str, _annotation(shape.inner)])  # type: ignore[misc]


@lru_cache(maxsize=256)
def struct_class(shape: Shape) -> type[msgspec.Struct]:
    """Return the class of a struct's objects: attributes f0, f1, ... for its fields, None where JSON lacks one.

    The garbage collector need not know of them: they hold no cycles, and there are thousands at a time.
    """
    fields = [(f"f{place}", _annotation(child), None) for place, (_, child) in enumerate(shape.fields)]
    names = {f"f{place}": name for place, (name, _) in enumerate(shape.fields)}
    return msgspec.defstruct("Object", fields, rename=names if _is_plain(shape) else None, gc=False)


def _is_plain(shape: Shape) -> bool:
    """Say whether JSON writes the names of all fields as they are."""
    own = shape.kind != "struct" or all(json.dumps(name, ensure_ascii=False) == f'"{name}"' for name, _ in shape.fields)
    return own and all(_is_plain(child) for _, child in shape.fields)


def _annotation(shape: Shape) -> Any:
    """Return what msgspec is asked for. A time is parsed as text; what is `Raw` is looked at when columns are made."""
    if shape.kind == "struct":
        return struct_class(shape) | None
    if shape.kind == "array":
        return list[_annotation(shape.inner)] | None  # type: ignore[misc]
    if shape.kind in ("map", "decimal", "variant", "void", "any"):
        return msgspec.Raw
    if shape.kind in INTEGERS:
        limit = 2 ** (SCALARS[shape.kind].bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] | None
    return {"double": float, "float": float, "boolean": bool, "binary": bytes}.get(shape.kind, str) | None
