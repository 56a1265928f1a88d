"""Write down what a task does before and after it does it, so that whoever comes next knows. Runs on executors."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router_rest.receipts import note_of, ranges_of, receipts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from router import Parts
    from router_rest.receipts import Owner, Range, Settled

EVERY = 1.0
"""Seconds between two parts: what a worker that is killed did within them is in doubt."""


@dataclass
class Journal:
    """Keep the receipts of one task, which it writes about every second; belongs to one event loop.

    `also` is told of what is about to be written, in a thread: it may write more of its own before.
    """

    parts: Parts
    owner: Owner
    also: Callable[[Sequence[Settled]], None] | None = None
    attempt: str = field(default_factory=lambda: str(uuid.uuid4()))
    rate: float = 0.0
    _settled: list[Settled] = field(default_factory=list)
    _reserved: list[Range] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "journal"))
    _last: float = field(default_factory=time.monotonic)

    def settle(self, settled: Settled) -> None:
        """Note a receipt; it is written with the next part."""
        self._settled.append(settled)

    async def reserve(self, ranges: Iterable[Range]) -> None:
        """Write down that calls of these rows may go out; they may once this returns."""
        self._reserved.extend(ranges)
        await self.flush()

    async def keep(self) -> None:
        """Write a part every second while there is something to write; ends by being cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if self._settled:
                await self.flush()

    async def flush(self) -> None:
        """Write what is noted as one part."""
        async with self._lock:
            settled, self._settled = self._settled, []
            reserved, self._reserved = self._reserved, []
            self._measure(settled)
            notes = {"attempt": self.attempt, "reserved": note_of(reserved)}
            await self._write(settled, notes)

    async def end(self, unsure: Iterable[tuple[str | None, int, Iterable[int]]]) -> None:
        """Write the last part: all calls have ended; `unsure` are rows without a receipt that may have arrived."""
        ranges = [one for topic, partition, offsets in unsure for one in ranges_of((topic, partition), offsets)]
        async with self._lock:
            settled, self._settled = self._settled, []
            await self._write(settled, {"attempt": self.attempt, "ended": "yes", "doubtful": note_of(ranges)})
        self._thread.shutdown()

    async def _write(self, settled: list[Settled], notes: dict[str, str]) -> None:
        """Write a part; whoever is cancelled meanwhile waits for it, or what it holds would be lost with it."""
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._written, settled, notes)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    def _written(self, settled: list[Settled], notes: dict[str, str]) -> None:
        if self.also is not None and settled:
            self.also(settled)
        table: pa.Table = receipts(self.owner, settled)
        self.parts.write(table, notes)

    def _measure(self, settled: list[Settled]) -> None:
        now = time.monotonic()
        rows = sum(len(one.call) for one in settled)
        self.rate = rows / max(now - self._last, 0.001)
        self._last = now
