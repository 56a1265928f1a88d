"""Encode rows as Avro in the frame of a schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from router import Encoded, Encoding
from router_encoders.registry_encoder import RegistryEncoder, framed, record_name
from router_schemas.model import FULL_NAME

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from router_schemas.byte_columns import Write
    from router_schemas.model import Kind, ResolvedSchema


@dataclass(frozen=True)
class AvroTarget:
    """What tasks encode with: the prefix of every value, the schema's text and the columns."""

    prefix: bytes
    schema: str
    columns: StructType


class ToAvro(RegistryEncoder):
    """Encode a row as an Avro record behind a zero byte and the schema's id (4 bytes, big-endian), or alone.

    How columns go with a schema, and which schema is made for them: docs/formats.md, "Writing".
    """

    needs: ClassVar[tuple[str, ...]] = ("router_schemas.avro.encode",)
    schema_kind: ClassVar[Kind] = "AVRO"
    file_option: ClassVar[str] = "schema_file"

    schema_file: str | None = Field(default=None, min_length=1, description="an .avsc file, not the newest version")
    name: str | None = Field(
        default=None, pattern=FULL_NAME, description="full name of a record made for columns; default: the subject's"
    )

    def written(self, resolved: ResolvedSchema, columns: StructType) -> Encoding:
        """Return how rows are written with a schema."""
        from router_schemas.avro.model import text_of
        from router_schemas.avro.parser import parse
        from router_schemas.wire_format import prefix

        frame = b"" if self.frame == "none" else prefix(resolved.schema.id)
        argument = AvroTarget(frame, text_of(parse(resolved)), columns)
        _writer(argument)  # what does not go together shall be said here
        return Encoding(encode, argument, "Avro")

    def derived(self, columns: StructType, subject: str, latest: ResolvedSchema | None) -> str | None:
        """Return a schema for columns, and for the fields of the newest one, where the router could have made that."""
        from router_schemas.avro.derive import derived, known
        from router_schemas.avro.merge import RecordVersion, merge
        from router_schemas.avro.model import Ref, text_of
        from router_schemas.model import SchemaOrigin

        if latest is None:
            return text_of(derived(columns, self.name or record_name(subject)))
        before = known(latest)
        if before is None or not isinstance(before.root, Ref):
            return None
        made = derived(columns, self.name or before.root.name)
        merged = merge([RecordVersion(SchemaOrigin.of(latest).label, before), RecordVersion("the columns", made)])
        if merged.conflicts:
            raise ValueError(str(merged.conflicts[0]))
        return text_of(merged.reader)


def encode(array: pa.Array, written: AvroTarget) -> Encoded:
    """Return framed records of an array of structs. Runs on executors."""
    return framed(array, written.prefix, _writer(written))


@lru_cache(maxsize=64)
def _writer(written: AvroTarget) -> Write:
    from router_schemas.avro.encode import writer
    from router_schemas.avro.parser import parse_text

    return writer(parse_text(written.schema), written.columns)
