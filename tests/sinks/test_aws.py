"""The sink `boto3`: batches to a server of SQS, SNS and Kinesis, by the function of a task, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer

from router import Encoding
from router_encoders.outbox_rows import as_it_is
from router_sinks import aws
from router_sinks.aws import SERVICE_LIMITS, Item, SendJob, _group_calls, send_task
from tests.sinks.mistakes import assert_mistake_has_a_line, missing_extra
from tests.sinks.reports import rows_by_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = ("AKIAEXAMPLE", "secret-word")
REGION = "eu-west-1"
ENCODING = Encoding(as_it_is, None, "JSON")


class Cloud:
    """A server of AWS's protocols on this machine."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        named = dict(zip(("aws_access_key_id", "aws_secret_access_key"), KEYS, strict=True))
        self.clients = {
            name: boto3.client(name, region_name=REGION, endpoint_url=endpoint, **named) for name in SERVICE_LIMITS
        }

    def sends(
        self, service: str, to: str, values: list[bytes | None], groups: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """Let a task send rows, and return its reports."""
        job = SendJob(service, to, REGION, self.endpoint, KEYS, ENCODING, fifo=to.endswith(".fifo"))
        numbers = range(len(values))
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(["events"] * len(values)),
                pa.array([0] * len(values), pa.int32()),
                pa.array(numbers, pa.int64()),
                pa.array([(groups[n] if groups else f"key {n}").encode() for n in numbers], pa.binary()),
                pa.array([f"mark {n}".encode() for n in numbers], pa.binary()),
                pa.array(values, pa.binary()),
            ],
            names=["_topic", "_partition", "_offset", "_group", "_mark", "_row"],
        )
        return [row for found in send_task(job)([batch]) for row in found.to_pylist()]

    def queue(self, name: str) -> str:
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return str(self.clients["sqs"].create_queue(QueueName=name, Attributes=fifo)["QueueUrl"])

    def received(self, queue: str) -> list[dict[str, Any]]:
        """Return all messages of a queue."""
        found: list[dict[str, Any]] = []
        about: Any = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "AttributeNames": ["All"]}
        while got := self.clients["sqs"].receive_message(**about).get("Messages"):
            found += got
            for one in got:
                self.clients["sqs"].delete_message(QueueUrl=queue, ReceiptHandle=one["ReceiptHandle"])
        return found


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Run the server for the module; each test uses names of its own."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Cloud(f"http://{host}:{port}")
    server.stop()


def bodies(count: int) -> list[bytes]:
    return [json.dumps({"n": n, "name": "ünï"}).encode() for n in range(count)]


def test_messages_arrive_in_calls_of_ten(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it each event is a call of its own, or a call is refused for its size."""
    queue, calls, plain = cloud.queue("wins"), list[int](), aws._call_service
    monkeypatch.setattr(
        aws, "_call_service", lambda client, job, items: calls.append(len(items)) or plain(client, job, items)
    )

    reports = cloud.sends("sqs", queue, [*bodies(23), None, b"\xff", b"x" * (300 << 10)])

    assert rows_by_kind(reports) == {"sent": 23, "refused": 3}
    assert calls == [10, 10, 3]
    assert sorted(json.loads(one["Body"])["n"] for one in cloud.received(queue)) == list(range(23))
    assert {one["offset"]: one["text"] for one in reports if one["kind"] == "refused"} == {
        23: "it cannot be written as JSON",
        24: "its value is no text, and sqs takes nothing else",
        25: f"it has {(300 << 10) + len('key 25mark 25'):,} bytes; sqs takes 262,144",
    }


def test_a_group_keeps_its_order_and_drops_what_comes_again(cloud: Cloud) -> None:
    """Without it a batch that is sent again doubles its messages, or they overtake each other."""
    queue = cloud.queue("wins.fifo")
    groups = ["uno", "uno", "poker", "uno", "poker"]

    for _ in range(2):
        assert rows_by_kind(cloud.sends("sqs", queue, bodies(5), groups)) == {"sent": 5}

    found = cloud.received(queue)
    by_group: dict[str, list[int]] = {}
    for one in found:
        by_group.setdefault(one["Attributes"]["MessageGroupId"], []).append(json.loads(one["Body"])["n"])
    assert by_group == {"uno": [0, 1, 3], "poker": [2, 4]}


def test_a_server_that_restarts_gets_the_rest_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a restart of a service loses messages, or logs pages of botocore."""
    monkeypatch.setattr(aws, "MAX_RESEND_PAUSE_SECONDS", 0.02)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    cloud = Cloud(f"http://127.0.0.1:{port}")
    queue = cloud.queue("restarted")
    assert rows_by_kind(cloud.sends("sqs", queue, bodies(3))) == {"sent": 3}

    server.stop()
    away = cloud.sends("sqs", queue, bodies(3))
    server = ThreadedMotoServer("127.0.0.1", port=port, verbose=False)
    server.start()
    back = cloud.sends("sqs", queue, bodies(3))

    assert rows_by_kind(away) == {"away": 0}
    assert rows_by_kind(back) == {"sent": 3}
    assert sorted(json.loads(one["Body"])["n"] for one in cloud.received(queue)) == [0, 0, 1, 1, 2, 2]
    server.stop()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_a_topic_and_a_stream_take_them_too(cloud: Cloud) -> None:
    """Without it only queues are served."""
    queue = cloud.queue("of-topic")
    topic = cloud.clients["sns"].create_topic(Name="wins")["TopicArn"]
    about = cloud.clients["sqs"].get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    arn = about["Attributes"]["QueueArn"]
    cloud.clients["sns"].subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    kinesis = cloud.clients["kinesis"]
    kinesis.create_stream(StreamName="wins", ShardCount=1)
    stream = kinesis.describe_stream_summary(StreamName="wins")["StreamDescriptionSummary"]["StreamARN"]

    assert rows_by_kind(cloud.sends("sns", topic, bodies(12))) == {"sent": 12}
    assert rows_by_kind(cloud.sends("kinesis", stream, [*bodies(700), b"\x00\xff"])) == {"sent": 701}

    assert len(cloud.received(queue)) == 12
    shard = kinesis.get_shard_iterator(
        StreamName="wins", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )
    records = kinesis.get_records(ShardIterator=shard["ShardIterator"], Limit=1000)["Records"]
    assert {records[7]["PartitionKey"], records[700]["Data"]} == {"key 7", b"\x00\xff"}


class Half:
    """A client of a service that takes some items only: it plays answers that no local server gives."""

    def __init__(self, failing: dict[bytes, list[str]], *, fault: bool = False) -> None:
        self.failing, self.fault, self.taken, self.calls = failing, fault, list[bytes](), 0

    def put_records(self, StreamARN: str, Records: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - boto3's
        self.calls += 1
        answers = [self.answer(one["Data"]) for one in Records]
        return {"Records": [{"ErrorCode": code, "ErrorMessage": "slow"} if code else {} for code in answers]}

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        answers = {one["Id"]: self.answer(one["MessageBody"].encode()) for one in Entries}
        failed = [{"Id": i, "Code": c, "SenderFault": self.fault, "Message": "no"} for i, c in answers.items() if c]
        return {"Failed": failed}

    def answer(self, value: bytes) -> str | None:
        codes = self.failing.get(value, [])
        if not codes:
            self.taken.append(value)
        return codes.pop(0) if codes else None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router_sinks.aws.time.sleep", lambda seconds: None)


@pytest.mark.usefixtures("quick")
def test_only_what_was_not_taken_is_sent_again(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it one throttled record doubles 499 others."""
    values = bodies(5)
    half = Half({values[1]: ["ProvisionedThroughputExceededException"] * 3, values[3]: ["InternalFailure"]})
    monkeypatch.setattr(SendJob, "make_client", lambda self: half)

    reports = cloud.sends("kinesis", "arn:aws:kinesis:eu-west-1:1:stream/x", list(values))

    assert rows_by_kind(reports) == {"sent": 5}
    assert (Counter(half.taken), half.calls) == (Counter(values), 4)


@pytest.mark.usefixtures("quick")
def test_what_the_sender_is_at_fault_for_is_refused_and_what_never_passes_pauses_the_sink(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a malformed message holds up a queue for ever, or an outage makes dead letters."""
    values = bodies(3)
    half = Half({values[0]: ["InvalidMessageContents"]}, fault=True)
    monkeypatch.setattr(SendJob, "make_client", lambda self: half)

    assert rows_by_kind(cloud.sends("sqs", "http://x/y", list(values))) == {"sent": 2, "refused": 1}

    half = Half({values[2]: ["ServiceUnavailable"] * 100})
    reports = cloud.sends("sqs", "http://x/y", list(values))
    assert [(one["kind"], one["rows"]) for one in reports] == [("sent", 2), ("away", None)] or (
        rows_by_kind(reports) == {"sent": 2, "away": 0}
    )


@pytest.mark.usefixtures("quick")
def test_what_somebody_must_change_and_who_is_away_are_told_apart(cloud: Cloud) -> None:
    """Without it a queue that is not there, or a dead network, makes dead letters of all rows."""
    missing = cloud.sends("sqs", f"{cloud.endpoint}/123456789012/none", list(bodies(2)))
    away = Cloud("http://127.0.0.1:9").sends("sqs", "http://127.0.0.1:9/1/wins", list(bodies(2)))

    assert [one["kind"] for one in missing] == ["wrong"]
    assert "NonExistentQueue" in missing[0]["text"]
    assert rows_by_kind(away) == {"sent": 0, "away": 0} or rows_by_kind(away) == {"away": 0}
    assert "secret-word" not in f"{missing}{away}"


def test_a_call_stays_within_the_limits_of_its_service() -> None:
    """Without it a call of large items is refused whole."""
    items = [Item({}, b"x" * (100 << 10), f"g{n % 3}", "") for n in range(7)]

    sqs = [len(call) for call in _group_calls(items, SERVICE_LIMITS["sqs"], fifo=False)]
    fifo = [[one.group for one in call] for call in _group_calls(items, SERVICE_LIMITS["kinesis"], fifo=True)]
    kinesis = [len(call) for call in _group_calls([*items] * 100, SERVICE_LIMITS["kinesis"], fifo=False)]

    assert sqs == [2, 2, 2, 1]
    assert all(len(set(groups)) == len(groups) for groups in fifo)
    assert sum(kinesis) == 700
    assert max(kinesis) * (100 << 10) <= 5 << 20


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        pytest.param('{service: sqs, to: "arn:aws:sqs:x:1:y"}', "the URL of a queue", id="arn"),
        pytest.param('{service: sns, to: "https://x/y"}', "an ARN", id="url"),
        pytest.param('{service: sqs, to: "https://x/y.fifo"}', "it needs `group`", id="fifo"),
        pytest.param('{service: sqs, to: "https://x/y", group: game}', "end in .fifo", id="group"),
        pytest.param('{service: sqs, to: "https://x/y", key: game}', "partition key of kinesis", id="key"),
        pytest.param('{service: ses, to: "https://x/y"}', "sqs", id="service"),
    ],
)
def test_a_mistake_is_told_with_its_line(sink: str, told: str) -> None:
    """Without it a wrong option shows when the first row comes."""
    assert_mistake_has_a_line(f"{{boto3: {sink}}}", told)


def test_a_missing_extra_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a task fails with the name of a module."""
    told = missing_extra(monkeypatch, '{boto3: {service: sqs, to: "https://x/y"}}', "boto3")

    assert told == (
        "the sink boto3 needs the module boto3; pip install 'spark-event-router[aws]', here and on every node"
    )
