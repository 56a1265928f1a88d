"""Find strings that are not UTF-8 in decoded Avro: Spark takes their bytes as they are, and no table can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column


def are_utf8(value: Column, kind: T.StructType) -> Column:
    """Return whether every string in a struct, however deep, is UTF-8; never null.

    They are looked at one behind the other, with blanks between: a lambda for arrays and maps would take the projection
    out of whole-stage code generation.
    """
    texts = list(_texts(value, kind))
    return F.coalesce(F.is_valid_utf8(F.concat_ws(" ", *texts)), F.lit(True)) if texts else F.lit(True)


def _texts(value: Column, kind: T.DataType) -> Iterator[Column]:
    """Yield columns of string or array<string>."""
    if isinstance(kind, T.StringType):
        yield value
    elif isinstance(kind, T.StructType):
        for field in kind:
            yield from _texts(value.getField(field.name), field.dataType)
    elif isinstance(kind, T.MapType):
        yield F.map_keys(value)
        yield from _elements(F.map_values(value), kind.valueType)
    elif isinstance(kind, T.ArrayType):
        yield from _elements(value, kind.elementType)


def _elements(values: Column, kind: T.DataType) -> Iterator[Column]:
    """Yield the strings in the elements of an array."""
    if isinstance(kind, T.StringType):
        yield values
    elif isinstance(kind, T.StructType):
        for field in kind:
            yield from _elements(values.getField(field.name), field.dataType)
    elif isinstance(kind, T.ArrayType):  # flatten is null where one of them is
        yield from _elements(F.flatten(F.array_compact(values)), kind.elementType)
    elif isinstance(kind, T.MapType):
        yield F.flatten(F.transform(F.array_compact(values), F.map_keys))
        yield from _elements(F.flatten(F.transform(F.array_compact(values), F.map_values)), kind.valueType)
