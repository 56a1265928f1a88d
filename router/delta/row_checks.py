"""Hold rows against a keyed table: which it refuses and why, and how its schema has to change for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.casting import beyond
from router.delta.row_order import DELETED, LANE_ONLY, REFUSED, Mask, order_names
from router.delta.scd2 import COLUMNS, time_name
from router.delta.schema_diff import Difference, compare, plain_schema
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.merging import Keyed


REASON = "reason"


@dataclass(frozen=True)
class Fitted:
    """Be the outcome. `refused` are rows with a `reason`; `added` and `widened` what the table needs for the others."""

    rows: pa.Table
    refused: pa.Table
    added: pa.Schema
    widened: pa.Schema


class Unfit(TableError):  # noqa: N818 - as what it derives from, it says what is wrong
    """Say that rows do not fit a table that must not change: waiting does not help."""


class Sieve:
    """Take rows out, each for the first reason there is."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.deletes: Mask = np.asarray(rows.column(DELETED).fill_null(False), dtype=bool)
        self.why = np.full(len(rows), "", dtype=object)
        if REFUSED in rows.column_names:
            self.why = np.array(rows.column(REFUSED).fill_null("").to_pylist(), dtype=object)

    def refuse(self, which: Mask, reason: str) -> None:
        """Refuse rows that are not refused yet."""
        self.why[which & (self.why == "")] = reason

    def parted(self) -> tuple[pa.Table, pa.Table]:
        """Return the rows that are left, and the refused ones with their reasons."""
        kept = np.asarray(self.why == "", dtype=bool)
        refused = self.rows.filter(pa.array(~kept))
        return self.rows.filter(pa.array(kept)), refused.append_column(REASON, pa.array(self.why[~kept], pa.string()))


def fit(rows: pa.Table, have: pa.Schema | None, table: str, keyed: Keyed) -> Fitted:
    """Return rows as a table takes them; `have` is its schema, None where there is none yet.

    The rows must come from `ordered`. Raises Unfit where the table must not change and would have to, and TableError
    where it has to be mended first.
    """
    if have is not None:
        refuse_lost_keys(have, table, keyed)
    sieve = Sieve(rows)
    for key in keyed.keys:
        sieve.refuse(np.asarray(rows.column(key).is_null()), f"key {key} is null")
    if keyed.history:
        timed = time_name(rows.schema, keyed)
        sieve.refuse(np.asarray(rows.column(timed).is_null()), "a history needs times, and this record has none")
    wanted = wanted_columns(rows, keyed)
    if have is None:
        return Fitted(*sieve.parted(), wanted, pa.schema([]))
    _refuse_nulls(sieve, have, keyed)
    found = compare(plain_schema(have), wanted)
    unfit = [*_conflicts(sieve, found, table, keyed)]
    if keyed.evolution != "evolve":
        unfit += _frozen(sieve, found, have, keyed)
        found = Difference(
            tuple(field for field in found.added if field.name in own_names(keyed)), (), {}, found.conflicts
        )
    for rows_of, reason in unfit:
        which = rows_of & ~sieve.deletes
        if keyed.evolution == "fail" and which.any():
            raise Unfit(table, f"{reason}, and the sink says `evolution: fail`; change the table or the sink")
        sieve.refuse(which, reason)
    kept, refused = sieve.parted()
    return Fitted(kept.drop_columns([*found.conflicts]), refused, pa.schema(found.added), pa.schema(found.widened))


def wanted_columns(rows: pa.Table, keyed: Keyed) -> pa.Schema:
    """Return the columns that a table of these rows has: those with a value, and those it has to have."""
    deletes = rows.column(DELETED).fill_null(False)
    data = rows.filter(pc.invert(deletes)) if pc.any(deletes).as_py() else rows
    return wanted_schema(rows.schema, {name for name in data.column_names if data[name].null_count < len(data)}, keyed)


def wanted_schema(rows: pa.Schema, valued: set[str], keyed: Keyed) -> pa.Schema:
    """Return the columns that a table of such rows has; `valued` have a value in a row that deletes nothing."""
    always = {*keyed.keys, *keyed.partition_by, *keyed.cluster_by, *order_names(keyed)}
    fields = [field for field in plain_schema(rows) if field.name not in LANE_ONLY]
    flags = [pa.field(keyed.soft_delete, pa.bool_())] if keyed.soft_delete else []
    kept = [field for field in fields if field.name in always or field.name in valued]
    return pa.schema([*(_commented(field, keyed) for field in kept), *flags, *(COLUMNS if keyed.history else [])])


def _commented(field: pa.Field, keyed: Keyed) -> pa.Field:
    comment = keyed.comments.get(field.name)
    return field.with_metadata({"comment": comment}) if comment else field


def own_names(keyed: Keyed) -> set[str]:
    """Return the columns that a table has for the router's sake."""
    history = COLUMNS.names if keyed.history else ()
    return {*order_names(keyed), *([keyed.soft_delete] if keyed.soft_delete else []), *history}


def _refuse_nulls(sieve: Sieve, have: pa.Schema, keyed: Keyed) -> None:
    """Refuse rows without a value that the table must have."""
    for field in have:
        if field.nullable or field.name in own_names(keyed):
            continue
        if field.name in sieve.rows.column_names:
            lacking = np.asarray(sieve.rows.column(field.name).is_null())
        else:
            lacking = np.ones(len(sieve.rows), dtype=bool)
        sieve.refuse(lacking & ~sieve.deletes, f"column {field.name} is NOT NULL in the table")


def refuse_lost_keys(have: pa.Schema, table: str, keyed: Keyed) -> None:
    """Refuse a table whose rows cannot be told apart any more: somebody has changed it."""
    if lost := [key for key in keyed.keys if key not in have.names]:
        raise TableError(table, f"it has no column {lost[0]}, which is a key of the sink; give it back its column")


def _conflicts(sieve: Sieve, found: Difference, table: str, keyed: Keyed) -> Iterator[tuple[Mask, str]]:
    """Return the rows with a value that the table can never take."""
    for column, reason in found.conflicts.items():
        if column in {*own_names(keyed), *keyed.keys}:
            raise TableError(table, f"{reason}; the sink cannot do without this column: give it back its type")
        yield np.asarray(sieve.rows.column(column).is_valid()), reason


def _frozen(sieve: Sieve, found: Difference, have: pa.Schema, keyed: Keyed) -> Iterator[tuple[Mask, str]]:
    """Return the rows that would change the table."""
    known = {field.name: field.type for field in plain_schema(have)}
    for field in (*found.added, *found.widened):
        if field.name in own_names(keyed):
            continue
        column = sieve.rows.column(field.name)
        if field.name in known:
            reason = f"column {field.name} is {known[field.name]} in the table, which has no room for the value"
            yield beyond(column, known[field.name]), reason
        else:
            yield np.asarray(column.is_valid()), f"column {field.name} is not in the table"
