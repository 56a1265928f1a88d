"""The types that JSON is decoded to in tasks, and the texts that are times and decimals of these types.

A schema as plain data, to Arrow and to msgspec; and the texts that fit a type, in one place for both steps of decoding
JSON:

| form of a timestamp | is |
|---|---|
| `2026-11-21T10:00:00.123456789`, blank in place of the T | the date and time, of which six decimals are kept |
| shorter: `2026-11-21T10:00`, `2026-11-21 10`, `2026-11-21` | zero for what is missing |
| behind the seconds `Z`, `+02:00`, `+0200`, `+2`, `UTC+2`, `Europe/Berlin`, `PST` | the zone; else the session's |

A time in the hour that a zone skips, when summer time begins, is one hour later; a time in the hour that comes twice,
when summer time ends, is the first of the two. These are the forms of Spark's cast from a text to a timestamp, without
those that begin with a time or are a year alone.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

import msgspec
import pyarrow as pa
from pyspark.sql import types as T

from router_schemas.json_schema.spark_types import child_types

ARROW_TYPES: dict[str, pa.DataType] = {
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
"""The scalar types by Spark's names for them; a decimal has its digits as well."""
INTEGER_KINDS = ("bigint", "int", "smallint")
TIME_KINDS = ("timestamp", "timestamp_ntz", "date")


@dataclass(frozen=True)
class Shape:
    """A type of Spark as plain data: a name of `ARROW_TYPES`, or decimal, struct, array or map.

    `fields` are the types inside: a struct's by the keys of the JSON objects, an array's elements, a map's values.
    `columns` are the names of a struct's fields in a table.
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


BEYOND_SCHEMA = Shape("beyond")
"""A field that the schema lacks, of any value: no column is made of it (`unknown_fields`)."""


def shape_of(kind: T.DataType, named: T.DataType | None = None) -> Shape:
    """Return the shape of a type; `named` is the same type with a table's names."""
    if isinstance(kind, T.DecimalType):
        return Shape("decimal", digits=(kind.precision, kind.scale))
    named = named or kind
    fields = []
    for (name, child), (_, named_child) in zip(child_types(kind), child_types(named), strict=True):
        fields.append((name, shape_of(child, named_child)))
    if isinstance(kind, T.StructType):
        assert isinstance(named, T.StructType)
        return Shape("struct", tuple(fields), tuple(named.fieldNames()))
    if fields:
        return Shape(kind.typeName(), tuple(fields))
    # The name of a string type may have a collation, which JSON does not look at.
    if isinstance(kind, T.StringType):
        return Shape("string")
    return Shape(kind.simpleString())


def nullable_type(kind: T.DataType) -> Any:
    """Return a type of Spark with null allowed everywhere, as JSON has it."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, nullable_type(field.dataType)) for field in kind])
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, nullable_type(kind.valueType))
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(nullable_type(kind.elementType))
    return kind


@lru_cache(maxsize=256)
def arrow_type(shape: Shape) -> pa.DataType:
    """Return the type of Arrow that Spark has for a shape."""
    if shape.kind == "struct":
        fields = zip(shape.columns, shape.fields, strict=True)
        return pa.struct([(column, arrow_type(child)) for column, (_, child) in fields])
    if shape.kind == "array":
        return pa.list_(pa.field("element", arrow_type(shape.inner)))
    if shape.kind == "map":
        return pa.map_(pa.string(), pa.field("value", arrow_type(shape.inner)))
    if shape.kind == "decimal":
        return pa.decimal128(*shape.digits)
    return ARROW_TYPES[shape.kind]


@lru_cache(maxsize=64)
def make_parsers(
    known: Shape, shape: Shape, *, refusing: bool = False
) -> tuple[tuple[Shape, msgspec.json.Decoder[Any]], ...]:
    """Return the parsers to a struct, to be tried in turn, each with the shape of its columns; a task makes them once.

    `shape` may have fields beyond `known`, of which no column is made; `refusing` parsers take no text with others. The
    second one takes any value for a string, as `Raw` (the kind `any`). There are none if msgspec cannot take the name
    of a field.
    """
    if not _is_plain(known):
        return ()
    strict_parser = msgspec.json.Decoder(struct_class(shape, refusing))
    # Without a string there is nothing that the second parser would take and the first does not.
    loose = _loosen_strings(known)
    if loose == known:
        return ((known, strict_parser),)
    loose_parser = msgspec.json.Decoder(struct_class(_loosen_strings(shape), refusing))
    return ((known, strict_parser), (loose, loose_parser))


def _loosen_strings(shape: Shape) -> Shape:
    """Return a shape with any value in place of the strings in its structs."""
    if shape.kind == "struct":
        return replace(shape, fields=tuple((name, _loosen_strings(child)) for name, child in shape.fields))
    if shape.kind == "string":
        return replace(shape, kind="any")
    return shape


@lru_cache(maxsize=64)
def map_parser(shape: Shape) -> msgspec.json.Decoder[Any]:
    """Return the parser of a map's text."""
    return msgspec.json.Decoder(dict[str, _msgspec_type(shape.inner)])  # type: ignore[misc]


@lru_cache(maxsize=256)
def struct_class(shape: Shape, refusing: bool = False) -> type[msgspec.Struct]:
    """Return the class of a struct's objects: attributes f0, f1, ... for its fields, None if JSON lacks one.

    A `refusing` one is not parsed from an object with other fields. The garbage collector need not know of the objects:
    they hold no cycles, and there are thousands at a time.
    """
    fields = []
    names = {}
    for place, (name, child) in enumerate(shape.fields):
        fields.append((f"f{place}", _msgspec_type(child, refusing), None))
        names[f"f{place}"] = name
    rename = names if _is_plain(shape) else None
    return msgspec.defstruct("Object", fields, rename=rename, gc=False, forbid_unknown_fields=refusing)


def _is_plain(shape: Shape) -> bool:
    """Return whether JSON writes the names of all fields as they are."""
    for name, child in shape.fields:
        if shape.kind == "struct" and json.dumps(name, ensure_ascii=False) != f'"{name}"':
            return False
        if not _is_plain(child):
            return False
    return True


def _msgspec_type(shape: Shape, refusing: bool = False) -> Any:
    """Return the type for msgspec. A time is parsed as text; a `Raw` is looked at when columns are made."""
    if shape.kind == "struct":
        return struct_class(shape, refusing) | None
    if shape.kind == "array":
        return list[_msgspec_type(shape.inner, refusing)] | None  # type: ignore[misc]
    if shape.kind in ("map", "decimal", "variant", "void", "any", BEYOND_SCHEMA.kind):
        return msgspec.Raw
    if shape.kind in INTEGER_KINDS:
        limit = 2 ** (ARROW_TYPES[shape.kind].bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] | None
    return _PYTHON_TYPES.get(shape.kind, str) | None


_PYTHON_TYPES = {"double": float, "float": float, "boolean": bool, "binary": bytes}


DAY_PATTERN = r"([0-9]{4})-([0-9]{2})-([0-9]{1,2})"
TIME_PATTERN = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?"
DATE_TEXT = re.compile(DAY_PATTERN.replace("1,2", "2"))
TIMESTAMP_TEXT = re.compile(rf"{DAY_PATTERN}(?:[T ]{TIME_PATTERN})?", re.DOTALL)
OFFSET_TEXT = re.compile(
    r"([+-])([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2}))?)?|([+-])([0-9]{2})([0-9]{2})([0-9]{2})?"
)
BLANKS = " \t\r\n"
UTC_NAMES = ("UTC", "GMT", "UT")
LARGEST_OFFSET = dt.timedelta(hours=18)
ZONE_ABBREVIATIONS = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
"""The abbreviations that Java, and so Spark, knows (ZoneId.SHORT_IDS)."""

DECIMAL_TEXT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,9})?")
DECIMAL_CONTEXT = Context(prec=38, rounding=ROUND_HALF_UP)


def read_time(text: str, kind: str, zone: str) -> dt.date | None:
    """Return a text as a date, a timestamp in UTC or a timestamp without zone; None if it does not fit.

    `kind` is the name of one of `json_types.TIME_KINDS`, `zone` that of the session's time zone.
    """
    try:
        if kind == "date":
            return _read_date(text)
        return _read_timestamp(text, kind, zone)
    except (ValueError, OverflowError):  # no such day or hour; a year beyond 1 to 9999
        return None


def _read_date(text: str) -> dt.date | None:
    match = DATE_TEXT.fullmatch(text)
    if match is None:
        return None
    year, month, day = match.groups()
    return dt.date(int(year), int(month), int(day))


def _read_timestamp(text: str, kind: str, zone: str) -> dt.datetime | None:
    match = TIMESTAMP_TEXT.fullmatch(text.rstrip(BLANKS))
    if match is None:
        return None
    *parts, decimals, own_zone = match.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    # Zeros stand for missing decimals; those behind the sixth are cut off.
    micros = int(f"{decimals or '':0<6}"[:6])
    time = dt.datetime(year, month, day, hour, minute, second, micros)  # noqa: DTZ001 - its zone comes next
    if kind == "timestamp_ntz":
        return None if own_zone else time
    if own_zone:
        zone = own_zone.strip(BLANKS)
    tzinfo = zone_of(zone)
    if tzinfo is None:
        return None
    return time.replace(tzinfo=tzinfo).astimezone(dt.timezone.utc)


@lru_cache(maxsize=1024)
def zone_of(name: str) -> dt.tzinfo | None:
    """Return the zone of a name or an offset; None if there is none."""
    if name == "Z" or name in UTC_NAMES:
        return dt.timezone.utc
    name = ZONE_ABBREVIATIONS.get(name, name)
    # UTC+2 and GMT+2 are offsets, as +2 is.
    offset = name
    for prefix in UTC_NAMES:
        if name.startswith(prefix):
            offset = name.removeprefix(prefix)
            break
    match = OFFSET_TEXT.fullmatch(offset)
    if match is None:
        return _region_zone(name)
    sign, *parts = [part for part in match.groups() if part is not None]
    return _fixed_zone(sign, [int(part) for part in parts])


def _fixed_zone(sign: str, parts: list[int]) -> dt.tzinfo | None:
    # An offset may be without minutes and seconds.
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if offset > LARGEST_OFFSET or max(minutes, seconds) > 59:
        return None
    return dt.timezone(offset if sign == "+" else -offset)


def _region_zone(name: str) -> dt.tzinfo | None:
    # `localtime` is the zone of this machine, and another one elsewhere.
    if name in ("localtime", "Factory") or name not in _region_names():
        return None
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _region_names() -> frozenset[str]:
    return frozenset(available_timezones())


def read_decimal(text: str, digits: tuple[int, int]) -> Decimal | None:
    """Return a number, rounded half up to the scale; None if it is none or has too many digits before the point."""
    if not DECIMAL_TEXT.fullmatch(text):
        return None
    precision, scale = digits
    try:
        number = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=DECIMAL_CONTEXT)
    except InvalidOperation:  # more than 38 digits
        return None
    if number and number.adjusted() >= precision - scale:
        return None
    return number
