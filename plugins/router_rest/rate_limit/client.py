"""The lease of one task: wait for the moment when a call may go out, and report to the driver how calls went.

Runs on executors, in the one asyncio loop of a task.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router_rest.rate_limit.protocol import Grant
from router_rest.rate_limit.secure_channel import SecureChannel, nonce
from router_rest.rate_limit.tokens import TaskTokens

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from router_rest.rate_limit.secure_channel import ServerAddress

__all__ = ["Gone", "LeaseClient", "LeaseEnded", "Leave"]

TICK = 0.1
"""Seconds between two messages when there is nothing to hurry for."""
GAP = 0.01
"""Seconds between two messages at least."""
BEATS = 10
"""Ticks after which the driver hears something in any case."""
SILENT = 100
"""Ticks without a word, after which the driver is gone. A loop that stood still counts as one."""
SAMPLES = 256
"""Messages that the clocks are compared by."""


class LeaseClient:
    """The lease of one task: `token()` before each attempt of a call, and exactly one `saw()` after it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, channel: SecureChannel, *, sized: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader, self._writer = reader, writer
        self._channel, self._sized = channel, sized
        self._tokens = TaskTokens()
        self._ended: LeaseEnded | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._offsets: deque[float] = deque(maxlen=SAMPLES)
        self._said = 0.0
        self._saying: asyncio.TimerHandle | None = None
        self._waking: asyncio.TimerHandle | None = None
        self._quiet = 0
        self._tasks: list[asyncio.Future[None]] = []

    @classmethod
    async def open(cls, address: ServerAddress, sink: str) -> LeaseClient:
        """Reach the driver and prove to be one of its tasks. Raises Gone."""
        reached = await reach(address, sink)
        lease = cls(reached.reader, reached.writer, reached.channel, sized=reached.sized)
        lease.watch(reached.now)
        return lease

    def watch(self, now: float) -> None:
        """Begin to listen to the driver, whose clock says `now`."""
        self._offsets.append(self._loop.time() - now)
        self._tasks = [asyncio.ensure_future(self._listen()), asyncio.ensure_future(self._tick())]

    async def token(self, rows: int = 1) -> None:
        """Return when a call of so many rows may go out, at once. Raises Leave or Gone."""
        if self._ended is not None:
            self._raise()
        rows = rows if self._sized else 1  # without a limit of rows every token is for any call
        if not self._waiting and self._tokens.take(self._loop.time(), rows):
            if self._tokens.low:
                self._say_soon()
            return
        await self._wait(rows)

    async def again(self, rows: int = 1) -> None:
        """Change a token for the next: what went out in it goes out once more. Raises Leave or Gone, and keeps it."""
        self._tokens.out -= 1
        try:
            await self.token(rows)
        except BaseException:
            self._tokens.out += 1
            raise
        self._tokens.count("lapsed", 1)

    def saw(
        self,
        status: int | None,
        *,
        ok: bool,
        throttled: bool,
        pause: float | None = None,
        left: tuple[float, float] | None = None,
        seconds: float = 0.0,
        timeout: bool = False,
    ) -> None:
        """Tell how the attempt that a token was for ended.

        Args:
            status: What the API answered; None: nothing.
            ok: The API works: it took the call, or refused it for what is in it (400, 409, 413, 422).
            throttled: It refused the call because there were too many.
            pause: Seconds of a Retry-After.
            left: Calls left, and the seconds that they are for, of RateLimit headers.
            seconds: How long the attempt took.
            timeout: It ended because it took too long.
        """
        tokens = self._tokens
        tokens.out -= 1
        tokens.count("ok" if ok else "throttled" if throttled else "failed", 1)
        tokens.count("seconds", seconds)
        if timeout:
            tokens.count("timeouts", 1)
        if left is not None:
            tokens.note("left", left)
        if pause is not None:
            tokens.note("pause", max(pause, tokens.pause or 0.0))
        if self._waiting:
            self._serve()
        if not ok or (self._waiting and tokens.out < tokens.cap):  # whoever waits for an answer has no need of tokens
            self._say_soon()

    def may_retry(self) -> bool:
        """Take a retry from the budget of all tasks; False: it is used up for now, ask again later."""
        allowed = self._ended is None and self._tokens.retry()
        if not allowed:
            self._say_soon()
        return allowed

    async def credentials(self, refused: str = "") -> Mapping[str, Any]:
        """Return what the driver has for the sink; `refused` is the version that the API did not take.

        Raises:
            Gone: The driver is not reached.
            LookupError: It has none; its log says why.
        """
        if isinstance(self._ended, Gone):
            self._raise()
        number = len(self._asked) and max(self._asked) + 1
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._asked[number] = answer
        self._write({"credentials": number, "refused": refused})
        try:
            return await answer
        finally:
            del self._asked[number]

    async def close(self) -> None:
        """Tell what is left to tell, and end."""
        if not isinstance(self._ended, Gone):
            self._say()
            with suppress(OSError):
                await self._writer.drain()
        self._end(Gone("the lease is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def _raise(self) -> NoReturn:
        if isinstance(self._ended, Leave):
            raise Leave(self._ended.again)
        raise Gone(str(self._ended))

    async def _wait(self, rows: int) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((rows, waiter))
        self._serve()
        self._say_soon()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._tokens.out -= 1  # nobody sends the call that this token was for
                self._tokens.count("lapsed", 1)
            self._waiting = deque(one for one in self._waiting if one[1] is not waiter)
            raise

    def _serve(self) -> None:
        """Let calls go whose time has come, and come back for the next."""
        now = self._loop.time()
        while self._waiting and self._tokens.take(now, self._waiting[0][0]):
            waiter = self._waiting.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if self._waiting:
            due = self._tokens.due(now)
            if due is not None:
                self._waking = self._loop.call_at(due, self._serve)

    def _say_soon(self) -> None:
        """Tell the driver, together with what else happens in these milliseconds."""
        if self._saying is None and self._ended is None:
            self._saying = self._loop.call_at(max(self._loop.time(), self._said + GAP), self._say)

    def _say(self) -> None:
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None
        self._said = self._loop.time()
        report = self._tokens.report(self._said, [rows for rows, _ in self._waiting], sized=self._sized)
        self._write({"report": report.message()})

    def _write(self, message: Mapping[str, Any]) -> None:
        if not self._writer.transport.is_closing():
            self._writer.transport.write(self._channel.seal(message))

    async def _tick(self) -> None:
        """Tell what is not urgent, and watch for a driver that is silent."""
        beats = 0
        while self._quiet < SILENT:
            await asyncio.sleep(TICK)
            beats, self._quiet = beats + 1, self._quiet + 1
            now = self._loop.time()
            self._tokens.tick(now)
            if now >= self._said + TICK / 2 and (self._tokens.dirty or beats % BEATS == 0):
                self._say()
        self._end(Gone(f"the driver has been silent for {SILENT * TICK:.0f} s"))

    async def _listen(self) -> None:
        """Take in what the driver says until it is gone."""
        try:
            while line := await self._reader.readline():
                self._quiet = 0
                message = self._channel.open(line)
                self._offsets.append(self._loop.time() - message["now"])
                if "grant" in message:
                    self._granted(Grant.read(message["grant"]))
                if "credentials" in message:
                    self._answered(message)
        except (OSError, ValueError) as error:
            self._end(Gone(f"the driver is gone: {error}"))
        else:
            self._end(Gone("the driver is gone"))

    def _granted(self, grant: Grant) -> None:
        tokens, cap = self._tokens, self._tokens.cap
        tokens.may(grant.number, grant.cap, grant.retries)
        if grant.state in {"hold", "leave"}:
            tokens.drop()
        if grant.state == "leave":
            self._end(Leave(grant.again))
            return
        # The message that was fastest shows best how far the clocks are apart.
        tokens.give(grant.runs, min(self._offsets))
        self._serve()
        if tokens.low or (self._waiting and tokens.cap > cap):
            self._say_soon()

    def _answered(self, message: Mapping[str, Any]) -> None:
        answer = self._asked.get(message["credentials"])
        if answer is None or answer.done():
            return
        if "failed" in message:
            answer.set_exception(LookupError(f"the driver has no credentials: {message['failed']}"))
        else:
            answer.set_result(message["given"])

    def _end(self, why: LeaseEnded) -> None:
        """Let nobody wait any longer."""
        if self._ended is None or isinstance(why, Gone):
            self._ended = why
        self._tokens.drop()
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(why)
        self._waiting.clear()
        if isinstance(why, Gone):
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(why)
        for timer in (self._saying, self._waking):
            if timer is not None:
                timer.cancel()
        self._saying = self._waking = None


WITHIN = 10.0
"""Seconds to reach the driver in."""
LONGEST = 1 << 20
"""Bytes of a line."""


class LeaseEnded(Exception):  # noqa: N818 - the two below say what happened
    """The end of a lease: no more calls may go out from this task."""


class Leave(LeaseEnded):
    """The end of a task that waits: the API is out for longer, or the sink stops. `again`: seconds until then."""

    def __init__(self, again: float) -> None:
        super().__init__(again)
        self.again = again

    def __str__(self) -> str:
        return f"nothing may go out for {self.again:.1f} s or more"


class Gone(LeaseEnded):
    """A driver that is not reached. Nobody knows what others send, so nothing goes out."""


@dataclass(frozen=True)
class DriverConnection:
    """A connection to the driver, both sides of which have proved who they are.

    `now`: the time by the driver's clock. `sized`: it limits rows, so that it must know how many a call has.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    channel: SecureChannel
    now: float
    sized: bool


async def reach(address: ServerAddress, sink: str) -> DriverConnection:
    """Return a connection to the driver. Raises Gone."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(address.host, address.port, limit=LONGEST), WITHIN
        )
    except (OSError, asyncio.TimeoutError) as error:
        raise Gone(f"the driver at {address.host}:{address.port} is not reached: {error}") from error
    try:
        return await asyncio.wait_for(_introduced(reader, writer, address, sink), WITHIN)
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, (OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError)):
            raise Gone(f"{address.host}:{address.port} is not the driver of this task") from error
        raise


async def _introduced(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: ServerAddress, sink: str
) -> DriverConnection:
    """Prove to be a task of the driver, and that it is the driver: who seals and opens messages knows the secret."""
    theirs, own = str(json.loads(await reader.readline())["nonce"]), nonce()
    channel = SecureChannel(address.secret, "task", theirs, own)
    sealed = channel.seal({"limit": address.name, "sink": sink}).decode().strip()
    writer.write(json.dumps({"nonce": own, "sealed": sealed}).encode() + b"\n")
    answer = channel.open(await reader.readline())
    if "refused" in answer:
        raise Gone(f"sink {sink}: {answer['refused']}")
    return DriverConnection(reader, writer, channel, answer["now"], answer["sized"])
