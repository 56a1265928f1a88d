"""Encode rows with a schema of a registry: find the one that they are written with, or register one.

| given | written with |
|---|---|
| `id` | that schema |
| a schema file | its text, which is registered with `register: true` and has to be there already without |
| neither | the newest version of the subject, if the columns go with it |
| neither, `register: true` | the same; where there is none, or it lacks fields, one made for the columns |
| a schema file, no registry | its text; the value has no frame |
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from router import Encoded, Encoder, Encoding, StartError
from router_schemas.model import Kind, RegisteredSchema, ResolvedSchema, SchemaOrigin
from router_schemas.registry_options import NotFound, RegistryAway, RegistryError, RegistryOptions, UnusableSchema

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from router_schemas.byte_columns import Write
    from router_schemas.registry_client import RegistryClient

NOBODYS = 0
"""The id where nobody sees it: in a trial, and without a frame."""


class RegistryEncoder(Encoder):
    """An encoder with a schema of a registry or a file. Formats say how columns go with one, and make one for them."""

    schema_kind: ClassVar[Kind]
    file_option: ClassVar[str]

    registry: RegistryOptions | None = Field(
        default=None, description="the registry; a bare URL is enough. None: a schema file and `frame: none`"
    )
    frame: Literal["confluent", "none"] = Field(
        default="confluent", description="`confluent`: as a registry's clients write; `none`: the record alone"
    )
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
        named = self.subject is not None or self.id is not None or self.registers
        if self.registry is None and (named or self.frame != "none" or not self.file):
            raise ValueError(f"give a `registry`, or `{self.file_option}` and `frame: none` and nothing of a registry")
        return self

    @property
    def file(self) -> str | None:
        """Return the schema file, relative to the configuration."""
        found: str | None = getattr(self, self.file_option)
        return found

    @abstractmethod
    def written(self, resolved: ResolvedSchema, columns: StructType) -> Encoding:
        """Return how rows are written with a schema; raise ValueError, naming the field, where they cannot be."""

    @abstractmethod
    def derived(self, columns: StructType, subject: str, latest: ResolvedSchema | None) -> str | None:
        """Return the text of a schema for columns that goes on from the newest one; None where only its author can.

        Raises ValueError, naming the field, where there can be none.
        """

    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows are written. Asks the registry."""
        from router_schemas.registry_client import RegistryClient

        subject = self.subject or subject
        if subject is None and self.id is None and self.registry is not None:
            raise StartError("no subject can be told from a topic that data names; give `subject`")
        try:
            if self.registry is None:
                return self._fitted(
                    ResolvedSchema(RegisteredSchema(NOBODYS, self.schema_kind, self._text(folder))), columns, self.file
                )
            with RegistryClient(self.registry.beside(folder)) as client:
                return self._chosen(client, subject or "", columns, folder, trial)
        except RegistryAway as away:
            raise ConnectionError(f"waiting for the schema registry: {away}") from away
        except (RegistryError, ValueError, UnusableSchema) as fault:
            raise StartError(str(fault)) from fault

    def _chosen(self, client: RegistryClient, subject: str, columns: StructType, folder: Path, trial: bool) -> Encoding:
        if self.id is not None:
            return self._fitted(_resolved(client, client.by_id(self.id)), columns)
        if self.file:
            made = self._of_file(client, subject, columns, folder, trial)
            return self._fitted(made, columns, f"{self.file} (schema {made.schema.id})")
        latest = _latest(client, subject)
        if latest is None and not self.registers:
            raise ValueError(f"subject {subject} has no schema; register one, or set `register: true`")
        try:
            if latest is not None:
                return self._fitted(latest, columns)
        except ValueError as fault:
            if not self.registers or latest is None or latest.schema.kind != self.schema_kind:
                raise
            if (text := self.derived(columns, subject, latest)) is None:
                raise ValueError(f"{fault}; add it, for this schema was not made by the router") from fault
        else:
            text = self.derived(columns, subject, None)
            assert text is not None  # there is nobody else's
        self.written(
            ResolvedSchema(RegisteredSchema(NOBODYS, self.schema_kind, text)), columns
        )  # before a version is there for ever
        return self._fitted(self._registered(client, subject, text, trial), columns)

    def _registered(self, client: RegistryClient, subject: str, text: str, trial: bool) -> ResolvedSchema:
        number = NOBODYS if trial else client.register(subject, self.schema_kind, text)
        return ResolvedSchema(RegisteredSchema(number, self.schema_kind, text))

    def _fitted(self, resolved: ResolvedSchema, columns: StructType, label: str | None = None) -> Encoding:
        label = label or SchemaOrigin.of(resolved).label
        if resolved.schema.kind != self.schema_kind:
            raise ValueError(f"{label} is {resolved.schema.kind}, not {self.schema_kind}")
        try:
            encoding = self.written(resolved, columns)
        except ValueError as fault:
            raise ValueError(f"{label}: {fault}") from fault
        return replace(encoding, what=f"{encoding.what}, {label}")

    def _of_file(
        self, client: RegistryClient, subject: str, columns: StructType, folder: Path, trial: bool
    ) -> ResolvedSchema:
        text = self._text(folder)
        if self.registers:
            # before a version is there for ever
            self._fitted(ResolvedSchema(RegisteredSchema(NOBODYS, self.schema_kind, text)), columns, self.file)
            return self._registered(client, subject, text, trial)
        try:
            number = client.lookup(subject, self.schema_kind, text)
        except NotFound as absent:
            what = f"{self.file} is not registered under {subject}; register it, or set `register: true`"
            raise ValueError(what) from absent
        return ResolvedSchema(RegisteredSchema(number, self.schema_kind, text))

    def _text(self, folder: Path) -> str:
        """Return the text of the schema file."""
        try:
            return (folder / str(self.file)).read_text(encoding="utf-8")
        except OSError as error:
            raise StartError(f"{self.file_option} {self.file} cannot be read: {error.strerror}") from error


def record_name(subject: str) -> str:
    """Return a name for a record by its subject: `game-events-value` is game_events."""
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", subject.removesuffix("-value").rpartition(":")[2])
    parts = [part if re.match(r"[A-Za-z_]", part) else f"_{part}" for part in plain.split(".") if part]
    return ".".join(parts) or "Event"


def _latest(client: RegistryClient, subject: str) -> ResolvedSchema | None:
    """Return the newest version of a subject, None where there is none."""
    try:
        version = client.versions(subject)[-1]
    except (NotFound, IndexError):
        return None
    return _resolved(client, replace(client.version(subject, version), subjects=((subject, version),)))


def _resolved(client: RegistryClient, schema: RegisteredSchema) -> ResolvedSchema:
    """Return a schema with what it refers to."""
    from router_schemas.resolver import References

    return ResolvedSchema(schema, References(client).imports(schema))


def framed(array: pa.Array, prefix: bytes, write: Write) -> Encoded:
    """Write the rows of an array; find those that cannot be written by halves, so that each is judged by itself."""
    try:
        return Encoded([prefix + one for one in write(array)])
    except ValueError as error:
        if len(array) <= 1:
            return Encoded([None] * len(array), dict.fromkeys(range(len(array)), str(error)))
    half = len(array) // 2
    left, right = framed(array[:half], prefix, write), framed(array[half:], prefix, write)
    reasons = {at + half: reason for at, reason in right.reasons.items()}
    return Encoded(left.values + right.values, left.reasons | reasons)
