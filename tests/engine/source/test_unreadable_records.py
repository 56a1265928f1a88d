"""A record that its source cannot give to Spark: it is a dead letter, and its neighbours are in their tables."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

import router.cli
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.audit.verify import verify_tables
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.source import unreadable
from router.engine.spark import session
from router.engine.stream import RunOptions, run
from tests.engine.parts import Fatal
from tests.engine.source.test_topics_made_again import REGISTRY, configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router_demo.kafka import EmbeddedKafka

FAR = 1_764_280_000_000_000_000
"""Nanoseconds in the place of milliseconds: Spark cannot make a timestamp of it."""
TAKES_FAR = {"message.timestamp.after.max.ms": str(2**63 - 1)}
SCHEMA = "n INT, of STRING"


def send(broker: EmbeddedKafka, topic: str, numbers: range, of: str, *, at: int = 0, partition: int = 0) -> None:
    """Send records as one batch of Kafka; `at` is their time, in ms, 0 now."""
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 100})
    for n in numbers:
        value = json.dumps({"n": n, "of": of}).encode()
        producer.produce(topic, value, key=f"k{n}", headers={"h": b"x"}, partition=partition, timestamp=at)
    assert producer.flush(30) == 0


class Outcome:
    """What a lake has after a run."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.lake = Lake.at(loaded.config.lake)

    def rows(self, table: str, *columns: str) -> list[Any]:
        """Return the rows of a table as texts or tuples, sorted."""
        handle = self.lake.open(table)
        rows = handle.to_pyarrow_table(columns=list(columns)).to_pylist() if handle else []
        return sorted((tuple(row.values()) for row in rows), key=repr)

    def check(self, good: dict[str, range], bad: dict[str, range], *, keeps_values: bool = True) -> list[str]:
        """Hold the lake against what was sent: by kind the numbers. Return the reasons of the dead letters."""
        expected = sorted(((n, of) for of, numbers in good.items() for n in numbers), key=repr)
        assert self.rows("silver.all", "n", "of") == expected
        values = [json.dumps({"n": n, "of": of}).encode() for of, numbers in bad.items() for n in numbers]
        dead = self.rows("ops.dead", "stage", "key", "value", "timestamp", "reason")
        assert {(stage, timestamp) for stage, _, _, timestamp, _ in dead} == {("read", None)}
        assert len(dead) == len(values)
        if keeps_values:
            assert sorted(value for _, _, value, _, _ in dead) == sorted(values)
            assert sorted(key for _, key, _, _, _ in dead) == sorted(f"k{json.loads(v)['n']}".encode() for v in values)
        raw = self.rows("bronze.all", "partition", "offset", "timestamp", "headers")
        assert len(raw) == len(expected) + len(values)
        assert len({place[:2] for place in raw}) == len(raw), "each once"
        assert sum(timestamp is None for *_, timestamp, _ in raw) == len(values)
        for audit in verify_tables(self.loaded.config, contents=True):
            assert not audit.problems, audit
        return [reason for *_, reason in dead]


def test_a_record_of_an_impossible_time_is_a_dead_letter(
    spark: SparkSession,
    broker: EmbeddedKafka,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it one such record stops every table, at every start."""
    broker.create_topic("far-times", 2, config=TAKES_FAR)
    send(broker, "far-times", range(3), "before")
    send(broker, "far-times", range(2), "far", at=FAR)
    send(broker, "far-times", range(4), "after")
    send(broker, "far-times", range(5), "other", partition=1)
    loaded = configured(tmp_path, broker, "topics: [far-times]")
    run(loaded, REGISTRY, spark)

    outcome = Outcome(loaded)
    reasons = outcome.check({"before": range(3), "after": range(4), "other": range(5)}, {"far": range(2)})
    assert all(f"its time is {FAR} ms since 1970" in reason for reason in reasons)
    (line,) = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert line.startswith("games, batch 0: 2 records cannot be read")
    assert "far-times/0, offset 3: its time is" in line

    # The next batch is read as always, and the records go into their table without a time, as those of `decode` do.
    send(broker, "far-times", range(4, 6), "after")
    run(loaded, REGISTRY, spark)
    outcome.check({"before": range(3), "after": range(6), "other": range(5)}, {"far": range(2)})
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    replayed = CliRunner().invoke(router.cli.commands, ["replay", str(loaded.path), "--stage", "read", "--send"])
    assert replayed.exit_code == 0, replayed.output
    assert (0, "far") in outcome.rows("silver.all", "n", "of")
    for audit in verify_tables(loaded.config, contents=True):
        assert not audit.problems, audit


def test_a_producer_of_impossible_times_alone(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit Spark tries every range of such a topic, for hours; the last records are good again."""
    monkeypatch.setattr(unreadable, "RANGE", 10)
    monkeypatch.setattr(unreadable, "RANGES", 2)
    broker.create_topic("far-producer", config=TAKES_FAR)
    send(broker, "far-producer", range(95), "far", at=FAR)
    send(broker, "far-producer", range(30), "good")
    loaded = configured(tmp_path, broker, "topics: [far-producer]")
    tried = []
    tries = unreadable.UnreadableRecords._by_spark

    def counted(self: Any, spans: Any) -> Any:
        tried.append(1)
        return tries(self, spans)

    monkeypatch.setattr(unreadable.UnreadableRecords, "_by_spark", counted)
    run(loaded, REGISTRY, spark)
    Outcome(loaded).check({"good": range(30)}, {"far": range(95)})
    assert len(tried) < 12


def test_a_batch_of_kafka_that_is_damaged_in_the_files_of_the_broker(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Without it a flipped bit on a disk of the broker stops every table, and nobody can mend that disk."""
    topic = f"flipped-{uuid.uuid4().hex[:8]}"  # its folder is found by the name, whoever has started the broker
    broker.create_topic(topic)
    send(broker, topic, range(3), "before")
    send(broker, topic, range(2), "broken")
    send(broker, topic, range(4), "after")
    (segment,) = Path(tempfile.gettempdir()).glob(f"router-kafka-*/data/{topic}-0/*.log")
    content = segment.read_bytes()
    place = content.index(b'"broken"')
    with segment.open("r+b") as file:
        file.seek(place + 1)
        file.write(b"B")
    loaded = configured(tmp_path, broker, f"topics: [{topic}]")
    run(loaded, REGISTRY, spark)
    reasons = Outcome(loaded).check({"before": range(3), "after": range(4)}, {"broken": range(2)}, keeps_values=False)
    assert all("corrupt" in reason for reason in reasons)


@pytest.mark.timeout(1200)  # each try ends four processes, and a busy machine starts them slowly
def test_a_record_that_ends_the_process_which_decodes_it(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Without it a fault in a library below Python stops every table."""
    broker.create_topic("fatal", 2)
    send(broker, "fatal", range(20), "good")
    send(broker, "fatal", range(2), "deadly")
    send(broker, "fatal", range(20, 40), "good")
    send(broker, "fatal", range(40, 60), "good", partition=1)
    loaded = configured(tmp_path, broker, "topics: [fatal]")
    config = loaded.config.model_copy(update={"decode": Fatal(word="deadly", schema_of=SCHEMA)})
    loaded = replace(loaded, config=config)
    run(loaded, REGISTRY, spark)
    outcome = Outcome(loaded)
    dead = outcome.rows("ops.dead", "stage", "value")
    assert dead == [("read", json.dumps({"n": n, "of": "deadly"}).encode()) for n in range(2)]
    assert outcome.rows("silver.all", "n", "of") == [(n, "good") for n in sorted(range(60), key=str)]


def test_a_search_obeys_an_order_to_stop_and_a_note_spares_it(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a stream that searches has to be killed, and searches again after each start."""
    broker.create_topic("far-stop", config=TAKES_FAR)
    send(broker, "far-stop", range(3), "good")
    send(broker, "far-stop", range(1), "far", at=FAR)
    loaded = configured(tmp_path, broker, "topics: [far-stop]")
    stop = threading.Event()
    steps = []

    def watch(batch: int, step: str, done: int, of: int) -> None:
        steps.append(step)
        if step == "search":
            stop.set()

    assert run(loaded, REGISTRY, spark, RunOptions(stop=stop, watch=watch)) == []
    assert "search" in steps

    # A run that is killed while the batch lands without the records: the next one knows them.
    def killed(self: Any, found: unreadable.FoundRecords) -> Any:
        raise ValueError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(unreadable.UnreadableRecords, "frame_with_reasons", killed)
        with pytest.raises(Exception, match="killed here"):
            run(loaded, REGISTRY, spark)
    _, checkpoint = lake_and_checkpoint(loaded.config)
    assert checkpoint.files.get_file_info("store/unreadable").is_file is False

    def never(self: Any) -> Any:
        raise AssertionError("it searches again")

    monkeypatch.setattr(unreadable.UnreadableRecords, "find", never)
    run(loaded, REGISTRY, spark)
    Outcome(loaded).check({"good": range(3)}, {"far": range(1)})


@pytest.mark.timeout(900)
def test_what_reads_the_topic_again_meets_such_a_record_as_the_stream_did(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it tables without bronze cannot be rebuilt, filled or tried, since one record of their topic is bad."""
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    broker.create_topic("far-again", config=TAKES_FAR)
    send(broker, "far-again", range(3), "before")
    send(broker, "far-again", range(2), "far", at=FAR)
    send(broker, "far-again", range(3, 7), "after")
    loaded = configured(tmp_path, broker, "topics: [far-again]")
    sinks = "sinks: [{delta: silver.all}, {upsert: {table: silver.newest, keys: [event.n]}}]"
    text = loaded.path.read_text().replace("bronze: bronze.all\n", "").replace("sinks: [{delta: silver.all}]", sinks)
    text = text.replace("'event.*', topic]", "'event.*', topic, partition, offset]")
    loaded.path.write_text(text)
    good = sorted([*((n, "before") for n in range(3)), *((n, "after") for n in range(3, 7))], key=repr)

    def command(*arguments: str) -> str:
        result = CliRunner().invoke(router.cli.commands, [arguments[0], str(loaded.path), *arguments[1:]])
        assert result.exit_code == 0, result.output
        return result.stdout

    found = json.loads(command("preview", "--json"))
    assert [(letters["stage"], letters["count"]) for letters in found["dead_letters"]] == [("read", 2)]
    assert {table["table"]: table["rows"] for table in found["tables"]} == {"silver.all": 7, "silver.newest": 7}

    loaded = load_config(loaded.path, REGISTRY)
    run(loaded, REGISTRY, spark)
    outcome = Outcome(loaded)
    for table in ("all", "newest"):
        shutil.rmtree(tmp_path / "lake" / "silver" / table)
    command("rebuild", "silver.all", "silver.newest", "--from", "earliest")
    assert outcome.rows("silver.all", "n", "of") == outcome.rows("silver.newest", "n", "of") == good

    loaded.path.write_text(text.replace("[{delta: silver.all}", "[{delta: silver.copy}, {delta: silver.all}"))
    command("backfill", "--from", json.dumps({"far-again": {"0": 0}}), "--to", json.dumps({"far-again": {"0": 9}}))
    assert outcome.rows("silver.copy", "n", "of") == outcome.rows("silver.all", "n", "of") == good
    assert len(outcome.rows("ops.dead", "stage")) == 2
