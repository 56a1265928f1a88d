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
for ever, so columns are numbered on from a version that there is: a field keeps its number and is kept when its column
is gone, a new column gets a number beyond all others. Only a version that this module can write word for word is taken
further (`known`), for it would otherwise lose what others declared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import descriptors, message_of
from router_schemas.protobuf.model import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TIMESTAMP = "google.protobuf.Timestamp"
_RESERVED = range(19_000, 20_000)
"""Numbers that belong to Protobuf itself."""
_WIDER = {"int32": "int64"}
_KINDS: dict[type[T.DataType], str] = {
    T.BooleanType: "bool",
    T.ByteType: "int32",
    T.ShortType: "int32",
    T.IntegerType: "int32",
    T.LongType: "int64",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "bytes",
    T.TimestampType: TIMESTAMP,
}
_KEYS = ("bool", "int32", "int64", "string")


@dataclass(frozen=True)
class Member:
    """A field: of a scalar `kind`, a TIMESTAMP, or a message. `form` is "", repeated, or the kind of map keys."""

    name: str
    number: int
    kind: str | Message
    form: str = ""


@dataclass(frozen=True)
class Message:
    """A message; the name of the outermost is a full one."""

    name: str
    members: tuple[Member, ...]


def derived(columns: T.StructType, name: str, before: Message | None = None) -> Message:
    """Return a message for columns that continues an existing version; `name` is its full name.

    Raises ValueError naming the column that Protobuf has no name or type for, or whose field had another type.
    """
    return _message(columns, name, "", before)


def text_of(message: Message) -> str:
    """Return the .proto text of a message."""
    package, _, simple = message.name.rpartition(".")
    lines = ['syntax = "proto3";']
    lines += [f"package {package};"] if package else []
    lines += ['import "google/protobuf/timestamp.proto";'] if _has_times(message) else []
    lines += _declared(replace(message, name=simple), f".{message.name}", "")
    return "\n".join([*lines, ""])


def known(files: bytes, name: str) -> Message | None:
    """Return the message of a version that this module could have written; None for one that it could not."""
    shape = shape_of(message_of(files, name))

    def message(full: str, called: str) -> Message:
        members = []
        for one in shape.messages[full]:
            form = "repeated" if one.repeated else one.key
            inner = message(one.of, one.of.rpartition(".")[2]) if one.of in shape.messages else None
            members.append(Member(one.name, one.number, inner or one.of or one.kind, form))
        return Message(called, tuple(members))

    try:
        found = message(name, name)
        again = descriptors(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", text_of(found))))
    except (ValueError, RecursionError):
        return None
    return found if again == files else None


def _message(struct: T.StructType, name: str, path: str, before: Message | None) -> Message:
    olds = {one.name: one for one in before.members} if before else {}
    taken = {*olds, *struct.fieldNames(), *(one.kind.name for one in olds.values() if isinstance(one.kind, Message))}
    numbers = _numbers(one.number for one in olds.values())
    found: dict[str, Member] = dict(olds)
    for column in struct:
        at = f"{path}.{column.name}" if path else column.name
        if not NAME.fullmatch(column.name):
            what = "a name in Protobuf has letters, digits and underscores; rename it in `select`"
            raise ValueError(f"field {at}: {what}")
        old = olds.get(column.name)
        found[column.name] = _member(column, at, old, old.number if old else next(numbers), taken)
    made = Message(name, tuple(found.values()))
    _check_names(made, path)
    return made


def _numbers(taken: Iterable[int]) -> Iterator[int]:
    number = max(taken, default=0)
    while True:
        number += 1
        if number not in _RESERVED:
            yield number


def _member(column: T.StructField, path: str, old: Member | None, number: int, taken: set[str]) -> Member:
    form, kind = "", column.dataType
    if isinstance(kind, T.ArrayType):
        form, kind, path = "repeated", kind.elementType, f"{path}[]"
    elif isinstance(kind, T.MapType):
        form, path = _KINDS.get(type(kind.keyType), ""), f"{path}{{}}"
        if form not in _KEYS:
            raise ValueError(f"field {path}: keys of maps in Protobuf are whole numbers, booleans and strings")
        kind = kind.valueType
    if old and old.form != form:
        raise ValueError(f"field {path}: it was {_said(old)} and cannot become {kind.simpleString()}; rename it")
    return Member(column.name, number, _kind(kind, column.name, path, old, taken), form)


def _kind(kind: T.DataType, name: str, path: str, old: Member | None, taken: set[str]) -> str | Message:
    before = old.kind if old else None
    changed = f"field {path}: it was {_said(old) if old else ''} and cannot become {kind.simpleString()}; rename it"
    if isinstance(kind, T.StructType):
        if isinstance(before, str):
            raise ValueError(changed)
        return _message(kind, before.name if before else _claimed(name, taken), path, before)
    new = "uint64" if kind == T.DecimalType(20, 0) else _KINDS.get(type(kind))
    if new is None:
        what = f"Protobuf has no type for {kind.simpleString()} there; cast it in `select`, or put it into a struct"
        raise ValueError(f"field {path}: {what}")
    if isinstance(before, Message):
        raise ValueError(changed)
    if before not in (None, new, _WIDER.get(new)) and _WIDER.get(before or "") != new:
        raise ValueError(changed)
    return before if before == _WIDER.get(new) and before else new


def _said(old: Member) -> str:
    kind = old.kind.name if isinstance(old.kind, Message) else old.kind
    return f"{old.form} {kind}" if old.form == "repeated" else f"map<{old.form}, {kind}>" if old.form else kind


def _claimed(name: str, taken: set[str]) -> str:
    """Return a name for the message of a field, and take it: fields and messages share one scope."""
    chosen = name[:1].upper() + name[1:]
    while chosen in taken:
        chosen += "_"
    taken.add(chosen)
    return chosen


def _has_times(message: Message) -> bool:
    kinds = [one.kind for one in message.members]
    return any(kind == TIMESTAMP if isinstance(kind, str) else _has_times(kind) for kind in kinds)


def _declared(message: Message, full: str, indent: str) -> list[str]:
    lines = [f"{indent}message {message.name} {{"]
    for one in message.members:
        inner = one.kind if isinstance(one.kind, Message) else None
        if inner:
            lines += _declared(inner, f"{full}.{inner.name}", f"{indent}  ")
        kind = f"{full}.{inner.name}" if inner else f".{TIMESTAMP}" if one.kind == TIMESTAMP else one.kind
        label = {"": "" if inner or one.kind == TIMESTAMP else "optional ", "repeated": "repeated "}.get(one.form)
        form = f"{label}{kind}" if label is not None else f"map<{one.form}, {kind}>"
        lines.append(f"{indent}  {form} {one.name} = {one.number};")
    return [*lines, f"{indent}}}"]


def _check_names(message: Message, path: str) -> None:
    """Refuse names that exclude each other: `a_b` and `aB` in JSON, the map `bags` and a type BagsEntry."""
    camels: dict[str, str] = {}
    types = {one.kind.name for one in message.members if isinstance(one.kind, Message)}
    declared = {one.name for one in message.members} | types
    for one in message.members:
        at = f"{path}.{one.name}" if path else one.name
        words = [word[:1].upper() + word[1:] for word in one.name.split("_") if word]
        camel = "".join(words) if one.name.startswith("_") else one.name[:1] + "".join(words)[1:]
        other = camels.setdefault(camel, one.name)
        if other is not one.name:
            raise ValueError(f"field {at}: in JSON it has the name of {other}, which Protobuf refuses; rename it")
        if one.form in _KEYS:
            entry = f"{''.join(words)}Entry"
            if entry in declared:
                raise ValueError(f"field {at}: the map needs the name {entry}, which is taken; rename it")
            declared.add(entry)
