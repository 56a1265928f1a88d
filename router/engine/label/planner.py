"""Plan a batch: what Spark evaluates before the landing task, and what the task evaluates itself. Lazy: nothing runs.

What a user's expression raises on a row is caught on that row: a rule becomes null, which is no match; a projection
becomes a dead letter. If one expression of a route needs Spark, Spark evaluates all expressions of that route, and
of no other. Where the decoder works in the task, that task is then cut in two: decode, Spark's columns, label and land.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from router.columns import holds
from router.delta.nesting import too_deep
from router.engine.expressions.evaluator import Node, Untranslatable, translate
from router.engine.label.labels import Decoding, Labelling, decoding_task
from router.engine.label.layout import RAW_COLUMNS, RECORD_SCHEMA, Layout
from router.engine.label.route import SPREAD_BY, Check, RoutePlanner
from router.engine.label.tombstones import TOMBSTONE, taken, tombstones
from router.engine.lookup.loading import Lookups
from router.errors import StartError, first_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from router.config.models import BronzeExpectation, Config
    from router.decoding import ArrowDecoding
    from router.engine.label.route import RouteExpressions
    from router.parts import Decoder

log = logging.getLogger("router")


@dataclass(frozen=True)
class Stages:
    """What happens to raw records before the landing task and in it; made once for each state of the decoder.

    `before` adds the columns that Spark makes of raw records, `decoding` is what a task makes of these. `levels` are
    the columns of what needs Spark, one projection after the other; those of `spread_by` end with the first table name
    that a sink takes from data. `left` says which routes are left to Spark, and why; `left_of_bronze` which of bronze's
    expectations.
    """

    decoder: Decoder
    arrow: ArrowDecoding | None
    decoding: Decoding
    labelling: Labelling
    decoded: StructType
    levels: tuple[dict[str, Column], ...]
    spread_by: tuple[dict[str, Column], ...]
    left: dict[str, str]
    left_of_bronze: dict[str, str]
    on: dict[str, tuple[Node, ...]]


@dataclass(frozen=True)
class Plan:
    """The records of a batch, and how they become rows of tables."""

    raw: DataFrame
    stages: Stages

    @property
    def layout(self) -> Layout:
        """Return the columns of the labelled batches."""
        return self.stages.labelling.layout

    @property
    def spreads(self) -> bool:
        """Say whether data names tables, so that rows can be shuffled by table."""
        return bool(self.stages.spread_by)

    def frame(self, records: DataFrame, tasks: int | None = None) -> tuple[DataFrame, Labelling]:
        """Return what the landing task gets of raw records, and how it labels them.

        With `tasks` rows are shuffled so that those of a table meet in one of so many. Keeps a column `_big`.
        """
        stages = self.stages
        frame = stages.arrow.before(records) if stages.arrow and stages.arrow.before else records
        frame = frame if stages.arrow else stages.decoder.decode(frame)
        spread = tasks is not None and self.spreads
        if not (stages.levels or spread):
            return frame, stages.labelling
        kept = ["_big"] if "_big" in records.columns else []
        if stages.arrow or stages.decoding.tombstones or stages.decoding.lookups:
            more = [field for field in frame.schema if field.name in kept]
            kinds = StructType([*stages.decoded.fields, *more])
            frame = frame.mapInArrow(decoding_task(stages.decoding, kinds.names), kinds)
        columns = [*stages.decoded.names, *kept]
        for level in stages.levels:
            frame = frame.withColumns(level)
            columns += level
        frame = frame.select(*columns)
        if spread:
            for level in stages.spread_by:
                frame = frame.withColumns(level)
            frame = frame.repartition(tasks or 1, SPREAD_BY).select(*columns)
        return frame, replace(stages.labelling, decoding=None)


class Planner:
    """The plans of a query's batches. The decoder must be prepared already.

    Every level is one projection for all routes: Spark analyses a plan anew for each, which is what a small batch
    spends its time on. The columns are made once per decoder and used for every batch: each is some calls across the
    gateway. A plan `at_start` is refused if no table can have its columns.
    """

    def __init__(self, config: Config, decoder: Decoder, *, quiet: bool = False, at_start: bool = False) -> None:
        self.config = config
        self.decoder = decoder
        self.quiet = quiet
        self.checks_depth = at_start
        self.own = frozenset({config.dead_letters, config.ledger})
        self.bronze = config.bronze_tables()
        self.lookups = Lookups(config)
        self.routes = [RoutePlanner(index, route) for index, route in enumerate(config.routes)]
        self.stages: Stages | None = None
        self.logged: str | None = None
        self.looked_up: tuple[str, ...] = ()
        self.preparing = threading.Lock()

    def prepare(self, spark: SparkSession) -> None:
        """Make what all plans have in common, ahead of the first batch; a batch that comes meanwhile waits for it."""
        with self.preparing, suppress(Exception):  # the batch runs into the same, and reports it
            self._prepared(spark)
        self._refuse_deep_columns()

    def refresh(self, wanted: frozenset[str] = frozenset()) -> None:
        """Let the decoder fetch what the next batch, or rows of this one, need. Raises OSError where it cannot now.

        For a next batch (nothing is wanted) tables of lookups that have changed are taken, too.
        """
        self.decoder = self.decoder.refresh(wanted)
        if not wanted:
            self.lookups.refresh()

    def plan(self, raw: DataFrame) -> Plan:
        """Return the plan of one batch. Needs the columns of `RECORD_SCHEMA`. Lazy."""
        with self.preparing:
            stages = self._prepared(raw.sparkSession)
        self._refuse_deep_columns()
        self._tell(stages)
        return Plan(raw, stages)

    def _refuse_deep_columns(self) -> None:
        """Raise StartError for a column that is nested deeper than any table can have it, if this is a start.

        A column that the decoder learns later stops nothing: its rows become dead letters (`SchemaEvolution`).
        """
        if self.stages is None or not self.checks_depth:
            return
        for route in self.stages.labelling.layout.routes:
            for target in route.targets:
                faults = [*too_deep(target.schema).values()]
                if faults:
                    raise StartError(f"route {route.name}, sink {target.sink}: {faults[0]}")
        self.checks_depth = False

    def _prepared(self, spark: SparkSession) -> Stages:
        # a decoder that has learnt something is another object
        if self.stages is None or self.stages.decoder is not self.decoder:
            self.lookups.load(spark)
            self.stages = self._stages(spark)
        if self.stages.decoding.lookups and self.looked_up != self.lookups.states():  # columns stay, rows are others
            decoding = replace(self.stages.decoding, lookups=self.lookups.tables(self.stages.on))
            labelling = replace(self.stages.labelling, decoding=decoding)
            self.stages = replace(self.stages, decoding=decoding, labelling=labelling)
        self.looked_up = self.lookups.states()
        return self.stages

    def _tell(self, stages: Stages) -> None:
        stages_text = stages_in_words(stages)
        if stages_text != self.logged and not self.quiet:
            log.info("%s: %s", self.config.name, stages_text)
        self.logged = stages_text

    def _stages(self, spark: SparkSession) -> Stages:
        config, decoder = self.config, self.decoder
        arrow = decoder.decoding()
        records = spark.createDataFrame([], RECORD_SCHEMA)
        before = arrow.before(records) if arrow and arrow.before else records
        adds = arrow.adds if arrow else decoder.decode(records).schema
        kinds = StructType([*records.schema, *(field for field in adds if field.name not in RAW_COLUMNS)])
        frame = spark.createDataFrame([], kinds)
        dead = tombstones(config, frame)
        if dead:
            kinds = StructType([*kinds.fields, StructField(TOMBSTONE, BooleanType())])
            frame = spark.createDataFrame([], kinds)
        on = self.lookups.on(frame)
        if on:
            kinds = StructType([*kinds.fields, *self.lookups.fields(frame.columns)])
            frame = spark.createDataFrame([], kinds)
        shipped = replace(arrow, before=None) if arrow else None  # a closure of the driver's
        decoding = Decoding(shipped, dead, tuple(before.columns[len(records.columns) :]), self.lookups.tables(on))
        labels = tuple(route.labels(frame, config) for route in self.routes)
        bronze_by = config.bronze.partition_by if config.bronze else ()
        added = frame.columns
        expect = config.bronze.expect if config.bronze else ()
        layout = Layout(
            self.bronze,
            config.dead_letters,
            labels,
            "_wanted" in added,
            bronze_by,
            "_unknown" in added,
            {one.name: f"_violated_{one.name}" for one in expect},
            tuple(one.name for one in expect if one.otherwise == "fail"),
            config.drop == "nulls",
        )
        expressions, levels, left = self._expressions(frame, layout, tombstones=dead is not None)
        checks, columns, left_of_bronze = _bronze_checks(frame, expect)
        if columns:
            first_level = levels[0] if levels else {}
            levels = ({**first_level, **columns}, *levels[1:])
        labelling = Labelling(decoding, layout, expressions, self.own, config.unmatched == "dead_letters", checks)
        spread_by = next(filter(None, (route.spread_by(frame) for route in self.routes)), ())
        return Stages(
            decoder=decoder,
            arrow=arrow,
            decoding=decoding,
            labelling=labelling,
            decoded=kinds,
            levels=levels,
            spread_by=spread_by,
            left=left,
            left_of_bronze=left_of_bronze,
            on=on,
        )

    def _expressions(
        self, frame: DataFrame, layout: Layout, *, tombstones: bool
    ) -> tuple[tuple[RouteExpressions, ...], tuple[dict[str, Column], ...], dict[str, str]]:
        """Return the expressions of each route, and the columns and the names of those that are left to Spark."""
        found: list[RouteExpressions] = []
        levels: tuple[dict[str, Column], ...] = ({}, {})
        left: dict[str, str] = {}
        decoded = F.col("event").isNotNull()
        living = decoded & ~F.col(TOMBSTONE) if tombstones else decoded
        for route, labels in zip(self.routes, layout.routes, strict=True):
            try:
                found.append(route.in_tasks(frame, labels))
            except Untranslatable as what:
                left[labels.name] = str(what)
                expressions, columns = route.by_spark(frame, labels, decoded if taken(route.route) else living)
                found.append(expressions)
                for level, more in zip(levels, columns, strict=True):
                    level.update(more)
        return tuple(found), tuple(level for level in levels if level), left


def _bronze_checks(
    frame: DataFrame, expectations: tuple[BronzeExpectation, ...]
) -> tuple[tuple[Check, ...], dict[str, Column], dict[str, str]]:
    """Return the expectations of bronze, the columns of those that Spark evaluates, and why it is left to Spark.

    Raises StartError for what is no expression over the record's columns.
    """
    checks: list[Check] = []
    columns: dict[str, Column] = {}
    left: dict[str, str] = {}
    # What is tried needs a guard that Spark does not fold away: this one holds for every record.
    every_record = F.coalesce(F.length("topic") >= 0, F.lit(True))
    for number, expectation in enumerate(expectations):
        try:
            condition = F.expr(expectation.sql).cast("boolean")
            node = translate(frame, [condition])[0]
        except Untranslatable as why:
            name = f"_bronze_check{number}"
            columns[name] = holds(every_record, condition)
            left[expectation.name] = str(why)
            node = Node("column", "boolean", with_=name)
        except (AnalysisException, ParseException) as error:
            raise StartError(f"bronze, expectation {expectation.name}: {first_line(error)}") from error
        checks.append(Check(expectation.name, expectation.otherwise, node))
    return tuple(checks), columns, left


def stages_in_words(stages: Stages) -> str:
    """Return a sentence that says in which stages a batch runs, and why."""
    if not (stages.left or stages.left_of_bronze):
        return "tasks decode, match and land in one stage" if stages.arrow else "Spark decodes, tasks match and land"
    where = "tasks decode" if stages.arrow else "Spark decodes"
    needing = f"{len(stages.left)} of {len(stages.labelling.routes)} routes need Spark"
    reasons = [f"bronze, expectation {name}: Spark evaluates {what}" for name, what in stages.left_of_bronze.items()]
    reasons += [f"route {name}: Spark evaluates {what}" for name, what in stages.left.items()]
    return f"{where}, {needing}, tasks land: {'; '.join(reasons)}"
