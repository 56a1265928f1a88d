"""Collect the JSON Schemas of a registry that records were written with, and read all records by one struct.

For the driver. `documents` reads one schema as a struct, `merge` makes one struct of all versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from router_schemas.json_schema.documents import struct_of_text, title_of
from router_schemas.json_schema.merge import ObjectVersion, merge_objects
from router_schemas.library import RegistryLibrary
from router_schemas.model import VALUE_HEADER, SchemaInfo, SchemaOrigin, WriterSchema, log_refusals
from router_schemas.wire_format import schema_bytes

if TYPE_CHECKING:
    from pyspark.sql import types as T

    from router_schemas.model import Kind, ResolvedSchema


@dataclass(frozen=True)
class ObjectUse:
    """A schema that records were written with; `title` is what it calls them."""

    origin: SchemaOrigin
    struct: T.StructType
    title: str | None

    @property
    def name(self) -> str:
        """Return the title, which Confluent's clients take for the name of a record; empty without one."""
        return self.title or ""


@dataclass(frozen=True)
class Objects:
    """How objects are read: all by one `struct`, which has the names of their properties.

    `written` is by prefix: the bytes before a value, or those in its `header`.
    """

    struct: T.StructType
    written: dict[bytes, SchemaInfo]
    header: str = VALUE_HEADER
    wire_format: str = "confluent"
    only: str = ""
    absence: str = ""
    """Why the registry does not give an id that it does not have, with `{id}` in the place of the id."""
    origins: dict[str, str] = field(default_factory=dict)
    """Property -> the version that shaped it."""


@dataclass
class Documents(RegistryLibrary[ObjectUse, Objects]):
    """JSON Schemas of a registry that records were written with, by ids and GUIDs."""

    kind: ClassVar[Kind] = "JSON"

    header: str = VALUE_HEADER

    def use_of_schema(self, writer: WriterSchema, resolved: ResolvedSchema, origin: SchemaOrigin) -> ObjectUse:
        """Return the use of a writer's schema."""
        return ObjectUse(origin, struct_of_text(resolved.schema.text, resolved.imports), title_of(resolved.schema.text))

    def combine_uses(self) -> Objects:
        """Return the one struct that all objects are read by; versions that conflict with the oldest are refused."""
        uses = sorted(self.uses.items(), key=lambda item: item[1].origin.age)
        # A version may be used under its id and its GUID: merge it once.
        structs = {use.origin.label: use.struct for _, use in uses}
        versions = [ObjectVersion(label, struct) for label, struct in structs.items()]
        merged = merge_objects(versions, self.taken)
        refused = log_refusals(merged.conflicts)

        written: dict[bytes, SchemaInfo] = {}
        for writer, use in uses:
            reason = refused.get(use.origin.label)
            written[schema_bytes(WriterSchema.of(writer))] = SchemaInfo.of(use.origin, use.title, reason)
        for writer, reason in self.reasons.items():
            written[schema_bytes(WriterSchema.of(writer))] = SchemaInfo(reason=reason)
        return Objects(merged.struct, written, self.header, absence=self.schemas.absence, origins=merged.origins)
