"""Encode the rows of a task and send them. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router import keep_archives
from router_sinks.sender import BrokerAway, Denied, Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router import Encoding
    from router_sinks.sender import Record
    from router_sinks.topics import Topics

TAKES = ("_topic", "_partition", "_offset", "_to", "_row")
"""Where a row came from; its topic, key and headers, null where they cannot be evaluated; what the encoding takes."""
REPORT = "kind string, rows bigint, topic string, partition int, offset bigint, text string"
"""What tasks return: how many rows are there (`sent`), how many went one by one (`alone`), every `refused` row with the
reason, and why the rest was not sent (`away`, `denied`)."""
_COLUMNS = pa.schema(
    [
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("text", pa.string()),
    ]
)
_UNMADE = "its topic, key or headers cannot be evaluated"


@dataclass(frozen=True)
class PublishJob:
    """What every task is given; `headers` are the names of the user's, `marks` those that all rows share."""

    settings: dict[str, str] = field(repr=False)
    encoding: Encoding
    topics: Topics
    headers: tuple[str, ...]
    marks: tuple[tuple[str, bytes], ...]
    patience: float


def task(job: PublishJob) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow. Needs the columns TAKES, in the order they are to be sent."""

    def publish(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        sender = Sender(job.settings, job.patience, named_by_data=not job.topics.fixed)
        trouble: list[dict[str, Any]] = []
        for rows in batches:
            if trouble or not rows.num_rows:
                continue  # to the end all the same: Spark is writing to this process
            try:
                yield _reported(_sent(rows, job, sender))
            except (BrokerAway, Denied) as error:
                trouble.append({"kind": type(error).__name__.lower(), "text": str(error)})
        yield _reported([*trouble, {"kind": "alone", "rows": sender.alone}])

    return publish


def _reported(found: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(found, schema=_COLUMNS)


def _sent(rows: pa.RecordBatch, job: PublishJob, sender: Sender) -> list[dict[str, Any]]:
    """Send the rows of one record batch; return how many are there and which are refused."""
    records, at, refused = outgoing_records(rows, job)
    refused |= {at[position]: reason for position, reason in sender.send(records).items()}
    found: list[dict[str, Any]] = [{"kind": "sent", "rows": rows.num_rows - len(refused)}]
    if refused:
        chosen = pa.array(sorted(refused))
        places = [rows.column(name).take(chosen).to_pylist() for name in TAKES[:3]]
        names = ("topic", "partition", "offset")
        found += [
            {"kind": "refused", "text": refused[row], **dict(zip(names, place, strict=True))}
            for row, *place in zip(sorted(refused), *places, strict=True)
        ]
    return found


def outgoing_records(rows: pa.RecordBatch, job: PublishJob) -> tuple[list[Record], list[int], dict[int, str]]:
    """Return records to send, the row of each, and why other rows are none."""
    made = job.encoding.function(rows.column("_row"), job.encoding.argument)
    places = zip(*(rows.column(name).to_pylist() for name in TAKES[:3]), strict=True)
    to = rows.column("_to")
    topic, key, *headers = to.flatten()
    # as bytes, for Spark lets texts pass that are not UTF-8
    names = [name if name is None else name.decode(errors="replace") for name in topic.cast(pa.binary()).to_pylist()]
    columns = zip(places, names, key.to_pylist(), _by_row(headers, rows.num_rows), made.values, strict=True)
    missing, refusal = to.is_null().to_pylist(), cache(job.topics.refusal)
    records: list[Record] = []
    at: list[int] = []
    refused: dict[int, str] = {}
    for row, (place, name, keyed, own, value) in enumerate(columns):
        why = _UNMADE if missing[row] else refusal(name, place[0]) or made.reasons.get(row)
        if why is not None or value is None:
            refused[row] = why or "there is no value"
            continue
        given = [(header, held) for header, held in zip(job.headers, own, strict=True) if held is not None]
        records.append((str(name), keyed, value, [*given, *job.marks, *_origin(*place)]))
        at.append(row)
    return records, at, refused


def _origin(topic: str | None, partition: int, offset: int) -> Iterator[tuple[str, bytes]]:
    """Yield the headers that say where a record came from."""
    yield "router.topic", (topic or "").encode()
    yield "router.partition", b"%d" % partition
    yield "router.offset", b"%d" % offset


def _by_row(headers: list[pa.Array], rows: int) -> Iterable[tuple[bytes | None, ...]]:
    return zip(*(one.to_pylist() for one in headers), strict=True) if headers else [()] * rows
