"""Append events to one Delta table."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from router import TableSink
from router_encoders.templates import check_name


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
