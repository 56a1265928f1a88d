"""Know how to read what Avro schemas of a registry wrote: one reader's schema per record, one event for all.

For the driver.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import types as T

from router_schemas.avro.envelope import reader_text, writer_text
from router_schemas.avro.mapping import mapped
from router_schemas.avro.merge import Writer, merge
from router_schemas.avro.parse import parse
from router_schemas.avro.schema import Ref
from router_schemas.library import Library, age, label

if TYPE_CHECKING:
    from router_schemas.avro.merge import Merged
    from router_schemas.avro.schema import Schema
    from router_schemas.records import Closed, Kind

log = logging.getLogger("router")


@dataclass(frozen=True)
class About:
    """Say what is known of a schema's records."""

    version: int | None
    subject: str | None
    message: str


@dataclass(frozen=True)
class Record:
    """Be one record: `reader` is the text of its reader's schema, `writers` those of each id, `struct` what is read."""

    reader: str
    writers: dict[int, str]
    struct: T.StructType


@dataclass(frozen=True)
class Records:
    """Say how ids are read: `reasons` has those that are not."""

    event: T.StructType
    records: tuple[Record, ...] = ()
    about: dict[int, About] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass
class Writers(Library["Schema", Records]):
    """Know records. A place is an id."""

    kind: ClassVar[Kind] = "AVRO"

    def use(self, place: str, closed: Closed) -> Schema:
        """Return the schema at a place."""
        schema = parse(closed)
        _name(schema)
        return schema

    def make(self) -> Records:
        """Return one reader's schema per record; versions that do not fit the oldest are refused."""
        made = _Making({int(place): reason for place, reason in self.reasons.items()})
        names: dict[str, list[str]] = {}
        for place in sorted(self.uses, key=lambda place: age(self.closed[place])):
            names.setdefault(_name(self.uses[place]), []).append(place)
            made.about[int(place)] = _about(self.closed[place], _name(self.uses[place]))
        for name, places in names.items():
            merged = merge([Writer(label(self.closed[place]), self.uses[place]) for place in places])
            refused = _refused(merged)
            for place in places:
                if (why := refused.get(label(self.closed[place]))) is not None:
                    made.reasons[int(place)] = why
            fits = {int(place): self.uses[place] for place in places if int(place) not in made.reasons}
            try:
                made.take(name, merged, fits)
            except ValueError as fault:
                made.reasons |= dict.fromkeys(fits, f"{name} cannot be decoded: {fault}")
        event = T.StructType([T.StructField(one, kind) for one, (kind, _) in made.types.items()])
        return Records(event, tuple(made.records), made.about, made.reasons)


@dataclass
class _Making:
    """Collect records. `types`: field -> its type and the record that brought it."""

    reasons: dict[int, str]
    about: dict[int, About] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    types: dict[str, tuple[T.DataType, str]] = field(default_factory=dict)

    def take(self, name: str, merged: Merged, writers: dict[int, Schema]) -> None:
        """Add a record; raise ValueError where Spark cannot read it, or a field has another type in another record."""
        found = mapped(merged.reader)
        for one in found.struct:
            kind, other = self.types.get(one.name, (one.dataType, name))
            if kind != one.dataType:
                types = f"{one.dataType.simpleString()}, and {kind.simpleString()} in {other}"
                raise ValueError(f"its field {one.name} is {types}; no column holds both")
        texts = {number: writer_text(schema, found.reader) for number, schema in writers.items()}
        self.records.append(Record(reader_text(found.reader), texts, found.struct))
        self.types.update({one.name: (one.dataType, name) for one in found.struct if one.name not in self.types})


def _name(schema: Schema) -> str:
    if not isinstance(schema.root, Ref):
        raise ValueError("it is no record, and an event has fields; wrap it in one")
    return schema.root.name


def _about(closed: Closed, name: str) -> About:
    subject, version = age(closed)
    return About(version if subject else None, subject or None, name)


def _refused(merged: Merged) -> dict[str, str]:
    """Return a reason for each version that was refused."""
    reasons: dict[str, str] = {}
    for finding in merged.findings:
        if finding.new not in reasons:
            log.warning("incompatible schemas: %s; its records become dead letters", finding)
            reasons[finding.new] = str(finding)
    return reasons
