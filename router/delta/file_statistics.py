"""Delta file statistics from a Parquet footer.

The format is that of the Delta protocol, "Per-file Statistics": numRecords, minValues, maxValues, nullCount, nested
like the schema, for the first 32 leaf columns. A bound is left out rather than wrong: strings are cut to 32
characters (an upper bound is then raised above every continuation), timestamps are milliseconds rounded outwards,
NaN and infinity have no JSON.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

INDEXED_COLUMNS = 32
LONGEST = 32


def statistics(footer: pq.FileMetaData) -> str:
    """Return the statistics of one Parquet file as the JSON text of an add action."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for index in range(min(footer.num_columns, INDEXED_COLUMNS)):
        if footer.schema.column(index).max_repetition_level:
            continue  # the protocol has no bounds for what lies inside lists and maps
        path = footer.schema.column(index).path.split(".")
        groups = [footer.row_group(g).column(index).statistics for g in range(footer.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        _put(found["nullCount"], path, sum(group.null_count for group in groups))
        bounded = [group for group in groups if group.has_min_max]
        filled = [group for group in groups if group.num_values]
        if not bounded or len(bounded) < len(filled):
            continue  # a row group without bounds could hold any value
        low, high = _low(min(group.min for group in bounded)), _high(max(group.max for group in bounded))
        if low is not None and high is not None:
            _put(found["minValues"], path, low)
            _put(found["maxValues"], path, high)
    return json.dumps(found, separators=(",", ":"), default=float)


def _put(tree: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _low(value: Any) -> Any:
    if isinstance(value, str):
        return value[:LONGEST]
    return _instant(value, timedelta(0)) if isinstance(value, datetime) else _plain(value)


def _high(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "\U0010ffff"
    return _instant(value, timedelta(microseconds=999)) if isinstance(value, datetime) else _plain(value)


def _instant(value: datetime, round_by: timedelta) -> str | None:
    try:
        moment = value.astimezone(timezone.utc) + round_by
    except OverflowError:
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _plain(value: Any) -> Any:
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | Decimal) else None
