"""What keyed tables must hold, in plain Python: a record at a time, oldest first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.api.sinks import KeyedTable

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Record:
    """One record: which key, how new, what of it."""

    key: tuple[Any, ...]
    offset: int
    partition: int = 0
    newest: int | None = None
    deletes: bool = False
    second: int = 0
    values: tuple[tuple[str, Any], ...] = ()
    arrival: int = 0

    def newness(self, keyed: KeyedTable) -> tuple[Any, ...]:
        """Return what the sink orders by: nulls are the oldest."""
        return (self.newest is not None, self.newest or 0) if keyed.newest else ()

    def order(self, keyed: KeyedTable, others: Sequence[Record]) -> tuple[Any, ...]:
        """Return what orders records of a batch. An offset is never older than a smaller one of its partition."""
        before = [
            (other.arrival, other.second)
            for other in (self, *others)
            if (other.key, other.partition) == (self.key, self.partition) and other.offset <= self.offset
        ]
        return (*self.newness(keyed), max(before), self.partition, self.offset)

    def is_newer(self, other: Record, keyed: KeyedTable, others: Sequence[Record]) -> bool:
        """Say whether a record is newer than one that a table holds of its key."""
        if self.newness(keyed) != other.newness(keyed):
            return self.newness(keyed) > other.newness(keyed)
        if self.partition == other.partition:
            return self.offset > other.offset
        return self.order(keyed, others) > other.order(keyed, others)

    @property
    def time(self) -> datetime:
        return BEGIN + timedelta(seconds=self.second)


def lane(records: Sequence[Record], keyed: KeyedTable, columns: dict[str, pa.DataType]) -> pa.Table:
    """Return records as the rows of a lane; `columns` are those of the route, keys included."""
    given = [{**dict(zip(keyed.keys, record.key, strict=True)), **dict(record.values)} for record in records]
    found = {
        "_topic": pa.array(["events"] * len(records), pa.string()),
        "_partition": pa.array([record.partition for record in records], pa.int32()),
        "_offset": pa.array([record.offset for record in records], pa.int64()),
        "_timestamp": pa.array([record.time for record in records], pa.timestamp("us", "UTC")),
        "_arrival": pa.array([record.arrival for record in records], pa.int64()),
        "_key": pa.array([b"key"] * len(records), pa.binary()),
        "_deleted": pa.array([record.deletes for record in records], pa.bool_()),
        **({"_newest_1": pa.array([record.newest for record in records], pa.int32())} if keyed.newest else {}),
        **{name: pa.array([row.get(name) for row in given], kind) for name, kind in columns.items()},
    }
    return pa.table(found)


def place(record: Record) -> tuple[int, int]:
    return (record.partition, record.offset)


@dataclass
class Row:
    """One row of the table."""

    record: Record
    values: dict[str, Any]
    gone: bool = False
    since: datetime = BEGIN
    until: datetime | None = None


@dataclass
class Model:
    """One keyed table. `rows` are those with a key that is there; `taken` are all records, for a history."""

    keyed: KeyedTable
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    deleted: dict[tuple[Any, ...], Record] = field(default_factory=dict)
    taken: dict[tuple[Any, ...], list[Record]] = field(default_factory=dict)

    def take(self, records: Sequence[Record]) -> None:
        """Apply a batch."""
        if self.keyed.history:
            for record in records:
                of_key = self.taken.setdefault(record.key, [])
                if None not in record.key and (record.partition, record.offset) not in map(place, of_key):
                    of_key.append(record)
            return
        held = [row.record for row in self.rows.values()] + [*self.deleted.values()]
        others = [*records, *held]
        for record in sorted(records, key=lambda record: record.order(self.keyed, others)):
            if None not in record.key and not self._late(record, others):
                self._apply(record)

    def shown(self) -> list[dict[str, Any]]:
        """Return the rows that the table has."""
        rows = [(key, row) for key, of_key in self.taken.items() for row in self._states(of_key)]
        return sorted((self._shown(key, row) for key, row in [*rows, *self.rows.items()]), key=repr)

    def _states(self, records: list[Record]) -> list[Row]:
        """Return the history of all records of a key, whenever they came."""
        states: list[Row] = []
        time = BEGIN
        for record in sorted(records, key=lambda record: record.order(self.keyed, records)):
            current = states[-1] if states and states[-1].until is None else None
            if record.deletes and current is None:
                continue  # it ends nothing
            time = max(time, record.time)
            if current is not None:
                current.until = time
            if not record.deletes:
                states.append(Row(record, dict(record.values), since=time))
        return states

    def _late(self, record: Record, others: Sequence[Record]) -> bool:
        held = [row.record for row in [self.rows.get(record.key)] if row]
        held += [self.deleted[record.key]] if record.key in self.deleted else []
        return not all(record.is_newer(other, self.keyed, others) for other in held)

    def _apply(self, record: Record) -> None:
        row = self.rows.get(record.key)
        if record.deletes:
            self._delete(record, row)
        elif row is None or row.gone:
            self.rows[record.key] = Row(record, dict(record.values))
        elif self.keyed.when_matched == "update":
            some = {name: value for name, value in record.values if name in (self.keyed.columns or (name,))}
            self.rows[record.key] = replace(row, record=record, values={**row.values, **some})

    def _delete(self, record: Record, row: Row | None) -> None:
        if self.keyed.soft_delete:
            self.rows[record.key] = Row(record, row.values if row else {}, gone=True)
            return
        self.deleted[record.key] = record
        if row is not None:
            del self.rows[record.key]

    def _shown(self, key: tuple[Any, ...], row: Row) -> dict[str, Any]:
        found = {**dict(zip(self.keyed.keys, key, strict=True)), **row.values}
        found |= {"_offset": row.record.offset, "_partition": row.record.partition, "_topic": "events"}
        found |= {"_arrival": row.record.arrival, "_timestamp": row.record.time}
        if self.keyed.newest:
            found["_newest_1"] = row.record.newest
        if self.keyed.soft_delete:
            found[self.keyed.soft_delete] = row.gone
        if self.keyed.history:
            found |= {"valid_from": row.since, "valid_to": row.until, "is_current": row.until is None}
        return found
