"""Check rows before an upsert: which the table refuses and why, and how its schema has to change for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.casting import Mask, does_not_fit, type_within, would_lose
from router.delta.change_feed import taken_by_feed
from router.delta.keyed.row_order import DELETED, OUTBOX_ONLY, REFUSED, order_names
from router.delta.keyed.scd import HISTORY_COLUMNS, time_name
from router.delta.schema_diff import SchemaDiff, compare_schemas, delta_schema, delta_type, too_wide
from router.delta.unreadable_values import TAKEN_BY_NULL, read_as_null
from router.delta.widening import KEEPS
from router.errors import TableError
from router.own_names import ARRIVAL, OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.api.sinks import KeyedTable


REASON = "reason"


@dataclass(frozen=True)
class CheckedRows:
    """The rows that a table accepts, and those that it refuses, with a `reason`.

    `added` and `widened` are the columns that the table needs for the accepted rows.
    """

    rows: pa.Table
    refused: pa.Table
    added: pa.Schema
    widened: pa.Schema


class EvolutionForbidden(TableError):  # noqa: N818 - as what it derives from, it says what is wrong
    """The error of rows that would change a table which must not change (`evolution: fail`). A retry does not help."""


class Refusals:
    """Rows with the first reason to refuse each one, in `why`; an empty text for those that are accepted."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.deletes: Mask = np.asarray(rows.column(DELETED).fill_null(False), dtype=bool)
        self.why = np.full(len(rows), "", dtype=object)
        if REFUSED in rows.column_names:
            self.why = np.array(rows.column(REFUSED).fill_null("").to_pylist(), dtype=object)

    def refuse_rows(self, which: Mask, reason: str) -> None:
        """Refuse the marked rows, unless they are refused already."""
        self.why[which & (self.why == "")] = reason

    def split_rows(self) -> tuple[pa.Table, pa.Table]:
        """Return the accepted rows, and the refused ones with their reasons."""
        is_accepted = np.asarray(self.why == "", dtype=bool)
        refused = self.rows.filter(pa.array(~is_accepted))
        refused = refused.append_column(REASON, pa.array(self.why[~is_accepted], pa.string()))
        return self.rows.filter(pa.array(is_accepted)), refused


def check_rows(
    rows: pa.Table,
    have: pa.Schema | None,
    table: str,
    keyed: KeyedTable,
    *,
    widens: bool = True,
    feed: bool = False,
) -> CheckedRows:
    """Compare rows with a table and its sink's options, and split them into accepted and refused ones.

    `have` is the table's schema, None if there is no table yet. With `widens` false the table keeps its types, and rows
    with a value that does not fit are refused. `feed`: the table has, or will have, a change data feed. The rows must
    come from `with_comparable_order`. Raises EvolutionForbidden if the table would have to change and must not,
    and TableError if a person has to repair it first.
    """
    if have is not None:
        refuse_lost_keys(have, table, keyed)
    checked = Refusals(rows)
    for key in keyed.keys:
        checked.refuse_rows(np.asarray(rows.column(key).is_null()), f"key {key} is null")
    for name in keyed.new_table.partition_by:
        if name in rows.column_names:
            checked.refuse_rows(read_as_null(rows.column(name)) & ~checked.deletes, f"{name}: {TAKEN_BY_NULL}")
    if keyed.history:
        time_column = rows.column(time_name(rows.schema, keyed))
        checked.refuse_rows(np.asarray(time_column.is_null()), "a history needs times, and this record has none")
    wanted = wanted_columns(rows, keyed)
    in_table = have.names if have is not None else []
    taken = taken_by_feed([column for column in wanted if column.name not in in_table], feed=feed)
    for name, reason in taken.items():
        checked.refuse_rows(np.asarray(rows.column(name).is_valid()) & ~checked.deletes, reason)
    wanted = pa.schema([column for column in wanted if column.name not in taken])
    if have is None:
        accepted, refused = checked.split_rows()
        return CheckedRows(accepted.drop_columns([*taken]), refused, added=wanted, widened=pa.schema([]))
    _refuse_nulls(checked, have, keyed)

    diff = compare_schemas(delta_schema(have), wanted)
    refusals = list(_conflicting_rows(checked, diff, table, keyed))
    if keyed.evolution != "evolve":
        refusals += _rows_that_change_the_table(checked, diff, have, keyed)
        # The router's own columns are added in any case: an older version of the table may lack them.
        own = tuple(field for field in diff.added if field.name in own_names(keyed))
        diff = SchemaDiff(added=own, conflicts=diff.conflicts)
    elif not widens and diff.widened:
        checked.rows = _refuse_too_wide(checked, diff, have, keyed)
        diff = without_wider_columns(have, wanted, diff)
    # A row that deletes its key needs no values, so no value of it is a reason to refuse it.
    for marked, reason in refusals:
        to_refuse = marked & ~checked.deletes
        if keyed.evolution == "fail" and to_refuse.any():
            raise EvolutionForbidden(
                table, f"{reason}, and the sink says `evolution: fail`; change the table or the sink"
            )
        checked.refuse_rows(to_refuse, reason)
    accepted, refused = checked.split_rows()
    return CheckedRows(
        rows=accepted.drop_columns([*diff.conflicts, *taken]),
        refused=refused,
        added=pa.schema(diff.added),
        widened=pa.schema(diff.widened),
    )


def wanted_columns(rows: pa.Table, keyed: KeyedTable) -> pa.Schema:
    """Return the columns that a table needs for these rows: those with a value, and those that it must have."""
    deletes = rows.column(DELETED).fill_null(False)
    data = rows
    if pc.any(deletes).as_py():
        data = rows.filter(pc.invert(deletes))
    with_values = {name for name in data.column_names if data[name].null_count < len(data)}
    return wanted_schema(rows.schema, with_values, keyed)


def wanted_schema(rows: pa.Schema, valued: set[str], keyed: KeyedTable) -> pa.Schema:
    """Return the columns that a table needs for such rows; `valued` have a value in a row that deletes nothing."""
    always = {*keyed.keys, *keyed.new_table.partition_by, *keyed.new_table.cluster_by, *order_names(keyed)}
    fields: list[pa.Field] = []
    for field in delta_schema(rows):
        if field.name in OUTBOX_ONLY or field.name not in always | valued:
            continue
        comment = keyed.new_table.comments.get(field.name)
        fields.append(field.with_metadata({"comment": comment}) if comment else field)
    if keyed.soft_delete:
        fields.append(pa.field(keyed.soft_delete, pa.bool_()))
    if keyed.history:
        fields += HISTORY_COLUMNS
    return pa.schema(fields)


def own_names(keyed: KeyedTable) -> set[str]:
    """Return the columns that the router adds to the route's."""
    names = set(order_names(keyed))
    if keyed.soft_delete:
        names.add(keyed.soft_delete)
    if keyed.history:
        names.update(HISTORY_COLUMNS.names)
    return names


def _refuse_nulls(checked: Refusals, have: pa.Schema, keyed: KeyedTable) -> None:
    """Refuse rows without a value in a column that is NOT NULL."""
    for field in have:
        if field.nullable or field.name in own_names(keyed):
            continue
        if field.name in checked.rows.column_names:
            lacking = np.asarray(checked.rows.column(field.name).is_null())
        else:
            lacking = np.ones(len(checked.rows), dtype=bool)
        checked.refuse_rows(lacking & ~checked.deletes, f"column {field.name} is NOT NULL in the table")


def refuse_lost_keys(have: pa.Schema, table: str, keyed: KeyedTable) -> None:
    """Raise TableError for a table without the columns that tell its rows apart, or that order them."""
    if OFFSET in have.names and ARRIVAL not in have.names:
        problem = f"an older version of the router ordered its rows by their offsets alone (it has no {ARRIVAL})"
        raise TableError(table, f"{problem}; `router rebuild FILE {table}` rebuilds it")
    for key in keyed.keys:
        if key not in have.names:
            raise TableError(table, f"it has no column {key}, which is a key of the sink; give it back its column")


def _conflicting_rows(checked: Refusals, diff: SchemaDiff, table: str, keyed: KeyedTable) -> Iterator[tuple[Mask, str]]:
    """Yield rows with a value that the table cannot store in any way, and why."""
    for column, reason in diff.conflicts.items():
        if column in {*own_names(keyed), *keyed.keys}:
            raise TableError(table, f"{reason}; the sink cannot do without this column: give it back its type")
        yield np.asarray(checked.rows.column(column).is_valid()), reason


def without_wider_columns(have: pa.Schema, wanted: pa.Schema, diff: SchemaDiff) -> SchemaDiff:
    """Return how a table changes if its columns keep their types; it may still gain nested fields."""
    table = delta_schema(have)
    wider = {field.name for field in diff.widened}
    columns: list[pa.Field] = []
    for field in wanted:
        if field.name in wider:
            columns.append(field.with_type(_type_in_table(table, field)))
        else:
            columns.append(field)
    return compare_schemas(table, pa.schema(columns))


def _type_in_table(table: pa.Schema, field: pa.Field) -> pa.DataType:
    """Return a column's type for a table that does not become wider, with the column's new nested fields."""
    return type_within(table.field(field.name).type, delta_type(field.type), new_fields=True)


def _refuse_too_wide(checked: Refusals, diff: SchemaDiff, have: pa.Schema, keyed: KeyedTable) -> pa.Table:
    """Refuse rows with a value that does not fit a column; return the rows, without such values in deletions."""
    rows = checked.rows
    table = delta_schema(have)
    for field in diff.widened:
        column = rows.column(field.name)
        table_type = _type_in_table(table, rows.schema.field(field.name))
        is_too_wide = does_not_fit(column.cast(delta_type(column.type)), table_type)
        if not is_too_wide.any():
            continue
        reason = too_wide(field.name, column.type, table_type) + KEEPS
        # A deletion needs its keys only. Its other values are set to null, or the cast to the table's type would fail.
        if field.name in keyed.keys:
            checked.refuse_rows(is_too_wide, reason)
        else:
            checked.refuse_rows(is_too_wide & ~checked.deletes, reason)
        column = pc.if_else(pa.array(is_too_wide & checked.deletes), pa.scalar(None, column.type), column)
        rows = rows.set_column(rows.schema.get_field_index(field.name), field.name, column)
    return rows


def _rows_that_change_the_table(
    checked: Refusals, diff: SchemaDiff, have: pa.Schema, keyed: KeyedTable
) -> Iterator[tuple[Mask, str]]:
    """Yield rows that a table which must not change cannot store, and why."""
    types = {field.name: field.type for field in delta_schema(have)}
    for field in (*diff.added, *diff.widened):
        if field.name in own_names(keyed):
            continue
        column = checked.rows.column(field.name)
        if field.name in types:
            reason = f"column {field.name} is {types[field.name]} in the table, which has no room for the value"
            yield would_lose(column, types[field.name]), reason
        else:
            yield np.asarray(column.is_valid()), f"column {field.name} is not in the table"
