"""Make the label columns of one route."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from router.delta.naming import fold, refusal
from router.delta.schema_diff import plain_schema
from router.engine.columns import kind_of, rows_schema
from router.engine.guard import any_of, holds, tried
from router.engine.layout import COORDINATES, VERSIONS, WAITING, RouteLabels, Target
from router.engine.tombstones import TOMBSTONE, taken
from router.engine.upsert_columns import check, extra
from router.errors import StartError
from router.merging import MergingSink
from router.parts import TableSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import Config, Route
    from router.parts import Sink

DEAD_TYPE = "array<struct<stage: string, reason: string, route: string, sink: string>>"
EVERYTHING = ("event.*",)


def letter(
    when: Column, stage: str, reason: Column, route: str | None = None, sink: str | None = None
) -> tuple[Column, Column]:
    """Return the condition of a dead letter, and the array that holds it, empty on other rows."""
    entry = F.struct(
        F.lit(stage).alias("stage"),
        reason.alias("reason"),
        F.lit(route).cast("string").alias("route"),
        F.lit(sink).cast("string").alias("sink"),
    )
    return when, F.when(when, F.array(entry)).otherwise(F.array().cast(DEAD_TYPE))


@dataclass(frozen=True)
class Draft:
    """Make the columns of one route, level by level."""

    index: int
    route: Route
    own: frozenset[str]

    @property
    def matched(self) -> str:
        return f"_m{self.index}"

    @property
    def rows(self) -> str:
        return "event" if self.route.select == EVERYTHING else f"_row{self.index}"

    def checks(self, frame: DataFrame) -> dict[str, Column]:
        """Return whether each expectation holds."""
        given = F.col(self.matched)
        return {f"_e{self.index}_{k}": holds(given, F.expr(c.sql)) for k, c in enumerate(self.route.expect)}

    def violated(self, otherwise: str) -> dict[str, Column]:
        """Return the condition of rows that violate each expectation of a kind; a tombstone violates none."""
        held = F.col(self.matched) & ~F.col(TOMBSTONE) if taken(self.route) else F.col(self.matched)
        return {
            check.name: held & ~F.col(f"_e{self.index}_{k}")
            for k, check in enumerate(self.route.expect)
            if check.otherwise == otherwise
        }

    @property
    def reason(self) -> Column:
        """Return the first violated expectation that makes a dead letter, as text."""
        broken = self.violated("dead_letter").items()
        texts = [F.when(when, F.lit(f"expectation {name} does not hold")) for name, when in broken]
        return F.coalesce(*texts, F.lit(None).cast("string"))

    @property
    def dropped(self) -> Column:
        return any_of(self.violated("drop").values()) & self.reason.isNull()

    @property
    def unharmed(self) -> Column:
        return F.col(self.matched) & self.reason.isNull() & ~self.dropped

    @property
    def broken(self) -> Column:
        """Return the condition of rows whose projection raised."""
        return F.lit(False) if self.rows == "event" else self.unharmed & F.col(self.rows).isNull()

    @property
    def lands(self) -> Column:
        return self.unharmed & ~self.broken

    def values(self, frame: DataFrame) -> dict[str, Column]:
        """Return the projected row and the tables' names as the sinks give them."""
        found = {}
        if self.rows != "event":
            found[self.rows] = tried(F.when(self.unharmed, F.struct(*self.columns(frame))))
        for j, named in self.named().items():
            found[f"_n{self.index}_{j}"] = tried(F.when(self.unharmed, named.cast("string")))
        return found

    def columns(self, frame: DataFrame) -> list[Column]:
        """Return the columns that the route selects."""
        return [column for text in self.route.select for column in _expand(frame, text)]

    def tables(self, frame: DataFrame) -> dict[str, Column]:
        """Return the names that the naming rule lets through."""
        names = {j: F.col(f"_n{self.index}_{j}") for j in self.named()}
        return {f"_u{self.index}_{j}": fold(name) for j, name in names.items()}

    def usable(self, j: int) -> Column:
        """Return whether a sink's name is a table that data may name: not one of the router's own."""
        name = F.col(f"_u{self.index}_{j}")
        return name.isNotNull() & ~name.isin(*self.own)

    def named(self) -> dict[int, Column]:
        """Return the table column of each sink that names its tables per row."""
        found = {}
        for j, sink in enumerate(self.route.sinks):
            if isinstance(sink, (TableSink, MergingSink)) and not isinstance(named := sink.table(), str):
                found[j] = named
        return found

    def verdicts(self) -> dict[str, Column]:
        """Return the label columns of the last projection."""
        i, found = self.index, {}
        found[f"_r{i}"] = (F.col(self.matched) & self.reason.isNotNull()) | self.broken
        found[f"_k{i}"] = F.col(self.matched) & self.dropped
        for kind in ("warn", "fail"):
            found |= {f"_{kind}{i}_{name}": broken for name, broken in self.violated(kind).items()}
        for j in range(len(self.route.sinks)):
            found[f"_t{i}_{j}"] = self.lands
        for j in self.named():
            goes = self.lands & self.usable(j)
            merges = isinstance(self.route.sinks[j], MergingSink)
            found[f"_t{i}_{j}"] = goes if merges else F.when(goes, F.col(f"_u{i}_{j}"))
            found[f"_b{i}_{j}"] = self.lands & ~self.usable(j)
        return {**found, **self.extras()}

    def extras(self) -> dict[str, Column]:
        """Return the struct that the lane of each merging sink has besides."""
        merging = {j: sink for j, sink in enumerate(self.route.sinks) if isinstance(sink, MergingSink)}
        tables = {j: F.col(f"_u{self.index}_{j}") for j in self.named()}
        return {
            f"_x{self.index}_{j}": extra(sink, tables[j] if j in tables else F.lit(sink.table()), self.lands)
            for j, sink in merging.items()
        }

    def letters(self) -> Iterator[tuple[Column, Column]]:
        """Return the dead letters of this route."""
        if self.violated("dead_letter"):
            yield letter(self.reason.isNotNull(), "expect", self.reason, self.route.name)
        if self.rows != "event":
            yield letter(self.broken, "select", F.lit("the projection cannot be evaluated"), self.route.name)
        names = sink_names(self.route.sinks)
        for j in self.named():
            yield letter(
                self.lands & ~self.usable(j), "name", refusal(F.col(f"_n{self.index}_{j}")), self.route.name, names[j]
            )

    def labels(self, frame: DataFrame, config: Config) -> RouteLabels:
        """Return what the route's columns are called, and its targets."""
        i, schema = self.index, rows_schema(frame, self.rows)
        self._check_named(frame, schema.names)
        names = sink_names(self.route.sinks)
        blanks = [Target(self.route.name, name, f"_t{i}_{j}", self.rows, schema) for j, name in enumerate(names)]
        return RouteLabels(
            name=self.route.name,
            matched=self.matched,
            refused=f"_r{i}",
            dropped=f"_k{i}",
            warned={name: f"_warn{i}_{name}" for name in self.violated("warn")},
            failing={name: f"_fail{i}_{name}" for name in self.violated("fail")},
            targets=tuple(self._target(frame, j, blank, config) for j, blank in enumerate(blanks)),
        )

    def _check_named(self, frame: DataFrame, columns: list[str]) -> None:
        """Refuse an expression without a name: Spark would call its column col1, col2 by its place."""
        written = f"{' '.join(self.route.select)} {frame.schema['event'].simpleString()}".lower()
        for name in columns:
            if re.fullmatch(r"col\d+", name) and name not in written:
                raise StartError(
                    f"route {self.route.name}: expression {name[3:]} of `select` has no name; write: ... AS name"
                )

    def _waiting(self, frame: DataFrame, blank: Target, config: Config) -> Target:
        """Return the lane where rows wait for their table to be let grow. It has the columns that have a value."""
        taken = {name: old for name, old in VERSIONS.items() if old in frame.columns} | COORDINATES
        columns = {**WAITING, **{new: kind_of(frame, old) for new, old in taken.items()}}
        lane = replace(blank, goes=f"_w{blank.goes}", seen=True, suffix="/waiting", evolution="evolve")
        return _lane(lane, config, columns)

    def _target(self, frame: DataFrame, j: int, blank: Target, config: Config) -> Target:
        sink = self.route.sinks[j]
        if not isinstance(sink, TableSink):
            columns = {new: kind_of(frame, old) for new, old in COORDINATES.items()}
            if isinstance(sink, MergingSink):
                blank, columns = self._merging(frame, j, sink, blank), {**columns, **self._kept(frame, j, sink, blank)}
            return _lane(blank, config, columns)
        named = sink.table()
        blank = replace(blank, seen=sink.columns == "seen", evolution=sink.evolution)
        blank = replace(blank, blank=config.decode.zero_is_absent)
        if sink.evolution == "quarantine":
            blank = replace(blank, waits=self._waiting(frame, blank, config))
        if isinstance(named, str):
            return replace(blank, table=named)
        return replace(blank, misnamed=self._misnamed(j), at_most=sink.at_most)

    def _merging(self, frame: DataFrame, j: int, sink: MergingSink, blank: Target) -> Target:
        return replace(blank, extra=f"_x{self.index}_{j}", misnamed=self._misnamed(j), at_most=sink.at_most)

    def _kept(self, frame: DataFrame, j: int, sink: MergingSink, blank: Target) -> dict[str, pa.DataType]:
        """Return the columns that the lane of a merging sink has besides; refuse what could not be merged."""
        more = frame.select(self.extras()[f"_x{self.index}_{j}"].alias("more")).schema["more"].dataType
        rows = frame.schema[self.rows].dataType
        assert isinstance(more, StructType)
        assert isinstance(rows, StructType)
        check(sink, f"route {blank.route}, sink {blank.sink}", rows, more)
        return {f.name: to_arrow_type(f.dataType, timestamp_utc=True) for f in more}

    def _misnamed(self, j: int) -> str | None:
        return f"_b{self.index}_{j}" if j in self.named() else None


def _lane(target: Target, config: Config, columns: dict[str, pa.DataType]) -> Target:
    """Return the lane of a target, with columns before those of its rows."""
    if clash := sorted(set(columns) & {name.lower() for name in target.schema.names}):
        raise StartError(f"column {clash[0]}: the lane of {target.key} has one of that name; rename it in `select`")
    schema = plain_schema(pa.schema([*columns.items(), *target.schema]))
    return replace(target, table=lane_of(config.name, target.route, target.sink), lane=True, schema=schema)


def lane_of(query: str, route: str, sink: str) -> str:
    """Return the table where the rows of a sink stand until they are applied, or their table is let grow."""
    return f"lanes.{query}__{route}__{sink}"


def _expand(frame: DataFrame, text: str) -> list[Column]:
    if text.strip() != "event.*":
        return [F.expr(text)]
    event = frame.schema["event"].dataType
    assert isinstance(event, StructType)  # the contract of decoders
    return [F.col("event").getField(name).alias(name) for name in event.fieldNames()]


def sink_names(sinks: tuple[Sink, ...]) -> list[str]:
    """Return the name of each sink of a route: the part's name, numbered from the second of its kind on."""
    names: list[str] = []
    for sink in sinks:
        alike = sum(other.part_name == sink.part_name for other in sinks[: len(names)])
        names.append(f"{sink.part_name}_{alike + 1}" if alike else sink.part_name)
    return names
