"""Turn records whose message wraps another one into events of the messages inside. Runs on executors.

The outer message is decoded as any other. It says which message its payload holds: in a field with the name, in a field
with the id of a schema of its own, or, where the payload is a google.protobuf.Any, by the type URL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router_schemas.addresses import Addressed
from router_schemas.places import Place
from router_schemas.protobuf.events import found_in, read
from router_schemas.records import LARGEST_ID

if TYPE_CHECKING:
    from uuid import UUID

    from numpy.typing import NDArray

    from router_schemas.protobuf.events import Events

    Numbers = NDArray[np.int64]

WRAPPED = "wrapped"
"""What stands before the place of a payload that is wanted, to tell it from that of an outer message."""
ANY = pa.struct([("type_url", pa.string()), ("value", pa.binary())])
_NO_PAYLOAD = "wrapper: there is no payload"
_NO_NAME = "wrapper: the payload's message is not named"
_NO_ID = f"wrapper: the payload's schema id is not a number from 0 to {LARGEST_ID}"


@dataclass(frozen=True)
class Fields:
    """Say where an outer message has its payload and what tells the message inside: paths of columns, or nothing."""

    payload: tuple[str, ...]
    name: tuple[str, ...] = ()
    schema_id: tuple[str, ...] = ()

    @staticmethod
    def of(payload: str, name: str | None = None, schema_id: str | None = None) -> Fields:
        """Return the fields of paths with dots."""
        return Fields(*(tuple(path.split(".")) if path else () for path in (payload, name, schema_id)))


@dataclass(frozen=True)
class Wrapped:
    """Say how wrapped records become events: plain data that travels to the executors.

    `messages`: for the schema of an outer message, what payloads may call a message -> its full name.
    """

    outer: Events
    inner: Events
    fields: Fields
    messages: dict[int | UUID | None, dict[str, str]] = field(default_factory=dict)


def unwrapped(records: pa.RecordBatch, known: Wrapped) -> pa.RecordBatch:
    """Return what `router_schemas.protobuf.events.events` does, for the messages inside."""
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


def _inside(found: Addressed, outer: pa.RecordBatch, known: Wrapped) -> Addressed:
    """Return the payloads and what they were written with."""
    event, fields = outer.column("event"), known.fields
    missing = [path for path in (fields.payload, fields.name, fields.schema_id) if type_at(event.type, path) is None]
    if missing:
        reasons = pc.coalesce(outer.column("_error"), f"wrapper: the message has no field {'.'.join(missing[0])}")
        none = np.full(len(event), -1, np.int64)
        return Addressed(pa.nulls(len(event), pa.binary()), none, (), reasons, found.ids)
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
    return Addressed(payload, groups, named.places, reasons, named.ids)


def _by_id(payloads: pa.BinaryArray, column: pa.Array) -> Addressed:
    """Name payloads by the ids of their schemas."""
    numbers = column.cast(pa.int64())
    fits = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, LARGEST_ID)).fill_null(False)
    ids = pc.if_else(fits, numbers, pa.scalar(None, pa.int64())).cast(pa.int32())
    groups, distinct = _coded(ids)
    reasons = pc.if_else(fits, pa.scalar(None, pa.string()), _NO_ID)
    return Addressed(payloads, groups, tuple(str(Place(number)) for number in distinct), reasons, ids)


def _by_name(payloads: pa.BinaryArray, names: pa.StringArray, found: Addressed, known: Wrapped) -> Addressed:
    """Name payloads by messages of the schema that their outer message is of."""
    codes, distinct = _coded(names)
    known_ones = (codes >= 0) & (found.groups >= 0)
    pairs = np.where(known_ones, found.groups * len(distinct) + codes, -1)
    groups, both = _coded(pa.array(pairs, mask=pairs < 0))
    schemas = [None if known.outer.only else Place.of(place).schema for place in found.places]
    told = [_resolved(schemas[pair // len(distinct)], distinct[pair % len(distinct)], known) for pair in both]
    places = tuple(place for place, _ in told)
    reasons = pa.array([*(why for _, why in told), _NO_NAME], pa.string()).take(pa.array(groups % (len(told) + 1)))
    return Addressed(payloads, groups, places, reasons, found.ids)


def _resolved(schema: int | UUID | None, name: str, known: Wrapped) -> tuple[str, str | None]:
    """Return the place of a message that a payload names, or why there is none."""
    called = name.rpartition("/")[2].removeprefix(".")  # a type URL ends with the name
    message = known.messages.get(schema, {}).get(called)
    if message is not None:
        return str(Place(schema, message)), None
    where = "the file" if schema is None else str(Place(schema))
    return "", f"wrapper: {where} has no message {called[:100]!r}" if called else _NO_NAME


def _coded(column: pa.Array) -> tuple[Numbers, list[Any]]:
    """Return the distinct values of a column, and for each row the position of its value, -1 where it is null."""
    coded = column.dictionary_encode()
    return np.asarray(coded.indices.fill_null(-1), np.int64), coded.dictionary.to_pylist()
