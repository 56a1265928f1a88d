"""The columns of the rows that wait in an outbox: where they came from, the route's own, what they keep an order by.

What sinks share that encode rows and send them. Runs on the driver, as native expressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router import StartError, tried

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

COORDINATES = ("_topic", "_partition", "_offset", "_timestamp", "_key")
"""The columns of an outbox that are not the route's."""
PLACE = COORDINATES[:3]
"""Where a record came from; no two rows of an outbox have the same."""


def own_columns(events: DataFrame, without: Iterable[str] = ()) -> T.StructType:
    """Return the route's columns of an outbox; raise StartError where one of `without` is not there, or no other is."""
    unknown = sorted({*without} - {*events.columns})
    if unknown:
        raise StartError(f"`without` has {', '.join(unknown)}, and the route has no such columns")
    left_out = {*COORDINATES, *without}
    found = T.StructType([T.StructField(one.name, one.dataType) for one in events.schema if one.name not in left_out])
    if not found.fields:
        raise StartError("the value would have no columns; take one out of `without`")
    return found


def order_key(seen: DataFrame, key: str | None) -> Column:
    """Return what rows keep their order by, as bytes: SQL over the route's columns; None: nothing. May be null."""
    if key is None:
        return F.lit(None).cast("binary")
    try:
        found = seen.select(F.expr(key)).schema.fields
    except (AnalysisException, ParseException) as error:
        raise StartError(f"key: {str(error).strip().splitlines()[0]}") from None
    column = as_bytes(F.expr(key), found[0].dataType, "key")
    return tried(F.when(F.col("_offset") >= 0, column))  # always so, which no optimiser knows: see `tried`


def as_bytes(column: Column, kind: T.DataType, what: str) -> Column:
    """Return a column as bytes, all but binary by its text; raise StartError for one that is not one value."""
    if isinstance(kind, (T.StructType, T.ArrayType, T.MapType)):
        raise StartError(
            f"{what}: it is {kind.simpleString()[:100]}, not one value; use a field of it, or to_json(...)"
        )
    return column if isinstance(kind, T.BinaryType) else column.cast("string").cast("binary")
