"""Read topics to their end, as a consumer would."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Got:
    """A record as it is in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def header(self, name: str) -> str | None:
        """Return the text of a header, of which there may be one only."""
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1
        return found[0].decode() if found and found[0] is not None else None

    @property
    def origin(self) -> tuple[Any, ...]:
        """Return what a consumer knows a record by that was sent twice."""
        return tuple(self.header(f"router.{name}") for name in ("query", "sink", "topic", "partition", "offset"))


def read_topic(servers: str, topic: str, login: Mapping[str, str] | None = None) -> list[Got]:
    """Return all records of a topic, by partition and offset."""
    settings = {"bootstrap.servers": servers, "group.id": "test", "enable.partition.eof": "false", **(login or {})}
    consumer = Consumer(settings)
    found: list[Got] = []
    try:
        ends = _ends(consumer, topic)
        consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one, end in ends.items() if end])
        deadline = time.monotonic() + 60
        while len(found) < sum(ends.values()) and time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=0.5):
                assert message.error() is None, message.error()
                headers = tuple(message.headers() or ())
                found.append(Got(message.partition(), message.offset(), message.key(), message.value(), headers))
            reached = defaultdict(int, {one.partition: one.offset for one in consumer.position(consumer.assignment())})
            if all(reached[one] >= end for one, end in ends.items() if end):  # control records have offsets, too
                break
    finally:
        consumer.close()
    return sorted(found, key=lambda one: (one.partition, one.offset))


@retry(retry=retry_if_exception_type(KafkaException), stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True)
def _ends(consumer: Consumer, topic: str) -> dict[int, int]:
    """Return the end of each partition; a broker that was just started may not lead its partitions yet."""
    known = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    return {one: consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=20)[1] for one in known}


def topics_of(servers: str) -> set[str]:
    """Return the names of all topics."""
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=20).topics)


def delete_topic(servers: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic], operation_timeout=60)[topic].result(60)
