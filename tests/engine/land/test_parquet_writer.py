"""Files of a task: bounded memory, bounded sizes, and no row lost between two files."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from router.delta.parquet_writer import OPEN_FILES, SAMPLED_VALUES, Staging
from router.storage.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile

ROWS = 1_000


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """Return batches of 100 kB that compress to half."""
    for i in range(count):
        texts = [random.Random(i * ROWS + k).randbytes(50).hex() for k in range(ROWS)]
        yield pa.record_batch({"id": pa.array(range(i * ROWS, (i + 1) * ROWS)), "text": texts})


def write(staging: Staging, count: int, tables: int = 1) -> tuple[list[StagedFile], int]:
    """Write batches, dealt to tables; return the files and the most bytes held at once."""
    writer, most = staging.open_writer(3, "1-7"), 0
    for i, batch in enumerate(batches(count)):
        writer.hold_rows("route/sink", f"silver.t{i % tables}", batch)
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


@pytest.mark.parametrize("dispensable", [[], ["route/sink"]], ids=["the stream waits", "its rows wait"])
def test_every_file_is_brought_to_the_disk(lake: Lake, monkeypatch: pytest.MonkeyPatch, dispensable: list[str]) -> None:
    """Without it a power cut leaves tables that refer to empty files, or a disk that fails loses rows."""
    synced = list[str]()

    def sync(self: LocalFiles, path: str) -> None:
        if "/t1/" in path:
            raise OSError(errno.EIO, "it burns")
        synced.append(path)

    monkeypatch.setattr(LocalFiles, "sync_file", sync)
    writer = Staging(lake, file_bytes=1 << 20, buffer_bytes=0).open_writer(3, "1-7", dispensable)
    for i, batch in enumerate(batches(6)):
        writer.hold_rows("route/sink", f"silver.t{i % 3}", batch)
    if not dispensable:
        with pytest.raises(OSError, match="it burns"):
            writer.close()
        return
    files = writer.close()

    assert sorted(synced) == sorted(file.path for file in files if file.table != "silver.t1")
    assert list(writer.failed) == ["route/sink/silver.t1"]
    assert "it burns" in writer.failed["route/sink/silver.t1"]


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
    writer, tables = staging.open_writer(0, "0-0"), OPEN_FILES + 40
    for number in range(2):
        for i in range(tables):
            writer.hold_rows("route/sink", f"silver.t{i}", pa.record_batch({"id": [number * tables + i]}))
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
    writer = Staging(lake, file_bytes=1 << 30, buffer_bytes=0).open_writer(0, "0-0")
    for value in values:
        writer.hold_rows("route/sink", "silver.t", column([value]), seen=True)
        writer.flush()
    files = writer.close()

    assert [file.columns for file in files] == wanted
    stored = [row.get("late") for file in files for row in pq.read_table(f"{lake.root}/{file.path}").to_pylist()]
    assert stored == values


def test_rows_without_any_value_are_rows(lake: Lake) -> None:
    """Without it an event with nothing but nulls vanishes."""
    writer = Staging(lake, file_bytes=1 << 30, buffer_bytes=0).open_writer(0, "0-0")
    writer.hold_rows(
        "route/sink", "silver.t", pa.record_batch({"a": pa.nulls(3, pa.int32()), "b": pa.nulls(3)}), seen=True
    )

    (file,) = writer.close()

    assert (file.rows, file.columns) == (3, ("a",))


def test_a_task_without_rows_writes_nothing(lake: Lake) -> None:
    """Without it every empty task leaves a file in every table."""
    assert Staging(lake, file_bytes=1 << 30, buffer_bytes=1 << 30).open_writer(0, "0-0").close() == []


def with_dictionary(lake: Lake, *columns: pa.Array) -> set[str]:
    """Write a file, one row group per array of its column; return the leaf columns that have a dictionary."""
    writer = Staging(lake, file_bytes=1 << 30, buffer_bytes=0).open_writer(0, "0-0")
    for values in columns:
        writer.hold_rows("route/sink", "silver.t", pa.record_batch({"a": values}))
        writer.flush()
    (file,) = writer.close()
    with pq.ParquetFile(f"{lake.root}/{file.path}") as stored:
        assert stored.read()["a"].to_pylist() == [value for values in columns for value in values.to_pylist()]
        groups = [stored.metadata.row_group(i) for i in range(stored.metadata.num_row_groups)]
    leaves = [group.column(i) for group in groups for i in range(group.num_columns)]
    return {leaf.path_in_schema for leaf in leaves if leaf.has_dictionary_page}


OWN, SHARED = range(2 * SAMPLED_VALUES), [i % 16 for i in range(2 * SAMPLED_VALUES)]
DICTIONARIES = {
    "texts of their own": (pa.array([f"text {i}" for i in OWN]), set()),
    "shared texts": (pa.array([f"text {i}" for i in SHARED]), {"a"}),
    "numbers of their own": (pa.array(OWN), set()),
    "shared numbers": (pa.array(SHARED), {"a"}),
    "one in twenty is shared": (pa.array([i - i % 20 // 19 for i in OWN]), {"a"}),
    "absent, or of their own": (pa.array([None if i % 2 else i for i in OWN]), set()),
    "absent at first": (pa.array([None] * SAMPLED_VALUES + SHARED), {"a"}),
    "a struct": (pa.array([{"own": i, "in": {"shared": i % 16}} for i in OWN]), {"a.in.shared"}),
    "a list": (pa.array([[i, i] for i in OWN]), {"a.list.element"}),
    "a map": (
        pa.array([[(str(i), [{"x": i}])] for i in OWN], pa.map_(pa.string(), pa.list_(pa.struct({"x": pa.int64()})))),
        {"a.key_value.key", "a.key_value.value.list.element.x"},
    ),
    "at random, four times each": (pa.array(random.Random(1).choices(range(50_000), k=200_000)), {"a"}),
    "one row": (pa.array(["text"]), set()),
}


@pytest.mark.parametrize(("values", "wanted"), DICTIONARIES.values(), ids=DICTIONARIES)
def test_a_column_has_a_dictionary_where_its_values_repeat(lake: Lake, values: pa.Array, wanted: set[str]) -> None:
    """Without it files are larger and take longer to write, or repeated values are written again and again."""
    assert with_dictionary(lake, values) == wanted


def test_what_comes_first_decides_about_the_dictionary_of_a_file(lake: Lake) -> None:
    """Without it a file whose values change their nature could not be read."""
    own, shared = pa.array(list(OWN)), pa.array(SHARED)

    assert with_dictionary(lake, own, shared, own) == set()
    assert with_dictionary(lake, shared, own, shared) == {"a"}
    assert with_dictionary(lake, own[:0], own) == {"a"}


def test_files_and_their_names_are_on_the_disk_before_anybody_hears_of_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a manifest that survives a power cut names files that do not."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda at: synced.append(os.fstat(at).st_ino))
    files, _ = write(Staging(lake, file_bytes=100_000, buffer_bytes=0), 8, tables=3)

    paths = [Path(lake.root, file.path) for file in files]
    assert len(files) > 3
    assert {place.stat().st_ino for path in paths for place in (path, path.parent)} <= set(synced)
