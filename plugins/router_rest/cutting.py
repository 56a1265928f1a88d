"""Cut rows into calls, always the same ones: a call that is sent again has the bytes and the key that it had.

Rows come in the order of their source partition and offset. Where one call ends and the next begins depends on the
rows and on `Cut` alone: not on how they come in record batches, and not on which were sent before.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_OPEN = 256
"""Calls of different URLs that are filled at once."""


@dataclass(frozen=True)
class Cut:
    """Say how large calls are; stays the same for a batch, whatever the configuration says meanwhile.

    `bytes` counts the rows of a call, and one more for each. `lanes`: rows with the same key go to the same lane, one
    call after the other; 0: in no order.
    """

    rows: int = 1
    bytes: int = 1 << 20
    lanes: int = 0


@dataclass
class Call:
    """Be rows that go out together: of one source partition, in the order of their offsets.

    `url`: where rows name it; empty where it is the same for all. `lane`: the calls of one lane go out one after the
    other; None: at any time. `attempts` were made with these rows before. `doubtful` are offsets of rows that may have
    arrived in an attempt that ended without an answer.
    """

    topic: str | None
    partition: int
    offsets: list[int]
    rows: list[bytes]
    url: str = ""
    lane: int | None = None
    attempts: int = 0
    doubtful: frozenset[int] = frozenset()
    size: int = 0

    @classmethod
    def alone(cls, place: tuple[str | None, int, int]) -> Call:
        """Return what stands for a row that no call can be made of."""
        topic, partition, offset = place
        return cls(topic, partition, [offset], [b""])

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def id(self, body: bytes, owner: bytes = b"") -> str:
        """Return the name of the call with this body, and the key by which the API can tell that it comes again.

        `owner` is whose call it is: two sinks may send the same rows to the same API, and mean it.
        """
        place = f"{_quoted(self.topic or '')}/{self.partition}/{self.offsets[0]}-{self.offsets[-1]}"
        return f"{place}/{hashlib.sha256(owner + body).hexdigest()[:16]}"

    def halves(self) -> tuple[Call, Call]:
        """Return the first and the second half of the rows as calls."""
        middle = len(self) // 2
        return self.of(range(middle)), self.of(range(middle, len(self)))

    def of(self, chosen: range | list[int]) -> Call:
        """Return the rows at some positions as a call of their own."""
        offsets, rows = [self.offsets[at] for at in chosen], [self.rows[at] for at in chosen]
        doubtful = self.doubtful.intersection(offsets)
        return Call(self.topic, self.partition, offsets, rows, self.url, self.lane, self.attempts, doubtful)


@dataclass
class Cutter:
    """Collect rows until they are a call. One for all rows of a task."""

    cut: Cut
    _open: OrderedDict[str | int, Call] = field(default_factory=OrderedDict)
    _of: tuple[str | None, int, str | None] = (None, -1, None)

    def add(
        self,
        place: tuple[str | None, int, int],
        row: bytes,
        url: str = "",
        key: bytes | None = None,
        former: str | None = None,
    ) -> Iterator[Call]:
        """Take a row from (topic, partition, offset); yield the calls that are full with it, or closed by it.

        `former` names a call that the row was in before: the rows of one such call, which follow each other, are one
        again, however large it is.
        """
        topic, partition, offset = place
        if (topic, partition, former) != self._of:
            yield from self.end()
            self._of = topic, partition, former
        lane = crc32(key) % self.cut.lanes if self.cut.lanes and key is not None else None
        if self.cut.rows == 1:
            yield Call(topic, partition, [offset], [row], url, lane)
            return
        which = url if lane is None else lane  # one at a time of a lane: its order is that of its rows
        call = self._open.get(which)
        large = former is None and call is not None and call.size + len(row) + 1 > self.cut.bytes
        if call is not None and (call.url != url or large):
            yield self._open.pop(which)
            call = None
        if call is None:
            if len(self._open) >= MOST_OPEN:
                yield self._open.popitem(last=False)[1]
            call = self._open[which] = Call(topic, partition, [], [], url, lane)
        call.offsets.append(offset)
        call.rows.append(row)
        call.size += len(row) + 1
        if len(call) >= self.cut.rows and former is None:
            yield self._open.pop(which)

    def end(self) -> Iterator[Call]:
        """Yield the calls that are not full: no more rows come of this partition, or range of one."""
        while self._open:
            yield self._open.popitem(last=False)[1]


@lru_cache(maxsize=1024)
def _quoted(topic: str) -> str:
    """Return a topic as it can stand in a header, whatever characters it has."""
    return quote(topic, safe="")
