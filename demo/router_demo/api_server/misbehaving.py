"""Answer as servers answer that are broken: without end, bit by bit, cut short, not at all."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_demo.api_server.messages import Reply

PIECE = b"x" * (64 << 10)
DRIP_SECONDS = 0.1
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that lets a closed connection end with a reset."""


async def misbehave(transport: asyncio.Transport, reply: Reply, writable: asyncio.Event) -> None:
    """Answer as the reply's `how` says (see `script.Failure`), until the client has gone."""
    if reply.how in ("huge", "endless"):
        await _pour(transport, reply, writable)
    elif reply.how == "drip":
        await _drip(transport, reply)
    elif reply.how == "reset":
        end_with_reset(transport)
    elif reply.how == "cut":
        transport.write(reply.head(f"Content-Length: {len(reply.body) + 100}") + reply.body)
        transport.close()
    elif reply.how == "garbage":
        transport.write(b"\x00\xff this is no HTTP \r\n\r\n")
        transport.close()
    elif reply.how == "hangup":
        transport.close()


def end_with_reset(transport: asyncio.Transport) -> None:
    """Close a connection so that its other end sees a reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()


async def _pour(transport: asyncio.Transport, reply: Reply, writable: asyncio.Event) -> None:
    endless = reply.how == "endless"
    transport.write(reply.head("Transfer-Encoding: chunked" if endless else f"Content-Length: {reply.size}"))
    left = reply.size
    while (endless or left > 0) and not transport.is_closing():
        await writable.wait()
        piece = PIECE if endless else PIECE[:left]
        transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if endless else piece)
        left -= len(piece)
        await asyncio.sleep(0)  # others want to be answered too


async def _drip(transport: asyncio.Transport, reply: Reply) -> None:
    transport.write(reply.head("Transfer-Encoding: chunked"))
    while not transport.is_closing():
        transport.write(b"1\r\nx\r\n")
        await asyncio.sleep(DRIP_SECONDS)
