"""Cast Arrow columns to the types of a table.

`cast_to` gives rows a table's columns, where no value can be lost: wider leaves, nested fields added, left out and
reordered. `cast_down` brings values into the types of a table that may not change, and says in which rows something is
lost by it: new columns and new fields inside of columns are left out; a value of a type wider than the table's fits or
does not. `would_lose` only says which rows would lose something.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.schema_diff import common_type

Mask = npt.NDArray[np.bool_]
NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def cast_to(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with exactly the columns of a schema; one that they lack is null."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(_cast_array(_whole(rows.column(field.name)), field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def would_lose(column: pa.ChunkedArray, kind: pa.DataType) -> Mask:
    """Return which rows hold a value that would be lost, wholly or in part, if the column became of a type."""
    return _would_lose(_whole(column), kind)


def does_not_fit(column: pa.ChunkedArray, kind: pa.DataType) -> Mask:
    """Return which rows hold a value that does not fit a type which is `type_within` that of the column."""
    return cast_down(_whole(column), kind).too_wide


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array that begins where its buffers do."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # nothing in it, or too much text for one array
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, column.type)
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array


def _cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        have = {child.name for child in array.type}
        fields = [
            _cast_array(array.field(child.name), child.type) if child.name in have else pa.nulls(len(array), child.type)
            for child in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = _cast_array(array.keys, kind.key_type), _cast_array(array.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(array), keys, items, kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(array), _cast_array(array.values, kind.value_type), kind)
    return array.cast(kind)


def _offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of a list or map, null where it is null."""
    return pa.array(array.offsets.to_numpy(), pa.int32(), mask=np.append(np.asarray(array.is_null()), False))


def _would_lose(array: pa.Array, kind: pa.DataType) -> Mask:
    valued: Mask = np.asarray(array.is_valid())
    if array.type == kind:
        return np.zeros(len(array), dtype=bool)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        known = {child.name: child.type for child in kind}
        found: Mask = np.zeros(len(array), dtype=bool)
        for child in array.type:
            field = array.field(child.name)
            found |= _would_lose(field, known[child.name]) if child.name in known else np.asarray(field.is_valid())
        return found & valued
    if not any(family(array.type) and family(kind) for family in NUMBERS):
        return valued  # of a list or map it is not told which element does not fit
    try:
        back = array.cast(kind, safe=False).cast(array.type, safe=False)
    except pa.ArrowInvalid:
        return valued
    same = pc.equal(back, array)
    if pa.types.is_floating(kind):
        same = pc.or_(same, pc.is_nan(array))
    kept: Mask = np.asarray(same.fill_null(False))
    return valued & ~kept


@dataclass(frozen=True)
class CastDown:
    """An array cast to narrower types. `lost`: rows with a value that is left out; `too_wide`: rows with one that
    does not fit."""

    array: pa.Array
    lost: Mask
    too_wide: Mask


def type_within(have: pa.DataType, come: pa.DataType, *, new_fields: bool = False) -> pa.DataType:
    """Return `come` no wider than `have` anywhere, and without the nested fields that `have` lacks: or with them, where
    `new_fields` may come."""
    within = partial(type_within, new_fields=new_fields)
    if pa.types.is_struct(come) and pa.types.is_struct(have):
        kinds = {child.name: child.type for child in have}
        kept = [child for child in come if new_fields or child.name in kinds]
        types = [within(kinds[child.name], child.type) if child.name in kinds else child.type for child in kept]
        return pa.struct([pa.field(child.name, kind) for child, kind in zip(kept, types, strict=True)])
    if pa.types.is_list(come) and pa.types.is_list(have):
        return pa.list_(pa.field("element", within(have.value_type, come.value_type)))
    if pa.types.is_map(come) and pa.types.is_map(have):
        return pa.map_(within(have.key_type, come.key_type), within(have.item_type, come.item_type))
    return come if common_type(have, come) in (None, have) else have


def has_value(array: pa.Array, *, blank: bool) -> Mask:
    """Return the rows that hold a value. `blank`: zero, false and what is empty count as none."""
    valued = array.is_valid()
    if blank and not pa.types.is_struct(array.type):
        valued = pc.and_(valued, pc.fill_null(_filled(array), False))
    found: Mask = valued.to_numpy(zero_copy_only=False)
    return found


def _filled(array: pa.Array) -> pa.Array:
    """Return whether values are other than what stands for an absent one where absence cannot be told."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return pc.greater(pc.list_value_length(array), 0)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return pc.greater(pc.binary_length(array), 0)
    if pa.types.is_boolean(kind):
        return array
    if pa.types.is_temporal(kind):
        return array.is_valid()
    return pc.not_equal(array, pa.scalar(0, kind))


def cast_down(array: pa.Array, kind: pa.DataType, *, blank: bool = False) -> CastDown:
    """Return an array in a type that is `within` its own."""
    if array.type == kind:
        return CastDown(array, *_nowhere(array))
    if pa.types.is_struct(kind):
        return _struct(array, kind, blank)
    if pa.types.is_list(kind):
        values = cast_down(array.flatten(), kind.value_type, blank=blank)
        lists = pa.ListArray.from_arrays(_starts(array), values.array, type=kind, mask=array.is_null())
        return CastDown(lists, _rows_of(array, values.lost), _rows_of(array, values.too_wide))
    if pa.types.is_map(kind):
        return _map(array, kind, blank)
    found, too_wide = _cast(array, kind)
    return CastDown(found, _nowhere(array)[0], too_wide)


def _nowhere(array: pa.Array) -> tuple[Mask, Mask]:
    return np.zeros(len(array), bool), np.zeros(len(array), bool)


def _struct(array: pa.Array, kind: pa.DataType, blank: bool) -> CastDown:
    lost, too_wide = _nowhere(array)
    names = {child.name for child in kind}
    for child in array.type:
        if child.name not in names:
            lost |= has_value(pc.struct_field(array, [child.name]), blank=blank)
    columns = []
    for child in kind:
        inner = cast_down(pc.struct_field(array, [child.name]), child.type, blank=blank)
        columns.append(inner.array)
        lost |= inner.lost
        too_wide |= inner.too_wide
    return CastDown(pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null()), lost, too_wide)


def _map(array: pa.Array, kind: pa.DataType, blank: bool) -> CastDown:
    entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    flat = entries.flatten()
    keys, items = (
        cast_down(flat.field("key"), kind.key_type),
        cast_down(flat.field("value"), kind.item_type, blank=blank),
    )
    starts = pa.array(
        _starts(entries).to_numpy(), mask=np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    )
    maps = pa.MapArray.from_arrays(starts, keys.array, items.array, type=kind)
    return CastDown(maps, _rows_of(entries, items.lost), _rows_of(entries, items.too_wide | keys.too_wide))


def _cast(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return values in a narrower type, and where they are others than they were."""
    if pa.types.is_decimal(kind):
        return _decimals(array, kind)
    found, both = array.cast(kind, safe=False), common_type(kind, array.type)
    same = pc.equal(found.cast(both), array.cast(both))
    if pa.types.is_floating(kind):
        same = pc.or_(same, pc.is_nan(array))
    return found, ~pc.fill_null(same, True).to_numpy(zero_copy_only=False)


def _decimals(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    too_wide = np.zeros(len(array), bool)
    try:
        return array.cast(kind), too_wide
    except pa.ArrowInvalid:  # one does not fit: find out which, one by one
        values = []
        for row, value in enumerate(array):
            try:
                values.append(value.cast(kind).as_py())
            except pa.ArrowInvalid:
                too_wide[row] = True
                values.append(None)
        return pa.array(values, kind), too_wide


def _starts(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _rows_of(lists: pa.Array, inner: Mask) -> Mask:
    """Return the rows of lists of which an element is marked."""
    rows = np.zeros(len(lists), bool)
    rows[pc.list_parent_indices(lists).to_numpy()[inner]] = True
    return rows
