"""Know what Avro schemas wrote: those of a registry, and that of one file. For the driver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from router import StartError
from router_schemas.avro.fingerprint import MARKER, single_object_header
from router_schemas.avro.merge import Writer, merge
from router_schemas.avro.parse import parse, parse_text
from router_schemas.avro.reading import Records, Use, records_of
from router_schemas.frames import frame_of
from router_schemas.library import HOLD, Library, RegistryLibrary
from router_schemas.origin import Origin
from router_schemas.places import VALUE_HEADER, Place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from router_schemas.avro.reading import Frame
    from router_schemas.records import Closed, Kind

FINGERPRINT = "fingerprint "
"""What stands before the eight bytes of a fingerprint that is wanted, in the order of the value."""


@dataclass
class Writers(RegistryLibrary[Use, Records]):
    """Know schemas of a registry, by ids and GUIDs."""

    kind: ClassVar[Kind] = "AVRO"

    header: str = VALUE_HEADER

    def use(self, place: Place, closed: Closed) -> Use:
        """Return the schema at a place."""
        return Use.of(Origin.of(closed), parse(closed))

    def make(self) -> Records:
        """Return one reader's schema per record, and the schema of every frame."""
        uses = {frame_of(Place.of(place)): use for place, use in self.uses.items()}
        reasons = {frame_of(Place.of(place)): reason for place, reason in self.reasons.items()}
        return replace(records_of(uses, reasons, self.taken), header=self.header)


@dataclass
class SingleObjects(Writers):
    """Know schemas of subjects by their fingerprints, which a registry cannot be asked for."""

    keep: str = "objects"

    def learn(self, wanted: list[str]) -> None:
        """Learn all versions of the subjects; a fingerprint that is wanted and not among theirs is unknown."""
        if wanted:
            self.schemas.poll(self.subjects, wait=True)
        super().learn([])
        reason, until = f"no version of {', '.join(self.subjects)} has the", self.clock() + HOLD
        self.unknown |= {text: (f"{reason} {text}", until) for text in wanted}
        for use in self.uses.values():
            self.unknown.pop(f"{FINGERPRINT}{single_object_header(use.schema)[2:].hex()}", None)

    def make(self) -> Records:
        """Return one reader's schema per record, and the schema of every fingerprint."""
        uses: dict[bytes, Use] = {}
        unknown = {text: reason for text, (reason, _) in self.unknown.items() if text.startswith(FINGERPRINT)}
        reasons = {_fingerprinted(text): reason for text, reason in unknown.items()}
        for use in sorted(self.uses.values(), key=lambda use: use.origin.age):
            header = single_object_header(use.schema)
            older = uses.setdefault(header, use)
            # a fingerprint does not tell logical types, so it may be that of two schemas that mean different things
            both = merge([Writer(one.origin.label, one.schema) for one in (older, use)])
            if both.findings:
                reasons[header] = f"{both.findings[0]}; both have one fingerprint"
        return replace(records_of(uses, reasons), frame="single_object")


class OneSchema(Library[Records]):
    """Know the schema of a file, whatever the schema that a frame names."""

    def __init__(self, path: Path, frame: Frame, header: str = VALUE_HEADER) -> None:
        try:
            use = Use.of(Origin(path.name), parse_text(path.read_text(encoding="utf-8")))
        except OSError as error:
            what = f"{error.strerror}; it is looked for in the configuration's folder"
            raise StartError(f"schema file {path}: {what}") from error
        except ValueError as error:  # also text that is not UTF-8
            raise StartError(f"schema file {path}: {error}") from error
        key = single_object_header(use.schema) if frame == "single_object" else b""
        made = records_of({key: use}, {})
        if not made.records:
            raise StartError(f"schema file {path}: {made.written[key].reason}")
        self._made = replace(made, frame=frame, header=header, only=path.name)

    @property
    def empty(self) -> bool:
        """Say that the schema is known."""
        return False

    def refreshed(self, wanted: Iterable[str] = ()) -> Records:
        """Return how the values are read, always the same."""
        return self._made


def _fingerprinted(text: str) -> bytes:
    return MARKER + bytes.fromhex(text.removeprefix(FINGERPRINT))
