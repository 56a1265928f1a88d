"""Events as a route can see them when a schema brings what the route cannot be planned with.

A new version of a schema may add a field that `select` makes itself or whose name a table keeps for the router, or
widen one to a type that is no key. No decoder can know that. Such a route sees events without the changes that are to
blame, and with all the others: a field that is new does not exist for it, one of another type has the type with which
the route was last planned. Which changes these are is found by planning the route, never by what Spark says.

The types with which routes were last planned are kept in the decoder's memory before the first batch that uses them,
so that each start, and each command that processes records again, sees the same columns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BooleanType, StructField, StructType

from router.delta.casting import cast_down
from router.spark_internals import arrow_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.api.parts import Memory

PLANNED_NOTE = "planned.json"
"""The name under which the memory has the types of events with which routes were last planned."""


@dataclass(frozen=True)
class NarrowedEvent:
    """Events in a narrower type, as columns of decoded records; travels to tasks.

    `column` has the events; `lost_column` marks those with a value that the type has no field for, `unfit_column` those
    with one that does not fit its field.
    """

    column: str
    type: pa.DataType

    def narrow_events(self, events: pa.Array, *, blank: bool) -> dict[str, pa.Array]:
        """Return the columns of decoded events; `blank`: zero and empty values may stand for absent ones."""
        cast = cast_down(events, self.type, blank=blank)
        return {
            self.column: cast.array,
            lost_column(self.column): pa.array(cast.lost),
            unfit_column(self.column): pa.array(cast.too_wide),
        }

    def spark_fields(self, event: StructType) -> list[StructField]:
        """Return the columns as Spark has them; `event` is the type."""
        marks = [StructField(name, BooleanType()) for name in (lost_column(self.column), unfit_column(self.column))]
        return [StructField(self.column, event), *marks]


def lost_column(column: str) -> str:
    """Return the name of the column that marks the events in `column` that lose a value."""
    return f"{column}_lost"


def unfit_column(column: str) -> str:
    """Return the name of the column that marks the events in `column` with a value that does not fit."""
    return f"{column}_unfit"


def narrowest_change(
    new: StructType, old: StructType, can_plan: Callable[[StructType], bool]
) -> tuple[StructType, tuple[str, ...]] | None:
    """Return an event with as many changes since `old` as can be planned, and the fields whose changes it lacks.

    None if `old` cannot be planned either, or is the same. A change is a field of another type, or one that came or
    went. Halves of the changes are tried, so one that is to blame costs a few plans, however many fields there are.
    """
    changed = [name for name in dict.fromkeys([*old.names, *new.names]) if _type_of(new, name) != _type_of(old, name)]
    if not changed or not can_plan(_without_changes(new, old, changed)):
        return None
    kept_back = set(changed)

    def allow_changes(names: list[str]) -> None:
        if can_plan(_without_changes(new, old, kept_back - set(names))):
            kept_back.difference_update(names)
        elif len(names) > 1:
            middle = len(names) // 2
            allow_changes(names[:middle])
            allow_changes(names[middle:])

    allow_changes(changed)
    return _without_changes(new, old, kept_back), tuple(name for name in changed if name in kept_back)


def _type_of(event: StructType, name: str) -> pa.DataType | None:
    return arrow_type(event[name].dataType) if name in event.names else None


def _without_changes(new: StructType, old: StructType, kept_back: set[str] | list[str]) -> StructType:
    """Return the fields of `new`, those in `kept_back` as they are in `old`."""
    fields = []
    for field in new:
        if field.name not in kept_back:
            fields.append(field)
        elif field.name in old.names:
            fields.append(old[field.name])
    gone = [field for field in old if field.name in kept_back and field.name not in new.names]
    return StructType([*fields, *gone])


def load_planned(memory: Memory) -> dict[str, StructType]:
    """Return the type of events with which each route was last planned, by the route's identity.

    None of a damaged note: then a route that cannot be planned is refused, as at a first start.
    """
    try:
        note = json.loads(memory.read(PLANNED_NOTE) or b'{"events": [], "routes": {}}')
        events = [StructType.fromJson(event) for event in note["events"]]
        return {route: events[place] for route, place in note["routes"].items()}
    except (ValueError, LookupError, TypeError):
        return {}


def keep_planned(memory: Memory, planned: Mapping[str, StructType]) -> None:
    """Keep the type of events with which each route is planned; most have the same."""
    places: dict[str, int] = {}
    routes = {route: places.setdefault(event.json(), len(places)) for route, event in planned.items()}
    events = [json.loads(text) for text in places]
    memory.write(PLANNED_NOTE, json.dumps({"events": events, "routes": routes}).encode())
