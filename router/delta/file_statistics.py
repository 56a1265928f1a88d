"""Delta file statistics from a Parquet footer.

The format is that of the Delta protocol, "Per-file Statistics": numRecords, minValues, maxValues, nullCount, nested
like the schema, for the first 32 leaf columns that can have any. A bound may be missing but never wrong:

- Strings are cut to 32 characters; an upper bound is then raised above every continuation.
- Timestamps are milliseconds, rounded outwards.
- Infinity and years beyond 9999 cannot be written as JSON, and have no bound.
- Spark sorts NaN above every number, and Parquet leaves it out of its bounds. So a column with NaN must be written
  without Parquet statistics, or Spark would skip its row groups as well.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INDEXED_COLUMNS = 32
LONGEST = 32
LAST_CHARACTER = "\U0010ffff"
Leaf = tuple[str, ...]
"""The names that lead to a leaf column; a name may hold dots."""


def statistics_json(footer: pq.FileMetaData) -> str:
    """Return the statistics of one Parquet file as the JSON text of an add action."""
    nulls: dict[str, Any] = {}
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    numbered = enumerate(leaf_paths(footer.schema.to_arrow_schema()))
    with_bounds = ((index, path) for index, path in numbered if path is not None)
    for index, path in islice(with_bounds, INDEXED_COLUMNS):
        groups = [footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        _put_at_path(nulls, path, sum(group.null_count for group in groups))
        low, high = _column_bounds(groups)
        if low is not None:
            _put_at_path(minima, path, low)
        if high is not None:
            _put_at_path(maxima, path, high)
    return _dump_json({"numRecords": footer.num_rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls})


def without_bounds_of_floats(schema: pa.Schema, **more: Any) -> WriterProperties:
    """Return delta-rs's writer properties for files of a table, without statistics of floats; `more` are others.

    delta-rs leaves NaN out of its bounds. Spark sorts NaN above all numbers, so with these bounds a query for large
    numbers would skip a file that contains NaN.
    """
    off = ColumnProperties(statistics_enabled="NONE")
    on = ColumnProperties(statistics_enabled="PAGE")
    if not any(_holds_floats(field.type) for field in schema if pa.types.is_nested(field.type)):
        floats = {field.name: off for field in schema if pa.types.is_floating(field.type)}
        return WriterProperties(column_properties=floats or None, **more)
    # delta-rs takes no name of a nested field. So switch all statistics off, and on again for the other columns.
    with_bounds: dict[str, ColumnProperties] = {}
    for field in schema:
        if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type):
            with_bounds[field.name] = on
    return WriterProperties(default_column_properties=off, column_properties=with_bounds or None, **more)


def _holds_floats(kind: pa.DataType) -> bool:
    """Return whether a type is floating, or has a floating type inside."""
    if pa.types.is_floating(kind):
        return True
    return any(_holds_floats(kind.field(number).type) for number in range(kind.num_fields))


def with_nan(rows: pa.Table) -> set[Leaf]:
    """Return the columns that hold NaN. Inside lists and maps it is not looked for: they have no bounds."""
    leaves_with_nan: set[Leaf] = set()
    for name in rows.column_names:
        for path, column in _floating_leaves((name,), rows.column(name)):
            if pc.any(pc.is_nan(column)).as_py():
                leaves_with_nan.add(path)
    return leaves_with_nan


def _floating_leaves(path: Leaf, column: pa.ChunkedArray) -> Iterator[tuple[Leaf, pa.ChunkedArray]]:
    """Yield path and values of each floating column in a column."""
    if pa.types.is_floating(column.type):
        yield path, column
    elif pa.types.is_struct(column.type):
        for child in column.type:
            yield from _floating_leaves((*path, child.name), pc.struct_field(column, child.name))


def leaf_paths(fields: Iterable[pa.Field], path: Leaf = (), *, repeated: bool = False) -> Iterator[Leaf | None]:
    """Yield the path of each leaf column in Parquet's order; None for those inside lists and maps, without bounds."""
    for field in fields:
        if pa.types.is_nested(field.type):
            children = [field.type.field(i) for i in range(field.type.num_fields)]
            inside = repeated or not pa.types.is_struct(field.type)
            yield from leaf_paths(children, (*path, field.name), repeated=inside)
        else:
            yield None if repeated else (*path, field.name)


def _put_at_path(tree: dict[str, Any], path: Leaf, value: object) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _column_bounds(groups: list[pq.Statistics]) -> tuple[Any, Any]:
    """Return the lower and the upper bound of a column from the statistics of its row groups; None for no bound."""
    filled = [group for group in groups if group.num_values]
    if not filled or not all(group.has_min_max for group in filled):
        return None, None  # a row group without bounds could hold any value
    try:
        return _lower_bound(min(group.min for group in filled)), _upper_bound(max(group.max for group in filled))
    except (OverflowError, ValueError):  # years that Python does not know, text that is not UTF-8
        return None, None


def _lower_bound(value: Any) -> Any:
    if isinstance(value, str):
        return value[:LONGEST]
    if isinstance(value, datetime):
        return _to_milliseconds(value)
    return _json_bound(value)


def _upper_bound(value: Any) -> Any:
    if isinstance(value, str):
        # A cut text gets the last character of Unicode, to be above all that begin with it. If the next character of
        # the value is that one, nothing would be above it: cut later.
        cut = LONGEST
        while value[cut : cut + 1] == LAST_CHARACTER:
            cut += 1
        if len(value) <= cut:
            return value
        return value[:cut] + LAST_CHARACTER
    if isinstance(value, datetime):
        return _to_milliseconds(value + timedelta(microseconds=999))
    return _json_bound(value)


def _to_milliseconds(moment: datetime) -> str:
    """Return a time in milliseconds, rounded down; without a zone for a timestamp without one."""
    if moment.tzinfo is None:
        return moment.isoformat(timespec="milliseconds")
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _json_bound(value: Any) -> Any:
    """Return a date or number as a bound; None for what has no bounds in JSON."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _dump_json(value: Any) -> str:
    """Return JSON with decimals as exact numbers, which `json.dumps` cannot write."""
    if isinstance(value, dict):
        members = [f"{json.dumps(name)}:{_dump_json(member)}" for name, member in value.items()]
        return "{" + ",".join(members) + "}"
    if isinstance(value, Decimal):
        return f"{value:f}"
    return json.dumps(value)
