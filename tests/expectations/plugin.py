"""Parts for the scenarios: a sink that writes down what it is given, a rule and a decoder of a stranger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router import ApplyingSink, ArrowDecoder, ArrowDecoding, Batch, Decoder, Outcome, Rule, Sink, hookimpl
from tests.expectations.texts import plain


class Recording(ApplyingSink):
    """Append what it is given to a file, a line per row; refuse rows for which a condition holds."""

    to: str
    refuses: str = "false"

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        refused = F.coalesce(F.expr(self.refuses), F.lit(False))
        with Path(self.to).open("a", encoding="utf-8") as file:
            taken = events.filter(~refused).toArrow()
            for row in taken.to_pylist():
                said = {"_batch": batch.id, "_sink": f"{batch.route}/{batch.sink}", "_replay": batch.replay, **row}
                file.write(json.dumps(plain(said), ensure_ascii=False) + "\n")
        return Outcome(len(taken), events.filter(refused).withColumn("reason", F.lit("not wanted")))


class Odd(Rule):
    """Match events with an odd amount."""

    def matches(self) -> Column:
        return F.col("event.amount") % 2 == 1


class Shouted(ArrowDecoder):
    """Decode `game:text` in UTF-8 to capitals, in Python."""

    def decoding(self) -> ArrowDecoding:
        adds = StructType.fromDDL("event struct<game: string, text: string>, _error string")
        return ArrowDecoding(shouted, "!", adds)


def shouted(records: pa.RecordBatch, end: str) -> pa.RecordBatch:
    """Return events with the text in capitals and `end` after it."""
    found: list[dict[str, Any] | None] = []
    why: list[str | None] = []
    for value in records.column("value").to_pylist():
        try:
            game, _, text = value.decode().partition(":")
            found.append({"game": game, "text": text.upper() + end})
            why.append(None)
        except (AttributeError, UnicodeDecodeError):
            found.append(None)
            why.append("no text")
    kind = pa.struct([("game", pa.string()), ("text", pa.string())])
    return pa.RecordBatch.from_arrays([pa.array(found, kind), pa.array(why, pa.string())], names=["event", "_error"])


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    return {"shouted": Shouted}


@hookimpl
def router_rules() -> dict[str, type[Rule]]:
    return {"odd": Odd}


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    return {"recording": Recording}
