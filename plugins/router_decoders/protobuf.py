"""Decode Protobuf messages whose schemas are in a registry or in a file."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyspark.sql import types as T
from typing_extensions import override

from router import ArrowDecoding, Preparation
from router_decoders.registry_decoder import RegistryDecoder
from router_schemas.model import FULL_NAME
from router_schemas.protobuf import EXTRAS, require_extra
from router_schemas.subject_names import check_one_context

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from typing_extensions import Self

    from router import Memory
    from router_schemas.library import Library
    from router_schemas.protobuf.library import Messages
    from router_schemas.registry_client import OfflineRegistry
    from router_schemas.resolver import SchemaResolver
    from router_schemas.subject_names import CountedSubjects


class Wrapper(BaseModel):
    """Where an outer message holds the message that is the event. Paths are fields with dots between them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    payload: str = Field(pattern=FULL_NAME, description="field with the message inside: bytes or a google.protobuf.Any")
    name: str | None = Field(
        default=None,
        pattern=FULL_NAME,
        description="field with its name: the full one, a type URL, or the last part of it",
    )
    schema_id: str | None = Field(
        default=None, pattern=FULL_NAME, description="field with the id of its schema, whose first message it is"
    )
    messages: tuple[str, ...] = Field(
        default=(), description="full names of messages inside that are known before their first record"
    )
    subjects: tuple[str, ...] = Field(
        default=(), description="with schema_id: subjects whose schemas are known before their first record"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.name is not None and self.schema_id is not None:
            raise ValueError("give name or schema_id, not both; neither where the payload is a google.protobuf.Any")
        if self.schema_id is None and self.subjects:
            raise ValueError("subjects go with schema_id; payloads with a name are of the outer message's schema")
        if self.schema_id is not None and self.messages:
            raise ValueError("messages go with a name; of schemas with ids give the subjects")
        check_one_context(self.subjects)
        return self


class Protobuf(RegistryDecoder):
    """Decode a record whose value is a Protobuf message.

    With a `registry` the value is in the wire format of a Confluent-compatible schema registry: a zero byte, the
    schema's id (4 bytes, big-endian) and the message index in its file; or the record has the header
    `__value_schema_id` with the schema's GUID, and the value is the bare message. All versions of a message are read
    by one merged schema: a field that a version lacks is null (zero, if the field cannot tell absent from zero), one
    that was removed keeps its data, an unknown one is never lost silently, because its schema is fetched first. New
    versions are looked for before every batch, and an id that comes unannounced within it: the stream is not started
    again for them.

    Without one, `descriptor_file` or `proto_file` says what the one `message` looks like. The value is the message
    alone (`wire_format: none`), or is in the registry's wire format, of which id and GUID do not count; a record whose
    message index is that of another message is a dead letter.

    With a `wrapper` the message found so is only the outer one, and the event is the message inside: see its options.
    `message` is then the full name of the message inside.

    A version that no single table column can hold together with the older ones (int32 became string) is reported with
    both versions and the field, and its records become dead letters. So do records with an unknown id, of another
    format, or that google's parser refuses. While the registry is unavailable, ids that were seen before are decoded,
    and a batch with a new one waits.

    Adds `schema_id`, `schema_version`, `subject` and `message` (full name), which rules and `select` may use.
    How types are mapped: `router help formats`. Runs in Python, on record batches.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_schemas.protobuf.events",)
    extras: ClassVar[Mapping[str, str]] = EXTRAS
    sources: ClassVar[tuple[str, ...]] = ("registry", "descriptor_file", "proto_file")

    descriptor_file: str | None = Field(
        default=None,
        min_length=1,
        description="a FileDescriptorSet (protoc --include_imports -o FILE), from the configuration's folder",
    )
    proto_file: str | None = Field(
        default=None,
        min_length=1,
        description="a .proto text, from the configuration's folder; what it imports is looked for in the same folder",
    )
    message: str | None = Field(default=None, pattern=FULL_NAME, description="with a file: full name of the message")
    wire_format: Literal["confluent", "none"] = Field(
        default="confluent", description="`confluent`: as a registry's clients write; `none`: the value is the message"
    )
    wrapper: Wrapper | None = Field(
        default=None,
        description="the message holds another one, which is the event; options: `payload` (a field of bytes or a "
        "google.protobuf.Any), `name` or `schema_id` (for bytes: the field that says which message), `messages` or "
        "`subjects` (known before their first record)",
    )

    @model_validator(mode="after")
    def _fits_the_source(self) -> Self:
        if self.registry is not None and (self.message is not None or self.wire_format == "none"):
            raise ValueError("records of a registry name their message themselves; leave out message and wire_format")
        if self.registry is None and self.message is None:
            raise ValueError("say which message of the file the records are: message: PACKAGE.NAME")
        if self.registry is None and self.wrapper is not None and self.wrapper.schema_id is not None:
            raise ValueError("wrapper.schema_id needs the registry that the ids are of")
        return self

    @property
    @override
    def zero_is_absent(self) -> bool:
        return True  # of a field without presence: readers take zero for it

    def open_library(self, preparation: Preparation) -> Library[Any]:
        """Return where Protobuf schemas come from."""
        with require_extra("the decoder protobuf"):
            from router_schemas.protobuf.events import Fields
            from router_schemas.protobuf.library import FileMessages, Files, Messages, OneMessage, Payloads

        memory = preparation.memory
        wrapper = self.wrapper
        # Without a wrapper the outer message is the event, and there is no other one.
        outer: Messages | OneMessage
        inner: Messages | FileMessages
        if self.registry is not None:
            schemas = self.open_resolver(preparation)
            counted = self.counted_subjects(preparation)
            outer = Messages(schemas, memory, subjects=self.subjects, counted=counted, header=self.header)
            if wrapper is None:
                return outer
            counted = self.counted_subjects(preparation, wrapper.subjects)
            # The subjects of payloads may be of another context than those of the outer messages.
            if wrapper.subjects:
                schemas = self.open_resolver(preparation, wrapper.subjects)
            inner = Messages(schemas, memory, subjects=wrapper.subjects, counted=counted, keep="payloads")
        else:
            files = Files.read_file(preparation.folder / str(self.descriptor_file or self.proto_file))
            outer = OneMessage(files, str(self.message), self.wire_format, self.header)
            if wrapper is None:
                return outer
            inner = FileMessages(files, memory)
        fields = Fields.of(wrapper.payload, wrapper.name, wrapper.schema_id)
        return Payloads(outer=outer, inner=inner, fields=fields, messages=wrapper.messages)

    @staticmethod
    def open_messages(schemas: SchemaResolver, memory: Memory, counted: CountedSubjects, header: str) -> Messages:
        """Return the messages of a registry that also has other formats."""
        with require_extra("the decoder protobuf"):
            from router_schemas.protobuf.library import Messages

        return Messages(schemas, memory, counted=counted, header=header, among_others=True)

    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has .proto files."""
        from router_schemas.protobuf.descriptors import imported_files
        from router_schemas.registry_client import OfflineRegistry

        return OfflineRegistry("PROTOBUF", schemas, {"PROTOBUF": imported_files})

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the message of an event given as in ProtoJSON, in its wire format; with a wrapper the outer one."""
        from router_schemas.protobuf.descriptors import message_index_of, message_names, read_descriptors
        from router_schemas.protobuf.encode import encoded_event
        from router_schemas.wire_format import pack_value

        schema_id, file = self.id_and_file(schema)
        files = read_descriptors(file)
        name = message or self.message or message_names(files)[0]
        payload = encoded_event(event, files, name)
        if self.wire_format == "none":
            return payload
        return pack_value(schema_id, message_index_of(files, name), payload)

    def wanted_by(self, records: pa.RecordBatch, known: Any) -> frozenset[str]:
        """Return the schemas and messages that records name and that are not known."""
        decoded = self._function(records, known)
        return frozenset(decoded.column("_wanted").drop_null().to_pylist())

    @property
    def _function(self) -> Any:
        from router_schemas.protobuf.events import message_events, wrapped_events

        if self.wrapper is None:
            return message_events
        return wrapped_events

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode."""
        from router_schemas.protobuf.model import spark_struct
        from router_schemas.wire_format import ADDED_FIELDS

        messages = self.known_schemas
        if self.wrapper is not None:
            messages = self.known_schemas.inner
        event = spark_struct(messages.event)
        adds = T.StructType([T.StructField("event", event), *ADDED_FIELDS])
        return ArrowDecoding(self._function, self.known_schemas, adds)
