"""Read lines of files as raw records, or rows of CSV, JSON, Parquet and Avro files: each becomes a JSON object.

The stream lists the files of a batch, and they are read here, a batch of files at a time: Spark fixes the columns of a
stream when it starts, and files get new ones while it runs; its own source of files also gives rows twice (`_groups`).
The known columns are in the store of the checkpoint, under the name `rows`, where the decoder `rows` reads them before
each batch. Known columns keep their type. A value that does not fit into it without loss, decided row by row, and a
line that is no row, are kept as text in the field `_rescued`.
"""

from __future__ import annotations

import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.api.columns import JSON_TIME_OPTIONS
from router.engine.source.lossless_cast import (
    NESTED,
    all_utf8,
    as_text,
    cast_column,
    cast_text,
    keeps_all,
    parse_nested,
    table_name,
    type_of_texts,
)
from router.engine.source.unreadable_files import ListedFile, unreadable_files
from router.engine.spark.session import quiet_tasks
from router.errors import StartError
from router.spark_internals import files_of_batch, nanos_of_parquet, path_of
from router.storage.addresses import is_local_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrameReader, Row
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from router.api.parts import Memory
    from router.config.models import FilesSource

log = logging.getLogger("router")
LEARNT = "rows"
"""The name under which the decoder `rows` finds the columns."""
RESCUED = "_rescued"
LINE = "_line"
"""The key in `_rescued` of a line that is no row."""
_OWN = uuid4().hex
"""Is in the names of columns that are not of the files: these may have any name that anybody can know."""
BROKEN = f"line_{_OWN}"
"""The column of a line that is no row."""
KEY = "key"
"""The name in a column's metadata of the key of JSON whose values it has as text."""
PATH, CHANGED, BLOCK = f"path_{_OWN}", f"changed_{_OWN}", f"block_{_OWN}"
FILE_COLUMNS = {PATH: "file_path", CHANGED: "file_modification_time", BLOCK: "file_block_start"}
"""Columns about the file of a row, and their names in Spark's `_metadata`."""
_NO_PATTERNS = {"__globPaths__": "false"}
"""For the files of a batch: their names are no patterns. Spark's own source of files reads them with this option."""
_LISTED = "path string, modificationTime timestamp, length bigint, content binary"
"""The columns of Spark's binary files; it reads only those that are selected."""
_BLANK_CHARACTERS = " \t\n\v\f\r"
_BYTE_ORDER_MARK = "\ufeff"
_REPLACED = "\ufffd"
"""What Python and Java read in the place of bytes that are no UTF-8."""
_BYTES_AS_TEXT = "ISO-8859-1"
"""The encoding that has a character for each byte."""
ANY_BYTES = "bytes"
"""The name in the metadata of a column whose texts may not be UTF-8."""
TELLS_CASE = "spark.sql.caseSensitive"
"""With this setting Spark tells names apart which differ by case only."""
NANOS_AS_NUMBERS = "spark.sql.legacy.parquet.nanosAsLong"
"""With this one it reads times in nanoseconds, as numbers."""
_FIRST = 20
"""Files from which the columns are learnt before the first batch."""
_THREADS = 8
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

    def learn_columns(self) -> None:
        """Learn the columns of the first files, if none are known yet. Runs some jobs."""
        if self.memory.read(LEARNT) is not None:
            self._mend_learnt()
            return
        try:
            listed = listed_files(list_files(self.spark.read, self.files).limit(_FIRST))
        except StartError:  # the folder does not exist yet
            return
        try:
            self._learn_of(listed)
        except Exception:
            reasons = unreadable_files(self.spark, listed, self.read_parts)
            if not reasons:
                raise
            for url, reason in reasons.items():
                log.warning("%s: columns are learnt without %s: %s", self.files.path, url, reason)
            self._learn_of([file for file in listed if file.url not in reasons])

    def _learn_of(self, files: list[ListedFile]) -> None:
        if files:
            self._learn_columns(self.read_parts([file.path for file in files]))

    def read_records(self, paths: list[str]) -> DataFrame:
        """Return the rows of files as raw records, with the columns of `FileLines.records`.

        Learns new columns first. Raises what Spark raises for files that cannot be read; see unreadable_files.
        """
        parts = self.read_parts(paths)
        columns = self._learn_columns(parts)
        if self.files.format == "json":
            groups = zip(parts, _group_by_patterns(paths), strict=True)
            parts = [self._read_again_as_text(part, columns, group) for part, group in groups]
        return _union_frames(self.spark, [self._as_raw_records(part, columns) for part in parts])

    # The files of a batch, grouped by their columns

    def read_parts(self, paths: list[str]) -> list[DataFrame]:
        """Return a frame for the files of each set of columns; those of text formats have texts only, or guessed types.

        Each also has the columns of FILE_COLUMNS.
        """
        frames: list[DataFrame] = []
        for group in _group_by_patterns(paths):
            frames += getattr(self, f"_{self.files.format}_frames")(group)
        return [_with_file_columns(frame) for frame in frames]

    def _make_reader(self, **options: str) -> DataFrameReader:
        return self.spark.read.format(self.files.format).options(**_reading_options(self.files, **options))

    def _csv_frames(self, paths: list[str]) -> list[DataFrame]:
        """Return a frame for each header: a file is read by its own columns, whatever their order."""
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN, "enforceSchema": "true"}
        has_header = self.files.options.get("header", "true").lower() == "true"
        options["header"] = str(has_header).lower()
        frames = []
        for (columns, is_utf8), paths_of_columns in self._by_columns(paths, has_header=has_header).items():
            reader = self._make_reader(**options)
            schema = _text_columns(columns or tuple(reader.load(paths_of_columns).columns))
            if is_utf8:
                frames.append(reader.schema(schema).load(paths_of_columns))
                continue
            # Each character is one byte, so that texts get the bytes of the file: whether they are UTF-8 is seen later.
            read = reader.option("encoding", _BYTES_AS_TEXT).schema(schema).load(paths_of_columns)
            texts = [F.encode(_quoted_column(name), _BYTES_AS_TEXT).cast("string") for name in schema.names]
            named = zip(schema.names, texts, strict=True)
            frames.append(read.select(*[text.alias(name, metadata={ANY_BYTES: True}) for name, text in named]))
        return frames

    def _by_columns(self, paths: list[str], *, has_header: bool) -> dict[tuple[tuple[str, ...], bool], list[str]]:
        """Return the paths of CSV files by their columns, none without a header, and whether they are UTF-8.

        Runs a job, and one for each header.
        """
        # The header is the first line that is not empty, in the part of the file that begins at byte 0.
        number = F.when(F.col(BLOCK) == 0, F.monotonically_increasing_id())
        lines = self._read_lines(paths).withColumn("number", number)
        if comment := self.files.options.get("comment"):
            lines = lines.where(~F.col("value").startswith(comment))
        header = F.min_by(F.col("value").cast("binary"), "number")
        quote = (self.files.options.get("quote") or '"').encode()
        by_header: dict[tuple[bytes, bool], list[str]] = {}
        is_utf8 = F.lit(True) if self._has_encoding else F.bool_and(F.is_valid_utf8("value"))
        for url, line, utf8 in sorted(lines.groupBy(PATH).agg(header, is_utf8).collect()):  # an empty file has none
            path = path_of(self.spark, url)
            # A header may have several lines: then its first one does not tell it from others.
            goes_on = self._reads_whole and bytes(line).count(quote) % 2 == 1
            key = path.encode() if goes_on else bytes(line)
            by_header.setdefault((key, utf8), []).append(path)
        found: dict[tuple[tuple[str, ...], bool], list[str]] = {}
        for (_, utf8), paths_of_header in by_header.items():
            columns: tuple[str, ...] = ()
            if has_header:
                (first,) = self._make_reader().option("header", "false").load(paths_of_header[0]).take(1)
                columns = tuple((name or "").lstrip(_BYTE_ORDER_MARK) for name in first)
            if not utf8 and any(_REPLACED in name for name in columns):
                raise ValueError("its header is not UTF-8: name its encoding in source.files.options")
            found.setdefault((columns, utf8), []).extend(paths_of_header)
        return found

    def _read_lines(self, paths: list[str]) -> DataFrame:
        """Return the lines of text files, without empty ones, as `value`, with the columns of FILE_COLUMNS."""
        named = {key: value for key, value in self.files.options.items() if key in ("lineSep", "encoding")}
        lines = _with_file_columns(self.spark.read.format("text").options(**_NO_PATTERNS, **named).load(paths))
        return lines.where(F.length(F.trim("value")) > 0)

    def _json_frames(self, paths: list[str]) -> list[DataFrame]:
        # What has another encoding, or is no line, Spark's parser reads as bytes, and refuses those that are no text.
        is_of_lines = not self._has_encoding and not self._reads_whole
        by_lines = is_of_lines and not self._read_lines(paths).where(~F.is_valid_utf8("value")).isEmpty()
        session = _session_with(self.spark.sparkContext, TELLS_CASE)
        try:
            found = self._read_json(session, paths, by_lines=by_lines)
        except AnalysisException as error:
            # One line whose object has a key twice keeps Spark from finding the columns of all.
            if error.getCondition() != "COLUMN_ALREADY_EXISTS" or not is_of_lines:
                raise
            found = self._read_json(session, paths, by_lines=True)
        if not self._reads_whole and not {*found.columns} - {BROKEN}:
            by_lines = True  # Spark reads no file in which it has found no column
        known = self.known_columns().names
        columns: dict[str, T.StructField] = {}
        # Spark gives a column the values of one key; those of keys that differ by case only are read beside it.
        others: list[str] = []
        for field in sorted(found.schema, key=lambda field: field.name not in known):
            if field.name.lower() in columns:
                others.append(field.name)
            kind = T.StringType() if _differ_by_case(field.dataType) else field.dataType
            columns.setdefault(field.name.lower(), T.StructField(field.name, kind))
        fields = [*columns.values()]
        prefix = "_" * (1 + max(map(len, found.columns), default=0))
        for k, key in enumerate(others):
            fields.append(T.StructField(f"{prefix}{k}", T.StringType(), metadata={KEY: key}))
        return [self._read_json(self.spark, paths, fields, by_lines=by_lines)]

    @property
    def _has_encoding(self) -> bool:
        return self.files.options.get("encoding", "UTF-8").upper() != "UTF-8"

    @property
    def _reads_whole(self) -> bool:
        return self.files.options.get("multiLine", "").lower() == "true"

    def _read_json(
        self, session: SparkSession, paths: list[str], fields: list[T.StructField] | None = None, *, by_lines: bool
    ) -> DataFrame:
        """Return the rows of JSON files with some columns, or with those that are found.

        A column with the metadata KEY has the values of that key as text. With `by_lines` lines that are not UTF-8
        are no rows.
        """
        options = _reading_options(
            self.files,
            mode="PERMISSIVE",
            columnNameOfCorruptRecord=BROKEN,
            dropFieldIfAllNull="true",
            inferTimestamp="true",
            timestampFormat=INFERRED_TIMES,
        )
        reader = session.read.format("json").options(**options)
        if fields is None:
            if not by_lines:
                return reader.load(paths)
            return reader.json(
                self._read_lines(paths).where(F.is_valid_utf8("value")).select("value").rdd.map(_with_keys_once)
            )
        others = [field for field in fields if KEY in field.metadata]
        columns = T.StructType([field for field in fields if field not in others])
        if not others and not by_lines:
            return reader.schema(columns).load(paths)

        keys = ", ".join(field.metadata[KEY] for field in others)
        if self._reads_whole:
            what = f"{paths[0]}, or another file of its batch, has keys that differ from others by case only: {keys}"
            raise StartError(f"{what}. With `multiLine` these cannot be told apart: rename them, and start again")
        if BROKEN not in columns.names:
            columns = columns.add(BROKEN, "string")
        lines = self._read_lines(paths)
        if self._has_encoding:
            lines = lines.withColumn("value", F.decode(F.col("value").cast("binary"), self.files.options["encoding"]))
        # A line with an array has a row for each element.
        line = F.when(F.is_valid_utf8("value"), F.col("value"))
        elements = F.when(F.ltrim("value").startswith("["), F.from_json(line, "array<string>", options))
        lines = lines.select("value", F.explode(F.coalesce(elements, F.array(line))).alias("_json"))
        row = F.from_json("_json", columns, options)
        texts = []
        for field in others:
            key = field.metadata[KEY]
            of_key = F.from_json("_json", T.StructType([T.StructField(key, T.StringType())])).getField(key)
            texts.append(of_key.alias(field.name, metadata=field.metadata))
        read = lines.select("value", row.alias("_row"), *texts)
        broken = F.coalesce(F.col("_row").getField(BROKEN), F.when(F.col("_row").isNull(), F.col("value")))
        values = {name: F.col("_row").getField(name) for name in columns.names} | {BROKEN: broken}
        return read.select(
            *[value.alias(name, metadata={ANY_BYTES: True} if by_lines else {}) for name, value in values.items()],
            *[F.col(field.name) for field in others],
        )

    def _read_again_as_text(self, part: DataFrame, known: T.StructType, paths: list[str]) -> DataFrame:
        """Return the rows of JSON files with nested values, numbers, and columns that change their type, as text.

        Spark infers one type for a column in all of the files. With it, it makes doubles of numbers, and null of a
        nested value in which another one has another type, before a cast can find out whether something is lost.
        """
        types = {field.name.lower(): field.dataType for field in known}
        others = [field for field in part.schema if KEY in field.metadata]
        read: dict[str, T.DataType] = {BROKEN: T.StringType()}
        read |= {field.name: field.dataType for field in part.schema if field not in others}
        names = {table_name(name).lower() for name in read}
        # Spark infers no type from empty arrays and objects, and leaves out a column that has nothing else.
        for field in known:
            if field.name != RESCUED and field.name.lower() not in names:
                read[field.name] = T.NullType()

        fields = []
        for name, inferred in read.items():
            if name in FILE_COLUMNS:
                continue
            kind = types.get(table_name(name).lower(), inferred)
            changes = kind != inferred or isinstance(kind, T.DoubleType)
            if isinstance(kind, NESTED) or (type(kind) in PLAIN and changes):
                kind = T.StringType()
            fields.append(T.StructField(name, kind))
        by_lines = ANY_BYTES in part.schema[BROKEN].metadata if BROKEN in part.columns else False
        return _with_file_columns(self._read_json(self.spark, paths, [*fields, *others], by_lines=by_lines))

    def _parquet_frames(self, paths: list[str]) -> list[DataFrame]:
        try:
            with quiet_tasks(self.spark):
                return [self._make_reader(mergeSchema="true").load(paths)]
        except Exception:  # files that have different types for a column
            return self._by_schema(paths)

    def _avro_frames(self, paths: list[str]) -> list[DataFrame]:
        # Spark would read all files with the columns of one of them.
        return self._by_schema(paths)

    def _by_schema(self, paths: list[str]) -> list[DataFrame]:
        def schema_of(path: str) -> tuple[str, tuple[tuple[str, bool], ...]]:
            """Return the columns that Spark finds, and those of times in nanoseconds: as such it reads no file."""
            try:
                return self._make_reader().load(path).schema.json(), ()
            except AnalysisException:
                if self.files.format != "parquet" or not (nanos := nanos_of_parquet(self.spark, path)):
                    raise
                return self._with_nanos([path]).schema.json(), tuple(nanos.items())

        with ThreadPoolExecutor(_THREADS) as pool:
            schemas = [*pool.map(schema_of, paths)]
        paths_by_schema: dict[tuple[str, tuple[tuple[str, bool], ...]], list[str]] = {}
        for path, schema in zip(paths, schemas, strict=True):
            paths_by_schema.setdefault(schema, []).append(path)
        frames = []
        for (_, nanos), paths_of_schema in paths_by_schema.items():
            if not nanos:
                frames.append(self._make_reader().load(paths_of_schema))
                continue
            frame = self._with_nanos(paths_of_schema)
            columns: list[Column] = [_quoted_column(name) for name in frame.columns if name not in dict(nanos)]
            for name, is_instant in nanos:
                columns += _times_of_nanos(name, is_instant=is_instant)
            frames.append(frame.select(*columns))
        return frames

    def _with_nanos(self, paths: list[str]) -> DataFrame:
        """Return the rows of Parquet files with times in nanoseconds as numbers."""
        session = _session_with(self.spark.sparkContext, NANOS_AS_NUMBERS)
        return session.read.format("parquet").options(**_reading_options(self.files)).load(paths)

    # Columns: known, new, rescued

    def known_columns(self) -> T.StructType:
        """Return the known columns, with `_rescued`."""
        text = self.memory.read(LEARNT)
        if text is None:
            return T.StructType([])
        known: T.StructType = _with_table_names(T.StructType.fromJson(json.loads(text)))
        return known

    def _mend_learnt(self) -> None:
        """Give columns that were stored with names that no start accepts other names, and leave out those of one name.

        What does not come from a person must refuse no start. The values of such columns are rescued from now on.
        """
        known = self.known_columns()
        if known.json() != T.StructType.fromJson(json.loads(self.memory.read(LEARNT) or b"")).json():
            log.warning("%s: stored columns have names that no table can have; they are now %s", self.files.path, known)
            self.memory.write(LEARNT, known.json().encode())

    def _learn_columns(self, parts: Iterable[DataFrame]) -> T.StructType:
        """Return the known columns and those that are new in files, and store them."""
        before = self.known_columns()
        names = before.names
        columns = {field.name.lower(): field for field in before}
        for hint in _parse_hints(self.files.schema_hints):
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
        fields = [field for field in fields if table_name(field.name).lower() != RESCUED]
        fields = [field for field in fields if KEY not in field.metadata]
        # All columns of CSV are text: guess the types of the new ones from their values.
        if self.files.format == "csv":
            fields = _guess_types(part, [field for field in fields if table_name(field.name).lower() not in columns])
        for field in fields:
            name = table_name(field.name)
            column = columns.get(name.lower())
            if column is None:
                columns[name.lower()] = T.StructField(name, _keepable_type(field.dataType))
                continue
            columns[name.lower()] = T.StructField(column.name, _with_new_fields(column.dataType, field.dataType))

    def _as_raw_records(self, part: DataFrame, known: T.StructType) -> DataFrame:
        """Return the rows of files as raw records, with what does not fit into the known columns in `_rescued`."""
        hinted_names = {hint.name.lower() for hint in _parse_hints(self.files.schema_hints)}
        known_columns = {field.name.lower(): field for field in known if field.name != RESCUED}
        values: dict[str, Column] = {}
        rescued: dict[str, Column] = {}
        parsed: dict[str, Column] = {}
        line: Column | None = None
        # Longer than the name of any column in the files: these may have any name.
        prefix = "_" * max(map(len, part.columns))
        for field in part.schema:
            if field.name in FILE_COLUMNS:
                continue
            column = _quoted_column(field.name)
            if KEY in field.metadata:
                rescued[field.metadata[KEY]] = column
                continue
            known_column = known_columns.get(table_name(field.name).lower())
            if field.name == BROKEN:
                line = as_text(column, field.dataType) if ANY_BYTES in field.metadata else column
                continue
            # Two columns of a file may have names that differ by case only: the second one is rescued.
            if known_column is None or known_column.name in values:
                rescued[field.name] = as_text(column, field.dataType)
                continue
            kind = known_column.dataType
            is_hinted = known_column.name.lower() in hinted_names
            if isinstance(field.dataType, T.StringType) and isinstance(kind, NESTED):
                name = f"{prefix}{len(parsed)}"
                parsed[name] = parse_nested(column, kind)
                value = F.col(name)
                cast, fits = cast_column(value, type_of_texts(kind), kind, hinted=is_hinted)
                # A text of another shape is null as soon as it is parsed.
                fits = column.isNull() | (value.isNotNull() & fits)
            else:
                cast, fits = cast_column(column, field.dataType, kind, hinted=is_hinted)
            # What Spark reads from text is UTF-8; other formats give it any bytes.
            is_text = self.files.format in ("csv", "json") and ANY_BYTES not in field.metadata
            of_texts = None if is_text else all_utf8(column, field.dataType)
            if of_texts is not None:
                fits = fits & of_texts
            values[known_column.name] = F.when(fits, cast)
            if of_texts is not None or not keeps_all(field.dataType, kind):
                rescued[field.name] = F.when(~fits, as_text(column, field.dataType))
        if line is not None:  # has what a column of its name has, too
            rescued[LINE] = F.coalesce(line, rescued[LINE]) if LINE in rescued else line
        if rescued:
            pairs = []
            for name, text in rescued.items():
                pairs += [F.lit(name), text]
            texts = F.map_filter(F.create_map(*pairs), lambda _, text: text.isNotNull())
            values[RESCUED] = F.when(F.size(texts) > 0, texts)

        row = F.lit("{}")
        if values:
            row = F.to_json(F.struct(*[value.alias(name) for name, value in values.items()]), JSON_TIME_OPTIONS)
        # Once for all that is asked of a value: Spark would parse it again for each.
        return _with_value(part.withColumns(parsed), row)


@dataclass(frozen=True)
class FileLines:
    """The lines of a source of files, or whole files; without blank lines if `skips_blank`."""

    spark: SparkSession
    files: FilesSource
    skips_blank: bool

    def read_records(self, paths: list[str]) -> DataFrame:
        """Return the lines of files as raw records: `value`, `topic` (the file's URL), `timestamp` (of its change).

        Adds `block`, the place in the file where the part begins that a task reads. Raises what Spark raises for files
        that cannot be read; see unreadable_files.
        """
        parts = self.read_parts(paths)
        return _union_frames(self.spark, [_with_value(part, F.col("value")) for part in parts])

    def read_parts(self, paths: list[str]) -> list[DataFrame]:
        """Return the lines of files as `value`, with the columns of FILE_COLUMNS, in a frame for each group."""
        options = _reading_options(self.files, wholetext=str(self.files.whole_files).lower())
        frames = []
        for group in _group_by_patterns(paths):
            lines = _with_file_columns(self.spark.read.format("text").options(**options).load(group))
            if self.skips_blank and not self.files.whole_files:
                # Before anything numbers the records: the lines that are left follow each other. Spark trims slowly:
                # a line is not blank if it begins with a sign above those that are trimmed and below the mark.
                begins_with_sign = (F.col("value") >= "!") & (F.col("value") < _BYTE_ORDER_MARK)
                is_blank = F.trim("value", F.lit(_BLANK_CHARACTERS)).isin("", _BYTE_ORDER_MARK)
                lines = lines.where(begins_with_sign | ~is_blank)
            frames.append(lines)
        return frames


def _with_value(part: DataFrame, value: Column) -> DataFrame:
    """Return raw records of files with a value."""
    names = {"topic": PATH, "timestamp": CHANGED, "block": BLOCK}
    return part.select(value.cast("binary").alias("value"), *[F.col(own).alias(name) for name, own in names.items()])


def _union_frames(spark: SparkSession, frames: list[DataFrame]) -> DataFrame:
    if not frames:
        return spark.createDataFrame([], "value binary, topic string, timestamp timestamp, block bigint")
    return reduce(DataFrame.unionByName, frames)


def _group_by_patterns(paths: list[str]) -> list[list[str]]:
    """Return files as they are read together.

    A file whose name may be a pattern is read alone: of others beside it Spark (4.0 to 4.2) gives the rows twice.
    """
    plain = [path for path in paths if not has_pattern(path)]
    return [*([plain] if plain else []), *([path] for path in paths if has_pattern(path))]


def has_pattern(path: str) -> bool:
    """Return whether Hadoop may take the name of a file for a pattern."""
    return re.search(r"[*?\[\]{}\\]", path) is not None


@lru_cache(maxsize=2)
def _session_with(context: SparkContext, setting: str) -> SparkSession:
    """Return a session with a setting switched on; one for each context, since it costs 0.3 s."""
    session = SparkSession.builder.getOrCreate().newSession()
    session.conf.set(setting, "true")
    return session


def _times_of_nanos(name: str, *, is_instant: bool) -> list[Column]:
    """Return a column of nanoseconds since 1970 as times, and, for RESCUED, the texts of what has more decimals."""
    nanos = _quoted_column(name)
    # Rounded down, also before 1970.
    time = F.timestamp_micros(F.expr(f"{_quote_name(name)} div 1000") - F.when(nanos % 1000 < 0, 1).otherwise(0))
    is_whole = nanos % 1000 == 0
    text = F.concat(F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"), F.lpad(F.pmod(nanos, F.lit(1000)), 3, "0"))
    kept = F.when(is_whole, time if is_instant else time.cast("timestamp_ntz"))
    return [kept.alias(name), F.when(~is_whole, text).alias(f"{name}_{_OWN}", metadata={KEY: name})]


def _differ_by_case(kind: T.DataType) -> bool:
    """Return whether names inside of a type differ by case only, at any depth."""
    if isinstance(kind, T.ArrayType):
        return _differ_by_case(kind.elementType)
    if not isinstance(kind, T.StructType):
        return False
    names = {name.lower() for name in kind.names}
    return len(names) < len(kind) or any(_differ_by_case(field.dataType) for field in kind)


def _with_file_columns(frame: DataFrame) -> DataFrame:
    """Return rows of files with the columns of FILE_COLUMNS."""
    # By its own function: a column of the file may also be called `_metadata`.
    metadata = frame.metadataColumn("_metadata")
    return frame.select("*", *[metadata[name].alias(column) for column, name in FILE_COLUMNS.items()])


def list_files(reader: DataFrameReader | DataStreamReader, files: FilesSource) -> DataFrame:
    """Return the files of a source as a frame for `listed_files`. Raises StartError if there is no such folder.

    It may be empty, and a stream may begin with a pattern that no file matches yet.
    """
    try:
        listed = reader.format("binaryFile").schema(_LISTED).options(**_listing_options(files)).load(files.path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        todo = "create it, or correct source.files.path"
        if not is_local_path(files.path):
            # Object stores have no empty folders.
            todo = "put a first object there, or correct source.files.path"
        raise StartError(f"the source has no folder {files.path}; {todo}") from error
    return listed.select(F.col("_metadata.file_path"), "path", F.unix_micros("modificationTime"))


def listed_files(frame: DataFrame) -> list[ListedFile]:
    """Return the files of a frame of `list_files`, each once. Runs a job."""
    return sorted({ListedFile(*row) for row in frame.collect()})  # Spark may give one twice, see _groups


def files_to_read(batch: DataFrame) -> list[ListedFile]:
    """Return the files of a batch of a stream of `list_files`, each once."""
    return sorted({ListedFile(*file) for file in files_of_batch(batch)}) or listed_files(batch)


def _listing_options(files: FilesSource) -> dict[str, str]:
    """Return the options that choose files, and those of Spark's list of the files that it has seen."""
    named = {"pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter"}
    named |= {"maxFileAge", "latestFirst", "maxCachedFiles", "fileNameOnly"}
    return {key: value for key, value in files.options.items() if key in named}


def _reading_options(files: FilesSource, **options: str) -> dict[str, str]:
    """Return the options of a reader of listed files: these, and those of the configuration."""
    # Options that choose files would leave out some of those that are listed.
    listing = _listing_options(files)
    given = {key: value for key, value in files.options.items() if key not in listing}
    return {**_NO_PATTERNS, **options, **given}


def _quoted_column(name: str) -> Column:
    return F.col(_quote_name(name))


def _quote_name(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _with_keys_once(row: Row) -> str:
    """Return the JSON of a line in which no object has a key twice: the last one counts. Other lines stay."""
    (line,) = row
    try:
        return json.dumps(json.loads(line))
    except (ValueError, RecursionError):
        return str(line)


def schemas_from_hints(files: FilesSource | None) -> dict[str, bytes]:
    """Return the content of the store that `schema_hints` alone give the decoder `rows`. Needs a session."""
    if files is None:
        return {}
    hints = _parse_hints(files.schema_hints)
    if not hints:
        return {}
    rescued = T.StructField(RESCUED, T.MapType(T.StringType(), T.StringType()))
    return {LEARNT: T.StructType([*hints, rescued]).json().encode()}


def _parse_hints(ddl: str | None) -> list[T.StructField]:
    if not ddl:
        return []
    kind = T.StructType.fromDDL(ddl)
    return list(_with_table_names(kind)) if isinstance(kind, T.StructType) else []


def _text_columns(columns: tuple[str, ...]) -> T.StructType:
    """Return columns of text, and one for lines that are no row; a second column of a name gets a number."""
    names: list[str] = []
    for k, column in enumerate(columns):
        name = column.strip() or f"_c{k}"
        if name.lower() in {other.lower() for other in names}:
            name = f"{name}_{k}"
        names.append(name)
    return T.StructType([T.StructField(name, T.StringType()) for name in [*names, BROKEN]])


def _with_table_names(kind: T.DataType) -> Any:
    """Return a type with names that a table can store, at any depth; of fields with one name the first one stays."""
    if isinstance(kind, T.StructType):
        fields: dict[str, T.StructField] = {}
        for field in kind:
            name = table_name(field.name)
            fields.setdefault(name.lower(), T.StructField(name, _with_table_names(field.dataType)))
        return T.StructType([*fields.values()])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_with_table_names(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, _with_table_names(kind.valueType))
    return kind


def _guess_types(part: DataFrame, fields: list[T.StructField]) -> list[T.StructField]:
    """Return columns of text with the type that all of their values have, without columns that have no value yet."""
    if not fields:
        return []
    # One job counts, for each column, its values and those that do not fit into each type.
    counts = []
    for k, field in enumerate(fields):
        column = _quoted_column(field.name)
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


def _with_new_fields(known: T.DataType, found: T.DataType) -> T.DataType:
    """Return a known type with the fields that structs have in files besides; what it has keeps its type.

    New fields get names that a table can store.
    """
    if isinstance(known, T.StructType) and isinstance(found, T.StructType):
        fields = {field.name.lower(): field for field in known}
        for field in found:
            name = table_name(field.name)
            former = fields.get(name.lower())
            if former is None:
                fields[name.lower()] = T.StructField(name, _keepable_type(field.dataType))
                continue
            kind = _with_new_fields(former.dataType, field.dataType)
            fields[name.lower()] = T.StructField(former.name, kind)
        return T.StructType([*fields.values()])
    if isinstance(known, T.ArrayType) and isinstance(found, T.ArrayType):
        return T.ArrayType(_with_new_fields(known.elementType, found.elementType))
    if isinstance(known, T.MapType) and isinstance(found, T.MapType):
        return T.MapType(known.keyType, _with_new_fields(known.valueType, found.valueType))
    return known


def _keepable_type(kind: T.DataType) -> T.DataType:
    """Return the type that a new column gets, also inside: text if the decoder has no type for it."""
    if isinstance(kind, T.StructType) and kind.fields:
        return _with_new_fields(T.StructType([]), kind)
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_keepable_type(kind.elementType))
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return T.MapType(kind.keyType, _keepable_type(kind.valueType))
    if isinstance(kind, T.ByteType):
        return T.ShortType()
    return kind if type(kind) in PLAIN else T.StringType()


PLAIN = {T.StringType, T.BinaryType, T.BooleanType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType}
PLAIN |= {T.DecimalType, T.DateType, T.TimestampType, T.TimestampNTZType}
