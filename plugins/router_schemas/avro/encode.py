"""Write columns as Avro: the inverse of mapping.

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
may be null. What a schema cannot hold of a value is a ValueError, never another value: null where it has no null,
microseconds in milliseconds, a symbol that it lacks, bytes of another size, a text that is not UTF-8.
One record can be written from plain data as well, as a producer does that has the schema: for tests of configurations.
Source of the bytes: Apache Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from router_schemas import byte_columns
from router_schemas.avro.model import (
    NULL,
    Array,
    AvroRecord,
    Definition,
    Enum,
    MapOf,
    Primitive,
    Ref,
    Type,
    Union,
    words,
)
from router_schemas.avro.spark_types import DIGITS, column_names
from router_schemas.byte_columns import varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from router_schemas.avro.model import AvroSchema, Fixed, Logical
    from router_schemas.byte_columns import Pieces, Write


_NO_NULL = "it is null, and the schema has no null there"


def writer(schema: AvroSchema, columns: T.StructType) -> Write:
    """Return what writes rows, structs of these columns, as bare Avro records.

    Raises ValueError naming the column that has no place in the schema, or the field that needs one.
    """
    return _Writers(schema).type(schema.root, columns, "")


class _Writers:
    """Make the writers of one schema; `path` is that of the column, for messages."""

    def __init__(self, schema: AvroSchema) -> None:
        self.types = schema.types

    def field(self, kind: Type, column: T.DataType, path: str) -> Write:
        """Return what writes a column that may have nulls."""
        if isinstance(kind, Union):
            return self.union(kind, column, path)
        write = self.type(kind, column, path)
        return lambda array: write(byte_columns.full(array, path, _NO_NULL))

    def type(self, kind: Type, column: T.DataType, path: str) -> Write:
        """Return what writes a column without nulls."""
        write = primitive(kind, column, path) if isinstance(kind, Primitive) else None
        if isinstance(kind, Ref):
            write = self.named(self.types[kind.name], column, path)
        if isinstance(kind, Array) and isinstance(column, T.ArrayType):
            write = _array(self.field(kind.items, column.elementType, f"{path}[]"))
        if isinstance(kind, MapOf) and isinstance(column, T.MapType) and isinstance(column.keyType, T.StringType):
            write = _map(self.field(kind.values, column.valueType, f"{path}{{}}"), path)
        if write is None:
            raise self.misfit(kind, column, path)
        return write

    def misfit(self, kind: Type, column: T.DataType, path: str) -> ValueError:
        """Return the refusal of a column."""
        return ValueError(
            f"{_at(path)}: the column is {column.simpleString()[:200]}, and the schema has {words(kind, self.types)}"
        )

    def named(self, named: Definition, column: T.DataType, path: str) -> Write | None:
        """Return what writes a column as a record, enum or fixed; None where it does not go with it."""
        if isinstance(named, AvroRecord):
            return self.record(named, column, path) if isinstance(column, T.StructType) else None
        if isinstance(named, Enum):
            return enum(named, path) if isinstance(column, T.StringType) else None
        return fixed(named, column, path)

    def record(self, named: AvroRecord, columns: T.StructType, path: str) -> Write:
        """Return what writes a struct as a record."""
        called = column_names(field.name for field in named.fields)
        kinds = {field.name: field.dataType for field in columns}
        for name in kinds.keys() - set(called.values()):
            raise ValueError(f"{_at(_below(path, name))}: record {named.name} has no field for this column")
        places = {name: place for place, name in enumerate(kinds)}
        parts: list[tuple[int, Write]] = []
        blanks: dict[int, bytes] = {}
        for field in named.fields:
            name, at = called[field.name], _below(path, field.name)
            if name in kinds:
                parts.append((places[name], self.field(field.type, kinds[name], at)))
            elif isinstance(field.type, Union) and NULL in field.type.branches:
                blanks[len(parts) + len(blanks)] = long(field.type.branches.index(NULL))
            elif field.type != NULL:
                raise ValueError(f"{_at(at)}: no column is written to it, and it may not be null")
        return _record(parts, blanks)

    def union(self, kind: Union, column: T.DataType, path: str) -> Write:
        """Return what writes a column, with nulls where the union has null, as one type of a union."""
        others = [(place, branch) for place, branch in enumerate(kind.branches) if branch != NULL]
        null = long(kind.branches.index(NULL)) if NULL in kind.branches else None
        members = [f"member{place}" for place in range(len(others))]
        if len(others) > 1 and isinstance(column, T.StructType) and column.fieldNames() == members:
            inner = [
                _prefixed(long(place), self.type(branch, field.dataType, _below(path, field.name)))
                for (place, branch), field in zip(others, column, strict=True)
            ]
            write = _members(inner, null, path)
        else:
            write = self.branch(others, kind, column, path)
        if null is None:
            return lambda array: write(byte_columns.full(array, path, _NO_NULL))
        return lambda array: byte_columns.or_null(array, write, null)

    def branch(self, others: Sequence[tuple[int, Type]], kind: Union, column: T.DataType, path: str) -> Write:
        """Return what writes a column as the first type that takes it."""
        for place, branch in others:
            try:
                return _prefixed(long(place), self.type(branch, column, path))
            except ValueError:
                if len(others) == 1:  # it says best what does not fit
                    raise
        raise self.misfit(kind, column, path)


def _at(path: str) -> str:
    return f"field {path}" if path else "the schema"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _record(parts: list[tuple[int, Write]], blanks: dict[int, bytes]) -> Write:
    """Return what writes structs; `blanks` are what stands where a field has no column, by its place."""

    def write(array: pa.Array) -> Pieces:
        fields = array.flatten()
        columns = [write(fields[place]) for place, write in parts]
        for place, blank in blanks.items():
            columns.insert(place, [blank] * len(array))
        return byte_columns.joined(columns, len(array))

    return write


def _array(items: Write) -> Write:
    def write(array: pa.Array) -> Pieces:
        return _blocks(byte_columns.ends(array), items(byte_columns.elements(array)))

    return write


def _map(values: Write, path: str) -> Write:
    def write(array: pa.Array) -> Pieces:
        keys, items = byte_columns.entries(array)
        named = [long(len(key)) + key for key in byte_columns.texts(keys, path)]
        return _blocks(byte_columns.ends(array), byte_columns.joined([named, values(items)], len(keys)))

    return write


def _blocks(ends: list[int], written: Pieces) -> Pieces:
    """Return each list as one block and the end of blocks (specification, "Arrays")."""
    return [
        long(end - begin) + b"".join(written[begin:end]) + b"\0" if end > begin else b"\0"
        for begin, end in pairwise(ends)
    ]


def _prefixed(prefix: bytes, write: Write) -> Write:
    return lambda array: [prefix + one for one in write(array)]


def _members(inner: list[Write], null: bytes | None, path: str) -> Write:
    """Return what writes the one member of each struct that has a value."""

    def write(array: pa.Array) -> Pieces:
        fields = array.flatten()
        counts = byte_columns.one_of(fields)
        if (counts > 1).any() or (null is None and (counts == 0).any()):
            raise ValueError(f"field {path}: of the members of a union one has a value")
        columns = [byte_columns.or_null(field, one, b"") for field, one in zip(fields, inner, strict=True)]
        return [one or null or b"" for one in byte_columns.joined(columns, len(array))]

    return write


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


def primitive(kind: Primitive, column: T.DataType, path: str) -> Write | None:
    """Return what writes a column without nulls as a primitive type; None where it does not go with it."""
    logical = kind.logical
    if kind.name == "bytes" and logical and logical.name == "decimal":
        return _decimal_or_bytes(logical, column, 0, sized)
    fits = isinstance(column, _PLAIN.get((kind.name, logical.name if logical else ""), ()))
    return _written(kind, path) if fits else None


def fixed(named: Fixed, column: T.DataType, path: str) -> Write | None:
    """Return what writes a column without nulls as so many bytes; None where it does not go with it."""
    exact = _exact(named.size, path)
    if named.logical and named.logical.name == "decimal":
        return _decimal_or_bytes(named.logical, column, named.size, exact)
    return exact if isinstance(column, T.BinaryType) else None


def _decimal_or_bytes(logical: Logical, column: T.DataType, size: int, blobs: Write) -> Write | None:
    """Return what writes a decimal; one beyond Spark's digits is read, and written, as its bytes."""
    if isinstance(column, T.DecimalType) and _holds(logical, column):
        return _decimal(logical.scale - column.scale, size)
    return blobs if isinstance(column, T.BinaryType) and logical.precision > DIGITS else None


def _holds(logical: Logical, column: T.DecimalType) -> bool:
    """Say whether a decimal of the schema has no fewer digits before and after the point than a column."""
    more = logical.scale - column.scale
    return more >= 0 and logical.precision - column.precision >= more


def long(number: int) -> bytes:
    """Return a whole number that is not below zero."""
    return byte_columns.varint(number << 1)


def sized(array: pa.Array) -> Pieces:
    """Return bytes with their length in front."""
    return [long(len(one)) + one for one in byte_columns.blobs(array)]


def _written(kind: Primitive, path: str) -> Write:
    """Return what writes a column of a type that goes with a primitive type."""
    if kind.name == "boolean":
        return byte_columns.booleans
    if kind.name in ("float", "double"):
        return lambda array: byte_columns.fixed(array, "<f4" if kind.name == "float" else "<f8")
    if kind.name == "string":
        return lambda array: [long(len(one)) + one for one in byte_columns.texts(array, path)]
    if kind.name == "bytes":
        return sized
    if kind.logical and kind.logical.name.endswith("timestamp-millis"):
        return lambda array: byte_columns.zigzags(_milliseconds(array, path))
    return lambda array: byte_columns.zigzags(byte_columns.whole(array))


def _milliseconds(array: pa.Array, path: str) -> NDArray[np.int64]:
    micros = byte_columns.whole(array)
    if (micros % 1000).any():
        what = "the time has microseconds, and the schema keeps milliseconds; cut it in `select`"
        raise ValueError(f"field {path}: {what}")
    return micros // 1000


def _decimal(more: int, size: int = 0) -> Write:
    """Return what writes decimals with more digits after the point, in so many bytes (0: as many as it takes)."""

    def write(array: pa.Array) -> Pieces:
        numbers = [number * 10**more for number in byte_columns.unscaled(array)]
        if size:
            return [number.to_bytes(size, "big", signed=True) for number in numbers]
        shortest = [number.to_bytes(_bytes(number), "big", signed=True) for number in numbers]
        return [long(len(one)) + one for one in shortest]

    return write


def _bytes(number: int) -> int:
    """Return the bytes that a number takes in two's complement."""
    return (number if number >= 0 else ~number).bit_length() // 8 + 1


def _exact(size: int, path: str) -> Write:
    def write(array: pa.Array) -> Pieces:
        found = byte_columns.blobs(array)
        if any(len(one) != size for one in found):
            raise ValueError(f"field {path}: the schema takes {size} bytes, no more and no fewer")
        return found

    return write


def enum(named: Enum, path: str) -> Write:
    """Return what writes texts as the symbols of an enum."""
    places = {symbol.encode(): long(place) for place, symbol in enumerate(named.symbols)}

    def write(array: pa.Array) -> Pieces:
        try:
            return [places[one] for one in byte_columns.texts(array, path)]
        except KeyError:
            raise ValueError(f"field {path}: enum {named.name} has no such symbol") from None

    return write


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}


def written(event: Any, schema: AvroSchema) -> bytes:
    """Return the bytes of a value of plain data.

    Dates and timestamps may be ISO 8601 text, bytes and fixed are text in UTF-8, all other logical types are given as
    the type beneath. A field that is not given is null. Of a union the first branch counts that takes the value.
    Raises ValueError for what the schema does not take.
    """
    return _value(event, schema.root, schema.types, "")


def _value(value: Any, kind: Type, types: Mapping[str, Definition], where: str) -> bytes:
    if isinstance(kind, Primitive):
        return _primitive(value, kind, where)
    if isinstance(kind, Union):
        return _branch(value, kind, types, where)
    if isinstance(kind, Array):
        return _block(_value(item, kind.items, types, where) for item in _given(value, list, where))
    if isinstance(kind, MapOf):
        pairs = _given(value, dict, where).items()
        return _block(_sized(str(key).encode()) + _value(item, kind.values, types, where) for key, item in pairs)
    return _named(value, types[kind.name], types, where)


def _named(value: Any, named: Definition, types: Mapping[str, Definition], where: str) -> bytes:
    if isinstance(named, AvroRecord):
        return _encoded_record(_given(value, dict, where), named, types, where)
    if isinstance(named, Enum):
        if value not in named.symbols:
            raise _fault(where, value, named.name)
        return _long(named.symbols.index(value))
    content = str(_given(value, str, where)).encode()
    if len(content) != named.size:
        raise _fault(where, value, f"{named.name} of {named.size} bytes")
    return content


def _encoded_record(event: dict[str, Any], record: AvroRecord, types: Mapping[str, Definition], where: str) -> bytes:
    unknown = event.keys() - {field.name for field in record.fields}
    if unknown:
        raise ValueError(f"{record.name} has no field {', '.join(sorted(unknown))}")
    return b"".join(
        _value(event.get(field.name), field.type, types, f"{where}.{field.name}" if where else field.name)
        for field in record.fields
    )


def _branch(value: Any, kind: Union, types: Mapping[str, Definition], where: str) -> bytes:
    for number, branch in enumerate(kind.branches):
        try:
            return _long(number) + _value(value, branch, types, where)
        except ValueError as fault:
            reason = fault
    raise reason


def _primitive(value: Any, kind: Primitive, where: str) -> bytes:
    takes, write = _WRITERS[kind.name]
    value = _beneath(value, kind.logical)
    if isinstance(value, bool) != (kind.name == "boolean") or not isinstance(value, takes):
        raise _fault(where, value, kind.name)
    return write(value)


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


def _block(items: Iterable[bytes]) -> bytes:
    """Encode the items of an array or a map as one block, and the empty one that ends it."""
    found = list(items)
    return (_long(len(found)) + b"".join(found) if found else b"") + _long(0)


def _sized(content: bytes) -> bytes:
    return _long(len(content)) + content


def _long(number: int) -> bytes:
    """Encode a whole number, seven bits a byte, the sign in the lowest."""
    return varint(number << 1 if number >= 0 else ~(number << 1))


_WRITERS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], bytes]]] = {
    "null": (type(None), lambda value: b""),
    "boolean": (bool, lambda value: bytes([value])),
    "int": (int, _long),
    "long": (int, _long),
    "float": ((int, float), lambda value: struct.pack("<f", value)),
    "double": ((int, float), lambda value: struct.pack("<d", value)),
    "bytes": (str, lambda value: _sized(value.encode())),
    "string": (str, lambda value: _sized(value.encode())),
}
