"""Find the place of a fault in a configuration, given as pydantic gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.config.tree import Entry, Items, Keys, Node, Scalar, printable
from router.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.resolve import Location

_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what YAML 1.1 counts as one


@dataclass(frozen=True)
class Place:
    """Hold what stands at a location.

    `path` is the part of the location that the document has, `left` the elements it has not: a missing key, the name
    of a main option that was not written, the member of a union. `key` is the entry through which `node` was reached.
    """

    path: tuple[str, ...]
    left: tuple[str, ...]
    node: Node
    key: Entry | None


@dataclass(frozen=True)
class Document:
    """Hold the tree of one file and make problems out of locations in it."""

    file: str
    root: Node = field(repr=False)
    widths: tuple[int, ...] = field(repr=False)

    def locate(self, loc: Location) -> Place:
        """Walk a location as far as the document goes, past elements that it does not have."""
        place = Place((), (), self.root, None)
        for element in map(str, loc):
            place = _step(place, element)
        return place

    def problem(self, loc: Location, what: str, hint: str = "", *, at_key: bool = False) -> Problem:
        """Return a problem at the value (or the key) of a location, or at what is nearest to it."""
        place = self.locate(loc)
        nothing = isinstance(place.node, Scalar) and place.node.plain and not place.node.text
        spot = place.key if place.key is not None and (at_key or nothing) else place.node
        line, column = inside(self.widths, spot.line, spot.column)
        return Problem(self.file, line, column, printable(".".join(place.path)), printable(what), printable(hint))


def widths_of(text: str) -> tuple[int, ...]:
    """Return the length of every line of a text."""
    return tuple(len(line) for line in _LINE_BREAK.split(text))


def inside(widths: tuple[int, ...], line: int, column: int) -> tuple[int, int]:
    """Return the nearest place inside the file: what is missing at its end has no place of its own."""
    line = max(1, min(line, len(widths)))
    return line, max(1, min(column, widths[line - 1] + 1))


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return problems in the order of the file; one that aliases repeat is said once."""
    unique = {(problem.line, problem.column, problem.what): problem for problem in reversed(list(problems))}
    return tuple(sorted(unique.values(), key=lambda problem: (problem.line, problem.column, problem.path)))


def _step(place: Place, element: str) -> Place:
    node = place.node
    if isinstance(node, Keys) and element in node.entries:
        entry = node.entries[element]
        return Place((*place.path, element), place.left, entry.value, entry)
    if isinstance(node, Items) and element.isdecimal() and int(element) < len(node.items):
        return Place((*place.path, element), place.left, node.items[int(element)], None)
    return Place(place.path, (*place.left, element), node, place.key)
