"""Match events by the schema they were written with."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING

from pydantic import Field, model_validator
from pyspark.sql import Column
from pyspark.sql import functions as F

from router import Rule

if TYPE_CHECKING:
    from typing_extensions import Self


class Schema(Rule):
    """Match events by the schema they were written with: its subject in the registry, its record name, or both.

    Reads the columns `subject` and `message`, which the decoders that work with a schema registry add beside `event`.
    With a decoder that does not add them `router check --plan` reports the missing column.
    """

    subject: str | None = Field(default=None, min_length=1, description="subject in the registry, such as games-value")
    name: str | None = Field(
        default=None, min_length=1, description="full name of the message or record, such as acme.games.Bet"
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.subject is None and self.name is None:
            raise ValueError("give `subject`, `name` or both")
        return self

    def matches(self) -> Column:
        """Return whether every given name is the event's."""
        given = {"subject": self.subject, "message": self.name}
        return reduce(operator.and_, [F.col(column) == name for column, name in given.items() if name is not None])
