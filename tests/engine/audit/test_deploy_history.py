"""What ran when is kept, and `router history` says what each change changed, and what became of the records."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from router import read
from router.cli import commands
from router.config.loader import load_config
from router.delta.history import log_versions
from router.delta.kept_versions import kept_versions
from router.delta.lake import Lake
from router.delta.maintenance import MaintenanceOptions, maintain_table
from router.engine.audit.deploy_history import deploys_of
from router.engine.stream import run
from router.registry import load_registry
from router_demo.api import Api, Failure
from tests.kills import CrashError
from tests.lake_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result
    from pyspark.sql import SparkSession

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int, game string"}}
routes:
  - name: all
    match: {{sql: "event.n >= {least}"}}
    sinks: [{{tables: "silver.{{event.game}}"}}]
trigger: {{once: true}}
unmatched: dead_letters
dead_letters: ops.dead
"""


class Deployed:
    """A configuration that is changed and run."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark = folder, spark
        self.file = folder / "games.yaml"
        (folder / "in").mkdir()

    def runs(self, text: str, *numbers: int) -> None:
        self.file.write_text(text)
        lines = [json.dumps({"n": n, "game": "uno"}) for n in numbers]
        number = len([*(self.folder / "in").iterdir()])
        (self.folder / "in" / f"{number}.json").write_text("\n".join([*lines, "no JSON"]))
        registry = load_registry()
        run(load_config(self.file, registry, environ={}), registry, self.spark)

    def text(self, least: int) -> str:
        return YAML.format(folder=self.folder, least=least)

    def command(self, name: str, *arguments: str) -> Result:
        return CliRunner(env={"COLUMNS": "200"}).invoke(commands, [name, str(self.file), *arguments])

    def history(self, *arguments: str) -> Result:
        return self.command("history", *arguments)

    def facts(self) -> list[dict[str, Any]]:
        shown = self.history("--json")
        assert shown.exit_code == 0, shown.output
        return list(json.loads(shown.stdout)["deploys"])


@pytest.fixture
def deployed(tmp_path: Path, spark: SparkSession) -> Deployed:
    return Deployed(tmp_path, spark)


def test_each_deploy_has_its_batches_changes_and_counts(deployed: Deployed) -> None:
    """Without it nobody knows which change made the dead letters."""
    deployed.runs(deployed.text(0), 1, 2, 3)
    deployed.runs(f"# a remark\n{deployed.text(0)}", 4)
    deployed.runs(deployed.text(5), 4, 5, 6, 7)
    deployed.runs(deployed.text(0), 1)

    first, second, third = deployed.facts()

    assert [(deploy["batch"], deploy["last"]) for deploy in (first, second, third)] == [(0, 1), (2, 2), (3, 3)]
    assert [(deploy["read"], deploy["landed"]) for deploy in (first, second, third)] == [(6, 4), (5, 3), (2, 1)]
    assert first["changes"] == []
    assert second["changes"] == ["routes.all.match.sql: event.n >= 5, was event.n >= 0"]
    letters = [
        {group["stage"]: group["count"] for group in deploy["dead_letters"]} for deploy in (first, second, third)
    ]
    assert letters == [{"decode": 2}, {"decode": 1, "match": 1}, {"decode": 1}]
    assert first["configuration"] == third["configuration"] != second["configuration"]
    assert all(deploy["versions"][0].startswith("router ") and deploy["host"] for deploy in (first, second, third))


def test_texts_are_shown_and_written(deployed: Deployed) -> None:
    deployed.runs(deployed.text(0), 1)
    deployed.runs(deployed.text(5), 1)

    difference = deployed.history("--diff", "1", "2").output.splitlines()
    written = deployed.history("--write", "1")
    again = deployed.history("--write", "1")
    listed = deployed.history().output

    assert [line for line in difference if line[0] in "+-"] == [
        "--- deploy 1",
        "+++ deploy 2",
        '-    match: {sql: "event.n >= 0"}',
        '+    match: {sql: "event.n >= 5"}',
    ]
    assert written.exit_code == 0
    assert (deployed.folder / "games.1.yaml").read_text() == deployed.text(0)
    assert again.exit_code == 2
    assert "File exists" in again.output
    assert deployed.history("--diff", "1", "7").exit_code == 2
    assert "routes.all.match.sql: event.n >= 5, was event.n >= 0" in listed
    assert "50.00%" in listed


def test_a_damaged_note_stops_nothing(deployed: Deployed) -> None:
    """Without it a file that nobody needs keeps a stream from its start."""
    deployed.runs(deployed.text(0), 1)
    (note,) = (deployed.folder / "lake").rglob("deploys/*/*.json.zlib")
    note.write_bytes(note.read_bytes()[:40])

    deployed.runs(deployed.text(0), 2)

    (deploy,) = deployed.facts()
    assert (deploy["batch"], deploy["last"]) == (1, 1)


def test_a_note_that_cannot_be_written_stops_nothing(deployed: Deployed) -> None:
    """Without it a folder without rights keeps a changed configuration from running."""
    deployed.runs(deployed.text(0), 1)
    notes = deployed.folder / "lake" / "_router" / "games" / "store" / "deploys"
    shutil.rmtree(notes)
    notes.write_text("no folder")

    deployed.runs(deployed.text(5), 7)

    lake = Lake.at(f"{deployed.folder}/lake")
    assert sorted(row["n"] for row in read_rows(lake, "silver.uno")) == [1, 7]


def test_what_sinks_were_refused_counts(deployed: Deployed) -> None:
    """Without it a deploy that an API refuses looks as good as the one before."""
    with Api(failures=[Failure(status=400)]) as api:
        text = deployed.text(0).replace("sinks: [", f'sinks: [{{rest: "{api.url}/refused"}}, ')
        deployed.runs(deployed.text(0), 1)
        deployed.runs(text, 2, 3)

    first, second = deployed.facts()

    assert (first["dead"], second["dead"]) == (0, 2)
    assert "sinks were refused" in deployed.history().output
    assert "100.00%" in deployed.history().output


def test_a_batch_that_was_cut_off_is_of_the_deploy_that_decided_it(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it rows of the former configuration are counted as those of the new one."""
    deployed.runs(deployed.text(0), 1)

    def crash(*arguments: Any, **options: Any) -> None:
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr("router.engine.ledger.append", crash)
        with pytest.raises(CrashError):
            deployed.runs(deployed.text(0), 2)
    deployed.runs(deployed.text(5), 7)

    first, second = deployed.facts()
    assert (first["batch"], first["last"], first["landed"]) == (0, 1, 2)
    assert (second["batch"], second["last"], second["landed"]) == (2, 2, 1)


def test_a_comparison_with_other_versions_is_refused(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a difference that an upgrade makes is taken for one of the configuration."""
    with monkeypatch.context() as patched:
        patched.setattr("router.registry.router_version", lambda: "0.0.1")
        deployed.runs(deployed.text(0), 1)
    deployed.runs(deployed.text(5), 1)
    old = deployed.folder / "old.yaml"
    old.write_text(deployed.text(0))

    refused = CliRunner().invoke(commands, ["preview", str(deployed.file), "--against", str(old)])

    assert refused.exit_code == 2
    assert "old.yaml has run with router 0.0.1, and here is router " in refused.output
    changes = deployed.facts()[1]["changes"]
    assert [change for change in changes if "router" in change][1] == "router 0.0.1: gone"


def test_nothing_has_run(deployed: Deployed) -> None:
    deployed.file.write_text(deployed.text(0))

    assert deployed.history().exit_code == 2
    assert deployed.facts() == []
    assert deploys_of(load_config(deployed.file, load_registry(), environ={}).config) == []


def test_every_table_can_be_read_as_it_was_before_a_deploy(deployed: Deployed) -> None:
    """Without it what a bad deploy did to a table is known for as long as its log is, which is an hour at worst."""
    deployed.runs(deployed.text(least=0), 1, 2)
    deployed.runs(deployed.text(least=1), 3)
    lake = Lake.at(str(deployed.folder / "lake"))
    found = deployed.command("maintain")
    assert found.exit_code == 0, found.output
    deployed.runs(deployed.text(least=1), 4, 5)
    for table in lake.every_table():
        maintain_table(lake, table, MaintenanceOptions(log_commits=0, log_retention=timedelta(0)))
    assert log_versions(lake, "silver.uno")[0] > 0

    before = deployed.command("tables", "--as-of", "0", "--json")
    rows = {row["table"]: (row["version"], row["rows"]) for row in json.loads(before.output)["tables"]}
    assert before.exit_code == 0, before.output
    assert rows["silver.uno"] == (0, 2)
    assert rows["ops.dead"] == (0, 1)
    assert sorted(row.n for row in read("silver.*", lake=lake.root, as_of={"games": 0}).collect()) == [1, 2]
    after = deployed.command("tables", "--as-of", "1", "--json")
    assert after.exit_code == 1
    assert "its log begins with version" in after.output

    assert "versions before deploys have" in deployed.command("status").output
    assert "of files of their own, for `history: {keep: 7 d}`" in deployed.command("doctor").output
    deployed.file.write_text(deployed.text(least=1) + "history: {keep: 1 ms}\n")
    deployed.command("maintain")
    assert list(kept_versions(lake, "silver.uno")) == []
