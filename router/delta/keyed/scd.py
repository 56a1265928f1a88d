"""What newer rows change in a table with keys that keeps one row per key, or a history (SCD, types 1 and 2).

One row per key: the newer rows of a key become one change of its row. A history: every state is a row, valid up to the
next one's time. A state is never valid from before its predecessor was, nor before its key was deleted: where a
record's time is earlier than that of the record before it, it counts from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from router.delta.keyed.row_order import (
    NEVER,
    OUTBOX_ONLY,
    SINCE,
    Codes,
    NewerRows,
    keys_and_order,
    newest_names,
    order_names,
)

if TYPE_CHECKING:
    from router.delta.casting import Mask
    from router.sinks import KeyedTable

OP = "__op"
INSERT, UPDATE, PATCH, FLAG, DELETE, CLOSE = range(6)
"""What becomes of a row: it is new; all its columns change; some do; its deletion is noted; it goes; its time ends."""


@dataclass(frozen=True)
class TableChanges:
    """What a batch changes in one table.

    `rows` have the columns of the table and `__op`; at most one of those that are no INSERT matches a row of the
    table, by its key. `deletions` have the keys and order columns of the rows that were the last of their key and
    deleted it, of a history also since when. `late` rows changed nothing.
    """

    rows: pa.Table
    deletions: pa.Table
    late: int

    def count(self, *ops: int) -> int:
        """Return the number of changes of some kinds."""
        return int(np.isin(np.asarray(self.rows.column(OP)), ops).sum())

    @property
    def counts(self) -> dict[str, int]:
        """Return how many rows changed nothing, and how many rows of the table were inserted, updated and deleted."""
        updated = self.count(UPDATE, PATCH, FLAG, CLOSE)
        return {"late": self.late, "inserted": self.count(INSERT), "updated": updated, "deleted": self.count(DELETE)}


def latest_changes(found: NewerRows, keyed: KeyedTable) -> TableChanges:
    """Return what newer rows make of a table with one row per key, as if they had come one by one, oldest first."""
    deciding = _Deciding.of(found)
    if keyed.when_matched == "ignore":
        ops, last = _first_wins(found, deciding, keyed), np.where(deciding.deletes, found.last, deciding.first)
    else:
        ops, last = _last_wins(found, deciding, keyed), found.last
    some = np.flatnonzero(ops >= 0)
    rows = _resulting_rows(found, deciding, keyed, last).take(pa.array(some))
    rows = rows.append_column(OP, pa.array(ops[some].astype(np.int8)))
    gone = found.last[deciding.deletes & (not keyed.soft_delete)]
    return TableChanges(rows, keys_and_order(found.rows, keyed).take(pa.array(gone)), found.late)


@dataclass(frozen=True)
class _Deciding:
    """The rows that decide what becomes of each run, -1 where there is none.

    `data` is the last row that deletes nothing, `again` the last deletion before it, `first` the first row after that
    deletion. `deletes` says that the run ends with a deletion.
    """

    data: Codes
    again: Codes
    first: Codes
    deletes: Mask

    @classmethod
    def of(cls, found: NewerRows) -> _Deciding:
        at, runs = np.arange(len(found.rows)), found.runs
        data = _last(np.where(~found.deleted, at, -1), found.starts)
        again = _last(np.where(found.deleted & (at < data[runs]), at, -1), found.starts)
        first = -_last(np.where(~found.deleted & (at > again[runs]), -at, -len(at) - 1), found.starts)
        return cls(data, again, np.where(data >= 0, first, -1), found.deleted[found.last])


def _last(values: Codes, starts: Codes) -> Codes:
    return np.maximum.reduceat(values, starts) if len(starts) else values[:0]


def _last_wins(found: NewerRows, deciding: _Deciding, keyed: KeyedTable) -> Codes:
    """Return the change of each run when newer rows win."""
    fresh = ~found.live | (deciding.again >= 0)
    whole = np.where(fresh | (keyed.columns is None), UPDATE, PATCH)
    there = (
        np.where(deciding.data >= 0, whole, FLAG) if keyed.soft_delete else np.where(deciding.deletes, DELETE, whole)
    )
    absent = np.full(len(there), INSERT) if keyed.soft_delete else np.where(deciding.deletes, -1, INSERT)
    return np.where(found.there, there, absent)


def _first_wins(found: NewerRows, deciding: _Deciding, keyed: KeyedTable) -> Codes:
    """Return the change of each run when the first row wins, until it is deleted."""
    fresh = (~found.live | (deciding.again >= 0)) & (deciding.data >= 0)
    gone = FLAG if keyed.soft_delete else DELETE
    there = np.where(deciding.deletes & ~(fresh & bool(keyed.soft_delete)), gone, np.where(fresh, UPDATE, -1))
    absent = np.full(len(there), INSERT) if keyed.soft_delete else np.where(deciding.deletes, -1, INSERT)
    return np.where(found.there, there, absent)


def _resulting_rows(found: NewerRows, deciding: _Deciding, keyed: KeyedTable, last: Codes) -> pa.Table:
    """Return the row that each run leaves: its columns may come from several records."""
    data = deciding.first if keyed.when_matched == "ignore" else deciding.data
    others = data if keyed.columns is None else deciding.first
    columns = {}
    for name in found.rows.column_names:
        if name in OUTBOX_ONLY:
            continue
        if name in order_names(keyed) or name in keyed.keys:
            at = last
        else:
            at = data if name in (keyed.columns or ()) else others
        columns[name] = found.rows.column(name).take(pa.array(at, mask=at < 0))
    if keyed.soft_delete:
        columns[keyed.soft_delete] = pa.array(deciding.deletes)
    return pa.table(columns)


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
