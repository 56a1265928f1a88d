"""Azure's storage, played by Azurite: `npm install azurite`, and its `azurite-blob` on the path."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from router import storage
from router.delta.lake import Lake
from router.delta.table_cache import TableCache
from tests.storage.test_log_tail import batches, take

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("azurite-blob"), reason="azurite-blob is not installed (npm install azurite)"),
]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account, which its documentation names."""


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Run Azurite with an empty container `lake`; return the options that reach it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = ["azurite-blob", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--blobPort", str(port)]
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


@pytest.mark.parametrize("root", ["az://lake/az", f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/abfss"])
def test_tables_and_locks_work_as_elsewhere(options: dict[str, str], root: str) -> None:
    """Without it nobody knows whether a lake on Azure loses commits."""
    lake = Lake.at(root, options)
    storage.probe(lake.root, lake.options)
    cache = TableCache(lake)
    for batch in range(22):
        assert take(cache, batch)
    first = lake.store.create("lock", b"1")
    assert first

    assert batches(lake) == [*range(22)]
    assert lake.tables("silver") == ["silver.uno"]
    assert lake.store.create("lock", b"2") is None
    assert lake.store.replace("lock", b"2", first)
    assert lake.store.replace("lock", b"3", first) is None
    assert lake.read("lock") == b"2"
