"""Merge the schemas that wrote a record into one reader's schema, which reads what each of them wrote.

| versions differ in | the merged column |
|---|---|
| a field is missing in some | that field, nullable, default null: it is null if the writer had no such field |
| a field renamed, the newer one naming the older as alias | one column under the newest name |
| null allowed in some | nullable |
| int, long | long |
| int, float, double | double: it holds every int, which a float does not |
| long with float or double | refused: Avro would read it, but round numbers beyond 2**53 |
| string, bytes | bytes: bytes need not be a text |
| enum with other symbols | an enum with the symbols of all |
| record, array, map | merged inside |
| unions of several types | the types of all; no type of them is widened |
| one type, then a union of several | refused: one column cannot be both |
| logical types | must be equal; decimals of one scale get the larger precision; uuid with string is a string |
| the rest: other types, other names, another size | refused |

A type is the same in two versions if the full names are equal, if the names without namespace are equal in the same
place, or by an alias (specification, "Schema Resolution" and "Aliases"). The result has every former name as an alias,
so it reads the writers' schemas unchanged. A column is never decoded into a wrong value: a difference that cannot be
merged is a conflict. Below, `old` is a part of what the versions so far became, `new` the part of the next version that
meets it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from router_schemas.avro.model import (
    NULL,
    Array,
    AvroField,
    AvroRecord,
    AvroSchema,
    Definition,
    Enum,
    Fixed,
    Logical,
    MapOf,
    Primitive,
    PrimitiveName,
    Ref,
    Type,
    Union,
    allow_null,
    describe_type,
    join_branches,
    reachable_types,
    rename_references,
    split_null,
)
from router_schemas.model import SchemaConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


S = TypeVar("S")


@dataclass(frozen=True)
class RecordVersion:
    """A version of a record: its schema, and the label that conflicts call it by, such as "id 7 version 2"."""

    label: str
    schema: AvroSchema


@dataclass(frozen=True)
class MergedRecord:
    """The reader's schema of all versions but those that `conflicts` name."""

    reader: AvroSchema
    conflicts: tuple[SchemaConflict, ...] = ()


def merge_records(writers: Sequence[RecordVersion]) -> MergedRecord:
    """Merge the versions of one record, oldest first, of which there is at least one.

    A version that conflicts with those before it is left out, and all its conflicts are returned. Versions that are
    left out need another reader; they may be merged with each other.
    """
    state = _State(None, {}, {}, {})
    conflicts: list[SchemaConflict] = []
    for writer in writers:
        fold = _Fold(state, writer)
        after = fold.merged_state()
        if fold.conflicts:
            conflicts += fold.conflicts
        else:
            state = after
    return MergedRecord(state.to_schema(), tuple(conflicts))


@dataclass(frozen=True)
class _State:
    """The outcome of merging the versions so far; `root` is None if there is none.

    `types` are by keys, which no renaming changes, and references are to these keys. `keys` has the key of every name
    that a type ever had. `origins` has for each field, (key of its record, name), the version that last shaped it.
    """

    root: Type | None
    types: dict[str, Definition]
    keys: dict[str, str]
    origins: dict[tuple[str, str], str]

    def to_schema(self) -> AvroSchema:
        """Return the merged schema, with names in place of keys."""
        names = {key: definition.name for key, definition in self.types.items()}
        types: dict[str, Definition] = {}
        for definition in self.types.values():
            types[definition.name] = _with_renamed_fields(definition, names)
        root = rename_references(self.root or NULL, names)
        return AvroSchema(root, reachable_types(root, types))


@dataclass(frozen=True)
class _Place:
    """A place where two types meet, and the version that shaped the type that is there."""

    path: str
    origin: str

    def step_into(self, step: str) -> _Place:
        return replace(self, path=f"{self.path}{step}")


class _Fold:
    """The merge of one version into the state; if there are conflicts, its outcome must not be used."""

    def __init__(self, before: _State, writer: RecordVersion) -> None:
        self.before = before
        self.label = writer.label
        self.new = writer.schema
        self.types = dict(before.types)
        self.keys = dict(before.keys)
        self.origins = {("", ""): writer.label, **before.origins}
        self.pairs: dict[str, str] = {}  # this version's names -> keys
        self.taken: set[str] = set()  # keys that a name of this version has
        self.conflicts: list[SchemaConflict] = []

    def merged_state(self) -> _State:
        """Return the state with this version."""
        top = _Place("", self.origins["", ""])
        if self.before.root is None:
            root = self.adopt_type(self.new.root)
        else:
            root = self.merge_types(self.before.root, self.new.root, top)
        # Two versions may each be flat enough, and their types together nested too deep.
        try:
            reachable_types(root, self.types)
        except ValueError as error:
            self.add_conflict(top, str(error))
        return _State(root, self.types, self.keys, self.origins)

    def add_conflict(self, at: _Place, difference: str) -> None:
        """Note what keeps this version from being merged."""
        self.conflicts.append(SchemaConflict(at.path.removeprefix("."), at.origin, self.label, difference))

    def merge_types(self, old: Type, new: Type, at: _Place) -> Type:
        """Return the type that reads what both wrote."""
        null, old_branches = split_null(old)
        null_in_new, new_branches = split_null(new)
        null = null or null_in_new
        if not old_branches or not new_branches:
            return join_branches(null, old_branches or tuple(self.adopt_type(branch) for branch in new_branches))
        if len(old_branches) == len(new_branches) == 1:
            return join_branches(null, (self.merge_single_types(old_branches[0], new_branches[0], at),))
        # A union of several types is a struct of its members, which no single type can become.
        if len(old_branches) == 1 or len(new_branches) == 1:
            self.add_conflict(at, f"{describe_type(old, self.types)} became {describe_type(new, self.new.types)}")
            return old
        return join_branches(null, self.merge_unions(old_branches, new_branches, at))

    def merge_single_types(self, old: Type, new: Type, at: _Place) -> Type:
        """Return the type that reads both; neither is a union."""
        match old, new:
            case Primitive(), Primitive():
                return self.try_to_join(_wider_primitive, old, new, at)
            case Array(), Array():
                return Array(self.merge_types(old.items, new.items, at.step_into("[]")))
            case MapOf(), MapOf():
                return MapOf(self.merge_types(old.values, new.values, at.step_into("{}")))
            case Ref(), Ref():
                return self.merge_named(old.name, new.name, at)
        self.add_conflict(at, f"{describe_type(old, self.types)} became {describe_type(new, self.new.types)}")
        return old

    def try_to_join(self, join: Callable[[S, S], S], old: S, new: S, at: _Place) -> S:
        """Join two types by `join`; if it refuses, note that and return the first."""
        try:
            return join(old, new)
        except ValueError as error:
            self.add_conflict(at, str(error))
            return old

    def merge_unions(
        self, old_branches: tuple[Type, ...], new_branches: tuple[Type, ...], at: _Place
    ) -> tuple[Type, ...]:
        """Return the branches of both unions: former ones keep their place, new ones come last."""
        branches = list(old_branches)
        for new in new_branches:
            places = [place for place, old in enumerate(old_branches) if self.is_same_branch(old, new)]
            if places:
                branches[places[0]] = self.merge_single_types(branches[places[0]], new, at)
            else:
                branches.append(self.adopt_type(new))
        return tuple(branches)

    def is_same_branch(self, old: Type, new: Type) -> bool:
        """Return whether two branches of unions are the same branch."""
        match old, new:
            case Primitive(), Primitive():
                return old.name == new.name
            case Ref(), Ref():
                return self.is_version_of(old.name, new.name)
        return type(old) is type(new)

    def is_version_of(self, key: str, name: str) -> bool:
        """Return whether a named type of this version is another version of the type under a key."""
        # A name that a version has had belongs to its type for good; only a new one is compared.
        if name in self.keys:
            return self.keys[name] == key
        return _same_type(self.types[key], self.new.types[name])

    def adopt_type(self, new: Type) -> Type:
        """Return a type of this version for a place that had none, with keys in place of names."""
        match new:
            case Ref(name):
                return Ref(self.adopt_key(name))
            case Array(items):
                return Array(self.adopt_type(items))
            case MapOf(values):
                return MapOf(self.adopt_type(values))
            case Union():
                null, branches = split_null(new)
                return join_branches(null, tuple(self.adopt_type(branch) for branch in branches))
        return new

    def adopt_key(self, name: str) -> str:
        """Return the key of a type of this version in a place that had none: a known type's, or a new one."""
        if name in self.pairs:
            return self.pairs[name]
        # The type may be known from another place, or by an alias that is not a type of its own now.
        new = self.new.types[name]
        for known_name in (name, *new.aliases):
            if known_name in self.keys and (known_name == name or known_name not in self.new.types):
                return self.merge_named(self.keys[known_name], name, _Place(f".{name}", self.origins["", ""])).name
        key = self.pair_names(name, str(len(self.types)))
        self.types[key] = replace(new, aliases=())  # before its fields, which may refer to it
        if isinstance(new, AvroRecord):
            fields = []
            for field in new.fields:
                fields.append(AvroField(field.name, self.adopt_type(field.type)))
                self.origins[key, field.name] = self.label
            self.types[key] = AvroRecord(name, tuple(fields))
        return key

    def merge_named(self, key: str, name: str, at: _Place) -> Ref:
        """Merge a named type of this version into the one that has its place."""
        old = self.types[key]
        new = self.new.types[name]
        if self.pairs.get(name) == key:
            return Ref(key)
        if type(old) is not type(new) or not self.is_version_of(key, name):
            change = f"{describe_type(Ref(key), self.types)} became {describe_type(Ref(name), self.new.types)}"
            self.add_conflict(at, f"{change}; a new name needs an alias")
        elif name in self.pairs or key in self.taken:
            self.add_conflict(at, f"types {old.name} and {name} became one, or one became both")
        else:
            self.pair_names(name, key)  # before its fields, which may refer to it
            merged = self.merge_definitions(key, old, new, at)
            self.types[key] = replace(merged, name=name, aliases=_former_names(old, name))
        return Ref(key)

    def pair_names(self, name: str, key: str) -> str:
        """Note that a type of this version has a key, and return the key."""
        self.pairs[name] = key
        self.keys[name] = key
        self.taken.add(key)
        return key

    def merge_definitions(self, key: str, old: Definition, new: Definition, at: _Place) -> Definition:
        """Return a named type with what both versions of it have."""
        match old, new:
            case AvroRecord(), AvroRecord():
                return replace(old, fields=self.merge_fields(key, old, new, at))
            case Enum(), Enum():
                return replace(old, symbols=tuple(dict.fromkeys((*old.symbols, *new.symbols))))
            case Fixed(), Fixed():
                if old.size != new.size:
                    self.add_conflict(at, f"its size of {old.size} bytes became {new.size}")
                return replace(old, logical=self.try_to_join(_common_logical_type, old.logical, new.logical, at))
        raise TypeError(f"{old.name} and {new.name} are of different kinds")  # `merge_named` has checked that

    def merge_fields(self, key: str, old: AvroRecord, new: AvroRecord, at: _Place) -> tuple[AvroField, ...]:
        """Return the fields of both versions of a record, former ones first."""
        try:
            matches = _same_fields(old, new)
        except ValueError as error:
            self.add_conflict(at, str(error))
            return old.fields
        fields = [self.merge_field(key, field, matches.get(field.name), at) for field in old.fields]
        matched = {field.name for field in matches.values()}
        for field in new.fields:
            if field.name not in matched:
                fields.append(AvroField(field.name, allow_null(self.adopt_type(field.type))))
                self.origins[key, field.name] = self.label
        return tuple(fields)

    def merge_field(self, key: str, old: AvroField, new: AvroField | None, at: _Place) -> AvroField:
        """Return a former field, merged with this version's."""
        if new is None:
            return replace(old, type=allow_null(old.type))
        origin = self.origins.pop((key, old.name))
        kind = self.merge_types(old.type, new.type, _Place(f"{at.path}.{new.name}", origin))
        if kind != old.type or new.name != old.name:
            origin = self.label
        self.origins[key, new.name] = origin
        return AvroField(new.name, kind, _former_names(old, new.name))


def _former_names(old: Definition | AvroField, name: str) -> tuple[str, ...]:
    """Return the names of all versions so far but the newest name, the latest first."""
    names = dict.fromkeys((old.name, *old.aliases))
    return tuple(former for former in names if former != name)


def _with_renamed_fields(definition: Definition, names: dict[str, str]) -> Definition:
    if not isinstance(definition, AvroRecord):
        return definition
    fields = [replace(field, type=rename_references(field.type, names)) for field in definition.fields]
    return replace(definition, fields=tuple(fields))


def _same_type(old: Definition, new: Definition) -> bool:
    """Return whether a type under a new name is another version of an old type.

    Avro's rule ("Schema Resolution"): the name without its namespace, or an alias.
    """
    if type(old) is not type(new):
        return False
    if old.name.rpartition(".")[2] == new.name.rpartition(".")[2]:
        return True
    return not {old.name, *old.aliases}.isdisjoint(new.aliases)


def _same_fields(old: AvroRecord, new: AvroRecord) -> dict[str, AvroField]:
    """Return the new version's field for the name of each former field, if it has one.

    An equal name goes before an alias. The aliases of former fields are the names that earlier versions wrote them
    under. Raises ValueError if two fields would be one column.
    """
    names = {field.name for field in old.fields}
    name_now: dict[str, str] = {}
    for field in old.fields:
        name_now |= dict.fromkeys(field.aliases, field.name)

    matches = {field.name: field for field in new.fields if field.name in names}
    for field in new.fields:
        if field.name in names:
            continue
        # The field may have a name again that it had in an earlier version.
        other = matches.get(name_now.get(field.name, ""))
        if other is not None:
            raise ValueError(f"{other.name} and {field.name} are one column, by an alias of another version")
        for alias in (field.name, *field.aliases):
            name = name_now.get(alias, alias)
            if name in names and name not in matches:
                matches[name] = field
                break
    return matches


WIDER_PRIMITIVES: dict[frozenset[PrimitiveName], PrimitiveName] = {
    frozenset({"int", "long"}): "long",
    frozenset({"int", "float"}): "double",
    frozenset({"int", "double"}): "double",
    frozenset({"float", "double"}): "double",
    frozenset({"string", "bytes"}): "bytes",
}
ROUNDING_PAIRS = (frozenset({"long", "float"}), frozenset({"long", "double"}))
LOGICAL_UUID = Logical("uuid")


def _wider_primitive(old: Primitive, new: Primitive) -> Primitive:
    """Return the type that reads every value of both exactly; raise ValueError with the reason if there is none."""
    names = frozenset({old.name, new.name})
    if len(names) == 1:
        return Primitive(old.name, _common_logical_type(old.logical, new.logical))
    if names in WIDER_PRIMITIVES and {old.logical, new.logical} <= {None, LOGICAL_UUID}:
        return Primitive(WIDER_PRIMITIVES[names])
    change = f"{describe_type(old)} became {describe_type(new)}"
    if names in ROUNDING_PAIRS:
        change += ", which would round large numbers"
    raise ValueError(change)


def _common_logical_type(old: Logical | None, new: Logical | None) -> Logical | None:
    """Return the logical type of both; raise ValueError if they mean different things.

    The bytes do not contain the logical type: milliseconds read as microseconds would be silently wrong.
    """
    if old == new:
        return old
    if {old, new} == {None, LOGICAL_UUID}:
        return None
    if old and new and old.name == new.name == "decimal" and old.scale == new.scale:
        return max(old, new, key=lambda decimal: decimal.precision)
    raise ValueError(f"its logical type {old or 'none'} became {new or 'none'}")
