"""Which errors pass by themselves, how long to wait for that, and a log line while Spark waits for Kafka silently."""

from __future__ import annotations

import errno
import logging
import re
import socket
import time
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenacity import RetryCallState, wait_exponential_jitter
from tenacity.wait import wait_base

from router.errors import RouterError, SinkError, StartError, TableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from pyspark.sql.streaming.query import StreamingQuery

    from router.config.models import Config

    State = Literal["waiting", "running"]

log = logging.getLogger("router")
QUIET_SECONDS = 3.0
BUSY_SECONDS = 15.0
"""Seconds of a query for offsets, or of a batch, after which the router tries the brokers itself, again and again."""
CONNECT_SECONDS = 1.0
PASSING = (
    "TimeoutException",
    "KafkaException",
    "ConnectException",
    "ConnectionError",
    "Connection refused",
    "DisconnectException",
    "IOException: ",
    "LeaderNotAvailable",
    "UnknownHost",
    "UnknownTopicOrPartition",
)
"""Parts of the messages of Spark and Kafka that mean: the source or storage is away for a while."""


ERRNO = re.compile(r"(?:\[[Ee]rrno |\(os error )(\d+)[\])]")
"""How Python and Arrow, and delta-rs, write the number of an error of the operating system: a task's error reaches us
as text."""
PASSING_ERRNO = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENXIO, errno.EACCES, errno.EPERM),  # storage
    *(errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),  # a mounted one
    *(errno.ENETUNREACH, errno.ENETDOWN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
}
"""Errors of the operating system that pass: somebody makes room, mounts the disk again, gives back rights."""

LOST = ("KAFKA_DATA_LOSS", "data may have been lost", "data may have been missed")
"""Parts of the messages of Spark's Kafka source (Spark 4's error class, and its texts) that mean: the records that come
next are not there any more."""


def says_lost(error: BaseException) -> bool:
    """Say whether a query ended because records are gone from Kafka."""
    return any(sign in str(error) for sign in LOST)


REFUSED_LOGIN = ("SaslAuthenticationException", "SslAuthenticationException")
MISSING_RIGHTS = {
    "TopicAuthorizationException": "Read and Describe on the topics",
    "GroupAuthorizationException": "Read on the consumer group",
    "ClusterAuthorizationException": "Describe on the cluster",
}
"""Kafka's errors that stay until a person has changed a login or the rights of a user."""
BY_KAFKA = re.compile(r"org\.apache\.kafka\.common\.errors\.(\w+): ([^\n]*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


def refusal_by_broker(config: Config, error: BaseException) -> StartError | None:
    """Return in one sentence that the broker refuses the login, or that rights are missing; None for other errors."""
    kafka = config.source.kafka
    if kafka is None or isinstance(error, RouterError):
        return None
    for kind, reason in BY_KAFKA.findall(str(error)):
        if kind in REFUSED_LOGIN:
            what = f"the broker at {kafka.servers} refuses the login: {reason.rstrip('.')}"
            return StartError(f"{config.name}: {what}; correct the options kafka.sasl.* and kafka.ssl.* of the source")
        if kind in MISSING_RIGHTS:
            topics = ", ".join(kafka.topics) or kafka.pattern
            what = f"the broker at {kafka.servers} lets the user of the source not read {topics}: {reason.rstrip('.')}"
            return StartError(f"{config.name}: {what}; give this user {MISSING_RIGHTS[kind]}")
    return None


def passing(error: BaseException) -> bool:
    """Say whether a failure passes by itself: the source, the registry, the storage or a sink's API is away."""
    if isinstance(error, SinkError):
        return isinstance(error.__cause__, OSError)
    if isinstance(error, RouterError):
        return isinstance(error, TableError)
    if says_lost(error) or any(sign in str(error) for sign in (*REFUSED_LOGIN, *MISSING_RIGHTS)):
        return False
    text = f"{type(error).__name__}: {error}"
    numbers = {int(number) for number in ERRNO.findall(text)}
    return isinstance(error, OSError) or bool(numbers & PASSING_ERRNO) or any(sign in text for sign in PASSING)


NEVER_PASSES = (
    # schema
    *("too deeply nested", "recursion limit", "SchemaMismatch", "DELTA_FAILED_TO_MERGE_FIELDS"),
    # protocol
    *("Unsupported: ", "Unsupported table features", "DELTA_UNSUPPORTED_FEATURES", "DELTA_INVALID_PROTOCOL"),
    # naming
    *("DELTA_INVALID_CHARACTERS", "Invalid column name"),
)
"""Parts of the messages of delta-rs and of Delta on Spark that mean: the table can never take these rows, whatever
comes back. A person has to change the table or the configuration."""


def never_passes(error: TableError) -> bool:
    """Say whether a table can never take what was to be written to it: for its schema, its protocol or a name.

    All else may pass (storage, network, rights, room on a disk, another writer, a log that somebody puts back).
    """
    text = f"{error.what} {error.__cause__}"
    return any(sign in text for sign in NEVER_PASSES)


VARIES = re.compile(r"[0-9a-fA-F-]{8,}|(?<!\d)(?![45]\d\d(?!\d))\d+")
"""What differs from try to try in the message of the same failure: names of staged files, numbers, times. Not the
status of an answer, of 400 to 599."""


@dataclass
class GrowingPauses(wait_base):
    """The pauses between tries: from one second on each is about twice as long, and the first again after a success.

    A query is tried again and again for as long as a run lives: without the success its thousandth hiccup would cost
    the longest pause.
    """

    longest: float = 60.0
    before: int = 0
    tried: int = 0
    made: wait_exponential_jitter = field(init=False)

    def __post_init__(self) -> None:
        self.made = wait_exponential_jitter(initial=1, max=self.longest)

    def succeeded(self) -> None:
        """Begin again with the shortest pause: what is tried has done something."""
        self.before = self.tried

    def __call__(self, retry_state: RetryCallState) -> float:
        """Return the seconds before the next try."""
        self.tried = retry_state.attempt_number
        since = copy(retry_state)
        since.attempt_number = max(1, self.tried - self.before)
        return self.made(since)


@dataclass
class RepeatedTrouble:
    """What the log has of a trouble that repeats: a line when it begins, when its kind changes, and when it is over."""

    kind: str = ""

    def is_new(self, message: str) -> bool:
        """Say whether a failure is of another kind than the one before: the numbers and names in it do not count."""
        kind = VARIES.sub("*", message)
        changed = kind != self.kind
        self.kind = kind
        return changed

    def is_over(self) -> bool:
        """Say, once after a trouble, that it is over. Call it after a success."""
        was_there = bool(self.kind)
        self.kind = ""
        return was_there


@dataclass
class Outage:
    """The outage of the source: one log line when no broker takes a connection any more, one when one does again.

    Kafka's client goes on trying for minutes before it fails, which is right; but an operator should see why
    nothing comes. `enter` is told the state of the stream, and what it waits for. Runs on the driver.
    """

    config: Config
    enter: Callable[[State, str], object] = lambda state, cause: None
    since: float | None = None
    noted: bool = False

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
        if away and not self.noted and (kafka := self.config.source.kafka):
            what = f"no broker answers at {kafka.servers}"
            log.warning("%s: waiting for the source: %s", self.config.name, what)
            self.enter("waiting", what)
        elif self.noted and not away:
            log.info("%s: the source answers again", self.config.name)
            self.enter("running", "")
        self.noted = away


def _answers(server: str) -> bool:
    host, _, port = server.strip().rpartition(":")
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
        return True
    return False
