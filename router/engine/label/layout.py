"""What labelled record batches look like: columns, routes and targets. Travels to executors.

The outbox of a merging sink has columns besides the route's: which table a row is for, and how new it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from router.delta.keyed.row_order import DELETED, newest_names
from router.delta.keyed.scd import HISTORY_COLUMNS
from router.engine.label.narrowing import lost_column
from router.own_names import (
    ARRIVAL,
    BATCH_ID,
    CAUSE,
    KEY,
    OFFSET,
    OUTBOX,
    PARTITION,
    QUARANTINE,
    QUERY,
    TABLE,
    TIMESTAMP,
    TOPIC,
)
from router.record import BATCH, RAW_COLUMNS, RECORD_ARRIVAL, raw_arrow_schema
from router.table_names import to_underscores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from router.api.sinks import Evolution, KeyedTable, MergingSink, Widening
    from router.api.table_options import NewTable
    from router.engine.expressions.tree import Node
    from router.table_names import BronzeTables

COORDINATES = {
    TOPIC: "topic",
    PARTITION: "partition",
    OFFSET: "offset",
    TIMESTAMP: "timestamp",
    KEY: "key",
}
"""Columns that an outbox or a quarantine has besides its route's: where each event came from."""
MERGED_COORDINATES = {**COORDINATES, ARRIVAL: "arrival"}
"""The same for the outbox of a merging sink, which orders rows by them."""
TRACED = {"_traced_topic": "topic", "_traced_partition": "partition", "_traced_offset": "offset"}
"""Columns that staged files of a comparison have besides: no table has them, and no schema names them."""

QUARANTINE_COLUMNS = {TABLE: pa.string(), QUERY: pa.string(), BATCH_ID: pa.int64(), CAUSE: pa.string()}
"""Columns that a quarantine has besides: the table that its rows are for, the query and the batch that read them, and
why they wait: their table could not be written, or an expectation (`HELD`) does not hold (null: their table may not
take them until they are approved)."""
SCHEMA_COLUMNS = {"_message": "message", "_schema_id": "schema_id", "_schema_version": "schema_version"}
"""Columns that a quarantine has of the records' schema, if the decoder adds it."""

BRONZE_SCHEMA = pa.schema([*raw_arrow_schema(), (RECORD_ARRIVAL, pa.int64()), (BATCH, pa.int64())])
DEAD_SCHEMA = pa.schema(
    [*[("stage", pa.string()), ("reason", pa.string()), ("route", pa.string()), ("sink", pa.string())], *BRONZE_SCHEMA]
)
"""A dead letter: why, and the whole record as received."""

UNMET = "expectation {} does not hold"
"""The reason of a dead letter that an expectation has made, and the cause of a row that waits for its release."""
HELD_REASON = UNMET.partition("{")[0]
"""The beginning of the cause of rows that wait because of an expectation."""


@dataclass(frozen=True)
class Target:
    """One sink of one route: which rows go there, and into which table.

    `destination` is a boolean column if `table` is fixed, else a string column with the table's name (null: the row
    does not go to this target). `rows` is the struct column with the table's columns; `schema` its plain Arrow schema.
    `bad_name` is the boolean column of rows whose name was refused. With `outbox` the table keeps rows for a sink that
    applies or merges them; that of a merging sink also has the columns of the struct `merge_by`. `seen`: columns
    without a value are left out. `held` is the string column with the expectation because of which a row waits, null
    for others; None if no expectation of the route lets rows wait. `zero_is_absent`: zero and empty values may stand
    for an absent value. `quarantine` is the target of rows that their table cannot take, or may not take yet; its key
    is this one's with `/quarantine`. `narrowed` is the column of the events that the route sees, if not all of them.
    `needed` are the columns that a merge cannot do without: its keys, and what orders rows.
    """

    route: str
    sink: str
    destination: str
    rows: str
    schema: pa.Schema
    table: str | None = None
    bad_name: str | None = None
    at_most: int = 1
    seen: bool = False
    held: str | None = None
    outbox: bool = False
    merge_by: str | None = None
    evolution: Evolution = "evolve"
    widening: Widening = "rewrite"
    zero_is_absent: bool = False
    quarantine: Target | None = None
    suffix: str = ""
    partition_by: tuple[str, ...] = ()
    narrowed: str | None = None
    needed: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Return the part of transaction ids that names this target."""
        return f"{self.route}/{self.sink}{self.suffix}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the key of the target, then that of its quarantine."""
        if self.quarantine is None:
            return (self.key,)
        return (self.key, self.quarantine.key)

    @property
    def names_in_outbox(self) -> bool:
        """Return whether the rows of an outbox are for tables that they name."""
        return self.merge_by is not None and self.bad_name is not None

    def limit_reason(self, table: str) -> str:
        """Return why a row is refused whose table would be one more than `at_most`."""
        return f"table {table}: the sink may have {self.at_most} tables and has them"

    def name_in_dead_letters(self, table: str) -> str:
        """Return the place where a row could not go, as dead letters name it: never an outbox, which nobody reads."""
        return f"sink {self.key}" if self.outbox else f"table {table}"

    def demands_key(self, table: str) -> str:
        """Return the key of this target's rows in a table, as demands have it."""
        return f"{self.key}/{table}"


@dataclass(frozen=True)
class RouteLabels:
    """The names of the boolean columns with the fate of a row on a route.

    `name` is the one in the ids of the route, `shown` the one that people see. `violated` are those of its
    expectations, by name; `failing` are the names of those that stop the stream. `narrowed` is the column of the
    events that the route sees, None if it sees all of them.
    """

    name: str
    matched: str
    refused: str
    dropped: str
    violated: dict[str, str] = field(default_factory=dict)
    failing: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    shown: str = ""
    narrowed: str | None = None


@dataclass(frozen=True)
class Layout:
    """The columns of labelled record batches.

    They are: RAW_COLUMNS; `_failed`, `_bare`, `_unmatched` (boolean); `_dead` (list of stage, reason, route, sink;
    null when none); `_wanted` (string) and `_unknown` (list of strings) if the decoder adds them; `about`, its columns
    about schemas, for a quarantine; and those that the routes name. Expectations of bronze have columns as
    those of routes do. With `drops_nulls` bare records without a value are in no table.
    """

    bronze: BronzeTables | None
    dead_letters: str
    routes: tuple[RouteLabels, ...]
    wanted: bool = False
    bronze_by: tuple[str, ...] = ()
    unknown: bool = False
    bronze_violated: dict[str, str] = field(default_factory=dict)
    bronze_failing: tuple[str, ...] = ()
    drops_nulls: bool = False

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return every route's targets, in order."""
        return tuple(target for route in self.routes for target in route.targets)

    @property
    def all_targets(self) -> tuple[Target, ...]:
        """Return every target, then their quarantines."""
        return (*self.targets, *(target.quarantine for target in self.targets if target.quarantine))

    @property
    def schema_columns(self) -> tuple[str, ...]:
        """Return the columns about a record's schema that a quarantine keeps."""
        quarantined: set[str] = set()
        for target in self.targets:
            if target.quarantine:
                quarantined.update(target.quarantine.schema.names)
        return tuple(column for name, column in SCHEMA_COLUMNS.items() if name in quarantined)

    def landing_columns(self) -> list[str]:
        """Return the columns of a labelled batch that landing needs, each once."""
        names: list[str | None] = [*RAW_COLUMNS, "_failed", "_bare", "_unmatched", "_dead"]
        names += ["_wanted" if self.wanted else None, "_unknown" if self.unknown else None]
        names += [*self.schema_columns, *self.bronze_violated.values()]
        for route in self.routes:
            names += [route.matched, route.refused, route.dropped, *route.violated.values()]
            names.append(lost_column(route.narrowed) if route.narrowed else None)
            for target in route.targets:
                names += [target.destination, target.rows, target.bad_name, target.merge_by, target.held]
        return list(dict.fromkeys(name for name in names if name))


@dataclass(frozen=True)
class Demands:
    """What existing tables demand of rows before they land.

    `casts`: place -> column -> type to write; `conflicts`: place -> column -> why its values cannot be written, where
    a place is a target's key and a table (routes that share a table need not have the same columns);
    `allowed`: target key -> the only names it may still use (absent: no limit reached); `frozen`: place -> column ->
    the type in which its values go into a table that may not change, None if that lacks the column; `constraints`:
    place -> name -> a condition over the table's columns that is true for every row of the table;
    `blocked`: place -> why its table cannot be written, so that all of its rows go to the quarantine.
    """

    casts: dict[str, dict[str, pa.DataType]] = field(default_factory=dict)
    conflicts: dict[str, dict[str, str]] = field(default_factory=dict)
    allowed: dict[str, frozenset[str]] = field(default_factory=dict)
    frozen: dict[str, dict[str, pa.DataType | None]] = field(default_factory=dict)
    constraints: dict[str, dict[str, Node]] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)

    def differ_in(self, other: Demands, places: set[str]) -> bool:
        """Return whether rows in these places would be staged or quarantined otherwise under other demands."""
        for place in places:
            if self._of_place(place) != other._of_place(place):
                return True
            if not set(other.conflicts.get(place, {})) <= set(self.conflicts.get(place, {})):
                return True
        return self.allowed != other.allowed

    def _of_place(self, place: str) -> tuple[Any, ...]:
        """Return the demands on a place that must be equal in other demands, so that the same rows are staged there."""
        return (
            self.casts.get(place, {}),
            self.frozen.get(place, {}),
            self.constraints.get(place, {}),
            place in self.blocked,
        )


def outbox_of(query: str, route: str, sink: str) -> str:
    """Return the name of a sink's outbox: the table that keeps its rows until they are applied or merged."""
    return f"{OUTBOX}{to_underscores(query)}__{to_underscores(route)}__{sink}"


def quarantine_of(query: str, route: str, sink: str) -> str:
    """Return the name of a sink's quarantine: the table that keeps rows until their table may take them."""
    return f"{QUARANTINE}{to_underscores(query)}__{to_underscores(route)}__{sink}"


ORDERED = (NumericType, StringType, DateType, TimestampType, TimestampNTZType)
"""The types of columns that rows are ordered by."""
EQUAL = (IntegralType, DecimalType, StringType, DateType, TimestampType, TimestampNTZType, BooleanType)
"""The types whose values can be compared for equality by every engine: no fractions."""
_KEYS = (*EQUAL, BinaryType)
DIVIDING = {"partition_by": EQUAL, "cluster_by": ORDERED}
"""The types of columns that tables are partitioned by, and clustered by: those need bounds."""


def merge_struct(sink: MergingSink) -> Column:
    """Return the columns that the outbox of a sink has besides the route's, as a struct."""
    newest = sink.newest()
    named = [column.alias(name) for column, name in zip(newest, newest_names(len(newest)), strict=True)]
    return F.struct(F.lit("").alias(TABLE), F.lit(False).alias(DELETED), *named)


def with_order_columns(sink: MergingSink, *, only_spark: bool = False) -> KeyedTable:
    """Return the options of a sink's merge, with the number of columns that it orders by: these need a JVM."""
    return replace(merge_options(sink, only_spark=only_spark), newest=len(sink.newest()))


def merge_options(sink: MergingSink, *, only_spark: bool) -> KeyedTable:
    """Return the options of a sink's merge; if they choose no engine, `commit: spark` of the configuration does."""
    keyed = replace(sink.keyed(), new_table=sink.new_table())
    if only_spark and keyed.engine == "auto":
        return replace(keyed, engine="spark")
    return keyed


def mergeable_faults(sink: MergingSink, rows: StructType, more: StructType) -> Iterator[tuple[str, str]]:
    """Yield options that no merge can carry out, each with the reason and the next step.

    Keys that are no columns of the route, types without an order, ... `rows` are the route's columns, `more` those of
    `merge_struct`.
    """
    keyed = with_order_columns(sink)
    kinds: dict[str, DataType] = {field.name: field.dataType for field in rows}
    named_columns = {"keys": keyed.keys, "columns": keyed.columns or (), **sink.named_columns()}
    yield from _column_faults(named_columns, kinds)
    for key in keyed.keys:
        if key in kinds and not isinstance(kinds[key], _KEYS):
            yield "keys", f"{key} is {kinds[key].simpleString()} and cannot be a key; cast it in `select`"
    yield from _division_faults(sink, kinds)
    for newest in more.fields[2:]:
        if not isinstance(newest.dataType, ORDERED):
            yield "newest_by", f"`newest_by` has no order: it is {newest.dataType.simpleString()}; cast it"
    own_columns = [*more.names]
    if keyed.history:
        own_columns += HISTORY_COLUMNS.names
    if keyed.soft_delete:
        own_columns.append(keyed.soft_delete)
    for name in sorted({name.lower() for name in own_columns} & {name.lower() for name in kinds}):
        yield "", f"the sink keeps a column {name} itself; rename the event's in `select`"


def option_faults(options: NewTable, rows: StructType) -> Iterator[tuple[str, str]]:
    """Yield options with which no table of a route's columns can be made, each with the reason and the next step."""
    kinds: dict[str, DataType] = {field.name: field.dataType for field in rows}
    yield from _column_faults(options.named_columns(), kinds)
    yield from _division_faults(options, kinds)
    for name in options.partition_by:
        if isinstance(kinds.get(name), (TimestampType, TimestampNTZType)):
            yield (
                "partition_by",
                f"`partition_by`: {name} has a value for every instant; make a date of it in `select`, or take "
                "`cluster_by`",
            )


def _column_faults(named: Mapping[str, Iterable[str]], kinds: dict[str, DataType]) -> Iterator[tuple[str, str]]:
    for option, names in named.items():
        for name in names:
            if name not in kinds:
                selected = ", ".join(kinds)
                yield option, f"`{option}` names {name}, which `select` does not give; it gives {selected}"


def _division_faults(table: NewTable, kinds: dict[str, DataType]) -> Iterator[tuple[str, str]]:
    for option, types in DIVIDING.items():
        for name in getattr(table, option):
            if name in kinds and not isinstance(kinds[name], types):
                yield (
                    option,
                    f"`{option}`: {name} is {kinds[name].simpleString()}, which no table is divided by; cast it in "
                    "`select`, or take another column",
                )
    if len(table.partition_by) == len(kinds):
        yield "partition_by", "`partition_by` names every column; leave one for the files"
