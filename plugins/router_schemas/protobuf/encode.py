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

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import message_factory, struct_pb2  # type: ignore[import-untyped]
from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pyspark.sql import types as T

from router_schemas import byte_columns
from router_schemas.protobuf.descriptors import message_of
from router_schemas.protobuf.model import (
    DEEPEST,
    PRESENT,
    SPECIAL,
    TEN_THOUSAND_YEARS,
    YEARS_1_TO_9999,
    MessageField,
    column_names,
    shape_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from router_schemas.byte_columns import ByteRows, Write


_NO_NULL = "it has a null inside, which Protobuf cannot hold"


def writer(descriptors: bytes, message: str, columns: T.StructType) -> Write:
    """Return a writer of rows, structs of these columns, as messages.

    `descriptors` are a FileDescriptorSet, `message` the full name. Raises ValueError naming a column that the message
    has no field for.
    """
    return _Writers(message_of(descriptors, message)).message(message, columns, "", ())


class _Writers:
    """The writers of one message and those inside of it; `path` is that of the column, for messages."""

    def __init__(self, message: Any) -> None:
        self.shape = shape_of(message)
        self.pool = message.file.pool
        for name in self.shape.messages:
            required = [field.name for field in self.pool.FindMessageTypeByName(name).fields if field.is_required]
            if required:
                raise ValueError(f"field {required[0]} of {name} is required, which a column is not; make it optional")

    def message(self, name: str, columns: T.StructType, path: str, above: tuple[str, ...]) -> Write:
        """Return a writer of structs as messages, without their length."""
        fields = self.shape.messages[name]
        if not fields and columns.fieldNames() == [PRESENT]:
            return lambda array: [b""] * len(array)
        by_column = dict(zip(column_names(fields), fields, strict=True))
        parts: list[tuple[int, int, Write]] = []
        oneofs: dict[str, list[int]] = {}
        for place, column in enumerate(columns):
            column_path = f"{path}.{column.name}".removeprefix(".")
            if column.name not in by_column:
                raise ValueError(f"field {column_path}: message {name} has no field for this column")
            field = by_column[column.name]
            parts.append((field.number, place, self.field(field, column.dataType, column_path, (*above, name))))
            if field.oneof:
                oneofs.setdefault(field.oneof, []).append(place)
        parts.sort()  # by number, as google's encoders write
        exclusive = [places for places in oneofs.values() if len(places) > 1]
        return _message([(place, write) for _, place, write in parts], exclusive, path)

    def field(self, field: MessageField, column: T.DataType, path: str, above: tuple[str, ...]) -> Write:
        """Return a writer of a column, nulls included, with the field's tag."""
        if field.key:
            if not isinstance(column, T.MapType) or not _accepts(field.key, column.keyType):
                raise self.misfit(field, column, path)
            value = self.value(field, column.valueType, f"{path}{{}}", above)
            write = _map(field, _scalar(field.key, path, {}), value, path)
        elif field.repeated:
            if not isinstance(column, T.ArrayType):
                raise self.misfit(field, column, path)
            write = _repeated(field, self.value(field, column.elementType, f"{path}[]", above), path)
        else:
            write = _single(field, self.value(field, column, path, above))
        return lambda array: byte_columns.or_null(array, write, b"")

    def value(self, field: MessageField, column: T.DataType, path: str, above: tuple[str, ...]) -> Write:
        """Return a writer of the values of a field, without nulls and tag, with their length."""
        if field.kind == "message":
            write = self.inside(field.of, column, path, above)
            if write is not None:
                return lambda array: sized(write(array))
        elif _accepts(field.kind, column):
            names = {name.encode(): number for name, number in self.shape.enums.get(field.of, ())}
            return _scalar(field.kind, path, names)
        raise self.misfit(field, column, path)

    def inside(self, name: str, column: T.DataType, path: str, above: tuple[str, ...]) -> Write | None:
        """Return a writer of messages inside of a message, without their length; None for a column of another type."""
        if name not in self.shape.messages:
            return _special(SPECIAL[name], name, column, path)
        if name in above or len(above) >= DEEPEST:  # the model has the bytes of such a message as a column
            if not isinstance(column, T.BinaryType):
                return None
            return _raw(message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name)), path)
        if not isinstance(column, T.StructType):
            return None
        return self.message(name, column, path, above)

    def misfit(self, field: MessageField, column: T.DataType, path: str) -> ValueError:
        """Return the refusal of a column."""
        kind = field.of or field.kind
        if field.key:
            kind = f"map<{field.key}, {kind}>"
        elif field.repeated:
            kind = f"repeated {kind}"
        return ValueError(f"field {path}: the column is {column.simpleString()[:200]}, and the schema has {kind}")


def _tag(number: int, wire: int) -> bytes:
    return byte_columns.varint(number << 3 | wire)


def _message(parts: list[tuple[int, Write]], exclusive: list[list[int]], path: str) -> Write:
    """Return a writer of structs. `parts`: place and writer of each column; `exclusive`: the places of each oneof."""

    def write_structs(array: pa.Array) -> ByteRows:
        fields = array.flatten()
        for places in exclusive:
            if len(array) and (byte_columns.one_of([fields[place] for place in places]) > 1).any():
                raise ValueError(f"field {path or '(the row)'}: two members of one oneof have a value")
        return byte_columns.joined([write(fields[place]) for place, write in parts], len(array))

    return write_structs


def _single(field: MessageField, value: Write) -> Write:
    """Return a writer of a field that is neither repeated nor a map."""
    wire = _wire_type(field.kind)
    tag = _tag(field.number, wire)
    if field.presence:
        return lambda array: [tag + written for written in value(array)]
    zero = ZERO[wire]
    return lambda array: [b"" if written == zero else tag + written for written in value(array)]


def _repeated(field: MessageField, value: Write, path: str) -> Write:
    """Return a writer of arrays: numbers packed, which every parser reads, whether the schema has `packed` or not."""
    wire = _wire_type(field.kind)
    tag = _tag(field.number, LEN)

    def write(array: pa.Array) -> ByteRows:
        written = value(byte_columns.full(byte_columns.elements(array), path, _NO_NULL))
        # Each text, blob or message has its own tag; numbers share one.
        if wire == LEN:
            written = [tag + element for element in written]
        lists = [b"".join(written[begin:end]) for begin, end in pairwise(byte_columns.ends(array))]
        if wire == LEN:
            return lists
        return [tag + byte_columns.varint(len(packed)) + packed if packed else b"" for packed in lists]

    return write


def _map(field: MessageField, key: Write, value: Write, path: str) -> Write:
    """Return a writer of maps, in the order that they have."""
    key_tag = _tag(1, _wire_type(field.key))
    value_tag = _tag(2, _wire_type(field.kind))
    tag = _tag(field.number, LEN)

    def write(array: pa.Array) -> ByteRows:
        keys, items = byte_columns.entries(array)
        values = value(byte_columns.full(items, path, _NO_NULL))
        pairs = zip(key(keys), values, strict=True)
        entries = [key_tag + key_bytes + value_tag + value_bytes for key_bytes, value_bytes in pairs]
        written = [tag + entry for entry in sized(entries)]
        return [b"".join(written[begin:end]) for begin, end in pairwise(byte_columns.ends(array))]

    return write


def _raw(message: Any, path: str) -> Write:
    """Return a writer that passes the bytes of messages on, and refuses bytes that are none."""

    def write(array: pa.Array) -> ByteRows:
        blobs = byte_columns.blobs(array)
        for blob in blobs:
            try:
                message.FromString(blob)
            except DecodeError:
                raise ValueError(f"field {path}: the bytes are no {message.DESCRIPTOR.full_name}") from None
        return blobs

    return write


VARINT = 0
I64 = 1
LEN = 2
I32 = 5
"""Wire types."""
ZERO = {VARINT: b"\0", I64: bytes(8), LEN: b"\0", I32: bytes(4)}
"""How zero, or nothing, is written."""
_INTS = (T.ByteType, T.ShortType, T.IntegerType)
_LONGS = (*_INTS, T.LongType)
_ACCEPTED: dict[str, tuple[type[T.DataType], ...]] = {
    "double": (*_INTS, T.FloatType, T.DoubleType),
    "float": (T.FloatType,),
    "bool": (T.BooleanType,),
    "string": (T.StringType,),
    "enum": (T.StringType,),
    "bytes": (T.BinaryType,),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), _INTS),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), _LONGS),
    **dict.fromkeys(("uint64", "fixed64"), (*_LONGS, T.DecimalType)),
}
_BITS = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64}
_FIXED = {"double": "<f8", "float": "<f4", "sfixed32": "<i4", "sfixed64": "<i8", "fixed32": "<u4", "fixed64": "<u8"}


def _accepts(kind: str, column: T.DataType) -> bool:
    """Return whether a column can be written as a kind; single values may still be out of its range."""
    if isinstance(column, T.DecimalType):
        return T.DecimalType in _ACCEPTED[kind] and column.scale == 0
    return isinstance(column, _ACCEPTED[kind])


def _wire_type(kind: str) -> int:
    """Return the wire type of a kind."""
    if kind in ("string", "bytes", "message"):
        return LEN
    if kind not in _FIXED:
        return VARINT
    return I64 if _FIXED[kind].endswith("8") else I32


def _scalar(kind: str, path: str, names: dict[bytes, int]) -> Write:
    """Return a writer of the values of a kind, with their length if they have one; `names` are those of an enum."""
    if kind == "bool":
        return byte_columns.booleans
    if kind == "string":
        return lambda array: sized(byte_columns.texts(array, path))
    if kind == "bytes":
        return lambda array: sized(byte_columns.blobs(array))
    if kind in ("double", "float"):
        return lambda array: byte_columns.fixed(array, _FIXED[kind])
    if kind == "enum":
        return lambda array: byte_columns.varints(_enum_numbers(array, names, path).view(np.uint64))
    return lambda array: _integers(array, kind, path)


def sized(written: ByteRows) -> ByteRows:
    """Return the bytes of each row with their length in front."""
    return [byte_columns.varint(len(row)) + row for row in written]


def _integers(array: pa.Array, kind: str, path: str) -> ByteRows:
    numbers = _unsigned(array, _BITS[kind], path) if kind in _BITS else byte_columns.whole(array)
    if kind in _FIXED:
        raw = numbers.astype(_FIXED[kind]).tobytes()
        width = np.dtype(_FIXED[kind]).itemsize
        return [raw[begin : begin + width] for begin in range(0, len(raw), width)]
    if kind.startswith("sint"):
        return byte_columns.zigzags(numbers.view(np.int64))
    return byte_columns.varints(numbers.view(np.uint64))


def _unsigned(array: pa.Array, bits: int, path: str) -> NDArray[np.uint64]:
    fault = ValueError(f"field {path}: the number is below zero or has more than {bits} bits")
    if hasattr(array.type, "scale"):
        large = byte_columns.unscaled(array)
        if any(not 0 <= number < 1 << bits for number in large):
            raise fault
        return np.array(large, np.uint64)
    numbers = byte_columns.whole(array)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= 1 << bits):
        raise fault
    return numbers.view(np.uint64)


def _enum_numbers(array: pa.Array, names: dict[bytes, int], path: str) -> NDArray[np.int64]:
    """Return the numbers of an enum's names; a number without a name is read, and written, as its digits."""
    return np.array([_enum_number(name, names, path) for name in byte_columns.texts(array, path)], np.int64)


def _enum_number(name: bytes, names: dict[bytes, int], path: str) -> int:
    number = names.get(name)
    if number is None:
        try:
            number = int(name)
        except ValueError:
            number = 1 << 31
        if not -(1 << 31) <= number < 1 << 31 or name != b"%d" % number:
            raise ValueError(f"field {path}: the enum has no such name")
    return number


_SECOND = 1_000_000
_DEEPEST = 90
"""Values within values; google's parsers end at 100 messages, of which a value takes one and an object two."""


def _special(kind: str, of: str, column: T.DataType, path: str) -> Write | None:
    """Return a writer of a column as a special message, without its length; None for a column of another type.

    `kind` is the message's value in router_schemas.protobuf.model.SPECIAL, `of` its full name.
    """
    if kind == "timestamp" and isinstance(column, T.TimestampType):
        return lambda array: _timestamps(byte_columns.whole(array), path)
    if kind == "duration" and isinstance(column, T.LongType):
        return lambda array: _durations(byte_columns.whole(array), path)
    if kind == "json" and isinstance(column, T.StringType):
        return lambda array: [_json(text, of, path) for text in byte_columns.texts(array, path)]
    if kind in ("timestamp", "duration", "json") or not _accepts(kind, column):
        return None
    # A wrapper is a message whose field 1 has the value.
    return _single(MessageField(name="value", number=1, kind=kind), _scalar(kind, path, {}))


def _timestamps(micros: NDArray[np.int64], path: str) -> ByteRows:
    byte_columns.within(micros, *YEARS_1_TO_9999, path, "the time is outside the years 1 to 9999")
    return _seconds(micros // _SECOND, micros % _SECOND)


def _durations(micros: NDArray[np.int64], path: str) -> ByteRows:
    byte_columns.within(micros, *TEN_THOUSAND_YEARS, path, "the duration is longer than 10 000 years")
    seconds = np.where(micros < 0, -(-micros // _SECOND), micros // _SECOND)  # both parts have the sign
    return _seconds(seconds, micros - seconds * _SECOND)


def _seconds(seconds: NDArray[np.int64], micros: NDArray[np.int64]) -> ByteRows:
    """Return Timestamps or Durations: field 1 has the seconds, field 2 the nanoseconds; zeros are left out."""
    whole = byte_columns.varints(seconds.view(np.uint64))
    nanos = byte_columns.varints((micros * 1000).view(np.uint64))
    whole = [b"" if number == b"\0" else b"\x08" + number for number in whole]
    nanos = [b"" if number == b"\0" else b"\x10" + number for number in nanos]
    return [seconds_field + nanos_field for seconds_field, nanos_field in zip(whole, nanos, strict=True)]


def _json(text: bytes, of: str, path: str) -> bytes:
    """Return the message of a JSON text."""
    name = of.rpartition(".")[2]
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if _depth(value) > _DEEPEST:
            raise ValueError("it is nested too deep")
        message: Any = getattr(struct_pb2, name)()
        ParseDict(value, message)
    except (ValueError, ParseError, RecursionError):
        raise ValueError(f"field {path}: the text is not JSON that {of} can hold") from None
    return bytes(message.SerializeToString(deterministic=True))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 1
    return 1 + max(map(_depth, value), default=0)


def encoded_event(event: Any, files: bytes, message: str) -> bytes:
    """Return the bytes of a message given as in ProtoJSON (protobuf.dev): times as text, bytes in base64.

    `files` is a FileDescriptorSet, `message` a full name in it. Raises ValueError for data that it cannot hold.
    """
    empty = message_factory.GetMessageClass(message_of(files, message))()
    try:
        return bytes(ParseDict(event, empty).SerializeToString(deterministic=True))
    except (ParseError, TypeError) as error:
        raise ValueError(f"not a {message}: {error}") from None
