"""Commits with delta-rs: each batch once, new columns first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router import TableError
from router.delta import commit as commits
from router.delta.commit import commit_files, row_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.delta.commit import TableCommit
    from router.delta.lake import Lake

TABLE = "silver.poker"
FIRST = pa.table({"id": [1, 2], "inner": pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())]))})


def stored(lake: Lake, table: str = TABLE) -> list[dict[str, Any]]:
    handle = lake.open(table)
    assert handle is not None
    return sorted(handle.to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def version(lake: Lake, table: str = TABLE) -> int:
    handle = lake.open(table)
    return handle.version() if handle else -1


@pytest.fixture
def first(lake: Lake, land: Callable[..., TableCommit]) -> TableCommit:
    """Commit the first batch of a table."""
    work = land(lake, TABLE, FIRST, 7)
    assert commit_files(lake, work, {"router.batch": "7"})
    return work


def test_a_new_table_has_the_rows_the_id_and_the_notes(lake: Lake, first: TableCommit) -> None:
    """Without it nobody can say which batch of which configuration wrote a version."""
    handle = lake.open(TABLE)

    assert handle is not None
    assert stored(lake) == FIRST.to_pylist()
    assert row_count(handle) == 2
    assert handle.transaction_version(first.app_id) == 7
    assert handle.history(1)[0]["router.batch"] == "7"


@pytest.mark.parametrize("batch", [7, 3], ids=["the same batch", "an older batch"])
def test_a_batch_that_is_there_is_skipped(lake: Lake, first: TableCommit, batch: int) -> None:
    """Without it a restart doubles the rows of a batch."""
    assert not commit_files(lake, replace(first, version=batch), {})

    assert version(lake) == 0
    assert stored(lake) == FIRST.to_pylist()


def test_the_next_batch_and_another_sink_are_not_skipped(
    lake: Lake, land: Callable[..., TableCommit], first: TableCommit
) -> None:
    """Without it a second route into a table loses its rows."""
    assert commit_files(lake, land(lake, TABLE, pa.table({"id": [3]}), 8), {})
    assert commit_files(lake, land(lake, TABLE, pa.table({"id": [4]}), 7, target="other/sink"), {})

    assert [row["id"] for row in stored(lake)] == [1, 2, 3, 4]


def test_a_handle_from_before_the_commit_does_not_commit_twice(
    lake: Lake, land: Callable[..., TableCommit], first: TableCommit
) -> None:
    """Without it a run that was thought dead doubles the batch its successor has finished."""
    stale, work = lake.open(TABLE), land(lake, TABLE, pa.table({"id": [3]}), 8)
    assert commit_files(lake, work, {})

    with pytest.raises(TableError) as caught:
        commit_files(lake, work, {}, stale)

    assert caught.value.table == TABLE
    assert [row["id"] for row in stored(lake)] == [1, 2, 3]
    assert not commit_files(lake, work, {})


def test_a_commit_of_somebody_else_in_between_is_no_conflict(
    lake: Lake, land: Callable[..., TableCommit], first: TableCommit
) -> None:
    """Without it two routers that fill one table stop each other."""
    handle = lake.open(TABLE)
    assert commit_files(lake, land(lake, TABLE, pa.table({"id": [3]}), 0, target="other/sink"), {})

    assert commit_files(lake, land(lake, TABLE, pa.table({"id": [4]}), 8), {}, handle)

    assert [row["id"] for row in stored(lake)] == [1, 2, 3, 4]


@pytest.mark.parametrize("same_columns", [True, False])
def test_a_table_that_another_writer_creates_meanwhile_is_appended_to(
    lake: Lake, land: Callable[..., TableCommit], monkeypatch: pytest.MonkeyPatch, same_columns: bool
) -> None:
    """Without it the first batch of two sinks that share a table of receipts stops one of them."""
    ours = land(lake, TABLE, pa.table({"id": [2]}), 0, target="other/sink")
    theirs = land(lake, TABLE, FIRST if same_columns else pa.table({"other": [1]}), 7)
    create = commits.create_with_files
    waiting = [theirs]

    def create_after_the_other(*args: Any, **options: Any) -> None:
        if waiting:
            assert commit_files(lake, waiting.pop(), {})
        create(*args, **options)

    monkeypatch.setattr(commits, "create_with_files", create_after_the_other)

    if same_columns:
        assert commit_files(lake, ours, {})
        assert sorted(row["id"] for row in stored(lake)) == [1, 2, 2]
        assert not commit_files(lake, ours, {})
    else:
        with pytest.raises(TableError, match="another writer has changed the table meanwhile"):
            commit_files(lake, ours, {})


def test_new_columns_and_nested_fields_come_before_the_rows(
    lake: Lake, land: Callable[..., TableCommit], first: TableCommit
) -> None:
    """Without it the first events with a new field are missing from the table, or the field is."""
    grown = pa.struct([("x", pa.int64()), ("z", pa.string())])
    more = pa.table({"id": [3], "inner": pa.array([{"x": 5, "z": "new"}], grown), "bonus": [1.5]})
    work = land(lake, TABLE, more, 8)

    assert commit_files(lake, work, {})
    assert not commit_files(lake, work, {})

    assert stored(lake) == [
        {"id": 1, "inner": {"x": 1, "z": None}, "bonus": None},
        {"id": 2, "inner": None, "bonus": None},
        {"id": 3, "inner": {"x": 5, "z": "new"}, "bonus": 1.5},
    ]
    assert version(lake) == 2


def test_columns_added_before_a_crash_are_no_obstacle(
    lake: Lake, land: Callable[..., TableCommit], first: TableCommit
) -> None:
    """Without it a crash between the new column and its rows blocks the batch for ever."""
    work = land(lake, TABLE, pa.table({"id": [3], "bonus": [1.5]}), 8)
    assert commit_files(lake, land(lake, TABLE, pa.table({"id": [4], "bonus": [2.5]}), 0, target="other/sink"), {})

    assert commit_files(lake, work, {})

    assert [row["bonus"] for row in stored(lake)] == [None, None, 1.5, 2.5]


def test_a_table_that_cannot_be_written_is_named(
    lake: Lake, land: Callable[..., TableCommit], first: TableCommit
) -> None:
    """Without it the log of a night says that something failed, and not which of 200 tables."""
    handle, work = lake.open(TABLE), land(lake, TABLE, pa.table({"id": [3]}), 8)
    log = Path(lake.address(TABLE), "_delta_log")
    log.rename(log.with_name("moved"))
    log.write_text("the disk has other ideas")

    with pytest.raises(TableError) as caught:
        commit_files(lake, work, {}, handle)

    assert caught.value.table == TABLE
    log.unlink()
    log.with_name("moved").rename(log)
    assert commit_files(lake, work, {})
    assert len(stored(lake)) == 3
