"""Keep connections open from one request to the next."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from router_rest.answer import Unsent
from router_rest.connection import Connection, said
from router_rest.trust import Unusable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from router_rest.request_bytes import Origin

LONGEST_IDLE = 30.0
"""Seconds after which an idle connection is closed: many servers, and what is between, do so after a minute."""
NEXT_ADDRESS = 0.25
"""Seconds after which the next address of a name is tried as well (RFC 8305, 8)."""


class Pool:
    """Lend connections, at most `size` of them open at once, wherever they lead.

    connect: seconds for the name, the connection and TLS together. read, most: as for a Connection. trust: gives the
    TLS context, when the first connection needs it.
    """

    def __init__(
        self, size: int, *, connect: float, read: float, most: int, trust: Callable[[], ssl.SSLContext]
    ) -> None:
        self.opened = 0
        """Connections so far."""
        self._size = size
        self._connect = connect
        self._read = read
        self._most = most
        self._trust = trust
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Future[None]] = set()
        self._changed = asyncio.Event()
        self._idle: dict[Origin, deque[Connection]] = {}
        self._closed = False

    async def take(self, origin: Origin, *, fresh: bool = False) -> Connection:
        """Return a connection, the one used last, or a new one; whoever takes it gives it back. Raises Unsent.

        Who takes more than `size` at a time waits for ever: the wire hands out places.
        """
        while not self._closed:
            if not fresh and (connection := self._last_used(origin)) is not None:
                return connection
            if len(self._open) < self._size:
                return await self._new(origin)
            self._make_room()
            await self._change()
        raise Unsent("the wire is closed")

    def give(self, connection: Connection) -> None:
        """Take a connection back, to lend it again if it is still open."""
        if self._closed:
            connection.abort()
        elif connection.open:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.setdefault(connection.origin, deque()).append(connection)
            self._changed.set()

    async def close(self) -> None:
        """Close all connections, and wait until they are closed."""
        self._closed = True
        for connecting in self._connecting:
            connecting.cancel()
        while self._open:
            for connection in self._open:
                connection.abort()
            await self._change()

    async def _new(self, origin: Origin) -> Connection:
        connection = Connection(origin, read=self._read, most=self._most, lost=self._gone)
        self._open.add(connection)
        connecting = asyncio.ensure_future(self._connected(connection))
        self._connecting.add(connecting)
        connecting.add_done_callback(partial(self._settled, connection))
        try:
            # whoever waits may give up; a connection that is half made is finished, for asyncio would lose its socket
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if self._closed and connecting.cancelled():
                raise Unsent("the wire is closed") from None
            connecting.add_done_callback(lambda _: self.give(connection))
            raise
        return connection

    async def _connected(self, connection: Connection) -> None:
        try:
            await asyncio.wait_for(self._reach(connection), self._connect)
        except Unusable as error:
            raise Unsent(str(error)) from None
        except (OSError, ValueError, OverflowError, asyncio.TimeoutError) as error:
            raise Unsent(said(error)) from None

    async def _reach(self, connection: Connection) -> None:
        loop, origin = asyncio.get_running_loop(), connection.origin
        context = self._trust() if origin.tls else None
        delay = None if _is_address(origin.host) else NEXT_ADDRESS  # whoever races against nobody is slower
        transport, _ = await loop.create_connection(
            lambda: connection, origin.host, origin.port, happy_eyeballs_delay=delay
        )
        if context is not None:
            secured = await loop.start_tls(
                transport, connection, context, server_hostname=origin.host, ssl_handshake_timeout=self._connect
            )
            if secured is not None:
                connection.connection_made(secured)

    def _settled(self, connection: Connection, connecting: asyncio.Future[None]) -> None:
        self._connecting.discard(connecting)
        if connecting.cancelled() or connecting.exception() is not None:
            connection.abort()
            self._gone(connection)
        else:
            self.opened += 1

    def _gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._changed.set()

    async def _change(self) -> None:
        """Wait until a connection is gone, or idle. The loop closes them, in one of its next rounds."""
        self._changed.clear()
        await self._changed.wait()

    def _last_used(self, origin: Origin) -> Connection | None:
        """Return an idle connection, so that those that nobody needs grow old."""
        idle = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - LONGEST_IDLE
        while idle:
            connection = idle.pop()
            if connection.open and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    def _make_room(self) -> None:
        """Close the connection that is idle for longest, wherever it leads."""
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}
        if self._idle:
            oldest = min(self._idle.values(), key=lambda idle: idle[0].idle_since)
            oldest.popleft().abort()


@lru_cache(maxsize=256)
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
