"""Write columns without others inside as Avro's primitive types, enums and fixed: see write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas import pieces
from router_schemas.avro.mapping import DIGITS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from router_schemas.avro.schema import Enum, Fixed, Logical, Primitive
    from router_schemas.pieces import Pieces, Write

_INTS = (T.ByteType, T.ShortType, T.IntegerType)
_PLAIN: dict[tuple[str, str], tuple[type[T.DataType], ...]] = {
    ("boolean", ""): (T.BooleanType,),
    **dict.fromkeys((("int", ""), ("int", "time-millis")), _INTS),
    ("long", ""): (*_INTS, T.LongType),
    **dict.fromkeys(
        (("long", "time-micros"), ("long", "timestamp-nanos"), ("long", "local-timestamp-nanos")), (T.LongType,)
    ),
    ("float", ""): (T.FloatType,),
    ("double", ""): (*_INTS, T.FloatType, T.DoubleType),
    **dict.fromkeys((("string", ""), ("string", "uuid")), (T.StringType,)),
    **dict.fromkeys((("bytes", ""), ("bytes", "big-decimal")), (T.BinaryType,)),
    ("int", "date"): (T.DateType,),
    **dict.fromkeys((("long", "timestamp-micros"), ("long", "timestamp-millis")), (T.TimestampType,)),
    **dict.fromkeys((("long", "local-timestamp-micros"), ("long", "local-timestamp-millis")), (T.TimestampNTZType,)),
}
"""The columns that a primitive type with a logical type takes."""


def primitive(kind: Primitive, column: T.DataType, path: str) -> Write | None:
    """Return what writes a column without nulls as a primitive type; None where it does not go with it."""
    logical = kind.logical
    if kind.name == "bytes" and logical and logical.name == "decimal":
        return _decimal_or_bytes(logical, column, 0, sized)
    fits = isinstance(column, _PLAIN.get((kind.name, logical.name if logical else ""), ()))
    return _written(kind, path) if fits else None


def fixed(named: Fixed, column: T.DataType, path: str) -> Write | None:
    """Return what writes a column without nulls as so many bytes; None where it does not go with it."""
    exact = _exact(named.size, path)
    if named.logical and named.logical.name == "decimal":
        return _decimal_or_bytes(named.logical, column, named.size, exact)
    return exact if isinstance(column, T.BinaryType) else None


def _decimal_or_bytes(logical: Logical, column: T.DataType, size: int, blobs: Write) -> Write | None:
    """Return what writes a decimal; one beyond Spark's digits is read, and written, as its bytes."""
    if isinstance(column, T.DecimalType) and _holds(logical, column):
        return _decimal(logical.scale - column.scale, size)
    return blobs if isinstance(column, T.BinaryType) and logical.precision > DIGITS else None


def _holds(logical: Logical, column: T.DecimalType) -> bool:
    """Say whether a decimal of the schema has no fewer digits before and after the point than a column."""
    more = logical.scale - column.scale
    return more >= 0 and logical.precision - column.precision >= more


def long(number: int) -> bytes:
    """Return a whole number that is not below zero."""
    return pieces.varint(number << 1)


def sized(array: pa.Array) -> Pieces:
    """Return bytes with their length in front."""
    return [long(len(one)) + one for one in pieces.blobs(array)]


def _written(kind: Primitive, path: str) -> Write:
    """Return what writes a column of a type that goes with a primitive type."""
    if kind.name == "boolean":
        return pieces.booleans
    if kind.name in ("float", "double"):
        return lambda array: pieces.fixed(array, "<f4" if kind.name == "float" else "<f8")
    if kind.name == "string":
        return lambda array: [long(len(one)) + one for one in pieces.texts(array, path)]
    if kind.name == "bytes":
        return sized
    if kind.logical and kind.logical.name.endswith("timestamp-millis"):
        return lambda array: pieces.zigzags(_milliseconds(array, path))
    return lambda array: pieces.zigzags(pieces.whole(array))


def _milliseconds(array: pa.Array, path: str) -> NDArray[np.int64]:
    micros = pieces.whole(array)
    if (micros % 1000).any():
        what = "the time has microseconds, and the schema keeps milliseconds; cut it in `select`"
        raise ValueError(f"field {path}: {what}")
    return micros // 1000


def _decimal(more: int, size: int = 0) -> Write:
    """Return what writes decimals with more digits after the point, in so many bytes (0: as many as it takes)."""

    def write(array: pa.Array) -> Pieces:
        numbers = [number * 10**more for number in pieces.unscaled(array)]
        if size:
            return [number.to_bytes(size, "big", signed=True) for number in numbers]
        shortest = [number.to_bytes(_bytes(number), "big", signed=True) for number in numbers]
        return [long(len(one)) + one for one in shortest]

    return write


def _bytes(number: int) -> int:
    """Return the bytes that a number takes in two's complement."""
    return (number if number >= 0 else ~number).bit_length() // 8 + 1


def _exact(size: int, path: str) -> Write:
    def write(array: pa.Array) -> Pieces:
        found = pieces.blobs(array)
        if any(len(one) != size for one in found):
            raise ValueError(f"field {path}: the schema takes {size} bytes, no more and no fewer")
        return found

    return write


def enum(named: Enum, path: str) -> Write:
    """Return what writes texts as the symbols of an enum."""
    places = {symbol.encode(): long(place) for place, symbol in enumerate(named.symbols)}

    def write(array: pa.Array) -> Pieces:
        try:
            return [places[one] for one in pieces.texts(array, path)]
        except KeyError:
            raise ValueError(f"field {path}: enum {named.name} has no such symbol") from None

    return write
