"""Say how Avro records are read together: one reader's schema per record, one event for all. For the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pyspark.sql import types as T

from router_schemas.avro.envelope import reader_text, writer_text
from router_schemas.avro.mapping import mapped
from router_schemas.avro.merge import Writer, merge
from router_schemas.avro.schema import Ref
from router_schemas.findings import refusals
from router_schemas.places import VALUE_HEADER
from router_schemas.written import Written, check_free

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router_schemas.avro.merge import Merged
    from router_schemas.avro.schema import Schema
    from router_schemas.origin import Origin
    from router_schemas.written import Taken

Frame = Literal["confluent", "none", "single_object"]


@dataclass(frozen=True)
class Use:
    """Be one schema that records were written with; `name` is the full name of its record."""

    origin: Origin
    schema: Schema
    name: str

    @staticmethod
    def of(origin: Origin, schema: Schema) -> Use:
        """Return the use of a schema; raise ValueError for one that is no record."""
        if not isinstance(schema.root, Ref):
            raise ValueError("it is no record, and an event has fields; wrap it in one")
        return Use(origin, schema, schema.root.name)


@dataclass(frozen=True)
class Record:
    """Be one record: `reader` is the text of its reader's schema, `writers` those by frame, `struct` what is read."""

    reader: str
    writers: dict[bytes, str]
    struct: T.StructType


@dataclass(frozen=True)
class Records:
    """Say how values are read. `written` is by frame: the bytes before a value, or those in its `header`.

    `only` names the file whose schema reads all values, whatever their ids and GUIDs (the frame is then b""); it is
    empty where these count, and a frame that is not known is wanted.
    """

    event: T.StructType
    records: tuple[Record, ...] = ()
    written: dict[bytes, Written] = field(default_factory=dict)
    frame: Frame = "confluent"
    header: str = VALUE_HEADER
    only: str = ""
    origins: dict[str, str] = field(default_factory=dict)
    """Field of the event -> the record and version that brought it."""


def records_of(uses: Mapping[bytes, Use], reasons: Mapping[bytes, str], taken: Taken | None = None) -> Records:
    """Return one reader's schema per record; versions that do not fit the oldest, or what is `taken`, are refused."""
    made = _Making({frame: Written(reason=reason) for frame, reason in reasons.items()}, taken or {})
    names: dict[str, dict[bytes, Use]] = {}
    for frame in sorted(uses, key=lambda frame: uses[frame].origin.age):
        names.setdefault(uses[frame].name, {})[frame] = uses[frame]
    for name, found in names.items():
        made.add(name, found)
    event = T.StructType([T.StructField(one, kind) for one, (kind, _) in made.types.items()])
    origins = {one: label for one, (_, label) in made.types.items()}
    return Records(event, tuple(made.records), made.written, origins=origins)


@dataclass
class _Making:
    """Collect records. `types`: field -> its type and what brought it; `taken` are those of other formats."""

    written: dict[bytes, Written]
    taken: Taken
    records: list[Record] = field(default_factory=list)
    types: dict[str, tuple[T.DataType, str]] = field(default_factory=dict)

    def add(self, name: str, uses: dict[bytes, Use]) -> None:
        """Add the versions of a record."""
        versions = {use.origin.label: use.schema for use in uses.values()}
        merged = merge([Writer(label, schema) for label, schema in versions.items()])
        refused = refusals(merged.findings)
        reasons = {frame: self.written[frame].reason for frame in uses if frame in self.written}
        reasons |= {frame: refused[use.origin.label] for frame, use in uses.items() if use.origin.label in refused}
        fits = {frame: use.schema for frame, use in uses.items() if frame not in reasons}
        try:
            if fits:
                self.take(name, merged, fits, [uses[frame].origin.label for frame in fits][-1])
        except ValueError as fault:
            reasons |= {frame: f"{name} of {uses[frame].origin.label} cannot be decoded: {fault}" for frame in fits}
        for frame, use in uses.items():
            self.written[frame] = Written.of(use.origin, name, reasons.get(frame))

    def take(self, name: str, merged: Merged, writers: dict[bytes, Schema], newest: str) -> None:
        """Add a record; raise ValueError where Spark cannot read it, or a field has another type in another record."""
        found = mapped(merged.reader)
        for one in found.struct:
            kind, other = self.types.get(one.name, (one.dataType, name))
            if kind != one.dataType:
                types = f"{one.dataType.simpleString()}, and {kind.simpleString()} in {other}"
                raise ValueError(f"its field {one.name} is {types}; no column holds both")
        check_free(found.struct, self.taken)
        texts = {frame: writer_text(schema, found.reader) for frame, schema in writers.items()}
        self.records.append(Record(reader_text(found.reader), texts, found.struct))
        label = f"{name} of {newest}"
        self.types.update({one.name: (one.dataType, label) for one in found.struct if one.name not in self.types})
