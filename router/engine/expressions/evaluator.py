"""Evaluate Spark's expressions on Arrow: most rules, projections and table names.

Spark has analysed an expression before it is translated: names are resolved, the two sides of a comparison have the
same type, every implicit cast is written out. What is translated is what Spark's optimiser makes of it, since that is
what Spark would evaluate: it reorders sums, leaves off what constants decide, and drops what is written twice. It is
translated only if it has the same values in Arrow; `Untranslatable` names the part that has not.
`translate_columns` runs on the driver, `evaluate_expression` on executors.

If Spark would raise on a row, the value is null and the row is marked. Spark evaluates only the operands that it needs:
`a = 0 OR 10 / a > 1` does not raise if `a` is 0. Here every operand is evaluated for all rows, and its marks count
on the rows for which Spark would have evaluated it.

A row on which an operation itself fails, for whatever cause, is marked as well; its neighbours keep their values. An
operation that fails on every row of a batch, or on many, is a `Defect`: Spark should evaluate the expression instead.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from router.api.halving import by_halves
from router.delta.unreadable_values import is_text, not_utf8
from router.engine.expressions import casts, functions, text
from router.engine.expressions.tree import (
    TIME_TYPES,
    Node,
    Untranslatable,
    arrow_type_of,
    as_array,
    in_type,
    is_constant,
    repeat_scalar,
    type_name,
)
from router.spark_internals import analysed_plan, optimised_plan, schema_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from router.engine.expressions.tree import Kind, PlanEntry, Value

__all__ = ["Node", "Untranslatable", "evaluate_expression", "translate_columns"]

QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`[^`]*`")


def translate_columns(frame: DataFrame, columns: Sequence[Column]) -> list[Node]:
    """Return the expressions over the columns of a frame. Raises Untranslatable. Runs on the driver; no job."""
    if frame.sparkSession.conf.get("spark.sql.ansi.enabled") != "true":
        raise Untranslatable("an expression without ANSI mode (spark.sql.ansi.enabled)")
    if "collate" in schema_text(frame).lower():
        raise Untranslatable("a column with a collation")
    selection = frame.select(*[column.alias(f"_{k}") for k, column in enumerate(columns)])
    written = analysed_plan(selection).projectList()
    for k in range(len(columns)):
        _check_written(written.apply(k))
    try:
        plan = optimised_plan(selection)
    except PySparkException as error:
        raise Untranslatable(f"a constant on which Spark raises {error.getCondition()}") from None
    nodes = _translate_projections(plan)
    for node in nodes:
        _check_constants(node)
    return nodes


def _check_written(expression: Any) -> None:
    """Refuse what the optimiser would hide: names that users know, and constants that are of the moment."""
    if "collate" in QUOTED.sub("", expression.sql()).lower():
        raise Untranslatable("a collation")
    entries = json.loads(expression.toJSON())
    for place, entry in enumerate(entries):
        name = _class_name(entry)
        if name not in MAKERS and name not in REWRITTEN:
            raise Untranslatable(_name_for_users(expression, entries, place))
        text = entries[place + 1] if name in ("Cast", "ParseToDate", "ParseToTimestamp") else {}
        if _class_name(text) == "Literal" and str(text["value"]).strip().lower() in casts.NOW:
            raise Untranslatable(f"the {entry.get('dataType', 'date')} '{text['value']}'")


def _translate_projections(plan: Any) -> list[Node]:
    """Return the expressions of a plan of projections: an inner one has what the others use more than once."""
    named: dict[int, Node] = {}
    inner = plan.child()
    if inner.nodeName() != "OneRowRelation":
        if inner.nodeName() != "Project":
            raise Untranslatable(f"an expression that Spark evaluates in a plan of its own ({inner.nodeName()})")
        for k, node in enumerate(_translate_projections(inner)):
            named[inner.projectList().apply(k).exprId().id()] = node
    projections = plan.projectList()
    return [_Tree(projections.apply(k), named).read_node() for k in range(projections.size())]


def _check_constants(node: Node) -> None:
    """Refuse constants that Arrow has no type for, unless an operation has taken them as a parameter."""
    if node.op == "literal":
        arrow_type_of(node.kind)
    for child in node.of:
        _check_constants(child)


MANY_FAILURES = 64
"""Rows of a batch on which an operation fails, from which it is taken to be at fault itself."""


class Defect(NamedTuple):
    """An operation that fails on all rows of a batch, or on many: its name, and how it fails."""

    op: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.op}, which fails in tasks ({type(self.error).__name__}: {self.error})"[:300]


def evaluate_expression(
    node: Node, columns: Mapping[str, pa.Array], rows: int, defects: list[Defect] | None = None
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return the value of an expression for every row, and the rows on which Spark's evaluation raises.

    The value is null on these. The second is None if no row raises. `defects` gets the operations that are at fault.
    """
    value, raised = _evaluate_node(node, columns, defects if defects is not None else [])
    if raised is not None:
        raised = as_array(raised, rows)
    return as_array(value, rows), raised


class _Tree:
    """The tree of one expression. Spark writes it as a list, each node before its children.

    `named` are the expressions of an inner projection, by their ids.
    """

    def __init__(self, expression: Any, named: Mapping[int, Node]) -> None:
        self.expression = expression
        self.entries = iter(json.loads(expression.toJSON()))
        self.named = named

    def read_node(self, path: tuple[int, ...] = ()) -> Node:
        """Return the node of the next entry; `path` is its place below the whole expression."""
        entry = next(self.entries)
        name = _class_name(entry)
        make = MAKERS.get(name)
        if make is None:
            raise Untranslatable(f"the function {_child_at(self.expression, path).prettyName()}")
        if name == "AttributeReference" and entry["exprId"]["id"] in self.named:
            return self.named[entry["exprId"]["id"]]
        # As text in the tree such a constant may be the address of an array, or a local time.
        if name == "Literal" and entry["dataType"] in ("binary", *TIME_TYPES) and entry["value"] is not None:
            entry["value"] = _child_at(self.expression, path).value()
        if name == "InSet":
            entry["hset"] = _read_scala_iterator(_child_at(self.expression, path).hset().iterator())
        if "escapeChar" in entry:
            entry["escapeChar"] = str(_child_at(self.expression, path).escapeChar())
        of = tuple(self.read_node((*path, k)) for k in range(entry["num-children"]))
        node = make(name, entry, of)
        # A cast to the type that its operand has is that operand.
        if name not in WITH_MODE or node in of:
            return node
        return replace(node, quiet=_child_at(self.expression, path).evalMode().toString() == "TRY")


WITH_MODE = ("Cast", "Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder")
"""Expressions that raise, or give null where Spark's author wrote `try_`."""


def _class_name(entry: PlanEntry) -> str:
    return str(entry.get("class", "")).rsplit(".", 1)[-1]


def _child_at(expression: Any, path: Sequence[int]) -> Any:
    for k in path:
        expression = expression.children().apply(k)
    return expression


def _read_scala_iterator(iterator: Any) -> list[Any]:
    """Return the values of an iterator of Scala: numbers, and all else as text."""
    values = []
    while iterator.hasNext():
        value = iterator.next()
        values.append(value if value is None or isinstance(value, (bool, int, float, bytes)) else value.toString())
    return values


def _name_for_users(expression: Any, entries: list[PlanEntry], place: int) -> str:
    """Return the expression of an entry, which cannot be translated, as a user would call it."""
    name = _class_name(entries[place])
    if name.endswith("UDF"):
        return "a user-defined function"
    if name in UNTRANSLATED:
        return UNTRANSLATED[name]
    # Every node before the entry is one of its ancestors, or has all of its children before it as well.
    missing: list[list[int]] = []
    for entry in entries[:place]:
        missing.append([0, entry["num-children"]])
        while missing[-1][0] == missing[-1][1]:
            missing.pop()
            missing[-1][0] += 1
    return f"the function {_child_at(expression, [child for child, _ in missing]).prettyName()}"


UNTRANSLATED = {
    "LambdaFunction": "a lambda function",
    "NamedLambdaVariable": "a lambda function",
    "UserDefinedExpression": "a user-defined function",
    "ScalarSubquery": "a subquery",
    "BitwiseAnd": "the operator &",
    "BitwiseOr": "the operator |",
    "BitwiseXor": "the operator ^",
    "BitwiseNot": "the operator ~",
}


def _make_column(_: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    return Node("column", entry["dataType"], with_=entry["name"])


def _make_same_type(name: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    return Node(name, of[0].kind, of)


def _make_boolean(name: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    return Node(name, "boolean", of)


def _make_in(name: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    value, *items = of
    functions.check_comparable("In", value.kind, "binary")
    if any(item.kind != value.kind for item in items):
        raise Untranslatable(f"IN with {type_name(value.kind)}")
    if len(items) > 9 and value.kind in ("float", "double"):  # Spark looks these up by their hash
        raise Untranslatable(f"IN with many values of type {type_name(value.kind)}")
    return Node(name, "boolean", of)


def _coalesce_node(name: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    return Node(name, _common_kind(name, of), of)


def _case_node(name: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    """Return a CASE or an IF: conditions and values in turn, and a value for all other rows if their number is odd."""
    values = of[1::2]
    if len(of) % 2:
        values += of[-1:]
    return Node(name, _common_kind(name, values), of)


def _common_kind(name: str, values: tuple[Node, ...]) -> Kind:
    kind = values[0].kind
    arrow_type_of(kind)
    if any(value.kind != kind for value in values):
        raise Untranslatable(f"{name.lower()} of {type_name(kind)}")
    return kind


def _in_set(name: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    """Return IN with many constants."""
    kind = of[0].kind
    items = [casts.make_literal("Literal", {"dataType": kind, "value": value}, ()) for value in entry["hset"]]
    return _make_in("In", entry, (*of, *items))


REWRITTEN = {
    *("Nvl", "NullIf", "Nvl2", "Between", "EqualNull", "Get", "TypedNullLiteral", "UnaryPositive", "ArraySize"),
    *("TryAdd", "TrySubtract", "TryMultiply", "TryDivide", "TryMod", "With", "CommonExpressionDef"),
    *("CommonExpressionRef", "Left", "Right", "ILike", "ParseToDate", "ParseToTimestamp", "TryElementAt"),
}
"""What users write and Spark's optimiser replaces."""
MAKERS: dict[str, Callable[[str, PlanEntry, tuple[Node, ...]], Node]] = {
    "Alias": lambda name, entry, of: of[0],
    "TryEval": _make_same_type,
    "AttributeReference": _make_column,
    "Literal": casts.make_literal,
    "Cast": casts.make_cast,
    "In": _make_in,
    "InSet": _in_set,
    **dict.fromkeys(("IsNull", "IsNotNull", "And", "Or", "Not"), _make_boolean),
    "Coalesce": _coalesce_node,
    **dict.fromkeys(("If", "CaseWhen"), _case_node),
    **functions.MAKERS,
    **text.MAKERS,
}

_Mask = Any
"""A boolean array or scalar without nulls."""


class _Result(NamedTuple):
    """The value of an expression, and the rows on which it raises. Constants are scalars; None is no row."""

    value: Value
    raised: _Mask | None = None


def _evaluate_node(node: Node, columns: Mapping[str, pa.Array], defects: list[Defect]) -> _Result:
    if node.op == "column":
        return _Result(columns[node.with_])
    if node.op == "literal":
        return _Result(pa.scalar(node.with_, arrow_type_of(node.kind)))
    of = [_evaluate_node(child, columns, defects) for child in node.of]
    operate = _LAZY.get(node.op, _evaluate_strict)
    try:
        value, raised = operate(node, of)
    except Exception:
        # Without a call of its own for the batch, `by_halves` would cost each operation of each batch 20 microseconds.
        value, raised = _by_rows(partial(operate, node), node, of, defects)
    if raised is None or not _has_true(raised):
        return _Result(value)
    return _Result(pc.if_else(raised, pa.scalar(None, value.type), value), raised)


def _by_rows(
    operate: Callable[[list[_Result]], _Result], node: Node, of: list[_Result], defects: list[Defect]
) -> _Result:
    """Return the result of an operation that fails on some rows, which are marked.

    What Spark makes of these rows nobody knows here, so they are marked even if the operation is one of `try_`.
    """
    lengths = [len(operand.value) for operand in of if isinstance(operand.value, pa.Array)]
    rows = lengths[0] if lengths else 1
    pieces = by_halves(lambda start, stop: operate([_slice_operand(operand, start, stop) for operand in of]), rows)
    errors = [piece.error for piece in pieces if piece.error]
    if len(errors) == len(pieces) or len(errors) >= MANY_FAILURES:
        defects.append(Defect(node.op, errors[0]))
    made_types = (piece.made.value.type for piece in pieces if piece.made)
    kind = next(made_types, None) or arrow_type_of(node.kind)
    failed = _Result(pa.scalar(None, kind), pa.scalar(True))
    values = []
    marks = []
    for piece in pieces:
        value, raised = piece.made or failed
        if raised is None:
            raised = pa.scalar(False)
        size = piece.stop - piece.start
        values.append(as_array(value, size))
        marks.append(as_array(raised, size))
    if not lengths:  # of constants a constant
        return _Result(values[0][0], marks[0][0])
    return _Result(pa.concat_arrays(values), pa.concat_arrays(marks))


def _slice_operand(operand: _Result, start: int, stop: int) -> _Result:
    """Return an operand for some consecutive rows; a constant is the same for all."""
    value, raised = operand
    if isinstance(value, pa.Array):
        value = value[start:stop]
    if isinstance(raised, pa.Array):
        raised = raised[start:stop]
    return _Result(value, raised)


def _has_true(mask: _Mask) -> bool:
    return bool(mask.as_py()) if isinstance(mask, pa.Scalar) else mask.true_count > 0


def _or_masks(*masks: _Mask | None) -> _Mask | None:
    some = [mask for mask in masks if mask is not None]
    return reduce(pc.or_, some) if some else None


def _raised_where(condition: _Mask, raised: _Mask | None) -> _Mask | None:
    return None if raised is None else pc.and_(condition, raised)


def _is_true(value: Value) -> _Mask:
    return pc.fill_null(value, False)


def _evaluate_strict(node: Node, of: list[_Result]) -> _Result:
    """Evaluate an operation that is null if an operand is: Spark leaves off at the first one that is null."""
    operands = of[::-1] if node.op in functions.RIGHT_FIRST else of
    raised = None
    reached = pa.scalar(True)
    for operand in operands:
        raised = _or_masks(raised, _raised_where(reached, operand.raised))
        valid = operand.value.is_valid() if isinstance(operand.value, pa.Array) else pa.scalar(operand.value.is_valid)
        reached = pc.and_(reached, valid)
    value, failed = _apply_operation(node, [operand.value for operand in of])
    if failed is None:
        return _Result(value, raised)
    failed = _is_true(failed)
    if not node.quiet:
        raised = _or_masks(raised, pc.and_(reached, failed))
    elif node.op in functions.RIGHT_FIRST:
        # A divisor of zero is enough for null: Spark does not evaluate the dividend then.
        dividend, divisor = of
        is_divided = pc.and_(pc.is_valid(divisor.value), pc.invert(failed))
        raised = _or_masks(divisor.raised, _raised_where(is_divided, dividend.raised))
    return _Result(pc.if_else(failed, pa.scalar(None, value.type), value), raised)


def _apply_operation(node: Node, values: list[Any]) -> tuple[Any, Any]:
    """Apply an operation to values: all arrays, except for those that a kernel takes as they are.

    Returns the value, and the rows on which the operation itself raises, if it can.
    """
    constant = bool(values) and all(isinstance(value, pa.Scalar) for value in values)
    # The functions of operations take arrays: constants become arrays of one row.
    if constant:
        values = [repeat_scalar(value, 1) for value in values]
    no_text = None
    try:
        value = _OPERATIONS[node.op](node, *values)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        # Spark's texts may hold any bytes. On some of them a kernel raises for the whole batch: leave these rows out.
        values, no_text = _without_broken_texts(values)
        if no_text is None:
            raise
        value = _OPERATIONS[node.op](node, *values)
    failed = None
    if isinstance(value, tuple):
        value, failed = value
    failed = _or_masks(failed, no_text)
    if constant:
        value = value[0]
        failed = None if failed is None else failed[0]
    return value, failed


def _without_broken_texts(values: list[Any]) -> tuple[list[Any], pa.BooleanArray | None]:
    """Return values that are null on each row with a text that is not UTF-8, and these rows; None if there are none."""
    arrays = [value for value in values if isinstance(value, pa.Array)]
    broken = np.zeros(len(arrays[0]) if arrays else 0, bool)
    for array in arrays:
        if is_text(array.type):
            broken |= not_utf8(array)
    if not broken.any():
        return values, None
    rows = pa.array(broken)
    valid = []
    for value in values:
        is_array = isinstance(value, pa.Array)
        valid.append(pc.if_else(rows, pa.scalar(None, value.type), value) if is_array else value)
    return valid, rows


def _evaluate_all_operands(node: Node, of: list[_Result]) -> _Result:
    """Evaluate an operation that looks at all of its operands, whether they are null or not."""
    value, _ = _apply_operation(node, [operand.value for operand in of])
    return _Result(value, _or_masks(*(operand.raised for operand in of)))


def _evaluate_without_raised(node: Node, of: list[_Result]) -> _Result:
    return _Result(of[0].value)


def _evaluate_and(node: Node, of: list[_Result]) -> _Result:
    left, right = of
    reached = pc.fill_null(left.value, True)
    return _Result(pc.and_kleene(left.value, right.value), _or_masks(left.raised, _raised_where(reached, right.raised)))


def _evaluate_or(node: Node, of: list[_Result]) -> _Result:
    left, right = of
    reached = pc.invert(_is_true(left.value))
    return _Result(pc.or_kleene(left.value, right.value), _or_masks(left.raised, _raised_where(reached, right.raised)))


def _evaluate_coalesce(node: Node, of: list[_Result]) -> _Result:
    raised = None
    reached = pa.scalar(True)
    for operand in of:
        raised = _or_masks(raised, _raised_where(reached, operand.raised))
        reached = pc.and_(reached, pc.is_null(operand.value))
    return _Result(pc.coalesce(*(operand.value for operand in of)), raised)


def _evaluate_case(node: Node, of: list[_Result]) -> _Result:
    """Choose from the last condition to the first: each replaces the value that the later ones have left."""
    result = of[-1] if len(of) % 2 else _Result(pa.scalar(None, arrow_type_of(node.kind)))
    for k in range(len(of) // 2 * 2 - 2, -1, -2):
        condition, then = of[k : k + 2]
        holds = _is_true(condition.value)
        raised = _or_masks(
            condition.raised, _raised_where(holds, then.raised), _raised_where(pc.invert(holds), result.raised)
        )
        result = _Result(_select_values(holds, then.value, result.value), raised)
    return result


def _select_values(holds: _Mask, then: Value, other: Value) -> Value:
    if isinstance(holds, pa.Scalar):
        return then if holds.as_py() else other
    return pc.if_else(holds, then, in_type(other, then.type))


def _is_in(node: Node, of: list[_Result]) -> _Result:
    """Compare with one item after the other, until one is equal."""
    value, *items = of
    valid = pc.is_valid(value.value)
    no_truth = pa.scalar(None, pa.bool_())
    # Constants are looked up at once, but for fractions: NaN equals itself in Spark.
    if value.value.type not in (pa.float32(), pa.float64()) and all(map(is_constant, node.of[1:])):
        constants = pa.concat_arrays([repeat_scalar(item.value, 1) for item in items])
        is_in = pc.and_(pc.is_in(value.value, constants), pa.scalar(True))
        return _Result(pc.if_else(valid, is_in, no_truth), value.raised)
    is_in = pa.scalar(False)
    raised = value.raised
    reached = valid
    for item, child in zip(items, node.of[1:], strict=True):
        raised = _or_masks(raised, _raised_where(reached, item.raised))
        same = functions.is_equal(replace(node, of=(node.of[0], child)), value.value, item.value)
        is_in = pc.or_kleene(is_in, same)
        reached = pc.and_(reached, pc.invert(_is_true(same)))
    return _Result(pc.if_else(valid, is_in, no_truth), raised)


_LAZY: dict[str, Callable[[Node, list[_Result]], _Result]] = {
    "And": _evaluate_and,
    "Or": _evaluate_or,
    "Coalesce": _evaluate_coalesce,
    "If": _evaluate_case,
    "CaseWhen": _evaluate_case,
    "In": _is_in,
    "TryEval": _evaluate_without_raised,
    **dict.fromkeys(("IsNull", "IsNotNull", *functions.ALL, *text.ALL), _evaluate_all_operands),
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "cast": casts.convert_values,
    "IsNull": lambda node, value: pc.is_null(value),
    "IsNotNull": lambda node, value: pc.is_valid(value),
    "Not": lambda node, value: pc.invert(value),
    **functions.OPERATIONS,
    **text.OPERATIONS,
}
"""The functions of operations. One that can raise also returns the rows on which it does."""
