"""What waits is told from the tables alone, whoever has done what to them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, Transaction, write_deltalake

import router.cli
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore
from router.engine.quarantine.table import Place, list_quarantined, pending_releases
from tests.configurations import write_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.config.models import Config

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: in}}}}
decode: {{json: "n int"}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks: [{{tables: {{table: "silver.{{event.game}}", evolution: quarantine}}}}]
dead_letters: ops.dead
"""
QUARANTINE = "quarantine.games__all__tables"
UNO = Place("all", "tables", "silver.uno")
RUN = "games:run-1"
TIME = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return write_config(tmp_path, YAML.format(folder=tmp_path))


@pytest.fixture
def wait(config: Config) -> Callable[..., None]:
    """Append rows to the quarantine, as a batch does; the columns are those of the first row."""

    def wait(batch: int, *rows: dict[str, Any], table: str = "silver.uno", query: str = RUN) -> None:
        about = {"_table": table, "_query": query, "_batch_id": batch, "_timestamp": TIME.replace(day=batch + 1)}
        content = pa.Table.from_pylist([{**about, **row} for row in rows])
        write_deltalake(Lake.at(config.lake).address(QUARANTINE), content, mode="append", schema_mode="merge")

    return wait


def have(config: Config, released: int = -1, table: str = "silver.uno", **row: Any) -> None:
    """Append a row to a table, in the commit of a release if need be."""
    place = Place("all", "tables", table)
    moved = [Transaction(place.app_id(RUN), released)] if released >= 0 else []
    properties = CommitProperties(app_transactions=moved)
    content, address = pa.Table.from_pylist([row]), Lake.at(config.lake).address(table)
    write_deltalake(address, content, mode="append", schema_mode="merge", commit_properties=properties)


def told(config: Config) -> list[Any]:
    return [
        (found.place.table, found.rows, found.upto, [f"{c.name} {c.type}" for c in found.change.added])
        for found in list_quarantined(config, Lake.at(config.lake))
    ]


def test_nothing_waits_in_an_empty_lake(config: Config) -> None:
    """Without it the first question fails."""
    assert told(config) == []


def test_each_table_is_told_with_what_its_own_rows_bring(config: Config, wait: Callable[..., None]) -> None:
    """Without it one table is to gain what only another one's rows have."""
    have(config, n=1)
    have(config, table="silver.chess", n=1, elo=5)
    wait(1, {"n": 1, "bonus": 0.5})
    wait(2, {"n": 2, "elo": 7}, table="silver.chess")
    wait(3, {"n": 3, "inner": {"x": 1, "z": "new"}}, {"n": 4})

    assert told(config) == [
        ("silver.chess", 1, {RUN: 2}, []),
        ("silver.uno", 3, {RUN: 3}, ["bonus double", "inner struct<x: int64, z: string>"]),
    ]


def test_what_was_released_waits_no_more(config: Config, wait: Callable[..., None]) -> None:
    """Without it rows are approved a second time; or, in a quarantine of two runs, those of the other are forgotten."""
    wait(1, {"n": 1, "bonus": 0.5})
    wait(2, {"n": 2, "more": "a"})
    wait(1, {"n": 3, "bonus": 0.5}, query="games:run-2")
    have(config, released=1, n=1, bonus=0.5)
    assert told(config) == [("silver.uno", 2, {RUN: 2, "games:run-2": 1}, ["more string"])]

    have(config, released=2, n=2, more="a")
    assert told(config) == [("silver.uno", 1, {"games:run-2": 1}, [])]


def test_fields_that_come_later_are_told(config: Config, wait: Callable[..., None]) -> None:
    """Without it a quarantine that has grown inside of a column cannot be looked at."""
    have(config, inner={"x": 1}, list=[{"a": 1}])
    wait(1, {"inner": {"x": 1, "y": 1}, "list": [{"a": 1}]})
    wait(2, {"inner": {"x": 1, "y": 2, "z": "new"}, "list": [{"a": 1, "b": 2}, None]})

    ((_, rows, _, added),) = told(config)
    assert rows == 2
    assert added == [
        "inner struct<x: int64, y: int64, z: string>",
        "list list<element: struct<a: int64, b: int64>>",
    ]


def run(config_file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(router.cli.commands, ["quarantine", "approve", str(config_file), *arguments])


def test_the_command_shows_and_approves(config: Config, wait: Callable[..., None], tmp_path: Path) -> None:
    """Without it somebody approves what was not to be, or nobody knows what."""
    have(config, n=1)
    wait(1, {"n": 1, "bonus": 0.5, "_message": "Bet", "_schema_id": 9, "_schema_version": 2})
    wait(2, {"n": 1, "cost": 1}, table="silver.chess")
    store, file = CheckpointStore(Lake.at(config.checkpoint_path())), tmp_path / "games.yaml"

    shown = run(file, "--show")
    assert (shown.exit_code, pending_releases(store)) == (0, [])
    for text in ("silver.uno", "bonus double", "2026-01-02", "silver.chess"):
        assert text in shown.output
    assert "Bet version 2" in " ".join(shown.output.split())

    done = run(file, "silver.uno")
    assert done.exit_code == 0
    assert [(pending.place, pending.upto) for pending in pending_releases(store)] == [(UNO, {RUN: 1})]
    assert "chess" not in done.output
    assert run(file, "--route", "none").output == "no rows of games wait on route none\n"


def test_what_cannot_go_into_its_table_is_not_approved(
    config: Config, wait: Callable[..., None], tmp_path: Path
) -> None:
    """Without it an approval is tried for ever."""
    have(config, n=1, bonus="text")
    wait(1, {"n": 1, "bonus": 0.5})

    result = run(tmp_path / "games.yaml")

    assert result.exit_code == 2
    assert "silver.uno: the quarantined rows cannot go into it" in result.output
    assert pending_releases(CheckpointStore(Lake.at(config.checkpoint_path()))) == []
