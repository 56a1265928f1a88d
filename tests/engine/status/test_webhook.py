"""Somebody hears of troubles: one POST for each change, to a real server, and a stream that waits for none of it."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from router.api.sinks import ApiState
from router.engine.status import webhook
from router.engine.status.webhook import failures_reported
from router.errors import BatchError, ConfigError
from tests.configurations import write_config
from tests.engine.status.boards import batch_report, landed_manifest
from tests.engine.status.receiver import SECRET, Receiver, run_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.config.models import Config
    from router.engine.status.board import StatusBoard

TEXT = """\
name: games
lake: lake
source: {{files: {{path: in}}}}
decode: {{json: "game string"}}
routes: [{{name: a, match: {{sql: "true"}}, sinks: [{{delta: silver.a}}]}}]
dead_letters: ops.dead
on_failure: {{webhook: "{url}"}}
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as server:
        yield server


@pytest.fixture(autouse=True)
def _looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_FINDINGS_LOOK_SECONDS", 0.02)


def config_with_webhook(folder: Path, url: str) -> Config:
    return write_config(folder, TEXT.format(url=url))


def test_a_wait_is_reported_once_and_its_end_too(tmp_path: Path, board: StatusBoard, receiver: Receiver) -> None:
    """Without it somebody gets a message a minute all night, or none."""
    with failures_reported(config_with_webhook(tmp_path, receiver.url), board, "games.yaml"):
        board.enter_state("waiting", "no broker answers at broker:9092")
        receiver.wait_for(1)
        for attempt in range(3):  # each begins a query, and fails
            board.enter_state("running")
            time.sleep(0.06)
            board.enter_state("waiting", f"attempt {attempt}")
            time.sleep(0.06)
        board.note_batch_step(0, "land", 0, 1)
        time.sleep(0.06)
        assert receiver.events() == ["waiting"]
        board.note_report(batch_report(0))
        receiver.wait_for(2)
    assert receiver.events() == ["waiting", "recovered"]
    first = receiver.messages[0]
    assert "no broker answers at broker:9092" in receiver.messages[1]["text"]
    assert (first["query"], first["cause"]) == ("games", "no broker answers at broker:9092")
    (finding,) = first["findings"]
    assert first["text"] == f"games: waiting: {finding['text']}  $ router doctor games.yaml"
    assert "no broker answers at broker:9092" in finding["text"]


def test_an_idle_stream_recovers_after_a_while(
    tmp_path: Path, board: StatusBoard, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a topic without records stays in trouble until morning."""
    monkeypatch.setattr(webhook, "RECOVERED_SECONDS", 0.1)
    with failures_reported(config_with_webhook(tmp_path, receiver.url), board):
        board.enter_state("waiting", "no broker")
        receiver.wait_for(1)
        board.enter_state("running")
        receiver.wait_for(2)
    assert receiver.events() == ["waiting", "recovered"]


def test_sinks_that_cannot_send_are_a_wait(
    tmp_path: Path, board: StatusBoard, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it an API is down all night, its outbox grows, and nobody gets a message."""
    monkeypatch.setattr(webhook, "RECOVERED_SECONDS", 0.2)
    with failures_reported(config_with_webhook(tmp_path, receiver.url), board):
        board.api_is("games/rest", ApiState(circuit_open=True))
        receiver.wait_for(1)
        board.sink_waits("games/http", "no route to host")
        receiver.wait_for(2)
        for _ in range(3):  # a probe comes through, and the circuit opens again
            board.api_is("games/rest", ApiState(circuit_open=False))
            time.sleep(0.06)
            board.api_is("games/rest", ApiState(circuit_open=True))
            time.sleep(0.06)
        assert receiver.events() == ["waiting", "waiting"]
        board.api_is("games/rest", ApiState(circuit_open=False))
        receiver.wait_for(3)
        board.sink_waits("games/http", "")
    assert receiver.events() == ["waiting", "waiting", "recovered", "recovered"]
    causes = [message["cause"] for message in receiver.messages]
    assert "games/rest" in causes[0]
    assert "no route to host" in causes[1]
    assert ("games/rest" in causes[2], "games/http" in causes[3]) == (True, True), "the run ended, and it could send"
    assert "no route to host" in causes[3], "from what it has recovered"


def test_blocked_tables_are_one_message(tmp_path: Path, board: StatusBoard, receiver: Receiver) -> None:
    """Without it lost rights for a folder are five thousand messages."""
    tables = [f"silver.t{number:02d}" for number in range(25)]
    blocked = {f"r/s/{table}": "no rights\n" for table in tables}
    with failures_reported(config_with_webhook(tmp_path, receiver.url), board):
        board.carried_out(landed_manifest(0, *tables, quarantined=blocked), {}, blocked)
        receiver.wait_for(1)
        board.carried_out(landed_manifest(1, *tables), {}, {})
        receiver.wait_for(2)
    assert receiver.events() == ["blocked", "recovered"]
    message = receiver.messages[0]
    assert (len(message["tables"]), message["tables_count"]) == (20, 25)
    assert message["tables"]["silver.t00"] == "no rights\\n"
    assert "silver.t02 and 22 more" in message["text"]
    assert message["text"].endswith("  $ router tables FILE")
    released = receiver.messages[1]
    assert "tables that can be written again: silver.t00, silver.t01, silver.t02 and 22 more" in released["text"]
    assert "no rights" in released["text"]
    assert (released["tables"], released["tables_count"]) == (message["tables"], 25)


def test_an_error_that_ends_a_stream_is_reported(tmp_path: Path, board: StatusBoard, receiver: Receiver) -> None:
    """Without it nobody knows until somebody misses the rows."""
    with pytest.raises(BatchError), failures_reported(config_with_webhook(tmp_path, receiver.url), board):
        raise BatchError("games", 3, "does not balance")
    assert receiver.events() == ["stopped"]
    assert "does not balance" in receiver.messages[0]["cause"]
    assert [finding["command"] for finding in receiver.messages[0]["findings"]] == ["router run FILE"]


def test_a_stream_that_ends_in_order_reports_nothing(tmp_path: Path, board: StatusBoard, receiver: Receiver) -> None:
    with failures_reported(config_with_webhook(tmp_path, receiver.url), board):
        board.enter_state("ended")
    debugging = config_with_webhook(tmp_path, receiver.url).model_copy(update={"debug": True})
    with pytest.raises(BatchError), failures_reported(debugging, board):
        raise BatchError("games", 3, "does not balance")
    assert receiver.messages == []


@pytest.mark.parametrize("answer", [None, 302, 404, 500], ids=str)
def test_a_receiver_that_fails_is_one_warning_without_its_address(
    tmp_path: Path, board: StatusBoard, receiver: Receiver, caplog: pytest.LogCaptureFixture, answer: int | None
) -> None:
    """Without it the address, which lets anybody write there, is in the log."""
    url = receiver.url
    if answer is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}/services/{SECRET}"
    else:
        receiver.answer = answer
    began = time.monotonic()
    blocked = {"r/s/silver.uno": "no rights"}
    with failures_reported(config_with_webhook(tmp_path, url), board):
        board.enter_state("waiting", "no broker")
        while "did not get" not in caplog.text:
            assert time.monotonic() < began + 20
            time.sleep(0.01)
        board.carried_out(landed_manifest(0, "silver.uno", quarantined=blocked), {}, blocked)
    assert caplog.text.count("did not get") == 1, "once, and not for each change"
    assert str(answer or "ConnectionError") in caplog.text
    assert SECRET not in caplog.text
    assert "/services" not in caplog.text


def test_a_slow_receiver_delays_no_batch(
    tmp_path: Path, board: StatusBoard, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a chat that hangs stops the stream."""
    monkeypatch.setattr(webhook, "POST_SECONDS", 0.3)
    receiver.seconds = 1.0
    with failures_reported(config_with_webhook(tmp_path, receiver.url), board):
        board.enter_state("waiting", "no broker")
        receiver.wait_for(1)
        began = time.monotonic()
        for batch in range(100):
            board.note_batch_step(batch, "land", 0, 1)
            board.carried_out(landed_manifest(batch, "silver.uno"), {}, {})
            board.note_report(batch_report(batch))
        assert time.monotonic() - began < 0.3
        ended = time.monotonic()
    assert time.monotonic() - ended < 3


@pytest.mark.parametrize("url", [f"ftp://host/{SECRET}", f"https:///{SECRET}", f"https://[{SECRET}", SECRET])
def test_what_is_no_address_is_refused_without_naming_it(tmp_path: Path, url: str) -> None:
    """Without it the secret is in the log of whoever runs the check."""
    with pytest.raises(ConfigError, match=r"https://HOST/PATH") as refused:
        config_with_webhook(tmp_path, url)
    assert SECRET not in str(refused.value)
