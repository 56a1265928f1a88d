"""Decode records of several formats in one task: each row by the decoder of its format, all to one event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from router import ArrowDecoding
from router_schemas.model import WriterSchema
from router_schemas.wire_format import (
    ADDED,
    ADDED_FIELDS,
    about,
    at_rows,
    framed_rows,
    schema_bytes,
    wanted,
    why,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from router_schemas.library import Formats
    from router_schemas.model import SchemaInfo


@dataclass(frozen=True)
class AnyFormatRows:
    """How rows are told apart: `written` is by frame, and its `message` is the format; `parts` are by format."""

    written: dict[bytes, SchemaInfo]
    header: str
    parts: dict[str, ArrowDecoding]
    event: T.StructType


def combined(known: Formats, made: Sequence[tuple[str, ArrowDecoding]]) -> ArrowDecoding:
    """Return the decoding of rows of several formats. Runs on the driver."""
    structs: list[Any] = [one.adds["event"].dataType for _, one in made]
    fields = {field.name: field.dataType for struct in structs for field in struct}
    event = T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
    parts = {kind: replace(one, before=None) for kind, one in made}
    adds = T.StructType([T.StructField("event", event), *ADDED_FIELDS])
    before = joined([one.before for _, one in made if one.before])
    return ArrowDecoding(any_format_events, AnyFormatRows(known.written, known.header, parts, event), adds, before)


def joined(some: Sequence[Callable[[DataFrame], DataFrame]]) -> Callable[[DataFrame], DataFrame] | None:
    """Return what adds the columns of all; their names differ."""
    return (lambda raw: reduce(lambda frame, one: one(frame), some, raw)) if some else None


def any_format_events(records: pa.RecordBatch, known: AnyFormatRows) -> pa.RecordBatch:
    """Return `event` and the columns of ADDED. Never raises for what a row holds."""
    found = framed_rows(records, "confluent", known.header, indexed=False)
    written = [known.written.get(schema_bytes(WriterSchema.of(writer))) for writer in found.writers]
    formats = [one.message if one is not None and one.reason is None else None for one in written]
    of_row = np.array([*formats, None], object)[found.groups]  # a row without a writer has the group -1: the last one
    read = _read(records, of_row, known)
    ids = pc.coalesce(read["schema_id"], about(found, written)[0])
    columns = {
        **read,
        "_error": pc.coalesce(why(found, written), read["_error"]),
        "_wanted": pc.coalesce(wanted(found, written), read["_wanted"]),
        "schema_id": ids,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _read(records: pa.RecordBatch, of_row: Any, known: AnyFormatRows) -> dict[str, pa.Array]:
    """Return what the formats' decoders add, each for its rows; null for rows of none."""
    adds = pa.schema([to_arrow_schema(T.StructType([T.StructField("event", known.event)])).field("event"), *ADDED])
    parts: list[pa.StructArray] = []
    order: list[Any] = []
    for kind, made in known.parts.items():
        rows = np.flatnonzero(of_row == kind)
        if len(rows):
            part = made.function(records.take(pa.array(rows)), made.argument)
            parts.append(widened(part.to_struct_array(), pa.struct(list(adds))))
            order.append(rows)
    if not parts:
        return {field.name: pa.nulls(records.num_rows, field.type) for field in adds}
    read = at_rows(parts, order, records.num_rows)
    return {field.name: pc.struct_field(read, [at]) for at, field in enumerate(adds)}
