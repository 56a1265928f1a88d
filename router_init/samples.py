"""Records of topics and of files, a bounded number from the beginning and from the end of each.

Nothing is left behind: partitions are assigned, no group is joined, and no offset is committed.
"""

from __future__ import annotations

import glob
import itertools
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from router.engine.source.kafka_client import SILENT, admin_client, client_settings
from router.errors import StartError, join_names
from router.registry import suggest_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from router.config.models import FilesSource, KafkaSource

MOST_RECORDS = 2000
"""Of a topic, or of all files."""
MOST_BYTES = 16 * 2**20
"""Of the values from one end of a partition: with records of 8 MB there are fewer."""
BROKER_TIMEOUT_SECONDS = 10.0
"""For which a broker is waited for."""
READ_SECONDS = 10.0
"""For which one end of a partition is read: a sample is what has come by then."""
CONSUMER_GROUP = "router-init"
"""What librdkafka wants to be told, though the group is never joined."""


Record = tuple[bytes | None, bytes | None]
"""Key and value; a line of a file has no key, and a row no value of its own."""


@dataclass(frozen=True)
class Sample:
    """Records of one topic, or of files; `total`: how many there are, if that is known without reading them.

    `compacted`: the topic keeps only the newest record of a key.
    """

    name: str
    records: tuple[Record, ...]
    total: int | None = None
    compacted: bool = False

    def __str__(self) -> str:
        of_all = "" if self.total is None else f" of {self.total:,}"
        return f"{self.name}: {len(self.records):,}{of_all} records"


def sample_topics(kafka: KafkaSource) -> list[Sample]:
    """Return a sample of each topic of a source.

    Raises StartError if the brokers do not answer, or have no such topic.
    """
    admin = admin_client(kafka)
    consumer = Consumer({
        **client_settings(kafka),
        "group.id": CONSUMER_GROUP,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        # Ends of partitions are read one after the other: none waits for records that come later.
        "fetch.wait.max.ms": "10",
        "allow.auto.create.topics": "false",
        "auto.offset.reset": "earliest",
        "logger": SILENT,
    })  # fmt: skip
    try:
        existing = consumer.list_topics(timeout=BROKER_TIMEOUT_SECONDS).topics
        for topic in kafka.topics:
            if topic not in existing:
                raise StartError(f"there is no topic `{topic}`; {suggest_names(topic, sorted(existing))}")
        compacted = {topic for topic in kafka.topics if _is_compacted(admin, topic)}
        return [_sample_topic(consumer, topic, [*existing[topic].partitions], compacted) for topic in kafka.topics]
    except KafkaException as error:
        raise StartError(f"the brokers at {kafka.servers} do not answer: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _is_compacted(admin: AdminClient, topic: str) -> bool:
    """Return whether a topic keeps the newest record of a key only."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with suppress(KafkaException, KeyError):  # who may read a topic need not see how it is set
        answer = admin.describe_configs([resource], request_timeout=BROKER_TIMEOUT_SECONDS)[resource]
        return "compact" in answer.result(BROKER_TIMEOUT_SECONDS)["cleanup.policy"].value
    return False


def _sample_topic(consumer: Consumer, topic: str, partitions: Sequence[int], compacted: set[str]) -> Sample:
    quota = max(1, MOST_RECORDS // (2 * len(partitions)))
    records: list[Record] = []
    total = 0
    for number in partitions:
        begin, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=BROKER_TIMEOUT_SECONDS)
        total += end - begin
        middle = min(end, begin + quota)
        records += _read_span(consumer, TopicPartition(topic, number, begin), middle)
        records += _read_span(consumer, TopicPartition(topic, number, max(middle, end - quota)), end)
    return Sample(topic, tuple(records), total, topic in compacted)


def _read_span(consumer: Consumer, partition: TopicPartition, end: int) -> Iterator[Record]:
    """Yield the records of a partition from its offset on, those before the offset `end`."""
    consumer.assign([partition])
    position = partition.offset
    until = time.monotonic() + READ_SECONDS
    size = 0
    while position < end and time.monotonic() < until and size < MOST_BYTES:
        for message in consumer.consume(end - position, timeout=0.2):
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # The end of a partition has an offset also: the last records may have been compacted away.
            position = (message.offset() or 0) + 1
            if error is None and position <= end:
                size += len(message.value() or b"")
                yield message.key(), message.value()


def sample_lines(files: Sequence[Path]) -> Sample:
    """Return lines of the first files, and the last ones of the last file; blank ones are none."""
    half = MOST_RECORDS // 2
    of_last_file = _read_lines(files[-1:])
    lines = [*itertools.islice(itertools.chain(_read_lines(files[:-1]), of_last_file), half)]
    lines += deque(of_last_file, half)
    return Sample(join_names([file.name for file in files]), tuple(lines))


def _read_lines(files: Iterable[Path]) -> Iterator[Record]:
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                if line.strip():
                    yield None, line.rstrip(b"\r\n")


def find_files(source: FilesSource) -> list[Path]:
    """Return the files of a source by name; raise StartError if there are none."""
    place = Path(source.path)
    names = [*place.iterdir()] if place.is_dir() else [Path(name) for name in glob.glob(source.path)]  # noqa: PTH207 - an absolute pattern also
    # Spark reads no file whose name begins so.
    files = sorted(file for file in names if file.is_file() and not file.name.startswith((".", "_")))
    if not files:
        raise StartError(f"there is no file in {source.path}: `init` looks at records, so put some there first")
    return files
