"""Records with a key and no value: each deletes its key in the tables of the routes that take such records.

A route sees one as an event with nothing but its key: the fields of the same names come from `event_key`, where the key
is decoded, too; else the key is the text of the one field that the route's sinks know rows by. The task makes these
events right after decoding, before any expression sees the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router.engine.expressions.evaluator import Node, Untranslatable, evaluate, translate
from router.errors import StartError
from router.sinks import MergingSink

if TYPE_CHECKING:
    from router.config.models import Config, Route

TOMBSTONE = "_tombstone"
KEY_TEXT = "_key_text"


@dataclass(frozen=True)
class Tombstones:
    """The fields of an event that come from a record's key: name -> expression over `event_key` or `_key_text`."""

    fields: dict[str, Node]


def taken(route: Route) -> bool:
    """Say whether a route takes tombstones; all its sinks do, or none. Raises StartError for a mixture."""
    takes = [isinstance(sink, MergingSink) and sink.tombstones for sink in route.sinks]
    if any(takes) and not all(takes):
        raise StartError(
            f"route {route.name}: a tombstone is no event for a sink without `tombstones: true`; give it another route"
        )
    return all(takes)


def tombstones(config: Config, frame: DataFrame) -> Tombstones | None:
    """Return how tombstones become events; None where no route takes them. Needs a decoded frame's columns."""
    routes = [route for route in config.routes if taken(route)]
    if not routes:
        return None
    event = frame.schema["event"].dataType
    assert isinstance(event, StructType)  # the contract of decoders
    known = _of_key(frame, event) or _of_text(routes, event)
    columns = [column.cast(event[name].dataType) for name, column in known.items()]
    read = frame.withColumn(KEY_TEXT, F.lit("").cast("string"))
    try:
        return Tombstones(dict(zip(known, translate(read, columns), strict=True)))
    except Untranslatable as what:
        raise StartError(
            f"route {routes[0].name}: a tombstone's key is not of the type of the event's field: {what}; let the key's "
            "decoder give the type that the event has"
        ) from None


def _of_key(frame: DataFrame, event: StructType) -> dict[str, Column]:
    """Return the fields of the decoded key that the event has, too."""
    key = frame.schema["event_key"].dataType if "event_key" in frame.columns else None
    if not isinstance(key, StructType):
        return {}
    return {name: F.col("event_key").getField(name) for name in key.names if name in event.names}


def _of_text(routes: list[Route], event: StructType) -> dict[str, Column]:
    """Return the one field that is the record's key."""
    sinks = [sink for route in routes for sink in route.sinks if isinstance(sink, MergingSink)]
    keys = {key for sink in sinks for key in sink.keyed().keys}
    if len(keys) == 1 and (only := keys.pop()) in event.names:
        return {only: F.col(KEY_TEXT)}
    raise StartError(
        f"route {routes[0].name}: a tombstone has nothing but its key, and that is not decoded into the sinks' keys; "
        "write `decode: {value: ..., key: ...}` with a decoder that gives fields of their names"
    )


def as_events(columns: dict[str, pa.Array], made: Tombstones) -> dict[str, pa.Array]:
    """Return decoded columns with the events of tombstones, and the mark `_tombstone`. Runs on executors."""
    event = columns["event"]
    given = pc.and_(pc.and_(columns["value"].is_null(), columns["key"].is_valid()), event.is_null())
    if given.true_count:
        at = np.flatnonzero(given.to_numpy(zero_copy_only=False))
        few = {name: column.take(pa.array(at)) for name, column in columns.items()}
        few[KEY_TEXT] = pa.array([_text(key) for key in few["key"].to_pylist()], pa.string())
        places = np.arange(len(event))
        places[at] = len(event) + np.arange(len(at))
        both = pa.concat_arrays([event, _events(few, event.type, made, len(at))])
        columns = {**columns, "event": both.take(pa.array(places))}
    return {**columns, TOMBSTONE: given}


def _text(key: bytes) -> str | None:
    """Return a key as text, None where it is not UTF-8: no table could hold it."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _events(columns: dict[str, pa.Array], kind: pa.DataType, made: Tombstones, rows: int) -> pa.Array:
    def field(of: Any) -> pa.Array:
        if of.name not in made.fields:
            return pa.nulls(rows, of.type)
        value, _ = evaluate(made.fields[of.name], columns, rows)
        return value if value.type == of.type else value.cast(of.type)

    return pa.StructArray.from_arrays([field(of) for of in kind], fields=list(kind))
