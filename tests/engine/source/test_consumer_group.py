"""The group in which lag monitors see how far a stream is: written after each batch, and nobody else's."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition

from router.config.loader import load_config
from router.config.models import KafkaSource
from router.engine.source.consumer_group import ConsumerGroup, refuse_foreign_group
from router.engine.source.kafka_client import admin_client
from router.engine.stream import RunOptions, run
from router.errors import StartError
from router.registry import load_registry
from router_demo.embedded import fetched_once, find_java, resolve
from router_demo.kafka import KAFKA, kafka_jars

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router_demo.kafka import EmbeddedKafka

YAML = """\
name: {name}
lake: {folder}/lake
source: {{kafka: {{servers: "{servers}", topics: [{topic}], commit_group: {group}}}}}
decode: {{json: {{schema: "game string"}}}}
routes:
  - {{name: games, match: {{sql: "event.game IS NOT NULL"}}, sinks: [{{delta: silver.games}}]}}
trigger: {{once: true}}
dead_letters: ops.dead
"""


def loaded(folder: Path, servers: str, group: str, topic: str = "t", name: str = "games") -> Loaded:
    file = folder / f"{name}.yaml"
    file.write_text(YAML.format(folder=folder, servers=servers, group=group, topic=topic, name=name))
    return load_config(file, load_registry(), environ={})


def committed(servers: str, group: str) -> dict[tuple[str, int], int]:
    """Return what a monitor sees of a group."""
    source = KafkaSource(servers=servers, topics=("t",))
    admin = admin_client(source)  # it has to live until the answer is there
    answers = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    partitions = answers[group].result(10).topic_partitions or []
    return {(partition.topic, partition.partition): partition.offset for partition in partitions}


def described(servers: str, group: str) -> list[dict[str, str]]:
    """Return the rows that Kafka's own kafka-consumer-groups prints of a group, by its column names."""
    tools = fetched_once(f"kafka-tools-{KAFKA}", f"the tools of Kafka {KAFKA}", fetch_tools)
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*:{tools}/*"]
    command += ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe"]
    command += ["--bootstrap-server", servers, "--group", group]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    columns = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[columns], line, strict=False)) for line in lines[columns + 1 :]]


def fetch_tools(part: Path) -> Path:
    """Fetch the one jar of Kafka's commands; its dependencies are those of the broker."""
    module = f'<dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA}" transitive="false"/>'
    pattern = "jars/[artifact]-[revision].[ext]"
    resolve("kafka-tools", module, part, "-retrieve", f"{part}/{pattern}", "-types", "jar")
    return part / "jars"


def test_a_batch_is_seen_by_a_monitor(tmp_path: Path, spark: SparkSession, broker: EmbeddedKafka) -> None:
    """Without it the monitor of everybody's lag does not know the stream."""
    topic = "consumer-group"
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.servers})
    for expected in (3, 6):
        for _ in range(3):
            producer.produce(topic, b'{"game": "uno"}')
        assert producer.flush(30) == 0
        registry = load_registry(())
        run(loaded(tmp_path, broker.servers, "monitored", topic), registry, spark, RunOptions())
        assert committed(broker.servers, "monitored") == {(topic, 0): expected}
    for _ in range(2):
        producer.produce(topic, b'{"game": "uno"}')
    assert producer.flush(30) == 0

    (partition,) = described(broker.servers, "monitored")

    assert (partition["TOPIC"], partition["PARTITION"]) == (topic, "0")
    assert (partition["CURRENT-OFFSET"], partition["LOG-END-OFFSET"], partition["LAG"]) == ("6", "8", "2")


def test_offsets_of_another_are_not_overwritten(tmp_path: Path, broker: EmbeddedKafka) -> None:
    """Without it a name that is taken moves the offsets of a consumer, which then loses records."""
    topic = "consumer-group-of-another"
    broker.create_topic(topic)
    config = loaded(tmp_path, broker.servers, "taken", topic).config
    refuse_foreign_group(config)
    with ConsumerGroup(config) as group:
        group.commit({(topic, 0): 5})
    refuse_foreign_group(config)
    others = loaded(tmp_path, broker.servers, "taken", topic, name="others").config
    with pytest.raises(StartError, match="no run of others wrote"):
        refuse_foreign_group(others)

    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "own", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    with pytest.raises(StartError, match="no run of games wrote"):
        refuse_foreign_group(loaded(tmp_path, broker.servers, "own", topic).config)


def test_a_group_with_consumers_is_refused(tmp_path: Path, broker: EmbeddedKafka) -> None:
    """Without it every commit fails, or moves consumers that are at work."""
    topic = "consumer-group-at-work"
    broker.create_topic(topic)
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "at-work", "client.id": "a-consumer"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.2)
    config = loaded(tmp_path, broker.servers, "at-work", topic).config
    try:
        with pytest.raises(StartError, match="a-consumer"):
            refuse_foreign_group(config)
    finally:
        consumer.close()


def test_brokers_that_are_away_delay_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without it a broker that is slow to note offsets holds up each batch."""
    config = loaded(tmp_path, "127.0.0.1:1", "away").config
    with pytest.raises(ConnectionError):
        refuse_foreign_group(config)
    began = time.monotonic()
    with ConsumerGroup(config) as group:
        for offset in range(1000):
            group.commit({("t", 0): offset})
        assert time.monotonic() - began < 1
        while "cannot be committed" not in caplog.text:
            assert time.monotonic() - began < 60
            time.sleep(0.05)
    assert caplog.text.count("cannot be committed") == 1, "once, and not for each batch"


def test_a_debugging_run_commits_nothing(tmp_path: Path) -> None:
    """Without it a trial moves the offsets that a monitor shows."""
    refuse_foreign_group(loaded(tmp_path, "127.0.0.1:1", "away").with_debug_places().config)
