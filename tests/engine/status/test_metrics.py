"""The metrics as a monitor takes them: all of them, by Prometheus's own rules, on the page and in no more series."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.api.parts import BatchReport
from router.api.sinks import ApiState, Applied
from router.config.loader import load_config
from router.delta.commit import TableCommit
from router.delta.staged_files import StagedFile
from router.engine.balance import Partition
from router.engine.checkpoint_store import Manifest
from router.engine.land.record_ages import TableAges
from router.engine.status.board import StatusBoard
from router.engine.status.metrics import METRICS, OTHERS, metrics_text
from router.engine.status.snapshot import DeadLetterStatus, QuarantineStatus
from router.engine.views.note import Note, ViewTarget
from router.registry import load_registry
from tests.configurations import write_config
from tests.engine.promtool import NEEDS_PROMTOOL, promtool

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = """\
name: games
lake: lake
source: {files: {path: in}}
decode: {json: 'a string'}
routes:
  - {name: games, match: {sql: 'true'}, expect: [{name: numbered, sql: 'event.a > 1'}], sinks: [{delta: silver.a}]}
views:
  - {name: sessions, from: silver.a, sql: SELECT a FROM source, into: gold.a, expect: [{name: many, sql: 'a > 5'}]}
dead_letters: ops.dead
"""
HOSTILE = 'silver.a"b\\\nrouter_state{state="failed"} 1'


@pytest.fixture
def full_board(tmp_path: Path) -> StatusBoard:
    """Return a board that knows something for every metric, with names that would end a line or a label."""
    made = StatusBoard("games")
    made.note_configuration(write_config(tmp_path, EXPECTED))
    made.enter_state("running")
    made.source_is_at({("events", 0): 25}, {("events", 0): 30})
    made.note_report(BatchReport("games", 0, 10, 9, 1, 2, 3, 2, 4, {"land": 1.5}, routes={HOSTILE: {"landed": 6}}))
    made.add_dead_letters(
        [
            DeadLetterStatus("schema", HOSTILE, "", "amount", 3, time.time()),
            DeadLetterStatus("decode", "", "", "no JSON", 4, time.time()),
        ]
    )
    waiting = [QuarantineStatus(f"{HOSTILE}{number}", "games", "tables", "table", number) for number in range(1, 5)]
    made.quarantine_is(waiting)
    file = StagedFile("r/s", HOSTILE, "part-0.parquet", 10, 3, ("a",), "{}")
    work = TableCommit("r/s", HOSTILE, "games:run/r/s", 0, (file,), "{}")
    ages = TableAges((1, *[0] * 11), seconds=0.4, newest=1_700_000_000.0)
    made.note_ages(0, time.time(), {work.note_key: ages})
    counts = {"read": 10, "matched": {"games": 9}, "violated": {"games/numbered": 2}}
    blank = {"failed": 0, "bare": 0, "unmatched": 0, "refused": {}, "dropped": {}, "landed": {}, "rejected": {}}
    part = Partition(topic="events", partition=0, first=0, last=9, **blank, **counts)  # type: ignore[arg-type]
    made.carried_out(Manifest(0, "configuration", ("r/s",), (work,), (part,)), {}, {})
    target = ViewTarget(1, "id", None, 10, {"many": 2})
    made.view_refreshed("sessions", Note(targets={"gold.a": target}, at="2023-11-14T22:13:20+00:00", seconds=1.5))
    made.note_waiting_rows("games/rest", [(1_700_000_000.0, 7)])
    made.note_sent("games/rest", Applied(2, 1))
    made.api_is("games/rest", ApiState(True, 0.5, {"ok": 3, "timed out": 2}))
    return made


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_metric_has_its_help_and_type(full_board: StatusBoard) -> None:
    """Without it a monitor shows a number, and nobody knows of what."""
    text = metrics_text(full_board.snapshot(), 500).decode()
    for metric in METRICS:
        assert f"# HELP {metric.name} " in text
        kind = "gauge" if metric.kind == "info" else metric.kind
        assert f"# TYPE {metric.name} {kind}\n" in text
    families = set(re.findall(r"# TYPE (\S+)", text))
    assert families == {metric.name for metric in METRICS}


def test_the_labels_are_those_of_the_page(full_board: StatusBoard) -> None:
    """Without it a query by the page finds nothing."""
    found = samples(metrics_text(full_board.snapshot(), 500).decode())
    for metric in METRICS:
        if metric.name.startswith("router_table_"):
            continue
        name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
        assert {tuple(sorted(labels)) for labels, _ in found[name]} == {tuple(sorted(metric.labels))}, name


def test_what_a_board_learns_is_measured(full_board: StatusBoard) -> None:
    """Without it an alert about an API, an outbox or the quarantine never fires."""
    found = samples(metrics_text(full_board.snapshot(), 2).decode())
    letters = {labels["stage"]: value for labels, value in found["router_dead_letters_total"]}
    assert (letters["schema"], letters["decode"], letters["apply"]) == (3, 4, 1)
    assert letters["match"] == 0, "a series that begins with its first letter has no increase"
    waiting = [(labels["table"][-1], value) for labels, value in found["router_quarantined_rows"]]
    assert waiting == [("4", 4), ("3", 3), (OTHERS[-1], 3)], "of too many tables the fullest have their own series"
    assert found["router_outbox_rows"][0][1] == 4
    assert found["router_outbox_oldest_row_timestamp_seconds"][0][1] == 1_700_000_000
    assert found["router_circuit_open"][0][1] == 1
    answers = {labels["answer"]: value for labels, value in found["router_api_answers_total"]}
    assert answers == {"ok": 3, "timed out": 2}
    assert found["router_limit_used_ratio"][0][1] == 0.5
    assert found["router_table_newest_record_timestamp_seconds"][0][1] == 1_700_000_000
    assert found["router_freshness_seconds_count"][0][1] == 1
    assert found["router_last_batch_timestamp_seconds"][0][1] > 1_700_000_000
    states = {labels["state"]: value for labels, value in found["router_state"]}
    assert states["failed"] == 0, "a name from the data writes no series of its own"


@NEEDS_PROMTOOL
@pytest.mark.parametrize("known", [True, False], ids=["all", "start"])
def test_prometheus_finds_nothing_wrong_with_the_metrics(full_board: StatusBoard, known: bool) -> None:
    """Without it a scrape is dropped as a whole for one bad line."""
    snapshot = full_board.snapshot() if known else StatusBoard("games").snapshot()
    assert promtool("check", "metrics", text=metrics_text(snapshot, 500).decode()) == ""


def test_series_of_tables_can_be_none(full_board: StatusBoard, tmp_path: Path) -> None:
    """Without it a stream with a table for each customer names its customers to a monitor."""
    file = tmp_path / "games.yaml"
    file.write_text(
        "name: games\nlake: lake\nsource: {files: {path: in}}\ndecode: {json: 'a string'}\n"
        "routes: [{name: a, match: {sql: 'true'}, sinks: [{delta: silver.a}]}]\ndead_letters: ops.dead\n"
        "metrics: {tables_at_most: 0}\n"
    )
    at_most = load_config(file, load_registry(), environ={}).config.metrics.tables_at_most
    found = samples(metrics_text(full_board.snapshot(), at_most).decode())
    assert [labels for labels, _ in found["router_quarantined_rows"]] == [{"table": OTHERS}]
