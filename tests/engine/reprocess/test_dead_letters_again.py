"""`router replay`: dead letters of any stage go through today's configuration, each once."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, write_deltalake

import router.cli
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine import ledger
from router.engine.audit.verify import verify_tables
from router.engine.label.layout import DEAD_SCHEMA
from router.engine.spark import session
from router.engine.start.run_lock import hold_file_lock, hold_run_lock
from router.engine.stream import run
from router.registry import load_registry
from tests.kills import ProcessKilled
from tests.lake_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in, files_per_batch: 1}}}}
decode: {{json: "{columns}"}}
bronze: bronze.all
routes:
  - name: all
    match: {{sql: "event.n IS NOT NULL"}}
    select: ["event.n", "event.name"]
    expect: [{{name: small, sql: "{expectation}"}}]
    sinks: [{{tables: {{table: "{table}"}}}}, {{upsert: {{table: silver.newest, keys: [name]}}}}, {{flock: "{folder}"}}]
  - name: high
    match: {{sql: "event.n >= 0"}}
    select: ["event.n", "event.name"]
    sinks: [{{delta: silver.high}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""
FLOCK = """\
import json
from pathlib import Path
from router import ApplyingSink, Outcome, hookimpl
from pyspark.sql import functions as F

class Flock(ApplyingSink):
    main_option = "loft"
    loft: str
    def apply(self, events, batch):
        bad = [int(n) for n in (Path(self.loft) / "refuses").read_text().split()]
        good = events.filter(~F.col("n").isin(bad))
        with (Path(self.loft) / "flown").open("a") as loft:
            for row in good.collect():
                loft.write(f"{row['n']} {batch.resending is not None}\\n")
        refused = events.filter(F.col("n").isin(bad)).withColumn("reason", F.lit("tired"))
        return Outcome(good.count(), refused)

@hookimpl
def router_sinks():
    return {"flock": Flock}
"""


class Stages:
    """A lake whose configuration refuses records at every stage, until it is mended."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark = folder, spark
        self.lake = Lake.at(f"{folder}/lake")
        self.file, self.plugin = folder / "games.yaml", folder / "flock.py"
        self.plugin.write_text(FLOCK)
        (folder / "in").mkdir()
        self.says()
        self.refuses()

    def says(self, m: str = "int", expectation: str = "true", table: str = "silver.{event.game}") -> None:
        """Write the configuration."""
        columns = f"n int, name string, game string, m {m}"
        about = {"columns": columns, "expectation": expectation, "table": table}
        self.file.write_text(YAML.format(folder=self.folder, **about))

    def refuses(self, *numbers: int) -> None:
        """Let the birds refuse events."""
        (self.folder / "refuses").write_text(" ".join(map(str, numbers)))

    def takes(self, *lines: str) -> None:
        """Let a file of records come, and a run take it."""
        name = f"{time.time_ns()}.json"
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))
        (self.folder / name).rename(self.folder / "in" / name)
        registry = load_registry([self.plugin])
        run(load_config(self.file, registry, environ={}), registry, self.spark)

    def replay(self, *arguments: str) -> Result:
        """Run the command, in a terminal that is wide enough."""
        command = ["replay", str(self.file), "--plugin", str(self.plugin), *arguments]
        return CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, command, prog_name="router")

    def rows(self, table: str) -> list[dict[str, Any]]:
        return read_rows(self.lake, table)

    def numbers(self, table: str) -> Counter[int]:
        return Counter(row["n"] for row in self.rows(table))

    def flown(self) -> Counter[str]:
        path = self.folder / "flown"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    def open_letters(self) -> Counter[str]:
        """Return the stages of dead letters that no replay took."""
        return Counter(row["stage"] for row in self.rows("ops.dead") if not row.get("replayed"))

    def state(self) -> dict[str, list[str]]:
        tables = [table for layer in self.lake.layer_names() for table in self.lake.table_names(layer)]
        found = {table: sorted(map(repr, self.rows(table))) for table in tables}
        return {**found, "flown": sorted(self.flown().elements())}

    def check_balance(self) -> None:
        """Hold the sums of the ledger against the tables."""
        sums: dict[str, Counter[str]] = {}
        for row in self.rows("ops.ledger"):
            key = f"{row['route']}/{row['sink']}" if row["route"] else "source"
            counts = {name: value for name, value in row.items() if isinstance(value, int) and name not in PLACES}
            sums.setdefault(key, Counter()).update(counts)
        source = sums.pop("source")
        assert source["read"] == source["decoded"] + source["failed"] + source["bare"] == len(self.rows("bronze.all"))
        for key, of in sums.items():
            assert of["matched"] == of["landed"] + of["refused"] + of["dropped"] + of["quarantined"], key
        assert sums["all/flock"]["landed"] == sums["all/flock"]["applied"] + sums["all/flock"]["dead"]
        assert sums["all/flock"]["applied"] == self.flown().total()
        assert sums["high/delta"]["landed"] == len(self.rows("silver.high"))
        config = load_config(self.file, load_registry([self.plugin]), environ={}).config
        assert [audit.table for audit in verify_tables(config) if audit.problems] == []


PLACES = ("batch_id", "partition", "from_offset", "to_offset")


@pytest.fixture
def stages(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Stages:
    """Return an empty lake, and commands that use the Spark of the tests."""
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    return Stages(tmp_path, spark)


def shown(result: Result) -> list[list[str]]:
    return [line.split() for line in result.output.splitlines() if line.split()[:1] and line.split()[0] in STAGES]


def test_dead_letters_of_another_query_are_left_alone(stages: Stages) -> None:
    """Without it a query decodes what another one could not, and fills its own tables with it."""
    folder = stages.folder / "lake" / "ops" / "dead"
    notes = CommitProperties(custom_metadata={"router.query": "others:run-1", "router.batch": "0"})
    write_deltalake(str(folder), DEAD_SCHEMA.empty_table(), commit_properties=notes)

    refused = stages.replay()

    assert refused.exit_code == 2
    assert "ops.dead also has dead letters of others" in refused.output

    write_deltalake(
        str(stages.folder / "lake" / "ops" / "ledger"),
        pa.Table.from_pylist([{"query": "others", "route": "all"}, {"query": "games", "route": "high"}], ledger.SCHEMA),
    )
    refused = stages.replay("--route", "all")
    assert refused.exit_code == 2
    assert "all is a route of theirs also" in refused.output
    assert stages.replay("--route", "high").exit_code == 0


def test_tables_that_depend_on_the_order_of_records_are_named_first(stages: Stages) -> None:
    """Without it a replay leaves rows that a computation over all records would not, and nobody is told."""

    def flag_deletions() -> None:
        plain = "{upsert: {table: silver.newest, keys: [name]}}"
        flagged = "{upsert: {table: silver.newest, keys: [name], soft_delete: gone}}"
        text = stages.file.read_text()
        assert plain in text
        stages.file.write_text(text.replace(plain, flagged))

    flag_deletions()
    stages.takes('{"n": 1, "name": "a", "game": "uno", "m": "text"}')
    stages.says(m="string")
    flag_deletions()
    before = stages.state()

    refused = stages.replay("--send")
    assert refused.exit_code != 0
    assert all(word in refused.output for word in ("silver.newest", "--accept other-order", "rebuild"))
    assert stages.state() == before
    assert stages.replay("--send", "--accept", "other-order").exit_code == 0
    assert stages.numbers("silver.newest") == Counter([1])


STAGES = ("decode", "match", "expect", "name", "schema", "apply")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_dead_letters_of_each_stage_land_once_whatever_kills_the_replay(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it whoever mends a rule fills the tables by hand, and has some rows twice and others never."""
    stages.refuses(3)
    stages.says("int", "event.n < 5", "silver.{event.name}")
    names = ["all", "all", "all", "all", "no name!", "all", "all", "all"]
    stages.takes(*(json.dumps({"n": n, "name": name, "game": "all"}) for n, name in enumerate(names)), "garbage")
    stages.takes('{"m": -1}', '{"n": 9, "name": "all", "game": "all", "m": "text"}')
    assert stages.open_letters() == {"decode": 2, "match": 1, "expect": 3, "name": 1, "apply": 1}
    stages.refuses()
    stages.says("string", "event.n <> 7")
    before = stages.state()

    dry = stages.replay()

    assert dry.exit_code == 0, dry.output
    assert stages.state() == before
    assert [row[0] for row in shown(dry)] == ["apply", "decode", "expect", "match", "name"]
    steps = ("_commit_tables", "_quarantine_failed", "follow")
    for step in (*steps, "mark"):
        with monkeypatch.context() as patch:
            _kill_after(patch, step)
            with pytest.raises(ProcessKilled):
                raise stages.replay("--send").exception  # type: ignore[misc]

    sent = stages.replay("--send")

    assert sent.exit_code == 0, sent.output
    assert "was cut off" in sent.output
    assert stages.open_letters() == {"decode": 1, "match": 1, "expect": 1}
    assert stages.numbers("silver.all") == Counter([0, 1, 2, 3, 4, 5, 6, 9])
    assert stages.numbers("silver.high") == Counter([*range(8), 9])
    assert stages.numbers("silver.newest") == Counter([9, 4])  # 9 came last
    assert set(stages.flown()) >= {"0 False", "4 False", "3 True", "5 True", "6 True", "9 True"}
    again = stages.state()
    assert stages.replay("--send", "--stage", "name", "--stage", "apply").output.count("nothing to send") == 1
    assert stages.replay("--send").exit_code == 0
    assert {name: rows for name, rows in stages.state().items() if name != "ops.ledger"} == {
        name: rows for name, rows in again.items() if name != "ops.ledger"
    }
    stages.check_balance()


def _kill_after(patch: pytest.MonkeyPatch, step: str) -> None:
    import router.engine.reprocess.replay as module

    owner, name = module.Batches, step
    if step == "follow":
        owner = module.ReplayDestination
    elif step == "mark":
        owner, name = module, "mark_replayed"
    whole = getattr(owner, name)

    def killed(*given: Any, **named: Any) -> None:
        whole(*given, **named)
        raise ProcessKilled

    patch.setattr(owner, name, killed)


def test_a_dead_letter_lands_once_and_replays_and_a_stream_are_kept_apart(stages: Stages) -> None:
    """Without it two people who see the same alarm send all rows twice."""
    stages.takes('{"n": 1, "name": "all", "game": "all", "m": "text"}', "garbage")
    stages.says("string")
    checkpoint = Lake.at(f"{stages.folder}/lake/_router/games")

    with hold_file_lock(checkpoint, "replays/lock", "busy"):
        busy = stages.replay("--send")
    with hold_run_lock(checkpoint, "games"):
        running = stages.replay("--send")
        looked = stages.replay()

    assert (busy.exit_code, "another replay of games is at work" in busy.output) == (2, True)
    assert (running.exit_code, "games is running" in running.output) == (2, True)
    assert looked.exit_code == 0
    assert [row[:3] for row in shown(looked)] == [["decode", "2", "1"]]
    assert stages.open_letters() == {"decode": 2}
    sent = stages.replay("--send")
    assert sent.exit_code == 0, sent.output
    assert stages.open_letters() == {"decode": 1}
    assert [[*stages.numbers(f"silver.{table}")] for table in ("all", "high", "newest")] == [[1]] * 3
    assert stages.flown() == {"1 True": 1}
    stages.check_balance()
