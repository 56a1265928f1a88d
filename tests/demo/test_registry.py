"""The embedded registry: fetched whole or not at all, unpacked where it belongs, gone with whoever started it."""

from __future__ import annotations

import io
import signal
import tarfile
from typing import TYPE_CHECKING

import psutil
import pytest
import requests

from router import StartError
from router_demo.registry import EmbeddedRegistry, registry_jar, unpack
from tests.demo.server_lives import assert_ends_with_its_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit; fi
echo run >>"{calls}"
for option in "$@"; do case $option in *'[artifact]'*) folder=${{option%/*}};; esac; done
{ending}
cp "{archive}" "$folder/apicurio.tar.gz"
"""
PARENT = """
import signal, time
from router_demo.registry import EmbeddedRegistry
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background passes on that it is ignored
with EmbeddedRegistry() as registry:
    print(registry.url, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def schema_registry() -> Iterator[EmbeddedRegistry]:
    """Run one of its own: these tests take it away."""
    with EmbeddedRegistry() as registry:
        yield registry


def member(name: str, kind: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, linkname
    info.size = 5 if kind == tarfile.REGTYPE else 0
    return info


def archived(path: Path, *members: tarfile.TarInfo) -> Path:
    """Write an archive; every file in it says `hello`."""
    with tarfile.open(path, "w:gz") as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(b"hello") if info.isfile() else None)
    return path


class FakeJava:
    """Write the script that plays the resolver: it hands out an archive made here."""

    def __init__(self, home: Path) -> None:
        self.executable = home / "bin" / "java"
        self.calls = home / "calls"
        self.archive = archived(home / "all.tar.gz", member("lib/a.jar"), member("registry-runner.jar"))
        self.play()

    def play(self, ending: str = "") -> None:
        self.executable.parent.mkdir(exist_ok=True)
        self.executable.write_text(JAVA.format(calls=self.calls, archive=self.archive, ending=ending))
        self.executable.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJava:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return FakeJava(tmp_path)


def test_the_registry_is_fetched_once_and_leaves_no_archive(cache: Path, java: FakeJava) -> None:
    folder = cache / "apicurio-3.0.9"

    assert registry_jar() == registry_jar() == folder / "registry-runner.jar"
    assert (folder / "lib" / "a.jar").read_bytes() == b"hello"
    assert java.runs == 1
    assert sorted(path.name for path in cache.iterdir()) == ["apicurio-3.0.9", "apicurio-3.0.9.lock"]


@pytest.mark.parametrize("ending", ["exit 1", "kill -9 $$", "exit 0"], ids=["failed", "killed", "nothing"])
def test_a_fetch_that_ends_halfway_leaves_nothing_that_looks_complete(cache: Path, java: FakeJava, ending: str) -> None:
    java.play(ending)
    with pytest.raises(StartError, match=r"io\.apicurio:apicurio-registry-app:3\.0\.9"):
        registry_jar()

    assert [path.name for path in cache.iterdir()] == ["apicurio-3.0.9.lock"]
    java.play()
    assert registry_jar().is_file()


@pytest.mark.parametrize(
    "hostile",
    [
        member("../outside"),
        member("lib/../../outside"),
        member("/outside"),
        member("link", tarfile.SYMTYPE, "/"),
        member("link", tarfile.LNKTYPE, "../outside"),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
def test_an_archive_cannot_write_outside_of_its_folder(tmp_path: Path, hostile: tarfile.TarInfo) -> None:
    archive = archived(tmp_path / "all.tar.gz", member("good"), hostile)

    with pytest.raises(StartError, match="nothing is used"):
        unpack(archive, tmp_path / "in" / "here")

    assert {path.name for path in tmp_path.rglob("*")} == {"all.tar.gz", "in", "here", "good"}


def test_a_registry_has_no_address_before_its_start() -> None:
    with pytest.raises(StartError, match="before its start"):
        _ = EmbeddedRegistry().url


def test_a_registry_answers_as_soon_as_it_is_started(schema_registry: EmbeddedRegistry) -> None:
    assert schema_registry.running
    with requests.Session() as session:
        session.trust_env = False
        assert session.get(f"{schema_registry.url}/subjects", timeout=30).status_code == 200


def test_a_registry_that_comes_back_has_its_port_and_its_schemas(schema_registry: EmbeddedRegistry) -> None:
    url = schema_registry.url
    with requests.Session() as session:
        session.trust_env = False
        made = session.post(f"{url}/subjects/kept/versions", json={"schema": '"string"'}, timeout=30).json()
        schema_registry.stop()
        try:
            assert not schema_registry.running
            with pytest.raises(requests.ConnectionError):
                session.get(f"{url}/subjects", timeout=30)
        finally:
            schema_registry.start()

        assert schema_registry.url == url
        assert session.get(f"{url}/schemas/ids/{made['id']}", timeout=30).json()["schema"] == '"string"'


def test_only_this_machine_can_reach_it(schema_registry: EmbeddedRegistry) -> None:
    jar = str(registry_jar())
    process = next(child for child in psutil.Process().children() if jar in child.cmdline())
    listening = [place.laddr.ip for place in process.net_connections() if place.status == psutil.CONN_LISTEN]

    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_registry_ends_with_the_process_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    assert_ends_with_its_parent(PARENT, number, tmp_path)
