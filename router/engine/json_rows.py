"""Keep rows of an outbox as JSON in its quarantine, if the outbox's Delta table cannot store them.

A table's quarantine has the columns of its rows. An outbox gets one only if its own table can never take the rows, and
then a table with these columns may not be possible either: so a row is kept as text, with the coordinates of its
record, until its sink gets it. Runs on the driver; what is lazy runs where the rows are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router.api.columns import JSON_TIME_OPTIONS, quote_identifier
from router.engine.label.layout import MERGED_COORDINATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ROW = "_row"
"""The column of a quarantine with a row as JSON."""
OPTIONS = {**JSON_TIME_OPTIONS, "ignoreNullFields": "false"}
"""How a row is written and read."""


def as_json(rows: DataFrame, own: list[Column]) -> DataFrame:
    """Return rows of an outbox as a quarantine keeps them: the columns `own`, their coordinates, and `_row`."""
    coordinates = [name for name in MERGED_COORDINATES if name in rows.columns]
    row_columns = [F.col(quote_identifier(name)) for name in rows.columns if name not in coordinates]
    row = F.to_json(F.struct(*row_columns), OPTIONS).alias(ROW)
    return rows.select(*own, *coordinates, row)


def from_json(rows: DataFrame, columns: StructType) -> DataFrame:
    """Return rows of a quarantine with the columns of an outbox, without fields that it has no column for."""
    in_json = columns.__class__([field for field in columns if field.name not in MERGED_COORDINATES])
    parsed = rows.withColumn(ROW, F.from_json(F.col(ROW), in_json, OPTIONS))
    outbox_columns = []
    for field in columns:
        name = quote_identifier(field.name)
        column = F.col(f"{ROW}.{name}")
        if field.name in MERGED_COORDINATES:
            column = F.col(name)
        outbox_columns.append(column.cast(field.dataType).alias(field.name))
    return parsed.select(*outbox_columns)
