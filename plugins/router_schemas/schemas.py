"""Resolve schema ids with all that they refer to, once each."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from router_schemas.connection import NotFound, RegistryAway
from router_schemas.memory import Remembered
from router_schemas.records import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router_schemas.client import Client
    from router_schemas.memory import Memory
    from router_schemas.records import Reference, Registered

log = logging.getLogger(__name__)

LARGEST_ID = 2**31 - 1
"""Ids are Java's int; some registries answer nonsense to others, which any garbage can contain."""
PAUSES = (0.1, 0.3, 0.6)
"""Seconds before an unknown id is asked again: one that was registered just now may not be visible yet."""
HOLD = 30.0
"""Seconds for which an unknown id stays unknown, and for which `poll` leaves a registry alone that was away."""
DEEPEST = 64
"""References that lead from one to the next."""
MOST_IMPORTS = 1000


@dataclass(frozen=True)
class Unknown:
    """Be an id that the registry does not have, or has nothing usable under; `reason` is for dead letters."""

    id: int
    reason: str


class Schemas:
    """Know the schemas of one registry. For the driver; any thread may ask.

    What was resolved is kept in `memory` for ever, for an id never changes its meaning. One lock lets one thread ask
    the registry at a time: the others find what it learnt. `clock` and `sleep` are in seconds.
    """

    def __init__(
        self,
        client: Client,
        memory: Memory,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._kept = Remembered(memory, client.name)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._known: dict[int, Closed] = {}
        self._unknown: dict[int, tuple[Unknown, float]] = {}
        self._versions: dict[str, dict[int, int]] = {}
        self._referents: dict[tuple[str, int], Registered] = {}
        self._away_until = 0.0

    def closed(self, ids: Iterable[int]) -> dict[int, Closed | Unknown]:
        """Return what each id means, in the order given.

        An id that the registry has not is asked again a few times, about a second for all of them together, and then
        Unknown for 30 s. Raises RegistryAway when an id was never seen and the registry cannot be asked: wait and call
        again, for the rows may be good. Raises RegistryRefuses when the configuration must change.
        """
        wanted = list(dict.fromkeys(ids))
        found: dict[int, Closed | Unknown] = {one: self._known[one] for one in wanted if one in self._known}
        missing = [one for one in wanted if one not in found]
        if missing:
            with self._lock:
                found |= self._resolve(missing)
        return {one: found[one] for one in wanted}

    def poll(self, subjects: Iterable[str]) -> frozenset[int]:
        """Return the ids of all versions of subjects; only versions not seen yet are fetched.

        A registry that is away leaves what was known, and is not polled again for 30 s; a subject that does not exist
        (yet) has no ids. Raises RegistryRefuses when the configuration must change.
        """
        ids: set[int] = set()
        with self._lock:
            for subject in dict.fromkeys(subjects):
                for version, schema_id in self._ids(subject).items():
                    self._complete(schema_id, subject, version)
                    ids.add(schema_id)
        return frozenset(ids)

    def _resolve(self, ids: list[int]) -> dict[int, Closed | Unknown]:
        """Return every id's meaning from memory or from the registry; the lock is held."""
        self._forget()
        found = {one: told for one in ids if (told := self._recall(one)) is not None}
        reasons: dict[int, str] = {}
        for pause in (0.0, *PAUSES):
            missing = [one for one in ids if one not in found]
            if missing and pause:
                self._sleep(pause)
            for one in missing:
                try:
                    found[one] = self._fetch(one)
                except NotFound as absent:
                    reasons[one] = str(absent)
                except _UnusableError as fault:
                    found[one] = self._hold(one, f"schema {one} cannot be used: {fault}")
        return found | {one: self._hold(one, reason) for one, reason in reasons.items() if one not in found}

    def _recall(self, schema_id: int) -> Closed | Unknown | None:
        """Return what is known of an id without asking the registry."""
        if not 0 <= schema_id <= LARGEST_ID:
            return Unknown(schema_id, f"no schema can have the id {schema_id}: ids are 0 to {LARGEST_ID}")
        if schema_id in self._unknown:
            return self._unknown[schema_id][0]
        known = self._known.get(schema_id) or self._kept.schema(schema_id)
        if known is not None:
            self._known[schema_id] = known
        return known

    def _fetch(self, schema_id: int) -> Closed:
        """Ask the registry for an id and keep the answer."""
        schema = self._client.by_id(schema_id)
        imports = self._imports(schema)
        return self._keep(Closed(replace(schema, subjects=self._client.subjects_of(schema_id)), imports))

    def _keep(self, closed: Closed) -> Closed:
        self._kept.keep_schema(closed)
        self._known[closed.schema.id] = closed
        return closed

    def _hold(self, schema_id: int, reason: str) -> Unknown:
        """Remember for a short time that an id is of no use."""
        unknown = Unknown(schema_id, reason)
        self._unknown[schema_id] = unknown, self._clock() + HOLD
        return unknown

    def _forget(self) -> None:
        now = self._clock()
        self._unknown = {one: held for one, held in self._unknown.items() if held[1] > now}

    def _imports(self, schema: Registered) -> dict[str, str]:
        """Return name -> text of all that a schema refers to, dependencies first; raise _UnusableError.

        What is imported without a reference (`google/protobuf/timestamp.proto`) is absent: readers have it.
        """
        chosen: dict[str, tuple[Reference, Registered]] = {}
        seen: set[Reference] = set()
        level = list(schema.references)
        for _ in range(DEEPEST):
            fresh = [reference for reference in dict.fromkeys(level) if reference not in seen]
            seen.update(fresh)
            if len(seen) > MOST_IMPORTS:
                raise _UnusableError(f"it refers to more than {MOST_IMPORTS} schemas")
            level = []
            for reference in fresh:
                referent = self._referent(reference)
                _choose(chosen, reference, referent)
                level += referent.references
        if not seen.issuperset(level):
            raise _UnusableError(f"its references are more than {DEEPEST} deep")
        return {name: chosen[name][1].text for name in _ordered(chosen)}

    def _referent(self, reference: Reference) -> Registered:
        key = (reference.subject, reference.version)
        if key not in self._referents:
            self._referents[key] = self._client.version(*key)
        return self._referents[key]

    def _ids(self, subject: str) -> dict[int, int]:
        """Return version -> id of a subject, as new as can be had; the lock is held."""
        known = self._versions[subject] if subject in self._versions else self._kept.versions(subject)
        if self._clock() >= self._away_until:
            try:
                known = self._refreshed(subject, known)
            except RegistryAway as away:
                self._away_until = self._clock() + HOLD
                log.warning("new schemas are not seen for now: %s", away)
        self._versions[subject] = known
        return known

    def _refreshed(self, subject: str, known: dict[int, int]) -> dict[int, int]:
        """Return version -> id of the versions that the registry lists now."""
        try:
            listed = self._client.versions(subject)
        except NotFound:
            listed = ()
        found = {version: known[version] for version in listed if version in known}
        for version in listed:
            if version not in found:
                with suppress(NotFound):  # it is just being deleted, or is of no use here
                    found[version] = self._client.version(subject, version).id
                    self._unknown.pop(found[version], None)  # registered since
                    self._recall(found[version])
        if found != known:
            self._kept.keep_versions(subject, found)
        return found

    def _complete(self, schema_id: int, subject: str, version: int) -> None:
        """Add a subject to a schema that was resolved before the same text was registered there, under the same id."""
        known = self._known.get(schema_id)
        if known is not None and (subject, version) not in known.schema.subjects:
            subjects = tuple(sorted({*known.schema.subjects, (subject, version)}))
            self._keep(replace(known, schema=replace(known.schema, subjects=subjects)))


class _UnusableError(Exception):
    """Say why the references of a schema cannot be followed."""


def _choose(chosen: dict[str, tuple[Reference, Registered]], reference: Reference, referent: Registered) -> None:
    """Let a name mean one schema.

    Where a schema and what it imports ask for two versions of one subject, the newer one serves both: that is how
    shared definitions grow.
    """
    before, other = chosen.get(reference.name, (reference, referent))
    if before.subject == reference.subject:
        newer = before.version > reference.version
        chosen[reference.name] = (before, other) if newer else (reference, referent)
    elif other.text != referent.text:
        subjects = f"{before.subject[:100]!r} and {reference.subject[:100]!r}"
        raise _UnusableError(f"{reference.name[:100]!r} means two different schemas, of {subjects}")


def _ordered(chosen: dict[str, tuple[Reference, Registered]]) -> list[str]:
    """Return the names, each after those that it needs."""
    needs = {name: [one.name for one in referent.references] for name, (_, referent) in chosen.items()}
    try:
        return [*TopologicalSorter(needs).static_order()]
    except CycleError as cycle:
        circle = " -> ".join(repr(name[:100]) for name in cycle.args[1][:10])
        raise _UnusableError(f"its references go in a circle: {circle}") from None
