"""`router status` says how a stream is: of a running one by its server, of any other by what it has left."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pydantic import SecretStr

from router.api.parts import BatchReport
from router.api.sinks import ApiState, Applied
from router.cli import commands, status
from router.cli.run import serve_status
from router.config.loader import load_config
from router.config.models import Ui
from router.delta import kept_versions
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore
from router.engine.quarantine.table import PendingRelease, Place, write_pending
from router.engine.start.run_lock import hold_run_lock
from router.engine.status.board import StatusBoard
from router.engine.status.snapshot import DeadLetterStatus, QuarantineStatus
from router.engine.views.note import Note, ViewTarget, view_note_path
from router.errors import StartError
from router.registry import load_registry
from tests.cli.stream_status import TEXT, RunStatus, read_counts, write_ledger
from tests.delta.changed_logs import forget_bounds
from tests.engine.status.boards import landed_manifest

if TYPE_CHECKING:
    from router_demo.kafka import EmbeddedKafka


@pytest.fixture
def checkpoint(run_status: RunStatus, tmp_path: Path) -> Lake:
    return Lake.at(load_config(tmp_path / "games.yaml", load_registry(), environ={}).config.checkpoint_path())


def test_a_running_stream_is_asked(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it an operator at night reads the log to see whether the stream is alive."""
    served_board.note_report(BatchReport("games", 7, 1200, 1200, 0, 0, 0, 1, 1, {}))
    served_board.source_is_at({("t", 0): 5}, {("t", 0): 1209})
    served_board.note_batch_step(8, "land", 0, 1)
    done = run_status()
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "games: running, batch 8, land"
    assert len(lines) == 13
    assert "all is well" in done.output
    assert "1,204 records" in done.output
    assert re.search(r"7, \d+ s ago, 1,200 records", done.output)


def test_a_stream_that_answers_is_shown_though_its_lake_does_not(
    run_status: RunStatus, served_board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it an operator at night waits for a storage that is away, to see a stream that says so."""
    ended = threading.Event()
    monkeypatch.setattr(kept_versions, "kept_bytes", lambda lake: ended.wait())
    monkeypatch.setattr(status, "LAKE_SECONDS", 0.1)
    done = run_status()
    ended.set()
    assert done.output.splitlines()[0].startswith("games: ")
    assert "versions before deploys" not in done.output


def test_before_the_first_batch_nothing_is_known(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it an operator who has just started a stream believes that it works, and goes home."""
    done = run_status()
    assert done.exit_code == 0
    assert "not known yet" in done.output
    assert "all is well" not in done.output
    assert "none since the start" not in done.output
    assert "no rows" not in done.output
    assert json.loads(run_status("--json").output)["verdict"] == "unknown"


def test_a_start_that_takes_minutes_says_at_what_and_since_when(
    run_status: RunStatus, served_board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it `starting` for ten minutes may be jars that are fetched, or a registry that does not answer."""
    served_board._snapshot = replace(served_board._snapshot, state="starting")
    served_board.note_start_step("the decoder")
    lines = run_status().output.splitlines()
    assert lines[0].startswith("games: starting for ")
    assert lines[0].endswith(" s, the decoder")
    now = time.time()
    monkeypatch.setattr("router.cli.status.time.time", lambda: now + 130)
    lines = run_status().output.splitlines()
    assert re.fullmatch(r"games: starting for 2 min, the decoder since \d\d:\d\d:\d\d UTC", lines[0])
    assert re.match(r"starting since .* UTC: the decoder", served_board.snapshot().words)

    served_board.enter_state("waiting", "no registry answers")
    served_board.note_start_step("the decoder")
    assert served_board.snapshot().state == "waiting", "this try may fail as well"
    served_board.note_start_step("the sinks")
    assert (served_board.snapshot().state, served_board.snapshot().cause) == ("starting", "")
    served_board.enter_state("running")
    assert (served_board.snapshot().state, served_board.snapshot().step) == ("running", "")


def test_what_somebody_should_look_at_is_the_exit_code_1(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it cron reports nothing while rows pile up."""
    served_board.quarantine_is([QuarantineStatus("silver.uno", "games", "delta", "table", 12, "its log is damaged")])
    served_board.api_is("games/rest", ApiState(circuit_open=True))
    served_board.note_waiting_rows("games/rest", [(time.time() - 7200, 30)])
    served_board.add_dead_letters([DeadLetterStatus("schema", "games", "", "amount", 3, time.time())])
    done = run_status("--json")
    assert done.exit_code == 1
    document = json.loads(done.output)
    assert (document["state"], document["source"], document["exit_code"]) == ("running", "stream", 1)
    assert document["why"] == [finding["text"] for finding in document["findings"]]
    assert [finding["command"] for finding in document["findings"]] == [
        "router quarantine list FILE",
        "",
    ], "what an API needs is no command of ours: a doctor would say that all is well"
    assert document["quarantined"] == {"silver.uno": 12}
    assert document["outboxes"] == {"games/rest": 30}
    assert document["dead_letters"] == {"schema": 3}
    shown = run_status().output
    assert "games/rest (30 rows); the oldest came 2 h ago" in shown
    served_board.note_sent("games/rest", Applied(30, 0))
    assert json.loads(run_status("--json").output)["outboxes"] == {}


def test_rows_that_wait_for_an_api_are_seen_while_the_stream_is_down(run_status: RunStatus, tmp_path: Path) -> None:
    """Without it an operator believes that all rows are sent. A file of the ledger may have no bounds of its times."""
    text = (tmp_path / "games.yaml").read_text()
    (tmp_path / "games.yaml").write_text(text.replace("{delta: silver.more}", '{rest: {url: "http://127.0.0.1:9/x"}}'))
    write_ledger({"route": "games", "sink": "rest", "backlog": 30}, hours_ago=2.0)
    write_ledger({"route": "games", "sink": "rest", "backlog": -10})
    forget_bounds(Path("lake/ops/ledger"), "finished")

    assert json.loads(run_status("--json").output)["outboxes"] == {"games/rest": 20}
    assert "games/rest (20 rows); the oldest came 2 h ago" in run_status().output


def test_commands_can_be_pasted(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it whoever pastes the command of a message at night gets the usage of the command line."""
    hint = "it is damaged; `router rebuild FILE silver.uno` rebuilds it, or `router quarantine release FILE`"
    served_board.carried_out(landed_manifest(0, "silver.uno"), {}, {"games/delta/silver.uno": hint})
    shown = run_status().output
    assert "router rebuild games.yaml silver.uno`" in shown
    assert "router quarantine release games.yaml`" in shown
    assert "see `router tables games.yaml`" in shown


def test_fields_that_the_schema_lacks_have_the_change_that_takes_them(
    run_status: RunStatus, served_board: StatusBoard
) -> None:
    """Without it a column stays empty for weeks, though its values are in each record."""
    lacking = replace(landed_manifest(0, "silver.uno").partitions[0], unknown_fields={"bonus": 1200, "coupon": 3})
    for number in (0, 1):
        served_board.carried_out(replace(landed_manifest(number, "silver.uno"), partitions=(lacking,)), {}, {})
    assert served_board.snapshot().unknown_fields == {"bonus": 2400, "coupon": 6}
    shown = run_status(COLUMNS="400").output
    assert "bonus (2,400 events), coupon (6 events): add them to the schema of `decode`" in shown
    assert "router run games.yaml --refresh-schema" in shown


def test_a_warning_that_is_over_leaves(
    run_status: RunStatus, served_board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it an operator chases a broker that has answered again since yesterday."""
    served_board.emit(logging.LogRecord("router", logging.WARNING, __file__, 0, "no broker answers", (), None))
    assert re.search(r"no broker answers \(\d+ s ago\)", run_status().output)
    now = time.time()
    monkeypatch.setattr("router.cli.status.time.time", lambda: now + 3601)
    assert "no broker answers" not in run_status().output


def test_a_stream_with_an_address_of_its_command_line_is_found(run_status: RunStatus, tmp_path: Path) -> None:
    """Without it a stream with `run --ui HOST:PORT` looks to all commands as if it had no page."""
    file = tmp_path / "games.yaml"
    file.write_text(TEXT.replace('ui: {address: "127.0.0.1:1"}\n', ""))
    config = load_config(file, load_registry(), environ={}).config
    board = StatusBoard("games")
    board.note_start_step("the start of Spark")
    shown = config.model_copy(update={"ui": Ui(address="127.0.0.1:0", token=SecretStr("of a night"))})
    with serve_status(shown, board, file):
        # A start that the lock refuses does not hide the run that is at work.
        with serve_status(shown, StatusBoard("games"), file):
            pass
        file.write_text(TEXT.replace('{address: "127.0.0.1:1"}', "{token: of a night}"))
        assert run_status().output.splitlines()[0].endswith(", the start of Spark")
        document = json.loads(run_status("--json").output)
        assert (document["source"], document["state"]) == ("stream", "starting")
        assert "runs, and shows itself at" in run_status("--page").output
    assert json.loads(run_status("--json").output)["source"] == "lake"
    assert list(Path(config.checkpoint_path()).iterdir()) == []


@pytest.mark.parametrize(
    "noted", [b"{", b"[]", b'{"address": 7}', b'{"address": "x:y"}', b'{"address": "127.0.0.1:1"}']
)
def test_what_a_killed_run_noted_does_no_harm(run_status: RunStatus, checkpoint: Lake, noted: bytes) -> None:
    """Without it the note of a run that was killed ends each command, or hides that no stream runs."""
    checkpoint.write("ui.json", noted)
    assert json.loads(run_status("--json").output)["state"] == "down"


@pytest.mark.parametrize(
    ("arguments", "reads_by_spark"),
    [
        (["views", "games.yaml", "--refresh"], True),
        (["rebuild", "games.yaml", "silver.games"], True),
        (["rebuild", "games.yaml", "silver.games", "--from", "earliest"], False),
        (["replay", "games.yaml"], True),
        (["backfill", "games.yaml", "--from", "2025-01-01T00:00:00Z", "--to", "2025-01-02T00:00:00Z"], True),
    ],
)
def test_a_lake_that_spark_has_no_file_system_for_is_refused_at_once(
    run_status: RunStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reads_by_spark: bool
) -> None:
    """Without it a stack trace of Hadoop is the answer to whoever mends a table at night."""
    (tmp_path / "games.yaml").write_text(f"{TEXT}bronze: bronze.records\n{VIEWS}")
    asked: list[bool] = []

    def reach(session: object, place: Lake, *, needed_for: tuple[str, ...], writes: bool) -> None:
        asked.append(bool(needed_for))
        raise StartError("Spark has no file system for s3://lake")

    monkeypatch.setattr("router.cli.session.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("router.engine.start.checks.make_reachable", reach)
    done = CliRunner().invoke(commands, arguments, prog_name="router")
    assert (done.exit_code, asked) == (2, [reads_by_spark]), done.output
    assert "router: Spark has no file system for s3://lake" in done.stderr


def test_maintain_prints_no_long_line_into_a_pipe(run_status: RunStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the log of a job has lines of a thousand columns, each padded to the longest cause."""
    write_ledger(read_counts(5))
    counts = dict.fromkeys(("files", "into", "statistics", "deleted", "megabytes"))
    cause = " ".join(["no file can be read of a long list"] * 30)
    row = {"table": "ops.ledger", **counts, "note": cause}
    monkeypatch.setattr("router.cli.tables._maintain_table", lambda *_, **__: row)
    done = CliRunner().invoke(commands, ["maintain", "games.yaml"], prog_name="router")
    assert done.exit_code == 1, done.output
    assert max(map(len, done.output.splitlines())) <= 200
    assert "".join(done.output.split()).count("longlist") == 30, "all of it is there"


def test_a_wait_and_a_failure_are_told_apart(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it a broker that is restarted wakes somebody up, or a dead stream nobody."""
    served_board.enter_state("waiting", "no broker answers")
    done = run_status()
    assert (done.exit_code, "continues by itself: no broker answers  $ router doctor" in done.output) == (1, True)
    served_board.enter_state("failed", "the batch does not balance")
    done = run_status()
    assert (done.exit_code, "has failed: the batch does not balance" in done.output) == (2, True)


def test_a_stream_that_makes_no_step_is_down(
    run_status: RunStatus, served_board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a stream whose JVM is stuck looks alive."""
    now = time.time()
    monkeypatch.setattr("router.cli.status.time.time", lambda: now + 601)
    done = run_status()
    assert (done.exit_code, "No step for 10 min" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("lag", "max_age", "code"),
    [(0, "5 min", 0), (9, "5m", 2), (9, "2 h", 0), (None, "5 min", 2)],
    ids=["idle", "late", "in time", "lag unknown"],
)
def test_a_batch_is_due_if_records_wait(
    run_status: RunStatus, served_board: StatusBoard, lag: int | None, max_age: str, code: int
) -> None:
    """Without it cron wakes somebody up because nobody plays at night."""
    served_board.note_report(BatchReport("games", 7, 1, 1, 0, 0, 0, 1, 1, {}))
    if lag is not None:
        served_board.source_is_at({("t", 0): 5}, {("t", 0): 5 + lag})
    future = time.time() + 3600
    served_board.enter_state("running")
    served_board._snapshot = served_board._snapshot.__class__(**{**vars(served_board._snapshot), "progress": future})
    patched = pytest.MonkeyPatch()
    patched.setattr("router.cli.status.time.time", lambda: future)
    try:
        assert run_status("--max-age", max_age).exit_code == code
    finally:
        patched.undo()


def test_a_stream_of_another_name_is_not_taken_for_it(
    run_status: RunStatus, tmp_path: Path, served_board: StatusBoard
) -> None:
    """Without it a stream that is down is shown as the one that has taken its port."""
    file = tmp_path / "games.yaml"
    file.write_text(file.read_text().replace("name: games\n", "name: others\n", 1))
    done = run_status()
    assert (done.exit_code, done.output.splitlines()[0]) == (2, "others: down")


def test_a_stream_that_has_ended_is_down(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it a stream that a signal has stopped looks well for as long as its process takes to end."""
    served_board.enter_state("ended")
    document = json.loads(run_status("--json").output)
    assert (document["source"], document["state"], document["exit_code"]) == ("lake", "down", 2)
    assert document["findings"][0]["command"] == "router run games.yaml"


def test_a_stream_that_is_down_has_left_what_it_did(run_status: RunStatus, checkpoint: Lake) -> None:
    """Without it nobody knows since when nothing comes, for the stream cannot be asked."""
    write_ledger(read_counts(500), {"route": "games", "sink": "delta", "matched": 400, "refused": 5, "landed": 395})
    write_pending(
        CheckpointStore(checkpoint),
        PendingRelease(Place("games", "delta", "silver.games"), cause="its log is damaged", blocked=True),
    )
    done = run_status()
    assert done.exit_code == 2
    assert done.output.splitlines()[0] == "games: down"
    assert "3, 60 min ago, 500 records" in done.output
    assert "2 failed, 5 refused, 1 unmatched in the last batch" in done.output
    assert "silver.games (its log is damaged)" in done.output


def test_a_stream_without_a_server_is_seen_by_its_lock(run_status: RunStatus, checkpoint: Lake) -> None:
    """Without it a stream that was started without `ui` is reported as down."""
    write_ledger(read_counts(500))
    with hold_run_lock(checkpoint, "games"):
        done = run_status()
        assert (done.exit_code, done.output.splitlines()[0]) == (0, "games: running")
        assert run_status("--max-age", "5 min").exit_code == 2
        document = json.loads(run_status("--max-age", "5 min", "--json").stdout)
        assert (document["verdict"], document["exit_code"]) == ("act", 2)


def test_a_stream_that_drains_its_source_may_be_down(run_status: RunStatus, tmp_path: Path) -> None:
    """Without it a nightly run is reported all day."""
    file = tmp_path / "games.yaml"
    file.write_text(TEXT + "trigger: {once: true}\n")
    write_ledger(read_counts(5))
    assert run_status().exit_code == 0
    assert run_status("--max-age", "10 min").exit_code == 2


def test_what_cannot_be_read_is_named(run_status: RunStatus, checkpoint: Lake, tmp_path: Path) -> None:
    """Without it a damaged note ends the command that is called because something is wrong."""
    checkpoint.write("spark/metadata", b"{")
    document = json.loads(run_status("--json").output)
    assert document["unread"][0].startswith("checkpoint: ")
    (finding,) = [finding for finding in document["findings"] if "checkpoint" in finding["text"]]
    assert (finding["severity"], finding["command"]) == ("look", "router doctor games.yaml")
    assert document["exit_code"] == 2


def test_a_bad_interval_is_refused(run_status: RunStatus) -> None:
    done = run_status("--max-age", "soon")
    assert "is not an interval" in done.output


def test_at_80_columns_no_line_is_longer(run_status: RunStatus, served_board: StatusBoard) -> None:
    """Without it half of a name stands on the next line."""
    waiting = [
        QuarantineStatus(f"silver.a_tournament_of_the_longest_evenings_{n}", "g", "t", "table", 1) for n in range(5)
    ]
    served_board.quarantine_is(waiting)
    shown = run_status(COLUMNS="80", TTY_COMPATIBLE="1", FORCE_COLOR="1").output
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "and 2 more" in shown


def test_the_lag_of_a_stream_that_is_down_is_asked(
    run_status: RunStatus, tmp_path: Path, checkpoint: Lake, broker: EmbeddedKafka
) -> None:
    """Without it nobody sees how much there is to catch up when the stream starts again."""
    topic = "status-of-a-lake"
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.servers})
    for _ in range(5):
        producer.produce(topic, b"{}")
    assert producer.flush(30) == 0
    source = f'{{kafka: {{servers: "{broker.servers}", topics: [{topic}]}}}}'
    (tmp_path / "games.yaml").write_text(TEXT.replace("{files: {path: ./in}}", source))
    checkpoint.write("spark/offsets/0", f"v1\n{{}}\n{json.dumps({topic: {'0': 2}})}".encode())
    checkpoint.write("spark/commits/0", b"v1\n{}")
    document = json.loads(run_status("--json").output)
    assert (document["state"], document["lag"]) == ("down", 3)


VIEWS = """\
views:
  - name: sessions
    from: silver.games
    sql: SELECT game, count(*) AS events FROM source GROUP BY game
    into: gold.sessions
    expect: [{name: many, sql: "events > 5"}]
"""


def session_note() -> Note:
    target = ViewTarget(1, "id", None, 10, {"many": 2})
    return Note(number=1, targets={"gold.sessions": target}, at="2026-01-01T00:00:00+00:00", way="keys", seconds=1.5)


def test_views_and_what_is_expected_are_in_the_document(
    run_status: RunStatus, served_board: StatusBoard, tmp_path: Path
) -> None:
    """Without it a monitor of one's own has to read the notes beside the checkpoint."""
    file = tmp_path / "games.yaml"
    file.write_text(file.read_text() + VIEWS)
    served_board.note_configuration(load_config(file, load_registry(), environ={}).config)
    served_board.view_refreshed("sessions", session_note())
    served_board.carried_out(landed_manifest(0, "silver.games"), {}, {}, committed_by={"silver.games": "Spark"})
    document = json.loads(run_status("--json").output)
    assert document["committers"] == {"silver.games": "Spark"}
    (view,) = document["views"]
    assert (view["targets"], view["way"], view["refreshed"]) == (["gold.sessions"], "keys", "2026-01-01T00:00:00.000Z")
    (expectation,) = document["expectations"]
    assert (expectation["of"], expectation["violated"], expectation["trend"]) == ("view sessions", 2, [])

    served_board.view_failed("sessions", "no column a")
    done = run_status()
    assert (done.exit_code, "Views that cannot be refreshed: sessions" in done.output) == (1, True)


def test_a_lake_says_how_views_were_left(run_status: RunStatus, checkpoint: Lake, tmp_path: Path) -> None:
    """Without it nobody sees, while the stream is down, how old what is made of its tables is."""
    (tmp_path / "games.yaml").write_text(TEXT + VIEWS)
    CheckpointStore(checkpoint).write(view_note_path("sessions"), session_note().to_json())
    document = json.loads(run_status("--json").output)
    assert (document["source"], document["unread"]) == ("lake", [])
    assert (document["views"][0]["rows"], document["views"][0]["checked"]) == (10, None)
    assert document["expectations"][0]["last"] == "2026-01-01T00:00:00.000Z"
