"""The demo's API, and a cache of fetched files, for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import requests

from router_demo.api import Api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def module_api() -> Iterator[Api]:
    """Run one API for all tests of the module."""
    with Api() as running:
        yield running


@pytest.fixture
def api(module_api: Api) -> Iterator[Api]:
    """Return the API of the module, which remembers nothing yet; what it was told to play ends with the test."""
    module_api.reset()
    yield module_api
    module_api.play()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    """Return an HTTP session that goes through no proxy."""
    with requests.Session() as client:
        client.trust_env = False
        yield client


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that keeps fetched files in this test; it does not exist yet."""
    monkeypatch.setenv("ROUTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
