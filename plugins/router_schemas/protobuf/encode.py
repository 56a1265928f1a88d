"""Encode columns as Protobuf: the inverse of decode.

A column is written to the field that is read as it (model.column_names). Every column has one; a field without a column
is absent. Null is absent: where the field does not tell absent from zero it is read as zero, a null array or map as an
empty one. A null inside of an array or a map has no place in Protobuf and is refused, and so are two members of one
oneof, numbers out of range, names that an enum lacks, texts that are not UTF-8. Fields are written by number, and zero
is left out where it is the same as absent, as google's own encoders write.
One message can be written from plain data as well, as a producer does that has the schema: for tests of configurations.
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
    """Return what writes rows, structs of these columns, as messages.

    `descriptors` are a FileDescriptorSet, `message` the full name. Raises ValueError naming the column that has no
    place in the message.
    """
    return _Writers(message_of(descriptors, message)).message(message, columns, "", ())


class _Writers:
    """The writers of one message and those inside of it; `path` is that of the column, for messages."""

    def __init__(self, message: Any) -> None:
        self.shape = shape_of(message)
        self.pool = message.file.pool
        for name in self.shape.messages:
            required = [one.name for one in self.pool.FindMessageTypeByName(name).fields if one.is_required]
            if required:
                raise ValueError(f"field {required[0]} of {name} is required, which a column is not; make it optional")

    def message(self, name: str, columns: T.StructType, path: str, above: tuple[str, ...]) -> Write:
        """Return what writes structs as messages, without their length."""
        fields = self.shape.messages[name]
        if not fields and columns.fieldNames() == [PRESENT]:
            return lambda array: [b""] * len(array)
        called = dict(zip(column_names(fields), fields, strict=True))
        parts: list[tuple[MessageField, int, Write]] = []
        for place, column in enumerate(columns):
            at = f"{path}.{column.name}" if path else column.name
            if column.name not in called:
                raise ValueError(f"field {at}: message {name} has no field for this column")
            parts.append((called[column.name], place, self.field(called[column.name], column, at, (*above, name))))
        parts.sort(key=lambda part: part[0].number)
        return _message([(place, write) for _, place, write in parts], _oneofs(parts), path)

    def field(self, one: MessageField, column: T.StructField, path: str, above: tuple[str, ...]) -> Write:
        """Return what writes a column, nulls and all, with the field's tag."""
        kind = column.dataType
        if one.key:
            if not isinstance(kind, T.MapType) or not _takes(one.key, kind.keyType):
                raise self.misfit(one, kind, path)
            value = self.value(one, kind.valueType, f"{path}{{}}", above)
            write = _map(one, _scalar(one.key, path, {}), value, path)
        elif one.repeated:
            if not isinstance(kind, T.ArrayType):
                raise self.misfit(one, kind, path)
            write = _repeated(one, self.value(one, kind.elementType, f"{path}[]", above), path)
        else:
            write = _single(one, self.value(one, kind, path, above))
        return lambda array: byte_columns.or_null(array, write, b"")

    def value(self, one: MessageField, column: T.DataType, path: str, above: tuple[str, ...]) -> Write:
        """Return what writes the values of a field, without nulls and tag, with their length."""
        write: Write | None = None
        if one.kind != "message":
            names = {name.encode(): number for name, number in self.shape.enums.get(one.of, ())}
            write = _scalar(one.kind, path, names) if _takes(one.kind, column) else None
        elif inside := self.inside(one.of, column, path, above):
            write = _sized(inside)
        if write is None:
            raise self.misfit(one, column, path)
        return write

    def inside(self, of: str, column: T.DataType, path: str, above: tuple[str, ...]) -> Write | None:
        """Return what writes messages inside of a message, without their length; None where the column is another."""
        if of not in self.shape.messages:
            return _special(SPECIAL[of], of, column, path)
        if of in above or len(above) >= DEEPEST:  # such ones are read as their bytes
            message = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(of))
            return _raw(message, path) if isinstance(column, T.BinaryType) else None
        return self.message(of, column, path, above) if isinstance(column, T.StructType) else None

    def misfit(self, one: MessageField, column: T.DataType, path: str) -> ValueError:
        """Return the refusal of a column."""
        kind = one.of or one.kind
        has = f"map<{one.key}, {kind}>" if one.key else f"repeated {kind}" if one.repeated else kind
        return ValueError(f"field {path}: the column is {column.simpleString()[:200]}, and the schema has {has}")


def _tag(number: int, wire: int) -> bytes:
    return byte_columns.varint(number << 3 | wire)


def _sized(write: Write) -> Write:
    return lambda array: sized(write(array))


def _oneofs(parts: list[tuple[MessageField, int, Write]]) -> list[list[int]]:
    """Return the places of columns that exclude each other."""
    found: dict[str, list[int]] = {}
    for one, place, _ in parts:
        if one.oneof:
            found.setdefault(one.oneof, []).append(place)
    return [places for places in found.values() if len(places) > 1]


def _message(parts: list[tuple[int, Write]], oneofs: list[list[int]], path: str) -> Write:
    def write(array: pa.Array) -> ByteRows:
        fields = array.flatten()
        for places in oneofs:
            if len(array) and (byte_columns.one_of([fields[place] for place in places]) > 1).any():
                raise ValueError(f"field {path or '(the row)'}: two members of one oneof have a value")
        return byte_columns.joined([write(fields[place]) for place, write in parts], len(array))

    return write


def _single(one: MessageField, value: Write) -> Write:
    """Return what writes a field that is neither repeated nor a map."""
    wire = _wire_type(one.kind)
    tag, zero = _tag(one.number, wire), None if one.presence else ZERO[wire]
    return lambda array: [b"" if written == zero else tag + written for written in value(array)]


def _repeated(one: MessageField, value: Write, path: str) -> Write:
    """Return what writes arrays: numbers packed, which every parser reads whatever the schema says."""
    wire = _wire_type(one.kind)
    tag = _tag(one.number, LEN)

    def write(array: pa.Array) -> ByteRows:
        written = value(byte_columns.full(byte_columns.elements(array), path, _NO_NULL))
        if wire == LEN:
            written = [tag + each for each in written]
        lists = [b"".join(written[begin:end]) for begin, end in pairwise(byte_columns.ends(array))]
        if wire == LEN:
            return lists
        return [tag + byte_columns.varint(len(packed)) + packed if packed else b"" for packed in lists]

    return write


def _map(one: MessageField, key: Write, value: Write, path: str) -> Write:
    """Return what writes maps, in the order that they have."""
    tags = _tag(1, _wire_type(one.key)), _tag(2, _wire_type(one.kind))
    tag = _tag(one.number, LEN)

    def write(array: pa.Array) -> ByteRows:
        keys, items = byte_columns.entries(array)
        values = value(byte_columns.full(items, path, _NO_NULL))
        inside = [tags[0] + a + tags[1] + b for a, b in zip(key(keys), values, strict=True)]
        written = [tag + each for each in sized(inside)]
        return [b"".join(written[begin:end]) for begin, end in pairwise(byte_columns.ends(array))]

    return write


def _raw(message: Any, path: str) -> Write:
    """Return what passes the bytes of a message on, if they are one."""

    def write(array: pa.Array) -> ByteRows:
        found = byte_columns.blobs(array)
        for one in found:
            try:
                message.FromString(one)
            except DecodeError:
                raise ValueError(f"field {path}: the bytes are no {message.DESCRIPTOR.full_name}") from None
        return found

    return write


VARINT, I64, LEN, I32 = 0, 1, 2, 5
"""Wire types."""
ZERO = {VARINT: b"\0", I64: bytes(8), LEN: b"\0", I32: bytes(4)}
"""How zero, or nothing, is written."""
_INTS = (T.ByteType, T.ShortType, T.IntegerType)
_LONGS = (*_INTS, T.LongType)
_TAKES: dict[str, tuple[type[T.DataType], ...]] = {
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


def _takes(kind: str, column: T.DataType) -> bool:
    """Return whether a column can be written as a kind: every value, but for those that have no place in it."""
    if isinstance(column, T.DecimalType):
        return T.DecimalType in _TAKES[kind] and column.scale == 0
    return isinstance(column, _TAKES[kind])


def _wire_type(kind: str) -> int:
    """Return the wire type of a kind."""
    if kind in ("string", "bytes", "message"):
        return LEN
    return {"8": I64, "4": I32}[_FIXED[kind][-1]] if kind in _FIXED else VARINT


def _scalar(kind: str, path: str, names: dict[bytes, int]) -> Write:
    """Return what writes the values of a kind, with their length where they have one; `names` are those of an enum."""
    if kind == "bool":
        return byte_columns.booleans
    if kind == "string":
        return lambda array: sized(byte_columns.texts(array, path))
    if kind == "bytes":
        return lambda array: sized(byte_columns.blobs(array))
    if kind in ("double", "float"):
        return lambda array: byte_columns.fixed(array, _FIXED[kind])
    if kind == "enum":
        return lambda array: byte_columns.varints(_numbers(array, names, path).view(np.uint64))
    return lambda array: _integers(array, kind, path)


def sized(written: ByteRows) -> ByteRows:
    """Return the bytes of each row with their length in front."""
    return [byte_columns.varint(len(one)) + one for one in written]


def _integers(array: pa.Array, kind: str, path: str) -> ByteRows:
    numbers = _unsigned(array, _BITS[kind], path) if kind in _BITS else byte_columns.whole(array)
    if kind in _FIXED:
        raw, width = numbers.astype(_FIXED[kind]).tobytes(), np.dtype(_FIXED[kind]).itemsize
        return [raw[at : at + width] for at in range(0, len(raw), width)]
    if kind.startswith("sint"):
        return byte_columns.zigzags(numbers.view(np.int64))
    return byte_columns.varints(numbers.view(np.uint64))


def _unsigned(array: pa.Array, bits: int, path: str) -> NDArray[np.uint64]:
    what = f"field {path}: the number is below zero or has more than {bits} bits"
    if hasattr(array.type, "scale"):
        large = byte_columns.unscaled(array)
        if any(not 0 <= number < 1 << bits for number in large):
            raise ValueError(what)
        return np.array(large, np.uint64)
    numbers = byte_columns.whole(array)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= 1 << bits):
        raise ValueError(what)
    return numbers.view(np.uint64)


def _numbers(array: pa.Array, names: dict[bytes, int], path: str) -> NDArray[np.int64]:
    """Return the numbers of an enum's names; one that has no name is read, and written, as its digits."""
    return np.array([_number(name, names, path) for name in byte_columns.texts(array, path)], np.int64)


def _number(name: bytes, names: dict[bytes, int], path: str) -> int:
    found = names.get(name)
    if found is None:
        try:
            found = int(name)
        except ValueError:
            found = 1 << 31
    if not -(1 << 31) <= found < 1 << 31 or (name not in names and name != b"%d" % found):
        raise ValueError(f"field {path}: the enum has no such name")
    return found


_SECOND = 1_000_000
_DEEPEST = 90
"""Values within values; google's parsers end at 100 messages, of which a value takes one and an object two."""


def _special(kind: str, of: str, column: T.DataType, path: str) -> Write | None:
    """Return what writes a column as such a message, without its length; None where it does not go with it.

    `kind` is what router_schemas.protobuf.model.SPECIAL calls it, `of` the message's full name.
    """
    if kind == "timestamp" and isinstance(column, T.TimestampType):
        return lambda array: _timestamps(byte_columns.whole(array), path)
    if kind == "duration" and isinstance(column, T.LongType):
        return lambda array: _durations(byte_columns.whole(array), path)
    if kind == "json" and isinstance(column, T.StringType):
        return lambda array: [_json(text, of, path) for text in byte_columns.texts(array, path)]
    if kind in ("timestamp", "duration", "json") or not _takes(kind, column):
        return None
    write, zero, tag = _scalar(kind, path, {}), ZERO[_wire_type(kind)], bytes([1 << 3 | _wire_type(kind)])
    return lambda array: [b"" if one == zero else tag + one for one in write(array)]


def _timestamps(micros: NDArray[np.int64], path: str) -> ByteRows:
    byte_columns.within(micros, *YEARS_1_TO_9999, path, "the time is outside the years 1 to 9999")
    return _seconds(micros // _SECOND, micros % _SECOND)


def _durations(micros: NDArray[np.int64], path: str) -> ByteRows:
    byte_columns.within(micros, *TEN_THOUSAND_YEARS, path, "the duration is longer than 10 000 years")
    seconds = np.where(micros < 0, -(-micros // _SECOND), micros // _SECOND)  # both parts have the sign
    return _seconds(seconds, micros - seconds * _SECOND)


def _seconds(seconds: NDArray[np.int64], micros: NDArray[np.int64]) -> ByteRows:
    whole, rest = byte_columns.varints(seconds.view(np.uint64)), byte_columns.varints((micros * 1000).view(np.uint64))
    return [
        (b"" if one == b"\0" else b"\x08" + one) + (b"" if more == b"\0" else b"\x10" + more)
        for one, more in zip(whole, rest, strict=True)
    ]


def _json(text: bytes, of: str, path: str) -> bytes:
    """Return the message of a JSON text."""
    name = of.rpartition(".")[2]
    try:
        value = json.loads(text, parse_constant=_refused)
        if _depth(value) > _DEEPEST:
            raise ValueError("it is nested too deep")
        message: Any = getattr(struct_pb2, name)()
        ParseDict(value, message)
    except (ValueError, ParseError, RecursionError):
        raise ValueError(f"field {path}: the text is not JSON that {of} can hold") from None
    return bytes(message.SerializeToString(deterministic=True))


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inside), default=0)


def encoded_event(event: Any, files: bytes, message: str) -> bytes:
    """Return the bytes of a message given as in ProtoJSON (protobuf.dev): times as text, bytes in base64.

    `files` is a FileDescriptorSet, `message` a full name in it. Raises ValueError for what the message has not.
    """
    made = message_factory.GetMessageClass(message_of(files, message))()
    try:
        return bytes(ParseDict(event, made).SerializeToString(deterministic=True))
    except (ParseError, TypeError) as error:
        raise ValueError(f"not a {message}: {error}") from None
