"""Rows written as JSON are read by any JSON parser as what they were; who breaks the contract of encoders is told."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from router import Encoded, Encoder, Encoding
from router.testing import check_encoder
from router_encoders import ToJson

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DDL = """
    text string, `größe in m` double, n bigint, money decimal(38,10), at timestamp, local timestamp_ntz, day date,
    raw binary, flag boolean, s struct<a: int, b: array<string>>, m map<string,double>
"""
FULL = (
    *('ä"\\\n\x00🂡', float("nan"), 2**53 + 1, Decimal("9999999999999999999999999999.0123456789")),
    *(
        datetime(1969, 12, 31, 23, 59, 59, 999999, timezone.utc),
        datetime.fromisoformat("9999-12-31T23:59:00"),
    ),
    *(date(1, 1, 1), b"\x00\xff", False, (1, ["x", None]), {"": float("inf")}),
)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows with everything, and with nothing."""
    return spark.createDataFrame([FULL, (None,) * len(FULL), ("", 0.1, *(None,) * (len(FULL) - 2))], DDL)


def texts(encoder: Encoder, rows: DataFrame) -> list[Any]:
    encoding = encoder.open(rows.schema, Path())
    made = rows.withColumn("_offset", F.lit(0)).select(encoding.column(rows.columns)).toArrow().column(0)
    values = encoding.encode(made.combine_chunks()).values
    return [json.loads(value or b"", parse_float=Decimal, parse_constant=pytest.fail) for value in values]


def test_json_keeps_the_contract(rows: DataFrame) -> None:
    """Without it one row stops the stream, or changes with its neighbours."""
    check_encoder(rows.sparkSession, ToJson(), rows)


def test_values_are_read_as_they_were(rows: DataFrame) -> None:
    """Without it digits, microseconds or bytes are lost on the way."""
    full, empty, short = texts(ToJson(), rows)

    assert full == {
        "text": 'ä"\\\n\x00🂡',
        "größe in m": "NaN",
        "n": 2**53 + 1,
        "money": Decimal("9999999999999999999999999999.0123456789"),
        "at": "1969-12-31T23:59:59.999999Z",
        "local": "9999-12-31T23:59:00.000000",
        "day": "0001-01-01",
        "raw": "AP8=",
        "flag": False,
        "s": {"a": 1, "b": ["x", None]},
        "m": {"": "Infinity"},
    }
    assert empty == {}
    assert short == {"text": "", "größe in m": Decimal("0.1")}


def test_nulls_are_kept_where_asked_for(rows: DataFrame) -> None:
    """Without it a reader with required fields fails."""
    assert texts(ToJson(nulls="keep"), rows)[1] == dict.fromkeys(rows.columns)


def raising(array: pa.Array, argument: None) -> Encoded:
    raise KeyError("no")


def short_by_one(array: pa.Array, argument: None) -> Encoded:
    return Encoded([b"x"] * (len(array) - 1))


def reasonless(array: pa.Array, argument: None) -> Encoded:
    return Encoded([None] * len(array))


def nosy(array: pa.Array, argument: None) -> Encoded:
    return Encoded([b"%d" % len(array)] * len(array))


class Broken(Encoder):
    """Break the contract of encoders in one way."""

    function: Any

    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return what a careless encoder would."""
        return Encoding(self.function, None, "nothing")


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (raising, "row 0: the encoder raises KeyError: 'no'"),
        (short_by_one, "3 rows went in and 2 values came out"),
        (reasonless, "row 0 has the value None and the reason None"),
        (nosy, "something else among its neighbours"),
    ],
)
def test_a_broken_encoder_is_told_what_it_breaks(rows: DataFrame, function: Callable[..., Encoded], what: str) -> None:
    """Without it the author of a plugin finds it out in production."""
    with pytest.raises(AssertionError, match=what):
        check_encoder(rows.sparkSession, Broken(function=function), rows)
