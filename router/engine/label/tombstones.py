"""Records with a key and no value: each deletes its key in the tables of the routes that take such records.

A route sees one as an event with nothing but its key. If the key is decoded as well, the fields of the same names come
from `event_key`; else the key is the text of the one field that the route's sinks know rows by. The task makes these
events right after decoding, before any expression sees the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router.api.sinks import MergingSink
from router.engine.expressions.evaluator import Node, Untranslatable, evaluate_expression, translate_columns
from router.engine.expressions.tree import in_type
from router.errors import StartError

if TYPE_CHECKING:
    from router.config.models import Config, Route

TOMBSTONE = "_tombstone"
KEY_TEXT = "_key_text"


@dataclass(frozen=True)
class Tombstones:
    """The fields of an event that come from a record's key: name -> expression over `event_key` or `_key_text`."""

    fields: dict[str, Node]


def takes_tombstones(route: Route) -> bool:
    """Return whether a route takes tombstones; all its sinks do, or none. Raises StartError for a mixture."""
    takes = [isinstance(sink, MergingSink) and sink.tombstones for sink in route.sinks]
    if any(takes) and not all(takes):
        raise StartError(
            f"route {route.name}: a tombstone is no event for a sink without `tombstones: true`; give it another route"
        )
    return all(takes)


def plan_tombstones(config: Config, frame: DataFrame) -> Tombstones | None:
    """Return how tombstones become events; None if no route takes them. Needs a decoded frame's columns."""
    routes = [route for route in config.routes if takes_tombstones(route)]
    if not routes:
        return None
    event = frame.schema["event"].dataType
    assert isinstance(event, StructType)  # the contract of decoders
    key_columns = _of_decoded_key(frame, event) or _of_key_text(routes, event)
    columns = [column.cast(event[name].dataType) for name, column in key_columns.items()]
    keyed_frame = frame.withColumn(KEY_TEXT, F.lit("").cast("string"))
    try:
        nodes = translate_columns(keyed_frame, columns)
    except Untranslatable as reason:
        raise StartError(
            f"route {routes[0].name}: a tombstone's key is not of the type of the event's field: {reason}; let the "
            "key's decoder give the type that the event has"
        ) from None
    return Tombstones(dict(zip(key_columns, nodes, strict=True)))


def _of_decoded_key(frame: DataFrame, event: StructType) -> dict[str, Column]:
    """Return the fields of the decoded key that the event has as well."""
    if "event_key" not in frame.columns:
        return {}
    key = frame.schema["event_key"].dataType
    if not isinstance(key, StructType):
        return {}
    return {name: F.col("event_key").getField(name) for name in key.names if name in event.names}


def _of_key_text(routes: list[Route], event: StructType) -> dict[str, Column]:
    """Return the one field that is the record's key."""
    keys: set[str] = set()
    for route in routes:
        for sink in route.sinks:
            if isinstance(sink, MergingSink):
                keys.update(sink.keyed().keys)
    if len(keys) == 1 and keys <= set(event.names):
        return {keys.pop(): F.col(KEY_TEXT)}
    raise StartError(
        f"route {routes[0].name}: a tombstone has nothing but its key, and that is not decoded into the sinks' keys; "
        "write `decode: {value: ..., key: ...}` with a decoder that gives fields of their names"
    )


def as_events(columns: dict[str, pa.Array], tombstones: Tombstones) -> dict[str, pa.Array]:
    """Return decoded columns with the events of tombstones, and the mark `_tombstone`. Runs on executors."""
    event = columns["event"]
    is_tombstone = pc.and_(pc.and_(columns["value"].is_null(), columns["key"].is_valid()), event.is_null())
    if not is_tombstone.true_count:
        return {**columns, TOMBSTONE: is_tombstone}

    row_numbers = np.flatnonzero(is_tombstone.to_numpy(zero_copy_only=False))
    rows = {name: column.take(pa.array(row_numbers)) for name, column in columns.items()}
    rows[KEY_TEXT] = pa.array([_key_text(key) for key in rows["key"].to_pylist()], pa.string())
    events = _make_events(rows, event.type, tombstones, len(row_numbers))

    # The new events stand behind all others; each record with a tombstone takes its event from there.
    places = np.arange(len(event))
    places[row_numbers] = len(event) + np.arange(len(row_numbers))
    all_events = pa.concat_arrays([event, events])
    return {**columns, "event": all_events.take(pa.array(places)), TOMBSTONE: is_tombstone}


def _key_text(key: bytes) -> str | None:
    """Return a key as text, None if it is not UTF-8: no table can store it."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _make_events(columns: dict[str, pa.Array], kind: pa.DataType, tombstones: Tombstones, rows: int) -> pa.Array:
    values = []
    for field in kind:
        node = tombstones.fields.get(field.name)
        if node is None:
            values.append(pa.nulls(rows, field.type))
            continue
        value, _ = evaluate_expression(node, columns, rows)
        values.append(in_type(value, field.type))
    return pa.StructArray.from_arrays(values, fields=list(kind))
