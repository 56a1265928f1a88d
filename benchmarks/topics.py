"""Topics of the benchmark: produced once, read by every cell that asks for the same events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.discovery import feeds

if TYPE_CHECKING:
    from benchmarks.cells import Cell
    from router_demo.kafka import EmbeddedKafka

SEED = 7


@dataclass(frozen=True)
class Topic:
    """A topic's name, its feed's words on the events, and how many of them each table must get."""

    name: str
    schema: str
    decode: dict[str, Any]
    expected: dict[str, int]


NONE = Topic("", "", {}, {})
"""What a subject gets that reads no topic."""


class Topics:
    """The topics of a broker, filled on first use."""

    def __init__(self, broker: EmbeddedKafka) -> None:
        self._broker = broker
        self._made: dict[str, Topic] = {}

    @property
    def servers(self) -> str:
        """Return the broker's address."""
        return str(self._broker.servers)

    def of(self, cell: Cell) -> Topic:
        """Return the topic of a cell; produce its events first when no cell has used them yet."""
        if not cell.feed:
            return NONE
        name = f"{cell.feed}-{cell.events}-{cell.games}-{cell.partitions}"
        if name not in self._made:
            self._broker.create_topic(name, cell.partitions)
            expected = self._produce(name, cell)
            self._check(name, cell)
            feed = feeds()[cell.feed]
            self._made[name] = Topic(name, feed.schema, feed.decode(), expected)
        return self._made[name]

    def _produce(self, name: str, cell: Cell) -> dict[str, int]:
        # Idempotent, or a retried request would put events twice into the topic and every count would be wrong.
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "linger.ms": 50,
                "batch.size": 1 << 20,
                "enable.idempotence": True,
                "log_level": 3,
            }
        )
        expected: Counter[str] = Counter()
        feed = feeds()[cell.feed]
        for index, (value, table) in enumerate(feed.values(cell.events, cell.games, SEED)):
            key = feed.key(value) if feed.key else None
            _send(producer, name, value, key, partition=index % cell.partitions)
            expected[table] += 1
        producer.flush()
        return dict(expected)

    def _check(self, name: str, cell: Cell) -> None:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "benchmarks"})
        try:
            records = 0
            for partition in range(cell.partitions):
                _, end = consumer.get_watermark_offsets(TopicPartition(name, partition))
                records += end
        finally:
            consumer.close()
        if records != cell.events:
            raise RuntimeError(f"topic {name} holds {records} records, {cell.events} were sent: run again")


def _send(producer: Producer, topic: str, value: bytes, key: bytes | None, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition=partition)
            return
        except BufferError:
            producer.poll(0.1)
