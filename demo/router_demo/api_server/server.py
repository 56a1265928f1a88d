"""Listen: on the API's port, which an outage takes away, and on the control port, which no fault touches."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from typing import TYPE_CHECKING

from aiohttp import web
from pydantic import ValidationError

from router_demo.api_server.connection import protocol_factory
from router_demo.api_server.handler import Handler
from router_demo.api_server.page import page
from router_demo.api_server.script import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from router_demo.api_server.connection import Connection

    Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

BACKLOG = 4096
"""Longer than any number of clients that come at once: a full queue would look like a slow network."""
TICK_SECONDS = 0.01
PREFIX = "/_control/"


class Server:
    """The API's port with the handler of its calls; `play` and `reset` change both."""

    def __init__(self, host: str, certificate: Path | None = None, client_ca: Path | None = None) -> None:
        self.handler = Handler()
        self._host = host
        self._port = 0
        self._tls = _tls_context(certificate, client_ca) if certificate else None
        self._listener: asyncio.Server | None = None
        self._full: list[socket.socket] = []
        self._open: set[Connection] = set()
        self._protocols = protocol_factory(self.handler, self._open)
        self._loop = asyncio.get_running_loop()

    async def start(self, port: int, control_port: int) -> tuple[int, int]:
        """Listen on both ports, 0 for any; return them."""
        await self._listen(self._bind(port))
        self._control = web.AppRunner(control(self), access_log=None)
        await self._control.setup()
        await web.TCPSite(self._control, self._host, control_port, backlog=BACKLOG).start()
        self._ticker = self._loop.create_task(self._watch_lag())
        return self._port, self._control.addresses[0][1]

    def play(self, script: Script) -> float:
        """Put a script in place; return the time, from which on it is in force."""
        outage_before = self.handler.script.outage
        now = self.handler.play(script)
        if script.outage != outage_before:
            self._change_outage(script.outage)
        return now

    def reset(self) -> None:
        """Forget everything; connections stay open, unless an outage ends."""
        outage_before = self.handler.script.outage
        self.handler.reset()
        if outage_before:
            self._change_outage("")

    def _change_outage(self, outage: str) -> None:
        """Begin an outage, or end one with ""."""
        self._close()
        if outage == "dropped":
            for connection in self._open:
                connection.vanish()
            self._listen_to_nobody()
            return
        for connection in list(self._open):
            connection.reset()
        if not outage:
            self._waits = self._loop.create_task(self._listen(self._bind(self._port)))

    def _bind(self, port: int) -> socket.socket:
        """Return a socket that takes connections from now on, though none may be answered yet."""
        bound = socket.create_server((self._host, port), backlog=BACKLOG)
        self._port = bound.getsockname()[1]
        return bound

    async def _listen(self, bound: socket.socket) -> None:
        self._listener = await self._loop.create_server(self._protocols, sock=bound, backlog=BACKLOG, ssl=self._tls)

    def _listen_to_nobody(self) -> None:
        """Hold the port with a queue that is full: the kernel drops whoever else wants to connect."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._host, self._port))
        listener.listen(0)
        self._full = [listener]
        # Two connections that nobody accepts are enough: Linux queues one more than the 0 above.
        for _ in range(2):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((self._host, self._port))
            self._full.append(filler)

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for sock in self._full:
            sock.close()
        self._full = []

    async def _watch_lag(self) -> None:
        """Record the longest that this server was held up: how much too late it wakes from a short sleep."""
        while True:
            due = self._loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            record = self.handler.record
            record.lag = max(record.lag, self._loop.time() - due)


def _tls_context(certificate: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def control(server: Server) -> web.Application:
    """Make the control port: `script` (GET, PUT), `reset` (POST), by GET `stats`, `rows`, `requests`, at `/` a page."""
    handler = server.handler

    async def look(request: web.Request) -> web.Response:
        seen = page(request.headers.get("Accept", ""), handler.script, handler.record)
        return web.Response(body=seen.body, headers=dict(seen.headers))

    async def read(request: web.Request) -> web.Response:
        return web.json_response(handler.script.model_dump())

    async def play(request: web.Request) -> web.Response:
        return web.json_response({"at": server.play(Script.model_validate_json(await request.read()))})

    async def reset(request: web.Request) -> web.Response:
        server.reset()
        return web.json_response({"at": time.monotonic()})

    async def stats(request: web.Request) -> web.Response:
        since, until = _span(request)
        window = float(request.query.get("window", "1"))
        figures = handler.record.stats(since=since, until=until, window=window, wrapped=handler.script.rows)
        return web.json_response(figures)

    async def rows(request: web.Request) -> web.Response:
        since, until = _span(request)
        ids = request.query.getall("id", ["id"])
        counts = handler.record.counts(ids=ids, wrapped=handler.script.rows, since=since, until=until)
        # Pairs, not a JSON object: its names are texts, and the values of a row may be anything.
        return web.json_response([(list(row), times) for row, times in counts.items()])

    async def requests(request: web.Request) -> web.Response:
        return web.json_response(handler.record.calls(int(request.query.get("last", "100"))))

    answers: dict[tuple[str, str], Answer] = {
        ("PUT", "script"): play,
        ("GET", "script"): read,
        ("POST", "reset"): reset,
        ("GET", "stats"): stats,
        ("GET", "rows"): rows,
        ("GET", "requests"): requests,
    }

    async def unknown(request: web.Request) -> web.Response:
        paths = ", ".join(f"{method} {PREFIX}{name}" for method, name in answers)
        return _error(404, f"there are {paths}")

    application = web.Application(middlewares=[_refuse_mistakes])
    application.router.add_get("/", look)
    for (method, name), answer in answers.items():
        application.router.add_route(method, PREFIX + name, answer)
    application.router.add_route("*", "/{path:.*}", unknown)
    return application


@web.middleware
async def _refuse_mistakes(request: web.Request, handler: Answer) -> web.StreamResponse:
    try:
        return await handler(request)
    except ValidationError as mistake:
        return _error(400, str(mistake))


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _span(request: web.Request) -> tuple[float, float]:
    """Return the times that a query names, `since` and `until`; without them all of time."""
    since = float(request.query.get("since", -math.inf))
    until = float(request.query.get("until", math.inf))
    return since, until
