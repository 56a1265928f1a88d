"""What newer rows change in a table with keys that keeps one row per key, or a history (SCD, types 1 and 2).

One row per key: the newer rows of a key become one change of its row. A history: every state is a row, valid up to the
next one's time. A state is never valid from before its predecessor was, nor before its key was deleted: if a record's
time is earlier than that of the record before it, it counts from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.keyed.row_order import (
    DELETED,
    HELD,
    NEVER,
    OUTBOX_ONLY,
    Codes,
    NewerRows,
    RecordOrder,
    codes,
    joined,
    keys_and_order,
    mask_of,
    newest_names,
    order_names,
)

if TYPE_CHECKING:
    from router.delta.casting import Mask
    from router.sinks import KeyedTable

OP = "__op"
INSERT, UPDATE, PATCH, FLAG, DELETE, CLOSE = range(6)
"""What becomes of a row: it is new; all its columns change; some do; its deletion is noted; it goes; its times do."""


@dataclass(frozen=True)
class TableChanges:
    """What a batch changes in one table.

    `rows` have the columns of the table and `__op`; at most one of those that are no INSERT matches a row of the
    table, by its key, in a history by key and record. `deletions` have the keys and order columns of the rows that were
    the last of their key and deleted it, of a history those of all that delete. `late` rows changed nothing.
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


@dataclass(frozen=True)
class _Records:
    """The records of keys, in order: those of a batch and those that a table, or its remembered deletions, hold.

    `places` are their rows in the batch followed by the state. `deleted` says that a record deletes its key, `held`
    that the table has it; a run is the records of one key, which begins where `first` is true.
    """

    places: Codes
    deleted: Mask
    held: Mask
    first: Mask

    @classmethod
    def of(cls, rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> _Records:
        """Return the records of a batch together with a state, each once."""
        key = codes([joined(rows, state, name) for name in keyed.keys])
        order = RecordOrder.of(rows, state, keyed, key)
        held = np.concatenate([np.zeros(len(rows), dtype=bool), np.ones(len(state), dtype=bool)])
        deleted = np.concatenate([mask_of(rows, DELETED), ~mask_of(state, HELD[0])])
        # A record that came again is the one that the table has.
        by_record = np.lexsort((~held, order.offset, order.source, key))
        again = np.ones(max(0, len(by_record) - 1), dtype=bool)
        for numbers in (key, order.source, order.offset):
            again &= np.diff(numbers[by_record]) == 0
        known_position = ~order.unknown[by_record][1:]
        once = np.ones(len(by_record), dtype=bool)
        once[by_record[1:]] = ~(again & known_position)
        places = np.flatnonzero(once)
        places = places[np.lexsort((order.rank[places], key[places]))]
        first = np.diff(key[places], prepend=-1) != 0
        return cls(places, deleted[places], held[places], first)


def history_changes(rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> TableChanges:
    """Return the states that the rows of a batch add to a history, and those whose time changes by them.

    A history is a function of its records: whichever batches they come in, and in whatever order, the states are the
    same. `state` has all rows of the keys of `rows` that the table holds, with HISTORY_COLUMNS, and all remembered
    deletions. A row that comes late takes its place between them: the state before it ends earlier, and its own ends
    where the next one begins. No time of a record is null.
    """
    records = _Records.of(rows, state, keyed)
    valid_from, valid_to, is_current = _validity(records, _times(rows, state, keyed)[records.places])
    new = np.flatnonzero(~records.held & ~records.deleted)
    other_time = _differs(state, records, len(rows), (valid_from, valid_to, is_current))
    touched = np.concatenate([new, np.flatnonzero(records.held & ~records.deleted & other_time)])

    names = [name for name in rows.column_names if name not in OUTBOX_ONLY]
    both = pa.concat_tables([rows.select(names), _as_rows(state, rows.select(names).schema)])
    changes = both.take(pa.array(records.places[touched]))
    columns = {
        "valid_from": _moments(valid_from[touched]),
        "valid_to": _moments(valid_to[touched], is_current[touched]),
        "is_current": pa.array(is_current[touched]),
        OP: pa.array(np.where(np.arange(len(touched)) < len(new), INSERT, CLOSE).astype(np.int8)),
    }
    for name, column in columns.items():
        changes = changes.append_column(name, column)
    deletions = records.places[~records.held & records.deleted]
    remembered = keys_and_order(rows, keyed).take(pa.array(deletions))
    return TableChanges(changes, remembered, len(rows) - len(new) - len(deletions))


def _times(rows: pa.Table, state: pa.Table, keyed: KeyedTable) -> Codes:
    """Return the time of each record in microseconds, as it was sent. Rows of others have that of their state only."""
    name = time_name(rows.schema, keyed)
    of_state = pc.coalesce(state.column(name).cast(TIMESTAMP), state.column("valid_from").cast(TIMESTAMP))
    times = pa.chunked_array([*rows.column(name).cast(TIMESTAMP).chunks, *of_state.chunks], TIMESTAMP)
    return np.asarray(times.cast(pa.int64()).fill_null(NEVER), dtype=np.int64)


def _validity(records: _Records, times: Codes) -> tuple[Codes, Codes, Mask]:
    """Return from when and up to when each record counts, and whether it still does.

    No record counts from before the one before it did. The time of a deletion counts if it ends a state.
    """
    after_nothing = records.first.copy()
    after_nothing[1:] |= records.deleted[:-1]
    times = np.where(records.deleted & after_nothing, NEVER, times)
    # The largest time so far within a run: ranks of times, each run above all ranks of the run before it.
    values, ranks = np.unique(times, return_inverse=True)
    run = np.cumsum(records.first) - 1
    rising = np.maximum.accumulate(run * len(values) + ranks) - run * len(values)
    valid_from = values[rising] if len(values) else times
    is_current = np.append(records.first[1:], True)[: len(times)]
    valid_to = np.append(valid_from[1:], 0)[: len(times)]
    return valid_from, valid_to, is_current


def _differs(state: pa.Table, records: _Records, count: int, validity: tuple[Codes, Codes, Mask]) -> Mask:
    """Return for which records the table holds another time; False for those that it does not hold."""
    valid_from, valid_to, is_current = validity
    held = np.flatnonzero(records.held)
    places = records.places[held] - count
    before = state.select(HISTORY_COLUMNS.names).take(pa.array(places))
    ends = np.where(is_current[held], NEVER, valid_to[held])
    stored_from, stored_to = (
        np.asarray(before.column(name).cast(TIMESTAMP).cast(pa.int64()).fill_null(NEVER), dtype=np.int64)
        for name in ("valid_from", "valid_to")
    )
    differs = np.zeros(len(records.places), dtype=bool)
    differs[held] = (
        (stored_from != valid_from[held]) | (stored_to != ends) | (mask_of(before, "is_current") != is_current[held])
    )
    return differs


def _as_rows(state: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a state with the columns of rows: what only rows have is null, and stays as it is in the table."""
    columns = []
    for field in schema:
        if field.name in state.column_names:
            columns.append(state.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(len(state), field.type))
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _moments(micros: Codes, none: Mask | None = None) -> pa.Array:
    return pa.array(micros, pa.int64(), mask=none).cast(TIMESTAMP)
