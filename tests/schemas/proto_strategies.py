"""Make Protobuf schemas and messages, and say what a row of them is, by google's own decoder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any

from google.protobuf import descriptor_pb2, json_format, message_factory
from hypothesis import strategies as st

from router_schemas.protobuf.descriptors import message_of, well_known

PROTO = descriptor_pb2.FieldDescriptorProto
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
IMPORTS = [f"google/protobuf/{stem}.proto" for stem in ("timestamp", "duration", "struct", "wrappers", "any")]
SIGNED = ["int32", "int64", "sint32", "sint64", "sfixed32", "sfixed64"]
SCALARS = ["double", "float", "bool", "string", "bytes", "uint32", "uint64", "fixed32", "fixed64", *SIGNED]
WRAPPERS = [f"google.protobuf.{name}Value" for name in ("Double", "Int64", "UInt64", "UInt32", "Bool", "String")]
KNOWN = [*(f"google.protobuf.{name}" for name in ("Timestamp", "Duration", "Struct", "Any")), *WRAPPERS]
KEYS = ["string", "int32", "uint32", "uint64", "sint64", "fixed32", "bool"]
NAMES = ["id", "Id", "ID", "name", "player_id", "playerId", "a", "A", "value", "key", "from", "_x", "f1", "f2"]
EVENT = "game.v1.Event"


KINDS = [*SCALARS, *KNOWN, *["game.v1.Color"] * 3]
BELOW = {
    "Event": ["game.v1.Part", "game.v1.Leaf", "game.v1.Event", "game.v1.Nothing"],
    "Part": ["game.v1.Leaf", "game.v1.Part"],
    "Leaf": [],
    "Nothing": [],
}
NUMBERS = [1, 2, 3, 15, 16, 17, 100, 2**28, *range(200, 220)]


@dataclass(frozen=True)
class Spec:
    """A field of a schema; `form` is "", optional, repeated, oneof, or the kind of a map's keys."""

    name: str
    number: int
    kind: str
    form: str = ""


Schema = dict[str, list[Spec]]


@st.composite
def specs(draw: st.DrawFn, message: str, name: str, numbers: list[int]) -> Spec:
    """Draw a field with one of the numbers."""
    kind = draw(st.sampled_from([*KINDS, *BELOW[message] * 3]))
    form = draw(st.sampled_from(["", "", "optional", "repeated", "oneof", draw(st.sampled_from(KEYS))]))
    return Spec(name, draw(st.sampled_from(numbers)), kind, form)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Draw the fields of a schema's messages; `Event` is the first of them."""
    schema: Schema = {}
    for message in BELOW:
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
        fields = schema.setdefault(message, [])
        for name in names if message != "Nothing" else []:
            taken = {one.number for one in fields}
            fields.append(draw(specs(message, name, [number for number in NUMBERS if number not in taken])))
    return schema


def descriptors_of(schema: Schema, syntax: str = "proto3") -> bytes:
    """Return the descriptor set of a schema."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="game.v1", syntax=syntax, dependency=IMPORTS)
    color = file.enum_type.add(name="Color")
    for name, number in (("NONE", 0), ("RED", 1), ("BLUE", 7), ("COLD", -3)):
        color.value.add(name=name, number=number)
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        if any(one.form == "oneof" for one in fields):
            message.oneof_decl.add(name="choice")
        for one in fields:
            declare(message, one, syntax)
    return described(file)


def declare(message: Any, one: Spec, syntax: str) -> None:
    """Add a field to a message."""
    field = message.field.add(name=one.name, number=one.number, json_name=f"j{one.number}", label=PROTO.LABEL_OPTIONAL)
    set_type(field, one.kind)
    if one.form in KEYS:
        entry = message.nested_type.add(name=f"Of{one.number}Entry")
        entry.options.map_entry = True
        set_type(entry.field.add(name="key", number=1, label=PROTO.LABEL_OPTIONAL), one.form)
        set_type(entry.field.add(name="value", number=2, label=PROTO.LABEL_OPTIONAL), one.kind)
        set_type(field, f"game.v1.{message.name}.{entry.name}")
    if one.form in KEYS or one.form == "repeated":
        field.label = PROTO.LABEL_REPEATED
    elif one.form == "oneof":
        field.oneof_index = 0
    elif one.form == "optional" and syntax == "proto3":
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"X{one.number}")


def set_type(field: Any, kind: str) -> None:
    """Set the type of a field."""
    if "." not in kind:
        field.type = PROTO.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = PROTO.TYPE_ENUM if kind.endswith("Color") else PROTO.TYPE_MESSAGE
        field.type_name = f".{kind}"


def described(*files: Any) -> bytes:
    """Return a descriptor set of files and the well-known ones."""
    return bytes(descriptor_pb2.FileDescriptorSet(file=[*map(well_known, IMPORTS), *files]).SerializeToString())


@lru_cache(maxsize=256)
def descriptor_of(descriptors: bytes, name: str) -> Any:
    """Return google's descriptor of a message, or None."""
    try:
        return message_of(descriptors, name)
    except ValueError:
        return None


@lru_cache(maxsize=256)
def reached(descriptors: bytes) -> set[str]:
    """Return the full names of the messages that an event leads to."""
    found: set[str] = set()
    waiting = [descriptor_of(descriptors, EVENT)]
    while waiting:
        message = waiting.pop()
        if message.full_name not in found:
            found.add(message.full_name)
            waiting += [field.message_type for field in message.fields if field.message_type]
    return found


def class_of(descriptors: bytes, name: str = EVENT) -> Any:
    """Return google's class of a message."""
    return message_factory.GetMessageClass(descriptor_of(descriptors, name))


INTEGERS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), st.integers(-(2**31), 2**31 - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys(("uint32", "fixed32"), st.integers(0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), st.integers(0, 2**64 - 1)),
}
VALUES = {
    **{kind: st.sampled_from([0, 1]) | numbers for kind, numbers in INTEGERS.items()},
    "double": st.floats(),
    "float": st.floats(width=32),
    "bool": st.booleans(),
    "string": st.text(max_size=4),
    "bytes": st.binary(max_size=4),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=3), below, max_size=2),
    max_leaves=4,
)


@st.composite
def messages(draw: st.DrawFn, kind: Any, depth: int = 3) -> Any:
    """Draw a message of a class."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if depth and draw(st.integers(0, 3)):
            fill(draw, made, field, depth - 1)
    return made


def fill(draw: st.DrawFn, made: Any, field: Any, depth: int) -> None:
    """Give a field of a message a drawn value."""
    entry = field.message_type if field.message_type and field.message_type.GetOptions().map_entry else None
    if entry:
        key, value = entry.fields
        for one in draw(st.lists(VALUES[kind_of(key)], max_size=2)):
            if value.message_type:
                getattr(made, field.name)[one].MergeFrom(draw(message_values(value, depth)))
            else:
                getattr(made, field.name)[one] = draw(scalar_values(value))
    elif field.is_repeated:
        values = message_values(field, depth) if field.message_type else scalar_values(field)
        getattr(made, field.name).extend(draw(st.lists(values, max_size=3)))
    elif field.message_type:
        getattr(made, field.name).CopyFrom(draw(message_values(field, depth)))
    else:
        setattr(made, field.name, draw(scalar_values(field)))


def scalar_values(field: Any) -> st.SearchStrategy[Any]:
    """Return the values of a field that holds no message; enums of proto3 may have numbers without a name."""
    if not field.enum_type:
        return VALUES[kind_of(field)]
    known = st.sampled_from([value.number for value in field.enum_type.values])
    return known if field.enum_type.is_closed else known | st.integers(-(2**31), 2**31 - 1)


def message_values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    """Return the values of a field that holds a message."""
    kind = message_factory.GetMessageClass(field.message_type)
    name = field.message_type.full_name.removeprefix("google.protobuf.")
    if name == "Timestamp":
        seconds = st.integers(-62_135_596_800, 253_402_300_799)
        return st.builds(kind, seconds=seconds, nanos=st.integers(0, 999_999_999))
    if name == "Duration":
        spans = st.tuples(st.integers(0, 315_576_000_000 - 1), st.integers(0, 999_999_999), st.sampled_from([1, -1]))
        return spans.map(lambda span: kind(seconds=span[0] * span[2], nanos=span[1] * span[2]))
    if name == "Struct":
        objects = st.dictionaries(st.text(max_size=3), JSON, max_size=2)
        return objects.map(lambda value: json_format.ParseDict(value, kind()))
    return messages(kind, max(depth, 1) if name.endswith("Value") else depth)


def kind_of(field: Any) -> str:
    """Return the type of a field as .proto files name it."""
    return str(PROTO.Type.Name(field.type)).removeprefix("TYPE_").lower()


def row_of(message: Any, *versions: bytes) -> dict[str, Any]:
    """Return the event of a message that google parsed, by the documented mapping.

    `versions` are descriptors, oldest first: a field that the message's own version lacks is null or zero.
    """
    return Oracle(versions).row(message, message.DESCRIPTOR.full_name, ())


class Oracle:
    """Say what events are, from google's descriptors alone."""

    def __init__(self, versions: tuple[bytes, ...]) -> None:
        self.versions = versions

    def types(self, name: str) -> list[Any]:
        """Return the descriptors of a message, oldest first, where an event could have one."""
        return [descriptor_of(version, name) for version in self.versions if name in reached(version)]

    def row(self, message: Any, name: str, above: tuple[str, ...]) -> dict[str, Any]:
        """Return the columns of a message."""
        fields = {field.number: field for kind in self.types(name) for field in kind.fields}
        if not fields:
            return {"_present": True}
        row: dict[str, Any] = {}
        for field in fields.values():
            taken = {column.lower() for column in row}
            column = field.name if field.name.lower() not in taken else f"{field.name}_{field.number}"
            own = message.DESCRIPTOR.fields_by_number.get(field.number)
            row[column] = self.column(message, own, field, (*above, name))
        return row

    def column(self, message: Any, own: Any, field: Any, above: tuple[str, ...]) -> Any:
        """Return a column; `own` is the field in the version that wrote the message."""
        if field.message_type and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            key = field.message_type.fields_by_name["key"]
            held = getattr(message, own.name) if own else {}
            return Map((self.value(one, key, above), self.value(held[one], value, above)) for one in held)
        if field.is_repeated:
            return [self.value(one, field, above) for one in (getattr(message, own.name) if own else [])]
        if field.has_presence:
            return self.value(getattr(message, own.name), field, above) if own and message.HasField(own.name) else None
        return self.value(getattr(message, own.name) if own else field.default_value, field, above)

    def value(self, value: Any, field: Any, above: tuple[str, ...]) -> Any:
        """Return one value."""
        if field.message_type:
            return self.message(value, field.message_type.full_name, above)
        if field.enum_type:
            names = {one.number: one.name for one in reversed(field.enum_type.values)}
            return names.get(value, str(value))
        return Decimal(value) if kind_of(field) in ("uint64", "fixed64") else value

    def message(self, value: Any, name: str, above: tuple[str, ...]) -> Any:
        """Return what stands for a message."""
        short = name.removeprefix("google.protobuf.")
        if name in above:
            return Raw(value)
        if short in (name, "Any"):
            return self.row(value, name, above)
        if short == "Timestamp":
            return value.seconds * 1_000_000 + value.nanos // 1000
        if short == "Duration":
            return value.ToMicroseconds()
        if short == "Struct":
            return Json(json_format.MessageToDict(value))
        return Decimal(value.value) if short == "UInt64Value" else value.value


class Map(list[Any]):
    """A map, in any order."""


class Json(dict[str, Any]):
    """A value that a column has as JSON."""


class Raw:
    """A message that a column has as its bytes."""

    def __init__(self, message: Any) -> None:
        self.message = message


def same(expected: Any, found: Any) -> bool:
    """Say whether a column holds what is expected; NaN is NaN, and -0.0 is not 0.0."""
    if isinstance(expected, Json):
        return bool(expected == json.loads(found))
    if isinstance(expected, Raw):
        return bool(expected.message == type(expected.message).FromString(found)) or "nan" in str(expected.message)
    if isinstance(expected, Map):
        pairs = [sorted(some, key=lambda pair: str(pair[0])) for some in (expected, found)]
        return len(expected) == len(found) and all(
            same(a, c) and same(b, d) for (a, b), (c, d) in zip(*pairs, strict=True)
        )
    if isinstance(expected, dict):
        return list(expected) == list(found) and all(same(expected[name], found[name]) for name in expected)
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(same, expected, found))
    if isinstance(found, datetime):
        found = (found - EPOCH) // timedelta(microseconds=1)
    return type(expected) is type(found) and repr(expected) == repr(found)
