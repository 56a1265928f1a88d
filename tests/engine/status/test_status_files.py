"""What a board learns from files, and from the brokers, without Spark."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake

from router import ApiState, StartError
from router.api.sinks import Applied
from router.config.models import KafkaSource, Metrics, Ui
from router.delta.commit import TableCommit
from router.delta.lake import Lake
from router.delta.staged_files import StagedFile
from router.engine.balance import Partition
from router.engine.checkpoint_store import Manifest
from router.engine.label.layout import DEAD_SCHEMA, QUARANTINE_COLUMNS
from router.engine.ledger import SCHEMA as LEDGER
from router.engine.source import kafka_client
from router.engine.status import board as board_module
from router.engine.status.api_states import ApiStates
from router.engine.status.board import StatusBoard
from router.engine.status.file_reader import StatusFileReader
from router.engine.status.server import StatusServer
from router.engine.status.snapshot import VALUE_LETTERS, DeadLetterStatus
from router.engine.status.source_ends import SourceEnds
from tests.configurations import write_config
from tests.engine.status.boards import fetch

if TYPE_CHECKING:
    from pathlib import Path

    from router.config.models import Config
    from router_demo.kafka import EmbeddedKafka

TEXT = """\
name: games
lake: {folder}/lake
source: {{kafka: {{servers: "127.0.0.1:1", topics: [game-events]}}}}
decode: {{json: "game string, amount double"}}
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    sinks: [{{tables: "silver.{{event.game}}"}}, {{rest: {{url: "http://127.0.0.1:1/wins", receipts: ops.receipts}}}}]
bronze: bronze.all
dead_letters: ops.dead
"""
NOW = datetime.now(timezone.utc)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return write_config(tmp_path, TEXT.format(folder=tmp_path))


@pytest.fixture
def file_board() -> StatusBoard:
    made = StatusBoard("games")
    made.read_files()
    return made


@pytest.fixture
def reader(file_board: StatusBoard, config: Config) -> StatusFileReader:
    return StatusFileReader(file_board, config)


def staged(lake: Lake, target: str, table: str, schema: pa.Schema, rows: list[dict[str, Any]]) -> TableCommit:
    """Write a file of a batch and return its commit."""
    path = f"{table.replace('.', '/')}/part-{time.time_ns()}.parquet"
    lake.files.create_dir(path.rpartition("/")[0], recursive=True)
    blank = dict.fromkeys(schema.names)
    with lake.files.open_output_stream(path) as stream:
        pq.write_table(pa.Table.from_pylist([{**blank, **row} for row in rows], schema), stream)
    file = StagedFile(target, table, path, 10, len(rows), tuple(schema.names), "{}")
    return TableCommit(target, table, f"games:run/{target}/{table}", 0, (file,), "{}")


def manifest(*works: TableCommit, landed: int = 0) -> Manifest:
    part = Partition("game-events", 0, 0, 9, 10, 0, 0, 0, {}, {}, {}, {}, {"games/rest": landed}, {})
    return Manifest(0, "configuration", ("games/rest",), works, (part,))


def test_dead_letters_are_counted_by_their_cause(file_board: StatusBoard, reader: StatusFileReader, lake: Lake) -> None:
    """Without it an operator sees that 2 000 records were refused, and not what to correct."""
    refused = {"stage": "schema", "reason": "amount: double, the table has string", "route": "games", "sink": "delta"}
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    broken = {"stage": "decode", "reason": "no JSON\x1b[31m", "timestamp": yesterday}
    file_board.carried_out(
        manifest(staged(lake, "/dead_letters", "ops.dead", DEAD_SCHEMA, [refused, refused, broken])), {}, {}
    )
    gone = staged(lake, "/dead_letters", "ops.dead", DEAD_SCHEMA, [broken, broken])
    lake.delete(gone.files[0].path)
    file_board.carried_out(manifest(gone), {}, {})
    file_board.carried_out(manifest(), {"games/rest": Applied(0, 4)}, {})
    reader.read_changes()

    found = {(one.stage, one.route, one.reason): one.count for one in file_board.snapshot().dead_letters}
    assert found == {
        ("schema", "games", "amount: double, the table has string"): 2,
        ("decode", "", "no JSON\\x1b[31m"): 1,
        ("unknown", "", None): 2,
        ("apply", "games", None): 4,
    }, "those of a file that maintenance has removed are counted, and those that an API refused"
    last = {one.stage: one.last for one in file_board.snapshot().dead_letters}
    assert last["decode"] == pytest.approx(yesterday.timestamp(), abs=1), "the time of the record"
    assert file_board.snapshot().read["dead_letters"] == pytest.approx(time.time(), abs=60)


def test_a_record_of_a_far_year_is_counted(file_board: StatusBoard, reader: StatusFileReader, lake: Lake) -> None:
    """Without it a producer that sends microseconds as milliseconds hides all dead letters of its batch."""
    far = pa.scalar(1_700_000_000_000_000_000, pa.timestamp("us", "UTC"))
    blank: dict[str, Any] = dict.fromkeys(DEAD_SCHEMA.names)
    rows = pa.Table.from_pylist([{**blank, "stage": "decode", "reason": "no JSON"}], DEAD_SCHEMA)
    place = DEAD_SCHEMA.get_field_index("timestamp")
    rows = rows.set_column(place, DEAD_SCHEMA.field("timestamp"), pa.array([far]).cast(DEAD_SCHEMA.field(place).type))
    work = staged(lake, "/dead_letters", "ops.dead", DEAD_SCHEMA, [{"stage": "decode", "reason": "no JSON"}])
    with lake.files.open_output_stream(work.files[0].path) as stream:
        pq.write_table(rows, stream)
    file_board.carried_out(manifest(work), {}, {})
    reader.read_changes()
    (found,) = file_board.snapshot().dead_letters
    assert (found.stage, found.count) == ("decode", 1)
    assert found.last == pytest.approx(time.time(), abs=60), "a time that no clock has is left out"


def test_dead_letters_of_sinks_are_rows_of_their_table(file_board: StatusBoard, config: Config, lake: Lake) -> None:
    """Without it one page has two numbers of dead letters, and nobody knows which is right."""
    file_board.note_configuration(config)
    letter = {"stage": "decode", "reason": "no JSON"}
    file_board.carried_out(manifest(staged(lake, "/dead_letters", "ops.dead", DEAD_SCHEMA, [letter])), {}, {})
    file_board.note_sent("games/rest", Applied(5, 3))
    (table,) = file_board.snapshot().tables
    assert (table.table, table.rows, table.target) == ("ops.dead", 4, "/dead_letters")


def test_reasons_are_bounded(file_board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a reason that has data in it fills the driver's memory."""
    monkeypatch.setattr(board_module, "REASONS", 2)
    file_board.add_dead_letters(DeadLetterStatus("decode", "", "", f"reason {number}", 1, 0.0) for number in range(5))
    found = {one.reason: one.count for one in file_board.snapshot().dead_letters}
    assert found == {"reason 0": 1, "reason 1": 1, None: 3}


def test_quarantined_rows_are_read_when_they_change(
    file_board: StatusBoard, reader: StatusFileReader, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it rows wait for an approval, and nobody is asked for it."""
    monkeypatch.setattr("router.engine.status.file_reader.QUARANTINE_SECONDS", 0.0)
    reader.read_changes()
    assert file_board.snapshot().quarantined == ()

    row = {"_table": "silver.uno", "_query": "games:run", "_batch_id": 3, "_cause": None}
    own = [*QUARANTINE_COLUMNS.items(), ("_timestamp", pa.timestamp("us", "UTC"))]
    schema = pa.schema([*own, ("amount", pa.string())])
    rows = [{**row, "_timestamp": NOW, "amount": "x"}, {**row, "_timestamp": NOW - timedelta(hours=1), "amount": "y"}]
    write_deltalake(lake.address("quarantine.games__games__tables"), pa.Table.from_pylist(rows, schema))
    reader.read_changes()
    (waiting,) = file_board.snapshot().quarantined
    assert (waiting.table, waiting.rows, waiting.waits_for) == ("silver.uno", 2, "approval")
    assert waiting.oldest == pytest.approx(NOW.timestamp() - 3600, abs=0.001)

    opened: list[str] = []
    monkeypatch.setattr("router.engine.status.file_reader.quarantined_in", lambda *_: opened.append("read") or [])
    reader.read_changes()
    assert opened == [], "what has not changed is not read again"


def test_an_outbox_has_its_rows_of_before_the_start(
    file_board: StatusBoard, reader: StatusFileReader, lake: Lake
) -> None:
    """Without it a restart hides that rows wait since yesterday."""

    def booked(backlog: int, hours_ago: float) -> dict[str, Any]:
        finished = NOW - timedelta(hours=hours_ago)
        counts = {"query": "games", "route": "games", "sink": "rest", "backlog": backlog, "finished": finished}
        return {**dict.fromkeys(LEDGER.names), **counts}

    rows = [booked(10, 30), booked(20, 20), booked(5, 10), booked(-15, 9)]
    write_deltalake(lake.address("ops.ledger"), pa.Table.from_pylist(rows, LEDGER))
    file_board.carried_out(manifest(landed=7), {"games/rest": Applied(0, 0)}, {})
    reader.read_changes()
    (sink,) = file_board.snapshot().sinks
    assert sink.backlog == 27
    assert sink.oldest == pytest.approx((NOW - timedelta(hours=20)).timestamp(), abs=0.001)

    file_board.note_sent("games/rest", Applied(15, 0))
    (sink,) = file_board.snapshot().sinks
    assert (sink.backlog, sink.applied) == (12, 15)
    assert sink.oldest == pytest.approx((NOW - timedelta(hours=10)).timestamp(), abs=0.001)
    file_board.note_sent("games/rest", Applied(12, 0))
    (sink,) = file_board.snapshot().sinks
    assert (sink.backlog, sink.oldest) == (0, None)


def test_a_position_is_known_before_the_first_batch(
    file_board: StatusBoard, reader: StatusFileReader, config: Config
) -> None:
    """Without it the lag is unknown for as long as the first batch of a restart takes."""
    checkpoint = Lake.at(config.checkpoint_path())
    for number, offset in ((0, 5), (1, 20)):
        note = f"v1\n{{}}\n{json.dumps({'game-events': {'0': offset}})}"
        checkpoint.write(f"spark/offsets/{number}", note.encode())
    checkpoint.write("spark/commits/0", b"v1\n{}")
    reader.read_changes()
    (partition,) = file_board.snapshot().partitions
    assert partition.position == 5, "batch 1 has begun, and is not processed"


def test_the_state_of_an_api_is_asked(file_board: StatusBoard, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody sees why an outbox grows, or minutes later: storage that is slow to read delays no answer."""
    monkeypatch.setattr("router.engine.status.api_states._API_LOOK_SECONDS", 0.02)
    answer: list[ApiState | None] = [None]
    monkeypatch.setattr("router_rest.limits.lease_server.api_state", lambda limit: answer[0])
    with ApiStates(config, file_board):
        assert file_board.snapshot().sinks == (), "nothing was sent yet"
        answer[0] = ApiState(True, 0.75)
        deadline = time.monotonic() + 20
        while not file_board.snapshot().sinks:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (sink,) = file_board.snapshot().sinks
    assert (sink.sink, sink.circuit_open, sink.limit_used) == ("rest", True, 0.75)


@pytest.mark.parametrize("shows_records", [False, True], ids=["by default", "samples: true"])
def test_records_are_shown_only_if_the_configuration_says_so(
    file_board: StatusBoard, config: Config, lake: Lake, shows_records: bool
) -> None:
    """Without it whoever reaches the page reads what players have written, or nobody sees what cannot be decoded."""
    letters = []
    for offset, value in enumerate((b"first", None, b"\xff{\x1b[31m" + b"x" * 100_000)):
        record = {"topic": "t", "partition": 1, "offset": offset, "value": value}
        letters.append({"stage": "decode", "reason": "no JSON", **record})
    file_board.carried_out(manifest(staged(lake, "/dead_letters", "ops.dead", DEAD_SCHEMA, letters)), {}, {})
    shown = config.model_copy(update={"ui": Ui(samples=shows_records)})
    StatusFileReader(file_board, shown).read_changes()

    with StatusServer(file_board, Ui(address="127.0.0.1:0"), Metrics()) as server:
        answer = fetch(server, "/api/status?samples=true")
    (found,) = answer.json()["dead_letters"]
    assert found["count"] == 3
    if not shows_records:
        assert found["samples"] == []
        assert "first" not in answer.text
        assert "xxx" not in answer.text
        return
    newest, before = found["samples"]
    assert (newest["topic"], newest["partition"], newest["offset"]) == ("t", 1, 2)
    assert newest["value"].startswith("\\xff{\\x1b[31mxxx")
    assert len(newest["value"]) == VALUE_LETTERS
    assert before["value"] == "", "a record may have no value"


def test_last_answers_are_those_of_a_minute(file_board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it an API that answers 503 since ten minutes looks well, for it has taken a million calls before."""
    readings = [(0, 100, 0), (30, 160, 0), (61, 170, 2), (100, 170, 9)]
    seen = []
    for seconds, ok, failed in readings:
        monkeypatch.setattr(board_module.time, "time", lambda seconds=seconds: 1_700_000_000.0 + seconds)
        file_board.api_is("games/rest", ApiState(False, None, {"ok": ok, "failed": failed}))
        (sink,) = file_board.snapshot().sinks
        seen.append(sink.last_answers)
    assert seen == [{"ok": 0, "failed": 0}, {"ok": 60, "failed": 0}, {"ok": 70, "failed": 2}, {"ok": 10, "failed": 9}]
    assert sink.answers == {"ok": 170, "failed": 9}


def test_the_newest_answer_about_an_end_counts(file_board: StatusBoard) -> None:
    """Without it the lag jumps back to that of the last batch whenever Spark reports one."""
    file_board.source_is_at({("t", 0): 10}, {("t", 0): 50}, read=200.0)
    file_board.source_is_at({("t", 0): 20}, {("t", 0): 30}, read=100.0)
    file_board.source_is_at({("t", 0): 15}, {})
    (partition,) = file_board.snapshot().partitions
    assert (partition.position, partition.end, partition.read, partition.lag) == (20, 50, 200.0, 30)


def kafka(**options: str) -> KafkaSource:
    return KafkaSource(servers="broker:9092", topics=("t",), options={f"kafka.{k}": v for k, v in options.items()})


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        pytest.param({"fetch.max.wait.ms": "5"}, {}, id="no login"),
        pytest.param(
            {"sasl.jaas.config": PLAIN + 'username="ada" password="a\\"b";', "sasl.mechanism": "PLAIN"},
            {"sasl.username": "ada", "sasl.password": 'a"b', "sasl.mechanism": "PLAIN"},
            id="password",
        ),
        pytest.param(
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
            {"ssl.ca.location": "/ca.pem"},
            id="truststore",
        ),
        pytest.param(
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem", "ssl.key.password": "x"},
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem", "ssl.key.password": "x"},
            id="keystore",
        ),
        pytest.param(
            {"ssl.endpoint.identification.algorithm": ""},
            {"ssl.endpoint.identification.algorithm": "none"},
            id="no names",
        ),
    ],
)
def test_options_of_javas_client_are_translated(options: dict[str, str], settings: dict[str, str]) -> None:
    """Without it the lag of a topic behind a login is known once a batch only."""
    assert kafka_client.client_settings(kafka(**options)) == {"bootstrap.servers": "broker:9092", **settings}


@pytest.mark.parametrize(
    "options",
    [
        {"ssl.truststore.location": "/trust.jks"},
        {"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
        {"sasl.oauthbearer.token.endpoint.url": "https://login"},
    ],
    ids=["truststore", "login", "token"],
)
def test_an_option_without_an_equal_is_named(options: dict[str, str]) -> None:
    """Without it a client asks without a login, and is refused ten times a minute."""
    with pytest.raises(StartError, match=next(iter(options))):
        kafka_client.client_settings(kafka(**options))


def test_the_error_about_a_bad_option_has_no_secret() -> None:
    """Without it a password is in the log."""
    bad = {"security.protocol": "s3cret"}
    with pytest.raises(StartError) as caught:
        kafka_client.admin_client(kafka(**bad))
    assert "s3cret" not in str(caught.value)


def test_ends_are_asked_while_no_batch_runs(file_board: StatusBoard, broker: EmbeddedKafka) -> None:
    """Without it the lag stands still for as long as a stream waits for its storage."""
    topic = "status-ends"
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.servers})
    source = KafkaSource(servers=broker.servers, pattern="status-en.s")
    file_board.source_is_at({(topic, 0): 0}, {})
    with SourceEnds(file_board, source, seconds=0.05):
        for expected in (0, 3):
            for _ in range(expected):
                producer.produce(topic, b"x")
            assert producer.flush(30) == 0
            deadline = time.monotonic() + 30
            while file_board.snapshot().lag != expected:
                assert time.monotonic() < deadline, file_board.snapshot().partitions
                time.sleep(0.02)
    assert replace(file_board.snapshot().partitions[0], read=None).end == 3
