"""Decode records of every format that a registry has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from router_decoders.avro import Avro
from router_decoders.json import JsonSchema
from router_decoders.protobuf import Protobuf
from router_decoders.registry_decoder import RegistryDecoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from router import ArrowDecoding, Preparation
    from router_schemas.library import Formats, Library, RegistryLibrary
    from router_schemas.model import Kind, Taken
    from router_schemas.registry_client import OfflineRegistry

DECODERS: dict[Kind, type[RegistryDecoder]] = {"AVRO": Avro, "PROTOBUF": Protobuf, "JSON": JsonSchema}


class Auto(RegistryDecoder):
    """Decode a record in whatever format the registry says that its schema has: Avro, Protobuf or JSON Schema.

    The value is in the frame of a Confluent-compatible schema registry, or the record has the header
    `__value_schema_id` with the schema's GUID. One topic may hold all three formats. Each record is decoded as by the
    decoders `avro`, `protobuf` and `json_schema`, whose manual pages say how.

    All records share one event, as messages of one topic do: a field has one type in all formats, and is null in
    records that lack it. The format that came first says what the type is; JSON integers are read as the int, bigint,
    double or decimal that is there. A message of another format whose field has another type is refused with both
    versions and the field, and its records become dead letters.

    Adds `schema_id`, `schema_version`, `subject` and `message`. Runs in Python, on record batches; Avro's
    values are read by Spark's from_avro before. Protobuf needs `pip install 'spark-event-router[protobuf]'` when its
    first schema comes, on every node.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.auto_arrow", "router_decoders.json_arrow")

    @property
    @override
    def zero_is_absent(self) -> bool:
        return self._known is not None and "PROTOBUF" in self._known.made

    def library(self, preparation: Preparation) -> Library[Formats]:
        """Return where schemas of all formats come from."""
        from router_schemas.library import AnyFormat

        schemas, memory = self.schemas(preparation), preparation.memory

        def opened(kind: Kind) -> RegistryLibrary[Any, Any]:
            if kind == "AVRO":
                from router_schemas.avro.library import Writers

                return Writers(schemas, memory, header=self.header)
            if kind == "JSON":
                from router_schemas.json_schema.library import Documents

                return Documents(schemas, memory, header=self.header)
            return Protobuf.messages(schemas, memory, self.header)

        return AnyFormat(schemas, memory, self.subjects, self.header, opened, {kind: fields(kind) for kind in DECODERS})

    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has files of all formats, told by their names."""
        from router_schemas.protobuf.descriptors import imports_below
        from router_schemas.registry_client import OfflineRegistry

        return OfflineRegistry(None, schemas, imports_below)

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return an event as the decoder of its schema's format does."""
        from router_schemas.registry_client import kind_of

        part = self._part(kind_of(self.chosen(schema)[1]), None)
        part._files = self._files
        return part.encode(event, schema, message)

    def wanted_by(self, records: pa.RecordBatch, known: Formats) -> frozenset[str]:
        """Return the schemas and messages that records name and that are not known."""
        from router_schemas.wire_format import parse, schema_bytes

        keys = parse(records.column("value"), False, records.column("headers"), self.header).keys
        wanted = frozenset(str(key.writer) for key in keys if schema_bytes(key.writer) not in known.written)
        for kind, made in known.made.items():
            if kind == "PROTOBUF":  # a schema that is known, and another message of it
                found = self._part(kind, made).wanted_by(records, made)
                wanted |= frozenset(place for place in found if place.startswith("message "))
        return wanted

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode: as the one format there is, or each row as its own."""
        from router_decoders.auto_arrow import combined

        made = [(kind, decoder.decoding()) for kind, decoder in self._parts()]
        return made[0][1] if len(self.known.made) == 1 else combined(self.known, made)

    def _parts(self) -> list[tuple[Kind, RegistryDecoder]]:
        """Return the decoders of the formats that can be read; of none, one that can say why."""
        made = self.known.made
        if len(made) == 1:
            return [(kind, self._part(kind, one)) for kind, one in made.items()]
        readable = [kind for kind in made if fields(kind)(made[kind])] or [kind for kind in made if kind != "JSON"][:1]
        return [(kind, self._part(kind, made[kind])) for kind in readable]

    def _part(self, kind: Kind, made: Any) -> RegistryDecoder:
        return DECODERS[kind].model_validate({"registry": self.registry, "header": self.header}).reading(made)


def fields(kind: Kind) -> Any:
    """Return what tells the fields of a format's event with their types and what brought them."""

    def told(made: Any) -> Taken:
        from router_schemas.model import column_names, table_type

        if kind == "PROTOBUF":
            from router_schemas.protobuf.model import spark_struct

            event = spark_struct(made.event)
        else:
            event = made.event if kind == "AVRO" else made.struct
        pairs = zip(column_names(event.fieldNames()).values(), event, strict=True)
        return {column: (table_type(one.dataType), made.origins[one.name]) for column, one in pairs}

    return told
