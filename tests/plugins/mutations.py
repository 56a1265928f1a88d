"""Spoil framed values in the ways that networks, disks and other people's programs do, and in hostile ones."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from router_schemas.model import VALUE_HEADER
from router_schemas.wire_format import guid_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random
    from uuid import UUID

    Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]

Record = tuple["bytes | None", "dict[str, bytes] | None"]
FRAME = 5
TELLING = [
    b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\1", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f",
    b"\0" * 8, b"\x80" * 10, b"\xed\xa0\x80", b"\xc3(", b"\xef\xbb\xbf", b'"', b"{", b"}", b"[", b"]", b",", b":",
    b"null", b"NaN", b"1e999", b"-", b"9" * 40, b'"\\ud800"', b'{"a":' * 40, b"[" * 200, b" ", b"\n", b"\x0b", b"\\",
]  # fmt: skip
"""Bytes that mean something to one of the formats: lengths, group tags, surrogates, brackets, numbers."""


def _flip(value: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    spoilt = bytearray(value or b"\0")
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        spoilt[random.randrange(len(spoilt))] ^= 1 << random.randrange(8)
    return bytes(spoilt)


def _cut(value: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return value[: random.randrange(len(value) + 1)]


def _delete(value: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(value) + 1)
    return value[:at] + value[at + random.randrange(1, 6) :]


def _insert(value: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(value) + 1)
    return value[:at] + random.choice(TELLING) + value[at + random.choice((0, 0, 1, 2)) :]


def _repeat(value: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at, size = random.randrange(len(value) + 1), random.randrange(1, 30)
    return value[: at + size] + value[at : at + size] * random.choice((1, 1, 3)) + value[at + size :]


def _splice(value: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    return value[: random.randrange(len(value) + 1)] + other[random.randrange(len(other) + 1) :]


def _other_schema(value: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    return random.choice(others)[:FRAME] + value[FRAME:]


def _other_id(value: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return b"\0" + struct.pack(">I", random.choice((0, 1, 77, 2**31 - 1, 2**31, 2**32 - 1))) + value[FRAME:]


def _noise(value: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return value[: random.choice((0, FRAME, FRAME + 1))] + random.randbytes(random.randrange(60))


def _twice(value: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    return MUTATIONS[random.randrange(len(MUTATIONS) - 1)](_flip(value, random, others), random, others)


MUTATIONS: tuple[Mutation, ...] = (
    _flip, _flip, _cut, _delete, _insert, _insert, _repeat, _splice, _other_schema, _other_id, _noise, _twice,
)  # fmt: skip


def mutated(random: Random, good: Sequence[bytes], guids: Sequence[UUID], count: int) -> list[Record]:
    """Return so many values with their headers: one in ten is good, one in fifty is framed by a header."""
    return [_record(random, good, guids) for _ in range(count)]


def _record(random: Random, good: Sequence[bytes], guids: Sequence[UUID]) -> Record:
    value: bytes | None = random.choice(good)
    assert value is not None
    if random.random() < 0.9:
        value = random.choice(MUTATIONS)(value, random, good)
    if random.random() < 0.98:
        return (None if random.random() < 0.002 else value), None
    header = guid_header(random.choice(guids), random.choice((None, (0,), (1,), (0, 0), (9,))))
    header = random.choice((header, header, header[: random.randrange(len(header))], random.randbytes(17)))
    return value[FRAME:], {VALUE_HEADER: header, "other": b"x"}
