"""Decode records of every format that a registry has, in one task: each row by its format, all to one event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import types as T
from typing_extensions import override

from router import ArrowDecoding, to_arrow_columns
from router_decoders.avro import Avro
from router_decoders.json import UNKNOWN, JsonSchema
from router_decoders.protobuf import Protobuf
from router_decoders.registry_decoder import RegistryDecoder
from router_schemas.model import WriterSchema, column_names, table_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from router import Preparation
    from router_schemas.library import Formats, Library, RegistryLibrary
    from router_schemas.model import Kind, SchemaInfo, Taken
    from router_schemas.registry_client import OfflineRegistry

DECODERS: dict[Kind, type[RegistryDecoder]] = {"AVRO": Avro, "PROTOBUF": Protobuf, "JSON": JsonSchema}


class Auto(RegistryDecoder):
    """Decode a record in whatever format the registry says that its schema has: Avro, Protobuf or JSON Schema.

    The value is in the wire format of a Confluent-compatible schema registry, or the record has the header
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

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.json_arrow",)
    connectors: ClassVar[tuple[str, ...]] = ("avro",)

    @property
    @override
    def zero_is_absent(self) -> bool:
        return self._known is not None and "PROTOBUF" in self._known.made

    def library(self, preparation: Preparation) -> Library[Formats]:
        """Return where schemas of all formats come from."""
        from router_schemas.library import AnyFormat

        schemas = self.schemas(preparation)
        memory = preparation.memory
        counted = self.counted(preparation)

        def opened(kind: Kind) -> RegistryLibrary[Any, Any]:
            if kind == "AVRO":
                from router_schemas.avro.library import Writers

                return Writers(schemas, memory, counted=counted, header=self.header)
            if kind == "JSON":
                from router_schemas.json_schema.library import Documents

                return Documents(schemas, memory, counted=counted, header=self.header)
            return Protobuf.messages(schemas, memory, counted, self.header)

        return AnyFormat(schemas, memory, self.subjects, self.header, opened, fields)

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
        wanted = super().wanted_by(records, known)
        for kind, made in known.made.items():
            if kind == "PROTOBUF":  # a schema that is known, and another message of it
                found = self._part(kind, made).wanted_by(records, made)
                wanted |= frozenset(place for place in found if place.startswith("message "))
        return wanted

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode: as the one format there is, or each row as its own."""
        made = [(kind, decoder.decoding()) for kind, decoder in self._parts()]
        return made[0][1] if len(self.known.made) == 1 else combined(self.known, made)

    def _parts(self) -> list[tuple[Kind, RegistryDecoder]]:
        """Return the decoders of the formats that can be read; where none can, one that says why."""
        made = self.known.made
        if len(made) == 1:
            return [(kind, self._part(kind, one)) for kind, one in made.items()]
        readable = [kind for kind in made if fields(kind, made[kind])] or [kind for kind in made if kind != "JSON"][:1]
        return [(kind, self._part(kind, made[kind])) for kind in readable]

    def _part(self, kind: Kind, made: Any) -> RegistryDecoder:
        return DECODERS[kind].model_validate({"registry": self.registry, "header": self.header}).reading(made)


def fields(kind: Kind, made: Any) -> Taken:
    """Return the fields of a format's event as columns, each with its type and what brought it."""
    if kind == "PROTOBUF":
        from router_schemas.protobuf.model import spark_struct

        event = spark_struct(made.event)
    else:
        event = made.event if kind == "AVRO" else made.struct
    pairs = zip(column_names(event.fieldNames()).values(), event, strict=True)
    return {column: (table_type(one.dataType), made.origins[one.name]) for column, one in pairs}


@dataclass(frozen=True)
class AnyFormatRows:
    """How rows are told apart: `written` is by prefix, and its `message` is the format; `parts` are by format."""

    written: dict[bytes, SchemaInfo]
    header: str
    parts: dict[str, ArrowDecoding]
    event: T.StructType


def combined(known: Formats, made: Sequence[tuple[str, ArrowDecoding]]) -> ArrowDecoding:
    """Return the decoding of rows of several formats. Runs on the driver."""
    from router_schemas.wire_format import ADDED_FIELDS

    structs: list[Any] = [one.adds["event"].dataType for _, one in made]
    fields = {field.name: field.dataType for struct in structs for field in struct}
    event = T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
    parts = {kind: replace(one, before=None) for kind, one in made}
    adds = T.StructType([T.StructField("event", event), *ADDED_FIELDS, UNKNOWN])
    before = joined([one.before for _, one in made if one.before])
    return ArrowDecoding(any_format_events, AnyFormatRows(known.written, known.header, parts, event), adds, before)


def joined(some: Sequence[Callable[[DataFrame], DataFrame]]) -> Callable[[DataFrame], DataFrame] | None:
    """Return a function that adds the columns of all; their names differ."""
    return (lambda raw: reduce(lambda frame, one: one(frame), some, raw)) if some else None


def any_format_events(records: pa.RecordBatch, known: AnyFormatRows) -> pa.RecordBatch:
    """Return `event`, the columns of ADDED and `_unknown`. Runs on executors; never raises for what a row holds."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import about, framed_rows, schema_bytes, wanted, why

    found = framed_rows(records, "confluent", known.header, indexed=False)
    written = [known.written.get(schema_bytes(WriterSchema.of(writer))) for writer in found.writers]
    formats = [one.message if one is not None and one.reason is None else None for one in written]
    of_row = np.array([*formats, None], object)[found.groups]  # a row without a writer has the group -1: the last one
    read = _read(records, of_row, known)
    ids = pc.coalesce(read["schema_id"], about(found, written)[0])
    columns = {
        **read,
        "_error": pc.coalesce(why(found, written), read["_error"]),
        "_wanted": pc.coalesce(wanted(found, written), read["_wanted"]),
        "schema_id": ids,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _read(records: pa.RecordBatch, of_row: Any, known: AnyFormatRows) -> dict[str, pa.Array]:
    """Return what the formats' decoders add, each for its rows; null for rows of none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import ADDED, at_rows, widened

    event, unknown = to_arrow_columns(T.StructType([T.StructField("event", known.event), UNKNOWN]))
    adds = pa.schema([event, *ADDED, unknown])
    parts: list[pa.StructArray] = []
    order: list[Any] = []
    for kind, made in known.parts.items():
        rows = np.flatnonzero(of_row == kind)
        if len(rows):
            part = made.function(records.take(pa.array(rows)), made.argument)
            parts.append(widened(part.to_struct_array(), pa.struct(list(adds))))
            order.append(rows)
    if not parts:
        return {field.name: pa.nulls(records.num_rows, field.type) for field in adds}
    read = at_rows(parts, order, records.num_rows)
    return {field.name: pc.struct_field(read, [at]) for at, field in enumerate(adds)}
