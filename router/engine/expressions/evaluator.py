"""Evaluate Spark's expressions on Arrow: what rules, projections and table names are mostly made of.

Spark has analysed an expression before it is translated: names are resolved, the two sides of a comparison have the
same type, every implicit cast is written out. Only what has the same value in both worlds is translated; for anything
else `Untranslatable` says what it is. `translate` runs on the driver, `evaluate` on executors.

Where Spark would raise on a row, the value is null and the row is marked. Spark evaluates only what it needs:
`a = 0 OR 10 / a > 1` does not raise where `a` is 0. Here every operand is evaluated for all rows, and its marks count
on the rows where Spark would have come to it. What Spark's optimiser leaves off because of a constant is left off here
as well. One difference remains: where it drops a part that is written twice, as in `a AND (a OR 1 / b > 0)`, this part
may raise here on a row where `a` is null.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from router.engine.expressions import casts, functions, text
from router.engine.expressions.tree import TIMES, Node, Untranslatable, arrow_type, given, only, repeated, shown
from router.spark_internals import analysed, schema_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["Node", "Untranslatable", "evaluate", "translate"]

QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`[^`]*`")


def translate(frame: DataFrame, columns: Sequence[Column]) -> list[Node]:
    """Return the expressions over the columns of a frame. Raises Untranslatable. Runs on the driver; no job."""
    if frame.sparkSession.conf.get("spark.sql.ansi.enabled") != "true":
        raise Untranslatable("an expression without ANSI mode (spark.sql.ansi.enabled)")
    if "collate" in schema_text(frame).lower():
        raise Untranslatable("a column with a collation")
    named = [column.alias(f"_{k}") for k, column in enumerate(columns)]
    project = analysed(frame.select(*named)).projectList()
    found = [_Tree(project.apply(k)).node() for k in range(len(named))]
    for node in found:
        _check_constants(node)
    return found


def _check_constants(node: Node) -> None:
    """Refuse constants that Arrow has no type for, but where an operation has taken them as a parameter."""
    if node.op == "literal":
        arrow_type(node.kind)
    for child in node.of:
        _check_constants(child)


def evaluate(node: Node, columns: Mapping[str, pa.Array], rows: int) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return the value of an expression for every row, and the rows on which Spark's evaluation raises.

    The value is null on these. The second is None where no row raises.
    """
    value, raised = _found(node, columns)
    if isinstance(value, pa.Scalar):
        value = repeated(value, rows)
    if isinstance(raised, pa.Scalar):
        raised = pa.repeat(raised, rows)
    return value, raised


class _Tree:
    """The tree of one analysed expression. Spark writes it as a list, each node before its children."""

    def __init__(self, expression: Any) -> None:
        self.expression = expression
        self.entries = iter(json.loads(expression.toJSON()))
        sql = QUOTED.sub("", expression.sql()).lower()
        if "collate" in sql:
            raise Untranslatable("a collation")
        self.tries = "try_cast(" in sql

    def node(self, path: tuple[int, ...] = ()) -> Node:
        """Return the node of the next entry; `path` says where it stands below the whole expression."""
        entry = next(self.entries)
        name = entry["class"].rsplit(".", 1)[-1]
        make = MAKERS.get(name)
        if make is None:
            raise Untranslatable(self._called(path, name))
        if name == "Literal" and entry["dataType"] in ("binary", *TIMES) and entry["value"] is not None:
            entry["value"] = self._at(path).value()  # as text it may be the address of an array, or a local time
        if "escapeChar" in entry:
            entry["escapeChar"] = str(self._at(path).escapeChar())
        of = tuple(self.node((*path, k)) for k in range(entry["num-children"]))
        node = make(name, entry, of)
        if name == "Cast" and self.tries and self._at(path).prettyName() == "try_cast":
            return replace(node, quiet=True) if node is not of[0] else node
        return node

    def _at(self, path: tuple[int, ...]) -> Any:
        found = self.expression
        for k in path:
            found = found.children().apply(k)
        return found

    def _called(self, path: tuple[int, ...], name: str) -> str:
        """Say what cannot be translated as a user would call it."""
        if name.endswith("UDF"):
            return "a user-defined function"
        return OTHERS.get(name) or f"the function {self._at(path).prettyName()}"


OTHERS = {
    "LambdaFunction": "a lambda function",
    "NamedLambdaVariable": "a lambda function",
    "UserDefinedExpression": "a user-defined function",
    "ScalarSubquery": "a subquery",
    "BitwiseAnd": "the operator &",
    "BitwiseOr": "the operator |",
    "BitwiseXor": "the operator ^",
    "BitwiseNot": "the operator ~",
}


def _column(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    return Node("column", entry["dataType"], with_=entry["name"])


def _quiet(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return an operation that gives null for what it raises itself; what its operands raise stays an error."""
    return replace(only(name, entry, of), quiet=True)


def _get(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return a look-up that never raises: Spark 4.1 leaves its operands as they are, 4.0 rewrites it."""
    return only(name, entry, of) if len(of) == 1 else functions.item("GetArrayItem", {"failOnError": False}, of)


def _typed_null(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return the null that Spark 4.2 writes by an expression of its type, which it does not evaluate."""
    return Node("literal", only(name, entry, of).kind)


def _guarded(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    return Node(name, of[0].kind, of)


def _logical(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    return Node(name, "boolean", of)


def _in(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    value, *wanted = of
    functions.check_comparable("In", value.kind, "binary")
    if any(node.kind != value.kind for node in wanted):
        raise Untranslatable(f"IN with {shown(value.kind)}")
    if len(wanted) > 9 and value.kind in ("float", "double"):  # Spark looks these up by their hash
        raise Untranslatable(f"IN with many values of type {shown(value.kind)}")
    return Node(name, "boolean", of)


def _chosen(name: str, entry: Any, of: tuple[Node, ...]) -> Node:
    values = of if name == "Coalesce" else (of[1::2] + of[-1:] if len(of) % 2 else of[1::2])
    kind = values[0].kind
    arrow_type(kind)
    if any(node.kind != kind for node in values):
        raise Untranslatable(f"{name.lower()} of {shown(kind)}")
    if name != "Coalesce" and len(of) % 2 and all(node == values[0] for node in values):
        return values[0]  # Spark's optimiser leaves off conditions that decide nothing
    return Node(name, kind, of)


def _bound(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return an expression with its named part in its places: Spark writes BETWEEN so."""
    body, *parts = of
    if len(parts) != 1:  # the parts have no names in what Spark writes
        raise Untranslatable("an expression with several named parts")

    def filled(node: Node) -> Node:
        return parts[0].of[0] if node.op == "part" else replace(node, of=tuple(map(filled, node.of)))

    return filled(body)


def _part(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    return Node("part", of[0].kind if of else entry["dataType"], of)


MAKERS: dict[str, Callable[[str, Any, tuple[Node, ...]], Node]] = {
    # all but the first have been rewritten: their only child is what they stand for
    **dict.fromkeys(
        ("Alias", "Nvl", "NullIf", "Nvl2", "Between", "Extract", "DatePart", "DatetimeSub", "EqualNull"), only
    ),
    "Get": _get,
    "TypedNullLiteral": _typed_null,
    **dict.fromkeys(("TryAdd", "TrySubtract", "TryMultiply", "TryDivide", "TryMod"), _quiet),
    "TryEval": _guarded,
    "With": _bound,
    "CommonExpressionDef": _part,
    "CommonExpressionRef": _part,
    "AttributeReference": _column,
    "Literal": casts.literal,
    "Cast": casts.cast,
    "In": _in,
    **dict.fromkeys(("IsNull", "IsNotNull", "And", "Or", "Not"), _logical),
    **dict.fromkeys(("Coalesce", "If", "CaseWhen"), _chosen),
    **functions.MAKERS,
    **text.MAKERS,
}

Mask = Any
"""A boolean array or scalar without nulls."""


class _Found(NamedTuple):
    """The value of an expression, and the rows on which it raises. Constants are scalars; None is no row."""

    value: Any
    raised: Mask | None = None


def _found(node: Node, columns: Mapping[str, pa.Array]) -> _Found:
    if node.op == "column":
        return _Found(columns[node.with_])
    if node.op == "literal":
        return _Found(pa.scalar(node.with_, arrow_type(node.kind)))
    of = [_found(child, columns) for child in node.of]
    found = _LAZY[node.op](node, of) if node.op in _LAZY else _strict(node, of)
    return _settled(*found)


def _settled(value: Any, raised: Mask | None) -> _Found:
    """Return a result with null on the rows that raise; no mask where there are none."""
    if raised is None or not _any(raised):
        return _Found(value)
    return _Found(pc.if_else(raised, pa.scalar(None, value.type), value), raised)


def _any(mask: Mask) -> bool:
    return bool(mask.as_py()) if isinstance(mask, pa.Scalar) else mask.true_count > 0


def _either(*masks: Mask | None) -> Mask | None:
    some = [mask for mask in masks if mask is not None]
    return reduce(pc.or_, some) if some else None


def _where(condition: Mask, raised: Mask | None) -> Mask | None:
    return None if raised is None else pc.and_(condition, raised)


def _true(value: Any) -> Mask:
    return pc.fill_null(value, False)


def _strict(node: Node, of: list[_Found]) -> _Found:
    """Evaluate what is null where an operand is: Spark leaves off at the first one that is null."""
    operands = of[::-1] if node.op in functions.RIGHT_FIRST else of
    raised, reached = None, pa.scalar(True)
    for operand in operands:
        raised = _either(raised, _where(reached, operand.raised))
        reached = pc.and_(reached, operand.value.is_valid() if isinstance(operand.value, pa.Array) else _valid(operand))
    value, failed = _applied(node, [operand.value for operand in of])
    if any(map(_null, of)):
        return _Found(value)  # with a constant null, Spark's optimiser leaves off the whole
    if failed is not None and not node.quiet:
        raised = _either(raised, pc.and_(reached, _true(failed)))
    if failed is not None:
        value = pc.if_else(_true(failed), pa.scalar(None, value.type), value)
    return _Found(value, raised)


def _null(found: _Found) -> bool:
    """Return whether this is the constant null."""
    return found.raised is None and isinstance(found.value, pa.Scalar) and not found.value.is_valid


def _valid(operand: _Found) -> pa.Scalar:
    return pa.scalar(operand.value.is_valid)


def _applied(node: Node, values: list[Any]) -> tuple[Any, Any]:
    """Apply an operation to values: all arrays but for those that a kernel takes as they are."""
    constant = bool(values) and all(isinstance(value, pa.Scalar) for value in values)
    if constant:
        values = [repeated(value, 1) for value in values]
    found = OPERATIONS[node.op](node, *values)
    value, failed = found if isinstance(found, tuple) else (found, None)
    if constant:
        return value[0], None if failed is None else failed[0]
    return value, failed


def _all(node: Node, of: list[_Found]) -> _Found:
    """Evaluate what looks at all of its operands, whether they are null or not."""
    value, _ = _applied(node, [operand.value for operand in of])
    return _Found(value, _either(*(operand.raised for operand in of)))


def _caught(node: Node, of: list[_Found]) -> _Found:
    return _Found(of[0].value)


def _and(node: Node, of: list[_Found]) -> _Found:
    left, right = of
    if _constant(right, False):
        return right
    reached = pc.fill_null(left.value, True)
    return _Found(pc.and_kleene(left.value, right.value), _either(left.raised, _where(reached, right.raised)))


def _constant(found: _Found, value: bool) -> bool:
    """Return whether this is a constant that decides: Spark's optimiser then leaves off the left side as well."""
    return found.raised is None and isinstance(found.value, pa.Scalar) and found.value.as_py() is value


def _or(node: Node, of: list[_Found]) -> _Found:
    left, right = of
    if _constant(right, True):
        return right
    reached = pc.invert(_true(left.value))
    return _Found(pc.or_kleene(left.value, right.value), _either(left.raised, _where(reached, right.raised)))


def _coalesce(node: Node, of: list[_Found]) -> _Found:
    raised, reached = None, pa.scalar(True)
    for operand in of:
        raised = _either(raised, _where(reached, operand.raised))
        reached = pc.and_(reached, pc.is_null(operand.value))
    return _Found(pc.coalesce(*(operand.value for operand in of)), raised)


def _case(node: Node, of: list[_Found]) -> _Found:
    found = of[-1] if len(of) % 2 else _Found(pa.scalar(None, arrow_type(node.kind)))
    for k in range(len(of) // 2 * 2 - 2, -1, -2):
        holds, then = _true(of[k].value), of[k + 1]
        raised = _either(of[k].raised, _where(holds, then.raised), _where(pc.invert(holds), found.raised))
        found = _Found(_if(holds, then.value, found.value), raised)
    return found


def _if(holds: Mask, then: Any, other: Any) -> Any:
    """Return one or the other value: nested types may differ in the names of their items only."""
    if isinstance(holds, pa.Scalar):
        return then if holds.as_py() else other
    return pc.if_else(holds, then, other if other.type == then.type else other.cast(then.type))


def _is_in(node: Node, of: list[_Found]) -> _Found:
    """Compare with one value after the other, until one is equal."""
    value, *wanted = of
    if all(map(_null, wanted)):
        return _Found(pa.scalar(None, pa.bool_()))  # Spark's optimiser leaves off the value then
    if value.value.type not in (pa.float32(), pa.float64()) and all(map(given, node.of[1:])):
        listed = pa.concat_arrays([repeated(item.value, 1) for item in wanted])
        found = pc.and_(pc.is_in(value.value, listed), pa.scalar(True))
        return _Found(pc.if_else(pc.is_valid(value.value), found, pa.scalar(None, pa.bool_())), value.raised)
    found, raised, reached = pa.scalar(False), value.raised, pc.is_valid(value.value)
    for item, child in zip(wanted, node.of[1:], strict=True):
        raised = _either(raised, _where(reached, item.raised))
        same = functions.equal(replace(node, of=(node.of[0], child)), value.value, item.value)
        found = pc.or_kleene(found, same)
        reached = pc.and_(reached, pc.invert(_true(same)))
    return _Found(pc.if_else(pc.is_valid(value.value), found, pa.scalar(None, pa.bool_())), raised)


_LAZY: dict[str, Callable[[Node, list[_Found]], _Found]] = {
    "And": _and,
    "Or": _or,
    "Coalesce": _coalesce,
    "If": _case,
    "CaseWhen": _case,
    "In": _is_in,
    "TryEval": _caught,
    **dict.fromkeys(("IsNull", "IsNotNull", *functions.ALL, *text.ALL), _all),
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "cast": casts.converted,
    "IsNull": lambda node, value: pc.is_null(value),
    "IsNotNull": lambda node, value: pc.is_valid(value),
    "Not": lambda node, value: pc.invert(value),
    **functions.OPERATIONS,
    **text.OPERATIONS,
}
"""What makes a value of values. One that can raise returns the rows on which it does as well."""
