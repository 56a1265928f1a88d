"""Read a table's rows with Arrow: the one place that asks delta-rs for a dataset.

By the protocol a file may have no bounds of a column: Spark writes none for booleans, the router none for infinity or
for a column after the first 32. delta-rs takes such a bound for the value null, and tells Arrow of the file that
`column >= null`. No row can have that, so each filter on the column would leave out the whole file, without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable


def dataset_of(table: DeltaTable, *filtered: str) -> ds.FileSystemDataset:
    """Return the rows of a table. A filter leaves out files whose statistics say that none of their rows can pass.

    `filtered` are the columns of the caller's filters; without any it is all columns. Of a file without bounds of one
    of them all bounds are dropped, so that it is read. Binary columns, which nobody filters, never have bounds.
    """
    dataset = table.to_pyarrow_dataset(filesystem=native_files(table))
    fragments = []
    for fragment in dataset.get_fragments():
        fragments.append(_without_bounds(fragment) if _lacks_bounds(fragment, filtered) else fragment)
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)


def rows_with(table: DeltaTable, condition: ds.Expression, columns: Sequence[str], *names: str) -> pa.Table:
    """Return the rows of a table that a condition over `columns` holds for: those columns and `names`, without any all.

    The condition is put to the rows here, where they have the types of the table, and not by the reader: a merge of
    delta-rs writes texts that are read as views, which it cannot compare.
    """
    content = dataset_of(table, *columns)
    wanted = content.schema.names
    if names:
        wanted = list(dict.fromkeys([*columns, *names]))
    parts = [pa.schema([content.schema.field(name) for name in wanted]).empty_table()]
    for batch in read_batches(content, condition, columns=wanted):
        parts.append(pa.Table.from_batches([batch]).filter(condition))
    return pa.concat_tables(parts)


def read_batches(content: ds.FileSystemDataset, condition: ds.Expression, **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the files whose bounds let a condition hold for some; `options` are those of `to_batches`."""
    files = list(content.get_fragments(condition))
    if files:  # there is no dataset of none
        yield from ds.FileSystemDataset(files, content.schema, content.format, content.filesystem).to_batches(**options)


def _lacks_bounds(fragment: ds.ParquetFileFragment, columns: tuple[str, ...]) -> bool:
    """Say whether Arrow was told of a file that one of some columns, or any one, is not less than null."""
    text = str(fragment.partition_expression)
    if not columns:
        return " >= null[" in text
    return any(f"({column} >= null[" in text for column in columns)


def _without_bounds(fragment: ds.ParquetFileFragment) -> ds.ParquetFileFragment:
    """Return the file with what is known of each of its rows, its values of partition columns, and no bounds."""
    condition = pc.scalar(True)
    for name, value in ds.get_partition_keys(fragment.partition_expression).items():
        condition &= pc.field(name).is_null() if value is None else pc.field(name) == value
    return fragment.format.make_fragment(fragment.path, fragment.filesystem, condition)


def native_files(table: DeltaTable) -> fs.FileSystem | None:
    """Return Arrow's own file system for a table on a disk, to read its rows; None for a table elsewhere.

    delta-rs's is a Python object: if a thread of Arrow releases it while Python exits, the process aborts after all
    work is done (`terminate called without an active exception`, exit code 134; seen in 3 of 100 calls).
    """
    scheme, _, place = table.table_uri.rpartition("://")
    if scheme not in ("", "file"):
        return None
    return fs.SubTreeFileSystem(unquote(place), fs.LocalFileSystem())
