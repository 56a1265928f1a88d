"""Comparisons, arithmetic, dates and look-ups with Spark's values.

For each there are two functions: one checks on the driver that the operands' types are among those it has the same
values for, one computes on arrays. What can raise returns the rows on which it does as well; they count only where no
operand is null.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.engine.expressions.casts import cast, check_zone, floor_divided, rescaled
from router.engine.expressions.tree import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    TIMES,
    TYPES,
    Node,
    Untranslatable,
    arrays,
    arrow_type,
    given,
    nested,
    only,
    precision,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Nodes = tuple[Node, ...]
RIGHT_FIRST = ("Divide", "IntegralDivide", "Remainder")
"""Spark looks at a divisor first, and leaves off where it is null."""
ALL = ("EqualNullSafe", "IsNaN", "Greatest", "Least", "CreateNamedStruct")
"""What has a value though an operand is null."""
COMPARED = (*NUMBERS, *TIMES, "boolean", "string")


def check_comparable(what: str, kind: Any, *more: str) -> None:
    """Refuse types that Arrow does not compare as Spark does."""
    if kind not in (*COMPARED, *more) and not precision(kind):
        raise Untranslatable(f"{what} with {shown(kind)}")


def _compared(name: str, entry: Any, of: Nodes) -> Node:
    check_comparable("a comparison", of[0].kind, "binary")
    if of[0].kind != of[1].kind:
        raise Untranslatable(f"a comparison of {shown(of[0].kind)} and {shown(of[1].kind)}")
    if name == "EqualNullSafe" and of[0] == of[1]:
        return Node("literal", "boolean", with_=True)  # Spark's optimiser evaluates neither
    return Node(name, "boolean", of)


def equal(node: Node, one: Any, other: Any) -> Any:
    """Return whether two values are equal: in Spark NaN equals itself."""
    same = pc.equal(one, other)
    return pc.or_kleene(same, pc.and_kleene(pc.is_nan(one), pc.is_nan(other))) if _floating(node) else same


def _equal_null_safe(node: Node, one: Any, other: Any) -> Any:
    nulls = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.or_(nulls, pc.fill_null(equal(node, one, other), False))


def _greater(node: Node, one: Any, other: Any) -> Any:
    """Return whether the first value is greater: in Spark NaN is greater than any other number."""
    if node.of[0].kind == "boolean":
        one, other = pc.cast(one, pa.int8()), pc.cast(other, pa.int8())
    more = pc.greater(one, other)
    if not _floating(node):
        return more
    return pc.or_kleene(more, pc.and_kleene(pc.is_nan(one), pc.invert(pc.is_nan(other))))


def _floating(node: Node) -> bool:
    return node.of[0].kind in FLOATS


def _extreme(name: str, entry: Any, of: Nodes) -> Node:
    check_comparable(f"the function {name.lower()}", of[0].kind)
    if any(node.kind != of[0].kind for node in of):
        raise Untranslatable(f"the function {name.lower()} of several types")
    return Node(name, of[0].kind, of)


def _greatest(node: Node, *values: Any) -> Any:
    def chosen(one: Any, other: Any) -> Any:
        better = _greater(node, other, one) if node.op == "Greatest" else _greater(node, one, other)
        return pc.if_else(pc.fill_null(better, pc.is_null(one)), other, one)

    return reduce(chosen, arrays(*values))


def _arithmetic(name: str, entry: Any, of: Nodes) -> Node:
    one, other = of
    if one.kind in NUMBERS and one.kind == other.kind:
        return Node(name, one.kind, of)
    sizes = precision(one.kind), precision(other.kind)
    if None in sizes or name not in ("Add", "Subtract", "Multiply"):
        raise Untranslatable(f"{_SIGNS[name]} on {shown(one.kind)} and {shown(other.kind)}")
    (p1, s1), (p2, s2) = sizes  # type: ignore[misc]
    scale = s1 + s2 if name == "Multiply" else max(s1, s2)
    digits = p1 + p2 + 1 if name == "Multiply" else max(p1 - s1, p2 - s2) + scale + 1
    if digits > 38 or min(s1, s2) < 0:  # Spark would take digits off
        raise Untranslatable(f"{_SIGNS[name]} on {one.kind} and {other.kind}, which has more than 38 digits")
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


def _computed(node: Node, one: Any, other: Any) -> Any:
    """Add, subtract or multiply. Only where some row overflows are all computed with more digits."""
    plain, checked = _KERNELS[node.op]
    if node.kind not in INTEGERS:
        return plain(one, other)
    try:
        return checked(one, other)
    except pa.ArrowInvalid:
        return _ranged(plain(_wide(one), _wide(other)), TYPES[node.kind])


def _wide(value: Any) -> Any:
    return pc.cast(pc.cast(value, pa.int64()), pa.decimal256(19, 0))


def _ranged(wide: pa.Array, to: pa.DataType) -> Any:
    """Return numbers as a type of fewer digits, and where they have too many."""
    low, high = -(2 ** (to.bit_width - 1)), 2 ** (to.bit_width - 1) - 1
    failed = pc.or_(pc.less(wide, Decimal(low)), pc.greater(wide, Decimal(high)))
    inside = pc.if_else(failed, pa.scalar(None, wide.type), wide)
    return pc.cast(pc.cast(pc.cast(inside, pa.decimal128(38, 0)), pa.int64()), to), failed


def _divided(name: str, entry: Any, of: Nodes) -> Node:
    kinds = {"Divide": ("double",), "IntegralDivide": ("long",), "Remainder": (*INTEGERS, "float", "double")}[name]
    if of[0].kind != of[1].kind or of[0].kind not in kinds:
        raise Untranslatable(f"{_SIGNS[name]} on {shown(of[0].kind)} and {shown(of[1].kind)}")
    return Node(name, of[0].kind, of)


def _quotient(node: Node, one: Any, other: Any) -> Any:
    return pc.divide(one, other), pc.equal(other, 0.0)


def _whole_quotient(node: Node, one: Any, other: Any) -> Any:
    zero = pc.equal(other, 0)
    failed = pc.or_(zero, pc.and_(pc.equal(one, -(2**63)), pc.equal(other, -1)))
    return pc.divide(one, pc.if_else(failed, pa.scalar(1, pa.int64()), other)), failed


def _remainder(node: Node, one: Any, other: Any) -> Any:
    one, other = arrays(one, other)
    zero, nulls = pc.equal(other, pa.scalar(0, other.type)), pc.or_(pc.is_null(one), pc.is_null(other))
    some = pa.scalar(1, other.type)
    safe = pc.if_else(zero, some, other)
    if node.kind in INTEGERS:  # the smallest number by minus one is a trap of the processor
        safe = pc.if_else(pc.equal(safe, pa.scalar(-1, other.type)), some, safe)
    with np.errstate(invalid="ignore"):
        found = np.fmod(_numbers(one), _numbers(safe))
    return pa.array(found, mask=_numbers(nulls)), zero


def _numbers(value: pa.Array) -> np.ndarray[Any, Any]:
    some = pa.scalar(1).cast(value.type)  # stands where there is none
    found: np.ndarray[Any, Any] = pc.fill_null(value, some).to_numpy(zero_copy_only=False)
    return found


def _signed(name: str, entry: Any, of: Nodes) -> Node:
    if name == "UnaryMinus" and str(of[0].kind).startswith("interval") and given(of[0]):
        return Node("literal", of[0].kind, with_=-of[0].with_)  # a time minus an interval is written so
    if of[0].kind not in NUMBERS and not precision(of[0].kind):
        raise Untranslatable(f"{_NAMES[name]} of {shown(of[0].kind)}")
    return Node(name, of[0].kind, of)


_NAMES = {"UnaryMinus": "the sign -", "Abs": "the function abs"}


def _negated(node: Node, value: pa.Array) -> Any:
    """Return minus or the absolute value: the smallest whole number has none."""
    apply = pc.negate if node.op == "UnaryMinus" else pc.abs
    if node.kind not in INTEGERS:
        return apply(value)
    failed = pc.equal(value, pa.scalar(-(2 ** (value.type.bit_width - 1)), value.type))
    return apply(pc.if_else(failed, pa.scalar(0, value.type), value)), failed


def _round(name: str, entry: Any, of: Nodes) -> Node:
    value, places = of
    size = precision(value.kind)
    if not given(places) or not 0 <= places.with_ <= 15 or (value.kind not in (*INTEGERS, "double") and not size):
        raise Untranslatable(f"the function round of {shown(value.kind)} with these places")
    if value.kind in INTEGERS:
        return value
    if size is None:
        return Node(name, value.kind, (value,), places.with_)
    kept = min(size[1], places.with_)
    return Node(name, f"decimal({min(38, size[0] - size[1] + 1 + kept)},{kept})", (value,), places.with_)


def _rounded(node: Node, value: pa.Array) -> Any:
    """Round half up, decided on the decimal text of a number as Spark does."""
    if node.kind != "double":
        to = arrow_type(node.kind)
        return rescaled(value, to)
    nulls, values = _numbers(pc.is_null(value)), _numbers(value)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.abs(values) * 10.0**node.with_
        whole = np.floor(scaled)
        clear = (scaled < 2**49) & (np.abs(scaled - whole - 0.5) > 0.01)  # else the text decides
        found = np.copysign((whole + (scaled - whole > 0.5)) / 10.0**node.with_, values)
    found = np.where(found == 0, 0.0, found)  # a decimal has no minus zero
    for k in np.flatnonzero(~clear & np.isfinite(values) & ~nulls):
        text = Decimal(repr(float(values[k])))
        exponent = int(text.as_tuple().exponent)
        found[k] = float(text if exponent >= -node.with_ else _quantized(text, node.with_))
    return pa.array(np.where(np.isfinite(values), found, values), mask=nulls)


def _quantized(number: Decimal, places: int) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def _ceil(name: str, entry: Any, of: Nodes) -> Node:
    if of[0].kind != "double" and of[0].kind != "long":
        raise Untranslatable(f"the function {name.lower()} of {shown(of[0].kind)}")
    return of[0] if of[0].kind == "long" else Node(name, "long", of)


def _ceiled(node: Node, value: pa.Array) -> Any:
    """Return the next whole number as a long: the largest long stands for all above, zero for NaN."""
    whole = pc.ceil(value) if node.op == "Ceil" else pc.floor(value)
    whole = pc.if_else(pc.is_nan(whole), 0.0, whole)
    above, below = pc.greater_equal(whole, 2.0**63), pc.less(whole, -(2.0**63))
    found = pc.cast(pc.if_else(pc.or_(above, below), 0.0, whole), pa.int64(), safe=False)
    return pc.if_else(above, 2**63 - 1, pc.if_else(below, -(2**63), found))


def _nan(name: str, entry: Any, of: Nodes) -> Node:
    return Node(name, "boolean", of)


def _date_part(name: str, entry: Any, of: Nodes) -> Node:
    if of[0].kind != ("timestamp" if name in _CLOCK else "date") and not (
        name in _CLOCK and of[0].kind == "timestamp_ntz"
    ):
        raise Untranslatable(f"the function {name.lower()} of {shown(of[0].kind)}")
    if of[0].kind == "timestamp":
        check_zone(entry)
    return Node(name, "integer", of)


_CLOCK = {"Hour": pc.hour, "Minute": pc.minute, "Second": pc.second}
_CALENDAR: dict[str, Callable[[pa.Array], pa.Array]] = {
    "Year": pc.year,
    "Quarter": pc.quarter,
    "Month": pc.month,
    "WeekOfYear": pc.iso_week,
    "DayOfMonth": pc.day,
    "DayOfYear": pc.day_of_year,
    "DayOfWeek": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=7),
    "WeekDay": pc.day_of_week,
}


def _part_of_date(node: Node, value: pa.Array) -> pa.Array:
    if node.op in _CLOCK:
        return pc.cast(_CLOCK[node.op](pc.cast(value, pa.timestamp("us"))), pa.int32())
    return pc.cast(_CALENDAR[node.op](value), pa.int32())


def _shifted(name: str, entry: Any, of: Nodes) -> Node:
    if of[0].kind != "date" or of[1].kind not in INTEGERS:
        raise Untranslatable(f"the function date_add of {shown(of[0].kind)} and {shown(of[1].kind)}")
    return Node(name, "date", of)


def _shifted_date(node: Node, date: Any, days: Any) -> Any:
    apply = pc.add if node.op == "DateAdd" else pc.subtract
    return pc.cast(apply(pc.cast(date, pa.int32()), pc.cast(days, pa.int32())), pa.date32())


def _between_dates(name: str, entry: Any, of: Nodes) -> Node:
    if [node.kind for node in of] != ["date", "date"]:
        raise Untranslatable("the function datediff of other types than dates")
    return Node(name, "integer", of)


def _later(name: str, entry: Any, of: Nodes) -> Node:
    """Return a time some days, hours or seconds later: days are of 24 hours in UTC."""
    start, interval = of
    if start.kind not in ("timestamp", "timestamp_ntz") or not given(interval) or "month" in interval.kind:
        raise Untranslatable("a sum of a time and an interval that is no constant of days and seconds")
    check_zone(entry)
    return Node(name, start.kind, (start,), interval.with_)


_LATER = ("TimeAdd", "TimestampAddInterval")
"""What Spark 4.0 and Spark 4.1 call it."""


def _seconds(name: str, entry: Any, of: Nodes) -> Node:
    if of[0].kind != "timestamp":
        raise Untranslatable(f"the function {_UNIX[name][0]} of {shown(of[0].kind)}")
    return Node(name, "long", of[:1])


_UNIX = {
    "UnixTimestamp": ("unix_timestamp", 1_000_000),
    "ToUnixTimestamp": ("to_unix_timestamp", 1_000_000),
    "UnixSeconds": ("unix_seconds", 1_000_000),
    "UnixMillis": ("unix_millis", 1_000),
    "UnixMicros": ("unix_micros", 1),
}


def _since(node: Node, value: pa.Array) -> pa.Array:
    """Return the time since 1970. Before it unix_timestamp cuts towards zero, the others towards the past."""
    divide = pc.divide if "Timestamp" in node.op else floor_divided
    return divide(pc.cast(value, pa.int64()), _UNIX[node.op][1])


def _moment(name: str, entry: Any, of: Nodes) -> Node:
    if of[0].kind not in INTEGERS:
        raise Untranslatable(f"the function {_EPOCHS[name][0]} of {shown(of[0].kind)}")
    return Node(name, "timestamp", of)


_EPOCHS = {
    "SecondsToTimestamp": ("timestamp_seconds", 1_000_000),
    "MillisToTimestamp": ("timestamp_millis", 1_000),
    "MicrosToTimestamp": ("timestamp_micros", 1),
}


def _since_epoch(node: Node, value: pa.Array) -> Any:
    """Return the time that a number of seconds, or parts of them, after 1970 stands for."""
    by = _EPOCHS[node.op][1]
    value = pc.cast(value, pa.int64())
    failed = pc.or_(pc.greater(value, (2**63 - 1) // by), pc.less(value, -((2**63) // by)))
    return pc.cast(pc.multiply(pc.if_else(failed, 0, value), by), TYPES["timestamp"]), failed


def _truncated(name: str, entry: Any, of: Nodes) -> Node:
    unit, value = of if name == "TruncTimestamp" else of[::-1]
    units = _UNITS if name == "TruncTimestamp" else dict(list(_UNITS.items())[:8])
    kind = "timestamp" if name == "TruncTimestamp" else "date"
    if not given(unit) or str(unit.with_).lower() not in units or value.kind != kind:
        raise Untranslatable(f"a date cut to a unit that is no constant of {', '.join(sorted(set(units)))}")
    if kind == "timestamp":
        check_zone(entry)
    return Node(name, kind, (value,), units[unit.with_.lower()])


_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
    **dict.fromkeys(("day", "dd"), "day"),
    **{unit: unit for unit in ("hour", "minute", "second", "millisecond", "microsecond")},
}


def _floored(node: Node, value: pa.Array) -> pa.Array:
    return pc.cast(pc.floor_temporal(pc.cast(value, pa.timestamp("us")), unit=node.with_), value.type)


def _read_date(name: str, entry: Any, of: Nodes) -> Node:
    """Return a cast: without a format it is what to_date and to_timestamp stand for."""
    kind = "date" if name == "ParseToDate" else entry["dataType"]
    if len(of) > 1:
        raise Untranslatable(f"the function to_{kind} with a format")
    strict = entry.get("failOnError", entry.get("ansiEnabled"))
    found = cast(name, {**entry, "dataType": kind}, of)
    return found if strict or found is of[0] else Node(found.op, found.kind, found.of, found.with_, quiet=True)


def _field(_: str, entry: Any, of: Nodes) -> Node:
    if of[0].op == "CreateNamedStruct":  # Spark makes no struct for it, and evaluates none of the other fields
        field: Node = of[0].of[entry["ordinal"]]
        return field
    return Node("field", of[0].kind["fields"][entry["ordinal"]]["type"], of, entry["ordinal"])


def _fields(name: str, entry: Any, of: Nodes) -> Node:
    field = of[0].kind["elementType"]["fields"][entry["ordinal"]]
    kind = {**of[0].kind, "elementType": field["type"], "containsNull": True}
    return Node(name, kind, of, entry["ordinal"])


def _fields_of_all(node: Node, value: pa.Array) -> pa.Array:
    items = pc.struct_field(value.values, [node.with_])
    return _listed(value, items)


def _listed(held: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists of other items in the places of those of an array or a map, which may be a slice."""
    return pa.ListArray.from_arrays(pa.array(held.offsets.to_numpy()), items, mask=pc.is_null(held))


def _struct(name: str, entry: Any, of: Nodes) -> Node:
    if not all(map(given, of[::2])):
        raise Untranslatable("a struct whose fields have no constant names")
    names, values = [node.with_ for node in of[::2]], of[1::2]
    fields = [{"name": n, "type": v.kind, "nullable": True, "metadata": {}} for n, v in zip(names, values, strict=True)]
    return Node(name, {"type": "struct", "fields": fields}, values, tuple(names))


def _made_struct(node: Node, *values: Any) -> pa.Array:
    return pa.StructArray.from_arrays(arrays(*values), names=list(node.with_))


def item(name: str, entry: Any, of: Nodes) -> Node:
    """Return a look-up in an array or a map; `with_` says whether a missing item raises."""
    held, key = of
    if nested(held.kind, "map"):
        check_comparable("a look-up", held.kind["keyType"])
        if key.kind != held.kind["keyType"]:
            raise Untranslatable(f"a look-up of {shown(key.kind)} among {shown(held.kind['keyType'])}")
        return Node("GetMapValue", held.kind["valueType"], of)
    if not nested(held.kind, "array") or key.kind not in INTEGERS:
        raise Untranslatable(f"a look-up in {shown(held.kind)}")
    return Node(name, held.kind["elementType"], of, entry["failOnError"])


def _from_array(node: Node, held: Any, place: Any) -> Any:
    """Return items by their place: from zero in a[0]; from one, and from the end where negative, in element_at."""
    held, place = arrays(held, place)
    starts = held.offsets.to_numpy()[:-1].astype(np.int64)
    sizes = np.diff(held.offsets.to_numpy()).astype(np.int64)
    at = _numbers(pc.cast(place, pa.int64()))
    never = np.zeros(len(at), bool)
    if node.op == "ElementAt":
        never = (at == 0) | (at == -(2**31))  # these raise whatever the array has
        at = np.where(at > 0, at - 1, at + sizes)
    missing = (at < 0) | (at >= sizes) | never
    gone = missing | _numbers(pc.or_(pc.is_null(held), pc.is_null(place)))
    found = held.values.take(pa.array(np.where(gone, 0, starts + at), mask=gone))
    return found, pa.array(missing if node.with_ else never)


def _from_map(node: Node, held: Any, key: Any) -> Any:
    """Return the value of the first of a map's keys that is equal; null where there is none."""
    held, key = arrays(held, key)
    places = _first(held, node.of[1].kind, held.keys, key)
    return held.items.take(pa.array(np.maximum(places, 0), mask=places < 0))


def _first(held: pa.Array, kind: Any, items: pa.Array, wanted: pa.Array) -> np.ndarray[Any, Any]:
    """Return the place of the first item of every row that is equal to a value; -1 where there is none."""
    offsets = held.offsets.to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(held)), np.diff(offsets))
    items = items.slice(offsets[0], offsets[-1] - offsets[0])
    same = equal(Node("", "boolean", (Node("", kind),)), items, wanted.take(pa.array(rows)))
    hits = np.flatnonzero(_numbers(pc.fill_null(same, False)))[::-1]
    found = np.full(len(held), -1, np.int64)
    found[rows[hits]] = hits + offsets[0]  # backwards: the first one is written last
    return np.where(_numbers(pc.or_(pc.is_null(held), pc.is_null(wanted))), -1, found)


def _size(name: str, entry: Any, of: Nodes) -> Node:
    if entry.get("legacySizeOfNull") or not (nested(of[0].kind, "array") or nested(of[0].kind, "map")):
        raise Untranslatable("the function size where it gives -1 for null")
    return Node(name, "integer", of)


def _contains(name: str, entry: Any, of: Nodes) -> Node:
    held, wanted = of
    kind = held.kind["elementType" if nested(held.kind, "array") else "keyType"]
    check_comparable("a look-up", kind)
    if kind != wanted.kind:
        raise Untranslatable(f"a look-up of {shown(wanted.kind)} among {shown(kind)}")
    return Node(name, "boolean", of)


def _contained(node: Node, held: Any, wanted: Any) -> pa.Array:
    """Return whether an array has a value: null where it has none, but nulls."""
    held, wanted = arrays(held, wanted)
    has = pa.array(_first(held, node.of[1].kind, held.values, wanted) >= 0)
    offsets = held.offsets.to_numpy()
    nulls = np.concatenate([[0], np.cumsum(_numbers(pc.is_null(held.values)))])
    unsure = pa.array(nulls[offsets[1:]] > nulls[offsets[:-1]])
    unsure = pc.or_(pc.and_not(unsure, has), pc.or_(pc.is_null(held), pc.is_null(wanted)))
    return pc.if_else(unsure, pa.scalar(None, pa.bool_()), has)


def _has_key(node: Node, held: Any, wanted: Any) -> pa.Array:
    held, wanted = arrays(held, wanted)
    has = pa.array(_first(held, node.of[1].kind, held.keys, wanted) >= 0)
    return pc.if_else(pc.or_(pc.is_null(held), pc.is_null(wanted)), pa.scalar(None, pa.bool_()), has)


def _entries(name: str, entry: Any, of: Nodes) -> Node:
    item = of[0].kind["keyType" if name == "MapKeys" else "valueType"]
    return Node(name, {"type": "array", "elementType": item, "containsNull": name != "MapKeys"}, of)


def _all_entries(node: Node, held: pa.Array) -> pa.Array:
    return _listed(held, held.keys if node.op == "MapKeys" else held.items)


MAKERS: dict[str, Callable[[str, Any, Nodes], Node]] = {
    **dict.fromkeys(
        ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"), _compared
    ),
    **dict.fromkeys(("Greatest", "Least"), _extreme),
    **dict.fromkeys(_KERNELS, _arithmetic),
    **dict.fromkeys(RIGHT_FIRST, _divided),
    **dict.fromkeys(_NAMES, _signed),
    "UnaryPositive": only,
    "Round": _round,
    **dict.fromkeys(("Ceil", "Floor"), _ceil),
    "IsNaN": _nan,
    **dict.fromkeys((*_CLOCK, *_CALENDAR), _date_part),
    **dict.fromkeys(("DateAdd", "DateSub"), _shifted),
    "DateDiff": _between_dates,
    **dict.fromkeys(_LATER, _later),
    **dict.fromkeys(_UNIX, _seconds),
    **dict.fromkeys(_EPOCHS, _moment),
    **dict.fromkeys(("TruncTimestamp", "TruncDate"), _truncated),
    **dict.fromkeys(("ParseToDate", "ParseToTimestamp"), _read_date),
    "GetStructField": _field,
    "GetArrayStructFields": _fields,
    "CreateNamedStruct": _struct,
    **dict.fromkeys(("GetArrayItem", "GetMapValue", "ElementAt"), item),
    "TryElementAt": only,  # its look-up says by itself that nothing is to raise
    **dict.fromkeys(("Size", "ArraySize"), _size),
    **dict.fromkeys(("ArrayContains", "MapContainsKey"), _contains),
    **dict.fromkeys(("MapKeys", "MapValues"), _entries),
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "EqualTo": equal,
    "EqualNullSafe": _equal_null_safe,
    "GreaterThan": _greater,
    "LessThan": lambda node, one, other: _greater(node, other, one),
    "GreaterThanOrEqual": lambda node, one, other: pc.invert(_greater(node, other, one)),
    "LessThanOrEqual": lambda node, one, other: pc.invert(_greater(node, one, other)),
    **dict.fromkeys(("Greatest", "Least"), _greatest),
    **dict.fromkeys(_KERNELS, _computed),
    "Divide": _quotient,
    "IntegralDivide": _whole_quotient,
    "Remainder": _remainder,
    **dict.fromkeys(_NAMES, _negated),
    "Round": _rounded,
    **dict.fromkeys(("Ceil", "Floor"), _ceiled),
    "IsNaN": lambda node, value: pc.fill_null(pc.is_nan(value), False),
    **dict.fromkeys((*_CLOCK, *_CALENDAR), _part_of_date),
    **dict.fromkeys(("DateAdd", "DateSub"), _shifted_date),
    "DateDiff": lambda node, end, start: pc.subtract(pc.cast(end, pa.int32()), pc.cast(start, pa.int32())),
    **dict.fromkeys(_LATER, lambda node, value: pc.cast(pc.add(pc.cast(value, pa.int64()), node.with_), value.type)),
    **dict.fromkeys(_UNIX, _since),
    **dict.fromkeys(_EPOCHS, _since_epoch),
    **dict.fromkeys(("TruncTimestamp", "TruncDate"), _floored),
    "field": lambda node, value: pc.struct_field(value, [node.with_]),
    "GetArrayStructFields": _fields_of_all,
    "CreateNamedStruct": _made_struct,
    **dict.fromkeys(("GetArrayItem", "ElementAt"), _from_array),
    "GetMapValue": _from_map,
    **dict.fromkeys(("Size", "ArraySize"), lambda node, value: pc.cast(_lengths(value), pa.int32())),
    "ArrayContains": _contained,
    "MapContainsKey": _has_key,
    **dict.fromkeys(("MapKeys", "MapValues"), _all_entries),
}


def _lengths(held: pa.Array) -> pa.Array:
    sizes = np.diff(held.offsets.to_numpy())
    return pa.array(sizes, mask=_numbers(pc.is_null(held)))
