"""Collect the messages that records were written with, of a registry or a file, also wrapped ones. For the driver.

Messages are read together: one reader per message, one event for all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

import pyarrow as pa

from router import StartError
from router_schemas.library import EventMaking, Library, RegistryLibrary, keep_used_writers, read_used_writers
from router_schemas.model import VALUE_HEADER, SchemaOrigin, WriterSchema, schema_file
from router_schemas.protobuf.decode import MessageReader, make_message_reader
from router_schemas.protobuf.descriptors import (
    CompilerError,
    all_names,
    compile_schema,
    message_indexes_of,
    name_at,
    read_descriptors,
)
from router_schemas.protobuf.events import ANY_TYPE, WRAPPED_PREFIX, Events, Wrapped, type_at
from router_schemas.protobuf.merge import MessageVersion, merge_messages
from router_schemas.wire_format import ONLY_WRITER, at_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import types as T

    from router import Memory
    from router_schemas.model import Kind, ResolvedSchema, SchemaConflict, Taken
    from router_schemas.protobuf.events import Fields
    from router_schemas.protobuf.merge import MergedMessage
    from router_schemas.wire_format import WireFormat

log = logging.getLogger("router")


@dataclass(frozen=True)
class MessageUse:
    """A message of one schema, by its full name; `files` is a FileDescriptorSet of the schema with all its imports."""

    origin: SchemaOrigin
    files: bytes
    name: str
    version: MessageVersion

    @staticmethod
    def of(origin: SchemaOrigin, files: bytes, name: str) -> MessageUse:
        """Return a message by its full name; raise ValueError for one that is not there or cannot be decoded."""
        version = MessageVersion.of(origin.label, files, name)
        for group in version.shape.groups:
            log.warning(
                "%s: field %s is a group (of proto2, or DELIMITED in editions) and gets no column: its bytes count as "
                "an unknown field; make it a message",
                origin.label,
                group,
            )
        return MessageUse(origin, files, name, version)


def events_of(uses: Mapping[str, MessageUse], reasons: Mapping[str, str], taken: Taken | None = None) -> Events:
    """Return how the records of these schemas are read, and why those of others are not; `taken`: by other formats."""
    made = _MessageEvent(uses, reasons, taken)
    types: dict[str, pa.DataType] = {}
    for message_reader in made.readers:
        types |= {column.name: column.type for column in message_reader.type}
    return Events(pa.struct(types), tuple(made.readers), made.written, origins=made.origins)


class _MessageEvent(EventMaking[str, MessageUse, MessageReader]):
    """The event of Protobuf messages, by their writers' schemas."""

    def merge_versions(self, uses: list[MessageUse]) -> tuple[MergedMessage, Sequence[SchemaConflict]]:
        first, *_ = merge_messages([use.version for use in uses])
        return first, first.refused

    def make_reader(self, merged: MergedMessage, fits: Mapping[str, MessageUse]) -> tuple[MessageReader, T.StructType]:
        made = make_message_reader(merged)
        return made, made.spark_type


@dataclass
class Messages(RegistryLibrary[MessageUse, Events]):
    """Messages of a registry that records were written with."""

    kind: ClassVar[Kind] = "PROTOBUF"

    header: str = VALUE_HEADER
    among_others: bool = False
    """Whether the registry also has records of other formats: those of unknown schemas then have no message index."""
    compiled: dict[int, bytes] = field(default_factory=dict)

    def use_of_schema(self, writer: WriterSchema, resolved: ResolvedSchema, origin: SchemaOrigin) -> MessageUse:
        """Return the message of a writer's schema."""
        schema_id = resolved.schema.id
        if schema_id not in self.compiled:
            try:
                self.compiled[schema_id] = compile_schema(resolved)
            except CompilerError as error:  # the schema may be good: no record may become a dead letter for this
                raise StartError(f"{origin.label} cannot be compiled here: {error}") from error
        files = self.compiled[schema_id]
        name = writer.message
        if writer.path is not None:
            name = name_at(files, writer.path)
        return MessageUse.of(origin, files, name)

    def combine_uses(self) -> Events:
        """Return one reader per message, and the reader of each schema."""
        made = events_of(self.uses, self.reasons, self.taken)
        made = replace(made, header=self.header, absence=self.schemas.absence)
        if not self.among_others:
            return made
        # Only values of Protobuf have a message index: here are the ids and GUIDs that are.
        keys: set[int | bytes] = set()
        for text in (*self.uses, *self.faults):
            schema = WriterSchema.of(text).schema
            if schema is not None:
                keys.add(schema.bytes if isinstance(schema, UUID) else schema)
        return replace(made, indexed=frozenset(keys))


@dataclass(frozen=True)
class Files:
    """The messages of a file: `descriptors` is a FileDescriptorSet, `label` its name in conflicts."""

    label: str
    descriptors: bytes

    @staticmethod
    def read_file(path: Path) -> Files:
        """Return the messages of a .proto file, or of a file that holds a FileDescriptorSet; raise StartError."""
        try:
            with schema_file(path):
                return Files(path.name, read_descriptors(path))
        except CompilerError as error:
            raise StartError(f"schema file {path}: {error}") from error

    def use_of_message(self, message: str) -> MessageUse:
        """Return a message by its full name; raise StartError."""
        try:
            return MessageUse.of(SchemaOrigin(self.label), self.descriptors, message)
        except ValueError as error:
            raise StartError(f"schema file {self.label}: {error}") from error


class OneMessage(Library[Events]):
    """The message of a file that reads all values, whatever schema a value names."""

    settled: ClassVar[bool] = True

    def __init__(self, files: Files, message: str, wire_format: WireFormat, header: str = VALUE_HEADER) -> None:
        use = files.use_of_message(message)
        writers = [ONLY_WRITER]
        if wire_format != "none":
            writers = [at_index(path) for path in message_indexes_of(files.descriptors, message)]
        self.uses = dict.fromkeys(writers, use)
        made = events_of(self.uses, {})
        if not made.readers:
            raise StartError(f"schema file {files.label}: {made.written[writers[0]].reason}")
        self._made = replace(made, wire_format=wire_format, header=header, only=message)

    @property
    def is_empty(self) -> bool:
        """Return that the message is known."""
        return False

    def refresh_schemas(self, wanted: Iterable[str] = ()) -> Events:
        """Return the reading of the message, always the same object."""
        return self._made


class FileMessages(Library[Events]):
    """Messages of a file as they are wanted: `message games.Bet`."""

    KEPT: ClassVar[str] = "file-payloads.json"

    def __init__(self, files: Files, memory: Memory) -> None:
        self.uses: dict[str, MessageUse] = {}
        self._files = files
        self._memory = memory
        self._faults: dict[str, str] = {}
        self._made: Events | None = None
        self._learn_writers(read_used_writers(memory, self.KEPT))
        # The file may have changed since a former run: that it lacks a message now is no fault of a record.
        self._faults.clear()

    @property
    def is_empty(self) -> bool:
        """Return whether no message was wanted yet."""
        return not self.uses

    def refresh_schemas(self, wanted: Iterable[str] = ()) -> Events:
        """Return the reading of the messages that were wanted so far."""
        if self._learn_writers(wanted) or self._made is None:
            self._made = events_of(self.uses, self._faults)
            keep_used_writers(self._memory, self.KEPT, self.uses)
        return self._made

    def _learn_writers(self, writers: Iterable[str]) -> bool:
        """Learn the messages of writers; return whether one is new."""
        new = {*writers} - self.uses.keys() - self._faults.keys()
        for writer in sorted(new):
            try:
                origin = SchemaOrigin(self._files.label)
                self.uses[writer] = MessageUse.of(origin, self._files.descriptors, WriterSchema.of(writer).message)
            except ValueError as fault:
                self._faults[writer] = f"{writer} cannot be used: {fault}"
        return bool(new)


_FIELD_TYPES = {"payload": (pa.binary(), ANY_TYPE), "name": (pa.string(),), "schema_id": (pa.int32(), pa.int64())}
_FIELD_TYPE_TEXTS = {
    "payload": "bytes or a google.protobuf.Any",
    "name": "a string or an enum",
    "schema_id": "an integer",
}


class Payloads(Library[Wrapped]):
    """Outer messages and those inside. `messages` are full names known before their first record."""

    def __init__(
        self, outer: Messages | OneMessage, inner: Messages | FileMessages, fields: Fields, messages: tuple[str, ...]
    ) -> None:
        self._outer = outer
        self._inner = inner
        self._fields = fields
        self._messages = messages
        self._made: Wrapped | None = None
        self._fault = ""

    @property
    def is_empty(self) -> bool:
        """Return whether no message inside is known yet."""
        return self._inner.is_empty

    @property
    def advice(self) -> str:
        """Return how a configuration announces messages inside, or why the outer ones do not lead to them."""
        for reason in self._outer.reasons.values():
            return reason
        return self._fault or "name the wrapper's `messages`, or its `subjects`"

    @property
    def announces_schemas(self) -> bool:
        """Return whether messages inside are known before their first record."""
        outer = self._outer.announces_schemas or not self._outer.is_empty
        return self._inner.announces_schemas or bool(self._messages and outer)

    def refresh_schemas(self, wanted: Iterable[str] = ()) -> Wrapped:
        """Return how to read all known messages and the wanted ones."""
        wanted = set(wanted)
        of_payloads = {writer for writer in wanted if writer.startswith(WRAPPED_PREFIX)}
        outer = self._outer.refresh_schemas(wanted - of_payloads)
        wanted_inside = {writer.removeprefix(f"{WRAPPED_PREFIX} ") for writer in of_payloads}
        # A payload names its message in the files of its outer message, unless it has a schema of its own.
        messages = {} if self._fields.schema_id else self._messages_by_schema()
        for schema, full_names in messages.items():
            announced = [name for name in self._messages if name in full_names]
            wanted_inside.update(str(WriterSchema(schema, name)) for name in announced)
        inner = self._inner.refresh_schemas(wanted_inside)
        if self._made is None or self._made.outer is not outer or self._made.inner is not inner:
            self._fault = self._missing_field(outer.event)
            if self._fault and self._outer.settled:
                raise StartError(self._fault)
            self._made = Wrapped(outer, inner, self._fields, messages)
        return self._made

    def _messages_by_schema(self) -> dict[int | UUID | None, dict[str, str]]:
        """Return for each schema of outer messages: what payloads may call a message of its files -> its full name."""
        messages: dict[int | UUID | None, dict[str, str]] = {}
        for writer, use in self._outer.uses.items():
            schema = None if use.origin.id is None else WriterSchema.of(writer).schema
            messages[schema] = _full_names(use.files)
        return messages

    def _missing_field(self, event: pa.StructType) -> str:
        """Return which field of the configuration no outer message has so far; raise StartError for an unusable one."""
        # More outer messages may come: a missing field may still appear, a field of a wrong type stays wrong.
        for option, types in _FIELD_TYPES.items():
            path = getattr(self._fields, option)
            if not path:
                continue
            name = ".".join(path)
            field_type = type_at(event, path)
            if field_type is None:
                return f"wrapper.{option}: no outer message that is known has the field {name}"
            if field_type not in types:
                problem = f"must be {_FIELD_TYPE_TEXTS[option]} of the outer message; it is {field_type}"
                raise StartError(f"wrapper.{option}: {name} {problem}")
        is_named = bool(self._fields.name or self._fields.schema_id)
        is_any = type_at(event, self._fields.payload) == ANY_TYPE
        if is_named and is_any:
            raise StartError("wrapper.payload: an Any names its message itself; leave out `name` and `schema_id`")
        if not is_named and not is_any:
            raise StartError("wrapper.payload: bytes do not name their message; give `name` or `schema_id`")
        return ""


@lru_cache(maxsize=256)
def _full_names(files: bytes) -> dict[str, str]:
    """Return full name by name: by the full name, and by its last part if no other message's ends so."""
    full_names = all_names(files)
    by_last_part: dict[str, list[str]] = {}
    for name in full_names:
        by_last_part.setdefault(name.rpartition(".")[2], []).append(name)
    unique = {last_part: names[0] for last_part, names in by_last_part.items() if len(names) == 1}
    return unique | {name: name for name in full_names}
