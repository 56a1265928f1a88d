"""The consumer group that shows lag monitors the progress of a stream: `source: {kafka: {commit_group: NAME}}`.

A stream starts from the offsets in its checkpoint. Those of the group are for others: a thread commits them after each
batch, only the newest, so that brokers that are slow or unavailable delay no batch.

The metadata of each offset names the configuration that wrote it. So a stream never takes over the group of another
consumer, whose offsets it would change.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from router.engine.source.kafka_client import KAFKA_TIMEOUT_SECONDS, admin_client
from router.errors import StartError, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient, MemberDescription  # type: ignore[attr-defined]
    from typing_extensions import Self

    from router.config.models import Config

log = logging.getLogger("router")
WRITTEN_BY = "spark-event-router: "
"""The beginning of the metadata of an offset, before the name of the configuration."""
MISSING_GROUP = {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID}
NO_COORDINATOR_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
"""The errors of brokers while none of them coordinates a group yet: right after the start of a cluster."""
COORDINATOR_PAUSE_SECONDS = 0.2


def refuse_foreign_group(config: Config) -> None:
    """Raise StartError if the group of a source has consumers, or offsets that another consumer wrote.

    Raises ConnectionError if the brokers do not answer.
    """
    kafka = config.source.kafka
    if kafka is None or kafka.commit_group is None or config.debug:
        return
    admin = admin_client(kafka)
    group = kafka.commit_group
    where = f"{config.name}: source.kafka.commit_group {group}"
    try:
        members = _list_members(admin, group)
    except KafkaException as error:
        raise ConnectionError(f"{where}: {error.args[0].str()}") from None
    except TimeoutError:
        raise ConnectionError(f"{where}: {kafka.servers} does not answer") from None
    if members:
        todo = "stop them, or name a group that is the stream's alone"
        raise StartError(f"{where} has {len(members)} consumers, such as {members[0].client_id}; {todo}")

    try:
        request = [ConsumerGroupTopicPartitions(group)]
        answers = admin.list_consumer_group_offsets(request, request_timeout=KAFKA_TIMEOUT_SECONDS)
        partitions = answers[group].result(2 * KAFKA_TIMEOUT_SECONDS).topic_partitions or []
    except (KafkaException, TimeoutError) as error:
        raise ConnectionError(f"{where}: its offsets cannot be read: {error}") from None
    for partition in partitions:
        if partition.offset >= 0 and partition.metadata != f"{WRITTEN_BY}{config.name}":
            problem = f"has an offset of {partition.topic}/{partition.partition} that no run of {config.name} wrote"
            raise StartError(f"{where} {problem}; name a group that is the stream's alone, or delete this one")


def _list_members(admin: AdminClient, group: str) -> list[MemberDescription]:
    """Return the consumers that are in a group; none if there is no such group."""
    deadline = time.monotonic() + KAFKA_TIMEOUT_SECONDS
    while True:
        try:
            described = admin.describe_consumer_groups([group], request_timeout=KAFKA_TIMEOUT_SECONDS)[group].result(
                2 * KAFKA_TIMEOUT_SECONDS
            )
        except KafkaException as error:
            code = error.args[0].code()
            if code in MISSING_GROUP:
                return []
            if code not in NO_COORDINATOR_YET or time.monotonic() > deadline:
                raise
            time.sleep(COORDINATOR_PAUSE_SECONDS)
            continue
        return list(described.members)


class ConsumerGroup:
    """The group of one stream, and the thread that commits its offsets. Use it as a context."""

    def __init__(self, config: Config) -> None:
        assert config.source.kafka is not None
        self.config = config
        self.group = config.source.kafka.commit_group or ""
        self._newest: Mapping[tuple[str, int], int] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._fails = False
        self._admin = admin_client(config.source.kafka)
        self._thread = threading.Thread(target=self._commit_until_ended, name="consumer group", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(2 * KAFKA_TIMEOUT_SECONDS)

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Let the thread commit offsets, in place of those that it has not begun to commit. Returns at once."""
        if not offsets:
            return
        with self._changed:
            self._newest = dict(offsets)
            self._changed.notify()

    def _commit_until_ended(self) -> None:
        while True:
            with self._changed:
                while not self._newest and not self._ended:
                    self._changed.wait()
                offsets = self._newest
                self._newest = {}
                if not offsets:
                    break
            self._commit_offsets(offsets)

    def _commit_offsets(self, offsets: Mapping[tuple[str, int], int]) -> None:
        written_by = f"{WRITTEN_BY}{self.config.name}"
        partitions: list[TopicPartition] = []
        for (topic, number), offset in offsets.items():
            partitions.append(TopicPartition(topic, number, offset, metadata=written_by))
        # Not by a consumer, whose commit waits for its coordinator for as long as that is unavailable.
        request = [ConsumerGroupTopicPartitions(self.group, partitions)]
        try:
            answers = self._admin.alter_consumer_group_offsets(request, request_timeout=KAFKA_TIMEOUT_SECONDS)
            for partition in answers[self.group].result(2 * KAFKA_TIMEOUT_SECONDS).topic_partitions or []:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except (KafkaException, TimeoutError) as error:
            # Logged once, not for each batch: the next commit includes these offsets.
            if not self._fails:
                message = "%s: the offsets of the group %s cannot be committed: %s; the stream continues"
                log.warning(message, self.config.name, self.group, first_line(error))
            self._fails = True
            return
        if self._fails:
            log.info("%s: the offsets of the group %s are committed again", self.config.name, self.group)
        self._fails = False
