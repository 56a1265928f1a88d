"""Send the rows of one task, many calls at a time. Runs on executors.

Spark gives record batches to a function in one thread; calls are made by an event loop in another. The first feeds the
second, bounded, and takes every row that Spark has even when nothing more is sent: Spark is writing to this process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from router import StartError, keep_archives
from router_rest.channel.client import TaskEnded
from router_rest.delivery.batcher import Batcher, Call, CallQueue, RowReader
from router_rest.delivery.call import Delivery, RequestBuilder
from router_rest.delivery.receipts import (
    RECEIPT_SCHEMA,
    KnownReceipts,
    ReceiptWriter,
    Settled,
    make_receipts,
    note_of,
    ranges_of,
)
from router_rest.http_client.client import HttpClient
from router_rest.limits.lease_client import LeaseClient
from router_rest.limits.timers import run_with_precise_timers
from router_rest.logins.task_login import CredentialsClient, TaskLogin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from router import Encoding, Parts
    from router_rest.channel.protocol import ServerAddress
    from router_rest.delivery.receipts import Owner, Place, Range, Responses
    from router_rest.delivery.send_plan import SendPlan

REPORT_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("text", pa.string()),
        ("why", pa.string()),
        ("answered", pa.bool_()),
        ("receipt", pa.struct(list(RECEIPT_SCHEMA))),
    ]
)
"""What tasks return: how many rows got a receipt (`delivered`, `parked`), had one (`known`), were `refused`, or are
`left`; why they are (`away`; `wrong`: until a setting is changed), how many of them only wait for a call of their order
that was tried (`behind`), how many answers say what became of no row, where all are so (`unread`); which calls were
`tried` (`text` names their rows as the notes of receipts do, `why` says what the last attempt came to, `answered` that
it did not fail for all calls alike), how many were begun (`calls`), and the receipt of every row that is `dead`, which
is not written. A `tick` says nothing."""
_TICK_SECONDS = 2.0
"""Seconds between two signs of life for Spark, which a setting can make kill workers that are silent."""
_SPARK_BUFFER_BYTES = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
"""Bytes that Spark's worker collects before it sends any: a smaller report could wait there for a minute."""
_GC_THRESHOLDS = 50_000, 50, 100
"""Python's thresholds for garbage collection: with its default of 700 objects it would scan all waiting calls, over and
over."""


def send_task(job: TaskJob) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow. Needs TASK_COLUMNS, in the order of the source."""

    def send_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        # Its end is awaited also when Spark closes this generator: the calls in flight need a last part, or all rows
        # are in doubt.
        with ThreadPoolExecutor(1, "calls") as threads, _seldom_collected():
            feed = Feed()
            feed.loop_end = threads.submit(run_with_precise_timers, _send_batches(job, feed))
            try:
                for rows in batches:
                    yield from feed.put_rows(rows)
                yield from feed.end_rows()
            finally:
                feed.close()

    return send_rows


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python collect garbage less often in a `with` block: this saves a tenth of the CPU time of small calls."""
    before = gc.get_threshold()
    gc.freeze()  # what a worker has imported stays
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _send_batches(job: TaskJob, feed: Feed) -> None:
    sending = TaskWorker(job, KnownReceipts.from_parts(job.parts), feed.add_report)
    await sending.run(feed.read_batches())


class Broken(Exception):  # noqa: N818 - it says what happened
    """A task that Spark has closed before its rows ended."""


@dataclass
class Feed:
    """Two queues between Spark's thread and the loop of a task: record batches, one ahead of it, and its reports."""

    loop_end: Future[None] = field(default_factory=Future)
    """Done when the loop has ended; holds what it has raised."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    _given: queue.SimpleQueue[pa.RecordBatch | None] = field(default_factory=queue.SimpleQueue)
    _reports: queue.SimpleQueue[pa.RecordBatch] = field(default_factory=queue.SimpleQueue)
    _loop: asyncio.AbstractEventLoop | None = None
    _there: asyncio.Event = field(default_factory=asyncio.Event)

    # in Spark's thread

    def put_rows(self, rows: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        """Give rows to the loop once it has room; yield the reports it has made by then."""
        while not self._room.acquire(timeout=_TICK_SECONDS) and not self.loop_end.done():
            yield from [*self._take_reports(), _tick_report()]
        self._given.put(rows)
        self._wake_loop()
        yield from self._take_reports()
        if self.loop_end.done():
            self.loop_end.result()

    def end_rows(self) -> Iterator[pa.RecordBatch]:
        """Tell the loop that there are no more rows; yield what it reports until it is done."""
        yield from self.put_rows(None)
        while not wait([self.loop_end], _TICK_SECONDS).done:
            yield from [*self._take_reports(), _tick_report()]
        yield from self._take_reports()
        self.loop_end.result()

    def close(self) -> None:
        """Make the loop stop, unless it is done: Spark has closed the task. Calls in flight are in doubt."""
        self._closed.set()
        self._wake_loop()

    def _wake_loop(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._there.set)

    def _take_reports(self) -> list[pa.RecordBatch]:
        reports = []
        with suppress(queue.Empty):
            while True:
                reports.append(self._reports.get_nowait())
        return reports

    # in the loop's thread

    async def read_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the record batches that are given, until the end; raise Broken when the task was closed before."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._there.clear()
            if self._closed.is_set():
                raise Broken
            while not self._given.empty():
                rows = self._given.get()
                if rows is None:
                    return
                self._room.release()
                yield rows
            await self._there.wait()

    def add_report(self, found: list[dict[str, Any]]) -> None:
        """Report rows of REPORT_SCHEMA to Spark."""
        self._reports.put(_make_report(found))


def _tick_report() -> pa.RecordBatch:
    """Return an empty report, so large that Spark's worker sends it, with those that wait before it, at once."""
    return _make_report([{"kind": "tick", "text": " " * 2 * _SPARK_BUFFER_BYTES}])


def _make_report(found: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(found, schema=REPORT_SCHEMA)


async def _end_with_lease(lease: LeaseClient, delivery: Delivery, client: HttpClient) -> None:
    """End all waits with the lease; when the sink stops, some seconds later calls in flight: they are in doubt then."""
    await lease.over.wait()
    delivery.stop_sending()
    await lease.stopped.wait()
    await asyncio.sleep(LAST_ANSWERS_SECONDS)
    await client.close()


LAST_ANSWERS_SECONDS = 4.0
"""Seconds that a sink which stops waits for answers. With what Spark takes to stop a run ends within ten."""
_CALLS_AHEAD = 4
"""Calls that are cut ahead, and rows that are reserved at least, for each that can be in flight."""
ENDED_KIND = "ended"
"""The delivery has ended by itself: it says why when all calls that were in flight are answered."""
_MAX_NAMED_CALLS = 1000
"""Calls tried in vain whose rows a report names: the first so many."""


@dataclass(frozen=True)
class TaskJob:
    """All that a task is given; it is pickled to executors, so nothing in it is secret.

    A task gives up when more than `dead_at_most` of its rows are refused, for then it is not the rows that are wrong.
    `responses` lands the answers, before their receipts.
    """

    plan: SendPlan
    owner: Owner
    parts: Parts
    encoding: Encoding
    address: ServerAddress
    dead_at_most: int
    responses: Responses | None = None


Stretch = tuple["Place", Any, int]
"""Rows of one source partition that follow each other: where from, their offsets, the position of the first."""


@dataclass
class Feeder:
    """The maker of a task's calls for `queue`, from all rows but those with a receipt.

    `settle` takes rows of which no call can be made. `chunk`: rows that are reserved at once, at least. A reservation
    is a note that the calls of some rows may go out: after a crash such a row counts as one that may have arrived.
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

    async def take_rows(self, rows: pa.RecordBatch, *, send: bool) -> None:
        """Make calls of the rows of a record batch; without `send` only count the rows."""
        parts = list(split_stretches(rows))
        missing = [self.known.find_open(place, offsets) for place, offsets, _ in parts]
        wanted = np.concatenate(missing) if missing else np.ones(0, bool)
        self.seen += rows.num_rows
        self.skipped += rows.num_rows - int(np.count_nonzero(wanted))
        if send:  # also rows with a receipt: where calls are cut must not depend on receipts
            await self._cut_calls(rows, parts, wanted)

    async def queue_rest(self) -> None:
        """Queue the calls that are not full: no more rows come."""
        for call in self.batcher.flush_calls():
            await self._queue_call(call)

    async def _cut_calls(self, rows: pa.RecordBatch, parts: Sequence[Stretch], wanted: Any) -> None:
        self._reserved = 0
        for at, row in enumerate(self.reader.read_rows(rows)):
            if at >= self._reserved:
                await self._reserve_rows(at, rows.num_rows, parts)
            if row.why is not None:
                if wanted[at]:
                    self.settle(Settled(Call.of_unsendable(row.place), "dead", time.time(), reason=row.why))
                continue
            for call in self.batcher.add_row(*row[:6]):
                if not await self._queue_call(call):
                    return

    async def _queue_call(self, call: Call) -> bool:
        """Queue a call without its rows that have a receipt; False when nothing is sent any more."""
        call = self.known.open_rows(call)
        if not len(call):
            return True
        return await self.queue.put(call) or not self.queue.over

    async def _reserve_rows(self, at: int, rows: int, parts: Iterable[Stretch]) -> None:
        """Write down which rows may go out next."""
        self._reserved = min(rows, at + max(self.chunk, int(self.receipts.rate * 1.5)))
        ranges: list[Range] = []
        for place, offsets, first in parts:
            low = max(at, first)
            high = min(self._reserved, first + len(offsets))
            if low < high:
                # Not in order in a replay, where rows follow their former calls.
                reserved = offsets[low - first : high - first]
                ranges.append((*place, int(reserved.min()), int(reserved.max())))
        await self.receipts.reserve_ranges(ranges)


def split_stretches(rows: pa.RecordBatch) -> Iterator[Stretch]:
    """Yield the rows of a record batch by source partition."""
    if not rows.num_rows:
        return
    topics = rows.column("_topic").dictionary_encode()
    codes = topics.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    partitions = rows.column("_partition").to_numpy(zero_copy_only=False)
    offsets = rows.column("_offset").to_numpy(zero_copy_only=False)
    changes = (np.flatnonzero((codes[1:] != codes[:-1]) | (partitions[1:] != partitions[:-1])) + 1).tolist()
    for first, last in zip([0, *changes], [*changes, len(offsets)], strict=True):
        topic = None
        if codes[first] >= 0:
            topic = topics.dictionary[int(codes[first])].as_py()
        yield (topic, int(partitions[first])), offsets[first:last], first


@dataclass
class TaskWorker:
    """The delivery of one task's rows. `known`: what earlier attempts did; `report` takes rows of REPORT_SCHEMA."""

    job: TaskJob
    known: KnownReceipts
    report: Callable[[list[dict[str, Any]]], None]
    counts: Counter[str] = field(default_factory=Counter)
    trouble: tuple[str, str] | None = None
    _left: list[Call] = field(default_factory=list)
    _delivery: Delivery | None = None

    def __post_init__(self) -> None:
        job = self.job
        plan = job.plan
        times = 3 if plan.form.body.compressed else 2
        calls_ahead = plan.http.in_flight * _CALLS_AHEAD
        self._queue = CallQueue(calls_ahead, plan.bytes_in_flight, times, plan.calls_of_key)
        self._receipts = ReceiptWriter(job.parts, job.owner, job.responses)
        self._feeder = Feeder(
            Batcher(plan.cut),
            plan.row_reader(job.encoding),
            known=self.known,
            receipts=self._receipts,
            queue=self._queue,
            chunk=calls_ahead * plan.cut.rows,
            settle=self._settle_rows,
        )

    async def run(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        """Deliver all rows, or as many as can be delivered now; read all of them in any case."""
        async with AsyncExitStack() as open_parts:
            open_parts.callback(self._receipts.close)
            try:
                lease = await LeaseClient.open(self.job.address, self.job.owner.name)
                open_parts.push_async_callback(lease.close)
                login = TaskLogin(CredentialsClient(lease.channel))
                await login.open()
                client = HttpClient(self.job.plan.http, login.proxies)
                open_parts.push_async_callback(client.close)
                self._delivery = Delivery(
                    self.job.plan.policy,
                    RequestBuilder(self.job.plan.form),
                    client,
                    lease,
                    login,
                    self.job.owner.name.encode(),
                    admitted=self._on_admitted,
                    waits=self._receipts.waits,
                )
                open_parts.callback(asyncio.create_task(_end_with_lease(lease, self._delivery, client)).cancel)
                await self._deliver_batches(batches)
            except (TaskEnded, LookupError, StartError) as error:  # before anything was sent
                self._stop_sending("wrong" if isinstance(error, StartError) else "away", str(error))
                await self._feed_batches(batches)
        self._report_counts()

    async def _deliver_batches(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        keeping = asyncio.create_task(self._receipts.keep_writing())
        workers = [asyncio.create_task(self._deliver_queued()) for _ in range(self.job.plan.http.in_flight)]
        for coroutine in (keeping, *workers):
            coroutine.add_done_callback(self._stop_on_failure)
        try:
            await self._feed_batches(batches)
            await asyncio.gather(*workers)
        finally:
            for coroutine in (keeping, *workers):
                coroutine.cancel()
            # A part that is being written is written to its end: the last part has to come after it.
            with suppress(asyncio.CancelledError):
                await keeping
        doubtful = [call for call in self._left if call.doubtful]
        await self._receipts.write_last((call.topic, call.partition, call.doubtful) for call in doubtful)

    async def _feed_batches(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        """Read all rows; make calls of them until there is trouble."""
        async for rows in batches:
            await self._feeder.take_rows(rows, send=self.trouble is None)
        if self.trouble is None:
            await self._feeder.queue_rest()
        self._queue.end_queue()

    async def _deliver_queued(self) -> None:
        """Deliver one queued call after the other, until there are none."""
        assert self._delivery is not None
        while (call := await self._queue.take()) is not None:
            self.counts["calls"] += 1
            whole = True
            async for ended in self._delivery.deliver_call(call):
                if isinstance(ended, Settled):
                    self._settle_rows(ended)
                else:
                    ended.drop_rows()
                    self._left.append(ended)
                    whole = False
            self._queue.on_finished(call, whole=whole)
            # Rows stay in memory until their receipts are written: large ones are not kept for a whole second.
            if self._receipts.size > self.job.plan.bytes_in_flight // 4:
                await self._receipts.flush()
            if self._delivery.ending.is_set():
                self._stop_sending(ENDED_KIND, "")

    def _on_admitted(self, call: Call) -> None:
        """Note that a call goes out now: it has a token."""
        self._receipts.begin_call(call)
        self._queue.on_admitted(call)

    def _settle_rows(self, settled: Settled) -> None:
        """Take rows that are done with. Those that are dead get their receipts when the whole batch may have them."""
        self.counts[settled.status] += len(settled.call)
        # Rows are kept only to be landed beside their answers: there may be as many as calls of a second.
        if self.job.responses is None:
            settled.call.drop_rows()
        if settled.status != "dead":
            self._receipts.add_receipt(settled)
            return
        rows = make_receipts(self.job.owner, [settled]).to_pylist()
        self.report([{"kind": "dead", "rows": 1, "receipt": row} for row in rows])
        if self.counts["dead"] > self.job.dead_at_most:
            self._stop_sending(
                "wrong", f"more than {self.job.dead_at_most} rows were refused, the last: {settled.reason}"
            )

    def _stop_sending(self, kind: str, text: str) -> None:
        """Send nothing more. The first reason given counts."""
        self.trouble = self.trouble or (kind, text)
        self._queue.end_queue(drop=True)
        if self._delivery is not None:
            self._delivery.stop_sending()

    def _stop_on_failure(self, task: asyncio.Task[None]) -> None:
        """Send nothing more when a coroutine fails; `_deliver_batches`, which gathers them, raises its error."""
        if not task.cancelled() and task.exception() is not None:
            self._stop_sending("failed", repr(task.exception()))

    def _report_counts(self) -> None:
        """Report the counts of rows, and why some are left."""
        counts = {**self.counts, "known": self._feeder.skipped}
        rows_left = self._feeder.seen
        reports: list[dict[str, Any]] = []
        for name, rows in counts.items():
            reports.append({"kind": "refused" if name == "dead" else name, "rows": rows})
            if name in ("delivered", "parked", "dead", "known"):
                rows_left -= rows
        if rows_left:
            kind, text = self._why_left()
            reports += [{"kind": "left", "rows": rows_left}, {"kind": kind, "text": text}, *self._in_vain()]
            if self.trouble is None and not self._queue.stuck:
                # All was sent that may be: what was not tried stands behind a call of its order.
                tried = sum(len(call) for call in self._left if call.attempts)
                reports.append({"kind": "behind", "rows": rows_left - tried})
        if self._delivery is not None and self._delivery.unread and not self._delivery.read:
            reports.append({"kind": "unread", "rows": self._delivery.unread, "text": self._delivery.no_status})
        self.report(reports)

    def _why_left(self) -> tuple[str, str]:
        """Return the reason why rows are left: the kind of the report, and its text."""
        why = self._delivery.why if self._delivery else ""
        if self.trouble is None:
            return "away", why or self._queue.stuck
        # Why a delivery has ended by itself is known only now that all calls which were in flight are answered.
        if self.trouble[0] != ENDED_KIND or self._delivery is None:
            return self.trouble
        if self._delivery.wrong_setting:
            return "wrong", self._delivery.wrong_setting
        return "away", why

    def _in_vain(self) -> list[dict[str, Any]]:
        """Report the calls that were sent and are left, the first ones."""
        tried = [call for call in self._left if call.attempts]
        tried.sort(key=lambda call: (call.partition, call.offsets[0]))
        reports = []
        for call in tried[:_MAX_NAMED_CALLS]:
            rows = note_of(ranges_of((call.topic, call.partition), call.offsets))
            reports.append(
                {"kind": "tried", "rows": len(call), "text": rows, "why": call.why, "answered": call.answered}
            )
        return reports
