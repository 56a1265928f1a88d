"""The contract kit: built-in parts pass, broken ones are told what they break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router import ArrowDecoder, ArrowDecoding, Decoder, Rule, TableSink
from router.testing import GARBAGE, check_decoder, check_rule, check_table_sink
from router_decoders import Json, Nothing
from router_sinks import Delta, Tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from tests.plugins.conftest import Decode

JSON = Json(schema="game string, a int, at timestamp, o struct<x: array<double>>, m map<string,date>", rescue=True)
GOOD = [b'{"game":"uno","a":1}', b"{}", b'{"m":{"x":"2026-11-21"},"o":{"x":[1]},"z":0}']


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    """Events with names that a table can have, and with others."""
    names = ["uno", "Uno", "../../x", "con", "🂡", "x" * 300, "", "a.b", "\x00", None]
    return spark.createDataFrame([((name, 1),) for name in names], "event struct<game: string, version: int>")


def test_the_json_decoder_keeps_the_contract(spark: SparkSession) -> None:
    """Every kind of garbage ends as one record with a reason."""
    check_decoder(spark, JSON, GOOD)


def test_no_decoder_keeps_the_contract(spark: SparkSession, decode: Decode) -> None:
    """With `none` every record is for bronze and nothing else: no event, no dead letter."""
    check_decoder(spark, Nothing(), [])

    assert set(decode(Nothing(), GARBAGE)) == {(None, None)}


def test_a_table_name_is_the_text_with_its_fields(spark: SparkSession, events: DataFrame) -> None:
    """What the data says is the name; whether it can be one is for the engine to decide."""
    sink = Tables(table="silver.{event.game}_v{ event.version }")
    check_table_sink(spark, sink, events)

    found = [row[0] for row in events.select(sink.table()).collect()]

    assert found[:3] == ["silver.uno_v1", "silver.Uno_v1", "silver.../../x_v1"]
    assert found[-2:] == ["silver.\x00_v1", None]


@pytest.mark.parametrize("field", ["event", "event.o", "topic", "value", "timestamp", "headers"])
def test_a_field_of_any_type_can_name_a_table(spark: SparkSession, field: str) -> None:
    """A name that makes no sense is a dead letter, not the end of the stream."""
    events = spark.createDataFrame([(([1],), b"\xff")], "event struct<o: array<int>>, value binary")

    check_table_sink(spark, Tables(table=f"silver.{{{field}}}"), events)


def test_a_fixed_table_keeps_the_contract(spark: SparkSession, events: DataFrame) -> None:
    """The simplest sink has the simplest contract."""
    check_table_sink(spark, Delta(table="silver.wins"), events)


class Broken(Decoder):
    """Break the contract of decoders in one way."""

    how: str

    def decode(self, raw: DataFrame) -> DataFrame:
        """Return what a careless decoder would."""
        text = F.col("value").cast("string")
        event = F.when(text == "good", F.struct(text.alias("text")))
        error = F.when(event.isNull(), F.lit("bad"))
        decoded = raw.withColumns({"event": event, "_error": error})
        return BREAK[self.how](decoded)


BREAK: dict[str, Callable[[DataFrame], DataFrame]] = {
    "records went in": lambda frame: frame.where("event IS NOT NULL"),
    "raw columns ['headers'] are lost": lambda frame: frame.drop("headers"),
    "columns ['_error'] are not added": lambda frame: frame.drop("_error"),
    "columns ['_json'] are left over": lambda frame: frame.withColumn("_json", F.lit(1)),
    "event is a string": lambda frame: frame.withColumn("event", F.lit("x")),
    "event cannot be null": lambda frame: frame.withColumn("event", F.struct(F.lit(1))),
    "_error is a int": lambda frame: frame.withColumn("_error", F.lit(1)),
    "raw columns are changed": lambda frame: frame.withColumn("topic", F.upper("topic")),
    "has an event and an error": lambda frame: frame.withColumn("_error", F.lit("bad")),
    "the error has no text": lambda frame: frame.withColumn("_error", F.when(F.col("event").isNull(), F.lit(""))),
    "raises on a record": lambda frame: frame.withColumn(
        "_error", F.col("value").cast("string").cast("int").cast("string")
    ),
    "good and has no event": lambda frame: frame.withColumn("event", F.when(F.rand() < 0, F.col("event"))),
    "among other neighbours": lambda frame: frame.withColumn(
        "_error", F.when(F.col("event").isNull(), F.col("offset").cast("string"))
    ),
}


@pytest.mark.parametrize("how", BREAK)
def test_a_broken_decoder_is_told_what_it_breaks(spark: SparkSession, how: str) -> None:
    """A plugin's author needs the promise by name."""
    with pytest.raises(AssertionError) as caught:
        check_decoder(spark, Broken(how=how), [b"good"])

    assert how in str(caught.value)


def careless(records: pa.RecordBatch, how: str) -> pa.RecordBatch:
    """Do what a careless decoder's function would."""
    texts = [value == b"good" for value in records.column("value").to_pylist()]
    if how == "raises" and not all(texts):
        raise ValueError("this is not good")
    event = pa.array([{"good": True} if good else None for good in texts], pa.struct([("good", pa.bool_())]))
    error = pa.array([None if good else "bad" for good in texts], pa.string())
    return pa.RecordBatch.from_arrays([event, error], names=["event", "_error"])


class Careless(ArrowDecoder):
    """Break the contract of decoders that work on record batches in one way."""

    how: str

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode."""
        adds = T.StructType.fromDDL("event struct<good: boolean>, _error string")
        before = {
            "lost": lambda raw: raw.drop("topic"),
            "taken": lambda raw: raw.withColumn("upper", F.upper("topic")),
        }.get(self.how)
        return ArrowDecoding(careless, self.how, adds, before)

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add what the decoding adds, or less."""
        decoded = super().decode(raw)
        return decoded.drop("_error") if self.how == "less" else decoded


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("raises", "the decoder raises ValueError: this is not good"),
        ("lost", "before() loses ['topic']"),
        ("taken", "the columns ['upper'] of before() do not begin with _"),
        ("less", "decoding() adds event, _error, and decode() event"),
    ],
)
def test_a_careless_function_is_told_what_it_breaks(spark: SparkSession, how: str, word: str) -> None:
    """What the engine forgives on a row is still a fault of the plugin."""
    with pytest.raises(AssertionError) as caught:
        check_decoder(spark, Careless(how=how), [b"good"])

    assert word in str(caught.value)


class Expression(Rule, TableSink):
    """A rule or a table sink, by any column."""

    sql: str

    def matches(self) -> Column:
        """Return the column."""
        return F.expr(self.sql)

    def table(self) -> str | Column:
        """Return the column, or the name."""
        return self.sql if self.sql.isidentifier() else F.expr(self.sql)


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("event.version", "matches() is a int, not a boolean"),
        ("rand() < 0.5", "the second time"),
    ],
)
def test_a_broken_rule_is_told_what_it_breaks(spark: SparkSession, events: DataFrame, sql: str, word: str) -> None:
    """A rule that changes its mind would break replays."""
    with pytest.raises(AssertionError) as caught:
        check_rule(spark, Expression(sql=sql), events)

    assert word in str(caught.value)


@pytest.mark.parametrize("sql", ["cast(event.game as int) = 1", "event.game is null", "event is null"])
def test_a_rule_may_raise_on_a_row_and_is_not_asked_about_other_records(
    spark: SparkSession, events: DataFrame, sql: str
) -> None:
    """Without it the author of a plugin repairs what no stream breaks on."""
    check_rule(spark, Expression(sql=sql), events)


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("event.version + 1", "table() is a int, not a string"),
        ("string(raise_error(event.game))", "raises on a row"),
        ("concat('a.', uuid())", "the second time"),
        ("silver", "breaks the naming rule"),
    ],
)
def test_a_broken_table_sink_is_told_what_it_breaks(
    spark: SparkSession, events: DataFrame, sql: str, word: str
) -> None:
    """A table that changes between attempts would hold a row twice."""
    with pytest.raises(AssertionError) as caught:
        check_table_sink(spark, Expression(sql=sql), events)

    assert word in str(caught.value)
