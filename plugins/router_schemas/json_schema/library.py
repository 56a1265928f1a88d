"""Know what JSON Schemas of a registry wrote. For the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import types as T

from router_schemas.json_schema.merge import Version, merge
from router_schemas.json_schema.schema import struct_of_registered, title_of
from router_schemas.library import RegistryLibrary
from router_schemas.model import VALUE_HEADER, Origin, Place, Written, refusals
from router_schemas.wire_format import frame_of

if TYPE_CHECKING:
    from router_schemas.model import Closed, Kind


@dataclass(frozen=True)
class Use:
    """Be one schema that records were written with; `title` is what it calls them."""

    origin: Origin
    struct: T.StructType
    title: str | None


@dataclass(frozen=True)
class Objects:
    """Say how objects are read: all by one `struct`, which has the names of their properties.

    `written` is by frame: the bytes before a value, or those in its `header`.
    """

    struct: T.StructType
    written: dict[bytes, Written]
    header: str = VALUE_HEADER
    frame: str = "confluent"
    only: str = ""
    origins: dict[str, str] = field(default_factory=dict)
    """Property -> the version that shaped it."""


@dataclass
class Documents(RegistryLibrary[Use, Objects]):
    """Know JSON Schemas, by ids and GUIDs."""

    kind: ClassVar[Kind] = "JSON"

    header: str = VALUE_HEADER

    def use(self, place: Place, closed: Closed) -> Use:
        """Return the schema at a place."""
        return Use(Origin.of(closed), struct_of_registered(closed), title_of(closed))

    def make(self) -> Objects:
        """Return the one struct that all objects are read by; versions that do not fit the oldest are refused."""
        uses = dict(sorted(self.uses.items(), key=lambda one: one[1].origin.age))
        versions = {use.origin.label: use.struct for use in uses.values()}
        found = [Version(label, struct) for label, struct in versions.items()]
        merged = merge(found or [Version("", T.StructType())], self.taken)
        refused = refusals(merged.findings)
        known = {place: Written.of(use.origin, use.title, refused.get(use.origin.label)) for place, use in uses.items()}
        known |= {place: Written(reason=reason) for place, reason in self.reasons.items()}
        written = {frame_of(Place.of(place)): one for place, one in known.items()}
        return Objects(merged.struct, written, self.header, origins=merged.origins)
