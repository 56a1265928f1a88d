"""Decode framed JSON in Spark columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router_decoders import frame_columns, json_columns
from router_schemas.json_schema.merge import table_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router_schemas.json_schema.library import Objects

WHOLE, WHY = "_framed", "_why"
"""Where the whole value is while its object is decoded in its place; why there is none."""


def decoded(raw: DataFrame, known: Objects) -> DataFrame:
    """Return raw records with `event`, `_error`, `_wanted` and what is known of the schema."""
    unframed = F.when(F.col("_key").isNull(), frame_columns.unframed(known))
    missing = F.when(F.col("_known").isNull(), F.concat(frame_columns.called(known), F.lit(" is not known yet")))
    frame = frame_columns.framed(raw, known)
    frame = frame.withColumn(WHY, F.coalesce(unframed, missing, F.col("_known.reason")))
    frame = frame.withColumns({WHOLE: F.col("value"), "value": F.when(F.col(WHY).isNull(), F.col("_body"))})
    for projection in json_columns.levels(known.struct.toDDL(), rescue=False):
        frame = frame.withColumns(projection)
    event = F.col("event").cast(table_type(known.struct))
    frame = frame.withColumns({"_error": F.coalesce(WHY, "_error"), "event": event, "value": F.col(WHOLE)})
    frame = frame.withColumns({"_wanted": frame_columns.wanted(known), **frame_columns.about(known)})
    return frame.drop(*frame_columns.TEMPORARY, *json_columns.TEMPORARY, WHOLE, WHY)
