"""Decide in tasks what Avro values are: the frame of a row, and what from_avro read of it before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router_schemas.avro.library import FINGERPRINT
from router_schemas.avro.model import MARKER
from router_schemas.framed_rows import ADDED, FramedRows, about, framed_rows, wanted, why
from router_schemas.model import SchemaInfo, WriterSchema
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from router_schemas.avro.library import Frame

READ = "_avro"
"""The column with a row's `event`, or the `reason` why its value could not be read; null where nothing reads it."""
OBJECT_KEY = 10
"""Bytes before the value of a single object: C3 01 and the fingerprint."""
NO_OBJECT = "frame: the value does not start with C3 01 and the 8 bytes of a fingerprint"


@dataclass(frozen=True)
class AvroRows:
    """How rows are told apart. `written` is by frame: the bytes before a value, or those in its `header`.

    `only` names the file whose schema reads all values, whatever their ids and GUIDs; empty where these count.
    """

    written: dict[bytes, SchemaInfo]
    frame: Frame
    header: str
    only: str


def avro_events(records: pa.RecordBatch, known: AvroRows) -> pa.RecordBatch:
    """Return `event` and the columns of ADDED, of which `_wanted` is left out where one file reads everything.

    Needs the columns `value`, `headers` and READ. Never raises for what a row holds.
    """
    found = _framed(records, known)
    written = [_info(writer, known) for writer in found.writers]
    read = records.column(READ)
    reasons = pc.coalesce(why(found, written), pc.struct_field(read, "reason"))
    columns = dict(zip(ADDED.names, [reasons, wanted(found, written), *about(found, written)], strict=True))
    if known.only:
        del columns["_wanted"]
    names = ["event", *columns]
    return pa.RecordBatch.from_arrays([pc.struct_field(read, "event"), *columns.values()], names=names)


def _framed(records: pa.RecordBatch, known: AvroRows) -> FramedRows:
    if known.frame != "single_object":
        return framed_rows(records, known.frame, known.header, indexed=False)
    values = records.column("value")
    heads = pc.binary_slice(values, 0, OBJECT_KEY)
    good = pc.and_(pc.starts_with(heads, MARKER), pc.equal(pc.binary_length(heads), OBJECT_KEY)).fill_null(False)
    coded = pc.if_else(good, heads, pa.scalar(None, heads.type)).dictionary_encode()
    groups = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    writers = tuple(f"{FINGERPRINT}{head[len(MARKER) :].hex()}" for head in coded.dictionary.to_pylist())
    unread = pc.if_else(values.is_null(), "value is null", NO_OBJECT)
    reasons = pc.if_else(good, pa.scalar(None, pa.string()), unread)
    return FramedRows(values, groups, writers, reasons, pa.nulls(len(values), pa.int32()))


def _info(writer: str, known: AvroRows) -> SchemaInfo | None:
    """Return what is known of a writer's schema; None where that is to be fetched."""
    if known.frame == "single_object":
        found = known.written.get(MARKER + bytes.fromhex(writer.removeprefix(FINGERPRINT)))
    elif known.only:
        found = known.written[b""]
    else:
        found = known.written.get(schema_bytes(WriterSchema.of(writer)))
    return SchemaInfo(reason=f"{writer} is not that of {known.only}") if found is None and known.only else found
