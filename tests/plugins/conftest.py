"""What the tests of the built-in parts share: decoding bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from router import RAW_SCHEMA, Decoder, Preparation
from tests.schemas.folder_memory import FolderMemory

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Raw = Callable[[Sequence["bytes | None"]], "DataFrame"]
Decode = Callable[[Decoder, Sequence["bytes | None"]], list[tuple[Any, "str | None"]]]
Headers = Sequence["Mapping[str, bytes] | None"]
Open = Callable[[Decoder], Decoder]
Stream = Callable[..., list[dict[str, Any]]]


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


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Prepare a decoder as the start of a stream does; there is nothing to sample."""

    def no_sample(rows: int) -> DataFrame:
        raise AssertionError("the source was read")

    return lambda decoder: decoder.prepare(Preparation(tmp_path, False, no_sample, FolderMemory(tmp_path / "memory")))


@pytest.fixture
def stream(spark: SparkSession) -> Stream:
    """Decode values as a stream does: what is wanted is fetched, and if some is found, all are decoded anew."""

    def stream(decoder: Decoder, values: Sequence[bytes | None], headers: Headers = ()) -> list[dict[str, Any]]:
        given = [*headers, *[None] * (len(values) - len(headers))]
        rows: list[Any] = [
            (None, value, "topic", 0, offset, None, 0, header and [*header.items()])
            for offset, (value, header) in enumerate(zip(values, given, strict=True))
        ]
        raw, wanted = spark.createDataFrame(rows, RAW_SCHEMA), frozenset[str]()
        for _ in range(4):
            before, decoder = decoder, decoder.refresh(wanted)
            if wanted and decoder is before:
                break  # nothing was found: rows keep their errors
            found = decoder.decode(raw).toArrow().to_pylist()
            wanted = frozenset(row["_wanted"] for row in found if row["_wanted"])
            if not wanted:
                break
        assert [row["value"] for row in sorted(found, key=lambda row: row["offset"])] == list(values)
        return sorted(found, key=lambda row: int(row["offset"]))

    return stream
