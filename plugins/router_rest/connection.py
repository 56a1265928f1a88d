"""Ask a server over one connection, one request after the other."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import TYPE_CHECKING, cast

from router_rest.answer import Answer, InDoubt, Unsent
from router_rest.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_rest.request_bytes import Origin, Outgoing

REFUSED_US = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
"""What a server's alert names when it does not like the client's certificate, or wants one."""


class Dropped(InDoubt):
    """Say that a connection was closed before a byte of the answer came."""


class Connection(asyncio.Protocol):
    """Hold one connection. It belongs to one event loop, and to one request at a time.

    read: seconds of silence, once the request is out, after which no answer is expected. most: bytes of a body that
    are read. lost: called once, when the connection is gone.
    """

    def __init__(self, origin: Origin, *, read: float, most: int, lost: Callable[[Connection], None]) -> None:
        self.origin = origin
        self.used = 0
        """Requests that were sent over it."""
        self.idle_since = 0.0
        self._silence = read
        self._answers = Reply(most)
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unwanted = False
        self._reply: Reply | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._began = self._heard = self._deadline = 0.0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: Outgoing, deadline: float) -> asyncio.Future[Answer]:
        """Send a request; what is returned becomes its answer, or InDoubt. deadline: by the clock of the loop.

        Raises Unsent when the connection was closed meanwhile.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Unsent("the connection was closed before the request was sent")
        self._reply = self._answers
        self._reply.begin(bodiless=request.bodiless)
        self._waiting = waiting = self._loop.create_future()
        self._began = self._heard = self._loop.time()
        self._deadline = deadline
        if self._watch is None:  # or it is set for a request before, and so early enough
            self._watch = self._loop.call_at(self._due, self._look)
        self.used += 1
        transport.write(request.data)
        return waiting

    def abort(self) -> None:
        """Close the connection at once; what is under way over it is in doubt."""
        self._unwanted = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; with TLS there are two, one after the other."""
        made = cast("asyncio.Transport", transport)
        if self._unwanted:
            made.abort()
        else:
            self._transport = made

    def data_received(self, data: bytes) -> None:
        if self._reply is None:  # nobody asked: it would pass for the answer to the next request
            self.abort()
            return
        self._heard = self._loop.time()
        try:
            self._reply.feed(data)
        except InDoubt as error:
            self._fail(error)
        else:
            if self._reply.done or self._reply.full:
                self._finish(self._reply)

    def eof_received(self) -> None:
        if self._reply is not None and self._reply.ends_by_closing:
            self._reply.done = True
            self._finish(self._reply)

    def connection_lost(self, error: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if error is None and not self._unwanted:
            self.eof_received()  # some servers end TLS without a word
        self.abort()  # in Python 3.10 TLS does not notice by itself
        self._transport = None
        if self._reply is not None:
            self._fail(self._why_lost(self._reply, error))
        self._answers.end()
        self._lost(self)

    @property
    def _due(self) -> float:
        return min(self._heard + self._silence, self._deadline)

    def _look(self) -> None:
        """See whether the answer takes too long; one timer serves request after request."""
        self._watch = None
        if self._reply is None or self._transport is None:
            return
        now = self._loop.time()
        if self._transport.get_write_buffer_size():
            self._heard = now  # the request is still going out
        if self._due > now:
            self._watch = self._loop.call_at(self._due, self._look)
        elif self._reply.head:
            self._finish(self._reply)
        else:
            self._fail(InDoubt("no answer came in time", timeout=True))

    def _finish(self, reply: Reply) -> None:
        waiting, self._waiting, self._reply = self._waiting, None, None
        answered_early = self._transport is not None and self._transport.get_write_buffer_size() > 0
        if not reply.keeps or answered_early:
            self.abort()
        if waiting is not None and not waiting.done():
            waiting.set_result(reply.answer(self._loop.time() - self._began))

    def _fail(self, error: OSError) -> None:
        waiting, self._waiting, self._reply = self._waiting, None, None
        self.abort()
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _why_lost(self, reply: Reply, error: Exception | None) -> OSError:
        why = "the connection was closed" if error is None else said(error)
        if reply.begun:
            return InDoubt(f"the answer breaks off: {why}")
        # in TLS 1.3 a client learns only with the answer that its certificate was not taken: nothing else was read
        if self.used == 1 and isinstance(error, ssl.SSLError) and any(word in why.upper() for word in REFUSED_US):
            return Unsent(f"the server does not take the client's certificate: {why}")
        return Dropped(f"no answer came: {why}")


def said(error: BaseException) -> str:
    """Say in words why there is no connection; never with what was sent, nor with an address."""
    if isinstance(error, asyncio.TimeoutError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or type(error).__name__})"
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror})"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return f"no connection ({type(error).__name__})"
