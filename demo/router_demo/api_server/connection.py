"""Speak HTTP/1.1 on one connection: one request after the other, each answered in the way that its reply says."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import httptools

from router_demo.api_server.messages import Request, error
from router_demo.api_server.misbehaving import end_with_reset, misbehave

if TYPE_CHECKING:
    from router_demo.api_server.messages import Reply
    from router_demo.api_server.record import Record
    from router_demo.api_server.script import Script


class Taker(Protocol):
    """Be what answers the requests of a connection."""

    @property
    def script(self) -> Script: ...

    @property
    def record(self) -> Record: ...

    def take(self, request: Request) -> Reply:
        """Return the reply to a request."""


class Connection(asyncio.Protocol):
    """Be one connection of a client; `everybody` holds those that are open."""

    def __init__(self, taker: Taker, everybody: set[Connection]) -> None:
        self._taker = taker
        self._everybody = everybody
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._busy = False
        self._idle: asyncio.TimerHandle | None = None
        self._odd: asyncio.Task[None] | None = None
        self._answered = 0
        self._dead = False
        self._writable = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to listen."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._everybody.add(self)
        self._writable.set()
        self._taker.record.connections += 1
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note what the client did not wait for; what is being processed goes on."""
        self._everybody.discard(self)
        self._dead = True
        self._writable.set()
        if self._idle is not None:
            self._idle.cancel()
        if self._busy:
            self._taker.record.abandoned += 1

    def pause_writing(self) -> None:
        """Let an endless answer wait for its reader."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Read on; what is no HTTP gets 400."""
        if self._dead:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(error(400, "this is no HTTP").whole(close=True))
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._path = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        """Take a piece of the path."""
        self._path += url

    def on_header(self, name: bytes, text: bytes) -> None:
        """Take a header."""
        self._headers[name.lower()] = text

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._body.append(piece)

    def on_message_complete(self) -> None:
        """Take a request that is whole, now or when those before it are answered."""
        method, body = self._parser.get_method(), b"".join(self._body)
        request = Request(method, self._path, self._headers, body, time.monotonic())
        self._waiting.append((request, self._parser.should_keep_alive()))
        if not self._busy:
            self._next()

    def vanish(self) -> None:
        """Hear and say nothing more, as behind a network that swallows packets."""
        self._dead = True

    def reset(self) -> None:
        """End with a reset."""
        end_with_reset(self.transport)

    def _next(self) -> None:
        request, alive = self._waiting.popleft()
        if self._idle is not None:
            self._idle.cancel()
        record, reply = self._taker.record, self._taker.take(request)
        record.in_flight += 1
        record.busiest = max(record.busiest, record.in_flight)
        self._busy = True
        if reply.seconds > 0:
            self._loop.call_at(self._loop.time() + reply.seconds, self._answer, reply, record, alive)
        else:
            self._answer(reply, record, alive)

    def _answer(self, reply: Reply, record: Record, alive: bool) -> None:
        record.in_flight -= 1
        if reply.due is not None:
            reply.due()
        if self._dead:
            return
        self._busy = False
        if reply.how != "answer":
            self._odd = self._loop.create_task(misbehave(self.transport, reply, self._writable))
            return
        self._answered += 1
        self.transport.write(reply.whole(close=not alive))
        if not alive or self._answered == self._taker.script.calls_per_connection:
            self.transport.close()
        elif self._waiting:
            self._next()
        else:
            self._rest()

    def _rest(self) -> None:
        seconds = self._taker.script.idle_seconds
        if seconds is not None:
            self._idle = self._loop.call_later(seconds, self.transport.close)
