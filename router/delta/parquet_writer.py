"""Stage rows as Parquet files in the folders of Delta tables, for a later commit. Runs on executors."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from router.api.halving import is_caused_by_a_row
from router.delta.file_statistics import Leaf, leaf_paths, statistics_json, with_nan
from router.delta.staged_files import StagedFile
from router.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from router.delta.lake import Lake

ROW_GROUP = 1 << 20
OPEN_FILES = 128
"""Files that a task keeps open at most; the fullest ones are closed first (the usual limit of a process is 1024)."""
SYNCED = 8
"""Files that are flushed to the disk at once."""
SAMPLED_VALUES = 500
REPEATED = 0.01
"""The share of repeated values in a sample from which a column gets a dictionary. The sample is the first
SAMPLED_VALUES, or a 50th of all if that is more, so that values which occur a few times each are seen in a long row
group. With a dictionary, values that hardly repeat take 1.5 times the time and, after compression, 1.4 times the
bytes."""


@dataclass(frozen=True)
class Staging:
    """Where and how files are written; sizes are in bytes.

    A file is closed at `file_bytes`. A task holds rows of up to `buffer_bytes` before it writes some. `folder`, below
    the lake, is used instead of the folder of each file's table. `token` is part of the file names of one job. zstd
    takes half the bytes of snappy in the same time.
    """

    lake: Lake
    file_bytes: int
    buffer_bytes: int
    folder: str | None = None
    compression: str = "zstd"
    token: str = ""

    def open_writer(self, batch: int, attempt: str, dispensable: Collection[str] = ()) -> Writer:
        """Return the writer of one task attempt; for `dispensable` see Writer."""
        token = f"{self.token}-" if self.token else ""
        return Writer(self, f"part-{batch:010d}-{token}{attempt}", dispensable)


PartitionValues = tuple[tuple[str, str | None], ...]
"""The columns of a partition, each with its value as Delta's log writes it; None for null."""


def divide_by_partition(rows: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Split rows by the values of the columns `by`, and drop these columns. A column that the rows lack is null.

    Values are texts as in the Delta protocol, "Partition value serialization": an empty text is null there.
    """
    texts = {name: _partition_texts(rows.column(name)) for name in by if name in rows.schema.names}
    other_columns = rows.drop_columns([*texts])
    # Number the combinations of values: one column after the other, the numbers so far times its number of values (and
    # null) plus the value's own. `unique` makes them consecutive again, so that they never overflow.
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in texts.values():
        encoded = column.dictionary_encode()
        indices = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + indices + 1, return_inverse=True)[1]
    for code in range(int(codes.max(initial=0)) + 1):
        row_numbers = np.flatnonzero(codes == code)
        if len(row_numbers) == 0:
            continue
        first_row = int(row_numbers[0])
        values = [(name, texts[name][first_row].as_py() if name in texts else None) for name in by]
        yield tuple(values), other_columns.take(pa.array(row_numbers))


def _partition_texts(values: pa.Array) -> pa.Array:
    """Return values as texts of Delta's log; Arrow writes the types that are allowed in partitions in that way."""
    texts = values.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), None, texts)


def attempt_name() -> str:
    """Return a name for this task attempt that no other attempt of the job has."""
    context = TaskContext.get()
    if context is None:
        return "0-0"
    return f"{context.partitionId()}-{context.taskAttemptId()}"


@dataclass
class _Held:
    """The rows of one table, or of one partition of it, and the file they go to. `nans`: columns with NaN so far."""

    target: str
    table: str
    schema: pa.Schema
    seen: bool
    partition: PartitionValues = ()
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    nans: set[Leaf] = field(default_factory=set)
    file: _File | None = None


class Writer:
    """The writer of one task: it holds rows by table, and writes the largest tables first.

    An error, of the storage or of Parquet, is raised, except for tables of the targets in `dispensable`: their rows are
    dropped, and `failed` has the reason, by target/table.
    """

    def __init__(self, staging: Staging, prefix: str, dispensable: Collection[str] = ()) -> None:
        self.staging = staging
        self.prefix = prefix
        self.dispensable = dispensable
        self.failed: dict[str, str] = {}
        self.held: dict[tuple[str, str, PartitionValues], _Held] = {}
        self.bytes = 0
        self.files: list[StagedFile] = []

    def hold_rows(
        self, target: str, table: str, rows: pa.RecordBatch, *, seen: bool = False, by: tuple[str, ...] = ()
    ) -> None:
        """Keep rows for a table. With `seen`, a file gets only columns that have a value in some row.

        Rows with different values in the columns `by` go into different files, without these columns.
        """
        for partition, part in divide_by_partition(rows, by) if by else [((), rows)]:
            self._hold_partition(target, table, part, partition, seen=seen)

    def _hold_partition(
        self, target: str, table: str, rows: pa.RecordBatch, partition: PartitionValues, *, seen: bool
    ) -> None:
        held = self.held.get((target, table, partition))
        if held is None:
            held = self.held[target, table, partition] = _Held(target, table, rows.schema, seen, partition)
        held.batches.append(rows)
        # Not `nbytes`: it follows the offsets of nested lists, and for an empty list Spark sends no buffer of offsets,
        # so that Arrow would read outside of it.
        size = rows.get_total_buffer_size()
        held.bytes += size
        self.bytes += size

    def flush(self) -> None:
        """Write the largest tables if more is held than allowed, until half of that is left; limit open files."""
        if self.bytes <= self.staging.buffer_bytes:
            return
        for held in sorted(self.held.values(), key=lambda held: -held.bytes):
            self._try_to_write(held)
            if self.bytes <= self.staging.buffer_bytes // 2:
                break
        with_size = [(held.file.size, held) for held in self.held.values() if held.file]
        with_size.sort(key=lambda size_and_held: -size_and_held[0])
        for _, held in with_size[OPEN_FILES:]:
            self._drop_table_on_error(held, self._close_file)

    def close(self) -> list[StagedFile]:
        """Write all rows, flush the files to the disk, and return all files of this task."""
        for held in self.held.values():
            self._try_to_write(held)
            self._drop_table_on_error(held, self._close_file)
        self._sync_files()
        return self.files

    def _sync_files(self) -> None:
        """Flush the files to the disk: a manifest that survives a power cut must not refer to files that do not.

        Several at once: a disk takes 3 to 6 ms for each, longer than writing a small file.
        """
        if not self.staging.lake.is_local:
            return
        with ThreadPoolExecutor(SYNCED) as pool:
            syncs = [pool.submit(self.staging.lake.sync, file.path) for file in self.files]
        for file, sync in zip(self.files, syncs, strict=True):
            error = sync.exception()
            if error is not None:
                self.note_failure(file.target, file.table, error)

    def abandon(self) -> None:
        """Delete the written files, as far as possible: the task has failed, and the next attempt writes its own."""
        paths: list[str] = []
        for held in self.held.values():
            if held.file is None:
                continue
            with suppress(Exception):  # the failure that led here is raised, not that of closing a file
                held.file.stream.close()
            paths.append(held.file.path)
        paths += [file.path for file in self.files]
        for path in paths:
            with suppress(OSError):
                self.staging.lake.files.delete_file(path)

    def _try_to_write(self, held: _Held) -> None:
        if held.batches:
            self._drop_table_on_error(held, self._write_held)

    def _drop_table_on_error(self, held: _Held, write: Callable[[_Held], None]) -> None:
        """Call `write`; if it fails for a dispensable table, note why, and drop its rows from now on."""
        try:
            if f"{held.target}/{held.table}" not in self.failed:
                write(held)
        except Exception as error:
            self.note_failure(held.target, held.table, error)
            self._abandon_file(held)
        if held.batches:  # rows of a table that failed
            self._clear_held(held)

    def note_failure(self, target: str, table: str, error: BaseException) -> None:
        """Note why the rows of a table cannot be written; raise the error if the table is not dispensable."""
        if target not in self.dispensable or not is_caused_by_a_row(error):
            raise error
        self.failed[f"{target}/{table}"] = f"its files cannot be written: {first_line(error)}"

    def _abandon_file(self, held: _Held) -> None:
        if held.file is None:
            return
        with suppress(Exception):  # the failure that led here counts
            held.file.stream.close()
        with suppress(OSError):
            self.staging.lake.files.delete_file(held.file.path)
        held.file = None

    def _clear_held(self, held: _Held) -> None:
        self.bytes -= held.bytes
        held.batches = []
        held.bytes = 0

    def _write_held(self, held: _Held) -> None:
        rows = pa.Table.from_batches(held.batches, held.schema)
        self._clear_held(held)
        if held.seen:
            rows = _with_values(rows)
        # A column has its first value: the file that lacks it is complete.
        if held.file and not set(rows.column_names) <= set(held.file.schema.names):
            self._close_file(held)
        # A column has its first NaN: it must have no statistics, in a file that begins here.
        new_nans = with_nan(rows) - held.nans
        if new_nans:
            self._close_file(held)
            held.nans |= new_nans
        if held.file is None:
            name = f"{self.prefix}-{uuid.uuid4()}.parquet"
            held.file = _File.open(self.staging, held.table, name, rows, held.nans)
        held.file.write_row_group(rows)
        if held.file.size >= self.staging.file_bytes:
            self._close_file(held)

    def _close_file(self, held: _Held) -> None:
        if held.file is not None:
            self.files.append(held.file.close(held))
            held.file = None


FILE_BYTES = 128 << 20
"""Bytes of a file when rows are staged again."""
HELD_BYTES = 32 << 20
"""Bytes of the rows that are held for it."""


def staged_again(lake: Lake, file: StagedFile, batches: Iterable[pa.RecordBatch], name: str) -> list[StagedFile]:
    """Stage rows that replace those of a staged file, which is not deleted; `name` is part of the new files' names.

    They go through the writer of tasks, so that a column with NaN has no bounds here either. Runs anywhere.
    """
    folder = None
    in_folder_of_table = file.path.startswith(f"{file.table.replace('.', '/')}/")
    if not in_folder_of_table:  # FOLDER/TABLE/NAME, see `_File.open`
        folder = file.path.rsplit("/", 2)[0]
    writer = Writer(Staging(lake, FILE_BYTES, HELD_BYTES, folder), f"part-{name}")
    try:
        for batch in batches:
            writer.hold_rows(file.target, file.table, batch)
            writer.flush()
        files = writer.close()
    except BaseException:
        writer.abandon()
        raise
    staged = []
    for new_file in files:
        columns = (*new_file.columns, *file.partition)
        staged.append(replace(new_file, columns=columns, partition=file.partition))
    return staged


def _with_values(rows: pa.Table) -> pa.Table:
    """Return the columns that have a value in some row; at least one column stays, as a file needs one."""
    names = [name for name in rows.column_names if rows.column(name).null_count < len(rows)]
    return rows.select(names or rows.column_names[:1])


def repeating_leaves(path: str, column: pa.ChunkedArray) -> Iterator[str]:
    """Yield the leaf columns whose values repeat, by their paths in Parquet.

    Leaves in lists and maps always count, and so does a column without a value, as later values may repeat.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        for index, child in enumerate(kind):
            yield from repeating_leaves(f"{path}.{child.name}", pc.struct_field(column, [index]))
    elif pa.types.is_nested(kind):
        yield from _leaf_paths(path, kind)
    else:
        sample = column[: max(SAMPLED_VALUES, len(column) // 50)].drop_null()
        if len(sample.unique()) <= (1 - REPEATED) * len(sample):  # a third of the time of `count_distinct` of texts
            yield path


def _leaf_paths(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the paths of a type's leaves in Parquet, below a path."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaf_paths(f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _leaf_paths(f"{path}.key_value.key", kind.key_type)
        yield from _leaf_paths(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _leaf_paths(f"{path}.list.element", kind.value_type)
    else:
        yield path


@dataclass
class _File:
    """A Parquet file that is being written."""

    path: str
    schema: pa.Schema
    writer: pq.ParquetWriter
    stream: pa.NativeFile
    footers: list[pq.FileMetaData]

    @classmethod
    def open(cls, staging: Staging, table: str, name: str, rows: pa.Table, nans: set[Leaf]) -> _File:
        """Open a file for a table; its first `rows` show which columns repeat, and `nans` are columns with NaN."""
        folder = f"{staging.folder}/{table}" if staging.folder else table.replace(".", "/")
        staging.lake.note_location(table)
        staging.lake.files.create_dir(folder, recursive=True)
        stream = staging.lake.files.open_output_stream(f"{folder}/{name}")
        footers: list[pq.FileMetaData] = []
        schema = rows.schema
        dictionary_columns: list[str] = []
        for column in schema.names:
            dictionary_columns += repeating_leaves(column, rows.column(column))
        # A column with NaN gets no statistics: see `file_statistics`.
        with_statistics: bool | list[str] = True
        if nans:
            with_statistics = [".".join(leaf) for leaf in leaf_paths(schema) if leaf and leaf not in nans]
        writer = pq.ParquetWriter(
            stream,
            schema,
            compression=staging.compression,
            coerce_timestamps="us",
            allow_truncated_timestamps=True,
            store_schema=False,
            use_dictionary=dictionary_columns,
            write_statistics=with_statistics,
            metadata_collector=footers,
        )
        return cls(f"{folder}/{name}", schema, writer, stream, footers)

    @property
    def size(self) -> int:
        """Return the bytes written so far."""
        return int(self.stream.tell())

    def write_row_group(self, rows: pa.Table) -> None:
        """Write rows as a row group; columns that they lack, as they have no value this time, are null."""
        for column in self.schema:
            if column.name not in rows.column_names:
                rows = rows.append_column(column, pa.nulls(len(rows), column.type))
        self.writer.write_table(rows.select(self.schema.names), ROW_GROUP)

    def close(self, held: _Held) -> StagedFile:
        """Close the file, and return it as one of the table and partition that it holds rows of."""
        self.writer.close()
        size = self.size
        self.stream.close()
        footer = self.footers[0]
        partition = dict(held.partition)
        return StagedFile(
            target=held.target,
            table=held.table,
            path=self.path,
            bytes=size,
            rows=footer.num_rows,
            columns=(*self.schema.names, *partition),
            statistics=statistics_json(footer),
            partition=partition,
        )
