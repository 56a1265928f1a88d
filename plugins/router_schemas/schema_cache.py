"""Cache what a registry has, and what it does not have.

- Schemas, ids of GUIDs and versions of subjects are cached for ever, beside the checkpoint: a restart does not need the
  registry (SchemaCache).
- An id or GUID that the registry does not have is asked for a few times, because it may have been registered just now,
  and is then left alone for HOLD seconds (CachedLookup).
"""

from __future__ import annotations

import hashlib
import logging
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from router_schemas.model import ResolvedSchema, WriterSchema
from router_schemas.registry_options import NotFound, UnusableSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from router import Memory


T = TypeVar("T")

log = logging.getLogger(__name__)

_RESOLVED: TypeAdapter[ResolvedSchema] = TypeAdapter(ResolvedSchema)
_VERSIONS: TypeAdapter[dict[int, int]] = TypeAdapter(dict[int, int])
_ID: TypeAdapter[int] = TypeAdapter(int)


class SchemaCache:
    """The schemas of one registry that were fetched, a file for each id, GUID and subject.

    `registry` is the name of the registry, its first URL. A write of the memory that returned is there after a
    crash; one that did not left the old content or the new one, whole. Names are `[a-z0-9.-]+` and hold hashes:
    nothing from the registry or from the data becomes part of a path. A file that cannot be read counts as missing.
    """

    def __init__(self, memory: Memory, registry: str) -> None:
        self._memory = memory
        self._registry = registry

    def schema(self, schema_id: int) -> ResolvedSchema | None:
        """Return what was kept for an id."""
        found = self._read(self._name("id", str(schema_id)), _RESOLVED)
        return found if found is not None and found.schema.id == schema_id else None

    def keep_schema(self, resolved: ResolvedSchema) -> None:
        """Keep a schema under its id."""
        self._memory.write(self._name("id", str(resolved.schema.id)), _RESOLVED.dump_json(resolved))

    def guid(self, guid: UUID) -> int | None:
        """Return the id that was kept for a GUID."""
        return self._read(self._name("guid", str(guid)), _ID)

    def keep_guid(self, guid: UUID, schema_id: int) -> None:
        """Keep the id of a GUID."""
        self._memory.write(self._name("guid", str(guid)), _ID.dump_json(schema_id))

    def versions(self, subject: str) -> dict[int, int]:
        """Return version -> id of a subject as they were kept."""
        return self._read(self._name("subject", subject), _VERSIONS) or {}

    def keep_versions(self, subject: str, versions: dict[int, int]) -> None:
        """Keep version -> id of a subject."""
        self._memory.write(self._name("subject", subject), _VERSIONS.dump_json(versions))

    def _name(self, what: str, key: str) -> str:
        digest = hashlib.sha256(f"{self._registry}\n{what}\n{key}".encode()).hexdigest()
        return f"{what}-{digest[:32]}.json"

    def _read(self, name: str, kind: TypeAdapter[T]) -> T | None:
        try:
            content = self._memory.read(name)
            return None if content is None else kind.validate_json(content)
        except (OSError, ValidationError) as error:
            log.warning("remembered schema %s cannot be read and is fetched again: %s", name, type(error).__name__)
            return None


K = TypeVar("K", "int", "UUID")
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")

PAUSES = (0.1, 0.3, 0.6)
"""Seconds before what is not there is asked for again: a schema registered just now may not be visible yet."""
HOLD = 30.0
"""Seconds for which what was not there stays unknown."""
AT_ONCE = 8
"""Requests that a registry gets at the same time: garbage can look like frames with as many ids as there are rows."""


@dataclass(frozen=True)
class Unknown:
    """What the registry does not have, or has nothing usable for; `reason` is for dead letters."""

    reason: str


class CachedLookup(Generic[K, V]):
    """A lookup of what ids or GUIDs stand for: in the cache, then in the registry.

    `recall` returns what is known without asking, `fetch` asks; it raises NotFound or Unusable, and what else it
    raises says nothing about the key; several threads call it. `clock` and `sleep` are in seconds. The caller holds a
    lock.
    """

    def __init__(
        self,
        recall: Callable[[K], V | Unknown | None],
        fetch: Callable[[K], V],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._recall: Callable[[K], V | Unknown | None] = recall
        self._fetch: Callable[[K], V] = fetch
        self._clock = clock
        self._sleep = sleep
        self._unknown: dict[K, tuple[Unknown, float]] = {}

    def found(self, keys: Iterable[K]) -> dict[K, V | Unknown]:
        """Return what each key stands for: from memory, or from the registry, about a second for all together."""
        keys, now = list(dict.fromkeys(keys)), self._clock()
        self._unknown = {key: held for key, held in self._unknown.items() if held[1] > now}
        found: dict[K, V | Unknown] = {}
        for key in keys:
            cached = self._unknown[key][0] if key in self._unknown else self._recall(key)
            if cached is not None:
                found[key] = cached
        absent: dict[K, NotFound] = {}
        for pause in (0.0, *PAUSES):
            missing = [key for key in keys if key not in found]
            if missing and pause:
                self._sleep(pause)
            for key, answer in together(self._fetch, missing).items():
                if isinstance(answer, NotFound):
                    absent[key] = answer
                elif isinstance(answer, UnusableSchema):
                    found[key] = self._hold(key, f"{WriterSchema(key)} cannot be used: {answer}")
                else:
                    found[key] = answer
        return found | {key: self._hold(key, _absence(key, fault)) for key, fault in absent.items() if key not in found}

    def forget(self, key: K) -> None:
        """Ask for a key again, though it was not there."""
        self._unknown.pop(key, None)

    def _hold(self, key: K, reason: str) -> Unknown:
        """Remember for a short time that there is nothing."""
        unknown = Unknown(reason)
        self._unknown[key] = unknown, self._clock() + HOLD
        return unknown


def together(ask: Callable[[A], B], keys: Iterable[A]) -> dict[A, B | NotFound | UnusableSchema]:
    """Return what is answered for each key, in the order of the keys, AT_ONCE asked at a time.

    Raises what says nothing about a key, such as RegistryAway, and then asks for no more.
    """

    over = Event()

    def answer(key: A) -> B | NotFound | UnusableSchema:
        if over.is_set():
            raise CancelledError
        try:
            return ask(key)
        except (NotFound, UnusableSchema) as fault:
            return fault
        except BaseException:
            over.set()
            raise

    wanted = list(keys)
    if len(wanted) < 2:
        return {key: answer(key) for key in wanted}
    with ThreadPoolExecutor(AT_ONCE, "schemas") as threads:
        asked = {key: threads.submit(answer, key) for key in wanted}
        try:
            wait(asked.values())
        except BaseException:  # the stream is to end
            over.set()
            raise
    faults = [fault for future in asked.values() if (fault := future.exception()) is not None]
    for fault in faults:
        if not isinstance(fault, CancelledError):
            raise fault
    return {key: future.result() for key, future in asked.items()}


def _absence(key: int | UUID, fault: NotFound) -> str:
    """Return a reason that says what matters first: the URL stands at the end."""
    return f"the registry does not give {WriterSchema(key)}: {fault.what} ({fault.where})"
