"""What a stream shows of its views, expectations and committers, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from router.config.models import Metrics, Ui
from router.delta.lake import Lake
from router.engine.balance import Partition
from router.engine.checkpoint_store import CheckpointStore
from router.engine.status import board as board_module
from router.engine.status.board import StatusBoard
from router.engine.status.expectations import TREND
from router.engine.status.file_reader import StatusFileReader
from router.engine.status.findings import find_troubles
from router.engine.status.lake_board import LakeBoard
from router.engine.status.server import StatusServer
from router.engine.status.snapshot import NAMED_TARGETS
from router.engine.views.note import Note, ViewTarget, view_note_path
from tests.configurations import write_config
from tests.engine.status.boards import fetch, landed_manifest, metric_samples

if TYPE_CHECKING:
    from pathlib import Path

    from router.config.models import Config
    from router.engine.checkpoint_store import Manifest

TEXT = """\
name: games
lake: {folder}/lake
source: {{files: {{path: "{folder}/in"}}}}
decode: {{json: "game string, id long"}}
bronze: {{table: bronze.all, expect: [{{name: keyed, sql: "key IS NOT NULL"}}]}}
routes:
  - name: games
    was: plays
    match: {{sql: "event.game IS NOT NULL"}}
    expect: [{{name: numbered, sql: "event.id IS NOT NULL", otherwise: warn}}]
    sinks: [{{tables: {{table: "silver.{{event.game}}"}}}}]
views:
  - name: sessions
    from: {{route: games}}
    sql: SELECT table, count(*) AS events FROM source GROUP BY table
    into: gold.{{table}}_sessions
    expect: [{{name: many, sql: "events > 5"}}]
dead_letters: ops.dead
"""
NOW = 1_700_000_000.0
NOTE = Note(
    number=3,
    targets={
        "gold.uno_sessions": ViewTarget(1, "id", None, 10, {"many": 2}),
        "gold.go_sessions": ViewTarget(1, "i", None, 5),
    },
    at="2023-11-14T22:13:20+00:00",
    way="keys",
    why="a grouping",
    seconds=1.5,
    commits=1,
    trend=((9, {}), (15, {"many": 2})),
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return write_config(tmp_path, TEXT.format(folder=tmp_path))


@pytest.fixture
def configured_board(config: Config) -> StatusBoard:
    made = StatusBoard("games")
    made.note_configuration(config)
    made.enter_state("running")
    return made


def batch(number: int, *, matched: int, violated: int) -> Manifest:
    """Return a batch of ten records, of which one without a value was dropped, and two without a key."""
    counts = {"plays/numbered": violated, "/bronze/keyed": 2}
    part = Partition("events", 0, 0, 9, 10, 0, 0, 0, {"plays": matched}, {}, {"/bronze": 1}, counts, {}, {})
    return replace(landed_manifest(number, "silver.uno"), partitions=(part,))


def test_what_is_expected_is_counted_by_batch(configured_board: StatusBoard, config: Config) -> None:
    """Without it nobody sees that since noon every fifth event lacks its id."""
    before = {
        status.name: (status.of, status.otherwise, status.events) for status in configured_board.snapshot().expectations
    }
    assert before == {
        "keyed": ("bronze", "warn", 0),
        "numbered": ("games", "warn", 0),
        "many": ("view sessions", "warn", 0),
    }
    configured_board.carried_out(batch(0, matched=7, violated=0), {}, {})
    configured_board.carried_out(batch(1, matched=0, violated=0), {}, {})
    configured_board.carried_out(batch(2, matched=5, violated=1), {}, {})

    keyed, numbered, _ = configured_board.snapshot().expectations
    assert (numbered.events, numbered.violated) == (12, 1)
    assert numbered.trend == ((7, 0), (5, 1)), "a batch without an event for it says nothing"
    assert numbered.last is not None
    assert (keyed.events, keyed.violated) == (27, 6), "nothing is expected of records that bronze drops"
    for number in range(3, 3 + TREND):
        configured_board.carried_out(batch(number, matched=1, violated=1), {}, {})
    assert configured_board.snapshot().expectations[1].trend == ((1, 1),) * TREND
    metrics = metric_samples(configured_board)
    assert metrics["router_expectation_events_total", "expectation=numbered,of=games"] == 12 + TREND
    assert metrics["router_expectation_violations_total", "expectation=numbered,of=games"] == 1 + TREND
    assert metrics["router_view_violated_rows", "expectation=many,view=sessions"] == 0


def test_a_view_says_how_its_last_refresh_went(configured_board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody sees that a view takes a minute since it computes all of it, or is from yesterday."""
    (view,) = configured_board.snapshot().views
    assert (view.view, view.into, view.refreshed, view.seconds) == ("sessions", "gold.{table}_sessions", None, None)
    assert ("router_view_refreshed_timestamp_seconds", "view=sessions") not in metric_samples(configured_board)
    configured_board.view_refreshed("sessions", None)
    configured_board.view_refreshed("sessions", NOTE)

    (view,) = configured_board.snapshot().views
    assert view.targets == ("gold.go_sessions", "gold.uno_sessions")
    assert (view.tables, view.rows, view.way, view.seconds, view.commits) == (2, 15, "keys", 1.5, 1)
    assert view.refreshed == NOW
    many = configured_board.snapshot().expectations[2]
    assert (many.events, many.violated, many.last, many.trend) == (15, 2, NOW, ((9, 0), (15, 2)))
    metrics = metric_samples(configured_board)
    assert metrics["router_view_refreshed_timestamp_seconds", "view=sessions"] == NOW
    assert metrics["router_view_refresh_seconds", "view=sessions"] == 1.5
    assert metrics["router_view_rows", "view=sessions"] == 15
    assert metrics["router_view_violated_rows", "expectation=many,view=sessions"] == 2

    monkeypatch.setattr(board_module.time, "time", lambda: NOW + 60)
    configured_board.view_failed("sessions", "view sessions: no column\x1b[31m a")
    snapshot = configured_board.snapshot()
    assert (snapshot.views[0].failed, snapshot.views[0].rows) == ("view sessions: no column\\x1b[31m a", 15)
    (finding,) = find_troubles(snapshot, "games.yaml", 600.0, snapshot.progress)
    assert (finding.severity, finding.command) == ("look", "router views games.yaml")
    assert metric_samples(configured_board)["router_view_failed", "view=sessions"] == 1
    configured_board.view_refreshed("sessions", NOTE)
    assert (configured_board.snapshot().views[0].failed, configured_board.snapshot().views[0].checked) == ("", NOW + 60)


def test_a_refresh_by_somebody_else_is_seen(configured_board: StatusBoard, config: Config) -> None:
    """Without it `router views --refresh` mends a view, and the page goes on to say that it cannot be refreshed."""
    store = CheckpointStore(Lake.at(config.checkpoint_path()))
    reader = StatusFileReader(configured_board, config)
    reader.read_changes()
    assert configured_board.snapshot().views[0].refreshed is None
    store.write(view_note_path("sessions"), NOTE.to_json())
    configured_board.view_failed("sessions", "no column a")
    reader._looked_for_views = -1e9
    reader.read_changes()
    assert (configured_board.snapshot().views[0].rows, configured_board.snapshot().views[0].failed) == (
        15,
        "no column a",
    )

    newer = replace(NOTE, number=4, at="2100-01-01T00:00:00+00:00", way="full")
    store.write(view_note_path("sessions"), newer.to_json())
    reader._looked_for_views = -1e9
    reader.read_changes()
    assert (configured_board.snapshot().views[0].way, configured_board.snapshot().views[0].failed) == ("full", "")
    configured_board.view_refreshed("sessions", NOTE)
    assert configured_board.snapshot().views[0].way == "full", "a note that was read before comes too late"
    assert configured_board.snapshot().read["views"] > NOW


def test_a_view_of_5000_tables_names_some(configured_board: StatusBoard) -> None:
    """Without it each refresh sends a megabyte of names to each page."""
    targets = {f"gold.t{number:04d}": ViewTarget(1, "id", None, 1) for number in range(5_000)}
    configured_board.view_refreshed("sessions", replace(NOTE, targets=targets))
    (view,) = configured_board.snapshot().views
    assert (view.tables, view.rows, len(view.targets)) == (5_000, 5_000, NAMED_TARGETS)


def test_a_table_says_what_commits_to_it(configured_board: StatusBoard) -> None:
    """Without it nobody sees why one table of two hundred takes ten times as long."""
    configured_board.carried_out(
        landed_manifest(0, "silver.uno", "silver.go", "silver.old"),
        {},
        {},
        merged={"silver.profiles": "profiles/upsert"},
        committed_by={"silver.uno": "delta-rs", "silver.go": "Spark", "silver.profiles": "Spark"},
    )
    tables = {table.table: table for table in configured_board.snapshot().tables}
    committers = {name: table.committer for name, table in tables.items()}
    expected = {"silver.uno": "delta-rs", "silver.go": "Spark", "silver.old": None, "silver.profiles": "Spark"}
    assert committers == expected
    merged = tables["silver.profiles"]
    assert (merged.rows, merged.batch, merged.target) == (None, 0, "profiles/upsert")
    metrics = metric_samples(configured_board, at_most=1)
    assert metrics["router_tables", "committer=Spark"] == 2
    assert metrics["router_tables", "committer=delta-rs"] == 1
    assert metrics["router_table_rows_total", "table=(others)"] == 6, "the one that was merged into has no count"


def test_all_of_it_is_in_the_answer(configured_board: StatusBoard) -> None:
    """Without it the page and `router status --watch` have nothing to show."""
    configured_board.carried_out(batch(0, matched=7, violated=3), {}, {}, committed_by={"silver.uno": "delta-rs"})
    configured_board.view_refreshed("sessions", NOTE)
    with StatusServer(configured_board, Ui(address="127.0.0.1:0"), Metrics()) as server:
        answer = fetch(server, "/api/status").json()
    assert answer["tables"][0]["committer"] == "delta-rs"
    assert answer["views"][0]["targets"] == ["gold.go_sessions", "gold.uno_sessions"]
    assert [status["violated"] for status in answer["expectations"]] == [2, 3, 2]
    assert answer["expectations"][1]["trend"] == [[7, 3]]
    assert json.dumps(answer).isascii()


def test_a_lake_says_how_views_were_left(config: Config) -> None:
    """Without it the page of a stream that is down says that it has no views."""
    CheckpointStore(Lake.at(config.checkpoint_path())).write(view_note_path("sessions"), NOTE.to_json())
    lake_board = LakeBoard(config)
    lake_board.read_lake()
    snapshot = lake_board.snapshot()
    assert snapshot.warnings == ()
    assert (snapshot.views[0].rows, snapshot.views[0].checked) == (15, None)
    counts = {(status.of, status.name): (status.events, status.violated) for status in snapshot.expectations}
    assert counts == {("bronze", "keyed"): (0, 0), ("games", "numbered"): (0, 0), ("view sessions", "many"): (15, 2)}
