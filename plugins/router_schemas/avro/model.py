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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MAX_TYPE_DEPTH = 100
"""Levels of types inside types, references followed: far more than people write, and no parser fails at it."""


PrimitiveName: TypeAlias = Literal["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LogicalName: TypeAlias = Literal[
    "date",
    "time-millis",
    "time-micros",
    "timestamp-millis",
    "timestamp-micros",
    "timestamp-nanos",
    "local-timestamp-millis",
    "local-timestamp-micros",
    "local-timestamp-nanos",
    "decimal",
    "big-decimal",
    "uuid",
    "duration",
]


@dataclass(frozen=True)
class Logical:
    """A logical type: what a value means beyond its type; `precision` and `scale` are those of a decimal."""

    name: LogicalName
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True)
class Primitive:
    """One of the eight primitive types, under Avro's name for it."""

    name: PrimitiveName
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
    """A field of a record. Defaults are not kept: only readers need them, and merge makes the reader."""

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
    """A fixed, `size` bytes; `name` and `aliases` are full names."""

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


def inner_types(kind: Type, types: Mapping[str, Definition]) -> Iterator[Type]:
    """Yield the types directly inside a type; for a reference to a record, the types of its fields."""
    match kind:
        case Array(items):
            yield items
        case MapOf(values):
            yield values
        case Union(branches):
            yield from branches
        case Ref(name):
            definition = types[name]
            if isinstance(definition, AvroRecord):
                yield from (field.type for field in definition.fields)


def reachable_types(root: Type, types: Mapping[str, Definition]) -> dict[str, Definition]:
    """Return the named types that a type leads to, in the order of first use.

    Raises ValueError if types are nested deeper than MAX_TYPE_DEPTH.
    """
    definitions: dict[str, Definition] = {}

    def visit_type(kind: Type, depth: int) -> None:
        if depth > MAX_TYPE_DEPTH:
            raise ValueError(f"types are nested more than {MAX_TYPE_DEPTH} deep; register a flatter schema")
        if isinstance(kind, Ref):
            if kind.name in definitions:
                return
            definitions[kind.name] = types[kind.name]
        for child in inner_types(kind, types):
            visit_type(child, depth + 1)

    visit_type(root, 0)
    return definitions


def recursive_types(schema: AvroSchema) -> tuple[str, ...]:
    """Return the full names of types that contain themselves, at least one of every circle."""
    visited: set[str] = set()
    names: dict[str, None] = {}

    def visit_type(kind: Type, trail: tuple[str, ...]) -> None:
        if isinstance(kind, Ref):
            if kind.name in trail:
                names.update(dict.fromkeys(trail[trail.index(kind.name) :]))
            if kind.name in visited:
                return
            visited.add(kind.name)
            trail = (*trail, kind.name)
        for child in inner_types(kind, schema.types):
            visit_type(child, trail)

    visit_type(schema.root, ())
    return tuple(names)


def text_of(schema: AvroSchema) -> str:
    """Return the schema as JSON that any Avro library reads: each type is defined at its first use.

    Fields that may be null have the default null, so that the text can be a reader's schema. Raises ValueError in
    the one case that Avro cannot write: a type without a namespace is used inside a namespace that has a type of the
    same name.
    """
    return _SchemaJson(schema).to_text(schema.root)


def canonical_form(schema: AvroSchema) -> str:
    """Return the Parsing Canonical Form, which fingerprints are computed from (specification, same heading)."""
    return _SchemaJson(schema, canonical=True).to_text(schema.root)


class _SchemaJson:
    """The JSON of one schema; its attributes are in the order of the canonical form."""

    def __init__(self, schema: AvroSchema, *, canonical: bool = False) -> None:
        self.types = schema.types
        self.canonical = canonical
        self.written: set[str] = set()

    def to_text(self, root: Type) -> str:
        """Return the JSON as text."""
        return json.dumps(self.type_json(root, ""), separators=(",", ":"), ensure_ascii=False)

    def type_json(self, kind: Type, space: str) -> Any:
        """Return the JSON of a type inside the namespace `space`."""
        match kind:
            case Primitive(name, logical):
                meaning = self.logical_json(logical)
                return {"type": name, **meaning} if meaning else name
            case Array(items):
                return {"type": "array", "items": self.type_json(items, space)}
            case MapOf(values):
                return {"type": "map", "values": self.type_json(values, space)}
            case Union(branches):
                return [self.type_json(branch, space) for branch in branches]
            case Ref(name) if name in self.written:
                return self.reference_name(name, space)
        self.written.add(kind.name)  # before its definition, which may refer to it
        return self.definition_json(self.types[kind.name], space)

    def reference_name(self, name: str, space: str) -> str:
        """Return the name of a type that is defined already."""
        # A name without dots is first looked up in the enclosing namespace: a type there would hide the one meant.
        if not self.canonical and space and "." not in name and f"{space}.{name}" in self.types:
            raise ValueError(
                f"type {name} has no namespace and cannot be distinguished from {space}.{name}; give it one"
            )
        return name

    def definition_json(self, named: Definition, space: str) -> dict[str, Any]:
        """Return the JSON that defines a named type."""
        own_space = named.name.rpartition(".")[0]
        written: dict[str, Any] = {"name": named.name}
        match named:
            case AvroRecord(_, fields):
                written |= {"type": "record", "fields": [self.field_json(field, own_space) for field in fields]}
            case Enum(_, symbols):
                written |= {"type": "enum", "symbols": list(symbols)}
            case Fixed(_, size, logical):
                written |= {"type": "fixed", "size": size, **self.logical_json(logical)}
        if self.canonical:
            return written

        # Otherwise readers would put the name into the enclosing namespace.
        if space and not own_space:
            written["namespace"] = ""
        if named.aliases:
            written["aliases"] = list(named.aliases)
        return written

    def field_json(self, field: AvroField, space: str) -> dict[str, Any]:
        """Return the JSON of a field."""
        written = {"name": field.name, "type": self.type_json(field.type, space)}
        if self.canonical:
            return written

        if field.aliases:
            written["aliases"] = list(field.aliases)
        # A default is a value of a union's first branch, so null must come first.
        if branches_of(field.type)[:1] == (NULL,):
            written["default"] = None
        return written

    def logical_json(self, logical: Logical | None) -> dict[str, Any]:
        """Return the attributes of a logical type."""
        if logical is None or self.canonical:
            return {}
        if logical.name != "decimal":
            return {"logicalType": logical.name}
        return {"logicalType": logical.name, "precision": logical.precision, "scale": logical.scale}


WIDENING_PAIRS = ({Primitive("int"), Primitive("long")}, {Primitive("float"), Primitive("double")})
"""Pairs of branches of which one holds the values of both."""


def describe_type(kind: Type, types: Mapping[str, Definition] | None = None) -> str:
    """Return a type for a message; `types` has the named ones."""
    match kind:
        case Primitive(name, logical):
            return f"{name} ({logical})" if logical else name
        case Array():
            return "an array"
        case MapOf():
            return "a map"
        case Union(branches):
            return f"a union of {', '.join(describe_type(branch, types) for branch in branches)}"
    named = (types or {})[kind.name]
    return f"{type(named).__name__.lower().removeprefix('avro')} {named.name}"


def branch_name(branch: Type) -> str:
    """Return the name of a branch in its union: a value is written with it, and no union has it twice."""
    if isinstance(branch, (Primitive, Ref)):
        return branch.name
    return "array" if isinstance(branch, Array) else "map"


def branches_of(kind: Type) -> tuple[Type, ...]:
    """Return the branches of a union; any other type is its own only branch."""
    return kind.branches if isinstance(kind, Union) else (kind,)


def split_null(kind: Type) -> tuple[bool, tuple[Type, ...]]:
    """Return whether a type may be null, and its other branches.

    A union of int and long counts as long, and one of float and double as double.
    """
    null = NULL in branches_of(kind)
    others = tuple(branch for branch in branches_of(kind) if branch != NULL)
    if len(others) == 2 and set(others) in WIDENING_PAIRS:
        others = (Primitive("long" if Primitive("long") in others else "double"),)
    return null, others


def join_branches(null: bool, branches: tuple[Type, ...]) -> Type:
    """Return the type of these branches; null comes first, so that it can be the default."""
    if null and branches:
        return Union((NULL, *branches))
    match branches:
        case ():
            return NULL
        case (branch,):
            return branch
    return Union(branches)


def allow_null(kind: Type) -> Type:
    """Return a type with null allowed."""
    return join_branches(True, split_null(kind)[1])


def rename_references(kind: Type, names: dict[str, str]) -> Type:
    """Return a type with other names for the types it refers to."""
    match kind:
        case Ref(name):
            return Ref(names[name])
        case Array(items):
            return Array(rename_references(items, names))
        case MapOf(values):
            return MapOf(rename_references(values, names))
        case Union(branches):
            return Union(tuple(rename_references(branch, names) for branch in branches))
    return kind


VALUE_END_BYTES = bytes.fromhex("a7f3d1c2e4b59680")
"""The end mark that must follow a value for from_avro: eight bytes without a meaning, none a small number (library)."""
FINGERPRINT_PREFIX = "fingerprint "
"""The word before a fingerprint in the text that names it; its eight bytes follow in hex, in the order of the value."""
SINGLE_OBJECT_MARKER = b"\xc3\x01"
"""The first two bytes of a single object."""
FINGERPRINT_OF_NOTHING = 0xC15D213AA4D7A795
"""The fingerprint of no bytes; its bits are also the divisor of the CRC (specification, "Schema Fingerprints")."""


def _remainders_of_bytes() -> tuple[int, ...]:
    """Return the remainder of each byte, so that `rabin_fingerprint` divides a byte in one step instead of a bit."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (FINGERPRINT_OF_NOTHING if value & 1 else 0)  # noqa: PLW2901 - the register of the division
        table.append(value)
    return tuple(table)


REMAINDERS_OF_BYTES = _remainders_of_bytes()


def rabin_fingerprint(data: bytes) -> int:
    """Return the CRC-64-AVRO of bytes, unsigned."""
    value = FINGERPRINT_OF_NOTHING
    for byte in data:
        value = (value >> 8) ^ REMAINDERS_OF_BYTES[(value ^ byte) & 0xFF]
    return value


def single_object_header(schema: AvroSchema) -> bytes:
    """Return the ten bytes before every single-object value of a schema."""
    return SINGLE_OBJECT_MARKER + rabin_fingerprint(canonical_form(schema).encode()).to_bytes(8, "little")
