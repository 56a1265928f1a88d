"""Plan a batch: raw records -> events -> one labelled frame. Lazy: nothing runs here.

The labels say in one projection where every row goes, so N routes cost one pass. What a user's expression raises on
a row is caught on that row (see `tried`): a rule becomes null, which is no match; a projection becomes a dead letter.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from router.delta.naming import fold, refusal
from router.delta.schema import plain_schema
from router.engine.layout import COORDINATES, Layout, RouteLabels, Target
from router.errors import StartError
from router.parts import TableSink

if TYPE_CHECKING:
    from router.config.models import Config, Route
    from router.parts import Sink

DEAD_TYPE = "array<struct<stage: string, reason: string, route: string, sink: string>>"
EVERYTHING = ("event.*",)


@dataclass(frozen=True)
class Plan:
    """Be a labelled frame and its layout."""

    frame: DataFrame
    layout: Layout


def plan(config: Config, raw: DataFrame) -> Plan:
    """Label the records of one batch; see Planner."""
    return Planner(config).plan(raw)


class Planner:
    """Label the records of batches. Needs the columns of `RAW_SCHEMA`; a decoder must be prepared already.

    Every level is one projection for all routes: Spark analyses a plan anew for each, which is what a small batch
    spends its time on. A column gets a level of its own only if it is costly and used more than once. The columns are
    made once per schema of events and used for every batch: each is some calls across the gateway.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        own = frozenset(name for name in (config.bronze, config.dead_letters, config.ledger) if name)
        self.drafts = [_Draft(index, route, own) for index, route in enumerate(config.routes)]
        self.made: tuple[DataType, Layout, list[dict[str, Column]], list[Column]] | None = None

    def plan(self, raw: DataFrame) -> Plan:
        """Return the labelled frame of one batch. Lazy."""
        frame = self.config.decode.decode(raw)
        event = frame.schema["event"].dataType
        if self.made is None or self.made[0] != event:
            self.made = (event, *self._make(frame))
        _, layout, levels, labels = self.made
        for level in levels:
            frame = frame.withColumns(level)
        return Plan(frame.select(*labels), layout)

    def _make(self, frame: DataFrame) -> tuple[Layout, list[dict[str, Column]], list[Column]]:
        decoded = F.col("event").isNotNull()
        first = {"_failed": F.col("_error").isNotNull(), "_bare": ~decoded & F.col("_error").isNull()}
        first |= {draft.matched: _holds(decoded, draft.route.match.matches()) for draft in self.drafts}
        levels = [first]
        for level in (_Draft.checks, _Draft.values, _Draft.tables):
            found = {name: column for draft in self.drafts for name, column in level(draft, frame).items()}
            levels += [found] if found else []
        whole = reduce(lambda whole, level: whole.withColumns(level), levels, frame)
        routes = tuple(draft.labels(whole, self.config) for draft in self.drafts)
        layout = Layout(self.config.bronze, self.config.dead_letters, routes)
        unmatched = decoded & ~_any([F.col(draft.matched) for draft in self.drafts])
        labels = {"_unmatched": unmatched, "_dead": _dead(self.drafts, unmatched, self.config)}
        for draft in self.drafts:
            labels |= draft.verdicts()
        return layout, levels, [labels[n].alias(n) if n in labels else F.col(n) for n in layout.columns()]


def tried(column: Column) -> Column:
    """Return the column with null wherever evaluating it raises.

    Spark has no public form of this: its own try_* functions are built on the same expression. The column must be
    guarded by a condition that cannot be folded away (`F.when(...)`): Spark would otherwise compute a subexpression
    shared with another column ahead of the guard, and raise there. See docs/decisions/0001.
    """
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None  # noqa: PT018 - a column cannot exist without
    spark = context._jvm.org.apache.spark.sql
    expression = spark.classic.ExpressionUtils.expression(column._jc)
    return Column(spark.classic.ExpressionUtils.column(spark.catalyst.expressions.TryEval(expression)))


def _holds(given: Column, condition: Column) -> Column:
    return F.coalesce(tried(F.when(given, condition)), F.lit(False))


def _any(columns: list[Column]) -> Column:
    either = F.lit(False)
    for column in columns:
        either = either | column
    return either


def _holds(given: Column, condition: Column) -> Column:
    return F.coalesce(tried(F.when(given, condition)), F.lit(False))


def _any(columns: Iterable[Column]) -> Column:
    return reduce(operator.or_, columns, F.lit(False))


def _dead(drafts: list[_Draft], unmatched: Column, config: Config) -> Column:
    """Return the dead letters of a row: an array of stage, reason, route and sink; null for nearly every row."""
    found = [_letter(F.col("_failed"), "decode", F.col("_error"))]
    if config.unmatched == "dead_letters":
        found.append(_letter(unmatched, "match", F.lit("no route matches")))
    found += [letter for draft in drafts for letter in draft.letters()]
    # concat, not filter: a lambda would take the projection out of whole-stage code generation
    return F.when(_any(when for when, _ in found), F.concat(*[entry for _, entry in found]))


def _letter(
    when: Column, stage: str, reason: Column, route: str | None = None, sink: str | None = None
) -> tuple[Column, Column]:
    entry = F.struct(
        F.lit(stage).alias("stage"),
        reason.alias("reason"),
        F.lit(route).cast("string").alias("route"),
        F.lit(sink).cast("string").alias("sink"),
    )
    return when, F.when(when, F.array(entry)).otherwise(F.array().cast(DEAD_TYPE))


@dataclass(frozen=True)
class _Draft:
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
        return {f"_e{self.index}_{k}": _holds(given, F.expr(c.sql)) for k, c in enumerate(self.route.expect)}

    def violated(self, otherwise: str) -> dict[str, Column]:
        """Return the condition of rows that violate each expectation of a kind."""
        return {
            check.name: F.col(self.matched) & ~F.col(f"_e{self.index}_{k}")
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
        return _any(self.violated("drop").values()) & self.reason.isNull()

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
            columns = [column for text in self.route.select for column in _expand(frame, text)]
            found[self.rows] = tried(F.when(self.unharmed, F.struct(*columns)))
        for j, named in self.named().items():
            found[f"_n{self.index}_{j}"] = tried(F.when(self.unharmed, named.cast("string")))
        return found

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
            if isinstance(sink, TableSink) and not isinstance(named := sink.table(), str):
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
            found[f"_t{i}_{j}"] = F.when(self.lands & self.usable(j), F.col(f"_u{i}_{j}"))
            found[f"_b{i}_{j}"] = self.lands & ~self.usable(j)
        return found

    def letters(self) -> Iterator[tuple[Column, Column]]:
        """Return the dead letters of this route."""
        if self.violated("dead_letter"):
            yield _letter(self.reason.isNotNull(), "expect", self.reason, self.route.name)
        if self.rows != "event":
            yield _letter(self.broken, "select", F.lit("the projection cannot be evaluated"), self.route.name)
        names = sink_names(self.route.sinks)
        for j in self.named():
            yield _letter(self.lands & ~self.usable(j), "name", refusal(F.col(f"_n{self.index}_{j}")), self.route.name, names[j])

    def labels(self, frame: DataFrame, config: Config) -> RouteLabels:
        """Return what the route's columns are called, and its targets."""
        i, schema = self.index, rows_schema(frame, self.rows)
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

    def _target(self, frame: DataFrame, j: int, blank: Target, config: Config) -> Target:
        sink = self.route.sinks[j]
        if not isinstance(sink, TableSink):
            taken = [pa.field(new, _kind(frame, old)) for new, old in COORDINATES.items()]
            lane = f"lanes.{config.name}__{blank.route}__{blank.sink}"
            return replace(blank, table=lane, lane=True, schema=plain_schema(pa.schema([*taken, *blank.schema])))
        named, seen = sink.table(), sink.columns == "seen"
        if isinstance(named, str):
            return replace(blank, table=named, seen=seen)
        return replace(blank, misnamed=f"_b{self.index}_{j}", at_most=sink.at_most, seen=seen)


def _expand(frame: DataFrame, text: str) -> list[Column]:
    if text.strip() != "event.*":
        return [F.expr(text)]
    event = frame.schema["event"].dataType
    assert isinstance(event, StructType)  # noqa: S101 - the contract of decoders
    return [F.col("event").getField(name).alias(name) for name in event.fieldNames()]


def sink_names(sinks: tuple[Sink, ...]) -> list[str]:
    """Return the name of each sink of a route: the part's name, numbered from the second of its kind on."""
    names: list[str] = []
    for sink in sinks:
        alike = sum(other.part_name == sink.part_name for other in sinks[: len(names)])
        names.append(f"{sink.part_name}_{alike + 1}" if alike else sink.part_name)
    return names


def rows_schema(frame: DataFrame, rows: str) -> pa.Schema:
    """Return the columns of a struct column as a plain Arrow schema, refusing names that Delta cannot keep."""
    struct = frame.schema[rows].dataType
    assert isinstance(struct, StructType)
    _check_names(struct)
    return plain_schema(pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timestamp_utc=True)) for f in struct]))


def _check_names(struct: StructType) -> None:
    folded: dict[str, str] = {}
    for name in struct.fieldNames():
        if any(character in " ,;{}()\n\t=" for character in name) or not name:
            raise StartError(f"column {name!r}: Delta refuses spaces and ,;{{}}()= in names; rename it in `select`")
        if name.lower() in folded:
            raise StartError(f"columns {folded[name.lower()]} and {name} differ by case only; rename one in `select`")
        folded[name.lower()] = name
    for child in struct:
        if isinstance(child.dataType, StructType):
            _check_names(child.dataType)


def _kind(frame: DataFrame, column: str) -> pa.DataType:
    return to_arrow_type(frame.schema[column].dataType, timestamp_utc=True)
