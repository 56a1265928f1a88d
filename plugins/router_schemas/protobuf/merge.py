"""Merge the versions of one message into one that reads them all.

Fields are the same when their number is; the newest name wins, and a field that a version lacks keeps its place, so
that old records keep its data. Columns are in the order in which the versions brought them. Types with one name are
one type, and so are types of two names that the same field has had.

| change of a field | reads |
|---|---|
| int32 to int64, sint32 to sint64, int32 or uint32 to the other or to int64 | as the wider of the two |
| its name; a oneof around it, where absent was null before | the same |
| a value of its enum added, removed or renamed | the same |
| any other type, also where the wire type is the same: the values or the column would be wrong | refused |
| repeated, map or neither to another of these; the keys of a map | refused |
| absent is zero to absent is null (`optional`, proto2, a oneof), or back: null is not zero | refused |
| a name of its enum that takes another number: old records would show the wrong name | refused |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from router_schemas.model import SchemaConflict
from router_schemas.protobuf.descriptors import message_of
from router_schemas.protobuf.model import MessageField, MessageShape, descriptors_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDER = {
    frozenset({"int32", "int64"}): "int64",
    frozenset({"int32", "uint32"}): "int64",
    frozenset({"uint32", "int64"}): "int64",
    frozenset({"sint32", "sint64"}): "sint64",
}
"""Pairs whose bytes the wider type reads right, into a column that a table can widen to."""


@dataclass(frozen=True)
class MessageVersion:
    """A version of a message: its shape, and the label that conflicts call it by."""

    label: str
    shape: MessageShape

    @staticmethod
    def of(label: str, descriptors: bytes, message: str) -> MessageVersion:
        """Return a version by the full name of its message.

        Raises ValueError for a message that is not there or cannot be decoded (groups, message sets).
        """
        return MessageVersion(label, shape_of(message_of(descriptors, message), label))


@dataclass(frozen=True)
class MergedMessage:
    """Versions that one message reads.

    `message` is the full name in the first of them; `labels` those that were merged; `descriptors` a
    FileDescriptorSet whose last file has the merged message first, for `decode.reader`; `refused` says why other
    versions are not among them.
    """

    message: str
    labels: tuple[str, ...]
    descriptors: bytes
    refused: tuple[SchemaConflict, ...] = ()


def merge(versions: Sequence[MessageVersion]) -> tuple[MergedMessage, ...]:
    """Return the compatible classes of versions, oldest version first. Runs on the driver.

    The first class has the first version and all that fit with it, taken in turn; the versions that it refuses make
    further classes in the same way.
    """
    classes: list[MergedMessage] = []
    left = list(versions)
    while left:
        merged, taken, conflicts, again = left[0].shape, [left[0].label], [], []
        for version in left[1:]:
            grown = _Merge(merged, version)
            if grown.conflicts:
                conflicts += grown.conflicts
                again.append(version)
            else:
                merged = grown.result
                taken.append(version.label)
        classes.append(MergedMessage(merged.root, tuple(taken), descriptors_of(merged), tuple(conflicts)))
        left = again
    return tuple(classes)


class _Merge:
    """The merge of a version into a shape; `result` is right when there are no conflicts."""

    def __init__(self, old: MessageShape, version: MessageVersion) -> None:
        new = version.shape
        self.root, self.label = old.root, version.label
        self.same = _same(old, new)
        self.conflicts: list[SchemaConflict] = []
        fields: dict[str, list[MessageField]] = {}
        for name, members in (*old.messages.items(), *new.messages.items()):
            fields.setdefault(self.same[name], []).extend(members)
        values: dict[str, list[tuple[str, int]]] = {}
        for name, pairs in (*new.enums.items(), *old.enums.items()):
            values.setdefault(self.same[name], []).extend(pairs)
        self.fields = {name: [self.renamed(one) for one in members] for name, members in fields.items()}
        self.paths = dict(self.reached())
        messages = {name: self.message(name) for name in self.fields}
        self.result = MessageShape(
            self.root, messages, {name: self.enum(name, pairs) for name, pairs in values.items()}
        )

    def renamed(self, one: MessageField) -> MessageField:
        """Return a field with the name that its type has in the merged shape."""
        return replace(one, of=self.same.get(one.of, one.of))

    def message(self, name: str) -> tuple[MessageField, ...]:
        """Return the fields of a merged message."""
        found: dict[int, MessageField] = {}
        for new in self.fields[name]:
            old = found.get(new.number, new)
            what = _difference(old, new)
            if what:
                self.report(name, new.name, old.version, what)
            found[new.number] = replace(
                new,
                kind=_wider(old.kind, new.kind) or new.kind,
                key=_wider(old.key, new.key),
                oneof=new.oneof if new.oneof == old.oneof else "",
            )
        return tuple(found.values())

    def enum(self, name: str, values: list[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        """Return the names of a merged enum, the newest first; the first name of a number is the one that is shown."""
        found: dict[str, int] = {}
        for value, number in values:
            if found.setdefault(value, number) != number:
                what = f"the enum's {value} was {number} and is {found[value]}; give a new number a new name"
                users = [(owner, one) for owner, fields in self.fields.items() for one in fields if one.of == name]
                before = [one.version for _, one in users if one.version != self.label]
                self.report(users[-1][0], users[-1][1].name, before[-1] if before else self.label, what)
        return tuple(found.items())

    def report(self, owner: str, name: str, before: str, what: str) -> None:
        """Add a conflict about a field of a merged message; the version that is refused is always the new one."""
        path = f"{self.paths[owner]}.{name}".removeprefix(".")
        self.conflicts.append(SchemaConflict(path, before, self.label, what))

    def reached(self) -> Iterator[tuple[str, str]]:
        """Yield every merged message with the path of the first field that leads to it."""
        seen, waiting = {self.root}, [(self.root, "")]
        for name, path in waiting:  # which grows
            yield name, path
            for one in self.fields[name]:
                if one.of in self.fields and one.of not in seen:
                    seen.add(one.of)
                    step = "[]" if one.repeated else "{}" if one.key else ""
                    waiting.append((one.of, f"{path}.{one.name}{step}".removeprefix(".")))


def _same(old: MessageShape, new: MessageShape) -> dict[str, str]:
    """Return for each type of two shapes the name of the merged type that it becomes."""
    same = {name: name for shape in (old, new) for name in (*shape.messages, *shape.enums)}
    _join(same, same[new.root], old.root)
    changed = True
    while changed:
        changed = False
        first: dict[tuple[str, int], MessageField] = {}
        for name, one in ((name, one) for s in (old, new) for name, fields in s.messages.items() for one in fields):
            other = first.setdefault((same[name], one.number), one)
            if one.of in same and other.of in same and one.kind == other.kind and same[one.of] != same[other.of]:
                _join(same, same[one.of], same[other.of])
                changed = True
    return same


def _join(same: dict[str, str], one: str, other: str) -> None:
    same.update({name: other for name, merged in same.items() if merged == one})


def _difference(old: MessageField, new: MessageField) -> str:
    """Return what no single column can hold of both, or nothing."""
    for kind in ("repeated", "a map", "single"):
        if (_form(old) == kind) != (_form(new) == kind):
            return f"it was {_form(old)} and is {_form(new)}"
    if old.key and not _wider(old.key, new.key):
        return f"the map's keys were {old.key} and are {new.key}"
    if not _wider(old.kind, new.kind) or (old.of != new.of):
        return f"it was {_shown(old)} and is {_shown(new)}"
    if old.presence != new.presence:
        words = {True: "null", False: "zero"}
        return f"an absent value was {words[old.presence]} and is {words[new.presence]}"
    return ""


def _wider(old: str, new: str) -> str:
    return old if old == new else _WIDER.get(frozenset({old, new}), "")


def _form(one: MessageField) -> str:
    return "repeated" if one.repeated else "a map" if one.key else "single"


def _shown(one: MessageField) -> str:
    return f"{one.kind} {one.of}" if one.of else one.kind
