"""The S3 servers that tests run against: moto, and versitygw where it is installed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import STRICT, s3_server, strict_s3_server

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from benchmarks.s3_server import S3Server

without_strict = pytest.mark.skipif(
    not shutil.which(STRICT), reason=f"{STRICT} is not on the path (see tests/storage/test_other_servers.py)"
)
SERVERS = ["moto", pytest.param(STRICT, marks=without_strict)]
"""Parameters for a fixture, or for `lake_on`."""


def lake_on(server: str) -> AbstractContextManager[S3Server]:
    """Run one of the servers with an empty bucket `lake`."""
    return strict_s3_server("lake") if server == STRICT else s3_server("lake")
