"""The history of each key (slowly changing dimension, type 2): every state is a row, valid up to the next one's time.

A state is never valid from before its predecessor was, nor before its key was deleted: where a record's time is earlier
than that of the record before it, it counts from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from router.delta.row_order import NEVER, OUTBOX_ONLY, SINCE, Codes, Mask, NewerRows, keys_and_order, newest_names
from router.delta.scd1 import CLOSE, INSERT, OP, TableChanges

if TYPE_CHECKING:
    from router.sinks import KeyedTable


TIMESTAMP = pa.timestamp("us", "UTC")
HISTORY_COLUMNS = pa.schema([("valid_from", TIMESTAMP), ("valid_to", TIMESTAMP), ("is_current", pa.bool_())])
"""What a table with a history has beside the columns of its rows."""


def time_name(schema: pa.Schema, keyed: KeyedTable) -> str:
    """Return the column that a state is valid from: what rows are ordered by, if that is a time, or the record's."""
    first = newest_names(keyed.newest)[:1]
    return first[0] if first and pa.types.is_timestamp(schema.field(first[0]).type) else "_timestamp"


def history_changes(found: NewerRows, keyed: KeyedTable) -> TableChanges:
    """Return the states that newer rows add, and the ends of those that were current. No time is null."""
    rows = found.rows
    times = _rising(_micros(rows, time_name(rows.schema, keyed)), found)
    lasts = np.zeros(len(rows), dtype=bool)
    lasts[found.last] = True
    opened, closed = np.flatnonzero(~found.deleted), found.starts[found.there]
    at = np.concatenate([opened, closed])
    over = np.concatenate([~lasts[opened], np.ones(len(closed), dtype=bool)])
    ends = np.concatenate([np.append(times[1:], 0)[opened], times[closed]])
    chosen = rows.select([name for name in rows.column_names if name not in OUTBOX_ONLY]).take(pa.array(at))
    columns = {
        "valid_from": _moments(times[at]),
        "valid_to": _moments(ends, ~over),
        "is_current": pa.array(~over),
        OP: pa.array(np.where(np.arange(len(at)) < len(opened), INSERT, CLOSE).astype(np.int8)),
    }
    for name, column in columns.items():
        chosen = chosen.append_column(name, column)
    gone = found.last[found.deleted[found.last]]
    since = _moments(times[gone], times[gone] == NEVER)
    return TableChanges(
        chosen, keys_and_order(rows, keyed).take(pa.array(gone)).append_column(SINCE, since), found.late
    )


def _micros(rows: pa.Table, name: str) -> Codes:
    return np.asarray(rows.column(name).cast(TIMESTAMP).cast(pa.int64()), dtype=np.int64)


def _rising(times: Codes, found: NewerRows) -> Codes:
    """Return times that fall nowhere within a run, nor below the time since which its key has its state.

    The time of a deletion counts if it ends a state.
    """
    before = np.append(True, found.deleted[:-1])[: len(times)]
    before[found.starts] = ~found.there
    times, runs = np.where(found.deleted & before, NEVER, times), found.runs
    times = np.maximum(times, found.since[runs])
    values, places = np.unique(times, return_inverse=True)
    risen = np.maximum.accumulate(runs * len(values) + places)
    return values[risen - runs * len(values)] if len(values) else times


def _moments(micros: Codes, none: Mask | None = None) -> pa.Array:
    return pa.array(micros, pa.int64(), mask=none).cast(TIMESTAMP)
