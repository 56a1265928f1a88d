"""The rows that wait in an outbox, as Spark's own expressions: the route's columns, their JSON, the bytes of a key.

Sinks that encode rows and send them share this module. It runs on the driver, except for `as_it_is`.
"""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router import Encoded, Encoder, Encoding, StartError, row, tried

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

COORDINATES = ("_topic", "_partition", "_offset", "_timestamp", "_key")
"""The columns of an outbox that are not the route's."""
PLACE = COORDINATES[:3]
"""Where a record came from; no two rows of an outbox have the same."""
BATCH_BYTES_OPTION = "spark.sql.execution.arrow.maxBytesPerBatch"
BOUNDED_BYTES = str(32 << 20)
"""Bytes of an Arrow batch: the router leaves it open, for rows that are small."""


def own_columns(events: DataFrame, without: Iterable[str] = ()) -> T.StructType:
    """Return the route's columns of an outbox; raise StartError if it lacks one of `without`, or has no other."""
    unknown = sorted({*without} - {*events.columns})
    if unknown:
        raise StartError(f"`without` has {', '.join(unknown)}, and the route has no such columns")
    left_out = {*COORDINATES, *without}
    columns = T.StructType()
    for column in events.schema:
        if column.name not in left_out:
            columns.add(column.name, column.dataType)
    if not columns.fields:
        raise StartError("the value would have no columns; take one out of `without`")
    return columns


def with_event(events: DataFrame) -> DataFrame:
    """Return the rows of an outbox with a column `event` of the route's columns, unless the route has one itself."""
    names = own_columns(events).fieldNames()
    if "event" in names:
        return events
    return events.withColumn("event", row(names))


def order_key(seen: DataFrame, key: str | None, what: str = "key") -> Column:
    """Return the key by which rows keep their order, as bytes: SQL over the route's columns; None: no order.

    Null in a row without a key. Raises StartError, which names the option `what`, for SQL that is wrong.
    """
    if key is None:
        return F.lit(None).cast("binary")
    column = as_bytes(F.expr(key), type_of(seen, key, what), what)
    return tried(F.when(F.col("_offset") >= 0, column))  # always true, which no optimiser knows: see `tried`


def type_of(seen: DataFrame, sql: str, what: str) -> T.DataType:
    """Return the type of SQL over the route's columns; raise StartError, which names the option, if it is wrong."""
    try:
        return seen.select(F.expr(sql)).schema.fields[0].dataType
    except (AnalysisException, ParseException) as error:
        raise StartError(f"{what}: {str(error).strip().splitlines()[0]}") from None


def as_bytes(column: Column, kind: T.DataType, what: str) -> Column:
    """Return a column as bytes, all but binary by its text; raise StartError for one that is not one value."""
    if isinstance(kind, (T.StructType, T.ArrayType, T.MapType)):
        raise StartError(
            f"{what}: it is {kind.simpleString()[:100]}, not one value; use a field of it, or to_json(...)"
        )
    if isinstance(kind, T.BinaryType):
        return column
    return column.cast("string").cast("binary")


def show_value(value: bytes) -> Any:
    """Return the value of JSON, for previews; other bytes as text, or in base64 if they are no text."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> None:
    """Raise for NaN and the infinities, which JSON does not have."""
    raise ValueError(name)


@contextmanager
def bounded_batches(spark: SparkSession) -> Iterator[None]:
    """Let tasks get rows in Arrow batches of bounded bytes."""
    before: Any = spark.conf.get(BATCH_BYTES_OPTION)
    spark.conf.set(BATCH_BYTES_OPTION, BOUNDED_BYTES)
    try:
        yield
    finally:
        spark.conf.set(BATCH_BYTES_OPTION, before)


_TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
OPTIONS = {"timeZone": "UTC", "timestampFormat": f"{_TIME_FORMAT}XXX", "timestampNTZFormat": _TIME_FORMAT}
"""Spark's own formats end at milliseconds."""


class ToJson(Encoder):
    """Encode a row as a JSON object in UTF-8.

    Times are ISO 8601 in UTC with microseconds, dates ISO 8601, binary is base64, decimals are plain numbers. NaN and
    the infinities, which JSON does not have, are the strings "NaN", "Infinity" and "-Infinity".
    """

    nulls: Literal["omit", "keep"] = Field(
        default="omit", description="`keep`: a field that is null is written as null"
    )

    def open(self, columns: T.StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows are encoded; any columns are."""
        options = {**OPTIONS, "ignoreNullFields": "true" if self.nulls == "omit" else "false"}
        return Encoding(as_it_is, None, "JSON", partial(_text_column, options=options))


def _text_column(names: Iterable[str], options: dict[str, str]) -> Column:
    json_bytes = F.to_json(row(names), options).cast("binary")
    return tried(F.when(F.col("_offset") >= 0, json_bytes))  # always true, which no optimiser knows: see `tried`


def as_it_is(array: pa.Array, argument: None) -> Encoded:
    """Return values that Spark has encoded already. Runs on executors."""
    values = array.to_pylist()
    reasons = {place: "it cannot be written as JSON" for place, value in enumerate(values) if value is None}
    return Encoded(values, reasons)
