"""Encode columns as Avro, the inverse of spark_types. fastavro writes the bytes.

| column | schema |
|---|---|
| boolean, float, double, binary | boolean; float, double; double; bytes, fixed |
| tinyint, smallint, int | int, time-millis, long, double |
| bigint | long, time-micros, timestamp-nanos, local-timestamp-nanos |
| string | string, enum |
| date, timestamp, timestamp_ntz | date, timestamp-micros or -millis, local-timestamp-micros or -millis |
| decimal | decimal on bytes or fixed, with no fewer digits before or after the point |
| struct, array, map<string, ...> | record, array, map |
| anything that may be null | a union of null and that |
| anything | the first type of a union that takes it |
| struct of member0, member1, ... | the union of as many types that is read as it |

A column is written to the field that is read as it (column_names): every column has one, and a field without a column
may be null. What a schema cannot hold of a value is a ValueError, never another value: null if it has no null,
microseconds in milliseconds, a symbol that it lacks, bytes of another size, a text that is not UTF-8. fastavro would
round some of these, or choose another type of a union by the value. So columns are checked here, and it is given plain
values: times as numbers, and of a union the type's name with the value.

One record can be encoded from plain data as well, as a producer does that has the schema: for tests of configurations.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import fastavro
from fastavro.schema import SchemaParseException
from pyspark.sql import types as T

from router_schemas import byte_columns
from router_schemas.avro.model import (
    NULL,
    Array,
    AvroRecord,
    AvroSchema,
    Enum,
    MapOf,
    Primitive,
    Ref,
    Union,
    text_of,
    words,
)
from router_schemas.avro.spark_types import DIGITS
from router_schemas.model import column_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from router_schemas.avro.model import Definition, Fixed, Logical, Type
    from router_schemas.byte_columns import Write

Values: TypeAlias = "Callable[[pa.Array], list[Any]]"
"""What turns a column into the values that fastavro is given."""

_NO_NULL = "it is null, and the schema has no null there"
_IS_NULL = (NULL.name, None)
_INTS = (T.ByteType, T.ShortType, T.IntegerType)
_PLAIN: dict[tuple[str, str], tuple[type[T.DataType], ...]] = {
    ("boolean", ""): (T.BooleanType,),
    **dict.fromkeys((("int", ""), ("int", "time-millis")), _INTS),
    ("long", ""): (*_INTS, T.LongType),
    **dict.fromkeys(
        (("long", "time-micros"), ("long", "timestamp-nanos"), ("long", "local-timestamp-nanos")), (T.LongType,)
    ),
    ("float", ""): (T.FloatType,),
    ("double", ""): (*_INTS, T.FloatType, T.DoubleType),
    **dict.fromkeys((("string", ""), ("string", "uuid")), (T.StringType,)),
    **dict.fromkeys((("bytes", ""), ("bytes", "big-decimal")), (T.BinaryType,)),
    ("int", "date"): (T.DateType,),
    **dict.fromkeys((("long", "timestamp-micros"), ("long", "timestamp-millis")), (T.TimestampType,)),
    **dict.fromkeys((("long", "local-timestamp-micros"), ("long", "local-timestamp-millis")), (T.TimestampNTZType,)),
}
"""The columns that a primitive type with a logical type takes."""


def writer(schema: AvroSchema, columns: T.StructType) -> Write:
    """Return what writes rows, structs of these columns, as bare Avro records.

    Raises ValueError naming the column that has no place in the schema, or the field that needs one.
    """
    values = _Columns(schema).type(schema.root, columns, "")
    encode = _encoder(schema)
    return lambda array: [encode(row) for row in values(array)]


def _encoder(schema: AvroSchema) -> Callable[[Any], bytes]:
    """Return what encodes one value of a schema, given with the types of its unions and the symbols of `_symbol`."""
    named = {
        name: replace(one, symbols=tuple(map(_symbol, range(len(one.symbols))))) if isinstance(one, Enum) else one
        for name, one in schema.types.items()
    }
    try:
        parsed = fastavro.parse_schema(json.loads(text_of(AvroSchema(schema.root, named))))
    except SchemaParseException as error:
        raise ValueError(f"the schema: {error}") from error

    def encode(value: Any) -> bytes:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, value)
        return target.getvalue()

    return encode


def _symbol(position: int) -> str:
    """Return the name of a symbol for fastavro, by its position: it refuses letters that Avro's Java library takes."""
    return f"s{position}"


class _Columns:
    """The conversions from columns to the values of one schema; `path` is that of the column, for messages."""

    def __init__(self, schema: AvroSchema) -> None:
        self.types = schema.types

    def field(self, kind: Type, column: T.DataType, path: str) -> Values:
        """Return what converts a column that may have nulls."""
        if isinstance(kind, Union):
            return self.union(kind, column, path)
        values = self.type(kind, column, path)
        return lambda array: values(byte_columns.full(array, path, _NO_NULL))

    def type(self, kind: Type, column: T.DataType, path: str) -> Values:
        """Return what converts a column without nulls."""
        values = _primitive(kind, column, path) if isinstance(kind, Primitive) else None
        if isinstance(kind, Ref):
            values = self.named(self.types[kind.name], column, path)
        if isinstance(kind, Array) and isinstance(column, T.ArrayType):
            values = _array(self.field(kind.items, column.elementType, f"{path}[]"))
        if isinstance(kind, MapOf) and isinstance(column, T.MapType) and isinstance(column.keyType, T.StringType):
            values = _map(self.field(kind.values, column.valueType, f"{path}{{}}"), path)
        if values is None:
            raise self.misfit(kind, column, path)
        return values

    def misfit(self, kind: Type, column: T.DataType, path: str) -> ValueError:
        """Return the refusal of a column."""
        return ValueError(
            f"{_at(path)}: the column is {column.simpleString()[:200]}, and the schema has {words(kind, self.types)}"
        )

    def named(self, named: Definition, column: T.DataType, path: str) -> Values | None:
        """Return what converts a column to a record, enum or fixed; None where it does not go with it."""
        if isinstance(named, AvroRecord):
            return self.record(named, column, path) if isinstance(column, T.StructType) else None
        if isinstance(named, Enum):
            return _enum(named, path) if isinstance(column, T.StringType) else None
        return _fixed(named, column, path)

    def record(self, named: AvroRecord, columns: T.StructType, path: str) -> Values:
        """Return what converts structs to records."""
        called = column_names(field.name for field in named.fields)
        kinds = {field.name: field.dataType for field in columns}
        for name in kinds.keys() - set(called.values()):
            raise ValueError(f"{_at(_below(path, name))}: record {named.name} has no field for this column")
        places = {name: place for place, name in enumerate(kinds)}
        fields: dict[str, tuple[int, Values]] = {}
        absent: dict[str, Any] = {}
        for field in named.fields:
            name, at = called[field.name], _below(path, field.name)
            if name in kinds:
                fields[field.name] = places[name], self.field(field.type, kinds[name], at)
            elif isinstance(field.type, Union) and NULL in field.type.branches:
                absent[field.name] = _IS_NULL
            elif field.type == NULL:
                absent[field.name] = None
            else:
                raise ValueError(f"{_at(at)}: no column is written to it, and it may not be null")
        return _record(fields, absent)

    def union(self, kind: Union, column: T.DataType, path: str) -> Values:
        """Return what converts a column, with nulls where the union has null, to values of a union."""
        others = [branch for branch in kind.branches if branch != NULL]
        has_null = NULL in kind.branches
        members = [f"member{place}" for place in range(len(others))]
        if len(others) > 1 and isinstance(column, T.StructType) and column.fieldNames() == members:
            inner = [
                _tagged(branch, self.type(branch, field.dataType, _below(path, field.name)))
                for branch, field in zip(others, column, strict=True)
            ]
            values = _members(inner, has_null, path)
        else:
            values = self.branch(others, kind, column, path)
        if not has_null:
            return lambda array: values(byte_columns.full(array, path, _NO_NULL))
        return lambda array: byte_columns.or_null(array, values, _IS_NULL)

    def branch(self, others: Sequence[Type], kind: Union, column: T.DataType, path: str) -> Values:
        """Return what converts a column to the first type that takes it."""
        for branch in others:
            try:
                return _tagged(branch, self.type(branch, column, path))
            except ValueError:
                if len(others) == 1:  # it says best what does not fit
                    raise
        raise self.misfit(kind, column, path)


def _at(path: str) -> str:
    return f"field {path}" if path else "the schema"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _record(fields: dict[str, tuple[int, Values]], absent: dict[str, Any]) -> Values:
    """Return what converts structs; `fields` are by name, with the place of the column; `absent` have no column."""

    def convert(array: pa.Array) -> list[Any]:
        columns = array.flatten()
        found = [values(columns[place]) for place, values in fields.values()]
        rows = zip(*found, strict=True) if found else repeat((), len(array))
        return [dict(zip(fields, row, strict=True), **absent) for row in rows]

    return convert


def _array(items: Values) -> Values:
    def convert(array: pa.Array) -> list[Any]:
        found = items(byte_columns.elements(array))
        return [found[begin:end] for begin, end in pairwise(byte_columns.ends(array))]

    return convert


def _map(values: Values, path: str) -> Values:
    def convert(array: pa.Array) -> list[Any]:
        keys, items = byte_columns.entries(array)
        pairs = list(zip(_texts(keys, path), values(items), strict=True))
        return [dict(pairs[begin:end]) for begin, end in pairwise(byte_columns.ends(array))]

    return convert


def _tagged(branch: Type, values: Values) -> Values:
    """Return what converts a column to values of one type of a union, each with the type's name."""
    name = _branch_name(branch)
    return lambda array: [(name, one) for one in values(array)]


def _branch_name(branch: Type) -> str:
    if isinstance(branch, (Primitive, Ref)):
        return branch.name
    return "array" if isinstance(branch, Array) else "map"


def _members(inner: list[Values], has_null: bool, path: str) -> Values:
    """Return what converts the one member of each struct that has a value."""

    def convert(array: pa.Array) -> list[Any]:
        fields = array.flatten()
        counts = byte_columns.one_of(fields)
        if (counts > 1).any() or (not has_null and (counts == 0).any()):
            raise ValueError(f"field {path}: of the members of a union one has a value")
        columns = [byte_columns.or_null(field, one, None) for field, one in zip(fields, inner, strict=True)]
        return [next(filter(None, row), _IS_NULL) for row in zip(*columns, strict=True)]

    return convert


def _primitive(kind: Primitive, column: T.DataType, path: str) -> Values | None:
    """Return what converts a column without nulls to a primitive type; None where it does not go with it."""
    logical = kind.logical
    if kind.name == "bytes" and logical and logical.name == "decimal":
        return _decimal_or_bytes(logical, column, _plain)
    if not isinstance(column, _PLAIN.get((kind.name, logical.name if logical else ""), ())):
        return None
    if kind.name == "string":
        return lambda array: _texts(array, path)
    if logical and logical.name.endswith("timestamp-millis"):
        return lambda array: _milliseconds(array, path)
    return _plain if logical is None or kind.name == "bytes" else _numbers


def _fixed(named: Fixed, column: T.DataType, path: str) -> Values | None:
    """Return what converts a column without nulls to so many bytes; None where it does not go with it."""

    def exact(array: pa.Array) -> list[Any]:
        found = _plain(array)
        if any(len(one) != named.size for one in found):
            raise ValueError(f"field {path}: the schema takes {named.size} bytes, no more and no fewer")
        return found

    if named.logical and named.logical.name == "decimal":
        return _decimal_or_bytes(named.logical, column, exact)
    return exact if isinstance(column, T.BinaryType) else None


def _decimal_or_bytes(logical: Logical, column: T.DataType, blobs: Values) -> Values | None:
    """Return what converts to a decimal; one beyond Spark's digits is read, and written, as its bytes."""
    if isinstance(column, T.DecimalType):
        return _plain if _holds(logical, column) else None
    return blobs if isinstance(column, T.BinaryType) and logical.precision > DIGITS else None


def _holds(logical: Logical, column: T.DecimalType) -> bool:
    """Return whether a decimal of the schema has no fewer digits before and after the point than a column."""
    more = logical.scale - column.scale
    return more >= 0 and logical.precision - column.precision >= more


def _enum(named: Enum, path: str) -> Values:
    """Return what converts texts to the symbols of an enum."""
    symbols = {symbol: _symbol(place) for place, symbol in enumerate(named.symbols)}

    def convert(array: pa.Array) -> list[Any]:
        try:
            return [symbols[one] for one in _texts(array, path)]
        except KeyError:
            raise ValueError(f"field {path}: enum {named.name} has no such symbol") from None

    return convert


def _plain(array: pa.Array) -> list[Any]:
    found: list[Any] = array.to_pylist()
    return found


def _numbers(array: pa.Array) -> list[Any]:
    """Return days or microseconds: Python's own dates and times end at the year 9999."""
    found: list[Any] = byte_columns.whole(array).tolist()
    return found


def _milliseconds(array: pa.Array, path: str) -> list[Any]:
    micros = byte_columns.whole(array)
    if (micros % 1000).any():
        what = "the time has microseconds, and the schema keeps milliseconds; cut it in `select`"
        raise ValueError(f"field {path}: {what}")
    found: list[Any] = (micros // 1000).tolist()
    return found


def _texts(array: pa.Array, path: str) -> list[Any]:
    return [one.decode() for one in byte_columns.texts(array, path)]


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}
_TAKES: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    **dict.fromkeys(("int", "long"), int),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("bytes", "string"), str),
}
"""The plain data that a primitive type takes; a boolean is no number."""


def encoded_event(event: Any, schema: AvroSchema) -> bytes:
    """Return the bytes of a value of plain data.

    Dates and timestamps may be ISO 8601 text, bytes and fixed are text in UTF-8, all other logical types are given as
    the type beneath. A field that is not given is null. Of a union the first branch counts that takes the value.
    Raises ValueError for what the schema does not take.
    """
    value = _value(event, schema.root, schema.types, "")
    try:
        return _encoder(schema)(value)
    except OverflowError as error:
        raise ValueError(f"the event: {error}") from error


def _value(value: Any, kind: Type, types: Mapping[str, Definition], where: str) -> Any:
    if isinstance(kind, Primitive):
        return _primitive_value(value, kind, where)
    if isinstance(kind, Union):
        return _branch_value(value, kind, types, where)
    if isinstance(kind, Array):
        return [_value(item, kind.items, types, where) for item in _given(value, list, where)]
    if isinstance(kind, MapOf):
        pairs = _given(value, dict, where).items()
        return {str(key): _value(item, kind.values, types, where) for key, item in pairs}
    return _named_value(value, types[kind.name], types, where)


def _named_value(value: Any, named: Definition, types: Mapping[str, Definition], where: str) -> Any:
    if isinstance(named, AvroRecord):
        return _record_value(_given(value, dict, where), named, types, where)
    if isinstance(named, Enum):
        if value not in named.symbols:
            raise _fault(where, value, named.name)
        return _symbol(named.symbols.index(value))
    content = str(_given(value, str, where)).encode()
    if len(content) != named.size:
        raise _fault(where, value, f"{named.name} of {named.size} bytes")
    return content


def _record_value(
    event: dict[str, Any], record: AvroRecord, types: Mapping[str, Definition], where: str
) -> dict[str, Any]:
    unknown = event.keys() - {field.name for field in record.fields}
    if unknown:
        raise ValueError(f"{record.name} has no field {', '.join(sorted(unknown))}")
    return {
        field.name: _value(event.get(field.name), field.type, types, _below(where, field.name))
        for field in record.fields
    }


def _branch_value(value: Any, kind: Union, types: Mapping[str, Definition], where: str) -> Any:
    for branch in kind.branches:
        try:
            return _branch_name(branch), _value(value, branch, types, where)
        except ValueError as fault:
            reason = fault
    raise reason


def _primitive_value(value: Any, kind: Primitive, where: str) -> Any:
    value = _beneath(value, kind.logical)
    fits = isinstance(value, _TAKES[kind.name]) and isinstance(value, bool) == (kind.name == "boolean")
    if not fits:
        raise _fault(where, value, kind.name)
    if kind.name in ("float", "double"):
        return float(value)
    return value.encode() if kind.name == "bytes" else value


def _beneath(value: Any, logical: Logical | None) -> Any:
    """Return the number of a date or timestamp that is given as text."""
    if logical is None or not isinstance(value, str):
        return value
    if logical.name == "date":
        return (date.fromisoformat(value) - _EPOCH.date()).days
    unit = _UNITS.get(logical.name.rpartition("-")[2])
    if "timestamp" not in logical.name or unit is None:
        return value
    moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return ((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)) - _EPOCH) // unit


def _given(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise _fault(where, value, kind.__name__)
    return value


def _fault(where: str, value: Any, kind: str) -> ValueError:
    return ValueError(f"{where or 'the event'}: {value!r} is no {kind}")
