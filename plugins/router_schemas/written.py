"""Say what is known of the records that one frame names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as T

if TYPE_CHECKING:
    from router_schemas.origin import Origin

Taken = Mapping[str, tuple[T.DataType, str]]
"""Field of the event -> the type that it has in records of another format, and what brought it."""


@dataclass(frozen=True)
class Written:
    """Be what is known of the values of one frame; `reason` says why they cannot be read."""

    schema_id: int | None = None
    schema_version: int | None = None
    subject: str | None = None
    message: str | None = None
    reason: str | None = None

    @staticmethod
    def of(origin: Origin, message: str | None, reason: str | None = None) -> Written:
        """Return what is known of the values that a schema wrote."""
        return Written(origin.id, origin.version, origin.subject, message, reason)


def check_free(event: T.StructType, taken: Taken) -> None:
    """Raise ValueError for a field that has another type in records of another format."""
    for one in event:
        kind, other = taken.get(one.name, (one.dataType, ""))
        if kind.simpleString() != one.dataType.simpleString():
            types = f"{one.dataType.simpleString()}, and {kind.simpleString()} in {other}"
            raise ValueError(f"its field {one.name} is {types}; no column holds both")
