"""Which row of a key is the newest: columns that order rows, and keys told apart, as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from router.keyed import Keyed

PLACE = {"_partition": pa.int32(), "_offset": pa.int64(), "_topic": pa.string()}
"""Where a record was: with these no two records are equally new."""
Codes = npt.NDArray[np.int64]


def newest_names(count: int) -> tuple[str, ...]:
    """Return what the columns are called that a sink orders by."""
    return tuple(f"_newest_{number}" for number in range(1, count + 1))


def order_names(keyed: Keyed) -> tuple[str, ...]:
    """Return the columns that order rows, the most important one first. A table keeps those of each row's record."""
    return (*newest_names(keyed.newest), *PLACE) if keyed.newest else ("_offset", "_partition", "_topic")


def placed(rows: pa.Table, keyed: Keyed) -> pa.Table:
    """Return the keys and order columns of rows."""
    return rows.select(list(dict.fromkeys((*keyed.keys, *order_names(keyed)))))


def ordered(rows: pa.Table, keyed: Keyed) -> pa.Table:
    """Return rows whose order columns have the types that a table keeps, and values that all engines order alike."""
    for name in order_names(keyed):
        column = rows.column(name)
        rows = rows.set_column(rows.schema.get_field_index(name), name, _comparable(column, PLACE.get(name)))
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
