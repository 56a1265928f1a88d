"""Say how messages are read together: one reader per message, one event for all. For the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from router_schemas.findings import refusals
from router_schemas.protobuf.decode import Reader, reader
from router_schemas.protobuf.events import Events, Written
from router_schemas.protobuf.mapping import spark_struct
from router_schemas.protobuf.merge import Version, merge
from router_schemas.written import check_free

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router_schemas.origin import Origin
    from router_schemas.written import Taken


@dataclass(frozen=True)
class Use:
    """Be one message of one schema; `files` is a FileDescriptorSet of the schema with all that it imports."""

    origin: Origin
    files: bytes
    message: str
    version: Version

    @staticmethod
    def of(origin: Origin, files: bytes, message: str) -> Use:
        """Return a message by its full name; raise ValueError for one that is not there or cannot be decoded."""
        return Use(origin, files, message, Version.of(origin.label, files, message))

    def written(self, reader: int, reason: str | None = None) -> Written:
        """Return what is known of the records of this use."""
        return Written(reader, self.origin.id, self.origin.version, self.origin.subject, self.message, reason)


def events_of(uses: Mapping[str, Use], reasons: Mapping[str, str], taken: Taken | None = None) -> Events:
    """Return how the records of places are read, and why those of other places are not; `taken`: by other formats."""
    made = _Making({place: Written(-1, reason=reason) for place, reason in reasons.items()}, taken or {})
    messages: dict[str, list[str]] = {}
    for place in sorted(uses, key=lambda place: uses[place].origin.age):
        messages.setdefault(uses[place].message, []).append(place)
    for message, places in messages.items():
        made.add(message, {place: uses[place] for place in places})
    event = pa.struct([pa.field(name, kind) for name, (kind, _) in made.types.items()])
    origins = {name: label for name, (_, label) in made.types.items()}
    return Events(event, tuple(made.readers), made.written, origins=origins)


@dataclass
class _Making:
    """Collect readers. `types`: field -> its type and what brought it; `taken` are those of other formats."""

    written: dict[str, Written]
    taken: Taken
    readers: list[Reader] = field(default_factory=list)
    types: dict[str, tuple[pa.DataType, str]] = field(default_factory=dict)

    def add(self, message: str, uses: dict[str, Use]) -> None:
        """Merge the versions of a message; those that do not fit the oldest are refused."""
        versions = {use.version.label: use.version for use in uses.values()}
        first, *_ = merge([*versions.values()])
        try:
            self.take(message, reader(first), first.labels[-1])
        except ValueError as fault:
            self.written |= {
                place: use.written(-1, f"{message} of {use.origin.label} cannot be decoded: {fault}")
                for place, use in uses.items()
            }
            return
        refused = refusals(first.refused)
        for place, use in uses.items():
            label = use.version.label
            fits = label in first.labels
            why = None if fits else refused.get(label, f"{label} does not fit")
            self.written[place] = use.written(len(self.readers) - 1 if fits else -1, why)

    def take(self, message: str, made: Reader, newest: str) -> None:
        """Add a reader; raise ValueError where a field of it has another type in another message."""
        for one in made.type:
            kind, other = self.types.get(one.name, (one.type, message))
            if kind != one.type:
                raise ValueError(f"its field {one.name} is {one.type}, and {kind} in {other}; no column holds both")
        check_free(spark_struct(made.type), self.taken)
        label = f"{message} of {newest}"
        self.types.update({one.name: (one.type, label) for one in made.type if one.name not in self.types})
        self.readers.append(made)
