"""Make an Avro schema for columns: one that is read back as these columns (spark_types).

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
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas.avro.model import (
    Array,
    AvroField,
    AvroRecord,
    AvroSchema,
    Definition,
    Logical,
    MapOf,
    Primitive,
    Ref,
    Type,
    joined,
    text_of,
)
from router_schemas.avro.parser import parse
from router_schemas.avro.spark_types import mapped

if TYPE_CHECKING:
    from router_schemas.model import ResolvedSchema

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

    Whatever else somebody declared (a field without null, a default, a text for people) would be lost on the way.
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
