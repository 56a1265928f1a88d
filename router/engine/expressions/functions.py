"""Comparisons, arithmetic and look-ups with Spark's values.

For each there are two functions: one checks on the driver that the values of the operands' types are the same here, one
computes on arrays. A function that can raise also returns the rows on which it does; a row counts only if no operand is
null on it.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.engine.expressions.casts import rescale_decimals
from router.engine.expressions.tree import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    NUMBER_TYPES,
    TIME_TYPES,
    TYPES,
    Node,
    Untranslatable,
    arrow_type_of,
    as_arrays,
    decimal_precision,
    is_constant,
    is_nested,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from router.engine.expressions.tree import Kind, PlanEntry, Value

_Nodes = tuple[Node, ...]
MOST_DIGITS = 38
"""The digits that a decimal may have."""
RIGHT_FIRST = ("Divide", "IntegralDivide", "Remainder")
"""Spark evaluates a divisor first, and stops if it is null."""
ALL = ("EqualNullSafe", "IsNaN", "Greatest", "Least", "CreateNamedStruct")
"""Operations that may have a value even if an operand is null."""
COMPARED = (*NUMBER_TYPES, *TIME_TYPES, "boolean", "string")


def check_comparable(operation: str, kind: Kind, *more: str) -> None:
    """Refuse types that Arrow does not compare as Spark does."""
    if kind not in (*COMPARED, *more) and not decimal_precision(kind):
        raise Untranslatable(f"{operation} with {type_name(kind)}")


def _make_comparison(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    check_comparable("a comparison", of[0].kind, "binary")
    if of[0].kind != of[1].kind:
        raise Untranslatable(f"a comparison of {type_name(of[0].kind)} and {type_name(of[1].kind)}")
    return Node(name, "boolean", of)


def is_equal(node: Node, left: Value, right: Value) -> Value:
    """Return whether two values are equal: in Spark NaN equals itself."""
    same = pc.equal(left, right)
    if not _is_floating(node):
        return same
    return pc.or_kleene(same, pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def _equal_null_safe(node: Node, left: Value, right: Value) -> Value:
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both_null, pc.fill_null(is_equal(node, left, right), False))


def _is_greater(node: Node, left: Value, right: Value) -> Value:
    """Return whether the first value is greater: in Spark NaN is greater than any other number."""
    if node.of[0].kind == "boolean":
        left = pc.cast(left, pa.int8())
        right = pc.cast(right, pa.int8())
    greater = pc.greater(left, right)
    if not _is_floating(node):
        return greater
    return pc.or_kleene(greater, pc.and_kleene(pc.is_nan(left), pc.invert(pc.is_nan(right))))


def _is_floating(node: Node) -> bool:
    return node.of[0].kind in FLOAT_TYPES


def _make_extreme(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    check_comparable(f"the function {name.lower()}", of[0].kind)
    if any(node.kind != of[0].kind for node in of):
        raise Untranslatable(f"the function {name.lower()} of several types")
    return Node(name, of[0].kind, of)


def _choose_extreme(node: Node, *values: Value) -> Value:
    def choose(left: Value, right: Value) -> Value:
        pair = (right, left) if node.op == "Greatest" else (left, right)
        return pc.if_else(pc.fill_null(_is_greater(node, *pair), pc.is_null(left)), right, left)

    return reduce(choose, as_arrays(*values))


def _make_arithmetic(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    left, right = of
    if left.kind in NUMBER_TYPES and left.kind == right.kind:
        return Node(name, left.kind, of)
    left_size = decimal_precision(left.kind)
    right_size = decimal_precision(right.kind)
    if left_size is None or right_size is None or name not in ("Add", "Subtract", "Multiply"):
        raise Untranslatable(f"{_SIGNS[name]} on {type_name(left.kind)} and {type_name(right.kind)}")
    # The precision and scale of the result, as in Spark's DecimalPrecision.
    left_digits, left_scale = left_size
    right_digits, right_scale = right_size
    if name == "Multiply":
        scale = left_scale + right_scale
        digits = left_digits + right_digits + 1
    else:
        scale = max(left_scale, right_scale)
        digits = max(left_digits - left_scale, right_digits - right_scale) + scale + 1
    if digits > MOST_DIGITS or min(left_scale, right_scale) < 0:  # Spark would take digits off
        raise Untranslatable(f"{_SIGNS[name]} on {left.kind} and {right.kind}, which has more than 38 digits")
    return Node(name, f"decimal({digits},{scale})", of)


_SIGNS = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "IntegralDivide": "div",
    "Remainder": "%",
}
_KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "Add": (pc.add, pc.add_checked),
    "Subtract": (pc.subtract, pc.subtract_checked),
    "Multiply": (pc.multiply, pc.multiply_checked),
}


def _compute_arithmetic(node: Node, left: Value, right: Value) -> Value:
    """Add, subtract or multiply. Only if some row overflows all are computed with more digits."""
    plain, checked = _KERNELS[node.op]
    if node.kind not in INTEGER_TYPES:
        return plain(left, right)
    try:
        return checked(left, right)
    except pa.ArrowInvalid:
        return _narrow_decimals(plain(_widen_to_decimal(left), _widen_to_decimal(right)), TYPES[node.kind])


def _widen_to_decimal(value: Value) -> Value:
    return pc.cast(pc.cast(value, pa.int64()), pa.decimal256(19, 0))


def _narrow_decimals(wide: pa.Array, to: pa.DataType) -> Value:
    """Return numbers as a type of fewer digits, and the rows on which they have too many."""
    limit = 2 ** (to.bit_width - 1)
    failed = pc.or_(pc.less(wide, Decimal(-limit)), pc.greater(wide, Decimal(limit - 1)))
    inside = pc.if_else(failed, pa.scalar(None, wide.type), wide)
    return pc.cast(pc.cast(pc.cast(inside, pa.decimal128(38, 0)), pa.int64()), to), failed


def _make_division(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    if of[0].kind != of[1].kind or of[0].kind not in _DIVIDED[name]:
        raise Untranslatable(f"{_SIGNS[name]} on {type_name(of[0].kind)} and {type_name(of[1].kind)}")
    return Node(name, of[0].kind, of)


_DIVIDED = {"Divide": ("double",), "IntegralDivide": ("long",), "Remainder": NUMBER_TYPES}
"""The types of both operands."""


def _compute_quotient(node: Node, dividend: Value, divisor: Value) -> Value:
    return pc.divide(dividend, divisor), pc.equal(divisor, 0.0)


def _whole_quotient(node: Node, dividend: Value, divisor: Value) -> Value:
    overflow = pc.and_(pc.equal(dividend, -(2**63)), pc.equal(divisor, -1))
    failed = pc.or_(pc.equal(divisor, 0), overflow)
    return pc.divide(dividend, pc.if_else(failed, pa.scalar(1, pa.int64()), divisor)), failed


def _compute_remainder(node: Node, dividend: Value, divisor: Value) -> Value:
    dividend, divisor = as_arrays(dividend, divisor)
    failed = pc.equal(divisor, pa.scalar(0, divisor.type))
    nulls = _either_null(dividend, divisor)
    any_divisor = pa.scalar(1, divisor.type)
    safe = pc.if_else(failed, any_divisor, divisor)
    if node.kind in INTEGER_TYPES:  # the smallest number by minus one is a trap of the processor
        safe = pc.if_else(pc.equal(safe, pa.scalar(-1, divisor.type)), any_divisor, safe)
    with np.errstate(invalid="ignore"):
        remainders = np.fmod(_numpy_values(dividend), _numpy_values(safe))
    return pa.array(remainders, mask=_numpy_values(nulls)), failed


def _numpy_values(value: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array: 1 in place of nulls."""
    numbers: npt.NDArray[Any] = pc.fill_null(value, pa.scalar(1).cast(value.type)).to_numpy(zero_copy_only=False)
    return numbers


def _make_sign_change(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    # Spark takes these of a decimal with 38 digits for ones that are too wide.
    size = decimal_precision(of[0].kind)
    if of[0].kind not in NUMBER_TYPES and (size is None or size[0] == MOST_DIGITS):
        raise Untranslatable(f"{_NAMES[name]} of {type_name(of[0].kind)}")
    return Node(name, of[0].kind, of)


_NAMES = {"UnaryMinus": "the sign -", "Abs": "the function abs"}


def _change_sign(node: Node, value: pa.Array) -> Value:
    """Return minus or the absolute value: the smallest whole number has none."""
    apply = pc.negate if node.op == "UnaryMinus" else pc.abs
    if node.kind not in INTEGER_TYPES:
        return apply(value)
    failed = pc.equal(value, pa.scalar(-(2 ** (value.type.bit_width - 1)), value.type))
    return apply(pc.if_else(failed, pa.scalar(0, value.type), value)), failed


def _make_round(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    value, places = of
    size = decimal_precision(value.kind)
    is_number = value.kind in (*INTEGER_TYPES, "double") or size is not None
    if not is_number or not is_constant(places) or not 0 <= places.with_ <= 15:
        raise Untranslatable(f"the function round of {type_name(value.kind)} with these places")
    if value.kind in INTEGER_TYPES:
        return value
    if size is None:
        return Node(name, value.kind, (value,), places.with_)
    digits, old_scale = size
    scale = min(old_scale, places.with_)
    digits = min(MOST_DIGITS, digits - old_scale + 1 + scale)
    return Node(name, f"decimal({digits},{scale})", (value,), places.with_)


def _round_half_up(node: Node, value: pa.Array) -> Value:
    """Round half up, decided on the decimal text of a number as Spark does."""
    if node.kind != "double":
        return rescale_decimals(value, arrow_type_of(node.kind))
    nulls = _numpy_values(pc.is_null(value))
    values = _numpy_values(value)
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.abs(values) * 10.0**node.with_
        whole = np.floor(scaled)
        # If the digits that are cut off are close to a half, the text decides.
        clear = (scaled < 2**49) & (np.abs(scaled - whole - 0.5) > 0.01)
        rounded = np.copysign((whole + (scaled - whole > 0.5)) / 10.0**node.with_, values)
    rounded = np.where(rounded == 0, 0.0, rounded)  # a decimal has no minus zero
    for k in np.flatnonzero(~clear & finite & ~nulls):
        text = Decimal(repr(float(values[k])))
        exponent = int(text.as_tuple().exponent)
        rounded[k] = float(text if exponent >= -node.with_ else _quantize_decimal(text, node.with_))
    return pa.array(np.where(finite, rounded, values), mask=nulls)


def _quantize_decimal(number: Decimal, places: int) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def _make_ceil(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    if of[0].kind == "long":
        return of[0]
    if of[0].kind != "double":
        raise Untranslatable(f"the function {name.lower()} of {type_name(of[0].kind)}")
    return Node(name, "long", of)


def _ceil_or_floor(node: Node, value: pa.Array) -> Value:
    """Return the next whole number as a long: the largest long stands for all above, zero for NaN."""
    whole = pc.ceil(value) if node.op == "Ceil" else pc.floor(value)
    whole = pc.if_else(pc.is_nan(whole), 0.0, whole)
    above = pc.greater_equal(whole, 2.0**63)
    below = pc.less(whole, -(2.0**63))
    inside = pc.cast(pc.if_else(pc.or_(above, below), 0.0, whole), pa.int64(), safe=False)
    return pc.if_else(above, 2**63 - 1, pc.if_else(below, -(2**63), inside))


def _make_is_nan(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    return Node(name, "boolean", of)


def _make_field(_: str, entry: PlanEntry, of: _Nodes) -> Node:
    return Node("field", of[0].kind["fields"][entry["ordinal"]]["type"], of, entry["ordinal"])


def _make_item_fields(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    field = of[0].kind["elementType"]["fields"][entry["ordinal"]]
    kind = {**of[0].kind, "elementType": field["type"], "containsNull": True}
    return Node(name, kind, of, entry["ordinal"])


def _fields_of_all(node: Node, value: pa.Array) -> pa.Array:
    items = pc.struct_field(value.values, [node.with_])
    return _replace_items(value, items)


def _replace_items(collection: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists of other items in the places of those of an array or a map, which may be a slice."""
    return pa.ListArray.from_arrays(pa.array(collection.offsets.to_numpy()), items, mask=pc.is_null(collection))


def _make_struct(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    if not all(map(is_constant, of[::2])):
        raise Untranslatable("a struct whose fields have no constant names")
    names = tuple(node.with_ for node in of[::2])
    fields = []
    for field_name, value in zip(names, of[1::2], strict=True):
        fields.append({"name": field_name, "type": value.kind, "nullable": True, "metadata": {}})
    return Node(name, {"type": "struct", "fields": fields}, of[1::2], names)


def _made_struct(node: Node, *values: Value) -> pa.Array:
    return pa.StructArray.from_arrays(as_arrays(*values), names=list(node.with_))


def make_item(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    """Return a look-up in an array or a map; `with_`: whether a missing item raises."""
    collection, key = of
    if is_nested(collection.kind, "map"):
        check_comparable("a look-up", collection.kind["keyType"])
        if key.kind != collection.kind["keyType"]:
            raise Untranslatable(f"a look-up of {type_name(key.kind)} among {type_name(collection.kind['keyType'])}")
        return Node("GetMapValue", collection.kind["valueType"], of)
    if not is_nested(collection.kind, "array") or key.kind not in INTEGER_TYPES:
        raise Untranslatable(f"a look-up in {type_name(collection.kind)}")
    return Node(name, collection.kind["elementType"], of, entry["failOnError"])


def _from_array(node: Node, array: Value, place: Value) -> Value:
    """Return items by their place: from zero in a[0]; from one, and from the end if negative, in element_at."""
    array, place = as_arrays(array, place)
    starts = array.offsets.to_numpy()[:-1].astype(np.int64)
    sizes = np.diff(array.offsets.to_numpy()).astype(np.int64)
    places = _numpy_values(pc.cast(place, pa.int64()))
    invalid = np.zeros(len(places), bool)
    if node.op == "ElementAt":
        invalid = (places == 0) | (places == -(2**31))  # these raise for any array
        places = np.where(places > 0, places - 1, places + sizes)
    missing = (places < 0) | (places >= sizes) | invalid
    no_item = missing | _numpy_values(_either_null(array, place))
    items = array.values.take(pa.array(np.where(no_item, 0, starts + places), mask=no_item))
    return items, pa.array(missing if node.with_ else invalid)


def _from_map(node: Node, mapping: Value, key: Value) -> Value:
    """Return the value of the first of a map's keys that is equal; null if there is none."""
    mapping, key = as_arrays(mapping, key)
    places = _first_equal(mapping, node.of[1].kind, mapping.keys, key)
    return mapping.items.take(pa.array(np.maximum(places, 0), mask=places < 0))


def _first_equal(collection: pa.Array, kind: Kind, items: pa.Array, wanted: pa.Array) -> npt.NDArray[Any]:
    """Return the place of the first item of every row that is equal to a value; -1 if there is none."""
    offsets = collection.offsets.to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(collection)), np.diff(offsets))
    items = items.slice(offsets[0], offsets[-1] - offsets[0])
    same = is_equal(Node("", "boolean", (Node("", kind),)), items, wanted.take(pa.array(rows)))
    hits = np.flatnonzero(_numpy_values(pc.fill_null(same, False)))[::-1]
    places = np.full(len(collection), -1, np.int64)
    places[rows[hits]] = hits + offsets[0]  # backwards: the first one is written last
    return np.where(_numpy_values(_either_null(collection, wanted)), -1, places)


def _either_null(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_(pc.is_null(left), pc.is_null(right))


def _make_size(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    if entry.get("legacySizeOfNull") or not (is_nested(of[0].kind, "array") or is_nested(of[0].kind, "map")):
        raise Untranslatable("the function size where it gives -1 for null")
    return Node(name, "integer", of)


def _make_contains(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    collection, wanted = of
    kind = collection.kind["elementType"]
    check_comparable("a look-up", kind)
    if kind != wanted.kind:
        raise Untranslatable(f"a look-up of {type_name(wanted.kind)} among {type_name(kind)}")
    return Node(name, "boolean", of)


def _evaluate_contains(node: Node, array: Value, wanted: Value) -> pa.Array:
    """Return whether an array has a value: null if it has none that is equal, but nulls."""
    array, wanted = as_arrays(array, wanted)
    is_in = pa.array(_first_equal(array, node.of[1].kind, array.values, wanted) >= 0)
    # Count nulls up to each item: an array has some if the numbers at its ends differ.
    offsets = array.offsets.to_numpy()
    nulls_before = np.concatenate([[0], np.cumsum(_numpy_values(pc.is_null(array.values)))])
    has_nulls = pa.array(nulls_before[offsets[1:]] > nulls_before[offsets[:-1]])
    unknown = pc.or_(pc.and_not(has_nulls, is_in), _either_null(array, wanted))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), is_in)


MAKERS: dict[str, Callable[[str, PlanEntry, _Nodes], Node]] = {
    **dict.fromkeys(
        ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"),
        _make_comparison,
    ),
    **dict.fromkeys(("Greatest", "Least"), _make_extreme),
    **dict.fromkeys(_KERNELS, _make_arithmetic),
    **dict.fromkeys(RIGHT_FIRST, _make_division),
    **dict.fromkeys(_NAMES, _make_sign_change),
    "Round": _make_round,
    **dict.fromkeys(("Ceil", "Floor"), _make_ceil),
    "IsNaN": _make_is_nan,
    "GetStructField": _make_field,
    "GetArrayStructFields": _make_item_fields,
    "CreateNamedStruct": _make_struct,
    **dict.fromkeys(("GetArrayItem", "GetMapValue", "ElementAt"), make_item),
    "Size": _make_size,
    "ArrayContains": _make_contains,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "EqualTo": is_equal,
    "EqualNullSafe": _equal_null_safe,
    "GreaterThan": _is_greater,
    "LessThan": lambda node, left, right: _is_greater(node, right, left),
    "GreaterThanOrEqual": lambda node, left, right: pc.invert(_is_greater(node, right, left)),
    "LessThanOrEqual": lambda node, left, right: pc.invert(_is_greater(node, left, right)),
    **dict.fromkeys(("Greatest", "Least"), _choose_extreme),
    **dict.fromkeys(_KERNELS, _compute_arithmetic),
    "Divide": _compute_quotient,
    "IntegralDivide": _whole_quotient,
    "Remainder": _compute_remainder,
    **dict.fromkeys(_NAMES, _change_sign),
    "Round": _round_half_up,
    **dict.fromkeys(("Ceil", "Floor"), _ceil_or_floor),
    "IsNaN": lambda node, value: pc.fill_null(pc.is_nan(value), False),
    "field": lambda node, value: pc.struct_field(value, [node.with_]),
    "GetArrayStructFields": _fields_of_all,
    "CreateNamedStruct": _made_struct,
    **dict.fromkeys(("GetArrayItem", "ElementAt"), _from_array),
    "GetMapValue": _from_map,
    "Size": lambda node, value: pc.cast(_collection_lengths(value), pa.int32()),
    "ArrayContains": _evaluate_contains,
}


def _collection_lengths(collection: pa.Array) -> pa.Array:
    sizes = np.diff(collection.offsets.to_numpy())
    return pa.array(sizes, mask=_numpy_values(pc.is_null(collection)))
