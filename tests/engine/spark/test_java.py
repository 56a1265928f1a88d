"""A Java that Spark cannot run on is named in one sentence before anything is started, by whoever starts Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from router.engine.spark import java
from router.engine.spark.java import VECTOR, find_java

if TYPE_CHECKING:
    from pathlib import Path


def program(home: Path, version: str, *, vector: bool = True) -> Path:
    """Write a Java that says its version as real ones do, and does nothing else."""
    (home / "bin").mkdir(parents=True)
    path = home / "bin" / "java"
    refused = "" if vector else f'case "$*" in *{VECTOR}*) echo "Module {VECTOR} not found" >&2; exit 1;; esac\n'
    path.write_text(f"#!/bin/sh\n{refused}echo 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["17.0.15", "21.0.3", "17"])
def test_a_java_that_fits_has_no_fault(tmp_path: Path, version: str) -> None:
    program(tmp_path, version)
    found = find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert (found.version, found.fault) == (version, "")


@pytest.mark.parametrize(
    ("version", "says"), [("1.8.0_402", "needs 17 or 21"), ("11.0.2", "needs 17 or 21"), ("30.0.1", "too new")]
)
def test_a_java_of_another_age_is_named_with_what_to_install(tmp_path: Path, version: str, says: str) -> None:
    path = program(tmp_path, version)
    found = find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert says in found.fault
    assert version in found.fault
    assert str(path) in found.fault
    assert "17 or 21" in found.todo


def test_java_25_is_too_new_below_spark_4_2() -> None:
    assert java.newest_java("4.0.0") < 24
    assert java.newest_java("4.1.1") < 24


def test_a_file_release_is_believed_without_a_start(tmp_path: Path) -> None:
    program(tmp_path, "17.0.1").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "release").write_text(f'JAVA_VERSION="25.0.1"\nMODULES="java.base {VECTOR}"\n')
    assert "25.0.1" in find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).version


def test_a_java_without_the_vector_module_is_named(tmp_path: Path) -> None:
    program(tmp_path, "17.0.15", vector=False)
    assert VECTOR in find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).fault


def test_a_program_that_is_no_java_is_named(tmp_path: Path) -> None:
    program(tmp_path, "x").write_text("#!/bin/sh\necho nonsense\n")
    assert "nonsense" in find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).fault


def test_a_wrong_java_home_is_named_though_there_is_a_java_on_the_path(tmp_path: Path) -> None:
    """Spark's launcher takes JAVA_HOME alone where it is set."""
    program(tmp_path / "good", "17.0.15")
    found = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "good" / "bin")})
    assert str(tmp_path / "gone") in found.fault


def test_no_java_at_all_says_what_to_install(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert not found.program
    assert "apt-get install" in found.todo


def test_the_packaged_runtime_serves_where_there_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody without the right to install Java can try the router."""
    package = tmp_path / "site" / java.PACKAGE
    version = f"{java.newest_java()}.0.2"
    program(package / "java-runtime", version, vector=False)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("ROUTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("JAVA_HOME", "")

    provided = java.provide_java()

    assert (provided.version, provided.fault) == (version, "")
    assert java.is_packaged(provided.program)
    # Spark's launcher adds the module to every JVM; the runtime refuses to start with it.
    started = subprocess.run(
        [provided.program, f"--add-modules={VECTOR}", "-version"], capture_output=True, text=True, check=False
    )
    assert started.returncode == 0
    assert version in started.stderr


def test_a_java_home_of_the_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it somebody runs with another Java than the one that the environment names."""
    (tmp_path / "site" / java.PACKAGE).mkdir(parents=True)
    (tmp_path / "site" / java.PACKAGE / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))

    assert str(tmp_path / "gone") in java.provide_java().fault
    assert os.environ["JAVA_HOME"] == str(tmp_path / "gone")


TEXT = """name: x
lake: ./lake
bronze: bronze.b
source: {kafka: {servers: '127.0.0.1:9', topics: [t]}}
decode: {json: "a string"}
dead_letters: ops.dead
"""


@pytest.mark.parametrize(
    ("home", "command"),
    [("none", "run --once"), ("wrong", "run --once"), ("new", "run --once"), ("new", "check --plan"), ("new", "bench")],
)
def test_commands_that_start_spark_say_it_in_one_sentence(tmp_path: Path, home: str, command: str) -> None:
    """Without it there are 45 to 194 lines of tracebacks."""
    environ = {**os.environ, "PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path / "gone")}
    if home == "new":
        program(tmp_path / "new", "30")
        environ["JAVA_HOME"] = str(tmp_path / "new")
    if home == "none":
        (tmp_path / "bin").mkdir()
        environ |= {"PATH": str(tmp_path / "bin"), "JAVA_HOME": ""}
    (tmp_path / "x.yaml").write_text(TEXT)
    line = [sys.executable, "-m", "router", *command.split(), "x.yaml"]
    ended = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    lines = [one for one in ended.stderr.splitlines() if one.startswith("router: ")]
    assert len(lines) == 1, ended.stderr
    assert len((ended.stdout + ended.stderr).splitlines()) == 1, ended.stderr
    assert "Java" in lines[0]
