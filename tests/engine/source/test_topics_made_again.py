"""A topic that was deleted and created again: its records have the offsets of others, and none is taken for the next.

Within a partition the offset alone says which record is newer and which was read, so such a topic is never continued.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from router import StartError
from router.config.loader import Loaded, load_config
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.commit.committers import Committers
from router.engine.start.lost_records import LostRecords
from router.engine.status.findings import find_troubles
from router.engine.status.lake_board import LakeBoard
from router.engine.stream import RunOptions, run
from router.registry import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka

REGISTRY = load_registry()


def configured(folder: Path, broker: EmbeddedKafka, source: str) -> Loaded:
    """Return a configuration that keeps the records of topics in one table and in bronze."""
    text = (
        f"name: games\nlake: {folder}/lake\nsource: {{kafka: {{servers: '{broker.servers}', {source}}}}}\n"
        "decode: {json: {schema: 'n INT, of STRING'}}\n"
        "bronze: bronze.all\ndead_letters: ops.dead\ntrigger: {once: true}\n"
        "routes: [{name: all, match: {sql: 'event.n >= 0'}, select: ['event.*', topic], "
        "sinks: [{delta: silver.all}]}]\n"
    )
    file = folder / "games.yaml"
    file.write_text(text)
    return load_config(file, REGISTRY)


def send(broker: EmbeddedKafka, topic: str, rows: int, of: str, *, at: int = 0) -> None:
    """Send records that say of which life of the topic they are; `at` is their time, in ms, 0 now."""
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(rows):
        producer.produce(topic, json.dumps({"n": number, "of": of}).encode(), partition=0, timestamp=at)
    assert producer.flush(30) == 0


def delete(broker: EmbeddedKafka, topic: str) -> None:
    """Delete a topic, if it is there."""
    admin = AdminClient({"bootstrap.servers": broker.servers})
    if topic in admin.list_topics(timeout=5).topics:
        admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 30
    # The name is free a moment after the answer.
    while topic in admin.list_topics(timeout=5).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def create_again(broker: EmbeddedKafka, topic: str, rows: int) -> None:
    """Delete a topic, create it again under its name, and send records to it."""
    delete(broker, topic)
    broker.create_topic(topic)
    send(broker, topic, rows, "second")


def lives(spark: SparkSession, folder: Path, topic: str) -> dict[str, int]:
    """Return how many rows of each life of a topic are in the table."""
    rows = spark.read.format("delta").load(f"{folder}/lake/silver/all").filter(f"topic = '{topic}'")
    return {row["of"]: row["count"] for row in rows.groupBy("of").count().collect()}


def test_a_topic_made_again_is_not_continued(spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Without it the first records of the new topic are lost: they have the offsets of records that were read."""
    broker.create_topic("again-one")
    send(broker, "again-one", 10, "first")
    configuration = configured(tmp_path, broker, "topics: [again-one]")
    run(configuration, REGISTRY, spark)

    create_again(broker, "again-one", 15)
    for _ in range(2):  # at every start
        with pytest.raises(StartError, match=r"games: .*again-one.*another name and checkpoint") as refused:
            run(configuration, REGISTRY, spark)
        assert refused.value.exit_code == 2
    assert lives(spark, tmp_path, "again-one") == {"first": 10}


@pytest.mark.parametrize("source", ["topics: [NAME-a, NAME-b]", "pattern: 'NAME-.*'"], ids=["topics", "pattern"])
def test_other_topics_continue(spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path, source: str) -> None:
    """Without it one topic that somebody made again holds up all others, or lands in part."""
    name = f"again-{source.split(':', maxsplit=1)[0]}"
    for letter in "ab":
        broker.create_topic(f"{name}-{letter}")
        send(broker, f"{name}-{letter}", 10, "first")
    configuration = configured(tmp_path, broker, source.replace("NAME", name))
    run(configuration, REGISTRY, spark)

    create_again(broker, f"{name}-a", 15)
    send(broker, f"{name}-b", 5, "first")
    with pytest.raises(StartError, match=f"{name}-a .*another name and checkpoint"):
        run(configuration, REGISTRY, spark)
    assert lives(spark, tmp_path, f"{name}-a") == {"first": 10}
    assert lives(spark, tmp_path, f"{name}-b") == {"first": 15}

    board = LakeBoard(configuration.config, brief=True)
    board.read_lake()
    snapshot = board.snapshot()
    assert snapshot.held_topics == (f"{name}-a",)
    sentences = [finding.text for finding in find_troubles(snapshot, "games.yaml", 600.0, 0.0)]
    assert any(f"{name}-a was deleted and created again" in sentence for sentence in sentences)

    # A batch later it is still held, though Spark's offsets have passed its records.
    send(broker, f"{name}-a", 1, "second")
    with pytest.raises(StartError, match=f"{name}-a "):
        run(configuration, REGISTRY, spark)
    assert lives(spark, tmp_path, f"{name}-a") == {"first": 10}


def test_a_topic_made_again_while_a_batch_lands(spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Without it the records that a running stream reads from the new topic land as the next ones."""
    for letter in "ab":
        broker.create_topic(f"again-landing-{letter}")
        send(broker, f"again-landing-{letter}", 10, "first")
    configuration = configured(tmp_path, broker, "topics: [again-landing-a, again-landing-b]")
    run(configuration, REGISTRY, spark)
    send(broker, "again-landing-b", 5, "first")
    send(broker, "again-landing-a", 5, "first")

    made: list[int] = []

    def watch(batch: int, step: str, done: int, of: int) -> None:
        if step == "land" and not made:
            made.append(batch)
            create_again(broker, "again-landing-a", 30)

    with pytest.raises(StartError, match=r"again-landing-a .*another name and checkpoint"):
        run(configuration, REGISTRY, spark, RunOptions(watch=watch))
    assert made
    assert lives(spark, tmp_path, "again-landing-a") == {"first": 10}
    assert lives(spark, tmp_path, "again-landing-b") == {"first": 15}


def test_a_lost_checkpoint_does_not_continue_a_topic_made_again(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Without it a start by the ledger continues in the middle of another topic."""
    broker.create_topic("again-lost")
    send(broker, "again-lost", 10, "first")
    configuration = configured(tmp_path, broker, "topics: [again-lost]")
    run(configuration, REGISTRY, spark)
    shutil.rmtree(tmp_path / "lake/_checkpoints", ignore_errors=True)
    shutil.rmtree(configuration.config.checkpoint_path(), ignore_errors=True)

    create_again(broker, "again-lost", 15)
    with pytest.raises(StartError, match=r"again-lost .*another name and checkpoint"):
        run(configuration, REGISTRY, spark, RunOptions(accept={"lost-checkpoint"}))
    assert lives(spark, tmp_path, "again-lost") == {"first": 10}


def test_a_damaged_manifest_of_a_finished_batch_stops_nothing(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Without it a start is refused for a file that is needed no more; or the ids are forgotten with it."""
    broker.create_topic("again-damaged")
    send(broker, "again-damaged", 10, "first")
    configuration = configured(tmp_path, broker, "topics: [again-damaged]")
    run(configuration, REGISTRY, spark)
    for manifest in Path(configuration.config.checkpoint_path()).glob("store/manifests/*/*.json"):
        manifest.write_bytes(b'{"cut')
    send(broker, "again-damaged", 1, "first")
    run(configuration, REGISTRY, spark)
    assert lives(spark, tmp_path, "again-damaged") == {"first": 11}

    for manifest in Path(configuration.config.checkpoint_path()).glob("store/manifests/*/*.json"):
        manifest.write_bytes(b'{"cut')
    create_again(broker, "again-damaged", 15)
    with pytest.raises(StartError, match=r"again-damaged .*another name and checkpoint"):
        run(configuration, REGISTRY, spark)


def test_a_broker_without_ids(
    spark: SparkSession,
    broker: EmbeddedKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it a broker before 2.8, and one that only speaks Kafka's protocol, keep the defect.

    The records that are compared are of the year 55,840: somebody sent microseconds as milliseconds.
    """
    far = 1_700_000_000_000_000
    monkeypatch.setattr("router.engine.topic_ids.TopicIds.current_ids", lambda self, topics: {})
    broker.create_topic("again-no-id", config={"message.timestamp.after.max.ms": str(2**62)})
    send(broker, "again-no-id", 10, "first", at=far)
    configuration = configured(tmp_path, broker, "topics: [again-no-id]")
    run(configuration, REGISTRY, spark)
    send(broker, "again-no-id", 2, "first", at=far)
    run(configuration, REGISTRY, spark)  # the same topic continues

    create_again(broker, "again-no-id", 15)
    with pytest.raises(StartError, match=r"again-no-id .*another name and checkpoint"):
        run(configuration, REGISTRY, spark)
    assert lives(spark, tmp_path, "again-no-id") == {"first": 12}


def test_a_topic_of_a_pattern_that_is_deleted_ends_alone(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it the stream ends at every start, names no topic, and no option helps: all other topics wait for one."""
    for letter in "ab":
        broker.create_topic(f"deleted-{letter}")
        send(broker, f"deleted-{letter}", 10, "first")
    configuration = configured(tmp_path, broker, "pattern: 'deleted-.*'")
    run(configuration, REGISTRY, spark)

    send(broker, "deleted-a", 3, "first")  # which nobody will read
    send(broker, "deleted-b", 5, "first")
    delete(broker, "deleted-a")
    for _ in range(2):  # the second has nothing to read
        run(configuration, REGISTRY, spark)
    assert lives(spark, tmp_path, "deleted-a") == {"first": 10}
    assert lives(spark, tmp_path, "deleted-b") == {"first": 15}
    warnings = [record.getMessage() for record in caplog.records if "deleted-a" in record.getMessage()]
    assert warnings == [
        "games: topic deleted-a was deleted: it was read up to deleted-a/0 10, and what came after that is gone; "
        "the other topics continue"
    ]

    # Somebody makes it again: its records have the offsets of those that were read.
    create_again(broker, "deleted-a", 15)
    with pytest.raises(StartError, match=r"deleted-a .*another name and checkpoint"):
        run(configuration, REGISTRY, spark)
    send(broker, "deleted-b", 1, "first")
    with pytest.raises(StartError, match=r"deleted-a .*another name and checkpoint"):
        run(configuration, REGISTRY, spark)
    assert lives(spark, tmp_path, "deleted-a") == {"first": 10}
    assert lives(spark, tmp_path, "deleted-b") == {"first": 16}


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("step", ["land", "commit"])
def test_a_topic_of_a_pattern_that_is_deleted_while_its_batch_runs(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path, step: str, batch: int
) -> None:
    """Without it a batch that was cut off can never end. What was staged of the topic lands, and its records once."""
    name = f"deleted-{step}-{batch}"
    for letter in "ab":
        broker.create_topic(f"{name}-{letter}")
        send(broker, f"{name}-{letter}", 10, "first")
    # By default each try of a task looks for a partition for two minutes.
    seconds = "kafkaConsumer.pollTimeoutMs: 3000, kafka.default.api.timeout.ms: 3000, kafka.request.timeout.ms: 2000"
    configuration = configured(tmp_path, broker, f"pattern: '{name}-.*', options: {{{seconds}}}")
    if batch:
        run(configuration, REGISTRY, spark)
        for letter in "ab":
            send(broker, f"{name}-{letter}", 5, "first")

    deleted: list[str] = []

    def watch(number: int, at: str, done: int, of: int) -> None:
        if at == "land" and step == "land" and not deleted:
            deleted.append(name)
            delete(broker, f"{name}-a")

    run(configuration, REGISTRY, spark, RunOptions(watch=watch))
    read = 10 + 5 * batch
    if step == "commit":
        # As after a kill: the batch is decided, and Spark has not noted its end.
        for note in Path(configuration.config.checkpoint_path()).rglob(f"*commits/*{batch}*"):
            note.unlink()
        delete(broker, f"{name}-a")
        send(broker, f"{name}-b", 1, "first")
        run(configuration, REGISTRY, spark)
        assert lives(spark, tmp_path, f"{name}-a") == {"first": read}
        read += 1

    assert lives(spark, tmp_path, f"{name}-b") == {"first": read}


def test_a_decided_batch_that_lacks_no_topic_is_left_alone(
    spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Without it a broker that is slow for a minute stops the stream while such a batch ends."""
    broker.create_topic("decided-a")
    send(broker, "decided-a", 10, "first")
    configuration = configured(tmp_path, broker, "pattern: 'decided-.*'")
    run(configuration, REGISTRY, spark)
    for note in Path(configuration.config.checkpoint_path()).rglob("*commits/*0*"):
        note.unlink()

    lake, checkpoint = lake_and_checkpoint(configuration.config)
    committers = Committers.of(configuration.config, spark, lake)
    gone = LostRecords(spark, lake, checkpoint, configuration.config, committers)
    assert gone.pass_over(accepted=False) == []
    with pytest.raises(StartError, match="start without --accept"):
        gone.pass_over(accepted=True)
    run(configuration, REGISTRY, spark)
    assert lives(spark, tmp_path, "decided-a") == {"first": 10}
