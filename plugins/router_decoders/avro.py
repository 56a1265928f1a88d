"""Decode Avro records whose schemas are in a registry or in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pyspark.sql import types as T

from router import ArrowDecoding
from router_decoders.registry_decoder import RegistryDecoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from router import Preparation
    from router_schemas.avro.library import Records
    from router_schemas.library import Library
    from router_schemas.registry_client import OfflineRegistry


class Avro(RegistryDecoder):
    """Decode a record whose value is an Avro record.

    With a `registry` the value is in the frame of a Confluent-compatible schema registry: a zero byte and the schema's
    id (4 bytes, big-endian); or the record has the header `__value_schema_id` with the schema's GUID, and the value is
    the bare record. Or it is a single object (`frame: single_object`): C3 01 and the fingerprint of its schema, which
    is looked for among all versions of the `subjects`. Every version is read with the schema that wrote it into one
    merged reader's schema: a field that a version lacks is null, numbers are widened (int to long, float to double).
    New versions are looked for before every batch, and an id that comes unannounced within it.

    Without one, `schema_file` has the schema that all values were written with. The value is the record alone
    (`frame: none`), or has a frame, of which id and GUID do not count; the fingerprint of a single object does.

    A version that no single table column can hold together with the older ones is reported with both versions and the
    field, and its records become dead letters. So do records with an unknown id, of another format, and values that
    are cut off or have more bytes behind them.

    Adds `schema_id`, `schema_version`, `subject` and `message` (the record's full name). Types: docs/formats.md. Values
    are read by Spark's from_avro on executors. Where the JVM is not started by `router`, start it with
    Avro's limits (docs/formats.md): a hostile length in a record can end it otherwise.
    """

    sources: ClassVar[tuple[str, ...]] = ("registry", "schema_file")

    schema_file: str | None = Field(
        default=None, min_length=1, description="an Avro schema in JSON (.avsc), from the configuration's folder"
    )
    frame: Literal["confluent", "none", "single_object"] = Field(
        default="confluent",
        description="`confluent`: as a registry's clients write; `single_object`: as Avro's own libraries do; `none`: "
        "the value is the record, with a file only",
    )

    @model_validator(mode="after")
    def _fits_the_source(self) -> Self:
        if self.registry is not None and self.frame == "none":
            raise ValueError("without a frame nothing names a schema of the registry; use schema_file")
        if self.registry is not None and self.frame == "single_object" and not self.subjects:
            raise ValueError("a registry cannot be asked for a fingerprint; name the subjects to look among")
        return self

    def library(self, preparation: Preparation) -> Library[Records]:
        """Return where Avro schemas come from."""
        from router_schemas.avro.library import OneSchema, SingleObjects, Writers

        if self.registry is None:
            return OneSchema(preparation.folder / str(self.schema_file), self.frame, self.header)
        schemas = self.schemas(preparation)
        kind = SingleObjects if self.frame == "single_object" else Writers
        return kind(schemas, preparation.memory, self.subjects, header=self.header)

    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has .avsc files."""
        from router_schemas.registry_client import OfflineRegistry

        return OfflineRegistry("AVRO", schemas)

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the record of an event, in its frame."""
        from router_schemas.avro.encode import encoded_event
        from router_schemas.avro.model import single_object_header
        from router_schemas.avro.parser import parse_text
        from router_schemas.wire_format import pack

        number, path = self.chosen(schema)
        read = parse_text(path.read_text(encoding="utf-8"))
        record = encoded_event(event, read)
        if self.frame == "single_object":
            return single_object_header(read) + record
        return record if self.frame == "none" else pack(number, None, record)

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode: from_avro before them, and the rest in them."""
        from router_decoders.avro_spark import AvroRows, avro_events, with_records
        from router_schemas.wire_format import ADDED_FIELDS

        known: Records = self.known
        added = [field for field in ADDED_FIELDS if not (known.only and field.name == "_wanted")]
        rows = AvroRows(known.written, known.frame, known.header, known.only)
        adds = T.StructType([T.StructField("event", known.event), *added])
        return ArrowDecoding(avro_events, rows, adds, before=lambda raw: with_records(raw, known))
