"""Rows of an outbox that its Delta table cannot take: JSON in the quarantine, until they are given to their sink.

A table's quarantine has the columns of its rows. An outbox gets one only if its own table can never take the rows, and
then nothing says that a table with these columns could: so a row is kept as text, with the coordinates of its record.
Runs on the driver; what is lazy runs where the rows are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router.columns import TIMES, quoted
from router.engine.label.layout import MERGED_COORDINATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ROW = "_row"
"""The column of a quarantine with a row as JSON."""
OPTIONS = {**TIMES, "ignoreNullFields": "false"}
"""How a row is written and read."""


def as_json(rows: DataFrame, own: list[Column]) -> DataFrame:
    """Return rows of an outbox as a quarantine keeps them: its own columns, their coordinates, and `_row`."""
    places = [name for name in MERGED_COORDINATES if name in rows.columns]
    others = [F.col(quoted(name)) for name in rows.columns if name not in places]
    row = F.to_json(F.struct(*others), OPTIONS).alias(ROW)
    return rows.select(*own, *places, row)


def from_json(rows: DataFrame, columns: StructType) -> DataFrame:
    """Return rows of a quarantine with the columns of an outbox. What the outbox has no column for is left out."""
    inside = columns.__class__([field for field in columns if field.name not in MERGED_COORDINATES])
    parsed = rows.withColumn(ROW, F.from_json(F.col(ROW), inside, OPTIONS))
    chosen = []
    for field in columns:
        name = quoted(field.name)
        column = F.col(name) if field.name in MERGED_COORDINATES else F.col(f"{ROW}.{name}")
        chosen.append(column.cast(field.dataType).alias(field.name))
    return parsed.select(*chosen)
