"""Deliver the rows of a task, many calls at a time: what its event loop does. Runs on executors."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router_rest.cutting import Cutter
from router_rest.delivery import Delivery
from router_rest.feeding import Feeder, Reader
from router_rest.http_client.client import HttpClient
from router_rest.journal import Journal
from router_rest.lanes import Lanes
from router_rest.lease import Lease, LeaseEnded
from router_rest.login import Login
from router_rest.making import Maker
from router_rest.receipts import note_of, ranges_of, receipts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import pyarrow as pa
    from requests.auth import AuthBase

    from router import Encoding, Parts
    from router_rest.cutting import Call, Cut
    from router_rest.handshake import Address
    from router_rest.making import Form
    from router_rest.policy import Policy
    from router_rest.receipts import Known, Owner, Settled
    from router_rest.responses import Responses

_AHEAD = 4
"""Calls that are cut ahead, and rows that are reserved at least, for each that can be in flight."""
_NAMED = 1000
"""Calls that were tried in vain of which is told which rows they have, the first ones."""


@dataclass(frozen=True)
class Job:
    """Be what every task is given; travels, so that nothing in it is secret.

    `wire`: arguments of Wire. `authorise` makes of what the driver gives how `requests` authorises. `dead_at_most`:
    rows of a task beyond which it gives up, for then it is not the rows that are wrong. `responses` lands what came
    back, before its receipts.
    """

    owner: Owner
    parts: Parts
    encoding: Encoding
    form: Form
    cut: Cut
    policy: Policy
    address: Address
    wire: Mapping[str, Any]
    authorise: Callable[[Mapping[str, Any]], AuthBase]
    dead_at_most: int
    responses: Responses | None = None

    @property
    def reader(self) -> Reader:
        """Return what reads rows."""
        return Reader(self.encoding, self.form.body, urls=not self.form.url)

    @property
    def in_flight(self) -> int:
        """Return how many calls a task makes at a time."""
        return int(self.wire["in_flight"])


@dataclass
class Sending:
    """Deliver the rows of one task. `known`: what earlier attempts did; `report` takes rows of `task.REPORT`."""

    job: Job
    known: Known
    report: Callable[[list[dict[str, Any]]], None]
    counts: Counter[str] = field(default_factory=Counter)
    trouble: tuple[str, str] | None = None
    _left: list[Call] = field(default_factory=list)
    _delivery: Delivery | None = None

    def __post_init__(self) -> None:
        job = self.job
        self._lanes = Lanes(job.in_flight * _AHEAD)
        self._journal = Journal(job.parts, job.owner, job.responses)
        self._feeder = Feeder(
            Cutter(job.cut),
            job.reader,
            known=self.known,
            journal=self._journal,
            lanes=self._lanes,
            chunk=job.in_flight * _AHEAD * job.cut.rows,
            settle=self._settle,
        )

    async def run(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        """Deliver all rows, or as many as can be now; take them all in any case."""
        lease, wire = None, None
        try:
            lease = await Lease.open(self.job.address, self.job.owner.name)
            login = Login(lease, self.job.authorise)
            await login.open()
            wire = HttpClient(**self.job.wire, proxies=login.proxies)
            self._delivery = Delivery(
                self.job.policy, Maker(self.job.form), wire, lease, login, self.job.owner.name.encode(), self._settle
            )
            await self._deliver(batches)
        except (LeaseEnded, LookupError) as error:  # before anything was sent
            self._end("away", str(error))
            await self._feed(batches)
        finally:
            for one in (wire, lease):
                if one is not None:
                    await one.close()
        self._tell()

    async def _deliver(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        keeping = asyncio.create_task(self._journal.keep())
        workers = [asyncio.create_task(self._work()) for _ in range(self.job.in_flight)]
        for one in (keeping, *workers):
            one.add_done_callback(self._look)
        try:
            await self._feed(batches)
            await asyncio.gather(*workers)
        finally:
            for one in (keeping, *workers):
                one.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
        await self._journal.end((one.topic, one.partition, one.doubtful) for one in self._left if one.doubtful)

    async def _feed(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        """Take all rows that there are."""
        async for rows in batches:
            await self._feeder.take(rows, send=self.trouble is None)
        if self.trouble is None:
            await self._feeder.end()
        self._lanes.end()

    async def _work(self) -> None:
        """Deliver one call after the other."""
        assert self._delivery is not None
        while (call := await self._lanes.take()) is not None:
            self.counts["calls"] += 1
            left = await self._delivery.deliver(call)
            if left:
                self._left += left
            self._lanes.finished(call, whole=not left)
            if self._delivery.ending.is_set():
                wrong = self._delivery.wrong
                self._end("wrong" if wrong else "away", wrong or self._delivery.why)

    def _settle(self, settled: Settled) -> None:
        """Take rows that are done with. Those that are dead get their receipts when the whole batch may have them."""
        self.counts[settled.status] += len(settled.call)
        if settled.status == "delivered":
            self._journal.settle(settled)
            return
        rows = receipts(self.job.owner, [settled]).to_pylist()
        self.report([{"kind": "dead", "rows": 1, "receipt": row} for row in rows])
        if self.counts["dead"] > self.job.dead_at_most:
            self._end("wrong", f"more than {self.job.dead_at_most} rows were refused, the last: {settled.reason}")

    def _end(self, kind: str, text: str) -> None:
        """Let nothing more go out, for the first reason of all."""
        self.trouble = self.trouble or (kind, text)
        self._lanes.end(drop=True)
        if self._delivery is not None:
            self._delivery.end()

    def _look(self, task: asyncio.Task[None]) -> None:
        """End everything when one worker fails: whoever gathers them raises what it raised."""
        if not task.cancelled() and task.exception() is not None:
            self._end("failed", repr(task.exception()))

    def _tell(self) -> None:
        """Report how it went."""
        counts = {**self.counts, "known": self._feeder.skipped}
        left = self._feeder.seen - sum(counts.get(name, 0) for name in ("delivered", "dead", "known"))
        told: list[dict[str, Any]] = [
            {"kind": "refused" if name == "dead" else name, "rows": rows} for name, rows in counts.items()
        ]
        kind, text = self.trouble or ("away", self._delivery.why if self._delivery else "")
        if left:
            told += [{"kind": "left", "rows": left}, {"kind": kind, "text": text}, *self._in_vain()]
        self.report(told)

    def _in_vain(self) -> list[dict[str, Any]]:
        """Report the calls that were sent and are left, the first ones."""
        tried = sorted((one for one in self._left if one.attempts), key=lambda one: (one.partition, one.offsets[0]))
        return [
            {"kind": "tried", "rows": len(one), "text": note_of(ranges_of((one.topic, one.partition), one.offsets))}
            for one in tried[:_NAMED]
        ]
