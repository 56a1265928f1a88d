"""Say of every row what became of it: one receipt each, written in parts, and read by the next attempt at the batch.

A part may have notes about the attempt that wrote it:

| note | says |
|---|---|
| `attempt` | the name of the attempt: one run of one task |
| `reserved` | ranges of rows whose calls may go out from now on |
| `ended` | the attempt came to its end: of its ranges only the rows in `doubtful` may have arrived without a receipt |
| `doubtful` | offsets of rows that were sent, and nobody knows what became of them |
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from router import Parts
    from router_rest.cutting import Call

Place: TypeAlias = "tuple[str | None, int]"
"""Topic and partition of the source."""
Range: TypeAlias = "tuple[str | None, int, int, int]"
"""Topic, partition, first and last offset."""
Status = Literal["delivered", "dead", "parked"]

SCHEMA = pa.schema(
    [
        ("query", pa.string()),
        ("route", pa.string()),
        ("sink", pa.string()),
        ("batch_id", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("status", pa.string()),
        ("http_status", pa.int32()),
        ("attempts", pa.int32()),
        ("latency_ms", pa.float64()),
        ("response", pa.string()),
        ("response_sha256", pa.string()),
        ("call_id", pa.string()),
        ("idempotency_key", pa.string()),
        ("reason", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("in_doubt", pa.bool_()),
        ("replay", pa.string()),
    ]
)
"""`status`: delivered, dead (never to be sent again by itself) or parked. `latency_ms`: of the last attempt.
`call_id` is the call that the row went out in; of a parked row the one that it would have gone out in, or has, where
that is in doubt. `in_doubt`: the row may have arrived in an earlier attempt as well. `replay` names the replay that the
row was sent again in, which has no `batch_id`.
"""
DDL = (
    "query string, route string, sink string, batch_id bigint, topic string, partition int, offset bigint, "
    "status string, http_status int, attempts int, latency_ms double, response string, response_sha256 string, "
    "call_id string, idempotency_key string, reason string, at timestamp, in_doubt boolean, replay string"
)
"""The same for Spark."""
PLACES = ("topic", "partition", "offset")
EXCERPT = 2048
"""Bytes of a response that a receipt keeps."""
LONGEST_REASON = 500


@dataclass(frozen=True)
class Owner:
    """Name the batch of a sink that receipts are about, or the replay of rows from many batches."""

    query: str
    route: str
    sink: str
    batch: int | None
    replay: str | None = None

    @property
    def name(self) -> str:
        """Return whose calls these are, in whichever batch."""
        return f"{self.query}/{self.route}/{self.sink}"


@dataclass
class Settled:
    """Be rows that are done with, and the answer that settled them.

    `at` in seconds since 1970; `id` names the call that they went out in, which may have had more rows.
    """

    call: Call
    status: Status
    at: float
    http_status: int | None = None
    seconds: float | None = None
    response: bytes = b""
    id: str | None = None
    key: str | None = None
    reason: str | None = None


def receipts(owner: Owner, settled: Sequence[Settled]) -> pa.Table:
    """Return the receipts of rows: the columns of SCHEMA."""
    times = [len(one.call) for one in settled]
    of_call = pa.array(np.repeat(np.arange(len(settled)), times))
    rows = int(sum(times))
    texts = [one.response[:EXCERPT].decode(errors="replace") if one.response else None for one in settled]
    hashes = [hashlib.sha256(one.response).hexdigest() if one.response else None for one in settled]
    by_call = {
        "topic": [one.call.topic for one in settled],
        "partition": [one.call.partition for one in settled],
        "status": [one.status for one in settled],
        "http_status": [one.http_status for one in settled],
        "attempts": [one.call.attempts for one in settled],
        "latency_ms": [None if one.seconds is None else one.seconds * 1000 for one in settled],
        "response": texts,
        "response_sha256": hashes,
        "call_id": [one.id for one in settled],
        "idempotency_key": [one.key for one in settled],
        "reason": [one.reason and one.reason[:LONGEST_REASON] for one in settled],
        "at": [int(one.at * 1_000_000) for one in settled],
    }
    same = {"query": owner.query, "route": owner.route, "sink": owner.sink, "batch_id": owner.batch}
    same |= {"replay": owner.replay}
    columns = {
        **{name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), rows) for name, value in same.items()},
        **{name: pa.array(values, SCHEMA.field(name).type).take(of_call) for name, values in by_call.items()},
        "offset": pa.array([at for one in settled for at in one.call.offsets], pa.int64()),
        "in_doubt": pa.array([at in one.call.doubtful for one in settled for at in one.call.offsets], pa.bool_()),
    }
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


@dataclass(frozen=True)
class Known:
    """Know of a batch which rows have a receipt, and which others may have arrived. Runs anywhere.

    Both by topic and partition; `doubtful` as ranges.
    """

    done: Mapping[Place, np.ndarray[Any, np.dtype[np.int64]]] = field(default_factory=dict)
    doubtful: Mapping[Place, Sequence[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Parts) -> Known:
        """Read what earlier attempts at the batch left."""
        done: dict[Place, list[Any]] = {}
        reserved: dict[str, list[Range]] = {}
        ended: set[str] = set()
        doubtful: dict[Place, list[tuple[int, int]]] = {}
        for notes, rows in parts.read(PLACES):
            _collect(rows, done)
            reserved.setdefault(notes.get("attempt", ""), []).extend(ranges_in(notes.get("reserved")))
            if "ended" in notes:
                ended.add(notes["attempt"])
                _spread(ranges_in(notes.get("doubtful")), doubtful)
        for attempt, ranges in reserved.items():
            if attempt not in ended:
                _spread(ranges, doubtful)
        return cls({place: np.unique(np.concatenate(offsets)) for place, offsets in done.items()}, doubtful)

    def open(self, place: Place, offsets: Any) -> Any:
        """Return, for each offset of a source partition, whether the row has no receipt."""
        done = self.done.get(place)
        return np.ones(len(offsets), bool) if done is None else ~np.isin(offsets, done, kind="sort")

    def rest(self, call: Call) -> Call:
        """Return what of a call has no receipt, and of that what may have arrived."""
        place = call.topic, call.partition
        if place in self.done:
            left = np.flatnonzero(self.open(place, call.offsets)).tolist()
            call = call if len(left) == len(call) else call.of(left)
        if place in self.doubtful:
            call.doubtful = self.in_doubt(place, call.offsets)
        return call

    def in_doubt(self, place: Place, offsets: Iterable[int]) -> frozenset[int]:
        """Return the offsets of rows that may have arrived although they have no receipt."""
        ranges = self.doubtful.get(place)
        if not ranges:
            return frozenset()
        return frozenset(at for at in offsets if any(first <= at <= last for first, last in ranges))


def note_of(ranges: Iterable[Range]) -> str:
    """Return ranges as the text of a note."""
    return json.dumps([list(one) for one in ranges])


def ranges_of(place: Place, offsets: Iterable[int]) -> list[Range]:
    """Return offsets as ranges; those that follow each other are one."""
    found: list[Range] = []
    for at in sorted(offsets):
        if found and found[-1][3] == at - 1:
            found[-1] = (*place, found[-1][2], at)
        else:
            found.append((*place, at, at))
    return found


def ranges_in(note: str | None) -> list[Range]:
    """Return the ranges in the text of a note."""
    return [tuple(one) for one in json.loads(note)] if note else []


def _spread(ranges: Iterable[Range], into: dict[Place, list[tuple[int, int]]]) -> None:
    for topic, partition, first, last in ranges:
        into.setdefault((topic, partition), []).append((first, last))


def _collect(rows: pa.Table, done: dict[Place, list[Any]]) -> None:
    """Sort the rows of a part by where they came from."""
    if not rows.num_rows:
        return
    for place in rows.group_by(["topic", "partition"]).aggregate([("offset", "list")]).to_pylist():
        done.setdefault((place["topic"], place["partition"]), []).append(np.array(place["offset_list"], np.int64))
