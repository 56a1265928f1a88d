"""A server that keeps the messages of a webhook."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


SECRET = "T00-secret"


class Receiver(ThreadingHTTPServer):
    """A server that keeps what is sent to it. `answer` is its status, `seconds` how long it takes."""

    answer = 200
    seconds = 0.0

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/{SECRET}"

    def events(self) -> list[str]:
        """Return the events of the messages, in their order."""
        return [message["event"] for message in self.messages]

    def wait_for(self, count: int, seconds: float = 20) -> None:
        """Return as soon as so many messages arrived."""
        deadline = time.monotonic() + seconds
        while len(self.messages) < count:
            assert time.monotonic() < deadline, self.events()
            time.sleep(0.01)


class Handler(BaseHTTPRequestHandler):
    """The receiver's side of one request."""

    server: Receiver

    def do_POST(self) -> None:
        """Keep a message, and answer as the receiver says."""
        assert self.path == f"/services/{SECRET}"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.messages.append(json.loads(body))
        time.sleep(self.server.seconds)
        with suppress(OSError):  # whoever has sent it waits no longer
            self.send_response(self.server.answer)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of http.server
        """Print nothing."""


@contextmanager
def run_receiver() -> Iterator[Receiver]:
    """Run a server for as long as the block."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
