"""Take the frames of values apart with native expressions.

| column | holds |
|---|---|
| `_header` | the header that may hold a GUID, null where there is none |
| `_key` | what names the schema of a row, as the bytes of its frame; null where nothing does |
| `_body` | what follows the frame |
| `_known` | what is known of the key, a struct; null where it is not known |

`router_schemas.wire_format.parse` does the same in Python and is what tests hold this to. The expressions are small on
purpose: a method of more than 8000 bytes is not compiled by the JVM, and all of a plan's stage is one method.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Column
from pyspark.sql import functions as F

from router_schemas.avro.library import FINGERPRINT
from router_schemas.avro.model import MARKER
from router_schemas.framed_rows import ABOUT
from router_schemas.wire_format import EMPTY, HEADER, ID, MAGIC, REASONS, SHORT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router_schemas.model import SchemaInfo


class Framed(Protocol):
    """Say how values are framed. `written` is by frame; see router_schemas.avro.library.Records."""

    @property
    def frame(self) -> str: ...
    @property
    def header(self) -> str: ...
    @property
    def only(self) -> str: ...
    @property
    def written(self) -> dict[bytes, SchemaInfo]: ...


TEMPORARY = ("_header", "_key", "_body", "_known")
KNOWN = "struct<schema_id: int, schema_version: int, subject: string, message: string, reason: string, writer: int>"
TO_THE_END = 2**31 - 1
ID_KEY, GUID_KEY, OBJECT_KEY = 5, 17, 10
"""Bytes of a key: a zero and the id; a one and the GUID; C3 01 and the fingerprint."""
GUID_PARTS = r"^(.{8})(.{4})(.{4})(.{4})(.{12})$"


def framed(raw: DataFrame, known: Framed) -> DataFrame:
    """Return raw records with the columns of TEMPORARY."""
    key, body = _parts(known)
    frame = raw.withColumn("_header", _header(known) if known.frame == "confluent" else _none("binary"))
    frame = frame.withColumns({"_key": key, "_body": body})
    return frame.withColumn("_known", _known(known))


def unframed(known: Framed) -> Column:
    """Return why a row has no key."""
    value = F.col("value")
    case = F.when(value.isNull(), "value is null")
    if known.frame == "none":
        return case
    if known.frame == "single_object":
        return case.otherwise("frame: the value does not start with C3 01 and the 8 bytes of a fingerprint")
    case = case.when(F.col("_header").isNotNull(), REASONS[HEADER]).when(F.length(value) == 0, REASONS[EMPTY])
    case = case.when(F.length(value) < ID_KEY, REASONS[SHORT])
    return case.when(~_begins(value, b"\0"), REASONS[MAGIC]).otherwise(REASONS[ID])


def _schema_id(known: Framed) -> Column:
    """Return the id that a row names, whatever it is worth; null where it names none."""
    if known.frame != "confluent":
        return _none("int")
    return F.when(F.col("_key").isNotNull() & F.col("_header").isNull(), _number("value"))


def about(known: Framed) -> dict[str, Column]:
    """Return what is known of the schemas of rows; the id wherever a row names one."""
    told = {name: F.col(f"_known.{name}") for name in ABOUT.names}
    return {**told, "schema_id": F.coalesce(told["schema_id"], _schema_id(known))}


def wanted(known: Framed) -> Column:
    """Return what rows want that is not known, null for the others."""
    return F.when(F.col("_key").isNotNull() & F.col("_known").isNull(), called(known))


def called(known: Framed) -> Column:
    """Return how the schema of a key is called where it is wanted, and where it is not to be had."""
    key = F.col("_key")
    digits = F.lower(F.hex(key))
    if known.frame == "single_object":
        return F.concat(F.lit(FINGERPRINT), F.substring(digits, 5, 16))
    guid = F.regexp_replace(F.substring(digits, 3, 32), GUID_PARTS, "$1-$2-$3-$4-$5")
    number = _number("_key").cast("string")
    return F.concat(F.lit("schema "), F.when(F.length(key) == GUID_KEY, guid).otherwise(number))


def binary(value: bytes) -> Column:
    """Return bytes as a literal."""
    return F.lit(bytearray(value))


def _header(known: Framed) -> Column:
    """Return the last header of the name; one without a value is there, too."""
    # no lambda: it would take the projection out of whole-stage code generation
    at = F.array_position(F.reverse("headers.key"), known.header).cast("int")
    return F.when(at > 0, F.coalesce(F.get(F.reverse("headers.value"), at - 1), binary(b"")))


def _parts(known: Framed) -> tuple[Column, Column]:
    """Return the key and the body of a row."""
    value, header = F.col("value"), F.col("_header")
    if known.frame == "none":
        return F.when(value.isNotNull(), binary(b"")), value
    if known.frame == "single_object":
        good = _begins(value, MARKER) & (F.length(value) >= OBJECT_KEY)
        return F.when(good, F.substring(value, 1, OBJECT_KEY)), F.substring(value, OBJECT_KEY + 1, TO_THE_END)
    good = _begins(header, b"\1") & (F.length(header) >= GUID_KEY)
    key = F.when(header.isNotNull(), F.when(good & value.isNotNull(), F.substring(header, 1, GUID_KEY)))
    key = key.when(_prefixed(value), F.substring(value, 1, ID_KEY))
    if known.only:
        key = F.when(key.isNotNull(), binary(b""))
    return key, F.when(header.isNotNull(), value).otherwise(F.substring(value, ID_KEY + 1, TO_THE_END))


def _known(known: Framed) -> Column:
    """Return what is known of a key, by a literal: a loop over its keys, and no code for each of them."""
    pairs: list[Column] = []
    for number, (key, one) in enumerate(known.written.items()):
        pairs += [binary(key), F.struct(*(F.lit(it) for it in (*astuple(one), number))).cast(KNOWN)]
    return F.try_element_at(F.create_map(*pairs), F.col("_key")) if pairs else _none(KNOWN)


def _prefixed(value: Column) -> Column:
    whole = _begins(value, b"\0") & (F.length(value) >= ID_KEY)
    return whole & (F.substring(value, 2, 1) < binary(b"\x80"))


def _begins(value: Column, beginning: bytes) -> Column:
    return F.substring(value, 1, len(beginning)) == binary(beginning)


def _number(column: str) -> Column:
    """Return the four bytes behind the first one as a number."""
    return F.conv(F.hex(F.substring(column, 2, 4)), 16, 10).try_cast("int")


def _none(kind: str) -> Column:
    return F.lit(None).cast(kind)
