"""Speak HTTP on one connection with aiohttp, and break it as servers break: bytes that are no HTTP, resets, silence.

An answer, also one that is huge, endless or slow, is aiohttp's. Only what HTTP does not allow is done on the transport.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Protocol

from aiohttp import HttpVersion11, web

from router_demo.api_server.calls import Call

if TYPE_CHECKING:
    from aiohttp import StreamReader
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage

    from router_demo.api_server.calls import Record, Reply
    from router_demo.api_server.script import Script

LONGEST_HEADER = 1 << 20
PIECE = b"x" * (64 << 10)
DRIP_SECONDS = 0.1
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that lets a closed connection end with a reset."""


class Replies(Protocol):
    """What answers the calls of a connection."""

    @property
    def script(self) -> Script: ...

    @property
    def record(self) -> Record: ...

    def reply(self, call: Call) -> Reply:
        """Return the reply to a call."""


def protocol_factory(replies: Replies, connections: set[Connection]) -> web.Server:
    """Return what makes a protocol for each connection that is accepted; `connections` holds those that are open."""
    return _Connections(replies, connections)


class _Connections(web.Server):
    """aiohttp's server, with connections of ours."""

    def __init__(self, replies: Replies, connections: set[Connection]) -> None:
        super().__init__(_answer, request_factory=_request)
        self._replies = replies
        self._open = connections

    def __call__(self) -> web.RequestHandler:
        return Connection(self, self._replies, self._open)


class Connection(web.RequestHandler):
    """A connection of a client: one call after the other, each answered in the way that its reply says."""

    def __init__(self, manager: web.Server, replies: Replies, connections: set[Connection]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            manager,
            loop=loop,
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
            auto_decompress=False,  # a body is recorded as it came
        )
        self._replies = replies
        self._connections = connections
        self._idle: asyncio.TimerHandle | None = None
        self._gone = loop.create_future()
        self._busy = False
        self._vanished = False
        self._answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to listen."""
        super().connection_made(transport)
        self._connections.add(self)
        self._replies.record.connections += 1
        self._await_call()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count a call that its client did not wait for; it is still processed."""
        super().connection_lost(exc)
        self._connections.discard(self)
        self._stop_idling()
        if self._busy:
            self._replies.record.abandoned += 1
        if not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Read on; a connection on which a call begins is not idle."""
        self._stop_idling()
        if not self._vanished:
            super().data_received(data)

    def vanish(self) -> None:
        """Hear and say nothing more, as behind a network that swallows packets."""
        self._vanished = True

    def reset(self) -> None:
        """End the connection so that its other end sees a reset."""
        if self.transport is not None:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request as its reply says, when the reply's time has come."""
        body = await request.content.read()
        call = Call(
            method=request.method,
            path=request.raw_path,
            headers=request.headers,
            body=body,
            at=time.monotonic(),
        )
        record = self._replies.record
        reply = self._replies.reply(call)
        record.in_flight += 1
        record.busiest = max(record.busiest, record.in_flight)
        self._busy = True
        if reply.seconds > 0:
            await asyncio.sleep(reply.seconds)
        record.in_flight -= 1
        if reply.due is not None:
            reply.due()
        # Nobody reads an answer any more. The call stays busy, and so counts as abandoned.
        if self._vanished or self._gone.done():
            await self._say_nothing()
        self._busy = False
        return await self._send(request, reply)

    async def _send(self, request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
        if reply.how == "answer":
            return self._last_or_not(web.Response(status=reply.status, body=reply.body, headers=reply.headers))
        if reply.how in ("huge", "endless"):
            return await _pour(request, reply)
        if reply.how == "drip":
            return await _drip(request, reply)
        if reply.how == "silent":
            await self._say_nothing()
        # From here on the connection ends, and only what it says before that differs; `hangup` says nothing.
        if reply.how == "cut":
            response = await _begin_response(request, reply, len(reply.body) + 100)
            await response.write(reply.body)
        elif reply.how == "garbage" and self.transport is not None:
            self.transport.write(b"\x00\xff this is no HTTP \r\n\r\n")
        elif reply.how == "reset":
            self.reset()
        _hang_up()

    def _last_or_not(self, response: web.Response) -> web.Response:
        """Say with the last answer of a connection that it is the last: a client must not send another call into it."""
        self._answered += 1
        if self._answered == self._replies.script.calls_per_connection:
            response.force_close()
        else:
            self._await_call()
        return response

    async def _say_nothing(self) -> NoReturn:
        await self._gone
        _hang_up()

    def _await_call(self) -> None:
        seconds = self._replies.script.idle_seconds
        if seconds is not None:
            self._stop_idling()
            self._idle = self._loop.call_later(seconds, self.force_close)

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    assert isinstance(request.protocol, Connection)  # made by _Connections
    return await request.protocol.answer(request)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """Make aiohttp's request, answered in HTTP/1.1: to what is no HTTP aiohttp itself would answer in HTTP/1.0."""
    answered = message._replace(version=HttpVersion11)
    return web.BaseRequest(answered, payload, protocol, writer, task, asyncio.get_running_loop())


def _hang_up() -> NoReturn:
    """Let aiohttp close the connection without an answer, as it does when a handler is cancelled."""
    raise asyncio.CancelledError


async def _begin_response(request: web.BaseRequest, reply: Reply, length: int | None) -> web.StreamResponse:
    """Send the head of an answer that is written piece by piece; without a length it is chunked."""
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    if length is None:
        response.enable_chunked_encoding()
    response.content_length = length
    await response.prepare(request)
    return response


async def _pour(request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
    """Send `size` bytes, or as many as are read."""
    bytes_left = None if reply.how == "endless" else reply.size
    response = await _begin_response(request, reply, bytes_left)
    with suppress(ConnectionError):
        while bytes_left is None or bytes_left > 0:
            piece = PIECE[:bytes_left]  # all of it when there is no end
            await response.write(piece)
            if bytes_left is not None:
                bytes_left -= len(piece)
            await asyncio.sleep(0)  # others want to be answered too
    return response


async def _drip(request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
    """Send a byte now and then, until the client has gone."""
    response = await _begin_response(request, reply, None)
    with suppress(ConnectionError):
        while True:
            await response.write(b"x")
            await asyncio.sleep(DRIP_SECONDS)
    return response
