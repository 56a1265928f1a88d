"""Read a JSON Schema, registered or in a file, with what it refers to, as a Spark struct.

Nothing is ever fetched. The references stand in one document with the schema, under `$references`, and every `$ref`
becomes a JSON pointer there. A `$ref` is resolved as JSON Schema core, 8.2 requires: against the `$id` of its document,
to a place or an anchor in it. A reference of the registry is known under the name it is registered with, under that
name resolved against the schema's `$id`, and under its own `$id`. So is a file, whose name is its path from the folder
of the schema file.

A schema file that is written for the router may be refused, because its author can change it. A registered schema
belongs to others, and a refusal would make dead letters of all its records. So each has columns, whatever it allows,
and a value that no column can hold is kept as its JSON text. These lines are added to the table of `spark_types`:

| JSON Schema | Spark | decided by |
|---|---|---|
| several objects in oneOf, anyOf or allOf, or with properties | one struct with the fields of all | core, 10.2.1 |
| the same at the root, a property has several types in them | that property is a string: the JSON text | core, 10.2.1 |
| members at the root that are no objects with properties, beside one that is | are ignored | core, 10.2.1 |
| integer in one of them and number in another | double | validation, 6.1.1 |
| members that only restrict: required, if, not, ... | are ignored | validation, 6.5.3 |
| several other types; none; true | string: the JSON text | core, 4.3.2 |
| object without properties and without a schema of its values | string: the JSON text | core, 10.3.2 |
| array without one schema of its items | string: the JSON text | core, 10.3.1 |
| a schema within itself | string: the JSON text, where it comes again | core, 8.2.3.1 |

A text stays as it is, and everything else is JSON: `5`, `{"a":1}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urldefrag, urljoin

from pyspark.sql import types as T

from router_schemas.json_schema.merge import ObjectVersion, merge_objects
from router_schemas.json_schema.spark_types import (
    UNIONS,
    TypeMapping,
    Untyped,
    as_step,
    at_pointer,
    check_types,
    is_null,
)

if TYPE_CHECKING:
    from pathlib import Path


REFERENCES_KEYWORD = "$references"
"""The keyword under which the references stand in the document of a schema."""
MAX_DOCUMENT_DEPTH = 200
MAX_OBJECTS = 200_000
"""Objects of a schema with every `$ref` written out: a few lines can name each definition twice in the next."""
TYPE_KEYWORDS = {"type", "properties", "additionalProperties", "items", "prefixItems", "const", "enum", "$ref", *UNIONS}
"""Keywords that determine the type of a value."""


def title_of(text: str) -> str | None:
    """Return the title of a schema, which Confluent's clients take for the name of a record; None without one."""
    match json.loads(text):
        case {"title": str(title)} if title:
            return title
    return None


def struct_of_text(text: str, imports: Mapping[str, str] | None = None) -> T.StructType:
    """Return the Spark struct of a registered schema; raise ValueError naming the JSON pointer of what has none.

    `imports` are the texts that it may refer to, by the names it uses.
    """
    return _map_schema(ColumnMapping, text, imports or {}, address="")


def struct_of_file(file: Path, text: str) -> T.StructType:
    """Return the Spark struct of a schema file with this text; raise ValueError naming the pointer of what has none.

    It may refer to other files, by paths from its own folder.
    """
    return _map_schema(TypeMapping, text, referenced_files(file, text), file.absolute().as_uri())


def referenced_files(file: Path, text: str) -> dict[str, str]:
    """Return the texts of the files that a schema file refers to, directly or not, by their paths from its folder."""
    texts = {file.name: text}
    waiting = [file.name]
    while waiting:
        name = waiting.pop()
        links = _Links({})
        links.add_place(_load_json(name, texts[name]), "", "#", "#")
        for node, _, _ in links.references:
            # Never a path from the root: in an address that is the root of a server, not of this machine.
            other = normpath(join(dirname(name), urldefrag(node["$ref"]).url))
            path = file.parent / unquote(other)
            if other not in texts and not unquote(other).startswith("/") and path.is_file():
                texts[other] = path.read_text(encoding="utf-8")
                waiting.append(other)
    del texts[file.name]
    return texts


def _map_schema(mapping: type[TypeMapping], text: str, imports: Mapping[str, str], address: str) -> T.StructType:
    """Return the struct of a schema that was read at an address, with its imports by name."""
    names = list(imports)
    try:
        document = _build_document(text, imports, address)
        _Size(document).check_limits()
        return mapping(document).root_struct()
    except RecursionError:
        raise ValueError("#: the schema is nested too deep; write a flatter one") from None
    except ValueError as error:
        raise ValueError(_with_names(str(error), names)) from None


def _build_document(text: str, imports: Mapping[str, str], address: str) -> object:
    """Return one document that refers to itself only."""
    document = _load_json("#", text)
    if not isinstance(document, dict):
        return document
    if imports and REFERENCES_KEYWORD in document:
        raise ValueError(f"#/{REFERENCES_KEYWORD}: this keyword is needed for the schema's references; rename it")

    # All addresses first: any document may refer to any other.
    base = _address_of(document, address)
    # Other files know a file by its name, whatever its `$id`.
    links = _Links({base: "#", urljoin(base, address.rpartition("/")[2]): "#"})
    links.add_place(document, base, "#", "#")
    for place, (name, body) in enumerate(imports.items()):
        pointer = f"#/{REFERENCES_KEYWORD}/{place}"
        other = _load_json(pointer, body)
        document.setdefault(REFERENCES_KEYWORD, []).append(other)
        own_address = _address_of(other, urljoin(base, name))
        for known_address in (name, urljoin(base, name), own_address):
            links.pointers.setdefault(urldefrag(known_address).url, pointer)
        links.add_place(other, own_address, pointer, pointer)
    links.resolve_references(document)
    return document


def _address_of(document: object, otherwise: str) -> str:
    """Return the address of a document, its `$id` without a fragment; `otherwise` if it has none."""
    return urljoin(otherwise, urldefrag(_document_id(document)).url)


def _document_id(document: object) -> str:
    """Return the `$id` of a schema, which draft 4 calls `id`; empty if it has none."""
    if not isinstance(document, Mapping):
        return ""
    identity = document.get("$id", document.get("id"))
    return identity if isinstance(identity, str) else ""


class _Links:
    """The addresses of a document's places, and its references, which are then replaced by pointers to these places.

    A schema with an `$id` is a document of its own within the other (core, 9.3). An anchor is a name for a place of its
    document (8.2.2); older drafts write it as an `$id` of the form `#name`.
    """

    def __init__(self, pointers: dict[str, str]) -> None:
        self.pointers = pointers
        self.anchors: dict[tuple[str, str], str] = {}
        self.around: dict[str, str] = {}
        """Pointer to an inner document -> the one to the document around it."""
        self.references: list[tuple[dict[str, Any], str, str]] = []

    def add_place(self, node: object, base: str, own: str, pointer: str) -> None:
        """Take a place with all below it; `base` is the address of its document, and `own` the pointer to that."""
        if isinstance(node, list):
            for place, item in enumerate(node):
                self.add_place(item, base, own, f"{pointer}/{place}")
        if not isinstance(node, dict):
            return
        address, anchor = urldefrag(_document_id(node))
        if address and pointer != own:
            base = urljoin(base, address)
            self.pointers.setdefault(base, pointer)
            self.around[pointer] = own
            own = pointer
        for name in (anchor, node.get("$anchor"), node.get("$dynamicAnchor")):
            if isinstance(name, str):
                self.anchors.setdefault((own, name), pointer)
        if isinstance(node.get("$ref"), str):
            self.references.append((node, base, own))
        for key, item in node.items():
            self.add_place(item, base, own, f"{pointer}/{as_step(key)}")

    def resolve_references(self, document: object) -> None:
        """Let all references be pointers; those to unknown addresses and anchors stay."""
        for node, base, own in self.references:
            address, _, fragment = node["$ref"].partition("#")
            place: str | None = own
            if address:
                place = self.pointers.get(urljoin(base, address), self.pointers.get(address))
            if place is not None and fragment and not fragment.startswith("/"):
                place = self.anchors.get((place, fragment))
                fragment = ""
            if place is None:
                continue
            # Generators give an `$id` to each property, and inside of it still refer to the document around it.
            while place in self.around and at_pointer(document, place + fragment) is None:
                place = self.around[place]
            node["$ref"] = place + fragment


class _Size:
    """A count of what a document describes with its references written out; too much is refused before it is built."""

    def __init__(self, document: object) -> None:
        self.document = document
        self.sizes: dict[str, int] = {}

    def check_limits(self) -> None:
        """Raise ValueError for a document that is too large or too deep, its references followed."""
        if self.size_of_node(self.document, 0) > MAX_OBJECTS:
            raise ValueError(
                f"#: with its references followed the schema has over {MAX_OBJECTS} parts; write smaller ones"
            )

    def size_of_node(self, node: object, depth: int) -> int:
        """Return how many objects a place stands for."""
        if depth > MAX_DOCUMENT_DEPTH:
            raise ValueError(f"#: the schema is nested more than {MAX_DOCUMENT_DEPTH} deep, its references followed")
        if isinstance(node, list):
            return sum(self.size_of_node(item, depth + 1) for item in node)
        if not isinstance(node, Mapping):
            return 0
        size = 1 + sum(self.size_of_node(item, depth + 1) for item in node.values())
        reference = node.get("$ref")
        if isinstance(reference, str):
            size += self.size_of_reference(reference, depth)
        return size

    def size_of_reference(self, reference: str, depth: int) -> int:
        """Return the size of what a reference stands for; a circle counts once, because the mapping ends it."""
        if reference not in self.sizes:
            self.sizes[reference] = 0  # for a circle that comes back here
            self.sizes[reference] = self.size_of_node(at_pointer(self.document, reference), depth + 1)
        return self.sizes[reference]


def _load_json(where: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: it is not JSON ({error}); write a JSON Schema") from None


def _with_names(message: str, names: list[str]) -> str:
    """Return a message with the names of references in place of the pointers to them."""
    # Backwards, because the pointer to place 1 is also the beginning of the one to place 10.
    for place in reversed(range(len(names))):
        message = message.replace(f"#/{REFERENCES_KEYWORD}/{place}", f"{names[place]}#")
    return message


class ColumnMapping(TypeMapping):
    """The mapping of a registered document, which has a type for every place: a string if no other one fits."""

    def __init__(self, document: object) -> None:
        super().__init__(document)
        self.parts = 0
        self.depth = 0
        """Properties, elements and values around a place; an event has none."""

    def root_struct(self) -> T.StructType:
        """Return the struct of the whole document; raise ValueError for names that differ by case only."""
        struct = super().root_struct()
        check_types(struct)
        return struct

    def type_below(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the type of a property, of elements or of a map's values; a text if there is none."""
        self.depth += 1
        try:
            return self.type_at(node, pointer, trail)
        except Untyped:
            return T.StringType()
        finally:
            self.depth -= 1

    def type_at(self, node: object, pointer: str, trail: tuple[str, ...]) -> T.DataType:
        """Return the type of one schema."""
        self.parts += 1
        if self.parts > MAX_OBJECTS:
            raise ValueError(f"#: the schema describes over {MAX_OBJECTS} parts; write smaller ones")
        if not isinstance(node, Mapping) or "$ref" in node or not any(union in node for union in UNIONS):
            return super().type_at(node, pointer, trail)

        own = {key: value for key, value in node.items() if key not in UNIONS}
        kinds = []
        if _says_type(own):
            with suppress(Untyped):  # `type: object` alone: the members have its properties
                kinds.append(super().type_at(own, pointer, trail))
        for union in UNIONS:
            if union in node:
                kinds += self.member_types(node[union], f"{pointer}/{union}", trail)
        events = [kind for kind in kinds if isinstance(kind, T.StructType)]
        if events and not self.depth:
            return _common_event(events)
        return _common_type(kinds, pointer)

    def member_types(self, members: object, pointer: str, trail: tuple[str, ...]) -> list[T.DataType]:
        """Return the types of the members of a union; those that only restrict have none."""
        if not isinstance(members, Sequence) or isinstance(members, str):
            raise ValueError(f"{pointer}: a list of schemas is needed")
        kinds = []
        for place, member in enumerate(members):
            if not _says_type(member) or is_null(member):
                continue
            try:
                kinds.append(self.type_at(member, f"{pointer}/{place}", trail))
            except Untyped:
                # Events of any other member may have the properties of this one: it takes none of them away.
                if self.depth:
                    raise
        return kinds


def _says_type(node: Any) -> bool:
    return not isinstance(node, Mapping) or not TYPE_KEYWORDS.isdisjoint(node)


def _common_type(kinds: list[T.DataType], pointer: str) -> T.DataType:
    """Return the type that holds the values of all."""
    if not kinds:
        raise Untyped(f"{pointer}: it does not say what the value is")
    merged = merge_objects([ObjectVersion("", T.StructType([T.StructField("it", kind)])) for kind in kinds])
    for conflict in merged.conflicts:
        raise Untyped(f"{pointer}: a column has one type; {conflict.field.removeprefix('it.')}: {conflict.what}")
    return merged.struct["it"].dataType


def _common_event(events: list[T.StructType]) -> T.StructType:
    """Return the struct that holds all events; a property that has no common type in them is a string."""
    kinds: dict[str, list[T.DataType]] = {}
    for field in chain.from_iterable(events):
        kinds.setdefault(field.name, []).append(field.dataType)
    fields = []
    for name, kinds_of_property in kinds.items():
        kind: T.DataType = T.StringType()
        with suppress(Untyped):
            kind = _common_type(kinds_of_property, name)
        fields.append(T.StructField(name, kind))
    return T.StructType(fields)
