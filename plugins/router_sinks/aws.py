"""The sink `boto3`: messages of SQS and SNS, records of Kinesis, in batches. Tasks need boto3.

Limits of a batch: AWS's API references of SQS `SendMessageBatch`, SNS `PublishBatch`, Kinesis `PutRecords`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PrivateAttr, SecretStr, field_validator, model_validator
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F

from router import ApplyingSink, Batch, Encoder, Encoding, Opening, Outcome, Server, StartError, row, tried
from router_encoders import ToJson
from router_encoders.outbox_rows import PLACE, order_key, own_columns
from router_encoders.reports import Reports, outcome, reported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from router import Encoded

TRIES = 8
"""How often items are sent that a service has not taken, before the batch of the sink ends and is tried anew."""
LONGEST_PAUSE = 5.0


class Limits(NamedTuple):
    """The most that one call of a service takes: items, bytes of all and bytes of one; and what a key counts."""

    items: int
    bytes: int
    item_bytes: int


SERVICES = {
    "sqs": Limits(10, 256 << 10, 256 << 10),
    "sns": Limits(10, 256 << 10, 256 << 10),
    "kinesis": Limits(500, 5 << 20, 1 << 20),
}
THROTTLED = ("throttl", "provisionedthroughputexceeded", "requestlimitexceeded", "slowdown", "toomanyrequests")
"""What codes of a limit have in them: such an item, or call, is sent again."""
GONE = ("internal", "unavailable", "timeout", "kmsthrottl")
DENIED = (
    *("accessdenied", "authorization", "expiredtoken", "invalidclienttokenid", "unrecognizedclient", "signature"),
    *("nonexistentqueue", "queuedoesnotexist", "notfound", "optedout"),
)


class Aws(ApplyingSink):
    """Send events to a queue of SQS, a topic of SNS or a stream of Kinesis, in batches.

    `to` is the URL of a queue, or the ARN of a topic or stream. Keys and ids are SQL over the route's columns, also as
    `event.NAME`, and `_topic`, `_partition`, `_offset`, `_timestamp` and `_key`. A queue or topic whose name ends in
    .fifo needs `group`; without `deduplicate` its messages have an id made of where their record came from, so that the
    service drops what is sent again within five minutes.

    Delivery: at least once; in order per `group`, of which one message is in a call. Items that the service does not
    take are sent again alone, with growing pauses, so that Kinesis may get a record after a later one of its key; what
    a service refuses for good, or is too large, is a dead letter. While it is away, throttles for
    long or denies, only this sink waits, with its rows in the outbox.
    """

    extras: ClassVar[Mapping[str, str]] = {"boto3": "spark-event-router[aws]"}
    needs: ClassVar[tuple[str, ...]] = ("router_sinks.aws",)

    service: Literal["sqs", "sns", "kinesis"] = Field(description="which one")
    to: str = Field(min_length=1, description="the URL of a queue; the ARN of a topic or stream")
    value: Encoder = Field(
        default=ToJson(), description="an encoder: to_json, to_avro, ...; SQS and SNS take text only"
    )
    key: str | None = Field(
        default=None,
        min_length=1,
        description="SQL: the partition key of Kinesis; default: the record's key, or its place",
    )
    group: str | None = Field(default=None, min_length=1, description="SQL: the message group of a FIFO queue or topic")
    deduplicate: str | None = Field(
        default=None, min_length=1, description="SQL: the deduplication id of a FIFO message"
    )
    without: tuple[str, ...] = Field(default=(), description="columns of the route that are not for the value")
    region: str | None = Field(default=None, description="default: that of the machine, or of an ARN")
    endpoint: str | None = Field(default=None, description="another address of the service: LocalStack, a VPC endpoint")
    access_key_id: SecretStr | None = Field(default=None, description="default: boto3's own way to credentials")
    secret_access_key: SecretStr | None = Field(default=None)
    tasks: int = Field(default=2, ge=1, le=100, description="tasks that send at once, each one call at a time")

    _opening: Opening | None = PrivateAttr(default=None)
    _encodings: dict[str, Encoding] = PrivateAttr(default_factory=dict)

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError("an endpoint begins with https:// or http://")
        return endpoint

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        is_arn = self.to.startswith("arn:")
        if is_arn == (self.service == "sqs"):
            raise ValueError(f"`to` of {self.service} is {'the URL of a queue' if self.service == 'sqs' else 'an ARN'}")
        if self.fifo and self.group is None:
            raise ValueError(f"{self.to} is FIFO: it needs `group`, such as group: event.game")
        if not self.fifo and (self.group or self.deduplicate):
            raise ValueError("`group` and `deduplicate` are for queues and topics whose names end in .fifo")
        if self.key is not None and self.service != "kinesis":
            raise ValueError("`key` is the partition key of kinesis; FIFO queues and topics have `group`")
        return self

    @property
    def fifo(self) -> bool:
        """Say whether the service keeps the order of groups."""
        return self.service != "kinesis" and self.to.endswith(".fifo")

    @property
    def detached(self) -> bool:
        """Say that nothing else waits for the service."""
        return True

    @property
    def tasks_at_most(self) -> int:
        """Return how many calls are under way at once."""
        return self.tasks

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Yield the service, where its address is known."""
        address = self.endpoint or (self.to if self.service == "sqs" else "")
        return [Server("API", address)] if address else []

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with the encoding of its values. Asks the schema registry of `value` only."""
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise StartError("`access_key_id` and `secret_access_key` come together")
        prepared = self.model_copy()
        prepared._opening, prepared._encodings = opening, {}
        try:
            prepared._rows(opening.events).schema  # noqa: B018 - analyses the expressions
        except (AnalysisException, ParseException) as error:
            raise StartError(str(error).strip().split("\n")[0]) from error
        return prepared

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Send the rows of one batch. Raises ConnectionError while the service takes nothing."""
        given = [self.access_key_id, self.secret_access_key]
        keys = tuple(one.get_secret_value() for one in given if one is not None)
        region = self.region or (self.to.split(":")[3] if self.to.startswith("arn:") else None)
        about = self.service, self.to, region, self.endpoint, keys
        job = SendJob(*about, encoding=self._encoding(events), fifo=self.fifo)
        # rows of a group or key stay together, in the order of their offsets
        rows = self._rows(events).repartition(self.tasks, "_group").sortWithinPartitions(*PLACE)
        return outcome(events, reported(rows, batch, task(job)), f"{self.service} at {self.to}")

    def _rows(self, events: DataFrame) -> DataFrame:
        names = own_columns(events).fieldNames()
        seen = events if "event" in names else events.withColumn("event", row(names))
        place = F.concat_ws("/", *(F.col(name).cast("string") for name in PLACE))
        if self.service == "kinesis":
            group = F.coalesce(order_key(seen, self.key or "_key"), place.cast("binary"))
        else:
            group = order_key(seen, self.group) if self.group else place.cast("binary")
        marked = order_key(seen, self.deduplicate) if self.deduplicate else F.sha2(place, 256).cast("binary")
        value = self._encoding(events).column(own_columns(events, self.without).fieldNames())
        guard = F.col("_offset") >= 0  # always true, which no optimiser knows: see `tried`
        kept = [tried(F.when(guard, group)).alias("_group"), tried(F.when(guard, marked)).alias("_mark")]
        return seen.select(*PLACE, *kept, value.alias("_row"))

    def _encoding(self, events: DataFrame) -> Encoding:
        """Return the encoding of rows with these columns; it is kept for further batches of these columns."""
        columns = own_columns(events, self.without)
        named = columns.simpleString()
        if named not in self._encodings:
            if self._opening is None:
                raise StartError("the sink is not open: call prepare() before apply()")
            folder, trial = self._opening.folder, self._opening.trial
            self._encodings[named] = self.value.open(columns, folder, None, trial=trial)
        return self._encodings[named]


@dataclass(frozen=True)
class SendJob:
    """What the tasks of a batch need."""

    service: str
    to: str
    region: str | None
    endpoint: str | None
    keys: tuple[str, ...] = field(repr=False)
    encoding: Encoding
    fifo: bool = False

    def client(self) -> Any:
        """Return a client of boto3 that does not try again by itself. Runs on executors."""
        import boto3
        from botocore.config import Config

        named = dict(zip(("aws_access_key_id", "aws_secret_access_key"), self.keys, strict=False))
        config = Config(connect_timeout=10, read_timeout=30, retries={"total_max_attempts": 1})
        about: Any = {"region_name": self.region, "endpoint_url": self.endpoint, "config": config, **named}
        return boto3.session.Session().client(self.service, **about)


class Item(NamedTuple):
    """One row on its way: where it came from, its value, its group or key, its deduplication id."""

    place: dict[str, Any]
    value: bytes
    group: str
    mark: str

    def counted(self) -> int:
        """Return the bytes that count against a limit; ids count, too."""
        return len(self.value) + len(self.group.encode()) + len(self.mark.encode())


class Missed(NamedTuple):
    """An item that a service did not take, the code and the text of its answer, and whether the sender is at fault."""

    item: Item
    code: str
    text: str
    refused: bool


class _Ended(Exception):  # noqa: N818 - it says what happened
    """The reason why a task sends nothing more: (kind of report, text)."""


def task(job: SendJob) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow: it sends rows and returns reports. Runs on executors."""

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reports = Reports()
        try:
            client: Any = None
            for batch in batches:
                client = client or _client(job)
                for items in _calls(_items(batch, job, reports), SERVICES[job.service], fifo=job.fifo):
                    _deliver(client, job, items, reports)
                yield reports.taken()
        except _Ended as why:
            reports.ended(*why.args)
        yield reports.taken()

    return send


def _client(job: SendJob) -> Any:
    try:
        return job.client()
    except Exception as error:  # of botocore, for what nobody has set: a region, a profile
        raise _Ended("wrong", str(error)) from None


def _items(batch: pa.RecordBatch, job: SendJob, reports: Reports) -> Iterator[Item]:
    """Yield the rows of a batch that can be sent; refuse the others."""
    encoded: Encoded = job.encoding.function(batch.column("_row"), job.encoding.argument)
    rows = batch.select([*PLACE, "_group", "_mark"]).to_pylist()
    most = SERVICES[job.service].item_bytes
    for at, (row_, value) in enumerate(zip(rows, encoded.values, strict=True)):
        if value is None:
            reports.refused(row_, encoded.reasons.get(at, "it cannot be encoded"))
            continue
        item = Item(row_, value, *((row_[name] or b"").decode(errors="replace") for name in ("_group", "_mark")))
        if fault := _fault(item, job, most):
            reports.refused(row_, fault)
        else:
            yield item


def _fault(item: Item, job: SendJob, most: int) -> str | None:
    if item.counted() > most:
        return f"it has {item.counted():,} bytes; {job.service} takes {most:,}"
    if job.service == "kinesis":
        return None if 1 <= len(item.group) <= 256 else "its key is empty, or has more than 256 characters"
    if job.fifo and not (1 <= len(item.group) <= 128 and 1 <= len(item.mark) <= 128):
        return "its group or deduplication id cannot be evaluated, is empty or has more than 128 characters"
    try:
        text = item.value.decode()
    except UnicodeDecodeError:
        return f"its value is no text, and {job.service} takes nothing else"
    return None if text else "its value is empty"


def _calls(items: Iterable[Item], limits: Limits, *, fifo: bool) -> Iterator[list[Item]]:
    """Yield items in lists that one call takes. Of a FIFO group only one is in a call: some of it may be refused."""
    call: list[Item] = []
    size, groups = 0, set[str]()
    for item in items:
        full = len(call) == limits.items or size + item.counted() > limits.bytes
        if call and (full or (fifo and item.group in groups)):
            yield call
            call, size, groups = [], 0, set()
        call.append(item)
        size += item.counted()
        groups.add(item.group)
    if call:
        yield call


def _deliver(client: Any, job: SendJob, items: list[Item], reports: Reports) -> None:
    """Send items, and those that the service has not taken again, alone; raise _Ended where that does not end."""
    for tries in range(TRIES):
        missed = _sent(client, job, items)
        again = [one for one in missed if not one.refused]
        for one in missed:
            if one.refused:
                reports.refused(one.item.place, f"{job.service} answers {one.code}: {one.text}")
        reports.sent(len(items) - len(missed))
        if not again:
            return
        items = [one.item for one in again]
        if tries < TRIES - 1:
            time.sleep(min(LONGEST_PAUSE, 0.05 * 2**tries))
    raise _Ended("away", f"{len(items)} rows were not taken {TRIES} times: {again[0].code}: {again[0].text}")


def _sent(client: Any, job: SendJob, items: list[Item]) -> list[Missed]:
    """Make one call, and return the items that the service did not take."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return _call(client, job, items)
    except ClientError as error:
        code, text = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        found = code.lower().replace(".", "")
        if any(word in found for word in DENIED):
            raise _Ended("wrong", f"{code}: {text}") from None
        passes = any(word in found for word in (*THROTTLED, *GONE))
        status = error.response["ResponseMetadata"].get("HTTPStatusCode", 500)
        if passes or status >= 500 or status == 429:
            return [Missed(item, code, text, refused=False) for item in items]
        if len(items) == 1:
            return [Missed(items[0], code, text, refused=True)]
        return [missed for item in items for missed in _sent(client, job, [item])]  # one of them, or all, is at fault
    except (BotoCoreError, OSError) as error:
        if "credentials" in str(error).lower():
            raise _Ended("wrong", str(error)) from None
        return [Missed(item, type(error).__name__, str(error), refused=False) for item in items]


def _call(client: Any, job: SendJob, items: list[Item]) -> list[Missed]:
    if job.service == "kinesis":
        records = [{"Data": item.value, "PartitionKey": item.group} for item in items]
        answer = client.put_records(StreamARN=job.to, Records=records)
        return [
            Missed(item, one["ErrorCode"], one.get("ErrorMessage", ""), refused=False)
            for item, one in zip(items, answer["Records"], strict=True)
            if one.get("ErrorCode")
        ]
    body = "MessageBody" if job.service == "sqs" else "Message"
    entries: list[dict[str, Any]] = [{"Id": str(at), body: item.value.decode()} for at, item in enumerate(items)]
    for entry, item in zip(entries if job.fifo else (), items, strict=False):
        entry |= {"MessageGroupId": item.group, "MessageDeduplicationId": item.mark}
    if job.service == "sqs":
        answer = client.send_message_batch(QueueUrl=job.to, Entries=entries)
    else:
        answer = client.publish_batch(TopicArn=job.to, PublishBatchRequestEntries=entries)
    return [_missed(items[int(one["Id"])], one) for one in answer.get("Failed", ())]


def _missed(item: Item, answer: dict[str, Any]) -> Missed:
    """Return what a service says of an item; one for which the sender is not at fault is sent again."""
    code = str(answer.get("Code", ""))
    passes = any(word in code.lower() for word in (*THROTTLED, *GONE))
    return Missed(item, code, str(answer.get("Message", "")), refused=bool(answer.get("SenderFault")) and not passes)
