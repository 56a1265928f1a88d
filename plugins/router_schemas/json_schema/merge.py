"""Merge the structs of several versions of a JSON Schema into one that reads what each of them allows.

| versions differ in | the merged column |
|---|---|
| a property is missing in some | that property: null if a version has none. `required` has no influence |
| integer, number | double: JSON knows one kind of number; beyond 2**53 it is rounded |
| objects, arrays, maps | merged inside |
| names that differ by case only | refused: the columns of a table cannot |
| the rest: string and integer, date and date-time, object and array, ... | refused |

JSON has no promotions except the one for numbers: if one version calls a text a date-time and another a string, the
type of an existing column would change. Below, `old` is the type so far, `new` that of the next version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas.model import REFUSED_CHARACTERS, SchemaConflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router_schemas.model import Taken


NUMBER_TYPES = {T.LongType(), T.DoubleType()}


@dataclass(frozen=True)
class ObjectVersion:
    """A version: its struct, and the label that conflicts call it by, such as "id 7 version 2"."""

    label: str
    struct: T.StructType


@dataclass(frozen=True)
class MergedObject:
    """The struct of all versions but those that `conflicts` name."""

    struct: T.StructType
    conflicts: tuple[SchemaConflict, ...] = ()
    origins: dict[str, str] = field(default_factory=dict)


def merge_objects(versions: Sequence[ObjectVersion], taken: Taken | None = None) -> MergedObject:
    """Merge the versions of one event, oldest first.

    A version that conflicts with those before it is left out, and all its conflicts are returned. Versions that are
    left out may be merged with each other. Fields that are `taken` by records of another format keep their types, and
    integers are read as the numbers that these fields have.
    """
    taken = taken or {}
    struct = T.StructType([T.StructField(name, kind) for name, (kind, _) in taken.items()])
    origins = {name: label for name, (_, label) in taken.items()}
    conflicts: list[SchemaConflict] = []
    names: set[str] = set()
    for version in versions:
        fold = _Fold(version.label, origins)
        merged = fold.merge_structs(struct, version.struct, "")
        fold.refuse_changes(taken, version.struct, merged)
        if fold.conflicts:
            conflicts += fold.conflicts
            continue
        struct = merged
        origins = fold.origins
        names.update(version.struct.fieldNames())
    # Taken fields that no version has are read by the other format only.
    own_struct = T.StructType([column for column in struct if column.name in names])
    return MergedObject(own_struct, tuple(conflicts), origins)


class _Fold:
    """The merge of one version into a struct; `origins` has the version that last shaped a path."""

    def __init__(self, label: str, origins: dict[str, str]) -> None:
        self.label = label
        self.origins = dict(origins)
        self.conflicts: list[SchemaConflict] = []

    def merge_structs(self, old: T.StructType, new: T.StructType, path: str) -> T.StructType:
        """Return a struct with the fields of both, former ones first."""
        before = f"{path}." if path else ""
        kinds = {column.name: column.dataType for column in old}
        names = {name.lower(): name for name in kinds}
        for column in new:
            name = column.name
            column_path = before + name
            spelling = names.setdefault(name.lower(), name)
            if spelling != name:
                difference = f"it differs from {spelling!r} by case only, and columns cannot"
                self.add_conflict(column_path, difference, before + spelling)
            elif name in kinds:
                kinds[name] = self.merge_types(kinds[name], column.dataType, column_path)
            else:
                kinds[name] = self.adopt_type(column.dataType, column_path)
                self.origins[column_path] = self.label
        return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])

    def refuse_changes(self, taken: Taken, new: T.StructType, merged: T.StructType) -> None:
        """Refuse to change the fields of another format, and to have a column that one of them has."""
        for column in new:
            name = column.name
            column_name = REFUSED_CHARACTERS.sub("_", name)
            if name in taken and merged[name].dataType != taken[name][0]:
                kind, self.origins[name] = taken[name]
                another = "another " if _describe_type(kind) == _describe_type(column.dataType) else ""
                self.add_conflict(name, f"{_describe_type(kind)} became {another}{_describe_type(column.dataType)}")
            elif name not in taken and column_name in taken:
                self.add_conflict(name, f"its column would be {column_name!r}, which there is", column_name)

    def adopt_type(self, new: T.DataType, path: str) -> T.DataType:
        """Return a type for a place that had none."""
        match new:
            case T.StructType():
                return self.merge_structs(T.StructType(), new, path)
            case T.ArrayType():
                return T.ArrayType(self.adopt_type(new.elementType, f"{path}[]"))
            case T.MapType():
                return T.MapType(T.StringType(), self.adopt_type(new.valueType, f"{path}{{}}"))
        return new

    def merge_types(self, old: T.DataType, new: T.DataType, path: str) -> T.DataType:
        """Return the type that holds the values of both."""
        match old, new:
            case T.StructType(), T.StructType():
                return self.merge_structs(old, new, path)
            case T.ArrayType(), T.ArrayType():
                return T.ArrayType(self.merge_types(old.elementType, new.elementType, f"{path}[]"))
            case T.MapType(), T.MapType():
                return T.MapType(T.StringType(), self.merge_types(old.valueType, new.valueType, f"{path}{{}}"))
            case ((T.IntegerType() | T.DecimalType()), T.LongType()):  # the numbers of another format
                return old
        if old == new:
            return old
        if {old, new} == NUMBER_TYPES:
            self.origins[path] = self.label
            return T.DoubleType()
        self.add_conflict(path, f"{_describe_type(old)} became {_describe_type(new)}")
        return old

    def add_conflict(self, path: str, difference: str, other: str = "") -> None:
        """Note what keeps this version from being merged, and which version shaped that place, or an `other` one."""
        place = other or path
        # The nearest place around it that a version has shaped.
        while place and place not in self.origins:
            place = place[:-2] if place.endswith(("[]", "{}")) else place.rpartition(".")[0]
        self.conflicts.append(SchemaConflict(path, self.origins.get(place, self.label), self.label, difference))


def _describe_type(kind: T.DataType) -> str:
    """Return a type in the words of JSON Schema."""
    words = {"bigint": "integer", "double": "number", "struct": "object", "map": "object with any keys"}
    name = kind.simpleString().partition("<")[0]
    return words.get(name, name)
