"""Servers that others have written, stricter than moto or for other clouds: tables, commits and locks work there, too.

| storage | server | to be had by |
|---|---|---|
| S3 | versitygw | `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0` |
| Azure | Azurite | `npm install azurite` |
| Google | moto, with Google's conditions (benchmarks.s3_server) | installed with the tests |

The first two are programs on the path; without them their tests are skipped. For Google there is no server here that
speaks the XML API, which delta-rs and obstore use: fake-gcs-server 1.x answers `invalid uploadType`, and Google's own
storage-testbench lists nothing and sends no ETags.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from benchmarks.s3_server import s3_server, strict_s3_server
from router.delta.lake import Lake
from router.delta.maintenance import MaintenanceOptions, maintain_table
from router.delta.table_cache import TableCache
from router.storage import files as storage
from router_demo.embedded import free_ports
from tests.delta.keyed_table import MergedTable, record
from tests.storage.test_log_tail import batches, take

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account, which its documentation names."""


@contextmanager
def versitygw() -> Iterator[dict[str, str]]:
    """Run an S3 server with an empty bucket `lake`; return the options that reach it."""
    with strict_s3_server("lake") as found:
        yield found.options


@contextmanager
def azurite() -> Iterator[dict[str, str]]:
    """Run Azurite with an empty container `lake`; return the options that reach it."""
    (port,) = free_ports(1)
    command = ["azurite-blob", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    command += ["--blobPort", str(port)]
    with subprocess.Popen(command) as process:
        url = f"http://127.0.0.1:{port}/{ACCOUNT}"
        for _ in range(300):
            with suppress(OSError):
                _make_container(url)
                break
            time.sleep(0.1)
        yield {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_endpoint": url,
            "azure_allow_http": "true",
        }
        process.kill()


def _make_container(url: str) -> None:
    at = f"{datetime.now(timezone.utc):%a, %d %b %Y %H:%M:%S GMT}"
    signed = f"PUT{chr(10) * 12}x-ms-date:{at}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/lake\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": at, "x-ms-version": "2021-08-06", "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
    headers |= {"Content-Length": "0"}
    urlopen(Request(f"{url}/lake?restype=container", method="PUT", headers=headers), timeout=10).close()


@contextmanager
def google() -> Iterator[dict[str, str]]:
    """Run moto with Google's conditions and an empty bucket `lake`; return the options that reach it."""
    with s3_server("lake", google=True) as found:
        account = {"gcs_base_url": found.url, "disable_oauth": True, "client_email": "", "private_key": ""}
        account["private_key_id"] = ""
        yield {"google_service_account_key": json.dumps(account), "allow_http": "true"}


SERVERS = {"versitygw": versitygw, "azurite-blob": azurite, "google": google}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """Run a server; return its name and the options that reach it."""
    if request.param != "google" and not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    with SERVERS[request.param]() as options:
        yield request.param, options


ROOTS = {
    "versitygw": ("s3://lake/s3", "s3a://lake/s3a"),
    "azurite-blob": ("az://lake/az", f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/abfss"),
    "google": ("gs://lake/gs",),
}


def test_tables_and_locks_work_as_elsewhere(server: tuple[str, dict[str, str]]) -> None:
    """Without it nobody knows whether a lake there loses commits."""
    name, options = server
    for root in ROOTS[name]:
        lake = Lake.at(root, options)
        storage.probe_conditional_writes(lake.root, lake.options)
        cache = TableCache(lake)
        for batch in range(22):
            assert take(cache, batch)
        first = lake.store.create_if_absent("lock", b"1")
        assert first

        assert batches(lake) == [*range(22)]
        assert lake.table_names("silver") == ["silver.uno"]
        assert lake.store.create_if_absent("lock", b"2") is None
        assert lake.store.replace_if_unchanged("lock", b"2", first)
        assert lake.store.replace_if_unchanged("lock", b"3", first) is None
        assert lake.read("lock") == b"2"


def test_rows_of_many_batches_are_merged(server: tuple[str, dict[str, str]]) -> None:
    """Without it nobody knows whether upserts land there: Azurite took the first batch of a process and no other."""
    name, options = server
    for root in ROOTS[name]:
        table = MergedTable(Lake.at(f"{root}-merged", options))
        for batch in range(10):
            table.take(record("a", 2 * batch, batch), record(f"k{batch}", 2 * batch + 1, batch))

        assert table.rows() == [
            {"k": "a", "v": 9, "_offset": 18},
            *({"k": f"k{batch}", "v": batch, "_offset": 2 * batch + 1} for batch in range(10)),
        ]


def test_a_list_begins_where_it_is_to_begin(server: tuple[str, dict[str, str]]) -> None:
    """Without it each batch reads all commits of its table again."""
    name, options = server
    lake = Lake.at(f"{ROOTS[name][0]}-listed", options)
    for number in range(4):
        lake.store.create_if_absent(f"log/{number}", b"1")

    assert list(lake.store.list_stamps("log", "log/1")) == ["log/2", "log/3"]


SMALL_FILES = {"versitygw": 20_000}
"""For 20,000 moto takes four minutes, versitygw one."""


def test_a_table_of_many_small_files_is_joined_and_cleaned(server: tuple[str, dict[str, str]]) -> None:
    """Without it nobody knows whether a stream of small batches can run for months in a bucket."""
    name, options = server
    count = SMALL_FILES.get(name, 1_000)
    lake = Lake.at(f"{ROOTS[name][0]}-small", options)
    schema = pa.schema([("n", pa.int64())])
    address = lake.address("silver.small")
    handle = DeltaTable.create(address, schema, storage_options=lake.delta_options("silver.small"))
    put = partial(_put_small_file, lake, "silver.small")
    with ThreadPoolExecutor(16) as threads:
        added = list(threads.map(put, range(count)))
    handle.create_write_transaction(added, "append", schema, [])

    done = maintain_table(lake, "silver.small", MaintenanceOptions(retention=timedelta(0)))

    table = lake.open("silver.small")
    assert table is not None
    assert (done.files, done.deleted) == (count, count)
    assert len(table.file_uris()) == done.into <= 2
    assert sorted(table.to_pyarrow_table().column("n").to_pylist()) == list(range(count))


def _put_small_file(lake: Lake, table: str, number: int) -> AddAction:
    """Write a file of one row into a table's folder; return what a commit says of it."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": [number]}), sink)
    path = f"small-{number}.parquet"
    lake.write(f"{table.replace('.', '/')}/{path}", sink.getvalue())
    return AddAction(path, sink.tell(), {}, 1_700_000_000_000, True, json.dumps({"numRecords": 1}))
