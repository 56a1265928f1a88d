"""Order the rows of a key: the columns that decide, and the rows of a batch that are newer than those of a table.

Keys and order columns become integers (`group_codes`, `rank_rows`), so that numpy can sort and compare whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from router.own_names import ARRIVAL, KEY, OFFSET, PARTITION, TABLE, TIMESTAMP, TOPIC

if TYPE_CHECKING:
    from router.api.sinks import KeyedTable
    from router.delta.casting import Mask


POSITION = {
    ARRIVAL: pa.int64(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TOPIC: pa.string(),
    PARTITION: pa.int32(),
    OFFSET: pa.int64(),
}
"""Arrival and position of a record, the most important first: with these no two records are equally new.

Within one partition of a topic the offset alone decides, as the records were written in that order. Offsets of
different partitions cannot be compared, so between partitions the other columns decide, in this order.
"""
Codes = npt.NDArray[np.int64]


def newest_names(count: int) -> tuple[str, ...]:
    """Return the names of the columns that a sink orders by."""
    return tuple(f"_newest_{number}" for number in range(1, count + 1))


def order_names(keyed: KeyedTable) -> tuple[str, ...]:
    """Return the columns that order rows, the most important first. A table stores them for each row."""
    return (*newest_names(keyed.newest), *POSITION)


def keys_and_order(rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return the keys and order columns of rows."""
    return rows.select(list(dict.fromkeys((*keyed.keys, *order_names(keyed)))))


def with_comparable_order(rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return rows whose order columns have a table's types, and values that all engines order alike."""
    for name in order_names(keyed):
        column = rows.column(name)
        rows = rows.set_column(rows.schema.get_field_index(name), name, _comparable_column(column, POSITION.get(name)))
    return rows


def _comparable_column(column: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
    # Engines differ in whether -0.0 is less than 0.0, and in where NaN comes: NaN becomes null, the oldest.
    if pa.types.is_floating(column.type):
        column = pc.add(column.cast(pa.float64()), 0.0)  # -0.0 becomes 0.0
        return pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
    if kind is None and pa.types.is_integer(column.type):
        kind = pa.int64()
    if kind is None or kind == column.type:
        return column
    return column.cast(kind)


def rank_rows(columns: list[pa.ChunkedArray]) -> Codes:
    """Return the rank of each row, from 0, by columns, the most important first; equal rows share a rank."""
    numbers = [_order_numbers(column) for column in columns]
    order = np.lexsort(numbers[::-1])  # the last one given to lexsort counts most
    differs = np.zeros(max(0, len(order) - 1), dtype=bool)
    for column in numbers:
        differs |= np.diff(column[order]) != 0
    # Along the order the rank grows by one at each row that differs from the row before.
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.concatenate([np.zeros(min(1, len(order)), np.int64), np.cumsum(differs)])
    return rank


def _order_numbers(column: pa.ChunkedArray) -> Codes:
    """Return integers that have the order of the values, nulls first."""
    if pa.types.is_integer(column.type) and not column.null_count:
        return np.asarray(column.to_numpy(), dtype=np.int64)
    if not len(column):
        return np.zeros(0, np.int64)
    ranked = np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense"), dtype=np.int64)
    ranked[column.is_null().to_numpy()] = 0
    return ranked


def group_codes(columns: list[pa.ChunkedArray]) -> Codes:
    """Return an integer per row, the same for rows with the same values in all columns. The columns have no nulls."""
    combined = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # `unique` numbers the combinations so far from 0, so that the product stays small.
        combinations = combined * (len(encoded.dictionary) + 1) + indices
        combined = np.unique(combinations, return_inverse=True)[1].astype(np.int64)
    return combined


DELETED = "_deleted"
"""A column of rows: true if the row deletes its key."""
HELD_COLUMNS = ("_there", "_live")
"""Columns of a state: whether the table has a row of the key, and whether that row is not flagged as deleted. Both are
false in a remembered deletion."""
REFUSED = "_refused"
"""A column that rows may have: why they cannot go into the table, if an earlier step has found that out."""
OUTBOX_ONLY = (KEY, TABLE, DELETED, REFUSED)
"""Columns of rows that no table stores."""
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class NewerRows:
    """Rows that are newer than those of a table, ordered by key, and by age within a key, the oldest first.

    The rows of one key are a run; `starts` has the number of each run's first row. `deleted` has a value per row,
    `there` and `live` (see `HELD`) have one per run. `late` counts the rows of the batch that are not newer: the table
    has a newer row or deletion of their key, or that very record.
    """

    rows: pa.Table
    starts: Codes
    deleted: Mask
    there: Mask
    live: Mask
    late: int

    @property
    def run_numbers(self) -> Codes:
        """Return the run of each row."""
        return np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.rows))))

    @property
    def last_of_runs(self) -> Codes:
        """Return the last row of each run."""
        return np.append(self.starts, len(self.rows))[1:] - 1


def newer_rows(rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> NewerRows:
    """Return the rows of a batch that are newer than a state of the table.

    `state` has keys, order columns, `_there` and `_live` of each row that the table holds of these keys. Keys must not
    be null, and rows and state must come from `with_comparable_order`.
    """
    count = len(rows)
    key = group_codes([join_column(rows, state, name) for name in keyed.keys])
    order = RecordOrder.of_rows(rows, state, keyed, key)
    keys = int(key.max()) + 1 if len(key) else 0

    # Of a record that arrived several times, as after a start from the topic's beginning, the first arrival counts.
    newer = np.flatnonzero(order.newer_than_held(count) & ~order.find_repetitions()[:count])
    newer = newer[np.lexsort((order.rank[newer], key[newer]))]
    starts = np.flatnonzero(np.diff(key[newer], prepend=-1) != 0)
    chosen = rows.take(pa.array(newer))
    run_keys = key[newer[starts]]
    there, live = (_keys_with(mask_of(state, name), key[count:], keys)[run_keys] for name in HELD_COLUMNS)
    return NewerRows(
        rows=chosen,
        starts=starts,
        deleted=mask_of(chosen, DELETED),
        there=there,
        live=live,
        late=count - len(newer),
    )


@dataclass(frozen=True)
class RecordOrder:
    """The order of the records of a batch and of those that a table holds, the batch's first.

    Each field has a value per record:

    - `key`: the number of its key.
    - `newest`: its rank by the columns that the sink orders by; 0 if there are none.
    - `source`: the number of its topic and partition. `offset`: its offset, as a number of the same order.
    - `across`: its rank among records of other partitions, by arrival and time.
    - `rank`: its place in the order of all records.
    - `unknown`: it has no offset, since its row was not written by the router.
    """

    key: Codes
    newest: Codes
    source: Codes
    offset: Codes
    across: Codes
    rank: Codes
    unknown: Mask

    @classmethod
    def of_rows(cls, rows: pa.Table, state: pa.Table, keyed: KeyedTable, key: Codes) -> RecordOrder:
        """Return the order of rows and of a state."""
        joined_columns = {name: join_column(rows, state, name) for name in order_names(keyed)}
        newest = np.zeros(len(key), np.int64)
        if keyed.newest:
            newest = rank_rows([joined_columns[name] for name in newest_names(keyed.newest)])
        source = rank_rows([joined_columns[TOPIC], joined_columns[PARTITION]])
        offset = _order_numbers(joined_columns[OFFSET])
        arrived = rank_rows([joined_columns[ARRIVAL], joined_columns[TIMESTAMP]])
        across = _rising_with_offset(arrived, key, source, offset)
        order = np.lexsort((offset, source, across, newest))
        rank = np.empty(len(key), np.int64)
        rank[order] = np.arange(len(key))
        unknown = np.asarray(joined_columns[OFFSET].is_null())
        return cls(key, newest, source, offset, across, rank, unknown)

    def find_repetitions(self) -> Codes:
        """Return the records that are repetitions: one of the same key, partition and offset arrived earlier."""
        order = np.lexsort((self.across, self.offset, self.source, self.newest, self.key))
        same = np.ones(max(0, len(order) - 1), dtype=bool)
        for numbers in (self.key, self.newest, self.source, self.offset):
            same &= np.diff(numbers[order]) == 0
        repeated = np.zeros(len(order), dtype=bool)
        repeated[order[1:]] = same
        return repeated

    def newer_than_held(self, count: int) -> Mask:
        """Return which of the first `count` records, the batch's, are newer than all of the table with the same key."""
        newer = np.ones(count, dtype=bool)
        # The table's records sorted by key: those of a record's key are the slice from `begins` to `ends`.
        table_records = count + np.argsort(self.key[count:], kind="stable")
        begins = np.searchsorted(self.key[table_records], self.key[:count], side="left")
        ends = np.searchsorted(self.key[table_records], self.key[:count], side="right")
        # Compare with the first record of the slice, then with the second, and so on. A key has one or two records in a
        # table (a row, a deletion), so the loop is short; if a batch is merged again it is as long as the longest
        # history.
        for nth in range(int((ends - begins).max(initial=0))):
            compared = np.flatnonzero(newer & (begins + nth < ends))
            newer[compared] = self._is_newer(compared, table_records[begins[compared] + nth])
        return newer

    def _is_newer(self, records: Codes, others: Codes) -> Mask:
        """Return whether each of `records` is newer than the record at the same place in `others`."""
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
    """Return the rank of each record's arrival, at least that of earlier records of its key and partition.

    Clocks of producers differ. Without this, a record could have a larger offset than another one of its partition but
    an earlier time, and a third record, of another partition, could lie between: no order would hold for all three.
    """
    order = np.lexsort((offset, source, key))
    changes = (np.diff(key[order], prepend=-1) != 0) | (np.diff(source[order], prepend=-1) != 0)
    # The running maximum within each group: every group gets a range of numbers above those of the group before.
    group = np.cumsum(changes)
    span = int(arrived.max(initial=0)) + 1
    rising = np.empty(len(arrived), np.int64)
    rising[order] = np.maximum.accumulate(group * span + arrived[order]) - group * span
    return rising


def join_column(rows: pa.Table, state: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of rows followed by the same column of a state, in the type of the rows."""
    column = rows.column(name)
    return pa.chunked_array([*column.chunks, *state.column(name).cast(column.type).chunks], column.type)


def mask_of(table: pa.Table, name: str) -> Mask:
    """Return a boolean column; null is false."""
    return np.asarray(table.column(name).fill_null(False), dtype=bool)


def _keys_with(mask: Mask, key: Codes, keys: int) -> Mask:
    """Return for each of the key numbers below `keys` whether a row of it is marked; `key` has those of the rows."""
    marked_keys = np.zeros(keys, dtype=bool)
    marked_keys[key[mask]] = True
    return marked_keys
