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
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas import pieces
from router_schemas.avro.column_names import column_names
from router_schemas.avro.leaves import enum, fixed, long, primitive
from router_schemas.avro.schema import NULL, Array, Choice, Definition, Enum, MapOf, Primitive, Record, Ref
from router_schemas.avro.widening import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from router_schemas.avro.schema import Schema, Type
    from router_schemas.pieces import Pieces, Write

_NO_NULL = "it is null, and the schema has no null there"


def writer(schema: Schema, columns: T.StructType) -> Write:
    """Return what writes rows, structs of these columns, as bare Avro records.

    Raises ValueError naming the column that has no place in the schema, or the field that needs one.
    """
    return _Writers(schema).type(schema.root, columns, "")


class _Writers:
    """Make the writers of one schema; `path` is that of the column, for messages."""

    def __init__(self, schema: Schema) -> None:
        self.types = schema.types

    def field(self, kind: Type, column: T.DataType, path: str) -> Write:
        """Return what writes a column that may have nulls."""
        if isinstance(kind, Choice):
            return self.union(kind, column, path)
        write = self.type(kind, column, path)
        return lambda array: write(pieces.full(array, path, _NO_NULL))

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
        if isinstance(named, Record):
            return self.record(named, column, path) if isinstance(column, T.StructType) else None
        if isinstance(named, Enum):
            return enum(named, path) if isinstance(column, T.StringType) else None
        return fixed(named, column, path)

    def record(self, named: Record, columns: T.StructType, path: str) -> Write:
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
            elif isinstance(field.type, Choice) and NULL in field.type.branches:
                blanks[len(parts) + len(blanks)] = long(field.type.branches.index(NULL))
            elif field.type != NULL:
                raise ValueError(f"{_at(at)}: no column is written to it, and it may not be null")
        return _record(parts, blanks)

    def union(self, kind: Choice, column: T.DataType, path: str) -> Write:
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
            return lambda array: write(pieces.full(array, path, _NO_NULL))
        return lambda array: pieces.or_null(array, write, null)

    def branch(self, others: Sequence[tuple[int, Type]], kind: Choice, column: T.DataType, path: str) -> Write:
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
        return pieces.joined(columns, len(array))

    return write


def _array(items: Write) -> Write:
    def write(array: pa.Array) -> Pieces:
        return _blocks(pieces.ends(array), items(pieces.elements(array)))

    return write


def _map(values: Write, path: str) -> Write:
    def write(array: pa.Array) -> Pieces:
        keys, items = pieces.entries(array)
        named = [long(len(key)) + key for key in pieces.texts(keys, path)]
        return _blocks(pieces.ends(array), pieces.joined([named, values(items)], len(keys)))

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
        counts = pieces.one_of(fields)
        if (counts > 1).any() or (null is None and (counts == 0).any()):
            raise ValueError(f"field {path}: of the members of a union one has a value")
        columns = [pieces.or_null(field, one, b"") for field, one in zip(fields, inner, strict=True)]
        return [one or null or b"" for one in pieces.joined(columns, len(array))]

    return write
