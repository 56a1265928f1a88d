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

from router import ApplyingSink, Batch, Encoder, Encoding, Opening, Outcome, Server, StartError, tried
from router_encoders import ToJson
from router_encoders.outbox_rows import PLACE, order_key, own_columns, with_event
from router_encoders.reports import Reports, outcome_of, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Self


MAX_SENDS = 8
"""How often items are sent that a service has not taken, before the batch of the sink ends and is tried again."""
MAX_RESEND_PAUSE_SECONDS = 5.0
"""Seconds between two of these, at most."""


class Limits(NamedTuple):
    """The most that one call of a service takes: items, bytes of all and bytes of one; and what a key counts."""

    items: int
    bytes: int
    item_bytes: int


SERVICE_LIMITS = {
    "sqs": Limits(10, 256 << 10, 256 << 10),
    "sns": Limits(10, 256 << 10, 256 << 10),
    "kinesis": Limits(500, 5 << 20, 1 << 20),
}
THROTTLED_CODES = ("throttl", "provisionedthroughputexceeded", "requestlimitexceeded", "slowdown", "toomanyrequests")
"""Parts of the codes of a limit: such an item, or call, is sent again."""
UNAVAILABLE_CODES = ("internal", "unavailable", "timeout", "kmsthrottl")
"""Parts of the codes of an outage: such an item, or call, is sent again."""
DENIED_CODES = (
    *("accessdenied", "authorization", "expiredtoken", "invalidclienttokenid", "unrecognizedclient", "signature"),
    *("nonexistentqueue", "queuedoesnotexist", "notfound", "optedout"),
)
"""Parts of the codes that only a changed setting, login or queue ends."""


class Aws(ApplyingSink):
    """Send events to a queue of SQS, a topic of SNS or a stream of Kinesis, in batches.

    `to` is the URL of a queue, or the ARN of a topic or stream. Keys and ids are SQL over the route's columns, also as
    `event.NAME`, and `_topic`, `_partition`, `_offset`, `_timestamp` and `_key`. A queue or topic whose name ends in
    .fifo needs `group`; without `deduplicate` its messages have an id made of where their record came from, so that the
    service drops what is sent again within five minutes.

    Delivery: at least once; in order per `group`, of which one message is in a call. Items that the service does not
    take are sent again alone, with growing pauses, so that Kinesis may get a record after a later one of its key; what
    a service refuses for good, or is too large, is a dead letter. While it is unavailable, throttles for
    long or denies, only this sink waits, with its rows in the outbox.
    """

    extras: ClassVar[Mapping[str, str]] = {"boto3": "spark-event-router[aws]"}
    needs: ClassVar[tuple[str, ...]] = ("router_sinks.aws",)

    service: Literal["sqs", "sns", "kinesis"] = Field(description="the service")
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
    region: str | None = Field(default=None, description="region; default: that of the machine, or of an ARN")
    endpoint: str | None = Field(default=None, description="another address of the service: LocalStack, a VPC endpoint")
    access_key_id: SecretStr | None = Field(default=None, description="default: the credentials that boto3 finds")
    secret_access_key: SecretStr | None = Field(default=None)
    tasks: int = Field(default=2, ge=1, le=100, description="tasks that send at once, each one call at a time")

    _opening: Opening | None = PrivateAttr(default=None)
    _encodings: dict[str, Encoding] = PrivateAttr(default_factory=dict)

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError("an endpoint begins with https:// or http://")
        return endpoint

    @model_validator(mode="after")
    def _check_service(self) -> Self:
        is_arn = self.to.startswith("arn:")
        if self.service == "sqs" and is_arn:
            raise ValueError("`to` of sqs is the URL of a queue")
        if self.service != "sqs" and not is_arn:
            raise ValueError(f"`to` of {self.service} is an ARN")
        if self.is_fifo and self.group is None:
            raise ValueError(f"{self.to} is FIFO: it needs `group`, such as group: event.game")
        if not self.is_fifo and (self.group or self.deduplicate):
            raise ValueError("`group` and `deduplicate` are for queues and topics whose names end in .fifo")
        if self.key is not None and self.service != "kinesis":
            raise ValueError("`key` is the partition key of kinesis; FIFO queues and topics have `group`")
        return self

    @property
    def is_fifo(self) -> bool:
        """Return whether the service keeps the order of groups."""
        return self.service != "kinesis" and self.to.endswith(".fifo")

    @property
    def detached(self) -> bool:
        """Return True: nothing else waits for the service."""
        return True

    @property
    def tasks_at_most(self) -> int:
        """Return how many calls are under way at once."""
        return self.tasks

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Yield the service, if its address is known."""
        if self.endpoint:
            yield Server("API", self.endpoint)
        elif self.service == "sqs":
            yield Server("API", self.to)

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with the encoding of its values. Asks the schema registry of `value` only."""
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise StartError("`access_key_id` and `secret_access_key` come together")
        prepared = self.model_copy()
        prepared._opening = opening
        prepared._encodings = {}
        try:
            prepared._select_rows(opening.events).schema  # noqa: B018 - analyses the expressions
        except (AnalysisException, ParseException) as error:
            raise StartError(str(error).strip().split("\n")[0]) from error
        return prepared

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Send the rows of one batch. Raises ConnectionError while the service takes nothing."""
        region = self.region
        if not region and self.to.startswith("arn:"):
            region = self.to.split(":")[3]
        credentials = [self.access_key_id, self.secret_access_key]
        job = SendJob(
            service=self.service,
            to=self.to,
            region=region,
            endpoint=self.endpoint,
            keys=tuple(secret.get_secret_value() for secret in credentials if secret is not None),
            encoding=self._encoding_of(events),
            fifo=self.is_fifo,
        )
        # Rows of a group or key stay together, in the order of their offsets.
        rows = self._select_rows(events).repartition(self.tasks, "_group").sortWithinPartitions(*PLACE)
        return outcome_of(events, run_tasks(rows, batch, send_task(job)), f"{self.service} at {self.to}")

    def _select_rows(self, events: DataFrame) -> DataFrame:
        """Return the rows to send: their place, group or key (`_group`), deduplication id (`_mark`) and value."""
        rows = with_event(events)
        place = F.concat_ws("/", *(F.col(name).cast("string") for name in PLACE))
        group = place.cast("binary")
        if self.service == "kinesis":
            group = F.coalesce(order_key(rows, self.key or "_key"), group)
        elif self.group:
            group = order_key(rows, self.group)
        mark = F.sha2(place, 256).cast("binary")
        if self.deduplicate:
            mark = order_key(rows, self.deduplicate)
        value = self._encoding_of(events).column(own_columns(events, self.without).fieldNames())
        guard = F.col("_offset") >= 0  # always true, which no optimiser knows: see `tried`
        return rows.select(
            *PLACE,
            tried(F.when(guard, group)).alias("_group"),
            tried(F.when(guard, mark)).alias("_mark"),
            value.alias("_row"),
        )

    def _encoding_of(self, events: DataFrame) -> Encoding:
        """Return the encoding of rows with these columns; it is kept for further batches of these columns."""
        columns = own_columns(events, self.without)
        key = columns.simpleString()
        if key not in self._encodings:
            if self._opening is None:
                raise StartError("the sink is not open: call prepare() before apply()")
            self._encodings[key] = self.value.open(columns, self._opening.folder, None, trial=self._opening.trial)
        return self._encodings[key]


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

    def make_client(self) -> Any:
        """Return a client of boto3 that does not try again by itself. Runs on executors."""
        import boto3
        from botocore.config import Config

        options: dict[str, Any] = {"region_name": self.region, "endpoint_url": self.endpoint}
        if self.keys:
            options["aws_access_key_id"], options["aws_secret_access_key"] = self.keys
        config = Config(connect_timeout=10, read_timeout=30, retries={"total_max_attempts": 1})
        return boto3.session.Session().client(self.service, config=config, **options)


class Item(NamedTuple):
    """One row on its way: where it came from, its value, its group or key, its deduplication id."""

    place: dict[str, Any]
    value: bytes
    group: str
    mark: str

    def count_bytes(self) -> int:
        """Return the bytes that count against a limit, those of ids as well."""
        return len(self.value) + len(self.group.encode()) + len(self.mark.encode())


class Missed(NamedTuple):
    """An item that a service did not take, the code and the text of its answer, and whether the sender is at fault."""

    item: Item
    code: str
    text: str
    refused: bool


class _Ended(Exception):  # noqa: N818 - it says what happened
    """The reason why a task sends nothing more: (kind of report, text)."""


def send_task(job: SendJob) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow: it sends rows and returns reports. Runs on executors."""

    def send_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reports = Reports()
        try:
            client: Any = None
            for batch in batches:
                client = client or _make_client(job)
                for items in _group_calls(_make_items(batch, job, reports), SERVICE_LIMITS[job.service], fifo=job.fifo):
                    _deliver_items(client, job, items, reports)
                yield reports.take_batch()
        except _Ended as end:
            reports.add_end(*end.args)
        yield reports.take_batch()

    return send_rows


def _make_client(job: SendJob) -> Any:
    try:
        return job.make_client()
    except Exception as error:  # of botocore, for what is not set: a region, a profile
        raise _Ended("wrong", str(error)) from None


def _make_items(batch: pa.RecordBatch, job: SendJob, reports: Reports) -> Iterator[Item]:
    """Yield the rows of a batch that can be sent; refuse the others."""
    encoded = job.encoding.encode(batch.column("_row"))
    rows = batch.select([*PLACE, "_group", "_mark"]).to_pylist()
    most = SERVICE_LIMITS[job.service].item_bytes
    for number, (place, value) in enumerate(zip(rows, encoded.values, strict=True)):
        if value is None:
            reports.add_refused(place, encoded.reasons.get(number, "it cannot be encoded"))
            continue
        group = (place["_group"] or b"").decode(errors="replace")
        mark = (place["_mark"] or b"").decode(errors="replace")
        item = Item(place, value, group, mark)
        if fault := _item_fault(item, job, most):
            reports.add_refused(place, fault)
        else:
            yield item


def _item_fault(item: Item, job: SendJob, most: int) -> str | None:
    """Return the reason why a service would never take an item; None if it may."""
    if item.count_bytes() > most:
        return f"it has {item.count_bytes():,} bytes; {job.service} takes {most:,}"
    if job.service == "kinesis":
        if 1 <= len(item.group) <= 256:
            return None
        return "its key is empty, or has more than 256 characters"
    if job.fifo and not (1 <= len(item.group) <= 128 and 1 <= len(item.mark) <= 128):
        return "its group or deduplication id cannot be evaluated, is empty or has more than 128 characters"
    try:
        text = item.value.decode()
    except UnicodeDecodeError:
        return f"its value is no text, and {job.service} takes nothing else"
    return None if text else "its value is empty"


def _group_calls(items: Iterable[Item], limits: Limits, *, fifo: bool) -> Iterator[list[Item]]:
    """Yield items in lists that one call takes. Of a FIFO group only one is in a call: some of it may be refused."""
    call: list[Item] = []
    size = 0
    for item in items:
        # A message that a service has not taken is sent again: a later one of its group must not be taken before.
        is_full = len(call) == limits.items or size + item.count_bytes() > limits.bytes
        has_group = fifo and any(other.group == item.group for other in call)
        if call and (is_full or has_group):
            yield call
            call = []
            size = 0
        call.append(item)
        size += item.count_bytes()
    if call:
        yield call


def _deliver_items(client: Any, job: SendJob, items: list[Item], reports: Reports) -> None:
    """Send items, and those that the service has not taken again, alone; raise _Ended if that does not end."""
    for attempt in range(MAX_SENDS):
        if attempt:
            time.sleep(min(MAX_RESEND_PAUSE_SECONDS, 0.05 * 2 ** (attempt - 1)))
        missed_items = _send_items(client, job, items)
        reports.add_sent(len(items) - len(missed_items))
        again = []
        for missed in missed_items:
            if missed.refused:
                reports.add_refused(missed.item.place, f"{job.service} answers {missed.code}: {missed.text}")
            else:
                again.append(missed)
        if not again:
            return
        items = [missed.item for missed in again]
    raise _Ended("away", f"{len(items)} rows were not taken {MAX_SENDS} times: {again[0].code}: {again[0].text}")


def _send_items(client: Any, job: SendJob, items: list[Item]) -> list[Missed]:
    """Make one call, and return the items that the service did not take."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return _call_service(client, job, items)
    except ClientError as error:
        code = error.response["Error"].get("Code", "")
        text = error.response["Error"].get("Message", "")
        if _has_part_of(code, DENIED_CODES):
            raise _Ended("wrong", f"{code}: {text}") from None
        status = error.response["ResponseMetadata"].get("HTTPStatusCode", 500)
        if _is_temporary(code) or status >= 500 or status == 429:
            return [Missed(item, code, text, refused=False) for item in items]
        if len(items) == 1:
            return [Missed(items[0], code, text, refused=True)]
        # One of them is at fault, or all are: each is sent alone.
        missed = []
        for item in items:
            missed += _send_items(client, job, [item])
        return missed
    except (BotoCoreError, OSError) as error:
        if "credentials" in str(error).lower():
            raise _Ended("wrong", str(error)) from None
        return [Missed(item, type(error).__name__, str(error), refused=False) for item in items]


def _call_service(client: Any, job: SendJob, items: list[Item]) -> list[Missed]:
    if job.service == "kinesis":
        return _put_records(client, job, items)
    body = "MessageBody" if job.service == "sqs" else "Message"
    entries = []
    for number, item in enumerate(items):
        entry = {"Id": str(number), body: item.value.decode()}
        if job.fifo:
            entry["MessageGroupId"] = item.group
            entry["MessageDeduplicationId"] = item.mark
        entries.append(entry)
    if job.service == "sqs":
        answer = client.send_message_batch(QueueUrl=job.to, Entries=entries)
    else:
        answer = client.publish_batch(TopicArn=job.to, PublishBatchRequestEntries=entries)
    return [_missed_item(items[int(failed["Id"])], failed) for failed in answer.get("Failed", ())]


def _put_records(client: Any, job: SendJob, items: list[Item]) -> list[Missed]:
    records = [{"Data": item.value, "PartitionKey": item.group} for item in items]
    answer = client.put_records(StreamARN=job.to, Records=records)
    missed = []
    # The answer has a result for each record, in their order.
    for item, result in zip(items, answer["Records"], strict=True):
        if result.get("ErrorCode"):
            missed.append(Missed(item, result["ErrorCode"], result.get("ErrorMessage", ""), refused=False))
    return missed


def _missed_item(item: Item, failed: dict[str, Any]) -> Missed:
    """Return an item that failed; it is sent again unless the sender is at fault."""
    code = str(failed.get("Code", ""))
    refused = bool(failed.get("SenderFault")) and not _is_temporary(code)
    return Missed(item, code, str(failed.get("Message", "")), refused)


def _is_temporary(code: str) -> bool:
    return _has_part_of(code, (*THROTTLED_CODES, *UNAVAILABLE_CODES))


def _has_part_of(code: str, parts: tuple[str, ...]) -> bool:
    """Return whether an error code has one of some parts in it; codes of SQS have dots between their words."""
    return any(part in code.lower().replace(".", "") for part in parts)
