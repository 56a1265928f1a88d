"""Queries with a name (`let`), as temporary views of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Let


def define_view(session: SparkSession, let: Let, rows_of: Callable[[str], DataFrame]) -> None:
    """Make a temporary view of a query, and of those that it reads. `rows_of` returns the rows of a table.

    Raises AnalysisException or ParseException if Spark refuses the SQL. The names of its tables are dropped afterwards:
    other queries may use the same names for other tables.
    """
    for other in let.let:
        define_view(session, other, rows_of)
    for name, table in let.tables.items():
        rows_of(table).createOrReplaceTempView(name)
    made = session.sql(let.sql)
    for name in let.tables:
        session.catalog.dropTempView(name)
    made.createOrReplaceTempView(let.name)
