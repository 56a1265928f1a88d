"""Rows that would change their table wait in a quarantine until somebody approves, and land exactly once then."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import router.cli
from router.config.loader import load_config
from router.config.models import Route
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore
from router.engine.quarantine import table as quarantine
from router.engine.reprocess import release
from router.engine.stream import run
from router.registry import load_registry
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables
from tests.engine.query import Query, multiset, records
from tests.engine.wider_events import EACH, HUGE, NARROW, OLD, WAYS, WIDE
from tests.kills import ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

WIDER = f"{WIDE}, extra string"
QUARANTINE = "quarantine.games__all__tables"
NEW = [
    {"game": "old", "id": 2},
    {"game": "old", "id": 3, "inner": {"x": 3, "z": "new"}},
    {"game": "old", "id": 4, "rounds": [{"n": 4}, None, {"n": 5, "card": "new"}]},
    {"game": "old", "id": HUGE},
    {"game": "fresh", "id": 5, "bonus": 1.5},
    {"game": "old", "id": 6, "bonus": 0.5},
]


def begun(make_query: MakeQuery, folder: Path, way: str) -> Query:
    """Return a query of which four rows wait."""
    sinks = (Tables(table="silver.{event.game}", evolution="quarantine"), Delta(table="gold.all"))
    route = Route(name="all", match=Sql(where="true"), sinks=sinks)
    query = make_query(folder, decode=Json(schema=NARROW), routes=(route,), **WAYS[way])
    query.take(records([OLD]))
    query = query.restarted(decode=Json(schema=WIDER))
    query.take(records(NEW, first=100))
    return query


def told(query: Query) -> list[quarantine.Quarantined]:
    return quarantine.list_quarantined(query.config, query.lake)


def approve(query: Query) -> None:
    for found in told(query):
        quarantine.write_approval(query.store, found)


@pytest.fixture(scope="module")
def stages(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Let rows wait, approve what they bring, and let more come; say what was there at each stage. Once per way."""

    @cache
    def stages(way: str) -> dict[str, Any]:
        query = begun(make_query, tmp_path_factory.mktemp("waiting"), way)
        waits = {
            "query": query,
            "waiting": query.ids("silver.old"),
            "told": told(query),
            "columns": [column.name for column in query.open("silver.old").schema().fields],
        }
        approve(query)
        query.take(records([{"game": "old", "id": 7, "bonus": 7.5}], first=200))
        waits["approved"] = query.ids("silver.old")
        later = [{"game": "old", "id": 8, "bonus": 8.5}, {"game": "old", "id": 9, "extra": "more"}]
        query.take(records(later, first=300))
        waits["told later"] = told(query)
        approve(query)
        query.take(records([{"game": "old", "id": 10, "extra": "x"}], first=400))
        query.again(len(query.taken) - 1)
        waits["told at the end"] = told(query)
        return waits

    return stages


@pytest.mark.parametrize("way", EACH)
def test_rows_that_fit_land_and_the_others_wait(stages: Callable[[str], dict[str, Any]], way: str) -> None:
    """Without it a new field stops a table's good rows, or gets into it unasked."""
    found = stages(way)

    assert found["waiting"] == [1, 2]
    assert found["columns"] == ["game", "id", "inner", "rounds"]
    assert found["query"].ids("silver.fresh") == [5]
    assert found["query"].letters("stage") == {}


@pytest.mark.parametrize("way", EACH)
def test_what_waits_is_told_before_it_is_approved(stages: Callable[[str], dict[str, Any]], way: str) -> None:
    """Without it somebody approves what nobody has seen."""
    (first,), (later,) = stages(way)["told"], stages(way)["told later"]

    assert (first.place, first.rows, first.quarantine) == (
        quarantine.Place("all", "tables", "silver.old"),
        4,
        QUARANTINE,
    )
    assert {column.name for column in first.change.added} == {"bonus", "inner", "rounds"}
    assert {column.name: column.type for column in first.change.widened} == {"id": pa.int64()}
    assert first.since is not None
    assert (later.rows, [column.name for column in later.change.added]) == (1, ["extra"])
    assert stages(way)["told at the end"] == []


@pytest.mark.parametrize("way", EACH)
def test_approved_rows_land_once_and_new_ones_flow(stages: Callable[[str], dict[str, Any]], way: str) -> None:
    """Without it an approval loses rows, or brings them twice."""
    query = stages(way)["query"]
    rows = {row["id"]: row for row in query.rows("silver.old")}

    assert stages(way)["approved"] == [1, 2, 3, 4, 6, 7, HUGE]  # the last of them came after the approval
    assert query.ids("silver.old") == [1, 2, 3, 4, 6, 7, 8, 9, 10, HUGE]
    assert rows[3]["inner"] == {"x": 3, "z": "new"}
    assert rows[4]["rounds"] == [{"n": 4, "card": None}, None, {"n": 5, "card": "new"}]
    assert (rows[6]["bonus"], rows[8]["bonus"], rows[10]["extra"]) == (0.5, 8.5, "x")
    assert rows[2]["bonus"] is None


@pytest.mark.parametrize("way", EACH)
def test_the_ledger_says_what_waits_and_what_was_released(stages: Callable[[str], dict[str, Any]], way: str) -> None:
    """Without it a row that waits is a row that is missing."""
    query = stages(way)["query"]
    mine = [row for row in query.rows("ops.ledger") if row["sink"] == "tables"]
    sums = {name: sum(row[name] or 0 for row in mine) for name in ("matched", "landed", "quarantined", "released")}

    assert sums == {"matched": 11, "landed": 4, "quarantined": 7, "released": 7}
    assert [row["released"] for row in mine if row["released"]] in ([5, 2], [2, 5])
    assert [report.routes["all"]["quarantined"] for report in query.reports] == [0, 4, 1, 1, 1]
    assert len(query.rows("silver.old")) + len(query.rows("silver.fresh")) == sums["landed"] + sums["released"]


@pytest.mark.parametrize("way", EACH[1:])
def test_all_ways_make_the_same_tables(stages: Callable[[str], dict[str, Any]], way: str) -> None:
    """Without it a change of the engine changes who waits."""
    one, other = stages("auto")["query"], stages(way)["query"]
    for table in ("silver.old", "silver.fresh", "gold.all", "ops.ledger", QUARANTINE):
        assert multiset(one, table) == multiset(other, table), table


def killed(*_: Any, **__: Any) -> None:
    raise ProcessKilled


STEPS = {
    "before it is decided": (release, "write_pending"),
    "before the rows are in": (release._ReleasedRows, "commit"),
    "when the rows are in": (ledger, "append"),
    "when the ledger has it": (release._ReleasedRows, "delete"),
    "when they are in the quarantine no more": (CheckpointStore, "delete"),
}


@pytest.mark.parametrize("way", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_release_that_is_killed_again_and_again_is_done_once(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Without it rows that waited are lost, or twice in their table, after a crash."""
    query = begun(make_query, tmp_path, way)
    approve(query)
    for where, (owner, name) in STEPS.items():
        again = query.restarted().batches.destination.release
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, killed)
            with pytest.raises(ProcessKilled):
                again.idle()
        assert len(quarantine.pending_releases(query.store)) == 1, where
    query = query.restarted()
    query.again(1)

    assert quarantine.pending_releases(query.store) == []
    assert query.ids("silver.old") == [1, 2, 3, 4, 6, HUGE]
    assert [row["released"] for row in query.rows("ops.ledger") if row["released"]] == [4]
    assert told(query) == []


@pytest.mark.parametrize("way", EACH)
def test_nothing_is_released_while_a_batch_is_half_done(make_query: MakeQuery, tmp_path: Path, way: str) -> None:
    """Without it the rows of a batch that was cut off find a table that has grown meanwhile, and are taken for done."""

    def stop(batch: int, step: str, done: int, of: int) -> None:
        if (batch, step, done) == (2, "commit", 0):
            raise ProcessKilled

    query = begun(make_query, tmp_path, way)
    approve(query)
    query.batches.watch = stop
    with pytest.raises(ProcessKilled):
        query.take(records([{"game": "old", "id": 7, "bonus": 7.5}], first=200))
    query = query.restarted()
    query.store.checkpoint.write("spark/metadata", b'{"id": "run-1"}')

    assert query.batches.destination.release.idle() == set()
    query.again(2)
    assert query.ids("silver.old") == [1, 2, 3, 4, 6, 7, HUGE]


YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "{schema}"}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks: [{{delta: {{table: silver.all, evolution: quarantine}}}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""


def test_an_approval_is_carried_out_at_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    """Without it rows wait on where nothing new comes."""
    registry, config = load_registry(), tmp_path / "games.yaml"
    (tmp_path / "in").mkdir()

    def start(schema: str, *lines: str) -> list[Any]:
        for line in lines:
            (tmp_path / "in" / f"{len(list((tmp_path / 'in').iterdir()))}.txt").write_text(line)
        config.write_text(YAML.format(folder=tmp_path, schema=schema))
        return run(load_config(config, registry, environ={}), registry, spark)

    def command(*arguments: str, of: tuple[str, ...] = ("quarantine", "approve")) -> str:
        result = CliRunner().invoke(router.cli.commands, [*of, str(config), *arguments])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    start("n int", '{"n": 1}')
    start("n int, b string", '{"n": 2, "b": "x"}')
    shown = command("--show")
    assert "silver.all" in shown
    assert "b string" in shown
    assert command("silver.other") == "no rows of games wait for silver.other"
    assert "approved: silver.all, 1 rows of all" in command("--route", "all")
    assert "(approved)" in command("--show")
    document = json.loads(command("--json"))
    assert [(row["table"], row["reason"]) for row in document["quarantined"]] == [("silver.all", ["b string"])]
    decided = {"table": "silver.all", "route": "all", "sink": "delta", "rows": 1, "decision": "approved"}
    assert document["decided"] == [decided]
    assert json.loads(command("--json", "--show"))["decided"] == []

    assert start("n int, b string") == []
    table = quarantine.Place("all", "delta", "silver.all")
    lake = Query(load_config(config, registry, environ={}).config, spark).lake
    assert lake.open(table.table).to_pyarrow_table().sort_by("n").to_pylist() == [
        {"n": 1, "b": None},
        {"n": 2, "b": "x"},
    ]
    assert command() == "no rows of games wait"

    log = max((Path(lake.address("silver.all")) / "_delta_log").glob("*.json"))
    log.write_bytes(b"")
    start("n int, b string", '{"n": 3}')
    assert "is empty" in command(of=("quarantine", "list"))
    assert "tried next: silver.all, 1 rows" in command(of=("quarantine", "release"))
    assert "will be dead letters: silver.all, 1 rows of all" in command("--yes", of=("quarantine", "discard"))
    assert "tried next: silver.all, 1 rows" in command(of=("quarantine", "release"))
    document = json.loads(command("--json", of=("quarantine", "release")))
    assert [row["decision"] for row in document["decided"]] == ["tried next"]
    result = CliRunner().invoke(router.cli.commands, ["quarantine", "discard", str(config), "--json"])
    assert result.exit_code == 2
    assert "needs --yes" in result.output
    document = json.loads(command("--yes", "--json", of=("quarantine", "discard")))
    assert [row["decision"] for row in document["decided"]] == ["will be dead letters"]
    start("n int, b string")
    assert command(of=("quarantine", "list")) == "no rows of games wait"
    assert lake.open("ops.dead").to_pyarrow_table(columns=["value"]).to_pylist() == [{"value": b'{"n":3}'}]
