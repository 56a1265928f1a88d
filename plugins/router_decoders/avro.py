"""Decode Avro records whose schemas are in a registry or in a file.

Spark's from_avro reads the values before the tasks, and tasks decide what each value is. from_avro adds native columns
that read each row once. `router_schemas.wire_format` defines where a value begins, and tests compare these columns with
it; tasks give the reason why a row is in no wire format.

The expressions are small on purpose: the JVM does not compile a method of more than 8000 bytes, and all of a plan's
stage is one method. For the same reason nothing here uses a lambda if there is another way: it would take the
projection out of whole-stage code generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from router import ArrowDecoding
from router_decoders.registry_decoder import RegistryDecoder
from router_schemas.avro.model import FINGERPRINT_PREFIX, SINGLE_OBJECT_MARKER, VALUE_END_BYTES
from router_schemas.model import SchemaInfo, WriterSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from router import Preparation
    from router_schemas.avro.library import RecordReader, Records, WireFormat
    from router_schemas.library import Library
    from router_schemas.registry_client import OfflineRegistry
    from router_schemas.wire_format import FramedRows

AVRO_COLUMN = "_avro"
"""The column with a row's `event`, or the `reason` why its value could not be read; null if nothing reads it."""
OBJECT_KEY_BYTES = 10
"""Bytes before the value of a single object: C3 01 and the fingerprint."""
NO_OBJECT_REASON = "wire format: the value does not start with C3 01 and the 8 bytes of a fingerprint"
BROKEN_REASON = "avro: the value is broken or cut off"
"""The reason of a value that from_avro gives nothing for; a decimal with too many digits is one: `_name_decimals`."""
TEMPORARY_COLUMNS = ("_header", "_key", "_body", "_writer")
TO_THE_END = 2**31 - 1
ID_KEY_BYTES = 5
"""Bytes of a key with an id: a zero and the id."""
GUID_KEY_BYTES = 17
"""Bytes of a key with a GUID: a one and the GUID."""


class Avro(RegistryDecoder):
    """Decode a record whose value is an Avro record.

    With a `registry` the value is in the wire format of a Confluent-compatible schema registry: a zero byte and the
    schema's id (4 bytes, big-endian); or the record has the header `__value_schema_id` with the schema's GUID, and the
    value is the bare record. Or it is a single object (`wire_format: single_object`): C3 01 and the fingerprint of its
    schema, which is looked for among all versions of the `subjects`. Every version is read with the schema that wrote
    it into one merged reader's schema: a field that a version lacks is null, numbers are widened (int to long, float to
    double). New versions are looked for before every batch, and an id that comes unannounced within it.

    Without one, `schema_file` has the schema that all values were written with. The value is the record alone
    (`wire_format: none`), or is in the registry's wire format, of which id and GUID do not count; the fingerprint of a
    single object does.

    A version that no single table column can hold together with the older ones is reported with both versions and the
    field, and its records become dead letters. So do records with an unknown id, of another format, and values that
    are cut off or have more bytes behind them.

    Adds `schema_id`, `schema_version`, `subject` and `message` (the record's full name). Types:
    `router help formats`. Values are read by Spark's from_avro on executors. If the JVM is not started by
    `router`, start it with Avro's limits (`router help formats`): a hostile length in a record can end it
    otherwise.
    """

    connectors: ClassVar[tuple[str, ...]] = ("avro",)
    sources: ClassVar[tuple[str, ...]] = ("registry", "schema_file")

    schema_file: str | None = Field(
        default=None, min_length=1, description="an Avro schema in JSON (.avsc), from the configuration's folder"
    )
    wire_format: Literal["confluent", "none", "single_object"] = Field(
        default="confluent",
        description="`confluent`: as a registry's clients write; `single_object`: as Avro's own libraries do; `none`: "
        "the value is the record, with a file only",
    )

    @model_validator(mode="after")
    def _fits_the_source(self) -> Self:
        if self.registry is not None and self.wire_format == "none":
            raise ValueError("without the wire format nothing names a schema of the registry; use schema_file")
        if self.registry is not None and self.wire_format == "single_object" and not self.subjects:
            raise ValueError("a registry cannot be asked for a fingerprint; name the subjects to look among")
        return self

    def open_library(self, preparation: Preparation) -> Library[Records]:
        """Return where Avro schemas come from."""
        from router_schemas.avro.library import OneSchema, SingleObjects, Writers

        if self.registry is None:
            return OneSchema(preparation.folder / str(self.schema_file), self.wire_format, self.header)
        schemas = self.open_resolver(preparation)
        counted = self.counted_subjects(preparation)
        library_class = Writers
        if self.wire_format == "single_object":
            library_class = SingleObjects
        return library_class(schemas, preparation.memory, subjects=self.subjects, counted=counted, header=self.header)

    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has .avsc files."""
        from router_schemas.registry_client import OfflineRegistry

        return OfflineRegistry("AVRO", schemas)

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the record of an event, in its wire format."""
        from router_schemas.avro.encode import encoded_event
        from router_schemas.avro.model import single_object_header
        from router_schemas.avro.parser import parse_text
        from router_schemas.wire_format import pack_value

        schema_id, file = self.id_and_file(schema)
        parsed = parse_text(file.read_text(encoding="utf-8"))
        record = encoded_event(event, parsed)
        if self.wire_format == "single_object":
            return single_object_header(parsed) + record
        if self.wire_format == "none":
            return record
        return pack_value(schema_id, None, record)

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode: from_avro before them, and the rest in them."""
        from router_schemas.wire_format import ADDED_FIELDS

        known: Records = self.known_schemas
        added = list(ADDED_FIELDS)
        if known.only:  # one file reads everything: there is no schema to want
            added = [field for field in added if field.name != "_wanted"]
        rows = AvroRows(
            written=known.written,
            wire_format=known.wire_format,
            header=known.header,
            only=known.only,
            absence=known.absence,
            decimals=_schemas_with_decimals(known),
        )
        adds = T.StructType([T.StructField("event", known.event), *added])
        return ArrowDecoding(avro_events, rows, adds, before=lambda raw: with_records(raw, known))


# Before the tasks: each value read by from_avro


def with_records(raw: DataFrame, known: Records) -> DataFrame:
    """Return raw records with the column AVRO_COLUMN."""
    numbers = {key: number for number, key in enumerate(known.written)}
    columns = {}
    parts = []
    for place, record in enumerate(known.records):
        column = f"_r{place}"
        columns[column] = _read_record(record, numbers)
        parts.append(_Part(column, record))
    frame = with_frame_columns(raw, known).withColumns({"_writer": _writer_number(numbers)})
    frame = frame.withColumns(columns)
    result = F.struct(_event_column(known, parts).alias("event"), _reason_column(parts).alias("reason"))
    return frame.withColumn(AVRO_COLUMN, result).drop(*TEMPORARY_COLUMNS, *columns)


class _Part:
    """One kind of record, decoded into a column of envelopes (`value`, `end`), which is null on rows of other kinds."""

    def __init__(self, column: str, record: RecordReader) -> None:
        self.is_read = F.col(column).isNotNull()
        self.end = F.col(f"{column}.end")
        self.whole = F.coalesce(self.end == _binary_literal(VALUE_END_BYTES), F.lit(False))
        self.value = F.col(f"{column}.value")
        self.good = self.whole & are_utf8(self.value, record.struct)
        self.names = set(record.struct.fieldNames())


def _read_record(record: RecordReader, numbers: dict[bytes, int]) -> Column:
    """Return the envelope of one record's values, null on other rows: a CASE, so that each row is decoded once."""
    options = {"avroSchema": record.reader, "mode": "PERMISSIVE"}
    # END stands behind every value: it is what is left if the value ends where it should.
    body = F.concat("_body", _binary_literal(VALUE_END_BYTES))
    cases = []
    for key, schema_text in record.writers.items():
        is_of_writer = F.col("_writer") == numbers[key]
        cases.append((is_of_writer, from_avro(body, schema_text, options)))
    return _first_case(cases)


def _first_case(cases: list[tuple[Column, Column]]) -> Column:
    """Return a CASE of conditions and values."""
    (condition, value), *others = cases
    case = F.when(condition, value)
    for condition, value in others:
        case = case.when(condition, value)
    return case


def _reason_column(parts: list[_Part]) -> Column:
    """Return why a value could not be read; null if it could, and if nothing reads it."""
    no_reason = F.lit(None).cast("string")
    case = F.when(F.lit(False), no_reason)
    for part in parts:
        # The order matters, for the first true case counts: `is_read` is true of all rows of this part.
        case = case.when(part.good, no_reason)
        case = case.when(part.is_read & part.end.isNull(), BROKEN_REASON)
        case = case.when(part.whole, "avro: a string is not UTF-8")
        case = case.when(part.is_read, "avro: there are more bytes behind the value")
    return case


def _event_column(known: Records, parts: list[_Part]) -> Column:
    """Return the event: the fields of the row's record, the others null."""
    if not parts:
        return F.lit(None).cast(known.event)
    return _first_case([(part.good, F.struct(*_event_fields(known, part))) for part in parts])


def _event_fields(known: Records, part: _Part) -> list[Column]:
    columns = []
    for field in known.event:
        column = F.lit(None).cast(field.dataType)
        if field.name in part.names:
            column = part.value.getField(field.name)
        columns.append(column.alias(field.name))
    return columns


# Keys: the bytes of a row's prefix, which name its schema


def with_frame_columns(raw: DataFrame, known: Records) -> DataFrame:
    """Return raw records with `_header` (that may hold a GUID), `_key` and `_body`, null if there is none."""
    header = F.lit(None).cast("binary")
    if known.wire_format == "confluent":
        header = _last_header(known)
    key, body = _key_and_body(known)
    return raw.withColumn("_header", header).withColumns({"_key": key, "_body": body})


def _last_header(known: Records) -> Column:
    """Return the last header of that name, no bytes if it has no value; null if there is none."""
    place = F.array_position(F.reverse("headers.key"), known.header).cast("int")
    value = F.get(F.reverse("headers.value"), place - 1)
    return F.when(place > 0, F.coalesce(value, _binary_literal(b"")))


def _key_and_body(known: Records) -> tuple[Column, Column]:
    """Return the bytes that name a row's schema, null if it has none, and those of its record."""
    value = F.col("value")
    header = F.col("_header")
    if known.wire_format == "none":
        key = F.when(value.isNotNull(), _binary_literal(b""))
        return key, value
    if known.wire_format == "single_object":
        has_key = _begins_with(value, SINGLE_OBJECT_MARKER) & (F.length(value) >= OBJECT_KEY_BYTES)
        key = F.when(has_key, F.substring(value, 1, OBJECT_KEY_BYTES))
        return key, F.substring(value, OBJECT_KEY_BYTES + 1, TO_THE_END)
    # If there is a header, it alone counts: a wrong one is not made good by a prefix of the value.
    has_guid = _begins_with(header, b"\1") & (F.length(header) >= GUID_KEY_BYTES)
    guid = F.when(has_guid & value.isNotNull(), F.substring(header, 1, GUID_KEY_BYTES))
    key = F.when(header.isNotNull(), guid)
    key = key.when(_has_id(value), F.substring(value, 1, ID_KEY_BYTES))
    body = F.when(header.isNotNull(), value).otherwise(F.substring(value, ID_KEY_BYTES + 1, TO_THE_END))
    if known.only:
        # One schema reads all values, whatever their id or GUID: its key has no bytes.
        key = F.when(key.isNotNull(), _binary_literal(b""))
    return key, body


def _writer_number(numbers: dict[bytes, int]) -> Column:
    """Return the number of a key, looked up in a literal map: a branch for every key would be code for every key."""
    if not numbers:
        return F.lit(None).cast("int")
    keys_and_numbers = []
    for key, number in numbers.items():
        keys_and_numbers += [_binary_literal(key), F.lit(number)]
    return F.try_element_at(F.create_map(*keys_and_numbers), F.col("_key"))


def _has_id(value: Column) -> Column:
    has_prefix = _begins_with(value, b"\0") & (F.length(value) >= ID_KEY_BYTES)
    # Ids are not negative: the first bit of their four bytes is zero.
    return has_prefix & (F.substring(value, 2, 1) < _binary_literal(b"\x80"))


def _begins_with(value: Column, beginning: bytes) -> Column:
    return F.substring(value, 1, len(beginning)) == _binary_literal(beginning)


def _binary_literal(value: bytes) -> Column:
    """Return bytes as a literal."""
    return F.lit(bytearray(value))


# Strings: Spark takes their bytes unchecked, and a table with one that is not UTF-8 cannot be read


def are_utf8(value: Column, kind: T.StructType) -> Column:
    """Return whether every string in a struct, however deep, is UTF-8; never null.

    They are joined, with blanks between them, and checked at once: a lambda for arrays and maps would take the
    projection out of whole-stage code generation.
    """
    texts = list(_text_columns(value, kind))
    if not texts:
        return F.lit(True)
    return F.coalesce(F.is_valid_utf8(F.concat_ws(" ", *texts)), F.lit(True))


def _text_columns(value: Column, kind: T.DataType) -> Iterator[Column]:
    """Yield columns of string or array<string>."""
    if isinstance(kind, T.StringType):
        yield value
    elif isinstance(kind, T.StructType):
        for field in kind:
            yield from _text_columns(value.getField(field.name), field.dataType)
    elif isinstance(kind, T.MapType):
        yield F.map_keys(value)
        yield from _element_texts(F.map_values(value), kind.valueType)
    elif isinstance(kind, T.ArrayType):
        yield from _element_texts(value, kind.elementType)


def _element_texts(values: Column, kind: T.DataType) -> Iterator[Column]:
    """Yield the strings in the elements of an array."""
    if isinstance(kind, T.StringType):
        yield values
    elif isinstance(kind, T.StructType):
        for field in kind:
            yield from _element_texts(values.getField(field.name), field.dataType)
    elif isinstance(kind, T.ArrayType):  # flatten is null if one of the arrays is
        yield from _element_texts(F.flatten(F.array_compact(values)), kind.elementType)
    elif isinstance(kind, T.MapType):
        yield F.flatten(F.transform(F.array_compact(values), F.map_keys))
        yield from _element_texts(F.flatten(F.transform(F.array_compact(values), F.map_values)), kind.valueType)


# In the tasks: what each value is


@dataclass(frozen=True)
class AvroRows:
    """How the schema of a row is found. `written` is by prefix: the bytes before a value, or those in its `header`.

    `only` names the file whose schema reads all values, with any ids and GUIDs; empty if these count. `decimals` has
    the texts of a writer's and its reader's schema, by prefix, if the reader's has decimals.
    """

    written: dict[bytes, SchemaInfo]
    wire_format: WireFormat
    header: str
    only: str
    absence: str = ""
    decimals: Mapping[bytes, tuple[str, str]] | None = None


def _schemas_with_decimals(known: Records) -> dict[bytes, tuple[str, str]]:
    """Return the texts of the writer's and the reader's schema for each prefix whose reader has decimals."""
    texts: dict[bytes, tuple[str, str]] = {}
    for record in known.records:
        if '"decimal"' not in record.reader:
            continue
        for prefix, writer in record.writers.items():
            texts[prefix] = (writer, record.reader)
    return texts


def avro_events(records: pa.RecordBatch, known: AvroRows) -> pa.RecordBatch:
    """Return `event` and ADDED_COLUMNS, of which `_wanted` is left out if one file reads everything.

    Needs the columns `value`, `headers` and AVRO_COLUMN. Runs on executors; never raises on any row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import ADDED_COLUMNS, event_reasons, schema_columns, wanted_writers

    rows = _frame_rows(records, known)
    written = [_writer_schema(writer, known) for writer in rows.writers]
    from_avro_results = records.column(AVRO_COLUMN)
    # What the prefix and the schema tell comes before what from_avro could not read.
    unread = _name_decimals(pc.struct_field(from_avro_results, "reason"), rows, known)
    reasons = pc.coalesce(event_reasons(rows, written, absence=known.absence), unread)
    added = [reasons, wanted_writers(rows, written), *schema_columns(rows, written)]
    columns = {"event": pc.struct_field(from_avro_results, "event")}
    columns.update(zip(ADDED_COLUMNS.names, added, strict=True))
    if known.only:
        del columns["_wanted"]
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _name_decimals(reasons: pa.Array, rows: FramedRows, known: AvroRows) -> pa.Array:
    """Return the reasons of from_avro, with the field if a value is refused for the digits of a decimal."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.avro.decimals import too_many_digits

    is_broken = pc.equal(reasons, BROKEN_REASON).fill_null(False)
    if not known.decimals or not is_broken.true_count:
        return reasons
    texts = reasons.to_pylist()
    for row in np.flatnonzero(is_broken.to_numpy(zero_copy_only=False)).tolist():
        prefix = _schema_prefix(rows.writers[rows.groups[row]], known)
        schemas = known.decimals.get(prefix)
        if schemas is None:
            continue
        value = rows.payloads[row].as_py()
        if known.wire_format == "single_object":
            value = value[OBJECT_KEY_BYTES:]
        fault = too_many_digits(value, *schemas)
        if fault:
            texts[row] = f"avro: {fault}"
    return pa.array(texts, reasons.type)


def _frame_rows(records: pa.RecordBatch, known: AvroRows) -> FramedRows:
    """Return the writers of records and their payloads."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import FramedRows, framed_rows

    if known.wire_format != "single_object":
        return framed_rows(records, known.wire_format, known.header, indexed=False)
    values = records.column("value")
    heads = pc.binary_slice(values, 0, OBJECT_KEY_BYTES)
    has_length = pc.equal(pc.binary_length(heads), OBJECT_KEY_BYTES)
    is_head = pc.and_(pc.starts_with(heads, SINGLE_OBJECT_MARKER), has_length).fill_null(False)

    # A batch has few different fingerprints: number them, and make a name of each one once.
    coded = pc.if_else(is_head, heads, pa.scalar(None, heads.type)).dictionary_encode()
    groups = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    writers = []
    for head in coded.dictionary.to_pylist():
        fingerprint = head[len(SINGLE_OBJECT_MARKER) :]
        writers.append(f"{FINGERPRINT_PREFIX}{fingerprint.hex()}")

    unread = pc.if_else(values.is_null(), "value is null", NO_OBJECT_REASON)
    reasons = pc.if_else(is_head, pa.scalar(None, pa.string()), unread)
    no_ids = pa.nulls(len(values), pa.int32())
    return FramedRows(payloads=values, groups=groups, writers=tuple(writers), reasons=reasons, ids=no_ids)


def _schema_prefix(writer: str, known: AvroRows) -> bytes:
    """Return the bytes that the schema of a writer is known by."""
    from router_schemas.wire_format import schema_bytes

    if known.wire_format == "single_object":
        return SINGLE_OBJECT_MARKER + bytes.fromhex(writer.removeprefix(FINGERPRINT_PREFIX))
    if known.only:
        return b""
    return schema_bytes(WriterSchema.of(writer))


def _writer_schema(writer: str, known: AvroRows) -> SchemaInfo | None:
    """Return the known schema of a writer; None if it is to be fetched."""
    info = known.written.get(_schema_prefix(writer, known))
    if info is None and known.only:
        return SchemaInfo(reason=f"{writer} is not that of {known.only}")
    return info
