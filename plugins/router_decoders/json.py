"""Decode JSON objects: those with a schema of the configuration, and framed ones with schemas of a registry.

A schema of the configuration is read from Spark DDL or a file, or inferred from the source and kept in a file.
"""  # noqa: A005 - it is never imported by this name alone

from __future__ import annotations

import json
import logging
import os
import re
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from router import ArrowDecoder, ArrowDecoding, Preparation, StartError
from router_decoders.registry_decoder import RegistryDecoder
from router_schemas.json_schema.documents import struct_of_file
from router_schemas.json_schema.spark_types import check_types, json_schema_of
from router_schemas.model import schema_file, table_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from router_schemas.json_schema.library import Objects
    from router_schemas.library import Library
    from router_schemas.registry_client import OfflineRegistry

logger = logging.getLogger("router")

INFERENCE_OPTIONS = {
    "mode": "DROPMALFORMED",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "inferTimestamp": "true",
    # A year alone would make a timestamp of every text of four digits.
    "timestampFormat": "yyyy-MM-dd['T'][ ]HH:mm[:ss[.SSSSSSSSS]][XXX]",
}

FILE_ENDING = r"\.(schema\.json|ddl)$"
"""The end of the name of a schema's file."""
UNKNOWN_COLUMN = T.StructField("_unknown", T.ArrayType(T.StringType()))
"""The column with the names of the fields that the schema lacks."""


class Infer(BaseModel):
    """Where an inferred schema is kept, and how many records it is inferred from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(
        pattern=rf".{FILE_ENDING}",
        description="file next to the configuration: NAME.schema.json (JSON Schema) or NAME.ddl (Spark DDL)",
    )
    rows: int = Field(default=10_000, ge=1, description="records to read from the source")


class Json(ArrowDecoder):
    """Decode a record whose value is one JSON object in UTF-8 (RFC 8259) to a struct with a known schema.

    The schema is given in one of three ways: in Spark DDL, as a JSON Schema file, or inferred once from a sample of
    the source into a file that every later start uses as it is (`--refresh-schema` makes it again and logs what
    changed).

    Fields that the record lacks are null, fields that the schema lacks are left out (or kept, see `rescue`): the ledger
    counts the records that have some, and the log names each field once. A record that cannot be decoded whole has no
    event, and `_error` says why: the value is null, is empty, is not UTF-8, is not JSON, has text after the object, is
    an array or a scalar; or it does not fit the schema, with the fields as far as they can be told (those inside of
    arrays cannot).

    - Numbers fit when they are in the range of their type; an integer field takes no 1.0 and no 1e3, a number field
      takes any number but is rounded to its type, a decimal to its scale. No number is taken from a text, except that
      a decimal may be one.
    - A timestamp is ISO 8601: `2026-11-21T10:00:00Z`, with up to 9 decimals of the second (6 are kept), a space instead
      of the T, the zone as Z, +02:00 or Europe/Berlin; without a zone it is in the session's time zone, and a date
      alone is its midnight. A date is `2026-11-21`. Years are 0001 to 9999. Numbers do not fit either: declare a
      bigint and convert it in `select`.
    - A string field takes any value, as JSON text: `5`, `{"a":1}`.
    - Of a key that comes twice the last value counts, except that both must fit (of a time, a decimal and a map the
      last one alone); within a map such a key does not fit.
    - Half of a surrogate pair (`\\ud800` alone) becomes a question mark.
    - A record is refused, and the reason names the limit, if it is nested more than 999 levels deep, or has a number of
      more than 1000 digits, a field name of more than 50,000 characters, or a text of more than 20 million characters
      for a string field.
    - Binary is base64. A variant takes any value. Intervals, char and varchar are refused.

    Runs in Python, on record batches. `router help json` lists what Spark's from_json does in another way.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.json_arrow",)
    main_option: ClassVar[str | None] = "schema"
    texts: ClassVar[Mapping[str, str]] = {"schema": "ddl"}

    # pydantic models have a method called schema
    ddl: str | None = Field(
        default=None, alias="schema", min_length=1, description='Spark DDL, such as "game string, amount double"'
    )
    schema_file: str | None = Field(
        default=None, min_length=1, description="JSON Schema (or Spark DDL, in *.ddl), from the configuration's folder"
    )
    infer: Infer | None = Field(default=None, description="infer the schema from a sample, once, into a file")
    rescue: bool = Field(
        default=False,
        description="add the field _rescued, map<string,string>: top-level keys that the schema does not know",
    )

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        options = {"schema": self.ddl, "schema_file": self.schema_file, "infer": self.infer}
        set_options = [name for name, value in options.items() if value is not None]
        if not set_options:
            raise ValueError(f"give exactly one of {', '.join(options)}; none is given")
        if len(set_options) > 1:
            raise ValueError(f"give exactly one of {', '.join(options)}; {' and '.join(set_options)} are given")
        return self

    _renames: bool = PrivateAttr(default=False)
    """Whether columns have other names than the fields that were inferred."""

    @property
    @override
    def skips_blank_lines(self) -> bool:
        return True

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with its schema; may read a sample of the source and write an inferred one."""
        if self.infer is not None:
            struct = read_or_infer(self.infer, preparation)
        elif self.schema_file is not None:
            struct = read_schema(preparation.folder / self.schema_file)
        else:
            return self
        copy = self.model_copy(update={"ddl": struct.toDDL(), "schema_file": None, "infer": None})
        if self.infer is not None and table_type(struct) != struct:
            _warn_of_renamed(preparation.folder / self.infer.file, struct)
            copy._renames = True
        return copy

    def known_fields(self, folder: Path) -> T.StructType | str | None:
        """Return the columns of a JSON Schema, also of one that was inferred; DDL as it is."""
        if self.schema_file is not None:
            file = folder / self.schema_file
            if file.suffix != ".ddl":
                return read_schema(file)
            with schema_file(file):
                return file.read_text(encoding="utf-8")
        if self.infer is None or self.infer.file.endswith(".ddl") or not (folder / self.infer.file).exists():
            return None
        renamed = table_type(read_schema(folder / self.infer.file))
        assert isinstance(renamed, T.StructType)  # as what it is made of
        return renamed

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the text of an event."""
        return json.dumps(event).encode()

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode; raise ValueError for a schema that JSON cannot be decoded to."""
        if self.ddl is None:
            raise StartError("the schema is in a file: call prepare() before decode()")
        return _make_decoding(self.ddl, session_zone(), self.rescue, self._renames)


def json_decoding(ddl: str) -> ArrowDecoding:
    """Return how tasks decode objects to a schema. Needs a Spark session."""
    return _make_decoding(ddl, session_zone(), False)


@lru_cache(maxsize=16)
def _make_decoding(ddl: str, zone: str, rescue: bool, renames: bool = False) -> ArrowDecoding:
    """Return how tasks decode to a schema; made once, because Spark parses the DDL.

    With `renames` fields may have any names, and columns get names that tables can have.
    """
    from router_decoders.json_arrow import RESCUED_FIELD, JsonEvents, json_events
    from router_decoders.json_types import nullable_type, shape_of

    schema = struct_of_ddl(ddl)
    named = table_type(schema) if renames else schema
    check_types(named)
    event = nullable_type(named)
    if rescue:
        if RESCUED_FIELD in (name.lower() for name in event.fieldNames()):
            raise ValueError(f"the schema has a field {RESCUED_FIELD} already; remove it or switch `rescue` off")
        event = event.add(RESCUED_FIELD, T.MapType(T.StringType(), T.StringType()))
    adds = T.StructType([T.StructField("event", event), T.StructField("_error", T.StringType()), UNKNOWN_COLUMN])
    return ArrowDecoding(json_events, JsonEvents(shape_of(schema, named), zone, rescue), adds)


def session_zone() -> str:
    """Return the session's time zone, in which times without one are read; raise StartError if tasks lack it."""
    from router_decoders.json_types import zone_of

    zone = str(SparkSession.active().conf.get("spark.sql.session.timeZone"))
    if zone_of(zone) is None:
        raise StartError(f"spark.sql.session.timeZone is {zone!r}, which is no zone such as UTC or Europe/Berlin")
    return zone


def struct_of_ddl(ddl: str) -> T.StructType:
    """Return the struct that a Spark DDL text describes; raise ValueError if it does not. Needs a Spark session."""
    try:
        struct = T.StructType.fromDDL(ddl)
    except ParseException as error:
        reason = (error.getMessage() or str(error)).strip().splitlines()[0]
        raise ValueError(f"not a schema in Spark DDL such as `game string, amount double`: {reason}") from None
    if not isinstance(struct, T.StructType) or not struct.fields:
        raise ValueError("not a schema in Spark DDL such as `game string, amount double`: it has no fields")
    return struct


def read_schema(file: Path, text: str | None = None) -> T.StructType:
    """Return the struct that a file describes: Spark DDL in a `.ddl`, else JSON Schema; raise StartError.

    With a `text` it is the struct that the file would describe with this text.
    """
    with schema_file(file):
        if text is None:
            text = file.read_text(encoding="utf-8")
        return struct_of_ddl(text) if file.suffix == ".ddl" else struct_of_file(file, text)


def read_or_infer(options: Infer, preparation: Preparation) -> T.StructType:
    """Return the schema in the file; infer it from a sample of the source first if the file is missing or refreshed.

    What is written is parsed, so that the first run has the types of every later one. A debug run has a file of
    its own, NAME_debug, and uses that of real runs until it has written it. A trial writes none.
    """
    real_file = preparation.folder / options.file
    file = real_file
    if preparation.debug:
        file = real_file.with_name(re.sub(FILE_ENDING, r"_debug\g<0>", real_file.name))
    # A debug run that has no file of its own yet begins with that of real runs.
    former = None
    if file.exists():
        former = read_schema(file)
    elif real_file.exists():
        former = read_schema(real_file)
    if former and not preparation.refresh:
        return former
    struct = infer_schema(preparation.sample(options.rows))
    if former:
        struct = merge_schemas(former, struct)
    text = struct.toDDL()
    if file.suffix != ".ddl":
        text = json.dumps(json_schema_of(struct), indent=2)
    struct = read_schema(file, text)
    if not preparation.trial:
        _replace_file(file, f"{text}\n")
        _log_changes(file, former, struct)
    return struct


def _warn_of_renamed(file: Path, struct: T.StructType) -> None:
    """Log the fields whose columns have other names: no table takes their signs, or two names differ by case only."""
    for (path, _), (column, _) in zip(leaf_types(struct), leaf_types(table_type(struct)), strict=True):
        if path != column:
            logger.warning(
                "schema %s: %s becomes the column %s, since no table can have both names, or its signs",
                file,
                path,
                column,
            )


def infer_schema(sample: DataFrame) -> T.StructType:
    """Return the schema of the JSON objects in a sample of raw records; raise StartError when it has none.

    Runs one Spark job over the sample; other records are passed over.
    """
    # Spark's parser takes no byte order mark, which decoding passes over.
    text = F.ltrim(F.col("value").cast("string"), F.lit("\ufeff"))
    objects = sample.select(text).where(F.is_valid_utf8(text) & F.ltrim(text).startswith("{"))
    # itemgetter, because executors have it without this plugin
    struct = sample.sparkSession.read.options(**INFERENCE_OPTIONS).json(objects.rdd.map(itemgetter(0))).schema
    if not struct.fields:
        raise StartError(
            "no schema can be inferred: the source has no JSON object yet; write some, or write the schema yourself"
        )
    return struct


def merge_schemas(former: T.StructType, sampled: T.StructType) -> T.StructType:
    """Return the schema of a sample with the former one: a sample lacks the fields of records that are not in it.

    A field has its type in the sample, but a number does not become narrower.
    """
    sampled_types = {field.name: field.dataType for field in sampled}
    fields = []
    for field in former:
        kind = _merge_types(field.dataType, sampled_types.get(field.name, field.dataType))
        fields.append(T.StructField(field.name, kind))
    fields += [field for field in sampled if field.name not in former.names]
    return T.StructType(fields)


def _merge_types(former: T.DataType, sampled: T.DataType) -> T.DataType:
    if isinstance(former, T.StructType) and isinstance(sampled, T.StructType):
        return merge_schemas(former, sampled)
    if isinstance(former, T.ArrayType) and isinstance(sampled, T.ArrayType):
        return T.ArrayType(_merge_types(former.elementType, sampled.elementType))
    if isinstance(former, (T.DoubleType, T.DecimalType)) and isinstance(sampled, T.IntegralType):
        return former
    return sampled


def schema_differences(former: T.StructType, struct: T.StructType) -> list[str]:
    """Return the differences of two schemas, a line for each field that was added, removed or changed."""
    before = dict(leaf_types(former))
    after = dict(leaf_types(struct))
    lines = [f"added {path}: {kind}" for path, kind in after.items() if path not in before]
    lines += [f"removed {path}: {kind}" for path, kind in before.items() if path not in after]
    for path, kind in before.items():
        if path in after and after[path] != kind:
            lines.append(f"changed {path}: {kind} -> {after[path]}")
    return lines


def leaf_types(kind: T.DataType, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and type of every field: `player.level`, `tags[]` for elements, `scores{}` for map values."""
    if isinstance(kind, T.StructType):
        for field in kind:
            yield from leaf_types(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, T.ArrayType):
        yield from leaf_types(kind.elementType, f"{path}[]")
    elif isinstance(kind, T.MapType):
        yield from leaf_types(kind.valueType, f"{path}{{}}")
    else:
        yield path, kind.simpleString()


def _log_changes(file: Path, former: T.StructType | None, struct: T.StructType) -> None:
    if former is None:
        logger.info("schema inferred into %s: %s", file, struct.simpleString())
        return
    changes = schema_differences(former, struct)
    for change in changes:
        logger.info("schema %s: %s", file, change)
    if not changes:
        logger.info("schema %s: no differences", file)


def _replace_file(file: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)


class JsonSchema(RegistryDecoder):
    """Decode a record whose value is a JSON object with a JSON Schema in a registry.

    The value is in the wire format of a Confluent-compatible schema registry: a zero byte, the schema's id (4 bytes,
    big-endian) and the object in UTF-8; or the record has the header `__value_schema_id` with the schema's GUID, and
    the value is the bare object. The schemas of all versions are merged into one, by which every object is read: a
    property that a version lacks is null, integers become doubles where a version says number. New versions are looked
    for before every batch, and an id that comes unannounced within it.

    The schema says what the columns are, and that is all it is used for: `required`, `pattern`, `minimum` and the like
    are not checked (a route's `expect` is for that), and a property that no version knows is left out, and counted as
    with `json`. What no column can hold (free-form objects, values of several types, a schema within itself) is a
    string with the JSON text. What fits a type and what does not, and what is no JSON, is as for the decoder `json`.

    A version that no single table column can hold together with the older ones (a string became an integer) is reported
    with both versions and the field, and its records become dead letters. So do records with an unknown id, of another
    format, and objects that do not fit the merged schema.

    Adds `schema_id`, `schema_version`, `subject` and `message` (the schema's title, null without one). Types:
    `router help formats`. Runs in Python, on record batches.
    """

    needs: ClassVar[tuple[str, ...]] = ("router_decoders.json_arrow",)

    def open_library(self, preparation: Preparation) -> Library[Objects]:
        """Return where JSON Schemas come from."""
        from router_schemas.json_schema.library import Documents

        schemas = self.open_resolver(preparation)
        counted = self.counted_subjects(preparation)
        return Documents(schemas, preparation.memory, subjects=self.subjects, counted=counted, header=self.header)

    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has files with JSON Schemas."""
        from router_schemas.json_schema.documents import referenced_files
        from router_schemas.registry_client import OfflineRegistry

        return OfflineRegistry("JSON", schemas, {"JSON": referenced_files})

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return an event as an object in its wire format. It is not checked against the schema."""
        from router_schemas.wire_format import pack_value

        schema_id, _ = self.id_and_file(schema)
        text = json.dumps(event, ensure_ascii=False)
        return pack_value(schema_id, None, text.encode())

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode."""
        from router_decoders.json_arrow import FramedObjects, JsonEvents, framed_events
        from router_decoders.json_types import nullable_type, shape_of
        from router_schemas.wire_format import ADDED_FIELDS

        known: Objects = self.known_schemas
        check_types(known.struct)
        named = table_type(known.struct)
        adds = T.StructType([T.StructField("event", nullable_type(named)), *ADDED_FIELDS, UNKNOWN_COLUMN])
        options = JsonEvents(shape_of(known.struct, named), session_zone())
        return ArrowDecoding(framed_events, FramedObjects(options, known.written, known.header, known.absence), adds)
