"""Read the rows of CSV, JSON, Parquet and Avro files as raw records: each row becomes a JSON object.

The stream lists the files of a batch, and their rows are read here, a batch of files at a time: Spark fixes the columns
of a stream when it starts, and files get new ones while it runs. The known columns are in the store of the checkpoint,
under the name `rows`, where the decoder `rows` reads them before each batch. Known columns keep their type. A value
that does not fit into it without loss, and a line that is no row, are kept as text in the field `_rescued`.
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
"""Columns about the file of a row, and their names in Spark's `_metadata`."""
_FIRST = 20
"""Files from which the columns are learnt before the first batch."""
_THREADS = 8
_REFUSED = re.compile(r"[ ,;{}()\n\t=.`]+")
"""Characters that Delta allows in no column name, or that expressions would have to quote."""
INFERRED_TIMES = "yyyy-MM-dd[['T'][ ]HH:mm[:ss[.SSSSSS]][XXX]]"
"""The texts of JSON that are times: Spark would take `2026` for one, and cut nanoseconds."""
GUESSES: tuple[tuple[str, str], ...] = (
    ("bigint", r"^-?(0|[1-9]\d{0,17})$"),
    ("double", r"^-?(0|[1-9]\d{0,14})(\.\d+)?([eE][-+]?\d{1,2})?$"),
    ("boolean", r"^(?i)(true|false)$"),
    ("date", r"^\d{4}-\d\d-\d\d$"),
    ("timestamp", r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$"),
)
"""The types that a column of text gets if all of its values look like them. A number with a leading zero is text."""
_TYPES = {
    "bigint": T.LongType(),
    "double": T.DoubleType(),
    "boolean": T.BooleanType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "string": T.StringType(),
}


@dataclass(frozen=True)
class FileRows:
    """The rows of a source of files; `memory` has the known columns."""

    spark: SparkSession
    files: FilesSource
    memory: Memory

    def learn(self) -> None:
        """Learn the columns of the first files, if none are known yet. Runs some jobs."""
        if self.memory.read(LEARNT) is not None:
            return
        try:
            listed = self.spark.read.format("binaryFile").options(**listing_options(self.files)).load(self.files.path)
            paths = [row["path"] for row in listed.select("path").limit(_FIRST).collect()]
        except AnalysisException:  # the folder does not exist yet
            return
        if paths:
            self._learn_columns(self._parts(paths))

    def records(self, listed: DataFrame) -> DataFrame:
        """Return the rows of files as raw records.

        Needs the columns `path` and `modificationTime`; adds `block`, the place in the file where the part begins that
        a task reads. Learns new columns first. Raises StartError with the file that cannot be read.
        """
        paths = sorted(row["path"] for row in listed.select("path").collect())
        parts = []
        if paths:
            parts = self._parts(paths)
        columns = self._learn_columns(parts)
        if not parts:
            empty = "value binary, topic string, timestamp timestamp, block bigint"
            return self.spark.createDataFrame([], empty)
        if self.files.format == "json":
            parts = [self._read_again_as_text(part, columns, paths) for part in parts]
        return reduce(DataFrame.unionByName, [self._rows(part, columns) for part in parts])

    # The files of a batch, grouped by their columns

    def _parts(self, paths: list[str]) -> list[DataFrame]:
        """Return a frame for the files of each set of columns; those of text formats have texts only, or guessed types.

        Each also has the columns of FILE_COLUMNS.
        """
        try:
            return [_with_file_columns(frame) for frame in getattr(self, f"_{self.files.format}")(paths)]
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

    def _reader(self, **options: str) -> Any:
        # Options that choose files would leave out some of those that the stream has chosen.
        listing = listing_options(self.files)
        configured = {key: value for key, value in self.files.options.items() if key not in listing}
        return self.spark.read.format(self.files.format).options(**{**options, **configured})

    def _csv(self, paths: list[str]) -> list[DataFrame]:
        """Return a frame for each header: a file is read by its own columns, whatever their order."""
        options = {
            "header": "true",
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": BROKEN,
            "enforceSchema": "true",
        }
        if self.files.options.get("header", "true").lower() != "true":
            columns = self._reader(**options).load(paths).columns
            return [self._reader(**options).schema(_texts(columns)).load(paths)]

        # The header is the first line that is not empty, in the part of the file that begins at byte 0.
        lines = self.spark.read.format("text").load(paths).where(F.length(F.trim("value")) > 0)
        lines = lines.select("value", F.col("_metadata.file_path").alias("path"), F.col("_metadata.file_block_start"))
        numbered = lines.where("file_block_start = 0").withColumn("number", F.monotonically_increasing_id())
        headers = numbered.groupBy("path").agg(F.min_by("value", "number").alias("line")).collect()
        paths_by_header: dict[str, list[str]] = {}
        for row in headers:  # an empty file has none
            header = row["line"].lstrip("\ufeff")
            paths_by_header.setdefault(header, []).append(row["path"])

        separator = self.files.options.get("sep", self.files.options.get("delimiter", ","))
        frames = []
        for header, paths_of_header in paths_by_header.items():
            columns = next(csv.reader([header], delimiter=separator))
            frames.append(self._reader(**options).schema(_texts(columns)).load(sorted(paths_of_header)))
        return frames

    def _json(self, paths: list[str]) -> list[DataFrame]:
        return [self._json_reader().load(paths)]

    def _json_reader(self) -> Any:
        # Without these a field whose name differs by case only is an error of the whole file.
        return self._reader(
            mode="PERMISSIVE",
            columnNameOfCorruptRecord=BROKEN,
            dropFieldIfAllNull="true",
            inferTimestamp="true",
            timestampFormat=INFERRED_TIMES,
        )

    def _read_again_as_text(self, part: DataFrame, known: T.StructType, paths: list[str]) -> DataFrame:
        """Return the rows of JSON files with numbers, and columns that change their type, as the text in the files.

        Spark makes doubles of numbers before a cast can find out whether something is lost.
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
            if is_known and not is_exact and not are_nested and field.name != BROKEN:
                fields.append(T.StructField(field.name, T.StringType()))
            else:
                fields.append(field)
        return _with_file_columns(self._json_reader().schema(T.StructType(fields)).load(paths))

    def _parquet(self, paths: list[str]) -> list[DataFrame]:
        try:
            return [self._reader(mergeSchema="true").load(paths)]
        except Exception:  # files that have different types for a column
            return self._by_schema(paths)

    def _avro(self, paths: list[str]) -> list[DataFrame]:
        # Spark would read all files with the columns of one of them.
        return self._by_schema(paths)

    def _by_schema(self, paths: list[str]) -> list[DataFrame]:
        with ThreadPoolExecutor(_THREADS) as pool:
            schemas = [*pool.map(lambda path: self._reader().load(path).schema.json(), paths)]
        paths_by_schema: dict[str, list[str]] = {}
        for path, schema in zip(paths, schemas, strict=True):
            paths_by_schema.setdefault(schema, []).append(path)
        return [self._reader().load(paths_of_schema) for paths_of_schema in paths_by_schema.values()]

    # Columns: known, new, rescued

    def known(self) -> T.StructType:
        """Return the known columns, with `_rescued`."""
        text = self.memory.read(LEARNT)
        if text is None:
            return T.StructType([])
        return T.StructType.fromJson(_json_of(text))

    def _learn_columns(self, parts: Iterable[DataFrame]) -> T.StructType:
        """Return the known columns and those that are new in files, and store them."""
        before = self.known()
        names = before.names
        columns = {field.name.lower(): field for field in before}
        for hint in _hints(self.files.schema_hints):
            if hint.name not in names:
                columns[hint.name.lower()] = hint
        columns.pop(RESCUED, None)
        for part in parts:
            self._add_columns(columns, part)

        rescued = T.StructField(RESCUED, T.MapType(T.StringType(), T.StringType()))
        after = T.StructType([*columns.values(), rescued])
        if after != before:
            new = [field.name for field in after if field.name not in names]
            if names and new:
                log.info("%s: new columns: %s", self.files.path, ", ".join(new))
            self.memory.write(LEARNT, after.json().encode())
        return after

    def _add_columns(self, columns: dict[str, T.StructField], part: DataFrame) -> None:
        """Add the columns of files to those that are known, by their name in lower case; let types grow."""
        fields = [field for field in part.schema if field.name not in (BROKEN, *FILE_COLUMNS)]
        # All columns of CSV are text: guess the types of the new ones from their values.
        if self.files.format == "csv":
            fields = _guess_types(part, [field for field in fields if _name(field.name).lower() not in columns])
        for field in fields:
            name = _name(field.name)
            column = columns.get(name.lower())
            if column is None:
                columns[name.lower()] = T.StructField(name, _keepable(field.dataType))
                continue
            kind = common_kind(column.dataType, field.dataType)
            if kind is not None:
                columns[name.lower()] = T.StructField(column.name, kind)

    def _rows(self, part: DataFrame, known: T.StructType) -> DataFrame:
        """Return the rows of files as raw records, with what does not fit into the known columns in `_rescued`."""
        hinted_names = {hint.name.lower() for hint in _hints(self.files.schema_hints)}
        known_columns = {field.name.lower(): field for field in known if field.name != RESCUED}
        values: dict[str, Column] = {}
        rescued: dict[str, Column] = {}
        for field in part.schema:
            if field.name in FILE_COLUMNS:
                continue
            column = F.col(f"`{field.name.replace('`', '``')}`")
            known_column = known_columns.get(_name(field.name).lower())
            # Two columns of a file may have names that differ by case only: the second one is rescued.
            if field.name == BROKEN or known_column is None or known_column.name in values:
                rescued[field.name] = _text(column, field.dataType)
                continue
            value, loses = _cast_to_known(
                column, field.dataType, known_column.dataType, hinted=known_column.name.lower() in hinted_names
            )
            values[known_column.name] = value
            if loses is not None:
                rescued[field.name] = F.when(loses, _text(column, field.dataType))
        if rescued:
            pairs = []
            for name, text in rescued.items():
                pairs += [F.lit(name), text]
            texts = F.map_filter(F.create_map(*pairs), lambda _, text: text.isNotNull())
            values[RESCUED] = F.when(F.size(texts) > 0, texts)

        row = F.lit("{}")
        if values:
            row = F.to_json(F.struct(*[value.alias(name) for name, value in values.items()]), TIMES)
        return part.select(
            row.cast("binary").alias("value"),
            F.col("_path").alias("topic"),
            F.col("_changed").alias("timestamp"),
            F.col("_block").alias("block"),
        )


def _with_file_columns(frame: DataFrame) -> DataFrame:
    """Return rows of files with the columns of FILE_COLUMNS."""
    about_file = [F.col(f"_metadata.{name}").alias(column) for column, name in FILE_COLUMNS.items()]
    return frame.select("*", *about_file)


def listing_options(files: FilesSource) -> dict[str, str]:
    """Return the options that choose files, and those of Spark's list of the files that it has seen."""
    named = {"pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter"}
    named |= {"maxFileAge", "latestFirst", "maxCachedFiles", "fileNameOnly"}
    return {key: value for key, value in files.options.items() if key in named}


def _json_of(text: bytes) -> Any:
    import json  # noqa: PLC0415 - `_json` reads files here

    return json.loads(text)


def hinted(files: FilesSource | None) -> dict[str, bytes]:
    """Return the content of the store that `schema_hints` alone give the decoder `rows`. Needs a session."""
    if files is None:
        return {}
    hints = _hints(files.schema_hints)
    if not hints:
        return {}
    rescued = T.StructField(RESCUED, T.MapType(T.StringType(), T.StringType()))
    return {LEARNT: T.StructType([*hints, rescued]).json().encode()}


def _hints(ddl: str | None) -> list[T.StructField]:
    if not ddl:
        return []
    kind = T.StructType.fromDDL(ddl)
    return list(kind) if isinstance(kind, T.StructType) else []


def _texts(columns: list[str]) -> T.StructType:
    """Return columns of text, and one for lines that are no row; a second column of a name gets a number."""
    names: list[str] = []
    for k, column in enumerate(columns):
        name = column.strip() or f"_c{k}"
        if name.lower() in {other.lower() for other in names}:
            name = f"{name}_{k}"
        names.append(name)
    return T.StructType([T.StructField(name, T.StringType()) for name in [*names, BROKEN]])


def _name(column: str) -> str:
    """Return the name of a column as a table can store it."""
    return _REFUSED.sub("_", column)


def _guess_types(part: DataFrame, fields: list[T.StructField]) -> list[T.StructField]:
    """Return columns of text with the type that all of their values have, without columns that have no value yet."""
    if not fields:
        return []
    # One job counts, for each column, its values and those that do not fit into each type.
    counts = []
    for k, field in enumerate(fields):
        column = F.col(f"`{field.name.replace('`', '``')}`")
        counts.append(F.count(column).alias(f"n{k}"))
        for kind, form in GUESSES:
            _, keeps_all = cast_text(column, _TYPES[kind], hinted=False)
            fits = F.trim(column).rlike(form) & F.coalesce(keeps_all, F.lit(False))
            counts.append(F.count_if(column.isNotNull() & ~fits).alias(f"{kind}{k}"))
    counted = part.select(*counts).collect()[0]

    guessed = []
    for k, field in enumerate(fields):
        if not counted[f"n{k}"]:
            continue
        kind = next((kind for kind, _ in GUESSES if not counted[f"{kind}{k}"]), "string")
        guessed.append(T.StructField(field.name, _TYPES[kind]))
    return guessed


def common_kind(old: T.DataType, new: T.DataType) -> T.DataType | None:
    """Return the type that holds the values of both as they are, with fields of both; None if there is none."""
    if old == new:
        return old
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        fields = {field.name: field.dataType for field in old}
        for field in new:
            kind: T.DataType | None = field.dataType
            if field.name in fields:
                kind = common_kind(fields[field.name], field.dataType)
            if kind is None:
                return None
            fields[field.name] = kind
        return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        kind = common_kind(old.elementType, new.elementType)
        return None if kind is None else T.ArrayType(kind)
    if isinstance(old, T.MapType) and isinstance(new, T.MapType) and old.keyType == new.keyType:
        kind = common_kind(old.valueType, new.valueType)
        return None if kind is None else T.MapType(old.keyType, kind)
    return None


def _keepable(kind: T.DataType) -> T.DataType:
    """Return the type that a new column gets: text if the decoder has no type for it."""
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
    """Return a value as text: nested ones as JSON, bytes that are no text as base64."""
    if isinstance(kind, NESTED):
        return F.to_json(column, TIMES)
    text = column.cast("string")
    if isinstance(kind, T.BinaryType):
        return F.when(F.is_valid_utf8(text), text).otherwise(F.base64(column))
    return text


def _cast_to_known(
    column: Column, found: T.DataType, known: T.DataType, *, hinted: bool
) -> tuple[Column, Column | None]:
    """Return a column in its known type, and whether a row loses something by it: its value is null then.

    `found` is the type in the files. The second column is None if no row can lose anything.
    """
    if common_kind(known, found) is not None:
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
    if type(known) not in PLAIN:  # a variant, by a hint
        cast = column.try_cast(known)
        fits = cast.isNotNull()
    elif isinstance(found, T.StringType):
        cast, fits = cast_text(column, known, hinted=hinted)
    else:
        cast, fits = cast_value(column, found, known)
    return F.when(fits, cast), column.isNotNull() & ~F.coalesce(fits, F.lit(False))
