"""Records of topics and of files, a bounded number from the beginning and from the end of each.

Nothing is left behind: partitions are assigned, no group is joined, and no offset is committed.
"""

from __future__ import annotations

import glob
import itertools
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

from router.engine.source.kafka_client import SILENT, admin_client, client_settings
from router.errors import StartError, join_names
from router.registry import suggest_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from confluent_kafka.admin import AdminClient

    from router.config.models import FilesSource, KafkaSource

MOST_RECORDS = 2000
"""Of a topic, or of all files."""
MOST_BYTES = 64 * 2**20
"""Of the values of a topic's sample: with records of 8 MB there are fewer."""
BROKER_TIMEOUT_SECONDS = 10.0
"""For which a broker is waited for."""
READ_SECONDS = 30.0
"""After which a sample is what has come."""
CONSUMER_GROUP = "router-init"
"""What librdkafka wants to be told, though the group is never joined."""


@dataclass(frozen=True)
class Sampled:
    """A record; of a file the topic is its path, and there is no key."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Sample:
    """Records of one topic, or of files; `total`: how many there are, if that is known without reading them.

    `compacted`: the topic keeps only the newest record of a key.
    """

    name: str
    records: tuple[Sampled, ...]
    total: int | None = None
    compacted: bool = False

    def __str__(self) -> str:
        of_all = "" if self.total is None else f" of {self.total:,}"
        return f"{self.name}: {len(self.records):,}{of_all} records"


def sample_topics(kafka: KafkaSource) -> list[Sample]:
    """Return a sample of each topic of a source.

    Raises StartError if the brokers do not answer, or have no such topic.
    """
    settings = {
        **client_settings(kafka),
        "group.id": CONSUMER_GROUP,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "allow.auto.create.topics": "false",
        "auto.offset.reset": "earliest",
        "logger": SILENT,
    }
    admin = admin_client(kafka)
    partitions = _find_partitions(admin, kafka)
    compacted = _find_compacted(admin, kafka.topics)
    consumer = Consumer(settings)
    samples = []
    try:
        for topic, numbers in partitions.items():
            sample = _sample_topic(consumer, topic, numbers)
            samples.append(replace(sample, compacted=topic in compacted))
    except KafkaException as error:
        raise StartError(f"the brokers at {kafka.servers} do not give records: {error.args[0].str()}") from None
    finally:
        consumer.close()
    return samples


def _find_partitions(admin: AdminClient, kafka: KafkaSource) -> dict[str, list[int]]:
    """Return the partitions of each topic; raise StartError for those that are not there."""
    try:
        known = admin.list_topics(timeout=BROKER_TIMEOUT_SECONDS).topics
    except KafkaException as error:
        raise StartError(f"the brokers at {kafka.servers} do not answer: {error.args[0].str()}") from None
    for topic in kafka.topics:
        if topic not in known:
            raise StartError(f"there is no topic `{topic}`; {suggest_names(topic, sorted(known))}")
    return {topic: [*known[topic].partitions] for topic in kafka.topics}


def _find_compacted(admin: AdminClient, topics: Sequence[str]) -> set[str]:
    """Return which topics keep the newest record of a key only."""
    resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
    answers = admin.describe_configs([*resources.values()], request_timeout=BROKER_TIMEOUT_SECONDS)
    compacted = set()
    for topic, resource in resources.items():
        try:
            policy = answers[resource].result(BROKER_TIMEOUT_SECONDS)["cleanup.policy"].value
        except (KafkaException, KeyError):
            continue  # who may read a topic need not see how it is set
        if "compact" in policy:
            compacted.add(topic)
    return compacted


def _sample_topic(consumer: Consumer, topic: str, partitions: Sequence[int]) -> Sample:
    quota = max(1, MOST_RECORDS // (2 * len(partitions)))
    firsts: dict[int, tuple[int, int]] = {}
    lasts: dict[int, tuple[int, int]] = {}
    total = 0
    for partition in partitions:
        begin, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=BROKER_TIMEOUT_SECONDS)
        total += end - begin
        middle = min(end, begin + quota)
        if begin < end:
            firsts[partition] = (begin, middle)
        if middle < end:
            lasts[partition] = (max(middle, end - quota), end)
    records = list(_read_spans(consumer, topic, firsts))
    records += _read_spans(consumer, topic, lasts)
    return Sample(topic, tuple(records), total)


def _read_spans(consumer: Consumer, topic: str, spans: dict[int, tuple[int, int]]) -> Iterator[Sampled]:
    """Yield the records of a span of offsets, `[begin, end)`, of each partition."""
    open_partitions = {*spans}
    consumer.assign([TopicPartition(topic, partition, begin) for partition, (begin, _) in spans.items()])
    until = time.monotonic() + READ_SECONDS
    size = 0
    while open_partitions and time.monotonic() < until and size < MOST_BYTES / 2:
        for message in consumer.consume(1000, timeout=0.2):
            partition, offset = message.partition() or 0, message.offset() or 0
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            _, end = spans[partition]
            if error is not None or offset >= end - 1:
                open_partitions.discard(partition)
            if error is None and offset < end:
                size += len(message.value() or b"")
                yield Sampled(topic, message.value(), message.key(), partition, offset)
    consumer.unassign()


def sample_lines(files: Sequence[Path]) -> Sample:
    """Return lines of the first files, and the last ones of the last file; blank ones are none."""
    half = MOST_RECORDS // 2
    lines = list(itertools.islice(_read_lines(files), half))
    read = {(line.topic, line.offset) for line in lines}
    lines += [line for line in deque(_read_lines(files[-1:]), half) if (line.topic, line.offset) not in read]
    return Sample(join_names([file.name for file in files[:3]]), tuple(lines))


def _read_lines(files: Iterable[Path]) -> Iterator[Sampled]:
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield Sampled(str(file), line.rstrip(b"\r\n"), offset=number)


def find_files(source: FilesSource) -> list[Path]:
    """Return the files of a source by name; raise StartError if there are none."""
    place = Path(source.path)
    names = [*place.iterdir()] if place.is_dir() else [Path(name) for name in glob.glob(source.path)]  # noqa: PTH207 - an absolute pattern also
    # Spark reads no file whose name begins so.
    files = sorted(file for file in names if file.is_file() and not file.name.startswith((".", "_")))
    if not files:
        raise StartError(f"there is no file in {source.path}: `init` looks at records, so put some there first")
    return files
