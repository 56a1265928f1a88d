"""The frames of a refresh: the query of a view over its sources, and the rows that its tables are to have.

| way (`shape`) | rows of the touched tables |
|---|---|
| full | the query over all rows of all sources |
| tables | those of other source tables as they are; the query over all rows of the changed ones |
| rows | those that are there, and the query over new files |
| merge | those that are there, merged with the query over new files |
| keys | those of other groups as they are; the query over all rows, for the groups of changed rows |

All of them are lazy, and read the pinned versions of the tables. Runs on the driver.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.api.columns import quote_identifier
from router.delta.commit import to_delta
from router.delta.schema_diff import delta_schema
from router.engine.label.route import CONDITIONS
from router.engine.lookup.let import define_view
from router.engine.views.relation import VIEW_TABLE_COLUMN, Relations, TablePart, are_few
from router.engine.views.shape import (
    QueryShape,
    shape_of,
    special_time_literal,
    unstable_part,
    used_columns,
)
from router.engine.views.sources import common_relation, replaced_by, versions_of
from router.engine.views.stage import HASH, TARGET, VIOLATED_COLUMN, violation_columns
from router.errors import ViewError, first_line
from router.spark_internals import analysed_plan, to_arrow_columns
from router.templates import template_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from router.config.models import View
    from router.engine.views.sources import Changes, Snapshot
    from router.states import ViewWay

_FORMAT = 3
"""Part of the definition of a view: if it changes, all of the view is computed once."""


class Shaped(NamedTuple):
    """What a view's query is over the columns of its sources: its shape, and its columns, also as text."""

    shape: QueryShape
    columns: str
    schema: StructType


@dataclass(frozen=True)
class RefreshPlan:
    """How a refresh proceeds: which sources have changed, and which tables of the view that concerns.

    `changed`: source -> its new and removed files, None if they are unknown. `touched` is None if any table may be
    concerned.
    """

    way: ViewWay
    why: str
    shape: QueryShape
    changed: dict[str, Changes | None] = field(default_factory=dict)
    touched: frozenset[str] | None = None


@dataclass
class ViewFrames:
    """The frames of one refresh. `few`: they have so few rows that one task takes them all."""

    view: View
    session: SparkSession
    relations: Relations
    sources: dict[str, Snapshot]
    joined: dict[str, Snapshot]
    shapes: dict[str, Shaped]
    few: bool = False

    def __post_init__(self) -> None:
        relation = common_relation(self.sources.values())
        self.conflicts = relation.conflicts
        # `table` is the name of the source table. A column of this name in a source is not visible.
        self.columns = pa.schema([column for column in relation.columns if column.name.lower() != VIEW_TABLE_COLUMN])

    def source_versions(self) -> dict[str, tuple[int, str]]:
        """Return the versions that the view is made of, with the ids of the tables."""
        return versions_of({**self.joined, **self.sources})

    def query_shape(self) -> Shaped:
        """Return the shape of the query, and its columns as text. Raises ViewError."""
        key = f"{definition_of(self.view)} {self.columns} {self.conflicts}"
        if key not in self.shapes:
            self._refuse_conflicts()
            query = self._run_query(self.relations.empty_frame(self.columns))
            self._refuse_columns(query.columns)
            shape = self._with_expectations(shape_of(query))
            if reason := self._unstable_expectation(query) or self._special_time_literal():
                shape = QueryShape("full", reason, timed=True)
            text = to_delta(delta_schema(to_arrow_columns(query.schema)))
            self.shapes[key] = Shaped(shape, text, query.schema)
        return self.shapes[key]

    def _refuse_columns(self, columns: list[str]) -> None:
        """Raise ViewError if names of columns are reserved or repeated, or if `into` needs another column."""
        reserved = any(name.startswith((TARGET, HASH, VIOLATED_COLUMN)) for name in columns)
        if reserved or len(set(columns)) < len(columns):
            raise ViewError(self.view.name, "each of its columns needs a name of its own")
        for name in template_fields(self.view.into):
            if name not in columns:
                raise ViewError(self.view.name, f"`into` asks for {name}, which is no column of its SQL")

    def _with_expectations(self, shape: QueryShape) -> QueryShape:
        """Return the shape without merging if an expectation drops groups: their former values would be lost."""
        drops = any(expectation.otherwise == "drop" for expectation in self.view.expect)
        if shape.way != "merge" or not drops:
            return shape
        return replace(shape, way="keys" if shape.keys else "full", why="an expectation drops groups")

    def _unstable_expectation(self, query: DataFrame) -> str:
        """Return why an expectation may hold for other rows though no source has changed. Raises ViewError."""
        reason = ""
        for number, expectation in enumerate(self.view.expect):
            try:
                kind = query.select(F.expr(expectation.sql)).schema[0].dataType.simpleString()
                if kind not in CONDITIONS:
                    problem = f"its expectation {expectation.name}: it is {kind}, and no condition"
                    raise ViewError(self.view.name, problem)
                plan = analysed_plan(query.select(violation_columns(self.view)[f"{VIOLATED_COLUMN}{number}"]))
            except (AnalysisException, ParseException) as error:
                raise ViewError(self.view.name, f"its expectation {expectation.name}: {first_line(error)}") from error
            reason = reason or unstable_part(plan)
        return reason

    def _special_time_literal(self) -> str:
        """Return why the SQL of the view, of its expectations or its `let` is other SQL each day."""
        texts = [self.view.sql or ""]
        texts += [expectation.sql for expectation in self.view.expect]
        # A query of `let` has those that it reads inside.
        queries = [*self.view.let]
        while queries:
            query = queries.pop()
            texts.append(query.sql)
            queries += query.let
        for text in texts:
            if reason := special_time_literal(text):
                return reason
        return ""

    def _refuse_conflicts(self) -> None:
        """Raise ViewError if the query uses a column that has types in its tables which no type holds together."""
        if not self.conflicts:
            return
        all_columns = self.columns
        for name in self.conflicts:
            all_columns = all_columns.append(pa.field(name, pa.string()))
        try:
            used = used_columns(self._run_query(self.relations.empty_frame(all_columns)))
        except ViewError:
            # With one type for all of them the query may be wrong. Its text tells as well which columns it uses.
            sql = self.view.sql or _source_code(self.view.query)
            used = {name for name in self.conflicts if name.lower() in sql.lower()}
        conflicts = [conflict for name, conflict in self.conflicts.items() if name in used]
        if conflicts:
            problem = f"its SQL uses a column that has different types: {'; '.join(conflicts)}"
            raise ViewError(self.view.name, f"{problem}; see `except`, or name the columns it needs")

    def rows_to_write(self, plan: RefreshPlan, targets: Mapping[str, Snapshot]) -> DataFrame:
        """Return the rows that the touched tables are to have; `targets` are the tables of the view."""
        if plan.way == "full":
            return self.query_over_tables(self.sources)

        parts = []
        for name, table in targets.items():
            if plan.touched is None or name in plan.touched:
                parts.append(TablePart(table, replaced_by(self.relations.lake, table)))
        schema = self.query_shape().schema
        rows_before = self.relations.frame_of_parts(parts, delta_schema(to_arrow_columns(schema)), named=False)
        if plan.way == "tables":
            short_names = [name.partition(".")[2] for name in plan.changed]
            others = rows_before.filter(~F.col(quote_identifier(plan.shape.table)).isin(short_names))
            # Sources that are gone have changed as well: they have no rows any more.
            changed = {name: self.sources[name] for name in plan.changed if name in self.sources}
            return others.unionByName(self.query_over_tables(changed))

        added = []
        removed = []
        for name, changes in plan.changed.items():
            if changes is not None:
                added.append(TablePart(self.sources[name], changes.added))
                removed.append(TablePart(self.sources[name], changes.removed))
        if plan.way == "keys":
            return self._with_groups_replaced(rows_before, plan, [*added, *removed])

        self.few = are_few([*parts, *added])
        rows = self._one_task(rows_before.unionByName(self._query_over_parts(added)))
        if plan.way == "rows":
            return rows
        # Sums may have wider types than the columns of the tables.
        values = [F.expr(sql).cast(schema[name].dataType).alias(name) for name, sql in plan.shape.merged.items()]
        return (
            rows.groupBy(*map(quote_identifier, plan.shape.keys))
            .agg(*values)
            .select(*map(quote_identifier, schema.names))
        )

    def _with_groups_replaced(self, rows_before: DataFrame, plan: RefreshPlan, parts: list[TablePart]) -> DataFrame:
        """Return the rows, those of the groups of changed rows computed again; `parts` have the changed rows."""
        shape = plan.shape
        # Keys get other names for the joins: the rows have columns of the same names.
        names = {key: f"_key{number}" for number, key in enumerate(shape.keys)}
        keys = (
            self._query_over_parts(parts)
            .select(*(F.col(quote_identifier(key)).alias(name) for key, name in names.items()))
            .distinct()
        )
        sources = self.sources
        if shape.table:
            # A group has rows of one source table.
            sources = {name: self.sources[name] for name in plan.changed}
        unchanged = _join_keys(rows_before, keys, names, "leftanti")
        return unchanged.unionByName(_join_keys(self.query_over_tables(sources), keys, names, "leftsemi"))

    def query_over_tables(self, tables: Mapping[str, Snapshot]) -> DataFrame:
        """Return the rows of the query over all rows of some tables."""
        return self._query_over_parts([TablePart(table) for table in tables.values()])

    def _query_over_parts(self, parts: Iterable[TablePart]) -> DataFrame:
        return self._run_query(self._one_task(self.relations.frame_of_parts(parts, self.columns)))

    def _one_task(self, rows: DataFrame) -> DataFrame:
        """Return rows in one task if they are few: what groups them then needs no exchange."""
        return rows.coalesce(1) if self.few else rows

    def _joined_table(self, table: str) -> DataFrame:
        return self.relations.frame_of_parts([TablePart(self.joined[table])], self.joined[table].columns, named=False)

    def _run_query(self, relation: DataFrame) -> DataFrame:
        """Return the query over a relation. Raises ViewError."""
        relation.createOrReplaceTempView("source")
        try:
            for let in self.view.let:
                define_view(self.session, let, self._joined_table)
        except (AnalysisException, ParseException) as error:
            raise ViewError(self.view.name, first_line(error)) from error
        for name, table in self.view.tables.items():
            self._joined_table(table).createOrReplaceTempView(name)
        if self.view.query is None:
            try:
                return self.session.sql(str(self.view.sql))
            except (AnalysisException, ParseException) as error:
                raise ViewError(self.view.name, f"its SQL: {first_line(error)}") from error
        names = [*self.view.tables, *[let.name for let in self.view.let]]
        joined = {name: self.session.table(name) for name in names}
        try:
            rows: Any = self.view.query.rows(self.session.table("source"), joined)
        except Exception as error:  # an error of a plugin must not stop other views
            raise ViewError(self.view.name, f"its query {self.view.query.part_name}: {first_line(error)}") from error
        if not isinstance(rows, DataFrame):
            problem = f"rows() returned {type(rows).__name__}; it must return a DataFrame"
            raise ViewError(self.view.name, f"its query {self.view.query.part_name}: {problem}")
        return rows


def _join_keys(rows: DataFrame, keys: DataFrame, names: Mapping[str, str], how: str) -> DataFrame:
    """Return the rows whose key is, or is not, among the keys; null is a value like any other."""
    condition = F.lit(True)
    for column, key in names.items():
        condition &= rows[quote_identifier(column)].eqNullSafe(keys[key])
    return rows.join(keys, condition, how)


def definition_of(view: View) -> str:
    """Return a fingerprint of a view: of its query, its sources, and where its rows go."""
    query = view.sql
    if view.query:
        query = f"{view.query!r} {_source_code(view.query)}"
    lets = [let.model_dump() for let in view.let]
    expectations = [expectation.model_dump() for expectation in view.expect]
    parts = [query, view.into, view.source.model_dump(), view.tables, *lets, expectations, _FORMAT]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _source_code(query: object) -> str:
    """Return the code of a query's class; its name if the code cannot be read, as in a zip."""
    try:
        return inspect.getsource(type(query))
    except (OSError, TypeError):
        return type(query).__qualname__
