"""Many tables as one frame: one read of the Parquet files of all of them, so that Spark plans and reads one table.

A load for each of 200 tables takes Spark longer than reading them. Which table a row is from is the folder of its file.
Many small files, as a stream leaves them between two refreshes, are read by tasks with Arrow: Spark's reader takes
milliseconds for each, most of it the processor's.
Tables whose files do not say all about their rows (deletion vectors, mapped columns, partitions, types that Parquet's
reader does not widen, places and names that a read by paths does not take) are loaded one by one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.columns import quoted
from router.delta.casting import cast_to
from router.delta.table_cache import THREADS
from router.engine.spark.executors import Executors
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from router.engine.views.sources import File, Snapshot

TABLE = "table"
"""The column with the table of a row, without its layer: uno for silver.uno."""
NARROW_INTEGERS = (pa.int8(), pa.int16(), pa.int32())
LISTED = {
    # Spark asks for each file by itself; on a disk that is done before it has started a job for it
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
LISTED_THERE = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "32"}


FEW_FILES, FEW_ROWS = 16, 100_000
"""What one task reads and groups sooner than Spark has exchanged rows between some."""
SMALL_ROWS, FILES_PER_TASK = 1_000_000, 64
"""The rows of files that tasks read with Arrow, together at most; how many files make a task worth while."""
GATHERED_ROWS = 64_000


class TablePart(NamedTuple):
    """What is read of one table: these files, or all of it."""

    table: Snapshot
    files: tuple[File, ...] | None = None


class _Small(NamedTuple):
    """A data file of a table, by its name."""

    table: str
    file: File

    @property
    def rows(self) -> int:
        """Return its rows; more than may be where nothing says them."""
        return SMALL_ROWS + 1 if self.file.rows is None else self.file.rows

    @property
    def short(self) -> str:
        return self.table.partition(".")[2]

    @property
    def path(self) -> str:
        """Return where it is in the lake."""
        return f"{self.table.replace('.', '/')}/{self.file.name}"


def are_few(parts: Iterable[TablePart]) -> bool:
    """Say whether the rows of parts are few, for one task."""
    files = [file for part in parts for file in (part.files if part.files is not None else (None,))]
    rows = [FEW_ROWS + 1 if file is None or file.rows is None else file.rows for file in files]
    return len(files) <= FEW_FILES and sum(rows) <= FEW_ROWS


@dataclass(frozen=True)
class Relations:
    """The frames of one refresh."""

    session: SparkSession
    lake: Lake
    executors: Executors = field(default_factory=Executors)

    def __post_init__(self) -> None:
        for name, value in (LISTED if self.lake.local else LISTED_THERE).items():
            self.session.conf.set(name, value)

    def frame(self, parts: Iterable[TablePart], columns: pa.Schema, *, named: bool = True) -> DataFrame:
        """Return the rows of parts of tables with these columns and, `named`, `table`. Lazy, at pinned versions."""
        found, frames = list[_Small](), list[DataFrame]()
        with ThreadPoolExecutor(THREADS) as pool:
            listed = list(pool.map(lambda part: (part.table, self._files(part.table, part.files, columns)), parts))
        for table, files in listed:
            if files is None:
                frames.append(self._loaded(table, columns, named=named))
            else:
                found += (_Small(table.name, file) for file in files)
        if len(found) > FEW_FILES and sum(one.rows for one in found) <= SMALL_ROWS:
            frames.append(self._by_arrow(found, columns, named=named))
        elif found:
            paths = [f"{self.lake.spark_address(one.table)}/{one.file.name}" for one in found]
            read = self.session.read.schema(to_spark_columns(columns, ntz=True)).option("recursiveFileLookup", "true")
            folder = F.substring_index(F.substring_index("_metadata.file_path", "/", -2), "/", 1)
            frames.append(read.parquet(*paths).select("*", *([folder.alias(TABLE)] if named else ())))
        return reduce(DataFrame.unionByName, frames) if frames else self.empty(columns, named=named)

    def empty(self, columns: pa.Schema, *, named: bool = True) -> DataFrame:
        """Return a frame of these columns and, `named`, `table`, without a row."""
        kinds = to_spark_columns(columns, ntz=True)
        return self.session.createDataFrame([], kinds.add(TABLE, "string") if named else kinds)

    def _by_arrow(self, files: list[_Small], columns: pa.Schema, *, named: bool) -> DataFrame:
        tasks = min(self.session.sparkContext.defaultParallelism, -(-len(files) // FILES_PER_TASK))
        kinds = to_spark_columns(columns, ntz=True)
        task = _reading(self.lake, tuple((one.path, one.short) for one in files), tasks, columns, named)
        numbers = self.session.range(0, tasks, 1, tasks)
        return numbers.mapInArrow(self.executors.guarded(task), kinds.add(TABLE, "string") if named else kinds)

    def _files(self, table: Snapshot, files: tuple[File, ...] | None, columns: pa.Schema) -> list[File] | None:
        """Return the files to be read; None where the table has to be loaded as one of Delta."""
        place = self.lake.spark_address(table.name)
        if not table.plain or not place.endswith(f"/{table.short}") or not _widens(table.columns, columns):
            return None
        found = table.files() if files is None else files
        return [*found] if all(file.simple for file in found) else None

    def _loaded(self, table: Snapshot, columns: pa.Schema, *, named: bool) -> DataFrame:
        reader = self.session.read.format("delta").option("versionAsOf", table.version)
        frame = reader.load(self.lake.spark_address(table.name))
        have = {name.lower() for name in frame.columns}
        chosen = []
        for kind in to_spark_columns(columns, ntz=True):
            column = F.col(quoted(kind.name)) if kind.name.lower() in have else F.lit(None)
            chosen.append(column.cast(kind.dataType).alias(kind.name))
        return frame.select(*chosen, *([F.lit(table.short).alias(TABLE)] if named else ()))


def _reading(
    lake: Lake, files: tuple[tuple[str, str], ...], tasks: int, columns: pa.Schema, named: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task, for mapInArrow: it reads its share of files, each with the name of its table."""

    def read(file: tuple[str, str]) -> pa.Table:
        with lake.files.open_input_file(file[0]) as source:
            rows = pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read(use_threads=False)
        names = {column.name.lower(): column.name for column in columns}
        rows = cast_to(rows.rename_columns([names.get(name.lower(), name) for name in rows.column_names]), columns)
        return rows.append_column(TABLE, pa.repeat(file[1], len(rows))) if named else rows

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        mine = [file for number in numbers for file in files[number::tasks]]
        held, size = list[pa.Table](), 0
        with ThreadPoolExecutor(1 if lake.local else THREADS) as pool:
            for rows in pool.map(read, mine):
                held, size = [*held, rows], size + len(rows)
                if size >= GATHERED_ROWS:
                    yield from pa.concat_tables(held).combine_chunks().to_batches()
                    held, size = [], 0
        if held:
            yield from pa.concat_tables(held).combine_chunks().to_batches()

    return task


def _widens(have: pa.Schema, want: pa.Schema) -> bool:
    """Say whether Spark's reader of Parquet gives the values of files the wanted types."""
    kinds = {column.name.lower(): column.type for column in have}
    return all(_read_as(kinds[one.name.lower()], one.type) for one in want if one.name.lower() in kinds)


def _read_as(have: pa.DataType, want: pa.DataType) -> bool:
    if have == want:
        return True
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        inside = {child.name: child.type for child in want}
        return all(child.name in inside and _read_as(child.type, inside[child.name]) for child in have)
    if pa.types.is_list(have) and pa.types.is_list(want):
        return _read_as(have.value_type, want.value_type)
    if pa.types.is_map(have) and pa.types.is_map(want):
        return _read_as(have.key_type, want.key_type) and _read_as(have.item_type, want.item_type)
    if have in NARROW_INTEGERS:
        return bool(pa.types.is_integer(want)) or want == pa.float64()
    return bool(have == pa.float32() and want == pa.float64())
