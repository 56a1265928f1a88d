"""Resolve ids and GUIDs to schemas, with all the schemas that these refer to, however deep. Each is fetched once.

What a registry has, and what it does not have, is kept:

- Schemas, ids of GUIDs and versions of subjects are cached for ever, next to the checkpoint, so that a restart needs no
  registry (SchemaCache).
- An id or GUID that the registry does not have is left alone for UNKNOWN_HOLD_SECONDS. Near the largest known id it is
  asked for a few times, and by every batch, because it may have been registered just now (CachedLookup).
- An id that the registry refuses is the one that is wrong if the registry gives another one at that moment. Otherwise
  the registry is waited for.
"""

from __future__ import annotations

import hashlib
import logging
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from threading import Event, Lock
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from router_schemas.model import LARGEST_ID, UNKNOWN_HOLD_SECONDS, ResolvedSchema, WriterSchema
from router_schemas.registry_client import REQUESTS_AT_ONCE, RegistryClient
from router_schemas.registry_options import NotFound, RegistryAway, RegistryRefuses, UnusableSchema
from router_schemas.subject_names import context_of, qualify_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from router import Memory
    from router_schemas.model import Reference, RegisteredSchema
    from router_schemas.registry_client import OfflineRegistry
    from router_schemas.registry_options import RegistryOptions


log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", "int", "UUID")
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")

RETRY_PAUSES_SECONDS = (0.1, 0.3, 0.6)
"""Seconds before an id near the known ones is asked for again: one registered just now may not be visible yet."""
NEAR_ID_DISTANCE = 1000
"""How far an id may be from the largest known one to be one that was registered just now. Garbage is mostly farther."""
NEAR_HOLD_SECONDS = 1.0
"""Seconds for which such an id stays unknown."""
POLL_PAUSE_SECONDS = 30.0
"""Seconds for which a registry that does not answer is not asked for new versions."""
CONTROL_IDS = 3
"""Known ids that are asked for to tell a refused id from a registry that refuses all."""
Fault: TypeAlias = "NotFound | UnusableSchema | RegistryRefuses"
KEY_FAULTS = (NotFound, UnusableSchema, RegistryRefuses)
"""What a request raises if it tells something about its key alone."""


class SchemaResolver:
    """The schemas of one registry by ids and GUIDs. For the driver; any thread may use it.

    What was resolved is kept in `memory` for ever, for ids and GUIDs never change their meaning. One lock lets one
    thread ask the registry at a time, for several schemas at once: the others find what it learnt. `clock` and `sleep`
    are in seconds. `unavailable` says why the registry could not be asked for the versions of a subject just now.
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
        self._lock = Lock()
        self._known: dict[int | UUID, ResolvedSchema] = {}
        self._by_id: CachedLookup[int, ResolvedSchema] = CachedLookup(
            recall=self._recall_id,
            fetch=self._fetch_id,
            is_near=self._is_near,
            check=self._check_registry,
            clock=clock,
            sleep=sleep,
        )
        # No garbage has a GUID: each may be of a schema that was registered just now.
        self._by_guid: CachedLookup[UUID, int] = CachedLookup(
            recall=self._kept.read_id_of_guid,
            fetch=self._fetch_guid,
            is_near=lambda guid: True,
            check=self._check_registry,
            clock=clock,
            sleep=sleep,
        )
        self._versions: dict[str, dict[int, int]] = {}
        self._away_until = 0.0
        self.unavailable = ""
        self._refused_until: dict[str, float] = {}

    @staticmethod
    def open_registry(registry: RegistryOptions, folder: Path, memory: Memory, subject: str = "") -> SchemaResolver:
        """Return the schemas of a registry, in the context of a subject.

        Files of the options are looked for in `folder`, the configuration's.
        """
        return SchemaResolver(RegistryClient(registry.resolve_paths(folder), subject=subject), memory)

    def resolve_ids(self, names: Iterable[int | UUID]) -> dict[int | UUID, ResolvedSchema | Unknown]:
        """Return the schema of each id or GUID, in the order given.

        One that the registry does not have is Unknown for a minute; near the largest known id it is asked for again
        within a second. Raises RegistryAway when one was never seen and the registry cannot be asked, or refuses also
        what it gave before: wait and call again, for the rows may be good. Raises RegistryRefuses when nothing is known
        and the configuration may be wrong.
        """
        wanted = list(dict.fromkeys(names))
        missing = [name for name in wanted if name not in self._known]
        learnt: dict[int | UUID, ResolvedSchema | Unknown] = {}
        if missing:
            with self._lock:
                learnt = self._resolve_locked(missing)
        return {name: learnt[name] if name in learnt else self._known[name] for name in wanted}

    def poll_subjects(self, subjects: Iterable[str], *, wait: bool = False) -> frozenset[int]:
        """Return the ids of all versions of subjects; only versions not seen yet are fetched.

        While the registry is unavailable or refuses a subject, the versions known so far are returned, and that is not
        asked for again for 30 s; with `wait` that raises RegistryAway. A subject that does not exist (yet) has no ids.
        Raises RegistryRefuses when nothing is known and the configuration may be wrong.
        """
        ids: set[int] = set()
        with self._lock:
            for subject in dict.fromkeys(subjects):
                for version, schema_id in self._ids_by_version(subject, wait).items():
                    self._add_subject(schema_id, subject, version)
                    ids.add(schema_id)
        return frozenset(ids)

    @property
    def absence(self) -> str:
        """Return why the registry does not give an id that it does not have, with `{id}` in the place of the id."""
        return self._client.absence

    def _resolve_locked(self, names: list[int | UUID]) -> dict[int | UUID, ResolvedSchema | Unknown]:
        """Return the meaning of each; the lock is held."""
        by_guid = self._by_guid.look_up(name for name in names if isinstance(name, UUID))
        ids: dict[int | UUID, int | Unknown] = {}
        for name in names:
            ids[name] = by_guid[name] if isinstance(name, UUID) else name
        schemas = self._by_id.look_up(schema_id for schema_id in ids.values() if isinstance(schema_id, int))
        meanings: dict[int | UUID, ResolvedSchema | Unknown] = {}
        for name, schema_id in ids.items():
            meanings[name] = schemas[schema_id] if isinstance(schema_id, int) else schema_id
        return meanings

    def _recall_id(self, schema_id: int) -> ResolvedSchema | Unknown | None:
        """Return the known schema of an id without asking the registry."""
        if not 0 <= schema_id <= LARGEST_ID:
            return Unknown(f"no schema can have the id {schema_id}: ids are 0 to {LARGEST_ID}")
        resolved = self._known.get(schema_id) or self._kept.read_schema(schema_id)
        if resolved is not None:
            self._known[schema_id] = resolved
        return resolved

    def _fetch_id(self, schema_id: int) -> ResolvedSchema:
        """Ask the registry for an id and keep the answer."""
        schema = self._client.by_id(schema_id)
        try:
            imports = self._references.imports_of(schema)
        except NotFound as fault:
            raise UnusableSchema(f"{fault.what} ({fault.where})") from None
        return self._keep_schema(ResolvedSchema(replace(schema, subjects=self._client.subjects_of(schema_id)), imports))

    def _fetch_guid(self, guid: UUID) -> int:
        """Ask the registry for the id of a GUID and keep the answer."""
        schema_id = self._client.id_of(guid)
        self._kept.keep_guid(guid, schema_id)
        return schema_id

    def _is_near(self, schema_id: int) -> bool:
        """Return whether an id may be one that was registered just now; if no id is known, each may be."""
        known = self._known_ids()
        return not known or abs(schema_id - known[-1]) <= NEAR_ID_DISTANCE

    def _known_ids(self) -> list[int]:
        return sorted(name for name in self._known if isinstance(name, int))

    def _check_registry(self, refusal: RegistryRefuses) -> None:
        """Raise RegistryAway if the registry gives no known id either; the refusal itself if no id is known."""
        known = self._known_ids()[-CONTROL_IDS:]
        if not known:
            raise refusal
        for schema_id in known:
            with suppress(NotFound, RegistryRefuses):
                self._client.by_id(schema_id)
                self._client.subjects_of(schema_id)
                return
        raise RegistryAway(refusal.where, f"{refusal.what}; it refuses known schemas also", refusal.status)

    def _keep_schema(self, resolved: ResolvedSchema) -> ResolvedSchema:
        self._kept.keep_schema(resolved)
        self._known[resolved.schema.id] = resolved
        return resolved

    def _ids_by_version(self, subject: str, wait: bool) -> dict[int, int]:
        """Return version -> id of a subject, as new as possible; the lock is held."""
        if subject not in self._versions:
            self._versions[subject] = self._kept.read_versions(subject)
        quiet_until = max(self._away_until, self._refused_until.get(subject, 0.0))
        if not wait and self._clock() < quiet_until:
            return self._versions[subject]
        try:
            self._versions[subject] = self._refresh_versions(subject)
            self.unavailable = ""
        except RegistryAway as away:
            self._away_until = self._clock() + POLL_PAUSE_SECONDS
            self.unavailable = str(away)
            if wait:
                raise
            log.warning("new schemas are not seen for now: %s", away)
        except RegistryRefuses as refusal:
            # If nothing was ever known, the configuration is wrong. Known schemas need no registry.
            if not self._known and not self._versions[subject]:
                raise
            self._refused_until[subject] = self._clock() + POLL_PAUSE_SECONDS
            if wait:
                raise RegistryAway(refusal.where, refusal.what, refusal.status) from None
            log.warning("new schemas of %s are not seen for now: %s", subject, refusal)
        return self._versions[subject]

    def _refresh_versions(self, subject: str) -> dict[int, int]:
        """Return version -> id of the versions that the registry lists now."""
        before = self._versions[subject]
        try:
            listed = self._client.versions(subject)
        except NotFound:
            listed = ()
        versions = {version: before[version] for version in listed if version in before}
        new = [version for version in listed if version not in before]
        for version, schema_id in ask_all(lambda version: self._client.version(subject, version).id, new).items():
            if isinstance(schema_id, int):  # else it is just being deleted, or is of no use here
                versions[version] = schema_id
                # The id may have been asked for before it was registered.
                self._by_id.forget_key(schema_id)
                self._recall_id(schema_id)
        if versions != before:
            self._kept.keep_versions(subject, versions)
        return versions

    def _add_subject(self, schema_id: int, subject: str, version: int) -> None:
        """Add a subject to a schema that was resolved before the same text was registered there, under the same id."""
        resolved = self._known.get(schema_id)
        if resolved is not None and (subject, version) not in resolved.schema.subjects:
            subjects = tuple(sorted({*resolved.schema.subjects, (subject, version)}))
            self._keep_schema(replace(resolved, schema=replace(resolved.schema, subjects=subjects)))


MAX_IMPORT_DEPTH = 64
"""References that lead from one to the next."""
MAX_IMPORTS = 1000


class References:
    """What schemas of one registry refer to; a version of a subject is fetched once. Any thread may use it."""

    def __init__(self, client: RegistryClient | OfflineRegistry) -> None:
        self._client = client
        self._referents: dict[tuple[str, int], RegisteredSchema] = {}
        self._locks: dict[tuple[str, int], Lock] = {}

    def imports_of(self, schema: RegisteredSchema) -> dict[str, str]:
        """Return name -> text of all that a schema refers to, dependencies first; raise UnusableSchema.

        What is imported without a reference (`google/protobuf/timestamp.proto`) is absent: readers have their own.
        """
        chosen: dict[str, tuple[Reference, RegisteredSchema]] = {}
        seen: set[Reference] = set()
        level = _qualify_references(schema.references, self._client.context)
        for _ in range(MAX_IMPORT_DEPTH):
            fresh = [reference for reference in dict.fromkeys(level) if reference not in seen]
            seen.update(fresh)
            if len(seen) > MAX_IMPORTS:
                raise UnusableSchema(f"it refers to more than {MAX_IMPORTS} schemas")
            level = []
            for reference in fresh:
                referent = self._find_referent(reference)
                _choose_schema(chosen, reference, referent)
                level += _qualify_references(referent.references, context_of(reference.subject))
        if not seen.issuperset(level):
            raise UnusableSchema(f"its references are more than {MAX_IMPORT_DEPTH} deep")
        return {name: chosen[name][1].text for name in _order_by_need(chosen)}

    def _find_referent(self, reference: Reference) -> RegisteredSchema:
        key = (reference.subject, reference.version)
        with self._locks.setdefault(key, Lock()):
            if key not in self._referents:
                self._referents[key] = self._client.version(*key)
            return self._referents[key]


def _qualify_references(references: Iterable[Reference], context: str) -> list[Reference]:
    """Return references with their subjects' contexts: most are registered without, and are of the referrer's."""
    return [replace(reference, subject=qualify_subject(reference.subject, context)) for reference in references]


def _choose_schema(
    chosen: dict[str, tuple[Reference, RegisteredSchema]], reference: Reference, referent: RegisteredSchema
) -> None:
    """Choose the one schema that a name means.

    If a schema and one that it imports require two versions of one subject, the newer one serves both: that is how
    shared definitions grow.
    """
    before, other = chosen.get(reference.name, (reference, referent))
    if before.subject == reference.subject:
        if before.version <= reference.version:
            chosen[reference.name] = (reference, referent)
    elif other.text != referent.text:
        subjects = f"{before.subject[:100]!r} and {reference.subject[:100]!r}"
        raise UnusableSchema(f"{reference.name[:100]!r} means two different schemas, of {subjects}")


def _order_by_need(chosen: dict[str, tuple[Reference, RegisteredSchema]]) -> list[str]:
    """Return the names, each after those that it needs."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, (_, referent) in chosen.items():
        sorter.add(name, *(reference.name for reference in referent.references))
    try:
        return [*sorter.static_order()]
    except CycleError as cycle:
        circle = " -> ".join(repr(name[:100]) for name in cycle.args[1][:10])
        raise UnusableSchema(f"its references go in a circle: {circle}") from None


_SCHEMA_FILE: TypeAdapter[ResolvedSchema] = TypeAdapter(ResolvedSchema)
_VERSIONS_FILE: TypeAdapter[dict[int, int]] = TypeAdapter(dict[int, int])
_ID_FILE: TypeAdapter[int] = TypeAdapter(int)


class SchemaCache:
    """The schemas of one registry that were fetched, a file for each id, GUID and subject.

    `registry` is the name of the registry, its first URL and the context of ids. A write that has returned survives a
    crash; one that has not leaves the old content or the new one, never a part. Names are `[a-z0-9.-]+` and hold
    hashes: nothing from the registry or from the data becomes part of a path. A file that cannot be read counts
    as missing.
    """

    def __init__(self, memory: Memory, registry: str) -> None:
        self._memory = memory
        self._registry = registry

    def read_schema(self, schema_id: int) -> ResolvedSchema | None:
        """Return the schema that was kept for an id."""
        resolved = self._read_file(self._file_name("id", str(schema_id)), _SCHEMA_FILE)
        if resolved is None or resolved.schema.id != schema_id:
            return None
        return resolved

    def keep_schema(self, resolved: ResolvedSchema) -> None:
        """Keep a schema under its id."""
        self._memory.write(self._file_name("id", str(resolved.schema.id)), _SCHEMA_FILE.dump_json(resolved))

    def read_id_of_guid(self, guid: UUID) -> int | None:
        """Return the id that was kept for a GUID."""
        return self._read_file(self._file_name("guid", str(guid)), _ID_FILE)

    def keep_guid(self, guid: UUID, schema_id: int) -> None:
        """Keep the id of a GUID."""
        self._memory.write(self._file_name("guid", str(guid)), _ID_FILE.dump_json(schema_id))

    def read_versions(self, subject: str) -> dict[int, int]:
        """Return version -> id of a subject as they were kept."""
        return self._read_file(self._file_name("subject", subject), _VERSIONS_FILE) or {}

    def keep_versions(self, subject: str, versions: dict[int, int]) -> None:
        """Keep version -> id of a subject."""
        self._memory.write(self._file_name("subject", subject), _VERSIONS_FILE.dump_json(versions))

    def _file_name(self, category: str, key: str) -> str:
        digest = hashlib.sha256(f"{self._registry}\n{category}\n{key}".encode()).hexdigest()
        return f"{category}-{digest[:32]}.json"

    def _read_file(self, name: str, kind: TypeAdapter[T]) -> T | None:
        try:
            content = self._memory.read(name)
            return None if content is None else kind.validate_json(content)
        except (OSError, ValidationError) as error:
            log.warning("remembered schema %s cannot be read and is fetched again: %s", name, type(error).__name__)
            return None


@dataclass(frozen=True)
class Unknown:
    """An id or GUID that gives no schema; `reason` is for dead letters.

    `is_absent`: the registry has looked, and has no such id. Tasks name that reason themselves, so nothing is decoded
    again for it. Otherwise the registry refused the request, or has a schema that is unusable.
    """

    reason: str
    is_absent: bool = False


class CachedLookup(Generic[K, V]):
    """A lookup of the meaning of ids or GUIDs: in the cache, then in the registry.

    `recall` returns what is known without asking, `fetch` asks: several threads call both. `fetch` raises NotFound,
    UnusableSchema or RegistryRefuses; any other error tells nothing about the key. `is_near` returns whether a key may
    have been registered just now. `check` is called if all of a look-up's answers may be the registry's own fault; it
    raises if they are. `clock` and `sleep` are in seconds. The caller holds a lock.
    """

    def __init__(
        self,
        recall: Callable[[K], V | Unknown | None],
        fetch: Callable[[K], V],
        is_near: Callable[[K], bool],
        check: Callable[[RegistryRefuses], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._recall: Callable[[K], V | Unknown | None] = recall
        self._fetch: Callable[[K], V] = fetch
        self._is_near: Callable[[K], bool] = is_near
        self._check = check
        self._clock = clock
        self._sleep = sleep
        self._unknown: dict[K, tuple[Unknown, float]] = {}
        """Key -> why it has no meaning, and when the registry was asked."""

    def look_up(self, keys: Iterable[K]) -> dict[K, V | Unknown]:
        """Return the meaning of each key: from memory, or from the registry."""
        now = self._clock()
        self._unknown = {key: held for key, held in self._unknown.items() if now < held[1] + UNKNOWN_HOLD_SECONDS}
        meanings: dict[K, V | Unknown] = {}
        candidates: list[K] = []
        for key in dict.fromkeys(keys):
            if self._is_held(key, now):
                meanings[key] = self._unknown[key][0]
            else:
                candidates.append(key)

        # The memory may be an object store: many ids are read at once there as well.
        missing: list[K] = []
        for key, recalled in ask_all(self._recall, candidates).items():
            if recalled is None:
                missing.append(key)
            elif isinstance(recalled, KEY_FAULTS):
                raise recalled
            else:
                meanings[key] = recalled
        for key, answer in self._ask_registry(missing).items():
            meanings[key] = self._remember_meaning(key, answer)
        return meanings

    def forget_key(self, key: K) -> None:
        """Forget that a key was not there, so that it is asked for again."""
        self._unknown.pop(key, None)

    def _is_held(self, key: K, now: float) -> bool:
        """Return whether a key without a meaning is not to be asked for again yet."""
        if key not in self._unknown:
            return False
        unknown, asked = self._unknown[key]
        if unknown.is_absent and self._is_near(key):
            return now < asked + NEAR_HOLD_SECONDS
        return now < asked + UNKNOWN_HOLD_SECONDS

    def _ask_registry(self, keys: list[K]) -> dict[K, V | Fault]:
        """Return the registry's answers; raise if it refuses keys and may be what is wrong itself."""
        answers = ask_all(self._fetch, keys)
        # A producer may be ahead of the registry's replica: what may have been registered just now is asked for again,
        # for a second at most, and only by the first batch that has it.
        answered = self._clock()
        for pause in RETRY_PAUSES_SECONDS:
            again = []
            for key, answer in answers.items():
                if type(answer) is NotFound and key not in self._unknown and self._is_near(key):
                    again.append(key)
            if not again or self._clock() >= answered + sum(RETRY_PAUSES_SECONDS):
                break
            self._sleep(pause)
            answers.update(ask_all(self._fetch, again))

        refusals = [answer for answer in answers.values() if isinstance(answer, RegistryRefuses)]
        if refusals and all(isinstance(answer, KEY_FAULTS) for answer in answers.values()):
            self._check(refusals[0])
        return answers

    def _remember_meaning(self, key: K, answer: V | Fault) -> V | Unknown:
        """Return the meaning of an answer, and remember for a while that there is none."""
        if isinstance(answer, UnusableSchema):
            unknown = Unknown(f"{WriterSchema(key)} cannot be used: {answer}")
        elif isinstance(answer, (NotFound, RegistryRefuses)):
            # The URL is at the end, for long reasons are cut off.
            reason = f"the registry does not give {WriterSchema(key)}: {answer.what} ({answer.where})"
            unknown = Unknown(reason, is_absent=type(answer) is NotFound and isinstance(key, int))
        else:
            return answer
        self._unknown[key] = unknown, self._clock()
        return unknown


def ask_all(ask: Callable[[A], B], keys: list[A]) -> dict[A, B | Fault]:
    """Return the answer for each key, in the order of the keys, with REQUESTS_AT_ONCE at a time.

    An error that tells nothing about a key, such as RegistryAway, is raised, and no more keys are asked for.
    """

    over = Event()

    def ask_one(key: A) -> B | Fault:
        if over.is_set():
            raise CancelledError
        try:
            return ask(key)
        except KEY_FAULTS as fault:
            return fault
        except BaseException:
            over.set()
            raise

    if len(keys) < 2:
        return {key: ask_one(key) for key in keys}
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "schemas") as threads:
        answers = {key: threads.submit(ask_one, key) for key in keys}
        try:
            wait(answers.values())
        except BaseException:  # the stream is to end
            over.set()
            raise
    # Requests that were given up because of another one's error have a CancelledError: raise the error itself.
    for future in answers.values():
        fault = future.exception()
        if fault is not None and not isinstance(fault, CancelledError):
            raise fault
    return {key: future.result() for key, future in answers.items()}
