"""Fields of JSON objects that a schema lacks: found in every record, and named as long as they are few.

A parser that knows its fields passes over the others without a trace, which is what makes it fast. So it is told to
refuse them: a text that it refuses is parsed once more, without a schema, and the fields found in it are learnt. From
then on the parser has them as fields of any value, and one pass says which of them a record has. A topic without such
fields costs nothing more, and one with a few of them little.

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

from router_decoders.json_types import BEYOND, Shape, struct_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Bits = NDArray[np.int64]

MOST = 50
"""Different fields that a process names; keys made of data would be as many as there are records."""
LONGEST = 120
"""Characters of a field's name that are kept."""
NAMES = pa.list_(pa.field("element", pa.string()))
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
        """Say whether a text that is refused can name nothing new."""
        return len(self.numbers) == MOST and not self.unparsed

    def bits(self, paths: set[Path]) -> int:
        """Return the bits of some fields; learn those that are new while there is room."""
        found = 0
        for path in sorted(paths, key=_name):
            if path not in self.numbers and len(self.numbers) < MOST:
                self._learn(path)
            found |= 1 << self.numbers[path] if path in self.numbers else 0
        return found

    def _learn(self, path: Path) -> None:
        name = _name(path)
        if name not in self.names:
            self.names.append(name)
        self.numbers[path] = self.names.index(name)
        if all(step is None or _is_plain(step) for step in path):
            self.shape = _extended(self.shape, path)
        else:
            self.unparsed = True

    def bits_of_objects(self, objects: Sequence[Any], shape: Shape) -> Bits:
        """Return the bits of parsed objects; `shape` is what they were parsed to."""
        found = np.zeros(len(objects), np.int64)
        for path, has in _present(objects, shape, ()):
            found |= has.astype(np.int64) << self.numbers[path]
        return found


@lru_cache(maxsize=64)
def unknown_fields(known: Shape) -> UnknownFields:
    """Return the fields beyond a schema that this process has met: a worker learns them once for all of its tasks."""
    return UnknownFields(known)


class UnknownInRows:
    """Which rows of a block have fields beyond the schema, and which fields these are."""

    def __init__(self, met: UnknownFields, rows: int) -> None:
        self.met = met
        self.shape = met.shape
        self.any = np.zeros(rows, bool)
        self.bits = np.zeros(rows, np.int64)

    def parsed(self, rows: list[int], objects: Sequence[Any]) -> None:
        """Take what a parser has made of rows that refuses fields beyond `shape`."""
        if self.met.numbers:
            at = slice(None) if len(rows) == len(self.any) else rows
            self.bits[at] = found = self.met.bits_of_objects(objects, self.shape)
            self.any[at] = found != 0

    def refused(self, rows: list[int], objects: Sequence[Any], texts: Sequence[bytes | None], known: Shape) -> None:
        """Take what another parser has made of rows that the first one refused, for a field beyond `shape`."""
        self.parsed(rows, objects)
        for row, one in zip(rows, objects, strict=True):
            if one is not None:
                self.any[row] = True
                text = texts[row]
                if not self.met.is_final and text is not None:
                    self.bits[row] |= self.met.bits(paths_in(_value(text), known))

    def decided(self, row: int, value: Any, known: Shape) -> None:
        """Take an object that neither parser has made."""
        paths = paths_in(value, known)
        self.any[row], self.bits[row] = bool(paths), self.met.bits(paths)

    def column(self) -> pa.ListArray:
        """Return the names of each row's unknown fields; null where it has none."""
        if not self.any.any():
            return pa.nulls(len(self.any), NAMES)
        combined, which = np.unique(self.bits, return_inverse=True)
        some = [
            [name for number, name in enumerate(self.met.names) if bits >> number & 1] for bits in combined.tolist()
        ]
        places = pa.array(which, pa.int32(), mask=~self.any)
        return pa.array(some, NAMES).take(places)


def paths_in(value: Any, known: Shape, path: Path = ()) -> set[Path]:
    """Return the unknown fields of a JSON value; an object is a dict, or a list of pairs."""
    return set(_paths(value, known, path))


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except Exception:  # nested too deep for Python
        return None


def _paths(value: Any, known: Shape, path: Path) -> Iterator[Path]:
    if known.kind == "array" and isinstance(value, list):
        for one in value:
            yield from _paths(one, known.inner, (*path, None))
    elif known.kind == "struct" and isinstance(value, (dict, list)):
        fields = dict(known.fields)
        for name, one in value.items() if isinstance(value, dict) else value:
            if name in fields:
                yield from _paths(one, fields[name], (*path, name))
            else:
                yield (*path, name)


def _name(path: Path) -> str:
    """Return what people call a field; half of a surrogate pair is no text that a table can hold."""
    whole = "".join("[]" if step is None else f".{step}" for step in path)[1:]
    return _text(whole[:LONGEST])


def _text(name: str) -> str:
    return name.encode(errors="replace").decode()


def _is_plain(name: str) -> bool:
    """Say whether JSON writes a name as it is, without half of a surrogate pair: the parser takes no other."""
    return json.dumps(name, ensure_ascii=False) == f'"{name}"' == f'"{_text(name)}"'


def _extended(shape: Shape, path: Path) -> Shape:
    """Return a shape with one more field, which takes any value."""
    step, *rest = path
    if step is None:
        return replace(shape, fields=((shape.fields[0][0], _extended(shape.inner, tuple(rest))),))
    if not rest:
        return replace(shape, fields=(*shape.fields, (step, BEYOND)))
    inside = tuple((name, _extended(one, tuple(rest)) if name == step else one) for name, one in shape.fields)
    return replace(shape, fields=inside)


@lru_cache(maxsize=256)
def _holds(shape: Shape) -> bool:
    return shape is BEYOND or (shape.kind in ("struct", "array") and any(_holds(one) for _, one in shape.fields))


def _present(values: Sequence[Any], shape: Shape, path: Path) -> Iterator[tuple[Path, NDArray[np.bool_]]]:
    """Yield the learnt fields of parsed values, each with the values that have it."""
    if not _holds(shape):
        return
    if shape.kind == "array":
        rows = np.repeat(np.arange(len(values)), [len(value or ()) for value in values])
        elements = [*chain.from_iterable(value or () for value in values)]
        for inner, has in _present(elements, shape.inner, (*path, None)):
            yield inner, np.bincount(rows[has], minlength=len(values)) > 0
        return
    if any(value is None for value in values):
        empty = struct_class(shape)()
        values = [empty if value is None else value for value in values]
    for place, (name, child) in enumerate(shape.fields):
        if _holds(child):
            found = map(attrgetter(f"f{place}"), values)
            if child.kind == BEYOND.kind:
                yield (*path, name), np.fromiter(map(is_not, found, repeat(None)), bool, len(values))
            else:
                yield from _present([*found], child, (*path, name))
