"""What the labelled frame of a batch looks like: columns, routes and targets. Travels to executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.parts import Evolution

V = TypeVar("V")

RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers")
COORDINATES = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_key": "key",
}
"""Columns that a lane has beside its route's: where each event came from."""

WAITING = {"_table": pa.string(), "_query": pa.string(), "_batch_id": pa.int64()}
"""Columns that the lane of waiting rows has besides: the table they wait for, the query and batch that read them."""
VERSIONS = {"_message": "message", "_schema_id": "schema_id", "_schema_version": "schema_version"}
"""And what the decoder tells of their schema, where it does."""

BRONZE_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.int32()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ("batch_id", pa.int64()),
    ]
)
DEAD_SCHEMA = pa.schema(
    [*[("stage", pa.string()), ("reason", pa.string()), ("route", pa.string()), ("sink", pa.string())], *BRONZE_SCHEMA]
)
"""A dead letter: why, and the whole record as received."""

Stage = Literal["decode", "match", "expect", "select", "name", "schema", "apply"]
"""Where a record was refused."""


@dataclass(frozen=True)
class Target:
    """Be one sink of one route: which rows go there, and into which table.

    `goes` is a boolean column when `table` is fixed, else a string column with the table's name (null: not there).
    `rows` is the struct column with the table's columns; `schema` its plain Arrow schema. `misnamed` is the boolean
    column of rows whose name was refused. The lane of a merging sink has the columns of the struct `extra`, too.
    `blank`: zero and what is empty may stand for a value that is absent. `waits` is the lane where rows
    wait that their table has no place for; its key is this one's, and `/waiting`.
    """

    route: str
    sink: str
    goes: str
    rows: str
    schema: pa.Schema
    table: str | None = None
    misnamed: str | None = None
    at_most: int = 1
    seen: bool = False
    lane: bool = False
    extra: str | None = None
    evolution: Evolution = "evolve"
    blank: bool = False
    waits: Target | None = None
    suffix: str = ""

    @property
    def key(self) -> str:
        """Return the part of transaction ids that names this target."""
        return f"{self.route}/{self.sink}{self.suffix}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the key, and behind it the one of the lane where rows may wait."""
        return (self.key, self.waits.key) if self.waits else (self.key,)

    @property
    def names_in_lane(self) -> bool:
        """Say whether the rows of a lane are for tables that they name."""
        return self.extra is not None and self.misnamed is not None

    def beyond(self, table: str) -> str:
        """Return why a row for a table is refused when there are as many as there may be."""
        return f"table {table}: the sink may have {self.at_most} tables and has them"

    def struct(self, column: str) -> str:
        """Return the struct column of the labelled frame that has a column of the table."""
        more = column in ("_table", "_deleted") or column.startswith("_newest_")  # no route of a merging sink has those
        return self.extra if self.extra and more else self.rows

    def place(self, table: str) -> str:
        """Return the key under which a ruling speaks of this target's rows in a table."""
        return f"{self.key}/{table}"

    def ruled(self, places: Mapping[str, V]) -> Iterator[tuple[str, V]]:
        """Return what a ruling says of this target's rows, by table: what it has under `place` of each."""
        for place, said in places.items():
            if place == self.place(table := place.rsplit("/", 1)[1]):
                yield table, said


@dataclass(frozen=True)
class RouteLabels:
    """Name the boolean columns that say what became of a row on a route."""

    name: str
    matched: str
    refused: str
    dropped: str
    warned: dict[str, str] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Describe the labelled frame.

    Columns: RAW_COLUMNS; `_failed`, `_bare`, `_unmatched` (boolean); `_dead` (array of stage, reason, route, sink;
    null when none); `_wanted` (string) where the decoder adds it; `about`, what it tells of schemas, for rows that
    wait; and those the routes name.
    """

    bronze: str | None
    dead_letters: str
    routes: tuple[RouteLabels, ...]
    wanted: bool = False

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return every route's targets, in order."""
        return tuple(target for route in self.routes for target in route.targets)

    @property
    def waiting(self) -> tuple[Target, ...]:
        """Return the lanes where rows may wait."""
        return tuple(target.waits for target in self.targets if target.waits)

    @property
    def all_targets(self) -> tuple[Target, ...]:
        """Return every target, then the lanes where rows may wait."""
        return (*self.targets, *self.waiting)

    @property
    def about(self) -> tuple[str, ...]:
        """Return the columns that tell of a record's schema, where a lane keeps them."""
        return tuple(VERSIONS[name] for name in VERSIONS if any(name in lane.schema.names for lane in self.waiting))

    def columns(self) -> list[str]:
        """Return the columns of the labelled frame that landing needs, each once."""
        names = [*RAW_COLUMNS, "_failed", "_bare", "_unmatched", "_dead", *(["_wanted"] if self.wanted else [])]
        names += self.about
        for route in self.routes:
            names += [route.matched, route.refused, route.dropped, *route.warned.values(), *route.failing.values()]
            for target in route.targets:
                names += [target.goes, target.rows, *filter(None, (target.misnamed, target.extra))]
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Ruling:
    """Say what is known of existing tables that changes how rows land.

    `casts`: place -> column -> type to write; `conflicts`: place -> column -> why its values cannot be written, where
    a place is a target's key and a table (routes that share a table need not have the same columns);
    `allowed`: target key -> the only names it may still use (absent: no limit reached); `frozen`: place -> column ->
    the type in which its values go into a table that may not change, None where that lacks the column.
    """

    casts: dict[str, dict[str, pa.DataType]] = field(default_factory=dict)
    conflicts: dict[str, dict[str, str]] = field(default_factory=dict)
    allowed: dict[str, frozenset[str]] = field(default_factory=dict)
    frozen: dict[str, dict[str, pa.DataType | None]] = field(default_factory=dict)


def too_wide(column: str, come: pa.DataType, have: pa.DataType) -> str:
    """Return why a value does not go into a table that may not change."""
    return f"column {column} is {come} in the event, and this value does not fit the table's {have}"
