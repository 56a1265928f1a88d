"""One route on the driver: its expressions, the names of its label columns, and its targets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from router.columns import holds, tried
from router.delta.schema_diff import delta_schema
from router.engine.expressions.evaluator import Node, Untranslatable, translate
from router.engine.label.layout import (
    COORDINATES,
    MERGED_COORDINATES,
    QUARANTINE_COLUMNS,
    SCHEMA_COLUMNS,
    RouteLabels,
    Target,
    check_mergeable,
    check_options,
    merge_struct,
    outbox_of,
    quarantine_of,
)
from router.engine.label.tombstones import taken
from router.errors import StartError
from router.sinks import MergingSink, TableSink
from router.spark_internals import analysed, arrow_type
from router.table_names import pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import Config, Route

EVERYTHING = ("event.*",)
SPREAD_BY = "_spread_by"
"""The column by which rows are shuffled so that those of a table meet."""


class Check(NamedTuple):
    """An expectation: its name, what becomes of rows that violate it, and its expression."""

    name: str
    otherwise: str
    node: Node


@dataclass(frozen=True)
class MergeBy:
    """The expressions of what the outbox of a merging sink has besides. `table` is None where rows name theirs."""

    table: str | None
    deletes: Node
    newest: tuple[Node, ...]
    tombstones: bool


@dataclass(frozen=True)
class RouteExpressions:
    """The expressions of one route, as the landing task evaluates them.

    `row` is None where the route takes the event as it is, and one node where Spark has evaluated the projection.
    `names` and `merges` are by the column of the target that they make. `names_of_rows`: the columns of the row are in
    the names, too.
    """

    labels: RouteLabels
    rule: Node
    checks: tuple[Check, ...]
    row: tuple[Node, ...] | Node | None
    names: dict[str, Node]
    merges: dict[str, MergeBy]
    tombstones: bool
    names_of_rows: bool = False


class Expressions(NamedTuple):
    """The expressions of a route as Spark's columns, in the order in which they are evaluated."""

    rule: Column
    checks: tuple[Column, ...]
    row: tuple[Column, ...]
    names: tuple[Column, ...]
    deletes: tuple[Column, ...]
    newest: tuple[Column, ...]


@dataclass(frozen=True)
class RoutePlanner:
    """One route of a configuration; `index` tells its columns from those of others."""

    index: int
    route: Route

    @property
    def rows(self) -> str:
        """Return the struct column of the route's rows."""
        return "event" if self.route.select == EVERYTHING else f"_row{self.index}"

    @property
    def merging(self) -> dict[int, MergingSink]:
        """Return the merging sinks by their place."""
        return {j: sink for j, sink in enumerate(self.route.sinks) if isinstance(sink, MergingSink)}

    def named(self) -> dict[int, Column]:
        """Return the table column of each sink that names its tables per row."""
        found = {}
        for j, sink in enumerate(self.route.sinks):
            if isinstance(sink, (TableSink, MergingSink)) and not isinstance(named := sink.table(), str):
                found[j] = named.cast("string")
        return found

    def made(self, frame: DataFrame) -> list[StructField]:
        """Return the columns that `select` makes under names that a frame does not have."""
        have = {name.lower() for name in frame.columns}
        return [column for column in self._row_type(frame) if column.name.lower() not in have]

    def naming(self, frame: DataFrame) -> DataFrame:
        """Return an empty frame over which table names can be analysed: a frame's columns and those of `made`."""
        return frame.sparkSession.createDataFrame([], StructType([*frame.schema, *self.made(frame)]))

    def names_of_rows(self, frame: DataFrame) -> list[Node] | None:
        """Return the table names where columns that `select` makes are in them; None where a frame has all of theirs.

        Tasks evaluate these, whoever evaluates the rest of the route: Spark would need one more projection per route.
        """
        named = [*self.named().values()]
        if not named or not self._reads_made(frame, named):
            return None
        try:
            return translate(self.naming(frame), named)
        except Untranslatable as what:
            raise StartError(
                f"route {self.route.name}: a table's name is made of what `select` makes, and needs {what}; make the "
                "whole name there, as text"
            ) from None

    def spread_by(self, frame: DataFrame) -> tuple[dict[str, Column], ...]:
        """Return columns, level by level, of which the last is the first table name that a sink takes from data."""
        if (named := next(iter(self.named().values()), None)) is None:
            return ()
        given = F.col("event").isNotNull()
        name = {SPREAD_BY: tried(F.when(given, named))}
        if not self._reads_made(frame, [named]):
            return (name,)
        row = tried(F.when(given, F.struct(*self.projection(frame))))
        return {column.name: row.getField(column.name) for column in self.made(frame)}, name

    def _reads_made(self, frame: DataFrame, named: list[Column]) -> bool:
        """Say whether names read what only `select` makes. Raises AnalysisException where nothing has it."""
        known = {name.lower() for name in frame.columns}
        if self._templates_read(known):  # the usual case, without a call of Spark's analyser
            return False
        plan = analysed(self.naming(frame).select(*named))
        for k in range(len(named)):
            read = plan.projectList().apply(k).references().iterator()
            while read.hasNext():
                if read.next().name().lower() not in known:
                    return True
        return False

    def _templates_read(self, known: set[str]) -> bool:
        """Say whether all names are made of templates, and these of known columns."""
        sinks = [self.route.sinks[j] for j in self.named()]
        templates = [sink.table_template() for sink in sinks if isinstance(sink, (TableSink, MergingSink))]
        fields = (field for template in templates for field, _ in pieces_of(template or "{?}") if field)
        return all(field.split(".")[0].lower() in known for field in fields)

    def asked(self, frame: DataFrame) -> Expressions:
        """Return the route's expressions over the columns of a decoded frame."""
        row = () if self.rows == "event" else tuple(self.projection(frame))
        deletes = [F.lit(False) if (found := sink.deletes()) is None else found for sink in self.merging.values()]
        newest = tuple(column for sink in self.merging.values() for column in sink.newest())
        checks = tuple(F.expr(check.sql) for check in self.route.expect)
        return Expressions(self.route.match.matches(), checks, row, (*self.named().values(),), (*deletes,), newest)

    def projection(self, frame: DataFrame) -> list[Column]:
        """Return the columns that the route selects."""
        return [column for text in self.route.select for column in _expand(frame, text)]

    def in_tasks(self, frame: DataFrame, labels: RouteLabels) -> RouteExpressions:
        """Return what tasks evaluate themselves. Raises Untranslatable with what only Spark can evaluate."""
        asked, of_rows = self.asked(frame), self.names_of_rows(frame)
        asked = asked if of_rows is None else asked._replace(names=())
        try:
            nodes = iter(translate(frame, [asked.rule, *(column for part in asked[1:] for column in part)]))
        except AnalysisException:  # the projection as a whole was analysed before: one of its parts stands for several
            raise Untranslatable("the * of a field") from None
        rule, checks, row, names, deletes, newest = (
            [next(nodes) for _ in part] for part in ((asked.rule,), *asked[1:])
        )
        found = self._expressions(labels, rule[0], checks, tuple(row) or None, of_rows or names, deletes, newest)
        return replace(found, names_of_rows=of_rows is not None)

    def by_spark(
        self, frame: DataFrame, labels: RouteLabels, given: Column
    ) -> tuple[RouteExpressions, list[dict[str, Column]]]:
        """Return what tasks read from columns that Spark evaluates, and these columns, level by level.

        `given` are the rows that the route looks at. Every column is guarded: what raises on a row is null on it, and
        the projection is one struct, so that a null struct says that it raised.
        """
        asked, of_rows, i = self.asked(frame), self.names_of_rows(frame), self.index
        asked = asked if of_rows is None else asked._replace(names=())
        matched = F.col(f"_matched{i}")
        checks = {f"_check{i}_{k}": holds(matched, column) for k, column in enumerate(asked.checks)}
        row = {self.rows: tried(F.when(matched, F.struct(*asked.row)))} if asked.row else {}
        others = {
            f"_{kind}{i}_{k}": tried(F.when(matched, column))
            for kind in ("names", "deletes", "newest")
            for k, column in enumerate(getattr(asked, kind))
        }
        rule, whole = _column(f"_matched{i}"), _column(self.rows) if row else None
        kinds = ("check", "names", "deletes", "newest")
        checked, names, *rest = (
            [_column(name) for name in {**checks, **others} if name.startswith(f"_{kind}{i}_")] for kind in kinds
        )
        found = self._expressions(labels, rule, checked, whole, of_rows or names, *rest)
        found = replace(found, names_of_rows=of_rows is not None)
        return found, [{f"_matched{i}": holds(given, asked.rule)}, {**checks, **row, **others}]

    def _expressions(
        self,
        labels: RouteLabels,
        rule: Node,
        checks: list[Node],
        row: tuple[Node, ...] | Node | None,
        names: list[Node],
        deletes: list[Node],
        newest: list[Node],
    ) -> RouteExpressions:
        expect = zip(self.route.expect, checks, strict=True)
        named = {labels.targets[j].destination: node for j, node in zip(self.named(), names, strict=True)}
        merges, left = {}, iter(newest)
        for (j, sink), node in zip(self.merging.items(), deletes, strict=True):
            target = labels.targets[j]
            table = None if target.bad_name else str(sink.table())
            by = tuple(next(left) for _ in sink.newest())
            merges[str(target.merge_by)] = MergeBy(table, node, by, sink.tombstones)
        return RouteExpressions(
            labels,
            rule,
            tuple(Check(check.name, check.otherwise, node) for check, node in expect),
            row,
            named,
            merges,
            taken(self.route),
        )

    def labels(self, frame: DataFrame, config: Config) -> RouteLabels:
        """Return what the route's columns are called, and its targets."""
        i, kind = self.index, self._row_type(frame)
        schema = _rows_schema(kind)
        self._check_named(frame, schema.names)
        names = [*self.route.named_sinks]
        blanks = [Target(self.route.identity, name, f"_to{i}_{j}", self.rows, schema) for j, name in enumerate(names)]
        return RouteLabels(
            name=self.route.identity,
            shown=self.route.name,
            matched=f"_matched{i}",
            refused=f"_refused{i}",
            dropped=f"_dropped{i}",
            violated={one.name: f"_violated{i}_{one.name}" for one in self.route.expect},
            failing=tuple(one.name for one in self.route.expect if one.otherwise == "fail"),
            targets=tuple(self._target(frame, kind, j, blank, config) for j, blank in enumerate(blanks)),
        )

    def _row_type(self, frame: DataFrame) -> StructType:
        row = F.col("event") if self.rows == "event" else F.struct(*self.projection(frame))
        kind = frame.select(row.alias("row")).schema["row"].dataType
        assert isinstance(kind, StructType)  # the contract of decoders
        return kind

    def _check_named(self, frame: DataFrame, columns: list[str]) -> None:
        """Refuse an expression without a name: Spark would call its column col1, col2 by its place."""
        written = f"{' '.join(self.route.select)} {frame.schema['event'].simpleString()}".lower()
        for name in columns:
            if re.fullmatch(r"col\d+", name) and name not in written:
                raise StartError(
                    f"route {self.route.name}: expression {name[3:]} of `select` has no name; write: ... AS name"
                )

    def _target(self, frame: DataFrame, kind: StructType, j: int, blank: Target, config: Config) -> Target:
        sink = self.route.sinks[j]
        holding = [one.name for one in self.route.expect if one.otherwise == "quarantine"]
        if not isinstance(sink, TableSink):
            if holding:
                what = f"expectation {holding[0]}: rows wait for tables only that are appended to"
                raise StartError(f"route {blank.route}, sink {blank.sink}: {what}; write `otherwise: dead_letter`")
            places = MERGED_COORDINATES if isinstance(sink, MergingSink) else COORDINATES
            columns = {new: _kind_of(frame, old) for new, old in places.items()}
            if isinstance(sink, MergingSink):
                more = self._merge_by(frame, kind, sink, blank)
                blank = replace(blank, merge_by=f"_merge{self.index}_{j}", at_most=sink.at_most)
                blank, columns = replace(blank, bad_name=self._bad_name(j)), {**columns, **more}
            table = outbox_of(config.name, blank.route, blank.sink)
            return replace(_kept(blank, columns), table=table, outbox=True)
        named = sink.table()
        check_options(sink, f"route {blank.route}, sink {blank.sink}", kind)
        blank = replace(blank, seen=sink.columns == "seen", evolution=sink.evolution, widening=sink.widening)
        blank = replace(blank, zero_is_absent=config.decode.zero_is_absent)
        blank = replace(blank, held=f"_held{self.index}" if holding else None)
        blank = replace(blank, quarantine=_quarantine(frame, blank, config), partition_by=sink.partition_by)
        if isinstance(named, str):
            return replace(blank, table=named)
        return replace(blank, bad_name=self._bad_name(j), at_most=sink.at_most)

    def _merge_by(self, frame: DataFrame, kind: StructType, sink: MergingSink, blank: Target) -> dict[str, pa.DataType]:
        """Return the columns that the outbox of a merging sink has besides; refuse what could not be merged."""
        more = frame.select(merge_struct(sink).alias("more")).schema["more"].dataType
        assert isinstance(more, StructType)
        check_mergeable(sink, f"route {blank.route}, sink {blank.sink}", kind, more)
        return {f.name: arrow_type(f.dataType) for f in more}

    def _bad_name(self, j: int) -> str | None:
        return f"_bad_name{self.index}_{j}" if j in self.named() else None


def _column(name: str) -> Node:
    """Return the expression that reads a column, whatever its type: one that Spark has evaluated."""
    return Node("column", None, with_=name)


def _quarantine(frame: DataFrame, blank: Target, config: Config) -> Target | None:
    """Return the table where rows wait until theirs can take them. It has the columns that have a value.

    None for a route with a column of a name that the quarantine needs, unless the sink or an expectation asks for one:
    the stream waits while a table of it cannot be written.
    """
    asked = blank.evolution == "quarantine" or blank.held is not None
    known = {new: old for new, old in SCHEMA_COLUMNS.items() if asked and old in frame.columns} | COORDINATES
    columns = {**QUARANTINE_COLUMNS, **{new: _kind_of(frame, old) for new, old in known.items()}}
    if not asked and {*columns} & {name.lower() for name in blank.schema.names}:
        return None
    found = replace(blank, seen=True, suffix="/quarantine", evolution="evolve", outbox=True, held=None)
    return replace(_kept(found, columns), table=quarantine_of(config.name, blank.route, blank.sink))


def _kept(target: Target, columns: dict[str, pa.DataType]) -> Target:
    """Return the target of an outbox or a quarantine, with columns before those of its rows."""
    if clash := sorted(set(columns) & {name.lower() for name in target.schema.names}):
        raise StartError(f"column {clash[0]}: {target.key} is kept with one of that name; rename it in `select`")
    return replace(target, schema=delta_schema(pa.schema([*columns.items(), *target.schema])))


def _expand(frame: DataFrame, text: str) -> Iterator[Column]:
    whole = re.fullmatch(r"\s*(\w+)\.\*\s*", text)
    struct = frame.schema[whole[1]].dataType if whole and whole[1] in frame.columns else None
    if not whole or not isinstance(struct, StructType):
        yield F.expr(text)
        return
    yield from (F.col(whole[1]).getField(name).alias(name) for name in struct.fieldNames())


KEPT = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
"""The types of single values that Delta keeps."""


def _rows_schema(struct: StructType) -> pa.Schema:
    """Return the fields of a struct as a plain Arrow schema; refuse names and types that Delta lacks."""
    _check_kept(struct)
    return delta_schema(pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in struct]))


def _check_kept(kind: DataType, column: str = "") -> None:
    """Refuse what Delta cannot keep, at any depth."""
    if isinstance(kind, StructType):
        _check_names(kind)
        for child in kind:
            _check_kept(child.dataType, f"{column}.{child.name}" if column else child.name)
    elif isinstance(kind, ArrayType):
        _check_kept(kind.elementType, column)
    elif isinstance(kind, MapType):
        _check_kept(kind.keyType, column)
        _check_kept(kind.valueType, column)
    elif not isinstance(kind, KEPT):
        raise StartError(
            f"column {column}: a table cannot keep {kind.simpleString()}; cast it or leave it out in `select`"
        )


def _check_names(struct: StructType) -> None:
    folded: dict[str, str] = {}
    for name in struct.fieldNames():
        if any(character in " ,;{}()\n\t=" for character in name) or not name:
            raise StartError(f"column {name!r}: Delta refuses spaces and ,;{{}}()= in names; rename it in `select`")
        if name.lower() in folded:
            raise StartError(f"columns {folded[name.lower()]} and {name} differ by case only; rename one in `select`")
        folded[name.lower()] = name


def _kind_of(frame: DataFrame, column: str) -> pa.DataType:
    """Return the Arrow type of a column."""
    return arrow_type(frame.schema[column].dataType)
