"""Encode columns as Protobuf: the inverse of decode.

A column is written to the field that is read as this column (model.column_names). Every column has one; a field without
a column is absent. Null is absent: it is read as zero if the field does not distinguish the two, and a null array as an
empty one. Refused are a null inside of an array or a map, which Protobuf cannot hold, two members of one oneof, numbers
out of range, names that an enum lacks, and texts that are not UTF-8. Fields are written by number, and zero is left out
if it is the same as absent, as google's own encoders do.

For tests of configurations, one message can also be written from plain data, as a producer with the schema does.
Source: protobuf.dev, "Encoding". Of the ranges: the same, "Scalar Value Types".
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]
from pyspark.sql import types as T

from router_schemas import byte_columns
from router_schemas.protobuf.descriptors import message_of
from router_schemas.protobuf.kinds import (
    I32,
    I64,
    LEN,
    PRESENT_FIELD,
    VARINT,
    WRAPPERS,
    Kind,
    WrittenField,
    with_lengths,
)
from router_schemas.protobuf.model import MessageField, column_kind, column_names, is_message, shape_of

if TYPE_CHECKING:
    import pyarrow as pa

    from router_schemas.byte_columns import ByteRows, Write


ZERO_BY_WIRE_TYPE = {VARINT: b"\0", I64: bytes(8), LEN: b"\0", I32: bytes(4)}
"""How zero, or nothing, is written, by wire type."""
_NO_NULL = "it has a null inside, which Protobuf cannot hold"


def message_writer(descriptors: bytes, message: str, columns: T.StructType) -> Write:
    """Return a writer of rows, structs of these columns, as messages.

    `descriptors` are a FileDescriptorSet, `message` the full name. Raises ValueError naming a column that the message
    has no field for.
    """
    return _Writers(message_of(descriptors, message)).struct_writer(message, columns, "", ())


class _Writers:
    """The writers of one message and those inside of it; `path` is that of the column, for messages."""

    def __init__(self, message: Any) -> None:
        self.shape = shape_of(message)
        self.pool = message.file.pool
        for name in self.shape.messages:
            required = [field.name for field in self.pool.FindMessageTypeByName(name).fields if field.is_required]
            if required:
                raise ValueError(f"field {required[0]} of {name} is required, which a column is not; make it optional")

    def struct_writer(self, name: str, columns: T.StructType, path: str, above: tuple[str, ...]) -> Write:
        """Return a writer of structs as messages, without their length."""
        fields = self.shape.messages[name]
        if not fields and columns.fieldNames() == [PRESENT_FIELD]:
            return lambda array: [b""] * len(array)
        by_column = dict(zip(column_names(fields), fields, strict=True))
        parts: list[tuple[int, int, Write]] = []
        oneofs: dict[str, list[int]] = {}
        for place, column in enumerate(columns):
            column_path = f"{path}.{column.name}".removeprefix(".")
            if column.name not in by_column:
                raise ValueError(f"field {column_path}: message {name} has no field for this column")
            field = by_column[column.name]
            parts.append((field.number, place, self.field_writer(field, column.dataType, column_path, (*above, name))))
            if field.oneof:
                oneofs.setdefault(field.oneof, []).append(place)
        parts.sort()  # by number, as google's encoders write
        exclusive = [places for places in oneofs.values() if len(places) > 1]
        return _struct_writer([(place, write) for _, place, write in parts], exclusive, path)

    def field_writer(self, field: MessageField, column: T.DataType, path: str, above: tuple[str, ...]) -> Write:
        """Return a writer of a column, nulls included, with the field's tag."""
        if field.key:
            if not isinstance(column, T.MapType) or not field.key.accepts_column(column.keyType):
                raise self.misfit_error(field, column, path)
            value = self.value_writer(field, column.valueType, f"{path}{{}}", above)
            write = _map_writer(field, field.key, value, path)
        elif field.repeated:
            if not isinstance(column, T.ArrayType):
                raise self.misfit_error(field, column, path)
            write = _repeated_writer(field, self.value_writer(field, column.elementType, f"{path}[]", above), path)
        else:
            write = _single_writer(field, self.value_writer(field, column, path, above))
        return lambda array: byte_columns.or_null(array, write, b"")

    def value_writer(self, field: MessageField, column: T.DataType, path: str, above: tuple[str, ...]) -> Write:
        """Return a writer of the values of a field, without nulls and tag, with their length."""
        kind = column_kind(self.shape, field, above)
        if isinstance(column, T.StructType) and kind in (None, Kind.EMPTY):
            write = self.struct_writer(field.of, column, path, above)
        elif kind is None or not kind.accepts_column(column):
            raise self.misfit_error(field, column, path)
        else:
            message = None
            if field.of in self.shape.messages:
                message = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(field.of))
            numbers = {name.encode(): number for name, number in self.shape.enums.get(field.of, ())}
            target = WrittenField(path, field.of, numbers, message)
            write = partial(kind.value.write, target)
        if not is_message(field.kind, field.of):
            return write
        # A wrapper is a message whose field 1 has the value.
        if field.of in WRAPPERS and field.kind is not None:
            write = _single_writer(MessageField(name="value", number=1, kind=field.kind), write)
        return lambda array: with_lengths(write(array))

    def misfit_error(self, field: MessageField, column: T.DataType, path: str) -> ValueError:
        """Return the refusal of a column."""
        kind = field.of or str(field.kind)
        if field.key:
            kind = f"map<{field.key}, {kind}>"
        elif field.repeated:
            kind = f"repeated {kind}"
        return ValueError(f"field {path}: the column is {column.simpleString()[:200]}, and the schema has {kind}")


def _encode_tag(number: int, wire: int) -> bytes:
    return byte_columns.encode_varint(number << 3 | wire)


def _struct_writer(parts: list[tuple[int, Write]], exclusive: list[list[int]], path: str) -> Write:
    """Return a writer of structs. `parts`: place and writer of each column; `exclusive`: the places of each oneof."""

    def write_structs(array: pa.Array) -> ByteRows:
        fields = array.flatten()
        for places in exclusive:
            if len(array) and (byte_columns.one_of([fields[place] for place in places]) > 1).any():
                raise ValueError(f"field {path or '(the row)'}: two members of one oneof have a value")
        return byte_columns.join_rows([write(fields[place]) for place, write in parts], len(array))

    return write_structs


def _single_writer(field: MessageField, value: Write) -> Write:
    """Return a writer of a field that is neither repeated nor a map."""
    wire = field.wire
    tag = _encode_tag(field.number, wire)
    if field.presence:
        return lambda array: [tag + written for written in value(array)]
    zero = ZERO_BY_WIRE_TYPE[wire]
    return lambda array: [b"" if written == zero else tag + written for written in value(array)]


def _repeated_writer(field: MessageField, value: Write, path: str) -> Write:
    """Return a writer of arrays: numbers packed, which every parser reads, whether the schema has `packed` or not."""
    wire = field.wire
    tag = _encode_tag(field.number, LEN)

    def write_arrays(array: pa.Array) -> ByteRows:
        written = value(byte_columns.refuse_nulls(byte_columns.list_elements(array), path, _NO_NULL))
        # Each text, blob or message has its own tag; numbers share one.
        if wire == LEN:
            written = [tag + element for element in written]
        lists = [b"".join(written[begin:end]) for begin, end in pairwise(byte_columns.list_bounds(array))]
        if wire == LEN:
            return lists
        return [tag + byte_columns.encode_varint(len(packed)) + packed if packed else b"" for packed in lists]

    return write_arrays


def _map_writer(field: MessageField, key: Kind, value: Write, path: str) -> Write:
    """Return a writer of maps, in the order that they have."""
    write_key = partial(key.value.write, WrittenField(path, ""))
    key_tag = _encode_tag(1, key.value.wire)
    value_tag = _encode_tag(2, field.wire)
    tag = _encode_tag(field.number, LEN)

    def write_maps(array: pa.Array) -> ByteRows:
        keys, items = byte_columns.map_entries(array)
        values = value(byte_columns.refuse_nulls(items, path, _NO_NULL))
        pairs = zip(write_key(keys), values, strict=True)
        entries = [key_tag + key_bytes + value_tag + value_bytes for key_bytes, value_bytes in pairs]
        written = [tag + entry for entry in with_lengths(entries)]
        return [b"".join(written[begin:end]) for begin, end in pairwise(byte_columns.list_bounds(array))]

    return write_maps


def encoded_event(event: Any, files: bytes, message: str) -> bytes:
    """Return the bytes of a message given as in ProtoJSON (protobuf.dev): times as text, bytes in base64.

    `files` is a FileDescriptorSet, `message` a full name in it. Raises ValueError for data that it cannot hold.
    """
    empty = message_factory.GetMessageClass(message_of(files, message))()
    try:
        return bytes(ParseDict(event, empty).SerializeToString(deterministic=True))
    except (ParseError, TypeError) as error:
        raise ValueError(f"not a {message}: {error}") from None
