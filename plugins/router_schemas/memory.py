"""Remember what a registry said, so that a restart does not need it."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from router_schemas.records import Closed

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

T = TypeVar("T")

log = logging.getLogger(__name__)

_CLOSED: TypeAdapter[Closed] = TypeAdapter(Closed)
_VERSIONS: TypeAdapter[dict[int, int]] = TypeAdapter(dict[int, int])
_ID: TypeAdapter[int] = TypeAdapter(int)


class Memory(Protocol):
    """Keep bytes under names, beside a checkpoint or in a folder.

    Names are `[a-z0-9.-]+`. A write that returned is there after a crash; one that did not left the old content or the
    new one, whole.
    """

    def read(self, name: str) -> bytes | None:
        """Return the content of a name, None when there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Give a name its content."""


@dataclass(frozen=True)
class Folder:
    """Be a memory in a local folder, which is made when something is written."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None when there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file so that a crash leaves the old one or the new one."""
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = self.path / f".{name}.{os.getpid()}.{threading.get_ident()}"
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path / name)


class Remembered:
    """Keep the schemas of one registry, a file for each id, GUID and subject.

    `registry` is the name of the registry, its first URL. File names are hashes: nothing from the registry or from the
    data becomes part of a path. A file that cannot be read counts as missing.
    """

    def __init__(self, memory: Memory, registry: str) -> None:
        self._memory = memory
        self._registry = registry

    def schema(self, schema_id: int) -> Closed | None:
        """Return what was kept for an id."""
        found = self._read(self._name("id", str(schema_id)), _CLOSED)
        return found if found is not None and found.schema.id == schema_id else None

    def keep_schema(self, closed: Closed) -> None:
        """Keep a schema under its id."""
        self._memory.write(self._name("id", str(closed.schema.id)), _CLOSED.dump_json(closed))

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
        told = hashlib.sha256(f"{self._registry}\n{what}\n{key}".encode()).hexdigest()
        return f"{what}-{told[:32]}.json"

    def _read(self, name: str, kind: TypeAdapter[T]) -> T | None:
        try:
            content = self._memory.read(name)
            return None if content is None else kind.validate_json(content)
        except (OSError, ValidationError) as error:
            log.warning("remembered schema %s cannot be read and is fetched again: %s", name, type(error).__name__)
            return None
