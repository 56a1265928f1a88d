"""`router status --page` shows the page of a stream that is down, by what its lake says."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import requests
from click.testing import CliRunner
from deltalake import write_deltalake

from router.cli import commands
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore
from router.engine.quarantine.table import PendingRelease, Place, write_pending
from router.engine.start.run_lock import hold_run_lock
from router.engine.status.lake_board import LakeBoard
from router.registry import load_registry
from tests.cli.stream_status import TEXT, read_counts, write_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from router.engine.status.board import StatusBoard
    from tests.cli.stream_status import RunStatus


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "games.yaml"
    file.write_text(TEXT)
    return file


def lake_board(file: Path) -> LakeBoard:
    board = LakeBoard(load_config(file, load_registry(), environ={}).config)
    board.read_lake()
    return board


def files_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


def test_a_lake_says_how_its_stream_was(config_file: Path) -> None:
    """Without it nobody sees at night what a stream that is down has done, and what it left undone."""
    write_ledger({**read_counts(100)}, {"route": "games", "sink": "delta", "matched": 97, "landed": 96, "refused": 1})
    letters = {"stage": ["decode", "decode", "expect"], "route": [None, None, "games"], "sink": [None, None, "delta"]}
    timestamps = pa.array([0, 1, 2], pa.timestamp("us", "UTC"))
    rows = pa.table(
        {
            **letters,
            "reason": ["no JSON", "no JSON", "positive"],
            "replayed": pa.array([None] * 3, pa.string()),
            "topic": ["t"] * 3,
            "partition": [0] * 3,
            "value": [b"{", b"[", b"{}"],
            "offset": [1, 2, 3],
            "timestamp": timestamps,
        }
    )
    write_deltalake("lake/ops/dead", rows)
    config = load_config(config_file, load_registry(), environ={}).config
    note = PendingRelease(Place("games", "delta", "silver.games"), cause="its log is damaged", blocked=True)
    write_pending(CheckpointStore(Lake.at(config.checkpoint_path())), note)

    snapshot = lake_board(config_file).snapshot()
    assert snapshot.warnings == ()
    assert (snapshot.state, snapshot.words) == ("down", "down")
    (batch,) = snapshot.batches
    assert (batch.batch, batch.read, batch.decoded, batch.failed, batch.dead_letters) == (3, 100, 98, 2, 4)
    assert snapshot.records == {"read": 100, "decoded": 98, "failed": 2, "unmatched": 1, "dead_letters": 4}
    assert snapshot.routes == {"games": {"matched": 97}}
    causes = {(group.stage, group.reason): group.count for group in snapshot.dead_letters}
    assert causes == {("decode", "no JSON"): 2, ("expect", "positive"): 1}
    assert [group.samples for group in snapshot.dead_letters] == [(), ()]
    config_file.write_text(TEXT.replace("ui: {", "ui: {samples: true, "))
    groups = lake_board(config_file).snapshot().dead_letters
    assert [[sample.value for sample in group.samples] for group in groups] == [["[", "{"], ["{}"]]
    assert [(table.table, table.blocked) for table in snapshot.tables] == [("silver.games", "its log is damaged")]


@pytest.mark.parametrize("brief", [False, True], ids=["page", "status"])
def test_a_lake_names_fields_that_the_schema_lacks(config_file: Path, brief: bool) -> None:
    """Without it a column stays empty for weeks, unless somebody looks while the stream runs."""
    write_ledger({**read_counts(100), "unknown": 7, "unknown_fields": [("bonus", 7)]}, number=1)
    write_ledger({**read_counts(100), "unknown": 9, "unknown_fields": [("bonus", 5), ("coupon", 4)]}, number=2)
    write_ledger({**read_counts(100)}, number=3)
    board = LakeBoard(load_config(config_file, load_registry(), environ={}).config, brief=brief)
    board.read_lake()
    assert board.snapshot().unknown_fields == {"bonus": 12, "coupon": 4}
    assert board.snapshot().batches[0].read == 100
    shown = CliRunner().invoke(commands, ["status", "games.yaml"], env={"COLUMNS": "400"}).output
    assert "bonus (12 events), coupon (4 events): add them to the schema of `decode`" in shown
    assert "router run games.yaml --refresh-schema" in shown


def test_a_lake_that_is_not_there_yet_is_empty(config_file: Path) -> None:
    """Without it the first look at a stream that never ran is a stack trace."""
    snapshot = lake_board(config_file).snapshot()
    assert (snapshot.state, snapshot.batches, snapshot.tables) == ("down", (), ())


def test_what_cannot_be_read_is_a_warning(config_file: Path) -> None:
    """Without it a damaged ledger hides the tables, too."""
    write_ledger({**read_counts(1)})
    for log in (config_file.parent / "lake/ops/ledger/_delta_log").glob("*.json"):
        log.write_text("no JSON")
    snapshot = lake_board(config_file).snapshot()
    (warned,) = snapshot.warnings
    assert warned.message.startswith("ledger cannot be read: ")


def test_a_stream_without_a_page_is_seen_as_running(config_file: Path) -> None:
    """Without it somebody starts it a second time."""
    config = load_config(config_file, load_registry(), environ={}).config
    with hold_run_lock(Lake.at(config.checkpoint_path()), "games"):
        assert lake_board(config_file).snapshot().state == "running"


def test_the_command_serves_until_it_is_ended(config_file: Path) -> None:
    """Without it the page is right in tests, and nobody can open it."""
    write_ledger({**read_counts(100)})
    before = files_below(config_file.parent)
    command = [sys.executable, "-m", "router", "status", "games.yaml", "--page", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = line.partition("http://")[2].partition("/")[0]
            status = requests.get(f"http://{address}/api/status", timeout=30).json()
            assert (status["state"], status["batches"][0]["read"]) == ("down", 100)
            assert "<main>" in requests.get(f"http://{address}/", timeout=30).text
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert files_below(config_file.parent) == before, "it only reads"


def test_a_stream_that_shows_itself_is_named(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it somebody looks at a lake of ten seconds ago while the stream has a page."""
    done = CliRunner().invoke(commands, ["status", "games.yaml", "--page"])
    assert (done.exit_code, "shows itself at http://127.0.0.1:" in done.output) == (0, True)
