"""Read schemas from files, and keep an inferred schema in one."""

from __future__ import annotations

import json
import logging
import os
from operator import itemgetter
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field
from pyspark.errors import ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router import StartError
from router_schemas.json_schema.spark_types import json_schema_of, struct_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from router import Preparation

logger = logging.getLogger(__name__)

INFERENCE = {
    "mode": "DROPMALFORMED",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "inferTimestamp": "true",
    # a year alone would make a timestamp of every text of four digits
    "timestampFormat": "yyyy-MM-dd['T'][ ]HH:mm[:ss[.SSSSSSSSS]][XXX]",
}


class Infer(BaseModel):
    """Say where an inferred schema is kept, and how many records it is inferred from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(
        pattern=r".\.(schema\.json|ddl)$",
        description="file beside the configuration: NAME.schema.json (JSON Schema) or NAME.ddl (Spark DDL)",
    )
    rows: int = Field(default=10_000, ge=1, description="records to read from the source")


def struct_of_ddl(ddl: str) -> T.StructType:
    """Return the struct that a Spark DDL text describes; raise ValueError where it does not. Needs a Spark session."""
    try:
        struct = T.StructType.fromDDL(ddl)
    except ParseException as error:
        reason = (error.getMessage() or str(error)).strip().splitlines()[0]
        raise ValueError(f"not a schema in Spark DDL such as `game string, amount double`: {reason}") from None
    if not isinstance(struct, T.StructType) or not struct.fields:
        raise ValueError("not a schema in Spark DDL such as `game string, amount double`: it has no fields")
    return struct


def read_schema(file: Path) -> T.StructType:
    """Return the struct that a file describes: Spark DDL in a `.ddl`, else JSON Schema; raise StartError."""
    try:
        text = file.read_text(encoding="utf-8")
        return struct_of_ddl(text) if file.suffix == ".ddl" else struct_of(json.loads(text))
    except OSError as error:
        raise StartError(
            f"schema file {file}: {error.strerror}; it is looked for in the configuration's folder"
        ) from None
    except ValueError as error:  # also JSON and text that cannot be read
        raise StartError(f"schema file {file}: {error}") from None


def inferred(options: Infer, preparation: Preparation) -> T.StructType:
    """Return the schema that the file holds, made from a sample of the source first where that is to be done.

    What was written is read back, so that the first run has the types of every later one.
    """
    file = preparation.folder / options.file
    if file.exists() and not preparation.refresh:
        return read_schema(file)
    known = read_schema(file) if file.exists() else None
    struct = infer(preparation.sample(options.rows))
    struct = merged(known, struct) if known else struct
    text = struct.toDDL() if file.suffix == ".ddl" else json.dumps(json_schema_of(struct), indent=2)
    _replace(file, f"{text}\n")
    found = read_schema(file)
    _report(file, known, found)
    return found


def infer(sample: DataFrame) -> T.StructType:
    """Return the schema of the JSON objects in a sample of raw records; raise StartError when it has none.

    Runs one Spark job over the sample; other records are passed over.
    """
    text = F.col("value").cast("string")
    objects = sample.select(text).where(F.is_valid_utf8(text) & F.ltrim(text).startswith("{"))
    # itemgetter: executors know it without the plugin
    struct = sample.sparkSession.read.options(**INFERENCE).json(objects.rdd.map(itemgetter(0))).schema
    if not struct.fields:
        raise StartError(
            "no schema can be inferred: the source has no JSON object yet; write some, or write the schema yourself"
        )
    return struct


def merged(known: T.StructType, found: T.StructType) -> T.StructType:
    """Return the schema found with what was known before: a sample lacks what records have that it has not seen.

    A field has the type that was found, but a number does not become narrower.
    """
    names = {field.name: field.dataType for field in found}
    fields = [T.StructField(f.name, _merged(f.dataType, names.get(f.name, f.dataType))) for f in known]
    return T.StructType([*fields, *(field for field in found if field.name not in known.names)])


def _merged(known: T.DataType, found: T.DataType) -> T.DataType:
    if isinstance(known, T.StructType) and isinstance(found, T.StructType):
        return merged(known, found)
    if isinstance(known, T.ArrayType) and isinstance(found, T.ArrayType):
        return T.ArrayType(_merged(known.elementType, found.elementType))
    wider = isinstance(known, (T.DoubleType, T.DecimalType)) and isinstance(found, T.IntegralType)
    return known if wider else found


def differences(known: T.StructType, found: T.StructType) -> list[str]:
    """Return what differs between two schemas, a line for each field that was added, removed or changed."""
    before, after = dict(leaves(known)), dict(leaves(found))
    lines = [f"added {path}: {kind}" for path, kind in after.items() if path not in before]
    lines += [f"removed {path}: {kind}" for path, kind in before.items() if path not in after]
    common = [path for path in before if path in after and before[path] != after[path]]
    return lines + [f"changed {path}: {before[path]} -> {after[path]}" for path in common]


def leaves(kind: T.DataType, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and type of every field: `player.level`, `tags[]` for elements, `scores{}` for map values."""
    if isinstance(kind, T.StructType):
        for field in kind:
            yield from leaves(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, T.ArrayType):
        yield from leaves(kind.elementType, f"{path}[]")
    elif isinstance(kind, T.MapType):
        yield from leaves(kind.valueType, f"{path}{{}}")
    else:
        yield path, kind.simpleString()


def _report(file: Path, known: T.StructType | None, found: T.StructType) -> None:
    if known is None:
        logger.info("schema inferred into %s: %s", file, found.simpleString())
        return
    changes = differences(known, found)
    for change in changes:
        logger.info("schema %s: %s", file, change)
    if not changes:
        logger.info("schema %s: no differences", file)


def _replace(file: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)
