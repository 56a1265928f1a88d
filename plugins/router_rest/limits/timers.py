"""An asyncio loop whose timers are exact to a tenth of a millisecond. Runs on executors.

asyncio rounds each wait up to a whole millisecond. An API that wants 500 calls per second evenly spaced refuses every
second call that comes a millisecond early or late.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class PreciseSelector(selectors.DefaultSelector):
    """The usual selector of the system, which waits as long as it is told, and not a part of a millisecond longer."""

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
