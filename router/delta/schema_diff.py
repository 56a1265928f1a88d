"""Compare the schema of incoming rows with a table's: which columns to add, to widen or to cast, and which conflict.

A column may be widened as in the Delta protocol's "Type Widening", by those pairs of types that never lose a value. A
table's column that is already wider needs no change: the rows are cast.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())
_EXACT_IN_DOUBLE = {*_INTEGERS[:3], *_FLOATS}


@dataclass(frozen=True)
class SchemaDiff:
    """The difference between the columns of rows and of a table, by top-level column.

    `added`: columns (or columns with new nested fields) for the table; `widened`: columns whose type in the table
    has to grow; `cast`: columns whose rows have to be cast to the table's type; `conflicts`: why a column's values
    cannot go into the table.
    """

    added: tuple[pa.Field, ...] = ()
    widened: tuple[pa.Field, ...] = ()
    cast: dict[str, pa.DataType] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)


def compare_schemas(table: pa.Schema, rows: pa.Schema) -> SchemaDiff:
    """Return the differences between `rows` (the columns that hold values) and the `table` that they are to go into.

    Two names that differ by case only are a conflict.
    """
    folded = {name.lower(): name for name in table.names}
    added: list[pa.Field] = []
    widened: list[pa.Field] = []
    cast: dict[str, pa.DataType] = {}
    conflicts: dict[str, str] = {}
    for column in rows:
        table_name = folded.get(column.name.lower())
        if table_name is None:
            added.append(column.with_nullable(True))
            continue
        if table_name != column.name:
            conflicts[column.name] = f"column {column.name} differs from the table's {table_name} by case only"
            continue
        have = delta_type(table.field(table_name).type)
        if column.type == have:
            continue
        come = delta_type(column.type)
        merged = common_type(have, come)
        if merged is None:
            conflicts[column.name] = f"column {column.name} is {have} in the table and {come} in the event"
            continue
        # A struct that only gains fields is an added column; one with a wider leaf is a widened column.
        if type_shape(merged) != type_shape(have):
            field = pa.field(column.name, merged)
            if _leaves_grow(have, merged):
                widened.append(field)
            else:
                added.append(field)
        # Rows are cast to the merged type, but get no nested fields that they lack.
        target = limited_to(merged, column.type)
        if target != column.type:
            cast[column.name] = target
    return SchemaDiff(tuple(added), tuple(widened), cast, conflicts)


def delta_type(kind: pa.DataType) -> pa.DataType:
    """Return a type as Delta keeps it: UTC microseconds, no views, dictionaries or large offsets."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, delta_type(child.type)) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(delta_type(kind.key_type), delta_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", delta_type(kind.value_type)))
    return kind


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in Delta's types, every column nullable."""
    return pa.schema([pa.field(column.name, delta_type(column.type)) for column in schema])


def common_type(have: pa.DataType, come: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both without loss, or None."""
    if have == come:
        return have
    if pa.types.is_struct(have) and pa.types.is_struct(come):
        return _merge_structs(have, come)
    if pa.types.is_map(have) and pa.types.is_map(come):
        key = common_type(have.key_type, come.key_type)
        item = common_type(have.item_type, come.item_type)
        if key is None or item is None:
            return None
        return pa.map_(key, item)
    if pa.types.is_list(have) and pa.types.is_list(come):
        item = common_type(have.value_type, come.value_type)
        if item is None:
            return None
        return pa.list_(pa.field("element", item))
    return _merge_leaves(have, come)


def _merge_structs(have: pa.DataType, come: pa.DataType) -> pa.DataType | None:
    fields = {child.name: child.type for child in have}
    folded = {name.lower() for name in fields}
    for child in come:
        if child.name in fields:
            merged = common_type(fields[child.name], child.type)
            if merged is None:
                return None
            fields[child.name] = merged
        elif child.name.lower() in folded:
            return None
        else:
            fields[child.name] = child.type
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def _merge_leaves(have: pa.DataType, come: pa.DataType) -> pa.DataType | None:
    if have in _INTEGERS and come in _INTEGERS:
        return max(have, come, key=_INTEGERS.index)
    if {have, come} <= _EXACT_IN_DOUBLE and not {have, come}.isdisjoint(_FLOATS):
        return pa.float64()
    if pa.types.is_decimal(have) and pa.types.is_decimal(come):
        whole = max(have.precision - have.scale, come.precision - come.scale)
        scale = max(have.scale, come.scale)
        if whole + scale > 38:  # the most digits that Delta and Spark know
            return None
        return pa.decimal128(whole + scale, scale)
    return None


def limited_to(merged: pa.DataType, rows: pa.DataType) -> pa.DataType:
    """Return `merged` without the nested fields that `rows` lacks: the type that a file of these rows gets."""
    if pa.types.is_struct(merged):
        kinds = {child.name: child.type for child in merged}
        return pa.struct([pa.field(child.name, limited_to(kinds[child.name], child.type)) for child in rows])
    if pa.types.is_map(merged):
        return pa.map_(limited_to(merged.key_type, rows.key_type), limited_to(merged.item_type, rows.item_type))
    if pa.types.is_list(merged):
        return pa.list_(pa.field("element", limited_to(merged.value_type, rows.value_type)))
    return merged


def too_wide(column: str, come: pa.DataType, have: pa.DataType) -> str:
    """Return why a value cannot go into a table that must not change."""
    return f"column {column} is {come} in the event, and this value does not fit the table's {have}"


def type_shape(kind: pa.DataType) -> str:
    """Return a type as text, without the names and nullability that say nothing about values."""
    return str(delta_type(kind))


def _leaves_grow(have: pa.DataType, merged: pa.DataType) -> bool:
    """Return whether a leaf that the table has becomes wider; new nested fields do not count."""
    if pa.types.is_struct(have):
        kinds = {child.name: child.type for child in merged}
        return any(_leaves_grow(child.type, kinds[child.name]) for child in have)
    if pa.types.is_map(have):
        return _leaves_grow(have.key_type, merged.key_type) or _leaves_grow(have.item_type, merged.item_type)
    if pa.types.is_list(have):
        return _leaves_grow(have.value_type, merged.value_type)
    return bool(have != merged)
