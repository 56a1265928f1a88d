"""Compare a view with its query, computed again over the versions of its sources that the view was made of.

| of each table | compared |
|---|---|
| its rows | their number |
| columns whose values are the same each time | the sum of the rows' hashes |
| floating-point numbers | their sums, to 1e-8: the last digits depend on the order in which they are added |
| arrays, maps, bytes, and structs with such or with floating-point numbers | nothing |

Collected values may have another order each time, and sketches other bytes. It takes two Spark jobs, whatever the
number of tables, and no commit. Runs on the driver.
"""

from __future__ import annotations

import math
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.api.columns import quote_identifier
from router.delta.schema_diff import delta_schema
from router.delta.table_cache import THREADS
from router.engine.views.frames import definition_of
from router.engine.views.relation import TablePart
from router.engine.views.row_hash import row_hash
from router.engine.views.sources import PastSnapshot
from router.engine.views.stage import TARGET, VIOLATED_COLUMN, target_name, violation_columns
from router.errors import TableError, ViewError, first_line
from router.spark_internals import to_arrow_columns
from router.table_names import fold_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.config.models import View
    from router.delta.lake import Lake
    from router.engine.views.refresh import Refresher

TOLERANCE = 1e-8
_ROWS = "_rows"
HASHES = "_hashes"


@dataclass
class Totals:
    """Sums over rows. `sums`: floating-point column -> the sum of its values, `sizes`: of their absolute values."""

    rows: int = 0
    hashes: int = 0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sizes: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def describe_difference(self, query: Totals) -> str:
        """Return how these rows of a table differ from those of the query; an empty text if they do not."""
        if self.rows != query.rows:
            return f"it has {self.rows:,} rows, and its query gives {query.rows:,}"
        if self.hashes != query.hashes:
            return f"its {self.rows:,} rows have other values than its query gives"
        for column, total in query.sums.items():
            most = TOLERANCE * (self.sizes[column] + query.sizes[column])
            if not _are_close(self.sums[column], total, most):
                return f"{column} adds up to {self.sums[column]:g}, and to {total:g} in its query"
        return ""


def find_differences(refresher: Refresher, view: View) -> dict[str, str]:
    """Return by table what differs from the query, for the tables of a view whose rows do; each as it was left.

    Raises ViewError if the view cannot be compared: a version of a source is no longer kept, its values change by
    themselves, or the view was changed since its last refresh.
    """
    note = refresher.read_note(view)
    if not note.number:
        return {}
    if note.definition != definition_of(view):
        raise ViewError(view.name, "it has been changed since its last refresh; refresh it first")
    lake = refresher.tables.lake
    sources: dict[str, PastSnapshot] = {}
    joined: dict[str, PastSnapshot] = {}
    # If others have changed a table at the same time, no version of it has the rows of the view.
    targets = {name: (target.version, target.id) for name, target in note.targets.items() if target.version >= 0}
    with ThreadPoolExecutor(THREADS) as pool:

        def open_past(item: tuple[str, tuple[int, str]]) -> PastSnapshot:
            name, (version, identity) = item
            return _past_snapshot(lake, view, name, version, identity)

        for table in pool.map(open_past, note.sources.items()):
            tables_by_name = joined if table.name in view.joined_tables else sources
            tables_by_name[table.name] = table
        parts = [TablePart(table) for table in pool.map(open_past, targets.items())]
    frames = refresher.view_frames(view, sources, joined)
    shaped = frames.query_shape()
    if shaped.shape.timed:
        raise ViewError(view.name, f"its values change by themselves ({shaped.shape.why}): there is nothing to compare")
    columns = delta_schema(to_arrow_columns(shaped.schema))
    try:
        by_table = _compute_totals(frames.relations.frame_of_parts(parts, columns, named=False), view)
        by_table_of_query = _compute_totals(_without_dropped(frames.query_over_tables(sources), view), view)
    except PySparkException as error:
        # For example, a file of a former version was deleted.
        raise ViewError(view.name, first_line(error)) from error
    names = {part.table.name for part in parts} | (by_table_of_query.keys() - note.targets.keys())
    differences_by_table: dict[str, str] = {}
    for name in sorted(names):
        difference = by_table.get(name, Totals()).describe_difference(by_table_of_query.get(name, Totals()))
        if difference:
            differences_by_table[name] = difference
    return differences_by_table


def _past_snapshot(lake: Lake, view: View, name: str, version: int, identity: str) -> PastSnapshot:
    """Return a table at a version. Raises ViewError if it is gone."""
    try:
        table = lake.open(name)
        if table is not None and str(table.metadata().id) == identity:
            if table.version() != version:
                table.load_as_version(version)
            return PastSnapshot(name, table)
    except (TableError, DeltaError, OSError) as error:
        problem = f"version {version} of {name} can no longer be read ({first_line(error)})"
        raise ViewError(view.name, f"{problem}; `router views FILE --refresh --full` makes it of the newest") from error
    raise ViewError(view.name, f"{name} is no longer the table that it was made of")


def _without_dropped(rows: DataFrame, view: View) -> DataFrame:
    """Return the rows without those that an expectation drops."""
    columns = violation_columns(view)
    for number, expectation in enumerate(view.expect):
        if expectation.otherwise == "drop":
            rows = rows.filter(~columns[f"{VIOLATED_COLUMN}{number}"])
    return rows


def _compute_totals(rows: DataFrame, view: View) -> dict[str, Totals]:
    """Return the totals of the rows of each table, without rows that have no table name."""
    exact = [column.name for column in rows.schema if _is_exact(column.dataType)]
    floats = [column.name for column in rows.schema if isinstance(column.dataType, (T.FloatType, T.DoubleType))]
    hashes = row_hash(rows.select(*map(quote_identifier, exact)))
    totals = [F.count(F.lit(1)).alias(_ROWS), F.sum(hashes.cast("decimal(38,0)")).alias(HASHES)]
    for number, name in enumerate(floats):
        value = F.col(quote_identifier(name)).cast("double")
        totals += [F.sum(value).alias(f"_sum{number}"), F.sum(F.abs(value)).alias(f"_size{number}")]
    by_table: dict[str, Totals] = {}
    for row in rows.groupBy(target_name(view.into).alias(TARGET)).agg(*totals).collect():
        table = fold_name(row[TARGET])
        if table is None:
            continue
        # Names that differ by case only are one table.
        total = by_table.setdefault(table, Totals())
        total.rows += row[_ROWS]
        total.hashes += int(row[HASHES] or 0)
        for number, name in enumerate(floats):
            total.sums[name] += row[f"_sum{number}"] or 0.0
            total.sizes[name] += row[f"_size{number}"] or 0.0
    return by_table


def _is_exact(kind: Any) -> bool:
    """Return whether a value of a type is the same each time that it is computed from the same rows."""
    if isinstance(kind, T.StructType):
        return all(_is_exact(child.dataType) for child in kind)
    inexact = (T.FloatType, T.DoubleType, T.ArrayType, T.MapType, T.BinaryType)
    return not isinstance(kind, inexact)


def _are_close(total: float, other: float, most: float) -> bool:
    """Return whether two sums differ by so much at most; infinite ones must be the same."""
    if math.isnan(total) or math.isnan(other):
        return math.isnan(total) and math.isnan(other)
    return total == other or abs(total - other) <= most
