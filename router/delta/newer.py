"""The rows of a batch that are newer than what a table holds, sorted by key and order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from router.delta.order import Codes, codes, order_names, ranks

if TYPE_CHECKING:
    from router.keyed import Keyed

DELETED = "_deleted"
"""A column of rows: true where the row deletes its key."""
HELD = ("_there", "_live")
"""Columns of a state: the table has a row of the key; that row is not flagged as deleted. A remembered deletion has
neither."""
SINCE = "_since"
"""A column of a state: since when a row has been the current one, or its key deleted, with a history."""
REFUSED = "_refused"
"""A column that rows may have: why they cannot go into the table, where that was found out before."""
LANE_ONLY = ("_timestamp", "_key", "_table", DELETED, REFUSED)
"""Columns of rows that no table keeps."""
NEVER = np.iinfo(np.int64).min
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Newer:
    """Be newer rows. A run is the rows of one key: it begins at `starts`, and oldest first.

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


def newer(rows: pa.Table, state: pa.Table, keyed: Keyed) -> Newer:
    """Return what of a batch is newer than a state: keys, order columns, `_there`, `_live` and `_since` of each row.

    The keys of rows must not be null, and both must come from `ordered`.
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
    return Newer(chosen, starts, _mask(chosen, DELETED), there, live, since, count - len(at))


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
