"""The clients of Kafka: the driver asks the cluster for topics and creates them, tasks encode rows and send them.

The driver opens a client for the cluster in every batch, each task one of its own. Their errors contain no secret.

A task sends its records in order, and every one is confirmed. Kafka refuses batches, not records: with one record that
is too large or invalid, its neighbours in the batch fail as well, while the producer continues with the batches behind
them. So two producers take turns:

- The first has `enable.gapless.guarantee`: a batch that fails ends it, and with sequence numbers the broker takes
  nothing of that partition behind the gap. So of each partition the first records are there, and no later ones.
- The second sends what is left, every record in a batch of its own. A record that fails now is refused for good, alone;
  an idempotent producer keeps the order of those that follow.

Neither has a time limit for a message (`message.timeout.ms`), because one that ran out would leave a gap. When nothing
arrives for a while the sender gives up, and the whole batch is sent again later.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from router import StartError, keep_archives
from router_sinks.kafka_topics import CreateTopics, Topics, topic_fault, topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from router import Encoding


C = TypeVar("C")

_SILENT_LOGGER = logging.getLogger(f"{__name__}.librdkafka")
_SILENT_LOGGER.setLevel(logging.CRITICAL + 1)
"""librdkafka would write to stderr; the errors that matter come through `error_cb` and delivery reports."""

# What an error of Kafka is about decides what becomes of the records. An error in none of these sets is of the broker,
# or passes (a leader is elected, replicas are missing, a topic was deleted): the records wait, and go out again.
_RECORD_ERRORS = {
    KafkaError.MSG_SIZE_TOO_LARGE,  # for the topic, or for the client
    KafkaError.RECORD_LIST_TOO_LARGE,  # for a segment of the topic
    KafkaError.INVALID_RECORD,  # no key in a compacted topic, or a schema that the broker checks
    KafkaError.INVALID_TIMESTAMP,  # too far from the broker's clock for the topic
    KafkaError.POLICY_VIOLATION,  # of a proxy in front of Kafka; Kafka has policies for topics only
}
"""Such a record is a dead letter, and its neighbours arrive."""
_TOPIC_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,  # a name that is invalid, or of Kafka's own
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,  # of topics from before Kafka 0.11, on brokers before 4.0
}
"""No record for this topic is taken: dead letters if data names it, else the run ends."""
_LOGIN_ERRORS = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
"""The run ends: waiting does not help."""
_NAME_ERRORS = {KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION}
"""A new topic's name collides with another's, or a policy forbids it: its records are dead letters."""
_REQUEST_ERRORS = {
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
"""No topic can be created as `create_topics` is set, or with this login: the run ends."""
_CAUSELESS_ERRORS = {
    KafkaError._FATAL,
    KafkaError._GAPLESS_GUARANTEE,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
}

CLUSTER_SECONDS = 10.0
"""Time limit for an answer of the cluster."""


@dataclass
class Trouble:
    """The last error of a client's connections; `refused`: it is about the login, so waiting does not help."""

    text: str = ""
    refused: bool = False

    def note_error(self, error: KafkaError) -> None:
        """Note an error that a client reports."""
        if error.code() in _CAUSELESS_ERRORS or (self.text and error.code() == KafkaError._ALL_BROKERS_DOWN):
            return  # less precise than the error before
        self.text = error.str()
        self.refused = error.code() in _LOGIN_ERRORS


def errors_into(kind: Callable[[dict[str, Any]], C], settings: Mapping[str, Any], trouble: Trouble) -> C:
    """Return a client that notes its errors in `trouble`; raise StartError, without the value, for a bad setting."""
    try:
        return kind({"logger": _SILENT_LOGGER, **settings, "error_cb": trouble.note_error})
    except KafkaException as error:
        reason = error.args[0].str()
    except (TypeError, ValueError) as error:
        reason = str(error)
    # The longest first: a short value may be a part of a longer one.
    for value in sorted({str(value) for value in settings.values()}, key=len, reverse=True):
        reason = reason.replace(f'"{value}"', "***")
    raise StartError(f"Kafka's client refuses its `options`: {reason}")


@dataclass
class Cluster:
    """A connection to a cluster; `settings` are those of librdkafka.

    Every method raises ConnectionError if the cluster does not answer, StartError if settings are wrong.
    """

    settings: dict[str, str]
    trouble: Trouble = field(default_factory=Trouble)

    def __post_init__(self) -> None:
        # Otherwise a question about a topic would create it.
        settings = {**self.settings, "allow.auto.create.topics": "false"}
        self.admin = errors_into(AdminClient, settings, self.trouble)

    def fixed_topics(self, topic: str, create: CreateTopics | None, *, running: bool, trial: bool = False) -> Topics:
        """Return the one topic of a sink; if it is missing, create it as `create` says (not in a `trial`).

        Without `create` a missing topic raises StartError, or ConnectionError while the stream runs.
        """
        metadata = self._read_metadata(topic).get(topic)
        code = KafkaError.UNKNOWN_TOPIC_OR_PART
        if metadata is not None:
            code = metadata.error and metadata.error.code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise StartError(f"topic {topic}: this login may not see it")
        if code != KafkaError.UNKNOWN_TOPIC_OR_PART or (create and trial):
            return Topics(frozenset({topic}), {}, fixed=True)

        refused = {topic: "create it, or set `create_topics`"}
        if create:
            refused = self.create_topics([topic], create)
        if refused:
            kind = ConnectionError if running else StartError
            raise kind(f"there is no topic {topic}: {refused[topic]}")
        return Topics(frozenset({topic}), {}, fixed=True)

    def matching_topics(self, template: str) -> frozenset[str]:
        """Return the topics that exist, that a template can name and that rows may be sent to."""
        rule = topic_pattern(template)
        return frozenset(name for name in self._read_metadata(None) if rule.fullmatch(name) and not topic_fault(name))

    def create_topics(self, names: Iterable[str], create: CreateTopics) -> dict[str, str]:
        """Create topics; return the reasons for those that cannot be created. One that exists already is no error."""
        topics = []
        for name in sorted(names):
            topics.append(NewTopic(name, create.partitions, create.replication, config=dict(create.config)))
        refused: dict[str, str] = {}
        if not topics:
            return refused
        for name, future in self.admin.create_topics(topics, request_timeout=CLUSTER_SECONDS).items():
            try:
                future.result()
            except KafkaException as exception:
                error = exception.args[0]
                if error.code() in _REQUEST_ERRORS:
                    raise StartError(f"topic {name} cannot be created: {error.str()}") from None
                if error.code() in _NAME_ERRORS:
                    refused[name] = f"topic {name} cannot be created: {error.str()}"
                # It exists if another sink was faster, or if the broker that was asked has not heard of it yet.
                elif error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ConnectionError(f"topic {name} cannot be created now: {error.str()}") from None
        return refused

    def _read_metadata(self, topic: str | None) -> dict[str, Any]:
        """Return the cluster's metadata of a topic, or of all, by name."""
        servers = self.settings["bootstrap.servers"]
        try:
            cluster = self.admin.list_topics(topic, timeout=CLUSTER_SECONDS)
        except KafkaException as error:
            self.admin.poll(0)  # collects the errors of the connection
            if self.trouble.refused:
                raise StartError(f"Kafka at {servers}: {self.trouble.text}") from None
            reason = self.trouble.text or error.args[0].str()
            raise ConnectionError(f"Kafka does not answer at {servers}: {reason}") from None
        if not cluster.brokers:  # a cluster that is starting: its list of topics is incomplete
            raise ConnectionError(f"Kafka at {servers} is not ready")
        topics: dict[str, Any] = cluster.topics
        return topics


Record: TypeAlias = "tuple[str, bytes | None, bytes, list[tuple[str, bytes]]]"
"""Topic, key, value and headers."""

MAX_RECORD_BYTES = 64 << 20
"""Bytes of a record, at most: a broker closes the connection of a client that sends more than 100 MiB."""
FIXED_SETTINGS = {
    "acks": "all",
    "enable.idempotence": "true",
    "message.timeout.ms": "0",
    "allow.auto.create.topics": "false",
}
"""The delivery promise depends on these settings."""
DEFAULT_SETTINGS = {"message.max.bytes": str(MAX_RECORD_BYTES), "partitioner": "murmur2_random", "linger.ms": "5"}
"""Settings that options may change. The topic's own limit is the one that counts, and records with a key go to the
partition that Java's producers would choose."""
ALONE_SETTINGS = {"batch.num.messages": "1", "linger.ms": "0"}
_REPORT_POLL_SECONDS = 0.1
"""Seconds for which a sender waits for delivery reports at a time."""

PUBLISHED_COLUMNS = ("_topic", "_partition", "_offset", "_to", "_row")
"""Where a row came from; its topic, key and headers, null if they cannot be evaluated; what the encoding takes."""
PUBLISH_REPORT_DDL = "kind string, rows bigint, topic string, partition int, offset bigint, text string"
"""What tasks return: how many rows are in Kafka (`sent`), how many were sent one by one (`alone`), every `refused` row
with the reason, and why the others were not sent (`away`, `denied`)."""
_PUBLISH_REPORT_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("text", pa.string()),
    ]
)
_NOT_EVALUATED = "its topic, key or headers cannot be evaluated"


class BrokerAway(Exception):  # noqa: N818 - it says what happened
    """Kafka cannot take records now."""

    kind = "away"


class Denied(Exception):  # noqa: N818
    """Kafka takes no records until a setting is changed."""

    kind = "denied"


@dataclass
class Sender:
    """A sender of the records of one task. `timeout`: seconds without any arrival after which it gives up.

    `named_by_data`: a forbidden topic is the fault of its records, not of the configuration. `alone` counts the
    records that had to be sent one by one.
    """

    settings: Mapping[str, str]
    timeout: float
    named_by_data: bool = False
    alone: int = 0
    trouble: Trouble = field(default_factory=Trouble)
    producer: Any = None

    def send_records(self, records: Sequence[Record]) -> dict[int, str]:
        """Send records; return why some are refused for good, by position. All others are in Kafka then.

        Raises BrokerAway and Denied; the first records of each partition may be in Kafka then.
        """
        refused: dict[int, str] = {}
        if self.producer is None:
            self.producer = self._open_producer({"enable.gapless.guarantee": "true"})
        unsent = _Round(self, self.producer, records).run(range(len(records)), refused)
        if not unsent:
            return refused
        self.producer = None  # a batch failed, which has ended it
        self.alone += len(unsent)
        unsent = _Round(self, self._open_producer(ALONE_SETTINGS), records).run(unsent, refused, alone=True)
        if unsent:
            raise self.give_up_error("records are not taken, and no reason is given")
        return refused

    def check_settings(self) -> None:
        """Raise StartError if a setting is wrong; sends nothing."""
        self._open_producer(ALONE_SETTINGS)

    def give_up_error(self, otherwise: str) -> BrokerAway | Denied:
        """Return the error with which to give up."""
        kind = Denied if self.trouble.refused else BrokerAway
        return kind(self.trouble.text or otherwise)

    def _open_producer(self, more: Mapping[str, str]) -> Any:
        return errors_into(Producer, {**DEFAULT_SETTINGS, **self.settings, **FIXED_SETTINGS, **more}, self.trouble)


@dataclass
class _Round:
    """One pass over records with one producer."""

    sender: Sender
    producer: Any
    records: Sequence[Record]
    reports: dict[int, KafkaError | None] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    ended: bool = False

    def run(self, chosen: Iterable[int], refused: dict[int, str], alone: bool = False) -> list[int]:
        """Send records; return those, in order, that are neither in Kafka nor refused."""
        chosen = list(chosen)
        for position in chosen:
            if self.ended:
                break
            self._send_record(position, refused, alone)
        self._wait_for_reports()
        # The report of a record that is in Kafka is None; one that was not sent has no report.
        unsent = []
        for position in chosen:
            if position in refused or self.reports.get(position, _UNSENT_ERROR) is None:
                continue
            if not alone or not self._is_refused(position, refused):
                unsent.append(position)
        return unsent

    def _send_record(self, position: int, refused: dict[int, str], alone: bool) -> None:
        """Give a record to the producer, as soon as its queue has room."""
        topic, key, value, headers = self.records[position]
        on_delivery = partial(self._on_report, position, alone)
        since = time.monotonic()
        while not self.ended:
            try:
                self.producer.produce(topic, value, key, headers=headers, on_delivery=on_delivery)
            except BufferError:
                if not self.in_flight:
                    refused[position] = "it is larger than `queue.buffering.max.kbytes`"
                    return
                before = len(self.reports)
                self._poll_reports(_REPORT_POLL_SECONDS)
                if len(self.reports) > before:
                    since = time.monotonic()
                self._give_up_after(since)
            except KafkaException as exception:
                error = exception.args[0]
                if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    refused[position] = _refusal_text(error)  # larger than `message.max.bytes`: no broker was asked
                    return
                # Of a topic that the client knows to be refused, or of a producer that has ended.
                self._on_report(position, alone, error, None)
                if error.code() not in _TOPIC_ERRORS:
                    self.ended = True
                return
            else:
                self.in_flight.add(position)
                self._poll_reports(0)
                return

    def _wait_for_reports(self) -> None:
        """Wait for the delivery report of every record that the producer has taken."""
        since = time.monotonic()
        while self.in_flight:
            # Purge before each poll: a record in flight that the broker rejects returns to the queue of a producer
            # that has ended, which would never report it. Records in flight are not purged: they may arrive, and must
            # not be sent again then.
            if self.ended:
                self.producer.purge(in_queue=True, in_flight=False)
            before = len(self.reports)
            self._poll_reports(_REPORT_POLL_SECONDS)
            if len(self.reports) > before:
                since = time.monotonic()
            self._give_up_after(since)

    def _poll_reports(self, seconds: float) -> None:
        """Collect delivery reports. A producer that has ended raises, but still delivers the other reports."""
        try:
            self.producer.poll(seconds)
        except KafkaException as error:
            self.sender.trouble.note_error(error.args[0])
            self.ended = True

    def _on_report(self, position: int, alone: bool, error: KafkaError | None, message: object) -> None:
        """Note a delivery report: no error, or why the record is not in Kafka."""
        self.reports[position] = error
        self.in_flight.discard(position)
        if error is None:
            return
        self.ended = self.ended or not alone
        if error.code() not in _RECORD_ERRORS | _TOPIC_ERRORS:
            self.sender.trouble.note_error(error)

    def _is_refused(self, position: int, refused: dict[int, str]) -> bool:
        """Note why a record that was sent alone is refused; return False if it is not."""
        error = self.reports.get(position)
        if error is None:
            return False
        if error.code() in _RECORD_ERRORS:
            refused[position] = _refusal_text(error)
            return True
        if error.code() not in _TOPIC_ERRORS:
            return False
        reason = f"Kafka refuses records for topic {self.records[position][0]}: {error.str()}"
        if not self.sender.named_by_data:
            raise Denied(reason)
        refused[position] = reason
        return True

    def _give_up_after(self, since: float) -> None:
        if time.monotonic() - since <= self.sender.timeout:
            return
        topics = sorted({self.records[position][0] for position in self.in_flight})
        self.producer.purge()
        shown = ", ".join(topics[:5])
        raise self.sender.give_up_error(f"nothing arrived for {self.sender.timeout:g} s, for example in {shown}")


_UNSENT_ERROR = KafkaError(KafkaError._NOENT)


def _refusal_text(error: KafkaError) -> str:
    return f"Kafka refuses it: {error.str()}"


@dataclass(frozen=True)
class PublishJob:
    """What a task needs; `headers` names the configured ones, `marks` are the router's that all rows share."""

    settings: dict[str, str] = field(repr=False)
    encoding: Encoding
    topics: Topics
    headers: tuple[str, ...]
    marks: tuple[tuple[str, bytes], ...]
    timeout: float


def publish_task(job: PublishJob) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow. Needs PUBLISHED_COLUMNS, in the order they are to be sent."""

    def publish_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        sender = Sender(job.settings, job.timeout, named_by_data=not job.topics.fixed)
        trouble: list[dict[str, Any]] = []
        for rows in batches:
            if trouble or not rows.num_rows:
                continue  # read all batches: Spark is writing them to this process
            try:
                yield _report_batch(_send_rows(rows, job, sender))
            except (BrokerAway, Denied) as error:
                trouble.append({"kind": error.kind, "text": str(error)})
        yield _report_batch([*trouble, {"kind": "alone", "rows": sender.alone}])

    return publish_rows


def _report_batch(reports: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(reports, schema=_PUBLISH_REPORT_SCHEMA)


def _send_rows(rows: pa.RecordBatch, job: PublishJob, sender: Sender) -> list[dict[str, Any]]:
    """Send the rows of one record batch; report how many are in Kafka, and which are refused."""
    records, row_numbers, refused = outgoing_records(rows, job)
    for position, reason in sender.send_records(records).items():
        refused[row_numbers[position]] = reason
    reports: list[dict[str, Any]] = [{"kind": "sent", "rows": rows.num_rows - len(refused)}]
    for number in sorted(refused):
        report = {"kind": "refused", "text": refused[number]}
        for name in ("topic", "partition", "offset"):
            report[name] = rows.column(f"_{name}")[number].as_py()
        reports.append(report)
    return reports


def outgoing_records(rows: pa.RecordBatch, job: PublishJob) -> tuple[list[Record], list[int], dict[int, str]]:
    """Return the records to send, the row of each, and why other rows make no record."""
    encoded = job.encoding.encode(rows.column("_row"))
    places = zip(*(rows.column(name).to_pylist() for name in PUBLISHED_COLUMNS[:3]), strict=True)
    to = rows.column("_to")
    topics, keys, *headers = to.flatten()
    header_values = [column.to_pylist() for column in headers]
    not_evaluated = to.is_null().to_pylist()
    # As bytes: Spark lets texts pass that are not UTF-8.
    columns = zip(places, topics.cast(pa.binary()).to_pylist(), keys.to_pylist(), encoded.values, strict=True)
    refusal = cache(job.topics.refusal_of)
    records: list[Record] = []
    row_numbers: list[int] = []
    refused: dict[int, str] = {}
    for number, (place, topic_name, key, value) in enumerate(columns):
        topic = None if topic_name is None else topic_name.decode(errors="replace")
        reason: str | None = _NOT_EVALUATED
        if not not_evaluated[number]:
            reason = refusal(topic, place[0]) or encoded.reasons.get(number)
        if reason is not None or value is None:
            refused[number] = reason or "there is no value"
            continue
        own_headers = []
        for name, values in zip(job.headers, header_values, strict=True):
            if values[number] is not None:
                own_headers.append((name, values[number]))
        records.append((str(topic), key, value, [*own_headers, *job.marks, *_origin_headers(*place)]))
        row_numbers.append(number)
    return records, row_numbers, refused


def _origin_headers(topic: str | None, partition: int, offset: int) -> Iterator[tuple[str, bytes]]:
    """Yield the headers that contain where a record came from."""
    yield "router.topic", (topic or "").encode()
    yield "router.partition", b"%d" % partition
    yield "router.offset", b"%d" % offset
