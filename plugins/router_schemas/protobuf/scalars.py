"""Write the values of scalar fields: which columns a kind takes, and its bytes.

Source: protobuf.dev, "Encoding". Of the ranges: the same, "Scalar Value Types".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import types as T

from router_schemas import pieces

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from router_schemas.pieces import Pieces, Write

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


def takes(kind: str, column: T.DataType) -> bool:
    """Say whether a column can be written as a kind: every value, but for those that have no place in it."""
    if isinstance(column, T.DecimalType):
        return T.DecimalType in _TAKES[kind] and column.scale == 0
    return isinstance(column, _TAKES[kind])


def wire_type(kind: str) -> int:
    """Return the wire type of a kind."""
    if kind in ("string", "bytes", "message"):
        return LEN
    return {"8": I64, "4": I32}[_FIXED[kind][-1]] if kind in _FIXED else VARINT


def scalar(kind: str, path: str, names: dict[bytes, int]) -> Write:
    """Return what writes the values of a kind, with their length where they have one; `names` are those of an enum."""
    if kind == "bool":
        return pieces.booleans
    if kind == "string":
        return lambda array: sized(pieces.texts(array, path))
    if kind == "bytes":
        return lambda array: sized(pieces.blobs(array))
    if kind in ("double", "float"):
        return lambda array: pieces.fixed(array, _FIXED[kind])
    if kind == "enum":
        return lambda array: pieces.varints(_numbers(array, names, path).view(np.uint64))
    return lambda array: _integers(array, kind, path)


def sized(written: Pieces) -> Pieces:
    """Return pieces with their length in front."""
    return [pieces.varint(len(one)) + one for one in written]


def _integers(array: pa.Array, kind: str, path: str) -> Pieces:
    numbers = _unsigned(array, _BITS[kind], path) if kind in _BITS else pieces.whole(array)
    if kind in _FIXED:
        raw, width = numbers.astype(_FIXED[kind]).tobytes(), np.dtype(_FIXED[kind]).itemsize
        return [raw[at : at + width] for at in range(0, len(raw), width)]
    if kind.startswith("sint"):
        return pieces.zigzags(numbers.view(np.int64))
    return pieces.varints(numbers.view(np.uint64))


def _unsigned(array: pa.Array, bits: int, path: str) -> NDArray[np.uint64]:
    what = f"field {path}: the number is below zero or has more than {bits} bits"
    if hasattr(array.type, "scale"):
        large = pieces.unscaled(array)
        if any(not 0 <= number < 1 << bits for number in large):
            raise ValueError(what)
        return np.array(large, np.uint64)
    numbers = pieces.whole(array)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= 1 << bits):
        raise ValueError(what)
    return numbers.view(np.uint64)


def _numbers(array: pa.Array, names: dict[bytes, int], path: str) -> NDArray[np.int64]:
    """Return the numbers of an enum's names; one that has no name is read, and written, as its digits."""
    return np.array([_number(name, names, path) for name in pieces.texts(array, path)], np.int64)


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
