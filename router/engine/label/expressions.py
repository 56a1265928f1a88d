"""Evaluate a part of Spark's expressions on Arrow: what rules, projections and table names are mostly made of.

Spark has analysed an expression before it is translated: names are resolved, the two sides of a comparison have the
same type, every implicit cast is written out. Only what has the same value in both worlds, and cannot raise on a row,
is translated; for anything else `Untranslatable` says what it is. `evaluate` runs on executors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

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
}
"""The types of literals, and of what casts give."""
INTEGERS = ("byte", "short", "integer", "long")
NUMBERS = (*INTEGERS, "float", "double")
WIDER = {(one, other) for k, one in enumerate(NUMBERS) for other in NUMBERS[k + 1 :]}
WIDER |= {(kind, "string") for kind in (*INTEGERS, "boolean")}
"""Casts that have one meaning and take every value. A long becomes the nearest double in both worlds."""
COMPARED = (*NUMBERS, "string", "date", "timestamp")


class Untranslatable(Exception):  # noqa: N818 - an answer, no error
    """Say which expression has no twin in Arrow."""


@dataclass(frozen=True)
class Node:
    """Be one operation: its name, what it is applied to, and a name, number or Arrow type where it needs one.

    `kind` is Spark's name of the result's type, or its description where the type is nested.
    """

    op: str
    kind: Any
    of: tuple[Node, ...] = ()
    with_: Any = None


def translate(frame: DataFrame, columns: Sequence[Column]) -> list[Node]:
    """Return the expressions over the columns of a frame. Raises Untranslatable. Runs on the driver; no job."""
    named = [column.alias(f"_{k}") for k, column in enumerate(columns)]
    project = frame.select(*named)._jdf.queryExecution().analyzed().projectList()
    return [_node(iter(json.loads(project.apply(k).toJSON()))) for k in range(len(named))]


def evaluate(node: Node, columns: Mapping[str, pa.Array], rows: int) -> tuple[pa.Array, pa.Array | None]:
    """Return the value of an expression for every row, and the rows on which Spark raises (None: on none)."""
    found = _value(node, columns)
    if isinstance(found, pa.Scalar):
        return (pa.nulls(rows, found.type) if not found.is_valid else pa.repeat(found, rows)), None
    return found, None


def column_node(name: str) -> Node:
    """Return the expression that reads a column, whatever its type: one that Spark has evaluated."""
    return Node("column", None, with_=name)


def _node(entries: Any) -> Node:
    """Return the tree of the next entry: Spark writes a tree as a list, each node before its children."""
    entry = next(entries)
    name = entry["class"].rsplit(".", 1)[-1]
    of = tuple(_node(entries) for _ in range(entry["num-children"]))
    make = _MAKERS.get(name)
    if make is None:
        raise Untranslatable(name)
    return make(name, entry, of)


def _column(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    return Node("column", entry["dataType"], with_=entry["name"])


def _same(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    return of[0]


def _field(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    fields = of[0].kind["fields"]
    return Node("field", fields[entry["ordinal"]]["type"], of, entry["ordinal"])


def _literal(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    kind, text = entry["dataType"], entry["value"]
    if text is None:
        return Node("literal", kind, with_=None)
    readers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(INTEGERS, int),
        "double": float,
        "string": str,
        "boolean": lambda text: text == "true",
    }
    if str(kind).startswith("decimal"):  # 0.5 in SQL; good for a cast to double only
        return Node("literal", "decimal", with_=Decimal(text))
    if kind not in readers:
        raise Untranslatable(f"a constant of type {kind}")
    return Node("literal", kind, with_=readers[kind](str(text)))


def _cast(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    kind, have = entry["dataType"], of[0].kind
    if have == kind:
        return of[0]
    if have == "decimal" and kind == "double":
        return Node("literal", "double", with_=float(of[0].with_))
    if have == "void" and kind in TYPES:
        return Node("literal", kind)
    if (have, kind) not in WIDER:
        raise Untranslatable(f"a cast from {_shown(have)} to {_shown(kind)}")
    return Node("cast", kind, of, TYPES[kind])


def _compared(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    kind = of[0].kind
    plain = kind in COMPARED or (name in ("EqualTo", "EqualNullSafe") and kind in ("boolean", "binary"))
    if kind != of[1].kind or not plain:
        raise Untranslatable(f"a comparison of {_shown(kind)} and {_shown(of[1].kind)}")
    return Node(name, "boolean", of)


def _logical(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    return Node(name, "boolean", of)


def _text(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    if any(node.kind != "string" for node in of) or (name != "Concat" and not _given(of[1])):
        raise Untranslatable(name)
    return Node(name, "boolean" if name != "Concat" else "string", of)


def _in(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    value, *wanted = of
    if value.kind not in (*INTEGERS, "string") or not all(map(_given, wanted)):
        raise Untranslatable(f"IN with {_shown(value.kind)}")
    return Node(name, "boolean", (value,), pa.array([node.with_ for node in wanted], TYPES[value.kind]))


def _chosen(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    values = of if name == "Coalesce" else (of[1::2] + of[-1:] if len(of) % 2 else of[1::2])
    kind = values[0].kind
    if kind not in TYPES or any(node.kind != kind for node in values):
        raise Untranslatable(f"{name} of {_shown(kind)}")
    return Node(name, kind, of)


def _given(node: Node) -> bool:
    return node.op == "literal" and node.with_ is not None


def _bound(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return an expression with its named parts in their places: Spark writes BETWEEN so."""
    body, *parts = of
    known = {part.with_: part.of[0] for part in parts}

    def filled(node: Node) -> Node:
        return known[node.with_] if node.op == "part" else replace(node, of=tuple(map(filled, node.of)))

    return filled(body)


def _part(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    kind = of[0].kind if of else entry["dataType"]
    return Node("part", kind, of, json.dumps(entry["id"]))


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", kind))


_MAKERS: dict[str, Callable[[str, Any, tuple[Node, ...]], Node]] = {
    **dict.fromkeys(("Alias", "Nvl", "NullIf", "Nvl2", "Between"), _same),  # all but the first have been rewritten
    "With": _bound,
    "CommonExpressionDef": _part,
    "CommonExpressionRef": _part,
    "AttributeReference": _column,
    "GetStructField": _field,
    "Literal": _literal,
    "Cast": _cast,
    "In": _in,
    **dict.fromkeys(("IsNull", "IsNotNull", "And", "Or", "Not"), _logical),
    **dict.fromkeys(
        ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"), _compared
    ),
    **dict.fromkeys(("Concat", "StartsWith", "EndsWith", "Contains"), _text),
    **dict.fromkeys(("Coalesce", "If", "CaseWhen"), _chosen),
}


def _value(node: Node, columns: Mapping[str, pa.Array]) -> Any:
    if node.op == "column":
        return columns[node.with_]
    if node.op == "literal":
        return pa.scalar(node.with_, TYPES[node.kind])
    of = [_value(child, columns) for child in node.of]
    return _OPERATIONS[node.op](node, of)


def _equal(node: Node, of: list[Any]) -> Any:
    """Return whether two values are equal: in Spark NaN equals itself."""
    same = pc.equal(*of)
    return pc.or_kleene(same, pc.and_kleene(*map(pc.is_nan, of))) if _floating(node) else same


def _equal_null_safe(node: Node, of: list[Any]) -> Any:
    nulls = [pc.is_null(value) for value in of]
    return pc.or_(pc.and_(*nulls), pc.fill_null(_equal(node, of), False))


def _greater(node: Node, of: list[Any]) -> Any:
    """Return whether the first value is greater: in Spark NaN is greater than any other number."""
    more = pc.greater(*of)
    if not _floating(node):
        return more
    return pc.or_kleene(more, pc.and_kleene(pc.is_nan(of[0]), pc.invert(pc.is_nan(of[1]))))


def _is_in(node: Node, of: list[Any]) -> Any:
    found = pc.is_in(of[0], node.with_)
    return pc.if_else(pc.is_valid(of[0]), found, pa.scalar(None, pa.bool_()))


def _case(node: Node, of: list[Any]) -> Any:
    found = of[-1] if len(of) % 2 else pa.scalar(None, TYPES[node.kind])
    for k in range(len(of) // 2 * 2 - 2, -1, -2):
        found = pc.if_else(pc.fill_null(of[k], False), of[k + 1], found)
    return found


def _floating(node: Node) -> bool:
    return node.of[0].kind in ("float", "double")


_OPERATIONS: dict[str, Callable[[Node, list[Any]], Any]] = {
    "field": lambda node, of: pc.struct_field(of[0], [node.with_]),
    "cast": lambda node, of: pc.cast(of[0], node.with_, safe=False),
    "IsNull": lambda node, of: pc.is_null(of[0]),
    "IsNotNull": lambda node, of: pc.is_valid(of[0]),
    "And": lambda node, of: pc.and_kleene(*of),
    "Or": lambda node, of: pc.or_kleene(*of),
    "Not": lambda node, of: pc.invert(of[0]),
    "EqualTo": _equal,
    "EqualNullSafe": _equal_null_safe,
    "GreaterThan": _greater,
    "LessThan": lambda node, of: _greater(node, of[::-1]),
    "GreaterThanOrEqual": lambda node, of: pc.invert(_greater(node, of[::-1])),
    "LessThanOrEqual": lambda node, of: pc.invert(_greater(node, of)),
    "In": _is_in,
    "Concat": lambda node, of: pc.binary_join_element_wise(*of, ""),
    "StartsWith": lambda node, of: pc.starts_with(of[0], of[1].as_py()),
    "EndsWith": lambda node, of: pc.ends_with(of[0], of[1].as_py()),
    "Contains": lambda node, of: pc.match_substring(of[0], of[1].as_py()),
    "Coalesce": lambda node, of: pc.coalesce(*of),
    "If": _case,
    "CaseWhen": _case,
}
