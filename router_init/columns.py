"""The values that a sample has at one place of its records, and the Spark type that follows.

The types are those of Spark's inference over the same records (`decode: {json: {infer: ...}}`), except that an object
whose names are data is a map:

| values of a field | type |
|---|---|
| none but null, "" and [] of these | string |
| whole numbers of 64 bits; longer ones of up to 38 digits; fractions, or more digits | bigint; decimal; double |
| texts that are all times with hours and minutes | timestamp |
| of several kinds | string |
| objects; objects without any field | struct, names in their order; no column |
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_DIGITS = 38
"""Of Spark's decimals."""
DIGITS_OF_BIGINT = 20
"""Those of the decimal that Spark widens a bigint to."""
EXACT_IN_DOUBLES = 2**53
MOST_ELEMENTS = 500
"""Of each end of an array."""
FEW = 10
"""An object of fewer names is never a map, and fewer objects say nothing about how their names grow."""
LARGEST_SHARE_OF_NAMES = 0.25
"""A struct's object has most of the names that its kind has; a map's has a few of them."""
TIMES = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})T? ?(?P<time>\d{2}:\d{2}(?::\d{2})?)(?:(?<=:\d{2}:\d{2})\.\d{1,9})?"
    r"(?:Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))?",
    re.ASCII,
)
"""Java's zones end at 18 hours."""
LOOKS = {
    "a date": re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII),
    "a decimal": re.compile(r"-?\d{1,20}\.\d{1,18}", re.ASCII),
    "a time in another form": re.compile(r"(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{8}T\d{6}).{0,20}", re.ASCII),
}
"""Texts of which a person may want to make another type."""
NUMBERS = ("bigint", "decimal", "double")
"""In the order in which they widen, which is that of their names."""
SCALARS: dict[str, type[T.DataType]] = {
    "null": T.StringType,
    "mixed": T.StringType,
    "string": T.StringType,
    "boolean": T.BooleanType,
    "bigint": T.LongType,
    "double": T.DoubleType,
    "timestamp": T.TimestampType,
}


def look_at(elements: list[Any]) -> list[Any]:
    """Return the elements of an array that are looked at: the first and last ones of a long one."""
    return elements[:MOST_ELEMENTS] + elements[MOST_ELEMENTS:][-MOST_ELEMENTS:]


def find_kind(value: Any) -> str:
    """Return the kind of a value as `json.loads` gives it."""
    match value:
        case None | "":
            return "null"
        case bool():
            return "boolean"
        case int() if -(2**63) <= value < 2**63:
            return "bigint"
        case int() if abs(value) < 10**MOST_DIGITS:
            return "decimal"
        case int() | float():
            return "double"
        case str():
            return "timestamp" if is_time(value) else "string"
        case list():
            return "array"
    return "object"


def is_time(text: str) -> bool:
    """Return whether Spark infers a timestamp from a text, with the format that the decoder `json` infers with.

    Those with a small `t` or `z` it takes too, but the decoder does not.
    """
    match = TIMES.fullmatch(text)
    with suppress(ValueError):
        return match is not None and bool(datetime.fromisoformat(f"{match['day']}T{match['time']}"))
    return False


@dataclass
class Column:
    """The values of a field, each with the label of its record: its number, or its table."""

    labels: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    is_map: bool = False
    """Whether the names of its objects are data."""

    @cached_property
    def kinds(self) -> Counter[str]:
        """Return the kinds of the values with their counts."""
        return Counter(map(find_kind, self.values))

    @cached_property
    def inside(self) -> dict[str | None, Column]:
        """Return the fields of objects by name, and under None what arrays, or the objects of a map, hold."""
        inside: dict[str | None, Column] = defaultdict(Column)
        for label, value in zip(self.labels, self.values, strict=True):
            pairs: list[tuple[str | None, Any]] = []
            if isinstance(value, dict):
                pairs = [(None if self.is_map else name, inner) for name, inner in value.items()]
            elif isinstance(value, list):
                pairs = [(None, element) for element in look_at(value)]
            for name, inner in pairs:
                inside[name].labels.append(label)
                inside[name].values.append(inner)
        return inside

    @property
    def present(self) -> list[Any]:
        """Return the labels of values that are not null: change events have both states of a row, one of them null."""
        return [label for label, value in zip(self.labels, self.values, strict=True) if value is not None]

    @property
    def value_counts(self) -> Counter[Any]:
        """Return the texts and whole numbers with their counts; none if there are values of other kinds."""
        if not self.kinds.keys() <= {"null", "string", "timestamp", "bigint", "decimal"}:
            return Counter()
        return Counter(value for value in self.values if value not in (None, ""))

    @property
    def names(self) -> Counter[str]:
        """Return the names in objects with their counts."""
        return Counter(chain.from_iterable(value for value in self.values if isinstance(value, dict)))

    @property
    def names_grow(self) -> bool:
        """Return whether names look like data in the objects of one table.

        Records of many kinds have many names in one place, each kind its own: within a kind a struct's do not grow.
        """
        objects: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for label, value in zip(self.labels, self.values, strict=True):
            if isinstance(value, dict):
                objects[label].append(value)
        for of_table in objects.values():
            names = Counter(chain.from_iterable(of_table))
            most = LARGEST_SHARE_OF_NAMES * len(names) * len(of_table)
            if min(len(names), len(of_table)) >= FEW and names.total() < most:
                return True
        return False

    @property
    def brings_names(self) -> bool:
        """Return whether every second of these objects, of whatever table, brings a name that no other has."""
        once = sum(count == 1 for count in self.names.values())
        return 2 * FEW <= self.kinds["object"] <= 2 * once

    def mark_maps(self) -> None:
        """Make maps of the objects inside whose names are data."""
        for inner in self.inside.values():
            inner.is_map = inner.names_grow or inner.brings_names
            inner.mark_maps()

    def field_names(self) -> set[str]:
        """Return the names of fields, also of those inside; names that are data are none, nor those in a text."""
        if self.kind == "mixed":
            return set()
        names = {name for name in self.inside if name is not None}
        for inner in self.inside.values():
            names |= inner.field_names()
        return names

    @property
    def kind(self) -> str:
        """Return the one kind that values are of; `mixed` if no type but string holds them."""
        kinds = {*self.kinds} - {"null"}
        if kinds.issubset(NUMBERS):
            return max(kinds, default="null")
        return kinds.pop() if len(kinds) == 1 else "mixed"

    @property
    def largest(self) -> int:
        """Return the largest absolute value of whole numbers."""
        return max((abs(value) for value in self.values if type(value) is int), default=0)

    def type(self) -> T.DataType | None:
        """Return the type of the column; None for objects without a field, which get no column."""
        if self.kind == "decimal":
            # Beside numbers of 64 bits Spark makes room for these.
            return T.DecimalType(max(len(str(self.largest)), DIGITS_OF_BIGINT if "bigint" in self.kinds else 0), 0)
        if self.kind in SCALARS:
            return SCALARS[self.kind]()
        if self.kind == "object" and not self.is_map:
            struct = self.struct()
            return struct if struct.fields else None
        inner = self.inside[None].type()
        if inner is None:
            return None
        return T.MapType(T.StringType(), inner) if self.is_map else T.ArrayType(inner)

    def struct(self) -> T.StructType:
        """Return the columns of these objects, in the order in which Java has texts; a nameless field gets none."""
        names = sorted(filter(None, self.inside), key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        types = {name: self.inside[name].type() for name in names}
        return T.StructType([T.StructField(name, kind) for name, kind in types.items() if kind is not None])

    def describe(self, path: str = "") -> Iterator[str]:
        """Yield a line for each place where a person may decide otherwise."""
        texts = [*filter(None, self.values)] if self.kind == "string" else []
        looks = [look for look, pattern in LOOKS.items() if texts and all(map(pattern.fullmatch, texts))]
        if self.kind == "mixed":
            counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.kinds.items()) if kind != "null")
            yield f"{path}: text, since it has several types ({counts})"
        elif self.largest > EXACT_IN_DOUBLES:
            yield f"{path}: whole numbers beyond 2^53, which readers that take numbers as doubles round"
        elif looks:
            yield f"{path}: text, of which each looks like {looks[0]}"
        elif self.is_map:
            yield f"{path}: a map, since its names go on growing: {len(self.names):,} in the sample"
        for name, inner in self.inside.items():
            if name is None:
                yield from inner.describe(f"{path}.*" if self.is_map else f"{path}[]")
            else:
                yield from inner.describe(f"{path}.{name}".lstrip("."))
