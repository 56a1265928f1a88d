"""The ends of a topic's partitions, asked every few seconds: also while a batch runs, or while the stream waits.

Spark asks for them once a batch. During a batch of ten minutes, and while a stream waits for storage, its answer is
old, and the lag that is computed from it stands still.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.source.kafka_client import admin_client, end_offsets
from router.engine.start.spark_checkpoint import processed_offsets
from router.engine.status.background import BackgroundThread
from router.engine.status.snapshot import PartitionStatus
from router.errors import StartError

if TYPE_CHECKING:
    from router.config.models import Config, KafkaSource
    from router.engine.status.board import StatusBoard

log = logging.getLogger("router")
_ASK_SECONDS = 10.0
_UNREACHABLE = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""Codes of librdkafka for brokers that give no answer at all."""


class SourceEnds(BackgroundThread):
    """A thread that notes on a board where the partitions of a Kafka source end. Use it as a context."""

    def __init__(self, board: StatusBoard, kafka: KafkaSource, seconds: float = _ASK_SECONDS) -> None:
        super().__init__("source ends")
        self.board = board
        self.kafka = kafka
        self.seconds = seconds

    def _run(self) -> None:
        try:
            admin = admin_client(self.kafka)
        except StartError as error:
            log.info("the lag is known once a batch only: %s", error)
            return
        while not self._ended.is_set():
            # Without an answer the ends of before stay, with the time at which they were read.
            try:
                self.board.source_is_at({}, end_offsets(admin, self.kafka))
            except (KafkaException, TimeoutError) as error:
                log.debug("the brokers do not say where the topics end: %s", error)
            self._ended.wait(self.seconds)


def ask_how_far(config: Config) -> tuple[PartitionStatus, ...]:
    """Return by the checkpoint and by the brokers how far each partition of a topic is processed, without the stream.

    Empty for other sources and before the first batch. Raises StartError without an answer.
    """
    kafka = config.source.kafka
    if kafka is None:
        return ()
    _, checkpoint = lake_and_checkpoint(config)
    processed = processed_offsets(checkpoint)
    if not processed:
        return ()
    try:
        ends = end_offsets(admin_client(kafka), kafka)
    except TimeoutError as error:
        raise StartError(f"no broker answers at {kafka.servers}") from error
    except KafkaException as error:
        fault = error.args[0]
        if fault.code() in _UNREACHABLE:
            raise StartError(f"no broker answers at {kafka.servers}") from error
        raise StartError(f"{kafka.servers}: {fault.str()}") from error
    read = time.time()
    partitions = []
    for (topic, partition), position in processed.items():
        partitions.append(PartitionStatus(topic, partition, position, ends.get((topic, partition)), read))
    return tuple(partitions)
