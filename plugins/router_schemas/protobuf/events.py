"""Turn records into events of one type, whatever message and version each was written with.

The events of all messages share one struct: a field has one type in all of them, and is null in a message that lacks
it. Runs on executors, with what a library made on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router_schemas.addresses import addressed
from router_schemas.places import VALUE_HEADER
from router_schemas.protobuf.decode import Reader, decode
from router_schemas.told import ADDED, about, wanted, why

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from router_schemas.addresses import Addressed, Frame


@dataclass(frozen=True)
class Written:
    """Be what a record was written with: a schema and a message in it.

    `reader` is the position of what reads it; -1 when nothing does, for the `reason`.
    """

    reader: int
    schema_id: int | None = None
    schema_version: int | None = None
    subject: str | None = None
    message: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Events:
    """Say how records become events: plain data that travels to the executors.

    `event` is the type of all events; `written` is by place. `header` is the name of the one that may hold a GUID.
    `only` names the message that is read where ids and GUIDs do not count; empty where they do, and a place that is
    not known is wanted.
    """

    event: pa.StructType
    readers: tuple[Reader, ...] = ()
    written: dict[str, Written] = field(default_factory=dict)
    frame: Frame = "confluent"
    header: str = VALUE_HEADER
    only: str = ""
    indexed: bool | frozenset[int | bytes] = True
    """Which schemas have an index path in their frames: all, or these ids and GUIDs."""
    origins: dict[str, str] = field(default_factory=dict)
    """Field of the event -> the message and version that brought it."""


def events(records: pa.RecordBatch, known: Events) -> pa.RecordBatch:
    """Return `event`, `_error`, `_wanted` and the columns of ABOUT. Never raises for what a row holds.

    Needs the columns `value` and `headers`. A null value is a tombstone: no event and no reason but that.
    """
    return read(found_in(records, known), known)


def found_in(records: pa.RecordBatch, known: Events) -> Addressed:
    """Return what records were written with."""
    return addressed(records, known.frame, known.header, not known.only, known.indexed)


def read(found: Addressed, known: Events) -> pa.RecordBatch:
    """Return what `events` does for records whose places and payloads are found."""
    places = [known.written.get(place) for place in found.places]
    made = _read(found, known, places)
    columns = [made.events, _reasons(found, known, places, made.reasons), wanted(found, places, known.only)]
    return pa.RecordBatch.from_arrays([*columns, *about(found, places)], names=["event", *ADDED.names])


@dataclass(frozen=True)
class _Read:
    events: pa.StructArray
    reasons: dict[int, str]


def _read(found: Addressed, known: Events, places: list[Written | None]) -> _Read:
    """Decode the rows of each reader together, and put them where they were."""
    readers = np.array([-1 if one is None else one.reader for one in places] + [-1], np.int64)
    of_row = readers[found.groups]  # a row without a place has the group -1, which is the last of these
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
        part = _widened(done.events, known.event)
        if whole:
            return _Read(part, reasons)
        parts.append(part)
        order.append(rows)
    if not parts:
        return _Read(pa.nulls(len(bodies), known.event), reasons)
    taken = np.concatenate(order)
    at = np.zeros(len(bodies), np.int64)
    at[taken] = np.arange(len(taken))
    return _Read(pa.concat_arrays(parts).take(pa.array(at, mask=of_row < 0)), reasons)


def _widened(part: pa.StructArray, event: pa.StructType) -> pa.StructArray:
    """Return the events of one message with the fields of all."""
    if part.type == event:
        return part
    columns = [
        part.field(part.type.get_field_index(one.name))
        if part.type.get_field_index(one.name) >= 0
        else pa.nulls(len(part), one.type)
        for one in event
    ]
    return pa.StructArray.from_arrays(columns, fields=list(event), mask=part.is_null() if part.null_count else None)


def _reasons(found: Addressed, known: Events, places: list[Written | None], read: dict[int, str]) -> pa.StringArray:
    """Return why rows have no event: their frame, their schema, their payload."""
    reasons = why(found, places, known.only)
    if not read:
        return reasons
    rows = np.array([*read], np.int64)
    hit = np.zeros(len(reasons), bool)
    hit[rows] = True
    said = [read[row] for row in sorted(read)]
    return pc.replace_with_mask(reasons, pa.array(hit), pa.array(said, pa.string()))
