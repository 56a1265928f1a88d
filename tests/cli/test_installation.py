"""A wheel in an empty environment, far from any checkout: pip takes a tested pair, and what a user does first works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from router.engine.spark.connectors import PAIRS

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800)]

CHECKOUT = Path(__file__).parents[2]
FILES = """
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: "game string, amount double"}
routes:
  - {name: games, match: {sql: "event.game IS NOT NULL"}, sinks: [{tables: "silver.{event.game}"}]}
dead_letters: ops.dead_letters
"""
PROTOBUF = FILES.replace('{json: "game string, amount double"}', "{protobuf: {registry: 'http://127.0.0.1:9'}}")


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and nothing else, and a folder to work in."""

    python: Path
    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python without what the user or the folder would add to its path."""
        environ = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        command = [str(self.python), "-I", *words]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)

    def router(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the router."""
        return self.run("-m", "router", *words)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build a wheel, and install it into an environment of its own as a user would."""
    place = tmp_path_factory.mktemp("installed")
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", str(place), str(CHECKOUT)]
    subprocess.run(wheel, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    found = Installed(place / "venv" / "bin" / "python", place / "work")
    found.folder.joinpath("in").mkdir(parents=True)
    found.folder.joinpath("in", "events.jsonl").write_text('{"game": "uno", "amount": 1}\n{"game": "chess"}\nno json\n')
    done = found.run(*pip, "install", *map(str, place.glob("*.whl")))
    assert done.returncode == 0, done.stdout + done.stderr
    return found


def test_pip_takes_a_tested_pair(installed: Installed) -> None:
    """Without it the first start fails in Spark's own code, or for want of jars."""
    asked = "from importlib.metadata import version as v; print(v('pyspark'), v('delta-spark'))"

    spark, delta = installed.run("-c", asked).stdout.split()

    assert PAIRS[".".join(spark.split(".")[:2])] == delta


def test_a_configuration_is_checked_diagnosed_and_run(installed: Installed) -> None:
    """Without it the README's first three commands fail for everybody but us."""
    (installed.folder / "games.yaml").write_text(FILES)

    checked = installed.router("check", "games.yaml")
    assert checked.returncode == 0, checked.stderr
    diagnosed = installed.router("doctor", "--json", "games.yaml")
    found = {one["subject"]: one for one in json.loads(diagnosed.stdout)}
    assert [one for one in found.values() if one["state"] == "wrong"] == []
    assert "a tested pair" in found["Spark and Delta"]["what"]
    ran = installed.router("run", "games.yaml", "--once")
    assert ran.returncode == 0, ran.stderr

    lake = installed.folder / "lake"
    rows = {table: DeltaTable(lake / table).to_pyarrow_table().num_rows for table in ("silver/uno", "silver/chess")}
    assert rows == {"silver/uno": 1, "silver/chess": 1}
    assert DeltaTable(lake / "ops" / "dead_letters").to_pyarrow_table().num_rows == 1


def test_an_extra_that_is_missing_is_one_sentence(installed: Installed) -> None:
    """Without it a missing module is a traceback of the first batch."""
    (installed.folder / "protobuf.yaml").write_text(PROTOBUF)

    checked = installed.router("check", "protobuf.yaml")

    assert checked.returncode == 1
    (said,) = (checked.stdout + checked.stderr).splitlines()
    assert "pip install 'spark-event-router[protobuf]'" in said
