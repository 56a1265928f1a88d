"""Decode payloads: checked by google's own parser row by row, read natively by the batch.

Both are needed. The native decoder reads a batch or none of it, and takes some bytes that google refuses; google's is
exact, and several times slower when it has to make values. Rows that google would write otherwise (a value twice, two
members of a oneof, map entries without a value or unsorted) go to the native decoder as google writes them, so that it
reads what google reads. Source of the rules: protobuf.dev, "Encoding", last one wins.

Left to differ, in bytes that no encoder writes: an entry of a map with fields of its own, which google's Python parser
treats as unknown, and which is an entry here as it is in Java.
The native decoder is ptars (Rust), of which three things are not left to chance.

- What it cannot read as wanted is declared to it as the bytes on the wire: see `_declare_type`.
- One bad row fails a batch, sometimes by a panic, which is no `Exception`: see `read_natively`.
- It orders fields by number and checks names for clashes: fields are called `f1`, `f2`, and found by that name.

Its arrays become those of the model's columns by buffers and whole columns: it starts every array at offset 0, its
lists are never null, and a null struct has zeros below it.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, message_factory, struct_pb2  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from ptars import PtarsConfig
from ptars._lib import ProtoRegistry  # type: ignore[import-not-found]

from router_schemas.protobuf.descriptors import message_of, well_known
from router_schemas.protobuf.model import (
    SPECIAL,
    TEN_THOUSAND_YEARS,
    YEARS_1_TO_9999,
    Column,
    arrow_struct,
    arrow_type,
    columns_of,
    shape_of,
    spark_struct,
    value_type,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

    from router_schemas.protobuf.merge import MergedMessage

    Mask = NDArray[np.bool_] | None


_RANGE = "a Timestamp or Duration is outside the range that Protobuf gives it"
_NATIVE = "the native decoder cannot read it"


@dataclass(frozen=True)
class MessageReader:
    """How payloads become events: plain data that travels to the executors.

    `message` is the full name for reasons, `descriptors` those of router_schemas.protobuf.merge, `type` the Arrow type
    of the events.
    """

    message: str
    descriptors: bytes
    type: pa.StructType

    @property
    def spark_type(self) -> StructType:
        """Return the Spark type of the events."""
        return spark_struct(self.type)


@dataclass(frozen=True)
class Decoded:
    """The events of an array of payloads, row by row, and why there is none.

    A null payload has neither an event nor a reason. Below a null event the fields hold zeros: read them through the
    event's own nulls (`events.flatten()`). `unknown` counts the events with fields that the reader does not know, at
    any depth; -1 when they were not counted.
    """

    events: pa.StructArray
    reasons: pa.StringArray
    unknown: int


def reader(merged: MergedMessage) -> MessageReader:
    """Return the reader of merged versions. Runs on the driver.

    Raises ValueError if a message has no field or too many fields, or cannot be read natively.
    """
    machine = _machine(merged.descriptors)
    found = MessageReader(merged.message, merged.descriptors, arrow_struct(machine.columns))
    decode(pa.array([b""], pa.binary()), found)  # what fails for every row shall fail here
    return found


def decode(payloads: pa.BinaryArray, reader: MessageReader, count_unknown: bool = False) -> Decoded:
    """Decode payloads into events. Runs on an executor; never raises for what a row holds.

    The same bytes always have the same outcome, whatever their neighbours.
    """
    machine = _machine(reader.descriptors)
    if payloads.type != pa.binary():
        payloads = payloads.cast(pa.binary())
    checked, why, unknown = _checked(payloads, machine, count_unknown)
    rows, unread = read_natively(machine.handler, checked)
    arrays, outside = _converted(rows, machine.columns)
    why |= dict.fromkeys(unread, _NATIVE)
    if outside is not None:
        why = dict.fromkeys(np.flatnonzero(outside).tolist(), _RANGE) | why
    missing = np.array(payloads.is_null())
    missing[list(why)] = True
    events = pa.StructArray.from_arrays(
        arrays, fields=list(reader.type), mask=pa.array(missing) if missing.any() else None
    )
    return Decoded(events, _reasons(why, len(payloads), reader.message), unknown)


@dataclass(frozen=True)
class _Machine:
    """What decodes one message in this process."""

    columns: tuple[Column, ...]
    handler: Any
    message: Any
    has_maps: bool


@lru_cache(maxsize=64)
def _machine(descriptors: bytes) -> _Machine:
    root = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    message = message_of(descriptors, f"{root.package}.{root.message_type[0].name}")
    shape = shape_of(message)
    has_maps = any(one.key or SPECIAL.get(one.of) == "json" for fields in shape.messages.values() for one in fields)
    columns = columns_of(shape)
    return _Machine(columns, handler_of(columns), message_factory.GetMessageClass(message), has_maps)


def _checked(payloads: pa.BinaryArray, machine: _Machine, count: bool) -> tuple[pa.BinaryArray, dict[int, str], int]:
    """Return payloads that the native decoder may read, why others are not among them, and unknown fields."""
    values = payloads.to_pylist()
    why: dict[int, str] = {}
    changed, unknown = False, 0 if count else -1
    # One object for all rows: making one for each costs as much as reading it.
    message = machine.message()
    parse, encode = message.ParseFromString, message.SerializePartialToString
    if machine.has_maps:  # whose order differs from process to process; the option costs a fifth of the check
        encode = partial(encode, deterministic=True)
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            parse(value)
        except DecodeError as error:
            why[row], values[row], changed = _reason(error), None, True
            continue
        canonical = encode()
        if canonical != value:
            values[row], changed = canonical, True
        if count:
            message.DiscardUnknownFields()
            unknown += message.ByteSize() < len(canonical)
    return pa.array(values, pa.binary()) if changed else payloads, why, unknown


def _reason(error: DecodeError) -> str:
    """Return what google's parser says, without the name that the message has after a merge."""
    said = str(error).rpartition(": ")[2]
    return said[:1].lower() + said[1:]


def _reasons(why: dict[int, str], count: int, message: str) -> pa.StringArray:
    if not why:
        return pa.nulls(count, pa.string())
    return pa.array([f"protobuf: not a {message}: {why[row]}" if row in why else None for row in range(count)])


_PROTO = descriptor_pb2.FieldDescriptorProto
_CONFIG = PtarsConfig(
    timestamp_unit="us",
    duration_unit="us",
    time_unit="us",
    enum_repr="string",
    list_value_name="element",
    list_nullable=True,
    list_value_nullable=True,
    map_nullable=True,
    map_value_nullable=True,
)
_RAW = ("json", "empty", "raw")
_IMPORTS = ("google/protobuf/timestamp.proto", "google/protobuf/duration.proto", "google/protobuf/wrappers.proto")


def handler_of(columns: tuple[Column, ...]) -> Any:
    """Return what reads messages of these columns; raise ValueError where ptars cannot take them."""
    # A panic of Rust prints its stack otherwise, once per bad row.
    os.environ["RUST_BACKTRACE"] = "0"
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="n", syntax="proto3", dependency=_IMPORTS)
    _declare(file, columns)
    imports = [well_known(name) for name in _IMPORTS]
    try:
        registry = ProtoRegistry([one.SerializeToString() for one in (*imports, file)])
        handler = registry.create_for_message(f"n.{file.message_type[0].name}", _CONFIG)
        handler.array_to_record_batch(pa.array([b""], pa.binary()))
    except BaseException as error:
        _let_pass(error)
        raise ValueError(f"the native decoder cannot take this message: {error}") from None
    return handler


def read_natively(handler: Any, payloads: pa.BinaryArray) -> tuple[pa.StructArray, list[int]]:
    """Return the messages of an array, and the rows that cannot be read, which hold zeros.

    A batch that fails is read by halves, so that no row is refused because of its neighbours; n rows take at
    most 2n attempts. A null row reads as an empty message.
    """
    try:
        return handler.array_to_record_batch(payloads).to_struct_array(), []
    except BaseException as error:
        _let_pass(error)
    if len(payloads) == 1:
        return handler.array_to_record_batch(pa.array([b""], pa.binary())).to_struct_array(), [0]
    half = len(payloads) // 2
    left, bad = read_natively(handler, payloads[:half])
    right, worse = read_natively(handler, payloads[half:])
    return pa.concat_arrays([left, right]), bad + [row + half for row in worse]


def _field_name(column: Column) -> str:
    """Return the name of a column in what `read_natively` returns."""
    return f"f{column.number}"


def _let_pass(error: BaseException) -> None:
    """Raise again what no row has caused: a requested end, and lack of memory."""
    panic = type(error).__name__ == "PanicException"
    if isinstance(error, MemoryError) or not (isinstance(error, Exception) or panic):
        raise error


def _declare(file: Any, columns: tuple[Column, ...]) -> str:
    """Add a message of these columns to a file; return its name."""
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    for column in columns:
        label = _PROTO.LABEL_REPEATED if column.repeated or column.key else _PROTO.LABEL_OPTIONAL
        field = message.field.add(name=_field_name(column), number=column.number, label=label)
        if column.key:
            entry = message.nested_type.add(name=f"F{column.number}Entry")
            entry.options.map_entry = True
            key = entry.field.add(name="key", number=1, label=_PROTO.LABEL_OPTIONAL)
            key.type = _scalar(column.key)
            _declare_type(file, entry.field.add(name="value", number=2, label=_PROTO.LABEL_OPTIONAL), column)
            field.type, field.type_name = _PROTO.TYPE_MESSAGE, f".n.{message.name}.{entry.name}"
            continue
        _declare_type(file, field, column)
        if column.presence and field.type != _PROTO.TYPE_MESSAGE:
            field.oneof_index, field.proto3_optional = len(message.oneof_decl), True
            message.oneof_decl.add(name=f"_f{column.number}")
    return str(message.name)


def _declare_type(file: Any, field: Any, column: Column) -> None:
    """Set the type of a field: that of its values in a map."""
    if column.kind in _RAW:
        field.type = _PROTO.TYPE_BYTES
    elif column.kind == "struct":
        field.type, field.type_name = _PROTO.TYPE_MESSAGE, f".n.{_declare(file, column.columns)}"
    elif column.kind == "enum":
        field.type, field.type_name = _PROTO.TYPE_ENUM, f".n.{_declare_enum(file, column)}"
    elif column.of:
        field.type, field.type_name = _PROTO.TYPE_MESSAGE, f".{column.of}"
    else:
        field.type = _scalar(column.kind)


def _scalar(kind: str) -> int:
    """Return a scalar type; as int64, a uint32 has the same bytes and needs no cast."""
    return int(_PROTO.Type.Value(f"TYPE_{kind.upper()}" if kind != "uint32" else "TYPE_INT64"))


def _declare_enum(file: Any, column: Column) -> str:
    # In a message of its own, because the names of an enum's values belong to the scope around it.
    scope = file.message_type.add(name=f"M{len(file.message_type)}")
    enum = scope.enum_type.add(name="E")
    for name, number in column.values:
        enum.value.add(name=name, number=number)
    return f"{scope.name}.E"


_EXACT = 2**53
"""Below this an integral double has no digits that it does not hold."""


def _converted(rows: pa.StructArray, columns: tuple[Column, ...]) -> tuple[list[pa.Array], Mask]:
    """Return an array per column, and a mask of the rows that hold a time outside its range (None: there are none)."""
    arrays: list[pa.Array] = []
    bad: Mask = None
    for column in columns:
        array, worse = _column(rows.field(_field_name(column)), column)
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
            arrays, bad = _converted(array, column.columns)
            return _rebuilt(array, target, arrays), bad
        case "timestamp":
            return array, _outside(array.view(pa.int64()), YEARS_1_TO_9999)
        case "duration":
            return array.view(pa.int64()), _outside(array.view(pa.int64()), TEN_THOUSAND_YEARS)
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
