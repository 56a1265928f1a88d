"""Collect the Avro schemas that records were written with, of a registry or a file. For the driver.

They are read together: one reader's schema per record, one event for all.

Spark's `from_avro` cannot distinguish a good record from a broken one. It reads a value and stops, so bytes after the
value go unnoticed; and in PERMISSIVE mode a value that cannot be read becomes a struct whose fields are all null, which
a good record may also be. So a payload is read with END behind it, as a record of two fields, `value` and `end`:

    from_avro(concat(payload, END), writer_text(...), {"avroSchema": reader_text(...), "mode": "PERMISSIVE"})

| `end` | the payload is |
|---|---|
| END | one whole value: the event is `value` |
| null | broken or cut off, or null itself |
| anything else | a value with more bytes behind it |

A payload that is cut off is always noticed: the value then takes bytes of END, and too few remain for `end`. This
needs no required field in the schema, and decodes once. Bytes behind a value go unnoticed only if they begin with END.

Spark allocates the length that a payload claims before it reads. A record of a few bytes can claim a text of 2 GiB,
and a JVM without memory ends in every mode (tried: the driver died). So the JVMs that decode must be started with
`-Dorg.apache.avro.limits.string.maxLength=N`, `...limits.bytes.maxLength=N` and
`...limits.collectionItems.maxLength=N` (Apache Avro, SystemLimitException): a record beyond these limits is broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from pyspark.sql import types as T

from router import StartError
from router_schemas.avro.merge import RecordVersion, merge_records
from router_schemas.avro.model import (
    FINGERPRINT_PREFIX,
    SINGLE_OBJECT_MARKER,
    VALUE_END_BYTES,
    AvroField,
    AvroRecord,
    AvroSchema,
    Definition,
    Fixed,
    Ref,
    rename_references,
    single_object_header,
    text_of,
)
from router_schemas.avro.parser import is_name, parse_resolved, parse_text
from router_schemas.avro.spark_types import map_schema
from router_schemas.library import EventMaking, Library, RegistryLibrary
from router_schemas.model import UNKNOWN_HOLD_SECONDS, VALUE_HEADER, SchemaInfo, SchemaOrigin, WriterSchema, schema_file
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from router_schemas.model import Kind, ResolvedSchema, SchemaConflict, Taken


N = TypeVar("N", bound=Definition | AvroField)
WireFormat = Literal["confluent", "none", "single_object"]


@dataclass(frozen=True)
class RecordUse:
    """A schema that records were written with; `name` is the full name of its record."""

    origin: SchemaOrigin
    schema: AvroSchema
    name: str

    @staticmethod
    def of(origin: SchemaOrigin, schema: AvroSchema) -> RecordUse:
        """Return the use of a schema; raise ValueError if it is no record."""
        if not isinstance(schema.root, Ref):
            raise ValueError("it is no record, and an event has fields; wrap it in one")
        return RecordUse(origin, schema, schema.root.name)


@dataclass(frozen=True)
class RecordReader:
    """How one record is read: the texts of its reader's schema and, by prefix, of its writers'; and the columns."""

    reader: str
    writers: dict[bytes, str]
    struct: T.StructType


@dataclass(frozen=True)
class Records:
    """How values are read. `written` is by prefix: the bytes before a value, or those in its `header`.

    `only` is the name of the file whose schema reads all values, whatever their ids and GUIDs (the prefix is then
    b""). If it is empty, ids and GUIDs count, and a value with an unknown prefix waits for its schema.
    """

    event: T.StructType
    records: tuple[RecordReader, ...] = ()
    written: dict[bytes, SchemaInfo] = field(default_factory=dict)
    wire_format: WireFormat = "confluent"
    header: str = VALUE_HEADER
    only: str = ""
    absence: str = ""
    """Why the registry does not give an id that it does not have, with `{id}` in the place of the id."""
    origins: dict[str, str] = field(default_factory=dict)
    """Field of the event -> the record and version that it comes from."""


def records_of(uses: Mapping[bytes, RecordUse], reasons: Mapping[bytes, str], taken: Taken | None = None) -> Records:
    """Return one reader's schema per record; refuse versions that conflict with the oldest, or with `taken` fields."""
    made = _RecordEvent(uses, reasons, taken)
    event = T.StructType([T.StructField(name, kind) for name, (kind, _) in made.fields.items()])
    return Records(event, tuple(made.readers), made.written, origins=made.origins)


class _RecordEvent(EventMaking[bytes, RecordUse, RecordReader]):
    """The event of Avro records, by the bytes before them."""

    def merge_versions(self, uses: list[RecordUse]) -> tuple[AvroSchema, Sequence[SchemaConflict]]:
        record = merge_records([RecordVersion(use.origin.label, use.schema) for use in uses])
        return record.reader, record.conflicts

    def make_reader(self, merged: AvroSchema, fits: Mapping[bytes, RecordUse]) -> tuple[RecordReader, T.StructType]:
        columns = map_schema(merged)
        texts = {prefix: writer_text(use.schema, columns.reader) for prefix, use in fits.items()}
        return RecordReader(reader_text(columns.reader), texts, columns.struct), columns.struct


@dataclass
class Writers(RegistryLibrary[RecordUse, Records]):
    """Avro schemas of a registry that records were written with, by ids and GUIDs."""

    kind: ClassVar[Kind] = "AVRO"

    header: str = VALUE_HEADER

    def use_of_schema(self, writer: WriterSchema, resolved: ResolvedSchema, origin: SchemaOrigin) -> RecordUse:
        """Return the use of a writer's schema."""
        return RecordUse.of(origin, parse_resolved(resolved))

    def combine_uses(self) -> Records:
        """Return one reader's schema per record, and the schema of every prefix."""
        uses = {schema_bytes(WriterSchema.of(writer)): use for writer, use in self.uses.items()}
        reasons = {schema_bytes(WriterSchema.of(writer)): reason for writer, reason in self.reasons.items()}
        return replace(records_of(uses, reasons, self.taken), header=self.header, absence=self.schemas.absence)


@dataclass
class SingleObjects(Writers):
    """Avro schemas of subjects by their fingerprints, by which a registry cannot look up schemas."""

    keep: str = "objects"

    def learn_schemas(self, wanted: list[str], polled: list[str]) -> None:
        """Learn all versions of the subjects; a wanted fingerprint that none of them has is unknown."""
        if wanted:
            self.schemas.poll_subjects(self.subjects, wait=True)
            polled = self._new_versions()
        super().learn_schemas([], polled)
        until = self.clock() + UNKNOWN_HOLD_SECONDS
        for text in wanted:
            self.unknown[text] = f"no version of {', '.join(self.subjects)} has the {text}", until
        for use in self.uses.values():
            fingerprint = single_object_header(use.schema).removeprefix(SINGLE_OBJECT_MARKER)
            self.unknown.pop(f"{FINGERPRINT_PREFIX}{fingerprint.hex()}", None)

    def combine_uses(self) -> Records:
        """Return one reader's schema per record, and the schema of every fingerprint."""
        reasons: dict[bytes, str] = {}
        for text, (reason, _) in self.unknown.items():
            if text.startswith(FINGERPRINT_PREFIX):
                reasons[SINGLE_OBJECT_MARKER + bytes.fromhex(text.removeprefix(FINGERPRINT_PREFIX))] = reason

        uses: dict[bytes, RecordUse] = {}
        for use in sorted(self.uses.values(), key=lambda use: use.origin.age):
            header = single_object_header(use.schema)
            oldest = uses.setdefault(header, use)
            # A fingerprint does not cover logical types: two schemas that mean different things may have the same.
            versions = [RecordVersion(version.origin.label, version.schema) for version in (oldest, use)]
            conflicts = merge_records(versions).conflicts
            if conflicts:
                reasons[header] = f"{conflicts[0]}; both have one fingerprint"
        return replace(records_of(uses, reasons), wire_format="single_object")


class OneSchema(Library[Records]):
    """The schema of a file, which reads all values, whatever schema a value names."""

    def __init__(self, path: Path, wire_format: WireFormat, header: str = VALUE_HEADER) -> None:
        with schema_file(path):
            use = RecordUse.of(SchemaOrigin(path.name), parse_text(path.read_text(encoding="utf-8")))
        prefix = b""
        if wire_format == "single_object":
            prefix = single_object_header(use.schema)
        made = records_of({prefix: use}, {})
        if not made.records:
            raise StartError(f"schema file {path}: {made.written[prefix].reason}")
        self._made = replace(made, wire_format=wire_format, header=header, only=path.name)

    @property
    def is_empty(self) -> bool:
        """Return that the schema is known."""
        return False

    def refresh_schemas(self, wanted: Iterable[str] = ()) -> Records:
        """Return how the values are read, always the same."""
        return self._made


ENVELOPE = "Router_envelope"
END_MARK = "Router_end"


def reader_text(reader: AvroSchema) -> str:
    """Return the JSON of a reader's schema with END behind its values.

    Raises ValueError if the schema has a type called ENVELOPE or END_MARK.
    """
    for name in (ENVELOPE, END_MARK):
        if name in reader.types:
            raise ValueError(f"the schema has a type {name}, which is needed to find broken records; rename it")
    names = {name: _spark_name(name) for name in reader.types}
    _check_distinct("types", names.values())
    fields = (AvroField("value", rename_references(reader.root, names)), AvroField("end", Ref(END_MARK)))
    types: dict[str, Definition] = {
        ENVELOPE: AvroRecord(ENVELOPE, fields),
        END_MARK: Fixed(END_MARK, len(VALUE_END_BYTES)),
    }
    for name, definition in reader.types.items():
        types[names[name]] = replace(_with_names_of(None, definition, names), aliases=())
    return text_of(AvroSchema(Ref(ENVELOPE), types))


def writer_text(writer: AvroSchema, reader: AvroSchema) -> str:
    """Return the JSON of one writer's schema with END behind its values, for that reader.

    Raises ValueError if two of the writer's types or fields are one of the reader's; never for a reader that was
    merged from this writer.
    """
    # Give types and fields the reader's names, which change no byte. Then nothing depends on the rules for aliases of
    # the library that reads: Avro's Java library ignores the aliases of a type without a namespace.
    reader_types = _by_all_names(reader.types.values())
    names = {name: reader_types[name].name if name in reader_types else name for name in writer.types}
    _check_distinct("types", names.values())
    types: dict[str, Definition] = {}
    for name, definition in writer.types.items():
        types[names[name]] = _with_names_of(reader_types.get(name), definition, names)
    return reader_text(AvroSchema(rename_references(writer.root, names), types))


def _with_names_of(reader: Definition | None, definition: Definition, names: dict[str, str]) -> Definition:
    """Return a writer's type with the names of the reader's; a type that the reader lacks keeps its own."""
    definition = replace(definition, name=names[definition.name])
    if not isinstance(definition, AvroRecord):
        return definition
    reader_fields = _by_all_names(reader.fields) if isinstance(reader, AvroRecord) else {}
    fields = []
    for written in definition.fields:
        name = reader_fields.get(written.name, written).name
        fields.append(AvroField(name, rename_references(written.type, names)))
    _check_distinct(f"fields of {definition.name}", [field.name for field in fields])
    return replace(definition, fields=tuple(fields))


def _by_all_names(named: Iterable[N]) -> dict[str, N]:
    """Return types, or fields, by their names and aliases."""
    by_name: dict[str, N] = {}
    for thing in named:
        by_name |= dict.fromkeys((thing.name, *thing.aliases), thing)
    return by_name


def _check_distinct(things: str, names: Collection[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two {things} are one to the reader, by an alias; merge this version's schema as well")


def _spark_name(name: str) -> str:
    """Return a type's name for Avro 1.12, which Spark contains: a part that it refuses is written in hex."""
    return ".".join(part if is_name(part) else f"x{part.encode().hex()}" for part in name.split("."))
