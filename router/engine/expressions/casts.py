"""Constants and casts with Spark's values: values of one type as another, and the rows on which that raises.

Dates in texts are read as by `stringToDate` of Spark's SparkDateTimeUtils.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.unreadable_values import far_rows
from router.engine.expressions.tree import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    NUMBER_TYPES,
    TIME_TYPES,
    Node,
    Untranslatable,
    arrow_type_of,
    by_value,
    decimal_precision,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.engine.expressions.tree import Kind, PlanEntry, Value

UTC = {"UTC", "Etc/UTC", "Z", "GMT", "+00:00"}
SPACE = "\x00-\x20\x7f"
"""The characters that Spark takes off both ends of a text before it reads a number or a boolean, for a pattern."""
WHOLE = f"^[{SPACE}]*[+-]?[0-9]+[{SPACE}]*$"
SHORT = r"^-?[0-9]{1,18}$"
_PLAIN = r"^-?[0-9]{1,17}(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?$"
_JAVA_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+", re.ASCII)
_NAMED = {
    "nan": float("nan"),
    **dict.fromkeys(("inf", "infinity", "+inf", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
}
USUAL_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T]|$)"
_NULL_TEXT = pa.scalar(None, pa.string())
NOW = ("epoch", "now", "today", "tomorrow", "yesterday")
TRUE = ("t", "true", "y", "yes", "1")
FALSE = ("f", "false", "n", "no", "0")


def make_literal(_: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    """Return a constant. Dates, times and bytes come as the JVM has them, all others as text."""
    kind = entry["dataType"]
    value = entry["value"]
    if value is None:
        return Node("literal", kind)
    if kind in INTEGER_TYPES:
        return Node("literal", kind, with_=int(value))
    if decimal_precision(kind):
        return Node("literal", kind, with_=Decimal(value))
    if kind in FLOAT_TYPES:
        return Node("literal", kind, with_=float(value))
    if kind == "boolean":
        return Node("literal", kind, with_=value == "true")
    if kind in ("string", "binary", *TIME_TYPES):
        return Node("literal", kind, with_=value)
    raise Untranslatable(f"a constant of type {type_name(kind)}")


def make_cast(_: str, entry: PlanEntry, of: tuple[Node, ...]) -> Node:
    """Return a cast. Raises Untranslatable for one whose values are not the same here."""
    kind = entry["dataType"]
    have = of[0].kind
    if have == kind:
        return of[0]
    if have == "void":
        return Node("literal", kind)
    if "timestamp" in (have, kind) and {have, kind} & {"date", "timestamp_ntz", "string"}:
        check_zone(entry)
    if _find_converter(have, kind) is None:
        raise Untranslatable(f"a cast from {type_name(have)} to {type_name(kind)}")
    return Node("cast", kind, of)


def check_zone(entry: PlanEntry) -> None:
    """Refuse a local time of another session time zone than UTC."""
    zone = entry.get("timeZoneId")
    if zone not in UTC:
        raise Untranslatable(f"a date or time in the session time zone {zone}")


def convert_values(node: Node, value: pa.Array) -> Value:
    """Return values as another type, and the rows on which the cast raises if it can."""
    converter = _find_converter(node.of[0].kind, node.kind)
    assert converter is not None  # `make_cast` refuses others
    return converter(value, arrow_type_of(node.kind))


def _find_converter(have: Kind, kind: Kind) -> Callable[[pa.Array, pa.DataType], Value] | None:
    """Return the function that casts values of one type to another; None if only Spark can."""
    if not isinstance(have, str) or not isinstance(kind, str):
        return None
    if decimal_precision(have) or decimal_precision(kind):
        return _of_decimals(have, kind)
    if have in NUMBER_TYPES and kind in NUMBER_TYPES:
        if kind in FLOAT_TYPES:
            return _cast_unchecked
        if have in FLOAT_TYPES:
            return _truncate_floats
        return _cast_unchecked if INTEGER_TYPES.index(have) < INTEGER_TYPES.index(kind) else _narrow_integers
    return _CONVERTERS.get((have, kind))


def _cast_unchecked(value: pa.Array, to: pa.DataType) -> pa.Array:
    return pc.cast(value, to, safe=False)


def _integer_bounds(kind: pa.DataType) -> tuple[int, int]:
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _narrow_integers(value: pa.Array, to: pa.DataType) -> Value:
    low, high = _integer_bounds(to)
    failed = pc.or_(pc.less(value, pa.scalar(low, pa.int64())), pc.greater(value, pa.scalar(high, pa.int64())))
    return _cast_unchecked(value, to), failed


def _truncate_floats(value: pa.Array, to: pa.DataType) -> Value:
    """Cut the digits behind the point. 2.0 ** 63 is the largest long in Spark, and raises only above."""
    # Spark casts to a byte or a short by way of an integer.
    middle = pa.int64() if to == pa.int64() else pa.int32()
    low, high = _integer_bounds(middle)
    value = pc.cast(value, pa.float64())
    inside = pc.and_(pc.less_equal(pc.floor(value), float(high)), pc.greater_equal(pc.ceil(value), float(low)))
    castable = pc.if_else(pc.and_(inside, pc.less(value, 2.0**63)), value, pa.scalar(0.0))
    whole = pc.cast(castable, middle, safe=False)
    if middle == pa.int64():
        whole = pc.if_else(pc.and_(inside, pc.equal(value, 2.0**63)), pa.scalar(2**63 - 1), whole)
    if middle == to:
        return whole, pc.invert(inside)
    narrowed, failed = _narrow_integers(whole, to)
    return narrowed, pc.or_(failed, pc.invert(inside))


def _trim_space(value: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(value, f"^[{SPACE}]+|[{SPACE}]+$", "")


def _parse_integers(value: pa.Array, to: pa.DataType) -> Value:
    """Read whole numbers: digits with a sign, and white space around them."""
    short = pc.match_substring_regex(value, SHORT)
    if pc.all(short).as_py():
        number = pc.cast(value, pa.int64())
        return number if to == pa.int64() else _narrow_integers(number, to)
    readable = pc.or_kleene(short, pc.match_substring_regex(value, WHOLE))
    wide = by_value(_trim_space(pc.if_else(readable, value, _NULL_TEXT)), _wide_integer, WIDE)
    low, high = _integer_bounds(to)
    too_wide = pc.or_(pc.less(wide, Decimal(low)), pc.greater(wide, Decimal(high)))
    failed = pc.or_(pc.fill_null(too_wide, False), pc.fill_null(pc.invert(readable), False))
    return pc.cast(pc.if_else(failed, pa.scalar(None, WIDE), wide), to), failed


WIDE = pa.decimal128(38, 0)


def _wide_integer(text: str) -> int:
    """Return a whole number; one that no type holds is cut, since it may have too many digits for a decimal."""
    # Python reads no integer of more than 4300 digits, and any of them as a fraction.
    return int(text) if abs(float(text)) < 2.0**64 else 2**64


def _parse_floats(value: pa.Array, to: pa.DataType) -> Value:
    """Read numbers as Java does; most are plain, and read by Arrow."""
    plain = pc.match_substring_regex(value, _PLAIN)
    number = pc.cast(pc.if_else(plain, value, _NULL_TEXT), pa.float64())
    if pc.all(plain).as_py():
        return number
    others = by_value(pc.if_else(plain, _NULL_TEXT, value), _java_double, pa.float64())
    number = pc.coalesce(number, others)
    return number, pc.and_(pc.is_valid(value), pc.is_null(number))


def _java_double(text: str) -> float | None:
    """Return the number that Java or Spark reads in a text; None if it is none."""
    text = text.strip("".join(map(chr, range(33))))
    digits = text[:-1] if text[-1:] in ("d", "D", "f", "F") else text
    if _JAVA_NUMBER.fullmatch(digits):
        return float(digits)
    if HEXADECIMAL.fullmatch(digits):
        try:
            return float.fromhex(digits)
        except OverflowError:
            return float("-inf" if digits.startswith("-") else "inf")
    if text in ("+NaN", "-NaN"):
        return _NAMED["nan"]
    return _NAMED.get(text.lower())


def _parse_booleans(value: pa.Array, _: pa.DataType) -> Value:
    text = pc.ascii_lower(_trim_space(value))
    true = pc.is_in(text, pa.array(TRUE))
    return true, pc.invert(pc.or_(true, pc.is_in(text, pa.array(FALSE))))


def _parse_dates(value: pa.Array, to: pa.DataType) -> Value:
    """Read dates, each different text once; usual ones are cut to ten characters first, so that fewer texts differ."""
    value = pc.if_else(pc.match_substring_regex(value, USUAL_DATE), pc.utf8_slice_codeunits(value, 0, 10), value)
    days = by_value(value, _day_of_text, pa.int32())
    return pc.cast(days, to), pc.and_(pc.is_valid(value), pc.is_null(days))


def _moment_text(value: pa.Array, to: pa.DataType) -> pa.Array:
    """Return times as text, without the zeros at the end of a second's fraction."""
    return _with_far_years(value, _near_moments, pa.int64(), _far_moment)


def _near_moments(value: pa.Array) -> pa.Array:
    text = pc.strftime(pc.cast(value, pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
    without_zeros = pc.replace_substring_regex(text, r"(\.[0-9]*?)0+$", r"\1")
    return pc.replace_substring_regex(without_zeros, r"\.$", "")


def _day_text(value: pa.Array, to: pa.DataType) -> pa.Array:
    return _with_far_years(value, lambda days: pc.cast(days, to), pa.int32(), _far_day)


def _with_far_years(
    value: pa.Array, near_text: Callable[[pa.Array], pa.Array], integer: pa.DataType, far_text: Callable[[int], str]
) -> pa.Array:
    """Return dates or times as text: Arrow prints the years 1 to 9999 only as Spark does."""
    far = pa.array(far_rows(value))
    if not far.true_count:
        return near_text(value)
    near = pc.if_else(far, pa.scalar(None, value.type), value)
    numbers = pc.if_else(far, pc.cast(value, integer), pa.scalar(None, integer))
    return pc.coalesce(near_text(near), by_value(numbers, far_text, pa.string()))


def _far_day(day: int) -> str:
    """Return a day as Java prints it: a year of more than four digits has a sign."""
    text = str(np.datetime64(day, "D"))
    year = int(text[:-6])
    return f"{'+' if year > 9999 else '-' if year < 0 else ''}{abs(year):04d}{text[-6:]}"


def _far_moment(micros: int) -> str:
    day, rest = divmod(micros, 86_400 * _MICROS)
    seconds, fraction = divmod(rest, _MICROS)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{_far_day(day)} {clock}" + (f".{fraction:06d}".rstrip("0") if fraction else "")


def _days_to_midnights(value: pa.Array, to: pa.DataType) -> Value:
    """Return days as times; beyond some 292 000 years there are none."""
    days = pc.cast(pc.cast(value, pa.int32()), pa.int64())
    failed = pc.greater(pc.abs(days), LAST_MIDNIGHT)
    return pc.cast(pc.multiply(pc.if_else(failed, 0, days), 86_400 * _MICROS), to), failed


def _of_decimals(have: str, kind: str) -> Callable[[pa.Array, pa.DataType], Value] | None:
    """Return the function of a cast from a decimal, to one, or both."""
    old = decimal_precision(have)
    if decimal_precision(kind):
        if old:
            return rescale_decimals
        return _integers_to_decimals if have in INTEGER_TYPES else None
    assert old is not None
    if kind == "double":
        return _decimals_to_doubles
    # With more digits behind the point Arrow writes 1E-7.
    return _cast_unchecked if kind == "string" and old[1] <= 6 else None


def rescale_decimals(value: pa.Array, to: pa.DataType) -> Value:
    """Return decimals as another decimal type, rounded half up, and where they have too many digits."""
    wide = pc.cast(value, pa.decimal256(76, value.type.scale))
    if to.scale < value.type.scale:
        wide = pc.round(wide, to.scale, "half_towards_infinity")
    if to.precision - to.scale > value.type.precision - value.type.scale:
        return pc.cast(wide, to), None  # there is room for each of them, also rounded up
    limit = pa.scalar(Decimal(10) ** (to.precision - to.scale), wide.type)
    failed = pc.or_(pc.greater_equal(wide, limit), pc.less_equal(wide, pc.negate(limit)))
    return pc.cast(pc.if_else(failed, pa.scalar(None, wide.type), wide), to), failed


def _integers_to_decimals(value: pa.Array, to: pa.DataType) -> Value:
    return rescale_decimals(pc.cast(pc.cast(value, pa.int64()), pa.decimal128(19, 0)), to)


def _decimals_to_doubles(value: pa.Array, _: pa.DataType) -> pa.Array:
    if value.type.precision > 15:
        return by_value(value, float, pa.float64())
    return pc.divide(_read_unscaled_digits(value), float(10**value.type.scale))


def _read_unscaled_digits(value: pa.Array) -> pa.Array:
    """Return the digits of decimals of up to 18 as doubles."""
    # Such a decimal fits into the lower of its two words.
    words = np.frombuffer(value.buffers()[1], np.int64)[::2][value.offset : value.offset + len(value)]
    return pa.array(words.astype(np.float64), mask=pc.is_null(value).to_numpy(zero_copy_only=False))


_MICROS = 1_000_000
LAST_MIDNIGHT = (2**63 - 1) // (86_400 * _MICROS)
"""The last day, counted from 1970, whose midnight a time of 64 bits in microseconds reaches."""
_CONVERTERS: dict[tuple[str, str], Callable[[pa.Array, pa.DataType], Value]] = {
    **dict.fromkeys(
        [("boolean", kind) for kind in NUMBER_TYPES], lambda value, to: pc.cast(pc.cast(value, pa.int8()), to)
    ),
    **dict.fromkeys(
        [(kind, "boolean") for kind in NUMBER_TYPES], lambda value, to: pc.not_equal(value, pa.scalar(0, value.type))
    ),
    **dict.fromkeys([(kind, "string") for kind in (*INTEGER_TYPES, "boolean")], _cast_unchecked),
    **dict.fromkeys([("string", kind) for kind in INTEGER_TYPES], _parse_integers),
    ("string", "double"): _parse_floats,
    ("string", "boolean"): _parse_booleans,
    ("string", "date"): _parse_dates,
    ("string", "binary"): _cast_unchecked,
    ("date", "string"): _day_text,
    ("timestamp", "string"): _moment_text,
    ("timestamp_ntz", "string"): _moment_text,
    **dict.fromkeys([("date", "timestamp"), ("date", "timestamp_ntz")], _days_to_midnights),
    **dict.fromkeys(
        [("timestamp", "date"), ("timestamp_ntz", "date")], lambda value, to: pc.cast(_timestamps_to_days(value), to)
    ),
    **dict.fromkeys(
        [("timestamp", "timestamp_ntz"), ("timestamp_ntz", "timestamp")],
        lambda value, to: pc.cast(pc.cast(value, pa.int64()), to),
    ),
    ("timestamp", "long"): lambda value, to: floor_divided(pc.cast(value, pa.int64()), _MICROS),
    ("timestamp", "double"): lambda value, to: pc.divide(
        pc.cast(pc.cast(value, pa.int64()), pa.float64(), safe=False), float(_MICROS)
    ),
}


def _timestamps_to_days(value: pa.Array) -> pa.Array:
    return pc.cast(floor_divided(pc.cast(value, pa.int64()), 86_400 * _MICROS), pa.int32())


def floor_divided(value: pa.Array, by: int) -> pa.Array:
    """Divide whole numbers towards minus infinity."""
    whole = pc.divide(value, by)
    return pc.subtract(whole, pc.cast(pc.less(value, pc.multiply(whole, by)), pa.int64()))


_DATE_BLANKS = "".join(map(chr, [*range(33), 127]))
"""The characters that Spark takes off both ends of a text before it reads a date."""
DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)


def _day_of_text(text: str) -> int | None:
    """Return the day of a text as a count from 1970-01-01; None if it is no date."""
    match = DATE.fullmatch(text.strip(_DATE_BLANKS))
    if match is None:
        return None
    return _day_number(int(match[1] + match[2]), int(match[3] or 1), int(match[4] or 1))


def _day_number(year: int, month: int, day: int) -> int | None:
    """Count days in the Gregorian calendar, also before it was in use and after the year 9999."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]:
        return None
    # Count in years that begin in March: the leap day is their last.
    month -= 3
    if month < 0:
        month += 12
        year -= 1
    days = year * 365 + year // 4 - year // 100 + year // 400 + (month * 153 + 2) // 5 + day - 719469
    return days if -(2**31) <= days < 2**31 else None
