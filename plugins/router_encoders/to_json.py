"""Encode rows as JSON, with Spark's own expressions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from pyspark.sql import functions as F

from router import Encoded, Encoder, Encoding, row, tried

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
OPTIONS = {"timeZone": "UTC", "timestampFormat": f"{_FORMAT}XXX", "timestampNTZFormat": _FORMAT}
"""Spark's own formats end at milliseconds."""


class ToJson(Encoder):
    """Encode a row as a JSON object in UTF-8.

    Times are ISO 8601 in UTC with microseconds, dates ISO 8601, binary is base64, decimals are plain numbers. NaN and
    the infinities, which JSON does not have, are the strings "NaN", "Infinity" and "-Infinity".
    """

    nulls: Literal["omit", "keep"] = Field(
        default="omit", description="`keep`: a field that is null is written as null"
    )

    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows are encoded; any columns are."""
        options = {**OPTIONS, "ignoreNullFields": "true" if self.nulls == "omit" else "false"}
        return Encoding(as_it_is, None, "JSON", partial(_text, options=options))


def _text(names: Iterable[str], options: dict[str, str]) -> Column:
    written = F.to_json(row(names), options).cast("binary")
    return tried(F.when(F.col("_offset") >= 0, written))  # always so, which no optimiser knows: see `tried`


def as_it_is(array: pa.Array, argument: None) -> Encoded:
    """Return texts that are made already. Runs on executors."""
    values = array.to_pylist()
    return Encoded(values, {at: "it cannot be written as JSON" for at, value in enumerate(values) if value is None})
