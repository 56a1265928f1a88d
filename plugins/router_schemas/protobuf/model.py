"""Model a message on the wire, whichever syntax its .proto has, and as columns of Arrow and Spark.

proto2, proto3 and editions come down to the same few facts per field. As descriptors a shape is one proto3 file in
which every message and enum stands at the top: `optional` keeps presence, enums are open, strings are UTF-8. Therefore

- `required` is forgotten (a version that makes a field required would refuse all older records), and so are defaults:
  an absent field of proto2 is null;
- a number that a closed enum of proto2 does not have is kept as it is, not treated as unknown;
- extensions that the files declare become fields of the message they extend;
- a field that is a group (proto2, DELIMITED in editions) is left out: its bytes count as those of an unknown field.

As columns a message is a tree, cut off where a table cannot follow. Every path of fields is a column of its own, so a
message that contains itself has no end: a field that returns to a message further up its own path holds the raw bytes,
as does everything below `MAX_MESSAGE_LEVELS` messages.

docs/reference/formats.md lists the columns, and `kinds` describes each kind of value.

A value is null if the field tells absent from zero (`optional`, messages, oneofs, all of proto2), else zero. Names
that differ in case only are one name to Delta: the field that came first keeps it, the others get `_` and their
number. An enum of proto2 without a zero shows one as `_0`. Field names have letters, digits and underscores only,
because google's descriptor pool refuses any other, so none is a name that Delta refuses. Source of the JSON and of the
ranges: protobuf.dev, "ProtoJSON" and the comments of timestamp.proto and duration.proto.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

from router import to_spark_columns
from router_schemas.protobuf.descriptors import well_known
from router_schemas.protobuf.kinds import LEN, SPECIAL_FILES, SPECIAL_KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import types as T

_FIELD_PROTO = descriptor_pb2.FieldDescriptorProto
_MERGED_FILE = "merged"


@dataclass(frozen=True)
class MessageField:
    """A field of a message.

    `of` is the full name of its message or enum; `kind` is None for a message that is a struct. `key` is the kind of a
    map's keys, with `kind` and `of` for its values; None if the field is no map. `presence`: absent differs from zero.
    `version` is the label of the version that declared it last, for conflicts only.
    """

    name: str
    number: int
    kind: Kind | None
    of: str = ""
    key: Kind | None = None
    repeated: bool = False
    presence: bool = False
    oneof: str = ""
    version: str = field(default="", compare=False)

    @property
    def wire(self) -> int:
        """Return the wire type of its values."""
        return LEN if self.kind is None or is_message(self.kind, self.of) else self.kind.value.wire

    @property
    def type_text(self) -> str:
        """Return the kind and name of its values, for messages."""
        kind = "message" if is_message(self.kind, self.of) else self.kind
        return f"{kind} {self.of}".rstrip()


def is_message(kind: Kind | None, of: str) -> bool:
    """Return whether values are messages on the wire, also those that are shown as one value."""
    return bool(of) and kind is not Kind.ENUM


@dataclass(frozen=True)
class MessageShape:
    """A message with all that it reaches: full name -> fields, and full name -> (name, number) of enums.

    `groups` are the full names of fields that are left out, because their values are groups.
    """

    root: str
    messages: dict[str, tuple[MessageField, ...]]
    enums: dict[str, tuple[tuple[str, int], ...]]
    groups: tuple[str, ...] = ()


def shape_of(message: Any, version: str = "") -> MessageShape:
    """Return the shape of a message, given its descriptor, without groups; raise ValueError for a message set."""
    groups: list[str] = []
    messages: dict[str, tuple[MessageField, ...]] = {}
    enums: dict[str, tuple[tuple[str, int], ...]] = {}
    waiting = [message]
    while waiting:
        reached = waiting.pop()
        if reached.full_name in messages:
            continue
        if reached.GetOptions().message_set_wire_format:
            raise ValueError(f"{reached.full_name}: a message set of proto2 cannot be decoded; use an ordinary message")
        members = []
        for member in _fields_and_extensions(reached):
            # A group ends with a tag, and has no length: its bytes are those of an unknown field, which parsers skip.
            if member.type == _FIELD_PROTO.TYPE_GROUP:
                groups.append(member.full_name)
            else:
                members.append(member)
        messages[reached.full_name] = tuple(_read_field(member, version) for member in members)
        for member in members:
            value = _value_field(member)
            if value.enum_type:
                enums[value.enum_type.full_name] = tuple((name.name, name.number) for name in value.enum_type.values)
            elif value.message_type and not _is_special(value.message_type):
                waiting.append(value.message_type)
    return MessageShape(message.full_name, messages, enums, tuple(groups))


def descriptors_of(shape: MessageShape) -> bytes:
    """Return a FileDescriptorSet of a shape; the last file holds it, with the root as its first message.

    Names that clash in their scope are changed, and fields get the names of their columns (see `column_names`).
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{_MERGED_FILE}.proto", package=_MERGED_FILE, syntax="proto3")
    taken: set[str] = set()
    types: dict[str, str] = {}
    for name in dict.fromkeys((shape.root, *shape.messages, *shape.enums)):
        types[name] = _claim_name(name.replace(".", "_"), taken)
    for name, type_name in types.items():
        message = file.message_type.add(name=type_name)
        if name in shape.messages:
            _declare_fields(message, shape.messages[name], types)
        else:
            # In a message of its own, because the names of an enum's values belong to the scope around it.
            _declare_enum(message.enum_type.add(name="Value"), shape.enums[name])
    file.dependency.extend(SPECIAL_FILES)
    files = [*(well_known(name) for name in SPECIAL_FILES), file]
    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


def column_names(fields: Iterable[MessageField]) -> list[str]:
    """Return the name of each field as a column: its own, or with `_` and its number if an earlier field has it.

    Delta and Spark fold names to one case, so names that differ in case only are the same name.
    """
    taken: set[str] = set()
    names = []
    for member in fields:
        name = member.name
        if name.lower() in taken:
            name += f"_{member.number}"
        names.append(_claim_name(name, taken))
    return names


def _fields_and_extensions(message: Any) -> list[Any]:
    """Return the fields in their order, then the extensions of the same files."""
    members = list(message.fields)
    if message.is_extendable:
        members += sorted(message.file.pool.FindAllExtensions(message), key=lambda extension: extension.number)
    return members


def _read_field(member: Any, version: str) -> MessageField:
    value = _value_field(member)
    key = None
    if value is not member:
        key = _kind_of(member.message_type.fields_by_name["key"])
    # A field that is alone in its oneof is optional and nothing more.
    oneof = ""
    if member.containing_oneof and len(member.containing_oneof.fields) > 1:
        oneof = member.containing_oneof.name
    of = value.message_type or value.enum_type
    kind = None
    if not value.message_type:
        kind = _kind_of(value)
    elif _is_special(value.message_type):
        kind = SPECIAL_KINDS[of.full_name]
    return MessageField(
        name=member.name,
        number=member.number,
        kind=kind,
        of=of.full_name if of else "",
        key=key,
        repeated=member.is_repeated and not key,
        presence=member.has_presence,
        oneof=oneof,
        version=version,
    )


def _value_field(member: Any) -> Any:
    """Return the field that holds the values: the member itself, or that of a map's entry."""
    entry = member.message_type
    if entry and entry.GetOptions().map_entry:
        return entry.fields_by_name["value"]
    return member


def _is_special(message: Any) -> bool:
    return message.full_name in SPECIAL_KINDS and bool(message.file.name.startswith("google/protobuf/"))


def _kind_of(member: Any) -> Kind:
    """Return the kind of a field that holds a scalar or an enum, given its descriptor."""
    return Kind[_FIELD_PROTO.Type.Name(member.type).removeprefix("TYPE_")]


def _declare_fields(message: Any, fields: tuple[MessageField, ...], types: dict[str, str]) -> None:
    names = column_names(fields)
    oneofs = list(dict.fromkeys(member.oneof for member in fields if member.oneof))
    # Names of oneofs and entries share the scope of the fields, and after a merge any of them may clash.
    scope = {name.lower() for name in names}
    for index in range(len(oneofs)):
        message.oneof_decl.add(name=_claim_name(f"oneof_{index}", scope))
    for name, member in zip(names, fields, strict=True):
        # The default JSON name of two columns may be the same, which proto3 refuses.
        declared = message.field.add(name=name, json_name=name, number=member.number, label=_FIELD_PROTO.LABEL_OPTIONAL)
        if member.repeated or member.key:
            declared.label = _FIELD_PROTO.LABEL_REPEATED
        if member.key:
            _declare_map(message, declared, member, _claim_name(f"Entry{member.number}", scope), types)
            continue
        _declare_type(declared, member.kind, member.of, types)
        if member.oneof:
            declared.oneof_index = oneofs.index(member.oneof)
        elif member.presence and not is_message(member.kind, member.of):
            # `optional` of proto3 is a oneof with this one member.
            declared.oneof_index = len(message.oneof_decl)
            declared.proto3_optional = True
            message.oneof_decl.add(name=_claim_name(f"_{name}", scope))


def _declare_map(message: Any, declared: Any, member: MessageField, name: str, types: dict[str, str]) -> None:
    """Declare a map, which is a repeated message of its entries, called `name`."""
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    _declare_type(entry.field.add(name="key", number=1, label=_FIELD_PROTO.LABEL_OPTIONAL), member.key, "", types)
    _declare_type(
        entry.field.add(name="value", number=2, label=_FIELD_PROTO.LABEL_OPTIONAL), member.kind, member.of, types
    )
    declared.type = _FIELD_PROTO.TYPE_MESSAGE
    declared.type_name = f".{_MERGED_FILE}.{message.name}.{name}"


def _declare_type(declared: Any, kind: Kind | None, of: str, types: dict[str, str]) -> None:
    if kind is None or is_message(kind, of):
        declared.type = _FIELD_PROTO.TYPE_MESSAGE
        declared.type_name = f".{_MERGED_FILE}.{types[of]}" if of in types else f".{of}"
        return
    declared.type = _FIELD_PROTO.Type.Value(f"TYPE_{kind.name}")
    if kind is Kind.ENUM:
        declared.type_name = f".{_MERGED_FILE}.{types[of]}.Value"


def _declare_enum(declared: Any, values: tuple[tuple[str, int], ...]) -> None:
    """Declare an enum with the first name of each number; an open one must have a zero, and first."""
    names: dict[int, str] = {}
    for name, number in values:
        names.setdefault(number, name)
    zero = names.pop(0, None) or _claim_name("_0", {name.lower() for name in names.values()})
    declared.value.add(name=zero, number=0)
    for number, name in names.items():
        declared.value.add(name=name, number=number)


def _claim_name(name: str, taken: set[str]) -> str:
    """Return a name that none of the taken equals, whatever the case, and take it."""
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name


MAX_MESSAGE_LEVELS = 16
"""Messages within messages; Arrow's own format ends at 64 levels, and a map of messages takes three."""
MAX_MESSAGE_COLUMNS = 10_000
"""Columns that a message may have in all."""


@dataclass(frozen=True)
class Column(MessageField):
    """A column: a field, of which `kind` is that of the column. It is None for a struct, which has `columns`.

    `values` are the (name, number) pairs of an enum.
    """

    columns: tuple[Column, ...] = ()
    values: tuple[tuple[str, int], ...] = ()


def columns_of(shape: MessageShape) -> tuple[Column, ...]:
    """Return the columns of a message; raise ValueError if it has none or more than `MAX_MESSAGE_COLUMNS`."""
    if not shape.messages[shape.root]:
        raise ValueError(f"{shape.root}: the message has no fields, so there is nothing to decode")
    return tuple(_Layout(shape).lay_out_columns(shape.root, ()))


class _Layout:
    """The layout of one message as columns, which are counted."""

    def __init__(self, shape: MessageShape) -> None:
        self.shape = shape
        self.count = 0

    def lay_out_columns(self, message: str, above: tuple[str, ...]) -> Iterator[Column]:
        """Yield the columns of a message below the messages `above`."""
        fields = self.shape.messages[message]
        path = (*above, message)
        for member, name in zip(fields, column_names(fields), strict=True):
            self.count += 1
            if self.count > MAX_MESSAGE_COLUMNS:
                raise ValueError(f"{self.shape.root}: more than {MAX_MESSAGE_COLUMNS} columns, nested ones counted")
            kind = column_kind(self.shape, member, path)
            columns: tuple[Column, ...] = ()
            if kind is None:
                columns = tuple(self.lay_out_columns(member.of, path))
            yield Column(
                name=name,
                number=member.number,
                kind=kind,
                of=member.of,
                key=member.key,
                repeated=member.repeated,
                presence=member.presence,
                columns=columns,
                values=self.shape.enums.get(member.of, ()),
            )


def column_kind(shape: MessageShape, field: MessageField, above: tuple[str, ...]) -> Kind | None:
    """Return the kind of a field's column, below the messages `above`; None for a struct."""
    if field.kind is not None:
        return field.kind
    # Such a message has no end as columns, or Arrow cannot carry it.
    if field.of in above or len(above) >= MAX_MESSAGE_LEVELS:
        return Kind.RAW
    return None if shape.messages[field.of] else Kind.EMPTY


def arrow_struct(columns: Iterable[Column]) -> pa.StructType:
    """Return the Arrow type of an event; every field may be null."""
    return pa.struct([pa.field(column.name, arrow_type(column)) for column in columns])


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column."""
    if column.key:
        return pa.map_(column.key.value.arrow, pa.field("value", value_type(column)))
    if column.repeated:
        return pa.list_(pa.field("element", value_type(column)))
    return value_type(column)


def value_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column's values: the column's own, an array's elements or a map's values."""
    if column.kind is None:
        return arrow_struct(column.columns)
    return column.kind.value.arrow


def spark_struct(struct: pa.StructType) -> T.StructType:
    """Return the Spark type of an event's Arrow type. Needs no session."""
    return to_spark_columns(pa.schema(list(struct)))
