"""What was observed of JSON values, and the Spark types that follow.

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

import datetime as dt
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as T

BITS = 63
MOST_DIGITS = 38
"""Of Spark's decimals."""
DIGITS_OF_BIGINT = 20
"""Those of the decimal that Spark widens a bigint to."""
EXACT_IN_DOUBLES = 2**53
MOST_ELEMENTS = 1000
FEW_NAMES = 10
"""An object of fewer names is never a map."""
ENOUGH_OBJECTS = 10
"""Fewer objects say nothing about how their names grow."""
LARGEST_SHARE_OF_NAMES = 0.25
"""A struct's object has most of the names that its kind has; a map's has a few of them."""
TIMES = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})T? ?(?P<time>\d{2}:\d{2}(?::\d{2})?)(?:(?<=:\d{2}:\d{2})\.\d{1,9})?"
    r"(?:Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))?",
    re.ASCII,
)
"""Java's zones end at 18 hours."""


def is_time(text: str) -> bool:
    """Return whether Spark infers a timestamp from a text, with the format that the decoder `json` infers with.

    Those with a small `t` or `z` it takes too, but the decoder does not.
    """
    match = TIMES.fullmatch(text)
    if match is None:
        return False
    try:
        dt.datetime.fromisoformat(f"{match['day']}T{match['time']}")
    except ValueError:
        return False
    return True


def look_at(elements: list[Any]) -> list[Any]:
    """Return the elements of an array that are looked at: the first and last ones of a long one."""
    if len(elements) <= MOST_ELEMENTS:
        return elements
    return elements[: MOST_ELEMENTS // 2] + elements[-MOST_ELEMENTS // 2 :]


@dataclass
class Observed:
    """What values a place has: their kinds with counts, and what is inside.

    `inside` has the fields of objects by name, and under None what arrays, or the objects of a map, hold.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    largest: int = 0
    """The largest absolute value of whole numbers."""
    looks: Counter[str] = field(default_factory=Counter)
    """What texts look like, for those who have to decide -> how many do."""
    inside: dict[str | None, Observed] = field(default_factory=lambda: defaultdict(Observed))
    map_names: int = 0
    """Of a map, which an object is whose names are data: how many names there are."""

    @property
    def count(self) -> int:
        """Return how many values were observed."""
        return self.kinds.total()

    def add(self, value: Any) -> None:
        """Observe a value as `json.loads` gives it."""
        self.kinds[self._observe_inside(value)] += 1

    def _observe_inside(self, value: Any) -> str:
        match value:
            case None | "":
                return "null"
            case bool():
                return "boolean"
            case int():
                self.largest = max(self.largest, abs(value))
                if -(2**BITS) <= value < 2**BITS:
                    return "bigint"
                return "decimal" if len(str(abs(value))) <= MOST_DIGITS else "double"
            case float():
                return "double"
            case str() if is_time(value):
                return "timestamp"
            case str():
                self.looks.update(name for name, pattern in LOOKS.items() if pattern.fullmatch(value))
                return "string"
            case list():
                elements = self.inside[None]
                for element in look_at(value):
                    elements.add(element)
                return "array"
        for name, inner in value.items():
            self.inside[name].add(inner)
        return "object"

    def join(self, other: Observed) -> None:
        """Add what was observed elsewhere of the same place."""
        self.kinds += other.kinds
        self.looks += other.looks
        self.largest = max(self.largest, other.largest)
        for name, inner in other.inside.items():
            self.inside[name].join(inner)

    @property
    def names_grow(self) -> bool:
        """Return whether the names of these objects, which are of one kind, look like data."""
        objects = self.kinds["object"]
        names = len(self.inside)
        if names < FEW_NAMES or objects < ENOUGH_OBJECTS:
            return False
        named = sum(inner.count for inner in self.inside.values())
        return named / objects < LARGEST_SHARE_OF_NAMES * names

    @property
    def brings_names(self) -> bool:
        """Return whether every second of these objects, of whatever kind, brings a name that no other has."""
        objects = self.kinds["object"]
        once = sum(inner.count == 1 for inner in self.inside.values())
        return objects >= 2 * ENOUGH_OBJECTS and once >= objects / 2

    def mark_maps(self, by_kind: list[Observed]) -> None:
        """Make maps of the objects inside whose names are data, by what was observed of each kind of records.

        Records of many kinds have many names in one place, each kind its own: within a kind a struct's do not grow.
        """
        for name, inner in self.inside.items():
            of_kinds = [kind.inside[name] for kind in by_kind if name in kind.inside]
            if inner.brings_names or any(of_kind.names_grow for of_kind in of_kinds):
                for place in (inner, *of_kinds):
                    place.join_names()
            inner.mark_maps(of_kinds)

    def join_names(self) -> None:
        """Make a map of these objects: what they have under any name is of one type."""
        values = Observed()
        for inner in self.inside.values():
            values.join(inner)
        self.map_names = len(self.inside)
        self.inside = {None: values}

    def names(self) -> set[str]:
        """Return the names of fields, here and inside."""
        names = {name for name in self.inside if name is not None}
        for inner in self.inside.values():
            names |= inner.names()
        return names

    @property
    def kind(self) -> str:
        """Return the one kind that values are of; `mixed` if no type but string holds them."""
        kinds = {*self.kinds} - {"null"}
        if kinds <= {"bigint", "decimal", "double"} and len(kinds) > 1:
            return "double" if "double" in kinds else "decimal"
        if len(kinds) > 1:
            return "mixed"
        return next(iter(kinds), "null")

    def type(self) -> T.DataType | None:
        """Return the type of the column; None for objects without a field, which get no column."""
        if self.kind == "decimal":
            # Beside numbers of 64 bits Spark makes room for these.
            return T.DecimalType(max(len(str(self.largest)), DIGITS_OF_BIGINT if "bigint" in self.kinds else 0), 0)
        if self.kind in SCALARS:
            return SCALARS[self.kind]()
        if self.kind == "object" and not self.map_names:
            struct = self.struct()
            return struct if struct.fields else None
        inner = self.inside[None].type()
        if inner is None:
            return None
        return T.MapType(T.StringType(), inner) if self.map_names else T.ArrayType(inner)

    def struct(self) -> T.StructType:
        """Return the columns of these objects."""
        struct = T.StructType()
        # As Java orders texts; a field without a name gets no column.
        for name in sorted(filter(None, self.inside), key=lambda name: name.encode("utf-16-be", "surrogatepass")):
            kind = self.inside[name].type()
            if kind is not None:
                struct.add(name, kind)
        return struct


SCALARS: dict[str, type[T.DataType]] = {
    "null": T.StringType,
    "mixed": T.StringType,
    "string": T.StringType,
    "boolean": T.BooleanType,
    "bigint": T.LongType,
    "double": T.DoubleType,
    "timestamp": T.TimestampType,
}
LOOKS = {
    "a date": re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII),
    "a decimal": re.compile(r"-?\d{1,20}\.\d{1,18}", re.ASCII),
    "a time in another form": re.compile(r"(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{8}T\d{6}).{0,20}", re.ASCII),
}
"""Texts of which a person may want to make another type."""
