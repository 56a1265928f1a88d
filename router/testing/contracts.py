"""Check that parts keep their contracts: call these in the tests of a plugin.

>>> def test_region(spark):                                                               # doctest: +SKIP
...     events = spark.createDataFrame([(("eu",),), ((None,),)], "event struct<region: string>")
...     check_rule(spark, Region(code="eu"), events)
>>> def test_pigeons(spark, tmp_path):                                                    # doctest: +SKIP
...     rows = spark.createDataFrame([("uno", 1), ("ä", None)], "game string, n int")
...     check_applying_sink(Pigeons(loft=str(tmp_path)), rows)

They run on the driver with a local Spark session, raise AssertionError saying which promise is broken, and bring
the garbage themselves.
"""

from __future__ import annotations

import random
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.decoding import RAISED
from router.parts import RAW_SCHEMA
from router.sinks import Batch, Opening
from router.table_names import usable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from router.parts import Decoder, Encoder, Rule
    from router.sinks import ApplyingSink, TableSink

COORDINATES = "_topic string, _partition int, _offset bigint, _timestamp timestamp, _key binary"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
HERE = Path()
ADDED = {"event", "_error"}
OPTIONAL = {"_wanted", "_unknown", "schema_id", "schema_version", "subject", "message"}
"""What a decoder that goes by a schema may add besides."""

_noise = random.Random(7)

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
    *(_noise.randbytes(size) for size in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 1000)),
)
"""Values that come over every topic some day."""


def check_decoder(spark: SparkSession, decoder: Decoder, good_values: Sequence[bytes]) -> None:
    """Hold a prepared decoder to its contract, with garbage between values that it must decode.

    It keeps every row and the raw columns, adds `event` and `_error` of which at most one has a value, gives an event
    for every good value, never raises, and decides on a record without looking at its neighbours. Where it has a
    `decoding()`, that adds the same columns.
    """
    values = [*GARBAGE, *good_values]
    _check_decoding(spark, decoder)
    first = _decoded(spark, decoder, values)
    for good, row in zip(good_values, first[len(GARBAGE) :], strict=True):
        _require(row["event"] is not None, f"{good[:200]!r} is good and has no event: {row['_error']}")
    backwards = _decoded(spark, decoder, values[::-1])[::-1]
    for value, one, other in zip(values, first, backwards, strict=True):
        same = all(one[name] == other[name] for name in ADDED) or _has_nan(one)
        _require(same, f"{_shown(value)} is decoded to something else among other neighbours")


def check_rule(spark: SparkSession, rule: Rule, events: DataFrame) -> None:
    """Hold a rule to its contract, on events of any kind that it can meet.

    `events` has the column `event`; raw columns that it lacks are null. `matches()` is a boolean column, raises on no
    row, says the same of a row again, and does not match a record without an event.
    """
    frame = _with_empty_record(spark, _with_raw_columns(events))
    results = _evaluated(frame, rule.matches, T.BooleanType(), "matches()")
    _require(results[-1] is not True, "the rule matches a record without an event")


def check_table_sink(spark: SparkSession, sink: TableSink, events: DataFrame) -> None:
    """Hold a table sink to its contract, on events of any kind that it can meet.

    `events` has the column `event`; raw columns that it lacks are null. `table()` is a usable `layer.table`, or a
    string column that raises on no row, not even on a record without an event, and says the same of a row again.
    """
    table = sink.table()
    if isinstance(table, str):
        _require(usable(table), f"table() returns {table!r}, which breaks the naming rule")
        return
    frame = _with_empty_record(spark, _with_raw_columns(events))
    _evaluated(frame, sink.table, T.StringType(), "table()")


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


def _decoded(spark: SparkSession, decoder: Decoder, values: Sequence[bytes | None]) -> list[dict[str, Any]]:
    """Return the decoded rows in the order of the values, checked as far as one run can tell."""
    rows: list[tuple[Any, ...]] = [
        (b"k", value, "topic", 0, offset, None, 0, []) for offset, value in enumerate(values)
    ]
    raw = spark.createDataFrame(rows, RAW_SCHEMA).repartition(2)
    decoded = decoder.decode(raw)
    _check_columns(raw, decoded)
    try:
        found = sorted(decoded.toArrow().to_pylist(), key=lambda row: row["offset"])
    except Exception as error:
        raise AssertionError(f"the decoder raises on a record: {error}") from error
    _require(len(found) == len(values), f"{len(values)} records went in and {len(found)} came out")
    for offset, (value, row) in enumerate(zip(values, found, strict=True)):
        _check_row(offset, value, row)
    return found


def _check_columns(raw: DataFrame, decoded: DataFrame) -> None:
    lost, added = set(raw.columns) - set(decoded.columns), set(decoded.columns) - set(raw.columns)
    _require(not lost, f"the raw columns {sorted(lost)} are lost")
    _require(added >= ADDED, f"the columns {sorted(ADDED - added)} are not added")
    _require(added <= ADDED | OPTIONAL, f"the columns {sorted(added - ADDED - OPTIONAL)} are left over")
    event, error = decoded.schema["event"], decoded.schema["_error"]
    _require(isinstance(event.dataType, T.StructType), f"event is a {event.dataType.simpleString()}, not a struct")
    _require(event.nullable, "event cannot be null")
    _require(isinstance(error.dataType, T.StringType), f"_error is a {error.dataType.simpleString()}, not a string")


def _check_decoding(spark: SparkSession, decoder: Decoder) -> None:
    """Require that tasks add the columns that `decode` adds, and that native columns before them keep the raw ones."""
    made = decoder.decoding()
    if made is None:
        return
    raw = spark.createDataFrame([], RAW_SCHEMA)
    added = [name for name in decoder.decode(raw).columns if name not in raw.columns]
    names = made.adds.fieldNames()
    _require(sorted(names) == sorted(added), f"decoding() adds {', '.join(names)}, and decode() {', '.join(added)}")
    if made.before:
        columns = made.before(raw).columns
        _require(set(raw.columns) <= set(columns), f"before() loses {sorted(set(raw.columns) - set(columns))}")
        taken = [name for name in columns if name not in raw.columns and not name.startswith("_")]
        _require(not taken, f"the columns {taken} of before() do not begin with _")


def _check_row(offset: int, value: bytes | None, row: dict[str, Any]) -> None:
    at = f"record {offset} ({_shown(value)})"
    same = row["offset"] == offset and row["value"] == value and row["key"] == b"k" and row["topic"] == "topic"
    _require(same, f"{at}: the raw columns are changed")
    _require(row["event"] is None or row["_error"] is None, f"{at} has an event and an error: {row['_error']}")
    _require(row["_error"] != "", f"{at}: the error has no text")
    _require(RAISED not in (row["_error"] or ""), f"{at}: {row['_error']}")


def _in_outbox(rows: DataFrame) -> DataFrame:
    """Return rows of a route as they are in an outbox, from one partition of a topic."""
    placed: list[tuple[Any, ...]] = [
        ("contract", 0, offset, NOON, b"key", *row) for offset, row in enumerate(rows.collect())
    ]
    coordinates = T.StructType.fromDDL(COORDINATES)
    assert isinstance(coordinates, T.StructType)
    return rows.sparkSession.createDataFrame(placed, T.StructType([*coordinates.fields, *rows.schema.fields]))


def _evaluated(frame: DataFrame, make: Callable[[], str | Column], kind: T.DataType, what: str) -> list[Any]:
    """Return the values of a column, after checking its type, that it raises nowhere, and that it repeats itself."""
    # made and analysed twice: Spark fixes the seed of a random function when it analyses the frame
    one, other = (frame.select(F.lit(make()).alias("result")) for _ in range(2))
    found = one.schema["result"].dataType
    _require(isinstance(found, type(kind)), f"{what} is a {found.simpleString()}, not a {kind.simpleString()}")
    try:
        first, second = ([row["result"] for row in chosen.collect()] for chosen in (one, other))
    except Exception as error:
        raise AssertionError(f"{what} raises on a row: {error}") from error
    _require(first == second, f"{what} says something else of the same row the second time")
    return first


def _with_raw_columns(events: DataFrame) -> DataFrame:
    wanted = T.StructType.fromDDL(RAW_SCHEMA)
    assert isinstance(wanted, T.StructType)
    missing = {field.name: F.lit(None).cast(field.dataType) for field in wanted if field.name not in events.columns}
    return events.withColumns(missing) if missing else events


def _with_empty_record(spark: SparkSession, events: DataFrame) -> DataFrame:
    """Add a record without an event as the last row."""
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in events.schema])
    empty = spark.createDataFrame([(None,) * len(nullable)], nullable)
    return events.unionByName(empty).coalesce(1)


def _has_nan(row: dict[str, Any]) -> bool:
    return "nan" in repr(row["event"])


def _shown(value: bytes | None) -> str:
    return repr(value if value is None or len(value) <= 60 else value[:60] + b"...")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)
