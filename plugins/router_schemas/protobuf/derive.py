"""Make a .proto text for columns: one message that is read back as these columns (model).

| column | Protobuf |
|---|---|
| boolean, float, double, string, binary | optional bool, float, double, string, bytes |
| tinyint, smallint, int / bigint | optional int32 / int64 |
| decimal(20,0) | optional uint64 |
| timestamp | google.protobuf.Timestamp |
| struct | a message inside of the message |
| array, map | repeated, map |

Everything else has to be cast: Protobuf has no dates, no other decimals, no lists of lists. The number of a field is
for ever. So a new version extends the existing one: a field keeps its number, and stays if its column is gone; a new
column gets a number beyond all others. Only a version that this module can write word for word is extended
(`read_derived_message`), because a new version of any other would lose what its author declared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from pyspark.sql import types as T

from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, message_of
from router_schemas.protobuf.kinds import Kind
from router_schemas.protobuf.model import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PROTO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TIMESTAMP = "google.protobuf.Timestamp"
_RESERVED_NUMBERS = range(19_000, 20_000)
"""Numbers that belong to Protobuf itself."""
_KIND_BY_COLUMN = {column: kind for kind in Kind for column in kind.value.declares}
_MAP_KEY_KINDS = (Kind.BOOL, Kind.INT32, Kind.INT64, Kind.STRING)
Form: TypeAlias = "Literal['', 'repeated'] | Kind"


@dataclass(frozen=True)
class Member:
    """A field. `form` is "", repeated, or the kind of map keys."""

    name: str
    number: int
    kind: Kind | Message
    form: Form = ""

    @property
    def type_name(self) -> str:
        """Return the name of its type."""
        if isinstance(self.kind, Message):
            return self.kind.name
        return TIMESTAMP if self.kind is Kind.TIMESTAMP else str(self.kind)


@dataclass(frozen=True)
class Message:
    """A message; the name of the outermost is a full one."""

    name: str
    members: tuple[Member, ...]


def derive_message(columns: T.StructType, name: str, before: Message | None = None) -> Message:
    """Return a message for columns that extends an existing version; `name` is its full name.

    Raises ValueError naming a column that Protobuf has no name or type for, or whose field had another type.
    """
    return _derive_struct(columns, name, "", before)


def text_of(message: Message) -> str:
    """Return the .proto text of a message."""
    package, _, simple = message.name.rpartition(".")
    lines = ['syntax = "proto3";']
    if package:
        lines.append(f"package {package};")
    declaration = _message_lines(replace(message, name=simple), f".{message.name}", "")
    if any(f" .{TIMESTAMP}" in line for line in declaration):
        lines.append('import "google/protobuf/timestamp.proto";')
    lines += declaration
    return "\n".join([*lines, ""])


def read_derived_message(files: bytes, name: str) -> Message | None:
    """Return the message of a version that this module could have written; None for any other."""
    shape = shape_of(message_of(files, name))

    def read_message(full_name: str, called: str) -> Message:
        members = []
        for field in shape.messages[full_name]:
            kind = field.kind or read_message(field.of, field.of.rpartition(".")[2])
            members.append(Member(field.name, field.number, kind, "repeated" if field.repeated else field.key or ""))
        return Message(called, tuple(members))

    try:
        message = read_message(name, name)
        rewritten = compile_schema(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", text_of(message))))
    except (ValueError, RecursionError):
        return None
    # If the same bytes come out, this module has understood everything in the version.
    return message if rewritten == files else None


def _derive_struct(struct: T.StructType, name: str, path: str, before: Message | None) -> Message:
    members: dict[str, Member] = {}
    if before:
        members = {member.name: member for member in before.members}
    types = {member.kind.name for member in members.values() if isinstance(member.kind, Message)}
    taken = {*members, *struct.fieldNames(), *types}
    numbers = _free_numbers([member.number for member in members.values()])
    # Members without a column stay: their numbers must never be used for other data.
    for column in struct:
        column_path = f"{path}.{column.name}".removeprefix(".")
        if not PROTO_NAME.fullmatch(column.name):
            problem = "a name in Protobuf has letters, digits and underscores; rename it in `select`"
            raise ValueError(f"field {column_path}: {problem}")
        old = members.get(column.name)
        number = old.number if old else next(numbers)
        members[column.name] = _derive_member(column, column_path, old, number, taken)
    message = Message(name, tuple(members.values()))
    _check_names(message, path)
    return message


def _free_numbers(taken: list[int]) -> Iterator[int]:
    number = max(taken, default=0)
    while True:
        number += 1
        if number not in _RESERVED_NUMBERS:
            yield number


def _derive_member(column: T.StructField, path: str, old: Member | None, number: int, taken: set[str]) -> Member:
    form: Form = ""
    kind = column.dataType
    if isinstance(kind, T.ArrayType):
        form = "repeated"
        kind = kind.elementType
        path += "[]"
    elif isinstance(kind, T.MapType):
        key = _KIND_BY_COLUMN.get(type(kind.keyType))
        kind = kind.valueType
        path += "{}"
        if key is None or key not in _MAP_KEY_KINDS:
            raise ValueError(f"field {path}: keys of maps in Protobuf are whole numbers, booleans and strings")
        form = key
    if old and old.form != form:
        raise _changed_type(path, old, kind)
    return Member(column.name, number, _derive_type(kind, column.name, path, old, taken), form)


def _derive_type(kind: T.DataType, name: str, path: str, old: Member | None, taken: set[str]) -> Kind | Message:
    if isinstance(kind, T.StructType):
        if old is None:
            return _derive_struct(kind, _claim_name(name, taken), path, None)
        if isinstance(old.kind, Kind):
            raise _changed_type(path, old, kind)
        return _derive_struct(kind, old.kind.name, path, old.kind)
    new = _KIND_BY_COLUMN.get(type(kind))
    if new is None or (isinstance(kind, T.DecimalType) and kind != T.DecimalType(20, 0)):
        problem = f"Protobuf has no type for {kind.simpleString()} there; cast it in `select`, or put it into a struct"
        raise ValueError(f"field {path}: {problem}")
    if old is None or old.kind == new:
        return new
    # The wider of two types holds the values of both.
    if {old.kind, new} == {Kind.INT32, Kind.INT64}:
        return Kind.INT64
    raise _changed_type(path, old, kind)


def _changed_type(path: str, old: Member, kind: T.DataType) -> ValueError:
    before = _with_form(old.form, old.type_name, "")
    return ValueError(f"field {path}: it was {before} and cannot become {kind.simpleString()}; rename it")


def _with_form(form: Form, kind: str, label: str) -> str:
    if isinstance(form, Kind):
        return f"map<{form}, {kind}>"
    return f"{form or label} {kind}".lstrip()


def _claim_name(name: str, taken: set[str]) -> str:
    """Return a name for the message of a field, and take it: fields and messages share one scope."""
    chosen = name[:1].upper() + name[1:]
    while chosen in taken:
        chosen += "_"
    taken.add(chosen)
    return chosen


def _message_lines(message: Message, full_name: str, indent: str) -> list[str]:
    lines = [f"{indent}message {message.name} {{"]
    for member in message.members:
        # Of messages, which Timestamp is as well, absent and empty differ without `optional`.
        label = ""
        kind = member.type_name
        if isinstance(member.kind, Message):
            kind = f"{full_name}.{kind}"
            lines += _message_lines(member.kind, kind, f"{indent}  ")
        elif member.kind is Kind.TIMESTAMP:
            kind = f".{kind}"
        else:
            label = "optional"
        lines.append(f"{indent}  {_with_form(member.form, kind, label)} {member.name} = {member.number};")
    return [*lines, f"{indent}}}"]


def _check_names(message: Message, path: str) -> None:
    """Refuse names that exclude each other: `a_b` and `aB` in JSON, the map `bags` and a type BagsEntry."""
    json_names: dict[str, str] = {}
    declared = {member.name for member in message.members}
    declared |= {member.kind.name for member in message.members if isinstance(member.kind, Message)}
    for member in message.members:
        member_path = f"{path}.{member.name}".removeprefix(".")
        words = [word[:1].upper() + word[1:] for word in member.name.split("_") if word]
        camel = "".join(words)
        json_name = camel if member.name.startswith("_") else member.name[:1] + camel[1:]
        other = json_names.setdefault(json_name, member.name)
        if other is not member.name:
            problem = f"in JSON it has the name of {other}, which Protobuf refuses; rename it"
            raise ValueError(f"field {member_path}: {problem}")
        if isinstance(member.form, Kind):
            entry = f"{camel}Entry"
            if entry in declared:
                raise ValueError(f"field {member_path}: the map needs the name {entry}, which is taken; rename it")
            declared.add(entry)
