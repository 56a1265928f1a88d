"""Files in an object store."""

from __future__ import annotations

import errno
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import dataset, fs

from benchmarks.s3_server import Fault
from router.delta.commit import TableCommit, commit_files, to_delta
from router.delta.lake import Lake
from router.delta.parquet_writer import Staging
from router.errors import StartError
from router.storage import files as storage
from router.storage.addresses import normalize_address

if TYPE_CHECKING:
    from benchmarks.s3_server import S3Server

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})


@pytest.mark.parametrize(
    ("place", "known"),
    [
        ("s3://bucket/lake/", "s3://bucket/lake"),
        ("S3A://bucket", "s3a://bucket"),
        ("abfss://c@account.dfs.core.windows.net/lake", "abfss://c@account.dfs.core.windows.net/lake"),
        ("az://c/lake", "az://c/lake"),
        ("gs://bucket/a/b", "gs://bucket/a/b"),
        ("file:/data/lake", "/data/lake"),
        ("file:///data/my%20lake/", "/data/my lake"),
        ("/data/lake", "/data/lake"),
    ],
)
def test_a_place_has_one_address(place: str, known: str) -> None:
    """Without it `file:/x` is a folder of the working directory, and a slash makes another lake."""
    assert normalize_address(place) == known


@pytest.mark.parametrize(
    "place", ["s4://bucket/lake", "dbfs:/lake", "hdfs://name/lake", "s3://", "s3:/lake", "file://host/x", "abfss://c/x"]
)
def test_other_schemes_are_refused(place: str) -> None:
    """Without it a lake that nobody can reach becomes a folder on the driver."""
    with pytest.raises(ValueError, match=place):
        normalize_address(place)


def test_files_are_written_read_listed_and_deleted(bucket: Lake) -> None:
    """Without it nothing of a lake works in a bucket."""
    assert bucket.read("store/none") is None
    bucket.write("store/a/1.json", b"one")
    bucket.write("store/a/1.json", b"two")
    bucket.write("store/b.json", b"three")

    listed = bucket.files.get_file_info(fs.FileSelector("store", recursive=True))
    direct = bucket.files.get_file_info(fs.FileSelector("store"))
    kinds = bucket.files.get_file_info(["store", "store/b.json", "nowhere"])
    bucket.delete("store/b.json", "store/none")

    assert bucket.read("store/a/1.json") == b"two"
    assert sorted(one.path for one in listed) == ["store/a/1.json", "store/b.json"]
    assert {one.base_name: one.type for one in direct} == {"a": fs.FileType.Directory, "b.json": fs.FileType.File}
    assert [one.type for one in kinds] == [fs.FileType.Directory, fs.FileType.File, fs.FileType.NotFound]
    assert kinds[1].size == 5
    assert bucket.read("store/b.json") is None


@pytest.mark.parametrize("where", ["bucket", "lake"])
def test_a_file_is_created_once(where: str, request: pytest.FixtureRequest) -> None:
    """Without it two runs decide one batch."""
    place: Lake = request.getfixturevalue(where)
    assert place.create("x/1", b"first")
    assert not place.create("x/1", b"second")
    assert place.read("x/1") == b"first"


@pytest.mark.parametrize("where", ["bucket", "lake"])
def test_a_file_is_replaced_only_as_it_was(where: str, request: pytest.FixtureRequest) -> None:
    """Without it two runs take one lock."""
    files = request.getfixturevalue(where).store
    first = files.create_if_absent("lock", b"first")

    assert files.read_stamp("lock") == first
    second = files.replace_if_unchanged("lock", b"second", first)
    assert second not in (None, first)
    assert files.replace_if_unchanged("lock", b"third", first) is None
    assert files.read("lock") == b"second"


@pytest.mark.parametrize("rows", [10, 3_000_000], ids=["one request", "in parts"])
def test_parquet_files_go_through_arrow(bucket: Lake, rows: int) -> None:
    """Without it a table's files cannot be written, or are cut off."""
    table = pa.table({"n": pa.array(range(rows), pa.int64())})
    with bucket.files.open_output_stream("silver/uno/1.parquet") as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
        size = stream.tell()

    with bucket.files.open_input_file("silver/uno/1.parquet") as source:
        assert source.size() == size
        assert pq.read_table(source).equals(table)
    assert bucket.files.get_file_info("silver/uno/1.parquet").size == size


def test_staged_files_are_committed(bucket: Lake) -> None:
    """Without it no table in a bucket gets rows."""
    work = staged(bucket, 0)

    assert commit_files(bucket, work, {})
    assert commit_files(bucket, staged(bucket, 1), {}, bucket.open("silver.uno"))
    assert not commit_files(bucket, staged(bucket, 1), {})
    table = bucket.open("silver.uno")
    assert table is not None
    assert table.to_pyarrow_table().num_rows == 4
    assert bucket.table_names("silver") == ["silver.uno"]
    assert bucket.layer_names() == ["silver"]


def staged(lake: Lake, batch: int) -> TableCommit:
    """Return the commit of a batch, with its file staged."""
    writer = Staging(lake, 1 << 20, 1 << 20).open_writer(batch, "0")
    writer.hold_rows("games/tables", "silver.uno", ROWS.to_batches()[0])
    files = tuple(writer.close())
    return TableCommit(
        "games/tables", "silver.uno", "games:run/games/tables/silver.uno", batch, files, to_delta(ROWS.schema)
    )


def test_a_store_travels_to_executors(bucket: Lake) -> None:
    """Without it tasks cannot write where the driver can."""
    bucket.write("x", b"here")

    assert pickle.loads(pickle.dumps(bucket)).read("x") == b"here"


def test_faults_of_the_store_are_those_of_a_disk(bucket: Lake, server: S3Server) -> None:
    """Without it an outage of the storage stops a stream for good, or a key of it stands in a log."""
    server.fail(Fault("*", "denied", "403 Forbidden", times=9))
    with pytest.raises(PermissionError) as caught:
        bucket.read("denied")
    assert "hush-hush" not in str(caught.value)


def test_a_failure_that_passes_is_tried_again(bucket: Lake, server: S3Server) -> None:
    """Without it one slow answer of a store fails a batch."""
    server.fail(
        Fault("PUT", "flaky", "503 Slow Down"),
        Fault("PUT", "flaky", "500 Internal Server Error"),
        Fault("PUT", "flaky"),
        Fault("GET", "flaky", "503 Slow Down", seconds=0.5),
    )
    bucket.write("flaky", b"whole")

    assert bucket.read("flaky") == b"whole"
    assert not server.faults_left()


def test_options_that_only_delta_rs_knows_do_not_matter(server: S3Server) -> None:
    """Without it a lake that delta-rs reaches is refused."""
    place = Lake.at("s3://lake/options", {**server.options, "AWS_S3_LOCKING_PROVIDER": "none", "max_retries": "3"})
    place.write("x", b"here")

    assert place.read("x") == b"here"


def test_a_wrong_option_names_the_place_and_no_secret() -> None:
    """Without it a start ends in a traceback with a password in it."""
    with pytest.raises(StartError, match="s3://lake/x") as caught:
        Lake.at("s3://lake/x", {"aws_access_key_id": "only-half"}).read("x")
    assert "only-half" not in str(caught.value)


def test_tables_beside_other_files_are_found(bucket: Lake) -> None:
    """Without it the cap on tables counts wrong."""
    for name in ("uno", "hearts"):
        write_deltalake(bucket.address(f"silver.{name}"), ROWS, storage_options=bucket.options)
    bucket.write("silver/no_table/notes.txt", b"none")

    assert bucket.table_names("silver") == ["silver.hearts", "silver.uno"]


@pytest.mark.parametrize("where", ["bucket", "lake"])
def test_a_place_that_keeps_files_is_taken(where: str, request: pytest.FixtureRequest) -> None:
    """Without it no run starts."""
    place: Lake = request.getfixturevalue(where)
    storage.probe_conditional_writes(place.root, place.options)

    assert place.layer_names() == []


def test_a_store_without_conditional_writes_is_refused(bucket: Lake, server: S3Server) -> None:
    """Without it a commit of another writer is overwritten, and its rows are gone."""
    server.fail(Fault("PUT", "probe", times=9, unconditional=True))

    with pytest.raises(StartError, match="If-None-Match"):
        storage.probe_conditional_writes(bucket.root, bucket.options)


def test_a_bucket_that_is_not_there_is_one_sentence(server: S3Server) -> None:
    """Without it a typing error ends in a traceback."""
    with pytest.raises(StartError, match="s3://no-such-bucket/lake cannot be written"):
        storage.probe_conditional_writes("s3://no-such-bucket/lake", server.options)


def test_an_endpoint_without_tls_is_named(server: S3Server) -> None:
    """Without it the reason is "builder error"."""
    options = {name: value for name, value in server.options.items() if name != "aws_allow_http"}
    with pytest.raises(StartError, match="http:// needs `aws_allow_http"):
        storage.probe_conditional_writes("s3://lake/x", options)


# What mounted buckets say that have no links: s3fs, and rclone.
@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EIO], ids=errno.errorcode.get)
def test_a_mounted_bucket_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Without it two commits of one version both succeed, or the run waits for ever for a file that it cannot link."""

    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StartError, match="mounted bucket"):
        storage.probe_conditional_writes(lake.root, {})
    assert list(Path(lake.root).iterdir()) == []


def test_a_folder_that_takes_no_file_is_waited_for(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a start on a full disk is refused, as if it were a mounted bucket."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    storage.probe_conditional_writes(lake.root, {})
    assert list(Path(lake.root).iterdir()) == []


def test_spark_gets_the_rights_of_the_router() -> None:
    """Without it Spark reads no outbox in a bucket, and keeps no checkpoint there."""
    options = {"AWS_ACCESS_KEY_ID": "me", "aws_secret_access_key": "hush", "aws_endpoint_url": "http://127.0.0.1:9000"}
    azure = {"account_name": "acc", "azure_storage_account_key": "hush"}

    assert storage.hadoop_settings("s3://lake/x", options) == {
        "fs.s3a.access.key": "me",
        "fs.s3a.secret.key": "hush",
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    assert storage.hadoop_settings("az://c/x", azure) == {"fs.azure.account.key.acc.dfs.core.windows.net": "hush"}
    assert storage.hadoop_settings("/lake", {}) == {}
    assert storage.for_spark("s3://lake/x", options) == "s3a://lake/x"
    assert storage.for_spark("az://c/x", azure) == "abfss://c@acc.dfs.core.windows.net/x"
    assert storage.for_spark("/lake", {}) == "/lake"


def test_an_emulator_of_azure_is_known_by_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it delta-rs writes each table of Azurite once: its lists begin where they are not to begin."""
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", "http://before")
    azure = {"account_name": "acc", "azure_storage_endpoint": "http://azurite:10000/acc/"}

    assert storage.for_delta("az://c/x", azure) == {**azure, "azure_storage_use_emulator": "true"}
    assert os.environ["AZURITE_BLOB_STORAGE_URL"] == "http://azurite:10000"
    for other in ({}, {"azure_endpoint": "https://acc.blob.core.windows.net"}):
        options = {"account_name": "acc", **other}
        assert storage.for_delta("abfss://c@acc.dfs.core.windows.net/x", options) == options


def test_files_are_read_as_a_dataset(bucket: Lake) -> None:
    """Without it rows of a quarantine in a bucket are never released."""
    paths = [f"silver/uno/{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        with bucket.files.open_output_stream(path) as stream:
            pq.write_table(pa.table({"n": [number]}), stream)

    found = dataset.dataset(paths, format="parquet", filesystem=bucket.files).to_table()
    assert sorted(found.column("n").to_pylist()) == [0, 1, 2]


def test_files_are_moved(bucket: Lake) -> None:
    """Without it a damaged log is not put aside, and a repair fails."""
    bucket.write("a/1", b"one")
    bucket.files.create_dir("b", recursive=True)
    bucket.files.move("a/1", "b/1")

    assert bucket.read("a/1") is None
    assert bucket.read("b/1") == b"one"


def test_of_many_that_create_a_file_one_has_done_it(lake: Lake) -> None:
    """Without it two tasks that meet a new table fail, or both believe that a commit is theirs."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            found = list(pool.map(lake.create, [f"notes/{number}"] * 8, [bytes([one]) for one in range(8)]))

            assert sum(found) == 1
            assert lake.read(f"notes/{number}") == bytes([found.index(True)])
    assert len(lake.files.get_file_info(fs.FileSelector("notes"))) == 50
