"""Merge the schemas that wrote a record into one reader's schema, which reads what each of them wrote.

| versions differ in | the merged column |
|---|---|
| a field is missing in some | that field, nullable, default null: null says that the writer had no such field |
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
merged is a conflict. Below, `have` is what there is of the versions so far, `come` the part of the new version that
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
    Ref,
    Type,
    Union,
    joined,
    nullable,
    parts,
    reachable,
    renamed,
    words,
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
    """The reader's schema of the versions in `labels`; `conflicts` say why the other versions are not among them."""

    reader: AvroSchema
    labels: tuple[str, ...]
    conflicts: tuple[SchemaConflict, ...] = ()


def merge(writers: Sequence[RecordVersion]) -> MergedRecord:
    """Merge the versions of one record, oldest first; raise ValueError if there is none.

    A version that conflicts with those before it is left out, and all its conflicts are returned. Versions that are
    left out need another reader; they may be merged with each other.
    """
    if not writers:
        raise ValueError("there is no schema to merge; give at least one version")
    state = _State(None, {}, {}, {})
    labels: list[str] = []
    conflicts: list[SchemaConflict] = []
    for writer in writers:
        fold = _Fold(state, writer)
        after = fold.state()
        if fold.conflicts:
            conflicts += fold.conflicts
        else:
            state = after
            labels.append(writer.label)
    return MergedRecord(state.schema(), tuple(labels), tuple(conflicts))


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

    def schema(self) -> AvroSchema:
        """Return the merged schema, with names in place of keys."""
        names = {key: definition.name for key, definition in self.types.items()}
        types: dict[str, Definition] = {}
        for definition in self.types.values():
            types[definition.name] = _with_renamed_fields(definition, names)
        root = renamed(self.root or NULL, names)
        return AvroSchema(root, reachable(root, types))


@dataclass(frozen=True)
class _Place:
    """A place where two types meet, and the version that shaped the type that is there."""

    path: str
    origin: str

    def inside(self, step: str) -> _Place:
        return replace(self, path=f"{self.path}{step}")


class _Fold:
    """The merge of one version into the state; if there are conflicts, its outcome must not be used."""

    def __init__(self, before: _State, writer: RecordVersion) -> None:
        self.before = before
        self.label = writer.label
        self.come = writer.schema
        self.types = dict(before.types)
        self.keys = dict(before.keys)
        self.origins = {("", ""): writer.label, **before.origins}
        self.pairs: dict[str, str] = {}  # this version's names -> keys
        self.taken: set[str] = set()  # keys that a name of this version has
        self.conflicts: list[SchemaConflict] = []

    def state(self) -> _State:
        """Return the state with this version."""
        top = _Place("", self.origins["", ""])
        if self.before.root is None:
            root = self.adopted(self.come.root)
        else:
            root = self.merged(self.before.root, self.come.root, top)
        # Two versions may each be flat enough, and their types together nested too deep.
        try:
            reachable(root, self.types)
        except ValueError as error:
            self.refuse(top, str(error))
        return _State(root, self.types, self.keys, self.origins)

    def refuse(self, at: _Place, difference: str) -> None:
        """Note what keeps this version from being merged."""
        self.conflicts.append(SchemaConflict(at.path.removeprefix("."), at.origin, self.label, difference))

    def merged(self, have: Type, come: Type, at: _Place) -> Type:
        """Return the type that reads what both wrote."""
        null, ours = parts(have)
        null_in_new, theirs = parts(come)
        null = null or null_in_new
        if not ours or not theirs:
            return joined(null, ours or tuple(self.adopted(branch) for branch in theirs))
        if len(ours) == len(theirs) == 1:
            return joined(null, (self.single(ours[0], theirs[0], at),))
        # A union of several types is a struct of its members, which no single type can become.
        if len(ours) == 1 or len(theirs) == 1:
            self.refuse(at, f"{words(have, self.types)} became {words(come, self.come.types)}")
            return have
        return joined(null, self.union(ours, theirs, at))

    def single(self, have: Type, come: Type, at: _Place) -> Type:
        """Return the type that reads both; neither is a union."""
        match have, come:
            case Primitive(), Primitive():
                return self.attempt(_wider, have, come, at)
            case Array(), Array():
                return Array(self.merged(have.items, come.items, at.inside("[]")))
            case MapOf(), MapOf():
                return MapOf(self.merged(have.values, come.values, at.inside("{}")))
            case Ref(), Ref():
                return self.named(have.name, come.name, at)
        self.refuse(at, f"{words(have, self.types)} became {words(come, self.come.types)}")
        return have

    def attempt(self, join: Callable[[S, S], S], have: S, come: S, at: _Place) -> S:
        """Return what `join` makes of two types; if it refuses, note that and return the first."""
        try:
            return join(have, come)
        except ValueError as error:
            self.refuse(at, str(error))
            return have

    def union(self, ours: tuple[Type, ...], theirs: tuple[Type, ...], at: _Place) -> tuple[Type, ...]:
        """Return the branches of both unions: former ones keep their place, new ones come last."""
        branches = list(ours)
        for come in theirs:
            places = [place for place, have in enumerate(ours) if self.corresponds(have, come)]
            if places:
                branches[places[0]] = self.single(branches[places[0]], come, at)
            else:
                branches.append(self.adopted(come))
        return tuple(branches)

    def corresponds(self, have: Type, come: Type) -> bool:
        """Return whether two branches of unions are the same branch."""
        match have, come:
            case Primitive(), Primitive():
                return have.name == come.name
            case Ref(), Ref():
                return self.is_version_of(have.name, come.name)
        return type(have) is type(come)

    def is_version_of(self, key: str, name: str) -> bool:
        """Return whether a named type of this version is another version of the type under a key."""
        # A name that a version has had belongs to its type for good; only a new one is compared.
        if name in self.keys:
            return self.keys[name] == key
        return _same_type(self.types[key], self.come.types[name])

    def adopted(self, come: Type) -> Type:
        """Return a type of this version for a place that had none, with keys in place of names."""
        match come:
            case Ref(name):
                return Ref(self.key(name))
            case Array(items):
                return Array(self.adopted(items))
            case MapOf(values):
                return MapOf(self.adopted(values))
            case Union():
                null, branches = parts(come)
                return joined(null, tuple(self.adopted(branch) for branch in branches))
        return come

    def key(self, name: str) -> str:
        """Return the key of a type of this version in a place that had none: a known type's, or a new one."""
        if name in self.pairs:
            return self.pairs[name]
        # The type may be known from another place, or by an alias that is not a type of its own now.
        come = self.come.types[name]
        for known_name in (name, *come.aliases):
            if known_name in self.keys and (known_name == name or known_name not in self.come.types):
                return self.named(self.keys[known_name], name, _Place(f".{name}", self.origins["", ""])).name
        key = self.pair(name, str(len(self.types)))
        self.types[key] = replace(come, aliases=())  # before its fields, which may refer to it
        if isinstance(come, AvroRecord):
            fields = []
            for field in come.fields:
                fields.append(AvroField(field.name, self.adopted(field.type)))
                self.origins[key, field.name] = self.label
            self.types[key] = AvroRecord(name, tuple(fields))
        return key

    def named(self, key: str, name: str, at: _Place) -> Ref:
        """Merge a named type of this version into the one that has its place."""
        have = self.types[key]
        come = self.come.types[name]
        if self.pairs.get(name) == key:
            return Ref(key)
        if type(have) is not type(come) or not self.is_version_of(key, name):
            change = f"{words(Ref(key), self.types)} became {words(Ref(name), self.come.types)}"
            self.refuse(at, f"{change}; a new name needs an alias")
        elif name in self.pairs or key in self.taken:
            self.refuse(at, f"types {have.name} and {name} became one, or one became both")
        else:
            self.pair(name, key)  # before its fields, which may refer to it
            merged = self.definition(key, have, come, at)
            self.types[key] = replace(merged, name=name, aliases=_former_names(have, name))
        return Ref(key)

    def pair(self, name: str, key: str) -> str:
        """Note that a type of this version has a key, and return the key."""
        self.pairs[name] = key
        self.keys[name] = key
        self.taken.add(key)
        return key

    def definition(self, key: str, have: Definition, come: Definition, at: _Place) -> Definition:
        """Return a named type with what both versions of it have."""
        match have, come:
            case AvroRecord(), AvroRecord():
                return replace(have, fields=self.fields(key, have, come, at))
            case Enum(), Enum():
                return replace(have, symbols=tuple(dict.fromkeys((*have.symbols, *come.symbols))))
            case Fixed(), Fixed():
                if have.size != come.size:
                    self.refuse(at, f"its size of {have.size} bytes became {come.size}")
                return replace(have, logical=self.attempt(_meaning, have.logical, come.logical, at))
        raise TypeError(f"{have.name} and {come.name} are of different kinds")  # `named` has checked that

    def fields(self, key: str, have: AvroRecord, come: AvroRecord, at: _Place) -> tuple[AvroField, ...]:
        """Return the fields of both versions of a record, former ones first."""
        try:
            matches = _same_fields(have, come)
        except ValueError as error:
            self.refuse(at, str(error))
            return have.fields
        fields = [self.field(key, field, matches.get(field.name), at) for field in have.fields]
        matched = {field.name for field in matches.values()}
        for field in come.fields:
            if field.name not in matched:
                fields.append(AvroField(field.name, nullable(self.adopted(field.type))))
                self.origins[key, field.name] = self.label
        return tuple(fields)

    def field(self, key: str, have: AvroField, come: AvroField | None, at: _Place) -> AvroField:
        """Return a former field, merged with this version's."""
        if come is None:
            return replace(have, type=nullable(have.type))
        origin = self.origins.pop((key, have.name))
        kind = self.merged(have.type, come.type, _Place(f"{at.path}.{come.name}", origin))
        if kind != have.type or come.name != have.name:
            origin = self.label
        self.origins[key, come.name] = origin
        return AvroField(come.name, kind, _former_names(have, come.name))


def _former_names(have: Definition | AvroField, name: str) -> tuple[str, ...]:
    """Return the names of all versions so far but the newest name, the latest first."""
    names = dict.fromkeys((have.name, *have.aliases))
    return tuple(former for former in names if former != name)


def _with_renamed_fields(definition: Definition, names: dict[str, str]) -> Definition:
    if not isinstance(definition, AvroRecord):
        return definition
    fields = [replace(field, type=renamed(field.type, names)) for field in definition.fields]
    return replace(definition, fields=tuple(fields))


def _same_type(have: Definition, come: Definition) -> bool:
    """Return whether a type under a new name is another version of a type that there is.

    Avro's rule ("Schema Resolution"): the name without its namespace, or an alias.
    """
    if type(have) is not type(come):
        return False
    if have.name.rpartition(".")[2] == come.name.rpartition(".")[2]:
        return True
    return not {have.name, *have.aliases}.isdisjoint(come.aliases)


def _same_fields(have: AvroRecord, come: AvroRecord) -> dict[str, AvroField]:
    """Return the new version's field for the name of each former field, if it has one.

    An equal name goes before an alias. The aliases of former fields are the names that earlier versions wrote them
    under. Raises ValueError if two fields would be one column.
    """
    names = {field.name for field in have.fields}
    name_now: dict[str, str] = {}
    for field in have.fields:
        name_now |= dict.fromkeys(field.aliases, field.name)

    matches = {field.name: field for field in come.fields if field.name in names}
    for field in come.fields:
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


WIDER = {
    frozenset({"int", "long"}): "long",
    frozenset({"int", "float"}): "double",
    frozenset({"int", "double"}): "double",
    frozenset({"float", "double"}): "double",
    frozenset({"string", "bytes"}): "bytes",
}
ROUNDING = (frozenset({"long", "float"}), frozenset({"long", "double"}))
UUID = Logical("uuid")


def _wider(have: Primitive, come: Primitive) -> Primitive:
    """Return the type that reads every value of both exactly; raise ValueError with the reason if there is none."""
    names = frozenset({have.name, come.name})
    if len(names) == 1:
        return Primitive(have.name, _meaning(have.logical, come.logical))
    if names in WIDER and {have.logical, come.logical} <= {None, UUID}:
        return Primitive(WIDER[names])
    change = f"{words(have)} became {words(come)}"
    if names in ROUNDING:
        change += ", which would round large numbers"
    raise ValueError(change)


def _meaning(have: Logical | None, come: Logical | None) -> Logical | None:
    """Return the logical type of both; raise ValueError if they mean different things.

    The bytes do not contain the logical type: milliseconds read as microseconds would be silently wrong.
    """
    if have == come:
        return have
    if {have, come} == {None, UUID}:
        return None
    if have and come and have.name == come.name == "decimal" and have.scale == come.scale:
        return max(have, come, key=lambda decimal: decimal.precision)
    raise ValueError(f"its logical type {have or 'none'} became {come or 'none'}")
