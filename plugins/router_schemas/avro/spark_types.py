"""Map Avro types to Spark types, and back: the columns of a reader's schema, and a schema for columns.

Spark's `from_avro` makes these columns of a reader's schema (`mapped`):

| Avro | Spark | |
|---|---|---|
| boolean, int, long, float, double | boolean, int, bigint, float, double | |
| string, enum, string with uuid | string | |
| bytes, fixed | binary | |
| record, array, map | struct, array, map<string, ...> | |
| null with one other type | that type | every column may be null |
| int with long, float with double | bigint, double | |
| other unions | struct of member0, member1, ... | null not counted; one member is set, the others are null |
| date (int) | date | |
| timestamp-millis, timestamp-micros (long) | timestamp | |
| local-timestamp-millis, local-timestamp-micros | timestamp_ntz | Delta needs its table feature |
| decimal (bytes, fixed) | decimal | beyond 38 digits binary: two's complement, big-endian |
| time-millis, time-micros | int, bigint | counted from midnight; Spark 4.0 has no type for it |
| timestamp-nanos, local-timestamp-nanos | bigint | Spark's timestamps end at microseconds |
| duration, uuid (fixed), big-decimal (bytes) | binary | |
| null alone, a record without fields, arrays and maps of them | no column | there is nothing that Delta could keep |
| a type that contains itself | refused | |

Source: "Apache Avro Data Source Guide" of Spark 4.0, "Supported types for Avro -> Spark SQL conversion", and
SchemaConverters of spark-avro 4.0. Later Sparks know more logical types; what the table calls a plain number is sent
to Spark without its logical type, so that a column has one type whatever the version. In PERMISSIVE mode `from_avro`
declares everything nullable, and so does this.

A schema that is made for columns is read back as these columns (`derived`):

| column | Avro |
|---|---|
| boolean, float, double, string, binary | boolean, float, double, string, bytes |
| tinyint, smallint, int / bigint | int / long |
| date | date |
| timestamp | timestamp-micros |
| timestamp_ntz | local-timestamp-micros |
| decimal | decimal on bytes |
| struct | record, named by its place: games.Event.bags |
| array, map<string, ...> | array, map |

Everything may be null, and null is every default: so a column may come and go, and a version is compatible with those
before it in both directions. A version follows only one that this module could have written (`known`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas.avro.model import (
    MAX_DEPTH,
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
    joined,
    reachable,
    text_of,
)
from router_schemas.avro.parser import parse
from router_schemas.model import column_names

if TYPE_CHECKING:
    from router_schemas.model import ResolvedSchema


PLAIN: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "bytes": T.BinaryType(),
}
LOGICAL: dict[str, T.DataType] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}
DIGITS = 38
MAX_COLUMNS = 20_000
"""Fields at all levels: a schema of a few lines can name each type twice in the next, and so describe millions."""


@dataclass(frozen=True)
class Mapped:
    """The columns of a schema.

    `reader` is the schema to give to `from_avro`: `struct` is exactly what it then makes of it. `renamed` has the
    fields whose column is called otherwise, as record.field -> column; `left_out` those without one.
    """

    reader: AvroSchema
    struct: T.StructType
    renamed: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def mapped(reader: AvroSchema) -> Mapped:
    """Return the columns of a reader's schema; raise ValueError naming the field that has no Spark type."""
    mapping = _Mapping(reader)
    found = mapping.type(reader.root, reader.root.name if isinstance(reader.root, Ref) else "the schema", ())
    if found is None or not isinstance(found.column, T.StructType):
        raise ValueError("the schema: an event is a record with fields; register such a schema")
    if found.columns > MAX_COLUMNS or found.depth > MAX_DEPTH:
        most = f"{MAX_COLUMNS} columns, those inside of others counted, or {MAX_DEPTH} levels"
        raise ValueError(f"the schema: it has more than {most}; register smaller schemas")
    columns = reachable(found.type, mapping.types)
    return Mapped(AvroSchema(found.type, columns), found.column, mapping.renamed, tuple(mapping.left_out))


@dataclass(frozen=True)
class _Found:
    """A type for the reader, its Spark type, how many fields that has at all levels, and how many levels."""

    type: Type
    column: T.DataType
    columns: int = 0
    depth: int = 0


class _Mapping:
    """The mapping of one schema's types; a named type is mapped once, however often it is used."""

    def __init__(self, reader: AvroSchema) -> None:
        self.reader = reader
        self.types: dict[str, Definition] = {}
        self.records: dict[str, _Found | None] = {}
        self.renamed: dict[str, str] = {}
        self.left_out: list[str] = []

    def type(self, kind: Type, path: str, trail: tuple[str, ...]) -> _Found | None:
        """Return what a type becomes, None where there is nothing to keep; `trail` has the records around it."""
        if isinstance(kind, Primitive):
            return None if kind == NULL else self.primitive(kind)
        if isinstance(kind, Array):
            items = self.type(kind.items, f"{path}[]", trail)
            return items and _Found(_array(items.type), T.ArrayType(items.column), items.columns, items.depth + 1)
        if isinstance(kind, MapOf):
            values = self.type(kind.values, f"{path}{{}}", trail)
            return values and _mapped_values(values)
        if isinstance(kind, Union):
            return self.union(kind, path, trail)
        return self.named(kind, path, trail)

    def named(self, kind: Ref, path: str, trail: tuple[str, ...]) -> _Found | None:
        """Return a record, enum or fixed."""
        named = self.reader.types[kind.name]
        if isinstance(named, AvroRecord):
            return self.record(named, path, trail)
        if isinstance(named, Enum):
            self.types[named.name] = named
            return _Found(kind, T.StringType())
        self.types[named.name] = fixed = replace(named, logical=_kept(named.logical))
        return _Found(kind, _logical_type(fixed.logical) or T.BinaryType())

    def primitive(self, kind: Primitive) -> _Found:
        """Return a primitive type, with its logical type where Spark has one."""
        kept = Primitive(kind.name, _kept(kind.logical))
        return _Found(kept, _logical_type(kept.logical) or PLAIN[kind.name])

    def union(self, kind: Union, path: str, trail: tuple[str, ...]) -> _Found | None:
        """Return a union: one type and null, two kinds of one number, or a struct with a member for each type."""
        null = NULL in kind.branches
        found = [self.type(branch, path, trail) for branch in kind.branches if branch != NULL]
        kept = [it for it in found if it]
        if len(found) <= 1:
            return replace(kept[0], type=joined(null, (kept[0].type,))) if kept else None
        if len(kept) < len(found):
            raise ValueError(
                f"{path}: a type of the union has no values to keep, so it cannot be a member; give it a field"
            )
        types = tuple(it.type for it in kept)
        names = {member.name for member in types if isinstance(member, Primitive)}
        if len(kept) == 2 and names in ({"int", "long"}, {"float", "double"}):
            return _Found(joined(null, types), PLAIN["long" if "long" in names else "double"])
        return _struct(joined(null, types), [f"member{place}" for place in range(len(kept))], kept)

    def record(self, named: AvroRecord, path: str, trail: tuple[str, ...]) -> _Found | None:
        """Return a record as a struct."""
        if named.name in trail:
            raise ValueError(f"{path}: {named.name} contains itself; a column cannot")
        if named.name not in self.records:
            self.records[named.name] = self.struct(named, path, (*trail, named.name))
        return self.records[named.name]

    def struct(self, named: AvroRecord, path: str, trail: tuple[str, ...]) -> _Found | None:
        """Return a struct with the fields of a record that have something to keep."""
        columns = column_names(old.name for old in named.fields)
        kept: list[AvroField] = []
        found: list[_Found] = []
        for old in named.fields:
            it, column = self.type(old.type, f"{path}.{old.name}", trail), columns[old.name]
            if it is None:
                self.left_out.append(f"{named.name}.{old.name}")
                continue
            found.append(it)
            aliases = old.aliases
            if column != old.name:
                self.renamed[f"{named.name}.{old.name}"] = column
                aliases = (old.name, *aliases)
            kept.append(AvroField(column, it.type, aliases))
        if not kept:
            return None
        self.types[named.name] = replace(named, fields=tuple(kept))
        return _struct(Ref(named.name), [new.name for new in kept], found)


def _array(items: Type) -> Array:
    """Return an array in a form that Spark reads right.

    Avro 1.12.0, which Spark 4.0 comes with, keeps the items of an array of doubles as floats (AVRO-4108, run): 0.1
    comes out as 0.10000000149011612, 1e95 as infinity. Arrays of doubles that may be null are right, as all others.
    """
    return Array(joined(True, (items,)) if items == Primitive("double") else items)


def _mapped_values(values: _Found) -> _Found:
    return _Found(MapOf(values.type), T.MapType(T.StringType(), values.column), values.columns, values.depth + 1)


def _struct(kind: Type, names: list[str], found: list[_Found]) -> _Found:
    fields = [T.StructField(name, it.column) for name, it in zip(names, found, strict=True)]
    depth = 1 + max(it.depth for it in found)
    return _Found(kind, T.StructType(fields), sum(1 + it.columns for it in found), depth)


def _kept(logical: Logical | None) -> Logical | None:
    """Return a logical type that Spark has a type for."""
    if logical is None or logical.name in LOGICAL:
        return logical
    return logical if logical.name == "decimal" and logical.precision <= DIGITS else None


def _logical_type(logical: Logical | None) -> T.DataType | None:
    if logical is None:
        return None
    return LOGICAL.get(logical.name) or T.DecimalType(logical.precision, logical.scale)


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: dict[type[T.DataType], Primitive] = {
    T.BooleanType: Primitive("boolean"),
    T.ByteType: Primitive("int"),
    T.ShortType: Primitive("int"),
    T.IntegerType: Primitive("int"),
    T.LongType: Primitive("long"),
    T.FloatType: Primitive("float"),
    T.DoubleType: Primitive("double"),
    T.StringType: Primitive("string"),
    T.BinaryType: Primitive("bytes"),
    T.DateType: Primitive("int", Logical("date")),
    T.TimestampType: Primitive("long", Logical("timestamp-micros")),
    T.TimestampNTZType: Primitive("long", Logical("local-timestamp-micros")),
}


def derived(columns: T.StructType, name: str) -> AvroSchema:
    """Return a schema for columns; `name` is the full name of its record.

    Raises ValueError naming the column that Avro has no name or type for.
    """
    types: dict[str, Definition] = {}
    return AvroSchema(_record(columns, name, "", types), types)


def known(resolved: ResolvedSchema) -> AvroSchema | None:
    """Return the schema of a version that this module could have written; None for one that it could not.

    Whatever else its author declared (a field without null, a default, a text for people) would be lost on the way.
    """
    schema = parse(resolved)
    if not isinstance(schema.root, Ref):
        return None
    try:
        again = derived(mapped(schema).struct, schema.root.name)
    except ValueError:
        return None
    return again if json.loads(text_of(again)) == json.loads(resolved.schema.text) else None


def _record(struct: T.StructType, name: str, path: str, types: dict[str, Definition]) -> Ref:
    types[name] = AvroRecord(name, ())  # before the records inside of it
    fields = []
    for one in struct:
        at = f"{path}.{one.name}" if path else one.name
        if not NAME.fullmatch(one.name):
            raise ValueError(f"field {at}: a name in Avro has letters, digits and underscores; rename it in `select`")
        fields.append(AvroField(one.name, _nullable(one.dataType, f"{name}.{one.name}", at, types)))
    types[name] = AvroRecord(name, tuple(fields))
    return Ref(name)


def _nullable(kind: T.DataType, name: str, path: str, types: dict[str, Definition]) -> Type:
    return joined(True, (_type(kind, name, path, types),))


def _type(kind: T.DataType, name: str, path: str, types: dict[str, Definition]) -> Type:
    if isinstance(kind, T.StructType):
        return _record(kind, name, path, types)
    if isinstance(kind, T.ArrayType):
        return Array(_nullable(kind.elementType, name, f"{path}[]", types))
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return MapOf(_nullable(kind.valueType, name, f"{path}{{}}", types))
    if isinstance(kind, T.DecimalType):
        return Primitive("bytes", Logical("decimal", kind.precision, kind.scale))
    if type(kind) not in _PLAIN:
        raise ValueError(f"field {path}: Avro has no type for {kind.simpleString()}; cast it in `select`")
    return _PLAIN[type(kind)]
