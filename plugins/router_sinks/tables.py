"""Append events to Delta tables: to one table, or to one per value."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pyspark.sql import Column
from pyspark.sql import functions as F

from router import TableSink
from router_encoders.templates import Placeholder, check_name, check_template, parse


class Delta(TableSink):
    """Append events to one Delta table. The table is made with the first events, and gains columns as they come.

    Delivery: exactly once.
    """

    main_option: ClassVar[str | None] = "table"

    # `table` is the method that every table sink has, so the option of that name is an alias
    name: str = Field(alias="table", description="the table, as layer.table, such as silver.big_wins")

    @field_validator("name")
    @classmethod
    def _usable(cls, name: str) -> str:
        return check_name(name)

    def table(self) -> str:
        """Return the table's name."""
        return self.name


class Tables(TableSink):
    """Append events to one Delta table per value of one or more fields.

    `table: silver.{event.game}` sends an event of the game uno to silver.uno. What stands in braces is a field or a
    raw column, the rest is taken as it is. Tables are made when their first event comes. An event for which a field
    in braces is null, or whose name breaks the naming rule (letters, digits and underscores; capitals become small),
    is a dead letter, and so is one for a table beyond `at_most`.

    Delivery: exactly once, for hundreds of tables at the price of about one.
    """

    main_option: ClassVar[str | None] = "table"

    # `table` is the method that every table sink has, so the option of that name is an alias
    template: str = Field(alias="table", description="layer.table with fields in braces, such as silver.{event.game}")
    columns: Literal["all", "seen"] = Field(
        default="seen",
        description="`seen`: a table gains a column with its first value; `all`: it has every column of the route",
    )

    @field_validator("template")
    @classmethod
    def _usable(cls, template: str) -> str:
        return check_template(template)

    def table(self) -> Column:
        """Return the name as the data has it, null where a field of it is null; the engine applies the naming rule."""
        return F.concat(*[_rendered(piece) for piece in parse(self.template)])


def _rendered(piece: str | Placeholder) -> Column:
    return F.col(piece.path).cast("string") if isinstance(piece, Placeholder) else F.lit(piece)
