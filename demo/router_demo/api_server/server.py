"""Listen: on the API's port, which an outage takes away, and on the control port, which stays."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from router_demo.api_server.connection import Connection
from router_demo.api_server.control import Control
from router_demo.api_server.door import Door

if TYPE_CHECKING:
    from pathlib import Path

    from router_demo.api_server.script import Script

BACKLOG = 4096
"""Longer than any number of clients that come at once: a full queue would look like a slow network."""
TICK_SECONDS = 0.01


class Server:
    """Hold the API's port and its door; `play` and `reset` change both."""

    def __init__(self, host: str, certificate: Path | None = None, client_ca: Path | None = None) -> None:
        self.door = Door()
        self._control = Control(self)
        self._host = host
        self._port = 0
        self._tls = _context(certificate, client_ca) if certificate else None
        self._listener: asyncio.Server | None = None
        self._full: list[socket.socket] = []
        self._open: set[Connection] = set()
        self._loop = asyncio.get_running_loop()

    async def start(self, port: int, control_port: int) -> tuple[int, int]:
        """Listen on both ports, 0 for any; return them."""
        await self._listen(self._bound(port))
        control = await self._loop.create_server(
            lambda: Connection(self._control, set()), self._host, control_port, backlog=BACKLOG
        )
        self._control_server = control
        self._ticker = self._loop.create_task(self._watch_lag())
        return self._port, control.sockets[0].getsockname()[1]

    def play(self, script: Script) -> float:
        """Put a script in place; return the time, from which on it is in force."""
        before = self.door.script.outage
        now = self.door.play(script)
        if script.outage != before:
            self._change(script.outage)
        return now

    def reset(self) -> None:
        """Forget everything; connections stay open, unless an outage ends."""
        before = self.door.script.outage
        self.door.reset()
        if before:
            self._change("")

    def _change(self, outage: str) -> None:
        self._close()
        if outage == "dropped":
            for connection in self._open:
                connection.vanish()
            self._listen_to_nobody()
            return
        for connection in list(self._open):
            connection.reset()
        if not outage:
            self._waits = self._loop.create_task(self._listen(self._bound(self._port)))

    def _bound(self, port: int) -> socket.socket:
        """Return a socket that takes connections from now on, though nobody may answer them yet."""
        bound = socket.create_server((self._host, port), backlog=BACKLOG)
        self._port = bound.getsockname()[1]
        return bound

    async def _listen(self, bound: socket.socket) -> None:
        self._listener = await self._loop.create_server(
            lambda: Connection(self.door, self._open), sock=bound, backlog=BACKLOG, ssl=self._tls
        )

    def _listen_to_nobody(self) -> None:
        """Hold the port with a queue that is full: the kernel drops whoever else wants to connect."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._host, self._port))
        listener.listen(0)
        self._full = [listener, *(socket.socket() for _ in range(2))]
        for filler in self._full[1:]:
            filler.setblocking(False)
            filler.connect_ex((self._host, self._port))

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for sock in self._full:
            sock.close()
        self._full = []

    async def _watch_lag(self) -> None:
        while True:
            due = self._loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            record = self.door.record
            record.lag = max(record.lag, self._loop.time() - due)


def _context(certificate: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
