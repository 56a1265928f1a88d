"""Tables are kept in shape, beside whoever writes them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from benchmarks.s3_server import s3_server
from router import TableError
from router.api.table_options import NewTable
from router.delta import maintenance
from router.delta.commit import commit_files, paths_of, size_of
from router.delta.kept_versions import KeptVersion, files_of, kept_bytes, kept_versions
from router.delta.lake import Lake
from router.delta.maintenance import MaintenanceOptions, delete_older, maintain_table, shorten_log, small_files
from tests.delta.faster_writers import Busy
from tests.delta.keyed_table import COLUMNS, KEYED, MergedTable
from tests.delta.model import Record
from tests.kills import CrashError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyarrow import fs

    from router.delta.commit import TableCommit

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
    found = maintain_table(lake, TABLE, MaintenanceOptions())

    assert (found.files, found.into) == (5, 1)
    assert (len(DeltaTable(table).file_uris()), keys(table)) == (1, [0, 1, 2, 3, 4])
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))


def test_rows_are_sorted_by_what_they_are_asked_for(lake: Lake, table: Path) -> None:
    """Without it a question about one gamer reads every file."""
    maintain_table(lake, TABLE, MaintenanceOptions(zorder=("v",)))

    assert DeltaTable(table).to_pyarrow_table()["v"].to_pylist() == [-4, -3, -2, -1, 0]


def test_what_is_left_behind_goes_when_it_is_old(lake: Lake, table: Path) -> None:
    """Without it every failed task costs storage for ever; or a batch that is landing loses its files."""
    age(table, 6)
    assert maintain_table(lake, TABLE, MaintenanceOptions()).deleted == 0
    age(table, 8)
    found = maintain_table(lake, TABLE, MaintenanceOptions())

    assert (table / "_deletions" / "part-0.parquet").exists()
    assert not (table / "part-0000000007-0-9.parquet").exists()
    assert (found.deleted >= 1, found.freed >= 26) == (True, True)
    assert keys(table) == [0, 1, 2, 3, 4]


def test_a_dry_run_says_it_and_does_nothing(lake: Lake, table: Path) -> None:
    """Without it nobody dares to run it."""
    age(table, 8)
    before = {path: path.stat().st_size for path in table.rglob("*")}
    found = maintain_table(lake, TABLE, MaintenanceOptions(), dry=True)

    assert {path: path.stat().st_size for path in table.rglob("*")} == before
    assert (found.files, found.into, found.deleted >= 1, found.freed >= 26) == (5, 1, True, True)


def test_another_writer_is_waited_for(lake: Lake, table: Path) -> None:
    """Without it a stream and its maintenance stop each other."""
    busy = Busy(
        lake.root, table=TABLE, others=lambda: DeltaTable(table).update(updates={"v": "v + 1"}, predicate="k = 0")
    )
    maintain_table(busy, TABLE, MaintenanceOptions())

    assert (len(DeltaTable(table).file_uris()), keys(table)) == (1, [0, 1, 2, 3, 4])
    assert 1 in DeltaTable(table).to_pyarrow_table()["v"].to_pylist()


def test_what_only_spark_may_write_is_left_to_it(lake: Lake, table: Path) -> None:
    """Without it a table with a CHECK is written by what does not know it."""
    DeltaTable(table).alter.add_constraint({"small": "k < 100"})

    assert maintain_table(lake, TABLE, MaintenanceOptions()).by_spark == "checkConstraints"


def test_a_table_that_is_not_there_is_named(lake: Lake) -> None:
    """Without it a typing error in a name is taken for a table in good shape."""
    with pytest.raises(TableError) as caught:
        maintain_table(lake, "silver.nothing", MaintenanceOptions(retention=timedelta(hours=1)))

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


def rows_land(lake: Lake, table: str, rows: int) -> DeltaTable:
    """Append rows that just came, a file each, and write a checkpoint."""
    now = pa.array([datetime.now(timezone.utc)], pa.timestamp("us", "UTC"))
    for _ in range(rows):
        write_deltalake(lake.address(table), pa.table({"_timestamp": now}), mode="append")
    handle = DeltaTable(lake.address(table))
    handle.create_checkpoint()
    return handle


def test_joined_files_of_an_outbox_go_unless_its_rows_are_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it an outbox keeps each row four times for a week, once for each time that its files were joined."""
    monkeypatch.setattr(maintenance, "LOG_COMMITS", 5)
    now = datetime.now(timezone.utc)
    name = "outbox.a"

    version = rows_land(lake, name, 10).version()
    delete_older(lake, name, now - timedelta(days=7), version)
    assert len(data_files(lake, name)) == 11, "ten have become one"
    version = rows_land(lake, name, 7).version()
    age_log(lake, name, timedelta(hours=2))

    delete_older(lake, name, now - timedelta(days=7), version, is_read=True)
    assert len(data_files(lake, name)) >= 18, "a batch that was cut off may read them"
    version = rows_land(lake, name, 7).version()
    age_log(lake, name, timedelta(hours=2))
    delete_older(lake, name, now - timedelta(days=7), version)
    assert len(data_files(lake, name)) < 18
    assert len(DeltaTable(lake.address(name)).to_pyarrow_table()) == 24


def test_joined_files_of_an_outbox_go_though_its_log_was_cut_before(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it maintenance, which cuts the log each minute, leaves joined files for a week that nobody can find."""
    monkeypatch.setattr(maintenance, "LOG_COMMITS", 0)
    now = datetime.now(timezone.utc)
    name = "outbox.a"

    delete_older(lake, name, now - timedelta(days=7), rows_land(lake, name, 10).version())
    handle = rows_land(lake, name, 7)
    age_log(lake, name, timedelta(hours=2))
    assert shorten_log(lake, name, handle, MaintenanceOptions()) == [], "a batch that was cut off may read them"
    assert len(data_files(lake, name)) == 18
    assert DeltaTable(lake.address(name)).history()[-1]["version"] > 10, "the commit that joined them is gone"

    handle = rows_land(lake, name, 7)
    age_log(lake, name, timedelta(hours=2))
    shorten_log(lake, name, handle, MaintenanceOptions(), before=handle.version(), with_files=True)
    assert len(data_files(lake, name)) == 15
    assert len(DeltaTable(lake.address(name)).to_pyarrow_table()) == 24


def log_of(lake: Lake) -> list[str]:
    return sorted(file.name for file in Path(lake.address(TABLE), "_delta_log").iterdir())


def written(lake: Lake, land: Callable[..., TableCommit], batches: int) -> None:
    """Write batches as the router does."""
    for batch in range(batches):
        commit_files(lake, land(lake, TABLE, pa.table({"k": [batch], "v": [-batch]}), batch), {})


NOW = MaintenanceOptions(log_commits=20, log_retention=timedelta(0), unasked=True)


def test_a_log_keeps_the_newest_commits(lake: Lake, land: Callable[..., TableCommit]) -> None:
    """Without it each commit takes longer than the one before: the log is listed, and it has a file for each."""
    written(lake, land, 65)
    maintain_table(lake, TABLE, NOW)

    handle = DeltaTable(lake.address(TABLE))
    first = min(log_of(lake))
    assert first == f"{39:020}.checkpoint.parquet", (
        "65 and the compaction are 66 commits: 45 is the first that must stay"
    )
    assert len([name for name in log_of(lake) if name.endswith(".json")]) == handle.version() - 39 + 1
    assert sorted(handle.to_pyarrow_table()["k"].to_pylist()) == list(range(65))
    assert DeltaTable(lake.address(TABLE), version=45).version() == 45
    assert handle.transaction_version(f"query/route/sink/{TABLE}") == 64


def test_a_log_keeps_young_commits(lake: Lake, land: Callable[..., TableCommit]) -> None:
    """Without it a reader that follows a table finds a gap after a minute of small batches."""
    written(lake, land, 45)
    maintain_table(lake, TABLE, replace(NOW, log_retention=None))

    assert min(log_of(lake)) == f"{0:020}.json"


@pytest.mark.parametrize(
    "properties", [{"delta.logRetentionDuration": "interval 30 days"}, {"delta.enableExpiredLogCleanup": "false"}]
)
def test_what_a_table_says_of_its_log_wins(
    lake: Lake, land: Callable[..., TableCommit], properties: dict[str, str]
) -> None:
    """Without it a reader that was promised a month finds a gap."""
    written(lake, land, 45)
    DeltaTable(lake.address(TABLE)).alter.set_table_properties(properties)
    maintain_table(lake, TABLE, NOW)

    assert min(log_of(lake)) == f"{0:020}.json"


def test_a_table_of_others_keeps_its_files_and_its_log_unless_asked(lake: Lake, table: Path) -> None:
    """Without it somebody's files are rewritten and deleted by a router that only appends to the table."""
    age(table, 8)
    before = sorted(table.rglob("*"))
    maintain_table(lake, TABLE, NOW)
    assert sorted(table.rglob("*")) == before

    maintain_table(lake, TABLE, replace(NOW, unasked=False))
    assert sorted(table.rglob("*")) != before


def test_files_grow_in_steps(lake: Lake) -> None:
    """Without it all that a table has is written anew each time."""
    steps = MaintenanceOptions(file_bytes=512_000, gradual=True)
    large = pa.table({"k": np.random.default_rng(1).integers(0, 1 << 62, 8_000)})
    write_deltalake(lake.address(TABLE), large)
    for number in range(7):
        write_deltalake(lake.address(TABLE), pa.table({"k": [number]}), mode="append")
    handle = lake.open(TABLE)
    assert handle is not None
    assert small_files(handle, steps) == (0, 0), "too few"
    write_deltalake(lake.address(TABLE), pa.table({"k": [8]}), mode="append")
    handle.update_incremental()
    files, _ = small_files(handle, steps)
    assert files == 8, "not the large one"
    found = maintain_table(lake, TABLE, steps)
    assert (found.files, found.into) == (8, found.into)
    assert found.into < 8
    assert len(DeltaTable(lake.address(TABLE)).to_pyarrow_table()) == 8_008


@pytest.mark.parametrize("inside", [False, True], ids=["column", "field of a struct"])
def test_a_file_with_nan_gets_no_bounds_from_it(lake: Lake, inside: bool) -> None:
    """Without it a query for large numbers passes over NaN, which Spark takes for the largest."""
    for values in ([1.0, float("nan")], [2.0, 3.0]):
        column = pa.array([{"y": value} for value in values]) if inside else pa.array(values)
        write_deltalake(lake.address(TABLE), pa.table({"x": column, "k": [1, 2]}), mode="append")
    maintain_table(lake, TABLE, MaintenanceOptions())

    (found,) = pa.table(DeltaTable(lake.address(TABLE)).get_add_actions()).to_pylist()
    assert (found["min"]["k"], found["max"]["k"], found["num_records"]) == (1, 2, 4)
    assert {str(found[bound].get("x")) for bound in ("min", "max")} <= {"None", "{'y': None}"}


def test_an_outbox_is_compacted_as_far_as_it_was_sent(lake: Lake) -> None:
    """Without it the outbox of a detached sink has a file for each batch, for ever; or loses what was not sent."""
    now = datetime.now(timezone.utc)
    for number in range(10):
        rows = pa.table({"_timestamp": pa.array([now], pa.timestamp("us", "UTC")), "n": [number]})
        write_deltalake(lake.address("outbox.a"), rows, mode="append")
    names = DeltaTable(lake.address("outbox.a")).file_uris()
    assert delete_older(lake, "outbox.a", now - timedelta(days=7), 8) == 0

    handle = DeltaTable(lake.address("outbox.a"))
    assert len(handle.file_uris()) == 2
    assert len({*handle.file_uris()} & {*names}) == 1, "the row that was not sent is in its own file"
    assert all(Path(name).exists() for name in names)
    assert sorted(handle.to_pyarrow_table()["n"].to_pylist()) == list(range(10))


def merged_often(lake: Lake, batches: int) -> MergedTable:
    """Return a table whose rows every batch rewrites, in partitions with names that are escaped in paths."""
    table = MergedTable(
        lake, replace(KEYED, new_table=NewTable(partition_by=("part",))), {**COLUMNS, "part": pa.string()}
    )
    for batch in range(batches):
        values = (("v", batch), ("part", "a b/c%"))
        table.take(Record(("a",), batch, values=values), Record(("b",), batch, values=values))
    return table


def data_files(lake: Lake, table: str) -> set[Path]:
    folder = Path(lake.address(table))
    return {path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def age_log(lake: Lake, table: str, age: timedelta) -> None:
    """Let the log of a table be older than it is."""
    then = time.time() - age.total_seconds()
    for file in (Path(lake.address(table)) / "_delta_log").iterdir():
        os.utime(file, (then, then))


def readable_files(lake: Lake, table: str) -> set[Path]:
    """Return the files of all versions that can be read; read each of them."""
    files: set[Path] = set()
    begin = int(min(path.name[:20] for path in (Path(lake.address(table)) / "_delta_log").glob("*.checkpoint.parquet")))
    for version in range(begin, DeltaTable(lake.address(table)).version() + 1):
        handle = DeltaTable(lake.address(table), version=version)
        assert len(handle.to_pyarrow_table()) == 2
        files |= {Path(uri.removeprefix("file://")) for uri in handle.file_uris()}
    return files


def test_files_that_merges_replaced_go_with_the_versions_that_had_them(lake: Lake) -> None:
    """Without it a table of 0.1 MB has 15 GB after a week: each merge leaves a copy that no version can show."""
    table = merged_often(lake, 70)
    orphan = Path(lake.address(table.name)) / "part-0000000099-0-9.parquet"
    orphan.write_bytes(b"of a batch that is landing")

    kept = data_files(lake, table.name)
    maintain_table(lake, table.name, MaintenanceOptions(gradual=True))
    assert data_files(lake, table.name) >= kept, "an hour has not passed"

    age_log(lake, table.name, timedelta(hours=2))
    table.take(Record(("a",), 100, values=(("v", 100), ("part", "a b/c%"))))
    result = maintain_table(lake, table.name, MaintenanceOptions(gradual=True))
    assert data_files(lake, table.name) == readable_files(lake, table.name) | {orphan}
    assert len(data_files(lake, table.name)) < 15
    assert result.deleted > 50
    assert result.freed > 0


def test_many_copies_of_a_small_table_go_sooner(lake: Lake) -> None:
    """Without it an upsert of 0.2 MB that merges every second has 800 MB of copies within its hour."""
    table = merged_often(lake, 70)
    age_log(lake, table.name, timedelta(minutes=6))
    table.take(Record(("a",), 100, values=(("v", 100), ("part", "a b/c%"))))
    maintain_table(lake, table.name, MaintenanceOptions(gradual=True))
    assert data_files(lake, table.name) == readable_files(lake, table.name)
    assert len(data_files(lake, table.name)) < 15


def test_a_few_copies_stay_for_an_hour(lake: Lake) -> None:
    """Without it a query of half an hour over a table that is seldom rewritten finds its files gone."""
    table = merged_often(lake, 2)
    table.handle.create_checkpoint()
    age_log(lake, table.name, timedelta(minutes=50))
    kept = data_files(lake, table.name)
    table.take(Record(("a",), 100, values=(("v", 100), ("part", "a b/c%"))))
    maintain_table(lake, table.name, MaintenanceOptions(gradual=True))
    assert data_files(lake, table.name) >= kept


def test_a_dry_run_counts_the_files_that_go_with_the_log(lake: Lake) -> None:
    """Without it `router maintain --dry-run` says that a table with 50 old copies would free nothing."""
    table = merged_often(lake, 70)
    table.handle.create_checkpoint()
    age_log(lake, table.name, timedelta(hours=2))
    kept = data_files(lake, table.name)
    promised = maintain_table(lake, table.name, MaintenanceOptions(gradual=True), dry=True)
    assert data_files(lake, table.name) == kept
    result = maintain_table(lake, table.name, MaintenanceOptions(gradual=True))
    assert (promised.deleted, promised.freed) == (result.deleted, result.freed)
    assert result.deleted > 50


def test_checkpoints_of_the_same_minutes_go(lake: Lake) -> None:
    """Without it a table with a commit each second has 160 checkpoints an hour, each with a day's removed files."""
    table = merged_often(lake, 130)
    maintain_table(lake, table.name, MaintenanceOptions(gradual=True))
    log = Path(lake.address(table.name)) / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) == 7, "the youngest stay"

    age_log(lake, table.name, timedelta(minutes=4))
    maintain_table(lake, table.name, MaintenanceOptions(gradual=True))
    assert len(list(log.glob("*.checkpoint.parquet"))) == 3
    newest = table.handle.version()
    for version in range(1, newest + 1):
        assert len(DeltaTable(lake.address(table.name), version=version).to_pyarrow_table()) == 2


def test_a_slower_reader_finds_its_versions(lake: Lake) -> None:
    """Without it a view that is refreshed every three hours computes all of its tables again each time."""
    table = merged_often(lake, 45)
    age_log(lake, table.name, timedelta(hours=2))
    kept = data_files(lake, table.name)
    maintain_table(lake, table.name, MaintenanceOptions(gradual=True, followed=timedelta(hours=6)))
    assert data_files(lake, table.name) >= kept


def test_a_restored_file_stays(lake: Lake) -> None:
    """Without it a table that a person has put back to an older version loses the files of just that version."""
    table = merged_often(lake, 30)
    before = table.handle.to_pyarrow_table().sort_by("k")
    version = table.handle.version()
    for batch in range(30, 60):
        table.take(Record(("a",), batch, values=(("v", batch), ("part", "a b/c%"))))
    table.handle.restore(version)
    maintain_table(lake, table.name, MaintenanceOptions(gradual=True, log_retention=timedelta(0)))
    assert table.handle.to_pyarrow_table().sort_by("k") == before


def test_a_table_that_is_appended_to_keeps_a_thousand_versions(lake: Lake, land: Callable[..., TableCommit]) -> None:
    """Without it a reader that follows a table, and pauses for two hours, finds the files of its commits gone."""
    written(lake, land, 45)
    age_log(lake, TABLE, timedelta(hours=2))
    kept = data_files(lake, TABLE)
    result = maintain_table(lake, TABLE, MaintenanceOptions(gradual=True))
    assert result.into > 0
    assert data_files(lake, TABLE) >= kept


@pytest.mark.parametrize(("minutes", "cleaned"), [(9, False), (11, True)])
def test_small_files_that_were_joined_go_sooner_if_they_take_too_much(
    lake: Lake, land: Callable[..., TableCommit], minutes: int, cleaned: bool
) -> None:
    """Without it a table of 1 MB that gets a commit each second has 23 MB of files that nobody reads."""
    written(lake, land, 45)
    maintain_table(lake, TABLE, MaintenanceOptions(gradual=True))
    age_log(lake, TABLE, timedelta(minutes=minutes))
    before = data_files(lake, TABLE)
    maintain_table(lake, TABLE, MaintenanceOptions(gradual=True, log_commits=0))
    assert (len(data_files(lake, TABLE)) < len(before)) is cleaned


@pytest.mark.parametrize(("log_bytes", "cleaned"), [(4 << 20, True), (3 << 20, False)])
def test_a_log_that_is_larger_than_its_table_is_cut_sooner(
    lake: Lake, land: Callable[..., TableCommit], log_bytes: int, cleaned: bool
) -> None:
    """Without it twelve tables of 10 MB with a commit each second have logs of 20 MB each."""
    written(lake, land, 3)
    log = Path(lake.address(TABLE)) / "_delta_log"
    with (log / f"{1:020}.json").open("a") as commits:
        commits.write(" " * log_bytes)  # as if its statistics took so much
    age_log(lake, TABLE, timedelta(minutes=16))
    maintain_table(lake, TABLE, MaintenanceOptions(gradual=True, log_commits=0))
    age_log(lake, TABLE, timedelta(minutes=16))
    maintain_table(lake, TABLE, MaintenanceOptions(gradual=True, log_commits=0))
    assert (not (log / f"{1:020}.json").exists()) is cleaned


class DyingFiles:
    """Files of a lake that cannot be deleted after the sixth."""

    deleted: ClassVar[int] = 0

    def __init__(self, files: fs.FileSystem) -> None:
        self.files = files

    def delete_file(self, path: str) -> None:
        DyingFiles.deleted += 1
        if DyingFiles.deleted > 6:
            raise CrashError
        self.files.delete_file(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self.files, name)


class DyingLake(Lake):
    """That lake, in a process that is killed while it deletes files."""

    @property
    def files(self) -> Any:
        return DyingFiles(super().files)


def test_a_killed_cleaning_is_done_again(lake: Lake) -> None:
    """Without it files whose versions are gone stay for ever after a crash."""
    table = merged_often(lake, 45)
    options = MaintenanceOptions(gradual=True, log_retention=timedelta(0))
    killed = DyingLake(lake.root, lake.options, lake.locations)
    with pytest.raises(CrashError):
        maintain_table(killed, table.name, options)
    assert len(data_files(lake, table.name)) > 10
    maintain_table(lake, table.name, options)
    assert data_files(lake, table.name) == readable_files(lake, table.name)


def test_the_version_of_a_deploy_can_be_read_after_the_log_was_cut(lake: Lake) -> None:
    """Without it nobody can say what an upsert had before a bad deploy: its versions go after an hour."""
    table = merged_often(lake, 30)
    wanted = KeptVersion(table.handle.version(), int(time.time() * 1000))
    before = data_files(lake, table.name)
    options = MaintenanceOptions(log_retention=timedelta(0), kept=(wanted,))
    maintain_table(lake, table.name, options)
    for batch in range(30, 60):
        table.take(Record(("a",), batch, values=(("v", batch), ("part", "a b/c%"))))
    age(Path(lake.address(table.name)), 8)
    maintain_table(lake, table.name, options)

    with pytest.raises(DeltaError):
        lake.open_version(table.name, wanted.version)
    ((kept, commit),) = kept_versions(lake, table.name)
    assert kept == wanted
    assert commit.transactions["query/route/upsert"] == 30
    then = lake.open_version(kept.name_in(table.name), kept.version)
    assert sorted(QueryBuilder().register("kept", then).execute("SELECT v FROM kept").read_all()["v"].to_pylist()) == [
        29,
        29,
    ]
    assert kept_bytes(lake) == sum(path.stat().st_size for path in before & data_files(lake, table.name))
    assert kept_bytes(lake) > 0

    maintain_table(lake, table.name, replace(options, kept=(), kept_since=wanted.since + 1))
    assert list(kept_versions(lake, table.name)) == []
    assert not before & data_files(lake, table.name)
    assert kept_bytes(lake) == 0


def test_a_version_is_kept_whole_or_not(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a process that is killed while it keeps a version leaves one without rows."""
    table = merged_often(lake, 3)
    wanted = KeptVersion(table.handle.version(), int(time.time() * 1000))
    written = Lake.write

    def write_and_die(self: Lake, path: str, content: bytes) -> None:
        if path.endswith(".json"):
            raise CrashError
        written(self, path, content)

    monkeypatch.setattr(Lake, "write", write_and_die)
    with pytest.raises(CrashError):
        maintain_table(lake, table.name, MaintenanceOptions(kept=(wanted,)))
    monkeypatch.undo()
    assert list(kept_versions(lake, table.name)) == []
    maintain_table(lake, table.name, MaintenanceOptions(kept=(wanted,)))
    assert len(list(kept_versions(lake, table.name))) == 1


def test_a_table_that_was_made_again_keeps_no_version_of_a_deploy_before_that(lake: Lake) -> None:
    """Without it a table shows rows as those before a deploy that came after it."""
    wanted = KeptVersion(1, int(time.time() * 1000))
    table = merged_often(lake, 3)

    maintain_table(lake, table.name, MaintenanceOptions(kept=(wanted,)))

    assert list(kept_versions(lake, table.name)) == []


def test_a_damaged_log_of_a_kept_version_holds_up_no_maintenance(lake: Lake) -> None:
    """Without it a file that nobody needs lets a table grow for ever."""
    table = merged_often(lake, 30)
    options = MaintenanceOptions(kept=(KeptVersion(3, int(time.time() * 1000)),))
    maintain_table(lake, table.name, options)
    (checkpoint,) = Path(lake.root, "_kept").rglob("*.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:9])
    maintain_table(lake, table.name, options)
    assert kept_bytes(lake) == 0

    (commit,) = Path(lake.root, "_kept").rglob("*.json")
    commit.write_bytes(commit.read_bytes()[:9])
    maintain_table(lake, table.name, options)
    assert kept_bytes(lake) > 0, "it is written again for as long as the table's log has it"


def test_a_version_is_kept_in_an_object_store() -> None:
    """Without it the files of the versions before a deploy are deleted there: their addresses are not told apart."""
    with s3_server("lake") as server:
        lake = Lake.at("s3://lake/some where", server.options)
        table = merged_often(lake, 3)
        before = paths_of(lake.open_version(table.name, 1))
        options = MaintenanceOptions(log_retention=timedelta(0), kept=(KeptVersion(1, int(time.time() * 1000)),))
        maintain_table(lake, table.name, options)
        ((kept, _),) = kept_versions(lake, table.name)

        paths = files_of(lake, table.name, kept)
        assert paths == before
        assert kept_bytes(lake) == size_of(lake, table.name, sorted(paths)) > 0
        maintain_table(lake, table.name, replace(options, kept=(), kept_since=kept.since + 1))
        assert list(kept_versions(lake, table.name)) == []
