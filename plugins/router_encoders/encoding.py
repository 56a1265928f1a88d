"""Say how rows become bytes: what the driver makes of them, and what tasks make of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Encoded:
    """Hold a value for each row, and why rows have none; such a row has None."""

    values: list[bytes | None]
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoding:
    """Be how the rows of certain columns are encoded.

    `column(names)` makes, of the rows of a lane, the one column that tasks get; `function(array, argument)` is a
    module-level function that takes it, a record batch at a time. It must not raise on any row, and decides on a row
    without looking at its neighbours. `argument` is plain data that travels to the tasks. `what` says it in short.
    """

    column: Callable[[Iterable[str]], Column]
    function: Callable[[pa.Array, Any], Encoded]
    argument: Any
    what: str


@dataclass(frozen=True)
class Place:
    """Say where an encoding is for: the configuration's folder, and the subject of a schema that names none."""

    folder: Path = Path()
    subject: str | None = None


class Encoder(BaseModel, ABC):
    """Be the options of one format."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @abstractmethod
    def open(self, columns: StructType, place: Place) -> Encoding:
        """Return how rows of these columns are encoded. Runs on the driver, once for every set of columns.

        Raises StartError, naming the field, where the columns do not go with the schema or the format, and
        ConnectionError where a schema registry cannot be asked now.
        """


def row(names: Iterable[str]) -> Column:
    """Return columns as one struct, whatever characters their names have."""
    return F.struct(*[F.col(f"`{name.replace('`', '``')}`") for name in names])


def encoded(array: pa.Array, write: Callable[[pa.Array], list[bytes]]) -> Encoded:
    """Write the rows of an array; find those that cannot be written by halves, so that each is judged by itself."""
    try:
        return Encoded([*write(array)])
    except ValueError as error:
        if len(array) <= 1:
            return Encoded([None] * len(array), dict.fromkeys(range(len(array)), str(error)))
    half = len(array) // 2
    left, right = encoded(array[:half], write), encoded(array[half:], write)
    reasons = {at + half: reason for at, reason in right.reasons.items()}
    return Encoded(left.values + right.values, left.reasons | reasons)
