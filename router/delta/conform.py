"""Give Arrow columns another type of the same shape: wider leaves, nested fields added, left out and reordered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from router.delta.newer import Mask

NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with exactly the columns of a schema; one that they lack is null."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(_conformed(_whole(rows.column(field.name)), field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def beyond(column: pa.ChunkedArray, kind: pa.DataType) -> Mask:
    """Return which rows hold a value that would be lost, wholly or in part, if the column became of a type."""
    return _beyond(_whole(column), kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array that begins where its buffers do."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # nothing in it, or too much text for one array
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, column.type)
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array


def _conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        have = {child.name for child in array.type}
        fields = [
            _conformed(array.field(child.name), child.type) if child.name in have else pa.nulls(len(array), child.type)
            for child in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = _conformed(array.keys, kind.key_type), _conformed(array.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(array), keys, items, kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(array), _conformed(array.values, kind.value_type), kind)
    return array.cast(kind)


def _offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of a list or map, null where it is null."""
    return pa.array(array.offsets.to_numpy(), pa.int32(), mask=np.append(np.asarray(array.is_null()), False))


def _beyond(array: pa.Array, kind: pa.DataType) -> Mask:
    valued: Mask = np.asarray(array.is_valid())
    if array.type == kind:
        return np.zeros(len(array), dtype=bool)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        known = {child.name: child.type for child in kind}
        found: Mask = np.zeros(len(array), dtype=bool)
        for child in array.type:
            field = array.field(child.name)
            found |= _beyond(field, known[child.name]) if child.name in known else np.asarray(field.is_valid())
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
