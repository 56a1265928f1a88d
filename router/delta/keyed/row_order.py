"""Which row of a key is the newest: columns that order rows, keys told apart as integers, and the rows of a batch that
are newer than what a table holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from router.delta.casting import Mask
    from router.sinks import KeyedTable


POSITION = {"_partition": pa.int32(), "_offset": pa.int64(), "_topic": pa.string()}
"""Where a record was: with these no two records are equally new."""
Codes = npt.NDArray[np.int64]


def newest_names(count: int) -> tuple[str, ...]:
    """Return what the columns are called that a sink orders by."""
    return tuple(f"_newest_{number}" for number in range(1, count + 1))


def order_names(keyed: KeyedTable) -> tuple[str, ...]:
    """Return the columns that order rows, the most important one first. A table keeps those of each row's record."""
    return (*newest_names(keyed.newest), *POSITION) if keyed.newest else ("_offset", "_partition", "_topic")


def keys_and_order(rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return the keys and order columns of rows."""
    return rows.select(list(dict.fromkeys((*keyed.keys, *order_names(keyed)))))


def comparable(rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return rows whose order columns have the types that a table keeps, and values that all engines order alike."""
    for name in order_names(keyed):
        column = rows.column(name)
        rows = rows.set_column(rows.schema.get_field_index(name), name, _comparable(column, POSITION.get(name)))
    return rows


def _comparable(column: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
    if pa.types.is_floating(column.type):
        column = pc.add(column.cast(pa.float64()), 0.0)  # -0.0 becomes 0.0
        return pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
    if kind is None and pa.types.is_integer(column.type):
        kind = pa.int64()
    return column if kind in (None, column.type) else column.cast(kind)


def ranks(columns: list[pa.ChunkedArray]) -> Codes:
    """Return the place of each row when all are ordered by columns, the first one first; equal rows share a place."""
    numbers = [_numbers(column) for column in columns]
    by = np.lexsort(numbers[::-1])
    differs = np.zeros(max(0, len(by) - 1), dtype=bool)
    for column in numbers:
        differs |= np.diff(column[by]) != 0
    found = np.empty(len(by), dtype=np.int64)
    found[by] = np.concatenate([np.zeros(min(1, len(by)), np.int64), np.cumsum(differs)])
    return found


def _numbers(column: pa.ChunkedArray) -> Codes:
    """Return integers that are ordered as the values are, nulls first."""
    if pa.types.is_integer(column.type) and not column.null_count:
        return np.asarray(column.to_numpy(), dtype=np.int64)
    if not len(column):
        return np.zeros(0, np.int64)
    ranked = np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense"), dtype=np.int64)
    ranked[column.is_null().to_numpy()] = 0
    return ranked


def codes(columns: list[pa.ChunkedArray]) -> Codes:
    """Return an integer per row, the same for rows with the same values in all columns. There are no nulls."""
    found = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        coded = column.combine_chunks().dictionary_encode()
        each = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        found = np.unique(found * (len(coded.dictionary) + 1) + each, return_inverse=True)[1].astype(np.int64)
    return found


DELETED = "_deleted"
"""A column of rows: true where the row deletes its key."""
HELD = ("_there", "_live")
"""Columns of a state: the table has a row of the key; that row is not flagged as deleted. A remembered deletion has
neither."""
SINCE = "_since"
"""A column of a state: since when a row has been the current one, or its key deleted, with a history."""
REFUSED = "_refused"
"""A column that rows may have: why they cannot go into the table, where that was found out before."""
OUTBOX_ONLY = ("_timestamp", "_key", "_table", DELETED, REFUSED)
"""Columns of rows that no table keeps."""
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class NewerRows:
    """Rows that are newer than what a table holds. A run is the rows of one key, oldest first; it begins at `starts`.

    `deleted` is by row, `there`, `live` and `since` (microseconds) are by run. `late` counts the rows that are not
    newer: the table has a newer row or deletion of their key, or that very record.
    """

    rows: pa.Table
    starts: Codes
    deleted: Mask
    there: Mask
    live: Mask
    since: Codes
    late: int

    @property
    def runs(self) -> Codes:
        """Return the run of each row."""
        return np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.rows))))

    @property
    def last(self) -> Codes:
        """Return the last row of each run."""
        return np.append(self.starts, len(self.rows))[1:] - 1


def newer_rows(rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> NewerRows:
    """Return what of a batch is newer than a state: keys, order columns, `_there`, `_live` and `_since` of each row.

    The keys of rows must not be null, and both must come from `comparable`.
    """
    count = len(rows)
    key = codes([_joined(rows, state, name) for name in keyed.keys])
    rank = ranks([_joined(rows, state, name) for name in order_names(keyed)])
    keys = int(key.max()) + 1 if len(key) else 0
    held = np.full(keys, -1, np.int64)
    np.maximum.at(held, key[count:], rank[count:])
    at = np.flatnonzero(rank[:count] > held[key[:count]])
    at = at[np.lexsort((rank[at], key[at]))]
    again = np.zeros(len(at), dtype=bool)
    again[1:] = (np.diff(key[at]) == 0) & (np.diff(rank[at]) == 0)
    at = at[~again]
    starts = np.flatnonzero(np.diff(key[at], prepend=-1) != 0)
    chosen = rows.take(pa.array(at))
    of = key[at[starts]]
    there, live = (_any(key[count:], _mask(state, name), keys)[of] for name in HELD)
    since = _since(key[count:], state, keys)[of]
    return NewerRows(chosen, starts, _mask(chosen, DELETED), there, live, since, count - len(at))


def _joined(rows: pa.Table, state: pa.Table, name: str) -> pa.ChunkedArray:
    column = rows.column(name)
    return pa.chunked_array([*column.chunks, *state.column(name).cast(column.type).chunks], column.type)


def _mask(table: pa.Table, name: str) -> Mask:
    return np.asarray(table.column(name).fill_null(False), dtype=bool)


def _any(key: Codes, mask: Mask, keys: int) -> Mask:
    found = np.zeros(keys, dtype=bool)
    found[key[mask]] = True
    return found


def _since(key: Codes, state: pa.Table, keys: int) -> Codes:
    found = np.full(keys, NEVER)
    if SINCE in state.column_names:
        moments = state.column(SINCE).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        np.maximum.at(found, key, np.asarray(moments.fill_null(NEVER), dtype=np.int64))
    return found
