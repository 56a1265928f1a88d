"""An object store of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import S3Server, s3_server
from router.delta.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """Run an S3 server with two buckets."""
    with s3_server("lake", "other") as found:
        yield found


@pytest.fixture
def bucket(server: S3Server, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """Return a lake of this test's own in a bucket."""
    yield Lake.at(f"s3://lake/{request.node.name.replace('[', '-').replace(']', '')}", server.options)
    server.fail()
