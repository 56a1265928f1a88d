"""Read a registered JSON Schema, with what it refers to, as a Spark struct. Nothing is ever fetched.

The references stand in one document with the schema, under `$references`, and every `$ref` to one of them becomes a
JSON pointer there; what a type becomes is decided by `columns`.

A `$ref` is resolved as JSON Schema core, 8.2 says: against the `$id` of its document. A reference of the registry is
known under the name it is registered with, under that name resolved against the schema's `$id`, and under its own
`$id`. In other places than these a schema is not looked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urldefrag, urljoin

from router_schemas.json_schema.columns import MOST, ColumnMapping
from router_schemas.json_schema.spark_json import check_types

if TYPE_CHECKING:
    from pyspark.sql import types as T

    from router_schemas.records import Closed

KEY = "$references"
MAX_DEPTH = 200


def struct_of_registered(closed: Closed) -> T.StructType:
    """Return the Spark struct of a registered schema; raise ValueError naming the JSON pointer of what has none."""
    return struct_of_text(closed.schema.text, closed.imports)


def title_of(closed: Closed) -> str | None:
    """Return what a schema calls its records: Confluent's clients take its title for the name of a record."""
    document = json.loads(closed.schema.text)
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
    """Count what a document describes with its references written out, and refuse too much before it is built."""

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
            self.known[reference] = self.size(_at(self.document, reference), depth + 1)
        return self.known[reference]


def _at(document: object, pointer: str) -> object:
    """Return what a pointer of this document leads to, None for nothing."""
    for key in _keys(pointer):
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


def _keys(pointer: str) -> Iterator[str]:
    for key in pointer.removeprefix("#").split("/")[1:]:
        yield unquote(key).replace("~1", "/").replace("~0", "~")


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
