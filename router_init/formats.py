"""What the values of a sample are: JSON, written with schemas of a registry, or nothing that is known."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
import pyarrow.parquet as pq

from router.errors import join_names
from router_init.observed import look_at
from router_init.samples import MOST_RECORDS, Sample, Sampled
from router_schemas.model import LARGEST_ID, ResolvedSchema
from router_schemas.registry_options import NotFound, RegistryRefuses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path as FilePath

    from router_init.kinds import Path
    from router_schemas.model import RegisteredSchema
    from router_schemas.registry_client import RegistryClient

LEAST_SHARE = 0.5
"""Of the values that are of a format: what else there is becomes dead letters."""
PREFIX_BYTES = 5
"""A zero and the id of a schema."""
MOST_IDS = 50
"""Schemas that the registry is asked for: garbage may name any number."""
DECODERS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}
MOST_LEVELS = 100
"""Of objects that columns are made of: what is deeper is taken for garbage."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that SQL takes without backticks."""
MOST_ZEROS = 8192
"""Bytes of the least event of a schema; a type that is inside of itself ends there."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Event:
    """What a record says: its fields as JSON has them, and the schema and message that it was written with.

    Times, decimals and bytes are texts: only kinds are looked for in them.
    """

    record: Sampled
    fields: dict[str, Any]
    schema_id: int | None = None
    message: str | None = None

    @property
    def keys(self) -> list[tuple[str, str | int]]:
        """Return the fields that may be keys: whole numbers and texts, of plain names."""
        return [
            (name, value)
            for name, value in self.fields.items()
            if isinstance(value, str | int) and not isinstance(value, bool) and PLAIN_NAME.fullmatch(name)
        ]


@dataclass(frozen=True)
class Found:
    """What the values of a sample are: the decoder, and what records say that it could be seen of."""

    sample: Sample
    decoder: str
    seen: str
    """What was seen, with numbers, for a comment."""
    events: tuple[Event, ...] = ()
    schemas: dict[int, RegisteredSchema] = field(default_factory=dict)
    """By id, those that records name."""
    names: frozenset[str] = frozenset()
    """Names of fields that a schema declares, if it tells them from the keys of maps."""

    @property
    def subjects(self) -> dict[str, list[RegisteredSchema]]:
        """Return the subjects of the schemas with their versions: the topic's own, or all if it has none of its own."""
        by_subject: dict[str, list[RegisteredSchema]] = {}
        for schema in self.schemas.values():
            for subject, _ in schema.subjects:
                by_subject.setdefault(subject, []).append(schema)
        own = f"{self.sample.name}-value"
        return {own: by_subject[own]} if own in by_subject else dict(sorted(by_subject.items()))


def find_format(sample: Sample, registry: RegistryClient | None) -> Found:
    """Return the format of most values of a sample."""
    values = [record for record in sample.records if record.value is not None]
    ids = Counter(schema_id for record in values if (schema_id := id_of(record.value)) is not None)
    schemas = _ask(registry, [schema_id for schema_id, _ in ids.most_common(MOST_IDS)]) if registry else {}
    framed = sum(ids[schema_id] for schema_id in schemas)
    least = max(1, LEAST_SHARE * len(values))
    if framed >= least:
        return _of_registry(sample, schemas, f"{framed:,} of {len(values):,} values name a known schema")
    events = [Event(record, fields) for record in values if (fields := read_object(record.value)) is not None]
    seen = f"{len(events):,} of {len(values):,} values are JSON objects"
    if len(events) >= least:
        return Found(sample, "json", seen, tuple(events))
    if not values:
        seen = "there is no record yet"
    elif ids.total() >= least:
        seen = f"{ids.total():,} of {len(values):,} values begin as those of a schema registry do"
        seen += ", which does not know their ids" if registry else ": `--registry URL` says where it is"
    return Found(sample, "none", seen)


def id_of(value: bytes | None) -> int | None:
    """Return the id that a value in Confluent's wire format begins with; None for any other."""
    if value is None or len(value) < PREFIX_BYTES or value[0] != 0:
        return None
    number = int.from_bytes(value[1:PREFIX_BYTES], "big")
    return number if 0 < number <= LARGEST_ID else None


def read_object(value: bytes | None) -> dict[str, Any] | None:
    """Return the JSON object that a value is; None if it is none, or nothing that can be read."""
    try:
        event = json.loads((value or b"").removeprefix(BOM).decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and not _is_deeper(event, MOST_LEVELS) else None


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else look_at(value) if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in inside)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _ask(registry: RegistryClient, ids: Sequence[int]) -> dict[int, RegisteredSchema]:
    """Return the schemas that the registry has of some ids, the oldest first, with their subjects."""
    schemas = {}
    for schema_id in sorted(ids):
        with suppress(NotFound, RegistryRefuses):  # garbage names any id
            schemas[schema_id] = replace(registry.by_id(schema_id), subjects=registry.subjects_of(schema_id))
    return schemas


def _of_registry(sample: Sample, schemas: dict[int, RegisteredSchema], seen: str) -> Found:
    kinds = {schema.kind for schema in schemas.values()}
    decoder = DECODERS[next(iter(kinds))] if len(kinds) == 1 else "auto"
    readers: dict[int | None, Read | None] = {number: _reader_of(schema) for number, schema in schemas.items()}
    events = []
    for record in sample.records:
        schema_id = id_of(record.value)
        reader = readers.get(schema_id)
        if record.value is None or reader is None:
            continue
        with suppress(Exception):  # whatever a library raises on garbage
            message, fields = reader(record.value)
            if isinstance(fields, dict):
                events.append(Event(record, as_json(fields), schema_id, message))
    names = {name for schema in schemas.values() if schema.kind == "JSON" for name in declared_names(schema.text)}
    return Found(sample, decoder, seen, tuple(events), schemas, frozenset(names))


Read = Callable[[bytes], "tuple[str | None, Any]"]
"""What reads a value: the full name of the message, and its fields; raises anything for garbage."""


def _reader_of(schema: RegisteredSchema) -> Read | None:
    """Return the reader of values of a schema; None if it takes more than the schema alone.

    Readers that this project did not write: what a value is does not come from the code that will decode it.
    """
    if schema.references:
        return None
    if schema.kind == "JSON":
        return lambda value: (None, read_object(value[PREFIX_BYTES:]))
    if schema.kind == "PROTOBUF":
        return _protobuf_reader(schema)
    parsed = fastavro.parse_schema(json.loads(schema.text))
    return lambda value: (None, fastavro.schemaless_reader(io.BytesIO(value[PREFIX_BYTES:]), parsed, None))


def least_event(schema: RegisteredSchema, path: Path) -> Any:
    """Return the least event of a schema of Avro in which the field at a path can be set."""

    def change_part(part: dict[str, Any]) -> dict[str, Any]:
        # Without its logical type a number is read as route tests take it.
        part.pop("logicalType", None)
        if isinstance(part.get("type"), list):
            # The first type of a union is what comes out: null, unless the path goes on inside.
            part["type"].sort(key=lambda branch: (branch == "null") == (part.get("name") in path[:-1]))
        return part

    parsed = fastavro.parse_schema(json.loads(schema.text, object_hook=change_part))
    # Zeros are a value of every type: 0, a text or list of nothing, the first symbol.
    fields = fastavro.schemaless_reader(io.BytesIO(bytes(MOST_ZEROS)), parsed, None)
    return json.loads(json.dumps(fields, default=bytes.decode))


def _protobuf_reader(schema: RegisteredSchema) -> Read | None:
    try:
        from google.protobuf import message_factory  # type: ignore[import-untyped]
        from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

        from router_schemas.protobuf.descriptors import compile_schema, message_of, name_at
    except ModuleNotFoundError:
        return None  # without the extra its values are not looked at
    from router_schemas.wire_format import read_index

    files = compile_schema(ResolvedSchema(schema))

    def read(value: bytes) -> tuple[str, Any]:
        _, path, end = read_index(value[PREFIX_BYTES:])
        name = name_at(files, path)
        message = message_factory.GetMessageClass(message_of(files, name)).FromString(value[PREFIX_BYTES + end :])
        return name, MessageToDict(message, preserving_proto_field_name=True)

    return read


def find_rows(files: Sequence[FilePath], form: str) -> Found:
    """Return the rows found in files: the router reads their columns itself, so only their kinds are looked for."""
    names: set[str] = set()
    rows = itertools.chain.from_iterable(_read_rows(file, form, names) for file in files)
    events = [Event(Sampled(None), as_json(row)) for row in itertools.islice(rows, MOST_RECORDS)]
    sample = Sample(join_names([file.name for file in files]), tuple(event.record for event in events))
    seen = f"rows of {form.upper() if form == 'csv' else form} files"
    return Found(sample, "rows", seen, tuple(events), names=frozenset(names))


def declared_names(schema: str) -> set[str]:
    """Return the names of fields in a schema of JSON Schema or Avro; keys of maps stand in none."""
    names: set[str] = set()

    def note_names(part: dict[str, Any]) -> dict[str, Any]:
        if isinstance(part.get("properties"), dict):
            names.update(part["properties"])
        if isinstance(part.get("name"), str):
            names.add(part["name"])
        return part

    json.loads(schema, object_hook=note_names)
    return names


def as_json(fields: Any) -> dict[str, Any]:
    """Return fields as JSON has them: times, decimals and bytes are texts, a map of Arrow is a list of pairs."""
    return dict(msgspec.json.decode(msgspec.json.encode(fields, enc_hook=str)))


def _read_rows(file: FilePath, form: str, names: set[str]) -> Iterator[Any]:
    """Yield the rows of a file, and add to `names` those of fields if its rows have maps also."""
    match form:
        case "csv":
            with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
                yield from csv.DictReader(lines, restkey="")
        case "parquet":
            for batch in pq.ParquetFile(file).iter_batches(MOST_RECORDS):
                yield from batch.to_pylist()
        case "avro":
            with file.open("rb") as content:
                reader = fastavro.reader(content)
                names |= declared_names(json.dumps(reader.writer_schema))
                yield from reader
