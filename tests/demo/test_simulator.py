"""The simulator against the real broker: what it says it sent is what the topic holds."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from router import StartError
from router_demo.simulate import simulate as command
from router_demo.simulator import simulate
from router_demo.traffic import Traffic

if TYPE_CHECKING:
    from confluent_kafka import Message

    from router_demo.kafka import EmbeddedKafka

NOBODY = "127.0.0.1:9"
"""A port where no Kafka is."""


def read(servers: str, topic: str, count: int) -> list[Message]:
    """Read `count` records from the beginning of a topic, and see that there are no more."""
    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": False})
    consumer.subscribe([topic])
    found: list[Message] = []
    deadline = time.monotonic() + 60
    try:
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.consume(10_000, timeout=1)
        assert consumer.consume(1, timeout=1) == []
    finally:
        consumer.close()
    assert [message.error() for message in found if message.error()] == []
    return found


@retry(retry=retry_if_exception_type(KafkaException), stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True)
def stored(servers: str, topic: str) -> int:
    """Return how many records a topic holds; a broker that was just started may not lead its partitions yet."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1] for number in partitions)
    finally:
        consumer.close()


def test_the_topic_holds_what_was_sent(own_broker: EmbeddedKafka) -> None:
    traffic = Traffic(events=5000, bad=0.02, versions=2)
    sent = simulate(own_broker.servers, "simulated", traffic, partitions=3)
    messages = read(own_broker.servers, "simulated", 5000)
    assert len(messages) == sent.events == 5000
    assert {message.partition() for message in messages} == {0, 1, 2}
    assert sum(message.value() is None for message in messages) == sent.garbage["null"]
    assert sum(len(message.value() or b"") for message in messages) == sent.bytes
    assert sum(b'{"game":"rummy"' in (message.value() or b"")[:15] for message in messages) >= sent.games["rummy"]
    assert Counter(dict(message.headers() or [])["schema-version"] for message in messages) == {b"1": 2500, b"2": 2500}
    assert sent.failed == 0


def test_a_rate_is_kept(own_broker: EmbeddedKafka) -> None:
    sent = simulate(own_broker.servers, "paced", Traffic(rate=500), seconds=2)
    assert sent.events == 1000
    assert sent.rate < 520


def test_it_stops_when_told(own_broker: EmbeddedKafka) -> None:
    stop = threading.Event()

    def stop_at_3000(so_far: int) -> None:
        if so_far >= 3000:
            stop.set()

    sent = simulate(own_broker.servers, "stopped", Traffic(), stop=stop, on_progress=stop_at_3000)
    assert sent.events == 3000
    assert len(read(own_broker.servers, "stopped", 3000)) == 3000


def test_records_the_broker_did_not_take_are_reported(own_broker: EmbeddedKafka) -> None:
    def stop_at_1000(so_far: int) -> None:
        if so_far >= 1000:
            own_broker.stop()

    try:
        sent = simulate(
            own_broker.servers, "lost", Traffic(rate=1000, events=2000), timeout=2, on_progress=stop_at_1000
        )
    finally:
        own_broker.start()
    assert sent.events == 2000
    assert sent.failed > 0
    assert stored(own_broker.servers, "lost") >= sent.events - sent.failed


def test_the_command_prints_what_it_sent(own_broker: EmbeddedKafka) -> None:
    options = ["--servers", own_broker.servers, "--topic", "commanded", "--events", "2000", "--bad", "5%", "--json"]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    summary = json.loads(result.output)
    assert result.exit_code == 0
    assert summary["events"] == 2000
    assert sum(summary["games"].values()) + sum(summary["garbage"].values()) == 2000


def test_the_command_prints_a_table_for_people(own_broker: EmbeddedKafka) -> None:
    options = ["--servers", own_broker.servers, "--topic", "commanded", "--events", "100", "--games", "60"]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    assert "rummy" in result.output
    assert "100 records" in result.output


def test_no_broker_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router_demo.simulator.ANSWER_SECONDS", 1)
    with pytest.raises(StartError, match=NOBODY):
        simulate(NOBODY, "nowhere", Traffic(events=1))


@pytest.mark.parametrize("wrong", [["--bad", "101%"], ["--bad", "some"], ["--start", "noon"], ["--games", "0"]])
def test_wrong_options_are_refused_by_name(wrong: list[str]) -> None:
    result = CliRunner().invoke(command, ["--servers", NOBODY, "--topic", "t", *wrong])
    assert result.exit_code == 2
    assert wrong[0] in result.output
