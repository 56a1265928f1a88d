"""An expression as a tree that Arrow can evaluate, and Spark's types in Arrow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INTEGER_TYPES = ("byte", "short", "integer", "long")
FLOAT_TYPES = ("float", "double")
NUMBER_TYPES = (*INTEGER_TYPES, *FLOAT_TYPES)
TIME_TYPES = ("date", "timestamp", "timestamp_ntz")
TYPES: dict[str, pa.DataType] = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


PlanEntry: TypeAlias = "Mapping[str, Any]"
"""A node of a tree of Catalyst, as its JSON has it."""
Kind: TypeAlias = Any
"""Spark's name of a type, or the description of a nested one, as its JSON has them."""
Value: TypeAlias = "pa.Array | pa.Scalar"
"""The value of an expression for all rows, or one that is the same for all."""


class Untranslatable(Exception):  # noqa: N818 - an answer, no error
    """The part of an expression that only Spark can evaluate, as its author would name it."""


@dataclass(frozen=True)
class Node:
    """One operation: its name, its operands, and a name, number or pattern if it needs one.

    `kind` is Spark's name of the result's type, or its description if the type is nested. `quiet` is true if the
    operation gives null for a row on which it would raise: Spark's `try_` functions.
    """

    op: str
    kind: Kind
    of: tuple[Node, ...] = ()
    with_: Any = None
    quiet: bool = False


def arrow_type_of(kind: Kind) -> pa.DataType:
    """Return the Arrow type of a Spark type. Raises Untranslatable for one that events do not have."""
    if isinstance(kind, str):
        if kind in TYPES:
            return TYPES[kind]
        size = decimal_precision(kind)
        if size:
            return pa.decimal128(*size)
    elif kind["type"] == "array":
        return pa.list_(arrow_type_of(kind["elementType"]))
    elif kind["type"] == "map":
        return pa.map_(arrow_type_of(kind["keyType"]), arrow_type_of(kind["valueType"]))
    elif kind["type"] == "struct":
        return pa.struct([pa.field(field["name"], arrow_type_of(field["type"])) for field in kind["fields"]])
    raise Untranslatable(f"the type {type_name(kind)}")


def columns_of(node: Node) -> dict[str, pa.DataType]:
    """Return the columns that an expression reads, and their types."""
    if node.op == "column":
        return {node.with_: arrow_type_of(node.kind)}
    columns: dict[str, pa.DataType] = {}
    for child in node.of:
        columns |= columns_of(child)
    return columns


def decimal_precision(kind: Kind) -> tuple[int, int] | None:
    """Return the precision and scale of a decimal type; None for any other."""
    if not isinstance(kind, str):
        return None
    match = DECIMAL.fullmatch(kind)
    if match is None:
        return None
    return (int(match[1]), int(match[2]))


def is_nested(kind: Kind, name: str) -> bool:
    """Return whether a type is an array, a map or a struct: `name` is one of these words."""
    return isinstance(kind, dict) and kind["type"] == name


def type_name(kind: Kind) -> str:
    """Return a type as messages name it."""
    return kind if isinstance(kind, str) else str(kind.get("type", kind))


def is_constant(node: Node) -> bool:
    """Return whether a node is a constant that is not null."""
    return node.op == "literal" and node.with_ is not None


def repeat_scalar(value: pa.Scalar, rows: int) -> pa.Array:
    """Return an array that has the same value in every row."""
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def in_type(value: Value, kind: pa.DataType) -> Value:
    """Return a value in a type: nested types may differ in the names of their items only."""
    return value if value.type == kind else value.cast(kind)


def as_arrays(*values: Value) -> list[pa.Array]:
    """Return operands as arrays: constants are repeated. One of them is an array already."""
    rows = next(len(value) for value in values if not isinstance(value, pa.Scalar))
    return [as_array(value, rows) for value in values]


def as_array(value: Value, rows: int) -> pa.Array:
    """Return a value for each row: a constant is repeated."""
    return repeat_scalar(value, rows) if isinstance(value, pa.Scalar) else value


def by_value(values: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Apply a Python function to every different value, null excepted."""
    coded = values.dictionary_encode()
    return pa.array([function(value) for value in coded.dictionary.to_pylist()], kind).take(coded.indices)
