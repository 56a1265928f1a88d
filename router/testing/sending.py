"""Check that applying sinks and encoders keep their contracts: call these in the tests of a plugin.

>>> def test_pigeons(spark, tmp_path):                                                    # doctest: +SKIP
...     rows = spark.createDataFrame([("uno", 1), ("ä", None)], "game string, n int")
...     check_applying_sink(Pigeons(loft=str(tmp_path)), rows)

They run on the driver with a local Spark session and raise AssertionError saying which promise is broken.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import types as T

from router.sinks import Batch, Opening

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.parts import Encoder
    from router.sinks import ApplyingSink

COORDINATES = "_topic string, _partition int, _offset bigint, _timestamp timestamp, _key binary"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
HERE = Path()


def check_applying_sink(sink: ApplyingSink, rows: DataFrame, folder: Path = HERE) -> None:
    """Hold an applying sink to its contract, against whatever it sends to; `rows` have the columns of a route.

    It makes itself ready with an empty frame, counts every row of a batch once, as applied or as refused with a
    reason, gives refused rows back whole, and takes a batch that was cut off again, and an empty one.
    """
    events = _in_outbox(rows)
    expected = {row["_offset"]: row for row in events.collect()}
    ready = sink.prepare(Opening(folder, events.limit(0)))
    for replay in (False, True):
        outcome = ready.apply(events, Batch("contract", 0, "route", "sink", replay))
        refused = [] if outcome.refused is None else outcome.refused.select(*events.columns, "reason").collect()
        counts = f"{outcome.applied} rows are applied and {len(refused)} refused, of {len(expected)}"
        _require(outcome.applied + len(refused) == len(expected), counts)
        _require(len({row["_offset"] for row in refused}) == len(refused), "a row is refused twice")
        for row in refused:
            _require(row[:-1] == expected.get(row["_offset"]), f"a refused row is none of the batch: {row}")
            _require(bool(row["reason"]), f"a row is refused without a reason: {row}")
    empty = ready.apply(events.limit(0), Batch("contract", 1, "route", "sink")).applied
    _require(empty == 0, f"of an empty batch {empty} rows are applied")


def check_encoder(encoder: Encoder, rows: DataFrame, folder: Path = HERE, subject: str | None = None) -> None:
    """Hold an encoder to its contract, on rows of any kind that it can meet; they have the columns of a route.

    Its encoding travels, gives every row a value or a reason, raises on none, and decides on a row without looking at
    its neighbours.
    """
    opened = encoder.open(rows.schema, folder, subject)
    encoding = cloudpickle.loads(cloudpickle.dumps(opened))  # type: ignore[no-untyped-call]
    made = _in_outbox(rows).orderBy("_offset").select(encoding.column(rows.columns).alias("row"))
    array = made.toArrow().column("row").combine_chunks()
    try:
        whole = encoding.function(array, encoding.argument)
        single = [encoding.function(array[at : at + 1], encoding.argument) for at in range(len(array))]
    except Exception as error:
        raise AssertionError(f"the encoder raises on a row: {error}") from error
    _require(len(whole.values) == len(array), f"{len(array)} rows went in and {len(whole.values)} values came out")
    for at, (value, alone) in enumerate(zip(whole.values, single, strict=True)):
        reason = whole.reasons.get(at)
        _require((value is None) == bool(reason), f"row {at} has the value {value!r} and the reason {reason!r}")
        same = [value] == alone.values and reason == alone.reasons.get(0)
        _require(same, f"row {at} is encoded to something else among its neighbours")


def _in_outbox(rows: DataFrame) -> DataFrame:
    """Return rows of a route as they are in an outbox, from one partition of a topic."""
    placed: list[tuple[Any, ...]] = [
        ("contract", 0, offset, NOON, b"key", *row) for offset, row in enumerate(rows.collect())
    ]
    coordinates = T.StructType.fromDDL(COORDINATES)
    assert isinstance(coordinates, T.StructType)
    return rows.sparkSession.createDataFrame(placed, T.StructType([*coordinates.fields, *rows.schema.fields]))


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)
