"""Open tables, in an object store and in a folder: few requests, and nothing of another writer's lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks.s3_server import Fault
from router.delta.commit import TableCommit, commit_files, to_delta
from router.delta.history import last_checkpoint
from router.delta.lake import Lake
from router.delta.log_tail import LogTail
from router.delta.parquet_writer import Staging
from router.delta.table_cache import TableCache
from router.errors import TableError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.s3_server import S3Server

TABLE = "silver.uno"
SCHEMA = pa.schema([("batch", pa.int64())])


@pytest.fixture(params=["bucket", "folder"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Return a lake in an object store, or in a folder: their tables are kept open in the same way."""
    found: Lake = request.getfixturevalue("bucket") if request.param == "bucket" else Lake.at(str(tmp_path / "lake"))
    return found


def staged(lake: Lake, batch: int, schema: pa.Schema = SCHEMA) -> TableCommit:
    """Return the commit of a batch of one row, with its file staged."""
    writer = Staging(lake, 1 << 20, 1 << 20).open_writer(batch, "0")
    writer.hold_rows("games/tables", TABLE, pa.RecordBatch.from_pylist([{"batch": batch}], schema))
    return TableCommit("games/tables", TABLE, f"games:run/{TABLE}", batch, tuple(writer.close()), to_delta(schema))


def take(cache: TableCache, batch: int) -> bool:
    """Do what a batch does with a table."""
    handle = cache.open_tables([TABLE])[TABLE]
    return commit_files(cache.lake, staged(cache.lake, batch), {"router.batch": str(batch)}, handle)


def batches(lake: Lake) -> list[int]:
    """Return the batches that the table has, as a reader finds them that opens it anew."""
    table = lake.open(TABLE)
    assert table is not None
    return sorted(table.to_pyarrow_table().column("batch").to_pylist())


def test_a_batch_costs_few_requests(bucket: Lake, server: S3Server) -> None:
    """Without it an append reads the log again and again, and the bill of the store is that of its requests."""
    cache, begin = TableCache(bucket), len(server.asked())
    for batch in range(45):
        assert take(cache, batch)
    asked = [one for one in server.asked(begin) if "/part-" not in one.path]

    assert len(asked) / 45 <= 5
    assert batches(bucket) == [*range(45)]
    assert bucket.read(f"silver/uno/_delta_log/{39:020}.checkpoint.parquet")
    table = bucket.open(TABLE)
    assert table is not None
    assert table.history(1)[0]["router.batch"] == "44"
    assert table.transaction_version(f"games:run/{TABLE}") == 44


def test_a_table_without_its_first_commits_is_whole(anywhere: Lake) -> None:
    """Without it a checkpoint that lacks files loses them, as soon as the commits before it expire."""
    cache = TableCache(anywhere)
    number = 0
    take(cache, number)
    while (checkpoint := last_checkpoint(anywhere, TABLE, number).version) < 0:
        number += 1
        take(cache, number)
    number += 1
    take(cache, number)
    anywhere.delete(*(f"silver/uno/_delta_log/{version:020}.json" for version in range(checkpoint)))

    assert batches(anywhere) == [*range(number + 1)]


def test_a_batch_is_committed_once(anywhere: Lake) -> None:
    """Without it a batch that runs again after a crash is in the table twice."""
    cache = TableCache(anywhere)
    assert [take(cache, batch) for batch in (0, 0, 1, 1, 2)] == [True, False, True, False, True]
    assert not take(TableCache(anywhere), 2)
    assert batches(anywhere) == [0, 1, 2]


def test_appends_of_others_are_kept(anywhere: Lake) -> None:
    """Without it the router overwrites a commit, and its rows are gone."""
    cache = TableCache(anywhere)
    take(cache, 0)
    take(cache, 1)
    handle = cache.open_tables([TABLE])[TABLE]
    for row in (100, 101):
        write_deltalake(
            anywhere.address(TABLE), pa.table({"batch": [row]}), mode="append", storage_options=anywhere.options or None
        )

    assert commit_files(anywhere, staged(anywhere, 2), {}, handle)
    assert take(cache, 3)
    assert batches(anywhere) == [0, 1, 2, 3, 100, 101]


def test_a_changed_schema_is_seen(anywhere: Lake) -> None:
    """Without it rows are staged for columns that the table does not have any more."""
    cache, wider = TableCache(anywhere), pa.table({"batch": [100], "more": ["x"]})
    take(cache, 0)
    take(cache, 1)
    handle = cache.open_tables([TABLE])[TABLE]
    write_deltalake(
        anywhere.address(TABLE), wider, mode="append", schema_mode="merge", storage_options=anywhere.options or None
    )

    with pytest.raises(TableError, match="another writer has changed"):
        commit_files(anywhere, staged(anywhere, 2), {}, handle)
    seen = cache.open_tables([TABLE])[TABLE]
    assert seen is not None
    assert [one.name for one in seen.schema().fields] == ["batch", "more"]
    assert commit_files(anywhere, staged(anywhere, 2), {}, seen)
    assert batches(anywhere) == [0, 1, 2, 100]


def test_a_table_made_anew_is_not_taken_for_the_former_one(anywhere: Lake) -> None:
    """Without it a commit goes into the log of a table that is gone."""
    cache = TableCache(anywhere)
    take(cache, 0)
    take(cache, 1)
    log = [info.path for info in anywhere.files.get_file_info(_below("silver/uno"))]
    anywhere.delete(*log)
    write_deltalake(anywhere.address(TABLE), pa.table({"batch": [100]}), storage_options=anywhere.options or None)

    assert take(cache, 0)
    assert batches(anywhere) == [0, 100]


def test_an_answer_that_was_lost_is_no_second_commit(bucket: Lake, server: S3Server) -> None:
    """Without it a reset after the store has taken a commit makes the batch land twice, or stops it."""
    cache = TableCache(bucket)
    take(cache, 0)
    take(cache, 1)
    handle = cache.open_tables([TABLE])[TABLE]

    server.fail(Fault("PUT", f"{2:020}.json", "503 Slow Down", done=True))

    assert commit_files(bucket, staged(bucket, 2), {}, handle)
    assert not server.faults_left()
    assert take(cache, 3)
    assert batches(bucket) == [0, 1, 2, 3]


def test_what_is_no_append_is_done_on_the_newest_version(anywhere: Lake) -> None:
    """Without it OPTIMIZE and merges work on a table that lacks the last batches."""
    cache = TableCache(anywhere)
    for batch in range(4):
        take(cache, batch)
    handle: Any = cache.open_tables([TABLE])[TABLE]

    assert isinstance(handle, LogTail)
    assert handle.optimize.compact()["numFilesRemoved"] == 4
    assert take(cache, 4)
    assert batches(anywhere) == [*range(5)]


def test_a_feature_that_an_append_must_say_something_for_is_left_to_delta_rs(anywhere: Lake) -> None:
    """Without it a reader of commit times reads nonsense."""
    cache = TableCache(anywhere)
    take(cache, 0)
    handle: Any = cache.open_tables([TABLE])[TABLE]
    asked = handle.protocol()._replace(min_writer_version=7, writer_features=["inCommitTimestamp"])

    assert handle.can_append
    handle.about = *handle.about[:2], asked
    assert not handle.can_append


def _below(folder: str) -> Any:
    from pyarrow import fs

    return fs.FileSelector(folder, recursive=True)


@pytest.mark.parametrize("named", ["variable", "option"])
def test_a_profile_has_the_rights(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Without it keys stand in a configuration, or files are reached and tables are not."""
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = me\naws_secret_access_key = hush\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    options = {name: value for name, value in server.options.items() if "key" not in name}
    if named == "variable":
        monkeypatch.setenv("AWS_PROFILE", "work")
    else:
        options["aws_profile"] = "work"
    lake = Lake.at(f"s3://lake/profile-{named}", options)

    assert take(TableCache(lake), 0)
    assert batches(lake) == [0]
    options = lake.delta_options("silver.uno")
    assert options
    assert options["aws_access_key_id"] == "me"
