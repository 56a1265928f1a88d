"""Rows of CSV, JSON, Parquet and Avro files as raw records: each row becomes a JSON object.

A stream lists the files of a batch; their rows are read here, a batch of files at a time: Spark fixes the columns of a
stream when it starts, and files get new ones while it runs. The columns that are known stand in the store of the
checkpoint, by the name `rows`, where the decoder `rows` reads them before each batch. Known columns keep their type. A
value that does not go into it without loss, and a line that is no row, stand as text in the field `_rescued`.
"""

from __future__ import annotations

import csv
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.columns import TIMES
from router.engine.lossless_cast import FRACTIONS, TIME_TYPES, cast_text, cast_value, in_json
from router.errors import StartError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, SparkSession

    from router.config.models import FilesSource
    from router.parts import Memory

log = logging.getLogger("router")
LEARNT = "rows"
"""The name under which the decoder `rows` finds the columns."""
RESCUED = "_rescued"
BROKEN = "_line"
"""The column, and the key in `_rescued`, of a line that is no row."""
FILE_COLUMNS = {"_path": "file_path", "_changed": "file_modification_time", "_block": "file_block_start"}
"""What is read of a row's file beside the row, by the names of Spark's `_metadata`."""
FIRST = 20
"""Files that the columns are learnt from before the first batch."""
THREADS = 8
REFUSED = re.compile(r"[ ,;{}()\n\t=.`]+")
"""What Delta takes in no name of a column, and what expressions would have to quote."""
INFERRED_TIMES = "yyyy-MM-dd[['T'][ ]HH:mm[:ss[.SSSSSS]][XXX]]"
"""The texts of JSON that are times: Spark would take `2026` for one, and cut nanoseconds."""
GUESSES: tuple[tuple[str, str], ...] = (
    ("bigint", r"^-?(0|[1-9]\d{0,17})$"),
    ("double", r"^-?(0|[1-9]\d{0,14})(\.\d+)?([eE][-+]?\d{1,2})?$"),
    ("boolean", r"^(?i)(true|false)$"),
    ("date", r"^\d{4}-\d\d-\d\d$"),
    ("timestamp", r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$"),
)
"""The types that a column of text is taken for when all of its values look so. A number with a leading zero is text."""
TYPES = {
    "bigint": T.LongType(),
    "double": T.DoubleType(),
    "boolean": T.BooleanType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "string": T.StringType(),
}


@dataclass(frozen=True)
class FileRows:
    """The rows of a source of files; `memory` has the columns that are known."""

    spark: SparkSession
    files: FilesSource
    memory: Memory

    def learn(self) -> None:
        """Learn the columns of the first files, where none are known yet. Runs some jobs."""
        if self.memory.read(LEARNT) is not None:
            return
        try:
            listed = self.spark.read.format("binaryFile").options(**listing_options(self.files)).load(self.files.path)
            found = [row["path"] for row in listed.select("path").limit(FIRST).collect()]
        except AnalysisException:  # the folder is not there yet
            found = []
        if found:
            self._learnt(self._parts(found))

    def records(self, listed: DataFrame) -> DataFrame:
        """Return the rows of files as raw records. Needs the columns `path` and `modificationTime`; adds `block`, the
        place in the file where the part begins that a task reads.

        Learns new columns first. Raises StartError with the file that cannot be read.
        """
        found = [row["path"] for row in listed.select("path").collect()]
        parts = self._parts(sorted(found)) if found else []
        known = self._learnt(parts)
        if self.files.format == "json":
            parts = [self._exact(part, known, sorted(found)) for part in parts]
        rows = [self._rows(part, known) for part in parts]
        empty = "value binary, topic string, timestamp timestamp, block bigint"
        return reduce(DataFrame.unionByName, rows) if rows else self.spark.createDataFrame([], empty)

    # the files of a batch, by what columns they have

    def _parts(self, paths: list[str]) -> list[DataFrame]:
        """Return frames over files that have the same columns; those of text formats have texts only, or guessed types.

        Each has the columns of FILE_COLUMNS besides.
        """
        try:
            return [self._of_file(frame) for frame in getattr(self, f"_{self.files.format}")(paths)]
        except StartError:
            raise
        except Exception as error:
            raise self._bad_file(paths, error) from error

    def _bad_file(self, paths: list[str], error: Exception) -> StartError:
        """Return the error that names the first file which cannot be read alone."""
        for path in paths:
            try:
                [frame.schema for frame in getattr(self, f"_{self.files.format}")([path])]
            except Exception as of_file:
                what = f"{path} cannot be read as {self.files.format}: {first_line(of_file)}"
                return StartError(f"{what}. Mend it, or move it out of the folder, and start again")
        return StartError(f"files cannot be read together: {first_line(error)}")

    @staticmethod
    def _of_file(frame: DataFrame) -> DataFrame:
        return frame.select("*", *(F.col(f"_metadata.{name}").alias(new) for new, name in FILE_COLUMNS.items()))

    def _reader(self, **options: str) -> Any:
        listing = listing_options(self.files)  # the files are chosen already
        given = {key: value for key, value in self.files.options.items() if key not in listing}
        return self.spark.read.format(self.files.format).options(**{**options, **given})

    def _csv(self, paths: list[str]) -> list[DataFrame]:
        """Return a frame for each header: by its own columns a file is read, whatever their order."""
        given = {"header": "true", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN, "enforceSchema": "true"}
        if self.files.options.get("header", "true").lower() != "true":
            columns = self._reader(**given).load(paths).columns
            return [self._reader(**given).schema(_texts(columns)).load(paths)]
        lines = self.spark.read.format("text").load(paths).where(F.length(F.trim("value")) > 0)
        lines = lines.select("value", F.col("_metadata.file_path").alias("path"), F.col("_metadata.file_block_start"))
        firsts = lines.where("file_block_start = 0").withColumn("at", F.monotonically_increasing_id()).groupBy("path")
        found = firsts.agg(F.min_by("value", "at").alias("line")).collect()
        by_header: dict[str, list[str]] = {}
        for row in found:  # an empty file has no line
            by_header.setdefault(row["line"].lstrip("\ufeff"), []).append(row["path"])
        mark = self.files.options.get("sep", self.files.options.get("delimiter", ","))
        frames = []
        for header, of_header in by_header.items():
            columns = next(csv.reader([header], delimiter=mark))
            frames.append(self._reader(**given).schema(_texts(columns)).load(sorted(of_header)))
        return frames

    def _json(self, paths: list[str]) -> list[DataFrame]:
        return [self._json_reader().load(paths)]

    def _json_reader(self) -> Any:
        given = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN, "dropFieldIfAllNull": "true"}
        # without it a field whose name differs by case only is an error of the whole file
        return self._reader(**given, inferTimestamp="true", timestampFormat=INFERRED_TIMES)

    def _exact(self, part: DataFrame, known: T.StructType, paths: list[str]) -> DataFrame:
        """Return the rows of JSON files with the text of numbers and of what gets another type, as the files have it.

        Spark makes doubles of them before anybody can ask whether something is lost.
        """
        kinds = {field.name.lower(): field.dataType for field in known}
        fields = []
        for field in part.schema:
            if field.name in FILE_COLUMNS:
                continue
            kind = kinds.get(_name(field.name).lower(), field.dataType)
            is_exact = kind == field.dataType and not isinstance(kind, T.DoubleType)
            are_nested = isinstance(kind, NESTED) and isinstance(field.dataType, NESTED)
            is_known = type(kind) in PLAIN or isinstance(kind, NESTED)
            as_text = is_known and not is_exact and not are_nested and field.name != BROKEN
            fields.append(T.StructField(field.name, T.StringType()) if as_text else field)
        return self._of_file(self._json_reader().schema(T.StructType(fields)).load(paths))

    def _parquet(self, paths: list[str]) -> list[DataFrame]:
        try:
            return [self._reader(mergeSchema="true").load(paths)]
        except Exception:  # files that have different types for a column
            return self._by_schema(paths)

    def _avro(self, paths: list[str]) -> list[DataFrame]:
        return self._by_schema(paths)  # Spark would take the columns of one of them for all

    def _by_schema(self, paths: list[str]) -> list[DataFrame]:
        with ThreadPoolExecutor(THREADS) as pool:
            schemas = [*pool.map(lambda path: self._reader().load(path).schema.json(), paths)]
        by_schema: dict[str, list[str]] = {}
        for path, schema in zip(paths, schemas, strict=True):
            by_schema.setdefault(schema, []).append(path)
        return [self._reader().load(of_schema) for of_schema in by_schema.values()]

    # columns: known, new, rescued

    def known(self) -> T.StructType:
        """Return the columns that are known, with `_rescued`."""
        text = self.memory.read(LEARNT)
        return T.StructType([]) if text is None else T.StructType.fromJson(_json_of(text))

    def _learnt(self, parts: Iterable[DataFrame]) -> T.StructType:
        """Return the known columns with those that are new in files, and note them."""
        before = self.known()
        names = [field.name for field in before]
        hints = _hints(self.files.schema_hints)
        known = {field.name.lower(): field for field in [*before, *(hint for hint in hints if hint.name not in names)]}
        known.pop(RESCUED, None)
        for part in parts:
            fields = [field for field in part.schema if field.name not in (BROKEN, *FILE_COLUMNS)]
            if self.files.format == "csv":
                fields = _guessed(part, [field for field in fields if _name(field.name).lower() not in known])
            for field in fields:
                name = _name(field.name)
                had = known.get(name.lower())
                kind = _keepable(field.dataType) if had is None else grown(had.dataType, field.dataType)
                if kind is not None:
                    known[name.lower()] = T.StructField(had.name if had else name, kind)
        after = T.StructType([*known.values(), T.StructField(RESCUED, T.MapType(T.StringType(), T.StringType()))])
        if after != before:
            new = [field.name for field in after if field.name not in names]
            if names and new:
                log.info("%s: new columns: %s", self.files.path, ", ".join(new))
            self.memory.write(LEARNT, after.json().encode())
        return after

    def _rows(self, part: DataFrame, known: T.StructType) -> DataFrame:
        hinted = {hint.name.lower() for hint in _hints(self.files.schema_hints)}
        kinds = {field.name.lower(): field for field in known if field.name != RESCUED}
        values: dict[str, Column] = {}
        rescued: dict[str, Column] = {}
        for field in part.schema:
            if field.name in FILE_COLUMNS:
                continue
            column = F.col(f"`{field.name.replace('`', '``')}`")
            had = kinds.get(_name(field.name).lower())
            if field.name == BROKEN or had is None or had.name in values:
                rescued[field.name] = _text(column, field.dataType)
                continue
            is_hinted = had.name.lower() in hinted
            values[had.name], lost = _taken(column, field.dataType, had.dataType, hinted=is_hinted)
            if lost is not None:
                rescued[field.name] = F.when(lost, _text(column, field.dataType))
        if rescued:
            pairs = [cell for name, value in rescued.items() for cell in (F.lit(name), value)]
            found = F.map_filter(F.create_map(*pairs), lambda _, value: value.isNotNull())
            values[RESCUED] = F.when(F.size(found) > 0, found)
        row = F.struct(*(value.alias(name) for name, value in values.items()))
        text = F.to_json(row, TIMES) if values else F.lit("{}")
        about = (F.col("_path").alias("topic"), F.col("_changed").alias("timestamp"), F.col("_block").alias("block"))
        return part.select(text.cast("binary").alias("value"), *about)


def listing_options(files: FilesSource) -> dict[str, str]:
    """Return the options that say which files there are, and those of Spark's list of files that it has seen."""
    named = {"pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter"}
    named |= {"maxFileAge", "latestFirst", "maxCachedFiles", "fileNameOnly"}
    return {key: value for key, value in files.options.items() if key in named}


def _json_of(text: bytes) -> Any:
    import json  # noqa: PLC0415 - `_json` reads files here

    return json.loads(text)


def hinted(files: FilesSource | None) -> dict[str, bytes]:
    """Return what the decoder `rows` knows by `schema_hints` alone, as it stands in the store. Needs a session."""
    rescued = T.StructField(RESCUED, T.MapType(T.StringType(), T.StringType()))
    hints = _hints(files.schema_hints) if files else []
    return {LEARNT: T.StructType([*hints, rescued]).json().encode()} if hints else {}


def _hints(ddl: str | None) -> list[T.StructField]:
    found = T.StructType.fromDDL(ddl) if ddl else None
    return list(found) if isinstance(found, T.StructType) else []


def _texts(columns: list[str]) -> T.StructType:
    """Return columns of text, and one for lines that are no row; a second column of a name gets a number."""
    names: list[str] = []
    for k, column in enumerate(columns):
        name = column.strip() or f"_c{k}"
        names.append(name if name.lower() not in {other.lower() for other in names} else f"{name}_{k}")
    return T.StructType([T.StructField(name, T.StringType()) for name in [*names, BROKEN]])


def _name(column: str) -> str:
    """Return the name of a column as a table can have it."""
    return REFUSED.sub("_", column)


def _guessed(part: DataFrame, fields: list[T.StructField]) -> list[T.StructField]:
    """Return columns of text with the type that all of their values have; those without a value are left for later."""
    if not fields:
        return []
    columns = [F.col(f"`{field.name.replace('`', '``')}`") for field in fields]
    asked = [F.count(column).alias(f"n{k}") for k, column in enumerate(columns)]
    for k, column in enumerate(columns):
        for kind, form in GUESSES:
            _, keeps_all = cast_text(column, TYPES[kind], hinted=False)
            fits = F.trim(column).rlike(form) & F.coalesce(keeps_all, F.lit(False))
            asked.append(F.count_if(column.isNotNull() & ~fits).alias(f"{kind}{k}"))
    found = part.select(*asked).collect()[0]
    kinds = [next((kind for kind, _ in GUESSES if not found[f"{kind}{k}"]), "string") for k in range(len(fields))]
    return [
        T.StructField(field.name, TYPES[kind])
        for k, (field, kind) in enumerate(zip(fields, kinds, strict=True))
        if found[f"n{k}"]
    ]


def grown(known: T.DataType, found: T.DataType) -> T.DataType | None:
    """Return the type that holds the values of both as they are, with fields of both; None where there is none."""
    if known == found:
        return known
    if isinstance(known, T.StructType) and isinstance(found, T.StructType):
        fields = {field.name: field.dataType for field in known}
        for field in found:
            kind = grown(fields[field.name], field.dataType) if field.name in fields else field.dataType
            if kind is None:
                return None
            fields[field.name] = kind
        return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
    if isinstance(known, T.ArrayType) and isinstance(found, T.ArrayType):
        kind = grown(known.elementType, found.elementType)
        return None if kind is None else T.ArrayType(kind)
    if isinstance(known, T.MapType) and isinstance(found, T.MapType) and known.keyType == found.keyType:
        kind = grown(known.valueType, found.valueType)
        return None if kind is None else T.MapType(known.keyType, kind)
    return None


def _keepable(kind: T.DataType) -> T.DataType:
    """Return the type that a new column gets: text for what the decoder has no type for."""
    if isinstance(kind, T.ByteType):
        return T.ShortType()
    return kind if _decodes(kind) else T.StringType()


def _decodes(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return bool(kind.fields) and all(_decodes(field.dataType) for field in kind)
    if isinstance(kind, T.ArrayType):
        return _decodes(kind.elementType)
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and _decodes(kind.valueType)
    return type(kind) in PLAIN


PLAIN = {T.StringType, T.BinaryType, T.BooleanType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType}
PLAIN |= {T.DecimalType, T.DateType, T.TimestampType, T.TimestampNTZType}
NESTED = (T.StructType, T.ArrayType, T.MapType)


def _text(column: Column, kind: T.DataType) -> Column:
    """Return a value as text: what is nested as JSON, bytes that are no text as base64."""
    if isinstance(kind, NESTED):
        return F.to_json(column, TIMES)
    text = column.cast("string")
    if isinstance(kind, T.BinaryType):
        return F.when(F.is_valid_utf8(text), text).otherwise(F.base64(column))
    return text


def _taken(column: Column, found: T.DataType, known: T.DataType, *, hinted: bool) -> tuple[Column, Column | None]:
    """Return a column in the known type, and on which rows that would lose something: these are null."""
    if grown(known, found) is not None:
        if not isinstance(found, (*FRACTIONS, *TIME_TYPES)):
            return column, None
        fits = in_json(column, found)
        return F.when(fits, column), column.isNotNull() & ~fits
    if isinstance(known, T.StringType):
        if not isinstance(found, T.BinaryType):
            return _text(column, found), None
        fits = F.is_valid_utf8(column.cast("string"))
        return F.when(fits, column.cast("string")), column.isNotNull() & ~fits
    if isinstance(known, NESTED) or isinstance(found, NESTED):
        return F.lit(None).cast("string"), column.isNotNull()
    if type(known) not in PLAIN:  # a variant
        cast = column.try_cast(known)
        fits = cast.isNotNull()
    elif isinstance(found, T.StringType):
        cast, fits = cast_text(column, known, hinted=hinted)
    else:
        cast, fits = cast_value(column, found, known)
    return F.when(fits, cast), column.isNotNull() & ~F.coalesce(fits, F.lit(False))
