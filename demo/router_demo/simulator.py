"""Send simulated traffic to a Kafka topic, and count what was sent."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from router import StartError
from router_demo.kafka import await_topic
from router_demo.records import JsonValues, chunks

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from router_demo.games import Record
    from router_demo.records import Chunk
    from router_demo.traffic import Traffic, Values

ANSWER_SECONDS = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sent:
    """What a run sent: what was handed to the producer, and what of it was not delivered.

    `games` counts good events by game, `versions` the same by schema version, `garbage` the rest by kind. `errors`
    counts the records that Kafka did not take, by reason; they are not taken out of the other counts. `bytes` are those
    of the values.
    """

    games: Counter[str]
    garbage: Counter[str]
    errors: Counter[str]
    bytes: int
    seconds: float
    versions: Counter[int] = field(default_factory=Counter)

    @property
    def events(self) -> int:
        """Return how many records were sent, garbage included."""
        return self.games.total() + self.garbage.total()

    @property
    def failed(self) -> int:
        """Return how many records were not delivered."""
        return self.errors.total()

    @property
    def rate(self) -> float:
        """Return the records per second, the wait for the last delivery included."""
        return self.events / self.seconds

    def __add__(self, other: Sent) -> Sent:
        """Return both runs as one."""
        together = {name: Counter(getattr(self, name)) for name in ("games", "garbage", "errors", "versions")}
        for name, counter in together.items():
            counter.update(getattr(other, name))
        return Sent(bytes=self.bytes + other.bytes, seconds=self.seconds + other.seconds, **together)


def simulate(
    servers: str,
    topic: str,
    traffic: Traffic,
    *,
    seconds: float | None = None,
    partitions: int = 4,
    timeout: float = 120.0,
    stop: threading.Event | None = None,
    on_progress: Callable[[int], None] | None = None,
    write: Callable[[Traffic], Values] = JsonValues,
) -> Sent:
    """Send traffic to a topic until it ends, `seconds` are over or `stop` is set; return when all is delivered.

    The topic is made with so many `partitions` when it does not exist. A record that Kafka has not taken after
    `timeout` seconds counts as an error: a broker that comes back before that loses none. `on_progress` gets the number
    of records so far, many times a second. `write` makes the format of the values; what it raises ends the run, with
    all that was sent before delivered. Raises StartError when no broker answers.
    """
    if seconds is not None and traffic.rate is not None and traffic.events is None:
        # Time and rate make a number of records, over which the schema versions are spread.
        traffic = replace(traffic, events=round(seconds * traffic.rate))
    ensure_topic(servers, topic, partitions)
    sent = Sent(Counter(), Counter(), Counter(), bytes=0, seconds=0)
    producer = Producer(_producer_settings(servers, timeout, sent.errors), logger=log)
    begin = time.monotonic()
    size = 0
    try:
        made = chunks(traffic, write)
        for chunk in _pace(made, traffic=traffic, producer=producer, seconds=seconds, stop=stop):
            _produce(producer, topic, chunk.records)
            sent.games.update(chunk.games)
            sent.versions[chunk.version] += chunk.games.total()
            sent.garbage.update(chunk.garbage)
            size += sum(len(value) for _, value, _ in chunk.records if value)
            if on_progress is not None:
                on_progress(sent.events)
    finally:
        # However the run ends, what was sent before is delivered.
        undelivered = producer.flush(timeout + ANSWER_SECONDS)
    if undelivered:
        sent.errors["no answer from the broker"] += undelivered
    return replace(sent, bytes=size, seconds=time.monotonic() - begin)


def send(servers: str, topic: str, records: Iterable[Record], *, partitions: int = 4, timeout: float = 120.0) -> None:
    """Send records to a topic, made with so many `partitions` when it does not exist; return when all is delivered.

    Raises StartError when no broker answers or a record is not delivered.
    """
    ensure_topic(servers, topic, partitions)
    errors: Counter[str] = Counter()
    producer = Producer(_producer_settings(servers, timeout, errors), logger=log)
    _produce(producer, topic, records)
    undelivered = producer.flush(timeout + ANSWER_SECONDS)
    if undelivered:
        errors["no answer from the broker"] += undelivered
    if errors:
        raise StartError(f"topic {topic} at {servers}: {errors.total():,} records were not delivered: {dict(errors)}")


def ensure_topic(servers: str, topic: str, partitions: int) -> None:
    """Create a topic when it does not exist; raise StartError when no broker answers or it refuses."""
    # Silent: the exception says what its log lines would repeat ten times.
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    try:
        if topic not in admin.list_topics(timeout=ANSWER_SECONDS).topics:
            admin.create_topics([NewTopic(topic, partitions)])[topic].result(ANSWER_SECONDS)
            await_topic(admin, topic, partitions)
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        raise StartError(f"topic {topic} at {servers}: {reason.str()}; is the broker up?") from error


def _pace(
    made: Iterable[Chunk], *, traffic: Traffic, producer: Producer, seconds: float | None, stop: threading.Event | None
) -> Iterator[Chunk]:
    """Yield chunks when their time has come, until the run is over."""
    begin = time.monotonic()
    place = 0
    for chunk in made:
        if traffic.rate is not None:
            _wait(producer, begin + place * traffic.step)
        if stop is not None and stop.is_set():
            return
        if seconds is not None and time.monotonic() - begin >= seconds:
            return
        yield chunk
        place += len(chunk.records)


def _producer_settings(servers: str, timeout: float, errors: Counter[str]) -> dict[str, Any]:
    def count(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors[error.str()] += 1

    return {
        "bootstrap.servers": servers,
        # Without it a request that is sent again after a lost answer would put its records twice into the topic.
        "enable.idempotence": True,
        "linger.ms": 20,
        "batch.size": 1 << 20,
        "compression.type": "lz4",
        "message.max.bytes": 16 << 20,
        "message.timeout.ms": int(timeout * 1000),
        "log_level": 3,
        # Every attempt is a line in the log.
        "reconnect.backoff.ms": 1000,
        # A call into Python for every record delivered would halve the rate.
        "delivery.report.only.error": True,
        "on_delivery": count,
    }


def _produce(producer: Producer, topic: str, records: Iterable[Record]) -> None:
    produce = producer.produce
    for key, value, headers in records:
        while True:
            try:
                produce(topic, value, key, headers=headers)
                break
            except BufferError:  # the producer's queue is full until Kafka has taken some of it
                producer.poll(0.1)
    producer.poll(0)


def _wait(producer: Producer, until: float) -> None:
    """Wait for a moment of the monotonic clock, serving deliveries meanwhile."""
    while True:
        seconds_left = until - time.monotonic()
        if seconds_left <= 0:
            return
        producer.poll(min(seconds_left, 0.1))
