"""Collect the JSON Schemas of a registry that records were written with, read each as a Spark struct, and merge these.

For the driver. A schema is read with what it refers to; nothing is ever fetched.
The references stand in one document with the schema, under `$references`, and every `$ref` to one of them becomes a
JSON pointer there.

A `$ref` is resolved as JSON Schema core, 8.2 says: against the `$id` of its document. A reference of the registry is
known under the name it is registered with, under that name resolved against the schema's `$id`, and under its own
`$id`. In other places than these a schema is not looked for.
Every schema has columns, whatever it allows: what no column can hold is its JSON text.
A schema file that is written for the router may be refused: its author can change it. A registered one has another
author, and a refusal would make dead letters of all its records. So to the table of `spark_types` come:

| JSON Schema | Spark | decided by |
|---|---|---|
| several objects in oneOf, anyOf or allOf, or next to properties | one struct with the fields of all | core, 10.2.1 |
| integer in one of them and number in another | double | validation, 6.1.1 |
| members that only restrict: required, if, not, ... | are ignored | validation, 6.5.3 |
| several other types; none; true | string: the JSON text | core, 4.3.2 |
| object without properties and without a schema of its values | string: the JSON text | core, 10.3.2 |
| array without one schema of its items | string: the JSON text | core, 10.3.1 |
| a schema within itself | string: the JSON text, where it comes again | core, 8.2.3.1 |

A text is text as it is, and everything else is JSON: `5`, `{"a":1}`.

The structs of several versions are merged into one that reads what each of them allows:

| versions differ in | the merged column |
|---|---|
| a property is missing in some | that property: null if a version has none. `required` has no influence |
| integer, number | double: JSON knows one kind of number; beyond 2**53 it is rounded |
| objects, arrays, maps | merged inside |
| names that differ by case only | refused: the columns of a table cannot |
| the rest: string and integer, date and date-time, object and array, ... | refused |

JSON has no promotions beyond the one for numbers: a text that one version calls a date-time and another a string
would change the type of a column that there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urldefrag, urljoin

from pyspark.sql import types as T

from router_schemas.json_schema.spark_types import UNIONS, TypeMapping, Untyped, at_pointer, check_types, is_null
from router_schemas.library import RegistryLibrary
from router_schemas.model import REFUSED, VALUE_HEADER, SchemaConflict, SchemaInfo, SchemaOrigin, WriterSchema, refusals
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from router_schemas.model import Kind, ResolvedSchema, Taken


@dataclass(frozen=True)
class ObjectUse:
    """A schema that records were written with; `title` is what it calls them."""

    origin: SchemaOrigin
    struct: T.StructType
    title: str | None

    @property
    def name(self) -> str:
        """Return the title, which Confluent's clients take for the name of a record; empty without one."""
        return self.title or ""


@dataclass(frozen=True)
class Objects:
    """How objects are read: all by one `struct`, which has the names of their properties.

    `written` is by prefix: the bytes before a value, or those in its `header`.
    """

    struct: T.StructType
    written: dict[bytes, SchemaInfo]
    header: str = VALUE_HEADER
    wire_format: str = "confluent"
    only: str = ""
    origins: dict[str, str] = field(default_factory=dict)
    """Property -> the version that shaped it."""


@dataclass
class Documents(RegistryLibrary[ObjectUse, Objects]):
    """JSON Schemas of a registry that records were written with, by ids and GUIDs."""

    kind: ClassVar[Kind] = "JSON"

    header: str = VALUE_HEADER

    def use(self, writer: WriterSchema, resolved: ResolvedSchema, origin: SchemaOrigin) -> ObjectUse:
        """Return the use of a writer's schema."""
        return ObjectUse(origin, struct_of_registered(resolved), title_of(resolved))

    def make(self) -> Objects:
        """Return the one struct that all objects are read by; versions that do not fit the oldest are refused."""
        uses = dict(sorted(self.uses.items(), key=lambda one: one[1].origin.age))
        versions = {use.origin.label: use.struct for use in uses.values()}
        found = [ObjectVersion(label, struct) for label, struct in versions.items()]
        merged = merge(found or [ObjectVersion("", T.StructType())], self.taken)
        refused = refusals(merged.conflicts)
        known = {
            writer: SchemaInfo.of(use.origin, use.title, refused.get(use.origin.label)) for writer, use in uses.items()
        }
        known |= {writer: SchemaInfo(reason=reason) for writer, reason in self.reasons.items()}
        written = {schema_bytes(WriterSchema.of(writer)): one for writer, one in known.items()}
        return Objects(merged.struct, written, self.header, origins=merged.origins)


KEY = "$references"
MAX_DEPTH = 200


def struct_of_registered(resolved: ResolvedSchema) -> T.StructType:
    """Return the Spark struct of a registered schema; raise ValueError naming the JSON pointer of what has none."""
    return struct_of_text(resolved.schema.text, resolved.imports)


def title_of(resolved: ResolvedSchema) -> str | None:
    """Return what a schema calls its records: Confluent's clients take its title for the name of a record."""
    document = json.loads(resolved.schema.text)
    title = document.get("title") if isinstance(document, Mapping) else None
    return title if isinstance(title, str) and title else None


def struct_of_text(text: str, imports: Mapping[str, str] | None = None) -> T.StructType:
    """Return the Spark struct of a schema; `imports` are the texts it may refer to, by the names it uses."""
    names = list(imports or {})
    try:
        document = _document(text, imports or {})
        _Size(document).check()
        struct = ColumnMapping(document).struct()
        check_types(struct)
        return struct
    except RecursionError:
        raise ValueError("#: the schema is nested too deep; register a flatter one") from None
    except ValueError as error:
        raise ValueError(_with_names(str(error), names)) from None


def _document(text: str, imports: Mapping[str, str]) -> object:
    """Return one document that refers to itself only."""
    root = _loaded("#", text)
    if not isinstance(root, Mapping) or not imports:
        return root
    if KEY in root:
        raise ValueError(f"#/{KEY}: this keyword is needed for the schema's references; rename it")
    base = _identity(root, "")
    places: dict[str, str] = {base: "#"} if base else {}
    others: list[tuple[object, str, str]] = []
    for place, (name, body) in enumerate(imports.items()):
        other, pointer = _loaded(f"#/{KEY}/{place}", body), f"#/{KEY}/{place}"
        own = _identity(other, urljoin(base, name))
        for address in (name, urljoin(base, name), own):
            places.setdefault(urldefrag(address).url, pointer)
        others.append((other, own, pointer))
    return {
        **{key: _linked(node, base, "#", places) for key, node in root.items()},
        KEY: [_linked(other, own, pointer, places) for other, own, pointer in others],
    }


def _identity(document: object, otherwise: str) -> str:
    """Return the address of a document, without a fragment."""
    given = document.get("$id", document.get("id")) if isinstance(document, Mapping) else None
    return urldefrag(urljoin(otherwise, given)).url if isinstance(given, str) else otherwise


def _linked(node: object, base: str, own: str, places: Mapping[str, str]) -> Any:
    """Return a piece of a document with its `$ref`s pointing into the whole; `own` is where the document stands."""
    if isinstance(node, list):
        return [_linked(item, base, own, places) for item in node]
    if not isinstance(node, Mapping):
        return node
    linked = {key: _linked(item, base, own, places) for key, item in node.items()}
    if isinstance(reference := node.get("$ref"), str):
        linked["$ref"] = _link(reference, base, own, places)
    return linked


def _link(reference: str, base: str, own: str, places: Mapping[str, str]) -> str:
    """Return the pointer for a reference, or the reference itself when nothing is known under it."""
    address, _, fragment = reference.partition("#")
    found = places.get(address, places.get(urljoin(base, address))) if address else own
    if found is None or (fragment and not fragment.startswith("/")):
        return reference
    return found + fragment if fragment else found


class _Size:
    """A count of what a document describes with its references written out; too much is refused before it is built."""

    def __init__(self, document: object) -> None:
        self.document = document
        self.known: dict[str, int] = {}

    def check(self) -> None:
        """Raise ValueError for a document that is too large or too deep, its references followed."""
        if self.size(self.document, 0) > MOST:
            raise ValueError(f"#: with its references followed the schema has over {MOST} parts; register smaller ones")

    def size(self, node: object, depth: int) -> int:
        """Return how many objects a place stands for."""
        if depth > MAX_DEPTH:
            raise ValueError(f"#: the schema is nested more than {MAX_DEPTH} deep, its references followed")
        if isinstance(node, list):
            return sum(self.size(item, depth + 1) for item in node)
        if not isinstance(node, Mapping):
            return 0
        found = 1 + sum(self.size(item, depth + 1) for item in node.values())
        reference = node.get("$ref")
        return found + self.referred(reference, depth) if isinstance(reference, str) else found

    def referred(self, reference: str, depth: int) -> int:
        """Return the size of what a reference stands for; a circle counts once, for the mapping ends it."""
        if reference not in self.known:
            self.known[reference] = 0
            self.known[reference] = self.size(at_pointer(self.document, reference), depth + 1)
        return self.known[reference]


def _loaded(where: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: it is not JSON ({error}); register a JSON Schema") from None


def _with_names(message: str, names: list[str]) -> str:
    """Return a message with the names of references in place of where they stand."""
    for place in reversed(range(len(names))):
        message = message.replace(f"#/{KEY}/{place}", f"{names[place]}#")
    return message


MOST = 200_000
"""Objects of a schema with every `$ref` written out: a few lines can name each definition twice in the next."""
TELLING = {"type", "properties", "additionalProperties", "items", "prefixItems", "const", "enum", "$ref", *UNIONS}
"""Keywords that say what a value is."""


class ColumnMapping(TypeMapping):
    """The mapping of a registered document, which has a type for every place: a string where no other one fits."""

    def __init__(self, document: object) -> None:
        super().__init__(document)
        self.count = 0

    def inside(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the type of a property, of elements or of a map's values; a text where there is none."""
        try:
            return self.type_at(node, pointer, trail)
        except Untyped:
            return T.StringType()

    def type_at(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the type of one schema."""
        self.count += 1
        if self.count > MOST:
            raise ValueError(f"#: the schema describes over {MOST} parts; register smaller ones")
        if not isinstance(node, Mapping) or "$ref" in node or not any(union in node for union in UNIONS):
            return super().type_at(node, pointer, trail)
        own = {key: value for key, value in node.items() if key not in UNIONS}
        kinds = []
        if _is_telling(own):
            with suppress(Untyped):  # `type: object` alone: the members say which
                kinds.append(super().type_at(own, pointer, trail))
        for union in UNIONS:
            if union in node:
                kinds += self.members(node[union], f"{pointer}/{union}", trail)
        return _one(kinds, pointer)

    def members(self, members: object, pointer: str, trail: tuple[str, ...]) -> list[T.DataType]:
        """Return the types of those that say one."""
        if not isinstance(members, Sequence) or isinstance(members, str):
            raise ValueError(f"{pointer}: a list of schemas is needed")
        telling = {k: one for k, one in enumerate(members) if not is_null(one) and _is_telling(one)}
        return [self.type_at(one, f"{pointer}/{k}", trail) for k, one in telling.items()]


def _is_telling(node: Any) -> bool:
    return not isinstance(node, Mapping) or not TELLING.isdisjoint(node)


def _one(kinds: list[T.DataType], pointer: str) -> T.DataType:
    """Return the type that holds the values of all."""
    structs = [T.StructType([T.StructField("it", kind)]) for kind in kinds]
    merged = merge([ObjectVersion("", struct) for struct in structs or [T.StructType()]])
    for conflict in merged.conflicts:
        raise Untyped(f"{pointer}: a column has one type; {conflict.field.removeprefix('it.')}: {conflict.what}")
    if not kinds:
        raise Untyped(f"{pointer}: it does not say what the value is")
    return merged.struct["it"].dataType


NUMBERS = {T.LongType(), T.DoubleType()}


@dataclass(frozen=True)
class ObjectVersion:
    """A version: its struct, and the label that conflicts call it by, such as "id 7 version 2"."""

    label: str
    struct: T.StructType


@dataclass(frozen=True)
class MergedObject:
    """The struct of the versions in `labels`; `conflicts` say why the other versions are not among them."""

    struct: T.StructType
    labels: tuple[str, ...]
    conflicts: tuple[SchemaConflict, ...] = ()
    origins: dict[str, str] = field(default_factory=dict)


def merge(versions: Sequence[ObjectVersion], taken: Taken | None = None) -> MergedObject:
    """Merge the versions of one event, oldest first; raise ValueError when there is none.

    A version that does not go with those before it is left out with all its conflicts. The versions left out can be
    merged with each other. Fields that are `taken` by records of another format keep their types, and are in the struct
    where a version has them; integers are read as the numbers they have there.
    """
    if not versions:
        raise ValueError("there is no schema to merge; give at least one version")
    taken, labels, conflicts = taken or {}, list[str](), list[SchemaConflict]()
    struct = T.StructType([T.StructField(name, kind) for name, (kind, _) in taken.items()])
    origins = {name: label for name, (_, label) in taken.items()}
    for version in versions:
        fold = _Fold(version.label, origins)
        merged = fold.struct(struct, version.struct, "")
        fold.keep(taken, version.struct, merged)
        if fold.conflicts:
            conflicts += fold.conflicts
        else:
            struct, origins = merged, fold.origins
            labels.append(version.label)
    own = {name for version in versions if version.label in labels for name in version.struct.fieldNames()}
    return MergedObject(
        T.StructType([one for one in struct if one.name in own]), tuple(labels), tuple(conflicts), origins
    )


class _Fold:
    """The merge of one version into a struct; `origins` names the version that last shaped a path."""

    def __init__(self, label: str, origins: dict[str, str]) -> None:
        self.label = label
        self.origins = dict(origins)
        self.conflicts: list[SchemaConflict] = []

    def struct(self, have: T.StructType, come: T.StructType, path: str) -> T.StructType:
        """Return a struct with the fields of both, those there were first."""
        fields = {one.name: one.dataType for one in have}
        folded = {name.lower(): name for name in fields}
        for one in come:
            at = f"{path}.{one.name}" if path else one.name
            known = folded.setdefault(one.name.lower(), one.name)
            if known != one.name:
                other = f"{path}.{known}" if path else known
                self.refuse(at, f"it differs from {known!r} by case only, and columns cannot", other)
            elif known in fields:
                fields[known] = self.merged(fields[known], one.dataType, at)
            else:
                fields[known] = self.adopted(one.dataType, at)
                self.origins[at] = self.label
        return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])

    def keep(self, taken: Taken, come: T.StructType, merged: T.StructType) -> None:
        """Refuse to change what another format brought."""
        for one in come:
            if one.name in taken and merged[one.name].dataType != taken[one.name][0]:
                self.origins[one.name] = taken[one.name][1]
                was, now = _shown(taken[one.name][0]), _shown(one.dataType)
                self.refuse(one.name, f"{was} became {now if now != was else f'another {now}'}")
            elif one.name not in taken and (column := REFUSED.sub("_", one.name)) in taken:
                self.refuse(one.name, f"its column would be {column!r}, which there is", column)

    def adopted(self, come: T.DataType, path: str) -> T.DataType:
        """Return a type for a place that had none."""
        if isinstance(come, T.StructType):
            return self.struct(T.StructType(), come, path)
        if isinstance(come, T.ArrayType):
            return T.ArrayType(self.adopted(come.elementType, f"{path}[]"))
        if isinstance(come, T.MapType):
            return T.MapType(T.StringType(), self.adopted(come.valueType, f"{path}{{}}"))
        return come

    def merged(self, have: T.DataType, come: T.DataType, path: str) -> T.DataType:
        """Return the type that holds the values of both."""
        if isinstance(have, T.StructType) and isinstance(come, T.StructType):
            return self.struct(have, come, path)
        if isinstance(have, T.ArrayType) and isinstance(come, T.ArrayType):
            return T.ArrayType(self.merged(have.elementType, come.elementType, f"{path}[]"))
        if isinstance(have, T.MapType) and isinstance(come, T.MapType):
            return T.MapType(T.StringType(), self.merged(have.valueType, come.valueType, f"{path}{{}}"))
        narrower = come == T.LongType() and isinstance(have, (T.IntegerType, T.DecimalType))  # of another format
        if have == come or narrower:
            return have
        if {have, come} == NUMBERS:
            self.origins[path] = self.label
            return T.DoubleType()
        self.refuse(path, f"{_shown(have)} became {_shown(come)}")
        return have

    def refuse(self, path: str, what: str, beside: str = "") -> None:
        """Note what keeps this version from being merged, and which version shaped the nearest place, or another."""
        place = beside or path
        while place and place not in self.origins:
            place = place[:-2] if place.endswith(("[]", "{}")) else place.rpartition(".")[0]
        self.conflicts.append(SchemaConflict(path, self.origins.get(place, self.label), self.label, what))


def _shown(kind: T.DataType) -> str:
    """Return a type in the words of JSON Schema."""
    words = {"bigint": "integer", "double": "number", "struct": "object", "map": "object with any keys"}
    return words.get(name := kind.simpleString().partition("<")[0], name)
