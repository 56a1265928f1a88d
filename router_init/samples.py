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
    """A record; a line of a file has no key, and a row no value of its own."""

    value: bytes | None
    key: bytes | None = None


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
    consumer = Consumer(settings)
    try:
        existing = consumer.list_topics(timeout=BROKER_TIMEOUT_SECONDS).topics
        for topic in kafka.topics:
            if topic not in existing:
                raise StartError(f"there is no topic `{topic}`; {suggest_names(topic, sorted(existing))}")
        compacted = _find_compacted(admin, kafka.topics)
        samples = []
        for topic in kafka.topics:
            partitions = [*existing[topic].partitions]
            samples.append(_sample_topic(consumer, topic, partitions, compacted=topic in compacted))
        return samples
    except KafkaException as error:
        raise StartError(f"the brokers at {kafka.servers} do not answer: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _find_compacted(admin: AdminClient, topics: Sequence[str]) -> set[str]:
    """Return which topics keep the newest record of a key only."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    compacted = set()
    for resource, answer in admin.describe_configs(resources, request_timeout=BROKER_TIMEOUT_SECONDS).items():
        with suppress(KafkaException, KeyError):  # who may read a topic need not see how it is set
            if "compact" in answer.result(BROKER_TIMEOUT_SECONDS)["cleanup.policy"].value:
                compacted.add(resource.name)
    return compacted


def _sample_topic(consumer: Consumer, topic: str, partitions: Sequence[int], *, compacted: bool) -> Sample:
    quota = max(1, MOST_RECORDS // (2 * len(partitions)))
    firsts: dict[int, tuple[int, int]] = {}
    lasts: dict[int, tuple[int, int]] = {}
    total = 0
    for partition in partitions:
        begin, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=BROKER_TIMEOUT_SECONDS)
        total += end - begin
        middle = min(end, begin + quota)
        firsts[partition] = (begin, middle)
        lasts[partition] = (max(middle, end - quota), end)
    records = (*_read_spans(consumer, topic, firsts), *_read_spans(consumer, topic, lasts))
    return Sample(topic, records, total, compacted)


def _read_spans(consumer: Consumer, topic: str, spans: dict[int, tuple[int, int]]) -> Iterator[Sampled]:
    """Yield the records of a span of offsets, `[begin, end)`, of each partition."""
    open_partitions = {partition for partition, (begin, end) in spans.items() if begin < end}
    consumer.assign([TopicPartition(topic, partition, spans[partition][0]) for partition in open_partitions])
    until = time.monotonic() + READ_SECONDS
    size = 0
    # One by one: a thousand records of 8 MB would be read before their size is looked at.
    while open_partitions and time.monotonic() < until and size < MOST_BYTES / 2:
        message = consumer.poll(0.2)
        if message is None:
            continue
        partition, offset = message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        _, end = spans[partition]
        if error is not None or offset >= end - 1:
            open_partitions.discard(partition)
        if error is None and offset < end:
            size += len(message.value() or b"")
            yield Sampled(message.value(), message.key())
    consumer.unassign()


def sample_lines(files: Sequence[Path]) -> Sample:
    """Return lines of the first files, and the last ones of the last file; blank ones are none."""
    half = MOST_RECORDS // 2
    of_last_file = _read_lines(files[-1:])
    lines = [*itertools.islice(itertools.chain(_read_lines(files[:-1]), of_last_file), half)]
    lines += deque(of_last_file, half)
    return Sample(join_names([file.name for file in files]), tuple(lines))


def _read_lines(files: Iterable[Path]) -> Iterator[Sampled]:
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                if line.strip():
                    yield Sampled(line.rstrip(b"\r\n"))


def find_files(source: FilesSource) -> list[Path]:
    """Return the files of a source by name; raise StartError if there are none."""
    place = Path(source.path)
    names = [*place.iterdir()] if place.is_dir() else [Path(name) for name in glob.glob(source.path)]  # noqa: PTH207 - an absolute pattern also
    # Spark reads no file whose name begins so.
    files = sorted(file for file in names if file.is_file() and not file.name.startswith((".", "_")))
    if not files:
        raise StartError(f"there is no file in {source.path}: `init` looks at records, so put some there first")
    return files
