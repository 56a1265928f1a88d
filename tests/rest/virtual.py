"""A loop whose time passes as soon as everybody waits, a network in memory, and an API that keeps count."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router_rest.channel.client import TaskEnded
from router_rest.channel.server import AdmittedSink, TaskSession, serve_task
from router_rest.delivery.worker import cancel_tasks
from router_rest.limits.coordinator import Coordinator
from router_rest.limits.lease_client import HeldToken, LeaseClient
from router_rest.limits.lease_server import LimitSessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from router_rest.limits.messages import Pace


class _Selector(selectors.SelectSelector):
    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for ever"
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Let time pass as soon as there is nothing to do."""

    def __init__(self) -> None:
        self.passing = _Selector()
        super().__init__(self.passing)

    def time(self) -> float:
        return self.passing.now


def simulate(story: Coroutine[Any, Any, Any], at_most: float = 300) -> Any:
    """Run a story in virtual time, of so many seconds at most."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(story, at_most))
    finally:
        cancel_tasks(loop)
        loop.close()


class ManualClock:
    """A clock that a test sets forward: call it for the time in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def together(stories: Iterable[Awaitable[Any]]) -> list[Any]:
    """Run stories at the same time."""
    return await asyncio.gather(*stories)


class Cable:
    """Carry bytes one way, late by some chance and in order; stands for a writer and its transport."""

    def __init__(self, to: asyncio.StreamReader, delay: Callable[[], float]) -> None:
        self.transport = self
        self.cut = False
        self._to, self._delay, self._last = to, delay, 0.0
        self._under_way: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()

    def write(self, text: bytes) -> None:
        self._last = max(self._last, self._loop.time() + self._delay())
        self._under_way.append(text)
        self._loop.call_at(self._last, self._arrive)

    def _arrive(self) -> None:
        text = self._under_way.popleft()  # a loop calls what is due at one moment in any order
        if not self.cut:
            self._to.feed_data(text)

    def abort(self) -> None:
        if not self.cut:
            self.cut = True
            self._to.feed_eof()

    def close(self) -> None:
        self._loop.call_at(max(self._last, self._loop.time()), self.abort)

    def is_closing(self) -> bool:
        return self.cut

    def get_write_buffer_size(self) -> int:
        return 0

    async def drain(self) -> None:
        """Do nothing: it is empty at any time."""

    async def wait_closed(self) -> None:
        """Do nothing: it is closed at once."""


@dataclass
class Api:
    """Answer calls after a while, and keep the time of each arrival.

    `limit` calls (or rows) are let in per `window` seconds; above it a call gets a 429.
    """

    latency: float = 0.034
    limit: float = float("inf")
    window: float = 1.0
    fixed: bool = False
    """Windows begin at multiples of their length; otherwise every such time is one."""
    retry_after: float | None = None
    down: bool = False
    arrivals: list[tuple[float, int, int]] = field(default_factory=list)
    """Time, rows, status."""
    at_once: int = 0
    most_at_once: int = 0
    _inside: deque[float] = field(default_factory=deque)

    async def call(self, rows: int) -> int:
        now = asyncio.get_running_loop().time()
        gone = now - (now % self.window if self.fixed else self.window)
        while self._inside and self._inside[0] <= gone:
            self._inside.popleft()
        status = 503 if self.down else 429 if len(self._inside) + rows > self.limit else 200
        if status == 200 and self.limit != float("inf"):
            self._inside.extend([now] * rows)
        self.arrivals.append((now, rows, status))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.at_once -= 1
        return status

    def highest(self, seconds: float, *, rows: bool = False) -> int:
        """Return the most calls, or rows, of any window of so many seconds."""
        inside: deque[tuple[float, int]] = deque()
        count = highest = 0
        for now, many, _ in self.arrivals:
            inside.append((now, many if rows else 1))
            count += inside[-1][1]
            while inside[0][0] <= now - seconds + 1e-9:
                count -= inside.popleft()[1]
            highest = max(highest, count)
        return highest

    def rate(self, start: float, end: float, status: int = 200) -> float:
        """Return the calls per second of a time that had this answer."""
        return sum(1 for now, _, one in self.arrivals if start <= now < end and one == status) / (end - start)


class World:
    """A driver, its network and an API; `late` is the longest delay of a message."""

    def __init__(self, pace: Pace, api: Api, *, seed: int = 0, late: float = 0.002) -> None:
        self.loop = asyncio.get_running_loop()
        self.api = api
        self.chance = random.Random(seed)
        self.coordinator = Coordinator(pace, self.loop.time, self.chance.random)
        self.sessions = LimitSessions(self.coordinator)
        self.messages = 0
        self._late = late
        self._numbers = 0

    def _delay(self) -> float:
        self.messages += 1
        return self.chance.uniform(0.0001, self._late)

    def lease(self, sink: str = "sink") -> tuple[LeaseClient, asyncio.Future[None]]:
        """Return a lease, and what serves it on the driver."""
        self._numbers += 1
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        number = str(self._numbers)
        theirs: Any = Cable(here, self._delay)
        ours: Any = Cable(there, self._delay)
        session = TaskSession(number, sink, theirs)
        serving = asyncio.ensure_future(serve_task(session, AdmittedSink("api", self.sessions), there))
        windows = self.coordinator.windows
        welcome = {"sized": windows.limits_rows, "keyed": windows.keyed, "now": self.loop.time()}
        return LeaseClient(here, ours, welcome), serving

    async def post(
        self,
        calls: Sequence[int],
        *,
        in_flight: int = 32,
        begins: float = 0.0,
        stalls: float = 0.0,
        lease: LeaseClient | None = None,
        api: Api | None = None,
        key: str = "",
    ) -> int:
        """Play a task with calls of so many rows; return how many were taken before it had to end.

        `stalls`: how long at most a call takes from its token to its connection.
        """
        await asyncio.sleep(begins)
        lease, api = lease or self.lease()[0], api or self.api
        rest, taken = deque(calls), 0

        async def work() -> None:
            nonlocal taken
            while rest:
                rows = rest.popleft()
                status = 0
                while status != 200:
                    token = HeldToken(lease, rows, key, await lease.acquire(rows, key))
                    await asyncio.sleep(self.chance.uniform(0, stalls))
                    await token.in_time()
                    status = await api.call(rows)
                    pause = api.retry_after if status == 429 else None
                    lease.release(status, ok=status == 200, throttled=status == 429, pause=pause)
                    if status == 503:
                        await asyncio.sleep(self.chance.uniform(0.05, 0.2))
                taken += 1

        ends = await asyncio.gather(*(work() for _ in range(in_flight)), return_exceptions=True)
        await lease.close()
        for end in ends:
            if end is not None and not isinstance(end, TaskEnded):
                raise end
        return taken

    async def drain(self, tasks: Sequence[int], *, in_flight: int = 32, pause: float = 0.5) -> None:
        """Run jobs until all calls of all tasks are taken, as a driver does after an outage."""
        left = list(tasks)
        while any(left):
            taken = await asyncio.gather(*(self.post([1] * many, in_flight=in_flight) for many in left if many))
            left = [many - done for many, done in zip([many for many in left if many], taken, strict=True)]
            await asyncio.sleep(pause)
