"""Parts for the tests of the engine that no user needs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router import ApplyingSink, ArrowDecoder, ArrowDecoding, Batch, Decoder, Opening, Outcome, Rule, TableSink
from router_decoders import Json


class Events(Decoder):
    """Decode JSON objects strictly by a schema (DDL)."""

    main_option = "ddl"
    ddl: str

    def decode(self, raw: DataFrame) -> DataFrame:
        names = StructType.fromDDL(self.ddl).fieldNames()
        options = {"columnNameOfCorruptRecord": "_broken"}
        parsed = F.from_json(F.col("value").cast("string"), f"{self.ddl}, _broken string", options)
        frame = raw.withColumn("_parsed", parsed)
        bad = F.col("_parsed").isNull() | F.col("_parsed._broken").isNotNull()
        event = F.struct(*[F.col("_parsed").getField(name).alias(name) for name in names])
        columns = {"event": F.when(~bad, event), "_error": F.when(bad, F.lit("no JSON object of the schema"))}
        return frame.withColumns(columns).drop("_parsed")


class Known(Decoder):
    """Decode `word:text` for the words it knows; fetch others from a folder, one file per word."""

    folder: str
    known: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def refresh(self, wanted: frozenset[str]) -> Known:
        if Path(self.folder, "away").exists():
            raise ConnectionError("the folder is away")
        with Path(self.folder, "asked").open("a") as asked:
            asked.write(f"{sorted(wanted)}\n")
        found = {word for word in wanted if Path(self.folder, word).exists()}
        if not wanted:
            return self
        return self.model_copy(
            update={"known": (*self.known, *sorted(found)), "absent": (*self.absent, *sorted(wanted - found))}
        )

    def decode(self, raw: DataFrame) -> DataFrame:
        word = F.substring_index(F.col("value").cast("string"), ":", 1)
        text = F.substring_index(F.col("value").cast("string"), ":", -1)
        known, absent = (word.isin(*words) if words else F.lit(False) for words in (self.known, self.absent))
        added = {
            "event": F.when(known, F.struct(word.alias("game"), text.alias("text"))),
            "_error": F.when(~known, F.concat(F.lit("no word "), word)),
            "_wanted": F.when(~known & ~absent, word),
        }
        return raw.withColumns(added)


class Shouted(ArrowDecoder):
    """Decode UTF-8 texts to capitals, in Python."""

    def decoding(self) -> ArrowDecoding:
        return ArrowDecoding(
            shouted, "!", StructType.fromDDL("event struct<game: string, text: string>, _error string")
        )


def shouted(records: pa.RecordBatch, end: str) -> pa.RecordBatch:
    """Return events with the text in capitals and `end` after it."""
    texts, why = [], []
    for value in records.column("value").to_pylist():
        try:
            texts.append({"game": "shouts", "text": value.decode().upper() + end})
            why.append(None)
        except (AttributeError, UnicodeDecodeError):
            texts.append(None)
            why.append("no text")
    kind = pa.struct([("game", pa.string()), ("text", pa.string())])
    return pa.RecordBatch.from_arrays([pa.array(texts, kind), pa.array(why, pa.string())], names=["event", "_error"])


class Fatal(ArrowDecoder):
    """Decode JSON, and end the process at a record with a word, as a fault in a library below Python does."""

    word: str
    schema_of: str

    def decoding(self) -> ArrowDecoding:
        inner = Json.model_validate({"schema": self.schema_of}).decoding()
        assert inner is not None
        return replace(inner, function=fatal, argument=(inner, self.word))


def fatal(records: pa.RecordBatch, about: tuple[ArrowDecoding, str]) -> pa.RecordBatch:
    """Decode records, or end the process."""
    inner, word = about
    if any(word.encode() in (value or b"") for value in records.column("value").to_pylist()):
        os._exit(3)
    return inner.function(records, inner.argument)


class Shorter(ArrowDecoder):
    """Break the contract of decoders: return a row less."""

    schema_of: str

    def decoding(self) -> ArrowDecoding:
        inner = Json.model_validate({"schema": self.schema_of}).decoding()
        assert inner is not None
        return replace(inner, function=shorter, argument=inner)


def shorter(records: pa.RecordBatch, inner: ArrowDecoding) -> pa.RecordBatch:
    """Decode records, and return one less."""
    return inner.function(records, inner.argument).slice(1)


class Where(Rule):
    """Match by a SQL condition."""

    main_option = "sql"
    sql: str

    def matches(self) -> Column:
        return F.expr(self.sql)


class Named(TableSink):
    """Append to tables named by a SQL expression."""

    main_option = "sql"
    sql: str

    def table(self) -> Column:
        return F.expr(self.sql)


class Fixed(TableSink):
    """Append to one table."""

    main_option = "name"
    name: str

    def table(self) -> str:
        return self.name


class Copy(ApplyingSink):
    """Append what it is given to a file, with each call again; refuse the rows for which a condition holds.

    `claims`: rows it says it applied beyond those it did; `fails_before`: raise in batches with a smaller id.
    """

    to: str
    refuses: str = "false"
    claims: int = 0
    fails_before: int = 0

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        if batch.id < self.fails_before:
            raise ConnectionError("the other side is away")
        refused = F.coalesce(F.expr(self.refuses), F.lit(False))
        about = {"batch": F.lit(batch.id), "by": F.lit(batch.key), "replay": F.lit(batch.replay)}
        taken = events.filter(~refused).withColumns(about).toArrow().to_pylist()
        with Path(self.to).open("a") as file:
            file.writelines(json.dumps(row, default=str) + "\n" for row in taken)
        return Outcome(len(taken) + self.claims, events.filter(refused).withColumn("reason", F.lit("not wanted")))


class Telling(Copy):
    """Say what it would append."""

    previews: ClassVar[bool] = True

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        return [{"game": row["game"], "body": {"won": float(row["amount"])}} for row in events.collect()]


def copied(to: str | Path) -> list[dict[str, Any]]:
    """Return what a Copy has appended."""
    return [json.loads(line) for line in Path(to).read_text().splitlines()]
