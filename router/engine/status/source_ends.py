"""The ends of a topic's partitions, asked every few seconds: also while a batch runs, or while the stream waits.

Spark asks for them once a batch. During a batch of ten minutes, and while a stream waits for storage, its answer is
old, and the lag that is computed from it stands still.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from router.engine.kafka_client import admin_client, end_offsets
from router.errors import StartError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from typing_extensions import Self

    from router.config.models import KafkaSource
    from router.engine.status.board import StatusBoard

log = logging.getLogger("router")
ASK_SECONDS = 10.0
CLOSING_SECONDS = 10.0


class SourceEnds:
    """A thread that notes on a board where the partitions of a Kafka source end. Use it as a context."""

    def __init__(self, board: StatusBoard, kafka: KafkaSource, seconds: float = ASK_SECONDS) -> None:
        self.board = board
        self.kafka = kafka
        self.seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source ends", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        try:
            admin = admin_client(self.kafka)
        except StartError as error:
            log.info("the lag is known once a batch only: %s", error)
            return
        while not self._ended.is_set():
            self._ask(admin)
            self._ended.wait(self.seconds)

    def _ask(self, admin: AdminClient) -> None:
        """Note the ends; without an answer those of before stay, with the time at which they were read."""
        try:
            ends = end_offsets(admin, self.kafka)
        except (KafkaException, TimeoutError) as error:
            log.debug("the brokers do not say where the topics end: %s", error)
            return
        self.board.source_is_at({}, ends)
