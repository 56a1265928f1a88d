"""What a real run tells its board."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from router.cli import commands
from router.config.loader import load_config
from router.engine import stream
from router.engine.quarantine import table as quarantine
from router.engine.status.board import StatusBoard
from router.engine.status.summary import stream_summary
from router.engine.stream import RunOptions, run
from router.errors import RouterError, ViewError
from router.registry import load_registry
from tests.engine.status.receiver import run_receiver

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: "{folder}/in"}}}}
decode: {{json: {{schema: "game string, id long"}}}}
bronze: bronze.all
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    expect: [{{name: numbered, sql: "event.id IS NOT NULL", otherwise: {otherwise}}}]
    sinks: [{{{sink}}}]
trigger: {{once: true}}
dead_letters: ops.dead
ui: {{address: "127.0.0.1:0"}}
"""


SINKS = {
    "tables": 'tables: {table: "silver.{event.game}"}',
    "upsert": 'upsert: {table: "silver.{event.game}", keys: [event.id]}',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    lines = ['{"game": "uno", "id": 1}', '{"game": "go", "id": 2}', '{"game": "uno"}', "no JSON", '{"id": 3}']
    (tmp_path / "in" / "a.json").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def ran(folder: Path, spark: SparkSession, otherwise: str, sink: str = SINKS["tables"]) -> StatusBoard:
    """Return the board of a run that has ended."""
    file = folder / "games.yaml"
    file.write_text(YAML.format(folder=folder, otherwise=otherwise, sink=sink))
    registry = load_registry(())
    board = StatusBoard("games")
    run(load_config(file, registry, environ={}), registry, spark, RunOptions(status=board))
    return board


def test_a_run_tells_what_it_did(folder: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """Without it the status is right in tests of its own and empty at night."""
    caplog.set_level("INFO", "router")
    snapshot = ran(folder, spark, "dead_letter").snapshot()
    assert caplog.messages[-1].startswith("games: ended: 1 batches, 5 rows, 3 dead letters, ")

    assert (snapshot.state, snapshot.finished, snapshot.step) == ("ended", 1, "")
    assert snapshot.records == {"read": 5, "decoded": 4, "failed": 1, "unmatched": 1, "dead_letters": 3}
    assert snapshot.routes["games"]["landed"] == 2
    rows = {table.table: table.rows for table in snapshot.tables}
    assert rows == {"bronze.all": 5, "ops.dead": 3, "silver.uno": 1, "silver.go": 1}
    assert {table.committer for table in snapshot.tables} == {"delta-rs"}
    (numbered,) = snapshot.expectations
    assert (numbered.of, numbered.otherwise, numbered.trend) == ("games", "dead_letter", ((3, 1),))
    assert {"land", "commit", "ledger"} <= snapshot.step_seconds.keys()
    written = (folder / "in" / "a.json").stat().st_mtime
    newest = {table.table: table.newest_record for table in snapshot.tables}
    assert newest.pop("ops.dead") is None, "dead letters are in no table of theirs"
    assert newest == dict.fromkeys(("bronze.all", "silver.uno", "silver.go"), pytest.approx(written, abs=0.01))
    assert snapshot.freshness is not None
    assert snapshot.freshness.counts[-2] == 7


@pytest.mark.parametrize(("commit", "committer"), [("auto", "delta-rs"), ("spark", "Spark")])
def test_views_and_merged_tables_are_told(folder: Path, spark: SparkSession, commit: str, committer: str) -> None:
    """Without it the page says of a table that Delta on Spark merges into that it is quick, or nothing of it."""
    file = folder / "games.yaml"
    text = YAML.format(folder=folder, otherwise="warn", sink=SINKS["tables"])
    sinks = text.index("sinks: [") + len("sinks: [")
    upsert = "{upsert: {table: silver.profiles, keys: [event.game]}}, "
    view = (
        "views:\n  - {name: counts, from: {route: games}, into: gold.counts, "
        "expect: [{name: many, sql: 'events > 1'}],\n"
        "     sql: 'SELECT table, count(*) AS events FROM source GROUP BY table'}\n"
    )
    file.write_text(f"{text[:sinks]}{upsert}{text[sinks:]}{view}commit: {commit}\n")
    registry = load_registry(())
    board = StatusBoard("games")
    run(load_config(file, registry, environ={}), registry, spark, RunOptions(status=board))

    snapshot = board.snapshot()
    tables = {table.table: table for table in snapshot.tables}
    assert {tables[name].committer for name in ("bronze.all", "silver.uno", "silver.profiles")} == {committer}
    assert (tables["silver.profiles"].rows, tables["silver.profiles"].target) == (None, "games/upsert")
    (view_status,) = snapshot.views
    assert (view_status.view, view_status.targets, view_status.way) == ("counts", ("gold.counts",), "full")
    assert view_status.checked is not None
    counts = {(status.of, status.name): (status.events, status.violated) for status in snapshot.expectations}
    assert counts == {("games", "numbered"): (3, 1), ("view counts", "many"): (view_status.rows, 1)}


def test_a_view_that_fails_ends_a_run_with_1_and_stays_seen(folder: Path, spark: SparkSession) -> None:
    """Without it cron reports success while the tables that people read are from last week."""
    file = folder / "games.yaml"
    view = (
        "views: [{name: counts, from: {route: games}, into: gold.counts, sql: 'SELECT nothing FROM source'},\n"
        "  {name: well, from: {route: games}, into: gold.well, sql: 'SELECT count(*) AS events FROM source'}]\n"
    )
    file.write_text(YAML.format(folder=folder, otherwise="warn", sink=SINKS["tables"]) + view)
    registry = load_registry(())
    loaded = load_config(file, registry, environ={})
    with pytest.raises(ViewError, match="nothing") as failed:
        run(loaded, registry, spark)
    assert failed.value.exit_code == 1

    counts, well = stream_summary(loaded.config, "games.yaml")["views"]
    assert "nothing" in counts["failed"]
    assert (well["failed"], well["rows"]) == ("", 1)
    listed = CliRunner().invoke(commands, ["views", str(file)]).output
    assert "nothing" in listed
    shown = CliRunner().invoke(commands, ["status", str(file)]).output
    assert "Views that cannot be refreshed: counts" in shown
    assert "nothing" in shown


def test_a_run_that_fails_says_why(folder: Path, spark: SparkSession) -> None:
    """Without it a monitor sees that a process is gone, and not what is wrong with the data."""
    board = StatusBoard("games")
    file = folder / "games.yaml"
    registry = load_registry(())
    with run_receiver() as receiver:
        text = YAML.format(folder=folder, otherwise="fail", sink=SINKS["tables"])
        file.write_text(f'{text}on_failure: {{webhook: "{receiver.url}"}}\n')
        with pytest.raises(RouterError):
            run(load_config(file, registry, environ={}), registry, spark, RunOptions(status=board))

    assert receiver.events() == ["stopped"]
    assert "numbered on 1 rows" in receiver.messages[0]["cause"]
    snapshot = board.snapshot()
    assert snapshot.state == "failed"
    assert "numbered on 1 rows" in snapshot.words
    assert [table.table for table in snapshot.tables] == []


def test_an_api_that_is_down_is_told_without_ui(folder: Path, spark: SparkSession) -> None:
    """Without it the webhook is silent while rows pile up in the outbox, unless somebody looks at the page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = YAML.format(folder=folder, otherwise="warn", sink=SINKS["tables"])
    text = text.replace("trigger: {once: true}\n", "").replace('ui: {address: "127.0.0.1:0"}\n', "")
    text = text.replace(
        '{tables: {table: "silver.{event.game}"}}', f'{{rest: {{url: "http://127.0.0.1:{port}/wins"}}}}'
    )
    file = folder / "games.yaml"
    registry = load_registry(())
    stop = threading.Event()
    with run_receiver() as receiver, ThreadPoolExecutor(1) as pool:
        file.write_text(f'{text}on_failure: {{webhook: "{receiver.url}"}}\n')
        options = RunOptions(status=StatusBoard("games"), stop=stop)
        running = pool.submit(run, load_config(file, registry, environ={}), registry, spark, options)
        try:
            receiver.wait_for(1, seconds=90)
        finally:
            stop.set()
        running.result(60)

    assert receiver.events()[0] == "waiting"
    assert "games/rest" in receiver.messages[0]["cause"]


@pytest.mark.parametrize("sink", ["tables", "upsert"])
def test_a_table_that_works_again_is_told_without_a_batch(
    folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """Without it page and `status` name a table as damaged until the next record comes, on a quiet topic for hours."""
    monkeypatch.setattr(stream, "_APPROVAL_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(stream, "_BACKLOG_RETRY_SECONDS", 0.5)
    monkeypatch.setattr(stream, "_LONGEST_BACKLOG_RETRY_SECONDS", 0.5)
    monkeypatch.setattr(quarantine, "FIRST_RELEASE_PAUSE_SECONDS", 0.5)
    ran(folder, spark, "warn", SINKS[sink])
    log = folder / "lake/silver/uno/_delta_log"
    (log / "away").mkdir()
    kept = [path.rename(log / "away" / path.name) for path in log.iterdir() if path.is_file()]
    (log / f"{0:020}.json").write_text("damaged")
    (folder / "in" / "b.json").write_text('{"game": "uno", "id": 7}\n')
    file = folder / "games.yaml"
    file.write_text(file.read_text().replace("trigger: {once: true}\n", ""))
    board = StatusBoard("games")
    stop = threading.Event()
    registry = load_registry(())

    def blocked() -> list[str]:
        return [table.table for table in board.snapshot().tables if table.blocked]

    def wait_for(tables: list[str]) -> None:
        for _ in range(600):
            if blocked() == tables:
                return
            time.sleep(0.1)
        pytest.fail(f"blocked are {blocked()}, not {tables}")

    with ThreadPoolExecutor(1) as pool:
        loaded = load_config(file, registry, environ={})
        running = pool.submit(run, loaded, registry, spark, RunOptions(status=board, stop=stop))
        try:
            wait_for(["silver.uno"])
            for path in kept:
                path.rename(log / path.name)
            wait_for([])
            assert board.snapshot().finished == 1
        finally:
            stop.set()
        running.result(60)


def test_a_run_tells_how_far_a_topic_is_processed(folder: Path, spark: SparkSession, broker: EmbeddedKafka) -> None:
    """Without it nobody sees that a stream falls behind."""
    topic = "status-of-a-run"
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.servers})
    for _ in range(3):
        producer.produce(topic, b'{"game": "uno", "id": 1}')
    assert producer.flush(30) == 0
    file = folder / "games.yaml"
    source = f'kafka: {{servers: "{broker.servers}", topics: [{topic}]}}'
    text = YAML.format(folder=folder, otherwise="warn", sink=SINKS["tables"])
    file.write_text(text.replace(f'files: {{path: "{folder}/in"}}', source))
    registry = load_registry(())
    board = StatusBoard("games")
    run(load_config(file, registry, environ={}), registry, spark, RunOptions(status=board))

    (partition,) = board.snapshot().partitions
    assert (partition.topic, partition.position, partition.end, partition.lag) == (topic, 3, 3, 0)
    assert board.snapshot().lag == 0
