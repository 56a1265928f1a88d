"""Decode records of every format that a registry has, in one task: each row by its format, all to one event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import types as T
from typing_extensions import override

from router import ArrowDecoding, to_arrow_columns
from router_decoders.avro import Avro
from router_decoders.json import UNKNOWN_COLUMN, JsonSchema
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

DECODER_BY_KIND: dict[Kind, type[RegistryDecoder]] = {"AVRO": Avro, "PROTOBUF": Protobuf, "JSON": JsonSchema}


class Auto(RegistryDecoder):
    """Decode a record in the format that its schema has in the registry: Avro, Protobuf or JSON Schema.

    The value is in the wire format of a Confluent-compatible schema registry, or the record has the header
    `__value_schema_id` with the schema's GUID. One topic may hold all three formats. Each record is decoded as by the
    decoders `avro`, `protobuf` and `json_schema`: see their manual pages.

    All records share one event, as messages of one topic do: a field has one type in all formats, and is null in
    records that lack it. The format that came first determines the type; JSON integers are read as the int, bigint,
    double or decimal that it has. A message of another format whose field has another type is refused with both
    versions and the field, and its records become dead letters.

    Adds `schema_id`, `schema_version`, `subject` and `message`. Runs in Python, on record batches; Avro's values are
    read by Spark's from_avro before. Protobuf needs `pip install 'spark-event-router[protobuf]'` when its
    first schema comes, on every node.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.json_arrow",)
    connectors: ClassVar[tuple[str, ...]] = ("avro",)

    @property
    @override
    def zero_is_absent(self) -> bool:
        return self._known is not None and "PROTOBUF" in self._known.made

    def open_library(self, preparation: Preparation) -> Library[Formats]:
        """Return where schemas of all formats come from."""
        from router_schemas.library import AnyFormat

        schemas = self.open_resolver(preparation)
        memory = preparation.memory
        counted = self.counted_subjects(preparation)

        # A format is imported when its first schema comes: that of Protobuf may not be installed.
        def open_format(kind: Kind) -> RegistryLibrary[Any, Any]:
            if kind == "AVRO":
                from router_schemas.avro.library import Writers

                return Writers(schemas, memory, counted=counted, header=self.header)
            if kind == "JSON":
                from router_schemas.json_schema.library import Documents

                return Documents(schemas, memory, counted=counted, header=self.header)
            return Protobuf.open_messages(schemas, memory, counted, self.header)

        return AnyFormat(
            schemas=schemas,
            memory=memory,
            subjects=self.subjects,
            header=self.header,
            opened=open_format,
            fields=columns_of_format,
        )

    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has files of all formats; the ending of a file's name gives its format."""
        from router_schemas.json_schema.documents import referenced_files
        from router_schemas.protobuf.descriptors import imported_files
        from router_schemas.registry_client import OfflineRegistry

        return OfflineRegistry(None, schemas, {"PROTOBUF": imported_files, "JSON": referenced_files})

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return an event as the decoder of its schema's format does."""
        from router_schemas.registry_client import kind_of

        _, file = self.id_and_file(schema)
        part = self._decoder_of(kind_of(file), None)
        part._files = self._files
        return part.encode(event, schema, message)

    def wanted_by(self, records: pa.RecordBatch, known: Formats) -> frozenset[str]:
        """Return the schemas and messages that records name and that are not known."""
        wanted = super().wanted_by(records, known)
        messages = known.made.get("PROTOBUF")
        if messages is None:
            return wanted
        # A record may have a schema that is known, and another message of it.
        of_protobuf = self._decoder_of("PROTOBUF", messages).wanted_by(records, messages)
        return wanted | frozenset(want for want in of_protobuf if want.startswith("message "))

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode: as the one format there is, or each row as its own."""
        made = self.known_schemas.made
        if len(made) == 1:
            ((kind, one_format),) = made.items()
            return self._decoder_of(kind, one_format).decoding()
        kinds = [kind for kind in made if columns_of_format(kind, made[kind])]
        if not kinds:
            # No format has fields: one of them gives the reasons.
            kinds = [kind for kind in made if kind != "JSON"][:1]
        return combine_decodings(
            self.known_schemas, {kind: self._decoder_of(kind, made[kind]).decoding() for kind in kinds}
        )

    def _decoder_of(self, kind: Kind, made: Any) -> RegistryDecoder:
        return DECODER_BY_KIND[kind].model_validate({"registry": self.registry, "header": self.header}).with_known(made)


def columns_of_format(kind: Kind, made: Any) -> Taken:
    """Return the fields of a format's event as columns, each with its type and origin."""
    if kind == "PROTOBUF":
        from router_schemas.protobuf.model import spark_struct

        event = spark_struct(made.event)
    elif kind == "AVRO":
        event = made.event
    else:
        event = made.struct
    columns = {}
    for name, field in zip(column_names(event.fieldNames()).values(), event, strict=True):
        columns[name] = (table_type(field.dataType), made.origins[field.name])
    return columns


@dataclass(frozen=True)
class AnyFormatRows:
    """How the format of a row is found: `written` is by prefix, its `message` is the format; `parts` are by format."""

    written: dict[bytes, SchemaInfo]
    header: str
    parts: dict[str, ArrowDecoding]
    event: T.StructType
    absence: str = ""


def combine_decodings(known: Formats, decodings: Mapping[Kind, ArrowDecoding]) -> ArrowDecoding:
    """Return the decoding of rows of several formats. Runs on the driver."""
    from router_schemas.wire_format import ADDED_FIELDS

    types_by_field: dict[str, T.DataType] = {}
    for decoding in decodings.values():
        struct: Any = decoding.adds["event"].dataType
        for field in struct:
            types_by_field[field.name] = field.dataType
    event = T.StructType()
    for name, field_type in types_by_field.items():
        event.add(name, field_type)
    # `before` runs on the driver (see `in_turn`): the parts, which are sent to tasks, go without it.
    parts: dict[str, ArrowDecoding] = {kind: replace(decoding, before=None) for kind, decoding in decodings.items()}
    return ArrowDecoding(
        function=any_format_events,
        argument=AnyFormatRows(
            written=known.written, header=known.header, parts=parts, event=event, absence=known.absence
        ),
        adds=T.StructType([T.StructField("event", event), *ADDED_FIELDS, UNKNOWN_COLUMN]),
        before=in_turn([decoding.before for decoding in decodings.values() if decoding.before]),
    )


def in_turn(befores: Sequence[Callable[[DataFrame], DataFrame]]) -> Callable[[DataFrame], DataFrame] | None:
    """Return a function that adds the columns of all, whose names differ; None if there is none."""
    if not befores:
        return None

    def add_all_columns(raw: DataFrame) -> DataFrame:
        for add_columns in befores:
            raw = add_columns(raw)
        return raw

    return add_all_columns


def any_format_events(records: pa.RecordBatch, known: AnyFormatRows) -> pa.RecordBatch:
    """Return `event`, ADDED_COLUMNS and `_unknown`. Runs on executors; never raises on any row."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import event_reasons, framed_rows, schema_bytes, schema_columns, wanted_writers

    rows = framed_rows(records, "confluent", known.header, indexed=False)
    written = [known.written.get(schema_bytes(WriterSchema.of(writer))) for writer in rows.writers]
    formats: list[str | None] = []
    for schema in written:
        if schema is None or schema.reason is not None:
            formats.append(None)
        else:
            formats.append(schema.message)
    # A row without a writer has the group -1: the last one.
    format_of_row = np.array([*formats, None], object)[rows.groups]
    columns = _decode_by_format(records, format_of_row, known)
    columns["_error"] = pc.coalesce(event_reasons(rows, written, absence=known.absence), columns["_error"])
    columns["_wanted"] = pc.coalesce(wanted_writers(rows, written), columns["_wanted"])
    # A row that no format decodes may still name an id.
    named_ids = schema_columns(rows, written)[0]
    columns["schema_id"] = pc.coalesce(columns["schema_id"], named_ids)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _decode_by_format(records: pa.RecordBatch, format_of_row: Any, known: AnyFormatRows) -> dict[str, pa.Array]:
    """Return the columns that the formats' decoders add, each for its rows; null on rows of none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import ADDED_COLUMNS, at_rows, widen_structs

    event, unknown = to_arrow_columns(T.StructType([T.StructField("event", known.event), UNKNOWN_COLUMN]))
    adds = [event, *ADDED_COLUMNS, unknown]
    decoded: list[pa.StructArray] = []
    rows_of_decoded: list[Any] = []
    for kind, decoding in known.parts.items():
        rows = np.flatnonzero(format_of_row == kind)
        if len(rows) == 0:
            continue
        added = decoding.function(records.take(pa.array(rows)), decoding.argument)
        decoded.append(widen_structs(added.to_struct_array(), pa.struct(adds)))
        rows_of_decoded.append(rows)
    # Each decoder has returned its rows only: put them back into the order of the records.
    if not decoded:
        return {field.name: pa.nulls(records.num_rows, field.type) for field in adds}
    struct = at_rows(decoded, rows_of_decoded, records.num_rows)
    return {field.name: pc.struct_field(struct, [place]) for place, field in enumerate(adds)}
