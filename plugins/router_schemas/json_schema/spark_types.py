"""Map a JSON Schema to a Spark struct and back, and check which types of Spark JSON can be decoded to. No session.

| JSON Schema | Spark | decided by |
|---|---|---|
| string | string | JSON Schema 2020-12 validation, 6.1.1 |
| string, format date-time | timestamp | the same, 7.3.1: RFC 3339 `date-time` |
| string, format date | date | the same, 7.3.1: RFC 3339 `full-date` |
| integer | bigint | 6.1.1; unbounded there, so a number beyond 64 bits does not fit |
| number | double | 6.1.1; RFC 8259 section 6 expects no more than binary64 |
| boolean | boolean | 6.1.1 |
| object with properties | struct | core, 10.3.2.1; every field may be null: `required` is for expectations |
| object with additionalProperties only | map<string, ...> | core, 10.3.2.3 |
| array with one schema of items | array | core, 10.3.1.2 |
| a type with "null", in a list or in oneOf/anyOf | that type | 6.1.1; every column may be null |
| integer with number | double | 6.1.1: an integer is a number |
| enum or const without a type | the type of its values | 6.1.2 and 6.1.3 |
| $ref to a place in the document | what stands there | core, 8.2.3.1; a recursive one has no Spark type |
| allOf of one schema | that schema | how generators add a description to a $ref |

Without a type, `properties` mean an object and `items` an array, as people write them. If an object has properties, its
additionalProperties are not mapped: they are unknown fields. Anything else is refused by its JSON pointer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Iterator


SCALAR_TYPES: dict[str, T.DataType] = {
    "string": T.StringType(),
    "integer": T.LongType(),
    "number": T.DoubleType(),
    "boolean": T.BooleanType(),
}
FORMAT_TYPES: dict[str, T.DataType] = {"date-time": T.TimestampType(), "date": T.DateType()}
UNIONS = ("oneOf", "anyOf", "allOf")
JSON_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class Untyped(ValueError):  # noqa: N818 - it says what a schema is
    """A good schema, but one that allows values which no column type can hold."""


class TypeMapping:
    """The mapping of one document's places to types; `trail` holds the references that led to a place."""

    def __init__(self, document: object) -> None:
        self.document = document

    def root_struct(self) -> T.StructType:
        """Return the struct of the whole document."""
        event = self.type_at(self.document, "#", ())
        if not isinstance(event, T.StructType):
            raise ValueError("#: an event is an object with properties")
        return event

    def type_at(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the Spark type of one schema."""
        if not isinstance(node, Mapping):
            problem = f"a schema is an object here, not {str(node).lower()}; give a type"
            if isinstance(node, bool):  # a good schema: of any value, or of none
                raise Untyped(f"{pointer}: {problem}")
            raise ValueError(f"{pointer}: {problem}")
        if "$ref" in node:
            return self.follow_reference(str(node["$ref"]), pointer, trail)
        for union in UNIONS:
            if union in node:
                return self.unite_types(union, node[union], pointer, trail)
        name = type_name(node, pointer)
        match name:
            case "object":
                return self.object_type(node, pointer, trail)
            case "array":
                return self.array_type(node, pointer, trail)
            case "string":
                return FORMAT_TYPES.get(str(node.get("format")), T.StringType())
        return SCALAR_TYPES[name]

    def type_below(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the type of a property, of elements or of a map's values."""
        return self.type_at(node, pointer, trail)

    def follow_reference(self, reference: str, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Follow a reference inside the document."""
        if not reference.startswith("#/") and reference != "#":
            raise ValueError(f"{pointer}: {reference!r} leads to nothing in the schema, its references and other files")
        if reference in ("#", *trail):
            raise Untyped(f"{pointer}: {reference!r} contains itself; a Spark type cannot")
        node = at_pointer(self.document, reference)
        if node is None:
            raise ValueError(f"{pointer}: there is no {reference!r}")
        return self.type_at(node, reference, (*trail, reference))

    def unite_types(self, union: str, members: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the one type that the members share, apart from null."""
        if not isinstance(members, Sequence) or not members:
            raise ValueError(f"{pointer}/{union}: a list of schemas is needed")
        kinds: list[T.DataType] = []
        for index, member in enumerate(members):
            if union == "allOf" and index:
                raise ValueError(f"{pointer}/{union}: several schemas for one value cannot be merged; write one")
            if is_null(member):
                continue
            kind = self.type_at(member, f"{pointer}/{union}/{index}", trail)
            if kind not in kinds:
                kinds.append(kind)
        if len(kinds) != 1:
            names = " or ".join(kind.simpleString() for kind in kinds)
            raise Untyped(f"{pointer}/{union}: a column has one type, not {names or 'null only'}")
        return kinds[0]

    def object_type(self, node: Mapping[str, Any], pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return a struct for properties, a map for additionalProperties."""
        if node.get("properties"):
            return self.struct_type(node["properties"], f"{pointer}/properties", trail)
        rest = node.get("additionalProperties")
        if not isinstance(rest, Mapping):
            raise Untyped(f"{pointer}: an object needs properties, or a schema as additionalProperties")
        return T.MapType(T.StringType(), self.type_below(rest, f"{pointer}/additionalProperties", trail))

    def struct_type(self, properties: object, pointer: str, trail: tuple[str, ...]) -> T.StructType:
        """Return a struct with the properties in their order."""
        if not isinstance(properties, Mapping):
            raise ValueError(f"{pointer}: properties are an object")
        fields = {name: self.type_below(node, f"{pointer}/{as_step(name)}", trail) for name, node in properties.items()}
        return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])

    def array_type(self, node: Mapping[str, Any], pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return an array; a tuple has no one type of its elements."""
        items = node.get("items")
        if "prefixItems" in node or not isinstance(items, Mapping):
            raise Untyped(f"{pointer}: an array needs one schema as items")
        return T.ArrayType(self.type_below(items, f"{pointer}/items", trail))


def type_name(node: Mapping[str, Any], pointer: str) -> str:
    """Return the one type of a schema, apart from null."""
    types = node.get("type", _implied_types(node))
    if isinstance(types, str):
        types = [types]
    if not isinstance(types, list):
        raise ValueError(f"{pointer}: `type` is a name or a list of names, not {types!r:.50}")
    names = {str(name) for name in types} - {"null"}
    if names == {"integer", "number"}:
        return "number"
    if len(names) != 1:
        raise Untyped(f"{pointer}: a column has one type, not {' or '.join(sorted(names)) or 'none'}")
    name = names.pop()
    if name not in {*SCALAR_TYPES, "object", "array"}:
        raise ValueError(f"{pointer}: there is no type {name!r} in JSON Schema")
    return name


def is_null(node: object) -> bool:
    """Return whether a schema allows null only."""
    if not isinstance(node, Mapping):
        return False
    return node.get("type") in ("null", ["null"]) or node.get("enum") == [None] or node.get("const", 0) is None


def json_schema_of(kind: T.DataType) -> dict[str, Any]:
    """Return a JSON Schema that maps to a type, or to the nearest that JSON Schema has: number for a decimal."""
    match kind:
        case T.StructType():
            return {"type": "object", "properties": {field.name: json_schema_of(field.dataType) for field in kind}}
        case T.MapType():
            return {"type": "object", "additionalProperties": json_schema_of(kind.valueType)}
        case T.ArrayType():
            return {"type": "array", "items": json_schema_of(kind.elementType)}
        case T.TimestampType():
            return {"type": "string", "format": "date-time"}
        case T.DateType():
            return {"type": "string", "format": "date"}
        case T.IntegralType():
            return {"type": "integer"}
        case T.NumericType():
            return {"type": "number"}
        case T.BooleanType():
            return {"type": "boolean"}
    return {"type": "string"}


def _implied_types(node: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema without `type` implies by its other keywords."""
    if "properties" in node or "additionalProperties" in node:
        return ["object"]
    if "items" in node:
        return ["array"]
    values = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(values, list):
        return []
    return sorted({JSON_TYPE_NAMES.get(type(value), "object") for value in values})


def at_pointer(document: object, pointer: str) -> object:
    """Return the part of a document at a JSON pointer, such as `#/properties/game`; None if there is none."""
    for step in pointer.removeprefix("#").split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


def as_step(name: str) -> str:
    """Return a name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def check_types(kind: T.DataType, path: str = "") -> None:
    """Raise ValueError for a type that JSON cannot be decoded to safely, and for names that differ by case only."""
    where = path or "the schema"
    refusal = _refused_type(kind)
    if refusal:
        raise ValueError(f"{where}: {refusal}")
    if isinstance(kind, T.StructType):
        names: dict[str, str] = {}
        for name in kind.fieldNames():
            # `is not` also refuses the same name twice.
            if names.setdefault(name.lower(), name) is not name:
                raise ValueError(f"{where}: {names[name.lower()]} and {name} differ by case only; columns must not")
    for name, child in child_types(kind):
        check_types(child, f"{path}.{name}" if path else name)


def _refused_type(kind: T.DataType) -> str:
    """Return the fault of a type itself; empty for a good one."""
    match kind:
        case T.ByteType():
            return "tinyint takes 200 for -56; use smallint"
        case T.CharType() | T.VarcharType():
            return f"nothing would hold texts to {kind.simpleString()}; use string"
        case T.DayTimeIntervalType() | T.YearMonthIntervalType() | T.CalendarIntervalType():
            return "JSON has no intervals; use string, and cast it in `select`"
        case T.MapType() if not isinstance(kind.keyType, T.StringType):
            return "keys in JSON are texts; use map<string, ...>"
        case T.StructType(fields=[]):
            return "a struct needs fields"
    return ""


def child_types(kind: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """Yield the types inside a type, each with the name of its place: a field, `[]` or `{}`."""
    match kind:
        case T.StructType():
            yield from ((field.name, field.dataType) for field in kind)
        case T.ArrayType():
            yield "[]", kind.elementType
        case T.MapType():
            yield "{}", kind.valueType
