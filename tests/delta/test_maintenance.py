"""Tables are kept in shape, beside whoever writes them."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from router import TableError
from router.delta.maintenance import MaintenanceOptions, delete_older, maintain
from tests.delta.busy import Busy

if TYPE_CHECKING:
    from router.delta.lake import Lake

TABLE = "silver.uno"
DAYS = 24 * 3600


@pytest.fixture
def table(lake: Lake) -> Path:
    """Return the folder of a table of five small files, of one that it no longer has, and of one that it never had."""
    for number in range(6):
        write_deltalake(lake.address(TABLE), pa.table({"k": [number], "v": [-number]}), mode="append")
    folder = Path(lake.address(TABLE))
    DeltaTable(folder).delete("k = 5")
    (folder / "part-0000000007-0-9.parquet").write_bytes(b"left by a task that failed")
    (folder / "_deletions").mkdir()
    (folder / "_deletions" / "part-0.parquet").write_bytes(b"a table of its own")
    return folder


def age(folder: Path, days: float) -> None:
    """Let the files of a table be older than they are."""
    then = time.time() - days * DAYS
    for file in folder.rglob("*.parquet"):
        os.utime(file, (then, then))


def keys(folder: Path) -> list[int]:
    return sorted(DeltaTable(folder).to_pyarrow_table()["k"].to_pylist())


def test_small_files_become_one(lake: Lake, table: Path) -> None:
    """Without it a table of a stream gets slower with every batch."""
    found = maintain(lake, TABLE, MaintenanceOptions())

    assert (found.files, found.into) == (5, 1)
    assert (len(DeltaTable(table).file_uris()), keys(table)) == (1, [0, 1, 2, 3, 4])
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))


def test_rows_are_sorted_by_what_they_are_asked_for(lake: Lake, table: Path) -> None:
    """Without it a question about one gamer reads every file."""
    maintain(lake, TABLE, MaintenanceOptions(zorder=("v",)))

    assert DeltaTable(table).to_pyarrow_table()["v"].to_pylist() == [-4, -3, -2, -1, 0]


def test_what_is_left_behind_goes_when_it_is_old(lake: Lake, table: Path) -> None:
    """Without it every failed task costs storage for ever; or a batch that is landing loses its files."""
    age(table, 6)
    assert maintain(lake, TABLE, MaintenanceOptions()).deleted == 0
    age(table, 8)
    found = maintain(lake, TABLE, MaintenanceOptions())

    assert (table / "_deletions" / "part-0.parquet").exists()
    assert not (table / "part-0000000007-0-9.parquet").exists()
    assert (found.deleted >= 1, found.freed >= 26) == (True, True)
    assert keys(table) == [0, 1, 2, 3, 4]


def test_a_dry_run_says_it_and_does_nothing(lake: Lake, table: Path) -> None:
    """Without it nobody dares to run it."""
    age(table, 8)
    before = {path: path.stat().st_size for path in table.rglob("*")}
    found = maintain(lake, TABLE, MaintenanceOptions(), dry=True)

    assert {path: path.stat().st_size for path in table.rglob("*")} == before
    assert (found.files, found.into, found.deleted >= 1, found.freed >= 26) == (5, 1, True, True)


def test_another_writer_is_waited_for(lake: Lake, table: Path) -> None:
    """Without it a stream and its maintenance stop each other."""
    busy = Busy(
        lake.root, table=TABLE, others=lambda: DeltaTable(table).update(updates={"v": "v + 1"}, predicate="k = 0")
    )
    maintain(busy, TABLE, MaintenanceOptions())

    assert (len(DeltaTable(table).file_uris()), keys(table)) == (1, [0, 1, 2, 3, 4])
    assert 1 in DeltaTable(table).to_pyarrow_table()["v"].to_pylist()


def test_what_only_spark_may_write_is_left_to_it(lake: Lake, table: Path) -> None:
    """Without it a table with a CHECK is written by what does not know it."""
    DeltaTable(table).alter.add_constraint({"small": "k < 100"})

    assert maintain(lake, TABLE, MaintenanceOptions()).by_spark == "checkConstraints"


def test_a_table_that_is_not_there_is_named(lake: Lake) -> None:
    """Without it a typing error in a name is taken for a table in good shape."""
    with pytest.raises(TableError) as caught:
        maintain(lake, "silver.nothing", MaintenanceOptions(retention=timedelta(hours=1)))

    assert caught.value.table == "silver.nothing"


def test_an_outbox_loses_rows_that_are_old_and_were_sent(lake: Lake) -> None:
    """Without it a lane grows for ever, or loses rows that were never sent."""
    now = datetime.now(timezone.utc)

    def lands(**days: int) -> int:
        times = pa.array([now - timedelta(days=age) for age in days.values()], pa.timestamp("us", "UTC"))
        write_deltalake(lake.address("outbox.a"), pa.table({"_timestamp": times, "n": list(days)}), mode="append")
        handle = lake.open("outbox.a")
        assert handle is not None
        return handle.version()

    def kept() -> set[str]:
        handle = lake.open("outbox.a")
        assert handle is not None
        return set(handle.to_pyarrow_table().column("n").to_pylist())

    lands(old=10, older=20)
    dealt_with = lands(mixed_old=10, mixed_new=1)
    lands(just_came=0)

    assert delete_older(lake, "outbox.a", now - timedelta(days=7), dealt_with) == 3
    assert kept() == {"mixed_new", "just_came"}

    dealt_with = lands(soon_old=8)
    lands(old_and_not_sent=9)

    assert delete_older(lake, "outbox.a", now - timedelta(days=7), dealt_with) == 0  # not beside what came and is older
    assert kept() == {"mixed_new", "just_came", "soon_old", "old_and_not_sent"}
