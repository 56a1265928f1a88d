"""Read a registered Avro schema, with what it refers to, into one schema that stands alone.

Names, duplicates, unions and references are checked as Apache Avro 1.12 does. Three things are accepted, as readers of
Avro accept them: a namespace of any printable characters (fastavro, Java before 1.12), a logical type that does not fit
its type, which is ignored (specification, "Logical Types"), and defaults are not checked, because a value's bytes do
not depend on them. Unknown attributes are dropped: of what a stranger registered, only types and names reach Spark.
"""

from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from router_schemas.avro.kinds import KIND_OF
from router_schemas.avro.model import (
    MAX_TYPE_DEPTH,
    Array,
    AvroField,
    AvroRecord,
    AvroSchema,
    Definition,
    Enum,
    Fixed,
    Logical,
    MapOf,
    Primitive,
    PrimitiveName,
    Ref,
    Type,
    Union,
    branch_name,
    reachable_types,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router_schemas.model import ResolvedSchema


PRIMITIVES: tuple[PrimitiveName, ...] = get_args(PrimitiveName)
MAX_FIXED_BYTES = 1 << 20
"""Bytes of the largest fixed. A reader allocates all of them before it reads a value."""


def parse_resolved(resolved: ResolvedSchema) -> AvroSchema:
    """Return the schema that a registered text and its imports make; raise ValueError with the place of a fault."""
    return parse_text(resolved.schema.text, resolved.imports)


def parse_text(text: str, imports: Mapping[str, str] | None = None) -> AvroSchema:
    """Return the schema of a text; `imports` are texts whose types it may name, dependencies first."""
    parser = _Parser()
    # A text that is imported under several names defines its types once; messages have the last of the names.
    import_names = {body: name for name, body in (imports or {}).items()}
    for body, name in import_names.items():
        where = f"reference {_short_text(name)}"
        parser.parse_type(_load_json(body, where), _Place(where))
    root = parser.parse_type(_load_json(text, "the schema"), _Place("the schema"))
    try:
        return AvroSchema(root, reachable_types(root, parser.types))
    except ValueError as error:
        raise _fault_at("the schema", str(error)) from None


@dataclass(frozen=True)
class _Place:
    """The place of a type: `path` is for messages, `space` the namespace around it, `depth` bounds the nesting."""

    path: str
    space: str = ""
    depth: int = 0

    def step_into(self, step: str = "") -> _Place:
        return replace(self, path=f"{self.path}{step}", depth=self.depth + 1)


class _Parser:
    """A parser of one type after the other; `types` has the definitions so far."""

    def __init__(self) -> None:
        self.types: dict[str, Definition] = {}

    def parse_type(self, node: object, at: _Place) -> Type:
        """Return the type that a piece of JSON describes."""
        if at.depth > MAX_TYPE_DEPTH:
            raise _fault_at(at.path, f"types are nested more than {MAX_TYPE_DEPTH} deep; register a flatter schema")
        match node:
            case str():
                return self.find_named_type(node, at)
            case list():
                return self.parse_union(node, at)
            case dict():
                return self.parse_object(node, at)
        raise _fault_at(at.path, f"a type is a name, an object or a list, not {_short_text(node)}")

    def parse_object(self, node: dict[str, Any], at: _Place) -> Type:
        """Return the type that a JSON object describes."""
        kind = node.get("type")
        match kind:
            case dict() | list():  # some libraries write {"type": {"type": ...}}
                return self.parse_type(kind, at.step_into())
            case "record" | "error" | "enum" | "fixed":
                return self.define_type(node, at)
            case "array":
                return Array(self.parse_type(_required_value(node, "items", at), at.step_into("[]")))
            case "map":
                return MapOf(self.parse_type(_required_value(node, "values", at), at.step_into("{}")))
            case str() if kind in PRIMITIVES:
                return Primitive(kind, _read_logical_type(node, kind))
        return self.find_named_type(kind, at)

    def find_named_type(self, name: object, at: _Place) -> Type:
        """Return the type of a name: in its namespace, else in the enclosing one, else in none."""
        if not isinstance(name, str):
            raise _fault_at(at.path, "a type needs the attribute `type`")
        if name in PRIMITIVES:
            return Primitive(name)
        for full in (_full_name(name, at.space), name):
            if full in self.types:
                return Ref(full)
        raise _fault_at(
            at.path, f"there is no type {_short_text(name)}; define it before its use, or register it as a reference"
        )

    def parse_union(self, nodes: list[Any], at: _Place) -> Union:
        """Return a union; raise ValueError for a union inside another, and for two branches of one name."""
        branches = [self.parse_type(node, at.step_into()) for node in nodes]
        seen: set[str] = set()
        for branch in branches:
            if isinstance(branch, Union):
                raise _fault_at(
                    at.path, "a union cannot stand directly in a union; write its branches into the outer one"
                )
            name = branch_name(branch)
            if name in seen:
                raise _fault_at(
                    at.path, f"a union has {_short_text(name)} twice; a reader could not tell which is meant"
                )
            seen.add(name)
        return Union(tuple(branches))

    def define_type(self, node: dict[str, Any], at: _Place) -> Ref:
        """Keep the definition of a record, enum or fixed, and return a reference to it."""
        short_name = _required_value(node, "name", at)
        space = node.get("namespace")
        if space is None:  # some libraries write null for none of its own
            space = at.space
        if not isinstance(short_name, str) or not isinstance(space, str):
            raise _fault_at(at.path, "name and namespace are texts")
        name = _full_name(short_name, space)
        *spaces, last_part = name.split(".")
        # Most libraries look at the name alone, so a namespace may be that of a topic or an outer class.
        if not all(part and part.isprintable() for part in spaces) or not is_name(last_part) or name in PRIMITIVES:
            raise _fault_at(at.path, f"{_short_text(name)} cannot be a name; use letters, digits and underscores")
        if name in self.types:
            raise _fault_at(at.path, f"type {name} is defined twice; define it once and then use its name")

        # The namespace may also stand in the name; names without one inside the type belong to it.
        own_space = name.rpartition(".")[0]
        aliases = tuple(_full_name(alias, own_space) for alias in _read_texts(node, "aliases", at))
        place = _Place(name, own_space, at.depth + 1)
        match node["type"]:
            case "enum":
                self.types[name] = Enum(name, _read_symbols(node, place), aliases)
            case "fixed":
                size = _read_size(node, place)
                self.types[name] = Fixed(name, size, _read_logical_type(node, "fixed", size), aliases)
            case _:
                self.types[name] = AvroRecord(name, ())  # its fields may refer to it
                self.types[name] = AvroRecord(
                    name, self.parse_fields(_required_value(node, "fields", place), place), aliases
                )
        return Ref(name)

    def parse_fields(self, nodes: object, at: _Place) -> tuple[AvroField, ...]:
        """Return the fields of a record."""
        if not isinstance(nodes, list):
            raise _fault_at(at.path, "fields are a list")
        fields: dict[str, AvroField] = {}
        for node in nodes:
            if not isinstance(node, dict):
                raise _fault_at(at.path, f"a field is an object, not {_short_text(node)}")
            name = _required_value(node, "name", at)
            if not isinstance(name, str) or not is_name(name):
                raise _fault_at(
                    at.path, f"{_short_text(name)} cannot be a field's name; use letters, digits and underscores"
                )
            if name in fields:
                raise _fault_at(at.path, f"field {name} is defined twice; rename one")
            place = at.step_into(f".{name}")
            kind = self.parse_type(_required_value(node, "type", place), place)
            fields[name] = AvroField(name, kind, _read_texts(node, "aliases", place))
        return tuple(fields.values())


def _load_json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise _fault_at(where, "the JSON is nested too deep; register a flatter schema") from None
    except ValueError as error:
        raise _fault_at(where, f"it is not JSON ({error}); register an Avro schema") from None


def _required_value(node: dict[str, Any], key: str, at: _Place) -> object:
    if key not in node:
        raise _fault_at(at.path, f"the attribute `{key}` is missing; add it")
    return node[key]


def _read_texts(node: dict[str, Any], key: str, at: _Place) -> tuple[str, ...]:
    texts = node.get(key) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _fault_at(at.path, f"{key} are a list of texts")
    return tuple(texts)


def _read_symbols(node: dict[str, Any], at: _Place) -> tuple[str, ...]:
    _required_value(node, "symbols", at)
    symbols = _read_texts(node, "symbols", at)
    for symbol in symbols:
        if not is_name(symbol):
            raise _fault_at(at.path, f"{_short_text(symbol)} cannot be a symbol; use letters, digits and underscores")
    if len(set(symbols)) < len(symbols):
        raise _fault_at(at.path, "a symbol comes twice; write it once")
    return symbols


def _read_size(node: dict[str, Any], at: _Place) -> int:
    size = _required_value(node, "size", at)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_FIXED_BYTES:
        raise _fault_at(
            at.path, f"the size of a fixed is a number of bytes up to {MAX_FIXED_BYTES}; use bytes for more"
        )
    return size


def _read_logical_type(node: dict[str, Any], kind: str, size: int = 0) -> Logical | None:
    """Return the logical type; None if it does not fit its type, as the specification requires to ignore it then."""
    wanted = node.get("logicalType")
    described = KIND_OF[kind, wanted].value if isinstance(wanted, str) and (kind, wanted) in KIND_OF else None
    if described is None or described.logical is None:
        return None
    name = described.logical
    if name != "decimal":
        return Logical(name) if size == described.size else None

    precision: Any = node.get("precision")
    scale: Any = node.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision == 0:
        return None
    # The digits that so many bytes can hold, one bit being the sign.
    if kind == "fixed" and precision > math.floor(math.log10(2) * (8 * size - 1)):
        return None
    return Logical(name, precision, scale)


def _full_name(name: str, space: str) -> str:
    """Return the full name of a name inside a namespace."""
    return f"{space}.{name}" if space and "." not in name else name


def is_name(name: str) -> bool:
    """Return whether Avro accepts a name: letters (of any script, as its Java library does), digits, underscores."""
    if name.isascii():
        return name.isidentifier()
    kinds = ["L" if character == "_" else unicodedata.category(character) for character in name]
    return kinds[0].startswith("L") and all(kind.startswith("L") or kind == "Nd" for kind in kinds)


def _short_text(value: object) -> str:
    """Return a piece of a schema for a message, at most 80 characters of it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fault_at(where: str, problem: str) -> ValueError:
    return ValueError(f"{where}: {problem}")
