"""Write rows as Parquet files of Delta tables, staged: nothing refers to them yet. Runs on executors."""

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

from router.delta.commit import StagedFile
from router.delta.file_statistics import Leaf, leaves, statistics, with_nan
from router.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from router.delta.lake import Lake

ROW_GROUP = 1 << 20
OPEN_FILES = 128
"""Files a task keeps open at most; beyond it the fullest is closed (the usual limit of a process is 1024)."""
SYNCED = 8
"""Files that are brought to the disk at once."""
SAMPLE = 500
REPEATED = 0.01
"""A column gets a dictionary where at least this share of its first values has come before: of SAMPLE, or of a 50th of
the rows where that is more, so that values which occur a few times each are seen in a long row group, too. Values that
hardly repeat take 1.5 times the time and 1.4 times the bytes with a dictionary, after compression."""


@dataclass(frozen=True)
class Staging:
    """Where and how files are written: sizes in bytes.

    `folder` is where they lie below the lake, None for the folder of each file's table; `token` is in the names of the
    files of one job. zstd takes half the bytes of snappy at the same time.
    """

    lake: Lake
    file_bytes: int
    buffer_bytes: int
    folder: str | None = None
    compression: str = "zstd"
    token: str = ""

    def writer(self, batch: int, attempt: str, dispensable: Collection[str] = ()) -> Writer:
        """Return the writer of one task attempt; see there for what is dispensable."""
        prefix = f"part-{batch:010d}-{self.token}-{attempt}" if self.token else f"part-{batch:010d}-{attempt}"
        return Writer(self, prefix, dispensable)


PartitionValues = tuple[tuple[str, str | None], ...]
"""The columns of a partition, each with its value as Delta's log has it; None for null."""


def divided(rows: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Split rows by the values of columns, and take these columns out. A column that is not there is null.

    Values are written as the Delta protocol says, "Partition value serialization": an empty text is null there.
    """
    texts = {name: _texts(rows.column(name)) for name in by if name in rows.schema.names}
    kept = rows.drop_columns([*texts])
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in texts.values():
        coded = column.dictionary_encode()
        one = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = np.unique(codes * (len(coded.dictionary) + 1) + one + 1, return_inverse=True)[1]
    for code in range(int(codes.max(initial=0)) + 1):
        at = np.flatnonzero(codes == code)
        if len(at):
            values = tuple((name, texts[name][int(at[0])].as_py() if name in texts else None) for name in by)
            yield values, kept.take(pa.array(at))


def _texts(values: pa.Array) -> pa.Array:
    """Return values as Delta's log has those of partitions: as Arrow writes them, if of a type that is taken."""
    found = values.cast(pa.string())
    return pc.if_else(pc.equal(found, ""), None, found)


def attempt() -> str:
    """Return a name for this task attempt that no other attempt of the job has."""
    context = TaskContext.get()
    return f"{context.partitionId()}-{context.taskAttemptId()}" if context else "0-0"


@dataclass
class _Held:
    """The rows of one table and the file they go to."""

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
    """The writer of one task: it holds rows by table, and writes the largest tables above `buffer_bytes`.

    A failure of the storage is raised, but for tables of the targets in `dispensable`: why no file of such a table
    could be written stands in `failed`, and its rows are left out.
    """

    def __init__(self, staging: Staging, prefix: str, dispensable: Collection[str] = ()) -> None:
        self.staging = staging
        self.prefix = prefix
        self.dispensable = dispensable
        self.failed: dict[str, str] = {}
        self.held: dict[tuple[str, str, PartitionValues], _Held] = {}
        self.bytes = 0
        self.files: list[StagedFile] = []

    def hold(
        self, target: str, table: str, rows: pa.RecordBatch, *, seen: bool = False, by: tuple[str, ...] = ()
    ) -> None:
        """Keep rows for a table. `seen`: columns without a value in what is written at once are left out.

        Rows go into files by the values of the columns `by`, which are not in the files.
        """
        for partition, part in divided(rows, by) if by else [((), rows)]:
            self._hold(target, table, part, partition, seen=seen)

    def _hold(self, target: str, table: str, rows: pa.RecordBatch, partition: PartitionValues, *, seen: bool) -> None:
        held = self.held.get((target, table, partition))
        if held is None:
            held = self.held[target, table, partition] = _Held(target, table, rows.schema, seen, partition)
        held.batches.append(rows)
        # `nbytes` follows the offsets of nested lists: Spark sends none for a list that is empty, and it reads anywhere
        size = rows.get_total_buffer_size()
        held.bytes += size
        self.bytes += size

    def flush(self) -> None:
        """Write the largest tables while more is held than allowed."""
        if self.bytes <= self.staging.buffer_bytes:
            return
        for held in sorted(self.held.values(), key=lambda held: -held.bytes):
            self._write(held)
            if self.bytes <= self.staging.buffer_bytes // 2:
                break
        open_files = [held for held in self.held.values() if held.file]
        for held in sorted(open_files, key=lambda held: -(held.file.size if held.file else 0))[OPEN_FILES:]:
            self._tried(held, self._close)

    def close(self) -> list[StagedFile]:
        """Write everything held, down to the disk; return all files of this task."""
        for held in self.held.values():
            self._write(held)
            self._tried(held, self._close)
        self._sync()
        return self.files

    def _sync(self) -> None:
        """Return when the files survive a power cut: a manifest that survives it must not refer to some that do not.

        Several at a time: a disk takes 3 to 6 ms for each, longer than a small file takes to be written.
        """
        if not self.staging.lake.local:
            return
        with ThreadPoolExecutor(SYNCED) as pool:
            synced = [pool.submit(self.staging.lake.sync, file.path) for file in self.files]
        for file, done in zip(self.files, synced, strict=True):
            error = done.exception()
            if error and not (isinstance(error, OSError) and file.target in self.dispensable):
                raise error
            if error:
                self.failed[f"{file.target}/{file.table}"] = f"its files cannot be written: {first_line(error)}"

    def abandon(self) -> None:
        """Remove what was written, where that can be: the task has failed, and its successor writes it again."""
        begun = [held.file for held in self.held.values() if held.file]
        for file in begun:
            with suppress(Exception):  # the failure that led here is raised, not that of closing a file
                file.stream.close()
        for path in (*(file.path for file in begun), *(file.path for file in self.files)):
            with suppress(OSError):
                self.staging.lake.files.delete_file(path)

    def _write(self, held: _Held) -> None:
        if held.batches:
            self._tried(held, self._write_held)

    def _tried(self, held: _Held, write: Callable[[_Held], None]) -> None:
        """Write rows, or note why that cannot be done where the task goes on without the table."""
        try:
            if f"{held.target}/{held.table}" not in self.failed:
                write(held)
        except OSError as error:
            if held.target not in self.dispensable:
                raise
            self.failed[f"{held.target}/{held.table}"] = f"its files cannot be written: {first_line(error)}"
            self._abandon(held)
        if held.batches:  # rows of a table that failed
            self.bytes -= held.bytes
            held.batches, held.bytes = [], 0

    def _abandon(self, held: _Held) -> None:
        if held.file:
            with suppress(Exception):  # the failure that led here counts
                held.file.stream.close()
            with suppress(OSError):
                self.staging.lake.files.delete_file(held.file.path)
            held.file = None

    def _write_held(self, held: _Held) -> None:
        rows = pa.Table.from_batches(held.batches, held.schema)
        self.bytes -= held.bytes
        held.batches, held.bytes = [], 0
        rows = _valued(rows) if held.seen else rows
        if held.file and not set(rows.column_names) <= set(held.file.schema.names):
            self._close(held)  # a column has its first value: the file without it is complete
        if new := with_nan(rows) - held.nans:
            self._close(held)  # a column has its first NaN: the next file has no statistics of it
            held.nans |= new
        if held.file is None:
            held.file = _File.open(self.staging, held.table, self._name(), rows, held.nans)
        held.file.add(rows)
        if held.file.size >= self.staging.file_bytes:
            self._close(held)

    def _name(self) -> str:
        return f"{self.prefix}-{uuid.uuid4()}.parquet"

    def _close(self, held: _Held) -> None:
        if held.file:
            self.files.append(held.file.close(held))
            held.file = None


FILE_BYTES, HELD_BYTES = 128 << 20, 32 << 20
"""Bytes of a file that is written again, and of the rows that are held for it."""


def staged_again(lake: Lake, file: StagedFile, batches: Iterable[pa.RecordBatch], name: str) -> list[StagedFile]:
    """Stage rows in place of those of a staged file, which stays; `name` is in the names of the new ones.

    They go through the writer of tasks, so that a column with NaN has no bounds here either. Runs anywhere.
    """
    in_table = file.path.startswith(f"{file.table.replace('.', '/')}/")
    folder = None if in_table else file.path.rsplit("/", 2)[0]
    writer = Writer(Staging(lake, FILE_BYTES, HELD_BYTES, folder), f"part-{name}")
    try:
        for batch in batches:
            writer.hold(file.target, file.table, batch)
            writer.flush()
        files = writer.close()
    except BaseException:
        writer.abandon()
        raise
    return [replace(one, columns=(*one.columns, *file.partition), partition=file.partition) for one in files]


def _valued(rows: pa.Table) -> pa.Table:
    """Return the columns that hold a value; at least one stays."""
    names = [
        name for name, column in zip(rows.column_names, rows.columns, strict=True) if column.null_count < len(rows)
    ]
    return rows.select(names or rows.column_names[:1])


def repeating(path: str, column: pa.ChunkedArray) -> Iterator[str]:
    """Return the leaf columns whose values repeat, by their paths in Parquet. What is in lists and maps counts as such.

    So does a column without a value: those that come later may repeat.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        for index, child in enumerate(kind):
            yield from repeating(f"{path}.{child.name}", pc.struct_field(column, [index]))
    elif pa.types.is_nested(kind):
        yield from _paths(path, kind)
    else:
        sample = column[: max(SAMPLE, len(column) // 50)].drop_null()
        if len(sample.unique()) <= (1 - REPEATED) * len(sample):  # a third of the time of `count_distinct` of texts
            yield path


def _paths(path: str, kind: pa.DataType) -> Iterator[str]:
    """Return the paths that a type's leaves have in Parquet below a path."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _paths(f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _paths(f"{path}.key_value.key", kind.key_type)
        yield from _paths(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _paths(f"{path}.list.element", kind.value_type)
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
        """Open a file for rows like these, which are its first."""
        folder = f"{staging.folder}/{table}" if staging.folder else table.replace(".", "/")
        staging.lake.note_location(table)
        staging.lake.files.create_dir(folder, recursive=True)
        stream = staging.lake.files.open_output_stream(f"{folder}/{name}")
        footers: list[pq.FileMetaData] = []
        schema = rows.schema
        writer = pq.ParquetWriter(
            stream,
            schema,
            compression=staging.compression,
            coerce_timestamps="us",
            allow_truncated_timestamps=True,
            store_schema=False,
            use_dictionary=[path for name in schema.names for path in repeating(name, rows.column(name))],
            write_statistics=[".".join(leaf) for leaf in leaves(schema) if leaf and leaf not in nans] if nans else True,
            metadata_collector=footers,
        )
        return cls(f"{folder}/{name}", schema, writer, stream, footers)

    @property
    def size(self) -> int:
        """Return the bytes written so far."""
        return int(self.stream.tell())

    def add(self, rows: pa.Table) -> None:
        for name in self.schema.names:
            if name not in rows.column_names:  # a column left out as empty this time
                rows = rows.append_column(self.schema.field(name), pa.nulls(len(rows), self.schema.field(name).type))
        self.writer.write_table(rows.select(self.schema.names), ROW_GROUP)

    def close(self, held: _Held) -> StagedFile:
        self.writer.close()
        size = self.size
        self.stream.close()
        footer, names = self.footers[0], (*self.schema.names, *(name for name, _ in held.partition))
        about, rows = statistics(footer), footer.num_rows
        return StagedFile(held.target, held.table, self.path, size, rows, names, about, dict(held.partition))
