"""Check that parts keep their contracts: call these in the tests of a plugin.

>>> def test_region(spark):                                                               # doctest: +SKIP
...     events = spark.createDataFrame([(("eu",),), ((None,),)], "event struct<region: string>")
...     check_rule(spark, Region(code="eu"), events)
>>> def test_pigeons(spark, tmp_path):                                                    # doctest: +SKIP
...     rows = spark.createDataFrame([("uno", 1), ("ä", None)], "game string, n int")
...     check_applying_sink(spark, Pigeons(loft=str(tmp_path)), rows)

They run on the driver with a local Spark session, contain the garbage to check with, and raise AssertionError with the
promise that is broken.
"""

from __future__ import annotations

import random
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.api.columns import holds_where
from router.api.decoding import DECODER_RAISES
from router.api.parts import ENCODER_RAISES
from router.api.sinks import Batch, Opening
from router.record import RAW_SCHEMA
from router.table_names import is_usable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from router.api.parts import Decoder, Encoder, Rule
    from router.api.sinks import ApplyingSink, TableSink

COORDINATES_OF_OUTBOX = "_topic string, _partition int, _offset bigint, _timestamp timestamp, _key binary"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
WORKING_FOLDER = Path()
ADDED = {"event", "_error"}
OPTIONAL = {"_wanted", "_unknown", "schema_id", "schema_version", "subject", "message"}
"""Columns that a decoder with schemas may add as well."""
SHOWN_BYTES = 60

_random = random.Random(7)

GARBAGE: tuple[bytes | None, ...] = (
    None,
    b"",
    b" \r\n\t",
    b"\x00",
    b"\x00\x00\x00\x00\x07",  # the frame of a schema registry without a payload
    b"\xff\xfe\xfd",
    b"\xc3(",
    b"\xed\xa0\x80",  # half of a surrogate pair in UTF-8
    b"\xef\xbb\xbf{}",
    "{}".encode("utf-16"),
    b"null",
    b"true",
    b"-",
    b"1e999999999",
    b'"',
    b"[",
    b"[]",
    b"{",
    b"{}}",
    b"{}{}",
    b'{"":null}',
    b"{'a':1}",
    b'{"a":1,"a":2}',
    b'{"a":NaN,"b":Infinity,"c":1e400}',
    b'{"a":"\\ud800"}',
    b'{"a":' * 1001 + b"1" + b"}" * 1001,
    b"[" * 100_000,
    b"9" * 100_000,
    b"x" * 5_000_000,
    *(_random.randbytes(size) for size in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 1000)),
)
"""Values that arrive on any topic some day."""


def check_decoder(spark: SparkSession, decoder: Decoder, good_values: Sequence[bytes]) -> None:
    """Check the contract of a prepared decoder, with garbage between values that it must decode.

    It keeps every row and the raw columns, adds `event` and `_error` of which at most one has a value, makes an event
    of every good value, never raises, and decides on a record without looking at its neighbours. If it has a
    `decoding()`, that adds the same columns.
    """
    values = [*GARBAGE, *good_values]
    _check_decoding(spark, decoder)
    rows = _decode_values(spark, decoder, values)
    for good_value, row in zip(good_values, rows[len(GARBAGE) :], strict=True):
        _require(row["event"] is not None, f"{good_value[:200]!r} is good and has no event: {row['_error']}")
    # In the other order each record has other neighbours before and after it.
    rows_of_reversed = _decode_values(spark, decoder, values[::-1])[::-1]
    for value, row, other_row in zip(values, rows, rows_of_reversed, strict=True):
        is_same = all(row[name] == other_row[name] for name in ADDED)
        # NaN is not equal to itself.
        has_nan = "nan" in repr(row["event"])
        _require(is_same or has_nan, f"{_shorten_value(value)} is decoded to something else among other neighbours")


def check_rule(spark: SparkSession, rule: Rule, events: DataFrame) -> None:
    """Check the contract of a rule, on events of any kind that it may get.

    `events` has the column `event`; raw columns that it lacks are null. `matches()` is a boolean column and has the
    same value for a row each time. As in a stream, a row on which it raises does not match, and it is not asked about
    records without an event.
    """
    frame = _with_raw_columns(events)
    _check_type(frame.select(F.lit(rule.matches()).alias("result")), T.BooleanType(), "matches()")
    is_event = F.col("event").isNotNull()
    _evaluate_column(frame, lambda: holds_where(is_event, rule.matches()), T.BooleanType(), "matches()")


def check_table_sink(spark: SparkSession, sink: TableSink, events: DataFrame) -> None:
    """Check the contract of a table sink, on events of any kind that it may get.

    `events` has the column `event`; raw columns that it lacks are null. `table()` is a usable `layer.table`, or a
    string column that raises on no row, not even on a record without an event, and has the same value for a row each
    time.
    """
    table = sink.table()
    if isinstance(table, str):
        _require(is_usable_name(table), f"table() returns {table!r}, which breaks the naming rule")
        return
    frame = _with_empty_record(spark, _with_raw_columns(events))
    _evaluate_column(frame, sink.table, T.StringType(), "table()")


def check_applying_sink(
    spark: SparkSession, sink: ApplyingSink, rows: DataFrame, folder: Path = WORKING_FOLDER
) -> None:
    """Check the contract of an applying sink, with the service that it sends to; `rows` have the columns of a route.

    It prepares itself with an empty frame, counts every row of a batch once, as applied or as refused with a reason,
    returns refused rows unchanged, and accepts an interrupted batch a second time, and an empty one.
    """
    events = _in_outbox(spark, rows)
    expected = {row["_offset"]: row for row in events.collect()}
    ready = sink.prepare(Opening(folder, events.limit(0)))
    for replay in (False, True):
        outcome = ready.apply(events, Batch("contract", 0, "route", "sink", replay))
        refused = []
        if outcome.refused is not None:
            refused = outcome.refused.select(*events.columns, "reason").collect()
        counts = f"{outcome.applied} rows are applied and {len(refused)} refused, of {len(expected)}"
        _require(outcome.applied + len(refused) == len(expected), counts)
        _require(len({row["_offset"] for row in refused}) == len(refused), "a row is refused twice")
        for row in refused:
            without_reason = row[:-1]
            _require(without_reason == expected.get(row["_offset"]), f"a refused row is none of the batch: {row}")
            _require(bool(row["reason"]), f"a row is refused without a reason: {row}")
    empty = ready.apply(events.limit(0), Batch("contract", 1, "route", "sink")).applied
    _require(empty == 0, f"of an empty batch {empty} rows are applied")


def check_encoder(
    spark: SparkSession, encoder: Encoder, rows: DataFrame, folder: Path = WORKING_FOLDER, subject: str | None = None
) -> None:
    """Check the contract of an encoder, on rows of any kind that it may get; they have the columns of a route.

    Its encoding can be pickled, gives every row a value or a reason, raises nothing but ValueError, and decides on a
    row without looking at its neighbours.
    """
    opened = encoder.open(rows.schema, folder, subject)
    encoding = cloudpickle.loads(cloudpickle.dumps(opened))  # type: ignore[no-untyped-call]
    selected = _in_outbox(spark, rows).orderBy("_offset").select(encoding.column(rows.columns).alias("row"))
    array = selected.toArrow().column("row").combine_chunks()
    together = encoding.encode(array)
    alone = [encoding.encode(array[index : index + 1]) for index in range(len(array))]
    _require(
        len(together.values) == len(array), f"{len(array)} rows went in and {len(together.values)} values came out"
    )
    for index, (value, encoded_alone) in enumerate(zip(together.values, alone, strict=True)):
        reason = together.reasons.get(index)
        _require(ENCODER_RAISES not in (reason or ""), f"row {index}: {reason}")
        _require((value is None) == bool(reason), f"row {index} has the value {value!r} and the reason {reason!r}")
        is_same = [value] == encoded_alone.values and reason == encoded_alone.reasons.get(0)
        _require(is_same, f"row {index} is encoded to something else among its neighbours")


def _decode_values(spark: SparkSession, decoder: Decoder, values: Sequence[bytes | None]) -> list[dict[str, Any]]:
    """Return the decoded rows in the order of the values, after the checks that need one run only."""
    records: list[tuple[Any, ...]] = []
    for offset, value in enumerate(values):
        records.append((b"k", value, "topic", 0, offset, None, 0, []))
    raw = spark.createDataFrame(records, RAW_SCHEMA).repartition(2)
    decoded = decoder.decode(raw)
    _check_columns(raw, decoded)
    try:
        rows = sorted(decoded.toArrow().to_pylist(), key=lambda row: row["offset"])
    except Exception as error:
        raise AssertionError(f"the decoder raises on a record: {error}") from error
    _require(len(rows) == len(values), f"{len(values)} records went in and {len(rows)} came out")
    for offset, (value, row) in enumerate(zip(values, rows, strict=True)):
        _check_row(offset, value, row)
    return rows


def _check_columns(raw: DataFrame, decoded: DataFrame) -> None:
    lost = set(raw.columns) - set(decoded.columns)
    added = set(decoded.columns) - set(raw.columns)
    _require(not lost, f"the raw columns {sorted(lost)} are lost")
    _require(added >= ADDED, f"the columns {sorted(ADDED - added)} are not added")
    _require(added <= ADDED | OPTIONAL, f"the columns {sorted(added - ADDED - OPTIONAL)} are left over")
    event = decoded.schema["event"]
    error = decoded.schema["_error"]
    _require(isinstance(event.dataType, T.StructType), f"event is a {event.dataType.simpleString()}, not a struct")
    _require(event.nullable, "event cannot be null")
    _require(isinstance(error.dataType, T.StringType), f"_error is a {error.dataType.simpleString()}, not a string")


def _check_decoding(spark: SparkSession, decoder: Decoder) -> None:
    """Require that tasks add the columns that `decode` adds, and that native columns before them keep the raw ones."""
    decoding = decoder.decoding()
    if decoding is None:
        return
    raw = spark.createDataFrame([], RAW_SCHEMA)
    added = [name for name in decoder.decode(raw).columns if name not in raw.columns]
    names = decoding.adds.fieldNames()
    _require(sorted(names) == sorted(added), f"decoding() adds {', '.join(names)}, and decode() {', '.join(added)}")
    if decoding.before:
        columns = decoding.before(raw).columns
        _require(set(raw.columns) <= set(columns), f"before() loses {sorted(set(raw.columns) - set(columns))}")
        wrong_names = [name for name in columns if name not in raw.columns and not name.startswith("_")]
        _require(not wrong_names, f"the columns {wrong_names} of before() do not begin with _")


def _check_row(offset: int, value: bytes | None, row: dict[str, Any]) -> None:
    record = f"record {offset} ({_shorten_value(value)})"
    raw = {"key": b"k", "value": value, "topic": "topic", "offset": offset}
    _require(raw.items() <= row.items(), f"{record}: the raw columns are changed")
    _require(row["event"] is None or row["_error"] is None, f"{record} has an event and an error: {row['_error']}")
    _require(row["_error"] != "", f"{record}: the error has no text")
    _require(DECODER_RAISES not in (row["_error"] or ""), f"{record}: {row['_error']}")


def _in_outbox(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Return rows of a route as they are in an outbox, from one partition of a topic."""
    placed: list[tuple[Any, ...]] = []
    for offset, row in enumerate(rows.collect()):
        placed.append(("contract", 0, offset, NOON, b"key", *row))
    coordinates = T.StructType.fromDDL(COORDINATES_OF_OUTBOX)
    assert isinstance(coordinates, T.StructType)
    return spark.createDataFrame(placed, T.StructType([*coordinates.fields, *rows.schema.fields]))


def _evaluate_column(frame: DataFrame, make: Callable[[], str | Column], kind: T.DataType, what: str) -> list[Any]:
    """Return the values of a column; check its type, that it raises nowhere, and that it repeats its values."""
    # Made and analysed twice: Spark fixes the seed of a random function when it analyses the frame.
    first = frame.select(F.lit(make()).alias("result"))
    second = frame.select(F.lit(make()).alias("result"))
    _check_type(first, kind, what)
    try:
        values = [row["result"] for row in first.collect()]
        values_again = [row["result"] for row in second.collect()]
    except Exception as error:
        raise AssertionError(f"{what} raises on a row: {error}") from error
    _require(values == values_again, f"{what} has another value for the same row the second time")
    return values


def _check_type(frame: DataFrame, kind: T.DataType, what: str) -> None:
    result_type = frame.schema["result"].dataType
    is_kind = isinstance(result_type, type(kind))
    _require(is_kind, f"{what} is a {result_type.simpleString()}, not a {kind.simpleString()}")


def _with_raw_columns(events: DataFrame) -> DataFrame:
    """Return events with the raw columns that they lack, which are null."""
    raw_columns = T.StructType.fromDDL(RAW_SCHEMA)
    assert isinstance(raw_columns, T.StructType)
    missing = {}
    for column in raw_columns:
        if column.name not in events.columns:
            missing[column.name] = F.lit(None).cast(column.dataType)
    return events.withColumns(missing) if missing else events


def _with_empty_record(spark: SparkSession, events: DataFrame) -> DataFrame:
    """Add a record without an event as the last row."""
    # Whatever the columns of the events are, those of a record without an event are null.
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in events.schema])
    empty = spark.createDataFrame([(None,) * len(nullable)], nullable)
    return events.unionByName(empty).coalesce(1)


def _shorten_value(value: bytes | None) -> str:
    if value is None or len(value) <= SHOWN_BYTES:
        return repr(value)
    return repr(value[:SHOWN_BYTES] + b"...")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)
