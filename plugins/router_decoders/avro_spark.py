"""Decode Avro values in Spark columns."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from router_decoders.avro_texts import are_utf8
from router_decoders.framing_spark import TEMPORARY, about, binary, framed, unframed, wanted
from router_schemas.avro.library import END

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from router_schemas.avro.library import RecordReader, Records


def decoded(raw: DataFrame, known: Records) -> DataFrame:
    """Return raw records with `event`, `_error`, `_wanted` (where something can be) and what is known of the schema."""
    numbers = {key: number for number, key in enumerate(known.written)}
    read = {f"_r{k}": _read(record, numbers) for k, record in enumerate(known.records)}
    frame = framed(raw, known).withColumns({**read, "_wanted": wanted(known)})
    parts = [_Part(f"_r{k}", record) for k, record in enumerate(known.records)]
    frame = frame.withColumns({"event": _event(known, parts), "_error": _reason(known, parts), **about(known)})
    return frame.drop(*TEMPORARY, *read, *(["_wanted"] if known.only else []))


class _Part:
    """Be one record of an event, decoded into a column of envelopes, which is null on the rows of others."""

    def __init__(self, column: str, record: RecordReader) -> None:
        self.is_mine = F.col(column).isNotNull()
        self.end = F.col(f"{column}.end")
        self.whole = F.coalesce(self.end == binary(END), F.lit(False))
        self.value = F.col(f"{column}.value")
        self.good = self.whole & are_utf8(self.value, record.struct)
        self.names = set(record.struct.fieldNames())


def _read(record: RecordReader, numbers: dict[bytes, int]) -> Column:
    """Return the envelope of one record's values, null on other rows: a CASE, so that each row is decoded once."""
    options = {"avroSchema": record.reader, "mode": "PERMISSIVE"}
    writer, body = F.col("_known.writer"), F.concat("_body", binary(END))
    cases = [(writer == numbers[key], from_avro(body, text, options)) for key, text in record.writers.items()]
    return reduce(lambda case, one: case.when(*one), cases[1:], F.when(*cases[0]))


def _reason(known: Records, parts: list[_Part]) -> Column:
    """Return why a row has no event; null where it has one."""
    case = F.when(F.col("_key").isNull(), unframed(known))
    missing = f" is not that of {known.only}" if known.only else " is not known yet"
    case = case.when(F.col("_known").isNull(), F.concat("_wanted", F.lit(missing)))
    for part in parts:
        case = case.when(part.good, F.lit(None).cast("string"))
        case = case.when(part.is_mine & part.end.isNull(), "avro: the value is broken or cut off")
        case = case.when(part.whole, "avro: a string is not UTF-8")
        case = case.when(part.is_mine, "avro: there are more bytes behind the value")
    return case.otherwise(F.col("_known.reason"))


def _event(known: Records, parts: list[_Part]) -> Column:
    """Return the event: the fields of the row's record, the others null."""
    cases = [(part.good, F.struct(*_fields(known, part))) for part in parts]
    none = F.lit(None).cast(known.event)
    return reduce(lambda case, one: case.when(*one), cases[1:], F.when(*cases[0])) if cases else none


def _fields(known: Records, part: _Part) -> list[Column]:
    found = {
        one: part.value.getField(one.name) if one.name in part.names else F.lit(None).cast(one.dataType)
        for one in known.event
    }
    return [column.alias(one.name) for one, column in found.items()]
