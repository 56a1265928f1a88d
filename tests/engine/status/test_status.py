"""What a stream shows of itself, without Spark: the board, the server and the metrics."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import requests
from pydantic import SecretStr, ValidationError

from router.api.sinks import ApiState, Applied
from router.config.models import Metrics, Ui
from router.engine.balance import Partition
from router.engine.checkpoint_store import Manifest
from router.engine.land.record_ages import BatchAges
from router.engine.status import board as board_module
from router.engine.status.board import StatusBoard
from router.engine.status.metrics import OTHERS
from router.engine.status.server import StatusServer
from router.engine.stream import _by_partition, _records_behind
from tests.engine.status.boards import batch_report, fetch, landed_manifest, metric_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.engine.status.snapshot import SinkStatus

ANY_PORT = "127.0.0.1:0"


def batch_of(batch: int, landed: int) -> Manifest:
    """Return a batch that has put rows into the outbox of r/api."""
    part = Partition("events", 0, 0, 0, landed, 0, 0, 0, {"r": landed}, {}, {}, {}, {"r/api": landed}, {}, {})
    return Manifest(batch, "configuration", ("r/api",), (), (part,))


@pytest.fixture
def server(board: StatusBoard) -> Iterator[StatusServer]:
    with StatusServer(board, Ui(address=ANY_PORT), Metrics()) as made:
        yield made


def test_a_batch_is_seen_in_status_and_metrics(board: StatusBoard, server: StatusServer) -> None:
    """Without it nobody sees how fast a stream is, or that a table has got nothing since yesterday."""
    board.carried_out(landed_manifest(0, "silver.uno", "silver.go"), {"r/api": Applied(2, 1)}, {})
    board.note_report(batch_report(0))
    board.carried_out(landed_manifest(1, "silver.uno"), {}, {})
    board.note_report(batch_report(1))
    board.source_is_at({}, {("events", 0): 25, ("events", 1): 8})

    said = fetch(server, "/api/status").json()
    assert (said["state"], said["words"], said["lag"]) == ("running", "running, 5 records behind", 5)
    assert {table["table"]: (table["rows"], table["batch"]) for table in said["tables"]} == {
        "silver.uno": (6, 1),
        "silver.go": (3, 0),
    }
    assert [batch["batch"] for batch in said["batches"]] == [1, 0]
    assert [(part["partition"], part["position"], part["lag"]) for part in said["partitions"]] == [
        (0, 20, 5),
        (1, None, None),
    ], "where a partition was never read its lag is not known"
    metrics = metric_samples(board)
    assert metrics["router_records_total", "outcome=read"] == 20
    assert metrics["router_records_total", "outcome=dead_letters"] == 6
    assert metrics["router_route_rows_total", "outcome=landed,route=r"] == 12
    assert metrics["router_source_lag_records", "partition=0,topic=events"] == 5
    assert ("router_source_lag_records", "partition=1,topic=events") not in metrics
    assert metrics["router_table_rows_total", "table=silver.uno"] == 6
    assert metrics["router_sink_rows_total", "outcome=dead,route=r,sink=api"] == 1
    assert metrics["router_batches_total", ""] == 2
    assert metrics["router_batch_step_seconds_count", "step=land"] == 2
    assert metrics["router_batch_step_seconds_bucket", "le=1.0,step=land"] == 0
    assert metrics["router_batch_step_seconds_bucket", "le=2.5,step=land"] == 2
    assert metrics["router_batch_step_seconds_sum", "step=land"] == 3.0
    assert metrics["router_state", "state=running"] == 1


def test_rows_that_a_sink_has_sent_count_while_its_batch_runs(board: StatusBoard) -> None:
    """Without it a sink that sends a million rows for an hour looks like one that sends none."""

    def shown() -> tuple[int, int, int]:
        (sink,) = board.snapshot().sinks
        return sink.applied, sink.sending, sink.backlog

    def delivered(rows: int, other: int = 0) -> None:
        board.api_is("r/api", ApiState(delivered={"games/r/api": rows, "games/r/other": other}))

    board.carried_out(batch_of(0, landed=1000), {"r/api": Applied()}, {})
    delivered(200, other=5000)
    assert shown() == (0, 200, 800), "another sink of the limit is another one"
    delivered(900)
    board.carried_out(batch_of(1, landed=50), {"r/api": Applied()}, {})
    assert shown() == (0, 900, 150), "a batch of the stream is not the end of one of the sink"
    board.note_sent("r/api", Applied(995, 5))
    assert shown() == (995, 0, 50), "no row counts twice"
    delivered(995)
    assert shown() == (995, 0, 50)
    delivered(1030)
    assert shown() == (995, 35, 15)
    delivered(7)
    assert shown() == (995, 0, 50), "a limit that is stated otherwise begins to count again"
    delivered(2000)
    assert shown()[2] == 0, "rows that were sent twice leave no backlog below zero"


def test_a_call_that_times_out_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it all is well while an API takes connections and never answers."""
    clock = [100.0]
    monkeypatch.setattr(board_module.time, "time", lambda: clock[0])
    board = StatusBoard("games")

    def sink_after(seconds: float, *, is_open: bool = False, **answers: int) -> SinkStatus:
        clock[0] += seconds
        board.api_is("r/api", ApiState(is_open, answers={"ok": 0, "timed out": 0, **answers}))
        (sink,) = board.snapshot().sinks
        return sink

    taken = sink_after(1, ok=1)
    first = sink_after(30, ok=1, **{"timed out": 1})
    more = sink_after(30, ok=1, is_open=True, **{"timed out": 2})
    again = sink_after(30, ok=2, **{"timed out": 2})

    assert (taken.called, taken.failing) == (101.0, None)
    assert (first.called, first.failing, first.fails_since) == (101.0, 131.0, None)
    assert (more.called, more.failing, more.fails_since) == (101.0, 131.0, 131.0)
    assert (again.called, again.failing, again.fails_since) == (191.0, None, None)


def test_freshness_is_the_age_when_the_commit_ended(board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a table whose records come late looks as fresh as the others."""
    now = 1_700_000_000.0
    ages = BatchAges(pa.array([now - 40.0, now - 400.0], pa.float64()).cast(pa.int64()).cast(pa.timestamp("s")), now)
    by_place = {
        "r/s/silver.uno": ages.of_rows(None),
        "r/s/silver.go": ages.of_rows(np.array([1])),
        "r/s/silver.bad": ages.of_rows(None),
    }
    board.note_ages(0, now, by_place)
    monkeypatch.setattr(board_module, "FRESH_SECONDS", 7200.0)
    monkeypatch.setattr(board_module.time, "time", lambda: now + 25)
    board.note_batch_step(0, "commit", 3, 3)
    monkeypatch.setattr(board_module.time, "time", lambda: now + 3600)
    quarantined = {"r/s/silver.bad": "no rights"}
    board.carried_out(
        landed_manifest(0, "silver.uno", "silver.go", "silver.bad", quarantined=quarantined), {}, quarantined
    )

    newest = {table.table: table.newest_record for table in board.snapshot().tables}
    assert newest == {"silver.uno": now - 40, "silver.go": now - 400, "silver.bad": None}
    freshness = board.snapshot().freshness
    assert freshness is not None
    assert freshness.counts[-2:] == (3, 40 + 400 + 400 + 3 * 25), "an API that is slow makes no table less fresh"
    metrics = metric_samples(board)
    assert metrics["router_freshness_seconds_count", ""] == 3
    assert metrics["router_freshness_seconds_bucket", "le=30.0"] == 0
    assert metrics["router_freshness_seconds_bucket", "le=300.0"] == 1
    assert metrics["router_table_newest_record_timestamp_seconds", "table=silver.go"] == now - 400

    board.carried_out(landed_manifest(1, "silver.uno"), {}, {})
    assert board.snapshot().freshness == freshness, "a batch that another process has staged has no ages"
    assert freshness.recent == freshness.counts
    monkeypatch.setattr(board_module, "FRESH_SECONDS", 300.0)
    later = board.snapshot().freshness
    assert later is not None
    assert (later.counts, later.recent[-2:]) == (freshness.counts, (0, 0.0)), "of five minutes, and not since the start"


def test_a_blocked_table_is_named_until_it_can_be_written(board: StatusBoard) -> None:
    """Without it rows are quarantined for a week before somebody looks."""
    blocked = {"r/s/silver.uno": "its log is damaged"}
    board.carried_out(landed_manifest(0, "silver.uno", quarantined=blocked), {}, blocked)
    (table,) = board.snapshot().tables
    assert (table.blocked, table.rows) == ("its log is damaged", 0)
    assert metric_samples(board)["router_blocked_tables", ""] == 1

    board.carried_out(landed_manifest(1, "silver.uno"), {}, {})
    (table,) = board.snapshot().tables
    assert (table.blocked, table.rows) == ("", 3)


def test_a_wait_has_a_cause_until_a_batch_goes_on(board: StatusBoard, server: StatusServer) -> None:
    """Without it an operator sees that nothing comes, and not why."""
    board.enter_state("waiting", "no broker answers at 127.0.0.1:9092")
    since = board.snapshot().since
    board.enter_state("waiting", "no broker answers at 127.0.0.1:9092")
    assert board.snapshot().since == since, "it waits since the first try"
    assert fetch(server, "/healthz").status_code == 200, "what it waits for has a name"
    assert fetch(server, "/readyz").status_code == 503
    assert "no broker answers" in fetch(server, "/healthz").text

    board.note_batch_step(3, "land", 0, 1)
    assert (board.snapshot().state, board.snapshot().cause) == ("running", "")
    assert fetch(server, "/readyz").status_code == 200


def test_a_stream_that_makes_no_step_is_unhealthy(board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a stream whose JVM is stuck is never restarted."""
    board.note_batch_step(3, "land", 0, 1)
    with StatusServer(board, Ui(address=ANY_PORT, stuck_after="10 min"), Metrics()) as server:
        assert fetch(server, "/healthz").status_code == 200
        now = board_module.time.time()
        monkeypatch.setattr("router.engine.status.server.time.time", lambda: now + 601)
        answer = fetch(server, "/healthz")
        assert answer.status_code == 503
        assert "batch 3, land" in answer.text
        assert fetch(server, "/readyz").status_code == 503
        monkeypatch.undo()
        board.enter_state("failed", "the batch does not balance")
        assert fetch(server, "/healthz").status_code == 503


def test_warnings_are_kept_and_escaped(board: StatusBoard) -> None:
    """Without it the cause of last night's trouble is in a log that nobody has any more."""
    logger = logging.getLogger("router")
    with board.keep_warnings():
        logger.warning("%s went away", "table\x1b[31m")
        logger.info("nothing of interest")
    logger.warning("not listened to")
    (warned,) = board.snapshot().warnings
    assert (warned.level, warned.message) == ("warning", "table\\x1b[31m went away")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:4480", 200),
        ("[::1]:4480", 200),
        ("games.example.org", 200),
        ("evil.example.org", 421),
        ("127.0.0.1.evil.example.org", 421),
        ("", 421),
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(board: StatusBoard, host: str, status: int) -> None:
    """Without it a page of another site reads the status by a name that points to this machine."""
    with StatusServer(board, Ui(address=ANY_PORT, hosts=("games.example.org",)), Metrics()) as server:
        for path in ("/api/status", "/metrics"):
            assert fetch(server, path, Host=host).status_code == status
        assert fetch(server, "/healthz", Host=host).status_code == 200, "whoever probes a container knows no name"


def test_nothing_but_health_is_read_without_the_token(board: StatusBoard) -> None:
    """Without it everybody in the network reads which tables there are."""
    with StatusServer(board, Ui(address=ANY_PORT, token=SecretStr("s3cret")), Metrics()) as server:
        for path in ("/api/status", "/metrics"):
            assert fetch(server, path).status_code == 401
            assert fetch(server, path, Authorization="Bearer s3cre").status_code == 401
            assert fetch(server, path, Authorization="s3cret").status_code == 401
            assert fetch(server, f"{path}?token=s3cret").status_code == 401
            assert fetch(server, path, Authorization="Bearer s3cret").status_code == 200
        assert fetch(server, "/healthz").status_code == 200
        assert fetch(server, "/readyz").status_code == 200


def test_only_get_is_answered_and_nothing_is_stored(server: StatusServer) -> None:
    """Without it a proxy shows the state of an hour ago."""
    assert server.address is not None
    address = "http://{}:{}/api/status".format(*server.address)
    assert requests.post(address, timeout=10).status_code == 405
    assert fetch(server, "/nothing").status_code == 404
    answer = fetch(server, "/api/status")
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_taken_port_is_a_warning(board: StatusBoard, caplog: pytest.LogCaptureFixture) -> None:
    """Without it a stream does not start because another one shows itself at the same port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with StatusServer(board, Ui(address=address), Metrics()) as server:
            assert server.address is None
    assert "cannot be served" in caplog.text


def test_an_address_that_others_reach_needs_a_token() -> None:
    """Without it the status of a stream is open to a network by a line of YAML."""
    for address in ("0.0.0.0:4480", "[::]:4480", "10.1.2.3:80", "router.example.org:80"):
        with pytest.raises(ValidationError, match="token"):
            Ui(address=address)
        assert Ui(address=address, token=SecretStr("x")).host_and_port[1] in (4480, 80)
    for address in ("127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1:80"):
        with pytest.raises(ValidationError):
            Ui(address=address)


def test_series_of_tables_are_bounded(board: StatusBoard) -> None:
    """Without it a monitor ends for want of memory at a stream with tables by the thousand."""
    for batch in range(5):
        board.carried_out(landed_manifest(batch, f"silver.t{batch}"), {}, {})
    metrics = metric_samples(board, at_most=2)
    rows = {labels: value for (name, labels), value in metrics.items() if name == "router_table_rows_total"}
    assert rows == {"table=silver.t4": 3, "table=silver.t3": 3, f"table={OTHERS}": 9}


def test_hostile_names_stay_labels(board: StatusBoard) -> None:
    """Without it a name from the data writes series of its own."""
    name = 'silver.a"b\nrouter_state{state="failed"} 1'
    board.carried_out(landed_manifest(0, name), {}, {})
    metrics = metric_samples(board)
    assert metrics["router_table_rows_total", f"table={name}"] == 3
    assert metrics["router_state", "state=failed"] == 0


def test_offsets_that_spark_does_not_know_are_none() -> None:
    """Without it a stream ends at the first batch after a crash, for the sake of its status."""
    progress = {
        "metrics": {"maxOffsetsBehindLatest": "2"},
        "endOffset": {"events": {"0": 7, "1": 9}},
        "latestOffset": {"events": {"0": 9, "1": 9, "2": 4}},
    }
    assert _by_partition(progress["endOffset"]) == {("events", 0): 7, ("events", 1): 9}
    assert _by_partition(None) == {}
    assert _records_behind({"sources": [progress]}) == 6
    assert (
        _records_behind({"sources": [{"metrics": {}, "endOffset": {"events": {"0": 7}}, "latestOffset": None}]}) is None
    )
    assert _records_behind({"sources": [{"endOffset": {"logOffset": 3}, "latestOffset": None}]}) is None
