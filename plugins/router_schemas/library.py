"""Collect the schemas that records were written with, from a registry or a file. For the driver.

A writer's schema (with the message in it) that was seen keeps its meaning. A format says what one is used for and how
all uses are read together. Where records of several formats come together, the registry says what an id is (AnyFormat).
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from router_schemas.model import VALUE_HEADER, ResolvedSchema, SchemaInfo, WriterSchema
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from uuid import UUID

    from router import Memory
    from router_schemas.model import Kind, Taken
    from router_schemas.resolver import SchemaResolver, Unknown

    Open = Callable[[Kind], "RegistryLibrary[Any, Any]"]

HOLD = 30.0
"""Seconds for which a writer's schema stays unknown before it is asked for again."""
U = TypeVar("U")
M = TypeVar("M")


class Library(ABC, Generic[M]):
    """A source of the schemas of records. `M` says how records are read; it travels to the tasks."""

    settled: ClassVar[bool] = False
    """Whether it will never know more than it does."""

    @property
    def advice(self) -> str:
        """Return how a configuration announces schemas."""
        return "name the `subjects` of the records"

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Return whether nothing can be read yet, so that there is no telling what events look like."""

    @property
    def announced(self) -> bool:
        """Return whether the configuration announces what is to be known before the first record."""
        return False

    @abstractmethod
    def refreshed(self, wanted: Iterable[str] = ()) -> M:
        """Return how to read all that is known and what is wanted; the same object when nothing is new.

        Raises RegistryAway where something wanted was never seen and the registry cannot be asked.
        """


@dataclass
class RegistryLibrary(Library[M], Generic[U, M]):
    """What was learnt of a registry. `U` is what one writer's schema is used for. `clock` is in seconds.

    New versions of `subjects`, and of the subjects of schemas that were used, are looked for at every refresh.
    """

    kind: ClassVar[Kind]

    schemas: SchemaResolver
    memory: Memory
    subjects: tuple[str, ...] = ()
    keep: str = "places"
    """The name under which the memory has what was used."""
    clock: Callable[[], float] = time.monotonic
    uses: dict[str, U] = field(default_factory=dict)
    resolved: dict[str, ResolvedSchema] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, tuple[str, float]] = field(default_factory=dict)
    made: M | None = None
    taken: Taken = field(default_factory=dict)
    """What fields have other formats brought, where records of several formats are one event."""

    @abstractmethod
    def use(self, writer: WriterSchema, resolved: ResolvedSchema) -> U:
        """Return what a writer's schema is used for; raise ValueError with the reason when it cannot be read."""

    @abstractmethod
    def make(self) -> M:
        """Return how all uses are read."""

    def __post_init__(self) -> None:
        self._learn(remembered(self.memory, self._name))

    @property
    def empty(self) -> bool:
        return not self.uses

    @property
    def announced(self) -> bool:
        return bool(self.subjects)

    @property
    def reasons(self) -> dict[str, str]:
        """Return why writers' schemas cannot be read."""
        return {**self.faults, **{writer: reason for writer, (reason, _) in self.unknown.items()}}

    def refreshed(self, wanted: Iterable[str] = ()) -> M:
        """Return how to read all that is known and what is wanted."""
        before, wanted = self._writers(), list(wanted)
        if not wanted:  # within a batch what was asked for must not be wanted again
            now = self.clock()
            self.unknown = {writer: held for writer, held in self.unknown.items() if held[1] > now}
        self.learn(wanted)
        if self.made is None or before != self._writers():
            self.made = self.make()
            keep(self.memory, self._name, self.uses)
        return self.made

    def learn(self, wanted: list[str]) -> None:
        """Learn what is wanted, and new versions."""
        self._learn([*wanted, *self._new_versions()])

    @property
    def _name(self) -> str:
        return f"{self.kind.lower()}-{self.keep}.json"

    def _writers(self) -> set[str]:
        return {*self.uses, *self.faults, *self.unknown}

    def _new_versions(self) -> list[str]:
        """Return what is in new versions of subjects: those that older versions are used for, or the first."""
        used: dict[str, set[str]] = {subject: set() for subject in self.subjects}
        for writer, resolved in self.resolved.items():
            for subject, _ in resolved.schema.subjects:
                used.setdefault(subject, set()).add(WriterSchema.of(writer).message)
        polled = ((number, inside) for subject, inside in used.items() for number in self.schemas.poll([subject]))
        return [str(WriterSchema(number, one)) for number, inside in polled for one in inside or {""}]

    def _learn(self, writers: Iterable[str]) -> None:
        new = {writer: WriterSchema.of(writer) for writer in dict.fromkeys(writers) if writer not in self._writers()}
        found = self.schemas.resolved(_schema(writer) for writer in new.values())
        for text, writer in new.items():
            self._take(text, writer, found[_schema(writer)])

    def _take(self, text: str, writer: WriterSchema, resolved: ResolvedSchema | Unknown) -> None:
        if not isinstance(resolved, ResolvedSchema):
            self.unknown[text] = resolved.reason, self.clock() + HOLD
        elif resolved.schema.kind != self.kind:
            self.faults[text] = f"schema {resolved.schema.id} is {resolved.schema.kind}, not {self.kind}"
        else:
            try:
                self.uses[text] = self.use(writer, resolved)
                self.resolved[text] = resolved
            except ValueError as fault:
                self.faults[text] = f"schema {resolved.schema.id} cannot be used: {fault}"


def remembered(memory: Memory, name: str) -> list[str]:
    """Return the writers' schemas that were used in former runs; what a memory has in another form is ignored."""
    writers: list[str] = []
    for text in json.loads(memory.read(name) or b"[]"):
        with suppress(ValueError):
            writers.append(str(WriterSchema.of(text)))
    return writers


def keep(memory: Memory, name: str, writers: Collection[str]) -> None:
    """Keep the names of the writers' schemas that were used."""
    memory.write(name, json.dumps(sorted(writers)).encode())


def _schema(writer: WriterSchema) -> int | UUID:
    if writer.schema is None:
        raise ValueError(f"{writer} names no schema of a registry")
    return writer.schema


KEPT = "formats.json"
"""The name under which the memory has the formats in the order in which they came."""


@dataclass(frozen=True)
class Formats:
    """How records of several formats are read. `made` is by format, in the order in which they came.

    `written` is by frame; its `message` is the format there, its `reason` why the schema is of no use.
    """

    made: dict[Kind, Any]
    written: dict[bytes, SchemaInfo]
    header: str = VALUE_HEADER
    frame: str = "confluent"
    only: str = ""


class AnyFormat(Library[Formats]):
    """The libraries of all formats: each is asked for schemas of its own, the first one for those that nobody knows.

    `opened` makes the library of a format, `fields` tells what the event of a format has. A field has the type of the
    format that was there first: its library is asked first, and the others keep to what it says.
    """

    def __init__(
        self,
        schemas: SchemaResolver,
        memory: Memory,
        subjects: tuple[str, ...],
        header: str,
        opened: Open,
        fields: Mapping[Kind, Callable[[Any], Taken]],
    ) -> None:
        self._schemas = schemas
        self._memory = memory
        self._subjects = subjects
        self._header = header
        self._opened = opened
        self._fields = fields
        self._made: Formats | None = None
        kept: list[Kind] = json.loads(memory.read(KEPT) or b"[]")
        self._libraries = {kind: opened(kind) for kind in kept}

    @property
    def empty(self) -> bool:
        """Return whether no schema is known that can be read."""
        return all(library.empty for library in self._libraries.values())

    @property
    def announced(self) -> bool:
        """Return whether subjects are named."""
        return bool(self._subjects)

    def refreshed(self, wanted: Iterable[str] = ()) -> Formats:
        """Return how to read all that is known and what is wanted."""
        polled = [str(WriterSchema(number)) for number in sorted(self._schemas.poll(self._subjects))]
        made = self._learnt([*wanted, *polled])
        strays = [text for library in self._libraries.values() for text in library.faults]
        if not self._known(strays):  # a subject of one format has a version of another
            made = self._learnt(strays)
        before = self._made
        if before is None or [*before.made] != [*made] or any(before.made[kind] is not made[kind] for kind in made):
            self._made = Formats(made, self._written(made), self._header)
        assert self._made is not None
        return self._made

    def _learnt(self, texts: list[str]) -> dict[Kind, Any]:
        """Return what the libraries make, each with what is of its format."""
        share: dict[Kind, list[str]] = {}
        unknown: list[str] = []
        for text, kind in self._kinds(texts).items():
            (unknown if kind is None else share.setdefault(kind, [])).append(text)
        for kind in share:
            if kind not in self._libraries:
                self._libraries[kind] = self._opened(kind)
                self._memory.write(KEPT, json.dumps([*self._libraries]).encode())
        made: dict[Kind, Any] = {}
        taken: dict[str, Any] = {}
        for kind, library in self._libraries.items():
            if library.taken != taken:
                library.taken, library.made = dict(taken), None
            made[kind] = library.refreshed([*share.get(kind, ()), *unknown])
            unknown = []
            taken = {**self._fields[kind](made[kind]), **taken}
        return made

    def _kinds(self, texts: Iterable[str]) -> dict[str, Kind | None]:
        """Return the format of each schema, None for one that the registry does not give."""
        schemas = {text: schema for text in texts if (schema := WriterSchema.of(text).schema) is not None}
        found = self._schemas.resolved(schemas.values())
        resolved = {text: found[schema] for text, schema in schemas.items()}
        return {text: one.schema.kind if isinstance(one, ResolvedSchema) else None for text, one in resolved.items()}

    def _known(self, texts: list[str]) -> bool:
        kinds = self._kinds(texts).items()
        libraries = self._libraries
        return all(kind is None or (kind in libraries and text in _writers(libraries[kind])) for text, kind in kinds)

    def _written(self, made: Mapping[Kind, Any]) -> dict[bytes, SchemaInfo]:
        """Return the format of every frame."""
        written: dict[bytes, SchemaInfo] = {}
        for kind, library in self._libraries.items():
            for text, (reason, _) in library.unknown.items():
                written[schema_bytes(WriterSchema.of(text))] = SchemaInfo(message=kind, reason=reason)
        for kind, library in self._libraries.items():
            readable = bool(self._fields[kind](made[kind]))
            for text, its_kind in self._kinds(_writers(library)).items():
                if its_kind == kind:
                    why = None if readable else library.faults.get(text) or _why(kind, made[kind], text)
                    written[schema_bytes(WriterSchema.of(text))] = SchemaInfo(message=kind, reason=why)
        return written


def _writers(library: RegistryLibrary[Any, Any]) -> list[str]:
    return [*library.faults, *library.uses]


def _why(kind: Kind, made: Any, text: str) -> str | None:
    reason: str | None = made.written[text if kind == "PROTOBUF" else schema_bytes(WriterSchema.of(text))].reason
    return reason
