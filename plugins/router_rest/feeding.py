"""Make calls of record batches, and let them go out when it is written down that they may. Runs on executors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from router_rest.cutting import Call, Cutter
from router_rest.receipts import Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from router import Encoding
    from router_rest.bodies import Body
    from router_rest.journal import Journal
    from router_rest.lanes import Lanes
    from router_rest.receipts import Known, Place, Range

TAKES = ("_topic", "_partition", "_offset", "_lane", "_to", "_row")
"""Where a row came from, what it keeps its order by (null: nothing), its URL, or why it has none, and what the encoding
takes."""
Stretch = tuple["Place", Any, int]
"""Rows of one source partition that follow each other: where from, their offsets, the position of the first."""


@dataclass
class Feeder:
    """Cut the rows of one task, but for those with a receipt, into calls for `lanes`.

    `urls`: rows name theirs. `settle` takes rows of which no call can be made. `chunk`: rows that are reserved at once,
    at least.
    """

    cutter: Cutter
    encoding: Encoding
    body: Body
    urls: bool
    known: Known
    journal: Journal
    lanes: Lanes
    chunk: int
    settle: Callable[[Settled], None]
    seen: int = 0
    skipped: int = 0
    _reserved: int = field(default=0, init=False)

    async def take(self, rows: pa.RecordBatch, *, send: bool) -> None:
        """Take the rows of a record batch; only count them when nothing is sent any more."""
        found = list(stretches(rows))
        missing = [self.known.open(place, offsets) for place, offsets, _ in found]
        wanted = np.concatenate(missing) if missing else np.ones(0, bool)
        self.seen += rows.num_rows
        self.skipped += rows.num_rows - int(np.count_nonzero(wanted))
        if send:  # those with a receipt as well: where calls are cut must not depend on it
            await self._cut(rows, found, wanted)

    async def end(self) -> None:
        """Let go out what is not full."""
        for call in self.cutter.end():
            await self._begin(call)

    async def _cut(self, rows: pa.RecordBatch, found: Sequence[Stretch], wanted: Any) -> None:
        self._reserved = 0
        for at, one in enumerate(readied(rows, self.encoding, self.body, urls=self.urls)):
            if at >= self._reserved:
                await self._reserve(at, rows.num_rows, found)
            if one.fault is not None:
                if wanted[at]:
                    topic, partition, offset = one.place
                    call = Call(topic, partition, [offset], [b""])
                    self.settle(Settled(call, "dead", time.time(), reason=one.fault))
                continue
            for call in self.cutter.add(one.place, one.value, one.url, one.lane):
                if not await self._begin(call):
                    return

    async def _begin(self, call: Call) -> bool:
        """Let a call go out, but for its rows that have a receipt; False when nothing goes out any more."""
        place = call.topic, call.partition
        if place in self.known.done:
            left = np.flatnonzero(self.known.open(place, call.offsets)).tolist()
            if len(left) < len(call):
                call = call.of(left)
        if not len(call):
            return True
        if place in self.known.doubtful:
            call.doubtful = self.known.in_doubt(place, call.offsets)
        return await self.lanes.put(call) or not self.lanes.over

    async def _reserve(self, at: int, rows: int, found: Iterable[Stretch]) -> None:
        """Write down which rows may go out next."""
        self._reserved = min(rows, at + max(self.chunk, int(self.journal.rate * 1.5)))
        ranges: list[Range] = []
        for place, offsets, first in found:
            low, high = max(at, first), min(self._reserved, first + len(offsets))
            if low < high:
                ranges.append((*place, int(offsets[low - first]), int(offsets[high - 1 - first])))
        await self.journal.reserve(ranges)


class Ready(NamedTuple):
    """Be a row as a call takes it, or the `fault` for which none does."""

    place: tuple[str | None, int, int]
    value: bytes
    url: str
    lane: bytes | None
    fault: str | None


def readied(rows: pa.RecordBatch, encoding: Encoding, body: Body, *, urls: bool) -> Iterator[Ready]:
    """Yield each row of a record batch, which has the columns TAKES; `urls`: rows name theirs."""
    made = encoding.function(rows.column("_row"), encoding.argument)
    named, faults = _urls(rows) if urls else ([""] * rows.num_rows, [None] * rows.num_rows)
    columns = (rows.column(name).to_pylist() for name in TAKES[:4])
    for at, (topic, partition, offset, lane) in enumerate(zip(*columns, strict=True)):
        value = made.values[at]
        why = faults[at] or made.reasons.get(at) or ("there is no value" if value is None else body.fault(value))
        yield Ready((topic, partition, offset), value or b"", named[at], lane, why)


def _urls(rows: pa.RecordBatch) -> tuple[Sequence[str], Sequence[str | None]]:
    """Return the URL of each row, and why rows have none."""
    to = rows.column("_to")
    urls, faults = (to.field(name).to_pylist() for name in ("url", "fault"))
    missing = to.is_null().to_pylist()
    told = ["its URL cannot be evaluated" if lost else fault for lost, fault in zip(missing, faults, strict=True)]
    return urls, told


def stretches(rows: pa.RecordBatch) -> Iterator[Stretch]:
    """Yield the rows of a record batch by source partition."""
    if not rows.num_rows:
        return
    topics = rows.column("_topic").dictionary_encode()
    codes = topics.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    partitions = rows.column("_partition").to_numpy(zero_copy_only=False)
    offsets = rows.column("_offset").to_numpy(zero_copy_only=False)
    changes = (np.flatnonzero((codes[1:] != codes[:-1]) | (partitions[1:] != partitions[:-1])) + 1).tolist()
    for first, last in zip([0, *changes], [*changes, len(offsets)], strict=True):
        topic = None if codes[first] < 0 else topics.dictionary[int(codes[first])].as_py()
        yield (topic, int(partitions[first])), offsets[first:last], first
