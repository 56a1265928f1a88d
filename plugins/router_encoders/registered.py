"""Be a format whose schemas are in a registry: find the schema that rows are written with, or register one.

| given | written with |
|---|---|
| `id` | that schema |
| a schema file | its text, which is registered with `register: true` and has to be there already without |
| neither | the newest version of the subject, if the columns go with it |
| neither, `register: true` | the same; where there is none, or it lacks fields, one made for the columns |
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from router import StartError
from router_encoders.encoding import Encoder, Encoding, Place
from router_schemas.connection import NotFound, Registry, RegistryAway, RegistryError
from router_schemas.records import Closed, Kind, Registered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from router_schemas.client import Client


@dataclass(frozen=True)
class Found:
    """Be a schema of the registry, and what messages call it."""

    closed: Closed
    label: str


class FromRegistry(Encoder):
    """Encode with a schema of a registry. A format says how columns go with a schema, and makes one for them."""

    kind: ClassVar[Kind]
    file_option: ClassVar[str]

    registry: Registry = Field(description="the registry; a bare URL is enough")
    subject: str | None = Field(
        default=None, min_length=1, description="subject of the schema; default: TOPIC-value, where the topic is fixed"
    )
    id: int | None = Field(default=None, ge=0, description="the schema of this id, whatever is newest")
    # every pydantic class has a method of this name
    registers: bool = Field(
        default=False, alias="register", description="register the schema file, or a schema made for the columns"
    )

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if self.id is not None and (self.registers or self.file):
            raise ValueError(f"`id` names a schema that is there; take `register` and `{self.file_option}` away")
        return self

    @property
    @abstractmethod
    def file(self) -> str | None:
        """Return the schema file, relative to the configuration."""

    @abstractmethod
    def written(self, found: Found, columns: StructType, folder: Path) -> Encoding:
        """Return how rows are written with a schema; raise ValueError, naming the field, where they cannot be."""

    @abstractmethod
    def derived(self, columns: StructType, subject: str, latest: Found | None) -> str | None:
        """Return the text of a schema for columns that goes on from the newest one; None where only its author can.

        Raises ValueError, naming the field, where there can be none.
        """

    def open(self, columns: StructType, place: Place) -> Encoding:
        """Return how rows are written. Asks the registry."""
        from router_schemas.client import Client

        subject = self.subject or place.subject
        if subject is None and self.id is None:
            raise StartError("no subject can be told from a topic that data names; give `subject`")
        try:
            with Client(self.registry.beside(place.folder)) as client:
                return self._chosen(client, subject or "", columns, place.folder)
        except RegistryAway as away:
            raise ConnectionError(f"waiting for the schema registry: {away}") from away
        except (RegistryError, ValueError) as fault:
            raise StartError(str(fault)) from fault

    def _chosen(self, client: Client, subject: str, columns: StructType, folder: Path) -> Encoding:
        if self.id is not None:
            return self._fitted(_closed(client, self.id, f"schema {self.id}"), columns, folder)
        if self.file:
            return self._fitted(self._of_file(client, subject, folder), columns, folder)
        latest = _latest(client, subject)
        if latest is None and not self.registers:
            raise ValueError(f"subject {subject} has no schema; register one, or set `register: true`")
        try:
            if latest is not None:
                return self._fitted(latest, columns, folder)
        except ValueError as fault:
            if not self.registers or latest is None or latest.closed.schema.kind != self.kind:
                raise
            if (text := self.derived(columns, subject, latest)) is None:
                raise ValueError(f"{fault}; add it, for this schema was not made by the router") from fault
        else:
            text = self.derived(columns, subject, None)
            assert text is not None  # there is nobody else's
        number = client.register(subject, self.kind, text)
        return self._fitted(_found(number, self.kind, text, subject), columns, folder)

    def _fitted(self, found: Found, columns: StructType, folder: Path) -> Encoding:
        if found.closed.schema.kind != self.kind:
            raise ValueError(f"{found.label} is {found.closed.schema.kind}, not {self.kind}")
        try:
            return self.written(found, columns, folder)
        except ValueError as fault:
            raise ValueError(f"{found.label}: {fault}") from fault

    def _of_file(self, client: Client, subject: str, folder: Path) -> Found:
        assert self.file is not None
        try:
            text = (folder / self.file).read_text(encoding="utf-8")
        except OSError as error:
            raise StartError(f"{self.file_option} {self.file} cannot be read: {error.strerror}") from error
        try:
            number = (client.register if self.registers else client.lookup)(subject, self.kind, text)
        except NotFound as absent:
            if self.registers:
                raise
            what = f"{self.file} is not registered under {subject}; register it, or set `register: true`"
            raise ValueError(what) from absent
        return _found(number, self.kind, text, self.file)


def record_name(subject: str) -> str:
    """Return a name for a record by its subject: `game-events-value` is game_events."""
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", subject.removesuffix("-value").rpartition(":")[2])
    parts = [part if re.match(r"[A-Za-z_]", part) else f"_{part}" for part in plain.split(".") if part]
    return ".".join(parts) or "Event"


def _found(number: int, kind: Kind, text: str, called: str) -> Found:
    return Found(Closed(Registered(number, kind, text)), f"{called} (schema {number})")


def _latest(client: Client, subject: str) -> Found | None:
    """Return the newest version of a subject, None where there is none."""
    try:
        version = client.versions(subject)[-1]
    except (NotFound, IndexError):
        return None
    number = client.version(subject, version).id
    return _closed(client, number, f"{subject} version {version} (schema {number})")


def _closed(client: Client, number: int, label: str) -> Found:
    """Return a schema with what it refers to."""
    from router_schemas.schemas import Schemas

    closed = Schemas(client, _Forgetful()).closed([number])[number]
    if not isinstance(closed, Closed):
        raise ValueError(closed.reason)
    return Found(closed, label)


class _Forgetful:
    """Remember nothing: a sink asks once, when it starts."""

    def read(self, name: str) -> bytes | None:
        return None

    def write(self, name: str, content: bytes) -> None:
        pass
