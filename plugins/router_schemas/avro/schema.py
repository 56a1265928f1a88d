"""Be an Avro schema: a type at the root, and every named type once, under its full name.

Made by parse, joined by merge, told to Spark by mapping. Source: Apache Avro 1.12 specification, "Schema Declaration".
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
    """Be what a value means beyond its type; `precision` and `scale` are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True)
class Primitive:
    """Be one of the eight primitive types, under Avro's name for it."""

    name: str
    logical: Logical | None = None


@dataclass(frozen=True)
class Array:
    """Be an array."""

    items: Type


@dataclass(frozen=True)
class MapOf:
    """Be a map; its keys are strings."""

    values: Type


@dataclass(frozen=True)
class Choice:
    """Be a union."""

    branches: tuple[Type, ...]


@dataclass(frozen=True)
class Ref:
    """Stand for the record, enum or fixed of that full name."""

    name: str


Type: TypeAlias = Primitive | Array | MapOf | Choice | Ref


@dataclass(frozen=True)
class Field:
    """Be a field of a record. Defaults are not kept: they matter to readers, and the reader is made by merge."""

    name: str
    type: Type
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """Be a record; `name` and `aliases` are full names."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Enum:
    """Be an enum; `name` and `aliases` are full names."""

    name: str
    symbols: tuple[str, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fixed:
    """Be so many bytes; `name` and `aliases` are full names."""

    name: str
    size: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = ()


Definition: TypeAlias = Record | Enum | Fixed
NULL = Primitive("null")


@dataclass(frozen=True)
class Schema:
    """Be a whole schema: `types` has every named type that `root` leads to, in the order of first use."""

    root: Type
    types: Mapping[str, Definition] = field(default_factory=dict)


def inner(kind: Type, types: Mapping[str, Definition]) -> Iterator[Type]:
    """Yield the types directly inside a type, those of the fields for the name of a record."""
    if isinstance(kind, Array):
        yield kind.items
    elif isinstance(kind, MapOf):
        yield kind.values
    elif isinstance(kind, Choice):
        yield from kind.branches
    elif isinstance(kind, Ref) and isinstance(record := types[kind.name], Record):
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


def recursive(schema: Schema) -> tuple[str, ...]:
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


def text_of(schema: Schema) -> str:
    """Return the schema as JSON that any Avro library reads: each type is defined at its first use.

    Fields that may be null have the default null, so that the text can be a reader's schema. Raises ValueError for
    the one case that Avro cannot write: a type without a namespace used where a type of that name in the enclosing
    namespace would be meant.
    """
    return json.dumps(_Writing(schema).type(schema.root, ""), separators=(",", ":"), ensure_ascii=False)


def canonical_form(schema: Schema) -> str:
    """Return the Parsing Canonical Form, over which fingerprints are made (specification, same heading)."""
    return json.dumps(_Writing(schema, canonical=True).type(schema.root, ""), separators=(",", ":"), ensure_ascii=False)


class _Writing:
    """Write one schema; the order of the attributes is that of the canonical form."""

    def __init__(self, schema: Schema, canonical: bool = False) -> None:
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
        if isinstance(kind, Choice):
            return [self.type(branch, space) for branch in kind.branches]
        if kind.name in self.written:
            return self.reference(kind.name, space)
        self.written.add(kind.name)
        return self.definition(self.types[kind.name], space)

    def reference(self, name: str, space: str) -> str:
        """Return the name of a type that is defined already."""
        if not self.canonical and space and "." not in name and f"{space}.{name}" in self.types:
            raise ValueError(f"type {name} has no namespace and cannot be told from {space}.{name}; give it one")
        return name

    def definition(self, named: Definition, space: str) -> dict[str, Any]:
        """Return the JSON of a named type, once."""
        own = named.name.rpartition(".")[0]
        written: dict[str, Any] = {"name": named.name}
        if isinstance(named, Record):
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

    def field(self, field: Field, space: str) -> dict[str, Any]:
        """Return the JSON of a field."""
        written = {"name": field.name, "type": self.type(field.type, space)}
        if not self.canonical:
            if field.aliases:
                written["aliases"] = list(field.aliases)
            first = field.type.branches[:1] if isinstance(field.type, Choice) else (field.type,)
            if first == (NULL,):
                written["default"] = None
        return written

    def meaning(self, logical: Logical | None) -> dict[str, Any]:
        """Return the attributes of a logical type."""
        if logical is None or self.canonical:
            return {}
        numbers = {"precision": logical.precision, "scale": logical.scale} if logical.name == "decimal" else {}
        return {"logicalType": logical.name, **numbers}
