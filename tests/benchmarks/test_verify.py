"""What a run leaves behind is counted: a lost or doubled event is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks.cells import Cell
from benchmarks.harness import verified
from benchmarks.runs import Run
from benchmarks.verify import bronze_and_tables, compare, one_partitioned_table, records_read, tables_only

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.runs import Task


def append(table: Path, **columns: list[str]) -> None:
    table.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(table), pa.table(columns), mode="append")


@pytest.fixture
def lake(task: Task) -> Path:
    """Return a task's lake that holds every event once."""
    append(task.lake / "bronze" / "game_events", value=["a", "b", "c"])
    append(task.lake / "silver" / "game_0000", value=["a", "b"])
    append(task.lake / "silver" / "game_0001", value=["c"])
    return task.lake


def test_a_complete_lake_is_right(task: Task, lake: Path) -> None:
    assert bronze_and_tables(task, Run(1.0)) == ""
    assert tables_only(task, Run(1.0)) == ""


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("bronze/game_events", "bronze: 4 rows, 3 expected"),
        ("silver/game_0001", "game_0001: 2 rows, 1 expected"),
        ("silver/game_0002", "game_0002: 1 rows, 0 expected"),
        ("ops/dead_letters", "dead letters: 1 rows, 0 expected"),
    ],
)
def test_one_row_too_many_is_found(task: Task, lake: Path, table: str, found: str) -> None:
    append(lake / table, value=["d"])

    assert bronze_and_tables(task, Run(1.0)) == found


def test_a_table_that_is_missing_is_found(task: Task, tmp_path: Path) -> None:
    append(task.lake / "silver" / "game_0000", value=["a", "b"])

    assert tables_only(task, Run(1.0)) == "game_0001: 0 rows, 1 expected"


def test_a_log_that_says_more_than_its_files_is_found(task: Task, lake: Path) -> None:
    table = lake / "silver" / "game_0000"
    log = table / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace('numRecords\\":2', 'numRecords\\":3'))
    run = verified(Cell("loop", "warm", 3, 2), task, Run(1.0))

    assert "the log says 3 rows, the files hold 2" in run.problem


def test_a_lake_that_cannot_be_read_is_a_problem_and_no_crash(task: Task) -> None:
    assert verified(Cell("loop", "warm", 3, 2), task, Run(1.0)).problem.startswith("wrong result: the result cannot")


def test_partitions_of_one_table_are_counted(task: Task) -> None:
    table = task.lake / "silver" / "all_games"
    table.mkdir(parents=True)
    rows = pa.table({"game": ["game_0000", "game_0000", "game_0001"], "n": [1, 2, 3]})
    write_deltalake(str(table), rows, partition_by=["game"])

    assert one_partitioned_table(task, Run(1.0)) == ""
    write_deltalake(str(table), rows, mode="append")
    assert one_partitioned_table(task, Run(1.0)).startswith("game_0000: 4 rows, 2 expected")


def test_reading_alone_must_read_all(task: Task) -> None:
    assert records_read(task, Run(1.0, read=3)) == ""
    assert records_read(task, Run(1.0, read=2)) == "records read: 2 rows, 3 expected"


def test_many_differences_are_cut_short() -> None:
    assert compare({str(n): 1 for n in range(9)}, {}).endswith("; and 6 more")
