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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    from pyspark.sql import Column

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
FRACTIONS = (T.FloatType, T.DoubleType)
TIME_TYPES = (T.DateType, T.TimestampType, T.TimestampNTZType)

_BLANKS = r"[ \t\r\n]*"
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
_NUMBER = rf"\A{_BLANKS}[-+]?([0-9]*)\.?([0-9]*)(?:[eE]([-+]?[0-9]{{1,9}}))?{_BLANKS}\z"
LONGS = float(2**63)


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
    def of(cls, text: Column) -> _NumberText:
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


def cast_text(text: Column, kind: T.DataType, *, hinted: bool) -> tuple[Column, Column]:
    """Return a text in a plain type, and whether nothing is lost. `hinted`: a person has given the type."""
    cast = text.try_cast(kind)
    form = (HINTED_FORMS if hinted else FORMS)[type(kind)]
    fits = text.rlike(_whole(form)) & cast.isNotNull()
    if isinstance(kind, T.DecimalType):
        fits = fits & (_NumberText.of(text).decimals <= kind.scale)
    if isinstance(kind, FRACTIONS):
        fits = fits & _keeps_digits(text, cast, PRECISIONS[type(kind)])
    if isinstance(kind, T.TimestampType):
        # When summer time begins, clocks pass over an hour: Spark would move a time within it.
        local = text.try_cast("timestamp_ntz")
        has_zone = ~text.rlike(_whole(HINTED_FORMS[T.TimestampNTZType]))
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
        fits = fits & (F.abs(cast) < LONGS)
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


def _whole(form: str) -> str:
    return rf"\A{_BLANKS}{form}{_BLANKS}\z"


def _keeps_digits(text: Column, cast: Column, precision: Precision) -> Column:
    """Return whether a number in text is still the same as a binary fraction."""
    number = _NumberText.of(text)
    count = F.length(number.digits)
    size = F.abs(cast)
    # Whole numbers are compared as integers: beyond 2^53 a double skips some of them.
    same_integer = text.try_cast("decimal(38,0)").try_cast("bigint").eqNullSafe(cast.try_cast("bigint"))
    exact = same_integer & (size < LONGS)
    printed_alike = number.equals(_NumberText.of(cast.cast("string")))
    enough = F.when(number.decimals <= 0, exact).otherwise(count <= precision.printed_digits)
    is_zero = number.digits == ""
    return is_zero | ((size >= precision.smallest) & ((count <= precision.safe_digits) | enough | printed_alike))


def _is_convertible(source: T.DataType, kind: T.DataType) -> bool:
    """Return whether values of a type mean something in another: a number is no time, and true is no number."""
    if isinstance(source, T.NumericType):
        return isinstance(kind, (T.NumericType, T.BooleanType))
    return isinstance(source, TIME_TYPES) and isinstance(kind, TIME_TYPES)
