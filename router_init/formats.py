"""What the values of a sample are: JSON, written with schemas of a registry, or nothing that is known."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from router.errors import join_names
from router_init.columns import look_at
from router_init.samples import MOST_RECORDS, Record, Sample
from router_schemas.model import ResolvedSchema
from router_schemas.registry_options import NotFound, RegistryRefuses
from router_schemas.wire_format import parse_values, payloads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from router_schemas.model import RegisteredSchema
    from router_schemas.registry_client import RegistryClient

LEAST_SHARE = 0.5
"""Of the values that are of a format: what else there is becomes dead letters."""
MOST_IDS = 50
"""Schemas that the registry is asked for: garbage may name any number."""
DECODERS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}
MOST_LEVELS = 100
"""Of objects that columns are made of: what is deeper is taken for garbage."""
MOST_ZEROS = 8192
"""Bytes of the least event of a schema; a type that is inside of itself ends there."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Event:
    """What a record says: its fields as route tests give them, and the schema and message that it was written with."""

    fields: dict[str, Any]
    key: bytes | None = None
    schema_id: int | None = None
    message: str | None = None


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
    names: set[str] | None = None
    """Names of fields that a schema declares; without it keys of maps could not be told from these."""

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
    records = [(key, value) for key, value in sample.records if value is not None]
    named = parse_values(pa.array([value for _, value in records], pa.binary()), indexed=False).ids
    ids = Counter(named[named > 0].tolist())
    schemas = {}
    for schema_id in sorted(dict(ids.most_common(MOST_IDS))):
        with suppress(NotFound, RegistryRefuses):  # garbage names any id
            if registry is not None:
                schemas[schema_id] = replace(registry.by_id(schema_id), subjects=registry.subjects_of(schema_id))
    framed = sum(ids[schema_id] for schema_id in schemas)
    least = max(1, LEAST_SHARE * len(records))
    if framed >= least:
        kinds = {schema.kind for schema in schemas.values()}
        decoder = DECODERS[kinds.pop()] if len(kinds) == 1 else "auto"
        seen = f"{framed:,} of {len(records):,} values name a known schema"
        names = {name for schema in schemas.values() if schema.kind == "JSON" for name in declared_names(schema.text)}
        return Found(sample, decoder, seen, tuple(_read_framed(records, schemas)), schemas, names)
    events = [Event(fields, key) for key, value in records if (fields := read_object(value)) is not None]
    seen = f"{len(events):,} of {len(records):,} values are JSON objects"
    if len(events) >= least:
        return Found(sample, "json", seen, tuple(events))
    if not records:
        seen = "there is no record yet"
    elif ids.total() >= least:
        missing = ", which does not know their ids" if registry else ": `--registry URL` says where it is"
        seen = f"{ids.total():,} of {len(records):,} values begin as those of a schema registry do{missing}"
    return Found(sample, "none", seen)


def read_object(value: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a value is; None if it is none, or nothing that can be read."""
    with suppress(ValueError, RecursionError):
        # NaN and Infinity are no JSON, and no whole numbers.
        event = json.loads(value.removeprefix(BOM).decode(), parse_constant=int)
        return event if isinstance(event, dict) and not _is_deeper(event, MOST_LEVELS) else None
    return None


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else look_at(value) if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in inside)


def _read_framed(records: Sequence[Record], schemas: dict[int, RegisteredSchema]) -> Iterator[Event]:
    """Yield what records say that schemas of a registry were written with."""
    values = pa.array([value for _, value in records], pa.binary())
    of_protobuf = {schema_id for schema_id, schema in schemas.items() if schema.kind == "PROTOBUF"}
    parsed = parse_values(values, of_protobuf)
    readers = [_make_reader(schemas.get(key.id or 0), key.path) for key in parsed.keys]
    readers.append(None)  # of the group -1: those that name no schema
    payloads = payloads_of(values, parsed).to_pylist()
    for (key, _), group, payload in zip(records, parsed.groups, payloads, strict=True):
        reader = readers[group]
        if reader is None:
            continue
        with suppress(Exception):  # whatever a library raises on garbage
            message, fields = reader(payload)
            yield Event(dict(fields), key, parsed.keys[group].id, message)


def _make_reader(
    schema: RegisteredSchema | None, path: tuple[int, ...] | None
) -> Callable[[bytes], tuple[str | None, Any]] | None:
    """Return what reads the full name of the message and the fields from a payload, and raises anything for garbage.

    None if it takes more than the schema alone. These are readers that this project did not write: what a value is
    does not come from the code that will decode it.
    """
    if schema is None or schema.references:
        return None
    if schema.kind == "JSON":
        return lambda payload: (None, read_object(payload))
    if schema.kind == "AVRO":
        parsed = fastavro.parse_schema(json.loads(schema.text))
        return lambda payload: (None, as_json(fastavro.schemaless_reader(io.BytesIO(payload), parsed, None)))
    # Without the extra its values are not looked at; garbage names any message.
    with suppress(ModuleNotFoundError, ValueError):
        from google.protobuf import message_factory  # type: ignore[import-untyped]
        from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

        from router_schemas.protobuf.descriptors import compile_schema, message_of, name_at

        files = compile_schema(ResolvedSchema(schema))
        name = name_at(files, path or ())
        message = message_factory.GetMessageClass(message_of(files, name))
        return lambda payload: (name, MessageToDict(message.FromString(payload), preserving_proto_field_name=True))
    return None


def least_event(schema: RegisteredSchema, message: str | None, path: tuple[str, ...]) -> Any:
    """Return the least event of a schema of Avro or Protobuf in which the field at a path can be set."""
    if schema.kind == "PROTOBUF":
        from router_schemas.protobuf.descriptors import compile_schema, message_of

        least = _least_message(message_of(compile_schema(ResolvedSchema(schema)), message or ""))
    else:
        least = _least_record(schema.text, path)
    return json.loads(json.dumps(least, default=bytes.decode))


def _least_message(descriptor: Any) -> dict[str, Any]:
    """Return the fields that a message must have, which only proto2 knows."""
    least = {}
    for member in descriptor.fields:
        if member.is_required:
            least[member.name] = _least_message(member.message_type) if member.message_type else member.default_value
    return least


def _least_record(schema: str, path: tuple[str, ...]) -> Any:
    numbers = count()

    def change_part(part: dict[str, Any]) -> dict[str, Any]:
        # Without its logical type a number is read as route tests take it; a decimal has one byte at least.
        if part.pop("logicalType", None) == "decimal" and part["type"] == "bytes":
            return {"type": "fixed", "size": 1, "name": f"decimal_{next(numbers)}"}
        if isinstance(part.get("type"), list):
            # The first type of a union is what comes out: null, unless the path goes on inside.
            part["type"].sort(key=lambda branch: (branch == "null") == (part.get("name") in path[:-1]))
        return part

    # Zeros are a value of every type: 0, a text or list of nothing, the first symbol.
    parsed = fastavro.parse_schema(json.loads(schema, object_hook=change_part))
    return fastavro.schemaless_reader(io.BytesIO(bytes(MOST_ZEROS)), parsed, None)


def find_rows(files: Sequence[Path], form: str) -> Found:
    """Return the rows found in files: the router reads their columns itself, so only their kinds are looked for."""
    names: set[str] = set()
    rows = chain.from_iterable(_read_rows(file, form, names) for file in files)
    events = tuple(Event(as_json(row)) for row in islice(rows, MOST_RECORDS))
    sample = Sample(join_names([file.name for file in files]), ((None, None),) * len(events))
    seen = f"rows of {form.upper() if form == 'csv' else form} files"
    return Found(sample, "rows", seen, events, names=names or None)


def declared_names(schema: str) -> set[str]:
    """Return the names of fields in a schema of JSON Schema or Avro; keys of maps stand in none."""
    names: set[str] = set()

    def note_names(part: dict[str, Any]) -> dict[str, Any]:
        if isinstance(part.get("properties"), dict):
            names.update(part["properties"])
        if isinstance(part.get("fields"), list):
            names.update(field["name"] for field in part["fields"] if isinstance(field, dict) and "name" in field)
        return part

    json.loads(schema, object_hook=note_names)
    return names


def _read_rows(file: Path, form: str, names: set[str]) -> Iterator[Any]:
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


def as_json(fields: Any) -> dict[str, Any]:
    """Return fields as JSON has them: times, decimals and bytes are texts, a map of Arrow is a list of pairs."""
    return dict(msgspec.json.decode(msgspec.json.encode(fields, enc_hook=str)))
