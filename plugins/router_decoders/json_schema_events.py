"""Decode JSON objects whose schemas are in a registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from router import ArrowDecoding
from router_decoders.by_schema import BySchema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from router import Preparation
    from router_schemas.json_schema.library import Objects
    from router_schemas.library import Library
    from router_schemas.offline_registry import OfflineRegistry


class JsonSchema(BySchema):
    """Decode a record whose value is a JSON object with a JSON Schema in a registry.

    The value is in the frame of a Confluent-compatible schema registry: a zero byte, the schema's id (4 bytes,
    big-endian) and the object in UTF-8; or the record has the header `__value_schema_id` with the schema's GUID, and
    the value is the bare object. The schemas of all versions are merged into one, by which every object is read: a
    property that a version lacks is null, integers become doubles where a version says number. New versions are looked
    for before every batch, and an id that comes unannounced within it.

    The schema says what the columns are, and that is all it is used for: `required`, `pattern`, `minimum` and the like
    are not checked (a route's `expect` is for that), and a property that no version knows is left out. What no column
    can hold (free-form objects, values of several types, a schema within itself) is a string with the JSON text. What
    fits a type and what does not, and what is no JSON, is as for the decoder `json`.

    A version that no single table column can hold together with the older ones (a string became an integer) is reported
    with both versions and the field, and its records become dead letters. So do records with an unknown id, of another
    format, and objects that do not fit the merged schema.

    Adds `schema_id`, `schema_version`, `subject` and `message` (the schema's title, null without one). Types:
    docs/formats.md. Runs as native expressions on executors; tasks that land rows decode the plain records themselves,
    with the same result, where no column is a map or has a name that a table cannot have.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.json_schema_batches",)

    def library(self, preparation: Preparation) -> Library[Objects]:
        """Return where JSON Schemas come from."""
        from router_schemas.json_schema.library import Documents

        return Documents(self.schemas(preparation), preparation.memory, self.subjects, header=self.header)

    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has files with JSON Schemas."""
        from router_schemas.offline_registry import OfflineRegistry

        return OfflineRegistry("JSON", schemas)

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return an event as an object in its frame. It is not held against the schema."""
        from router_schemas.wire_format import pack

        return pack(self.chosen(schema)[0], None, json.dumps(event, ensure_ascii=False).encode())

    def wanted_by(self, records: pa.RecordBatch, known: Objects) -> frozenset[str]:
        """Return the schemas that records name by id or GUID and that are not known."""
        from router_schemas.wire_format import parse, schema_bytes

        keys = parse(records.column("value"), False, records.column("headers"), self.header).keys
        return frozenset(str(key.writer) for key in keys if schema_bytes(key.writer) not in known.written)

    def decoding(self) -> ArrowDecoding | None:
        """Return how tasks decode plain objects; None where a column leaves it to native expressions."""
        import pyarrow as pa
        from pyspark.sql import types as T

        from router_decoders.json_schema_batches import Framed, events
        from router_decoders.json_shapes import nullable, shape
        from router_schemas.framed_rows import ADDED
        from router_schemas.json_schema.merge import table_type
        from router_schemas.protobuf.spark_types import spark_struct

        known: Objects = self.known
        found = shape(known.struct)
        if found is None or table_type(known.struct) != known.struct:
            return None
        event = T.StructField("event", nullable(known.struct))
        adds = T.StructType([event, *spark_struct(pa.struct(list(ADDED))).fields])
        return ArrowDecoding(events, Framed(found, known.written, known.header), adds)

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add `event`, `_error`, `_wanted` and what is known of the schema."""
        from router_decoders.json_schema_columns import decoded

        return decoded(raw, self.known)
