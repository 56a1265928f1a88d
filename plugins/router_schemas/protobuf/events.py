"""Turn records into events of one type, whatever message and version each was written with.

The events of all messages share one struct: a field has one type in all of them, and is null in a message that lacks
it. Runs on executors, with what a library made on the driver.

A message may wrap another one (`unwrapped`). The outer message is then decoded as any other. It says which message its
payload holds: in a field with the name, in a field with the id of a schema of its own, or, where the payload is a
google.protobuf.Any, by the type URL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router_schemas.model import LARGEST_ID, VALUE_HEADER, WriterSchema
from router_schemas.protobuf.decode import MessageReader, decode
from router_schemas.wire_format import ADDED, FramedRows, about, at_rows, framed_rows, wanted, why, widened

if TYPE_CHECKING:
    from uuid import UUID

    from numpy.typing import NDArray

    from router_schemas.model import SchemaInfo
    from router_schemas.wire_format import WireFormat

    Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """How records become events: plain data that travels to the executors.

    `event` is the type of all events; `written` is by the writer's schema. `header` is the name of the record header
    that may hold a GUID. `only` names the message that is read where ids and GUIDs do not count; empty if they do,
    and a writer's schema that is not known is wanted.
    """

    event: pa.StructType
    readers: tuple[MessageReader, ...] = ()
    written: dict[str, SchemaInfo] = field(default_factory=dict)
    wire_format: WireFormat = "confluent"
    header: str = VALUE_HEADER
    only: str = ""
    indexed: bool | frozenset[int | bytes] = True
    """Which schemas have a message index in their prefixes: all, or these ids and GUIDs."""
    origins: dict[str, str] = field(default_factory=dict)
    """Field of the event -> the message and version that brought it."""


def events(records: pa.RecordBatch, known: Events) -> pa.RecordBatch:
    """Return `event`, `_error`, `_wanted` and the columns of ABOUT. Never raises for what a row holds.

    Needs the columns `value` and `headers`. A null value is a tombstone: no event and no reason but that.
    """
    return read(found_in(records, known), known)


def found_in(records: pa.RecordBatch, known: Events) -> FramedRows:
    """Return what records were written with."""
    return framed_rows(records, known.wire_format, known.header, not known.only, known.indexed)


def read(found: FramedRows, known: Events) -> pa.RecordBatch:
    """Return what `events` does for records whose schemas and payloads are found."""
    infos = [known.written.get(writer) for writer in found.writers]
    made = _read(found, known, infos)
    columns = [made.events, _reasons(found, known, infos, made.reasons), wanted(found, infos, known.only)]
    return pa.RecordBatch.from_arrays([*columns, *about(found, infos)], names=["event", *ADDED.names])


@dataclass(frozen=True)
class _Read:
    """Decoded events of all rows, and why rows have none."""

    events: pa.StructArray
    reasons: dict[int, str]


def _read(found: FramedRows, known: Events, infos: list[SchemaInfo | None]) -> _Read:
    """Decode the rows of each reader together, and put them where they were."""
    numbers: dict[str | None, int] = {reader.message: number for number, reader in enumerate(known.readers)}
    of_writer = [numbers.get(one.message, -1) if one and one.reason is None else -1 for one in infos]
    readers = np.array([*of_writer, -1], np.int64)
    of_row = readers[found.groups]  # a row without a schema has the group -1, which is the last of these
    bodies = found.payloads
    parts: list[pa.StructArray] = []
    order: list[NDArray[np.int64]] = []
    reasons: dict[int, str] = {}
    for number in np.unique(of_row[of_row >= 0]):
        rows = np.flatnonzero(of_row == number)
        whole = len(rows) == len(bodies)
        done = decode(bodies if whole else bodies.take(pa.array(rows)), known.readers[number])
        if done.reasons.null_count < len(rows):
            said = done.reasons.to_pylist()
            reasons |= {int(row): text for row, text in zip(rows, said, strict=True) if text is not None}
        part = widened(done.events, known.event)
        if whole:
            return _Read(part, reasons)
        parts.append(part)
        order.append(rows)
    if not parts:
        return _Read(pa.nulls(len(bodies), known.event), reasons)
    return _Read(at_rows(parts, order, len(bodies)), reasons)


def _reasons(found: FramedRows, known: Events, infos: list[SchemaInfo | None], read: dict[int, str]) -> pa.StringArray:
    """Return why rows have no event: their wire format, their schema, their payload."""
    reasons = why(found, infos, known.only)
    if not read:
        return reasons
    rows = np.array([*read], np.int64)
    hit = np.zeros(len(reasons), bool)
    hit[rows] = True
    said = [read[row] for row in sorted(read)]
    return pc.replace_with_mask(reasons, pa.array(hit), pa.array(said, pa.string()))


WRAPPED = "wrapped"
"""What stands before the schema of a payload that is wanted, to tell it from that of an outer message."""
ANY = pa.struct([("type_url", pa.string()), ("value", pa.binary())])
_NO_PAYLOAD = "wrapper: there is no payload"
_NO_NAME = "wrapper: the payload's message is not named"
_NO_ID = f"wrapper: the payload's schema id is not a number from 0 to {LARGEST_ID}"


@dataclass(frozen=True)
class Fields:
    """Where an outer message has its payload, and what names the message inside: paths of columns, or nothing."""

    payload: tuple[str, ...]
    name: tuple[str, ...] = ()
    schema_id: tuple[str, ...] = ()

    @staticmethod
    def of(payload: str, name: str | None = None, schema_id: str | None = None) -> Fields:
        """Return the fields of paths with dots."""
        return Fields(*(tuple(path.split(".")) if path else () for path in (payload, name, schema_id)))


@dataclass(frozen=True)
class Wrapped:
    """How wrapped records become events: plain data that travels to the executors.

    `messages`: for the schema of an outer message, what payloads may call a message -> its full name.
    """

    outer: Events
    inner: Events
    fields: Fields
    messages: dict[int | UUID | None, dict[str, str]] = field(default_factory=dict)


def unwrapped(records: pa.RecordBatch, known: Wrapped) -> pa.RecordBatch:
    """Return what `events` does, for the messages inside."""
    found = found_in(records, known.outer)
    outer = read(found, known.outer)
    inner = read(_inside(found, outer, known), known.inner)
    wanted = pc.binary_join_element_wise(WRAPPED, inner.column("_wanted"), " ")
    at = inner.schema.get_field_index("_wanted")
    return inner.set_column(at, "_wanted", pc.coalesce(outer.column("_wanted"), wanted))


def column_at(event: pa.StructArray, path: tuple[str, ...]) -> pa.Array:
    """Return the column at a path, null below a null message."""
    for name in path:
        event = pc.struct_field(event, [event.type.get_field_index(name)])
    return event


def type_at(event: pa.DataType, path: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of the column at a path; None where there is no such path."""
    for name in path:
        at = event.get_field_index(name) if pa.types.is_struct(event) else -1
        if at < 0:
            return None
        event = event.field(at).type
    return event


def _inside(found: FramedRows, outer: pa.RecordBatch, known: Wrapped) -> FramedRows:
    """Return the payloads and what they were written with."""
    event, fields = outer.column("event"), known.fields
    missing = [path for path in (fields.payload, fields.name, fields.schema_id) if type_at(event.type, path) is None]
    if missing:
        reasons = pc.coalesce(outer.column("_error"), f"wrapper: the message has no field {'.'.join(missing[0])}")
        none = np.full(len(event), -1, np.int64)
        return FramedRows(pa.nulls(len(event), pa.binary()), none, (), reasons, found.ids)
    payload = column_at(event, fields.payload)
    if fields.schema_id:
        named = _by_id(payload, column_at(event, fields.schema_id))
    elif fields.name:
        named = _by_name(payload, column_at(event, fields.name), found, known)
    else:
        payload, url = pc.struct_field(payload, [1]), pc.struct_field(payload, [0])
        named = _by_name(payload, url, found, known)
    absent = pc.if_else(payload.is_null(), _NO_PAYLOAD, pa.scalar(None, pa.string()))
    reasons = pc.coalesce(outer.column("_error"), absent, named.reasons)
    groups = np.where(np.asarray(reasons.is_null()), named.groups, -1)
    return FramedRows(payload, groups, named.writers, reasons, named.ids)


def _by_id(payloads: pa.BinaryArray, column: pa.Array) -> FramedRows:
    """Name payloads by the ids of their schemas."""
    numbers = column.cast(pa.int64())
    fits = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, LARGEST_ID)).fill_null(False)
    ids = pc.if_else(fits, numbers, pa.scalar(None, pa.int64())).cast(pa.int32())
    groups, distinct = _coded(ids)
    reasons = pc.if_else(fits, pa.scalar(None, pa.string()), _NO_ID)
    return FramedRows(payloads, groups, tuple(str(WriterSchema(number)) for number in distinct), reasons, ids)


def _by_name(payloads: pa.BinaryArray, names: pa.StringArray, found: FramedRows, known: Wrapped) -> FramedRows:
    """Name payloads by messages of the schema that their outer message is of."""
    codes, distinct = _coded(names)
    known_ones = (codes >= 0) & (found.groups >= 0)
    pairs = np.where(known_ones, found.groups * len(distinct) + codes, -1)
    groups, both = _coded(pa.array(pairs, mask=pairs < 0))
    schemas = [None if known.outer.only else WriterSchema.of(writer).schema for writer in found.writers]
    named = [_resolved(schemas[pair // len(distinct)], distinct[pair % len(distinct)], known) for pair in both]
    writers = tuple(writer for writer, _ in named)
    reasons = pa.array([*(why for _, why in named), _NO_NAME], pa.string()).take(pa.array(groups % (len(named) + 1)))
    return FramedRows(payloads, groups, writers, reasons, found.ids)


def _resolved(schema: int | UUID | None, name: str, known: Wrapped) -> tuple[str, str | None]:
    """Return what a message that a payload names is called, or why there is none."""
    called = name.rpartition("/")[2].removeprefix(".")  # a type URL ends with the name
    message = known.messages.get(schema, {}).get(called)
    if message is not None:
        return str(WriterSchema(schema, message)), None
    where = "the file" if schema is None else str(WriterSchema(schema))
    return "", f"wrapper: {where} has no message {called[:100]!r}" if called else _NO_NAME


def _coded(column: pa.Array) -> tuple[Numbers, list[Any]]:
    """Return the distinct values of a column, and for each row the position of its value, -1 where it is null."""
    coded = column.dictionary_encode()
    return np.asarray(coded.indices.fill_null(-1), np.int64), coded.dictionary.to_pylist()
