"""Read messages with ptars (Rust), of which three things are not left to chance.

- What it cannot read as wanted is declared to it as the bytes on the wire: see `_declare_type`.
- One bad row fails a batch, sometimes by a panic, which is no `Exception`: see `read`.
- It orders fields by number and checks names for clashes: fields are called `f1`, `f2`, and found by that name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from ptars import PtarsConfig
from ptars._lib import ProtoRegistry  # type: ignore[import-not-found]

from router_schemas.protobuf.well_known import well_known

if TYPE_CHECKING:
    from router_schemas.protobuf.columns import Column

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


def read(handler: Any, payloads: pa.BinaryArray) -> tuple[pa.StructArray, list[int]]:
    """Return the messages of an array, and the rows that cannot be read, which hold zeros.

    A batch that fails is read by halves, so a row's verdict does not depend on its neighbours; n rows take at most 2n
    attempts. A null row reads as an empty message.
    """
    try:
        return handler.array_to_record_batch(payloads).to_struct_array(), []
    except BaseException as error:
        _let_pass(error)
    if len(payloads) == 1:
        return handler.array_to_record_batch(pa.array([b""], pa.binary())).to_struct_array(), [0]
    half = len(payloads) // 2
    left, bad = read(handler, payloads[:half])
    right, worse = read(handler, payloads[half:])
    return pa.concat_arrays([left, right]), bad + [row + half for row in worse]


def field_name(column: Column) -> str:
    """Return the name of a column in what `read` returns."""
    return f"f{column.number}"


def _let_pass(error: BaseException) -> None:
    """Raise again what is no fault of a row: an end asked for, and want of memory."""
    panic = type(error).__name__ == "PanicException"
    if isinstance(error, MemoryError) or not (isinstance(error, Exception) or panic):
        raise error


def _declare(file: Any, columns: tuple[Column, ...]) -> str:
    """Add a message of these columns to a file; return its name."""
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    for column in columns:
        label = _PROTO.LABEL_REPEATED if column.repeated or column.key else _PROTO.LABEL_OPTIONAL
        field = message.field.add(name=field_name(column), number=column.number, label=label)
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
