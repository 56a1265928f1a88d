"""Know how to read what the schemas of a registry wrote: one reader per message, one event for all.

For the driver. It only ever learns: a place (a schema and a message in it) that was seen keeps its meaning, across
restarts, too.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from router_schemas.protobuf.compile import descriptors
from router_schemas.protobuf.decode import Reader, reader
from router_schemas.protobuf.events import Events, Written, place
from router_schemas.protobuf.merge import Version, merge
from router_schemas.protobuf.messages import name_at
from router_schemas.records import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router_schemas.findings import Incompatible
    from router_schemas.memory import Memory
    from router_schemas.schemas import Schemas, Unknown

log = logging.getLogger("router")
PLACES = "protobuf-places.json"
HOLD = 30.0
"""Seconds for which a place stays unknown before it is asked for again."""
Path = tuple[int, ...]


@dataclass(frozen=True)
class _Use:
    """Be one message of one schema."""

    schema: Closed
    version: Version
    message: str

    @property
    def at(self) -> tuple[str, int]:
        """Return subject and version; a registry that tells neither orders by id."""
        subjects = self.schema.schema.subjects
        return subjects[0] if subjects else ("", self.schema.schema.id)


@dataclass
class Library:
    """Hold what was learnt. `clock` is in seconds."""

    schemas: Schemas
    memory: Memory
    subjects: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    uses: dict[str, _Use] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, tuple[str, float]] = field(default_factory=dict)
    compiled: dict[int, bytes] = field(default_factory=dict)
    made: Events | None = None

    def __post_init__(self) -> None:
        self._learn(json.loads(self.memory.read(PLACES) or b"[]"))

    def refreshed(self, wanted: Iterable[str] = ()) -> Events:
        """Return how to read all that is known and what is wanted; the same object when nothing is new.

        Looks for new versions of the subjects that are known. Raises RegistryAway where a wanted schema was never seen
        and the registry cannot be asked.
        """
        before = set(self.uses) | set(self.faults) | set(self.unknown)
        now = self.clock()
        self.unknown = {name: held for name, held in self.unknown.items() if held[1] > now}
        self._learn([*wanted, *self._new_versions()])
        after = set(self.uses) | set(self.faults) | set(self.unknown)
        if self.made is None or before != after:
            self.made = self._make()
            self.memory.write(PLACES, json.dumps(sorted(self.uses)).encode())
        return self.made

    def _new_versions(self) -> list[str]:
        """Return places in new versions of subjects: the messages that older versions are used for, or the first."""
        used: dict[str, set[Path]] = {subject: set() for subject in self.subjects}
        for name, use in self.uses.items():
            for subject, _ in use.schema.schema.subjects:
                used.setdefault(subject, set()).add(_path(name))
        found = []
        for subject, paths in used.items():
            for number in self.schemas.poll([subject]):
                found += [place(number, path) for path in paths or {(0,)}]
        return found

    def _learn(self, places: Iterable[str]) -> None:
        new = [
            one for one in dict.fromkeys(places) if not (one in self.uses or one in self.faults or one in self.unknown)
        ]
        closed = self.schemas.closed({_id(one) for one in new})
        for one in new:
            self._take(one, closed[_id(one)])

    def _take(self, one: str, closed: Closed | Unknown) -> None:
        if not isinstance(closed, Closed):
            self.unknown[one] = closed.reason, self.clock() + HOLD
            return
        schema = closed.schema
        if schema.kind != "PROTOBUF":
            self.faults[one] = f"schema {schema.id} is {schema.kind}, not PROTOBUF"
            return
        try:
            files = self.compiled.get(schema.id) or descriptors(closed)
            self.compiled[schema.id] = files
            message = name_at(files, _path(one))
            self.uses[one] = _Use(closed, Version.of(_label(closed), files, message), message)
        except ValueError as fault:
            self.faults[one] = f"schema {schema.id} cannot be used: {fault}"

    def _make(self) -> Events:
        """Return one reader per message, and what every place is read with."""
        readers: list[Reader] = []
        types: dict[str, tuple[pa.DataType, str]] = {}
        written = {one: Written(-1, reason=reason) for one, reason in self.faults.items()}
        written |= {one: Written(-1, reason=reason) for one, (reason, _) in self.unknown.items()}
        by_message: dict[str, dict[str, _Use]] = {}
        for one, use in sorted(self.uses.items(), key=lambda item: item[1].at):
            by_message.setdefault(use.message, {})[one] = use
        for message, uses in by_message.items():
            written |= self._message(message, uses, readers, types)
        event = pa.struct([pa.field(name, kind) for name, (kind, _) in types.items()])
        return Events(event, tuple(readers), written)

    def _message(
        self, message: str, uses: dict[str, _Use], readers: list[Reader], types: dict[str, tuple[pa.DataType, str]]
    ) -> dict[str, Written]:
        """Merge the versions of a message; those that do not fit the oldest are refused."""
        first, *_ = merge([use.version for use in {use.version.label: use for use in uses.values()}.values()])
        refused = _refused(first.refused)
        try:
            made = reader(first)
        except ValueError as fault:
            return {one: Written(-1, message=message, reason=f"{message} cannot be decoded: {fault}") for one in uses}
        clash = next((one for one in made.type if one.name in types and types[one.name][0] != one.type), None)
        if clash is not None:
            kind, other = types[clash.name]
            reason = f"field {clash.name} is {clash.type} in {message} and {kind} in {other}: no column holds both"
            return {one: Written(-1, message=message, reason=reason) for one in uses}
        types.update({one.name: (one.type, message) for one in made.type if one.name not in types})
        readers.append(made)
        found = {}
        for one, use in uses.items():
            subject, version = use.at
            number = len(readers) - 1 if use.version.label in first.labels else -1
            why = refused.get(use.version.label, f"{use.version.label} does not fit") if number < 0 else None
            found[one] = Written(number, version if subject else None, subject or None, message, why)
        return found


def _refused(findings: Iterable[Incompatible]) -> dict[str, str]:
    """Return a reason for each version that was refused."""
    reasons: dict[str, str] = {}
    for finding in findings:
        if reasons.setdefault(finding.new, str(finding)) == str(finding):
            log.warning("incompatible schemas: %s; its records become dead letters", finding)
    return reasons


def _label(closed: Closed) -> str:
    schema = closed.schema
    if not schema.subjects:
        return f"schema {schema.id}"
    subject, version = schema.subjects[0]
    return f"{subject} version {version} (schema {schema.id})"


def _id(one: str) -> int:
    return int(one.partition("/")[0])


def _path(one: str) -> Path:
    return tuple(map(int, one.partition("/")[2].split(".")))
