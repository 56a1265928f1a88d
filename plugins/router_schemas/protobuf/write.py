"""Write columns as Protobuf: the inverse of mapping.

A column is written to the field that is read as it (shape.column_names). Every column has one; a field without a column
is absent. Null is absent: where the field does not tell absent from zero it is read as zero, a null array or map as an
empty one. A null inside of an array or a map has no place in Protobuf and is refused, and so are two members of one
oneof, numbers out of range, names that an enum lacks, texts that are not UTF-8. Fields are written by number, and zero
is left out where it is the same as absent, as google's own encoders write.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pyspark.sql import types as T

from router_schemas import pieces
from router_schemas.protobuf.columns import DEEPEST
from router_schemas.protobuf.mapping import PRESENT
from router_schemas.protobuf.messages import message_of
from router_schemas.protobuf.scalars import LEN, ZERO, scalar, sized, takes, wire_type
from router_schemas.protobuf.shape import SPECIAL, Field, column_names, shape_of
from router_schemas.protobuf.stand_ins import stand_in

if TYPE_CHECKING:
    import pyarrow as pa

    from router_schemas.pieces import Pieces, Write

_NO_NULL = "it has a null inside, which Protobuf cannot hold"


def writer(descriptors: bytes, message: str, columns: T.StructType) -> Write:
    """Return what writes rows, structs of these columns, as messages.

    `descriptors` are a FileDescriptorSet, `message` the full name. Raises ValueError naming the column that has no
    place in the message.
    """
    return _Writers(message_of(descriptors, message)).message(message, columns, "", ())


class _Writers:
    """Make the writers of one message and those inside of it; `path` is that of the column, for messages."""

    def __init__(self, message: Any) -> None:
        self.shape = shape_of(message)
        self.pool = message.file.pool
        for name in self.shape.messages:
            required = [one.name for one in self.pool.FindMessageTypeByName(name).fields if one.is_required]
            if required:
                raise ValueError(f"field {required[0]} of {name} is required, which a column is not; make it optional")

    def message(self, name: str, columns: T.StructType, path: str, above: tuple[str, ...]) -> Write:
        """Return what writes structs as messages, without their length."""
        fields = self.shape.messages[name]
        if not fields and columns.fieldNames() == [PRESENT]:
            return lambda array: [b""] * len(array)
        called = dict(zip(column_names(fields), fields, strict=True))
        parts: list[tuple[Field, int, Write]] = []
        for place, column in enumerate(columns):
            at = f"{path}.{column.name}" if path else column.name
            if column.name not in called:
                raise ValueError(f"field {at}: message {name} has no field for this column")
            parts.append((called[column.name], place, self.field(called[column.name], column, at, (*above, name))))
        parts.sort(key=lambda part: part[0].number)
        return _message([(place, write) for _, place, write in parts], _oneofs(parts), path)

    def field(self, one: Field, column: T.StructField, path: str, above: tuple[str, ...]) -> Write:
        """Return what writes a column, nulls and all, with the field's tag."""
        kind = column.dataType
        if one.key:
            if not isinstance(kind, T.MapType) or not takes(one.key, kind.keyType):
                raise self.misfit(one, kind, path)
            value = self.value(one, kind.valueType, f"{path}{{}}", above)
            write = _map(one, scalar(one.key, path, {}), value, path)
        elif one.repeated:
            if not isinstance(kind, T.ArrayType):
                raise self.misfit(one, kind, path)
            write = _repeated(one, self.value(one, kind.elementType, f"{path}[]", above), path)
        else:
            write = _single(one, self.value(one, kind, path, above))
        return lambda array: pieces.or_null(array, write, b"")

    def value(self, one: Field, column: T.DataType, path: str, above: tuple[str, ...]) -> Write:
        """Return what writes the values of a field, without nulls and tag, with their length."""
        write: Write | None = None
        if one.kind != "message":
            names = {name.encode(): number for name, number in self.shape.enums.get(one.of, ())}
            write = scalar(one.kind, path, names) if takes(one.kind, column) else None
        elif inside := self.inside(one.of, column, path, above):
            write = _sized(inside)
        if write is None:
            raise self.misfit(one, column, path)
        return write

    def inside(self, of: str, column: T.DataType, path: str, above: tuple[str, ...]) -> Write | None:
        """Return what writes messages inside of a message, without their length; None where the column is another."""
        if of not in self.shape.messages:
            return stand_in(SPECIAL[of], of, column, path)
        if of in above or len(above) >= DEEPEST:  # such ones are read as their bytes
            message = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(of))
            return _raw(message, path) if isinstance(column, T.BinaryType) else None
        return self.message(of, column, path, above) if isinstance(column, T.StructType) else None

    def misfit(self, one: Field, column: T.DataType, path: str) -> ValueError:
        """Return the refusal of a column."""
        kind = one.of or one.kind
        has = f"map<{one.key}, {kind}>" if one.key else f"repeated {kind}" if one.repeated else kind
        return ValueError(f"field {path}: the column is {column.simpleString()[:200]}, and the schema has {has}")


def _tag(number: int, wire: int) -> bytes:
    return pieces.varint(number << 3 | wire)


def _sized(write: Write) -> Write:
    return lambda array: sized(write(array))


def _oneofs(parts: list[tuple[Field, int, Write]]) -> list[list[int]]:
    """Return the places of columns that exclude each other."""
    found: dict[str, list[int]] = {}
    for one, place, _ in parts:
        if one.oneof:
            found.setdefault(one.oneof, []).append(place)
    return [places for places in found.values() if len(places) > 1]


def _message(parts: list[tuple[int, Write]], oneofs: list[list[int]], path: str) -> Write:
    def write(array: pa.Array) -> Pieces:
        fields = array.flatten()
        for places in oneofs:
            if len(array) and (pieces.one_of([fields[place] for place in places]) > 1).any():
                raise ValueError(f"field {path or '(the row)'}: two members of one oneof have a value")
        return pieces.joined([write(fields[place]) for place, write in parts], len(array))

    return write


def _single(one: Field, value: Write) -> Write:
    """Return what writes a field that is neither repeated nor a map."""
    wire = wire_type(one.kind)
    tag, zero = _tag(one.number, wire), None if one.presence else ZERO[wire]
    return lambda array: [b"" if written == zero else tag + written for written in value(array)]


def _repeated(one: Field, value: Write, path: str) -> Write:
    """Return what writes arrays: numbers packed, which every parser reads whatever the schema says."""
    wire = wire_type(one.kind)
    tag = _tag(one.number, LEN)

    def write(array: pa.Array) -> Pieces:
        written = value(pieces.full(pieces.elements(array), path, _NO_NULL))
        if wire == LEN:
            written = [tag + each for each in written]
        lists = [b"".join(written[begin:end]) for begin, end in pairwise(pieces.ends(array))]
        if wire == LEN:
            return lists
        return [tag + pieces.varint(len(packed)) + packed if packed else b"" for packed in lists]

    return write


def _map(one: Field, key: Write, value: Write, path: str) -> Write:
    """Return what writes maps, in the order that they have."""
    tags = _tag(1, wire_type(one.key)), _tag(2, wire_type(one.kind))
    tag = _tag(one.number, LEN)

    def write(array: pa.Array) -> Pieces:
        keys, items = pieces.entries(array)
        values = value(pieces.full(items, path, _NO_NULL))
        inside = [tags[0] + a + tags[1] + b for a, b in zip(key(keys), values, strict=True)]
        written = [tag + each for each in sized(inside)]
        return [b"".join(written[begin:end]) for begin, end in pairwise(pieces.ends(array))]

    return write


def _raw(message: Any, path: str) -> Write:
    """Return what passes the bytes of a message on, if they are one."""

    def write(array: pa.Array) -> Pieces:
        found = pieces.blobs(array)
        for one in found:
            try:
                message.FromString(one)
            except DecodeError:
                raise ValueError(f"field {path}: the bytes are no {message.DESCRIPTOR.full_name}") from None
        return found

    return write
