"""Know how to read what Protobuf schemas wrote: one reader per message, one event for all. For the driver."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from router import StartError
from router_schemas.library import Library, age, label
from router_schemas.protobuf.compile import CompilerError, descriptors
from router_schemas.protobuf.decode import Reader, reader
from router_schemas.protobuf.events import Events, Written
from router_schemas.protobuf.merge import Version, merge
from router_schemas.protobuf.messages import name_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router_schemas.findings import Incompatible
    from router_schemas.records import Closed, Kind

log = logging.getLogger("router")


@dataclass(frozen=True)
class Use:
    """Be one message of one schema."""

    version: Version
    message: str


@dataclass
class Messages(Library[Use, Events]):
    """Know messages. A place is `17/0.1`: schema 17, the message at index path 0.1."""

    kind: ClassVar[Kind] = "PROTOBUF"
    first: ClassVar[str] = "0"

    compiled: dict[int, bytes] = field(default_factory=dict)

    def use(self, place: str, closed: Closed) -> Use:
        """Return the message at a place."""
        number = closed.schema.id
        try:
            files = self.compiled[number] = self.compiled.get(number) or descriptors(closed)
        except CompilerError as error:  # the schema may be good: no record may become a dead letter for this
            raise StartError(f"{label(closed)} cannot be compiled here: {error}") from error
        message = name_at(files, tuple(map(int, place.partition("/")[2].split("."))))
        return Use(Version.of(label(closed), files, message), message)

    def make(self) -> Events:
        """Return one reader per message, and what every place is read with."""
        made = _Making({place: Written(-1, reason=reason) for place, reason in self.reasons.items()})
        messages: dict[str, list[str]] = {}
        for place in sorted(self.uses, key=lambda place: age(self.closed[place])):
            messages.setdefault(self.uses[place].message, []).append(place)
        for message, places in messages.items():
            self._add(made, message, places)
        event = pa.struct([pa.field(name, kind) for name, (kind, _) in made.types.items()])
        return Events(event, tuple(made.readers), made.written)

    def _add(self, made: _Making, message: str, places: list[str]) -> None:
        """Merge the versions of a message; those that do not fit the oldest are refused."""
        versions = {self.uses[place].version.label: self.uses[place].version for place in places}
        first, *_ = merge([*versions.values()])
        try:
            made.take(message, reader(first))
        except ValueError as fault:
            fault_of_all = f"{message} cannot be decoded: {fault}"
            made.written |= {place: Written(-1, message=message, reason=fault_of_all) for place in places}
            return
        refused = _refused(first.refused)
        for place in places:
            name = self.uses[place].version.label
            subject, version = age(self.closed[place])
            why = None if name in first.labels else refused.get(name, f"{name} does not fit")
            number = len(made.readers) - 1 if why is None else -1
            made.written[place] = Written(number, version if subject else None, subject or None, message, why)


@dataclass
class _Making:
    """Collect readers. `types`: field -> its type and the message that brought it."""

    written: dict[str, Written]
    readers: list[Reader] = field(default_factory=list)
    types: dict[str, tuple[pa.DataType, str]] = field(default_factory=dict)

    def take(self, message: str, made: Reader) -> None:
        """Add a reader; raise ValueError where a field of it has another type in another message."""
        for one in made.type:
            kind, other = self.types.get(one.name, (one.type, message))
            if kind != one.type:
                raise ValueError(f"its field {one.name} is {one.type}, and {kind} in {other}; no column holds both")
        self.types.update({one.name: (one.type, message) for one in made.type if one.name not in self.types})
        self.readers.append(made)


def _refused(findings: Iterable[Incompatible]) -> dict[str, str]:
    """Return a reason for each version that was refused."""
    reasons: dict[str, str] = {}
    for finding in findings:
        if finding.new not in reasons:
            log.warning("incompatible schemas: %s; its records become dead letters", finding)
            reasons[finding.new] = str(finding)
    return reasons
