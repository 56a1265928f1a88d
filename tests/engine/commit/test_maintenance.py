"""When tables are maintained between batches; how is in `tests.delta`."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction

from router.api.sinks import KeyedTable
from router.config.models import DEFAULT_MAINTENANCE, Maintenance, View
from router.delta.keyed.key_property import KEYED_BY
from router.delta.keyed.upsert import TableUpsert, upsert_rows
from router.delta.maintenance import MaintenanceOptions, MaintenanceResult, maintain_table
from router.delta.maintenance_process import MaintenanceProcess
from router.delta.replace import MADE, PROPERTIES, create_table, made_as
from router.engine import maintenance as module
from router.engine.maintenance import TableMaintenance
from router.errors import TableError
from tests.delta.model import Record, lane

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.delta.lake import Lake


def no_session() -> Any:
    """Stand for a session that is not needed."""
    raise AssertionError("Spark is not needed")


def batch(lake: Lake, *tables: str) -> set[str]:
    """Write a batch into tables."""
    for table in tables:
        write_deltalake(lake.address(table), pa.table({"k": [1]}), mode="append")
    return set(tables)


def files(lake: Lake, table: str) -> int:
    handle = lake.open(table)
    assert handle is not None
    return len(handle.file_uris())


def test_a_table_is_maintained_after_so_many_batches(lake: Lake) -> None:
    """Without it small files pile up, or every batch waits for maintenance."""
    care = TableMaintenance(lake, no_session, (Maintenance(tables="silver.*", commits=3),))
    seen = []
    for number in range(4):
        care.after_batch(batch(lake, "silver.a", "bronze.a", *(["silver.b"] if number else [])))
        seen.append((files(lake, "silver.a"), files(lake, "bronze.a")))

    assert seen == [(1, 1), (2, 2), (1, 3), (2, 4)]
    assert files(lake, "silver.b") == 1


def test_the_budget_leaves_tables_for_the_next_batch(lake: Lake) -> None:
    """Without it a stream stands still while hundreds of tables are maintained at once."""
    care = TableMaintenance(lake, no_session, (Maintenance(tables="*.*", commits=2, budget="1 ms"),))
    tables = [f"silver.t{number}" for number in range(5)]
    care.after_batch(batch(lake, *tables))
    care.after_batch(batch(lake, *tables))
    left = [files(lake, table) for table in tables].count(2)
    assert left >= 1
    batches = 0
    while [files(lake, table) for table in tables] != [1] * 5 and batches < 100:
        care.after_batch([])  # how many of them it takes depends on the machine
        batches += 1

    assert [files(lake, table) for table in tables] == [1] * 5


def test_a_table_that_fails_stops_nothing(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Without it a dropped table ends the stream that filled it."""
    care = TableMaintenance(lake, no_session, (Maintenance(tables="*.*", commits=1),))
    care.after_batch(["silver.gone"])

    assert "silver.gone" in caplog.text


def test_no_batch_waits_for_maintenance(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a table of many files stops the stream for as long as its compaction takes."""
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def slow(lake: Lake, table: str, *_: Any, **__: Any) -> MaintenanceResult:
        begun.set()
        assert go_on.wait(60)
        done.append(table)
        return MaintenanceResult(table, 0, 0, 0, 0)

    monkeypatch.setattr(module, "maintain_table", slow)
    care = TableMaintenance(lake, no_session, (Maintenance(tables="*.*", commits=1),), in_thread=True)
    care.after_batch(["silver.a"])
    assert begun.wait(60)
    care.after_batch(["silver.a", "silver.b"])
    assert done == []
    go_on.set()
    care.close()
    assert done == ["silver.a"], "the end begins nothing more"


def test_delta_rs_maintains_in_a_process_of_its_own(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Without it a commit waits for seconds while a table of many files is compacted."""
    caplog.set_level(logging.INFO, "router")
    care = TableMaintenance(
        lake, no_session, (Maintenance(tables="*.*", commits=2),), in_thread=True, process=MaintenanceProcess()
    )
    for _ in range(2):
        care.after_batch(batch(lake, "silver.a", "silver.b"))
    care.close(finish=True)

    assert (files(lake, "silver.a"), files(lake, "silver.b")) == (1, 1)
    assert care.process == MaintenanceProcess(), "it has ended"


def test_a_table_whose_maintenance_dies_keeps_no_other_from_it(lake: Lake) -> None:
    """Without it one table whose compaction takes too much memory ends all maintenance, or the stream."""
    process, options = MaintenanceProcess(), MaintenanceOptions()
    batch(lake, "silver.a")
    with pytest.raises(TableError, match="there is no such table"):
        process.maintain_table(lake, "silver.gone", options)
    assert process.running
    process.running.kill()
    with pytest.raises(TableError, match="ended with -9"):
        process.maintain_table(lake, "silver.a", options)

    assert process.maintain_table(lake, "silver.a", options).table == "silver.a"
    assert process.end_process() == 0


def test_what_former_runs_have_left_counts(lake: Lake) -> None:
    """Without it a table that is filled by a run every hour, each of a few batches, is never maintained."""
    care = TableMaintenance(lake, no_session, (Maintenance(tables="*.*", commits=50),))
    care.after_batch(["silver.a", "silver.b"], {"silver.a": 48, "silver.b": 49}.__getitem__)

    assert dict(care.commits) == {"silver.a": 49}


@pytest.mark.parametrize("view", [False, True])
def test_a_table_that_is_rewritten_is_due_sooner(lake: Lake, view: bool) -> None:
    """Without it a view that is refreshed every five seconds has copies of ten minutes."""
    care = TableMaintenance(lake, no_session, (DEFAULT_MAINTENANCE,))
    if view:
        care.views = (
            View.model_validate(
                {"name": "v", "from": {"tables": "silver.a"}, "into": "silver.p", "sql": "SELECT 1 AS one"}
            ),
        )
        create_table(lake, "silver.p", pa.schema([("k", pa.int64())]))
    else:
        delete(lake, "silver.p")
    create_table(lake, "silver.a", pa.schema([("k", pa.int64())]))
    for table in ("silver.a", "silver.p"):
        care.after_batch([table] * DEFAULT_MAINTENANCE.commits)
        care.after_batch([table] * 20)
    assert not list(care._due_tables())
    for table in care.last:
        care.last[table] -= 61
    assert [table for table, _ in care._due_tables()] == ["silver.p"]


def delete(lake: Lake, table: str) -> None:
    """Let four batches delete a key."""
    keyed = KeyedTable(("k",))
    for offset in range(4):
        rows = lane([Record(("a",), offset, deletes=True)], keyed, {"k": pa.string()})
        upsert_rows(lake, TableUpsert(table, "query/route/upsert", offset, keyed, {}), rows)


def test_what_is_remembered_of_deletions_is_compacted_too(lake: Lake) -> None:
    """Without it each batch with a deletion leaves a small file for ever."""
    delete(lake, "silver.p")
    TableMaintenance(lake, no_session, (Maintenance(tables="*.*", commits=1),)).after_batch(["silver.p"])

    assert files(lake, "silver.p._deletions") == 1


def test_what_is_remembered_of_deletions_is_compacted_beside_a_table_of_sparks(lake: Lake) -> None:
    """Without it a table with a CHECK leaves a small file for each batch with a deletion, for ever."""
    delete(lake, "silver.p")
    handle = lake.open("silver.p")
    assert handle is not None
    handle.alter.add_constraint({"known": "k <> ''"})

    assert maintain_table(lake, "silver.p", MaintenanceOptions()).by_spark == "checkConstraints"
    assert files(lake, "silver.p._deletions") == 1


@pytest.mark.slow
def test_spark_maintains_what_only_it_may_write(
    lake: Lake, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it tables with a CHECK are never maintained."""
    for _ in range(3):
        batch(lake, "silver.a")
    handle = lake.open("silver.a")
    assert handle is not None
    handle.alter.add_constraint({"small": "k < 100"})
    caplog.set_level(logging.INFO, "router")
    care = TableMaintenance(lake, lambda: spark, (Maintenance(tables="silver.a", commits=1, zorder=("k",)),))

    dry = care.maintain_table("silver.a", care.plans[0], dry=True)
    care.after_batch(["silver.a"])

    assert (dry.files, dry.into, dry.by_spark) == (3, 1, "checkConstraints")
    assert "3 files became 1" in caplog.text
    assert files(lake, "silver.a") == 1


@pytest.mark.parametrize("content", [b"PAR1 and no more", b""], ids=["cut off", "empty"])
def test_files_that_no_engine_can_join_hold_up_nothing_else(
    lake: Lake, spark: SparkSession, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    """Without it one damaged file keeps a table from ever being cleaned: its log and what failed tasks left grow."""
    for _ in range(4):
        batch(lake, "silver.a")
    place = Path(lake.address("silver.a"))
    damaged = sorted(place.glob("*.parquet"))[0]
    damaged.write_bytes(content)
    left = place / "part-left.parquet"
    left.write_bytes(b"x")
    then = time.time() - 30 * 86_400
    for file in (left, *(place / "_delta_log").iterdir()):
        os.utime(file, (then, then))
    caplog.set_level(logging.INFO, "router")
    care = TableMaintenance(lake, lambda: spark, (Maintenance(tables="silver.a", commits=1),))
    for _ in range(2):
        care.after_batch(["silver.a"])

    assert not left.exists()
    assert files(lake, "silver.a") == 4
    assert list((place / "_delta_log").glob("*.checkpoint.parquet"))
    lines = [record.getMessage() for record in caplog.records if "cannot be joined" in record.getMessage()]
    assert len(lines) == 1
    assert "maintenance: silver.a: its files cannot be joined and stay as they are: " in lines[0]
    # Once the file is put back, they are joined.
    pq.write_table(pa.table({"k": [1]}), damaged)
    care.after_batch(["silver.a"])
    assert files(lake, "silver.a") == 1


def test_what_merges_of_spark_replaced_goes_with_its_versions(lake: Lake, spark: SparkSession) -> None:
    """Without it a keyed table with deletion vectors keeps a copy of each merge for a week."""
    place = Path(lake.address("gold.a"))
    properties = {MADE: "gold.a", KEYED_BY: "k", "delta.enableDeletionVectors": "true"}
    options = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    spark.sql(f"CREATE TABLE delta.`{place}` (k INT, v INT) USING delta TBLPROPERTIES ({options})")
    spark.range(100).selectExpr("int(id) k", "0 v").coalesce(1).write.format("delta").mode("append").save(str(place))
    for number in range(22):
        # Deletion vectors for some, whole files for others: a file is removed and added again with fewer rows.
        spark.sql(f"UPDATE delta.`{place}` SET v = v + 1 WHERE k = {number} OR k > {100 - 5 * number}")
    then = time.time() - 2 * 3600
    for file in (place / "_delta_log").iterdir():
        os.utime(file, (then, then))
    before = len(list(place.glob("*.parquet")))

    care = TableMaintenance(lake, lambda: spark, ())
    plan = Maintenance(tables="*.*")
    dry = care.maintain_table("gold.a", plan, dry=True)
    result = care.maintain_table("gold.a", plan)
    assert dry.deleted == result.deleted > 5
    assert len(list(place.glob("*.parquet"))) < before
    begin = int(min(path.name[:20] for path in (place / "_delta_log").glob("*.checkpoint*.parquet")))
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{place}` LIMIT 1").first()["version"]
    assert 0 < begin < newest
    for version in range(begin, newest + 1):
        reader = spark.read.format("delta").option("versionAsOf", version)
        assert reader.load(str(place)).where("v >= 0").count() == 100


def test_files_without_statistics_get_them(lake: Lake, spark: SparkSession) -> None:
    """Without it what somebody else has written is read whole by every merge."""
    batch(lake, "silver.a")
    handle = lake.open("silver.a")
    assert handle is not None
    pq.write_table(pa.table({"k": range(7, 1007)}), Path(lake.address("silver.a"), "theirs.parquet"))
    size = Path(lake.address("silver.a"), "theirs.parquet").stat().st_size
    theirs = AddAction("theirs.parquet", size, {}, 0, data_change=True, stats="{}")
    handle.create_write_transaction([theirs], mode="append", schema=handle.schema(), partition_by=[])
    plan = Maintenance(tables="silver.a", file_bytes=1024)
    care = TableMaintenance(lake, lambda: spark, (plan,))

    assert care.maintain_table("silver.a", plan, dry=True).without_statistics == 1
    assert care.maintain_table("silver.a", plan).without_statistics == 1
    handle.update_incremental()
    bounds = pa.table(handle.get_add_actions(flatten=True)).to_pylist()
    assert sorted((row["num_records"], row["min.k"], row["max.k"]) for row in bounds) == [(1, 1, 1), (1000, 7, 1006)]
    assert care.maintain_table("silver.a", plan).without_statistics == 0


@pytest.mark.parametrize(("every", "cleaned"), [("60 s", True), ("3 h", False)])
def test_what_a_view_replaced_goes_with_its_versions(lake: Lake, every: str, cleaned: bool) -> None:
    """Without it a view of 1.3 MB that is refreshed every 10 s has 150 GB after a week."""
    place = Path(lake.address("gold.sums"))
    rows = pa.table({"k": [1]})
    DeltaTable.create(place, Schema.from_arrow(rows.schema), name=made_as("gold.sums"), configuration=PROPERTIES)
    for _ in range(45):
        write_deltalake(place, rows, mode="overwrite")
    then = time.time() - 2 * 3600
    for file in (place / "_delta_log").iterdir():
        os.utime(file, (then, then))

    about = {"name": "sums", "from": "silver.*", "sql": "SELECT 1", "into": "gold.sums", "every": every}
    view = View.model_validate(about)
    TableMaintenance(lake, no_session, (), views=(view,)).maintain_table("gold.sums", DEFAULT_MAINTENANCE)
    assert (len(list(place.glob("*.parquet"))) < 10) is cleaned
    assert files(lake, "gold.sums") == 1
