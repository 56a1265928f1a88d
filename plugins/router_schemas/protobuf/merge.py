"""Merge the versions of one message into one that reads them all.

Fields are the same when their number is; the newest name wins, and a field that a version lacks keeps its place, so
that old records keep its data. Columns are in the order in which the versions brought them. Types with one name are
one type, and so are types of two names that the same field has had.

| change of a field | reads |
|---|---|
| int32 to int64, sint32 to sint64, int32 or uint32 to the other or to int64 | as the wider of the two |
| its name; a oneof around it, if absent was null before | the same |
| a value of its enum added, removed or renamed | the same |
| any other type, also if the wire type is the same: the values or the column would be wrong | refused |
| repeated, map or neither to another of these; the keys of a map | refused |
| absent is zero to absent is null (`optional`, proto2, a oneof), or back: null is not zero | refused |
| a name of its enum that takes another number: old records would show the wrong name | refused |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from router_schemas.model import SchemaConflict
from router_schemas.protobuf.descriptors import message_of
from router_schemas.protobuf.kinds import WIDER_KINDS
from router_schemas.protobuf.model import MessageField, MessageShape, descriptors_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from router_schemas.protobuf.kinds import Kind


@dataclass(frozen=True)
class MessageVersion:
    """A version of a message: its shape, and its label in conflicts."""

    label: str
    shape: MessageShape

    @staticmethod
    def of(label: str, descriptors: bytes, message: str) -> MessageVersion:
        """Return a version by the full name of its message.

        Raises ValueError for a message that does not exist or cannot be decoded (message sets).
        """
        return MessageVersion(label, shape_of(message_of(descriptors, message), label))


@dataclass(frozen=True)
class MergedMessage:
    """Versions that one message reads.

    `message` is the full name in the first of them; `descriptors` a FileDescriptorSet whose last file has the merged
    message first, for `decode.make_message_reader`; `refused` has the conflicts of versions that do not fit.
    """

    message: str
    descriptors: bytes
    refused: tuple[SchemaConflict, ...] = ()


def merge_messages(versions: Sequence[MessageVersion]) -> tuple[MergedMessage, ...]:
    """Return the compatible classes of versions, oldest version first. Runs on the driver.

    The first class has the first version and all that fit with it, taken in turn; the versions that it refuses make
    further classes in the same way.
    """
    classes: list[MergedMessage] = []
    waiting = list(versions)
    while waiting:
        first, *others = waiting
        merged = first.shape
        conflicts = []
        waiting = []
        for version in others:
            merge_step = _Merge(merged, version)
            if merge_step.conflicts:
                conflicts += merge_step.conflicts
                waiting.append(version)
            else:
                merged = merge_step.result
        classes.append(MergedMessage(merged.root, descriptors_of(merged), tuple(conflicts)))
    return tuple(classes)


class _Merge:
    """The merge of a version into a shape; `result` is right when there are no conflicts."""

    def __init__(self, old: MessageShape, version: MessageVersion) -> None:
        new = version.shape
        self.root = old.root
        self.label = version.label
        self.names = _merged_names(old, new)
        self.conflicts: list[SchemaConflict] = []
        # Old fields come first, so that columns keep their order; new names of enums, because the newest name is shown.
        self.fields: dict[str, list[MessageField]] = {}
        for name, fields in (*old.messages.items(), *new.messages.items()):
            renamed = [replace(field, of=self.names.get(field.of, field.of)) for field in fields]
            self.fields.setdefault(self.names[name], []).extend(renamed)
        values: dict[str, list[tuple[str, int]]] = {}
        for name, pairs in (*new.enums.items(), *old.enums.items()):
            values.setdefault(self.names[name], []).extend(pairs)
        self.paths = dict(self.reached_messages())
        messages = {name: self.merge_message(name) for name in self.fields}
        enums = {name: self.merge_enum(name, pairs) for name, pairs in values.items()}
        self.result = MessageShape(self.root, messages, enums)

    def merge_message(self, name: str) -> tuple[MessageField, ...]:
        """Return the fields of a merged message."""
        merged: dict[int, MessageField] = {}
        for new in self.fields[name]:
            # The first field of a number is compared with itself, so that nothing differs.
            old = merged.get(new.number, new)
            difference = _describe_difference(old, new)
            if difference:
                self.report_field(name, new.name, old.version, difference)
            merged[new.number] = replace(
                new,
                kind=WIDER_KINDS.get(frozenset({old.kind, new.kind}), new.kind),
                key=WIDER_KINDS.get(frozenset({old.key, new.key}), new.key),
                oneof=new.oneof if new.oneof == old.oneof else "",
            )
        return tuple(merged.values())

    def merge_enum(self, name: str, values: list[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        """Return the names of a merged enum, the newest first; the first name of a number is the one that is shown."""
        numbers: dict[str, int] = {}
        for value, number in values:
            if numbers.setdefault(value, number) != number:
                difference = f"the enum's {value} was {number} and is {numbers[value]}; give a new number a new name"
                self.report_enum(name, difference)
        return tuple(numbers.items())

    def report_enum(self, name: str, difference: str) -> None:
        """Add a conflict about an enum, for the last field that uses it."""
        users = [(message, field) for message, fields in self.fields.items() for field in fields if field.of == name]
        labels = [field.version for _, field in users if field.version != self.label]
        message, field = users[-1]
        self.report_field(message, field.name, labels[-1] if labels else self.label, difference)

    def report_field(self, message: str, field: str, before: str, difference: str) -> None:
        """Add a conflict about a field of a merged message; the version that is refused is always the new one."""
        path = f"{self.paths[message]}.{field}".removeprefix(".")
        self.conflicts.append(SchemaConflict(path, before, self.label, difference))

    def reached_messages(self) -> Iterator[tuple[str, str]]:
        """Yield every merged message with the path of the first field that leads to it."""
        seen = {self.root}
        waiting = [(self.root, "")]
        for name, path in waiting:  # which grows
            yield name, path
            for field in self.fields[name]:
                if field.of in self.fields and field.of not in seen:
                    seen.add(field.of)
                    step = {"repeated": "[]", "a map": "{}"}.get(_field_form(field), "")
                    waiting.append((field.of, f"{path}.{field.name}{step}".removeprefix(".")))


def _merged_names(old: MessageShape, new: MessageShape) -> dict[str, str]:
    """Return for each type of two shapes the name of the merged type that it becomes."""
    names: dict[str, str] = {}
    fields: list[tuple[str, MessageField]] = []
    for shape in (old, new):
        names |= {name: name for name in (*shape.messages, *shape.enums)}
        for message, members in shape.messages.items():
            fields += [(message, field) for field in members]
    _rename_type(names, names[new.root], old.root)
    # The types of one field become one type. Then fields of these types are one field as well, and so on.
    changed = True
    while changed:
        changed = False
        first: dict[tuple[str, int], MessageField] = {}
        for message, field in fields:
            other = first.setdefault((names[message], field.number), field)
            if field.kind != other.kind or field.of not in names or other.of not in names:
                continue
            if names[field.of] != names[other.of]:
                _rename_type(names, names[field.of], names[other.of])
                changed = True
    return names


def _rename_type(names: dict[str, str], before: str, after: str) -> None:
    names.update({name: after for name, merged in names.items() if merged == before})


def _describe_difference(old: MessageField, new: MessageField) -> str:
    """Return why no single column can hold both, or an empty text if one can."""
    if _field_form(old) != _field_form(new):
        return f"it was {_field_form(old)} and is {_field_form(new)}"
    if not _go_together(old.key, new.key):
        return f"the map's keys were {old.key} and are {new.key}"
    if not _go_together(old.kind, new.kind) or old.of != new.of:
        return f"it was {old.type_text} and is {new.type_text}"
    if old.presence != new.presence:
        words = {True: "null", False: "zero"}
        return f"an absent value was {words[old.presence]} and is {words[new.presence]}"
    return ""


def _go_together(old: Kind | None, new: Kind | None) -> bool:
    return old is new or frozenset({old, new}) in WIDER_KINDS


def _field_form(field: MessageField) -> str:
    if field.repeated:
        return "repeated"
    return "a map" if field.key else "single"
