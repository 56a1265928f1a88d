"""Plan a batch: what Spark evaluates before the landing task, and what the task evaluates itself. Lazy: nothing runs.

What a user's expression raises on a row is caught on that row: a rule becomes null, which is no match; a projection
becomes a dead letter. If one expression of a route needs Spark, Spark evaluates all expressions of that route, and
of no other. If the decoder works in the task, that task is then cut in two: decode, Spark's columns, label and land.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from router.api.columns import holds_where
from router.api.decoding import ArrowDecoding
from router.api.parts import Decoder
from router.api.sinks import LakeSink
from router.delta.change_feed import has_feed, taken_by_feed
from router.delta.nesting import too_deep
from router.engine.expressions.evaluator import Node, Untranslatable, translate_columns
from router.engine.label.labels import Decoding, Labelling, decoding_task
from router.engine.label.layout import Layout
from router.engine.label.narrowing import NarrowedEvent, keep_planned, load_planned, narrowest_change
from router.engine.label.route import CONDITIONS, SPREAD_BY, Check, RoutePlanner, no_condition
from router.engine.label.tombstones import TOMBSTONE, Tombstones, plan_tombstones, takes_tombstones
from router.engine.lookup.loading import Lookups
from router.errors import StartError, first_line
from router.own_names import BRONZE
from router.record import RAW_COLUMNS, RECORD_SCHEMA, UNREADABLE
from router.registry import call_part, part_error
from router.spark_internals import arrow_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import Column, SparkSession

    from router.api.parts import Memory
    from router.config.models import BronzeExpectation, Config
    from router.engine.label.route import RouteExpressions

log = logging.getLogger("router")
WHOLE_EVENT = "_whole_event"
"""All of an event, while the expressions of routes are evaluated that see less of it."""
EVERY_ROUTE = ""
"""Stands for the events that lookups and tombstones see, and so all routes, where the name of a route stands else."""
KEPT = ("_big", UNREADABLE)
"""Columns of records that neither decoder nor rules see, for the task that lands them."""


@dataclass(frozen=True)
class Stages:
    """What happens to raw records before the landing task and in it; made once for each state of the decoder.

    `arrow` is None if Spark's columns decode records. `decoded` are the columns of decoded records. `levels` are the
    columns that need Spark, one projection after the other; those of `spread_by` end with the first table name that a
    sink takes from data. `routes_by_spark` has the reason for each route that is left to Spark, `bronze_by_spark` that
    for each of bronze's expectations. `lookup_keys` are the expressions of the keys of each lookup. `events` has the
    type of the events that each route sees.
    """

    decoder: Decoder
    arrow: ArrowDecoding | None
    decoding: Decoding
    labelling: Labelling
    decoded: StructType
    levels: tuple[dict[str, Column], ...]
    spread_by: tuple[dict[str, Column], ...]
    routes_by_spark: dict[str, str]
    bronze_by_spark: dict[str, str]
    lookup_keys: dict[str, tuple[Node, ...]]
    events: dict[str, StructType]


@dataclass(frozen=True)
class Plan:
    """The records of a batch, and how they become rows of tables. Records without an arrival get `arrival`.

    `nulls` has by column of Spark the condition of the records on which the column is not evaluated, but null.
    """

    raw: DataFrame
    stages: Stages
    arrival: int | None = None
    nulls: Mapping[str, Column] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """Return the columns of the labelled batches."""
        return self.stages.labelling.layout

    @property
    def spreads_by_table(self) -> bool:
        """Return whether data names tables, so that rows can be shuffled by table."""
        return bool(self.stages.spread_by)

    def frame_for_landing(self, records: DataFrame, tasks: int | None = None) -> tuple[DataFrame, Labelling]:
        """Return the frame that the landing task gets of raw records, and how it labels them.

        With `tasks` rows are shuffled so that those of a table meet in one of so many. Keeps `_big` and UNREADABLE.
        """
        stages = self.stages
        spread = tasks is not None and self.spreads_by_table
        frame = records
        if stages.arrow is None:
            frame = stages.decoder.decode(records)
        elif stages.arrow.before:
            frame = stages.arrow.before(records)
        if not (stages.levels or spread):
            return frame, stages.labelling

        # Spark's expressions need decoded records: an earlier task decodes them.
        decoded = StructType([*stages.decoded, *(field for field in frame.schema if field.name in KEPT)])
        if stages.arrow or stages.decoding.completes_events:
            frame = frame.mapInArrow(decoding_task(stages.decoding, decoded.names, self.arrival), decoded)
        elif self.arrival is not None:
            # No task runs before Spark's expressions. The constant is another one in each batch, so Spark compiles this
            # plan each time; a task for it alone would cost more.
            frame = _with_arrival(frame, self.arrival)
        columns = [*decoded.names]
        for level in self._guard_nulls(stages.levels):
            frame = frame.withColumns(level)
            columns += [name for name in level if name not in columns]
        frame = frame.select(*columns)
        if spread:
            for level in self._guard_nulls(stages.spread_by):
                frame = frame.withColumns(level)
            frame = frame.repartition(tasks or 1, SPREAD_BY).select(*columns)
        return frame, replace(stages.labelling, decoding=None)

    def _guard_nulls(self, levels: tuple[dict[str, Column], ...]) -> Iterator[dict[str, Column]]:
        for level in levels:
            guarded = {name: F.when(~self.nulls[name], level[name]) for name in level.keys() & self.nulls.keys()}
            yield {**level, **guarded}


def _with_arrival(records: DataFrame, arrival: int) -> DataFrame:
    """Return records with an arrival; those that have one keep it."""
    column = F.lit(arrival).cast("long")
    if "arrival" in records.columns:
        column = F.coalesce("arrival", column)
    return records.withColumn("arrival", column)


class Planner:
    """The plans of a query's batches. The decoder must be prepared already.

    Every level is one projection for all routes: Spark analyses the plan again for each, and a small batch spends its
    time on that. The columns are made once per decoder and used for every batch: each is some calls across the
    gateway. A plan `at_start` is refused if no table can have its columns.

    `memory` has the types of events that routes were last planned with (`narrowing`): only a route that could not be
    planned with them either is refused.
    """

    def __init__(
        self,
        config: Config,
        decoder: Decoder,
        *,
        memory: Memory | None = None,
        quiet: bool = False,
        at_start: bool = False,
    ) -> None:
        self.config = config
        self.decoder = decoder
        self.quiet = quiet
        self.checks_columns = at_start
        self.own = frozenset({config.dead_letters, config.ledger})
        self.bronze = config.bronze_tables()
        self.lookups = Lookups(config)
        self.routes = [RoutePlanner(index, route) for index, route in enumerate(config.routes)]
        self.stages: Stages | None = None
        self.logged: str | None = None
        self.lookup_states: tuple[str, ...] = ()
        self.preparing = threading.Lock()
        self.are_routes_checked = False
        self.left_to_spark: dict[str, str] = {}
        self.memory = memory
        self.planned = load_planned(memory) if memory else {}
        self.kept: dict[str, StructType] | None = None
        self.told: dict[str, tuple[str, ...]] = {}

    def prepare_stages(self, spark: SparkSession) -> None:
        """Make the stages ahead of the first batch; a batch that comes meanwhile waits for them."""
        with self.preparing, suppress(Exception):  # the batch gets the same error, and reports it
            self._prepared_stages(spark)
        self._refuse_impossible_columns()

    def check_routes(self) -> None:
        """Call the methods of rules and sinks once; raise PluginError, naming the plugin, for a broken one.

        A decoder is asked only when stages are made: one that takes schemas from a registry may know none before.
        """
        if self.are_routes_checked:
            return
        for route in self.routes:
            route.check_parts()
        self.are_routes_checked = True

    def fetch_schemas(self, wanted: frozenset[str] = frozenset()) -> None:
        """Let the decoder fetch the schemas that the next batch, or rows of this one, need.

        Before a batch (nothing is wanted) tables of lookups that have changed are loaded again as well. Raises OSError
        if a schema cannot be fetched now.
        """
        self.decoder = call_part(self.decoder, "refresh", Decoder, wanted)
        if not wanted:
            self.lookups.refresh_due()

    def leave_to_spark(self, defects: Mapping[str, str]) -> bool:
        """Let Spark evaluate the expressions of routes, or of bronze, that fail in tasks; return whether any is new.

        Until the process ends: what fails there now may fail in each batch.
        """
        new = {name: reason for name, reason in defects.items() if name not in self.left_to_spark}
        for name, reason in new.items():
            message = (
                "%s: Spark evaluates the expressions of %s from now on, which takes longer: it has %s. Report this"
            )
            log.warning(message, self.config.name, name, reason)
        self.left_to_spark.update(new)
        if new:
            self.stages = None
        return bool(new)

    def plan_batch(self, raw: DataFrame, arrival: int | None = None) -> Plan:
        """Return the plan of one batch. Needs the columns of `RECORD_SCHEMA`. Lazy.

        Records without an arrival get `arrival`, unless it is None.
        """
        with self.preparing:
            stages = self._prepared_stages(raw.sparkSession)
        self._refuse_impossible_columns()
        self._log_stages(stages)
        self._keep_planned(stages)
        return Plan(raw, stages, arrival)

    def _refuse_impossible_columns(self) -> None:
        """Raise StartError for a column that its table can never have, if this is a start.

        A column that the decoder learns later stops nothing: its rows become dead letters (`SchemaEvolution`).
        """
        if self.stages is None or not self.checks_columns:
            return
        sinks = {f"{route}/{name}": sink for route, name, sink in self.config.all_sinks()}
        for route in self.stages.labelling.layout.routes:
            if self.planned.get(route.name, self.stages.events[route.name]) != self.stages.events[route.name]:
                continue  # a schema has brought the column: nobody wrote it
            for target in route.targets:
                sink = sinks.get(target.key)
                faults = [*too_deep(target.schema).values()]
                if isinstance(sink, LakeSink):
                    faults += taken_by_feed(target.schema, feed=has_feed(None, sink)).values()
                if faults:
                    raise StartError(f"route {route.name}, sink {target.sink}: {faults[0]}")
        self.checks_columns = False

    def _prepared_stages(self, spark: SparkSession) -> Stages:
        # A decoder that has learnt something is another object.
        if self.stages is None or self.stages.decoder is not self.decoder:
            self.lookups.load_missing(spark)
            with refused_expressions(self.config.name):
                self.stages = self._make_stages(spark)
        # A lookup that was loaded again has the columns of before, and other rows.
        lookup_states = self.lookups.loaded_states()
        if self.stages.decoding.lookups and self.lookup_states != lookup_states:
            decoding = replace(self.stages.decoding, lookups=self.lookups.loaded_tables(self.stages.lookup_keys))
            labelling = replace(self.stages.labelling, decoding=decoding)
            self.stages = replace(self.stages, decoding=decoding, labelling=labelling)
        self.lookup_states = lookup_states
        return self.stages

    def _log_stages(self, stages: Stages) -> None:
        stages_text = stages_in_words(stages)
        if stages_text != self.logged and not self.quiet:
            log.info("%s: %s", self.config.name, stages_text)
        self.logged = stages_text

    def _make_stages(self, spark: SparkSession) -> Stages:
        config = self.config
        self.check_routes()
        records = spark.createDataFrame([], RECORD_SCHEMA)
        arrow, decoder_fields = decoding_of(self.decoder, records)
        before_columns: list[str] = []
        if arrow and arrow.before:
            before_columns = arrow.before(records).columns[len(records.columns) :]

        fields = [*records.schema, *(field for field in decoder_fields if field.name not in RAW_COLUMNS)]
        frame = spark.createDataFrame([], StructType(fields))
        whole = None
        try:
            frame, tombstone_events, lookup_keys = self._complete_frame(frame)
        except StartError as error:
            event = self._narrower_event(
                EVERY_ROUTE, _event_of(frame), error, lambda event: self._complete_frame(frame, event)
            )
            whole = NarrowedEvent("event", arrow_type(event))
            frame, tombstone_events, lookup_keys = self._complete_frame(frame, event)
        fields = [*frame.schema]
        every = _event_of(frame)

        routes, narrowed = self._plan_routes(frame, has_tombstones=tombstone_events is not None)
        events = [NarrowedEvent(column, arrow_type(event)) for column, event in narrowed.items()]
        for narrow, event in zip(events, narrowed.values(), strict=True):
            fields += narrow.spark_fields(event)
        decoding = Decoding(
            arrow=replace(arrow, before=None) if arrow else None,  # `before` is a closure of the driver's
            tombstones=tombstone_events,
            before=tuple(before_columns),
            lookups=self.lookups.loaded_tables(lookup_keys),
            whole=whole,
            narrowed=tuple(events),
            zero_is_absent=config.decode.zero_is_absent,
        )
        expectations = config.bronze.expect if config.bronze else ()
        layout = Layout(
            bronze=self.bronze,
            dead_letters=config.dead_letters,
            routes=tuple(route.expressions.labels for route in routes),
            wanted="_wanted" in frame.columns,
            bronze_by=config.bronze.partition_by if config.bronze else (),
            unknown="_unknown" in frame.columns,
            bronze_violated={check.name: f"_violated_{check.name}" for check in expectations},
            bronze_failing=tuple(check.name for check in expectations if check.otherwise == "fail"),
            drops_nulls=config.drop == "nulls",
        )
        bronze_checks, bronze_columns, bronze_by_spark = _bronze_checks(
            frame, expectations, self.left_to_spark.get(BRONZE)
        )
        levels = _projection_levels(routes)
        levels[0].update(bronze_columns)
        labelling = Labelling(
            decoding=decoding,
            layout=layout,
            routes=tuple(route.expressions for route in routes),
            own_tables=self.own,
            unmatched_are_dead=config.unmatched == "dead_letters",
            bronze_checks=bronze_checks,
        )
        return Stages(
            decoder=self.decoder,
            arrow=arrow,
            decoding=decoding,
            labelling=labelling,
            decoded=StructType(fields),
            levels=tuple(level for level in levels if level),
            spread_by=next(
                filter(None, (route.planner.spread_by(frame) for route in routes if not route.narrowed_column)), ()
            ),
            routes_by_spark={route.name: route.by_spark for route in routes if route.by_spark},
            bronze_by_spark=bronze_by_spark,
            lookup_keys=lookup_keys,
            events={EVERY_ROUTE: every, **{route.name: route.event for route in routes}},
        )

    def _complete_frame(
        self, frame: DataFrame, event: StructType | None = None
    ) -> tuple[DataFrame, Tombstones | None, dict[str, tuple[Node, ...]]]:
        """Return an empty frame with what tombstones and lookups add to decoded records, and their expressions.

        Tombstones are expressions over decoded columns, keys of lookups over these and the mark of tombstones: each
        step needs a frame with the columns of those before it. `event` is the type of events, if not that of the frame.
        """
        if event:
            frame = _with_event(frame, event)
        spark = frame.sparkSession
        with refused_expressions(self.config.name):
            tombstone_events = plan_tombstones(self.config, frame)
            if tombstone_events:
                frame = spark.createDataFrame([], frame.schema.add(TOMBSTONE, BooleanType()))
            lookup_keys = self.lookups.key_expressions(frame)
            if lookup_keys:
                fields = [*frame.schema, *self.lookups.added_fields(frame.columns)]
                frame = spark.createDataFrame([], StructType(fields))
        return frame, tombstone_events, lookup_keys

    def _plan_routes(
        self, frame: DataFrame, *, has_tombstones: bool
    ) -> tuple[tuple[PlannedRoute, ...], dict[str, StructType]]:
        """Return the routes as they are planned, and the columns of narrowed events with their types."""
        routes: list[PlannedRoute] = []
        narrowed: dict[str, StructType] = {}
        for planner in self.routes:
            try:
                routes.append(self._plan_route(planner, frame, has_tombstones=has_tombstones))
            except StartError as error:

                def plan_with_event(event: StructType, planner: RoutePlanner = planner) -> object:
                    return self._plan_route(planner, _with_event(frame, event), has_tombstones=has_tombstones)

                event = self._narrower_event(planner.route.identity, _event_of(frame), error, plan_with_event)
                names = {other: name for name, other in narrowed.items()}
                column = names.get(event, f"_event{len(narrowed)}")
                narrowed[column] = event
                seeing = replace(planner, narrowed=column)
                routes.append(self._plan_route(seeing, _with_event(frame, event), has_tombstones=has_tombstones))
        return tuple(routes), narrowed

    def _narrower_event(
        self, name: str, event: StructType, error: StartError, plan: Callable[[StructType], object]
    ) -> StructType:
        """Return the event with which something can be planned that cannot be planned with `event`.

        `name` is the identity of a route, or EVERY_ROUTE. Raises the error if a schema is not to blame: it cannot be
        planned with its last event either.
        """

        def can_plan(narrower: StructType) -> bool:
            try:
                plan(narrower)
            except StartError:
                return False
            return True

        found = narrowest_change(event, self.planned.get(name, event), can_plan)
        if found is None:
            raise error
        narrower, fields = found
        if self.told.get(name) != fields and not self.quiet:
            where = "lookups and tombstones"
            for route in self.config.routes:
                if route.identity == name:
                    where = f"route {route.name}"
            brought = ", ".join(self.decoder.origin_of(field) or field for field in fields)
            message = (
                "%s: %s cannot be planned with %s, and see events without that: rows with such a value are counted as "
                "frozen, values of another type that do not fit are dead letters. Change the configuration, then "
                "rebuild the tables. %s"
            )
            log.warning(message, self.config.name, where, brought, error)
        self.told[name] = fields
        return narrower

    def _keep_planned(self, stages: Stages) -> None:
        """Keep the types of events that routes see now, if they saw others before."""
        if self.kept is stages.events:
            return  # the usual case: types of many routes take some time to compare
        # A replay has some of the routes only.
        planned = {**self.planned, **stages.events}
        if self.memory and self.planned != planned:
            keep_planned(self.memory, planned)
        self.planned = planned
        self.kept = stages.events

    def _plan_route(self, planner: RoutePlanner, frame: DataFrame, *, has_tombstones: bool) -> PlannedRoute:
        """Return a route as it is planned with a frame. Raises StartError if it cannot be."""
        event = _event_of(frame)
        with refused_expressions(f"route {planner.route.name}"):
            labels = planner.route_labels(frame, self.config)
            try:
                if labels.name in self.left_to_spark:
                    raise Untranslatable(self.left_to_spark[labels.name])
                return PlannedRoute(planner, event, planner.in_tasks(frame, labels))
            except Untranslatable as reason:
                by_spark = str(reason)
            candidates = F.col("event").isNotNull()
            if has_tombstones and not takes_tombstones(planner.route):
                candidates = candidates & ~F.col(TOMBSTONE)
            expressions, levels = planner.by_spark(frame, labels, candidates)
            rows = frame
            for columns in levels:
                rows = rows.withColumns(columns)  # analyses them
            return PlannedRoute(planner, event, expressions, tuple(levels), by_spark)


@dataclass(frozen=True)
class PlannedRoute:
    """The expressions of a route that sees `event`. `levels` are its columns that need Spark, `by_spark` says why."""

    planner: RoutePlanner
    event: StructType
    expressions: RouteExpressions
    levels: tuple[dict[str, Column], ...] = ()
    by_spark: str = ""

    @property
    def name(self) -> str:
        """Return the route's name in ids."""
        return self.expressions.labels.name

    @property
    def narrowed_column(self) -> str | None:
        """Return the column of the events that the route sees, None if it sees all of them."""
        return self.planner.narrowed


def _projection_levels(routes: Iterable[PlannedRoute]) -> list[dict[str, Column]]:
    """Return the projections of all routes: two for those that see all of an event, four for each narrower one.

    Those begin and end with a change of the column `event`, which the expressions of routes read.
    """
    of_event: dict[str | None, list[dict[str, Column]]] = {None: [{}, {}]}
    for route in routes:
        levels = of_event.setdefault(route.narrowed_column, [{}, {}])
        for level, columns in zip(levels, route.levels, strict=False):
            level.update(columns)
    projections = of_event.pop(None)
    for column, levels in of_event.items():
        if any(levels):
            whole = {WHOLE_EVENT: F.col("event"), "event": F.col(str(column))}
            projections += [whole, *levels, {"event": F.col(WHOLE_EVENT)}]
    return projections


def _event_of(frame: DataFrame) -> StructType:
    """Return the type of a decoded frame's events."""
    event = frame.schema["event"].dataType
    assert isinstance(event, StructType)  # the contract of decoders
    return event


def _with_event(frame: DataFrame, event: StructType) -> DataFrame:
    """Return an empty frame with the columns of another and a narrower event."""
    fields = [StructField("event", event) if field.name == "event" else field for field in frame.schema]
    return frame.sparkSession.createDataFrame([], StructType(fields))


@contextmanager
def refused_expressions(where: str) -> Iterator[None]:
    """Raise StartError in place of Spark's errors about an expression that it cannot analyse."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        todo = "`router check FILE --plan` prints its place"
        raise StartError(f"{where} has an expression that Spark refuses: {first_line(error)}. {todo}") from error


def decoding_of(decoder: Decoder, raw: DataFrame) -> tuple[ArrowDecoding | None, StructType]:
    """Return how tasks decode, None if Spark does, and the columns that a decoder adds to raw records.

    Raises PluginError if the decoder cannot be asked, or does not add a struct `event` and a text `_error`.
    """
    decoding = call_part(decoder, "decoding", (ArrowDecoding, type(None)))
    added = decoding.adds if decoding else call_part(decoder, "decode", DataFrame, raw).schema
    types = {field.name: field.dataType for field in added}
    if isinstance(types.get("event"), StructType) and isinstance(types.get("_error"), StringType):
        return decoding, added
    text = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items() if name in {"event", "_error"})
    problem = "it must add the columns event (a struct) and _error (a string)"
    raise part_error(decoder, f"{problem}, and adds {text or 'neither'}")


def _bronze_checks(
    frame: DataFrame, expectations: tuple[BronzeExpectation, ...], defect: str | None
) -> tuple[tuple[Check, ...], dict[str, Column], dict[str, str]]:
    """Return the expectations of bronze, the columns of those that Spark evaluates, and why Spark has to.

    With a `defect` these are all of them.

    Raises StartError for an expectation that is no expression over the record's columns.
    """
    checks: list[Check] = []
    columns: dict[str, Column] = {}
    by_spark: dict[str, str] = {}
    # A guarded expression needs a condition that Spark does not fold away: this one holds for every record.
    every_record = F.coalesce(F.length("topic") >= 0, F.lit(True))
    for number, expectation in enumerate(expectations):
        try:
            condition = F.expr(expectation.sql)
            kind = frame.select(condition).schema[0].dataType.simpleString()
            if kind not in CONDITIONS:
                raise StartError(f"bronze, expectation {expectation.name}: {no_condition(kind)}")
            if defect is not None:
                raise Untranslatable(defect)
            node = translate_columns(frame, [condition])[0]
        except Untranslatable as reason:
            name = f"_bronze_check{number}"
            columns[name] = holds_where(every_record, condition)
            by_spark[expectation.name] = str(reason)
            node = Node("column", "boolean", with_=name)
        except (AnalysisException, ParseException) as error:
            raise StartError(f"bronze, expectation {expectation.name}: {first_line(error)}") from error
        checks.append(Check(expectation.name, expectation.otherwise, node))
    return tuple(checks), columns, by_spark


def stages_in_words(stages: Stages) -> str:
    """Return a sentence about the stages in which a batch runs, and why."""
    decoding = "tasks decode" if stages.arrow else "Spark decodes"
    if not (stages.routes_by_spark or stages.bronze_by_spark):
        return "tasks decode, match and land in one stage" if stages.arrow else "Spark decodes, tasks match and land"
    needing = f"{len(stages.routes_by_spark)} of {len(stages.labelling.routes)} routes need Spark"
    reasons = [f"bronze, expectation {name}: Spark evaluates {why}" for name, why in stages.bronze_by_spark.items()]
    reasons += [f"route {name}: Spark evaluates {why}" for name, why in stages.routes_by_spark.items()]
    return f"{decoding}, {needing}, tasks land: {'; '.join(reasons)}"
