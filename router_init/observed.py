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
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    r"(?P<zone>Z|[+-]\d{2}:\d{2})?",
    re.ASCII,
)
LONGEST_OFFSET = dt.timedelta(hours=18)
"""Of Java's zones."""


def is_time(text: str) -> bool:
    """Return whether Spark infers a timestamp from a text, with the format that the decoder `json` infers with.

    Those with a small `t` or `z` it takes too, but the decoder does not.
    """
    match = TIMES.fullmatch(text)
    if match is None:
        return False
    zone = (match["zone"] or "Z").replace("Z", "+00:00")
    try:
        time = dt.datetime.fromisoformat(f"{match['day']}T{match['time']}{zone}")
    except ValueError:
        return False
    offset = time.utcoffset()
    return offset is not None and abs(offset) <= LONGEST_OFFSET


def look_at(elements: list[Any]) -> list[Any]:
    """Return the elements of an array that are looked at: the first and last ones of a long one."""
    if len(elements) <= MOST_ELEMENTS:
        return elements
    return elements[: MOST_ELEMENTS // 2] + elements[-MOST_ELEMENTS // 2 :]


@dataclass
class Observed:
    """What values a place has: their kinds with counts, and what is inside.

    `fields` are those of objects by name, `elements` what arrays hold. `is_map`: the names of objects are data.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    digits: int = 0
    largest: int = 0
    """The largest absolute value of whole numbers."""
    looks: Counter[str] = field(default_factory=Counter)
    """What texts look like, for those who have to decide -> how many do."""
    fields: dict[str, Observed] = field(default_factory=dict)
    elements: Observed | None = None
    is_map: bool = False

    @property
    def count(self) -> int:
        """Return how many values were observed."""
        return self.kinds.total()

    def add(self, value: Any) -> None:
        """Observe a value as `json.loads` gives it."""
        self.kinds[self._observe_inside(value)] += 1

    def _observe_inside(self, value: Any) -> str:
        if value is None or value == "":
            return "null"
        if isinstance(value, bool):
            return "boolean"
        if isinstance(value, int):
            return self._observe_whole_number(value)
        if isinstance(value, float):
            return "double"
        if isinstance(value, str):
            return self._observe_text(value)
        if isinstance(value, list):
            self.elements = self.elements or Observed()
            for element in look_at(value):
                self.elements.add(element)
            return "array"
        for name, inner in value.items():
            self.fields.setdefault(name, Observed()).add(inner)
        return "object"

    def _observe_whole_number(self, value: int) -> str:
        self.largest = max(self.largest, abs(value))
        if -(2**BITS) <= value < 2**BITS:
            return "bigint"
        digits = len(str(abs(value)))
        if digits > MOST_DIGITS:
            return "double"
        self.digits = max(self.digits, digits)
        return "decimal"

    def _observe_text(self, value: str) -> str:
        if is_time(value):
            return "timestamp"
        self.looks.update(name for name, pattern in LOOKS.items() if pattern.fullmatch(value))
        return "string"

    def join(self, other: Observed) -> None:
        """Add what was observed elsewhere of the same place."""
        self.kinds += other.kinds
        self.looks += other.looks
        self.digits = max(self.digits, other.digits)
        self.largest = max(self.largest, other.largest)
        for name, inner in other.fields.items():
            self.fields.setdefault(name, Observed()).join(inner)
        if other.elements is not None:
            self.elements = self.elements or Observed()
            self.elements.join(other.elements)

    @property
    def names_grow(self) -> bool:
        """Return whether the names of these objects, which are of one kind, look like data."""
        objects = self.kinds["object"]
        names = len(self.fields)
        if names < FEW_NAMES or objects < ENOUGH_OBJECTS:
            return False
        named = sum(inner.count for inner in self.fields.values())
        return named / objects < LARGEST_SHARE_OF_NAMES * names

    @property
    def brings_names(self) -> bool:
        """Return whether every second of these objects, of whatever kind, brings a name that no other has."""
        objects = self.kinds["object"]
        once = sum(inner.count == 1 for inner in self.fields.values())
        return objects >= 2 * ENOUGH_OBJECTS and once >= objects / 2

    def mark_maps(self, by_kind: list[Observed]) -> None:
        """Mark the objects inside whose names are data, by what was observed of each kind of records.

        Records of many kinds have many names in one place, each kind its own: within a kind a struct's do not grow.
        """
        for name, inner in self.inside():
            of_kinds = [found for kind in by_kind if (found := kind.at(name)) is not None]
            inner.is_map = any(of_kind.names_grow for of_kind in of_kinds) or inner.brings_names
            if inner.is_map:
                inner.elements = Observed()
                for value in inner.fields.values():
                    inner.elements.join(value)
                of_kinds = [value for of_kind in of_kinds for value in of_kind.fields.values()]
                inner.elements.mark_maps(of_kinds)
            else:
                inner.mark_maps(of_kinds)

    def inside(self) -> Iterator[tuple[str | None, Observed]]:
        """Yield what is inside: fields by name, the elements of arrays with None."""
        yield from self.fields.items()
        if self.elements is not None:
            yield None, self.elements

    def at(self, name: str | None) -> Observed | None:
        """Return a field; the elements for None."""
        return self.elements if name is None else self.fields.get(name)

    @property
    def conflict(self) -> bool:
        """Return whether values are of kinds that no type but string holds."""
        return self._kind() == "mixed"

    def _kind(self) -> str:
        kinds = {*self.kinds} - {"null"}
        if kinds <= {"bigint", "decimal", "double"} and len(kinds) > 1:
            return "double" if "double" in kinds else "decimal"
        if len(kinds) > 1:
            return "mixed"
        return next(iter(kinds), "null")

    def type(self) -> T.DataType | None:
        """Return the type of the column; None for objects without a field, which get no column."""
        kind = self._kind()
        if kind == "object":
            return self._object_type()
        if kind == "array":
            assert self.elements is not None
            element = self.elements.type()
            return None if element is None else T.ArrayType(element)
        if kind == "decimal":
            # Beside numbers of 64 bits Spark makes room for these.
            return T.DecimalType(max(self.digits, DIGITS_OF_BIGINT if "bigint" in self.kinds else 0), 0)
        return SCALARS[kind]()

    def _object_type(self) -> T.DataType | None:
        if self.is_map:
            assert self.elements is not None
            value = self.elements.type()
            return None if value is None else T.MapType(T.StringType(), value)
        struct = self.struct()
        return struct if struct.fields else None

    def struct(self) -> T.StructType:
        """Return the columns of these objects."""
        fields = []
        # As Java orders texts.
        for name in sorted(self.fields, key=lambda name: name.encode("utf-16-be", "surrogatepass")):
            inner = self.fields[name].type()
            if name and inner is not None:
                fields.append(T.StructField(name, inner))
        return T.StructType(fields)


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
