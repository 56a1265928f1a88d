"""Decode payloads: checked by google's own parser row by row, read natively by the batch.

Both are needed. The native decoder reads a batch or none of it, and takes some bytes that google refuses; google's is
exact, and several times slower when it has to make values. Rows that google would write otherwise (a value twice, two
members of a oneof, map entries without a value or unsorted) go to the native decoder as google writes them, so that it
reads what google reads. Source of the rules: protobuf.dev, "Encoding", last one wins.

Left to differ, in bytes that no encoder writes: an entry of a map with fields of its own, which google's Python parser
treats as unknown, and which is an entry here as it is in Java.
The native decoder is ptars (Rust), of which three things are not left to chance.

- What it cannot read as wanted is declared to it as the bytes on the wire: see `_native_shape`.
- One bad row fails a batch, sometimes by a panic, which is no `Exception`: see `read_natively`.
- It orders fields by number and checks names for clashes: fields are called `f1`, `f2`, and found by that name.

Its arrays become those of the model's columns by buffers and whole columns: it starts every array at offset 0, its
lists are never null, and a null struct has zeros below it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from ptars import PtarsConfig
from ptars._lib import ProtoRegistry  # type: ignore[import-not-found]

from router_schemas.protobuf.descriptors import message_of
from router_schemas.protobuf.kinds import Kind
from router_schemas.protobuf.model import (
    Column,
    MessageShape,
    arrow_struct,
    arrow_type,
    columns_of,
    descriptors_of,
    shape_of,
    spark_struct,
    value_type,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

    from router_schemas.protobuf.merge import MergedMessage

    Mask = NDArray[np.bool_] | None


_OUT_OF_RANGE = "a Timestamp or Duration is outside the range that Protobuf gives it"
_NATIVE_FAULT = "the native decoder cannot read it"


@dataclass(frozen=True)
class MessageReader:
    """A reader that makes payloads events: plain data that travels to the executors.

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
    """The events of an array of payloads, row by row, and the reasons of rows without an event.

    A null payload has neither an event nor a reason. Below a null event the fields hold zeros: read them through the
    event's own nulls (`events.flatten()`). `unknown` counts the events with fields that the reader does not know, at
    any depth; -1 when they were not counted.
    """

    events: pa.StructArray
    reasons: pa.StringArray
    unknown: int


def make_message_reader(merged: MergedMessage) -> MessageReader:
    """Return the reader of merged versions. Runs on the driver.

    Raises ValueError if a message has no fields, too many of them, or cannot be read natively.
    """
    machine = _make_machine(merged.descriptors)
    made = MessageReader(merged.message, merged.descriptors, arrow_struct(machine.columns))
    # Whatever fails for every row must fail here, before the stream starts.
    decode_payloads(pa.array([b""], pa.binary()), made)
    return made


def decode_payloads(payloads: pa.BinaryArray, reader: MessageReader, count_unknown: bool = False) -> Decoded:
    """Decode payloads into events. Runs on an executor; never raises for the content of a row.

    The same bytes always have the same result, whatever their neighbours.
    """
    machine = _make_machine(reader.descriptors)
    if payloads.type != pa.binary():
        payloads = payloads.cast(pa.binary())
    checked, faults, unknown = _check_payloads(payloads, machine, count_unknown)
    rows, unreadable = read_natively(machine.handler, checked)
    arrays, out_of_range = _convert_columns(rows, machine.columns)
    faults |= dict.fromkeys(unreadable, _NATIVE_FAULT)
    if out_of_range is not None:
        # A row keeps its earlier fault.
        faults = dict.fromkeys(np.flatnonzero(out_of_range).tolist(), _OUT_OF_RANGE) | faults
    missing = np.array(payloads.is_null())
    missing[list(faults)] = True
    mask = pa.array(missing) if missing.any() else None
    events = pa.StructArray.from_arrays(arrays, fields=list(reader.type), mask=mask)
    return Decoded(events, _fault_reasons(faults, len(payloads), reader.message), unknown)


@dataclass(frozen=True)
class _Machine:
    """The decoder of one message in this process."""

    columns: tuple[Column, ...]
    handler: Any
    message: Any
    has_maps: bool


@lru_cache(maxsize=64)
def _make_machine(descriptors: bytes) -> _Machine:
    root = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    message = message_of(descriptors, f"{root.package}.{root.message_type[0].name}")
    shape = shape_of(message)
    fields = chain.from_iterable(shape.messages.values())
    has_maps = any(field.key or field.kind is Kind.JSON for field in fields)
    columns = columns_of(shape)
    return _Machine(columns, handler_of(columns), message_factory.GetMessageClass(message), has_maps)


def _check_payloads(
    payloads: pa.BinaryArray, machine: _Machine, count: bool
) -> tuple[pa.BinaryArray, dict[int, str], int]:
    """Return payloads that the native decoder may read, the faults of other rows, and how many have unknown fields."""
    values = payloads.to_pylist()
    faults: dict[int, str] = {}
    changed = False
    unknown = 0 if count else -1
    # One object for all rows: making one for each costs as much as reading it.
    message = machine.message()
    parse = message.ParseFromString
    encode = message.SerializePartialToString
    if machine.has_maps:  # whose order differs from process to process; the option costs a fifth of the check
        encode = partial(encode, deterministic=True)
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            parse(value)
        except DecodeError as error:
            faults[row] = _parser_fault(error)
            values[row] = None
            changed = True
            continue
        canonical = encode()
        if canonical != value:
            values[row] = canonical
            changed = True
        if count:
            message.DiscardUnknownFields()
            unknown += message.ByteSize() < len(canonical)
    if changed:
        payloads = pa.array(values, pa.binary())
    return payloads, faults, unknown


def _parser_fault(error: DecodeError) -> str:
    """Return the message of google's parser, without the name that the Protobuf message has after a merge."""
    text = str(error).rpartition(": ")[2]
    return text[:1].lower() + text[1:]


def _fault_reasons(faults: dict[int, str], count: int, message: str) -> pa.StringArray:
    if not faults:
        return pa.nulls(count, pa.string())
    reasons: list[str | None] = [None] * count
    for row, fault in faults.items():
        reasons[row] = f"protobuf: not a {message}: {fault}"
    return pa.array(reasons, pa.string())


_PTARS_CONFIG = PtarsConfig(
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


def handler_of(columns: tuple[Column, ...]) -> Any:
    """Return a handler of ptars for messages of these columns; raise ValueError if ptars cannot read them."""
    # A panic of Rust prints its stack otherwise, once per bad row.
    os.environ["RUST_BACKTRACE"] = "0"
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors_of(_native_shape(columns))).file
    try:
        registry = ProtoRegistry([file.SerializeToString() for file in files])
        handler = registry.create_for_message(f"{files[-1].package}.{files[-1].message_type[0].name}", _PTARS_CONFIG)
        handler.array_to_record_batch(pa.array([b""], pa.binary()))
    except BaseException as error:
        _raise_if_unrelated(error)
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
        _raise_if_unrelated(error)
    if len(payloads) == 1:
        return handler.array_to_record_batch(pa.array([b""], pa.binary())).to_struct_array(), [0]
    half = len(payloads) // 2
    first, bad_rows = read_natively(handler, payloads[:half])
    second, bad_rows_of_second = read_natively(handler, payloads[half:])
    return pa.concat_arrays([first, second]), bad_rows + [half + row for row in bad_rows_of_second]


def _field_name(column: Column) -> str:
    """Return the name of a column in the structs of `read_natively`."""
    return f"f{column.number}"


def _raise_if_unrelated(error: BaseException) -> None:
    """Raise an error again that no row has caused: a requested end, or lack of memory."""
    is_panic = type(error).__name__ == "PanicException"
    if isinstance(error, MemoryError) or not (isinstance(error, Exception) or is_panic):
        raise error


def _native_shape(columns: tuple[Column, ...]) -> MessageShape:
    """Return the message that the native decoder reads for columns; each path has messages and enums of its own."""
    shape = MessageShape("m", {}, {})

    def declare_message(name: str, columns: tuple[Column, ...]) -> None:
        fields = []
        for column in columns:
            field = replace(column, name=_field_name(column), key=column.key and _native_kind(column.key), oneof="")
            inside = f"{name}_{column.number}"
            if column.kind is None:
                field = replace(field, of=inside)
                declare_message(inside, column.columns)
            elif column.kind is Kind.ENUM:
                field = replace(field, of=inside)
                shape.enums[inside] = column.values
            elif column.kind.value.read:
                # The bytes of a message and those of a field of bytes are the same on the wire.
                field = replace(field, kind=Kind.BYTES, of="")
            else:
                field = replace(field, kind=_native_kind(column.kind))
            fields.append(field)
        shape.messages[name] = tuple(fields)

    declare_message(shape.root, columns)
    return shape


def _native_kind(kind: Kind) -> Kind:
    """Return the kind to read a value as; a uint32 has the same bytes as an int64, which needs no cast."""
    return Kind.INT64 if kind is Kind.UINT32 else kind


def _convert_columns(rows: pa.StructArray, columns: tuple[Column, ...]) -> tuple[list[pa.Array], Mask]:
    """Return an array per column, and a mask of the rows that hold a time outside its range (None: there are none)."""
    arrays: list[pa.Array] = []
    bad: Mask = None
    for column in columns:
        array, bad_in_column = _convert_column(rows.field(_field_name(column)), column)
        arrays.append(array)
        if bad is None:
            bad = bad_in_column
        elif bad_in_column is not None:
            bad = bad | bad_in_column
    return arrays, bad


def _convert_column(array: pa.Array, column: Column) -> tuple[pa.Array, Mask]:
    if not column.repeated and not column.key:
        return _convert_values(array, column)
    if column.key:
        values, bad = _convert_values(array.items, column)
        key = pa.field("key", arrow_type(column).key_type, nullable=False)
        entries = [array.keys.cast(key.type), values]
        values = pa.StructArray.from_arrays(entries, fields=[key, pa.field("value", values.type)])
    else:
        values, bad = _convert_values(array.values, column)
    return _rebuild_array(array, arrow_type(column), [values]), _lists_with(array, bad)


def _convert_values(array: pa.Array, column: Column) -> tuple[pa.Array, Mask]:
    """Return the values of a column: the column's own, an array's elements or a map's values."""
    target = value_type(column)
    if column.kind is None:
        arrays, bad = _convert_columns(array, column.columns)
        return _rebuild_array(array, target, arrays), bad
    kind = column.kind.value
    if kind.read:
        return kind.read(array, column.of), None
    # In Arrow a time is a number of microseconds already: a view copies nothing.
    bad = _outside_bounds(array.view(pa.int64()), kind.bounds) if kind.bounds else None
    if array.type == target:
        return array, bad
    return array.cast(target), bad


def _rebuild_array(array: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return a nested array with other children, but its own validity and offsets."""
    buffers = array.buffers()[: 1 if pa.types.is_struct(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, 0, children)


def _outside_bounds(micros: pa.Int64Array, bounds: tuple[int, int]) -> Mask:
    """Return which numbers are outside their bounds; None if there are none, which one pass finds out."""
    extremes = pc.min_max(micros).as_py()
    if extremes["min"] is None or (extremes["min"] >= bounds[0] and extremes["max"] <= bounds[1]):
        return None
    outside = pc.or_(pc.less(micros, bounds[0]), pc.greater(micros, bounds[1])).fill_null(False)
    return np.asarray(outside.to_numpy(zero_copy_only=False), bool)


def _lists_with(array: pa.Array, bad: Mask) -> Mask:
    """Return which lists have a bad value."""
    if bad is None:
        return None
    offsets = np.asarray(array.offsets)
    before = np.concatenate([[0], np.cumsum(bad)])
    return np.asarray(before[offsets[1:]] > before[offsets[:-1]], bool)
