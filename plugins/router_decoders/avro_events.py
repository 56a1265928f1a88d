"""Decode Avro records whose schemas are in a registry."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from router_decoders.registered import Registered
from router_schemas.avro.envelope import END
from router_schemas.avro.library import Records, Writers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from router import Preparation
    from router_schemas.avro.library import Record
    from router_schemas.schemas import Schemas

TO_THE_END = 2**31 - 1
TEMPORARY = ("_id", "_body")


class Avro(Registered):
    """Decode a record whose value is an Avro record in the frame of a Confluent-compatible schema registry.

    The frame is a zero byte and the schema's id (4 bytes, big-endian). Every version is read with the schema that wrote
    it into one merged reader's schema: a field that a version lacks is null, numbers are widened (int to long, float to
    double). New versions are looked for before every batch, and an id that comes unannounced within it.

    A version that no single table column can hold together with the older ones is reported with both versions and the
    field, and its records become dead letters. So do records with an unknown id, of another format, and values that
    are cut off or have more bytes behind them.

    Adds `schema_id`, `schema_version`, `subject` and `message` (the record's full name). Types: docs/formats.md. Runs
    as native expressions (Spark's from_avro) on executors. Where the JVM is not started by `router`, start it with
    Avro's limits (docs/formats.md): a hostile length in a record can end it otherwise.
    """

    def library(self, schemas: Schemas, preparation: Preparation) -> Writers:
        """Return what learns Avro schemas."""
        return Writers(schemas, preparation.memory, self.subjects)

    def places(self, values: pa.Array) -> frozenset[str]:
        """Return the ids that values name in their frames."""
        from router_schemas.frames import parse

        return frozenset(str(key.id) for key in parse(values, indexed=False).keys if key.id is not None)

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add `event`, `_error`, `_wanted` and what is known of the schema."""
        known: Records = self.known
        value = F.col("value")
        number = F.conv(F.hex(F.substring("value", 2, 4)), 16, 10).try_cast("int")
        framed = (F.length(value) >= 5) & (F.hex(F.substring("value", 1, 1)) == "00")
        frame = raw.withColumns(
            {
                "_id": F.when(framed, number),
                "_body": F.concat(F.substring("value", 6, TO_THE_END), F.lit(bytearray(END))),
            }
        )
        read = {f"_r{k}": _read(record) for k, record in enumerate(known.records)}
        frame = frame.withColumns(read)
        frame = frame.withColumns({"event": _event(known), "_error": _reason(known), **_about(known)})
        return frame.drop(*TEMPORARY, *read)


def _read(record: Record) -> Column:
    """Return the envelope of one record's values, null on other rows: a CASE, so that each row is decoded once."""
    options = {"avroSchema": record.reader, "mode": "PERMISSIVE"}
    cases = [(number, from_avro(F.col("_body"), text, options)) for number, text in record.writers.items()]
    return reduce(lambda case, one: case.when(F.col("_id") == one[0], one[1]), cases[1:], _first(*cases[0]))


def _first(number: int, decoded: Column) -> Column:
    return F.when(F.col("_id") == number, decoded)


def _of(record: Record) -> Column:
    return F.col("_id").isin(*record.writers)


def _whole(k: int) -> Column:
    return F.coalesce(F.col(f"_r{k}.end") == F.lit(bytearray(END)), F.lit(False))


def _reason(known: Records) -> Column:
    """Return why a row has no event; null where it has one."""
    size = F.length("value")
    case = F.when(size.isNull(), "value is null").when(size == 0, "frame: the value is empty")
    case = case.when(size < 5, "frame: the value is shorter than the 5 bytes of a frame")
    case = case.when(F.hex(F.substring("value", 1, 1)) != "00", "frame: the value does not start with the magic byte 0")
    case = case.when(F.col("_id").isNull(), "frame: the schema id is negative")
    for number, reason in known.reasons.items():
        case = case.when(F.col("_id") == number, reason)
    for k, record in enumerate(known.records):
        case = case.when(_of(record) & _whole(k), F.lit(None).cast("string"))
        case = case.when(_of(record) & F.col(f"_r{k}.end").isNull(), "avro: the value is broken or cut off")
        case = case.when(_of(record), "avro: there are more bytes behind the value")
    return case.otherwise(F.concat(F.lit("schema "), F.col("_id").cast("string"), F.lit(" is not known yet")))


def _event(known: Records) -> Column:
    """Return the event: the fields of the row's record, the others null."""
    cases = [(_of(record) & _whole(k), F.struct(*_fields(known, k, record))) for k, record in enumerate(known.records)]
    none = F.lit(None).cast(known.event)
    return reduce(lambda case, one: case.when(*one), cases[1:], F.when(*cases[0])) if cases else none


def _fields(known: Records, k: int, record: Record) -> list[Column]:
    value, have = F.col(f"_r{k}.value"), set(record.struct.fieldNames())
    found = {
        one: value.getField(one.name) if one.name in have else F.lit(None).cast(one.dataType) for one in known.event
    }
    return [column.alias(one.name) for one, column in found.items()]


def _about(known: Records) -> dict[str, Column]:
    seen = [*known.about, *known.reasons]
    wanted = ~F.col("_id").isin(*seen) if seen else F.lit(True)

    def by_id(name: str, kind: str) -> Column:
        given = [(number, getattr(one, name)) for number, one in known.about.items() if getattr(one, name) is not None]
        pairs: list[Any] = [F.when(F.col("_id") == number, F.lit(text)) for number, text in given]
        return F.coalesce(*pairs, F.lit(None)).cast(kind)

    return {
        "_wanted": F.when(F.col("_id").isNotNull() & wanted, F.col("_id").cast("string")),
        "schema_id": F.col("_id"),
        "schema_version": by_id("version", "int"),
        "subject": by_id("subject", "string"),
        "message": by_id("message", "string"),
    }
