"""Turn framed records into events of one type, whatever message and version each was written with.

The events of all messages share one struct: a field has one type in all of them, and is null in a message that lacks
it. Runs on executors, with what `library` made on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from router_schemas.frames import FRAMED, NULL, parse, payloads
from router_schemas.protobuf.decode import Reader, decode

if TYPE_CHECKING:
    from router_schemas.frames import Frames, Key

ABOUT = pa.schema(
    [("schema_id", pa.int32()), ("schema_version", pa.int32()), ("subject", pa.string()), ("message", pa.string())]
)
"""What is known of an event's schema."""


def place(schema_id: int, path: tuple[int, ...]) -> str:
    """Return how a message of a schema is called where it is wanted: `17/0.1`."""
    return f"{schema_id}/{'.'.join(map(str, path))}"


@dataclass(frozen=True)
class Written:
    """Be what a record was written with: a schema of the registry and a message in it.

    `reader` is the position of what reads it; -1 when nothing does, for the `reason`.
    """

    reader: int
    schema_version: int | None = None
    subject: str | None = None
    message: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Events:
    """Say how records become events: plain data that travels to the executors.

    `event` is the type of all events; `written` is by place.
    """

    event: pa.StructType
    readers: tuple[Reader, ...] = ()
    written: dict[str, Written] = field(default_factory=dict)


def events(records: pa.RecordBatch, known: Events) -> pa.RecordBatch:
    """Return `event`, `_error`, `_wanted` and the columns of ABOUT. Never raises for what a row holds.

    Needs the column `value`. A null value is a tombstone: no event and no reason but that.
    """
    values = records.column("value")
    frames = parse(values, indexed=True)
    found = [known.written.get(_place(key)) for key in frames.keys]
    read = _read(payloads(values, frames), frames, known, found)
    reasons = _reasons(frames, found, read.reasons)
    wanted = _by_group(
        frames, [_place(key) if one is None else None for key, one in zip(frames.keys, found, strict=True)]
    )
    about = _about(frames, found)
    columns = [read.events, reasons, wanted, *about]
    return pa.RecordBatch.from_arrays(columns, names=["event", "_error", "_wanted", *ABOUT.names])


@dataclass(frozen=True)
class _Read:
    events: pa.StructArray
    reasons: dict[int, str]


def _place(key: Key) -> str:
    return place(key.id if key.id is not None else -1, key.path or (0,))


def _read(bodies: pa.BinaryArray, frames: Frames, known: Events, found: list[Written | None]) -> _Read:
    """Decode the rows of each reader together, and put them where they were."""
    readers = np.array([-1 if one is None else one.reader for one in found] + [-1], np.int64)
    of_row = readers[frames.groups]  # a row without a frame has the group -1, which is the last of these
    parts: list[pa.StructArray] = []
    order: list[np.ndarray] = []
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


def _reasons(frames: Frames, found: list[Written | None], read: dict[int, str]) -> pa.StringArray:
    """Return why rows have no event: their frame, their schema, their payload."""
    if (frames.status == FRAMED).all() and not read and all(one is not None and one.reason is None for one in found):
        return pa.nulls(len(frames.status), pa.string())
    texts = frames.reasons.to_pylist()
    by_group = [
        f"schema {_place(key)} is not known yet" if one is None else one.reason
        for key, one in zip(frames.keys, found, strict=True)
    ]
    for row in np.flatnonzero(frames.status == FRAMED).tolist():
        texts[row] = read.get(row) or by_group[frames.groups[row]]
    for row in np.flatnonzero(frames.status == NULL).tolist():
        texts[row] = "value is null"
    return pa.array(texts, pa.string())


def _by_group(frames: Frames, texts: list[str | None]) -> pa.StringArray:
    at = np.where(frames.groups >= 0, frames.groups, len(texts))
    return pa.array([*texts, None], pa.string()).take(pa.array(at))


def _about(frames: Frames, found: list[Written | None]) -> list[pa.Array]:
    """Return the columns of ABOUT. The id is there wherever a frame has one."""
    blank = Written(-1)
    known = [one or blank for one in found]
    at = np.where(frames.groups >= 0, frames.groups, len(known))
    ids = pa.array(frames.ids.astype(np.int32), mask=frames.ids < 0)
    versions = pa.array([*(one.schema_version for one in known), None], pa.int32()).take(pa.array(at))
    subjects, messages = (
        pa.array([*(getattr(one, name) for one in known), None], pa.string()).take(pa.array(at))
        for name in ("subject", "message")
    )
    return [ids, versions, subjects, messages]
