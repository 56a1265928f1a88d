"""Match events by a SQL condition."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints
from pyspark.sql import Column
from pyspark.sql import functions as F

from router import Rule


class Sql(Rule):
    """Match events for which a Spark SQL condition over `event` and the raw columns is true.

    Null is no match: `event.amount > 5` leaves out events without an amount. So is a row on which the condition
    raises (Spark's ANSI mode is on: a cast that fails, a division by zero); write `try_cast(event.amount AS int)`,
    `try_divide(a, b)` where such rows are to match something else.
    """

    main_option: ClassVar[str | None] = "where"

    where: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        description="condition, such as event.amount > 9000 AND event.country IN ('de', 'at')"
    )

    def matches(self) -> Column:
        """Return the condition; a record without an event does not match."""
        return F.col("event").isNotNull() & F.expr(self.where)
