"""Find the schema of a single-object encoded value by its fingerprint.

Source: Apache Avro 1.12 specification, "Schema Fingerprints" (CRC-64-AVRO, a Rabin fingerprint) and "Single-object
encoding": two bytes C3 01, the fingerprint as eight bytes in little-endian order, then the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_schemas.avro.schema import canonical_form

if TYPE_CHECKING:
    from router_schemas.avro.schema import Schema

MARKER = b"\xc3\x01"
EMPTY = 0xC15D213AA4D7A795


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (EMPTY if value & 1 else 0)  # noqa: PLW2901 - the register of the division
        table.append(value)
    return tuple(table)


TABLE = _table()


def rabin(data: bytes) -> int:
    """Return the CRC-64-AVRO of bytes, unsigned."""
    value = EMPTY
    for byte in data:
        value = (value >> 8) ^ TABLE[(value ^ byte) & 0xFF]
    return value


def single_object_header(schema: Schema) -> bytes:
    """Return the ten bytes before every single-object value of a schema."""
    return MARKER + rabin(canonical_form(schema).encode()).to_bytes(8, "little")
