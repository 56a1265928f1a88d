"""Turn records into events of one type, whatever message and version each was written with.

The events of all messages share one struct: a field has one type in all of them, and is null in a message that lacks
it. Runs on executors, with what a library made on the driver.

A message may wrap another one (`wrapped_events`). The outer message is then decoded as any other. The message in its
payload is named by a field with the name, by a field with the id of a schema of its own, or, if the payload is a
google.protobuf.Any, by the type URL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router_schemas.model import LARGEST_ID, VALUE_HEADER, WriterSchema
from router_schemas.protobuf.decode import MessageReader, decode_payloads
from router_schemas.wire_format import (
    ADDED_COLUMNS,
    FramedRows,
    at_rows,
    event_reasons,
    framed_rows,
    schema_columns,
    wanted_writers,
    widen_structs,
)

if TYPE_CHECKING:
    from uuid import UUID

    from numpy.typing import NDArray

    from router_schemas.model import SchemaInfo
    from router_schemas.wire_format import WireFormat

    Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """The readers that make records events: plain data that travels to the executors.

    `event` is the type of all events; `written` is by the writer's schema. `header` is the name of the record header
    that may hold a GUID. `only` is the name of the message that is read if ids and GUIDs do not count; it is empty if
    they do, and an unknown writer's schema is then wanted.
    """

    event: pa.StructType
    readers: tuple[MessageReader, ...] = ()
    written: dict[str, SchemaInfo] = field(default_factory=dict)
    wire_format: WireFormat = "confluent"
    header: str = VALUE_HEADER
    only: str = ""
    absence: str = ""
    """Why the registry does not give an id that it does not have, with `{id}` in the place of the id."""
    indexed: bool | frozenset[int | bytes] = True
    """Which schemas have a message index in their prefixes: all, or these ids and GUIDs."""
    origins: dict[str, str] = field(default_factory=dict)
    """Field of the event -> the message and version that brought it."""


def message_events(records: pa.RecordBatch, known: Events) -> pa.RecordBatch:
    """Return `event`, `_error`, `_wanted` and SCHEMA_COLUMNS. Never raises for the content of a row.

    Needs the columns `value` and `headers`. A null value is a tombstone: no event, and that as the reason.
    """
    return decode_framed(frame_messages(records, known), known)


def frame_messages(records: pa.RecordBatch, known: Events) -> FramedRows:
    """Return the payloads and writers of records."""
    return framed_rows(records, known.wire_format, known.header, not known.only, known.indexed)


def decode_framed(rows: FramedRows, known: Events) -> pa.RecordBatch:
    """Return the columns of `message_events` for records whose schemas and payloads are found."""
    infos = [known.written.get(writer) for writer in rows.writers]
    decoded, faults = _decode_rows(rows, known, infos)
    reasons = event_reasons(rows, infos, known.only, known.absence)
    if faults:
        has_fault = np.zeros(len(reasons), bool)
        has_fault[list(faults)] = True
        in_order = [faults[row] for row in sorted(faults)]
        reasons = pc.replace_with_mask(reasons, pa.array(has_fault), pa.array(in_order, pa.string()))
    columns = [decoded, reasons, wanted_writers(rows, infos, known.only), *schema_columns(rows, infos)]
    return pa.RecordBatch.from_arrays(columns, names=["event", *ADDED_COLUMNS.names])


def _decode_rows(
    rows: FramedRows, known: Events, infos: list[SchemaInfo | None]
) -> tuple[pa.StructArray, dict[int, str]]:
    """Decode the rows of each reader together, and put them where they were; also return the faults of payloads."""
    numbers: dict[str | None, int] = {reader.message: number for number, reader in enumerate(known.readers)}
    # A row without a schema has the group -1, which is the last of these.
    readers = np.full(len(infos) + 1, -1, np.int64)
    for group, info in enumerate(infos):
        if info is not None and info.reason is None:
            readers[group] = numbers.get(info.message, -1)
    reader_of_row = readers[rows.groups]
    parts: list[pa.StructArray] = []
    places: list[NDArray[np.int64]] = []
    faults: dict[int, str] = {}
    for number in np.unique(reader_of_row[reader_of_row >= 0]):
        place = np.flatnonzero(reader_of_row == number)
        payloads = rows.payloads
        if len(place) < len(payloads):
            payloads = payloads.take(pa.array(place))
        decoded = decode_payloads(payloads, known.readers[number])
        if decoded.reasons.null_count < len(place):
            for row, reason in zip(place.tolist(), decoded.reasons.to_pylist(), strict=True):
                if reason is not None:
                    faults[row] = reason
        parts.append(widen_structs(decoded.events, known.event))
        places.append(place)
    count = len(rows.payloads)
    if not parts:
        return pa.nulls(count, known.event), faults
    if len(places[0]) == count:  # all rows have one reader: nothing has to be put in order
        return parts[0], faults
    return at_rows(parts, places, count), faults


WRAPPED_PREFIX = "wrapped"
"""The word before a wanted schema of a payload, to distinguish it from that of an outer message."""
ANY_TYPE = pa.struct([("type_url", pa.string()), ("value", pa.binary())])
_NO_PAYLOAD = "wrapper: there is no payload"
_NO_NAME = "wrapper: the payload's message is not named"
_NO_SCHEMA_ID = f"wrapper: the payload's schema id is not a number from 0 to {LARGEST_ID}"


@dataclass(frozen=True)
class Fields:
    """The fields of an outer message with its payload, and with the name of the message inside: paths, or nothing."""

    payload: tuple[str, ...]
    name: tuple[str, ...] = ()
    schema_id: tuple[str, ...] = ()

    @staticmethod
    def of(payload: str, name: str | None = None, schema_id: str | None = None) -> Fields:
        """Return the fields of paths with dots."""
        return Fields(
            payload=tuple(payload.split(".")),
            name=tuple(name.split(".")) if name else (),
            schema_id=tuple(schema_id.split(".")) if schema_id else (),
        )


@dataclass(frozen=True)
class Wrapped:
    """The readers that make wrapped records events: plain data that travels to the executors.

    `messages`: for the schema of an outer message, what payloads may call a message -> its full name.
    """

    outer: Events
    inner: Events
    fields: Fields
    messages: dict[int | UUID | None, dict[str, str]] = field(default_factory=dict)


def wrapped_events(records: pa.RecordBatch, known: Wrapped) -> pa.RecordBatch:
    """Return the columns of `message_events`, for the messages inside."""
    rows = frame_messages(records, known.outer)
    outer = decode_framed(rows, known.outer)
    inner = decode_framed(_frame_inside(rows, outer, known), known.inner)
    wanted_inside = pc.binary_join_element_wise(WRAPPED_PREFIX, inner.column("_wanted"), " ")
    position = inner.schema.get_field_index("_wanted")
    return inner.set_column(position, "_wanted", pc.coalesce(outer.column("_wanted"), wanted_inside))


def column_at(event: pa.StructArray, path: tuple[str, ...]) -> pa.Array:
    """Return the column at a path, null below a null message."""
    for name in path:
        event = pc.struct_field(event, [event.type.get_field_index(name)])
    return event


def type_at(event: pa.DataType, path: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of the column at a path; None if there is no such path."""
    for name in path:
        if not pa.types.is_struct(event) or event.get_field_index(name) < 0:
            return None
        event = event.field(name).type
    return event


def _frame_inside(rows: FramedRows, outer: pa.RecordBatch, known: Wrapped) -> FramedRows:
    """Return the payloads in outer messages, and their writers."""
    event = outer.column("event")
    fields = known.fields
    for path in (fields.payload, fields.name, fields.schema_id):
        if type_at(event.type, path) is None:
            reasons = pc.coalesce(outer.column("_error"), f"wrapper: the message has no field {'.'.join(path)}")
            no_groups = np.full(len(event), -1, np.int64)
            return FramedRows(pa.nulls(len(event), pa.binary()), no_groups, (), reasons, rows.ids)
    payload = column_at(event, fields.payload)
    if fields.schema_id:
        named = _name_by_id(payload, column_at(event, fields.schema_id))
    elif fields.name:
        named = _name_by_text(payload, column_at(event, fields.name), rows, known)
    else:
        any_message = payload
        payload = pc.struct_field(any_message, [1])
        named = _name_by_text(payload, pc.struct_field(any_message, [0]), rows, known)
    absent = pc.if_else(payload.is_null(), _NO_PAYLOAD, pa.scalar(None, pa.string()))
    reasons = pc.coalesce(outer.column("_error"), absent, named.reasons)
    groups = np.where(np.asarray(reasons.is_null()), named.groups, -1)
    return FramedRows(payload, groups, named.writers, reasons, named.ids)


def _name_by_id(payloads: pa.BinaryArray, column: pa.Array) -> FramedRows:
    """Name the writers of payloads by the ids of their schemas."""
    numbers = column.cast(pa.int64())
    is_id = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, LARGEST_ID)).fill_null(False)
    ids = pc.if_else(is_id, numbers, pa.scalar(None, pa.int64())).cast(pa.int32())
    groups, distinct_ids = _encode_distinct(ids)
    reasons = pc.if_else(is_id, pa.scalar(None, pa.string()), _NO_SCHEMA_ID)
    return FramedRows(payloads, groups, tuple(str(WriterSchema(number)) for number in distinct_ids), reasons, ids)


def _name_by_text(payloads: pa.BinaryArray, names: pa.StringArray, rows: FramedRows, known: Wrapped) -> FramedRows:
    """Name the writers of payloads by messages of the schema that their outer message is of."""
    codes, distinct_names = _encode_distinct(names)
    # One number stands for an outer schema and a name; each pair is looked up once.
    pairs = np.where((codes >= 0) & (rows.groups >= 0), rows.groups * len(distinct_names) + codes, -1)
    groups, distinct_pairs = _encode_distinct(pa.array(pairs, mask=pairs < 0))
    writers: list[str] = []
    faults: list[str | None] = []
    for pair in distinct_pairs:
        outer_writer, name = divmod(pair, len(distinct_names))
        schema = None if known.outer.only else WriterSchema.of(rows.writers[outer_writer]).schema
        writer, fault = _find_message(schema, distinct_names[name], known)
        writers.append(writer)
        faults.append(fault)
    # A row without a name has the group -1, which is the last of the reasons.
    reasons = pa.array([*faults, _NO_NAME], pa.string()).take(pa.array(groups % (len(writers) + 1)))
    return FramedRows(payloads, groups, tuple(writers), reasons, rows.ids)


def _find_message(schema: int | UUID | None, name: str, known: Wrapped) -> tuple[str, str | None]:
    """Return the writer of a payload that has a message of that name, or an empty text and why there is none."""
    short_name = name.rpartition("/")[2].removeprefix(".")  # a type URL ends with the name
    if not short_name:
        return "", _NO_NAME
    message = known.messages.get(schema, {}).get(short_name)
    if message is not None:
        return str(WriterSchema(schema, message)), None
    place = "the file" if schema is None else str(WriterSchema(schema))
    return "", f"wrapper: {place} has no message {short_name[:100]!r}"


def _encode_distinct(column: pa.Array) -> tuple[Numbers, list[Any]]:
    """Return for each row the position of its value, -1 if it is null, and the distinct values."""
    coded = column.dictionary_encode()
    return np.asarray(coded.indices.fill_null(-1), np.int64), coded.dictionary.to_pylist()
