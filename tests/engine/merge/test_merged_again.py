"""A table with one row per key that is merged anew holds what the batches made of it, deletions remembered."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Transaction
from deltalake.exceptions import DeltaError

from router.api.sinks import KeyedTable
from router.api.table_options import NewTable
from router.delta.lake import Lake
from router.delta.parquet_writer import Staging
from router.engine.merge.delta_rs import MergeJob, merge_table
from router.engine.reprocess.records import ArrivedBatch
from router.engine.reprocess.upsert_rebuild import UpsertRebuild, portions
from router.engine.start.killed_repairs import clear_killed_repairs, lock_of, staged_as
from router.engine.start.run_lock import hold_file_lock
from router.own_names import DELETIONS

TABLE, APP = "silver.gamers", "games:run/all/upsert"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
SCHEMA = pa.schema([
    ("_arrival", pa.int64()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
    ("_timestamp", pa.timestamp("us", "UTC")), ("_key", pa.binary()), ("_table", pa.string()),
    ("_deleted", pa.bool_()), ("gamer", pa.string()), ("level", pa.int32()),
])  # fmt: skip


def outbox(*rows: tuple[int, str, int | None]) -> pa.Table:
    """Return rows of an outbox: offset, key and value, None for a deletion."""
    place = {"_topic": "events", "_partition": 0, "_table": TABLE}
    found = [
        {**place, "_arrival": at // 10, "_offset": at, "_timestamp": BEGIN + timedelta(seconds=at),
         "_deleted": level is None, "gamer": gamer, "level": level}
        for at, gamer, level in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(found, SCHEMA)


BATCHES = (
    outbox((0, "a", 1), (1, "b", 1), (2, "a", 2)),
    outbox((10, "b", None), (11, "c", 5)),
    outbox((20, "a", 7), (21, "d", 1), (22, "c", None)),
)


def merge(lake: Lake, keyed: KeyedTable, batch: int, rows: pa.Table) -> None:
    staging = Staging(lake, 1 << 27, 1 << 25)
    _, report, _ = merge_table(MergeJob(staging, keyed, APP, batch, "all", "upsert", "ops.dead", {}), TABLE, rows)
    assert "counts" in report, report


def content(lake: Lake) -> list[dict[str, Any]]:
    handle = lake.open(TABLE)
    assert handle is not None
    return sorted(handle.to_pyarrow_table().to_pylist(), key=repr)


def dropped(lake: Lake) -> None:
    shutil.rmtree(lake.address(TABLE))


def without_a_file(lake: Lake) -> None:
    files = Path(lake.address(TABLE)).rglob("part-*.parquet")
    next(path for path in files if DELETIONS not in path.parts).unlink()


@pytest.mark.parametrize("harm", [dropped, without_a_file])
@pytest.mark.parametrize(
    "options",
    [{}, {"history": True}, {"soft_delete": "gone"}, {"new_table": NewTable(partition_by=("gamer",))}],
    ids=["latest", "history", "flagged", "divided"],
)
def test_a_table_merged_anew_is_what_the_batches_made(tmp_path: Path, options: dict[str, Any], harm: Any) -> None:
    """Without it a repaired table has other rows, or a late record brings a deleted key back."""
    lakes = [Lake.at(str(tmp_path / name)) for name in ("whole", "harmed")]
    keyed, (whole, harmed) = KeyedTable(keys=("gamer",), **options), lakes
    for number, rows in enumerate(BATCHES):
        for lake in lakes:
            merge(lake, keyed, number, rows)
    harm(harmed)
    found = UpsertRebuild(None, harmed, keyed, TABLE, harmed.open(TABLE))  # type: ignore[arg-type] # nothing is for Spark
    for rows in BATCHES:
        found.merge_rows(rows, "all/upsert")
    found.remember_deletions(Transaction("games:run/repair", 1))
    found.replace(harmed.open(TABLE), {f"{APP}/{TABLE}": 2}, {})
    found.drop()

    assert content(harmed) == content(whole)
    late = outbox((15, "c", 8), (30, "a", 9), (31, "b", 4))
    for lake in lakes:
        merge(lake, keyed, 2, late)  # it has this batch
        merge(lake, keyed, 3, late)
    assert content(harmed) == content(whole)
    assert not [*Path(harmed.root, "_staged").iterdir()]


def test_a_merge_that_was_faster_is_not_lost(tmp_path: Path) -> None:
    """Without it rows that the stream merges while a table is repaired are gone."""
    lake, keyed = Lake.at(str(tmp_path)), KeyedTable(keys=("gamer",))
    merge(lake, keyed, 0, BATCHES[0])
    handle = lake.open(TABLE)
    found = UpsertRebuild(None, lake, keyed, TABLE, handle)  # type: ignore[arg-type] # nothing is for Spark
    found.merge_rows(BATCHES[0], "all/upsert")
    merge(lake, keyed, 1, outbox((10, "z", 1)))
    with pytest.raises(DeltaError):
        found.replace(handle, {f"{APP}/{TABLE}": 0}, {})
    assert {row["gamer"] for row in content(lake)} == {"a", "b", "z"}


def test_batches_are_merged_together_up_to_a_number_of_records() -> None:
    """Without it a small batch is a merge of its own, or the driver holds all of bronze."""
    batches = [ArrivedBatch(7 * number, records) for number, records in enumerate((2, 2, 5, 1, 1))]
    assert [*portions(batches, 4)] == [(0, 7), (14, 14), (21, 28)]
    assert [*portions(batches, 0)] == [(number, number) for number in (0, 7, 14, 21, 28)]


def test_the_rows_of_many_batches_are_one_interval() -> None:
    """Without it the condition of a merge has a term for each batch, and Spark takes minutes to compile it."""
    batches = [ArrivedBatch(number, 10) for number in range(10_000)]
    assert [*portions(batches, 100_000)] == [(0, 9_999)]
    assert len([*portions(batches, 10_000)]) == 10


def test_what_a_killed_repair_has_left_is_deleted(tmp_path: Path) -> None:
    """Without it a lake keeps a copy of a table for each repair that was killed."""
    lake, checkpoint = Lake.at(str(tmp_path / "lake")), Lake.at(str(tmp_path / "checkpoint"))
    nothing: Any = None
    for table in ("silver.killed", "silver.busy"):
        found = UpsertRebuild(nothing, lake, KeyedTable(keys=("gamer",)), table, None, staged_as("games", table))
        found.merge_rows(
            BATCHES[0].set_column(SCHEMA.get_field_index("_table"), "_table", pa.array([found.name] * 3)), "all/upsert"
        )
        assert lake.open(found.name) is not None
    UpsertRebuild(nothing, lake, KeyedTable(keys=("gamer",)), "silver.x", None, staged_as("games_eu", "silver.killed"))
    other = Path(lake.address(staged_as("games_eu", "silver.killed")))
    other.mkdir(parents=True)

    with hold_file_lock(checkpoint, lock_of("silver.busy"), "busy"):
        clear_killed_repairs(lake, checkpoint, "games")

    assert [lake.open(staged_as("games", f"silver.{name}")) is None for name in ("killed", "busy")] == [True, False]
    assert other.exists(), "another query's repair may be at work"
    busy = staged_as("games", "silver.busy")
    UpsertRebuild(nothing, lake, KeyedTable(keys=("gamer",)), "silver.busy", None, busy)
    assert lake.open(busy) is None, "the next repair of the table begins anew"
