"""`router dead-letters --capture` makes a route test of a dead letter, which passes once the cause is mended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

import router.cli
from router.config.loader import load_config
from router.engine.preflight.route_tests import load_tests
from router.engine.spark import session
from router.engine.stream import run
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CONFIGURATION = """\
name: games
lake: FOLDER/lake
source: {files: {path: FOLDER/in}}
decode: {json: "game string, player string, amount TYPE"}
routes:
  - name: games
    match: {sql: "event.game = 'poker'"}
    expect: [{name: paid, sql: "PAID"}, {name: not_jeremy, sql: "NOT_JEREMY"}]
    sinks: [{tables: "silver.{event.game}"}]
unmatched: drop
trigger: {once: true}
dead_letters: ops.dead
"""
FAULTY = {"TYPE": "int", "PAID": "event.amount > 0", "NOT_JEREMY": "reverse(event.player) <> 'ymerej'"}
MENDED = {"TYPE": "int", "PAID": "true", "NOT_JEREMY": "true"}
EXISTING = """\
# The first tests of this configuration.
tests:
    # Poker only.
    - name: another game
      records: [{value: {game: uno}}]  # dropped
      expect: {}

# The end."""


class Commands:
    """A configuration, its lake, and the commands of the router in its folder."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.spark = spark
        self.file = folder / "games.yaml"
        self.tests = folder / "games.test.yaml"
        (folder / "in").mkdir()

    def configure(self, parts: dict[str, str]) -> None:
        text = CONFIGURATION.replace("FOLDER", str(self.folder))
        for name, part in parts.items():
            text = text.replace(name, part)
        self.file.write_text(text)

    def take(self, *lines: bytes) -> None:
        """Run the stream once over these records."""
        (self.folder / "records.txt").write_bytes(b"\n".join(lines) + b"\n")
        (self.folder / "records.txt").rename(self.folder / "in/records.txt")
        registry = load_registry()
        run(load_config(self.file, registry), registry, self.spark)

    def __call__(self, *arguments: str) -> Result:
        return CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, arguments, prog_name="router")

    def capture(self, reason: str, *options: str) -> Result:
        """Capture the newest record with this reason, by the number that the list gives its group."""
        for group in json.loads(self("dead-letters", "games.yaml", "--json").stdout)["dead_letters"]:
            if reason in group["reason"]:
                return self("dead-letters", "games.yaml", "--capture", str(group["number"]), *options)
        raise AssertionError(reason)

    def passed(self) -> dict[str, bool]:
        """Run the route tests: offset of the record, or name of the case -> whether it passes."""
        cases = json.loads(self("test", "games.test.yaml", "--json").stdout)["cases"]
        return {case["case"].rpartition(" ")[2]: case["passed"] for case in cases}


@pytest.fixture
def commands(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    monkeypatch.chdir(tmp_path)
    return Commands(tmp_path, spark)


def test_a_captured_dead_letter_fails_until_its_cause_is_mended(commands: Commands) -> None:
    """Without it somebody copies a record by hand, with everything in it, and tests it after the next night."""
    commands.configure(FAULTY)
    commands.take(
        b'{"game": "poker", "player": "margarethe", "amount": -4711}',
        b'{"game": "poker", "player": "jeremy", "amount": 5}',
        b"not JSON: sk-live-4eC39HqL",
        b"\xff\xfe not text",
    )
    commands.tests.write_text(EXISTING)

    captured = commands.capture("paid")
    assert captured.exit_code == 0, captured.output
    assert "starts Spark" in captured.stderr
    assert "router test games.test.yaml" in captured.stdout
    assert commands.capture("paid").exit_code == 2  # it is there
    assert commands.capture("not JSON").exit_code == 0

    # What cannot be masked is not written, unless that is wanted.
    for reason in ("not UTF-8", "not_jeremy"):
        before = commands.tests.read_text()
        refused = commands.capture(reason)
        assert refused.exit_code == 2
        assert "--with-values" in refused.stderr
        assert commands.tests.read_text() == before
        assert commands.capture(reason, "--with-values").exit_code == 0

    text = commands.tests.read_text()
    assert text.startswith(EXISTING)
    assert "# stage expect, route games, reason expectation paid does not hold" in text
    assert '"game": "poker"' in text
    for secret in ("margarethe", "4711", "sk-live", "4eC39HqL", str(commands.folder)):
        assert secret not in text
    contents = [case.records[0].content for case in load_tests(commands.tests).tests]
    assert contents[3:] == [b"\xff\xfe not text", b'{"game": "poker", "player": "jeremy", "amount": 5}']

    assert commands.passed() == {"game": True, "0": False, "1": False, "2": False, "3": False}
    commands.configure(MENDED)
    assert commands.passed() == {"game": True, "0": True, "1": True, "2": False, "3": False}

    # It is no dead letter today: a case would test nothing.
    commands.tests.unlink()
    refused = commands.capture("paid")
    assert refused.exit_code == 2
    assert "router replay games.yaml" in refused.stderr
    assert not commands.tests.exists()
    replayed = json.loads(commands("replay", "games.yaml", "--json").stdout)["dead_letters"]
    assert {row["stage"]: (row["dead_letters"], row["taken"]) for row in replayed} == {
        "decode": (2, 0),
        "expect": (2, 2),
    }


@pytest.mark.parametrize(
    "options",
    [["--with-values"], ["--capture", "1", "--json"], ["--capture", "1", "--samples", "2"], ["--capture", "1"]],
    ids=" ".join,
)
def test_options_that_say_nothing_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games.yaml").write_text(CONFIGURATION.replace("TYPE", "int"))

    result = CliRunner().invoke(router.cli.commands, ["dead-letters", "games.yaml", *options], prog_name="router")

    assert result.exit_code == 2
    assert "Usage" in result.stderr
