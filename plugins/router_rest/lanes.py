"""Keep calls until they may go out: at once, or one after the other within a lane."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_rest.cutting import Call


@dataclass
class Lanes:
    """Hold the calls of a task that were cut and not begun, at most about `most`; belongs to one event loop."""

    most: int
    held: int = 0
    over: bool = False
    _ready: deque[Call] = field(default_factory=deque)
    _behind: dict[int, deque[Call]] = field(default_factory=dict)
    _blocked: set[int] = field(default_factory=set)
    _idle: deque[asyncio.Future[None]] = field(default_factory=deque)
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    async def put(self, call: Call) -> bool:
        """Add a call, once there is room; False where it will not go out: its lane is blocked, or all is over."""
        while self.held >= self.most and not self.over:
            self._room.clear()
            await self._room.wait()
        if self.over or call.lane in self._blocked:
            return False
        self.held += 1
        waited = bool(self._idle)
        if call.lane is None:
            self._begin(call)
        elif call.lane in self._behind:
            self._behind[call.lane].append(call)
        else:
            self._behind[call.lane] = deque()
            self._begin(call)
        if waited:
            await asyncio.sleep(0)  # or the first call went out when all that may be held are cut
        return True

    async def take(self) -> Call | None:
        """Return the next call that may go out, once there is one; None: there will be none."""
        while not self._ready:
            if self.over:
                return None
            waiting = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            await waiting
        call = self._ready.popleft()
        self._leave(1)
        return call

    def finished(self, call: Call, *, whole: bool) -> None:
        """Let the next call of a lane go out, unless rows of this one are left: they come first."""
        if call.lane is None:
            return
        behind = self._behind[call.lane]
        if not whole:
            self._blocked.add(call.lane)
            self._leave(len(behind))
            behind.clear()
        if behind:
            self._begin(behind.popleft())
        else:
            del self._behind[call.lane]

    def end(self, *, drop: bool = False) -> None:
        """Let no more calls come; with `drop` those that are held do not go out either."""
        self.over = True
        if drop:
            self._ready.clear()
            for behind in self._behind.values():
                behind.clear()
        self._room.set()
        self._wake(len(self._idle))

    def _begin(self, call: Call) -> None:
        self._ready.append(call)
        self._wake(1)

    def _leave(self, calls: int) -> None:
        self.held -= calls
        if self.held < self.most:
            self._room.set()

    def _wake(self, count: int) -> None:
        while count and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1
