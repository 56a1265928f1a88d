"""Send the rows of one task, many calls at a time. Runs on executors.

Spark gives record batches to a function in one thread; calls are made by an event loop in another. The first feeds the
second, bounded, and takes every row that Spark has even when nothing more is sent: Spark is writing to this process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import select
import selectors
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from router import StartError, keep_archives
from router_rest.channel.client import TaskEnded
from router_rest.delivery.batcher import Batcher, Call, CallQueue
from router_rest.delivery.call import Delivery, RequestBuilder
from router_rest.delivery.receipts import (
    RECEIPT_SCHEMA,
    KnownReceipts,
    Range,
    ReceiptWriter,
    Settled,
    make_receipts,
    ranges_of,
)
from router_rest.http_client.client import HttpClient
from router_rest.limits.lease_client import LeaseClient
from router_rest.logins.task_login import TaskLogin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator

    from router import Encoding, Parts
    from router_rest.channel.protocol import ServerAddress
    from router_rest.delivery.receipts import Owner, Place
    from router_rest.delivery.send_plan import SendPlan

REPORT_SCHEMA = pa.schema([("kind", pa.string()), ("text", pa.string()), ("receipt", pa.struct(list(RECEIPT_SCHEMA)))])
"""What tasks return: the `receipt` of every row that is `dead`, which is not written, and one `end` (see `TaskEnd`). A
`tick` says nothing."""
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


class PreciseSelector(selectors.DefaultSelector):
    """The usual selector of the system, which waits as long as it is told, and not a part of a millisecond longer.

    asyncio rounds each wait up to a whole millisecond. An API that wants 500 calls per second evenly spaced refuses
    every second call that comes a millisecond early or late.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for files, or for so many seconds."""
        number = self.fileno()
        if timeout is None or timeout <= 0 or number >= 1024:  # select() waits for no higher number of a file
            return super().select(timeout)
        # epoll counts milliseconds, select() microseconds; the file of an epoll is ready when one of its files is.
        select.select([number], [], [], timeout)
        return super().select(0)


def run_with_precise_timers(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as `asyncio.run` does, in a loop with exact timers."""
    loop = asyncio.SelectorEventLoop(PreciseSelector())
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main)
    finally:
        cancel_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        loop.close()


def cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """End the tasks that a loop still has, before it is closed."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))


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
    await TaskWorker(job, feed.add_report).run(feed.read_batches())


class Broken(Exception):  # noqa: N818 - it says what happened
    """A task that Spark has closed before its rows ended."""


@dataclass
class Feed:
    """Two queues between Spark's thread and the loop of a task: record batches, one ahead of it, and its reports."""

    loop_end: Future[None] = field(default_factory=Future)
    """Done when the loop has ended; holds what it has raised."""
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    _given: queue.SimpleQueue[pa.RecordBatch | Broken | None] = field(default_factory=queue.SimpleQueue)
    _reports: queue.SimpleQueue[pa.RecordBatch] = field(default_factory=queue.SimpleQueue)

    # in Spark's thread

    def put_rows(self, rows: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        """Give rows to the loop once it has room; yield the reports it has made by then."""
        while not self._room.acquire(timeout=_TICK_SECONDS) and not self.loop_end.done():
            yield from [*self._take_reports(), _tick_report()]
        self._given.put(rows)
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
        self._given.put(Broken())

    def _take_reports(self) -> list[pa.RecordBatch]:
        return [self._reports.get() for _ in range(self._reports.qsize())]

    # in the loop's thread

    async def read_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the record batches that are given, until the end; raise Broken when the task was closed before."""
        while (given := await asyncio.to_thread(self._given.get)) is not None:
            if isinstance(given, Broken):
                raise given
            self._room.release()
            yield given

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
    responses: Parts | None = None


def split_stretches(rows: pa.RecordBatch) -> Iterator[tuple[Place, Any]]:
    """Yield the rows of a record batch that follow each other in one source partition: where from, their offsets."""
    topics, partitions = (rows.column(name).to_pylist() for name in ("_topic", "_partition"))
    offsets = rows.column("_offset").to_numpy(zero_copy_only=False)
    first = 0
    for place, alike in groupby(zip(topics, partitions, strict=True)):
        last = first + len(list(alike))
        yield place, offsets[first:last]
        first = last


@dataclass
class TaskEnd:
    """What a task came to.

    `counts`: how many rows got a receipt (`delivered`, `parked`), had one (`known`), are `dead`, or are `left`; how
    many of these only wait for a call of their order that was tried (`behind`); how many answers say what became of no
    row, where all are so (`unread`), and how many calls were begun (`calls`).
    `texts`: why rows are left (`away`; `wrong`: until a setting is changed), and why answers are `unread`.
    `tried`: calls that are left although they were sent, the first ones.
    """

    counts: dict[str, int]
    texts: dict[str, str]
    tried: list[CallTried]


@dataclass
class CallTried:
    """The rows of a call that was tried, what the last attempt came to, and whether that was not the same for all."""

    rows: list[Range]
    why: str
    answered: bool


@dataclass
class TaskWorker:
    """The delivery of one task's rows, but those that have a receipt; `report` takes rows of REPORT_SCHEMA.

    Rows are reserved before they are sent, so many at once at least: a reservation is a note that the calls of some
    rows may go out. After a crash such a row counts as one that may have arrived.
    """

    job: TaskJob
    report: Callable[[list[dict[str, Any]]], None]
    counts: Counter[str] = field(default_factory=Counter)
    trouble: tuple[str, str] | None = None
    _seen: int = 0
    _left: list[Call] = field(default_factory=list)
    _delivery: Delivery | None = None

    def __post_init__(self) -> None:
        job = self.job
        plan = job.plan
        times = 3 if plan.form.body.compressed else 2
        calls_ahead = plan.http.in_flight * _CALLS_AHEAD
        self._reserved_rows = calls_ahead * plan.cut.rows
        self._known = KnownReceipts.from_parts(job.parts)
        self._batcher = Batcher(plan.cut)
        self._reader = plan.row_reader(job.encoding)
        self._queue = CallQueue(calls_ahead, plan.bytes_in_flight, times, plan.calls_of_key)
        self._receipts = ReceiptWriter(job.parts, job.owner, job.responses)

    async def run(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        """Deliver all rows, or as many as can be delivered now; read all of them in any case."""
        async with AsyncExitStack() as open_parts:
            open_parts.callback(self._receipts.close)
            try:
                lease = await LeaseClient.open(self.job.address, self.job.owner.name)
                open_parts.push_async_callback(lease.close)
                login = TaskLogin(lease)
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
        self.report([{"kind": "end", "text": json.dumps(asdict(self._end()))}])

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
        """Read all rows; make calls of them until nothing more is sent."""
        async for rows in batches:
            self._seen += rows.num_rows
            for place, offsets in split_stretches(rows):
                self.counts["known"] += int(np.count_nonzero(~self._known.find_open(place, offsets)))
            if not self._queue.over:
                await self._cut_calls(rows)
        for call in self._batcher.flush_calls():
            await self._queue_call(call)
        self._queue.end_queue()

    async def _cut_calls(self, rows: pa.RecordBatch) -> None:
        """Queue the calls of the rows of a record batch."""
        reserved = 0
        # Also rows with a receipt: where calls are cut must not depend on receipts.
        for at, row in enumerate(self._reader.read_rows(rows)):
            if at >= reserved:
                ahead = rows.slice(at, max(self._reserved_rows, int(self._receipts.rate * 1.5)))
                reserved = at + ahead.num_rows
                # Not in order in a replay, where rows follow their former calls.
                ranges = [(*of, int(offsets.min()), int(offsets.max())) for of, offsets in split_stretches(ahead)]
                await self._receipts.reserve_ranges(ranges)
            if row.why is not None:
                await self._queue_call(Call.of_unsendable(row.place, row.why))
                continue
            for call in self._batcher.add_row(*row[:6]):
                await self._queue_call(call)
            if self._queue.over:
                return

    async def _queue_call(self, call: Call) -> None:
        """Queue a call without its rows that have a receipt; a row that cannot be sent is dead."""
        call = self._known.open_rows(call)
        if len(call) and call.why:
            call.doubtful = frozenset()  # it was never sent
            self._settle_rows(Settled(call, "dead", time.time(), reason=call.why))
        elif len(call):
            await self._queue.put(call)

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
            if self._delivery.ending.is_set():  # it says why when all calls that were in flight are answered
                self._queue.end_queue(drop=True)

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
        self.report([{"kind": "dead", "receipt": row} for row in rows])
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

    def _end(self) -> TaskEnd:
        """Return the counts of rows, and why some are left."""
        counts = {**self.counts}
        rows_left = self._seen - sum(self.counts[name] for name in ("delivered", "parked", "dead", "known"))
        texts = {}
        tried: list[Call] = []
        if rows_left:
            counts["left"] = rows_left
            kind, why = self._why_left()
            texts[kind] = why
            tried = [call for call in self._left if call.attempts]
            tried.sort(key=lambda call: (call.partition, call.offsets[0]))
            has_ended = self._delivery is None or self._delivery.ending.is_set()
            if not has_ended and not self._queue.stuck:
                # All was sent that may be: what was not tried stands behind a call of its order.
                counts["behind"] = rows_left - sum(map(len, tried))
        if self._delivery is not None and self._delivery.unread and not self._delivery.read:
            counts["unread"] = self._delivery.unread
            texts["unread"] = self._delivery.no_status
        calls = []
        for call in tried[:_MAX_NAMED_CALLS]:
            rows = ranges_of((call.topic, call.partition), call.offsets)
            calls.append(CallTried(rows, call.why, call.answered))
        return TaskEnd(counts, texts, calls)

    def _why_left(self) -> tuple[str, str]:
        """Return the reason why rows are left: the kind of the report, and its text."""
        if self.trouble is not None:
            return self.trouble
        assert self._delivery is not None
        if self._delivery.wrong_setting:
            return "wrong", self._delivery.wrong_setting
        return "away", self._delivery.why or self._queue.stuck
