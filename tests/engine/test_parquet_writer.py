"""Files of a task: bounded memory, bounded sizes, and no row lost between two files."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from router.delta.parquet_writer import OPEN_FILES, Staging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.commit import StagedFile
    from router.delta.lake import Lake

ROWS = 1_000


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """Return batches of 100 kB that compress to half."""
    for i in range(count):
        texts = [random.Random(i * ROWS + k).randbytes(50).hex() for k in range(ROWS)]
        yield pa.record_batch({"id": pa.array(range(i * ROWS, (i + 1) * ROWS)), "text": texts})


def write(staging: Staging, count: int, tables: int = 1) -> tuple[list[StagedFile], int]:
    """Write batches, dealt to tables; return the files and the most bytes held at once."""
    writer, most = staging.writer(3, "1-7"), 0
    for i, batch in enumerate(batches(count)):
        writer.hold("route/sink", f"silver.t{i % tables}", batch)
        most = max(most, writer.bytes)
        writer.flush()
    return writer.close(), most


def ids(lake: Lake, files: list[StagedFile]) -> Counter[int]:
    return Counter(i for file in files for i in pq.read_table(f"{lake.root}/{file.path}")["id"].to_pylist())


def test_a_file_is_closed_at_its_size(lake: Lake) -> None:
    """Without it a large batch is one file that no reader can split."""
    limit = 200_000
    files, _ = write(Staging(lake, file_bytes=limit, buffer_bytes=0), 20)

    assert len(files) > 3
    assert all(limit <= file.bytes < limit + 100_000 for file in files[:-1])
    assert ids(lake, files) == Counter(range(20 * ROWS))


def test_a_small_buffer_makes_row_groups_of_the_same_rows(lake: Lake) -> None:
    """Without it the memory of a task grows with the batch."""
    files, most = write(Staging(lake, file_bytes=1 << 30, buffer_bytes=300_000), 20)

    (file,) = files
    assert most < 500_000
    assert pq.ParquetFile(f"{lake.root}/{file.path}").num_row_groups > 3
    assert ids(lake, files) == Counter(range(20 * ROWS))
    assert file.rows == 20 * ROWS


def test_a_large_buffer_makes_one_row_group(lake: Lake) -> None:
    """Without it files have a row group per Arrow batch, which readers pay for."""
    files, _ = write(Staging(lake, file_bytes=1 << 30, buffer_bytes=1 << 30), 20)

    (file,) = files
    assert pq.ParquetFile(f"{lake.root}/{file.path}").num_row_groups == 1
    assert ids(lake, files) == Counter(range(20 * ROWS))


def test_a_file_knows_its_size_its_rows_and_its_batch(lake: Lake) -> None:
    """Without it the Delta log states sizes that are wrong, and a stray file cannot be traced to its batch."""
    files, _ = write(Staging(lake, file_bytes=1 << 20, buffer_bytes=0), 4, tables=2)

    assert {file.table for file in files} == {"silver.t0", "silver.t1"}
    for file in files:
        folder, name = file.path.rsplit("/", 1)
        assert folder == file.table.replace(".", "/")
        assert name.startswith("part-0000000003-1-7-")
        assert lake.files.get_file_info(file.path).size == file.bytes
        assert file.columns == ("id", "text")


def test_two_attempts_never_write_the_same_file(lake: Lake) -> None:
    """Without it a task that is tried again overwrites what its first attempt had landed."""
    staging = Staging(lake, file_bytes=1 << 20, buffer_bytes=0)
    paths = [file.path for _ in range(2) for file in write(staging, 2)[0]]

    assert len(set(paths)) == len(paths)


def test_many_tables_do_not_keep_many_files_open(lake: Lake) -> None:
    """Without it a thousand tables exceed the files a process may have open."""
    staging = Staging(lake, file_bytes=1 << 30, buffer_bytes=0)
    writer, tables = staging.writer(0, "0-0"), OPEN_FILES + 40
    for number in range(2):
        for i in range(tables):
            writer.hold("route/sink", f"silver.t{i}", pa.record_batch({"id": [number * tables + i]}))
        writer.flush()
        assert sum(held.file is not None for held in writer.held.values()) <= OPEN_FILES

    assert ids(lake, writer.close()) == Counter(range(2 * tables))


def column(values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([1]), "late": pa.array(values, pa.int32())})


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([None, None], [("id",)]),
        ([None, 5], [("id",), ("id", "late")]),
        ([5, None], [("id", "late")]),
        ([None, 5, None, 6], [("id",), ("id", "late")]),
    ],
    ids=["never", "later", "at first", "on and off"],
)
def test_a_column_without_values_is_in_no_file(
    lake: Lake, values: list[int | None], wanted: list[tuple[str, ...]]
) -> None:
    """Without it a table has the columns of all games."""
    writer = Staging(lake, file_bytes=1 << 30, buffer_bytes=0).writer(0, "0-0")
    for value in values:
        writer.hold("route/sink", "silver.t", column([value]), seen=True)
        writer.flush()
    files = writer.close()

    assert [file.columns for file in files] == wanted
    stored = [row.get("late") for file in files for row in pq.read_table(f"{lake.root}/{file.path}").to_pylist()]
    assert stored == values


def test_rows_without_any_value_are_rows(lake: Lake) -> None:
    """Without it an event with nothing but nulls vanishes."""
    writer = Staging(lake, file_bytes=1 << 30, buffer_bytes=0).writer(0, "0-0")
    writer.hold("route/sink", "silver.t", pa.record_batch({"a": pa.nulls(3, pa.int32()), "b": pa.nulls(3)}), seen=True)

    (file,) = writer.close()

    assert (file.rows, file.columns) == (3, ("a",))


def test_a_task_without_rows_writes_nothing(lake: Lake) -> None:
    """Without it every empty task leaves a file in every table."""
    assert Staging(lake, file_bytes=1 << 30, buffer_bytes=1 << 30).writer(0, "0-0").close() == []
