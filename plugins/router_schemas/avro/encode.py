"""Encode columns as Avro, the inverse of spark_types. fastavro writes the bytes.

`AvroKind` has the columns that are written to each kind of value. Of the rest:

| column | schema |
|---|---|
| string | enum |
| struct, array, map<string, ...> | record, array, map |
| anything that may be null | a union of null and that |
| anything | the first type of a union that accepts it |
| struct of member0, member1, ... | the union of as many types that is read as it |

A column is written to the field that is read as this column (column_names). Every column needs such a field, and a
field without a column must allow null. A value that the schema cannot hold raises ValueError and is never changed: null
without null in the schema, microseconds in milliseconds, an unknown symbol, bytes of another size, a text that is not
UTF-8. fastavro would round some of these, or choose another type of a union by the value. So columns are checked here,
and fastavro gets plain values: times as numbers, and a value of a union as a pair of the type's name and the value.

`encoded_event` encodes one record from plain data, as a producer with the schema does: for tests of configurations.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import fastavro
from fastavro.schema import SchemaParseException
from pyspark.sql import types as T

from router_schemas import byte_columns
from router_schemas.avro.kinds import kind_of, read_texts
from router_schemas.avro.model import (
    NULL,
    Array,
    AvroRecord,
    AvroSchema,
    Enum,
    Fixed,
    MapOf,
    Primitive,
    Ref,
    Union,
    branch_name,
    describe_type,
    text_of,
)
from router_schemas.model import column_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from router_schemas.avro.model import Definition, Logical, PrimitiveName, Type
    from router_schemas.byte_columns import Write

Values: TypeAlias = "Callable[[pa.Array], list[Any]]"
"""A function that converts a column to the values that fastavro writes."""

_NO_NULL = "it is null, and the schema has no null there"
_IS_NULL = (NULL.name, None)


def record_writer(schema: AvroSchema, columns: T.StructType) -> Write:
    """Return a function that writes rows, structs of these columns, as bare Avro records.

    Raises ValueError naming the column that has no field in the schema, or the field that needs a column.
    """
    values = _Columns(schema).type_conversion(schema.root, columns, "")
    encode = _value_encoder(schema)
    return lambda array: [encode(row) for row in values(array)]


def _value_encoder(schema: AvroSchema) -> Callable[[Any], bytes]:
    """Return a function that encodes one value; unions are pairs with the type's name, symbols are `_symbol_name`s."""
    types: dict[str, Definition] = {}
    for name, definition in schema.types.items():
        types[name] = definition
        if isinstance(definition, Enum):
            symbols = [_symbol_name(position) for position in range(len(definition.symbols))]
            types[name] = replace(definition, symbols=tuple(symbols))
    try:
        parsed = fastavro.parse_schema(json.loads(text_of(AvroSchema(schema.root, types))))
    except SchemaParseException as error:
        raise ValueError(f"the schema: {error}") from error

    def encode_value(value: Any) -> bytes:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, value)
        return target.getvalue()

    return encode_value


def _symbol_name(position: int) -> str:
    """Return the name of a symbol for fastavro, which refuses letters that Avro's Java library accepts."""
    return f"s{position}"


class _Columns:
    """The conversions from columns to the values of one schema; `path` is that of the column, for messages.

    Raises ValueError if a column does not match.
    """

    def __init__(self, schema: AvroSchema) -> None:
        self.types = schema.types

    def field_conversion(self, kind: Type, column: T.DataType, path: str) -> Values:
        """Return the conversion of a column that may have nulls."""
        if isinstance(kind, Union):
            return self.union_conversion(kind, column, path)
        values = self.type_conversion(kind, column, path)
        return lambda array: values(byte_columns.refuse_nulls(array, path, _NO_NULL))

    def type_conversion(self, kind: Type, column: T.DataType, path: str) -> Values:
        """Return the conversion of a column without nulls."""
        values: Values | None = None
        match kind, column:
            case Primitive(), _:
                values = _primitive_conversion(kind.name, kind.logical, column, path)
            case Ref(name), _:
                values = self.named_conversion(self.types[name], column, path)
            case Array(items), T.ArrayType():
                values = _array_conversion(self.field_conversion(items, column.elementType, f"{path}[]"))
            case MapOf(items), T.MapType(keyType=T.StringType()):
                values = _map_conversion(self.field_conversion(items, column.valueType, f"{path}{{}}"), path)
        if values is None:
            raise self.mismatch_error(kind, column, path)
        return values

    def mismatch_error(self, kind: Type, column: T.DataType, path: str) -> ValueError:
        """Return the error for a column that does not match its type."""
        return ValueError(
            f"{_place_text(path)}: the column is {column.simpleString()[:200]}, "
            f"and the schema has {describe_type(kind, self.types)}"
        )

    def named_conversion(self, named: Definition, column: T.DataType, path: str) -> Values | None:
        """Return the conversion of a column to a record, enum or fixed; None if the column does not match it."""
        match named, column:
            case AvroRecord(), T.StructType():
                return self.record_conversion(named, column, path)
            case Enum(), T.StringType():
                return _enum_conversion(named, path)
            case Fixed(), _:
                return _fixed_conversion(named, column, path)
        return None

    def record_conversion(self, named: AvroRecord, columns: T.StructType, path: str) -> Values:
        """Return the conversion of structs to records."""
        column_of = column_names(field.name for field in named.fields)
        places = {name: place for place, name in enumerate(columns.fieldNames())}
        for name in places:
            if name not in column_of.values():
                raise ValueError(
                    f"{_place_text(_path_below(path, name))}: record {named.name} has no field for this column"
                )
        fields: dict[str, tuple[int, Values]] = {}
        absent: dict[str, Any] = {}
        for field in named.fields:
            field_path = _path_below(path, field.name)
            place = places.get(column_of[field.name])
            if place is not None:
                fields[field.name] = place, self.field_conversion(field.type, columns[place].dataType, field_path)
            elif isinstance(field.type, Union) and NULL in field.type.branches:
                absent[field.name] = _IS_NULL
            elif field.type == NULL:
                absent[field.name] = None
            else:
                raise ValueError(f"{_place_text(field_path)}: no column is written to it, and it may not be null")
        return _struct_conversion(fields, absent)

    def union_conversion(self, kind: Union, column: T.DataType, path: str) -> Values:
        """Return the conversion of a column to values of a union; it may have nulls if the union has null."""
        others = [branch for branch in kind.branches if branch != NULL]
        has_null = NULL in kind.branches
        member_names = [f"member{place}" for place in range(len(others))]
        # A struct with the names of the members is the union that was read as it (spark_types).
        if len(others) > 1 and isinstance(column, T.StructType) and column.fieldNames() == member_names:
            members = []
            for branch, field in zip(others, column, strict=True):
                member = self.type_conversion(branch, field.dataType, _path_below(path, field.name))
                members.append(_tagged_conversion(branch, member))
            values = _member_conversion(members, has_null, path)
        else:
            values = self.branch_conversion(others, kind, column, path)
        if not has_null:
            return lambda array: values(byte_columns.refuse_nulls(array, path, _NO_NULL))
        return lambda array: byte_columns.or_null(array, values, _IS_NULL)

    def branch_conversion(self, others: Sequence[Type], kind: Union, column: T.DataType, path: str) -> Values:
        """Return the conversion of a column to the first of the `others` that matches it."""
        for branch in others:
            try:
                return _tagged_conversion(branch, self.type_conversion(branch, column, path))
            except ValueError:
                if len(others) == 1:  # its message is more precise than the one about the union
                    raise
        raise self.mismatch_error(kind, column, path)


def _place_text(path: str) -> str:
    return f"field {path}" if path else "the schema"


def _path_below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _struct_conversion(fields: dict[str, tuple[int, Values]], absent: dict[str, Any]) -> Values:
    """Return the conversion of structs; `fields` are by name, with the place of the column; `absent` have no column."""

    def convert_structs(array: pa.Array) -> list[Any]:
        columns = array.flatten()
        written = [values(columns[place]) for place, values in fields.values()]
        # Without any column there still is a record for each row.
        rows = zip(*written, strict=True) if written else repeat((), len(array))
        return [dict(zip(fields, row, strict=True), **absent) for row in rows]

    return convert_structs


def _array_conversion(items: Values) -> Values:
    def convert_lists(array: pa.Array) -> list[Any]:
        written = items(byte_columns.list_elements(array))
        return [written[begin:end] for begin, end in pairwise(byte_columns.list_bounds(array))]

    return convert_lists


def _map_conversion(values: Values, path: str) -> Values:
    def convert_maps(array: pa.Array) -> list[Any]:
        keys, items = byte_columns.map_entries(array)
        pairs = list(zip(read_texts(keys, path), values(items), strict=True))
        return [dict(pairs[begin:end]) for begin, end in pairwise(byte_columns.list_bounds(array))]

    return convert_maps


def _tagged_conversion(branch: Type, values: Values) -> Values:
    """Return the conversion of a column to values of one type of a union, each in a pair with the type's name."""
    name = branch_name(branch)
    return lambda array: [(name, value) for value in values(array)]


def _member_conversion(members: list[Values], has_null: bool, path: str) -> Values:
    """Return the conversion of structs to the value of their one member that has one."""

    def convert_members(array: pa.Array) -> list[Any]:
        fields = array.flatten()
        counts = byte_columns.one_of(fields)
        if (counts > 1).any() or (not has_null and (counts == 0).any()):
            raise ValueError(f"field {path}: of the members of a union one has a value")
        columns = [byte_columns.or_null(field, member, None) for field, member in zip(fields, members, strict=True)]
        return [next(filter(None, row), _IS_NULL) for row in zip(*columns, strict=True)]

    return convert_members


def _primitive_conversion(stored: str, logical: Logical | None, column: T.DataType, path: str) -> Values | None:
    """Return the conversion of a column without nulls to a kind of value; None if the column does not match it."""
    kind = kind_of(stored, logical)
    if kind is None or not kind.accepts_column(column, logical):
        return None
    write = kind.value.write
    return lambda array: write(array, path)


def _fixed_conversion(named: Fixed, column: T.DataType, path: str) -> Values | None:
    """Return the conversion of a column without nulls to a fixed; None if the column does not match it."""
    values = _primitive_conversion("fixed", named.logical, column, path)
    # fastavro makes the bytes of a decimal itself.
    if values is None or isinstance(column, T.DecimalType):
        return values

    def convert_bytes(array: pa.Array) -> list[Any]:
        blobs = values(array)
        if any(len(blob) != named.size for blob in blobs):
            raise ValueError(f"field {path}: the schema takes {named.size} bytes, no more and no fewer")
        return blobs

    return convert_bytes


def _enum_conversion(named: Enum, path: str) -> Values:
    """Return the conversion of texts to the symbols of an enum."""
    symbols = {symbol: _symbol_name(position) for position, symbol in enumerate(named.symbols)}

    def convert_symbols(array: pa.Array) -> list[Any]:
        try:
            return [symbols[text] for text in read_texts(array, path)]
        except KeyError:
            raise ValueError(f"field {path}: enum {named.name} has no such symbol") from None

    return convert_symbols


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TIME_UNITS = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}
_PYTHON_TYPES: dict[PrimitiveName, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    **dict.fromkeys(("int", "long"), int),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("bytes", "string"), str),
}
"""The types of plain data that a primitive type accepts. A bool is an int in Python, but not here."""


def encoded_event(event: Any, schema: AvroSchema) -> bytes:
    """Return the bytes of a value of plain data.

    Dates and timestamps may be ISO 8601 text; bytes and fixed are text in UTF-8; all other logical types are written
    as the type that they are made of. A missing field is null. A value of a union has the first type that accepts it.
    Raises ValueError if the schema does not accept the value.
    """
    value = _typed_value(event, schema.root, schema.types, "")
    try:
        return _value_encoder(schema)(value)
    except OverflowError as error:
        raise ValueError(f"the event: {error}") from error


def _typed_value(value: Any, kind: Type, types: Mapping[str, Definition], where: str) -> Any:
    match kind:
        case Primitive():
            return _primitive_value(value, kind, where)
        case Union():
            return _branch_value(value, kind, types, where)
        case Array(items):
            return [_typed_value(item, items, types, where) for item in _expect_type(value, list, where)]
        case MapOf(values):
            pairs = _expect_type(value, dict, where).items()
            return {str(key): _typed_value(item, values, types, where) for key, item in pairs}
    return _named_value(value, types[kind.name], types, where)


def _named_value(value: Any, named: Definition, types: Mapping[str, Definition], where: str) -> Any:
    match named:
        case AvroRecord():
            return _record_value(_expect_type(value, dict, where), named, types, where)
        case Enum(_, symbols):
            if value not in symbols:
                raise _type_fault(where, value, named.name)
            return _symbol_name(symbols.index(value))
    content = str(_expect_type(value, str, where)).encode()
    if len(content) != named.size:
        raise _type_fault(where, value, f"{named.name} of {named.size} bytes")
    return content


def _record_value(
    event: dict[str, Any], record: AvroRecord, types: Mapping[str, Definition], where: str
) -> dict[str, Any]:
    unknown = event.keys() - {field.name for field in record.fields}
    if unknown:
        raise ValueError(f"{record.name} has no field {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    for field in record.fields:
        values[field.name] = _typed_value(event.get(field.name), field.type, types, _path_below(where, field.name))
    return values


def _branch_value(value: Any, kind: Union, types: Mapping[str, Definition], where: str) -> Any:
    for branch in kind.branches:
        try:
            return branch_name(branch), _typed_value(value, branch, types, where)
        except ValueError as fault:
            reason = fault
    raise reason


def _primitive_value(value: Any, kind: Primitive, where: str) -> Any:
    value = _without_logical(value, kind.logical)
    accepted = isinstance(value, _PYTHON_TYPES[kind.name]) and isinstance(value, bool) == (kind.name == "boolean")
    if not accepted:
        raise _type_fault(where, value, kind.name)
    if kind.name in ("float", "double"):
        return float(value)
    if kind.name == "bytes":
        return value.encode()
    return value


def _without_logical(value: Any, logical: Logical | None) -> Any:
    """Return a date or timestamp that is text as its number, and any other value unchanged."""
    if logical is None or not isinstance(value, str):
        return value
    if logical.name == "date":
        return (date.fromisoformat(value) - _EPOCH.date()).days
    unit = _TIME_UNITS.get(logical.name.rpartition("-")[2])
    if "timestamp" not in logical.name or unit is None:
        return value
    # Python 3.10 reads a fraction of three or six digits only.
    in_microseconds = re.sub(r"\.(\d+)", lambda match: f".{match[1][:6]:0<6}", value)
    moment = datetime.fromisoformat(in_microseconds.replace("Z", "+00:00"))
    if not moment.tzinfo:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) // unit


def _expect_type(value: Any, kind: type, where: str) -> Any:
    """Return a value that must have a type; raise ValueError if it has another one."""
    if not isinstance(value, kind):
        raise _type_fault(where, value, kind.__name__)
    return value


def _type_fault(where: str, value: Any, kind: str) -> ValueError:
    return ValueError(f"{where or 'the event'}: {value!r} is no {kind}")
