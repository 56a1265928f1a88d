"""Map the columns of a message to Arrow and Spark types.

| Protobuf | Spark | notes |
|---|---|---|
| double, float, bool, string, bytes | double, float, boolean, string, binary | |
| int32, sint32, sfixed32 | int | |
| int64, sint64, sfixed64 | bigint | |
| uint32, fixed32 | bigint | Spark has no unsigned types |
| uint64, fixed64 | decimal(20,0) | |
| enum | string | its name; the digits of a number that has none |
| message | struct | null where absent |
| message without fields | struct<_present boolean> | `_present` is true; no table can have a struct of nothing |
| message that a path already went through; more than 16 levels | binary | its bytes |
| repeated, map | array, map | empty where absent, never null; maps are sorted by key |
| oneof | its members side by side | all but one are null |
| google.protobuf.Timestamp | timestamp | microseconds, rounded down; outside the years 1 to 9999: a dead letter |
| google.protobuf.Duration | bigint | microseconds, rounded to zero: Delta has no durations; 10 000 years at most |
| wrappers, such as google.protobuf.Int32Value | what they wrap | null where absent |
| google.protobuf.Struct, Value, ListValue | string | JSON, keys sorted; NaN and the infinities as strings |
| google.protobuf.Any | struct<type_url string, value binary> | |

A value is null where the field tells absent from zero (`optional`, messages, oneofs, all of proto2), else zero. Names
that differ in case only are one name to Delta: the field that came first keeps it, the others get `_` and their
number. An enum of proto2 without a zero shows one as `_0`. Field names have letters, digits and underscores only,
because google's descriptor pool refuses any other, so none is a name that Delta refuses. Source of the JSON and of the
ranges: protobuf.dev, "ProtoJSON" and the comments of timestamp.proto and duration.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router_schemas.protobuf.model import Column


PRESENT = "_present"
"""The one field of the struct that stands for a message without fields."""

_UNSIGNED = pa.decimal128(20, 0)
_ARROW: dict[str, pa.DataType] = {
    "double": pa.float64(),
    "float": pa.float32(),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), pa.int32()),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32", "duration"), pa.int64()),
    **dict.fromkeys(("uint64", "fixed64"), _UNSIGNED),
    "bool": pa.bool_(),
    **dict.fromkeys(("string", "enum", "json"), pa.string()),
    **dict.fromkeys(("bytes", "raw"), pa.binary()),
    "timestamp": pa.timestamp("us", "UTC"),
    "empty": pa.struct([pa.field(PRESENT, pa.bool_())]),
}
_SPARK: dict[pa.DataType, T.DataType] = {
    pa.float64(): T.DoubleType(),
    pa.float32(): T.FloatType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    _UNSIGNED: T.DecimalType(20, 0),
    pa.bool_(): T.BooleanType(),
    pa.string(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.timestamp("us", "UTC"): T.TimestampType(),
}


def arrow_struct(columns: Iterable[Column]) -> pa.StructType:
    """Return the Arrow type of an event; every field may be null."""
    return pa.struct([pa.field(column.name, arrow_type(column)) for column in columns])


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column."""
    if column.key:
        return pa.map_(_ARROW[column.key], pa.field("value", value_type(column)))
    return pa.list_(pa.field("element", value_type(column))) if column.repeated else value_type(column)


def value_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column's values: of itself, an array's elements or a map's values."""
    return arrow_struct(column.columns) if column.kind == "struct" else _ARROW[column.kind]


def spark_struct(struct: pa.StructType) -> T.StructType:
    """Return the Spark type of an event's Arrow type. Needs no session."""
    return T.StructType([T.StructField(one.name, _spark_type(one.type)) for one in struct])


def _spark_type(kind: pa.DataType) -> T.DataType:
    if pa.types.is_struct(kind):
        return spark_struct(kind)
    if pa.types.is_map(kind):
        return T.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    return T.ArrayType(_spark_type(kind.value_type)) if pa.types.is_list(kind) else _SPARK[kind]
