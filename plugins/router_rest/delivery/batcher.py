"""Cut rows into calls, always the same ones: a call that is sent again has the same bytes and the same key.

Rows come in record batches, in the order of their source partition and offset. Where one call ends and the next begins
depends on the rows and on `CallSize` alone: not on how they come in record batches, and not on which were sent before.
`CallQueue` keeps calls until they may go out: at once, or one after the other where rows keep an order. Runs on
executors.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from router import Encoding
    from router_rest.templates import Body


MAX_OPEN_CALLS = 256
"""Calls of different URLs that are filled at once."""


@dataclass(frozen=True)
class CallSize:
    """The size of calls. A batch that has begun keeps its own, also when the configuration changes.

    `bytes` counts the rows of a call, and one more for each; `open` those of all calls that are filled at once (0: any
    number). `orders`: rows with the same key share one of so many
    orders, within which one call is sent after the other; 0: there is no order. `groups`: the rows of a call have the
    same key, and the calls of so many keys are filled at once; 0: calls hold rows of any keys.
    """

    rows: int = 1
    bytes: int = 1 << 20
    orders: int = 0
    open: int = 0
    groups: int = 0


@dataclass
class Call:
    """Rows that are sent together: of one source partition, in the order of their offsets.

    `limit` is the key whose limit it is under, where each has its own. `asks`: it waits for its first token. `held`:
    the API has told one of its rows to wait, and that time is not over.

    `url` is empty if it is the same for all calls; what else rows name follows it, a line each: the method, the
    values of headers.
    `order`: the calls of one order are sent one after the other; None: at any time. `attempts` counts those made with
    these rows so far. `doubtful` are the offsets of rows that may have arrived in an attempt that ended without an
    answer. `why` says what the last attempt came to, `answered` whether that was an answer about this call: not that
    the server is unavailable, or has too much to do.
    """

    topic: str | None
    partition: int
    offsets: list[int]
    rows: list[bytes]
    url: str = ""
    order: int | None = None
    attempts: int = 0
    doubtful: frozenset[int] = frozenset()
    size: int = 0
    why: str = ""
    answered: bool = False
    limit: str = ""
    asks: bool = False
    held: bool = False

    @classmethod
    def of_unsendable(cls, place: tuple[str | None, int, int], why: str) -> Call:
        """Return a call with one empty row, which stands for a row that cannot be sent."""
        topic, partition, offset = place
        return cls(topic, partition, [offset], [b""], why=why)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def call_id(self, body: bytes, owner: bytes = b"") -> str:
        """Return the name of the call with this body, and the key by which the API can tell that it comes again.

        `owner` is the sink whose call it is: two sinks may send the same rows to the same API on purpose.
        """
        place = f"{quote(self.topic or '', safe='')}/{self.partition}/{self.offsets[0]}-{self.offsets[-1]}"
        return f"{place}/{hashlib.sha256(owner + body).hexdigest()[:16]}"

    def drop_rows(self) -> None:
        """Drop the values of the rows, which are not needed any more."""
        self.rows = [b""] * len(self.rows)

    def split_halves(self) -> tuple[Call, Call]:
        """Return the first and the second half of the rows as calls."""
        middle = len(self) // 2
        return self.select_rows(range(middle)), self.select_rows(range(middle, len(self)))

    def select_rows(self, chosen: range | list[int]) -> Call:
        """Return the rows at some positions as a call of their own."""
        offsets = [self.offsets[position] for position in chosen]
        rows = [self.rows[position] for position in chosen]
        doubtful = self.doubtful.intersection(offsets)
        return replace(self, offsets=offsets, rows=rows, doubtful=doubtful, size=0, why="", answered=False, asks=False)


@dataclass
class Batcher:
    """The rows of a task that do not fill a call yet."""

    cut: CallSize
    _open: OrderedDict[tuple[str, str] | int | bytes, Call] = field(default_factory=OrderedDict)
    _held: int = 0
    _of: tuple[str | None, int, str | None] = (None, -1, None)

    def add_row(
        self,
        place: tuple[str | None, int, int],
        row: bytes,
        url: str = "",
        key: bytes | None = None,
        former: str | None = None,
        limit: str = "",
    ) -> Iterator[Call]:
        """Take a row from (topic, partition, offset); yield the calls that are full with it, or closed by it.

        `former` names a call that the row was in before: the rows of one such call, which follow each other, are one
        again, however large it is.
        """
        topic, partition, offset = place
        if (topic, partition, former) != self._of:
            yield from self.flush_calls()
            self._of = topic, partition, former
        order = None
        if self.cut.orders and key is not None:
            order = crc32(key) % self.cut.orders
        if self.cut.rows == 1:
            yield Call(topic, partition, [offset], [row], url, order, limit=limit)
            return
        # An order, or a key that rows are grouped by, has one open call: calls keep the order of rows.
        which: tuple[str, str] | int | bytes = (url, limit)
        if order is not None and key is not None:
            which = key if self.cut.groups else order
        call = self._open.get(which)
        large = former is None and call is not None and call.size + len(row) + 1 > self.cut.bytes
        if call is not None and ((call.url, call.limit) != (url, limit) or large):
            yield self._close_call(which)
            call = None
        if call is None:
            if len(self._open) >= (self.cut.groups or MAX_OPEN_CALLS):
                yield self._close_call(next(iter(self._open)))
            call = self._open[which] = Call(topic, partition, [], [], url, order, limit=limit)
        elif self.cut.groups:
            self._open.move_to_end(which)  # where there are too many, those go out that got no row for longest
        call.offsets.append(offset)
        call.rows.append(row)
        call.size += len(row) + 1
        self._held += len(row) + 1
        if len(call) >= self.cut.rows and former is None:
            yield self._close_call(which)
        while self.cut.open and self._held > self.cut.open and former is None:
            yield self._close_call(next(iter(self._open)))

    def flush_calls(self) -> Iterator[Call]:
        """Yield the calls that are not full: no more rows come from this partition, or this part of it."""
        while self._open:
            yield self._close_call(next(iter(self._open)))

    def _close_call(self, which: tuple[str, str] | int | bytes) -> Call:
        call = self._open.pop(which)
        self._held -= call.size
        return call


KEYS_USED_UP = "the limits of their keys are used up for now"
TOLD_TO_WAIT = "the API has told them to wait"
STANDING_CALLS_PER_PLACE = 16
"""Calls that may stand behind others of their key, for each that a queue keeps."""


@dataclass
class CallQueue:
    """The calls of a task that were cut and not begun, about `most` of them; it belongs to one event loop.

    A call is `times` its rows in memory: the rows, the body and perhaps the compressed one. Those that wait and those
    that are in flight have `most_bytes` together; a larger one goes alone.

    `of_key`: where keys have limits of their own, so many calls of a key wait for a token; others stand behind them, so
    that those of other keys go out. When too many do, calls of such keys are not sent by this task: their rows are left
    for the next round. So are those of calls that are held.
    """

    most: int
    most_bytes: int = 1 << 62
    times: int = 2
    of_key: int = 0
    held: int = 0
    bytes: int = 0
    over: bool = False
    stuck: str = ""
    """Why calls were not queued: KEYS_USED_UP, TOLD_TO_WAIT; empty if all were."""
    _asking: Counter[str] = field(default_factory=Counter)
    _behind_key: dict[str, deque[Call]] = field(default_factory=dict)
    _standing: int = 0
    _ready: asyncio.Queue[Call | None] = field(default_factory=asyncio.Queue)
    """Calls that may be sent. Behind the last one stands one None, which each taker leaves for the next one."""
    _has_end: bool = False
    _behind: dict[int, deque[Call]] = field(default_factory=dict)
    _blocked: set[int] = field(default_factory=set)
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    async def put(self, call: Call) -> None:
        """Add a call once there is room, unless it will not be sent: its order is blocked, or the queue has ended."""
        call.size = self.times * sum(map(len, call.rows))
        while not self.over and not self._why_stuck(call) and self._is_full(call):
            self._room.clear()
            await self._room.wait()
        if self.over or call.order in self._blocked:
            return
        if stuck := self._why_stuck(call):
            self.stuck = stuck
            if call.order is not None:
                self._blocked.add(call.order)
            return
        self.held += 1
        self.bytes += call.size
        if call.order is None:
            self._begin_call(call)
        elif call.order in self._behind:
            self._behind[call.order].append(call)
        else:
            self._behind[call.order] = deque()
            self._begin_call(call)
        if self._ready.qsize() == 1:
            await asyncio.sleep(0)  # else the first call would be sent only after the queue is full

    async def take(self) -> Call | None:
        """Return the next call that may be sent, once there is one; None: no more come."""
        while (call := await self._ready.get()) is None:
            is_last = self._ready.empty()  # calls of an order come behind the end
            self._ready.put_nowait(None)
            if is_last:
                return None
        self._leave_queue(1)
        return call

    def on_admitted(self, call: Call) -> None:
        """Let the next call of its key ask for a token: this one has its first."""
        if not call.asks:
            return
        # The place of this call among those that ask goes to one that stands behind it, if there is any.
        call.asks = False
        if behind := self._behind_key.get(call.limit):
            self._standing -= 1
            self.held += 1
            self._ask_for_token(behind.popleft())
            self._put_end()
            return
        self._behind_key.pop(call.limit, None)
        self._asking[call.limit] -= 1
        if not self._asking[call.limit]:
            del self._asking[call.limit]

    def on_finished(self, call: Call, *, whole: bool) -> None:
        """Release its memory, and the next call of its order; block that where it is not delivered as a `whole`."""
        self.on_admitted(call)
        self._forget_call(call)
        if call.order is None:
            return
        behind = self._behind[call.order]
        # A later call of the same order must not overtake rows that are left: they stay for the next round.
        if not whole:
            self._blocked.add(call.order)
            self._leave_queue(len(behind))
            for one in behind:
                self._forget_call(one)
            behind.clear()
        if behind:
            self._begin_call(behind.popleft())
        else:
            del self._behind[call.order]

    def end_queue(self, *, drop: bool = False) -> None:
        """Take no more calls; with `drop` those in the queue are not sent either."""
        if self.over and not drop:
            return
        self.over = True
        if drop:
            while not self._ready.empty():
                self._ready.get_nowait()
            for behind in (*self._behind.values(), *self._behind_key.values()):
                behind.clear()
            self._standing = 0
            self._has_end = False
        self._room.set()
        self._put_end()

    def _put_end(self) -> None:
        # Calls of an order may come to stand after the end is there: a second one would be taken for a call.
        if self.over and not self._standing and not self._has_end:
            self._has_end = True
            self._ready.put_nowait(None)

    def _begin_call(self, call: Call) -> None:
        if self.of_key and self._asking[call.limit] >= self.of_key:
            self._behind_key.setdefault(call.limit, deque()).append(call)
            self._standing += 1
            self._leave_queue(1)
            return
        self._asking[call.limit] += bool(self.of_key)
        self._ask_for_token(call)

    def _ask_for_token(self, call: Call) -> None:
        call.asks = bool(self.of_key)
        self._ready.put_nowait(call)

    def _why_stuck(self, call: Call) -> str:
        """Return the reason why a call is not queued: it is held, or too many others of its key stand before it."""
        if call.held:
            return TOLD_TO_WAIT
        behind = bool(self.of_key) and self._asking[call.limit] >= self.of_key
        crowded = self._standing >= STANDING_CALLS_PER_PLACE * self.most or 2 * self.bytes > self.most_bytes
        return KEYS_USED_UP if behind and crowded else ""

    def _is_full(self, call: Call) -> bool:
        return self.held >= self.most or (self.bytes > 0 and self.bytes + call.size > self.most_bytes)

    def _forget_call(self, call: Call) -> None:
        self.bytes -= call.size
        self._room.set()

    def _leave_queue(self, calls: int) -> None:
        self.held -= calls
        self._room.set()


TASK_COLUMNS = ("_topic", "_partition", "_offset", "_order", "_to", "_row")
"""Where a row came from, the key of its order (or null), its URL or why it has none, and what the encoding takes."""
FORMER_CALL_COLUMN = "_former"
"""The call in which a row was sent before, where it is sent again."""
LIMIT_KEY_COLUMN = "_limit"
"""The key whose limit a row is under, where each has its own."""
HOST_AS_LIMIT_KEY = "host"
"""What stands for the host of the URL as such a key."""
MAX_LIMIT_KEY_BYTES = 64
"""Bytes of a key: of a longer one the driver sees a hash."""


def _shorten_key(key: bytes) -> str:
    """Return a key as text, or its hash."""
    if len(key) > MAX_LIMIT_KEY_BYTES:
        return hashlib.sha256(key).hexdigest()
    return key.decode(errors="backslashreplace")


class TakenRow(NamedTuple):
    """A row as `Batcher.add_row` takes it, or `why` it can be in no call."""

    place: tuple[str | None, int, int]
    value: bytes
    url: str
    key: bytes | None
    former: str | None
    limit: str
    why: str | None


@dataclass(frozen=True)
class RowReader:
    """A reader of record batches with TASK_COLUMNS, and FORMER_CALL_COLUMN if rows were in a call before.

    `_to` is no struct where rows name neither their URL, nor the method, nor values of headers. `by_host`: each host
    has its own limit.
    """

    encoding: Encoding
    body: Body
    by_host: bool = False

    def read_rows(self, rows: pa.RecordBatch) -> Iterator[TakenRow]:
        """Yield the rows of a record batch."""
        encoded = self.encoding.encode(rows.column("_row"))
        topics, partitions, offsets, keys = (rows.column(name).to_pylist() for name in TASK_COLUMNS[:4])
        formers = [None] * rows.num_rows
        if FORMER_CALL_COLUMN in rows.schema.names:
            formers = rows.column(FORMER_CALL_COLUMN).to_pylist()
        urls, faults = self._read_urls(rows)
        limits = self._limit_keys(rows, urls)
        # The first reason counts: where the row goes, then what the encoder says, then what the body cannot hold.
        for at, value in enumerate(encoded.values):
            why = faults[at] or encoded.reasons.get(at)
            if not why:
                why = "there is no value" if value is None else self.body.row_fault(value)
            place = (topics[at], partitions[at], offsets[at])
            yield TakenRow(place, value or b"", urls[at], keys[at], formers[at], limits[at], why)

    def _limit_keys(self, rows: pa.RecordBatch, urls: Sequence[str]) -> Sequence[str]:
        """Return the key of each row whose limit it is under; empty if there is one limit."""
        if self.by_host:
            return [url.partition("\n")[0].partition("://")[2].partition("/")[0] for url in urls]
        if LIMIT_KEY_COLUMN not in rows.schema.names:
            return [""] * rows.num_rows
        return ["" if key is None else _shorten_key(key) for key in rows.column(LIMIT_KEY_COLUMN).to_pylist()]

    def _read_urls(self, rows: pa.RecordBatch) -> tuple[Sequence[str], Sequence[str | None]]:
        """Return the URL of each row, with what follows it, as `Call` has it, and why rows have none."""
        if not rows.schema.field("_to").type.num_fields:  # it is no struct
            return [""] * rows.num_rows, [None] * rows.num_rows
        no_target = {"target": "", "fault": "its URL, method or headers cannot be evaluated"}
        targets = [to or no_target for to in rows.column("_to").to_pylist()]
        return [to["target"] or "" for to in targets], [to["fault"] for to in targets]
