"""An expression as a tree that Arrow can evaluate, and Spark's types in Arrow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

INTEGERS = ("byte", "short", "integer", "long")
FLOATS = ("float", "double")
NUMBERS = (*INTEGERS, *FLOATS)
TIMES = ("date", "timestamp", "timestamp_ntz")
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


class Untranslatable(Exception):  # noqa: N818 - an answer, no error
    """What of an expression only Spark can evaluate, in the words of who wrote it."""


@dataclass(frozen=True)
class Node:
    """One operation: its name, what it is applied to, and a name, number or pattern where it needs one.

    `kind` is Spark's name of the result's type, or its description where the type is nested. `quiet` is true where
    the operation gives null for a row on which it would raise: Spark's `try_` functions.
    """

    op: str
    kind: Any
    of: tuple[Node, ...] = ()
    with_: Any = None
    quiet: bool = False


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of a Spark type. Raises Untranslatable for one that events do not have."""
    if isinstance(kind, str):
        if kind in TYPES:
            return TYPES[kind]
        if size := precision(kind):
            return pa.decimal128(*size)
    elif kind["type"] == "array":
        return pa.list_(arrow_type(kind["elementType"]))
    elif kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    elif kind["type"] == "struct":
        return pa.struct([pa.field(f["name"], arrow_type(f["type"])) for f in kind["fields"]])
    raise Untranslatable(f"the type {shown(kind)}")


def columns_of(node: Node) -> dict[str, pa.DataType]:
    """Return the columns that an expression reads, and their types."""
    if node.op == "column":
        return {node.with_: arrow_type(node.kind)}
    return {name: kind for child in node.of for name, kind in columns_of(child).items()}


def precision(kind: Any) -> tuple[int, int] | None:
    """Return the precision and scale of a decimal type; None for any other."""
    found = DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    return (int(found[1]), int(found[2])) if found else None


def nested(kind: Any, name: str) -> bool:
    """Return whether a type is an array, a map or a struct, as `name` says."""
    return isinstance(kind, dict) and kind["type"] == name


def shown(kind: Any) -> str:
    """Return a type as messages name it."""
    return kind if isinstance(kind, str) else str(kind.get("type", kind))


def only(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return the only child of what Spark has rewritten: it is what the whole stands for.

    Spark may write such a function in another way in its next version, with its operands as children. Raises
    Untranslatable then: the first operand is not its value.
    """
    if len(of) != 1:
        raise Untranslatable(f"the function {name.lower()} as this version of Spark has it")
    return of[0]


def given(node: Node) -> bool:
    """Return whether a node is a constant that is not null."""
    return node.op == "literal" and node.with_ is not None


def repeated(value: pa.Scalar, rows: int) -> pa.Array:
    """Return an array that has the same value in every row."""
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def arrays(*values: Any) -> list[pa.Array]:
    """Return operands as arrays: constants are repeated. One of them is an array already."""
    rows = next(len(value) for value in values if not isinstance(value, pa.Scalar))
    return [repeated(value, rows) if isinstance(value, pa.Scalar) else value for value in values]


def by_value(values: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Apply a Python function to every different value, null excepted."""
    coded = values.dictionary_encode()
    return pa.array([function(value) for value in coded.dictionary.to_pylist()], kind).take(coded.indices)
