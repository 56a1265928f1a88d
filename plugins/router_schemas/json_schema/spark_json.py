"""Say which types of Spark JSON can be decoded to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERVALS = (T.DayTimeIntervalType, T.YearMonthIntervalType, T.CalendarIntervalType)


def check_types(kind: T.DataType, path: str = "") -> None:
    """Raise ValueError for a type that JSON cannot be decoded to safely, and for names that differ by case only."""
    at = path or "the schema"
    if refusal := _refusal(kind):
        raise ValueError(f"{at}: {refusal}")
    if isinstance(kind, T.StructType):
        folded: dict[str, str] = {}
        for name in kind.fieldNames():
            if folded.setdefault(name.lower(), name) is not name:
                raise ValueError(f"{at}: {folded[name.lower()]} and {name} differ by case only; columns must not")
    for name, child in children(kind):
        check_types(child, f"{path}.{name}" if path else name)


def _refusal(kind: T.DataType) -> str:
    """Return what is wrong with a type itself; empty for a good one."""
    if isinstance(kind, T.ByteType):
        return "tinyint takes 200 for -56; use smallint"
    if isinstance(kind, (T.CharType, T.VarcharType)):
        return f"nothing would hold texts to {kind.simpleString()}; use string"
    if isinstance(kind, INTERVALS):
        return "JSON has no intervals; use string, and cast it in `select`"
    if isinstance(kind, T.MapType) and not isinstance(kind.keyType, T.StringType):
        return "keys in JSON are texts; use map<string, ...>"
    return "a struct needs fields" if isinstance(kind, T.StructType) and not kind.fields else ""


def children(kind: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """Yield the types inside a type."""
    if isinstance(kind, T.StructType):
        yield from ((field.name, field.dataType) for field in kind)
    elif isinstance(kind, T.ArrayType):
        yield "[]", kind.elementType
    elif isinstance(kind, T.MapType):
        yield "{}", kind.valueType
