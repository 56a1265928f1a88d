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


ARRIVAL = "_arrival"
"""The column with the run and the batch that a record arrived in: see `router.engine.position`."""
POSITION = {
    ARRIVAL: pa.int64(),
    "_timestamp": pa.timestamp("us", "UTC"),
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
}
"""When a record arrived and where it was, the most important first: with these no two records are equally new.

Within one partition of a topic the offset alone decides: it is the order in which the records were written. Offsets of
different partitions say nothing about each other, so there the others decide, in this order.
"""
Codes = npt.NDArray[np.int64]


def newest_names(count: int) -> tuple[str, ...]:
    """Return what the columns are called that a sink orders by."""
    return tuple(f"_newest_{number}" for number in range(1, count + 1))


def order_names(keyed: KeyedTable) -> tuple[str, ...]:
    """Return the columns that order rows, the most important one first. A table keeps those of each row's record."""
    return (*newest_names(keyed.newest), *POSITION)


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
REFUSED = "_refused"
"""A column that rows may have: why they cannot go into the table, where that was found out before."""
OUTBOX_ONLY = ("_key", "_table", DELETED, REFUSED)
"""Columns of rows that no table keeps."""
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class NewerRows:
    """Rows that are newer than what a table holds. A run is the rows of one key, oldest first; it begins at `starts`.

    `deleted` is by row, `there` and `live` are by run. `late` counts the rows that are not
    newer: the table has a newer row or deletion of their key, or that very record.
    """

    rows: pa.Table
    starts: Codes
    deleted: Mask
    there: Mask
    live: Mask
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
    """Return what of a batch is newer than a state: keys, order columns, `_there` and `_live` of each row.

    The keys of rows must not be null, and both must come from `comparable`.
    """
    count = len(rows)
    key = codes([joined(rows, state, name) for name in keyed.keys])
    order = RecordOrder.of(rows, state, keyed, key)
    keys = int(key.max()) + 1 if len(key) else 0

    # Of the rows that came several times, as after a new start from the topic's beginning, the first arrival counts.
    newer = np.flatnonzero(order.newer_than_held(count) & ~order.repeated()[:count])
    newer = newer[np.lexsort((order.rank[newer], key[newer]))]
    starts = np.flatnonzero(np.diff(key[newer], prepend=-1) != 0)
    chosen = rows.take(pa.array(newer))
    run_keys = key[newer[starts]]
    there, live = (_any(key[count:], mask_of(state, name), keys)[run_keys] for name in HELD)
    return NewerRows(chosen, starts, mask_of(chosen, DELETED), there, live, count - len(newer))


@dataclass(frozen=True)
class RecordOrder:
    """The order of the records of a batch and of those that a table holds, the batch's first.

    `newest` ranks what the sink orders by; all records have the same rank where it orders by nothing else than the
    record. `source` numbers the partitions of topics. `across` ranks records of different partitions by arrival and
    time, `rank` puts all records into one order. `unknown` are records without an offset: of rows that others wrote.
    """

    key: Codes
    newest: Codes
    source: Codes
    offset: Codes
    across: Codes
    rank: Codes
    unknown: Mask

    @classmethod
    def of(cls, rows: pa.Table, state: pa.Table, keyed: KeyedTable, key: Codes) -> RecordOrder:
        """Return the order of rows and of a state."""
        joined_columns = {name: joined(rows, state, name) for name in order_names(keyed)}
        newest = np.zeros(len(key), np.int64)
        if keyed.newest:
            newest = ranks([joined_columns[name] for name in newest_names(keyed.newest)])
        source = ranks([joined_columns["_topic"], joined_columns["_partition"]])
        offset = _numbers(joined_columns["_offset"])
        arrived = ranks([joined_columns[ARRIVAL], joined_columns["_timestamp"]])
        across = _rising_with_offset(arrived, key, source, offset)
        order = np.lexsort((offset, source, across, newest))
        rank = np.empty(len(key), np.int64)
        rank[order] = np.arange(len(key))
        unknown = np.asarray(joined_columns["_offset"].is_null())
        return cls(key, newest, source, offset, across, rank, unknown)

    def repeated(self) -> Codes:
        """Return which records came before: a record of the same key, partition and offset arrived earlier."""
        order = np.lexsort((self.across, self.offset, self.source, self.newest, self.key))
        same = np.ones(max(0, len(order) - 1), dtype=bool)
        for numbers in (self.key, self.newest, self.source, self.offset):
            same &= np.diff(numbers[order]) == 0
        repeated = np.zeros(len(order), dtype=bool)
        repeated[order[1:]] = same
        return repeated

    def newer_than_held(self, count: int) -> Mask:
        """Return which of the first `count` records are newer than all records after them of the same key."""
        newer = np.ones(count, dtype=bool)
        held = count + np.argsort(self.key[count:], kind="stable")
        begins = np.searchsorted(self.key[held], self.key[:count], side="left")
        ends = np.searchsorted(self.key[held], self.key[:count], side="right")
        # A key has one or two records in a table (a row, a deletion), so this loop is short. It is as long as the
        # longest history where a batch is merged again.
        for nth in range(int((ends - begins).max(initial=0))):
            compared = np.flatnonzero(newer & (begins + nth < ends))
            newer[compared] = self._is_newer(compared, held[begins[compared] + nth])
        return newer

    def _is_newer(self, records: Codes, others: Codes) -> Mask:
        """Return whether each record is newer than the other record at the same place."""
        across = np.where(
            self.across[records] == self.across[others],
            self.source[records] > self.source[others],
            self.across[records] > self.across[others],
        )
        same_source = self.source[records] == self.source[others]
        by_record = np.where(same_source, self.offset[records] > self.offset[others], across)
        same_newest = self.newest[records] == self.newest[others]
        return np.where(same_newest, by_record, self.newest[records] > self.newest[others])


def _rising_with_offset(arrived: Codes, key: Codes, source: Codes, offset: Codes) -> Codes:
    """Return the rank of each record's arrival and time, or that of an earlier record of its key and partition.

    Clocks of producers differ: without it a later offset of one partition could count as older than an earlier one
    by way of a record of another partition, and no order would hold for all three.
    """
    order = np.lexsort((offset, source, key))
    changes = (np.diff(key[order], prepend=-1) != 0) | (np.diff(source[order], prepend=-1) != 0)
    group = np.cumsum(changes)
    span = int(arrived.max(initial=0)) + 1
    rising = np.empty(len(arrived), np.int64)
    rising[order] = np.maximum.accumulate(group * span + arrived[order]) - group * span
    return rising


def joined(rows: pa.Table, state: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of rows followed by that of a state, in the type of the rows."""
    column = rows.column(name)
    return pa.chunked_array([*column.chunks, *state.column(name).cast(column.type).chunks], column.type)


def mask_of(table: pa.Table, name: str) -> Mask:
    """Return a boolean column; null is false."""
    return np.asarray(table.column(name).fill_null(False), dtype=bool)


def _any(key: Codes, mask: Mask, keys: int) -> Mask:
    found = np.zeros(keys, dtype=bool)
    found[key[mask]] = True
    return found
