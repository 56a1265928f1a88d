"""Encode rows as Protobuf in the frame of a schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from router import Encoded, Encoding, StartError
from router_encoders.registry_encoder import RegistryEncoder, framed, record_name
from router_schemas.model import FULL_NAME
from router_schemas.protobuf import needed

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from router_schemas.byte_columns import Write
    from router_schemas.model import Kind, ResolvedSchema


@dataclass(frozen=True)
class ProtobufTarget:
    """What tasks encode with: the prefix of every value, the message of a FileDescriptorSet, and the columns."""

    prefix: bytes
    descriptors: bytes
    message: str
    columns: StructType


class ToProtobuf(RegistryEncoder):
    """Encode a row as a Protobuf message behind a zero byte, the schema's id and the message index, or alone.

    Needs the extra `protobuf`, on the nodes of a cluster too. How columns go with a message, and which message is made
    for them: docs/formats.md, "Writing".
    """

    needs: ClassVar[tuple[str, ...]] = ("router_schemas.protobuf.encode",)
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
        with needed("protobuf"):
            from router_schemas.protobuf.descriptors import CompilerError
        try:
            return super().open(columns, folder, subject, trial=trial)
        except CompilerError as error:
            raise StartError(f"the schema cannot be compiled here: {error}") from error

    def written(self, resolved: ResolvedSchema, columns: StructType) -> Encoding:
        """Return how rows are written with a message of a schema."""
        from router_schemas.protobuf.descriptors import descriptors, message_index_of, message_names
        from router_schemas.wire_format import prefix

        files = descriptors(resolved)
        message = self.message or next(iter(message_names(files)), "")
        path = message_index_of(files, message)
        frame = b"" if self.frame == "none" else prefix(resolved.schema.id, path)
        argument = ProtobufTarget(frame, files, message, columns)
        _writer(argument)  # what does not go together shall be said here
        return Encoding(encode, argument, f"Protobuf message {message}")

    def derived(self, columns: StructType, subject: str, latest: ResolvedSchema | None) -> str | None:
        """Return a message for columns that goes on from the newest one."""
        from router_schemas.protobuf.derive import derived, known, text_of
        from router_schemas.protobuf.descriptors import descriptors, message_names

        if latest is None:
            return text_of(derived(columns, self.message or record_name(subject)))
        files = descriptors(latest)
        name = self.message or next(iter(message_names(files)), "")
        before = known(files, name)
        return text_of(derived(columns, name, before)) if before else None


def encode(array: pa.Array, written: ProtobufTarget) -> Encoded:
    """Return framed messages of an array of structs. Runs on executors."""
    return framed(array, written.prefix, _writer(written))


@lru_cache(maxsize=64)
def _writer(written: ProtobufTarget) -> Write:
    from router_schemas.protobuf.encode import writer

    return writer(written.descriptors, written.message, written.columns)
