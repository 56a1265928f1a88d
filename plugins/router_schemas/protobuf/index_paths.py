"""Read and write the index path that names a message of a .proto file.

A count and as many positions, from the file's root down the nesting, each a zigzag varint; `00` is short for the
first message. Source: Confluent's wire format; see router_schemas.frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from router_schemas.pieces import varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FINE, CUT, RANGE, DEEP = range(4)
PROBLEMS = (
    "frame: the bytes end within the index path of the message",
    "frame: an index of the message is negative or too large",
    "frame: the index path of the message is too long",
)
"""What is wrong, for CUT, RANGE and DEEP in turn."""

DEEPEST = 32
"""Positions that a path may have; compilers nest messages no deeper than that."""
_VARINT = 5
"""Bytes that a 32-bit varint may have."""
_LONGEST = (1 + DEEPEST) * _VARINT
_WINDOW = 8
_FIRST = (0,)

Path = tuple[int, ...]


def encoded(path: Sequence[int]) -> bytes:
    """Return the bytes of an index path; raise ValueError for one that no message can have."""
    if not 0 < len(path) <= DEEPEST or any(not 0 <= index < 2**31 for index in path):
        raise ValueError(f"an index path has 1 to {DEEPEST} positions from 0 on, not {tuple(path)}")
    if tuple(path) == _FIRST:
        return b"\0"
    return b"".join(varint(number << 1) for number in (len(path), *path))


def read(raw: bytes) -> tuple[int, Path, int]:
    """Return (FINE, path, its bytes) of what starts with an index path, or (problem, (), 0)."""
    numbers: list[int] = []
    at, wanted = 0, 1
    while len(numbers) < wanted:
        problem, value, at = _number(raw, at)
        if problem:
            return problem, (), 0
        numbers.append(value)
        wanted = 1 + numbers[0]
        if wanted > 1 + DEEPEST:
            return DEEP, (), 0
    return FINE, tuple(numbers[1:]) or _FIRST, at


def paths_at(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], known: dict[Path, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return for each place of `data` the code of its path, the bytes the path takes, and its problem.

    `known` has the codes of the paths and gains those that are new. The first message, and paths of short positions,
    are read without a loop over the rows.
    """
    codes = np.full(len(begins), -1, np.int64)
    sizes = np.zeros(len(begins), np.int64)
    problems = np.where(begins < ends, FINE, CUT).astype(np.uint8)
    rows = np.flatnonzero(problems == FINE)
    head = data[begins[rows]]
    first = rows[head == 0]
    if len(first):
        codes[first], sizes[first] = known.setdefault(_FIRST, len(known)), 1
    rest = rows[head != 0]
    for raw, alike in _alike(data, begins[rest], ends[rest]):
        at = rest[alike]
        problem, path, size = read(raw)
        problems[at], sizes[at] = problem, size
        if not problem:
            codes[at] = known.setdefault(path, len(known))
    return codes, sizes, problems


def _alike(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[tuple[bytes, NDArray[np.int64]]]:
    """Return the bytes to read a path from, and the rows that have these; most rows share a few paths."""
    if not len(begins):
        return []
    columns = np.arange(_WINDOW)
    at = np.minimum(begins[:, None] + columns, len(data) - 1)
    inside = columns <= (data[begins] >> 1)[:, None]
    window = np.where(inside, data[at], 0).astype(np.uint8)
    size = 1 + (data[begins] >> 1).astype(np.int64)
    short = (size <= np.minimum(_WINDOW, ends - begins)) & (window < 128).all(axis=1)
    found: list[tuple[bytes, NDArray[np.int64]]] = []
    simple = np.flatnonzero(short)
    words, codes = np.unique(window[simple].view(np.uint64).ravel(), return_inverse=True)
    for code, word in enumerate(words):
        found.append((word.tobytes(), simple[codes == code]))
    for row in np.flatnonzero(~short):
        stop = min(int(ends[row]), int(begins[row]) + _LONGEST)
        found.append((data[begins[row] : stop].tobytes(), np.array([row])))
    return found


def _number(raw: bytes, at: int) -> tuple[int, int, int]:
    """Return (FINE, the number, where the next one starts), or a problem."""
    value = 0
    for size in range(_VARINT):
        if at + size >= len(raw):
            return CUT, 0, 0
        byte = raw[at + size]
        value |= (byte & 0x7F) << 7 * size
        if byte < 0x80:
            odd = value & 1 or value >= 2**32
            return (RANGE, 0, 0) if odd else (FINE, value >> 1, at + size + 1)
    return RANGE, 0, 0
