"""Write whole columns at once: for every row of an array the bytes that stand for it.

Avro and Protobuf both write the fields of a record one after the other, so a record is the concatenation of what its
columns write. Every function takes an array without nulls, except where its docstring allows them, and raises
ValueError with the field if a value cannot be written: the caller finds the row by halving
(router_encoders.registry_encoder).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


V = TypeVar("V")
ByteRows: TypeAlias = "list[bytes]"
Write: TypeAlias = "Callable[[pa.Array], ByteRows]"

_MAX_VARINT_BYTES = 10
"""Bytes of the longest varint."""


def encode_varint(number: int) -> bytes:
    """Return a non-negative integer as a varint: seven bits a byte, the lowest first."""
    if number < len(_SMALL_VARINTS):
        return _SMALL_VARINTS[number]
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


_SMALL_VARINTS: tuple[bytes, ...] = ()  # empty while `encode_varint` fills it
_SMALL_VARINTS = tuple(encode_varint(number) for number in range(1 << 12))
"""The varints of small numbers: nearly all lengths are among them."""


def encode_varints(numbers: NDArray[np.uint64]) -> ByteRows:
    """Return the varint of each number."""
    # All numbers at once: a row of ten bytes for each, of which the first `sizes` count.
    wide = np.zeros((len(numbers), _MAX_VARINT_BYTES), np.uint8)
    sizes = np.ones(len(numbers), np.int64)
    for place in range(_MAX_VARINT_BYTES):
        wide[:, place] = numbers & np.uint64(0x7F)
        numbers = numbers >> np.uint64(7)
        more = numbers != 0
        if not more.any():
            break
        wide[more, place] |= 0x80
        sizes += more
    raw = wide.tobytes()
    starts = range(0, len(raw), _MAX_VARINT_BYTES)
    return [raw[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)]


def encode_zigzags(numbers: NDArray[np.int64]) -> ByteRows:
    """Return the varint of each number, with its sign in the lowest bit."""
    return encode_varints(((numbers << np.int64(1)) ^ (numbers >> np.int64(63))).view(np.uint64))


def whole_numbers(array: pa.Array) -> NDArray[np.int64]:
    """Return an array of integers, dates or timestamps as numbers: integers, days or microseconds."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    elif pa.types.is_date(array.type):
        array = array.cast(pa.date32()).cast(pa.int32())
    numbers: NDArray[np.int64] = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def encode_fixed(array: pa.Array, kind: str) -> ByteRows:
    """Return numbers in their fixed width, as numpy names it: `<f8`."""
    raw = array.to_numpy(zero_copy_only=False).astype(kind).tobytes()
    width = np.dtype(kind).itemsize
    return [raw[start : start + width] for start in range(0, len(raw), width)]


def encode_booleans(array: pa.Array) -> ByteRows:
    """Return a byte for each value, 0 or 1."""
    return [b"\1" if value else b"\0" for value in array.to_pylist()]


def encode_texts(array: pa.Array, path: str) -> ByteRows:
    """Return the bytes of texts. They must be UTF-8, which Spark does not check."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise ValueError(f"field {path}: the text is not UTF-8") from None
    if pa.types.is_large_string(array.type):
        return binary_values(array.cast(pa.large_binary()))
    return binary_values(array.cast(pa.binary()))


def binary_values(array: pa.Array) -> ByteRows:
    """Return the values of a binary array."""
    values: ByteRows = array.to_pylist()
    return values


def unscaled_integers(array: pa.Array) -> list[int]:
    """Return decimals as integers, without their point."""
    if not len(array):
        return []
    narrow = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    # Read Arrow's own bytes: Python's decimals would round at 28 digits.
    raw = narrow.buffers()[1].to_pybytes()[16 * narrow.offset : 16 * (narrow.offset + len(narrow))]
    return [int.from_bytes(raw[start : start + 16], "little", signed=True) for start in range(0, len(raw), 16)]


def join_rows(columns: Sequence[ByteRows], rows: int) -> ByteRows:
    """Join the bytes of columns row by row; without columns, return empty bytes for each of the `rows`."""
    if not columns:
        return [b""] * rows
    return [b"".join(row) for row in zip(*columns, strict=True)]


def or_null(array: pa.Array, write: Callable[[pa.Array], list[V]], null: V) -> list[V]:
    """Write an array that may have nulls, with `null` in their places."""
    if not array.null_count:
        return write(array)
    written = iter(write(array.drop_null()))
    return [next(written) if valid else null for valid in array.is_valid().to_pylist()]


def list_bounds(array: pa.Array) -> list[int]:
    """Return where the lists (or maps) of an array begin, and where the last one ends, counted from the first."""
    offsets = np.asarray(array.offsets)
    if not len(offsets):
        return [0]
    from_first: list[int] = (offsets - offsets[0]).tolist()
    return from_first


def list_elements(array: pa.Array) -> pa.Array:
    """Return the values of all lists of an array, one behind the other."""
    return _used_part(array, array.values)


def map_entries(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all maps of an array."""
    return _used_part(array, array.keys), _used_part(array, array.items)


def _used_part(array: pa.Array, child: pa.Array) -> pa.Array:
    """Return the part of a child array that the lists of an array refer to: a slice shares its child with others."""
    if not len(array):
        return child[:0]
    first = array.offsets[0].as_py()
    last = array.offsets[-1].as_py()
    return child.slice(first, last - first)


def check_bounds(numbers: NDArray[np.int64], least: int, most: int, path: str, fault: str) -> None:
    """Raise ValueError with `fault` if a number is outside its bounds."""
    if len(numbers) and (int(numbers.min()) < least or int(numbers.max()) > most):
        raise ValueError(f"field {path}: {fault}")


def refuse_nulls(array: pa.Array, path: str, fault: str) -> pa.Array:
    """Return an array that must not have nulls; raise ValueError with `fault` if it has."""
    if array.null_count:
        raise ValueError(f"field {path}: {fault}")
    return array


def one_of(fields: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return how many of some fields have a value, row by row."""
    valid = [pc.is_valid(field).to_numpy(zero_copy_only=False) for field in fields]
    counts: NDArray[np.int64] = np.sum(valid, 0, np.int64)
    return counts
