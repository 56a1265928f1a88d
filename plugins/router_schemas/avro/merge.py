"""Merge the schemas that wrote a record into one reader's schema, which reads what each of them wrote.

| versions differ in | the merged column |
|---|---|
| a field is missing in some | that field, nullable, default null: null says that the writer had no such field |
| a field renamed, the newer one naming the older as alias | one column under the newest name |
| null allowed in some | nullable |
| int, long | long |
| int, float, double | double: no int is lost in it, as in a float |
| long with float or double | refused: Avro would read it, and round what is beyond 2**53 |
| string, bytes | bytes: bytes need not be a text |
| enum with other symbols | an enum with the symbols of all |
| record, array, map | merged inside |
| unions of several types | the types of all; no type of them is widened |
| one type, then a union of several | refused: one column cannot be both |
| logical types | must be equal; decimals of one scale get the larger precision; a uuid with a string is a string |
| the rest: other types, other names, another size | refused |

A type is the same in two versions when the full name is, the name without namespace in the same place, or an alias
allows it (specification, "Schema Resolution" and "Aliases"). The result holds every former name as alias, so it reads
the writers' schemas as they are. A column is never decoded into a wrong value: what cannot be merged is a conflict."""

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
    """Merge the versions of one record, oldest first; raise ValueError when there is none.

    A version that does not go with those before it is left out with all its conflicts. The versions left out can be
    merged with each other: they are another class, and need another reader.
    """
    if not writers:
        raise ValueError("there is no schema to merge; give at least one version")
    state, labels, conflicts = _State(), [], list[SchemaConflict]()
    for writer in writers:
        fold = _Fold(state, writer)
        after = fold.state()
        if fold.conflicts:
            conflicts += fold.conflicts
        else:
            state = after
            labels.append(writer.label)
    return MergedRecord(state.published(), tuple(labels), tuple(conflicts))


@dataclass(frozen=True)
class _State:
    """The outcome of merging the versions so far.

    `types` are by keys that no renaming changes, and references are to these keys; `keys` has every name that a type
    ever had. `origins` names the version that last shaped a field.
    """

    root: Type = NULL
    types: dict[str, Definition] | None = None
    keys: dict[str, str] | None = None
    origins: dict[tuple[str, str], str] | None = None

    def published(self) -> AvroSchema:
        """Return the schema with names in place of keys."""
        types = self.types or {}
        names = {key: definition.name for key, definition in types.items()}
        named = {names[key]: _renamed_inside(definition, names) for key, definition in types.items()}
        root = renamed(self.root, names)
        return AvroSchema(root, reachable(root, named))


@dataclass(frozen=True)
class _Place:
    """A place where two types meet, and the version that shaped what is there."""

    path: str
    origin: str

    def inside(self, step: str) -> _Place:
        return replace(self, path=f"{self.path}{step}")


class _Fold:
    """The merge of one version into the state; its outcome counts only without conflicts."""

    def __init__(self, before: _State, writer: RecordVersion) -> None:
        self.before, self.label, self.come = before, writer.label, writer.schema
        self.types, self.keys = dict(before.types or {}), dict(before.keys or {})
        self.origins = dict(before.origins or {("", ""): writer.label})
        self.pairs: dict[str, str] = {}  # this version's names -> keys
        self.taken: set[str] = set()  # keys that a name of this version has
        self.conflicts: list[SchemaConflict] = []

    def state(self) -> _State:
        """Return what there is afterwards."""
        if self.before.types is None:
            root = self.adopted(self.come.root)
        else:
            root = self.merged(self.before.root, self.come.root, _Place("", self.origins["", ""]))
        try:
            reachable(root, self.types)
        except ValueError as error:
            self.refuse(_Place("", self.origins["", ""]), str(error))
        return _State(root, self.types, self.keys, self.origins)

    def refuse(self, at: _Place, what: str) -> None:
        """Note what keeps this version from being merged."""
        self.conflicts.append(SchemaConflict(at.path.removeprefix("."), at.origin, self.label, what))

    def merged(self, have: Type, come: Type, at: _Place) -> Type:
        """Return the type that reads what both wrote."""
        (null, ours), (null_too, theirs) = parts(have), parts(come)
        if not ours or not theirs:
            return joined(null or null_too, ours or tuple(map(self.adopted, theirs)))
        if len(ours) == len(theirs) == 1:
            return joined(null or null_too, (self.single(ours[0], theirs[0], at),))
        if len(ours) == 1 or len(theirs) == 1:
            self.refuse(at, f"{words(have, self.types)} became {words(come, self.come.types)}")
            return have
        return joined(null or null_too, self.union(ours, theirs, at))

    def single(self, have: Type, come: Type, at: _Place) -> Type:
        """Return the type that reads both, neither being a union."""
        if isinstance(have, Primitive) and isinstance(come, Primitive):
            return self.attempt(_wider, have, come, at)
        if isinstance(have, Array) and isinstance(come, Array):
            return Array(self.merged(have.items, come.items, at.inside("[]")))
        if isinstance(have, MapOf) and isinstance(come, MapOf):
            return MapOf(self.merged(have.values, come.values, at.inside("{}")))
        if isinstance(have, Ref) and isinstance(come, Ref):
            return self.named(have.name, come.name, at)
        self.refuse(at, f"{words(have, self.types)} became {words(come, self.come.types)}")
        return have

    def attempt(self, join: Callable[[S, S], S], have: S, come: S, at: _Place) -> S:
        """Return what `join` makes of two types; where it refuses, note that and return the first."""
        try:
            return join(have, come)
        except ValueError as error:
            self.refuse(at, str(error))
            return have

    def union(self, ours: tuple[Type, ...], theirs: tuple[Type, ...], at: _Place) -> tuple[Type, ...]:
        """Return the branches of both unions: what there was keeps its place, what is new comes last."""
        branches = list(ours)
        for come in theirs:
            place = next((place for place, have in enumerate(ours) if self.corresponds(have, come)), None)
            if place is None:
                branches.append(self.adopted(come))
            else:
                branches[place] = self.single(branches[place], come, at)
        return tuple(branches)

    def corresponds(self, have: Type, come: Type) -> bool:
        """Return whether two branches of unions are the same branch."""
        if isinstance(have, Primitive) and isinstance(come, Primitive):
            return have.name == come.name
        if isinstance(have, Ref) and isinstance(come, Ref):
            known = self.keys.get(come.name)
            return known == have.name if known else _same_type(self.types[have.name], self.come.types[come.name])
        return type(have) is type(come)

    def adopted(self, come: Type) -> Type:
        """Return a type of this version for a place that had none."""
        if isinstance(come, Ref):
            return Ref(self.key(come.name))
        if isinstance(come, Array):
            return Array(self.adopted(come.items))
        if isinstance(come, MapOf):
            return MapOf(self.adopted(come.values))
        if isinstance(come, Union):
            null, branches = parts(come)
            return joined(null, tuple(map(self.adopted, branches)))
        return come

    def key(self, name: str) -> str:
        """Return the key of a type of this version in a place that had none: a known type's, or a new one."""
        if name in self.pairs:
            return self.pairs[name]
        come = self.come.types[name]
        former = (alias for alias in come.aliases if alias in self.keys and alias not in self.come.types)
        known = name if name in self.keys else next(former, None)
        if known is not None:
            return self.named(self.keys[known], name, _Place(f".{name}", self.origins["", ""])).name
        key = self.pairs[name] = self.keys[name] = str(len(self.types))
        self.taken.add(key)
        self.types[key] = replace(come, aliases=())
        if isinstance(come, AvroRecord):
            fields = tuple(AvroField(field.name, self.adopted(field.type)) for field in come.fields)
            self.types[key] = AvroRecord(name, fields)
            self.origins |= {(key, field.name): self.label for field in fields}
        return key

    def named(self, key: str, name: str, at: _Place) -> Ref:
        """Merge a named type of this version into the one that has its place."""
        have, come = self.types[key], self.come.types[name]
        if self.pairs.get(name) == key:
            return Ref(key)
        known = self.keys.get(name)
        if type(have) is not type(come) or (known != key if known else not _same_type(have, come)):
            before, after = words(Ref(key), self.types), words(Ref(name), self.come.types)
            self.refuse(at, f"{before} became {after}; a new name needs an alias")
        elif name in self.pairs or key in self.taken:
            self.refuse(at, f"types {have.name} and {name} became one, or one became both")
        else:
            self.pairs[name] = self.keys[name] = key
            self.taken.add(key)
            former = {have.name: None, **dict.fromkeys(have.aliases)}
            aliases = tuple(alias for alias in former if alias != name)
            self.types[key] = replace(self.definition(key, have, come, at), name=name, aliases=aliases)
        return Ref(key)

    def definition(self, key: str, have: Definition, come: Definition, at: _Place) -> Definition:
        """Return a named type with what both versions of it have."""
        if isinstance(have, AvroRecord) and isinstance(come, AvroRecord):
            return replace(have, fields=self.fields(key, have, come, at))
        if isinstance(have, Enum) and isinstance(come, Enum):
            return replace(have, symbols=tuple(dict.fromkeys((*have.symbols, *come.symbols))))
        if isinstance(have, Fixed) and isinstance(come, Fixed):
            if have.size != come.size:
                self.refuse(at, f"its size of {have.size} bytes became {come.size}")
            return replace(have, logical=self.attempt(_meaning, have.logical, come.logical, at))
        raise TypeError(f"{have.name} and {come.name} are of different kinds")  # asked before

    def fields(self, key: str, have: AvroRecord, come: AvroRecord, at: _Place) -> tuple[AvroField, ...]:
        """Return the fields of both versions of a record, those there were first."""
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
        """Return a field that there was, merged with this version's."""
        if come is None:
            return replace(have, type=nullable(have.type))
        origin = self.origins.pop((key, have.name))
        kind = self.merged(have.type, come.type, _Place(f"{at.path}.{come.name}", origin))
        aliases = tuple(name for name in dict.fromkeys((have.name, *have.aliases)) if name != come.name)
        self.origins[key, come.name] = origin if kind == have.type and come.name == have.name else self.label
        return AvroField(come.name, kind, aliases)


def _renamed_inside(definition: Definition, names: dict[str, str]) -> Definition:
    if not isinstance(definition, AvroRecord):
        return definition
    fields = (replace(field, type=renamed(field.type, names)) for field in definition.fields)
    return replace(definition, fields=tuple(fields))


def _same_type(have: Definition, come: Definition) -> bool:
    """Return whether a type under a name not seen before is another version of one that there is.

    Avro's rule ("Schema Resolution"): the name without its namespace, or an alias.
    """
    if type(have) is not type(come):
        return False
    short = have.name.rpartition(".")[2] == come.name.rpartition(".")[2]
    return short or not {have.name, *have.aliases}.isdisjoint(come.aliases)


def _same_fields(have: AvroRecord, come: AvroRecord) -> dict[str, AvroField]:
    """Return the new version's field for each name of a field that there was, where it has one.

    A name goes before an alias; aliases of fields there were are the names that versions wrote them under. Raises
    ValueError when two fields would be one column.
    """
    names = {field.name for field in have.fields}
    former = {alias: field.name for field in have.fields for alias in field.aliases}
    found = {field.name: field for field in come.fields if field.name in names}
    for field in come.fields:
        if field.name in names:
            continue
        ours = former.get(field.name)
        if ours is None:
            aliased = (former.get(alias, alias) for alias in field.aliases)
            ours = next((name for name in aliased if name in names and name not in found), None)
        elif ours in found:
            raise ValueError(f"{found[ours].name} and {field.name} are one column, by an alias of another version")
        if ours is not None:
            found[ours] = field
    return found


WIDER = {
    frozenset({"int", "long"}): "long",
    frozenset({"int", "float"}): "double",
    frozenset({"int", "double"}): "double",
    frozenset({"float", "double"}): "double",
    frozenset({"string", "bytes"}): "bytes",
}
UUID = Logical("uuid")


def _wider(have: Primitive, come: Primitive) -> Primitive:
    """Return the type that reads every value of both exactly; raise ValueError saying why there is none."""
    if have.name == come.name:
        return Primitive(have.name, _meaning(have.logical, come.logical))
    name = WIDER.get(frozenset({have.name, come.name}))
    if name and {have.logical, come.logical} <= {None, UUID}:
        return Primitive(name)
    rounds = "long" in (have.name, come.name) and {have.name, come.name} <= {"long", "float", "double"}
    raise ValueError(f"{words(have)} became {words(come)}{', which would round large numbers' if rounds else ''}")


def _meaning(have: Logical | None, come: Logical | None) -> Logical | None:
    """Return the logical type of both; raise ValueError where they mean different things.

    The bytes do not tell a logical type: milliseconds read as microseconds would be silently wrong.
    """
    if have == come:
        return have
    if {have, come} == {None, UUID}:
        return None
    if have and come and have.name == come.name == "decimal" and have.scale == come.scale:
        return max(have, come, key=lambda decimal: decimal.precision)
    raise ValueError(f"its logical type {have or 'none'} became {come or 'none'}")
