"""Collect the JSON Schemas of a registry that records were written with, and read them together. For the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import types as T

from router_schemas.json_schema.merge import ObjectVersion, merge
from router_schemas.json_schema.schema import struct_of_registered, title_of
from router_schemas.library import RegistryLibrary
from router_schemas.model import VALUE_HEADER, SchemaInfo, SchemaOrigin, WriterSchema, refusals
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from router_schemas.model import Kind, ResolvedSchema


@dataclass(frozen=True)
class ObjectUse:
    """A schema that records were written with; `title` is what it calls them."""

    origin: SchemaOrigin
    struct: T.StructType
    title: str | None


@dataclass(frozen=True)
class Objects:
    """How objects are read: all by one `struct`, which has the names of their properties.

    `written` is by frame: the bytes before a value, or those in its `header`.
    """

    struct: T.StructType
    written: dict[bytes, SchemaInfo]
    header: str = VALUE_HEADER
    frame: str = "confluent"
    only: str = ""
    origins: dict[str, str] = field(default_factory=dict)
    """Property -> the version that shaped it."""


@dataclass
class Documents(RegistryLibrary[ObjectUse, Objects]):
    """JSON Schemas of a registry that records were written with, by ids and GUIDs."""

    kind: ClassVar[Kind] = "JSON"

    header: str = VALUE_HEADER

    def use(self, writer: WriterSchema, resolved: ResolvedSchema) -> ObjectUse:
        """Return the use of a writer's schema."""
        return ObjectUse(SchemaOrigin.of(resolved), struct_of_registered(resolved), title_of(resolved))

    def make(self) -> Objects:
        """Return the one struct that all objects are read by; versions that do not fit the oldest are refused."""
        uses = dict(sorted(self.uses.items(), key=lambda one: one[1].origin.age))
        versions = {use.origin.label: use.struct for use in uses.values()}
        found = [ObjectVersion(label, struct) for label, struct in versions.items()]
        merged = merge(found or [ObjectVersion("", T.StructType())], self.taken)
        refused = refusals(merged.conflicts)
        known = {
            writer: SchemaInfo.of(use.origin, use.title, refused.get(use.origin.label)) for writer, use in uses.items()
        }
        known |= {writer: SchemaInfo(reason=reason) for writer, reason in self.reasons.items()}
        written = {schema_bytes(WriterSchema.of(writer)): one for writer, one in known.items()}
        return Objects(merged.struct, written, self.header, origins=merged.origins)
