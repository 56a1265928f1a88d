"""Send requests and wait for their answers, many at a time. Runs on executors, in the event loop of a task.

`requests` is what others see: what is sent is a `PreparedRequest`, authorised and all. Its own way to the network takes
a thread and most of a millisecond for each call; here the bytes are written and read by the loop itself. What only
`requests` can do goes its way: proxies, adapters, hooks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from router_rest.answer import Answer, InDoubt, Unsent
from router_rest.connection import Dropped
from router_rest.pool import Pool
from router_rest.request_bytes import outgoing, writable
from router_rest.stock import Stock
from router_rest.trust import trust

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from requests import PreparedRequest
    from requests.adapters import HTTPAdapter

    from router_rest.connection import Connection
    from router_rest.request_bytes import Outgoing

__all__ = ["Answer", "InDoubt", "Unsent", "Wire"]


class Wire:
    """Send the requests of one task; it belongs to one event loop.

    connect: seconds for the name, the connection and TLS together. read: seconds of silence once a request is out.
    total: seconds from its first byte out to the last byte in. most: bytes of a body that are read. in_flight: requests
    that are sent, and connections that are open, at a time; further ones wait. verify, cert, proxies: as `requests` has
    them, but the environment has no say. adapter: makes what sends the requests instead.
    """

    def __init__(
        self,
        *,
        connect: float,
        read: float,
        total: float,
        most: int,
        in_flight: int,
        verify: bool | str = True,
        cert: str | tuple[str, str] | None = None,
        proxies: Mapping[str, str] | None = None,
        adapter: Callable[[], HTTPAdapter] | None = None,
    ) -> None:
        self._total = total
        self._free = in_flight
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pool = Pool(in_flight, connect=connect, read=read, most=most, trust=partial(trust, verify, cert))
        self._always_stock = bool(proxies) or adapter is not None
        self._stock = Stock(
            connect=connect,
            read=read,
            total=total,
            most=most,
            in_flight=in_flight,
            verify=verify,
            cert=cert,
            proxies=proxies,
            adapter=adapter,
        )

    @property
    def connections(self) -> int:
        """Return how many connections were opened so far."""
        return self._pool.opened + self._stock.connections

    async def send(self, request: PreparedRequest, again: Callable[[], Awaitable[None]] | None = None) -> Answer:
        """Send a request and return the answer; redirects are answers. Raises Unsent or InDoubt.

        A request is sent twice, with the same bytes, when a connection that served before is closed before a byte of
        the answer comes: servers close idle connections whenever they like. `again` is awaited before, for a server may
        have counted the first; what it raises ends the request, in doubt. Whoever cancels it leaves it in doubt.
        """
        if self._free:
            self._free -= 1
        else:
            await self._place()
        try:
            if self._always_stock or request.hooks.get("response") or not writable(request):
                return await self._stock.send(request)
            return await self._exchange(outgoing(request), again)
        finally:
            self._leave()

    async def close(self) -> None:
        """Close all connections; what is under way ends in doubt."""
        self._stock.close()
        await self._pool.close()

    async def _place(self) -> None:
        """Wait for a place; as asyncio.Semaphore, which does more for each request even where none waits."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._free += 1

    async def _exchange(self, request: Outgoing, again: Callable[[], Awaitable[None]] | None) -> Answer:
        connection = await self._pool.take(request.origin)
        served_before = connection.used > 0
        try:
            return await self._ask(connection, request)
        except Dropped:
            if not served_before:
                raise
        if again is not None:
            await again()
        try:
            connection = await self._pool.take(request.origin, fresh=True)
            return replace(await self._ask(connection, request), resent=True)
        except Unsent as error:  # the second time; the first time it may have arrived
            raise InDoubt(f"the connection was closed before an answer came, and then: {error.what}") from None

    async def _ask(self, connection: Connection, request: Outgoing) -> Answer:
        try:
            return await connection.ask(request, asyncio.get_running_loop().time() + self._total)
        except BaseException:
            connection.abort()  # or a late answer would be taken for the next one's
            raise
        finally:
            self._pool.give(connection)
