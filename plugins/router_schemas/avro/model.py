"""Model an Avro schema: a type at the root, and every named type once, under its full name.

The parser makes it, merge joins several, spark_types gives its columns. Source: Apache Avro 1.12 specification, "Schema
Declaration".

A single-object encoded value names its schema by a fingerprint: two bytes C3 01, the fingerprint as eight bytes in
little-endian order, then the value. Source: the same, "Schema Fingerprints" (CRC-64-AVRO, a Rabin fingerprint) and
"Single-object encoding".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MAX_DEPTH = 100
"""Types inside of types, references followed: far beyond what people write, within what every parser can take."""


@dataclass(frozen=True)
class Logical:
    """A logical type: what a value means beyond its type; `precision` and `scale` are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True)
class Primitive:
    """One of the eight primitive types, under Avro's name for it."""

    name: str
    logical: Logical | None = None


@dataclass(frozen=True)
class Array:
    """An array."""

    items: Type


@dataclass(frozen=True)
class MapOf:
    """A map; its keys are strings."""

    values: Type


@dataclass(frozen=True)
class Union:
    """A union."""

    branches: tuple[Type, ...]


@dataclass(frozen=True)
class Ref:
    """A reference to the record, enum or fixed of that full name."""

    name: str


Type: TypeAlias = Primitive | Array | MapOf | Union | Ref


@dataclass(frozen=True)
class AvroField:
    """A field of a record. Defaults are not kept: they matter to readers, and the reader is made by merge."""

    name: str
    type: Type
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class AvroRecord:
    """A record; `name` and `aliases` are full names."""

    name: str
    fields: tuple[AvroField, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Enum:
    """An enum; `name` and `aliases` are full names."""

    name: str
    symbols: tuple[str, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fixed:
    """A fixed: so many bytes; `name` and `aliases` are full names."""

    name: str
    size: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = ()


Definition: TypeAlias = AvroRecord | Enum | Fixed
NULL = Primitive("null")


@dataclass(frozen=True)
class AvroSchema:
    """A whole schema: `types` has every named type that `root` leads to, in the order of first use."""

    root: Type
    types: Mapping[str, Definition] = field(default_factory=dict)


def inner(kind: Type, types: Mapping[str, Definition]) -> Iterator[Type]:
    """Yield the types directly inside a type, those of the fields for the name of a record."""
    if isinstance(kind, Array):
        yield kind.items
    elif isinstance(kind, MapOf):
        yield kind.values
    elif isinstance(kind, Union):
        yield from kind.branches
    elif isinstance(kind, Ref) and isinstance(record := types[kind.name], AvroRecord):
        yield from (field.type for field in record.fields)


def reachable(root: Type, types: Mapping[str, Definition]) -> dict[str, Definition]:
    """Return the named types that a type leads to, in the order of first use; raise ValueError beyond MAX_DEPTH."""
    found: dict[str, Definition] = {}

    def visit(kind: Type, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"types are nested more than {MAX_DEPTH} deep; register a flatter schema")
        if isinstance(kind, Ref):
            if kind.name in found:
                return
            found[kind.name] = types[kind.name]
        for child in inner(kind, types):
            visit(child, depth + 1)

    visit(root, 0)
    return found


def recursive(schema: AvroSchema) -> tuple[str, ...]:
    """Return the full names of types that contain themselves: at least one of every circle, none when there is none."""
    done: set[str] = set()
    found: list[str] = []

    def visit(kind: Type, trail: tuple[str, ...]) -> None:
        if isinstance(kind, Ref):
            if kind.name in trail:
                found.extend(name for name in trail[trail.index(kind.name) :] if name not in found)
            if kind.name in done:
                return
            done.add(kind.name)
            trail = (*trail, kind.name)
        for child in inner(kind, schema.types):
            visit(child, trail)

    visit(schema.root, ())
    return tuple(found)


def text_of(schema: AvroSchema) -> str:
    """Return the schema as JSON that any Avro library reads: each type is defined at its first use.

    Fields that may be null have the default null, so that the text can be a reader's schema. Raises ValueError for
    the one case that Avro cannot write: a type without a namespace used where a type of that name in the enclosing
    namespace would be meant.
    """
    return json.dumps(_Writing(schema).type(schema.root, ""), separators=(",", ":"), ensure_ascii=False)


def canonical_form(schema: AvroSchema) -> str:
    """Return the Parsing Canonical Form, over which fingerprints are made (specification, same heading)."""
    return json.dumps(_Writing(schema, canonical=True).type(schema.root, ""), separators=(",", ":"), ensure_ascii=False)


class _Writing:
    """The JSON of one schema; the order of the attributes is that of the canonical form."""

    def __init__(self, schema: AvroSchema, canonical: bool = False) -> None:
        self.types = schema.types
        self.canonical = canonical
        self.written: set[str] = set()

    def type(self, kind: Type, space: str) -> Any:
        """Return the JSON of a type that stands inside of a namespace."""
        if isinstance(kind, Primitive):
            meaning = self.meaning(kind.logical)
            return {"type": kind.name, **meaning} if meaning else kind.name
        if isinstance(kind, Array):
            return {"type": "array", "items": self.type(kind.items, space)}
        if isinstance(kind, MapOf):
            return {"type": "map", "values": self.type(kind.values, space)}
        if isinstance(kind, Union):
            return [self.type(branch, space) for branch in kind.branches]
        if kind.name in self.written:
            return self.reference(kind.name, space)
        self.written.add(kind.name)
        return self.definition(self.types[kind.name], space)

    def reference(self, name: str, space: str) -> str:
        """Return the name of a type that is defined already."""
        if not self.canonical and space and "." not in name and f"{space}.{name}" in self.types:
            raise ValueError(
                f"type {name} has no namespace and cannot be distinguished from {space}.{name}; give it one"
            )
        return name

    def definition(self, named: Definition, space: str) -> dict[str, Any]:
        """Return the JSON of a named type, once."""
        own = named.name.rpartition(".")[0]
        written: dict[str, Any] = {"name": named.name}
        if isinstance(named, AvroRecord):
            written |= {"type": "record", "fields": [self.field(field, own) for field in named.fields]}
        elif isinstance(named, Enum):
            written |= {"type": "enum", "symbols": list(named.symbols)}
        else:
            written |= {"type": "fixed", "size": named.size, **self.meaning(named.logical)}
        if not self.canonical:
            if space and not own:
                written["namespace"] = ""
            if named.aliases:
                written["aliases"] = list(named.aliases)
        return written

    def field(self, field: AvroField, space: str) -> dict[str, Any]:
        """Return the JSON of a field."""
        written = {"name": field.name, "type": self.type(field.type, space)}
        if not self.canonical:
            if field.aliases:
                written["aliases"] = list(field.aliases)
            first = field.type.branches[:1] if isinstance(field.type, Union) else (field.type,)
            if first == (NULL,):
                written["default"] = None
        return written

    def meaning(self, logical: Logical | None) -> dict[str, Any]:
        """Return the attributes of a logical type."""
        if logical is None or self.canonical:
            return {}
        numbers = {"precision": logical.precision, "scale": logical.scale} if logical.name == "decimal" else {}
        return {"logicalType": logical.name, **numbers}


PAIRS = ({Primitive("int"), Primitive("long")}, {Primitive("float"), Primitive("double")})
"""Pairs of branches of which one holds the values of both."""


def words(kind: Type, types: Mapping[str, Definition] | None = None) -> str:
    """Return a type for a message; `types` has the named ones."""
    if isinstance(kind, Primitive):
        return f"{kind.name} ({kind.logical})" if kind.logical else kind.name
    if isinstance(kind, Ref):
        named = (types or {})[kind.name]
        what = "record" if isinstance(named, AvroRecord) else type(named).__name__.lower()
        return f"{what} {named.name}"
    if isinstance(kind, Union):
        return f"a union of {', '.join(words(branch, types) for branch in kind.branches)}"
    return "an array" if isinstance(kind, Array) else "a map"


def parts(kind: Type) -> tuple[bool, tuple[Type, ...]]:
    """Return whether a type may be null, and its other branches; int with long counts as long, so do the floats."""
    branches = kind.branches if isinstance(kind, Union) else (kind,)
    rest = tuple(branch for branch in branches if branch != NULL)
    if len(rest) == 2 and set(rest) in PAIRS:
        rest = (Primitive("long" if Primitive("long") in rest else "double"),)
    return NULL in branches, rest


def joined(null: bool, branches: tuple[Type, ...]) -> Type:
    """Return the type of these branches, null first, so that null can be its default."""
    if null and branches:
        return Union((NULL, *branches))
    if len(branches) == 1:
        return branches[0]
    return Union(branches) if branches else NULL


def nullable(kind: Type) -> Type:
    """Return a type with null allowed."""
    return joined(True, parts(kind)[1])


def renamed(kind: Type, names: dict[str, str]) -> Type:
    """Return a type with other names for the types it refers to."""
    if isinstance(kind, Ref):
        return Ref(names[kind.name])
    if isinstance(kind, Array):
        return Array(renamed(kind.items, names))
    if isinstance(kind, MapOf):
        return MapOf(renamed(kind.values, names))
    if isinstance(kind, Union):
        return Union(tuple(renamed(branch, names) for branch in kind.branches))
    return kind


END = bytes.fromhex("a7f3d1c2e4b59680")
"""What has to follow a value for from_avro: eight bytes without a meaning, none of them a small number (library)."""
FINGERPRINT = "fingerprint "
"""What stands before the eight bytes of a fingerprint that is wanted, in the order of the value."""
MARKER = b"\xc3\x01"
"""What a single object begins with."""
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


def single_object_header(schema: AvroSchema) -> bytes:
    """Return the ten bytes before every single-object value of a schema."""
    return MARKER + rabin(canonical_form(schema).encode()).to_bytes(8, "little")
