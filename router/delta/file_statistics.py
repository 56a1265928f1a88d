"""Delta file statistics from a Parquet footer.

The format is that of the Delta protocol, "Per-file Statistics": numRecords, minValues, maxValues, nullCount, nested
like the schema, for the first 32 leaf columns. A bound is left out rather than wrong: strings are cut to 32
characters (an upper bound is then raised above every continuation), timestamps are milliseconds rounded outwards,
infinity and years beyond 9999 have no JSON. A column with NaN, which Spark sorts above every number and Parquet leaves
out of its bounds, must be written without Parquet statistics: Spark would skip its row groups, too.
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


def statistics(footer: pq.FileMetaData) -> str:
    """Return the statistics of one Parquet file as the JSON text of an add action."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for index, path in enumerate(islice(leaves(footer.schema.to_arrow_schema()), INDEXED_COLUMNS)):
        if path is None:
            continue
        groups = [footer.row_group(g).column(index).statistics for g in range(footer.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        _put(found["nullCount"], path, sum(group.null_count for group in groups))
        low, high = _bounds(groups)
        if low is not None:
            _put(found["minValues"], path, low)
        if high is not None:
            _put(found["maxValues"], path, high)
    return _json(found)


def without_bounds_of_floats(schema: pa.Schema, **more: Any) -> WriterProperties:
    """Return how delta-rs writes the files of a table, with `more` properties: its own bounds leave NaN out, which is
    above all numbers in Spark, so a query for large numbers would pass over a file that has it."""
    none, all_of_it = ColumnProperties(statistics_enabled="NONE"), ColumnProperties(statistics_enabled="PAGE")
    if not any(_holds_floats(field.type) for field in schema if pa.types.is_nested(field.type)):
        floats = {field.name: none for field in schema if pa.types.is_floating(field.type)}
        return WriterProperties(column_properties=floats or None, **more)
    # a field inside another one cannot be named
    others = [field for field in schema if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type)]
    named = {field.name: all_of_it for field in others}
    return WriterProperties(default_column_properties=none, column_properties=named or None, **more)


def _holds_floats(kind: pa.DataType) -> bool:
    inside = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_floating(kind) or any(_holds_floats(one) for one in inside)


def with_nan(rows: pa.Table) -> set[Leaf]:
    """Return the columns that hold NaN."""
    found = ((path, column) for name in rows.column_names for path, column in _floats((name,), rows.column(name)))
    return {path for path, column in found if pc.any(pc.is_nan(column)).as_py()}


def _floats(path: Leaf, column: pa.ChunkedArray) -> Iterator[tuple[Leaf, pa.ChunkedArray]]:
    if pa.types.is_floating(column.type):
        yield path, column
    elif pa.types.is_struct(column.type):
        for child in column.type:
            yield from _floats((*path, child.name), pc.struct_field(column, child.name))


def leaves(fields: Iterable[pa.Field], path: Leaf = (), *, repeated: bool = False) -> Iterator[Leaf | None]:
    """Return the path of each leaf column in Parquet's order; None inside lists and maps, which have no bounds."""
    for field in fields:
        if pa.types.is_nested(field.type):
            children = [field.type.field(i) for i in range(field.type.num_fields)]
            inside = repeated or not pa.types.is_struct(field.type)
            yield from leaves(children, (*path, field.name), repeated=inside)
        else:
            yield None if repeated else (*path, field.name)


def _put(tree: dict[str, Any], path: Leaf, value: object) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _bounds(groups: list[pq.Statistics]) -> tuple[Any, Any]:
    filled = [group for group in groups if group.num_values]
    if not filled or not all(group.has_min_max for group in filled):
        return None, None  # a row group without bounds could hold any value
    try:
        return _low(min(group.min for group in filled)), _high(max(group.max for group in filled))
    except (OverflowError, ValueError):  # years that Python does not know, text that is not UTF-8
        return None, None


def _low(value: Any) -> Any:
    if isinstance(value, str):
        return value[:LONGEST]
    return _instant(value) if isinstance(value, datetime) else _plain(value)


def _high(value: Any) -> Any:
    if isinstance(value, str):
        cut = LONGEST
        while value[cut : cut + 1] == LAST_CHARACTER:  # nothing is above it
            cut += 1
        return value if len(value) <= cut else value[:cut] + LAST_CHARACTER
    return _instant(value + timedelta(microseconds=999)) if isinstance(value, datetime) else _plain(value)


def _instant(moment: datetime) -> str:
    """Return milliseconds, rounded down; without a zone for a timestamp without one."""
    if moment.tzinfo is None:
        return moment.isoformat(timespec="milliseconds")
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _plain(value: Any) -> Any:
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | Decimal) else None


def _json(value: Any) -> str:
    """Return JSON with decimals as the exact numbers they are."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_json(inner)}" for name, inner in value.items()) + "}"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)
