"""Cast Arrow columns to the types of a table.

| function | casts to | result |
|---|---|---|
| `cast_to` | a schema that can hold every value | rows; leaves get wider, nested fields may differ |
| `cast_down` | a type of a table that must not change | an array, and the rows of `would_lose` and `does_not_fit` |
| `would_lose`, `does_not_fit` | such a type | the rows that lose a value; with one that does not fit |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.schema_diff import common_type

Mask = npt.NDArray[np.bool_]
_NESTED = (pa.types.is_struct, pa.types.is_list, pa.types.is_map)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def cast_to(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with exactly the columns of a schema; one that they lack is null."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(_cast_array(_as_one_array(rows.column(field.name)), field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def would_lose(column: pa.ChunkedArray, kind: pa.DataType) -> Mask:
    """Return the rows with a value that would be lost, wholly or in part, if the column were cast to a type."""
    return _would_lose(_as_one_array(column), kind)


def does_not_fit(column: pa.ChunkedArray, kind: pa.DataType) -> Mask:
    """Return the rows with a value that does not fit a type which is `type_within` that of the column."""
    return cast_down(_as_one_array(column), kind).too_wide


def _as_one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array whose offset is 0, so that its buffers and children can be used as they are."""
    array = column.combine_chunks()
    # Arrow does not combine a column without chunks, and one with more than 2 GiB of text.
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 0:
            return pa.nulls(0, column.type)
        array = pa.concat_arrays(array.chunks)
    if array.offset == 0:
        return array
    return array.take(pa.array(np.arange(len(array))))


def _cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        have = {child.name for child in array.type}
        children = []
        for child in kind:
            if child.name in have:
                children.append(_cast_array(array.field(child.name), child.type))
            else:
                children.append(pa.nulls(len(array), child.type))
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys = _cast_array(array.keys, kind.key_type)
        items = _cast_array(array.items, kind.item_type)
        return pa.MapArray.from_arrays(_list_offsets(array), keys, items, kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_list_offsets(array), _cast_array(array.values, kind.value_type), kind)
    return array.cast(kind)


def _list_offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of a list or map, null if it is null."""
    return pa.array(array.offsets.to_numpy(), pa.int32(), mask=np.append(np.asarray(array.is_null()), False))


def _would_lose(array: pa.Array, kind: pa.DataType) -> Mask:
    valued: Mask = np.asarray(array.is_valid())
    if array.type == kind:
        return np.zeros(len(array), dtype=bool)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        types = {child.name: child.type for child in kind}
        lost: Mask = np.zeros(len(array), dtype=bool)
        for child in array.type:
            field = array.field(child.name)
            if child.name in types:
                lost |= _would_lose(field, types[child.name])
            else:
                lost |= np.asarray(field.is_valid())
        return lost & valued
    # Lists and maps count as lost whole; so does a number that would become another kind of number.
    if not any(family(array.type) and family(kind) for family in _NUMBERS):
        return valued
    # Cast there and back: a value that comes back the same loses nothing. NaN is never equal to itself.
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
    """An array cast to narrower types.

    `lost`: rows with a value in a field that the type lacks. `too_wide`: rows with a value that does not fit.
    """

    array: pa.Array
    lost: Mask
    too_wide: Mask


def type_within(have: pa.DataType, come: pa.DataType, *, new_fields: bool = False) -> pa.DataType:
    """Return `come` with leaves no wider than those of `have`, and without the nested fields that `have` lacks.

    With `new_fields` such nested fields stay.
    """
    if pa.types.is_struct(come) and pa.types.is_struct(have):
        types = {child.name: child.type for child in have}
        children = []
        for child in come:
            if child.name in types:
                inner = type_within(types[child.name], child.type, new_fields=new_fields)
                children.append(pa.field(child.name, inner))
            elif new_fields:
                children.append(pa.field(child.name, child.type))
        return pa.struct(children)
    if pa.types.is_list(come) and pa.types.is_list(have):
        element = type_within(have.value_type, come.value_type, new_fields=new_fields)
        return pa.list_(pa.field("element", element))
    if pa.types.is_map(come) and pa.types.is_map(have):
        key = type_within(have.key_type, come.key_type, new_fields=new_fields)
        item = type_within(have.item_type, come.item_type, new_fields=new_fields)
        return pa.map_(key, item)
    if common_type(have, come) in (None, have):
        return come
    return have


def has_value(array: pa.Array, *, blank: bool) -> Mask:
    """Return the rows with a value. With `blank`, zero, false and empty values count as none."""
    valued = array.is_valid()
    if blank and not pa.types.is_struct(array.type):
        valued = pc.and_(valued, pc.fill_null(_is_not_blank(array), False))
    mask: Mask = valued.to_numpy(zero_copy_only=False)
    return mask


def _is_not_blank(array: pa.Array) -> pa.Array:
    """Return the rows whose value is not the one that stands for an absent field, as zero in protobuf."""
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
    """Return an array in a type that is `type_within` its own. For `blank` see `has_value`.

    A type of another kind takes no value, and a field of it that the array lacks is null.
    """
    if array.type == kind:
        return CastDown(array, lost=_no_rows(array), too_wide=_no_rows(array))
    if any(family(array.type) != family(kind) for family in _NESTED):
        return CastDown(pa.nulls(len(array), kind), lost=_no_rows(array), too_wide=has_value(array, blank=blank))
    if pa.types.is_struct(kind):
        return _cast_down_struct(array, kind, blank)
    if pa.types.is_list(kind):
        values = cast_down(array.flatten(), kind.value_type, blank=blank)
        lists = pa.ListArray.from_arrays(_flattened_offsets(array), values.array, type=kind, mask=array.is_null())
        return CastDown(lists, lost=_rows_of(array, values.lost), too_wide=_rows_of(array, values.too_wide))
    if pa.types.is_map(kind):
        return _cast_down_map(array, kind, blank)
    narrowed, too_wide = _cast_down_leaf(array, kind)
    return CastDown(narrowed, lost=_no_rows(array), too_wide=too_wide)


def _no_rows(array: pa.Array) -> Mask:
    return np.zeros(len(array), bool)


def _cast_down_struct(array: pa.Array, kind: pa.DataType, blank: bool) -> CastDown:
    lost = _no_rows(array)
    too_wide = _no_rows(array)
    names = {child.name for child in kind}
    for child in array.type:
        if child.name not in names:
            lost |= has_value(pc.struct_field(array, [child.name]), blank=blank)
    columns = []
    have = {child.name for child in array.type}
    for child in kind:
        if child.name not in have:
            columns.append(pa.nulls(len(array), child.type))
            continue
        inner = cast_down(pc.struct_field(array, [child.name]), child.type, blank=blank)
        columns.append(inner.array)
        lost |= inner.lost
        too_wide |= inner.too_wide
    structs = pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    return CastDown(structs, lost=lost, too_wide=too_wide)


def _cast_down_map(array: pa.Array, kind: pa.DataType, blank: bool) -> CastDown:
    # As a list of entries, since Arrow flattens lists, but not maps.
    entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    flat = entries.flatten()
    keys = cast_down(flat.field("key"), kind.key_type)
    items = cast_down(flat.field("value"), kind.item_type, blank=blank)
    # `MapArray.from_arrays` takes no mask: a null offset makes a null map.
    is_null = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    starts = pa.array(_flattened_offsets(entries).to_numpy(), mask=is_null)
    maps = pa.MapArray.from_arrays(starts, keys.array, items.array, type=kind)
    too_wide = items.too_wide | keys.too_wide
    return CastDown(maps, lost=_rows_of(entries, items.lost), too_wide=_rows_of(entries, too_wide))


def _cast_down_leaf(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return values in a narrower type, and the rows in which the value is another one now."""
    if pa.types.is_decimal(kind) and (pa.types.is_decimal(array.type) or pa.types.is_integer(array.type)):
        return _cast_down_decimals(array, kind)
    exact = common_type(kind, array.type)
    if exact is None:
        return pa.nulls(len(array), kind), array.is_valid().to_numpy(zero_copy_only=False)
    narrowed = array.cast(kind, safe=False)
    # Compare both in the type that holds either without loss.
    same = pc.equal(narrowed.cast(exact), array.cast(exact))
    if pa.types.is_floating(kind):
        same = pc.or_(same, pc.is_nan(array))
    return narrowed, ~pc.fill_null(same, True).to_numpy(zero_copy_only=False)


def _cast_down_decimals(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    too_wide = np.zeros(len(array), bool)
    try:
        return array.cast(kind), too_wide
    except pa.ArrowInvalid:
        pass
    # Some value does not fit, and Arrow does not tell which: cast one by one.
    values = []
    for row, value in enumerate(array):
        try:
            values.append(value.cast(kind).as_py())
        except pa.ArrowInvalid:
            too_wide[row] = True
            values.append(None)
    return pa.array(values, kind), too_wide


def _flattened_offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of lists in what `flatten` returns, which leaves out the values below null lists."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _rows_of(lists: pa.Array, inner: Mask) -> Mask:
    """Return the rows of lists with a marked element; `inner` marks elements."""
    rows = np.zeros(len(lists), bool)
    rows[pc.list_parent_indices(lists).to_numpy()[inner]] = True
    return rows
