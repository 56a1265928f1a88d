"""Know, type by type, what Spark's JSON parser gets wrong without a word, and find it with native expressions.

| what | the parser alone | here |
|---|---|---|
| timestamp, date | `12:30` is today's, a large number wraps around | parsed as text, then converted |
| double, float | 1e400 becomes infinity | does not fit |
| tinyint | 200 becomes -56 | refused in a schema |
| map | a key that comes twice is kept twice | does not fit |
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Iterator

INFINITY = float("inf")
FIRST, LAST = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"
"""The times that every reader of a table knows; Python has no others."""


def check_types(kind: T.DataType, path: str = "") -> None:
    """Raise ValueError for a type that JSON cannot be decoded to safely, and for names that differ by case only."""
    at = path or "the schema"
    if isinstance(kind, T.ByteType):
        raise ValueError(f"{at}: tinyint takes 200 for -56; use smallint")
    if isinstance(kind, T.MapType) and not isinstance(kind.keyType, T.StringType):
        raise ValueError(f"{at}: keys in JSON are texts; use map<string, ...>")
    if isinstance(kind, T.StructType):
        folded: dict[str, str] = {}
        for name in kind.fieldNames():
            if folded.setdefault(name.lower(), name) is not name:
                raise ValueError(f"{at}: {folded[name.lower()]} and {name} differ by case only; columns must not")
        if not kind.fields:
            raise ValueError(f"{at}: a struct needs fields")
    for name, child in children(kind):
        check_types(child, f"{path}.{name}" if path else name)


def children(kind: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """Yield the types inside a type."""
    if isinstance(kind, T.StructType):
        yield from ((field.name, field.dataType) for field in kind)
    elif isinstance(kind, T.ArrayType):
        yield "[]", kind.elementType
    elif isinstance(kind, T.MapType):
        yield "{}", kind.valueType


def parsed_type(kind: T.DataType) -> T.DataType:
    """Return what the parser is asked for: a type with texts in place of times."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, parsed_type(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(parsed_type(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, parsed_type(kind.valueType))
    return T.StringType() if isinstance(kind, (T.TimestampType, T.DateType)) else kind


def has_times(kind: T.DataType) -> bool:
    """Say whether anything inside a type is parsed as text and converted."""
    return isinstance(kind, (T.TimestampType, T.DateType)) or any(has_times(child) for _, child in children(kind))


def converted(parsed: Column, kind: T.DataType) -> Column:
    """Return a parsed value with its times converted; a time that does not fit is null."""
    if not has_times(kind):
        return parsed
    if isinstance(kind, T.StructType):
        fields = [converted(parsed[field.name], field.dataType).alias(field.name) for field in kind]
        return F.when(parsed.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        return F.transform(parsed, lambda element: converted(element, kind.elementType))
    if isinstance(kind, T.MapType):
        return F.transform_values(parsed, lambda _, value: converted(value, kind.valueType))
    return _time(parsed, kind)


def _time(text: Column, kind: T.DataType) -> Column:
    """Return an ISO 8601 text as a date or timestamp.

    The cast alone would also take `12:30` (as today, so a replay would differ) and the number 2026.
    """
    dashed = (F.locate("-", text) == 5) & (F.locate("-", text, 6) == 8)
    if isinstance(kind, T.DateType):
        dashed = dashed & (F.length(text) == 10)
    return F.when(dashed, text.try_cast(kind))


def misfits(parsed: Column, value: Column, schema: T.StructType, prefix: str = "") -> Iterator[tuple[str, Column]]:
    """Yield the name of every field, in structs too, that may not fit, and whether it does not."""
    for field in schema:
        name, was, now = f"{prefix}{field.name}", parsed[field.name], value[field.name]
        if isinstance(field.dataType, T.StructType):
            yield from misfits(was, now, field.dataType, f"{name}.")
        elif (found := misfit(was, now, field.dataType)) is not None:
            yield name, found


def misfit(parsed: Column, value: Column, kind: T.DataType) -> Column | None:
    """Return whether a value that the parser accepted does not fit after all; never null. None: it always fits."""
    if isinstance(kind, (T.TimestampType, T.DateType)):
        beyond = (value < F.lit(FIRST).cast(kind)) | (value > F.lit(LAST).cast(kind))
        return parsed.isNotNull() & (value.isNull() | beyond)
    if isinstance(kind, (T.DoubleType, T.FloatType)):
        return value.isNotNull() & (F.abs(value) == INFINITY)
    if isinstance(kind, T.StructType):
        return either([misfit(parsed[field.name], value[field.name], field.dataType) for field in kind])
    if isinstance(kind, T.ArrayType):
        return _misfit_inside(parsed, kind.elementType)
    if isinstance(kind, T.MapType):
        keys = F.map_keys(parsed)
        twice = F.coalesce(F.size(F.array_distinct(keys)) < F.size(keys), F.lit(False))
        return either([twice, _misfit_inside(F.map_values(parsed), kind.valueType)])
    return None


def _misfit_inside(elements: Column, kind: T.DataType) -> Column | None:
    if misfit(F.lit(None), F.lit(None), kind) is None:
        return None
    found = F.exists(elements, lambda element: _misfit_of(element, kind))
    return F.coalesce(found, F.lit(False))


def _misfit_of(element: Column, kind: T.DataType) -> Column:
    found = misfit(element, converted(element, kind), kind)
    assert found is not None  # asked before
    return found


def either(conditions: list[Column | None]) -> Column | None:
    """Return the disjunction of the conditions there are."""
    given = [condition for condition in conditions if condition is not None]
    return reduce(operator.or_, given) if given else None
