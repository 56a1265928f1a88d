"""A hash of a row that differs for different rows, whatever types they have inside.

Spark's own `xxhash64` skips nulls, and reads arrays and structs as the values inside one after another: it is the same
for (null, 5) and (5, null), for ([1], [2]) and ([1, 2], []), for 0.0 and -0.0. Here each value is preceded
by whether it is null, each array by its length, and each element is a hash of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.api.columns import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ATOMIC = (T.BinaryType, T.BooleanType, T.NumericType, T.DateType, T.TimestampType, T.TimestampNTZType)


def row_hash(rows: DataFrame) -> Column:
    """Return a hash of each row, a long; null for all rows if the type of a column has none, as an interval."""
    columns = rows.schema
    if not all(_has_hash(column.dataType) for column in columns):
        return F.lit(None).cast("long")
    parts: list[Column] = []
    for column in columns:
        parts += _value_parts(F.col(quote_identifier(column.name)), column.dataType)
    return F.xxhash64(*parts) if parts else F.lit(0).cast("long")


def _has_hash(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return all(_has_hash(child.dataType) for child in kind)
    if isinstance(kind, T.ArrayType):
        return _has_hash(kind.elementType)
    if isinstance(kind, T.MapType):
        return _has_hash(kind.keyType) and _has_hash(kind.valueType)
    return isinstance(kind, (*ATOMIC, T.StringType))


def _value_parts(value: Column, kind: T.DataType) -> list[Column]:
    """Return columns whose values together differ for different values; none of them is null unless the value is."""
    is_null = value.isNull()
    if isinstance(kind, T.StructType):
        parts = [is_null]
        for child in kind:
            parts += _value_parts(value.getField(child.name), child.dataType)
        return parts
    if isinstance(kind, T.ArrayType):
        hashes = F.transform(value, lambda element: F.xxhash64(*_value_parts(element, kind.elementType)))
        return [is_null, F.size(value), hashes]
    if isinstance(kind, T.MapType):
        entry = T.StructType().add("key", kind.keyType).add("value", kind.valueType)
        hashes = F.transform(F.map_entries(value), lambda element: F.xxhash64(*_value_parts(element, entry)))
        # Equal maps may have their entries in any order.
        return [is_null, F.size(value), F.sort_array(hashes)]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        # xxhash64 takes -0.0 for 0.0; their texts differ.
        return [is_null, value, F.when(value == 0, value.cast("string")).otherwise("")]
    if isinstance(kind, T.StringType):
        # Under a collation texts that count as equal have one hash; their bytes differ.
        return [is_null, value.cast("binary")]
    return [is_null, value]
