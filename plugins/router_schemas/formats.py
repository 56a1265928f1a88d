"""Know the schemas of a registry whatever their format: the registry says what an id is. For the driver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router_schemas.frames import frame_of
from router_schemas.library import Library
from router_schemas.places import VALUE_HEADER, Place
from router_schemas.records import Closed
from router_schemas.written import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router_schemas.library import RegistryLibrary
    from router_schemas.memory import Memory
    from router_schemas.records import Kind
    from router_schemas.schemas import Schemas
    from router_schemas.written import Taken

    Open = Callable[[Kind], RegistryLibrary[Any, Any]]

KEPT = "formats.json"
"""The name under which the memory has the formats in the order in which they came."""


@dataclass(frozen=True)
class Formats:
    """Say how records are read. `made` is by format, in the order in which they came: what its library made.

    `written` is by frame; its `message` is the format there, its `reason` why the schema is of no use.
    """

    made: dict[Kind, Any]
    written: dict[bytes, Written]
    header: str = VALUE_HEADER
    frame: str = "confluent"
    only: str = ""


class AnyFormat(Library[Formats]):
    """Hand what is wanted to the library of its format. What nobody knows is for the first one to say.

    `opened` makes the library of a format, `fields` tells what the event of a format has. A field has the type of the
    format that was there first: its library is asked first, and the others keep to what it says.
    """

    def __init__(
        self,
        schemas: Schemas,
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
        """Say whether no schema is known that can be read."""
        return all(library.empty for library in self._libraries.values())

    @property
    def announced(self) -> bool:
        """Say whether subjects are named."""
        return bool(self._subjects)

    def refreshed(self, wanted: Iterable[str] = ()) -> Formats:
        """Return how to read all that is known and what is wanted."""
        polled = [str(Place(number)) for number in sorted(self._schemas.poll(self._subjects))]
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
        """Return the format of each place, None for one that the registry does not give."""
        schemas = {text: schema for text in texts if (schema := Place.of(text).schema) is not None}
        found = self._schemas.closed(schemas.values())
        closed = {text: found[schema] for text, schema in schemas.items()}
        return {text: one.schema.kind if isinstance(one, Closed) else None for text, one in closed.items()}

    def _known(self, texts: list[str]) -> bool:
        kinds = self._kinds(texts).items()
        libraries = self._libraries
        return all(kind is None or (kind in libraries and text in _places(libraries[kind])) for text, kind in kinds)

    def _written(self, made: Mapping[Kind, Any]) -> dict[bytes, Written]:
        """Return the format of every frame."""
        written: dict[bytes, Written] = {}
        for kind, library in self._libraries.items():
            for text, (reason, _) in library.unknown.items():
                written[frame_of(Place.of(text))] = Written(message=kind, reason=reason)
        for kind, library in self._libraries.items():
            readable = bool(self._fields[kind](made[kind]))
            for text, its_kind in self._kinds(_places(library)).items():
                if its_kind == kind:
                    why = None if readable else library.faults.get(text) or _why(kind, made[kind], text)
                    written[frame_of(Place.of(text))] = Written(message=kind, reason=why)
        return written


def _places(library: RegistryLibrary[Any, Any]) -> list[str]:
    return [*library.faults, *library.uses]


def _why(kind: Kind, made: Any, text: str) -> str | None:
    reason: str | None = made.written[text if kind == "PROTOBUF" else frame_of(Place.of(text))].reason
    return reason
