"""The embedded Kafka: a real broker that can be taken away and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from router import StartError
from router_demo.kafka import EmbeddedKafka
from tests.demo.server_lives import assert_ends_with_its_parent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGE = 20_000_000
PARENT = """
import signal, time
from router_demo.kafka import EmbeddedKafka
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background passes on that it is ignored
with EmbeddedKafka() as kafka:
    print(kafka.servers, flush=True)
    time.sleep(600)
"""


def produce(servers: str, topic: str, *values: bytes) -> None:
    refused: list[str] = []
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": LARGE})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: refused.append(str(error)) if error else None)
    assert producer.flush(60) == 0
    assert refused == []


def consume(servers: str, topic: str, count: int) -> list[bytes | str | None]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=60)]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(EmbeddedKafka.stop, id="stopped", marks=pytest.mark.slow),
        pytest.param(EmbeddedKafka.kill, id="killed"),
    ],
)
def test_a_broker_that_comes_back_has_its_port_and_its_data(
    own_broker: EmbeddedKafka, end: Callable[[EmbeddedKafka], None]
) -> None:
    servers, topic = own_broker.servers, f"kept-{end.__name__}"
    own_broker.create_topic(topic)
    produce(servers, topic, b"before")
    end(own_broker)
    try:
        assert not own_broker.running
    finally:
        own_broker.start()
    assert own_broker.servers == servers
    produce(servers, topic, b"after")
    assert consume(servers, topic, 2) == [b"before", b"after"]


def test_a_record_of_8_megabytes_passes(own_broker: EmbeddedKafka) -> None:
    own_broker.create_topic("large")
    value = os.urandom(8_000_000)
    produce(own_broker.servers, "large", b"small", value)
    assert consume(own_broker.servers, "large", 2) == [b"small", value]


def test_a_topic_has_its_partitions_and_settings(own_broker: EmbeddedKafka) -> None:
    own_broker.create_topic("wide", 5, {"max.message.bytes": "1000"})
    with pytest.raises(AssertionError):
        produce(own_broker.servers, "wide", b"x" * 2000)
    assert (
        len(Producer({"bootstrap.servers": own_broker.servers}).list_topics("wide", 10).topics["wide"].partitions) == 5
    )


def test_a_topic_that_exists_is_not_made_again(own_broker: EmbeddedKafka) -> None:
    own_broker.create_topic("once")
    with pytest.raises(KafkaException):
        own_broker.create_topic("once")


def test_only_this_machine_can_reach_it(own_broker: EmbeddedKafka) -> None:
    process = next(child for child in psutil.Process().children() if "kafka.Kafka" in child.cmdline())
    listening = [place.laddr.ip for place in process.net_connections() if place.status == psutil.CONN_LISTEN]
    assert len(listening) == 2
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_broker_has_no_address_before_its_start() -> None:
    with pytest.raises(StartError, match="before its start"):
        _ = EmbeddedKafka().servers


@pytest.mark.slow
def test_a_start_that_fails_shows_the_end_of_the_log_and_leaves_nothing() -> None:
    with pytest.raises(StartError, match=r"num\.partitions"), EmbeddedKafka({"num.partitions": "many"}):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_broker_ends_with_the_process_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    assert_ends_with_its_parent(PARENT, number, tmp_path)
