"""What a task makes of rows before it sends them, without Kafka."""

from __future__ import annotations

import pyarrow as pa

from router import Encoded, Encoding
from router_sinks.kafka_client import PublishJob, outgoing_records
from router_sinks.kafka_topics import Topics


def encode(array: pa.Array, argument: None) -> Encoded:
    """Take values as they are; a null cannot be encoded."""
    values = array.to_pylist()
    return Encoded(values, {at: "it is null" for at, value in enumerate(values) if value is None})


def test_every_row_is_a_record_or_has_a_reason() -> None:
    """Without it a row vanishes, or takes the key, headers or place of its neighbour."""
    names = ["games-uno", "games-x", None, "games-uno", "games-uno", "games-uno"]
    keys, headers = [b"k", None, b"a", b"z", None, b"y"], [b"h", None, None, b"q", None, None]
    parts = [pa.array(names), pa.array(keys, pa.binary()), pa.array(headers, pa.binary())]
    to = pa.StructArray.from_arrays(parts, ["topic", "c0", "c1"], mask=pa.array([False] * 3 + [True] + [False] * 2))
    columns = [pa.array(["events"] * 6), pa.array([3] * 6, pa.int32()), pa.array(range(5, 11)), to]
    values = pa.array([b"v0", b"v1", b"v2", b"v3", b"v4", None])
    rows = pa.RecordBatch.from_arrays([*columns, values], ["_topic", "_partition", "_offset", "_to", "_row"])
    topics = Topics(frozenset({"games-uno"}), {}, fixed=False)
    job = PublishJob({}, Encoding(encode, None, ""), topics, ("h",), (("router.query", b"q"),), 1)

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
