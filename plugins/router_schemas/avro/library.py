"""Collect the Avro schemas that records were written with, of a registry or a file. For the driver.

They are read together: one reader's schema per record, one event for all.

Spark's `from_avro` does not tell a good record from a broken one. It reads a value and stops, so bytes after it go
unnoticed; and in PERMISSIVE mode a value that cannot be read becomes a struct whose fields are all null, as a good
record may be. So the value is read as the first of two fields, `value` and `end`, from the payload with END behind it:

    from_avro(concat(payload, END), writer_text(...), {"avroSchema": reader_text(...), "mode": "PERMISSIVE"})

| `end` | the payload is |
|---|---|
| END | one whole value: the event is `value` |
| null | broken or cut off, or null itself |
| anything else | a value with more bytes behind it |

A payload that is cut off is always found: the value then takes bytes of END, and too few are left for `end`. This
needs no required field in the schema, and decodes once. Only a producer that writes END itself behind a value can
make Spark overlook what follows.

Spark allocates what a length in the payload claims, before it reads. A record of a few bytes can claim a text of 2 GiB,
and a JVM out of memory ends whatever the mode is (tried: the driver died). The JVMs that decode have to be started
with `-Dorg.apache.avro.limits.string.maxLength=N`, `...limits.bytes.maxLength=N` and
`...limits.collectionItems.maxLength=N` (Apache Avro, SystemLimitException): beyond these a record is a broken one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pyspark.sql import types as T

from router import StartError
from router_schemas.avro.merge import RecordVersion, merge
from router_schemas.avro.model import (
    END,
    FINGERPRINT,
    MARKER,
    AvroField,
    AvroRecord,
    AvroSchema,
    Definition,
    Fixed,
    Ref,
    renamed,
    single_object_header,
    text_of,
)
from router_schemas.avro.parser import parse, parse_text
from router_schemas.avro.spark_types import mapped
from router_schemas.library import HOLD, EventMaking, Library, RegistryLibrary
from router_schemas.model import VALUE_HEADER, SchemaInfo, SchemaOrigin, WriterSchema, schema_file
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from router_schemas.model import Kind, ResolvedSchema, SchemaConflict, Taken


WireFormat = Literal["confluent", "none", "single_object"]


@dataclass(frozen=True)
class RecordUse:
    """A schema that records were written with; `name` is the full name of its record."""

    origin: SchemaOrigin
    schema: AvroSchema
    name: str

    @staticmethod
    def of(origin: SchemaOrigin, schema: AvroSchema) -> RecordUse:
        """Return the use of a schema; raise ValueError for one that is no record."""
        if not isinstance(schema.root, Ref):
            raise ValueError("it is no record, and an event has fields; wrap it in one")
        return RecordUse(origin, schema, schema.root.name)


@dataclass(frozen=True)
class RecordReader:
    """How one record is read: the text of its reader's schema, those of its writers by prefix, and the columns."""

    reader: str
    writers: dict[bytes, str]
    struct: T.StructType


@dataclass(frozen=True)
class Records:
    """How values are read. `written` is by prefix: the bytes before a value, or those in its `header`.

    `only` names the file whose schema reads all values, whatever their ids and GUIDs (the prefix is then b""); it is
    empty if these count, and a prefix that is not known is wanted.
    """

    event: T.StructType
    records: tuple[RecordReader, ...] = ()
    written: dict[bytes, SchemaInfo] = field(default_factory=dict)
    wire_format: WireFormat = "confluent"
    header: str = VALUE_HEADER
    only: str = ""
    origins: dict[str, str] = field(default_factory=dict)
    """Field of the event -> the record and version that brought it."""


def records_of(uses: Mapping[bytes, RecordUse], reasons: Mapping[bytes, str], taken: Taken | None = None) -> Records:
    """Return one reader's schema per record; versions that do not fit the oldest, or what is `taken`, are refused."""
    made = _RecordEvent(uses, reasons, taken)
    event = T.StructType([T.StructField(name, kind) for name, (kind, _) in made.fields.items()])
    return Records(event, tuple(made.readers), made.written, origins=made.origins)


class _RecordEvent(EventMaking[bytes, RecordUse, RecordReader]):
    """The event of Avro records, by the bytes before them."""

    def merged(self, uses: list[RecordUse]) -> tuple[AvroSchema, Sequence[SchemaConflict]]:
        found = merge([RecordVersion(use.origin.label, use.schema) for use in uses])
        return found.reader, found.conflicts

    def reader(self, merged: AvroSchema, fits: Mapping[bytes, RecordUse]) -> tuple[RecordReader, T.StructType]:
        found = mapped(merged)
        texts = {prefix: writer_text(use.schema, found.reader) for prefix, use in fits.items()}
        return RecordReader(reader_text(found.reader), texts, found.struct), found.struct


@dataclass
class Writers(RegistryLibrary[RecordUse, Records]):
    """Avro schemas of a registry that records were written with, by ids and GUIDs."""

    kind: ClassVar[Kind] = "AVRO"

    header: str = VALUE_HEADER

    def use(self, writer: WriterSchema, resolved: ResolvedSchema, origin: SchemaOrigin) -> RecordUse:
        """Return the use of a writer's schema."""
        return RecordUse.of(origin, parse(resolved))

    def make(self) -> Records:
        """Return one reader's schema per record, and the schema of every prefix."""
        uses = {schema_bytes(WriterSchema.of(writer)): use for writer, use in self.uses.items()}
        reasons = {schema_bytes(WriterSchema.of(writer)): reason for writer, reason in self.reasons.items()}
        return replace(records_of(uses, reasons, self.taken), header=self.header)


@dataclass
class SingleObjects(Writers):
    """Avro schemas of subjects by their fingerprints, which a registry cannot be asked for."""

    keep: str = "objects"

    def learn(self, wanted: list[str]) -> None:
        """Learn all versions of the subjects; a fingerprint that is wanted and not among theirs is unknown."""
        if wanted:
            self.schemas.poll(self.subjects, wait=True)
        super().learn([])
        reason, until = f"no version of {', '.join(self.subjects)} has the", self.clock() + HOLD
        self.unknown |= {text: (f"{reason} {text}", until) for text in wanted}
        for use in self.uses.values():
            self.unknown.pop(f"{FINGERPRINT}{single_object_header(use.schema)[2:].hex()}", None)

    def make(self) -> Records:
        """Return one reader's schema per record, and the schema of every fingerprint."""
        uses: dict[bytes, RecordUse] = {}
        unknown = {text: reason for text, (reason, _) in self.unknown.items() if text.startswith(FINGERPRINT)}
        reasons = {_fingerprinted(text): reason for text, reason in unknown.items()}
        for use in sorted(self.uses.values(), key=lambda use: use.origin.age):
            header = single_object_header(use.schema)
            older = uses.setdefault(header, use)
            # a fingerprint does not tell logical types, so it may be that of two schemas that mean different things
            both = merge([RecordVersion(one.origin.label, one.schema) for one in (older, use)])
            if both.conflicts:
                reasons[header] = f"{both.conflicts[0]}; both have one fingerprint"
        return replace(records_of(uses, reasons), wire_format="single_object")


class OneSchema(Library[Records]):
    """The schema of a file, which reads all values, whatever schema a value names."""

    def __init__(self, path: Path, wire_format: WireFormat, header: str = VALUE_HEADER) -> None:
        with schema_file(path):
            use = RecordUse.of(SchemaOrigin(path.name), parse_text(path.read_text(encoding="utf-8")))
        key = single_object_header(use.schema) if wire_format == "single_object" else b""
        made = records_of({key: use}, {})
        if not made.records:
            raise StartError(f"schema file {path}: {made.written[key].reason}")
        self._made = replace(made, wire_format=wire_format, header=header, only=path.name)

    @property
    def empty(self) -> bool:
        """Return that the schema is known."""
        return False

    def refreshed(self, wanted: Iterable[str] = ()) -> Records:
        """Return how the values are read, always the same."""
        return self._made


def _fingerprinted(text: str) -> bytes:
    return MARKER + bytes.fromhex(text.removeprefix(FINGERPRINT))


NAME, MARK = "Router_envelope", "Router_end"


def reader_text(reader: AvroSchema) -> str:
    """Return the JSON of a reader's schema with END behind its values; raise ValueError when it has NAME or MARK."""
    for name in (NAME, MARK):
        if name in reader.types:
            raise ValueError(f"the schema has a type {name}, which is needed to find broken records; rename it")
    fields = (AvroField("value", reader.root), AvroField("end", Ref(MARK)))
    plain = {name: _without_aliases(definition) for name, definition in reader.types.items()}
    return text_of(AvroSchema(Ref(NAME), {NAME: AvroRecord(NAME, fields), MARK: Fixed(MARK, len(END)), **plain}))


def writer_text(writer: AvroSchema, reader: AvroSchema) -> str:
    """Return the JSON of one writer's schema with END behind its values, for that reader.

    Types and fields are called as the reader calls them. Names are not part of what is written, and so nothing is
    left to the reading library's rules for aliases: Avro's Java library has none for a name without namespace. Raises
    ValueError when two of the writer's types or fields are one of the reader's; never so for a reader merged from it.
    """
    known = {name: one for one in reader.types.values() for name in (one.name, *one.aliases)}
    names = {name: known[name].name if name in known else name for name in writer.types}
    _check_distinct("types", names.values())
    types = {names[name]: _as_known(one, known.get(name), names) for name, one in writer.types.items()}
    return reader_text(AvroSchema(renamed(writer.root, names), types))


def _as_known(definition: Definition, reader: Definition | None, names: dict[str, str]) -> Definition:
    """Return a writer's type with the names of the reader's; a type that the reader lacks keeps its own."""
    definition = replace(definition, name=names[definition.name])
    if not isinstance(definition, AvroRecord):
        return definition
    columns = reader.fields if isinstance(reader, AvroRecord) else ()
    called = {name: column.name for column in columns for name in (column.name, *column.aliases)}
    fields = tuple(AvroField(called.get(one.name, one.name), renamed(one.type, names)) for one in definition.fields)
    _check_distinct(f"fields of {definition.name}", [field.name for field in fields])
    return replace(definition, fields=fields)


def _check_distinct(what: str, names: Collection[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two {what} are one to the reader, by an alias; merge this version's schema as well")


def _without_aliases(definition: Definition) -> Definition:
    if isinstance(definition, AvroRecord):
        definition = replace(definition, fields=tuple(replace(field, aliases=()) for field in definition.fields))
    return replace(definition, aliases=())
