"""Merge the Spark structs of several JSON Schemas into one that reads what each of them allows.

| versions differ in | the merged column |
|---|---|
| a property is missing in some | that property: null where a version has none. `required` has no influence |
| integer, number | double: JSON knows one kind of number; beyond 2**53 it is rounded |
| objects, arrays, maps | merged inside |
| names that differ by case only | refused: the columns of a table cannot |
| the rest: string and integer, date and date-time, object and array, ... | refused |

JSON has no promotions beyond the one for numbers: a text that one version calls a date-time and another a string
would change the type of a column that there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas.model import REFUSED, SchemaConflict, column_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router_schemas.model import Taken

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


def table_type(kind: T.DataType) -> T.DataType:
    """Return a type with the names that a Delta table can have, for a cast: fields keep their places.

    Decode with the struct itself, because keys in JSON are the names of the properties, and cast the outcome to this;
    Spark casts structs by place.
    """
    if isinstance(kind, T.StructType):
        columns = column_names(kind.fieldNames())
        return T.StructType([T.StructField(columns[field.name], table_type(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(table_type(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, table_type(kind.valueType))
    return kind


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
