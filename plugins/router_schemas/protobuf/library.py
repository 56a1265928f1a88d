"""Know messages: those of a registry, and those of one file. For the driver."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from router import StartError
from router_schemas.addresses import WHOLE, at_path
from router_schemas.library import Library, RegistryLibrary, keep, remembered
from router_schemas.origin import Origin
from router_schemas.places import VALUE_HEADER, Place
from router_schemas.protobuf.compile import CompilerError, descriptors, from_file
from router_schemas.protobuf.events import Events
from router_schemas.protobuf.messages import name_at, paths_of
from router_schemas.protobuf.reading import Use, events_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from router_schemas.addresses import Frame
    from router_schemas.memory import Memory
    from router_schemas.records import Closed, Kind


@dataclass
class Messages(RegistryLibrary[Use, Events]):
    """Know messages of a registry."""

    kind: ClassVar[Kind] = "PROTOBUF"

    header: str = VALUE_HEADER
    among_others: bool = False
    """Whether the registry's records are of other formats, too: those of unknown schemas then have no index path."""
    compiled: dict[int, bytes] = field(default_factory=dict)

    def use(self, place: Place, closed: Closed) -> Use:
        """Return the message at a place."""
        number = closed.schema.id
        origin = Origin.of(closed)
        try:
            files = self.compiled[number] = self.compiled.get(number) or descriptors(closed)
        except CompilerError as error:  # the schema may be good: no record may become a dead letter for this
            raise StartError(f"{origin.label} cannot be compiled here: {error}") from error
        return Use.of(origin, files, place.message if place.path is None else name_at(files, place.path))

    def make(self) -> Events:
        """Return one reader per message, and what every place is read with."""
        made = events_of(self.uses, self.reasons, self.taken)
        schemas = (Place.of(text).schema for text in (*self.uses, *self.faults)) if self.among_others else ()
        keys = frozenset(one.bytes if isinstance(one, UUID) else one for one in schemas if one is not None)
        return replace(made, header=self.header, indexed=keys if self.among_others else True)


@dataclass(frozen=True)
class Files:
    """Be the messages of a file: `descriptors` is a FileDescriptorSet, `label` what findings call it."""

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

    def use(self, message: str) -> Use:
        """Return a message by its full name; raise StartError."""
        try:
            return Use.of(Origin(self.label), self.descriptors, message)
        except ValueError as error:
            raise StartError(f"schema file {self.label}: {error}") from error


class OneMessage(Library[Events]):
    """Know one message, whatever the schema that a frame names."""

    settled: ClassVar[bool] = True

    def __init__(self, files: Files, message: str, frame: Frame, header: str = VALUE_HEADER) -> None:
        use = files.use(message)
        places = [WHOLE] if frame == "none" else [at_path(path) for path in paths_of(files.descriptors, message)]
        made = events_of(dict.fromkeys(places, use), {})
        if not made.readers:
            raise StartError(f"schema file {files.label}: {made.written[places[0]].reason}")
        self.uses = dict.fromkeys(places, use)
        self._made = replace(made, frame=frame, header=header, only=message)

    @property
    def empty(self) -> bool:
        """Say that the message is known."""
        return False

    def refreshed(self, wanted: Iterable[str] = ()) -> Events:
        """Return how the message is read, always the same."""
        return self._made


class FileMessages(Library[Events]):
    """Know messages of a file as they are wanted: `message games.Bet`."""

    KEPT: ClassVar[str] = "file-payloads.json"

    def __init__(self, files: Files, memory: Memory) -> None:
        self.uses: dict[str, Use] = {}
        self._files = files
        self._memory = memory
        self._faults: dict[str, str] = {}
        self._made: Events | None = None
        self._learn(remembered(memory, self.KEPT))
        self._faults.clear()  # the file was another then

    @property
    def empty(self) -> bool:
        """Say whether no message was wanted yet."""
        return not self.uses

    def refreshed(self, wanted: Iterable[str] = ()) -> Events:
        """Return how the messages are read that were wanted so far."""
        if self._learn(wanted) or self._made is None:
            self._made = events_of(self.uses, self._faults)
            keep(self._memory, self.KEPT, self.uses)
        return self._made

    def _learn(self, places: Iterable[str]) -> bool:
        new = [place for place in dict.fromkeys(places) if place not in self.uses and place not in self._faults]
        for place in new:
            try:
                origin = Origin(self._files.label)
                self.uses[place] = Use.of(origin, self._files.descriptors, Place.of(place).message)
            except ValueError as fault:
                self._faults[place] = f"{place} cannot be used: {fault}"
        return bool(new)
