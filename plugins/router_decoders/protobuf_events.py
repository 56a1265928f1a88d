"""Decode Protobuf messages whose schemas are in a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import types as T

from router import ArrowDecoder, ArrowDecoding, Preparation, StartError
from router_decoders.registered import Registered

if TYPE_CHECKING:
    import pyarrow as pa

    from router_schemas.protobuf.library import Messages
    from router_schemas.schemas import Schemas

ADDED = "_error string, _wanted string, schema_id int, schema_version int, subject string, message string"


class Protobuf(Registered, ArrowDecoder):
    """Decode a record whose value is a Protobuf message in the frame of a Confluent-compatible schema registry.

    The frame is a zero byte, the schema's id (4 bytes, big-endian) and the index path of the message in its file. All
    versions of a message are read by one merged schema: a field that a version lacks is null, one that was removed
    keeps its data, an unknown one is never lost silently, because its schema is fetched first. New versions are looked
    for before every batch, and an id that comes unannounced within it: the stream is not started again for them.

    A version that no single table column can hold together with the older ones (int32 became string) is reported with
    both versions and the field, and its records become dead letters. So do records with an unknown id, of another
    format, or that google's parser refuses. While the registry is away, ids that were seen before are decoded, and a
    batch with a new one waits.

    Adds `schema_id`, `schema_version`, `subject` and `message` (full name), which rules and `select` may use.
    How types are mapped: docs/formats.md. Runs in Python, on record batches.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_schemas.protobuf.events",)

    def library(self, schemas: Schemas, preparation: Preparation) -> Messages:
        """Return what learns Protobuf schemas."""
        try:
            from router_schemas.protobuf.library import Messages
        except ModuleNotFoundError as error:
            extra = "pip install 'spark-event-router[protobuf]', here and on every node"
            raise StartError(f"the decoder protobuf needs the module {error.name}: {extra}") from error

        return Messages(schemas, preparation.memory, self.subjects)

    def places(self, values: pa.Array) -> frozenset[str]:
        """Return the schemas and messages that values name in their frames."""
        from router_schemas.frames import parse
        from router_schemas.protobuf.events import place

        keys = parse(values, indexed=True).keys
        return frozenset(place(key.id, key.path or (0,)) for key in keys if key.id is not None)

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode."""
        from router_schemas.protobuf.events import events
        from router_schemas.protobuf.mapping import spark_struct

        added = T.StructType.fromDDL(ADDED)
        assert isinstance(added, T.StructType)
        event = T.StructField("event", spark_struct(self.known.event))
        return ArrowDecoding(events, self.known, T.StructType([event, *added.fields]))
