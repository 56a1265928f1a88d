"""Cast columns of files to known types, and find the values that lose nothing by it.

Spark's casts round, cut and guess: they make 2.56 of `2.555`, a day of `2026-01-01T10:00`, a time of today of `10:00`,
the second 20260101 of 1970 of the number 20260101. A value that loses something is kept as text instead, so each cast
here comes with a condition.

| into | a text fits if |
|---|---|
| integer | it has digits only and is in the type's range; `1e3` and `1.0` do not fit |
| decimal | it needs no more decimals than the scale, and no more digits than the precision |
| double | it is no whole number beyond 15 digits that the double changes, and has at most 17 digits |
| float | it has at most 6 digits, or the float is printed with the same ones |
| date | it has no time besides midnight |
| timestamp | it has a whole date, at most microseconds, and an hour that its zone has |
| timestamp_ntz | the same, and no zone |
| boolean | it is `true` or `false`; in a hinted column also `t`, `yes`, `y`, `1` and their opposites |

A column whose type was inferred takes no number with a plus sign or a leading zero: `007` may be a name. Blanks
around a text do not count. Years are 1 to 9999, as in JSON.

An array, a struct or a map fits if all values in it fit. A struct may lack fields of its column, and has no others. A
text fits if it is the JSON of such a value: its leaves are texts then, as they are written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.api.columns import JSON_TIME_OPTIONS
from router.table_names import REFUSED_IN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
FRACTIONS = (T.FloatType, T.DoubleType)
TIME_TYPES = (T.DateType, T.TimestampType, T.TimestampNTZType)
NESTED = (T.StructType, T.ArrayType, T.MapType)

_REFUSED = re.compile(f"[{re.escape(REFUSED_IN_COLUMNS)}.`]+|^$")
"""What no name of a column may have, or expressions would have to quote; and a name of nothing."""
_BLANKS_PATTERN = r"[ \t\r\n]*"
EXPONENT = r"(?:[eE][-+]?[0-9]{1,9})?"
_DAY = r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_TIME = r"[0-9]{1,2}(?::[0-9]{1,2}(?::[0-9]{1,2}(?:\.[0-9]{1,6}0*)?)?)?"
ZONE = r"(?:[ ]?[^0-9.: \t\r\n][^ \t\r\n]*)?"
"""What may be a zone: `Z`, `+02:00`, ` Europe/Berlin`; whether it is one, the cast decides."""
INTEGER = "[-+]?[0-9]+"
FRACTION = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)" + EXPONENT
PLAIN_INTEGER = "-?(?:0|[1-9][0-9]*)"
PLAIN_FRACTION = rf"{PLAIN_INTEGER}(?:\.[0-9]+)?{EXPONENT}"
HINTED_FORMS: dict[type[T.DataType], str] = {
    T.ByteType: INTEGER,
    T.ShortType: INTEGER,
    T.IntegerType: INTEGER,
    T.LongType: INTEGER,
    T.DecimalType: FRACTION,
    T.FloatType: FRACTION,
    T.DoubleType: FRACTION,
    T.BooleanType: "(?i)(?:t|true|y|yes|1|f|false|n|no|0)",
    T.DateType: _DAY + r"(?:[T ]0{1,2}:00(?::00(?:\.0+)?)?)?",
    T.TimestampType: f"{_DAY}(?:[T ]{_TIME}{ZONE})?",
    T.TimestampNTZType: f"{_DAY}(?:[T ]{_TIME})?",
    T.BinaryType: r"[\s\S]*",
}
FORMS: dict[type[T.DataType], str] = {
    **HINTED_FORMS,
    T.ByteType: PLAIN_INTEGER,
    T.ShortType: PLAIN_INTEGER,
    T.IntegerType: PLAIN_INTEGER,
    T.LongType: PLAIN_INTEGER,
    T.DecimalType: PLAIN_FRACTION,
    T.FloatType: PLAIN_FRACTION,
    T.DoubleType: PLAIN_FRACTION,
    T.BooleanType: "(?i)(?:true|false)",
}
"""What a text looks like that goes into a column whose type was inferred; `HINTED_FORMS` are for one with a hint."""
_NUMBER = rf"\A{_BLANKS_PATTERN}[-+]?([0-9]*)\.?([0-9]*)(?:[eE]([-+]?[0-9]{{1,9}}))?{_BLANKS_PATTERN}\z"
LONG_LIMIT = float(2**63)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)


@dataclass(frozen=True)
class Precision:
    """How exact a binary fraction is: digits that it keeps always, digits of which a print needs no more, and its
    smallest number with full precision."""

    safe_digits: int
    printed_digits: int
    smallest: float


# A double is often printed with 17 digits (`%.17g`), so a text with as many may be a double. A float never is:
# more digits than it keeps come from a double.
PRECISIONS = {T.DoubleType: Precision(15, 17, 2.0**-1022), T.FloatType: Precision(6, 6, 2.0**-126)}


@dataclass(frozen=True)
class _NumberText:
    """The parts of a number as it is written: its digits without zeros at both ends, and the decimals it needs."""

    digits: Column
    decimals: Column

    @classmethod
    def from_text(cls, text: Column) -> _NumberText:
        whole = F.regexp_extract(text, _NUMBER, 1)
        fraction = F.regexp_extract(text, _NUMBER, 2)
        exponent = F.coalesce(F.regexp_extract(text, _NUMBER, 3).try_cast("int"), F.lit(0))
        without_leading_zeros = F.ltrim(F.concat(whole, fraction), F.lit("0"))
        digits = F.rtrim(without_leading_zeros, F.lit("0"))
        trailing_zeros = F.length(without_leading_zeros) - F.length(digits)
        decimals = F.length(fraction) - exponent - trailing_zeros
        return cls(digits, F.when(digits == "", 0).otherwise(decimals))

    def equals(self, other: _NumberText) -> Column:
        return (self.digits == other.digits) & (self.decimals == other.decimals)


def cast_column(column: Column, found: T.DataType, kind: T.DataType, *, hinted: bool) -> tuple[Column, Column]:
    """Return a column of files in a type, and whether nothing of a row's value is lost; of null nothing is.

    `found` is the type in the files.
    """
    if keeps_all(found, kind):
        return column if found == kind else as_text(column, found), F.lit(True)
    if isinstance(kind, NESTED):
        return _cast_nested(column, found, kind, hinted=hinted)
    if isinstance(found, NESTED) and not isinstance(kind, T.VariantType):
        return F.lit(None).cast(kind), column.isNull()
    cast = column
    if found == kind:
        fits = in_json(column, found)
    elif isinstance(kind, T.StringType):
        cast = column.cast("string")
        fits = F.is_valid_utf8(cast)
    elif isinstance(kind, T.VariantType):
        cast = column.try_cast(kind)
        fits = cast.isNotNull()
    elif isinstance(found, T.StringType):
        cast, fits = cast_text(column, kind, hinted=hinted)
    else:
        cast, fits = cast_value(column, found, kind)
    return cast, column.isNull() | F.coalesce(fits, F.lit(False))


def table_name(name: str) -> str:
    """Return the name of a column, or of a field inside of one, as a table can store it."""
    return _REFUSED.sub("_", name)


def keeps_all(found: T.DataType, kind: T.DataType) -> bool:
    """Return whether no value of the first type loses anything in the second one."""
    if isinstance(kind, T.StringType):
        return not isinstance(found, T.BinaryType)
    return found == kind and not isinstance(found, (*NESTED, *FRACTIONS, *TIME_TYPES))


def _cast_nested(column: Column, found: T.DataType, kind: T.DataType, *, hinted: bool) -> tuple[Column, Column]:
    """Return an array, a struct or a map in another type of the same kind, and whether nothing is lost."""

    def cast_inner(inner: Column, found: T.DataType, kind: T.DataType) -> tuple[Column, Column]:
        return cast_column(inner, found, kind, hinted=hinted)

    if isinstance(found, T.StructType) and isinstance(kind, T.StructType):
        return _cast_struct(column, found, kind, hinted=hinted)
    if isinstance(found, T.ArrayType) and isinstance(kind, T.ArrayType):
        types = (found.elementType, kind.elementType)
        cast = F.transform(column, lambda element: cast_inner(element, *types)[0])
        fits = F.forall(column, lambda element: cast_inner(element, *types)[1])
        return cast, F.coalesce(fits, F.lit(True))
    if isinstance(found, T.MapType) and isinstance(kind, T.MapType) and found.keyType == kind.keyType:
        types = (found.valueType, kind.valueType)
        cast = F.transform_values(column, lambda _, value: cast_inner(value, *types)[0])
        fits = F.forall(F.map_values(column), lambda value: cast_inner(value, *types)[1])
        return cast, F.coalesce(fits, F.lit(True))
    return F.lit(None).cast(kind), column.isNull()


def _cast_struct(column: Column, found: T.StructType, kind: T.StructType, *, hinted: bool) -> tuple[Column, Column]:
    sources = {table_name(field.name).lower(): field for field in found}
    if len(sources) < len(found):  # Spark, or the table, could not tell the fields apart
        return F.lit(None).cast(kind), column.isNull()
    fits = F.lit(True)
    fields = []
    for field in kind:
        source = sources.pop(field.name.lower(), None)
        cast = F.lit(None).cast(field.dataType)
        if source is not None:
            inner = column.getField(source.name)
            cast, inner_fits = cast_column(inner, source.dataType, field.dataType, hinted=hinted)
            fits = fits & inner_fits
        fields.append(cast.alias(field.name))
    for source in sources.values():
        fits = fits & column.getField(source.name).isNull()
    return F.when(column.isNotNull(), F.struct(*fields)), fits


def as_text(column: Column, kind: T.DataType) -> Column:
    """Return a value as text: nested ones as JSON, bytes, also those of a string, that are no text as base64."""
    if isinstance(kind, NESTED):
        return F.to_json(column, JSON_TIME_OPTIONS)
    text = column.cast("string")
    if isinstance(kind, (T.BinaryType, T.StringType)):
        return F.when(F.is_valid_utf8(text), text).otherwise(F.base64(column.cast("binary")))
    return text


def all_utf8(column: Column, kind: T.DataType) -> Column | None:
    """Return whether all strings in a value, perhaps nested ones, are UTF-8; None for a type without strings."""
    if isinstance(kind, T.StringType):
        return F.coalesce(F.is_valid_utf8(column), F.lit(True))
    if isinstance(kind, T.ArrayType):
        return _all_utf8_in(column, kind.elementType)
    inner: list[Column | None] = []
    if isinstance(kind, T.MapType):
        inner = [_all_utf8_in(F.map_keys(column), kind.keyType), _all_utf8_in(F.map_values(column), kind.valueType)]
    # Spark could not tell fields apart whose names differ by case only; such a struct is rescued anyway.
    elif isinstance(kind, T.StructType) and len({field.name.lower() for field in kind}) == len(kind):
        inner = [all_utf8(column.getField(field.name), field.dataType) for field in kind]
    found = [check for check in inner if check is not None]
    return reduce(and_, found) if found else None


def _all_utf8_in(elements: Column, kind: T.DataType) -> Column | None:
    # Asked of the type alone, since the column of an element exists within the function only.
    if all_utf8(F.lit(None), kind) is None:
        return None

    def holds(element: Column) -> Column:
        check = all_utf8(element, kind)
        assert check is not None
        return check

    return F.coalesce(F.forall(elements, holds), F.lit(True))


# Arrays, structs and maps in text


def parse_nested(text: Column, kind: T.DataType) -> Column:
    """Return a text with the JSON of an array, a struct or a map as `type_of_texts(kind)`; null if it is none."""
    with_texts = F.udf(partial(leaves_to_texts, kind=kind), "string", useArrow=True)
    return F.from_json(with_texts(text), type_of_texts(kind).json())


def type_of_texts(kind: T.DataType) -> T.DataType:
    """Return a type with texts in place of all plain types inside."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, type_of_texts(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(type_of_texts(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(T.StringType(), type_of_texts(kind.valueType))
    if isinstance(kind, T.VariantType):
        return kind
    return T.StringType()


def leaves_to_texts(text: str | None, kind: T.DataType) -> str | None:
    """Return JSON with a text in place of each number, and of what else has a plain type; None if it has another shape.

    Spark parses numbers before it makes texts of them: 9007199254740993.0 would lose a digit. Runs on executors.
    """
    if text is None:
        return None
    try:
        return msgspec.json.encode(_texts_of(text, kind)).decode()
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _texts_of(text: str, kind: T.DataType) -> Any:
    if isinstance(kind, T.StructType):
        return _texts_of_fields(text, kind)
    if isinstance(kind, T.ArrayType):
        return [_texts_of_value(value, kind.elementType) for value in _ARRAY.decode(text)]
    if isinstance(kind, T.MapType):
        values = _OBJECT.decode(text)
        _refuse_keys_that_come_twice(text, values)
        return {key: _texts_of_value(value, kind.valueType) for key, value in values.items()}
    return text


def _texts_of_fields(text: str, kind: T.StructType) -> dict[str, Any]:
    values = _OBJECT.decode(text)
    _refuse_keys_that_come_twice(text, values)
    fields = {field.name.lower(): field for field in kind}
    texts: dict[str, Any] = {}
    for key, value in values.items():
        field = fields.get(table_name(key).lower())
        if field is None:
            # A field that had nothing but empty values so far has no type: no column can have it.
            if not _is_empty(msgspec.json.decode(value)):
                raise ValueError(f"no field {key}")
            continue
        if field.name in texts:
            raise ValueError(f"{key} comes twice")
        texts[field.name] = _texts_of_value(value, field.dataType)
    return texts


def _texts_of_value(value: msgspec.Raw, kind: T.DataType) -> Any:
    text = bytes(value).decode()
    if text == "null":
        return None
    if isinstance(kind, T.VariantType):
        return value
    if text.startswith('"'):
        text = _STRING.decode(text)
    return _texts_of(text, kind)


def _refuse_keys_that_come_twice(text: str, values: Mapping[str, Any]) -> None:
    """Raise ValueError if an object has more members than `values`, which has the last one of each key."""
    if text.count(":") == len(values):
        return
    members: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        # The outer object ends last.
        members[:] = pairs

    json.loads(text, object_pairs_hook=keep, parse_int=str)
    if len(members) > len(values):
        raise ValueError("a key comes twice")


def _is_empty(value: Any) -> bool:
    """Return whether Spark infers no type from a value: null, and arrays and objects of nothing else."""
    if isinstance(value, dict):
        return all(_is_empty(child) for child in value.values())
    if isinstance(value, list):
        return all(_is_empty(child) for child in value)
    return value is None


# Plain values


def cast_text(text: Column, kind: T.DataType, *, hinted: bool) -> tuple[Column, Column]:
    """Return a text in a plain type, and whether nothing is lost. `hinted`: a person has given the type."""
    cast = text.try_cast(kind)
    form = (HINTED_FORMS if hinted else FORMS)[type(kind)]
    fits = text.rlike(_whole_text_pattern(form)) & cast.isNotNull()
    if isinstance(kind, T.DecimalType):
        fits = fits & (_NumberText.from_text(text).decimals <= kind.scale)
    if isinstance(kind, FRACTIONS):
        fits = fits & _keeps_digits(text, cast, PRECISIONS[type(kind)])
    if isinstance(kind, T.TimestampType):
        # When summer time begins, clocks pass over an hour: Spark would move a time within it.
        local = text.try_cast("timestamp_ntz")
        has_zone = ~text.rlike(_whole_text_pattern(HINTED_FORMS[T.TimestampNTZType]))
        fits = fits & (has_zone | cast.cast("timestamp_ntz").eqNullSafe(local))
    return cast, fits & in_json(cast, kind)


def cast_value(column: Column, source: T.DataType, kind: T.DataType) -> tuple[Column, Column]:
    """Return a value of one plain type, no text, in another, and whether nothing is lost."""
    if not _is_convertible(source, kind):
        return F.lit(None).cast(kind), F.lit(False)
    cast = column.try_cast(kind)
    fits = cast.try_cast(source).eqNullSafe(column)
    if isinstance(source, _INTEGERS) and isinstance(kind, FRACTIONS):
        # The largest bigint is rounded up, and cut to itself on the way back.
        fits = fits & (F.abs(cast) < LONG_LIMIT)
    if isinstance(source, T.DoubleType) and isinstance(kind, T.FloatType):
        # 0.1 is another number in 32 bits, but the same digits.
        fits = fits | (cast.cast("string") == column.cast("string"))
    return cast, cast.isNotNull() & fits & in_json(cast, kind)


def in_json(column: Column, kind: T.DataType) -> Column:
    """Return whether the JSON of a row can hold a value: no NaN, no infinity, no year beyond 1 to 9999."""
    if isinstance(kind, FRACTIONS):
        return ~F.isnan(column) & (F.abs(column) != float("inf"))
    if isinstance(kind, T.DateType):
        return F.year(column).between(1, 9999)
    if isinstance(kind, T.TimestampType):
        first = F.expr("TIMESTAMP '0001-01-01 00:00:00Z'")
        last = F.expr("TIMESTAMP '9999-12-31 23:59:59.999999Z'")
        return column.between(first, last)
    if isinstance(kind, T.TimestampNTZType):
        return F.year(column).between(1, 9999)
    return F.lit(True)


def _whole_text_pattern(form: str) -> str:
    return rf"\A{_BLANKS_PATTERN}{form}{_BLANKS_PATTERN}\z"


def _keeps_digits(text: Column, cast: Column, precision: Precision) -> Column:
    """Return whether a number in text is still the same as a binary fraction."""
    number = _NumberText.from_text(text)
    count = F.length(number.digits)
    size = F.abs(cast)
    # Whole numbers are compared as integers: beyond 2^53 a double skips some of them.
    same_integer = text.try_cast("decimal(38,0)").try_cast("bigint").eqNullSafe(cast.try_cast("bigint"))
    exact = same_integer & (size < LONG_LIMIT)
    printed_alike = number.equals(_NumberText.from_text(cast.cast("string")))
    enough = F.when(number.decimals <= 0, exact).otherwise(count <= precision.printed_digits)
    is_zero = number.digits == ""
    return is_zero | ((size >= precision.smallest) & ((count <= precision.safe_digits) | enough | printed_alike))


def _is_convertible(source: T.DataType, kind: T.DataType) -> bool:
    """Return whether values of a type mean something in another: a number is no time, and true is no number."""
    if isinstance(source, T.NumericType):
        return isinstance(kind, (T.NumericType, T.BooleanType))
    return isinstance(source, TIME_TYPES) and isinstance(kind, TIME_TYPES)
