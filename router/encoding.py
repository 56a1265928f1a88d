"""What an encoder implements: rows of a route become bytes, for sinks that send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from router.parts import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Encoded:
    """A value for each row; a row without one has None, and the reason stands under its position."""

    values: list[bytes | None]
    reasons: dict[int, str] = field(default_factory=dict)


def row(names: Iterable[str]) -> Column:
    """Return columns as one struct, whatever characters their names have."""
    return F.struct(*[F.col(f"`{name.replace('`', '``')}`") for name in names])


@dataclass(frozen=True)
class Encoding:
    """The way in which rows of certain columns are encoded; travels to tasks.

    `function(array, argument)` is a module-level function: it takes what `column` makes of the rows, a record batch at
    a time, and returns as many values. It must not raise on any row, and decides on a row without looking at its
    neighbours. `column(names)` makes the one column that it takes of the route's columns; a struct of them by default.
    `what` describes the values in a few words.
    """

    function: Callable[[pa.Array, Any], Encoded]
    argument: Any
    what: str
    column: Callable[[Iterable[str]], Column] = row


class Encoder(Part, ABC):
    """A way to turn rows of a route into bytes: an option of sinks that send."""

    kind = "encoder"

    @abstractmethod
    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows of these columns are encoded. Runs on the driver, once for every set of columns.

        `folder` is the configuration's, `subject` the one for a schema that names none; with `trial` nothing may be
        registered. Raises StartError, naming the field, where the columns do not go with the schema or the format, and
        an OSError where a schema registry cannot be asked now.
        """
