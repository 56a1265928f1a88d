"""A server on loopback that does with each connection what a test writes down, byte by byte."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

PATIENCE = 30.0


@dataclass(frozen=True)
class Seen:
    """A request that arrived; names of headers are in lower case, values of one name joined."""

    connection: int
    line: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Talk:
    """The server's side of one connection. `number` counts them from 0."""

    server: Scripted
    socket: socket.socket
    number: int
    unread: bytes = field(default=b"", repr=False)

    def request(self) -> Seen | None:
        """Read a request; None when the client hangs up."""
        while b"\r\n\r\n" not in self.unread:
            if not self._more():
                return None
        head, _, self.unread = self.unread.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for name, _, value in (one.partition(": ") for one in lines):
            headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
        length = int(headers.get("content-length", "0").split(", ")[0])
        while len(self.unread) < length:
            if not self._more():
                return None
        body, self.unread = self.unread[:length], self.unread[length:]
        seen = Seen(self.number, line, headers, body)
        self.server.seen.append(seen)
        return seen

    def peek(self) -> bytes:
        """Return the next request, which has come as a whole and stays unread; empty when the client hangs up."""
        while (block := self.socket.recv(1 << 16, socket.MSG_PEEK)) and not self.server.ended.is_set():
            head, _, body = block.partition(b"\r\n\r\n")
            length = next((line.partition(b":")[2] for line in head.split(b"\r\n") if b"ength:" in line), None)
            if length is not None and len(body) >= int(length):
                return block
            time.sleep(0.001)
        return b""

    def answer(self, body: bytes = b"ok", status: str = "200 OK", *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def pour(self, data: bytes, pause: float = 0.0) -> None:
        """Send the same again and again, until the client or the test has enough."""
        while not self.server.ended.wait(pause):
            self.send(data)

    def reset(self) -> None:
        """Close the connection as a server does that has crashed: with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def wait(self) -> None:
        """Keep still until the client hangs up."""
        while self._more():
            pass

    def _more(self) -> bool:
        block = self.socket.recv(1 << 16)
        self.unread += block
        return bool(block)


def polite(body: bytes = b"ok", *headers: str, status: str = "200 OK") -> Callable[[Talk], None]:
    """Answer request after request."""

    def act(talk: Talk) -> None:
        while talk.request() is not None:
            talk.answer(body, status, *headers)

    return act


def silent(talk: Talk) -> None:
    """Take a request and never answer it."""
    talk.request()
    talk.wait()


def replies(*pieces: bytes) -> Callable[[Talk], None]:
    """Read a request, send these bytes and hang up."""

    def act(talk: Talk) -> None:
        talk.request()
        for piece in pieces:
            talk.send(piece)

    return act


def then_waits(data: bytes) -> Callable[[Talk], None]:
    """Answer every request with these bytes, and leave the connection open."""

    def act(talk: Talk) -> None:
        while talk.request() is not None:
            talk.send(data)

    return act


def server_tls(certificate: str, clients: str | None = None) -> ssl.SSLContext:
    """Return the TLS context of a server; `clients` is the certificate that clients have to show."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate)
    if clients is not None:
        made.load_verify_locations(clients)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


class Scripted:
    """Serve each connection by `act` in a thread, in a `with` block; what it leaves open is closed."""

    def __init__(
        self,
        act: Callable[[Talk], Any] | None = None,
        context: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.act = act or polite()
        self.seen: list[Seen] = []
        self.accepted = 0
        self.most_open = 0
        self.ended = threading.Event()
        self._context = context
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self.port = int(self._listening.getsockname()[1])

    def __enter__(self) -> Scripted:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(PATIENCE)

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}/events"

    @property
    def bodies(self) -> list[bytes]:
        return [seen.body for seen in self.seen]

    @property
    def open(self) -> int:
        """Return how many connections are open, as far as this side knows."""
        return len(self._open)

    def _start(self, act: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            taken.settimeout(PATIENCE)
            number, self.accepted = self.accepted, self.accepted + 1
            with self._lock:
                self._open.add(taken)
                self.most_open = max(self.most_open, len(self._open))
            self._start(self._serve, taken, number)

    def _serve(self, taken: socket.socket, number: int) -> None:
        served = taken
        with suppress(OSError):  # the client may be gone, or not want this server
            if self._context is not None:
                served = self._context.wrap_socket(taken, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    self._open ^= {taken, served}
                served.do_handshake()
            self.act(Talk(self, served, number))
        with self._lock:
            self._open -= {taken, served}
        served.close()
