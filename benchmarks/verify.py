"""Count what a run left behind: a figure of a run that lost or doubled an event is no figure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.runs import Run, Task


BRONZE = "bronze"
DEAD_LETTERS = "ops/dead_letters"
TABLES = "silver"


def bronze_and_tables(task: Task, run: Run) -> str:
    """Return "" if every event is in bronze and in its game's table, and none is a dead letter; else what is wrong."""
    return compare({"bronze": task.events, "dead letters": 0, **task.expected}, _lake(task.lake))


def bronze_and_profiles(task: Task, run: Run) -> str:
    """Return "" if every record is in bronze and is the latest profile of its gamer; else what is wrong."""
    counted = _lake(task.lake)
    counted.pop("profile_history", None)
    return compare({"bronze": task.events, "dead letters": 0, **task.expected}, counted)


def offsets_read(task: Task, run: Run) -> str:
    """Return "" if every record was read, by the end offsets of the checkpoint's last batch; else what is wrong."""
    batches = sorted((task.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    end_offsets: dict[str, dict[str, int]] = {}
    if batches:
        # The last line of a batch has the offsets of its source: topic -> partition -> offset.
        end_offsets = json.loads(batches[-1].read_text().splitlines()[-1])
    records = sum(end_offsets.get(task.topic, {}).values())
    return compare({"records read": task.events}, {"records read": records})


def tables_only(task: Task, run: Run) -> str:
    """Return "" if every event is in its game's table; else what is wrong."""
    return compare(task.expected, _tables(task.lake))


def one_partitioned_table(task: Task, run: Run) -> str:
    """Return "" if every event is in its game's partition of one table; else what is wrong."""
    actions = _actions(task.lake / TABLES / "all_games")
    games = actions["partition.game"].to_pylist()
    rows_of_files = actions["num_records"].to_pylist()
    counted: dict[str, int] = {}
    for game, rows in zip(games, rows_of_files, strict=True):
        counted[game] = counted.get(game, 0) + rows
    return compare(task.expected, counted)


def records_read(task: Task, run: Run) -> str:
    """Return "" if every record was read once, for subjects that write nothing; else what is wrong."""
    return compare({"records read": task.events}, {"records read": run.read})


def compare(expected: dict[str, int], counted: dict[str, int]) -> str:
    """Return the first differences between expected and counted rows by name; "" if there are none."""
    differences = []
    for name in sorted(expected.keys() | counted.keys()):
        rows = counted.get(name, 0)
        expected_rows = expected.get(name, 0)
        if rows != expected_rows:
            differences.append(f"{name}: {rows} rows, {expected_rows} expected")
    text = "; ".join(differences[:3])
    if len(differences) > 3:
        text += f"; and {len(differences) - 3} more"
    return text


def count_rows(table: Path) -> int:
    """Return the rows of a Delta table by its log; raise ValueError when its files hold another number."""
    import pyarrow.parquet as pq  # noqa: PLC0415  a cold contender must not pay for what counts it afterwards

    logged = int(sum(_actions(table)["num_records"].to_pylist()))
    # A writer that makes its own statistics could log what it never wrote: the footers do not lie.
    in_files = sum(pq.read_metadata(file).num_rows for file in _files(table))
    if logged != in_files:
        raise ValueError(f"{table.name}: the log says {logged} rows, the files hold {in_files}")
    return logged


def _lake(lake: Path) -> dict[str, int]:
    """Return the rows of bronze, of the dead letters (0 without such a table), and of each table."""
    dead_letters = 0
    if (lake / DEAD_LETTERS / "_delta_log").is_dir():
        dead_letters = count_rows(lake / DEAD_LETTERS)
    (bronze,) = [log.parent for log in (lake / BRONZE).glob("*/_delta_log")]
    return {"bronze": count_rows(bronze), "dead letters": dead_letters, **_tables(lake)}


def _tables(lake: Path) -> dict[str, int]:
    return {log.parent.name: count_rows(log.parent) for log in (lake / TABLES).glob("*/_delta_log")}


def _files(table: Path) -> list[Path]:
    return [table / path for path in _actions(table)["path"].to_pylist()]


def _actions(table: Path) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415  as above
    from deltalake import DeltaTable  # noqa: PLC0415  as above

    return pa.table(DeltaTable(str(table)).get_add_actions(flatten=True))
