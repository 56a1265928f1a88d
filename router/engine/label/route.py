"""One route on the driver: its expressions, the names of its label columns, and its targets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
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

from router.api.columns import holds_where, tried
from router.api.parts import Rule
from router.api.sinks import KeyedTable, LakeSink, MergingSink, Sink, TableSink
from router.delta.keyed.row_order import order_names
from router.delta.schema_diff import delta_schema
from router.engine.expressions.evaluator import Node, Untranslatable, translate_columns
from router.engine.label.layout import (
    COORDINATES,
    MERGED_COORDINATES,
    QUARANTINE_COLUMNS,
    SCHEMA_COLUMNS,
    RouteLabels,
    Target,
    merge_struct,
    mergeable_faults,
    option_faults,
    outbox_of,
    quarantine_of,
    with_order_columns,
)
from router.engine.label.tombstones import takes_tombstones
from router.errors import StartError, first_line
from router.record import RECORD
from router.registry import call_part, parts_in
from router.spark_internals import analysed_plan, arrow_type
from router.table_names import REFUSED_IN_COLUMNS
from router.templates import template_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from router.config.models import Config, Route

CONDITIONS = ("boolean", "void")
"""The types of a condition, as Spark calls them: `NULL` alone is void, and holds for no row."""
EVERYTHING = ("event.*",)
SPREAD_BY = "_spread_by"
"""The column by which rows are shuffled so that those of a table meet."""


def no_condition(kind: object) -> str:
    """Return why an expression of a type is no condition."""
    return f"it is {kind}, and no condition: compare it with something"


class Check(NamedTuple):
    """An expectation: its name, what becomes of rows that violate it, and its expression."""

    name: str
    otherwise: str
    node: Node


@dataclass(frozen=True)
class MergeBy:
    """The expressions of the further columns in a merging sink's outbox. `table` is None if rows name theirs."""

    table: str | None
    deletes: Node
    newest: tuple[Node, ...]
    tombstones: bool


@dataclass(frozen=True)
class RouteExpressions:
    """The expressions of one route, as the landing task evaluates them.

    `row` is None if the route takes the event as it is, and one node if Spark has evaluated the projection. `names` and
    `merges` are by the column of the target that they make. `names_of_rows`, `merges_of_rows`: these read columns of
    the row as well.
    """

    labels: RouteLabels
    rule: Node
    checks: tuple[Check, ...]
    row: tuple[Node, ...] | Node | None
    names: dict[str, Node]
    merges: dict[str, MergeBy]
    tombstones: bool
    names_of_rows: bool = False
    merges_of_rows: bool = False


class RouteColumns(NamedTuple):
    """The expressions of a route as Spark's columns. `newest`: those of all merging sinks, one sink after another."""

    rule: Column
    checks: tuple[Column, ...]
    row: tuple[Column, ...]
    names: tuple[Column, ...]
    deletes: tuple[Column, ...]
    newest: tuple[Column, ...]


@dataclass(frozen=True)
class RoutePlanner:
    """One route of a configuration; `index` tells its columns from those of others.

    `narrowed` is the column of the events that it sees, None if it sees all of them. The frames that its methods are
    given call these `event`.
    """

    index: int
    route: Route
    narrowed: str | None = None

    @property
    def rows(self) -> str:
        """Return the struct column of the route's rows."""
        return (self.narrowed or "event") if self.takes_events else f"_row{self.index}"

    @property
    def takes_events(self) -> bool:
        """Return whether the route's rows are its events as they are."""
        return self.route.select == EVERYTHING

    @property
    def merging_sinks(self) -> dict[int, MergingSink]:
        """Return the merging sinks by their place."""
        return {j: sink for j, sink in enumerate(self.route.sinks) if isinstance(sink, MergingSink)}

    def check_parts(self) -> None:
        """Call the methods of the route's parts once. Raises PluginError if one raises or returns another type."""
        self.check_rules()
        for sink in self.route.sinks:
            self.check_sink(sink)

    def check_rules(self) -> None:
        """Check the rule of the route; the rules inside it come first, so that the faulty one is named."""
        for rule in reversed([*parts_in(self.route.match)]):
            if isinstance(rule, Rule):
                call_part(rule, "matches", Column, route=self.route.name)

    def check_sink(self, sink: Sink) -> None:
        """Check the methods of a sink from which the plan of a batch is made."""
        if not isinstance(sink, LakeSink):
            return
        call_part(sink, "table", (str, Column), route=self.route.name)
        call_part(sink, "table_template", (str, type(None)), route=self.route.name)
        if isinstance(sink, MergingSink):
            call_part(sink, "keyed", KeyedTable, route=self.route.name)
            call_part(sink, "newest", tuple, route=self.route.name)
            call_part(sink, "deletes", (Column, type(None)), route=self.route.name)

    def table_columns(self) -> dict[int, Column]:
        """Return, by the place of the sink, the table column of each sink that names its tables per row."""
        columns = {}
        for j, sink in enumerate(self.route.sinks):
            if not isinstance(sink, LakeSink):
                continue
            table = sink.table()
            if not isinstance(table, str):
                columns[j] = table.cast("string")
        return columns

    def selected_columns(self, frame: DataFrame) -> list[StructField]:
        """Return the columns that `select` makes under names that a frame does not have."""
        frame_names = {name.lower() for name in frame.columns}
        return [column for column in self.row_type(frame) if column.name.lower() not in frame_names]

    def frame_for_names(self, frame: DataFrame) -> DataFrame:
        """Return an empty frame over which table names can be analysed: with the frame's and the selected columns."""
        return frame.sparkSession.createDataFrame([], StructType([*frame.schema, *self.selected_columns(frame)]))

    def names_of_rows(self, frame: DataFrame) -> list[Node] | None:
        """Return the table names if columns that `select` makes are in them; None if a frame has all of theirs.

        Tasks always evaluate these, even if Spark evaluates the rest of the route: Spark would need one more projection
        per route.
        """
        names = [*self.table_columns().values()]
        if not names or not self._reads_selected(frame, names):
            return None
        return self._translate_for_rows(self.frame_for_names(frame), names, "a table's name is")

    def merges_of_rows(self, frame: DataFrame) -> list[Node] | None:
        """Return the expressions that delete rows, then those that order them; None if none reads columns of the route.

        Tasks always evaluate these, as they do with `names_of_rows`.
        """
        deletes, newest = self._merge_columns()
        if not newest and all(sink.deletes() is None for sink in self.merging_sinks.values()):
            return None  # the usual case, without a call of Spark's analyser
        scope = self.frame_for_merges(frame)
        if not _reads_any(scope, [*deletes, *newest], {*self._columns_in_merges(frame)}):
            return None
        return self._translate_for_rows(scope, [*deletes, *newest], "`newest_by` or `delete_when` is")

    def _translate_for_rows(self, scope: DataFrame, columns: list[Column], what: str) -> list[Node]:
        try:
            return translate_columns(scope, columns)
        except Untranslatable as reason:
            raise StartError(
                f"route {self.route.name}: {what} made of what `select` makes, and needs {reason}; make the whole "
                "value there"
            ) from None

    def frame_for_merges(self, frame: DataFrame) -> DataFrame:
        """Return an empty frame for what deletes and orders rows: the route's columns come before those of records."""
        fields = {field.name.lower(): field for field in frame.schema}
        fields.update(self._columns_in_merges(frame))
        return frame.sparkSession.createDataFrame([], StructType([*fields.values()]))

    def _columns_in_merges(self, frame: DataFrame) -> dict[str, StructField]:
        """Return the route's columns that order and delete rows, by small names: a tombstone has none."""
        if not self.merging_sinks or takes_tombstones(self.route):
            return {}
        return {field.name.lower(): field for field in self.row_type(frame) if field.name.lower() != "event"}

    def merge_faults(self, frame: DataFrame, sink: MergingSink) -> Iterator[tuple[str, str]]:
        """Yield the options of a merging sink that Spark cannot analyse, each with its reason and the candidates."""
        scope = self.frame_for_merges(frame)
        of_route = self._columns_in_merges(frame)
        for option, make in (("delete_when", sink.deletes), ("newest_by", sink.newest)):
            try:
                made = make()
                columns = made if isinstance(made, tuple) else (F.lit(None) if made is None else made,)
                kinds = scope.select(F.struct(F.lit(0), *columns).alias("all")).schema["all"].dataType
                assert isinstance(kinds, StructType)
                kind = kinds[1].dataType.simpleString() if option == "delete_when" else "boolean"
                if kind not in CONDITIONS:
                    yield option, f"`{option}`: {no_condition(kind)}"
            except (AnalysisException, ParseException) as error:
                candidates = [f"columns of the route: {', '.join(field.name for field in of_route.values())}"]
                event = scope.select("event.*").columns
                candidates.append(f"fields of the event: {', '.join(f'event.{name}' for name in event)}")
                candidates.append(f"of the record: {', '.join(name for name in RECORD if name not in of_route)}")
                reason = first_line(error).partition(" Did you mean")[0]
                yield option, f"`{option}`: {reason}; {'; '.join(candidates)}"

    def _merge_columns(self) -> tuple[list[Column], list[Column]]:
        """Return the columns that delete rows, one for each merging sink, and those that order them."""
        deletes = []
        newest: list[Column] = []
        for sink in self.merging_sinks.values():
            condition = sink.deletes()
            deletes.append(F.lit(False) if condition is None else condition)
            newest += sink.newest()
        return deletes, newest

    def spread_by(self, frame: DataFrame) -> tuple[dict[str, Column], ...]:
        """Return columns, level by level, of which the last is the first table name that a sink takes from data."""
        names = [*self.table_columns().values()]
        if not names:
            return ()
        has_event = F.col("event").isNotNull()
        name_level = {SPREAD_BY: tried(F.when(has_event, names[0]))}
        if not self._reads_selected(frame, names[:1]):
            return (name_level,)
        row = tried(F.when(has_event, F.struct(*self.projection_columns(frame))))
        row_level = {column.name: row.getField(column.name) for column in self.selected_columns(frame)}
        return (row_level, name_level)

    def _reads_selected(self, frame: DataFrame, names: list[Column]) -> bool:
        """Return whether names read what only `select` makes. Raises AnalysisException if a column exists nowhere."""
        frame_names = {name.lower() for name in frame.columns}
        if self._templates_read_only(frame_names):  # the usual case, without a call of Spark's analyser
            return False
        scope = self.frame_for_names(frame)
        return _reads_any(scope, names, {name.lower() for name in scope.columns} - frame_names)

    def _templates_read_only(self, frame_names: set[str]) -> bool:
        """Return whether all table names are made of templates that read columns of a frame only."""
        for j in self.table_columns():
            sink = self.route.sinks[j]
            assert isinstance(sink, LakeSink)
            for field in template_fields(sink.table_template() or "{?}"):
                if field.split(".")[0].lower() not in frame_names:
                    return False
        return True

    def route_columns(self, frame: DataFrame, *, with_names: bool, with_merges: bool) -> RouteColumns:
        """Return the route's expressions over the columns of a decoded frame, as far as they read no rows."""
        deletes, newest = self._merge_columns() if with_merges else ([], [])
        return RouteColumns(
            rule=self.route.match.matches(),
            checks=tuple(F.expr(check.sql) for check in self.route.expect),
            row=() if self.takes_events else tuple(self.projection_columns(frame)),
            names=tuple(self.table_columns().values()) if with_names else (),
            deletes=tuple(deletes),
            newest=tuple(newest),
        )

    def _refuse_no_conditions(self, kinds: Sequence[object]) -> None:
        """Raise StartError if the rule or an expectation, which these types begin with, is no boolean."""
        names = ["`match`", *(f"expectation {check.name}" for check in self.route.expect)]
        for name, kind in zip(names, kinds, strict=False):
            if kind not in CONDITIONS:
                raise StartError(f"route {self.route.name}, {name}: {no_condition(kind)}")

    def name_faults(self, frame: DataFrame, row_type: StructType) -> Iterator[tuple[int, str]]:
        """Yield the sinks whose tables are named by a field that is no single value: of a frame, or of the row."""
        # Of one name the frame's column is taken, as in `frame_for_names`.
        scope = StructType([*row_type, *frame.schema])
        for j, sink in enumerate(self.route.sinks):
            for path in template_fields(sink.table_template() or "") if isinstance(sink, LakeSink) else ():
                kind: DataType = scope
                for name in path.split("."):
                    inner = {field.name.lower(): field for field in kind} if isinstance(kind, StructType) else {}
                    kind = inner[name.lower()].dataType if name.lower() in inner else StringType()
                if isinstance(kind, (StructType, ArrayType, MapType)):
                    yield j, f"{path} is {kind.simpleString()}, and no name of a table: name one of its fields"

    def projection_columns(self, frame: DataFrame) -> list[Column]:
        """Return the columns that the route selects."""
        columns: list[Column] = []
        for text in self.route.select:
            columns += _expand_star(frame, text)
        return columns

    def in_tasks(self, frame: DataFrame, labels: RouteLabels) -> RouteExpressions:
        """Return the expressions that tasks evaluate. Raises Untranslatable with what only Spark can evaluate."""
        names_of_rows = self.names_of_rows(frame)
        merges_of_rows = self.merges_of_rows(frame)
        columns = self.route_columns(frame, with_names=names_of_rows is None, with_merges=merges_of_rows is None)
        try:
            # All at once, since each call analyses a plan.
            nodes = translate_columns(
                frame,
                [
                    columns.rule,
                    *columns.checks,
                    *columns.row,
                    *columns.names,
                    *columns.deletes,
                    *columns.newest,
                ],
            )
        except AnalysisException:  # the projection as a whole was analysed before: one of its parts stands for several
            raise Untranslatable("the * of a field") from None
        self._refuse_no_conditions([node.kind for node in nodes])
        remaining = iter(nodes)
        return self._route_expressions(
            labels,
            rule=next(remaining),
            checks=list(islice(remaining, len(columns.checks))),
            row=tuple(islice(remaining, len(columns.row))) or None,
            names=list(islice(remaining, len(columns.names))),
            names_of_rows=names_of_rows,
            merges_of_rows=merges_of_rows,
            deletes=list(islice(remaining, len(columns.deletes))),
            newest=[*remaining],
        )

    def by_spark(
        self, frame: DataFrame, labels: RouteLabels, candidates: Column
    ) -> tuple[RouteExpressions, list[dict[str, Column]]]:
        """Return the expressions that read columns which Spark evaluates, and these columns, level by level.

        `candidates` are the rows that the route looks at. Every column is guarded: what raises on a row is null on it,
        and the projection is one struct, so that a null struct means that it raised.
        """
        names_of_rows = self.names_of_rows(frame)
        merges_of_rows = self.merges_of_rows(frame)
        columns = self.route_columns(frame, with_names=names_of_rows is None, with_merges=merges_of_rows is None)
        conditions = frame.select(columns.rule, *columns.checks).schema
        self._refuse_no_conditions([field.dataType.simpleString() for field in conditions])
        matched = F.col(labels.matched)
        guarded: dict[str, Column] = {}

        # All of these read the column of the rule: they are one level, behind that of the rule.
        checks = []
        for k, check in enumerate(columns.checks):
            name = f"_check{self.index}_{k}"
            guarded[name] = holds_where(matched, check)
            checks.append(_read_column(name))
        row = None
        if columns.row:
            guarded[self.rows] = tried(F.when(matched, F.struct(*columns.row)))
            row = _read_column(self.rows)

        def guard_columns(kind: str, values: tuple[Column, ...]) -> list[Node]:
            nodes = []
            for k, value in enumerate(values):
                name = f"_{kind}{self.index}_{k}"
                guarded[name] = tried(F.when(matched, value))
                nodes.append(_read_column(name))
            return nodes

        expressions = self._route_expressions(
            labels,
            rule=_read_column(labels.matched),
            checks=checks,
            row=row,
            names=guard_columns("names", columns.names),
            names_of_rows=names_of_rows,
            merges_of_rows=merges_of_rows,
            deletes=guard_columns("deletes", columns.deletes),
            newest=guard_columns("newest", columns.newest),
        )
        return expressions, [{labels.matched: holds_where(candidates, columns.rule)}, guarded]

    def _route_expressions(
        self,
        labels: RouteLabels,
        *,
        rule: Node,
        checks: list[Node],
        row: tuple[Node, ...] | Node | None,
        names: list[Node],
        names_of_rows: list[Node] | None,
        merges_of_rows: list[Node] | None,
        deletes: list[Node],
        newest: list[Node],
    ) -> RouteExpressions:
        if names_of_rows is not None:
            names = names_of_rows
        if merges_of_rows is not None:
            deletes = merges_of_rows[: len(self.merging_sinks)]
            newest = merges_of_rows[len(self.merging_sinks) :]
        merges = {}
        # The order columns of all sinks stand one after another: each sink takes as many as it has.
        remaining = iter(newest)
        for (j, sink), node in zip(self.merging_sinks.items(), deletes, strict=True):
            target = labels.targets[j]
            merges[str(target.merge_by)] = MergeBy(
                table=None if target.bad_name else str(sink.table()),
                deletes=node,
                newest=tuple(islice(remaining, len(sink.newest()))),
                tombstones=sink.tombstones,
            )
        return RouteExpressions(
            labels=labels,
            rule=rule,
            checks=tuple(
                Check(check.name, check.otherwise, node) for check, node in zip(self.route.expect, checks, strict=True)
            ),
            row=row,
            names={labels.targets[j].destination: node for j, node in zip(self.table_columns(), names, strict=True)},
            merges=merges,
            tombstones=takes_tombstones(self.route),
            names_of_rows=names_of_rows is not None,
            merges_of_rows=merges_of_rows is not None,
        )

    def route_labels(self, frame: DataFrame, config: Config) -> RouteLabels:
        """Return the labels of the route: the names of its columns, and its targets."""
        row_type = self.row_type(frame)
        for fault in self.row_faults(frame, row_type):
            raise StartError(fault)
        for j, fault in self.name_faults(frame, row_type):
            raise StartError(f"route {self.route.name}, sink {[*self.route.named_sinks][j]}: {fault}")
        schema = delta_schema(pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in row_type]))
        targets = []
        for j, name in enumerate(self.route.named_sinks):
            target = Target(
                route=self.route.identity,
                sink=name,
                destination=f"_to{self.index}_{j}",
                rows=self.rows,
                schema=schema,
                narrowed=self.narrowed,
            )
            targets.append(self._with_options(frame, row_type, j, target, config))
        return RouteLabels(
            name=self.route.identity,
            shown=self.route.name,
            matched=f"_matched{self.index}",
            refused=f"_refused{self.index}",
            dropped=f"_dropped{self.index}",
            violated={check.name: f"_violated{self.index}_{check.name}" for check in self.route.expect},
            failing=tuple(check.name for check in self.route.expect if check.otherwise == "fail"),
            targets=tuple(targets),
            narrowed=self.narrowed,
        )

    def row_type(self, frame: DataFrame) -> StructType:
        """Return the columns of the route's rows."""
        row = F.col("event") if self.takes_events else F.struct(*self.projection_columns(frame))
        kind = frame.select(row.alias("row")).schema["row"].dataType
        assert isinstance(kind, StructType)  # the contract of decoders
        return kind

    def row_faults(self, frame: DataFrame, row_type: StructType) -> Iterator[str]:
        """Yield why no table can have the route's columns: names and types that Delta lacks, at any depth."""
        yield from _types_delta_lacks(row_type)
        # Spark would call the column of an expression without a name col1, col2 by its place.
        written = f"{' '.join(self.route.select)} {frame.schema['event'].simpleString()}".lower()
        for name in row_type.names:
            if re.fullmatch(r"col\d+", name) and name not in written:
                yield f"route {self.route.name}: expression {name[3:]} of `select` has no name; write: ... AS name"

    def sink_faults(self, frame: DataFrame, sink: Sink) -> Iterator[tuple[str, str]]:
        """Yield the options of a sink that do not go with the route's columns, each with the reason."""
        if isinstance(sink, TableSink):
            yield from option_faults(sink, self.row_type(frame))
        if isinstance(sink, MergingSink):
            unresolved = dict(self.merge_faults(frame, sink))
            yield from unresolved.items()
            # A faulty `delete_when` hides nothing of `newest_by`.
            merge_columns = StructType() if "newest_by" in unresolved else self._merge_type(frame, sink)
            yield from mergeable_faults(sink, self.row_type(frame), merge_columns)

    def _with_options(self, frame: DataFrame, row_type: StructType, j: int, target: Target, config: Config) -> Target:
        """Return the target of a sink with what the sink's options say of it, and with its quarantine."""
        sink = self.route.sinks[j]
        holding = [check.name for check in self.route.expect if check.otherwise == "quarantine"]
        if not isinstance(sink, TableSink):
            if holding:
                raise StartError(
                    f"route {target.route}, sink {target.sink}: expectation {holding[0]}: rows wait for tables only "
                    "that are appended to; write `otherwise: dead_letter`"
                )
            return self._outbox_target(frame, row_type, j, target, config)

        for _, fault in option_faults(sink, row_type):
            raise StartError(f"route {target.route}, sink {target.sink}: {fault}")
        target = replace(
            target,
            seen=sink.columns == "seen",
            evolution=sink.evolution,
            widening=sink.widening,
            zero_is_absent=config.decode.zero_is_absent,
            held=f"_held{self.index}" if holding else None,
        )
        # Made of the target as it is now: a quarantine is one table with a fixed name and no partitions.
        target = replace(target, quarantine=_quarantine_target(frame, target, config), partition_by=sink.partition_by)
        table = sink.table()
        if isinstance(table, str):
            return replace(target, table=table)
        return replace(target, bad_name=self._bad_name(j), at_most=sink.at_most)

    def _outbox_target(self, frame: DataFrame, row_type: StructType, j: int, target: Target, config: Config) -> Target:
        """Return the target of a sink that applies or merges rows later: the outbox that keeps them."""
        sink = self.route.sinks[j]
        table = outbox_of(config.name, target.route, target.sink)
        target = replace(target, table=table, outbox=True)
        if not isinstance(sink, MergingSink):
            return _with_columns(target, _arrow_types(frame, COORDINATES))

        target = replace(target, merge_by=f"_merge{self.index}_{j}", at_most=sink.at_most, bad_name=self._bad_name(j))
        try:
            deletes = sink.deletes()
            merge_columns = self._merge_type(frame, sink, F.lit(False) if deletes is None else deletes)
        except (AnalysisException, ParseException):
            for _, fault in self.merge_faults(frame, sink):
                raise StartError(f"route {target.route}, sink {target.sink}: {fault}") from None
            raise
        unresolved = () if deletes is None else self.merge_faults(frame, sink)
        for _, fault in (*unresolved, *mergeable_faults(sink, row_type, merge_columns)):
            raise StartError(f"route {target.route}, sink {target.sink}: {fault}")
        columns = _arrow_types(frame, MERGED_COORDINATES)
        columns.update({field.name: arrow_type(field.dataType) for field in merge_columns})
        keyed = with_order_columns(sink)
        return _with_columns(replace(target, needed=frozenset((*keyed.keys, *order_names(keyed)))), columns)

    def _merge_type(self, frame: DataFrame, sink: MergingSink, *others: Column) -> StructType:
        """Return the columns of a merging sink's outbox besides the route's; `others` are analysed with them."""
        merge_row = self.frame_for_merges(frame).select(merge_struct(sink).alias("more"), *others)
        columns = merge_row.schema["more"].dataType
        assert isinstance(columns, StructType)
        return columns

    def _bad_name(self, j: int) -> str | None:
        return f"_bad_name{self.index}_{j}" if j in self.table_columns() else None


def _read_column(name: str) -> Node:
    """Return the expression that reads a column, whatever its type: one that Spark has evaluated."""
    return Node("column", None, with_=name)


def _reads_any(scope: DataFrame, columns: list[Column], names: set[str]) -> bool:
    """Return whether columns over a frame read any of some names. Raises AnalysisException if one exists nowhere."""
    projections = analysed_plan(scope.select(*columns)).projectList()
    for k in range(len(columns)):
        references = projections.apply(k).references().iterator()
        while references.hasNext():
            if references.next().name().lower() in names:
                return True
    return False


def _quarantine_target(frame: DataFrame, target: Target, config: Config) -> Target | None:
    """Return the table where rows wait until theirs can take them. It has the columns that have a value.

    None for a route with a column of a name that the quarantine needs, unless the sink or an expectation requires one:
    the stream waits while a table of it cannot be written.
    """
    required = target.evolution == "quarantine" or target.held is not None
    schema_columns = {new: old for new, old in SCHEMA_COLUMNS.items() if required and old in frame.columns}
    columns = QUARANTINE_COLUMNS | _arrow_types(frame, schema_columns | COORDINATES)
    if not required and {*columns} & {name.lower() for name in target.schema.names}:
        return None
    quarantine = replace(
        target,
        table=quarantine_of(config.name, target.route, target.sink),
        seen=True,
        suffix="/quarantine",
        evolution="evolve",
        outbox=True,
        held=None,
    )
    return _with_columns(quarantine, columns)


def _with_columns(target: Target, columns: dict[str, pa.DataType]) -> Target:
    """Return the target of an outbox or a quarantine, with columns before those of its rows."""
    clash = sorted(set(columns) & {name.lower() for name in target.schema.names})
    if clash:
        raise StartError(f"column {clash[0]}: {target.key} is kept with one of that name; rename it in `select`")
    return replace(target, schema=delta_schema(pa.schema([*columns.items(), *target.schema])))


def _arrow_types(frame: DataFrame, columns: dict[str, str]) -> dict[str, pa.DataType]:
    """Return the Arrow types of columns of a frame, by their new names."""
    return {new: arrow_type(frame.schema[old].dataType) for new, old in columns.items()}


def _expand_star(frame: DataFrame, text: str) -> list[Column]:
    """Return the columns of an expression of `select`: several for the `*` of a struct."""
    star = re.fullmatch(r"\s*(\w+)\.\*\s*", text)
    if star and star[1] in frame.columns:
        struct = frame.schema[star[1]].dataType
        if isinstance(struct, StructType):
            return [F.col(star[1]).getField(name).alias(name) for name in struct.fieldNames()]
    return [F.expr(text)]


_TYPES_OF_DELTA = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
"""The types of single values that Delta keeps."""


def _types_delta_lacks(kind: DataType, column: str = "") -> Iterator[str]:
    """Yield what Delta cannot keep, at any depth: names and types."""
    if isinstance(kind, StructType):
        yield from _name_faults(kind)
        for child in kind:
            yield from _types_delta_lacks(child.dataType, f"{column}.{child.name}" if column else child.name)
    elif isinstance(kind, ArrayType):
        yield from _types_delta_lacks(kind.elementType, column)
    elif isinstance(kind, MapType):
        yield from _types_delta_lacks(kind.keyType, column)
        yield from _types_delta_lacks(kind.valueType, column)
    elif not isinstance(kind, _TYPES_OF_DELTA):
        yield f"column {column}: a table cannot keep {kind.simpleString()}; cast it or leave it out in `select`"


def _name_faults(struct: StructType) -> Iterator[str]:
    folded: dict[str, str] = {}
    for name in struct.fieldNames():
        if any(character in REFUSED_IN_COLUMNS for character in name) or not name:
            yield f"column {name!r}: Delta refuses spaces and ,;{{}}()= in names; rename it in `select`"
        if name in folded.values():
            yield f"two columns are called {name}; rename one in `select`"
        elif name.lower() in folded:
            yield f"columns {folded[name.lower()]} and {name} differ by case only; rename one in `select`"
        folded[name.lower()] = name
