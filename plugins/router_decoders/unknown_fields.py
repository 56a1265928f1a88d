"""Fields of JSON objects that a schema lacks: found in every record, and named as long as they are few.

A parser is fast because it passes over fields that it does not know without a trace. So it is set to refuse them: a
text that it refuses is parsed again, without a schema, and the fields in it are learnt. From then on the parser has
them as fields of any value, and one pass finds those that a record has. A topic without such fields costs nothing more,
and one with a few of them little.

| a field | is |
|---|---|
| of a struct, also of one inside a struct or an array | found: `player.level`, `bets[].odds` |
| inside the values of a map | not looked for |
| the 51st of a process, such as a key made of data | counted with its record, not named |
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import chain, repeat
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from router_decoders.json_types import BEYOND_SCHEMA, Shape, struct_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Bits = NDArray[np.int64]

MAX_FIELDS = 50
"""Different fields that a process names; keys made of data would be as many as there are records."""
MAX_NAME_CHARACTERS = 120
"""Characters of a field's name that are kept."""
NAMES_TYPE = pa.list_(pa.field("element", pa.string()))
Path = tuple[str | None, ...]
"""The names of fields from the outside in, None for the elements of an array."""


class UnknownFields:
    """The fields beyond a schema that this process has met. `shape` is the schema's with those that a parser can have.

    Each has a number, which is that of its bit; two whose names begin alike share one.
    """

    def __init__(self, known: Shape) -> None:
        self.shape = known
        self.names: list[str] = []
        self.numbers: dict[Path, int] = {}
        self.unparsed = False

    @property
    def is_final(self) -> bool:
        """Return whether a refused text can name no new field."""
        return len(self.numbers) == MAX_FIELDS and not self.unparsed

    def bits_of(self, paths: set[Path]) -> int:
        """Return the bits of some fields; learn those that are new while there is room."""
        bits = 0
        for path in sorted(paths, key=_path_text):
            if path not in self.numbers and len(self.numbers) < MAX_FIELDS:
                self._learn_field(path)
            if path in self.numbers:
                bits |= 1 << self.numbers[path]
        return bits

    def _learn_field(self, path: Path) -> None:
        name = _path_text(path)
        if name not in self.names:
            self.names.append(name)
        self.numbers[path] = self.names.index(name)
        if all(step is None or _is_plain(step) for step in path):
            self.shape = _extend_shape(self.shape, path)
        else:
            self.unparsed = True

    def bits_of_objects(self, objects: Sequence[Any], shape: Shape) -> Bits:
        """Return the bits of parsed objects; `shape` is the type that they were parsed to."""
        bits = np.zeros(len(objects), np.int64)
        for path, is_present in _present_fields(objects, shape, ()):
            bits |= is_present.astype(np.int64) << self.numbers[path]
        return bits


@lru_cache(maxsize=64)
def unknown_fields(known: Shape) -> UnknownFields:
    """Return the fields beyond a schema that this process has met: a worker learns them once for all of its tasks."""
    return UnknownFields(known)


class UnknownInRows:
    """The rows of a block that have fields beyond the schema, and the bits of these fields."""

    def __init__(self, fields: UnknownFields, rows: int) -> None:
        self.fields = fields
        self.shape = fields.shape
        self.any = np.zeros(rows, bool)
        self.bits = np.zeros(rows, np.int64)

    def add_parsed(self, rows: list[int], objects: Sequence[Any]) -> None:
        """Take the objects of rows from a parser that refuses fields beyond `shape`."""
        if not self.fields.numbers:
            return
        places = slice(None) if len(rows) == len(self.any) else rows
        bits = self.fields.bits_of_objects(objects, self.shape)
        self.bits[places] = bits
        self.any[places] = bits != 0

    def add_refused(self, rows: list[int], objects: Sequence[Any], texts: Sequence[bytes | None], known: Shape) -> None:
        """Take the objects of rows that the first parser refused, for a field beyond `shape`, from another parser."""
        self.add_parsed(rows, objects)
        for row, parsed in zip(rows, objects, strict=True):
            if parsed is None:
                continue
            self.any[row] = True
            text = texts[row]
            if not self.fields.is_final and text is not None:
                self.bits[row] |= self.fields.bits_of(paths_in(_parse_json(text), known))

    def add_decided(self, row: int, value: Any, known: Shape) -> None:
        """Take an object that neither parser has made."""
        paths = paths_in(value, known)
        self.any[row] = bool(paths)
        self.bits[row] = self.fields.bits_of(paths)

    def to_column(self) -> pa.ListArray:
        """Return the names of each row's unknown fields; null if it has none."""
        if not self.any.any():
            return pa.nulls(len(self.any), NAMES_TYPE)
        # Each combination of fields is made once.
        combinations, place_of_row = np.unique(self.bits, return_inverse=True)
        names_of_combinations = []
        for bits in combinations.tolist():
            names = [name for number, name in enumerate(self.fields.names) if bits >> number & 1]
            names_of_combinations.append(names)
        return pa.array(names_of_combinations, NAMES_TYPE).take(pa.array(place_of_row, pa.int32(), mask=~self.any))


def paths_in(value: Any, known: Shape, path: Path = ()) -> set[Path]:
    """Return the unknown fields of a JSON value; an object is a dict, or a list of pairs."""
    return set(_unknown_paths(value, known, path))


def _parse_json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except Exception:  # nested too deep for Python
        return None


def _unknown_paths(value: Any, known: Shape, path: Path) -> Iterator[Path]:
    if known.kind == "array" and isinstance(value, list):
        for element in value:
            yield from _unknown_paths(element, known.inner, (*path, None))
    elif known.kind == "struct" and isinstance(value, (dict, list)):
        fields = dict(known.fields)
        pairs = value.items() if isinstance(value, dict) else value
        for name, child in pairs:
            if name in fields:
                yield from _unknown_paths(child, fields[name], (*path, name))
            else:
                yield (*path, name)


def _path_text(path: Path) -> str:
    """Return the name of a field for people; half of a surrogate pair is no text that a table can store."""
    name = ""
    for step in path:
        name += "[]" if step is None else f".{step}"
    return _replace_surrogates(name[1 : MAX_NAME_CHARACTERS + 1])


def _replace_surrogates(name: str) -> str:
    return name.encode(errors="replace").decode()


def _is_plain(name: str) -> bool:
    """Return whether JSON writes a name as it is, without half of a surrogate pair: the parser takes no other."""
    return json.dumps(name, ensure_ascii=False) == f'"{name}"' == f'"{_replace_surrogates(name)}"'


def _extend_shape(shape: Shape, path: Path) -> Shape:
    """Return a shape with one more field, which takes any value."""
    step, *rest = path
    if step is None:
        return replace(shape, fields=((shape.fields[0][0], _extend_shape(shape.inner, tuple(rest))),))
    if not rest:
        return replace(shape, fields=(*shape.fields, (step, BEYOND_SCHEMA)))
    fields = []
    for name, child in shape.fields:
        if name == step:
            fields.append((name, _extend_shape(child, tuple(rest))))
        else:
            fields.append((name, child))
    return replace(shape, fields=tuple(fields))


@lru_cache(maxsize=256)
def _has_beyond(shape: Shape) -> bool:
    """Return whether a shape has a field beyond the schema, at any depth."""
    if shape is BEYOND_SCHEMA:
        return True
    return shape.kind in ("struct", "array") and any(_has_beyond(child) for _, child in shape.fields)


def _present_fields(values: Sequence[Any], shape: Shape, path: Path) -> Iterator[tuple[Path, NDArray[np.bool_]]]:
    """Yield the learnt fields of parsed values, each with whether a value has it."""
    if not _has_beyond(shape):
        return
    if shape.kind == "array":
        rows = np.repeat(np.arange(len(values)), [len(value or ()) for value in values])
        elements = [*chain.from_iterable(value or () for value in values)]
        for inner, is_present in _present_fields(elements, shape.inner, (*path, None)):
            yield inner, np.bincount(rows[is_present], minlength=len(values)) > 0
        return
    # An empty struct stands for a null one, which has no attributes. Comprehensions and map walk the values, because a
    # loop would take longer for each of them.
    if any(value is None for value in values):
        empty = struct_class(shape)()
        values = [empty if value is None else value for value in values]
    for place, (name, child) in enumerate(shape.fields):
        if not _has_beyond(child):
            continue
        children = map(attrgetter(f"f{place}"), values)
        if child.kind == BEYOND_SCHEMA.kind:
            is_present = np.fromiter(map(is_not, children, repeat(None)), bool, len(values))
            yield (*path, name), is_present
        else:
            yield from _present_fields([*children], child, (*path, name))
