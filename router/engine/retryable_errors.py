"""Which errors are temporary, how long to wait until they pass, and a log line while Spark waits for Kafka silently."""

from __future__ import annotations

import builtins
import errno
import logging
import re
import socket
import time
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalake import exceptions as delta_rs
from tenacity import RetryCallState, wait_exponential_jitter
from tenacity.wait import wait_base

from router.errors import PluginError, RouterError, SinkError, StartError, TableError, first_line
from router.spark_internals import causes_in_jvm

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from pyspark.sql.streaming.query import StreamingQuery

    from router.config.models import Config

    State = Literal["waiting", "running"]

log = logging.getLogger("router")
QUIET_SECONDS = 3.0
BUSY_SECONDS = 15.0
"""Seconds of a query for offsets (QUIET) or of a batch (BUSY), after which the router itself connects to the brokers,
and after which it repeats that."""
CONNECT_SECONDS = 1.0
PASSING = (
    "TimeoutException",
    "KafkaException",
    "ConnectException",
    "DisconnectException",
    "IOException",
    "LeaderNotAvailableException",
    "UnknownHostException",
    "UnknownTopicOrPartitionException",
)
"""The ends of the names of exceptions of the JVM that mean: the source or storage is unavailable for a while."""
UNREADABLE_RECORD_MESSAGES = ("Encountered corrupt message", "Received exception when fetching the next record")
"""The beginnings of the messages of Kafka's consumer (4.1, `FetchCollector`, `CompletedFetch`) that mean: these records
are damaged in the broker's files, and stay so. Their exception is no other than that of an outage."""
PYTHON_TASK = re.compile(r"^(?:[\w.]*\.)?(\w+)(?:: |$)")
"""The class in the last line of a traceback."""

IN_PYTHON = "org.apache.spark.api.python.PythonException"
"""The exception of the JVM whose message is the traceback of a Python task."""
NOT_BY_RECORDS = {PluginError.__name__, ImportError.__name__, ModuleNotFoundError.__name__}
"""Classes of errors of Python tasks that no record causes."""
ERRNO = re.compile(r"(?:\[[Ee]rrno |\(os error )(\d+)[\])]")
"""The number of an error of the operating system, as Python and Arrow, and as delta-rs write it: the error of a task
reaches the driver as text."""
PASSING_ERRNO = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENXIO, errno.EACCES, errno.EPERM),  # storage
    *(errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),  # mounted storage
    *(errno.ENETUNREACH, errno.ENETDOWN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
}
"""Errors of the operating system that pass after a person makes room, mounts the disk again or grants rights."""

LOST_RECORDS_MESSAGES = ("KAFKA_DATA_LOSS", "data may have been lost", "data may have been missed")
"""Parts of the messages of Spark's Kafka source (Spark 4's error class, and its texts) that mean: Kafka no longer has
the next records."""

NO_LATEST_OFFSETS = 'because the return value of "scala.Option.get()" is null'
"""The end of the message of Spark 4.1 after a batch of Kafka that was run again."""


def says_lost(error: BaseException) -> bool:
    """Return whether a query ended because records are gone from Kafka."""
    return any(sign in str(error) for sign in LOST_RECORDS_MESSAGES)


REFUSED_LOGIN = ("SaslAuthenticationException", "SslAuthenticationException")
MISSING_RIGHTS = {
    "TopicAuthorizationException": "Read and Describe on the topics",
    "GroupAuthorizationException": "Read on the consumer group",
    "ClusterAuthorizationException": "Describe on the cluster",
}
"""Kafka's errors that stay until a person has changed a login or the rights of a user."""
BY_KAFKA = "org.apache.kafka.common.errors."


def refusal_by_broker(config: Config, error: BaseException) -> StartError | None:
    """Return in one sentence that a broker refuses the login, or that rights are missing; None for other errors."""
    kafka = config.source.kafka
    if kafka is None or isinstance(error, RouterError):
        return None
    broker = f"{config.name}: the broker at {kafka.servers}"
    for name, message in causes_in_jvm(error):
        kind = name.removeprefix(BY_KAFKA)
        reason = message.splitlines()[0].rstrip(".") if message else kind
        if kind in REFUSED_LOGIN:
            todo = "correct the options kafka.sasl.* and kafka.ssl.* of the source"
            return StartError(f"{broker} refuses the login: {reason}; {todo}")
        if kind in MISSING_RIGHTS:
            topics = ", ".join(kafka.topics) or kafka.pattern
            todo = f"give this user {MISSING_RIGHTS[kind]}"
            return StartError(f"{broker} does not let the user of the source read {topics}: {reason}; {todo}")
    return None


UNREADABLE_FILE = re.compile(r"\[FAILED_READ_FILE[^\]]*\] Encountered error while reading file (.+?)\. ")
"""Spark's error of a task that could not read a file, with the file."""
DAMAGED_FILE = re.compile(r"Caused by: [\w.]+: ([^\n]*)\n\tat org\.apache\.hadoop\.io\.compress\.")
"""The cause if the code that decompresses a file has raised it: the content is damaged, and stays so."""


def is_unreadable(error: BaseException) -> bool:
    """Return whether Kafka's consumer says that records are damaged."""
    return any(message.startswith(UNREADABLE_RECORD_MESSAGES) for _, message in causes_in_jvm(error))


def is_for_a_person(error: BaseException) -> bool:
    """Return whether Kafka says what only a person can mend: records are gone, or a login or a right is missing."""
    refusals = (*REFUSED_LOGIN, *MISSING_RIGHTS)
    return says_lost(error) or any(name.removeprefix(BY_KAFKA) in refusals for name, _ in causes_in_jvm(error))


def is_temporary(error: BaseException) -> bool:
    """Return whether a failure is temporary: the source, the registry, the storage or a sink's API is unavailable.

    Told by classes and numbers of errors, never by words of a stack trace or of a record.
    """
    if isinstance(error, SinkError):
        return isinstance(error.__cause__, OSError)
    if isinstance(error, RouterError):
        return isinstance(error, TableError)
    causes = causes_in_jvm(error)
    if not causes:
        by_delta_rs = isinstance(error, delta_rs.DeltaError)
        return isinstance(error, OSError) or (by_delta_rs and _has_passing_number(first_line(error)))
    if is_unreadable(error):
        return False
    # These have the causes of temporary errors as well.
    if is_for_a_person(error):
        return False
    if UNREADABLE_FILE.search(str(error)) and DAMAGED_FILE.search(str(error)):
        return False
    for name, message in causes:
        if name == IN_PYTHON and _passes_in_python(message):
            return True
        if name.endswith(PASSING):
            return True
    return False


def is_for_search(error: BaseException) -> bool:
    """Return whether a record may have caused the failure of a Spark job: the job ends, and nothing may pass."""
    if isinstance(error, RouterError) or is_temporary(error) or is_for_a_person(error):
        return False
    causes = causes_in_jvm(error)
    in_python = [_class_in_python(message) for name, message in causes if name == IN_PYTHON]
    return bool(causes) and not NOT_BY_RECORDS.intersection(in_python)


def _passes_in_python(traceback: str) -> bool:
    """Return whether the error of a Python task is temporary, by the last line of its traceback."""
    name = _class_in_python(traceback)
    kind: type = getattr(builtins, name, getattr(delta_rs, name, object))
    if issubclass(kind, (ConnectionError, TimeoutError)):
        return True
    said = first_line(RuntimeError(traceback))
    return issubclass(kind, (OSError, delta_rs.DeltaError)) and _has_passing_number(said)


def _class_in_python(traceback: str) -> str:
    """Return the class of the error of a Python task."""
    raised = PYTHON_TASK.match(first_line(RuntimeError(traceback)))
    return raised[1] if raised else ""


def _has_passing_number(text: str) -> bool:
    return bool({int(number) for number in ERRNO.findall(text)} & PASSING_ERRNO)


NEVER_PASSES = (
    # schema
    *("too deeply nested", "recursion limit", "SchemaMismatch", "DELTA_FAILED_TO_MERGE_FIELDS"),
    # protocol
    *("Unsupported: ", "Unsupported table features", "DELTA_UNSUPPORTED_FEATURES", "DELTA_INVALID_PROTOCOL"),
    # naming
    *("DELTA_INVALID_CHARACTERS", "Invalid column name"),
)
"""Parts of the messages of delta-rs and of Delta on Spark that mean: the table can never store these rows, even if
storage and network are well. A person has to change the table or the configuration."""


def never_passes(error: TableError) -> bool:
    """Return whether a table can never store the rows of a failed write, because of its schema, its protocol or a name.

    Other errors may pass: of storage, network, rights, room on a disk, another writer, or a log that is restored.
    """
    text = f"{error.what} {error.__cause__}"
    return any(sign in text for sign in NEVER_PASSES)


VARIES = re.compile(r"[0-9a-fA-F-]{8,}|(?<!\d)(?![45]\d\d(?!\d))\d+")
"""The parts of the message of one failure that differ from try to try: names of staged files, numbers, times. The
status of an answer, 400 to 599, is none of them."""


def kind_of(message: str) -> str:
    """Return the kind of a failure: its message without the numbers and names that vary among equal failures."""
    return VARIES.sub("*", message)


@dataclass
class GrowingPauses(wait_base):
    """The pauses between tries: the first is a second, each is about twice as long, up to the longest.

    A query is tried again for as long as a run lives. After a success its pauses begin with a second again: otherwise
    its thousandth short failure would cost the longest pause.
    """

    longest: float = 60.0
    tries_before_success: int = 0
    tries: int = 0
    backoff: wait_exponential_jitter = field(init=False)

    def __post_init__(self) -> None:
        self.backoff = wait_exponential_jitter(initial=1, max=self.longest)

    def note_success(self) -> None:
        """Begin again with the shortest pause: the last try has made progress."""
        self.tries_before_success = self.tries

    def __call__(self, retry_state: RetryCallState) -> float:
        """Return the seconds before the next try."""
        self.tries = retry_state.attempt_number
        # Tenacity counts all tries: the back-off gets a copy that counts those since the success.
        since_success = copy(retry_state)
        since_success.attempt_number = max(1, self.tries - self.tries_before_success)
        return self.backoff(since_success)


@dataclass
class RepeatedTrouble:
    """The log lines of a trouble that repeats: one when it begins, when its kind changes, and when it is over."""

    kind: str = ""

    def is_new(self, message: str) -> bool:
        """Return whether a failure is of another kind than the one before, whatever numbers and names it contains."""
        kind = kind_of(message)
        changed = kind != self.kind
        self.kind = kind
        return changed

    def is_over(self) -> bool:
        """Return, once after a trouble, whether it is over. Call it after a success."""
        was_there = bool(self.kind)
        self.kind = ""
        return was_there


@dataclass
class Outage:
    """The outage of the source: one log line when no broker accepts connections any more, one when one does again.

    Kafka's client tries for minutes before it fails, which is right; but an operator should see why no records arrive.
    `enter` is called with the state of the stream, and what it waits for. Runs on the driver.
    """

    config: Config
    enter: Callable[[State, str], object] = lambda state, cause: None
    since: float | None = None
    noted: bool = False

    def watch_query(self, query: StreamingQuery, *, busy: bool) -> None:
        """Look at the query; call it a few times a second. `busy`: a batch is being processed."""
        kafka = self.config.source.kafka
        needs_source = busy or query.status["message"].startswith(("Getting offsets", "Initializing sources"))
        if kafka is None or not needs_source:
            self._log_change("")
            self.since = None
            return
        now = time.monotonic()
        self.since = self.since or now
        if now - self.since > (BUSY_SECONDS if busy else QUIET_SECONDS):
            self.since = now
            is_available = any(_accepts_connections(server) for server in kafka.servers.split(","))
            self._log_change("" if is_available else f"no broker answers at {kafka.servers}")

    def _log_change(self, outage: str) -> None:
        """Log that an outage has begun, or is over if the text is empty; once each."""
        if outage and not self.noted:
            log.warning("%s: waiting for the source: %s", self.config.name, outage)
            self.enter("waiting", outage)
        elif self.noted and not outage:
            log.info("%s: the source answers again", self.config.name)
            self.enter("running", "")
        self.noted = bool(outage)


def _accepts_connections(server: str) -> bool:
    host, _, port = server.strip().rpartition(":")
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
        return True
    return False
