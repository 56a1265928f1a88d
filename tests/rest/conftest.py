"""Run servers, and make certificates for them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from router_demo.api import Api
from router_rest.limits.lease_server import LeaseServer
from tests.rest.scripted import Scripted
from tests.rest.tasks import run_tasks, shorten_outages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.delta.lake import Lake
    from tests.rest.tasks import Tasks


@dataclass(frozen=True)
class Certificates:
    """Hold the paths of certificates, each with its key in the same file and its own authority.

    here: of a server at 127.0.0.1. elsewhere: of one with another name. client: of nobody in particular.
    locked: as client, with a key that nobody can open.
    """

    here: str
    elsewhere: str
    client: str
    locked: str


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """Run one API for all tests of the module."""
    with Api() as running:
        yield running


@pytest.fixture
def server() -> Iterator[Scripted]:
    """Run a server that does what a test wants."""
    with Scripted() as running:
        yield running


@pytest.fixture
def api_tasks(api: Api, lake: Lake) -> Iterator[Tasks]:
    """Run tasks against the API of the module, which remembers nothing yet."""
    with run_tasks(api, lake) as running:
        yield running


@pytest.fixture
def hurried_tasks(api: Api, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """Run tasks against the API of the module; their pauses in an outage are tenths of a second."""
    shorten_outages(monkeypatch)
    with run_tasks(api, lake) as running:
        yield running


@pytest.fixture
def server_tasks(server: Scripted, lake: Lake) -> Iterator[Tasks]:
    """Run tasks against a server that does what a test wants."""
    api: Any = SimpleNamespace(url=server.url.removesuffix("/events"), reset=lambda: None)
    with run_tasks(api, lake) as running:
        yield running


@pytest.fixture
def lease_server() -> Iterator[LeaseServer]:
    """Run a lease server, as a driver does that was just started."""
    running = LeaseServer().start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    names = {"here": "IP:127.0.0.1", "elsewhere": "DNS:elsewhere.test", "client": "DNS:client.test"}
    made = {name: _certificate(openssl, folder / name, alternative) for name, alternative in names.items()}
    locked = _certificate(openssl, folder / "locked", "DNS:client.test", "-passout", "pass:hush-hush")
    return Certificates(**made, locked=locked)


def _certificate(openssl: str, stem: Path, alternative: str, *locked: str) -> str:
    key, made, both = stem.with_suffix(".key"), stem.with_suffix(".crt"), stem.with_suffix(".pem")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += locked or ("-nodes",)
    command += ["-subj", f"/CN={stem.name}", "-addext", f"subjectAltName={alternative}", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    both.write_text(key.read_text() + made.read_text())
    return str(both)
