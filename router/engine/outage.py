"""Notice that the source is away while Spark waits for it without a word."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from router.config.models import Config

log = logging.getLogger("router")
QUIET_SECONDS = 3.0
"""How long Spark may ask for offsets before the brokers are tried; an answer takes milliseconds."""
CONNECT_SECONDS = 1.0


@dataclass
class Outage:
    """Log one line when no broker takes a connection, and one when Spark gets an answer again.

    Kafka's client goes on trying for minutes before it fails, which is right; but whoever looks should see why
    nothing comes. Runs on the driver, between batches.
    """

    config: Config
    asked: float | None = None
    told: bool = False

    def notice(self, query: StreamingQuery) -> None:
        """Look at the query; call it a few times a second."""
        if not query.status["message"].startswith(("Getting offsets", "Initializing sources")):
            if self.told:
                log.info("%s: the source answers again", self.config.name)
            self.asked, self.told = None, False
            return
        now = time.monotonic()
        self.asked = self.asked or now
        if not self.told and now - self.asked > QUIET_SECONDS:
            self.asked = None  # Spark asks many times a second when it is idle: that alone is no silence
            self.told = self._away()

    def _away(self) -> bool:
        kafka = self.config.source.kafka
        if kafka is None or any(_answers(server) for server in kafka.servers.split(",")):
            return False
        log.warning("%s: waiting for the source: no broker answers at %s", self.config.name, kafka.servers)
        return True


def _answers(server: str) -> bool:
    host, _, port = server.strip().rpartition(":")
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
        return True
    return False
