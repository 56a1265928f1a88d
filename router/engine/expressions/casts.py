"""Constants and casts with Spark's values: what a value of one type is as another, and on which rows that raises.

Dates and times in texts are read as by `stringToDate` and `stringToTimestamp` of Spark's SparkDateTimeUtils.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.engine.expressions.tree import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    TIMES,
    Node,
    Untranslatable,
    arrow_type,
    by_value,
    given,
    precision,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UTC = {"UTC", "Etc/UTC", "Z", "GMT", "+00:00"}
SPACE = "\x00-\x20\x7f"
"""What Spark takes off both ends of a text that it reads a number, a date or a boolean from, for a pattern."""
WHOLE = f"^[{SPACE}]*[+-]?[0-9]+[{SPACE}]*$"
SHORT = r"^-?[0-9]{1,18}$"
PLAIN = r"^-?[0-9]{1,17}(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?$"
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+", re.ASCII)
NAMED = {"nan": float("nan")} | {
    sign + name: float(sign + "inf") for sign in ("", "+", "-") for name in ("inf", "infinity")
}
USUAL_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T]|$)"
MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?$"
NO_TEXT = pa.scalar(None, pa.string())
NOW = ("epoch", "now", "today", "tomorrow", "yesterday")
TRUE, FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")


def literal(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return a constant. Dates, times and bytes come as the JVM has them, all others as text."""
    kind, value = entry["dataType"], entry["value"]
    if value is None:
        return Node("literal", kind)
    if kind in INTEGERS or str(kind).startswith("interval"):
        return Node("literal", kind, with_=int(value))
    if precision(kind):
        return Node("literal", kind, with_=Decimal(value))
    if kind in FLOATS:
        return Node("literal", kind, with_=float(value))
    if kind == "boolean":
        return Node("literal", kind, with_=value == "true")
    if kind in ("string", "binary", *TIMES):
        return Node("literal", kind, with_=value)
    raise Untranslatable(f"a constant of type {shown(kind)}")


def cast(_: str, entry: Any, of: tuple[Node, ...]) -> Node:
    """Return a cast. Raises Untranslatable for one whose values are not the same here."""
    kind, have = entry["dataType"], of[0].kind
    if have == kind:
        return of[0]
    if have == "void":
        return Node("literal", kind)
    if _converter(have, kind) is None:
        raise Untranslatable(f"a cast from {shown(have)} to {shown(kind)}")
    if {have, kind} & {"timestamp"} and {have, kind} & {"date", "timestamp_ntz", "string"}:
        check_zone(entry)
    if kind in ("date", "timestamp") and given(of[0]) and str(of[0].with_).strip().lower() in NOW:
        raise Untranslatable(f"the {kind} '{of[0].with_}'")
    return Node("cast", kind, of)


def check_zone(entry: Any) -> None:
    """Refuse a local time of another session time zone than UTC."""
    if (zone := entry.get("timeZoneId")) not in UTC:
        raise Untranslatable(f"a date or time in the session time zone {zone}")


def converted(node: Node, value: pa.Array) -> Any:
    """Return values as another type, and where the cast raises if it can."""
    convert = _converter(node.of[0].kind, node.kind)
    assert convert is not None  # `cast` has asked
    return convert(value, arrow_type(node.kind))


def _converter(have: Any, kind: Any) -> Callable[[pa.Array, pa.DataType], Any] | None:
    """Return the function that casts values of one type to another; None where only Spark can."""
    if not isinstance(have, str) or not isinstance(kind, str):
        return None
    if precision(have) or precision(kind):
        return _of_decimals(have, kind)
    if have in NUMBERS and kind in NUMBERS:
        if kind in FLOATS or (have in INTEGERS and INTEGERS.index(have) < INTEGERS.index(kind)):
            return _plain
        return _narrowed if have in INTEGERS else _whole
    return _CONVERTERS.get((have, kind))


def _plain(value: pa.Array, to: pa.DataType) -> pa.Array:
    return pc.cast(value, to, safe=False)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _narrowed(value: pa.Array, to: pa.DataType) -> Any:
    low, high = (pa.scalar(bound, pa.int64()) for bound in _bounds(to))
    failed = pc.or_(pc.less(value, low), pc.greater(value, high))
    return _plain(value, to), failed


def _whole(value: pa.Array, to: pa.DataType) -> Any:
    """Cut the digits behind the point. 2.0 ** 63 is the largest long in Spark, and raises only above."""
    middle = pa.int64() if to == pa.int64() else pa.int32()
    low, high = (float(bound) for bound in _bounds(middle))
    value = pc.cast(value, pa.float64())
    inside = pc.and_(pc.less_equal(pc.floor(value), high), pc.greater_equal(pc.ceil(value), low))
    whole = pc.if_else(pc.and_(inside, pc.less(value, 2.0**63)), value, pa.scalar(0.0))
    found = pc.cast(whole, middle, safe=False)
    if middle == pa.int64():
        found = pc.if_else(pc.and_(inside, pc.equal(value, 2.0**63)), pa.scalar(2**63 - 1), found)
    if middle == to:
        return found, pc.invert(inside)
    found, failed = _narrowed(found, to)
    return found, pc.or_(failed, pc.invert(inside))


def _trimmed(value: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(value, f"^[{SPACE}]+|[{SPACE}]+$", "")


def _integer(value: pa.Array, to: pa.DataType) -> Any:
    """Read whole numbers: digits with a sign, and white space around them."""
    if not pc.all(short := pc.match_substring_regex(value, SHORT)).as_py():
        readable = pc.match_substring_regex(value, WHOLE)
        value = pc.if_else(pc.or_kleene(short, readable), value, NO_TEXT)
        wide = by_value(_trimmed(value), lambda text: number if abs(number := int(text)) < 2**64 else 2**64, WIDE)
        failed = pc.or_(pc.less(wide, Decimal(_bounds(to)[0])), pc.greater(wide, Decimal(_bounds(to)[1])))
        failed = pc.or_(pc.fill_null(failed, False), pc.fill_null(pc.invert(pc.or_kleene(short, readable)), False))
        return pc.cast(pc.if_else(failed, pa.scalar(None, WIDE), wide), to), failed
    found = pc.cast(value, pa.int64())
    return _narrowed(found, to) if to != pa.int64() else found


WIDE = pa.decimal128(38, 0)


def _real(value: pa.Array, to: pa.DataType) -> Any:
    """Read numbers as Java does; most are plain, and read by Arrow."""
    plain = pc.match_substring_regex(value, PLAIN)
    found = pc.cast(pc.if_else(plain, value, NO_TEXT), pa.float64())
    if pc.all(plain).as_py():
        return found
    read = by_value(pc.if_else(plain, NO_TEXT, value), _parsed, pa.float64())
    found = pc.coalesce(found, read)
    return found, pc.and_(pc.is_valid(value), pc.is_null(found))


def _parsed(text: str) -> float | None:
    """Return the number that Java or Spark reads in a text; None where it is none."""
    text = text.strip("".join(map(chr, range(33))))
    bare = text[:-1] if text[-1:] in ("d", "D", "f", "F") else text
    if NUMBER.fullmatch(bare):
        return float(bare)
    if HEXADECIMAL.fullmatch(bare):
        try:
            return float.fromhex(bare)
        except OverflowError:
            return float("-inf" if bare.startswith("-") else "inf")
    return NAMED["nan"] if text in ("+NaN", "-NaN") else NAMED.get(text.lower())


def _boolean(value: pa.Array, _: pa.DataType) -> Any:
    text = pc.ascii_lower(_trimmed(value))
    true, false = (pc.is_in(text, pa.array(words)) for words in (TRUE, FALSE))
    return true, pc.invert(pc.or_(true, false))


def _dates(value: pa.Array, to: pa.DataType) -> Any:
    """Read dates, each different text once; usual ones are cut to ten characters first, so that fewer texts differ."""
    value = pc.if_else(pc.match_substring_regex(value, USUAL_DATE), pc.utf8_slice_codeunits(value, 0, 10), value)
    found = by_value(value, _day_of_text, pa.int32())
    return pc.cast(found, to), pc.and_(pc.is_valid(value), pc.is_null(found))


def _moments(value: pa.Array, to: pa.DataType) -> Any:
    """Read times. Arrow reads the usual form, if all days in it exist."""
    usual = pc.match_substring_regex(value, MOMENT)
    try:
        found = pc.cast(pc.if_else(usual, pc.replace_substring(value, "Z", ""), NO_TEXT), pa.timestamp("us"))
    except pa.ArrowInvalid:
        usual, found = pc.fill_null(pc.and_(usual, False), False), pa.nulls(len(value), pa.timestamp("us"))
    read = by_value(pc.if_else(usual, NO_TEXT, value), _microseconds_of_text, pa.int64())
    found = pc.coalesce(pc.cast(found, pa.int64()), read)
    return pc.cast(found, to), pc.and_(pc.is_valid(value), pc.is_null(found))


def _written(value: pa.Array, to: pa.DataType) -> pa.Array:
    """Return times as text, without the zeros at the end of a second's fraction."""
    text = pc.strftime(pc.cast(value, pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
    return pc.replace_substring_regex(pc.replace_substring_regex(text, r"(\.[0-9]*?)0+$", r"\1"), r"\.$", "")


def _of_decimals(have: str, kind: str) -> Callable[[pa.Array, pa.DataType], Any] | None:
    old, new = precision(have), precision(kind)
    if old and new:
        return rescaled
    if new:
        return _decimal if have in INTEGERS else None
    assert old is not None
    if kind == "double":
        return _double
    if kind == "string":
        return _plain if old[1] <= 6 else None  # beyond that Arrow writes 1E-7
    return None


def rescaled(value: pa.Array, to: pa.DataType) -> Any:
    """Return decimals as another decimal type, rounded half up, and where they have too many digits."""
    wide = pc.cast(value, pa.decimal256(60, value.type.scale))
    if to.scale < value.type.scale:
        wide = pc.round(wide, to.scale, "half_towards_infinity")
    limit = pa.scalar(Decimal(10) ** (to.precision - to.scale), wide.type)
    failed = pc.or_(pc.greater_equal(wide, limit), pc.less_equal(wide, pc.negate(limit)))
    return pc.cast(pc.if_else(failed, pa.scalar(None, wide.type), wide), to), failed


def _decimal(value: pa.Array, to: pa.DataType) -> Any:
    return rescaled(pc.cast(pc.cast(value, pa.int64()), pa.decimal128(19, 0)), to)


def _double(value: pa.Array, _: pa.DataType) -> pa.Array:
    if value.type.precision > 15:
        return by_value(value, float, pa.float64())
    return pc.divide(_unscaled(value), float(10**value.type.scale))


def _unscaled(value: pa.Array) -> pa.Array:
    """Return the digits of decimals of up to 18 as doubles."""
    words = np.frombuffer(value.buffers()[1], np.int64)[::2][value.offset : value.offset + len(value)]
    return pa.array(words.astype(np.float64), mask=pc.is_null(value).to_numpy(zero_copy_only=False))


_MICROS = 1_000_000
_CONVERTERS: dict[tuple[str, str], Callable[[pa.Array, pa.DataType], Any]] = {
    **dict.fromkeys([("boolean", kind) for kind in NUMBERS], lambda value, to: pc.cast(pc.cast(value, pa.int8()), to)),
    **dict.fromkeys(
        [(kind, "boolean") for kind in NUMBERS], lambda value, to: pc.not_equal(value, pa.scalar(0, value.type))
    ),
    **dict.fromkeys([(kind, "string") for kind in (*INTEGERS, "boolean")], _plain),
    **dict.fromkeys([("string", kind) for kind in INTEGERS], _integer),
    ("string", "double"): _real,
    ("string", "boolean"): _boolean,
    ("string", "date"): _dates,
    ("string", "timestamp"): _moments,
    ("string", "binary"): _plain,
    ("date", "string"): _plain,
    ("timestamp", "string"): _written,
    ("timestamp_ntz", "string"): _written,
    **dict.fromkeys([("date", "timestamp"), ("date", "timestamp_ntz")], _plain),
    **dict.fromkeys([("timestamp", "date"), ("timestamp_ntz", "date")], lambda value, to: pc.cast(_days(value), to)),
    **dict.fromkeys(
        [("timestamp", "timestamp_ntz"), ("timestamp_ntz", "timestamp")],
        lambda value, to: pc.cast(pc.cast(value, pa.int64()), to),
    ),
    ("timestamp", "long"): lambda value, to: floor_divided(pc.cast(value, pa.int64()), _MICROS),
    ("timestamp", "double"): lambda value, to: pc.divide(
        pc.cast(pc.cast(value, pa.int64()), pa.float64(), safe=False), float(_MICROS)
    ),
}


def _days(value: pa.Array) -> pa.Array:
    return pc.cast(floor_divided(pc.cast(value, pa.int64()), 86_400 * _MICROS), pa.int32())


def floor_divided(value: pa.Array, by: int) -> pa.Array:
    """Divide whole numbers towards minus infinity."""
    whole = pc.divide(value, by)
    return pc.subtract(whole, pc.cast(pc.less(value, pc.multiply(whole, by)), pa.int64()))


BLANKS = "".join(map(chr, [*range(33), 127]))
"""What Spark takes off both ends of a text that it reads a date or a time from."""
DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?(?P<zone>[^\d.].*)?)?)?"
)
TIME = re.compile(
    rf"(?P<sign>[+-]?)(?P<year>\d{{4,6}})(?:-(?P<month>\d{{1,2}})(?:-(?P<day>\d{{1,2}})(?:[ T]{CLOCK})?)?)?",
    re.ASCII | re.DOTALL,
)
TODAY = re.compile(rf"T{CLOCK}|(?=\d+:){CLOCK.replace('?P<', '?P<_')}", re.ASCII | re.DOTALL)
OFFSET = re.compile(r"([+-])(\d|\d\d(?::\d\d){0,2}|\d\d(?:\d\d){1,2})", re.ASCII)
CENTURIES = 146_097 * 86_400
"""The seconds of 400 years: days of the week and leap years repeat after them, and with them summer times."""
FIRST = -62_135_510_400
SHORT_NAMES = {
    **{"EST": "-05:00", "MST": "-07:00", "HST": "-10:00", "ACT": "Australia/Darwin", "AET": "Australia/Sydney"},
    **{"ART": "Africa/Cairo", "AGT": "America/Argentina/Buenos_Aires", "AST": "America/Anchorage"},
    **{"BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns"},
    **{"CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris"},
    **{"IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia"},
    **{"NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix"},
    **{"PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal"},
    "VST": "Asia/Ho_Chi_Minh",
}
"""The names of three letters that Java knows (ZoneId.SHORT_IDS)."""


def _day_of_text(text: str) -> int | None:
    """Return the day of a text as a count from 1970-01-01; None where it is no date."""
    found = DATE.fullmatch(text.strip(BLANKS))
    return None if found is None else _day(int(found[1] + found[2]), int(found[3] or 1), int(found[4] or 1))


def _day(year: int, month: int, day: int) -> int | None:
    """Count days in the Gregorian calendar, also before it was in use and after the year 9999."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]:
        return None
    year, month = (year - 1, month + 9) if month < 3 else (year, month - 3)  # years that begin in March
    days = year * 365 + year // 4 - year // 100 + year // 400 + (month * 153 + 2) // 5 + day - 719469
    return days if -(2**31) <= days < 2**31 else None


def _microseconds_of_text(text: str) -> int | None:
    """Return the time of a text in microseconds since 1970 in UTC; None where it is none.

    A text without a zone is in UTC: expressions with another session time zone are left to Spark.
    """
    text = text.strip(BLANKS)
    found = TIME.fullmatch(text)
    parts = found.groupdict() if found else _clock(text)
    if parts is None:
        return None
    days = _day(int(f"{parts['sign']}{parts['year']}"), int(parts["month"] or 1), int(parts["day"] or 1))
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    offset = _offset((parts["zone"] or "Z").strip(BLANKS[:-1]), seconds)
    if offset is None:
        return None
    micros = (seconds - offset) * 1_000_000 + int((parts["fraction"] or "").ljust(6, "0")[:6])
    return micros if -(2**63) <= micros < 2**63 else None


def _clock(text: str) -> dict[str, str | None] | None:
    """Return the parts of a time of day: Spark takes it as one of today."""
    found = TODAY.fullmatch(text)
    if found is None:
        return None
    today = datetime.now(timezone.utc).date()
    parts = {name.removeprefix("_"): part for name, part in found.groupdict().items() if part is not None}
    whole = dict.fromkeys(("hour", "minute", "second", "fraction", "zone"))
    return {"sign": "", "year": f"{today:%Y}", "month": f"{today:%m}", "day": f"{today:%d}", **whole, **parts}


def _offset(zone: str, local: int) -> int | None:
    """Return by how many seconds a zone is ahead of UTC at a local time; None where there is no such zone."""
    zone = re.sub(r"([+-])(\d):", r"\g<1>0\2:", zone, count=1)
    zone = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", zone, count=1)
    zone = SHORT_NAMES.get(zone, zone)
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    fixed = OFFSET.fullmatch(re.sub(r"^(?:UTC|GMT|UT)(?=[+-])", "", zone))
    if fixed is None:
        return _regional(zone, local)
    digits = fixed[2].replace(":", "")
    hour, minute, second = int(digits[:2]), int(digits[2:4] or 0), int(digits[4:] or 0)
    seconds = hour * 3600 + minute * 60 + second
    if seconds > 18 * 3600 or minute > 59 or second > 59:
        return None
    return -seconds if fixed[1] == "-" else seconds


def _regional(name: str, local: int) -> int | None:
    if name not in _regions():
        return None
    if local > CENTURIES:  # Python knows of no year after 9999, and none before 1
        local = local % CENTURIES + CENTURIES
    moment = datetime.combine(date(1970, 1, 1), time()) + timedelta(seconds=max(local, FIRST))
    ahead = moment.replace(tzinfo=zoneinfo.ZoneInfo(name)).utcoffset()
    return None if ahead is None else int(ahead.total_seconds())


@cache
def _regions() -> set[str]:
    return zoneinfo.available_timezones()
