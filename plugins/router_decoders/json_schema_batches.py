"""Decode framed JSON in record batches: what `json_batches` decides, and what frames say. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from router_decoders import json_batches
from router_schemas.framed_rows import ADDED, about, framed_rows, wanted, why
from router_schemas.model import WriterSchema
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from router_decoders.json_shapes import Shape
    from router_schemas.model import SchemaInfo


@dataclass(frozen=True)
class Framed:
    """Say how objects are read. `written` is by frame; `header` is the one that may hold a GUID."""

    shape: Shape
    written: dict[bytes, SchemaInfo]
    header: str


def events(records: pa.RecordBatch, known: Framed) -> pa.RecordBatch:
    """Return `event`, what ADDED has, and `_undecided`, where only the native expressions can tell."""
    found = framed_rows(records, "confluent", known.header, indexed=False)
    written = [known.written.get(schema_bytes(WriterSchema.of(place))) for place in found.writers]
    reasons = why(found, written)
    objects = pa.RecordBatch.from_arrays([found.payloads], names=["value"])
    event = json_batches.events(objects, known.shape).column("event")
    failed = reasons.is_valid()
    if failed.true_count:
        event = pc.if_else(failed, pa.scalar(None, event.type), event)
    undecided = pc.and_not(event.is_null(), failed)
    columns = [event, reasons, wanted(found, written), *about(found, written), undecided]
    return pa.RecordBatch.from_arrays(columns, names=["event", *ADDED.names, "_undecided"])
