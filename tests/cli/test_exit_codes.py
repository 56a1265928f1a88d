"""`router run` ends with one sentence and an exit code that says whether a later start may succeed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from router_demo.embedded import find_java

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.spark

CONFIGURATION = (
    "name: games\nlake: ./lake\nsource: {files: {path: ./in}}\ndecode: {json: {schema: 'a int'}}\n"
    "bronze: bronze.all\ndead_letters: ops.dead\nspark: {spark.ui.enabled: false}\n"
)
ENDINGS = {
    "killed at once": "kill -KILL $$",
    "killed with a Spark to come": (
        'FILE="$_PYSPARK_DRIVER_CONN_INFO_PATH"; FOLDER="${FILE%/*}"; '  # PySpark deletes both once it has read them
        '( while [ -d "$FOLDER" ] && [ ! -f "$FILE" ]; do sleep 0.02; done; kill -KILL $$ ) & exec "$REAL" "$@"'
    ),
    "told to end": "kill -TERM $$",
    "ends by itself": "echo 'Error occurred during initialization of VM' >&2; exit 1",
}
"""What a program bin/java does in place of Spark's JVM."""


@pytest.fixture
def java_home(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Make a Java whose JVM of Spark ends in some way; return the environment that names it."""
    real = find_java().resolve()

    def make(ending: str) -> dict[str, str]:
        home = tmp_path / "java"
        (home / "bin").mkdir(parents=True)
        shutil.copy(real.parent.parent / "release", home / "release")
        program = home / "bin" / "java"
        launcher = '*launcher.Main*) exec "$REAL" "$@";;'
        program.write_text(f'#!/bin/sh\nREAL={real}\ncase "$*" in\n  {launcher}\n  *) {ending};;\nesac\n')
        program.chmod(0o755)
        return {**os.environ, "JAVA_HOME": str(home)}

    return make


def run(folder: Path, environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "in").mkdir()
    (folder / "games.yaml").write_text(CONFIGURATION)
    command = [sys.executable, "-m", "router", "run", "--once", "games.yaml", *options]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("ending", "code"), [(name, 2 if name == "ends by itself" else 1) for name in ENDINGS], ids=list(ENDINGS)
)
def test_a_jvm_that_ends_while_spark_starts(
    ending: str, code: int, java_home: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    """Without it a supervisor gives up on a run whose JVM the kernel has killed, or repeats one that cannot start."""
    done = run(tmp_path, java_home(ENDINGS[ending]))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("router: ")


def test_the_last_line_of_json_logs_is_json(java_home: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    """Without it what reads a log by its fields loses the one line that says why the run has ended."""
    done = run(tmp_path, java_home(ENDINGS["killed at once"]), "--json-logs")
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["level"] == "ERROR"
    assert last["exit_code"] == done.returncode == 1
    assert last["message"].startswith("games: ")
