"""What a task makes of rows before it sends them, without Kafka."""

from __future__ import annotations

import pyarrow as pa
import pytest

from router import Encoded, Encoding
from router_sinks import kafka_client
from router_sinks.kafka_client import BrokerAway, Denied, PublishJob, Sender, outgoing_records, task
from router_sinks.kafka_topics import Topics


def encode(array: pa.Array, argument: None) -> Encoded:
    """Take values as they are; a null cannot be encoded."""
    values = array.to_pylist()
    return Encoded(values, {at: "it is null" for at, value in enumerate(values) if value is None})


@pytest.fixture
def rows() -> pa.RecordBatch:
    """Return rows for topics that are there or not, with values or without."""
    names = ["games-uno", "games-x", None, "games-uno", "games-uno", "games-uno"]
    keys, headers = [b"k", None, b"a", b"z", None, b"y"], [b"h", None, None, b"q", None, None]
    parts = [pa.array(names), pa.array(keys, pa.binary()), pa.array(headers, pa.binary())]
    to = pa.StructArray.from_arrays(parts, ["topic", "c0", "c1"], mask=pa.array([False] * 3 + [True] + [False] * 2))
    columns = [pa.array(["events"] * 6), pa.array([3] * 6, pa.int32()), pa.array(range(5, 11)), to]
    values = pa.array([b"v0", b"v1", b"v2", b"v3", b"v4", None])
    return pa.RecordBatch.from_arrays([*columns, values], ["_topic", "_partition", "_offset", "_to", "_row"])


@pytest.fixture
def job() -> PublishJob:
    topics = Topics(frozenset({"games-uno"}), {}, fixed=False)
    return PublishJob({}, Encoding(encode, None, ""), topics, ("h",), (("router.query", b"q"),), 1)


@pytest.mark.parametrize(("trouble", "kind"), [(BrokerAway("it is down"), "away"), (Denied("no such user"), "denied")])
def test_a_task_that_cannot_send_says_why(
    rows: pa.RecordBatch, job: PublishJob, monkeypatch: pytest.MonkeyPatch, trouble: Exception, kind: str
) -> None:
    """Without it a batch counts as sent while Kafka is away, and its rows are lost."""

    def fails(sender: Sender, records: object) -> dict[int, str]:
        raise trouble

    monkeypatch.setattr(kafka_client.Sender, "send", fails)

    reports = [row for batch in task(job)(iter([rows, rows])) for row in batch.to_pylist()]

    assert [(row["kind"], row["text"]) for row in reports if row["kind"] != "alone"] == [(kind, str(trouble))]


def test_every_row_is_a_record_or_has_a_reason(rows: pa.RecordBatch, job: PublishJob) -> None:
    """Without it a row vanishes, or takes the key, headers or place of its neighbour."""
    records, at, refused = outgoing_records(rows, job)

    def marks(offset: bytes) -> list[tuple[str, bytes]]:
        return [
            ("router.query", b"q"),
            ("router.topic", b"events"),
            ("router.partition", b"3"),
            ("router.offset", offset),
        ]

    assert records == [
        ("games-uno", b"k", b"v0", [("h", b"h"), *marks(b"5")]),
        ("games-uno", None, b"v4", marks(b"9")),
    ]
    assert at == [0, 4]
    assert {row: reason.split(";")[0] for row, reason in refused.items()} == {
        1: "there is no topic games-x",
        2: "the topic's name is null",
        3: "its topic, key or headers cannot be evaluated",
        5: "it is null",
    }
