"""Map Avro types to Spark types, and back: the columns of a reader's schema, and a schema for columns.

Spark's `from_avro` makes the columns of `AvroKind`, and these, of a reader's schema (`map_schema`):

| Avro | Spark | |
|---|---|---|
| enum | string | |
| record, array, map | struct, array, map<string, ...> | |
| null with one other type | that type | every column may be null |
| int with long, float with double | bigint, double | |
| other unions | struct of member0, member1, ... | null not counted; one member is set, the others are null |
| null alone, a record without fields, arrays and maps of them | no column | they have no values to keep |
| a type that contains itself | refused | |

Source: SchemaConverters of spark-avro 4.0; `AvroKind` has the values. In PERMISSIVE mode `from_avro` declares
everything nullable, and so does this module.

A schema that is made for columns is read back as the same columns (`derive_schema`): what `AvroKind` declares, and
these:

| column | Avro |
|---|---|
| struct | record, named by its place: games.Event.bags |
| array, map<string, ...> | array, map |

Everything may be null, and null is every default. So columns may be added and removed, and a version is compatible with
those before it in both directions. A new version is made only of one that this module could have written
(`parse_derived_schema`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas.avro.kinds import KIND_OF, AvroKind, column_of
from router_schemas.avro.model import (
    MAX_TYPE_DEPTH,
    NULL,
    Array,
    AvroField,
    AvroRecord,
    AvroSchema,
    Definition,
    Enum,
    Logical,
    MapOf,
    Primitive,
    Ref,
    Type,
    Union,
    join_branches,
    reachable_types,
    text_of,
)
from router_schemas.avro.parser import parse_resolved
from router_schemas.model import column_names

if TYPE_CHECKING:
    from router_schemas.model import ResolvedSchema


MAX_COLUMNS = 20_000
"""Fields at all levels: a schema of a few lines can name each type twice in the next, and so describe millions."""


@dataclass(frozen=True)
class Mapped:
    """The columns of a schema.

    `reader` is the schema to give to `from_avro`, which then produces exactly `struct`. `renamed` has the fields whose
    column has another name, as record.field -> column; `left_out` those without a column.
    """

    reader: AvroSchema
    struct: T.StructType
    renamed: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def map_schema(reader: AvroSchema) -> Mapped:
    """Return the columns of a reader's schema; raise ValueError naming the field that has no Spark type."""
    mapping = _Mapping(reader)
    path = reader.root.name if isinstance(reader.root, Ref) else "the schema"
    root = mapping.map_type(reader.root, path, ())
    if root is None or not isinstance(root.column, T.StructType):
        raise ValueError("the schema: an event is a record with fields; register such a schema")
    if root.columns > MAX_COLUMNS or root.depth > MAX_TYPE_DEPTH:
        limits = f"{MAX_COLUMNS} columns, those inside of others counted, or {MAX_TYPE_DEPTH} levels"
        raise ValueError(f"the schema: it has more than {limits}; register smaller schemas")
    used_types = reachable_types(root.type, mapping.types)
    return Mapped(AvroSchema(root.type, used_types), root.column, mapping.renamed, tuple(mapping.left_out))


@dataclass(frozen=True)
class _MappedType:
    """A type for the reader, its Spark type, how many fields that has at all levels, and how many levels."""

    type: Type
    column: T.DataType
    columns: int = 0
    depth: int = 0


class _Mapping:
    """The mapping of one schema's types; a named type is mapped once, however often it is used.

    `path` is that of a type, for messages; `trail` has the names of the records around it. A type without values to
    keep becomes None.
    """

    def __init__(self, reader: AvroSchema) -> None:
        self.reader = reader
        self.types: dict[str, Definition] = {}
        self.records: dict[str, _MappedType | None] = {}
        self.renamed: dict[str, str] = {}
        self.left_out: list[str] = []

    def map_type(self, kind: Type, path: str, trail: tuple[str, ...]) -> _MappedType | None:
        """Map any type."""
        match kind:
            case Primitive("null"):
                return None
            case Primitive(name, logical):
                column, read_logical = _column_and_logical_type(name, logical)
                return _MappedType(Primitive(name, read_logical), column)
            case Array():
                items = self.map_type(kind.items, f"{path}[]", trail)
                return items and _mapped_array(items)
            case MapOf():
                values = self.map_type(kind.values, f"{path}{{}}", trail)
                return values and _mapped_map(values)
            case Union():
                return self.map_union(kind, path, trail)
        return self.map_named_type(kind, path, trail)

    def map_named_type(self, kind: Ref, path: str, trail: tuple[str, ...]) -> _MappedType | None:
        """Map a record, enum or fixed."""
        named = self.reader.types[kind.name]
        match named:
            case AvroRecord():
                return self.map_record(named, path, trail)
            case Enum():
                self.types[named.name] = named
                return _MappedType(kind, T.StringType())
        column, read_logical = _column_and_logical_type("fixed", named.logical)
        self.types[named.name] = replace(named, logical=read_logical)
        return _MappedType(kind, column)

    def map_union(self, kind: Union, path: str, trail: tuple[str, ...]) -> _MappedType | None:
        """Map a union: one type and null, two kinds of one number, or a struct with a member for each type."""
        null = NULL in kind.branches
        branches = [self.map_type(branch, path, trail) for branch in kind.branches if branch != NULL]
        members = [branch for branch in branches if branch]
        if len(branches) <= 1:
            return replace(members[0], type=join_branches(null, (members[0].type,))) if members else None
        if len(members) < len(branches):
            raise ValueError(
                f"{path}: a type of the union has no values to keep, so it cannot be a member; give it a field"
            )

        types = tuple(member.type for member in members)
        union = join_branches(null, types)
        names = {member.name for member in types if isinstance(member, Primitive)}
        if len(members) == 2 and names in ({"int", "long"}, {"float", "double"}):
            return _MappedType(union, (AvroKind.LONG if "long" in names else AvroKind.DOUBLE).value.column)
        return _mapped_struct(union, [f"member{place}" for place in range(len(members))], members)

    def map_record(self, named: AvroRecord, path: str, trail: tuple[str, ...]) -> _MappedType | None:
        """Map a record to a struct."""
        if named.name in trail:
            raise ValueError(f"{path}: {named.name} contains itself; a column cannot")
        if named.name not in self.records:
            self.records[named.name] = self.map_fields(named, path, (*trail, named.name))
        return self.records[named.name]

    def map_fields(self, named: AvroRecord, path: str, trail: tuple[str, ...]) -> _MappedType | None:
        """Map a record to a struct of the fields that have values to keep."""
        column_of = column_names(field.name for field in named.fields)
        fields: list[AvroField] = []
        members: list[_MappedType] = []
        for avro_field in named.fields:
            member = self.map_type(avro_field.type, f"{path}.{avro_field.name}", trail)
            if member is None:
                self.left_out.append(f"{named.name}.{avro_field.name}")
                continue
            column = column_of[avro_field.name]
            aliases = avro_field.aliases
            # `from_avro` calls a column as the reader calls its field, and finds the writers' field by the alias.
            if column != avro_field.name:
                self.renamed[f"{named.name}.{avro_field.name}"] = column
                aliases = (avro_field.name, *aliases)
            fields.append(AvroField(column, member.type, aliases))
            members.append(member)
        if not fields:
            return None
        self.types[named.name] = replace(named, fields=tuple(fields))
        return _mapped_struct(Ref(named.name), [field.name for field in fields], members)


def _column_and_logical_type(name: str, logical: Logical | None) -> tuple[T.DataType, Logical | None]:
    """Return the column of a type, and the logical type that is given to Spark: one that changes the column."""
    bare = KIND_OF[name, None].value.column
    column = column_of(KIND_OF[name, logical.name], logical) if logical else bare
    return column, None if column == bare else logical


def _mapped_array(items: _MappedType) -> _MappedType:
    kind = items.type
    # Avro 1.12.0, which Spark 4.0 contains, keeps the items of an array of doubles as floats (AVRO-4108, tried): 0.1
    # becomes 0.10000000149011612, and 1e95 infinity. All other arrays are read right, also those of nullable doubles.
    if kind == Primitive("double"):
        kind = join_branches(True, (kind,))
    return _MappedType(Array(kind), T.ArrayType(items.column), items.columns, items.depth + 1)


def _mapped_map(values: _MappedType) -> _MappedType:
    column = T.MapType(T.StringType(), values.column)
    return _MappedType(MapOf(values.type), column, values.columns, values.depth + 1)


def _mapped_struct(kind: Type, names: list[str], members: list[_MappedType]) -> _MappedType:
    fields = [T.StructField(name, member.column) for name, member in zip(names, members, strict=True)]
    columns = len(members) + sum(member.columns for member in members)
    depth = 1 + max(member.depth for member in members)
    return _MappedType(kind, T.StructType(fields), columns, depth)


AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KIND_BY_COLUMN = {column: kind for kind in AvroKind for column in kind.value.declares}


def derive_schema(columns: T.StructType, name: str) -> AvroSchema:
    """Return a schema for columns; `name` is the full name of its record.

    Raises ValueError naming the column that Avro has no name or type for.
    """
    types: dict[str, Definition] = {}
    return AvroSchema(_derive_record(columns, name, "", types), types)


def parse_derived_schema(resolved: ResolvedSchema) -> AvroSchema | None:
    """Return the schema of a version that this module could have written; None for any other.

    In any other, a new version would lose what its author declared: a field without null, a default, a description.
    """
    schema = parse_resolved(resolved)
    if not isinstance(schema.root, Ref):
        return None
    try:
        derived_again = derive_schema(map_schema(schema).struct, schema.root.name)
    except ValueError:
        return None
    if json.loads(text_of(derived_again)) != json.loads(resolved.schema.text):
        return None
    return derived_again


def _derive_record(struct: T.StructType, name: str, path: str, types: dict[str, Definition]) -> Ref:
    types[name] = AvroRecord(name, ())  # `types` has records in the order of first use: before those inside of it
    fields = []
    for column in struct:
        field_path = f"{path}.{column.name}" if path else column.name
        if not AVRO_NAME.fullmatch(column.name):
            raise ValueError(
                f"field {field_path}: a name in Avro has letters, digits and underscores; rename it in `select`"
            )
        kind = _derive_nullable(column.dataType, f"{name}.{column.name}", field_path, types)
        fields.append(AvroField(column.name, kind))
    types[name] = AvroRecord(name, tuple(fields))
    return Ref(name)


def _derive_nullable(kind: T.DataType, name: str, path: str, types: dict[str, Definition]) -> Type:
    return join_branches(True, (_derive_type(kind, name, path, types),))


def _derive_type(kind: T.DataType, name: str, path: str, types: dict[str, Definition]) -> Type:
    """Return the Avro type of a column; `name` is that of a record made for it, `path` the column's, for messages."""
    match kind:
        case T.StructType():
            return _derive_record(kind, name, path, types)
        case T.ArrayType():
            return Array(_derive_nullable(kind.elementType, name, f"{path}[]", types))
        case T.MapType(keyType=T.StringType()):
            return MapOf(_derive_nullable(kind.valueType, name, f"{path}{{}}", types))
        case T.DecimalType():
            return Primitive("bytes", Logical("decimal", kind.precision, kind.scale))
    if type(kind) not in _KIND_BY_COLUMN:
        raise ValueError(f"field {path}: Avro has no type for {kind.simpleString()}; cast it in `select`")
    described = _KIND_BY_COLUMN[type(kind)].value
    assert described.stored != "fixed"  # a schema that is made for columns names no sizes
    return Primitive(described.stored, Logical(described.logical) if described.logical else None)
