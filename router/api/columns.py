"""Spark's columns: by any name, as one struct, and guarded: an expression that raises on a row is null on it.

Why guarded: docs/decisions/0001.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from router import spark_internals

if TYPE_CHECKING:
    from collections.abc import Iterable

JSON_TIME_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
}
"""How times are written in JSON: Spark would cut them to milliseconds, and the offsets of old dates to minutes."""


def quote_identifier(name: str) -> str:
    """Return a name as Spark takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def sql_text(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def row(names: Iterable[str]) -> Column:
    """Return columns as one struct, whatever characters their names have."""
    return F.struct(*[F.col(quote_identifier(name)) for name in names])


def tried(column: Column) -> Column:
    """Return the column with null on the rows on which its evaluation raises.

    Spark has no public form of this: its own try_* functions are built on the same expression. The column must be
    guarded by a condition that cannot be folded away (`F.when(...)`): Spark would otherwise compute a subexpression
    shared with another column ahead of the guard, and raise there. The guard is around a struct, since the optimiser
    moves it into the branches of a bare CASE, and leaves the conditions outside.
    """
    return spark_internals.null_if_raising(column)


def holds_where(guard: Column, condition: Column) -> Column:
    """Return whether a condition is true on the rows on which `guard` is; null and an error are false."""
    return F.coalesce(tried(F.when(guard, condition)), F.lit(False))


def any_of(columns: Iterable[Column]) -> Column:
    """Return whether any of the conditions is true."""
    return reduce(operator.or_, columns, F.lit(False))
