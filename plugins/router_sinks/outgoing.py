"""Make of a lane's rows what is sent: topic, key, headers and value. Runs on the driver, as native expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router import StartError, row, tried
from router_templates.pieces import Placeholder, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame


COORDINATES = ("_topic", "_partition", "_offset", "_timestamp", "_key")
"""The columns of a lane that are not the route's."""
PLACE = COORDINATES[:3]
"""Where a record came from; no two rows of a lane have the same."""


def own_columns(events: DataFrame, without: Iterable[str] = ()) -> T.StructType:
    """Return the route's columns of a lane; raise StartError where one of `without` is not there, or no other is."""
    unknown = sorted({*without} - {*events.columns})
    if unknown:
        raise StartError(f"`without` has {', '.join(unknown)}, and the route has no such columns")
    left_out = {*COORDINATES, *without}
    found = T.StructType([T.StructField(one.name, one.dataType) for one in events.schema if one.name not in left_out])
    if not found.fields:
        raise StartError("the value would have no columns; take one out of `without`")
    return found


def outgoing(events: DataFrame, topic: str, key: str | None, headers: Mapping[str, str], value: Column) -> DataFrame:
    """Return what tasks take: see publish.TAKES. A row on which an expression raises has a null `_to`.

    Raises StartError for a key or header that is not one value.
    """
    names = own_columns(events).fieldNames()
    seen = events if "event" in names else events.withColumn("event", row(names))
    wanted = {"key": key or "null", **{f"header {name}": sql for name, sql in headers.items()}}
    kinds = seen.select(*map(F.expr, wanted.values())).schema
    made = [as_bytes(F.expr(sql), kind.dataType, what) for (what, sql), kind in zip(wanted.items(), kinds, strict=True)]
    pieces = [F.col(one.path).cast("string") if isinstance(one, Placeholder) else F.lit(one) for one in parse(topic)]
    to = F.struct(F.concat(*pieces).alias("topic"), *(one.alias(f"c{place}") for place, one in enumerate(made)))
    guarded = tried(F.when(F.col("_offset") >= 0, to))  # always so, which no optimiser knows: see `tried`
    return seen.select(*PLACE, guarded.alias("_to"), value.alias("_row"))


def new_topics(rows: DataFrame, known: frozenset[str], most: int) -> list[str]:
    """Return names of topics that rows want and that are not known. One job."""
    found = rows.select(F.col("_to.topic").alias("name")).filter(F.col("name").isNotNull()).distinct()
    new = found.filter(~F.col("name").isin(*known)) if known else found
    return sorted(one["name"] for one in new.limit(most).collect())


def refused_rows(events: DataFrame, reports: DataFrame) -> DataFrame:
    """Return the rows that tasks report as refused, whole, with the `reason`."""
    old = ("topic", "partition", "offset")
    why = reports.filter(F.col("kind") == "refused").select(*old, F.col("text").alias("reason"))
    why = why.toDF(*(f"_of_{name}" for name in old), "reason")
    same = [F.col(new).eqNullSafe(F.col(f"_of_{name}")) for new, name in zip(PLACE, old, strict=True)]
    return events.join(F.broadcast(why), same).drop(*(f"_of_{name}" for name in old))


def lane_of(seen: DataFrame, key: str | None) -> Column:
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
