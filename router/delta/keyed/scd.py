"""Decide what newer rows change in a table with one row per key, or with a history (SCD, types 1 and 2).

One row per key (`latest_changes`): the newer rows of a key become one change of its row.

A history (`history_changes`): every state of a key is a row, valid up to the time of the next one. A state never begins
before the state, or the deletion, that precedes it: if a record's time is earlier than that of the record before it,
the earlier record's time counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.keyed.row_order import (
    DELETED,
    HELD_COLUMNS,
    NEVER,
    OUTBOX_ONLY,
    Codes,
    NewerRows,
    RecordOrder,
    group_codes,
    join_column,
    keys_and_order,
    mask_of,
    newest_names,
    order_names,
)
from router.own_names import TIMESTAMP

if TYPE_CHECKING:
    from router.api.sinks import KeyedTable
    from router.delta.casting import Mask

OP = "__op"
NO_CHANGE = -1
INSERT, UPDATE, PATCH, FLAG, DELETE, CLOSE = range(6)
"""The kinds of change, in the column `__op`:

| kind | the row of the table |
|---|---|
| INSERT | is new |
| UPDATE | gets new values in all columns |
| PATCH | gets new values in the columns `KeyedTable.columns` and in those of the order |
| FLAG | is flagged as deleted (`soft_delete`) |
| DELETE | is deleted |
| CLOSE | gets other times (history) |
"""


@dataclass(frozen=True)
class TableChanges:
    """What a batch changes in one table.

    `rows` have the columns of the table and `__op`. At most one of them, INSERTs apart, matches a row of the table: by
    key, in a history by key and record. `deletions` have the keys and order columns of the rows that deleted their key
    and were its last; in a history of all rows that delete. `late` rows changed nothing.
    """

    rows: pa.Table
    deletions: pa.Table
    late: int

    def count_changes(self, *ops: int) -> int:
        """Return the number of changes of some kinds."""
        return int(np.isin(np.asarray(self.rows.column(OP)), ops).sum())

    @property
    def row_counts(self) -> dict[str, int]:
        """Return how many rows changed nothing, and how many rows of the table were inserted, updated and deleted."""
        return {
            "late": self.late,
            "inserted": self.count_changes(INSERT),
            "updated": self.count_changes(UPDATE, PATCH, FLAG, CLOSE),
            "deleted": self.count_changes(DELETE),
        }


def latest_changes(newer: NewerRows, keyed: KeyedTable) -> TableChanges:
    """Return the changes of a table with one row per key, as if the newer rows had come one by one, oldest first."""
    deciding = _Deciding.of_newer_rows(newer)
    if keyed.when_matched == "ignore":
        ops = _first_row_wins(newer, deciding, keyed)
        ordering = np.where(deciding.deletes, newer.last_of_runs, deciding.first)
    else:
        ops = _last_row_wins(newer, deciding, keyed)
        ordering = newer.last_of_runs
    changed = np.flatnonzero(ops != NO_CHANGE)
    rows = _resulting_rows(newer, deciding, keyed, ordering).take(pa.array(changed))
    rows = rows.append_column(OP, pa.array(ops[changed].astype(np.int8)))
    # With `soft_delete` the row itself remembers its deletion.
    deleting = newer.last_of_runs[deciding.deletes & (not keyed.soft_delete)]
    deletions = keys_and_order(newer.rows, keyed).take(pa.array(deleting))
    return TableChanges(rows, deletions, newer.late)


@dataclass(frozen=True)
class _Deciding:
    """The rows that decide the change of each run (the newer rows of one key), by number; -1 if there is no such row.

    `data` is the last row that deletes nothing, `again` the last deletion before it, `first` the first row after that
    deletion. `deletes`: the run ends with a deletion.
    """

    data: Codes
    again: Codes
    first: Codes
    deletes: Mask

    @classmethod
    def of_newer_rows(cls, newer: NewerRows) -> _Deciding:
        row_numbers = np.arange(len(newer.rows))
        runs = newer.run_numbers
        data = _largest_of_runs(np.where(~newer.deleted, row_numbers, -1), newer.starts)
        again = _largest_of_runs(np.where(newer.deleted & (row_numbers < data[runs]), row_numbers, -1), newer.starts)
        # The smallest number is the largest negative one.
        after_deletion = ~newer.deleted & (row_numbers > again[runs])
        first = -_largest_of_runs(np.where(after_deletion, -row_numbers, -len(row_numbers) - 1), newer.starts)
        return cls(
            data=data,
            again=again,
            first=np.where(data >= 0, first, -1),
            deletes=newer.deleted[newer.last_of_runs],
        )


def _largest_of_runs(values: Codes, starts: Codes) -> Codes:
    if len(starts) == 0:  # `reduceat` takes no empty array
        return values[:0]
    return np.maximum.reduceat(values, starts)


def _last_row_wins(newer: NewerRows, deciding: _Deciding, keyed: KeyedTable) -> Codes:
    """Return the change of each run if newer rows replace older ones."""
    # A row that is inserted after a deletion takes nothing from the row before it.
    is_new_row = ~newer.live | (deciding.again >= 0)
    update = np.where(is_new_row | (keyed.columns is None), UPDATE, PATCH)
    if keyed.soft_delete:
        in_table = np.where(deciding.data >= 0, update, FLAG)
    else:
        in_table = np.where(deciding.deletes, DELETE, update)
    return np.where(newer.there, in_table, _changes_of_absent_keys(deciding, keyed))


def _first_row_wins(newer: NewerRows, deciding: _Deciding, keyed: KeyedTable) -> Codes:
    """Return the change of each run if the first row of a key stays until it is deleted."""
    is_new_row = (~newer.live | (deciding.again >= 0)) & (deciding.data >= 0)
    update = np.where(is_new_row, UPDATE, NO_CHANGE)
    if keyed.soft_delete:
        # A new row that is deleted again replaces the old one, with the flag set.
        in_table = np.where(deciding.deletes & ~is_new_row, FLAG, update)
    else:
        in_table = np.where(deciding.deletes, DELETE, update)
    return np.where(newer.there, in_table, _changes_of_absent_keys(deciding, keyed))


def _changes_of_absent_keys(deciding: _Deciding, keyed: KeyedTable) -> Codes:
    """Return the change of each run if the table has no row of its key."""
    if keyed.soft_delete:
        return np.full(len(deciding.deletes), INSERT)
    return np.where(deciding.deletes, NO_CHANGE, INSERT)


def _resulting_rows(newer: NewerRows, deciding: _Deciding, keyed: KeyedTable, ordering: Codes) -> pa.Table:
    """Return the row that each run results in; its columns may come from several records.

    Keys and order columns come from the row `ordering`, the columns `keyed.columns` from the row that wins, and all
    others from the first row of the key, as they do not change later. A column is null if there is no such row.
    """
    winning = deciding.first if keyed.when_matched == "ignore" else deciding.data
    changing = keyed.columns
    columns = {}
    for name in newer.rows.column_names:
        if name in OUTBOX_ONLY:
            continue
        if name in order_names(keyed) or name in keyed.keys:
            row_numbers = ordering
        elif changing is None or name in changing:
            row_numbers = winning
        else:
            row_numbers = deciding.first
        columns[name] = newer.rows.column(name).take(pa.array(row_numbers, mask=row_numbers < 0))
    if keyed.soft_delete:
        columns[keyed.soft_delete] = pa.array(deciding.deletes)
    return pa.table(columns)


MOMENT = pa.timestamp("us", "UTC")
HISTORY_COLUMNS = pa.schema([("valid_from", MOMENT), ("valid_to", MOMENT), ("is_current", pa.bool_())])
"""The columns that a history has besides those of its rows."""


def time_name(schema: pa.Schema, keyed: KeyedTable) -> str:
    """Return the column with the time from which a state is valid: the first order column if it is a time, or the
    record's time."""
    for name in newest_names(keyed.newest)[:1]:
        if pa.types.is_timestamp(schema.field(name).type):
            return name
    return TIMESTAMP


@dataclass(frozen=True)
class _Records:
    """The records of a batch and of a state, each once, ordered by key and age. A run is the records of one key.

    Per record: `places` is its row number in the batch followed by the state. `deleted`: it deletes its key. `held`: it
    is in the state. `first`: it is the first of its run.
    """

    places: Codes
    deleted: Mask
    held: Mask
    first: Mask

    @classmethod
    def with_state(cls, rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> _Records:
        """Return the records of a batch together with a state, each once."""
        key = group_codes([join_column(rows, state, name) for name in keyed.keys])
        order = RecordOrder.of_rows(rows, state, keyed, key)
        in_state = np.concatenate([np.zeros(len(rows), dtype=bool), np.ones(len(state), dtype=bool)])
        deleted = np.concatenate([mask_of(rows, DELETED), ~mask_of(state, HELD_COLUMNS[0])])
        # If a record of the batch is in the state already, keep that of the state, which sorts first. Rows of other
        # writers have no offset, and cannot be told to be the same.
        by_record = np.lexsort((~in_state, order.offset, order.source, key))
        again = np.ones(max(0, len(by_record) - 1), dtype=bool)
        for numbers in (key, order.source, order.offset):
            again &= np.diff(numbers[by_record]) == 0
        known_position = ~order.unknown[by_record][1:]
        once = np.ones(len(by_record), dtype=bool)
        once[by_record[1:]] = ~(again & known_position)
        places = np.flatnonzero(once)
        places = places[np.lexsort((order.rank[places], key[places]))]
        first = np.diff(key[places], prepend=-1) != 0
        return cls(places, deleted[places], in_state[places], first)


def history_changes(rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> TableChanges:
    """Return the states that the rows of a batch add to a history, and the states whose times they change.

    A history is a function of its records: it is the same in whichever batches and order they arrive. `state` has all
    of the table's rows of the keys of `rows`, with HISTORY_COLUMNS, and all remembered deletions. A late row takes its
    place between them: the state before it ends earlier, and its own ends when the next one begins. No record's time
    is null.
    """
    records = _Records.with_state(rows, state, keyed)
    times = _record_times(rows, state, keyed)[records.places]
    valid_from, valid_to, is_current = _validity_of_records(records, times)
    has_other_times = _has_other_validity(state, records, len(rows), (valid_from, valid_to, is_current))
    new = np.flatnonzero(~records.held & ~records.deleted)
    closed = np.flatnonzero(records.held & ~records.deleted & has_other_times)
    touched = np.concatenate([new, closed])

    names = [name for name in rows.column_names if name not in OUTBOX_ONLY]
    new_rows = rows.select(names)
    both = pa.concat_tables([new_rows, _as_rows(state, new_rows.schema)])
    changes = both.take(pa.array(records.places[touched]))
    ops = np.concatenate([np.full(len(new), INSERT), np.full(len(closed), CLOSE)])
    columns = {
        "valid_from": _to_timestamps(valid_from[touched]),
        "valid_to": _to_timestamps(valid_to[touched], null=is_current[touched]),
        "is_current": pa.array(is_current[touched]),
        OP: pa.array(ops.astype(np.int8)),
    }
    for name, column in columns.items():
        changes = changes.append_column(name, column)
    deletions = records.places[~records.held & records.deleted]
    remembered = keys_and_order(rows, keyed).take(pa.array(deletions))
    late = len(rows) - len(new) - len(deletions)
    return TableChanges(changes, remembered, late)


def _record_times(rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> Codes:
    """Return the time of each record in microseconds; rows of other writers may have the time of their state only."""
    name = time_name(rows.schema, keyed)
    of_state = pc.coalesce(state.column(name).cast(MOMENT), state.column("valid_from").cast(MOMENT))
    times = pa.chunked_array([*rows.column(name).cast(MOMENT).chunks, *of_state.chunks], MOMENT)
    return _to_microseconds(times)


def _validity_of_records(records: _Records, times: Codes) -> tuple[Codes, Codes, Mask]:
    """Return from when and up to when each record is valid, and whether it is current.

    No record is valid from before the one that precedes it was.
    """
    # A deletion that ends no state, as the first record of a key or after another deletion, must not move the begin of
    # the states after it: its time is set to the smallest.
    after_nothing = records.first.copy()
    after_nothing[1:] |= records.deleted[:-1]
    times = np.where(records.deleted & after_nothing, NEVER, times)
    # The largest time so far within a run: ranks of times, each run above all ranks of the run before it.
    values, ranks = np.unique(times, return_inverse=True)
    run = np.cumsum(records.first) - 1
    rising = np.maximum.accumulate(run * len(values) + ranks) - run * len(values)
    valid_from = values[rising] if len(values) else times
    # The last record of a run is current; each other one ends when the next begins.
    is_current = np.append(records.first[1:], True)[: len(times)]
    valid_to = np.append(valid_from[1:], 0)[: len(times)]
    return valid_from, valid_to, is_current


def _has_other_validity(state: pa.Table, records: _Records, count: int, validity: tuple[Codes, Codes, Mask]) -> Mask:
    """Return the records of the state with other times than `validity` (see `_validity_of_records`) has for them.

    `count` is the number of rows in the batch, which come before the state in `records.places`.
    """
    valid_from, valid_to, is_current = validity
    in_state = np.flatnonzero(records.held)
    stored = state.select(HISTORY_COLUMNS.names).take(pa.array(records.places[in_state] - count))
    ends = np.where(is_current[in_state], NEVER, valid_to[in_state])
    differs_in_time = _to_microseconds(stored.column("valid_from")) != valid_from[in_state]
    differs_in_time |= _to_microseconds(stored.column("valid_to")) != ends
    differs_in_time |= mask_of(stored, "is_current") != is_current[in_state]
    differs = np.zeros(len(records.places), dtype=bool)
    differs[in_state] = differs_in_time
    return differs


def _to_microseconds(times: pa.ChunkedArray) -> Codes:
    """Return times as integers, null as NEVER."""
    return np.asarray(times.cast(MOMENT).cast(pa.int64()).fill_null(NEVER), dtype=np.int64)


def _as_rows(state: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a state with the columns of rows. A column that a state lacks is null; a CLOSE does not write it."""
    columns = []
    for field in schema:
        if field.name in state.column_names:
            columns.append(state.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(len(state), field.type))
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _to_timestamps(microseconds: Codes, null: Mask | None = None) -> pa.Array:
    return pa.array(microseconds, pa.int64(), mask=null).cast(MOMENT)
