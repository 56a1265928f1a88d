"""One row per key (slowly changing dimension, type 1): the newer rows of a key become one change of its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from router.delta.row_order import OUTBOX_ONLY, Codes, Mask, NewerRows, keys_and_order, order_names

if TYPE_CHECKING:
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
