"""Describe each kind of Protobuf value once: its column, how it is read, and how it is written.

To add a kind, add a member to `Kind`: its parts must all be given, or mypy refuses it. docs/reference/formats.md has
the table that is made of them. A message with fields is no kind of value: it is a struct of its own columns (model).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import Enum, unique
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf import struct_pb2  # type: ignore[import-untyped]
from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pyspark.sql import types as T
from typing_extensions import override

from router_schemas import byte_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from router_schemas.byte_columns import ByteRows


VARINT = 0
I64 = 1
LEN = 2
I32 = 5
"""Wire types."""
PRESENT_FIELD = "_present"
"""The one field of the struct that stands for a message without fields."""


@dataclass(frozen=True)
class WrittenField:
    """The field that values are written to: the path of its column, for messages, and its message or enum `of`."""

    path: str
    of: str
    numbers: dict[bytes, int] = field(default_factory=dict)
    """Name -> number of the enum."""
    message: Any = None
    """Google's class of a message of the schema."""


# Writers return the bytes of each value. Texts and bytes have their length in front; messages do not.


def with_lengths(written: ByteRows) -> ByteRows:
    """Return the bytes of each row with their length in front."""
    return [byte_columns.encode_varint(len(row)) + row for row in written]


def _unsigned_numbers(bits: int, fixed: bool, target: WrittenField, array: pa.Array) -> ByteRows:
    fault = ValueError(f"field {target.path}: the number is below zero or has more than {bits} bits")
    # Only a decimal holds what has 64 bits and no sign.
    if hasattr(array.type, "scale"):
        large = byte_columns.unscaled_integers(array)
        if any(not 0 <= number < 1 << bits for number in large):
            raise fault
        numbers = np.array(large, np.uint64)
    else:
        signed = byte_columns.whole_numbers(array)
        if len(signed) and (int(signed.min()) < 0 or int(signed.max()) >= 1 << bits):
            raise fault
        numbers = signed.view(np.uint64)
    if fixed:
        return byte_columns.encode_fixed(pa.array(numbers), f"<u{bits // 8}")
    return byte_columns.encode_varints(numbers)


def _enum_numbers(target: WrittenField, array: pa.Array) -> ByteRows:
    """Return the numbers of an enum's names; a number without a name is read, and written, as its digits."""
    numbers = [_enum_number(name, target) for name in byte_columns.encode_texts(array, target.path)]
    return byte_columns.encode_varints(np.array(numbers, np.int64).view(np.uint64))


def _enum_number(name: bytes, target: WrittenField) -> int:
    number = target.numbers.get(name)
    if number is None:
        try:
            number = int(name)
        except ValueError:
            number = 1 << 31
        if not -(1 << 31) <= number < 1 << 31 or name != b"%d" % number:
            raise ValueError(f"field {target.path}: the enum has no such name")
    return number


# Messages that are shown as one value


_MICROS_PER_SECOND = 1_000_000
_YEARS_1_TO_9999 = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_TEN_THOUSAND_YEARS_MICROS = (-315_576_000_000_000_000, 315_576_000_000_000_000)
"""What a Timestamp and a Duration may be, in microseconds; the comments of timestamp.proto and duration.proto."""


def _timestamp_messages(target: WrittenField, array: pa.Array) -> ByteRows:
    micros = byte_columns.whole_numbers(array)
    byte_columns.check_bounds(micros, *_YEARS_1_TO_9999, target.path, "the time is outside the years 1 to 9999")
    return _time_messages(micros // _MICROS_PER_SECOND, micros % _MICROS_PER_SECOND)


def _duration_messages(target: WrittenField, array: pa.Array) -> ByteRows:
    micros = byte_columns.whole_numbers(array)
    byte_columns.check_bounds(
        micros, *_TEN_THOUSAND_YEARS_MICROS, target.path, "the duration is longer than 10 000 years"
    )
    # Both parts have the sign.
    seconds = np.where(micros < 0, -(-micros // _MICROS_PER_SECOND), micros // _MICROS_PER_SECOND)
    return _time_messages(seconds, micros - seconds * _MICROS_PER_SECOND)


def _time_messages(seconds: NDArray[np.int64], micros: NDArray[np.int64]) -> ByteRows:
    """Return Timestamps or Durations: field 1 has the seconds, field 2 the nanoseconds; zeros are left out."""
    whole = byte_columns.encode_varints(seconds.view(np.uint64))
    nanos = byte_columns.encode_varints((micros * 1000).view(np.uint64))
    whole = [b"" if number == b"\0" else b"\x08" + number for number in whole]
    nanos = [b"" if number == b"\0" else b"\x10" + number for number in nanos]
    return [seconds_field + nanos_field for seconds_field, nanos_field in zip(whole, nanos, strict=True)]


def _json_text(message_bytes: bytes | None, of: str) -> str | None:
    """Return the JSON of a Struct, Value or ListValue."""
    if message_bytes is None:
        return None
    name = of.rpartition(".")[2]
    message = getattr(struct_pb2, name).FromString(message_bytes)
    value = {"Struct": _json_object, "ListValue": _json_list, "Value": _json_value}[name](message)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _json_texts(array: pa.Array, of: str) -> pa.Array:
    return pa.array([_json_text(message_bytes, of) for message_bytes in array.to_pylist()], pa.string())


def _json_object(message: Any) -> dict[str, Any]:
    return {name: _json_value(value) for name, value in message.fields.items()}


def _json_list(message: Any) -> list[Any]:
    return [_json_value(value) for value in message.values]


def _json_value(message: Any) -> Any:
    match message.WhichOneof("kind"):
        case "struct_value":
            return _json_object(message.struct_value)
        case "list_value":
            return _json_list(message.list_value)
        case "number_value":
            return _json_number(message.number_value)
        case "null_value" | None:
            return None
        case kind:
            return getattr(message, kind)


_EXACT_INTEGERS_BELOW = 2**53
"""Below this an integral double has no digits that it does not hold."""


def _json_number(number: float) -> float | int | str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number.is_integer() and abs(number) < _EXACT_INTEGERS_BELOW:
        return int(number)
    return number


_MAX_JSON_DEPTH = 90
"""Values within values; google's parsers end at 100 messages, of which a value takes one and an object two."""


def _json_messages(target: WrittenField, array: pa.Array) -> ByteRows:
    message_class = getattr(struct_pb2, target.of.rpartition(".")[2])
    return [_json_message(text, message_class(), target) for text in byte_columns.encode_texts(array, target.path)]


def _json_message(text: bytes, message: Any, target: WrittenField) -> bytes:
    """Return the message of a JSON text."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if _json_depth(value) > _MAX_JSON_DEPTH:
            raise ValueError("it is nested too deep")
        ParseDict(value, message)
    except (ValueError, ParseError, RecursionError):
        raise ValueError(f"field {target.path}: the text is not JSON that {target.of} can hold") from None
    return bytes(message.SerializeToString(deterministic=True))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json_depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 1
    return 1 + max(map(_json_depth, value), default=0)


def _presence_column(array: pa.Array, of: str) -> pa.Array:
    present = pa.array(np.ones(len(array), bool))
    return pa.StructArray.from_arrays([present], fields=list(Kind.EMPTY.value.arrow), mask=array.is_null())


def _checked_messages(target: WrittenField, array: pa.Array) -> ByteRows:
    """Return the bytes of messages as they are; refuse bytes that are none."""
    blobs = byte_columns.binary_values(array)
    for blob in blobs:
        try:
            target.message.FromString(blob)
        except DecodeError:
            raise ValueError(f"field {target.path}: the bytes are no {target.of}") from None
    return blobs


@dataclass(frozen=True, eq=False)
class Description:
    """All that differs between kinds.

    `arrow` is the type of the column, `columns` the types of Spark that are written to a field of this kind,
    `declares` those among them for which a schema made for columns has it. `wire` is the wire type.
    `read` makes the column of the bytes of messages, given their full name; None: the native decoder reads the values.
    `bounds` are those of a time, in microseconds.
    """

    arrow: pa.DataType
    columns: tuple[type[T.DataType], ...]
    declares: tuple[type[T.DataType], ...]
    wire: int
    write: Callable[[WrittenField, pa.Array], ByteRows]
    read: Callable[[pa.Array, str], pa.Array] | None = None
    bounds: tuple[int, int] | None = None
    title: str = ""
    """How docs/reference/formats.md calls it, if neither a scalar's name nor the name of a message says it."""
    note: str = ""
    """What that page adds."""


_INTS = (T.ByteType, T.ShortType, T.IntegerType)
_LONGS = (*_INTS, T.LongType)


@unique
class Kind(Enum):
    """A kind of value: a scalar as .proto files name it, an enum, or a message that is shown as one value."""

    @override
    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        # By name: a task that gets a member would look it up by its description, whose functions are others there.
        return getattr, (Kind, self.name)

    DOUBLE = Description(
        arrow=pa.float64(),
        columns=(*_INTS, T.FloatType, T.DoubleType),
        declares=(T.DoubleType,),
        wire=I64,
        write=lambda _, array: byte_columns.encode_fixed(array, "<f8"),
    )
    FLOAT = Description(
        arrow=pa.float32(),
        columns=(T.FloatType,),
        declares=(T.FloatType,),
        wire=I32,
        write=lambda _, array: byte_columns.encode_fixed(array, "<f4"),
    )
    INT32 = Description(
        arrow=pa.int32(),
        columns=_INTS,
        declares=_INTS,
        wire=VARINT,
        write=lambda _, array: byte_columns.encode_varints(byte_columns.whole_numbers(array).view(np.uint64)),
    )
    SINT32 = Description(
        arrow=pa.int32(),
        columns=_INTS,
        declares=(),
        wire=VARINT,
        write=lambda _, array: byte_columns.encode_zigzags(byte_columns.whole_numbers(array)),
    )
    SFIXED32 = Description(
        arrow=pa.int32(),
        columns=_INTS,
        declares=(),
        wire=I32,
        write=lambda _, array: byte_columns.encode_fixed(array, "<i4"),
    )
    INT64 = Description(
        arrow=pa.int64(),
        columns=_LONGS,
        declares=(T.LongType,),
        wire=VARINT,
        write=lambda _, array: byte_columns.encode_varints(byte_columns.whole_numbers(array).view(np.uint64)),
    )
    SINT64 = Description(
        arrow=pa.int64(),
        columns=_LONGS,
        declares=(),
        wire=VARINT,
        write=lambda _, array: byte_columns.encode_zigzags(byte_columns.whole_numbers(array)),
    )
    SFIXED64 = Description(
        arrow=pa.int64(),
        columns=_LONGS,
        declares=(),
        wire=I64,
        write=lambda _, array: byte_columns.encode_fixed(array, "<i8"),
    )
    UINT32 = Description(
        arrow=pa.int64(),
        columns=_LONGS,
        declares=(),
        wire=VARINT,
        write=partial(_unsigned_numbers, 32, False),
        note="Spark has no unsigned types",
    )
    FIXED32 = Description(
        arrow=pa.int64(),
        columns=_LONGS,
        declares=(),
        wire=I32,
        write=partial(_unsigned_numbers, 32, True),
        note="Spark has no unsigned types",
    )
    UINT64 = Description(
        arrow=pa.decimal128(20, 0),
        columns=(*_LONGS, T.DecimalType),
        declares=(T.DecimalType,),
        wire=VARINT,
        write=partial(_unsigned_numbers, 64, False),
        note="of decimals only decimal(20,0) declares it",
    )
    FIXED64 = Description(
        arrow=pa.decimal128(20, 0),
        columns=(*_LONGS, T.DecimalType),
        declares=(),
        wire=I64,
        write=partial(_unsigned_numbers, 64, True),
    )
    BOOL = Description(
        arrow=pa.bool_(),
        columns=(T.BooleanType,),
        declares=(T.BooleanType,),
        wire=VARINT,
        write=lambda _, array: byte_columns.encode_booleans(array),
    )
    STRING = Description(
        arrow=pa.string(),
        columns=(T.StringType,),
        declares=(T.StringType,),
        wire=LEN,
        write=lambda target, array: with_lengths(byte_columns.encode_texts(array, target.path)),
    )
    BYTES = Description(
        arrow=pa.binary(),
        columns=(T.BinaryType,),
        declares=(T.BinaryType,),
        wire=LEN,
        write=lambda _, array: with_lengths(byte_columns.binary_values(array)),
    )
    ENUM = Description(
        arrow=pa.string(),
        columns=(T.StringType,),
        declares=(),
        wire=VARINT,
        write=_enum_numbers,
        note="its name; the digits of a number that has none",
    )
    TIMESTAMP = Description(
        arrow=pa.timestamp("us", "UTC"),
        columns=(T.TimestampType,),
        declares=(T.TimestampType,),
        wire=LEN,
        write=_timestamp_messages,
        bounds=_YEARS_1_TO_9999,
        note="microseconds; outside the years 1 to 9999 a dead letter",
    )
    DURATION = Description(
        arrow=pa.int64(),
        columns=(T.LongType,),
        declares=(),
        wire=LEN,
        write=_duration_messages,
        bounds=_TEN_THOUSAND_YEARS_MICROS,
        note="microseconds",
    )
    JSON = Description(
        arrow=pa.string(),
        columns=(T.StringType,),
        declares=(),
        wire=LEN,
        write=_json_messages,
        read=_json_texts,
        note="JSON, keys sorted",
    )
    EMPTY = Description(
        arrow=pa.struct([(PRESENT_FIELD, pa.bool_())]),
        columns=(T.StructType,),
        declares=(),
        wire=LEN,
        write=lambda _, array: [b""] * len(array),
        read=_presence_column,
        title="message without fields",
    )
    RAW = Description(
        arrow=pa.binary(),
        columns=(T.BinaryType,),
        declares=(),
        wire=LEN,
        write=_checked_messages,
        read=lambda array, _: array,
        title="a message within itself; more than 16 levels",
        note="its bytes",
    )

    @override
    def __str__(self) -> str:
        return self.name.lower()

    def accepts_column(self, column: T.DataType) -> bool:
        """Return whether a column can be written as this kind; single values may still be out of its range."""
        # Of all columns only decimals have a scale.
        return isinstance(column, self.value.columns) and getattr(column, "scale", 0) == 0


WRAPPERS = {
    "google.protobuf.DoubleValue": Kind.DOUBLE,
    "google.protobuf.FloatValue": Kind.FLOAT,
    "google.protobuf.Int64Value": Kind.INT64,
    "google.protobuf.UInt64Value": Kind.UINT64,
    "google.protobuf.Int32Value": Kind.INT32,
    "google.protobuf.UInt32Value": Kind.UINT32,
    "google.protobuf.BoolValue": Kind.BOOL,
    "google.protobuf.StringValue": Kind.STRING,
    "google.protobuf.BytesValue": Kind.BYTES,
}
"""Messages whose field 1 has a value of that kind, which they stand for."""
SPECIAL_KINDS = {
    "google.protobuf.Timestamp": Kind.TIMESTAMP,
    "google.protobuf.Duration": Kind.DURATION,
    "google.protobuf.Struct": Kind.JSON,
    "google.protobuf.Value": Kind.JSON,
    "google.protobuf.ListValue": Kind.JSON,
    **WRAPPERS,
}
"""Messages of google/protobuf/ that stand for one value; any other is a message like those of users."""
SPECIAL_FILES = tuple(f"google/protobuf/{stem}.proto" for stem in ("duration", "struct", "timestamp", "wrappers"))
"""The files that define them."""

WIDER_KINDS: dict[frozenset[Kind | None], Kind] = {
    frozenset({Kind.INT32, Kind.INT64}): Kind.INT64,
    frozenset({Kind.INT32, Kind.UINT32}): Kind.INT64,
    frozenset({Kind.UINT32, Kind.INT64}): Kind.INT64,
    frozenset({Kind.SINT32, Kind.SINT64}): Kind.SINT64,
}
"""Pairs whose bytes the wider kind reads right, into a column that a table can widen to."""
