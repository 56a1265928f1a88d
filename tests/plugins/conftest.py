"""What the tests of the built-in parts share: decoding bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from router import RAW_SCHEMA, Decoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Raw = Callable[[Sequence["bytes | None"]], "DataFrame"]
Decode = Callable[[Decoder, Sequence["bytes | None"]], list[tuple[Any, "str | None"]]]


@pytest.fixture
def raw(spark: SparkSession) -> Raw:
    """Make raw records of values; the offset counts them."""

    def raw(values: Sequence[bytes | None]) -> DataFrame:
        rows: list[Any] = [(None, value, "topic", 0, offset, None, 0, None) for offset, value in enumerate(values)]
        return spark.createDataFrame(rows, RAW_SCHEMA)

    return raw


@pytest.fixture
def decode(raw: Raw) -> Decode:
    """Decode values in one Spark job; an event is a dict, in which a time is an aware datetime in UTC."""

    def decode(decoder: Decoder, values: Sequence[bytes | None]) -> list[tuple[Any, str | None]]:
        rows = decoder.decode(raw(values)).select("offset", "event", "_error").toArrow().to_pylist()
        return [(row["event"], row["_error"]) for row in sorted(rows, key=lambda row: row["offset"])]

    return decode
