"""Records with a key and no value: each deletes its key in the tables of the routes that take such records.

A route sees one as an event with nothing but its key: the fields of the same names come from `event_key`, where the key
is decoded, too; else the key is the text of the one field that the route's sinks know rows by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from router.engine.guard import tried
from router.errors import StartError
from router.merging import MergingSink

if TYPE_CHECKING:
    from router.config.models import Config, Route

TOMBSTONE = "_tombstone"


def taken(route: Route) -> bool:
    """Say whether a route takes tombstones; all its sinks do, or none. Raises StartError for a mixture."""
    takes = [isinstance(sink, MergingSink) and sink.tombstones for sink in route.sinks]
    if any(takes) and not all(takes):
        raise StartError(
            f"route {route.name}: a tombstone is no event for a sink without `tombstones: true`; give it another route"
        )
    return all(takes)


def columns(config: Config, frame: DataFrame) -> dict[str, Column]:
    """Return the columns that a decoded frame gets where a route takes tombstones: the mark, and their events."""
    routes = [route for route in config.routes if taken(route)]
    if not routes:
        return {}
    event = frame.schema["event"].dataType
    assert isinstance(event, StructType)  # the contract of decoders
    given = F.col("value").isNull() & F.col("key").isNotNull() & F.col("event").isNull()
    known = _of_key(frame, event) or _of_text(routes, event)
    fields = [_value(known.get(field.name), given, field).alias(field.name) for field in event]
    return {TOMBSTONE: given, "event": F.when(given, F.struct(*fields)).otherwise(F.col("event"))}


def _value(column: Column | None, given: Column, field: StructField) -> Column:
    if column is None:
        return F.lit(None).cast(field.dataType)
    return tried(F.when(given, column.cast(field.dataType)))


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
        return {only: F.col("key").cast("string")}
    raise StartError(
        f"route {routes[0].name}: a tombstone has nothing but its key, and that is not decoded into the sinks' keys; "
        "write `decode: {value: ..., key: ...}` with a decoder that gives fields of their names"
    )
