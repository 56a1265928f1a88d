"""Write whole columns at once: for every row of an array the bytes that stand for it.

Avro and Protobuf both put the fields of a record one behind the other, so a record is the concatenation of what its
columns write. Every function takes an array without nulls unless it says otherwise, and raises ValueError with the
field where a value cannot be written: the caller finds the row by halving (router_encoders.registry_encoder).
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

_LONGEST = 10
"""Bytes of the longest varint."""


def varint(number: int) -> bytes:
    """Return a whole number, not below zero, seven bits a byte, the lowest first."""
    if number < len(_SHORT):
        return _SHORT[number]
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


_SHORT: tuple[bytes, ...] = ()
_SHORT = tuple(varint(number) for number in range(1 << 12))
"""Lengths are short nearly always."""


def varints(numbers: NDArray[np.uint64]) -> ByteRows:
    """Return many varints."""
    wide = np.zeros((len(numbers), _LONGEST), np.uint8)
    sizes = np.ones(len(numbers), np.int64)
    for place in range(_LONGEST):
        wide[:, place] = numbers & np.uint64(0x7F)
        numbers = numbers >> np.uint64(7)
        more = numbers != 0
        if not more.any():
            break
        wide[more, place] |= 0x80
        sizes += more
    raw = wide.tobytes()
    return [raw[at : at + size] for at, size in zip(range(0, len(raw), _LONGEST), sizes.tolist(), strict=True)]


def zigzags(numbers: NDArray[np.int64]) -> ByteRows:
    """Return many varints with the sign in the lowest bit."""
    return varints(((numbers << np.int64(1)) ^ (numbers >> np.int64(63))).view(np.uint64))


def whole(array: pa.Array) -> NDArray[np.int64]:
    """Return the numbers of an array of integers, days or microseconds."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    elif pa.types.is_date(array.type):
        array = array.cast(pa.date32()).cast(pa.int32())
    found: NDArray[np.int64] = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def fixed(array: pa.Array, kind: str) -> ByteRows:
    """Return numbers in their fixed width, as numpy names it: `<f8`."""
    raw = array.to_numpy(zero_copy_only=False).astype(kind).tobytes()
    width = np.dtype(kind).itemsize
    return [raw[at : at + width] for at in range(0, len(raw), width)]


def booleans(array: pa.Array) -> ByteRows:
    """Return a byte for each, 0 or 1."""
    return [b"\1" if one else b"\0" for one in array.to_pylist()]


def texts(array: pa.Array, path: str) -> ByteRows:
    """Return the bytes of texts; they have to be UTF-8, which Spark does not check."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise ValueError(f"field {path}: the text is not UTF-8") from None
    return blobs(array.cast(pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()))


def blobs(array: pa.Array) -> ByteRows:
    """Return the values of a binary array."""
    found: ByteRows = array.to_pylist()
    return found


def unscaled(array: pa.Array) -> list[int]:
    """Return decimals without their point; by their bytes, for Python's decimals round at 28 digits."""
    if not len(array):
        return []
    narrow = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    raw = narrow.buffers()[1].to_pybytes()[16 * narrow.offset : 16 * (narrow.offset + len(narrow))]
    return [int.from_bytes(raw[at : at + 16], "little", signed=True) for at in range(0, len(raw), 16)]


def joined(columns: Sequence[ByteRows], rows: int) -> ByteRows:
    """Return what columns write, row by row."""
    return [b"".join(row) for row in zip(*columns, strict=True)] if columns else [b""] * rows


def or_null(array: pa.Array, write: Callable[[pa.Array], list[V]], null: V) -> list[V]:
    """Return what is written of an array that may have nulls."""
    if not array.null_count:
        return write(array)
    written = iter(write(array.drop_null()))
    return [next(written) if one else null for one in array.is_valid().to_pylist()]


def ends(array: pa.Array) -> list[int]:
    """Return where the lists (or maps) of an array begin, and where the last one ends, counted from the first."""
    offsets = np.asarray(array.offsets)
    found: list[int] = (offsets - offsets[0]).tolist() if len(offsets) else [0]
    return found


def elements(array: pa.Array) -> pa.Array:
    """Return the values of all lists of an array, one behind the other."""
    return _used(array, array.values)


def entries(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all maps of an array."""
    return _used(array, array.keys), _used(array, array.items)


def _used(array: pa.Array, child: pa.Array) -> pa.Array:
    offsets = array.offsets
    if not len(array):
        return child[:0]
    return child.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py())


def within(numbers: NDArray[np.int64], least: int, most: int, path: str, what: str) -> None:
    """Raise ValueError if a number is outside its bounds."""
    if len(numbers) and not (least <= int(numbers.min()) and int(numbers.max()) <= most):
        raise ValueError(f"field {path}: {what}")


def full(array: pa.Array, path: str, what: str) -> pa.Array:
    """Return an array that must not have nulls; raise ValueError where it has."""
    if array.null_count:
        raise ValueError(f"field {path}: {what}")
    return array


def one_of(fields: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return how many of some fields have a value, row by row."""
    found: NDArray[np.int64] = np.sum([pc.is_valid(one).to_numpy(zero_copy_only=False) for one in fields], 0, np.int64)
    return found
