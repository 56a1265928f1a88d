"""Check rows before an upsert: which the table refuses and why, and how its schema has to change for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.casting import Mask, does_not_fit, type_within, would_lose
from router.delta.keyed.row_order import ARRIVAL, DELETED, OUTBOX_ONLY, REFUSED, order_names
from router.delta.keyed.scd import HISTORY_COLUMNS, time_name
from router.delta.schema_diff import SchemaDiff, compare, delta_schema, delta_type, too_wide
from router.delta.widening import KEEPS
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.sinks import KeyedTable


REASON = "reason"


@dataclass(frozen=True)
class CheckedRows:
    """The rows that a table takes, and those it refuses, with a `reason`; `added` and `widened` are the columns that it
    needs for the former."""

    rows: pa.Table
    refused: pa.Table
    added: pa.Schema
    widened: pa.Schema


class EvolutionForbidden(TableError):  # noqa: N818 - as what it derives from, it says what is wrong
    """The error of rows that need a table changed which must not change (`evolution: fail`): waiting does not help."""


class Refusals:
    """Rows with the reason why each is refused, the first that was found; empty for those that are not."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.deletes: Mask = np.asarray(rows.column(DELETED).fill_null(False), dtype=bool)
        self.why = np.full(len(rows), "", dtype=object)
        if REFUSED in rows.column_names:
            self.why = np.array(rows.column(REFUSED).fill_null("").to_pylist(), dtype=object)

    def refuse(self, which: Mask, reason: str) -> None:
        """Refuse rows that are not refused yet."""
        self.why[which & (self.why == "")] = reason

    def split(self) -> tuple[pa.Table, pa.Table]:
        """Return the rows that are left, and the refused ones with their reasons."""
        kept = np.asarray(self.why == "", dtype=bool)
        refused = self.rows.filter(pa.array(~kept))
        return self.rows.filter(pa.array(kept)), refused.append_column(REASON, pa.array(self.why[~kept], pa.string()))


def check_rows(
    rows: pa.Table, have: pa.Schema | None, table: str, keyed: KeyedTable, *, widens: bool = True
) -> CheckedRows:
    """Hold rows against a table and its sink's options; `have` is its schema, None where there is none yet.

    Where the table's columns do not become wider (`widens`), rows with a value that does not fit are refused.

    The rows must come from `comparable`. Raises EvolutionForbidden where the table must not change and would have to,
    and TableError where it has to be mended first.
    """
    if have is not None:
        refuse_lost_keys(have, table, keyed)
    checked = Refusals(rows)
    for key in keyed.keys:
        checked.refuse(np.asarray(rows.column(key).is_null()), f"key {key} is null")
    if keyed.history:
        timed = time_name(rows.schema, keyed)
        checked.refuse(np.asarray(rows.column(timed).is_null()), "a history needs times, and this record has none")
    wanted = wanted_columns(rows, keyed)
    if have is None:
        return CheckedRows(*checked.split(), wanted, pa.schema([]))
    _refuse_nulls(checked, have, keyed)
    found = compare(delta_schema(have), wanted)
    refusals = [*_conflicts(checked, found, table, keyed)]
    if keyed.evolution != "evolve":
        refusals += _frozen(checked, found, have, keyed)
        found = SchemaDiff(
            tuple(field for field in found.added if field.name in own_names(keyed)), (), {}, found.conflicts
        )
    elif not widens and found.widened:
        checked.rows = _refuse_too_wide(checked, found, have, keyed)
        found = narrow(have, wanted, found)
    for rows_of, reason in refusals:
        which = rows_of & ~checked.deletes
        if keyed.evolution == "fail" and which.any():
            raise EvolutionForbidden(
                table, f"{reason}, and the sink says `evolution: fail`; change the table or the sink"
            )
        checked.refuse(which, reason)
    kept, refused = checked.split()
    return CheckedRows(kept.drop_columns([*found.conflicts]), refused, pa.schema(found.added), pa.schema(found.widened))


def wanted_columns(rows: pa.Table, keyed: KeyedTable) -> pa.Schema:
    """Return the columns that a table of these rows has: those with a value, and those it has to have."""
    deletes = rows.column(DELETED).fill_null(False)
    data = rows.filter(pc.invert(deletes)) if pc.any(deletes).as_py() else rows
    return wanted_schema(rows.schema, {name for name in data.column_names if data[name].null_count < len(data)}, keyed)


def wanted_schema(rows: pa.Schema, valued: set[str], keyed: KeyedTable) -> pa.Schema:
    """Return the columns that a table of such rows has; `valued` have a value in a row that deletes nothing."""
    always = {*keyed.keys, *keyed.partition_by, *keyed.cluster_by, *order_names(keyed)}
    fields = [field for field in delta_schema(rows) if field.name not in OUTBOX_ONLY]
    flags = [pa.field(keyed.soft_delete, pa.bool_())] if keyed.soft_delete else []
    kept = [field for field in fields if field.name in always or field.name in valued]
    return pa.schema(
        [*(_commented(field, keyed) for field in kept), *flags, *(HISTORY_COLUMNS if keyed.history else [])]
    )


def _commented(field: pa.Field, keyed: KeyedTable) -> pa.Field:
    comment = keyed.comments.get(field.name)
    return field.with_metadata({"comment": comment}) if comment else field


def own_names(keyed: KeyedTable) -> set[str]:
    """Return the columns that a table has for the router's sake."""
    history = HISTORY_COLUMNS.names if keyed.history else ()
    return {*order_names(keyed), *([keyed.soft_delete] if keyed.soft_delete else []), *history}


def _refuse_nulls(checked: Refusals, have: pa.Schema, keyed: KeyedTable) -> None:
    """Refuse rows without a value that the table must have."""
    for field in have:
        if field.nullable or field.name in own_names(keyed):
            continue
        if field.name in checked.rows.column_names:
            lacking = np.asarray(checked.rows.column(field.name).is_null())
        else:
            lacking = np.ones(len(checked.rows), dtype=bool)
        checked.refuse(lacking & ~checked.deletes, f"column {field.name} is NOT NULL in the table")


def refuse_lost_keys(have: pa.Schema, table: str, keyed: KeyedTable) -> None:
    """Refuse a table whose rows cannot be told apart, or not be ordered. Raises TableError."""
    if "_offset" in have.names and ARRIVAL not in have.names:
        what = f"an older version of the router ordered its rows by their offsets alone (it has no {ARRIVAL})"
        raise TableError(table, f"{what}; `router refresh --tables {table}` rebuilds it")
    if lost := [key for key in keyed.keys if key not in have.names]:
        raise TableError(table, f"it has no column {lost[0]}, which is a key of the sink; give it back its column")


def _conflicts(checked: Refusals, found: SchemaDiff, table: str, keyed: KeyedTable) -> Iterator[tuple[Mask, str]]:
    """Return the rows with a value that the table can never take."""
    for column, reason in found.conflicts.items():
        if column in {*own_names(keyed), *keyed.keys}:
            raise TableError(table, f"{reason}; the sink cannot do without this column: give it back its type")
        yield np.asarray(checked.rows.column(column).is_valid()), reason


def narrow(have: pa.Schema, wanted: pa.Schema, found: SchemaDiff) -> SchemaDiff:
    """Return how a table changes whose columns do not become wider; nested fields may come."""
    known, wider = delta_schema(have), {field.name for field in found.widened}
    kept = [field.with_type(_kept(known, field)) if field.name in wider else field for field in wanted]
    return compare(known, pa.schema(kept))


def _kept(known: pa.Schema, field: pa.Field) -> pa.DataType:
    return type_within(known.field(field.name).type, delta_type(field.type), new_fields=True)


def _refuse_too_wide(checked: Refusals, found: SchemaDiff, have: pa.Schema, keyed: KeyedTable) -> pa.Table:
    """Refuse rows with a value that does not fit a column; return the rows, where those that delete lack it."""
    rows, known = checked.rows, delta_schema(have)
    for field in found.widened:
        column, kept = rows.column(field.name), _kept(known, rows.schema.field(field.name))
        wrong = does_not_fit(column.cast(delta_type(column.type)), kept)
        reason = too_wide(field.name, column.type, kept) + KEEPS
        checked.refuse(wrong if field.name in keyed.keys else wrong & ~checked.deletes, reason)
        column = pc.if_else(pa.array(wrong & checked.deletes), pa.scalar(None, column.type), column)
        rows = rows.set_column(rows.schema.get_field_index(field.name), field.name, column) if wrong.any() else rows
    return rows


def _frozen(checked: Refusals, found: SchemaDiff, have: pa.Schema, keyed: KeyedTable) -> Iterator[tuple[Mask, str]]:
    """Return the rows that would change the table."""
    known = {field.name: field.type for field in delta_schema(have)}
    for field in (*found.added, *found.widened):
        if field.name in own_names(keyed):
            continue
        column = checked.rows.column(field.name)
        if field.name in known:
            reason = f"column {field.name} is {known[field.name]} in the table, which has no room for the value"
            yield would_lose(column, known[field.name]), reason
        else:
            yield np.asarray(column.is_valid()), f"column {field.name} is not in the table"
