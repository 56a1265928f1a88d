"""A person who only does what messages say gets out of a table that lost batches while rows wait for it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]  # up to ten starts of Spark, one after the other

CONFIGURATION = """
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: "COLUMNS"}
bronze: bronze.all
dead_letters: ops.dead
spark: {spark.ui.enabled: false}
routes:
  - name: all
    match: {sql: "true"}
    sinks: [{delta: {table: silver.all, evolution: quarantine}}]
"""
FIRST_COMMANDS = {
    "rebuild": "router rebuild FILE silver.all",
    "run": "router run FILE --once",
    "discard": "router quarantine discard FILE silver.all",
}


def do(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a message; questions are answered with yes."""
    arguments = command.replace("FILE", "games.yaml").split()[1:]
    return subprocess.run(
        [sys.executable, "-m", "router", *arguments],
        cwd=folder, input="y\n", capture_output=True, text=True, check=False,
    )  # fmt: skip


def run_with(folder: Path, columns: str, name: str, *lines: str) -> None:
    (folder / "games.yaml").write_text(CONFIGURATION.replace("COLUMNS", columns))
    (folder / "in" / name).write_text("".join(f"{line}\n" for line in lines))
    done = do(folder, "router run FILE --once")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", FIRST_COMMANDS.values(), ids=FIRST_COMMANDS)
def test_messages_lead_out(tmp_path: Path, first: str) -> None:
    """Without it `rebuild` sends to `run`, that to `rebuild`, and `discard` says that it is done."""
    (tmp_path / "in").mkdir()
    table = tmp_path / "lake/silver/all"
    run_with(tmp_path, "n int", "1.json", '{"n": 1}')
    shutil.copytree(table, tmp_path / "older")
    run_with(tmp_path, "n int, b string", "2.json", '{"n": 2}', '{"n": 3, "b": "x"}')  # the last row waits
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "older", table)

    told: list[str] = []
    commands = [first, "router run FILE --once"]
    while commands and len(told) < 24:
        command = commands.pop(0)
        done = do(tmp_path, command)
        told += [f"$ {command}", (done.stdout + done.stderr).strip()]
        if done.returncode:
            last_line = done.stderr.strip().splitlines()[-1]
            # All that its message names, then once more what failed.
            commands = [*re.findall(r"`(router [^`]+)`", last_line), command, *commands]
    done = do(tmp_path, "router verify FILE")
    assert done.returncode == 0, "\n".join([*told, done.stdout])
    rows = DeltaTable(table).to_pyarrow_table(columns=["n"]).column("n").to_pylist()
    assert sorted(rows) == [1, 2], "\n".join(told)
    assert "will be dead letters" in "\n".join(told)
    (letter,) = DeltaTable(tmp_path / "lake/ops/dead").to_pyarrow_table(columns=["value"]).to_pylist()
    assert letter == {"value": b'{"n": 3, "b": "x"}'}
