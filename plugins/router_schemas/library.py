"""Collect the schemas that records were written with, from a registry or a file. For the driver.

A writer's schema (with the message in it) that was seen keeps its meaning. A format defines what one is used for
(RegistryLibrary) and how all uses are read together, as one event (EventMaking). If a topic has records of several
formats, the registry has the format of an id (AnyFormat).
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from router_schemas.model import (
    UNKNOWN_HOLD_SECONDS,
    VALUE_HEADER,
    ResolvedSchema,
    SchemaInfo,
    SchemaOrigin,
    WriterSchema,
    log_refusals,
)
from router_schemas.subject_names import CountedSubjects
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from pyspark.sql import types as T

    from router import Memory
    from router_schemas.model import Kind, SchemaConflict, Taken
    from router_schemas.resolver import SchemaResolver, Unknown

    Open = Callable[[Kind], "RegistryLibrary[Any, Any]"]


class NamedUse(Protocol):
    """A version of a record or message with a full `name`."""

    @property
    def origin(self) -> SchemaOrigin: ...

    @property
    def name(self) -> str: ...


U = TypeVar("U", bound=NamedUse)
M = TypeVar("M")


class Library(ABC, Generic[M]):
    """A source of the schemas of records. `M` is what reads records; it travels to the tasks."""

    settled: ClassVar[bool] = False
    """Whether everything is known from the start."""

    @property
    def advice(self) -> str:
        """Return why the first of the schemas cannot be read, or how a configuration announces schemas."""
        for reason in self.reasons.values():
            return reason
        if self.announces_schemas:
            return "register a schema of the `subjects`, or look at the records of the source"
        return "name the `subjects` of the records, or look at the records of the source"

    @property
    def reasons(self) -> dict[str, str]:
        """Return why writers' schemas cannot be read."""
        return {}

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether nothing can be read yet, so that the columns of events are unknown."""

    @property
    def announces_schemas(self) -> bool:
        """Return whether the configuration announces schemas, to be known before the first record."""
        return False

    @abstractmethod
    def refresh_schemas(self, wanted: Iterable[str] = ()) -> M:
        """Return how to read all known schemas and the wanted ones; the same object if nothing is new.

        Raises RegistryAway if a wanted schema was never seen and the registry cannot be asked.
        """


@dataclass
class RegistryLibrary(Library[M], Generic[U, M]):
    """The schemas of a registry that are known. `U` is what one writer's schema is used for. `clock` is in seconds.

    New versions of `subjects`, and of those subjects of used schemas that are `counted`, are looked for at every
    refresh. The memory has the schemas that records named: the next run finds the others in the subjects that count
    then.
    """

    kind: ClassVar[Kind]

    schemas: SchemaResolver
    memory: Memory
    subjects: tuple[str, ...] = ()
    counted: CountedSubjects = field(default_factory=CountedSubjects)
    keep: str = "places"
    """Part of the name under which the memory has the writers' schemas that were used."""
    clock: Callable[[], float] = time.monotonic
    uses: dict[str, U] = field(default_factory=dict)
    resolved: dict[str, ResolvedSchema] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    """Writers' schemas that records named, in this run or a former one; others are from the subjects."""
    faults: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Why the registry gives no schema, and until when that holds. Ids that it lacks are left out: tasks know why."""
    made: M | None = None
    taken: Taken = field(default_factory=dict)
    """The fields of other formats, if records of several formats become one event."""

    @abstractmethod
    def use_of_schema(self, writer: WriterSchema, resolved: ResolvedSchema, origin: SchemaOrigin) -> U:
        """Return the use of a writer's schema; raise ValueError with the reason if it cannot be read."""

    @abstractmethod
    def combine_uses(self) -> M:
        """Return how all uses are read."""

    def __post_init__(self) -> None:
        named = read_named_by_records(self.memory, self._memory_name)
        if named is None:  # older versions also kept polled schemas, whatever their subjects
            self._learn_writers(read_used_writers(self.memory, self._memory_name))
            self._forget_foreign()
            named = [*self.uses]
        self.named.update(named)
        self._learn_writers(named)

    @property
    def advice(self) -> str:
        """Return that the registry cannot be asked, if so: nothing of the configuration is to blame."""
        return self.schemas.unavailable or super().advice

    @property
    def is_empty(self) -> bool:
        return not self.uses

    @property
    def announces_schemas(self) -> bool:
        return bool(self.subjects)

    @property
    def reasons(self) -> dict[str, str]:
        """Return why writers' schemas cannot be read."""
        return {**self.faults, **{writer: reason for writer, (reason, _) in self.unknown.items()}}

    def refresh_schemas(
        self, wanted: Iterable[str] = (), polled: Iterable[str] = (), is_in_batch: bool | None = None
    ) -> M:
        """Return how to read all known schemas, those that records want, and those that the caller has `polled`.

        `is_in_batch`: the batch has begun, so that new versions were looked for already; None: if records want some.
        """
        before = self._known_writers()
        wanted = list(wanted)
        polled = list(polled)
        if is_in_batch is None:
            is_in_batch = bool(wanted) and self.made is not None
        # Unknown schemas are only forgotten between batches: within one, a record would want its schema without end.
        if not is_in_batch:
            now = self.clock()
            self.unknown = {writer: held for writer, held in self.unknown.items() if held[1] > now}
            # Within a batch the registry is asked only for what records want: a slow one holds up every batch twice.
            polled += self._new_versions()
        self.learn_schemas(wanted, polled)
        if self.made is None or before != self._known_writers():
            self.made = self.combine_uses()
            self.named.update(writer for writer in wanted if writer in self.uses)
            keep_named_by_records(self.memory, self._memory_name, self.named)
        return self.made

    def learn_schemas(self, wanted: list[str], polled: list[str]) -> None:
        """Learn the schemas that records want, and those of subjects."""
        self._learn_writers([*wanted, *polled])

    @property
    def _memory_name(self) -> str:
        return f"{self.kind.lower()}-{self.keep}.json"

    def _known_writers(self) -> set[str]:
        return {*self.uses, *self.faults, *self.unknown}

    def _new_versions(self) -> list[str]:
        """Return the writers' schemas of all versions: the messages that are used of a subject, or the first."""
        messages: dict[str, set[str]] = {subject: set() for subject in self.subjects}
        for writer, resolved in self.resolved.items():
            for subject, _ in self.counted.counted_versions(resolved.schema.subjects, self.uses[writer].name):
                messages.setdefault(subject, set()).add(WriterSchema.of(writer).message)
        writers = []
        for subject, used in messages.items():
            for schema_id in self.schemas.poll_subjects([subject]):
                writers += [str(WriterSchema(schema_id, message)) for message in used or {""}]
        return writers

    def _learn_writers(self, writers: Iterable[str]) -> None:
        known_writers = self._known_writers()
        new = {writer: WriterSchema.of(writer) for writer in writers if writer not in known_writers}
        resolved = self.schemas.resolve_ids(_schema_key(writer) for writer in new.values())
        for text, writer in new.items():
            self._add_schema(text, writer, resolved[_schema_key(writer)])

    def _add_schema(self, text: str, writer: WriterSchema, resolved: ResolvedSchema | Unknown) -> None:
        if not isinstance(resolved, ResolvedSchema):
            if not resolved.is_absent:
                self.unknown[text] = resolved.reason, self.clock() + UNKNOWN_HOLD_SECONDS
            return
        if resolved.schema.kind != self.kind:
            self.faults[text] = f"schema {resolved.schema.id} is {resolved.schema.kind}, not {self.kind}"
            return
        try:
            self.uses[text] = self._counted_use(writer, resolved)
            self.resolved[text] = resolved
        except ValueError as fault:
            self.faults[text] = f"schema {resolved.schema.id} cannot be used: {fault}"

    def _counted_use(self, writer: WriterSchema, resolved: ResolvedSchema) -> U:
        """Return the use of a writer's schema, as the version of a subject that counts."""
        origin = SchemaOrigin.of(resolved)
        use = self.use_of_schema(writer, resolved, origin)
        # Which subjects count may depend on the record's name, and only its use has that.
        counted = self.counted.counted_versions(resolved.schema.subjects, use.name)
        if counted:
            counted_origin = SchemaOrigin.of(replace(resolved, schema=replace(resolved.schema, subjects=counted)))
        else:
            counted_origin = replace(origin, foreign=bool(resolved.schema.subjects))
        if counted_origin == origin:
            return use
        return self.use_of_schema(writer, resolved, counted_origin)

    def _forget_foreign(self) -> None:
        """Forget the schemas none of whose subjects counts: a record that has one names it again."""
        foreign = [writer for writer, use in self.uses.items() if use.origin.foreign]
        # If the strategy fits no schema, it cannot tell which are the topic's own: keep all, or nothing could be read.
        if not self.counted.named and len(foreign) == len(self.uses):
            return
        for writer in foreign:
            del self.uses[writer]
            del self.resolved[writer]


def read_used_writers(memory: Memory, name: str) -> list[str]:
    """Return the writers' schemas that were used in former runs; entries of another form are ignored."""
    return _writer_texts(json.loads(memory.read(name) or b"[]"))


def _writer_texts(content: Iterable[str]) -> list[str]:
    """Return the texts that name writers' schemas; others are ignored."""
    writers: list[str] = []
    for text in content:
        with suppress(ValueError):
            writers.append(str(WriterSchema.of(text)))
    return writers


def read_named_by_records(memory: Memory, name: str) -> list[str] | None:
    """Return the writers' schemas that records of former runs named; None for a memory of another form."""
    content = json.loads(memory.read(name) or b"{}")
    if not isinstance(content, dict):
        return None
    return _writer_texts(content.get("named", ()))


def keep_named_by_records(memory: Memory, name: str, writers: Collection[str]) -> None:
    """Keep the names of the writers' schemas that records named."""
    memory.write(name, json.dumps({"named": sorted(writers)}).encode())


def keep_used_writers(memory: Memory, name: str, writers: Collection[str]) -> None:
    """Keep the names of the writers' schemas that were used."""
    memory.write(name, json.dumps(sorted(writers)).encode())


def _schema_key(writer: WriterSchema) -> int | UUID:
    if writer.schema is None:
        raise ValueError(f"{writer} names no schema of a registry")
    return writer.schema


K = TypeVar("K")
N = TypeVar("N", bound=NamedUse)
R = TypeVar("R")


class EventMaking(ABC, Generic[K, N, R]):
    """One event for the records of all names: a reader for each name, and one type for each field.

    A reader reads all versions that fit the oldest one; those that do not are refused, as is a name with a field that
    has another type elsewhere. The keys of `uses`, and of the `reasons` why some cannot be read, tell records apart: a
    prefix, or a writer's schema. `taken` are the fields of records of other formats.
    """

    def __init__(self, uses: Mapping[K, N], reasons: Mapping[K, str], taken: Taken | None = None) -> None:
        self.readers: list[R] = []
        self.written = {key: SchemaInfo(reason=reason) for key, reason in reasons.items()}
        self.fields: dict[str, tuple[T.DataType, str]] = {}
        """Field of the event -> its type, and the name and version that brought it."""
        self._taken = taken or {}
        names: dict[str, dict[K, N]] = {}
        for key in sorted(uses, key=lambda key: uses[key].origin.age):
            names.setdefault(uses[key].name, {})[key] = uses[key]
        for name, versions in names.items():
            self._add_versions(name, versions)

    @property
    def origins(self) -> dict[str, str]:
        """Return field of the event -> the name and version that brought it."""
        return {field: label for field, (_, label) in self.fields.items()}

    @abstractmethod
    def merge_versions(self, uses: list[N]) -> tuple[Any, Sequence[SchemaConflict]]:
        """Return the merged versions of a name, and the conflicts of those that do not fit the oldest."""

    @abstractmethod
    def make_reader(self, merged: Any, fits: Mapping[K, N]) -> tuple[R, T.StructType]:
        """Return a reader of the versions that fit, and its fields; raise ValueError if none can read them."""

    def _add_versions(self, name: str, uses: dict[K, N]) -> None:
        # One version can have several keys: it is merged once.
        versions = {use.origin.label: use for use in uses.values()}
        merged, conflicts = self.merge_versions([*versions.values()])
        refused = log_refusals(conflicts)
        reasons = {key: info.reason for key, info in self.written.items() if key in uses}
        for key, use in uses.items():
            if use.origin.label in refused:
                reasons[key] = refused[use.origin.label]
        fits = {key: use for key, use in uses.items() if key not in reasons}
        if fits:
            newest = [*fits.values()][-1]
            try:
                reader, struct = self.make_reader(merged, fits)
                self._add_reader(reader, struct, f"{name} of {newest.origin.label}")
            except ValueError as fault:
                for key, use in fits.items():
                    reasons[key] = f"{name} of {use.origin.label} cannot be decoded: {fault}"
        for key, use in uses.items():
            self.written[key] = SchemaInfo.of(use.origin, name, reasons.get(key))

    def _add_reader(self, reader: R, struct: T.StructType, label: str) -> None:
        """Add a reader; raise ValueError if one of its fields has another type elsewhere."""
        fields = {**self._taken, **self.fields}
        for column in struct:
            taken_type, other = fields.get(column.name, (column.dataType, label))
            types = (column.dataType.simpleString(), taken_type.simpleString())
            if types[0] != types[1]:
                problem = f"is {types[0]}, and {types[1]} in {other}; no column holds both"
                raise ValueError(f"its field {column.name} {problem}")
        self.readers.append(reader)
        for column in struct:
            self.fields.setdefault(column.name, (column.dataType, label))


FORMATS_FILE = "formats.json"
"""The name under which the memory has the formats in the order in which they came."""


@dataclass(frozen=True)
class Formats:
    """How records of several formats are read. `made` is by format, in the order in which the formats came.

    `written` is by prefix; its `message` is the format of the prefix, its `reason` why the schema cannot be used.
    """

    made: dict[Kind, Any]
    written: dict[bytes, SchemaInfo]
    header: str = VALUE_HEADER
    wire_format: str = "confluent"
    only: str = ""
    absence: str = ""


class AnyFormat(Library[Formats]):
    """The libraries of all formats: each is asked for the schemas of its format, the first also for unknown ones.

    `opened` makes the library of a format, `fields` returns the fields of a format's event. A field has the type of the
    format that came first: its library is asked first, and the others keep to that type.
    """

    def __init__(
        self,
        schemas: SchemaResolver,
        memory: Memory,
        subjects: tuple[str, ...],
        header: str,
        opened: Open,
        fields: Callable[[Kind, Any], Taken],
    ) -> None:
        self._schemas = schemas
        self._memory = memory
        self._subjects = subjects
        self._header = header
        self._opened = opened
        self._fields = fields
        self._made: Formats | None = None
        formats: list[Kind] = json.loads(memory.read(FORMATS_FILE) or b"[]")
        self._libraries = {kind: opened(kind) for kind in formats}

    @property
    def is_empty(self) -> bool:
        """Return whether no schema is known that can be read."""
        return all(library.is_empty for library in self._libraries.values())

    @property
    def advice(self) -> str:
        """Return that the registry cannot be asked, if so."""
        return self._schemas.unavailable or super().advice

    @property
    def reasons(self) -> dict[str, str]:
        """Return why writers' schemas of any format cannot be read."""
        return dict(chain.from_iterable(library.reasons.items() for library in self._libraries.values()))

    @property
    def announces_schemas(self) -> bool:
        """Return whether subjects are named."""
        return bool(self._subjects)

    def refresh_schemas(self, wanted: Iterable[str] = ()) -> Formats:
        """Return how to read all known schemas and the wanted ones."""
        wanted = list(wanted)
        named = set(wanted)
        polled: list[str] = []
        if not wanted or self._made is None:
            polled = [str(WriterSchema(schema_id)) for schema_id in sorted(self._schemas.poll_subjects(self._subjects))]
        made = self._learn_formats([*wanted, *polled], named)
        refused = list(chain.from_iterable(library.faults for library in self._libraries.values()))
        if not self._is_known(refused):  # a subject of one format has a version of another
            made = self._learn_formats(refused, named)
        if self._made is None or not _is_same(self._made.made, made):
            self._made = Formats(made, self._format_by_prefix(made), self._header, absence=self._schemas.absence)
        return self._made

    def _learn_formats(self, texts: list[str], named: set[str]) -> dict[Kind, Any]:
        """Teach each library the schemas of its format; return what they make. Records named those in `named`."""
        by_kind: dict[Kind, list[str]] = {}
        unknown: list[str] = []
        for text, schema_kind in self._find_kinds(texts).items():
            if schema_kind is None:
                unknown.append(text)
            else:
                by_kind.setdefault(schema_kind, []).append(text)
        for kind in by_kind:
            if kind not in self._libraries:
                self._libraries[kind] = self._opened(kind)
                self._memory.write(FORMATS_FILE, json.dumps([*self._libraries]).encode())
        made: dict[Kind, Any] = {}
        taken: dict[str, Any] = {}
        for kind, library in self._libraries.items():
            if library.taken != taken:
                library.taken = dict(taken)
                library.made = None
            of_kind = [*by_kind.get(kind, ()), *unknown]
            wanted = [text for text in of_kind if text in named]
            polled = [text for text in of_kind if text not in named]
            made[kind] = library.refresh_schemas(wanted, polled, is_in_batch=bool(named))
            unknown = []  # the first library has them
            taken = {**self._fields(kind, made[kind]), **taken}
        return made

    def _find_kinds(self, texts: Iterable[str]) -> dict[str, Kind | None]:
        """Return the format of each schema, None for one that the registry does not give."""
        schemas = {text: WriterSchema.of(text).schema for text in texts}
        resolved = self._schemas.resolve_ids(schema for schema in schemas.values() if schema is not None)
        kinds: dict[str, Kind | None] = {}
        for text, schema in schemas.items():
            if schema is not None:
                meaning = resolved[schema]
                kinds[text] = meaning.schema.kind if isinstance(meaning, ResolvedSchema) else None
        return kinds

    def _is_known(self, texts: list[str]) -> bool:
        """Return whether the library of its format has each schema."""
        for text, kind in self._find_kinds(texts).items():
            if kind is None:
                continue
            if kind not in self._libraries or text not in _writers_of(self._libraries[kind]):
                return False
        return True

    def _format_by_prefix(self, made: Mapping[Kind, Any]) -> dict[bytes, SchemaInfo]:
        """Return the format of every prefix."""
        written: dict[bytes, SchemaInfo] = {}
        for kind, library in self._libraries.items():
            for text, (reason, _) in library.unknown.items():
                written[schema_bytes(WriterSchema.of(text))] = SchemaInfo(message=kind, reason=reason)
        for kind, library in self._libraries.items():
            is_readable = bool(self._fields(kind, made[kind]))
            for text, schema_kind in self._find_kinds(_writers_of(library)).items():
                if schema_kind != kind:
                    continue
                prefix = schema_bytes(WriterSchema.of(text))
                fault: str | None = None
                if not is_readable:
                    key = text if kind == "PROTOBUF" else prefix
                    fault = library.faults.get(text) or made[kind].written[key].reason
                written[prefix] = SchemaInfo(message=kind, reason=fault)
        return written


def _writers_of(library: RegistryLibrary[Any, Any]) -> list[str]:
    return [*library.faults, *library.uses]


def _is_same(before: Mapping[Kind, Any], after: Mapping[Kind, Any]) -> bool:
    """Return whether the same objects are by the same formats, in the same order."""
    return [*before] == [*after] and all(before[kind] is after[kind] for kind in after)
