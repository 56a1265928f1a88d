"""Many tables as one frame: one read of the Parquet files of all of them, so that Spark plans and reads one table.

| files | read |
|---|---|
| a few, or large ones | by Spark's Parquet reader; the table of a row is the folder of its file |
| many small ones | by tasks with Arrow |
| of tables whose files do not contain all about their rows | table by table, as Delta tables |

A stream writes many small files between two refreshes: Spark's reader takes milliseconds of processor time for each.
The last are tables with deletion vectors, mapped columns or partitions, with types that the Parquet reader does not
widen, or with places and file names that cannot be read by path. For 200 tables Spark plans such loads longer than it
reads them.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.api.columns import quote_identifier
from router.delta.casting import cast_to
from router.delta.table_cache import THREADS
from router.engine.spark.executors import Executors
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from router.delta.lake import Lake
    from router.engine.views.sources import File, Snapshot

VIEW_TABLE_COLUMN = "table"
"""The column with the table of a row, without its layer: uno for silver.uno."""
NARROW_INTEGERS = (pa.int8(), pa.int16(), pa.int32())
LISTING_ON_DISK = {
    # The driver lists all files itself: on a disk that is done before it has started a job for it.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
LISTING_IN_BUCKET = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "32"}

FEW_FILES = 16
FEW_ROWS = 100_000
"""Files and rows that one task reads and groups in less time than Spark takes to exchange rows between tasks."""
_SMALL_ROWS = 1_000_000
"""Rows that tasks read with Arrow, of all files together at most."""
FILES_PER_TASK = 64
BATCH_ROWS = 64_000
"""Rows that a task gathers from small files before it gives them to Spark."""


class TablePart(NamedTuple):
    """What is read of one table: these files, or all of it."""

    table: Snapshot
    files: tuple[File, ...] | None = None


def are_few(parts: Iterable[TablePart]) -> bool:
    """Return whether one task should read the parts; not if their numbers of files or rows are unknown."""
    files: list[File] = []
    for part in parts:
        if part.files is None:
            return False
        files += part.files
    return len(files) <= FEW_FILES and _count_rows(files) <= FEW_ROWS


def _count_rows(files: Iterable[File]) -> float:
    """Return the rows of files; infinity if the number of one is unknown."""
    return sum(math.inf if file.rows is None else file.rows for file in files)


@dataclass(frozen=True)
class Relations:
    """The frames of one refresh."""

    session: SparkSession
    lake: Lake
    executors: Executors = field(default_factory=Executors)

    def __post_init__(self) -> None:
        settings = LISTING_ON_DISK if self.lake.is_local else LISTING_IN_BUCKET
        for name, value in settings.items():
            self.session.conf.set(name, value)

    def frame_of_parts(self, parts: Iterable[TablePart], columns: pa.Schema, *, named: bool = True) -> DataFrame:
        """Return the rows of parts of tables with these columns and, `named`, `table`. Lazy, at pinned versions."""
        parts = list(parts)
        table_files: list[tuple[Snapshot, File]] = []
        frames: list[DataFrame] = []
        with ThreadPoolExecutor(THREADS) as pool:
            files_of_parts = list(pool.map(lambda part: self._files_to_read(part, columns), parts))
        for part, files in zip(parts, files_of_parts, strict=True):
            if files is None:
                frames.append(self._load_table(part.table, columns, named=named))
            else:
                table_files += [(part.table, file) for file in files]

        if len(table_files) > FEW_FILES and _count_rows(file for _, file in table_files) <= _SMALL_ROWS:
            frames.append(self._read_by_arrow(table_files, columns, named=named))
        elif table_files:
            frames.append(self._read_by_spark(table_files, columns, named=named))
        if not frames:
            return self.empty_frame(columns, named=named)
        return reduce(DataFrame.unionByName, frames)

    def empty_frame(self, columns: pa.Schema, *, named: bool = True) -> DataFrame:
        """Return a frame of these columns and, `named`, `table`, without a row."""
        return self.session.createDataFrame([], _spark_columns(columns, named=named))

    def _files_to_read(self, part: TablePart, columns: pa.Schema) -> tuple[File, ...] | None:
        """Return the files to be read; None if the table has to be loaded as a Delta table."""
        table = part.table
        if not table.is_plain or not self.lake.spark_address(table.name).endswith(f"/{table.short_name}"):
            return None
        if not _can_read_as(table.columns, columns):
            return None
        files = tuple(table.files()) if part.files is None else part.files
        return files if all(file.is_read_by_path for file in files) else None

    def _load_table(self, table: Snapshot, columns: pa.Schema, *, named: bool) -> DataFrame:
        reader = self.session.read.format("delta").option("versionAsOf", table.version)
        frame = reader.load(self.lake.spark_address(table.name))
        names = {name.lower() for name in frame.columns}
        selected = []
        for column in _spark_columns(columns, named=False):
            value = F.col(quote_identifier(column.name)) if column.name.lower() in names else F.lit(None)
            selected.append(value.cast(column.dataType).alias(column.name))
        if named:
            selected.append(F.lit(table.short_name).alias(VIEW_TABLE_COLUMN))
        return frame.select(*selected)

    def _read_by_spark(self, files: list[tuple[Snapshot, File]], columns: pa.Schema, *, named: bool) -> DataFrame:
        # With this option Spark takes no folder in a path, such as game=uno, for a partition column.
        reader = self.session.read.option("recursiveFileLookup", "true")
        paths = [f"{self.lake.spark_address(table.name)}/{file.name}" for table, file in files]
        frame = reader.schema(_spark_columns(columns, named=False)).parquet(*paths)
        if not named:
            return frame
        # By its own function: a column of the table may also be called `_metadata`.
        folder = F.substring_index(frame.metadataColumn("_metadata")["file_path"], "/", -2)
        return frame.select("*", F.substring_index(folder, "/", 1).alias(VIEW_TABLE_COLUMN))

    def _read_by_arrow(self, files: list[tuple[Snapshot, File]], columns: pa.Schema, *, named: bool) -> DataFrame:
        tasks = min(self.session.sparkContext.defaultParallelism, -(-len(files) // FILES_PER_TASK))
        # Tasks get texts only: the snapshot of a table cannot be sent to them.
        paths = [(f"{table.name.replace('.', '/')}/{file.name}", table.short_name) for table, file in files]
        task = _reading_task(self.lake, paths, tasks, columns, named=named)
        numbers = self.session.range(0, tasks, 1, tasks)
        return numbers.mapInArrow(self.executors.guard_task(task), _spark_columns(columns, named=named))


def _spark_columns(columns: pa.Schema, *, named: bool) -> StructType:
    spark_columns = to_spark_columns(columns, ntz=True)
    return spark_columns.add(VIEW_TABLE_COLUMN, "string") if named else spark_columns


def _reading_task(
    lake: Lake, files: list[tuple[str, str]], tasks: int, columns: pa.Schema, *, named: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task, for mapInArrow: it reads its share of files, each with the name of its table.

    The rows that it gets are the numbers of shares.
    """

    def read_file(file: tuple[str, str]) -> pa.Table:
        path, table = file
        with lake.files.open_input_file(path) as source:
            rows = pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read(use_threads=False)
        names = {column.name.lower(): column.name for column in columns}
        rows = cast_to(rows.rename_columns([names.get(name.lower(), name) for name in rows.column_names]), columns)
        return rows.append_column(VIEW_TABLE_COLUMN, pa.repeat(table, len(rows))) if named else rows

    def read_share(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        share: list[tuple[str, str]] = []
        for batch in batches:
            for number in batch.column(0).to_pylist():
                share += files[number::tasks]
        gathered: list[pa.Table] = []
        size = 0
        # Many reads at once pay off only if the storage is slow to answer.
        with ThreadPoolExecutor(1 if lake.is_local else THREADS) as pool:
            for rows in pool.map(read_file, share):
                gathered.append(rows)
                size += len(rows)
                if size >= BATCH_ROWS:
                    yield from pa.concat_tables(gathered).combine_chunks().to_batches()
                    gathered = []
                    size = 0
        if gathered:
            yield from pa.concat_tables(gathered).combine_chunks().to_batches()

    return read_share


def _can_read_as(columns: pa.Schema, wanted: pa.Schema) -> bool:
    """Return whether Spark's Parquet reader gives the values of files in these columns the wanted types."""
    types = {column.name.lower(): column.type for column in columns}
    # Columns that the files lack are null in any type.
    return all(_is_read_as(types.get(column.name.lower(), column.type), column.type) for column in wanted)


def _is_read_as(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if kind == wanted:
        return True
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        children = {child.name: child.type for child in wanted}
        return all(child.name in children and _is_read_as(child.type, children[child.name]) for child in kind)
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return _is_read_as(kind.value_type, wanted.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        return _is_read_as(kind.key_type, wanted.key_type) and _is_read_as(kind.item_type, wanted.item_type)
    if kind in NARROW_INTEGERS:
        return bool(pa.types.is_integer(wanted)) or wanted == pa.float64()
    return bool(kind == pa.float32() and wanted == pa.float64())
