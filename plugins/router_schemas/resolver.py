"""Resolve ids and GUIDs to schemas, with all the schemas that these refer to, however deep. Each is fetched once."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from threading import Lock
from typing import TYPE_CHECKING
from uuid import UUID

from router_schemas.model import LARGEST_ID, ResolvedSchema
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import NotFound, RegistryAway, UnusableSchema
from router_schemas.schema_cache import HOLD, CachedLookup, SchemaCache, Unknown, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from router import Memory
    from router_schemas.model import Reference, RegisteredSchema
    from router_schemas.registry_client import OfflineRegistry
    from router_schemas.registry_options import RegistryOptions


log = logging.getLogger(__name__)


class SchemaResolver:
    """The schemas of one registry by ids and GUIDs. For the driver; any thread may use it.

    What was resolved is kept in `memory` for ever, for ids and GUIDs never change their meaning. One lock lets one
    thread ask the registry at a time, for several schemas at once: the others find what it learnt. `clock` and `sleep`
    are in seconds.
    """

    def __init__(
        self,
        client: RegistryClient | OfflineRegistry,
        memory: Memory,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._kept = SchemaCache(memory, client.name)
        self._references = References(client)
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[int, ResolvedSchema] = {}
        self._by_id: CachedLookup[int, ResolvedSchema] = CachedLookup(self._recall, self._fetch, clock, sleep)
        self._by_guid: CachedLookup[UUID, int] = CachedLookup(self._kept.guid, self._fetch_guid, clock, sleep)
        self._versions: dict[str, dict[int, int]] = {}
        self._away_until = 0.0

    @staticmethod
    def opened(registry: RegistryOptions, folder: Path, memory: Memory) -> SchemaResolver:
        """Return the schemas of a registry; its files are looked for in `folder`, the configuration's."""
        return SchemaResolver(RegistryClient(registry.beside(folder)), memory)

    def resolved(self, names: Iterable[int | UUID]) -> dict[int | UUID, ResolvedSchema | Unknown]:
        """Return what each id or GUID means, in the order given.

        One that the registry has not is asked again a few times, about a second for all of them together, and then
        Unknown for 30 s. Raises RegistryAway when one was never seen and the registry cannot be asked: wait and call
        again, for the rows may be good. Raises RegistryRefuses when the configuration must change.
        """
        wanted = list(dict.fromkeys(names))
        found: dict[int | UUID, ResolvedSchema | Unknown] = {}
        found |= {one: self._known[one] for one in wanted if isinstance(one, int) and one in self._known}
        missing = [one for one in wanted if one not in found]
        if missing:
            with self._lock:
                found |= self._resolve(missing)
        return {one: found[one] for one in wanted}

    def poll(self, subjects: Iterable[str], *, wait: bool = False) -> frozenset[int]:
        """Return the ids of all versions of subjects; only versions not seen yet are fetched.

        A registry that is away leaves what was known, and is not polled again for 30 s; with `wait` that raises
        RegistryAway. A subject that does not exist (yet) has no ids. Raises RegistryRefuses when the configuration
        must change.
        """
        ids: set[int] = set()
        with self._lock:
            for subject in dict.fromkeys(subjects):
                for version, schema_id in self._ids(subject, wait).items():
                    self._complete(schema_id, subject, version)
                    ids.add(schema_id)
        return frozenset(ids)

    def _resolve(self, names: list[int | UUID]) -> dict[int | UUID, ResolvedSchema | Unknown]:
        """Return the meaning of each; the lock is held."""
        guids = self._by_guid.found(one for one in names if isinstance(one, UUID))
        ids = {one: guids[one] if isinstance(one, UUID) else one for one in names}
        schemas = self._by_id.found(one for one in ids.values() if isinstance(one, int))
        return {name: schemas[one] if isinstance(one, int) else one for name, one in ids.items()}

    def _recall(self, schema_id: int) -> ResolvedSchema | Unknown | None:
        """Return what is known of an id without asking the registry."""
        if not 0 <= schema_id <= LARGEST_ID:
            return Unknown(f"no schema can have the id {schema_id}: ids are 0 to {LARGEST_ID}")
        known = self._known.get(schema_id) or self._kept.schema(schema_id)
        if known is not None:
            self._known[schema_id] = known
        return known

    def _fetch(self, schema_id: int) -> ResolvedSchema:
        """Ask the registry for an id and keep the answer."""
        schema = self._client.by_id(schema_id)
        imports = self._references.imports(schema)
        return self._keep(ResolvedSchema(replace(schema, subjects=self._client.subjects_of(schema_id)), imports))

    def _fetch_guid(self, guid: UUID) -> int:
        """Ask the registry for the id of a GUID and keep the answer."""
        schema_id = self._client.id_of(guid)
        self._kept.keep_guid(guid, schema_id)
        return schema_id

    def _keep(self, resolved: ResolvedSchema) -> ResolvedSchema:
        self._kept.keep_schema(resolved)
        self._known[resolved.schema.id] = resolved
        return resolved

    def _ids(self, subject: str, wait: bool) -> dict[int, int]:
        """Return version -> id of a subject, as new as can be had; the lock is held."""
        known = self._versions[subject] if subject in self._versions else self._kept.versions(subject)
        if wait or self._clock() >= self._away_until:
            try:
                known = self._refreshed(subject, known)
            except RegistryAway as away:
                self._away_until = self._clock() + HOLD
                if wait:
                    raise
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
        new = [version for version in listed if version not in found]
        for version, schema_id in together(lambda version: self._client.version(subject, version).id, new).items():
            if isinstance(schema_id, int):  # else it is just being deleted, or is of no use here
                found[version] = schema_id
                self._by_id.forget(schema_id)  # registered since
                self._recall(schema_id)
        if found != known:
            self._kept.keep_versions(subject, found)
        return found

    def _complete(self, schema_id: int, subject: str, version: int) -> None:
        """Add a subject to a schema that was resolved before the same text was registered there, under the same id."""
        known = self._known.get(schema_id)
        if known is not None and (subject, version) not in known.schema.subjects:
            subjects = tuple(sorted({*known.schema.subjects, (subject, version)}))
            self._keep(replace(known, schema=replace(known.schema, subjects=subjects)))


DEEPEST = 64
"""References that lead from one to the next."""
MOST_IMPORTS = 1000


class References:
    """What schemas of one registry refer to; a version of a subject is fetched once. Any thread may use it."""

    def __init__(self, client: RegistryClient | OfflineRegistry) -> None:
        self._client = client
        self._referents: dict[tuple[str, int], RegisteredSchema] = {}
        self._locks: dict[tuple[str, int], Lock] = {}

    def imports(self, schema: RegisteredSchema) -> dict[str, str]:
        """Return name -> text of all that a schema refers to, dependencies first; raise Unusable.

        What is imported without a reference (`google/protobuf/timestamp.proto`) is absent: readers have it.
        """
        chosen: dict[str, tuple[Reference, RegisteredSchema]] = {}
        seen: set[Reference] = set()
        level = list(schema.references)
        for _ in range(DEEPEST):
            fresh = [reference for reference in dict.fromkeys(level) if reference not in seen]
            seen.update(fresh)
            if len(seen) > MOST_IMPORTS:
                raise UnusableSchema(f"it refers to more than {MOST_IMPORTS} schemas")
            level = []
            for reference in fresh:
                referent = self._referent(reference)
                _choose(chosen, reference, referent)
                level += referent.references
        if not seen.issuperset(level):
            raise UnusableSchema(f"its references are more than {DEEPEST} deep")
        return {name: chosen[name][1].text for name in _ordered(chosen)}

    def _referent(self, reference: Reference) -> RegisteredSchema:
        key = (reference.subject, reference.version)
        with self._locks.setdefault(key, Lock()):
            if key not in self._referents:
                self._referents[key] = self._client.version(*key)
            return self._referents[key]


def _choose(
    chosen: dict[str, tuple[Reference, RegisteredSchema]], reference: Reference, referent: RegisteredSchema
) -> None:
    """Choose the one schema that a name means.

    Where a schema and what it imports ask for two versions of one subject, the newer one serves both: that is how
    shared definitions grow.
    """
    before, other = chosen.get(reference.name, (reference, referent))
    if before.subject == reference.subject:
        newer = before.version > reference.version
        chosen[reference.name] = (before, other) if newer else (reference, referent)
    elif other.text != referent.text:
        subjects = f"{before.subject[:100]!r} and {reference.subject[:100]!r}"
        raise UnusableSchema(f"{reference.name[:100]!r} means two different schemas, of {subjects}")


def _ordered(chosen: dict[str, tuple[Reference, RegisteredSchema]]) -> list[str]:
    """Return the names, each after those that it needs."""
    needs = {name: [one.name for one in referent.references] for name, (_, referent) in chosen.items()}
    try:
        return [*TopologicalSorter(needs).static_order()]
    except CycleError as cycle:
        circle = " -> ".join(repr(name[:100]) for name in cycle.args[1][:10])
        raise UnusableSchema(f"its references go in a circle: {circle}") from None
