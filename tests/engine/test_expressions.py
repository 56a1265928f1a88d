"""Spark's expressions on Arrow: the same value for every row, or a clear no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from router.engine.label.expressions import Untranslatable, evaluate, translate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INFINITY = float("nan"), float("inf")
ROWS = pa.table(
    {
        "event": pa.array(
            [
                {"a": 1, "b": 2, "d": 0.5, "t": "uno", "u": "uno", "y": True, "in": {"x": 7}},
                {"a": 2, "b": 2, "d": NAN, "t": "", "u": None, "y": False, "in": {"x": None}},
                {"a": -(2**31), "b": 2**53 + 1, "d": -0.0, "t": "Ünö", "u": "n", "y": None, "in": None},
                {"a": None, "b": None, "d": None, "t": None, "u": "b", "y": True, "in": None},
                {"a": 9, "b": -1, "d": INFINITY, "t": "\U0001f600", "u": "\uffff", "y": False, "in": {"x": -1}},
                {"a": 0, "b": 0, "d": 0.0, "t": "uno\0", "u": "uno", "y": True, "in": {"x": 0}},
                None,
            ],
            pa.struct(
                [
                    *[("a", pa.int32()), ("b", pa.int64()), ("d", pa.float64()), ("t", pa.string())],
                    *[("u", pa.string()), ("y", pa.bool_()), ("in", pa.struct([("x", pa.int16())]))],
                ]
            ),
        ),
        "offset": pa.array(range(7), pa.int64()),
    }
)
SAME = [
    *["event.a > 1", "event.a >= event.b", "event.b = 9007199254740993", "event.a < event.d", "event.d <= 0.5"],
    *["event.d = event.d", "event.d > 1e300", "event.d >= 0", "event.d <=> event.d", "event.d = 0"],
    *["event.a > 1.5BD", "event.b > 1.5"],
    *["event.t = 'uno'", "event.t < event.u", "event.t >= event.u", "event.t <=> event.u", "event.t != 'uno'"],
    *["event.t IN ('uno', '')", "event.a IN (1, 9)", "event.a NOT IN (1, 9)", "event.t IS NULL", "event IS NOT NULL"],
    *["event.in.x > 0", "event.in.x IS NULL", "NOT event.y", "event.y AND event.a > 1", "event.y OR event.a > 1"],
    *["event.y = true", "event.y", "startswith(event.t, 'un')", "endswith(event.t, 'o')", "contains(event.t, 'n')"],
    *["concat('silver.', event.t)", "concat(event.t, '_', event.a, event.y)", "coalesce(event.t, event.u, 'none')"],
    *["if(event.a > 1, event.t, event.u)", "CASE WHEN event.a > 1 THEN 'more' WHEN event.y THEN 'yes' END"],
    *["CASE WHEN event.a > 1 THEN 1 ELSE 0 END", "nvl(event.a, 5)", "cast(event.b AS string)", "null", "'uno'"],
    *["cast(event.a AS double)", "event.in", "event.a", "offset", "event.a BETWEEN 0 AND 3", "event.a = null"],
]
OTHER = [
    *[
        "event.a + 1",
        "event.t LIKE 'u%'",
        "event.t RLIKE 'u.*'",
        "upper(event.t)",
        "cast(event.t AS int)",
        "rand() > 0",
    ],
    *["cast(event.d AS string)", "event.t IN ('uno', null)", "startswith(event.t, event.u)"],
    *["startswith(event.t, null)", "current_timestamp() IS NOT NULL", "event.y > false", "event.in = event.in"],
]


def shown(values: list[Any]) -> list[str]:
    """Return values so that NaN equals NaN, and zero minus zero."""
    return [repr(value + 0.0 if isinstance(value, float) else value) for value in values]


@pytest.mark.parametrize("text", SAME)
def test_a_translated_expression_has_the_value_that_spark_gives_it(spark: SparkSession, text: str) -> None:
    """Without it a rule matches other rows when decoding and landing are one stage."""
    frame = spark.createDataFrame(ROWS)
    expected = frame.select(F.expr(text).alias("value")).toArrow().column("value").to_pylist()

    (node,) = translate(frame, [F.expr(text)])
    columns = {name: ROWS.column(name).combine_chunks() for name in ROWS.column_names}
    found, _ = evaluate(node, columns, len(ROWS))

    found.validate(full=True)
    assert shown(found.to_pylist()) == shown(expected)


@pytest.mark.parametrize("text", OTHER)
def test_what_has_no_twin_is_left_to_spark(spark: SparkSession, text: str) -> None:
    """Without it a value is nearly the same, or a row raises and takes its batch along."""
    with pytest.raises(Untranslatable):
        translate(spark.createDataFrame(ROWS), [F.expr(text)])
