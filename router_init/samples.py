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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    offsets = {}
    ends = {}
    for partition in partitions:
        begin, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=BROKER_TIMEOUT_SECONDS)
        offsets[partition] = begin
        ends[partition] = end
    total = sum(ends.values()) - sum(offsets.values())
    middles = {partition: min(end, offsets[partition] + quota) for partition, end in ends.items()}
    records = [*_read_spans(consumer, topic, offsets, middles)]
    # What large records left of the beginning is a part of the end, if there are few.
    for partition, end in ends.items():
        offsets[partition] = max(offsets[partition], end - quota)
    records += _read_spans(consumer, topic, offsets, ends)
    return Sample(topic, tuple(records), total, topic in compacted)


def _read_spans(consumer: Consumer, topic: str, offsets: dict[int, int], ends: Mapping[int, int]) -> Iterator[Record]:
    """Yield the records of each partition from its offset to its end, and move its offset on."""
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
    until = time.monotonic() + READ_SECONDS
    size = 0
    # One by one: a thousand records of 8 MB would be read before their size is looked at.
    while offsets != ends and time.monotonic() < until and size < MOST_BYTES / 2:
        message = consumer.poll(0.2)
        if message is None:
            continue
        partition, offset = message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if error is None and offset < ends[partition]:
            size += len(message.value() or b"")
            yield message.key(), message.value()
        # The end of a partition has an offset also: the last records may have been compacted away.
        offsets[partition] = min(offset + 1, ends[partition])
    consumer.unassign()


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
