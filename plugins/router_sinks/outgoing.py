"""Make of a lane's rows what is sent: topic, key, headers and value. Runs on the driver, as native expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router import row, tried
from router_encoders.outbox_rows import PLACE, as_bytes, own_columns
from router_encoders.templates import Placeholder, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame


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
