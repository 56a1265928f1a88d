"""Send the rows of one task. Runs on executors.

Spark gives record batches to a function in one thread; calls are made by an event loop in another, many at a time. The
first feeds the second, bounded, and takes every row that Spark has even when nothing more is sent: Spark is writing to
this process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router import keep_archives
from router_rest.receipts import DDL, SCHEMA, Known
from router_rest.sending import Sending

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from router_rest.sending import Job

REPORT = f"kind string, rows bigint, text string, receipt struct<{DDL}>"
"""What tasks return: how many rows got a receipt (`delivered`), had one (`known`), were `refused`, or are `left`; why
they are (`away`; `wrong`: until somebody changes a setting), which of them were `tried` (a call each; `text` names its
rows as the notes of receipts do), how many calls were begun (`calls`), and the receipt of every row that is `dead`,
which is not written. A `tick` says nothing."""
_COLUMNS = pa.schema(
    [("kind", pa.string()), ("rows", pa.int64()), ("text", pa.string()), ("receipt", pa.struct(list(SCHEMA)))]
)
_TICK = 2.0
"""Seconds after which Spark hears something at the latest: it can be told to kill workers that are silent."""
_BUFFER = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
"""Bytes that Spark's worker collects before it sends any: less than that would be heard a minute later."""
_GARBAGE = 50_000, 50, 100
"""Objects that Python makes before it looks for cycles: with its own 700 it looks at all that wait, all the time."""


def task(job: Job) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow. Needs the columns TAKES, in the order of the source."""

    def post(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        feed = Feed()
        running = threading.Thread(target=_run, args=(job, feed), name="calls", daemon=True)
        running.start()
        try:
            with _seldom_collected():
                for rows in batches:
                    yield from feed.put(rows)
                yield from feed.end()
        finally:
            feed.close()
            running.join()

    return post


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python spend less on looking for garbage in a `with` block: a tenth of the CPU time of small calls."""
    before = gc.get_threshold()
    gc.freeze()  # what a worker has imported stays
    gc.set_threshold(*_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _run(job: Job, feed: Feed) -> None:
    """Make the calls of a task, in a thread of its own."""
    try:
        with suppress(Broken):
            asyncio.run(_send(job, feed))
    except BaseException as error:
        feed.failed = error
    finally:
        feed.over.set()


async def _send(job: Job, feed: Feed) -> None:
    feed.open()
    sending = Sending(job, Known.of(job.parts), feed.report)
    await sending.run(feed.batches())


class Broken(Exception):  # noqa: N818 - it says what happened
    """Say that Spark does not want the task any more."""


@dataclass
class Feed:
    """Hand record batches to the loop of a task, one ahead of it, and its reports to Spark."""

    failed: BaseException | None = None
    over: threading.Event = field(default_factory=threading.Event)
    _closed: threading.Event = field(default_factory=threading.Event)
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    _given: queue.SimpleQueue[pa.RecordBatch | None] = field(default_factory=queue.SimpleQueue)
    _reports: queue.SimpleQueue[pa.RecordBatch] = field(default_factory=queue.SimpleQueue)
    _loop: asyncio.AbstractEventLoop | None = None
    _there: asyncio.Event = field(default_factory=asyncio.Event)

    # in Spark's thread

    def put(self, rows: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        """Give rows to the loop once it has room; yield what it reports meanwhile."""
        while not self._room.acquire(timeout=_TICK) and not self.over.is_set():
            yield from [*self._reported(), _tick()]
        self._given.put(rows)
        self._wake()
        yield from self._reported()
        self._raise()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Tell the loop that there are no more rows; yield what it reports until it is done."""
        yield from self.put(None)
        while not self.over.wait(_TICK):
            yield from [*self._reported(), _tick()]
        yield from self._reported()
        self._raise()

    def close(self) -> None:
        """Break off what the loop does, unless it is done: nobody waits for it. What is under way is in doubt."""
        self._closed.set()
        if not self.over.is_set():
            self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._there.set)

    def _reported(self) -> list[pa.RecordBatch]:
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._reports.get_nowait())
        return found

    def _raise(self) -> None:
        if self.failed is not None:
            raise self.failed

    # in the loop's thread

    def open(self) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield what is given, until the end; raise Broken when there is none to come."""
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

    def report(self, found: list[dict[str, Any]]) -> None:
        """Tell Spark something."""
        self._reports.put(_report(found))


def _tick() -> pa.RecordBatch:
    """Return a report that says nothing, and is too large to be kept back together with those before it."""
    return _report([{"kind": "tick", "text": " " * 2 * _BUFFER}])


def _report(found: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(found, schema=_COLUMNS)
