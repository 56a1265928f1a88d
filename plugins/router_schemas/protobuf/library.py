"""Collect the messages that records were written with, of a registry or a file, also wrapped ones. For the driver.

Messages are read together: one reader per message, one event for all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

import pyarrow as pa

from router import StartError
from router_schemas.library import Library, RegistryLibrary, keep, remembered
from router_schemas.model import VALUE_HEADER, SchemaOrigin, WriterSchema, check_free, refusals
from router_schemas.protobuf.decode import MessageReader, reader
from router_schemas.protobuf.descriptors import (
    CompilerError,
    all_names,
    descriptors,
    from_file,
    message_indexes_of,
    name_at,
)
from router_schemas.protobuf.events import ANY, WRAPPED, Events, MessageInfo, Wrapped, type_at
from router_schemas.protobuf.merge import MessageVersion, merge
from router_schemas.protobuf.model import spark_struct
from router_schemas.wire_format import WHOLE, at_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from router import Memory
    from router_schemas.model import Kind, ResolvedSchema, Taken
    from router_schemas.protobuf.events import Fields
    from router_schemas.wire_format import Frame


@dataclass(frozen=True)
class MessageUse:
    """A message of one schema; `files` is a FileDescriptorSet of the schema with all that it imports."""

    origin: SchemaOrigin
    files: bytes
    message: str
    version: MessageVersion

    @staticmethod
    def of(origin: SchemaOrigin, files: bytes, message: str) -> MessageUse:
        """Return a message by its full name; raise ValueError for one that is not there or cannot be decoded."""
        return MessageUse(origin, files, message, MessageVersion.of(origin.label, files, message))

    def written(self, reader: int, reason: str | None = None) -> MessageInfo:
        """Return what is known of the records of this use."""
        return MessageInfo(reader, self.origin.id, self.origin.version, self.origin.subject, self.message, reason)


def events_of(uses: Mapping[str, MessageUse], reasons: Mapping[str, str], taken: Taken | None = None) -> Events:
    """Return how the records of these schemas are read, and why those of others are not; `taken`: by other formats."""
    made = _Making({writer: MessageInfo(-1, reason=reason) for writer, reason in reasons.items()}, taken or {})
    messages: dict[str, list[str]] = {}
    for writer in sorted(uses, key=lambda writer: uses[writer].origin.age):
        messages.setdefault(uses[writer].message, []).append(writer)
    for message, writers in messages.items():
        made.add(message, {writer: uses[writer] for writer in writers})
    event = pa.struct([pa.field(name, kind) for name, (kind, _) in made.types.items()])
    origins = {name: label for name, (_, label) in made.types.items()}
    return Events(event, tuple(made.readers), made.written, origins=origins)


@dataclass
class _Making:
    """Readers in the making. `types`: field -> its type and what brought it; `taken` are those of other formats."""

    written: dict[str, MessageInfo]
    taken: Taken
    readers: list[MessageReader] = field(default_factory=list)
    types: dict[str, tuple[pa.DataType, str]] = field(default_factory=dict)

    def add(self, message: str, uses: dict[str, MessageUse]) -> None:
        """Merge the versions of a message; those that do not fit the oldest are refused."""
        versions = {use.version.label: use.version for use in uses.values()}
        first, *_ = merge([*versions.values()])
        try:
            self.take(message, reader(first), first.labels[-1])
        except ValueError as fault:
            self.written |= {
                writer: use.written(-1, f"{message} of {use.origin.label} cannot be decoded: {fault}")
                for writer, use in uses.items()
            }
            return
        refused = refusals(first.refused)
        for writer, use in uses.items():
            label = use.version.label
            fits = label in first.labels
            why = None if fits else refused.get(label, f"{label} does not fit")
            self.written[writer] = use.written(len(self.readers) - 1 if fits else -1, why)

    def take(self, message: str, made: MessageReader, newest: str) -> None:
        """Add a reader; raise ValueError where a field of it has another type in another message."""
        for one in made.type:
            kind, other = self.types.get(one.name, (one.type, message))
            if kind != one.type:
                raise ValueError(f"its field {one.name} is {one.type}, and {kind} in {other}; no column holds both")
        check_free(spark_struct(made.type), self.taken)
        label = f"{message} of {newest}"
        self.types.update({one.name: (one.type, label) for one in made.type if one.name not in self.types})
        self.readers.append(made)


@dataclass
class Messages(RegistryLibrary[MessageUse, Events]):
    """Messages of a registry that records were written with."""

    kind: ClassVar[Kind] = "PROTOBUF"

    header: str = VALUE_HEADER
    among_others: bool = False
    """Whether the registry's records are of other formats, too: those of unknown schemas then have no message index."""
    compiled: dict[int, bytes] = field(default_factory=dict)

    def use(self, writer: WriterSchema, resolved: ResolvedSchema) -> MessageUse:
        """Return the message of a writer's schema."""
        number = resolved.schema.id
        origin = SchemaOrigin.of(resolved)
        try:
            files = self.compiled[number] = self.compiled.get(number) or descriptors(resolved)
        except CompilerError as error:  # the schema may be good: no record may become a dead letter for this
            raise StartError(f"{origin.label} cannot be compiled here: {error}") from error
        return MessageUse.of(origin, files, writer.message if writer.path is None else name_at(files, writer.path))

    def make(self) -> Events:
        """Return one reader per message, and what the records of every schema are read with."""
        made = events_of(self.uses, self.reasons, self.taken)
        schemas = (WriterSchema.of(text).schema for text in (*self.uses, *self.faults)) if self.among_others else ()
        keys = frozenset(one.bytes if isinstance(one, UUID) else one for one in schemas if one is not None)
        return replace(made, header=self.header, indexed=keys if self.among_others else True)


@dataclass(frozen=True)
class Files:
    """The messages of a file: `descriptors` is a FileDescriptorSet, `label` what conflicts call it."""

    label: str
    descriptors: bytes

    @staticmethod
    def read(path: Path) -> Files:
        """Return the messages of a .proto file, or of a file that holds a FileDescriptorSet; raise StartError."""
        try:
            return Files(path.name, from_file(path))
        except OSError as error:
            what = f"{error.strerror}; it is looked for in the configuration's folder"
            raise StartError(f"schema file {path}: {what}") from error
        except (ValueError, CompilerError) as error:
            raise StartError(f"schema file {path}: {error}") from error

    def use(self, message: str) -> MessageUse:
        """Return a message by its full name; raise StartError."""
        try:
            return MessageUse.of(SchemaOrigin(self.label), self.descriptors, message)
        except ValueError as error:
            raise StartError(f"schema file {self.label}: {error}") from error


class OneMessage(Library[Events]):
    """The message of a file that reads all values, whatever schema a value names."""

    settled: ClassVar[bool] = True

    def __init__(self, files: Files, message: str, frame: Frame, header: str = VALUE_HEADER) -> None:
        use = files.use(message)
        writers = (
            [WHOLE] if frame == "none" else [at_index(path) for path in message_indexes_of(files.descriptors, message)]
        )
        made = events_of(dict.fromkeys(writers, use), {})
        if not made.readers:
            raise StartError(f"schema file {files.label}: {made.written[writers[0]].reason}")
        self.uses = dict.fromkeys(writers, use)
        self._made = replace(made, frame=frame, header=header, only=message)

    @property
    def empty(self) -> bool:
        """Return that the message is known."""
        return False

    def refreshed(self, wanted: Iterable[str] = ()) -> Events:
        """Return how the message is read, always the same."""
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
        self._learn(remembered(memory, self.KEPT))
        self._faults.clear()  # the file was another then

    @property
    def empty(self) -> bool:
        """Return whether no message was wanted yet."""
        return not self.uses

    def refreshed(self, wanted: Iterable[str] = ()) -> Events:
        """Return how the messages are read that were wanted so far."""
        if self._learn(wanted) or self._made is None:
            self._made = events_of(self.uses, self._faults)
            keep(self._memory, self.KEPT, self.uses)
        return self._made

    def _learn(self, writers: Iterable[str]) -> bool:
        new = [writer for writer in dict.fromkeys(writers) if writer not in self.uses and writer not in self._faults]
        for writer in new:
            try:
                origin = SchemaOrigin(self._files.label)
                self.uses[writer] = MessageUse.of(origin, self._files.descriptors, WriterSchema.of(writer).message)
            except ValueError as fault:
                self._faults[writer] = f"{writer} cannot be used: {fault}"
        return bool(new)


_TYPES = {"payload": (pa.binary(), ANY), "name": (pa.string(),), "schema_id": (pa.int32(), pa.int64())}
_WORDS = {"payload": "bytes or a google.protobuf.Any", "name": "a string or an enum", "schema_id": "an integer"}


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
    def empty(self) -> bool:
        """Return whether no message inside is known yet."""
        return self._inner.empty

    @property
    def advice(self) -> str:
        """Return how a configuration announces messages inside, or which outer messages there are."""
        return self._fault or "name the wrapper's `messages`, or its `subjects`"

    @property
    def announced(self) -> bool:
        """Return whether messages inside are known before their first record."""
        outer = self._outer.announced or not self._outer.empty
        return self._inner.announced or bool(self._messages and outer)

    def refreshed(self, wanted: Iterable[str] = ()) -> Wrapped:
        """Return how to read all that is known and what is wanted."""
        wanted = set(wanted)
        inside = {writer for writer in wanted if writer.startswith(WRAPPED)}
        outer = self._outer.refreshed(wanted - inside)
        named = {} if self._fields.schema_id else self._named()
        first = {
            str(WriterSchema(schema, one)) for schema, known in named.items() for one in self._messages if one in known
        }
        inner = self._inner.refreshed({writer.removeprefix(f"{WRAPPED} ") for writer in inside} | first)
        if self._made is None or self._made.outer is not outer or self._made.inner is not inner:
            self._fault = self._missing(outer.event)
            if self._fault and self._outer.settled:
                raise StartError(self._fault)
            self._made = Wrapped(outer, inner, self._fields, named)
        return self._made

    def _named(self) -> dict[int | UUID | None, dict[str, str]]:
        """Return for the schemas of outer messages how payloads may call the messages of their files."""
        found: dict[int | UUID | None, dict[str, str]] = {}
        for writer, use in self._outer.uses.items():
            schema = None if use.origin.id is None else WriterSchema.of(writer).schema
            found[schema] = _called(use.files)
        return found

    def _missing(self, event: pa.StructType) -> str:
        """Return which field of the configuration no outer message has so far; raise StartError for one of no use."""
        for option, kinds in _TYPES.items():
            path = getattr(self._fields, option)
            kind = type_at(event, path)
            if path and kind is None:
                return f"wrapper.{option}: no outer message that is known has the field {'.'.join(path)}"
            if path and kind not in kinds:
                where = f"wrapper.{option}: {'.'.join(path)}"
                raise StartError(f"{where} must be {_WORDS[option]} of the outer message; it is {kind}")
        named = bool(self._fields.name or self._fields.schema_id)
        if named and type_at(event, self._fields.payload) == ANY:
            raise StartError("wrapper.payload: an Any names its message itself; leave out `name` and `schema_id`")
        if not named and type_at(event, self._fields.payload) != ANY:
            raise StartError("wrapper.payload: bytes do not name their message; give `name` or `schema_id`")
        return ""


@lru_cache(maxsize=256)
def _called(files: bytes) -> dict[str, str]:
    """Return full name by name: the full one, and the last part of it where no other message ends so."""
    full = all_names(files)
    short = Counter(name.rpartition(".")[2] for name in full)
    return {name.rpartition(".")[2]: name for name in full if short[name.rpartition(".")[2]] == 1} | {
        name: name for name in full
    }
