"""Encode rows as Avro or Protobuf with a schema of a registry: find the one to write them with, or register one.

| given | written with |
|---|---|
| `id` | that schema |
| a schema file | its text, which is registered with `register: true` and has to be there already without |
| neither | the newest version of the subject, if the columns go with it |
| neither, `register: true` | the same; where there is none, or it lacks fields, one made for the columns |
| a schema file, no registry | its text; the value is in no wire format |
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from router import Encoded, Encoder, Encoding, Server, StartError
from router_schemas.model import FULL_NAME, Kind, RegisteredSchema, ResolvedSchema, SchemaOrigin
from router_schemas.protobuf import EXTRAS, require_extra
from router_schemas.registry_options import NotFound, RegistryAway, RegistryError, RegistryOptions, UnusableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from router_schemas.byte_columns import Write
    from router_schemas.registry_client import RegistryClient


NO_SCHEMA_ID = 0
"""The id of a schema if it is not written: in a trial, and outside the wire format."""


class RegistryEncoder(Encoder):
    """An encoder with a schema of a registry or a file; a subclass for each format matches or derives a schema."""

    schema_kind: ClassVar[Kind]
    file_option: ClassVar[str]

    registry: RegistryOptions | None = Field(
        default=None, description="the registry; a bare URL is enough. None: a schema file and `wire_format: none`"
    )
    wire_format: Literal["confluent", "none"] = Field(
        default="confluent", description="`confluent`: as a registry's clients write; `none`: the record alone"
    )
    subject: str | None = Field(
        default=None, min_length=1, description="subject of the schema; default: TOPIC-value, if the topic is fixed"
    )
    id: int | None = Field(default=None, ge=0, description="the schema of this id, whatever is newest")
    # every pydantic class has a method of this name
    registers: bool = Field(
        default=False, alias="register", description="register the schema file, or a schema made for the columns"
    )

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Return the servers of the registry."""
        from router_schemas.registry_client import servers_of

        return servers_of(self.registry, folder)

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if self.id is not None and (self.registers or self.file):
            raise ValueError(f"`id` names a schema that is there; remove `register` and `{self.file_option}`")
        needs_registry = self.subject is not None or self.id is not None or self.registers
        if self.registry is None and (needs_registry or self.wire_format != "none" or not self.file):
            raise ValueError(
                f"give a `registry`, or `{self.file_option}` and `wire_format: none` and nothing of a registry"
            )
        return self

    @property
    def file(self) -> str | None:
        """Return the schema file, relative to the configuration."""
        file: str | None = getattr(self, self.file_option)
        return file

    @abstractmethod
    def make_encoding(self, resolved: ResolvedSchema, columns: StructType) -> Encoding:
        """Return how rows are written with a schema; raise ValueError, naming the field, if they cannot be."""

    @abstractmethod
    def derive_text(self, columns: StructType, subject: str, latest: ResolvedSchema | None) -> str | None:
        """Return the text of a schema for columns that continues the newest one; None if only its author can do that.

        Raises ValueError, naming the field, if there can be none.
        """

    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows are written. Asks the registry."""
        from router_schemas.registry_client import RegistryClient

        subject = self.subject or subject
        if subject is None and self.id is None and self.registry is not None:
            raise StartError("no subject can be told from a topic that data names; give `subject`")
        try:
            if self.registry is None:
                return self._labelled_encoding(self._resolve_text(self._read_file(folder)), columns, label=self.file)
            with RegistryClient(self.registry.resolve_paths(folder), subject=subject or "") as client:
                return self._open_with_registry(
                    client, subject=subject or "", columns=columns, folder=folder, trial=trial
                )
        except RegistryAway as away:
            # An unavailable registry is waited for; any other fault ends the start.
            raise ConnectionError(f"waiting for the schema registry: {away}") from away
        except (RegistryError, ValueError, UnusableSchema) as fault:
            raise StartError(str(fault)) from fault

    def _open_with_registry(
        self, client: RegistryClient, *, subject: str, columns: StructType, folder: Path, trial: bool
    ) -> Encoding:
        """Return how rows are written with the schema that the table of this module names."""
        if self.id is not None:
            return self._labelled_encoding(_with_imports(client, client.by_id(self.id)), columns)
        if self.file:
            schema_of_file = self._registered_file(client, subject=subject, columns=columns, folder=folder, trial=trial)
            label = f"{self.file} (schema {schema_of_file.schema.id})"
            return self._labelled_encoding(schema_of_file, columns, label=label)
        latest = _latest_version(client, subject)
        if latest is None:
            if not self.registers:
                raise ValueError(f"subject {subject} has no schema; register one, or set `register: true`")
            text = self.derive_text(columns, subject, None)
            assert text is not None  # there is no other schema to continue
        else:
            try:
                return self._labelled_encoding(latest, columns)
            except ValueError as fault:
                if not self.registers or latest.schema.kind != self.schema_kind:
                    raise
                text = self.derive_text(columns, subject, latest)
                if text is None:
                    raise ValueError(f"{fault}; add it, for this schema was not made by the router") from fault
        # Checked before it is registered, because a registered version stays for ever.
        self.make_encoding(self._resolve_text(text), columns)
        registered = self._register_text(client, subject, text, trial=trial)
        return self._labelled_encoding(registered, columns)

    def _register_text(self, client: RegistryClient, subject: str, text: str, *, trial: bool) -> ResolvedSchema:
        if trial:
            return self._resolve_text(text)
        schema_id = client.register(subject, self.schema_kind, text)
        return self._resolve_text(text, schema_id)

    def _resolve_text(self, text: str, schema_id: int = NO_SCHEMA_ID) -> ResolvedSchema:
        return ResolvedSchema(RegisteredSchema(schema_id, self.schema_kind, text))

    def _labelled_encoding(self, resolved: ResolvedSchema, columns: StructType, label: str | None = None) -> Encoding:
        """Return how rows are written with a schema; raise ValueError, with the schema's label, if they cannot be."""
        label = label or SchemaOrigin.of(resolved).label
        if resolved.schema.kind != self.schema_kind:
            raise ValueError(f"{label} is {resolved.schema.kind}, not {self.schema_kind}")
        try:
            encoding = self.make_encoding(resolved, columns)
        except ValueError as fault:
            raise ValueError(f"{label}: {fault}") from fault
        return replace(encoding, what=f"{encoding.what}, {label}")

    def _registered_file(
        self, client: RegistryClient, *, subject: str, columns: StructType, folder: Path, trial: bool
    ) -> ResolvedSchema:
        """Return the schema of the file with the id under which it is registered, or is registered now."""
        text = self._read_file(folder)
        if self.registers:
            # Checked before it is registered, because a registered version stays for ever.
            self._labelled_encoding(self._resolve_text(text), columns, label=self.file)
            return self._register_text(client, subject, text, trial=trial)
        try:
            schema_id = client.lookup(subject, self.schema_kind, text)
        except NotFound as absent:
            raise ValueError(
                f"{self.file} is not registered under {subject}; register it, or set `register: true`"
            ) from absent
        return self._resolve_text(text, schema_id)

    def _read_file(self, folder: Path) -> str:
        """Return the text of the schema file."""
        try:
            return (folder / str(self.file)).read_text(encoding="utf-8")
        except OSError as error:
            raise StartError(f"{self.file_option} {self.file} cannot be read: {error.strerror}") from error


def record_name(subject: str) -> str:
    """Return a name for a record by its subject: `game-events-value` is game_events."""
    # A subject in a context is `:.CONTEXT:SUBJECT`.
    _, _, own_name = subject.removesuffix("-value").rpartition(":")
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", own_name)
    parts = []
    for part in plain.split("."):
        if part[:1].isdigit():
            parts.append(f"_{part}")
        elif part:
            parts.append(part)
    return ".".join(parts) or "Event"


def _latest_version(client: RegistryClient, subject: str) -> ResolvedSchema | None:
    """Return the newest version of a subject, None if there is none."""
    try:
        version = client.versions(subject)[-1]
    except (NotFound, IndexError):
        return None
    schema = replace(client.version(subject, version), subjects=((subject, version),))
    return _with_imports(client, schema)


def _with_imports(client: RegistryClient, schema: RegisteredSchema) -> ResolvedSchema:
    """Return a schema with the schemas that it refers to."""
    from router_schemas.resolver import References

    return ResolvedSchema(schema, References(client).imports_of(schema))


def write_with_prefix(array: pa.Array, prefix: bytes, write: Write) -> Encoded:
    """Write the rows of an array; raise ValueError for one that cannot be written."""
    return Encoded([prefix + record for record in write(array)])


@dataclass(frozen=True)
class AvroTarget:
    """The argument of tasks that encode: the prefix of every value, the schema's text and the columns."""

    prefix: bytes
    schema: str
    columns: StructType


class ToAvro(RegistryEncoder):
    """Encode a row as an Avro record behind a zero byte and the schema's id (4 bytes, big-endian), or alone.

    How columns go with a schema, and which schema is made for them: `router help write-to-kafka`.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_schemas.avro.encode",)
    schema_kind: ClassVar[Kind] = "AVRO"
    file_option: ClassVar[str] = "schema_file"

    schema_file: str | None = Field(default=None, min_length=1, description="an .avsc file, not the newest version")
    name: str | None = Field(
        default=None, pattern=FULL_NAME, description="full name of a record made for columns; default: the subject's"
    )

    def make_encoding(self, resolved: ResolvedSchema, columns: StructType) -> Encoding:
        """Return how rows are written with a schema."""
        from router_schemas.avro.model import text_of
        from router_schemas.avro.parser import parse_resolved
        from router_schemas.wire_format import payload_prefix

        value_prefix = b""
        if self.wire_format != "none":
            value_prefix = payload_prefix(resolved.schema.id)
        argument = AvroTarget(prefix=value_prefix, schema=text_of(parse_resolved(resolved)), columns=columns)
        _avro_writer(argument)  # raises here, on the driver, if columns and schema do not match
        return Encoding(encode_avro, argument, "Avro")

    def derive_text(self, columns: StructType, subject: str, latest: ResolvedSchema | None) -> str | None:
        """Return a schema for columns and the fields of the newest one, if the router could have made that."""
        from router_schemas.avro.merge import RecordVersion, merge_records
        from router_schemas.avro.model import Ref, text_of
        from router_schemas.avro.spark_types import derive_schema, parse_derived_schema
        from router_schemas.model import SchemaOrigin

        if latest is None:
            return text_of(derive_schema(columns, self.name or record_name(subject)))
        # A schema that the router has not made only its author can continue: see `parse_derived_schema`.
        newest = parse_derived_schema(latest)
        if newest is None or not isinstance(newest.root, Ref):
            return None
        made = derive_schema(columns, self.name or newest.root.name)
        # The new version keeps the fields that the columns lack.
        versions = [RecordVersion(SchemaOrigin.of(latest).label, newest), RecordVersion("the columns", made)]
        merged = merge_records(versions)
        if merged.conflicts:
            raise ValueError(str(merged.conflicts[0]))
        return text_of(merged.reader)


def encode_avro(array: pa.Array, written: AvroTarget) -> Encoded:
    """Return framed records of an array of structs. Runs on executors."""
    return write_with_prefix(array, written.prefix, _avro_writer(written))


@lru_cache(maxsize=64)
def _avro_writer(written: AvroTarget) -> Write:
    from router_schemas.avro.encode import record_writer
    from router_schemas.avro.parser import parse_text

    return record_writer(parse_text(written.schema), written.columns)


@dataclass(frozen=True)
class ProtobufTarget:
    """The argument of tasks that encode: the prefix of values, the message of a FileDescriptorSet, and the columns."""

    prefix: bytes
    descriptors: bytes
    message: str
    columns: StructType


class ToProtobuf(RegistryEncoder):
    """Encode a row as a Protobuf message behind a zero byte, the schema's id and the message index, or alone.

    Needs the extra `protobuf`, also on the nodes of a cluster. How columns go with a message, and which message is made
    for them: `router help write-to-kafka`.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_schemas.protobuf.encode",)
    extras: ClassVar[Mapping[str, str]] = EXTRAS
    schema_kind: ClassVar[Kind] = "PROTOBUF"
    file_option: ClassVar[str] = "proto_file"

    proto_file: str | None = Field(default=None, min_length=1, description="a .proto file, not the newest version")
    message: str | None = Field(
        default=None,
        pattern=FULL_NAME,
        description="full name of the message; default: the first of the schema, or the subject's name",
    )

    @field_validator("proto_file")
    @classmethod
    def _is_text(cls, file: str | None) -> str | None:
        if file is not None and not file.endswith(".proto"):
            raise ValueError("a .proto file is needed here: its text is what is registered")
        return file

    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows are written. Asks the registry."""
        with require_extra("protobuf"):
            from router_schemas.protobuf.descriptors import CompilerError
        try:
            return super().open(columns, folder, subject, trial=trial)
        except CompilerError as error:
            raise StartError(f"the schema cannot be compiled here: {error}") from error

    def make_encoding(self, resolved: ResolvedSchema, columns: StructType) -> Encoding:
        """Return how rows are written with a message of a schema."""
        from router_schemas.protobuf.descriptors import compile_schema, message_index_of, message_names
        from router_schemas.wire_format import payload_prefix

        files = compile_schema(resolved)
        message = self.message or next(iter(message_names(files)), "")
        path = message_index_of(files, message)
        value_prefix = b""
        if self.wire_format != "none":
            value_prefix = payload_prefix(resolved.schema.id, path)
        argument = ProtobufTarget(prefix=value_prefix, descriptors=files, message=message, columns=columns)
        _protobuf_writer(argument)  # raises here, on the driver, if columns and schema do not match
        return Encoding(encode_protobuf, argument, f"Protobuf message {message}")

    def derive_text(self, columns: StructType, subject: str, latest: ResolvedSchema | None) -> str | None:
        """Return a message for columns that continues the newest one."""
        from router_schemas.protobuf.derive import derive_message, read_derived_message, text_of
        from router_schemas.protobuf.descriptors import compile_schema, message_names

        if latest is None:
            return text_of(derive_message(columns, self.message or record_name(subject)))
        files = compile_schema(latest)
        name = self.message or next(iter(message_names(files)), "")
        newest = read_derived_message(files, name)
        if not newest:
            return None
        return text_of(derive_message(columns, name, newest))


def encode_protobuf(array: pa.Array, written: ProtobufTarget) -> Encoded:
    """Return framed messages of an array of structs. Runs on executors."""
    return write_with_prefix(array, written.prefix, _protobuf_writer(written))


@lru_cache(maxsize=64)
def _protobuf_writer(written: ProtobufTarget) -> Write:
    from router_schemas.protobuf.encode import message_writer

    return message_writer(written.descriptors, written.message, written.columns)
