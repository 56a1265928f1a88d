"""Turn the arrays of the native decoder into those of the mapping, by buffers and whole columns.

The native decoder starts every array at offset 0, lists are never null, and a null struct has zeros below it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import struct_pb2  # type: ignore[import-untyped]

from router_schemas.protobuf.mapping import arrow_type, value_type
from router_schemas.protobuf.native import field_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from router_schemas.protobuf.columns import Column

    Mask = NDArray[np.bool_] | None

_YEARS_1_TO_9999 = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_TEN_THOUSAND_YEARS = (-315_576_000_000_000_000, 315_576_000_000_000_000)
"""Microseconds; the comments of timestamp.proto and duration.proto."""
_EXACT = 2**53
"""Below this an integral double has no digits that it does not hold."""


def converted(rows: pa.StructArray, columns: tuple[Column, ...]) -> tuple[list[pa.Array], Mask]:
    """Return an array per column, and a mask of the rows that hold a time outside its range (None: there are none)."""
    arrays: list[pa.Array] = []
    bad: Mask = None
    for column in columns:
        array, worse = _column(rows.field(field_name(column)), column)
        arrays.append(array)
        bad = worse if bad is None else bad if worse is None else bad | worse
    return arrays, bad


def _column(array: pa.Array, column: Column) -> tuple[pa.Array, Mask]:
    if not column.repeated and not column.key:
        return _values(array, column)
    if column.key:
        values, bad = _values(array.items, column)
        key = pa.field("key", arrow_type(column).key_type, nullable=False)
        keys = array.keys if array.keys.type == key.type else array.keys.cast(key.type)
        values = pa.StructArray.from_arrays([keys, values], fields=[key, pa.field("value", values.type)])
    else:
        values, bad = _values(array.values, column)
    return _rebuilt(array, arrow_type(column), [values]), _lifted(array, bad)


def _values(array: pa.Array, column: Column) -> tuple[pa.Array, Mask]:
    """Return the values of a column: itself, an array's elements or a map's values."""
    target = value_type(column)
    match column.kind:
        case "struct":
            arrays, bad = converted(array, column.columns)
            return _rebuilt(array, target, arrays), bad
        case "timestamp":
            return array, _outside(array.view(pa.int64()), _YEARS_1_TO_9999)
        case "duration":
            return array.view(pa.int64()), _outside(array.view(pa.int64()), _TEN_THOUSAND_YEARS)
        case "json":
            return pa.array([_json(raw, column.of) for raw in array.to_pylist()], pa.string()), None
        case "empty":
            present = pa.array(np.ones(len(array), bool))
            return _rebuilt(array, target, [present]), None
    return (array if array.type == target else array.cast(target)), None


def _rebuilt(array: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return a nested array with other children, and the validity and offsets that it has."""
    buffers = array.buffers()[: 1 if pa.types.is_struct(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, 0, children)


def _outside(micros: pa.Int64Array, bounds: tuple[int, int]) -> Mask:
    """Return where a number is outside its bounds."""
    found = pc.min_max(micros)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is None or (low >= bounds[0] and high <= bounds[1]):
        return None
    outside = pc.or_(pc.less(micros, bounds[0]), pc.greater(micros, bounds[1])).fill_null(False)
    return np.asarray(outside.to_numpy(zero_copy_only=False), bool)


def _lifted(array: pa.Array, bad: Mask) -> Mask:
    """Return which lists have a bad value."""
    if bad is None:
        return None
    offsets = np.asarray(array.offsets)
    before = np.concatenate([[0], np.cumsum(bad)])
    return np.asarray(before[offsets[1:]] > before[offsets[:-1]], bool)


def _json(raw: bytes | None, name: str) -> str | None:
    """Return the JSON of a Struct, Value or ListValue."""
    if raw is None:
        return None
    message = getattr(struct_pb2, name.rpartition(".")[2]).FromString(raw)
    value = {"Struct": _object, "ListValue": _list, "Value": _value}[name.rpartition(".")[2]](message)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _object(message: Any) -> dict[str, Any]:
    return {name: _value(value) for name, value in message.fields.items()}


def _list(message: Any) -> list[Any]:
    return [_value(value) for value in message.values]


def _value(message: Any) -> Any:
    match message.WhichOneof("kind"):
        case "struct_value":
            return _object(message.struct_value)
        case "list_value":
            return _list(message.list_value)
        case "number_value":
            return _number(message.number_value)
        case "null_value" | None:
            return None
        case kind:
            return getattr(message, kind)


def _number(number: float) -> float | int | str:
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return int(number) if number.is_integer() and abs(number) < _EXACT else number
