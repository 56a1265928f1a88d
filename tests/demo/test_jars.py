"""The fetched jars: complete or absent, whatever happens on the way. A script plays Java, so nothing is fetched."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from router import StartError
from router_demo.embedded import find_java, java_version
from router_demo.kafka import kafka_jars

if TYPE_CHECKING:
    from pathlib import Path

JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}"' >&2; exit; fi
echo run >>"{calls}"
for option in "$@"; do case $option in *'[artifact]'*) folder=${{option%/*}};; esac; done
mkdir -p "$folder" && touch "$folder/first.jar" && sleep 0.3
{ending}
touch "$folder/second.jar"
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJava:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return FakeJava(tmp_path)


class FakeJava:
    """Write the script that plays Java, and count the runs of the resolver."""

    def __init__(self, home: Path) -> None:
        self.executable = home / "bin" / "java"
        self.calls = home / "calls"
        self.play()

    def play(self, *, version: str = "17.0.1", ending: str = "") -> None:
        self.executable.parent.mkdir(exist_ok=True)
        self.executable.write_text(JAVA.format(version=version, calls=self.calls, ending=ending))
        self.executable.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


def test_jars_are_fetched_once(cache: Path, java: FakeJava) -> None:
    assert kafka_jars() == kafka_jars() == cache / "kafka-4.1.1"
    assert {jar.name for jar in kafka_jars().iterdir()} == {"first.jar", "second.jar"}
    assert java.runs == 1


@pytest.mark.parametrize("ending", ["exit 1", "kill -9 $$"], ids=["failed", "killed"])
def test_a_fetch_that_ends_halfway_leaves_nothing_that_looks_complete(cache: Path, java: FakeJava, ending: str) -> None:
    java.play(ending=ending)
    with pytest.raises(StartError, match=r"kafka_2\.13:4\.1\.1"):
        kafka_jars()
    assert [path.name for path in cache.iterdir()] == ["kafka-4.1.1.lock"]
    java.play()
    assert len(list(kafka_jars().iterdir())) == 2


def test_what_a_killed_process_left_is_removed(cache: Path, java: FakeJava) -> None:
    left = cache / "kafka-4.1.1.part-left"
    left.mkdir(parents=True)
    kafka_jars()
    assert not left.exists()


def test_two_processes_at_once_fetch_once(cache: Path, java: FakeJava) -> None:
    command = [
        sys.executable,
        "-c",
        "from router_demo.kafka import kafka_jars; print(len(list(kafka_jars().iterdir())))",
    ]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in both] == ["2", "2"]
    assert java.runs == 1


@pytest.mark.parametrize(
    ("said", "version"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_402", 8), ("next", 0)],
    ids=str,
)
def test_versions_of_java_are_read(java: FakeJava, said: str, version: int) -> None:
    java.play(version=said)
    assert java_version(str(java.executable)) == version


def test_an_old_java_is_refused(java: FakeJava) -> None:
    java.play(version="11.0.2")
    with pytest.raises(StartError, match="version 11"):
        find_java()


def test_a_missing_java_is_said_with_the_place_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(StartError, match="nowhere"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match="PATH"):
        find_java()
