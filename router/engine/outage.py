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
BUSY_SECONDS = 15.0
"""How long Spark may ask for offsets, or a batch may take, before the brokers are tried, and tried again."""
CONNECT_SECONDS = 1.0


@dataclass
class Outage:
    """Log one line when no broker takes a connection any more, and one when there is an answer again.

    Kafka's client goes on trying for minutes before it fails, which is right; but whoever looks should see why
    nothing comes. Runs on the driver.
    """

    config: Config
    since: float | None = None
    told: bool = False

    def notice(self, query: StreamingQuery, *, busy: bool) -> None:
        """Look at the query; call it a few times a second. `busy`: a batch is being worked on."""
        if not busy and not query.status["message"].startswith(("Getting offsets", "Initializing sources")):
            self._tell(away=False)
            self.since = None
            return
        now = time.monotonic()
        self.since = self.since or now
        if now - self.since > (BUSY_SECONDS if busy else QUIET_SECONDS):
            self.since = now
            kafka = self.config.source.kafka
            self._tell(away=kafka is not None and not any(_answers(server) for server in kafka.servers.split(",")))

    def _tell(self, *, away: bool) -> None:
        if away and not self.told and (kafka := self.config.source.kafka):
            log.warning("%s: waiting for the source: no broker answers at %s", self.config.name, kafka.servers)
        elif self.told and not away:
            log.info("%s: the source answers again", self.config.name)
        self.told = away


def _answers(server: str) -> bool:
    host, _, port = server.strip().rpartition(":")
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
        return True
    return False
