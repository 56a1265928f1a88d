"""Make calls of record batches, and let them go out when it is written down that they may. Runs on executors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from router_rest.delivery.batcher import Batcher, Call
from router_rest.delivery.receipts import Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from router import Encoding
    from router_rest.delivery.batcher import CallQueue
    from router_rest.delivery.body import Body
    from router_rest.delivery.receipts import KnownReceipts, Place, Range, ReceiptWriter

TAKES = ("_topic", "_partition", "_offset", "_order", "_to", "_row")
"""Where a row came from, what it keeps its order by (null: nothing), its URL, or why it has none, and what the encoding
takes."""
FORMER = "_former"
"""The call that a row went out in before, where it is sent again."""
Stretch = tuple["Place", Any, int]
"""Rows of one source partition that follow each other: where from, their offsets, the position of the first."""


class TakenRow(NamedTuple):
    """A row as calls are cut of it: what `Batcher.add` takes, or `why` it can be in none."""

    place: tuple[str | None, int, int]
    value: bytes
    url: str
    key: bytes | None
    former: str | None
    why: str | None


@dataclass(frozen=True)
class RowReader:
    """A reader of record batches with the columns of TAKES, and FORMER where rows were in a call before.

    `urls`: rows name theirs.
    """

    encoding: Encoding
    body: Body
    urls: bool

    def rows(self, rows: pa.RecordBatch) -> Iterator[TakenRow]:
        """Yield the rows of a record batch."""
        made = self.encoding.function(rows.column("_row"), self.encoding.argument)
        topics, partitions, offsets, keys = (rows.column(name).to_pylist() for name in TAKES[:4])
        formers = rows.column(FORMER).to_pylist() if FORMER in rows.schema.names else [None] * rows.num_rows
        urls, faults = self._urls(rows)
        for at, value in enumerate(made.values):
            why = faults[at] or made.reasons.get(at) or (None if value is None else self.body.fault(value))
            why = "there is no value" if value is None and not why else why
            place = topics[at], partitions[at], offsets[at]
            yield TakenRow(place, value or b"", urls[at], keys[at], formers[at], why)

    def _urls(self, rows: pa.RecordBatch) -> tuple[Sequence[str], Sequence[str | None]]:
        """Return the URL of each row, empty where it is the same for all, and why rows have none."""
        if not self.urls:
            return [""] * rows.num_rows, [None] * rows.num_rows
        to = rows.column("_to")
        urls, faults = (to.field(name).to_pylist() for name in ("url", "fault"))
        missing = to.is_null().to_pylist()
        told = ["its URL cannot be evaluated" if lost else fault for lost, fault in zip(missing, faults, strict=True)]
        return urls, told


@dataclass
class Feeder:
    """The way of a task's rows, but for those with a receipt, into calls for `queue`.

    `settle` takes rows of which no call can be made. `chunk`: rows that are reserved at once, at least.
    """

    batcher: Batcher
    reader: RowReader
    known: KnownReceipts
    receipts: ReceiptWriter
    queue: CallQueue
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
        for call in self.batcher.end():
            await self._begin(call)

    async def _cut(self, rows: pa.RecordBatch, found: Sequence[Stretch], wanted: Any) -> None:
        self._reserved = 0
        for at, row in enumerate(self.reader.rows(rows)):
            if at >= self._reserved:
                await self._reserve(at, rows.num_rows, found)
            if row.why is not None:
                if wanted[at]:
                    self.settle(Settled(Call.alone(row.place), "dead", time.time(), reason=row.why))
                continue
            for call in self.batcher.add(*row[:5]):
                if not await self._begin(call):
                    return

    async def _begin(self, call: Call) -> bool:
        """Let a call go out, but for its rows that have a receipt; False when nothing goes out any more."""
        call = self.known.rest(call)
        if not len(call):
            return True
        return await self.queue.put(call) or not self.queue.over

    async def _reserve(self, at: int, rows: int, found: Iterable[Stretch]) -> None:
        """Write down which rows may go out next."""
        self._reserved = min(rows, at + max(self.chunk, int(self.receipts.rate * 1.5)))
        ranges: list[Range] = []
        for place, offsets, first in found:
            low, high = max(at, first), min(self._reserved, first + len(offsets))
            if low < high:
                part = offsets[low - first : high - first]  # not in order where rows follow former calls
                ranges.append((*place, int(part.min()), int(part.max())))
        await self.receipts.reserve(ranges)


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
