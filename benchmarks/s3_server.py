"""An S3 server of this process (moto), which keeps what it was asked, and answers with faults where that is wanted."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Answer = tuple[str, bytes]
"""A status line and a body."""


@dataclass(frozen=True)
class Request:
    """What a client asked for: `path` begins with the bucket."""

    method: str
    path: str
    query: str


@dataclass
class S3Server:
    """The server's address, its requests so far, and a function that may answer a request in its place.

    The function may also wait, or raise ConnectionResetError: then the connection is cut without an answer.
    """

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    fault: Callable[[Request], Answer | None] = lambda _: None

    @property
    def options(self) -> dict[str, str]:
        """Return the storage options that reach the server."""
        return {
            "aws_access_key_id": "somebody",
            "aws_secret_access_key": "hush-hush",
            "aws_region": "us-east-1",
            "aws_endpoint_url": self.url,
            "aws_allow_http": "true",
        }

    def below(self, prefix: str) -> list[Request]:
        """Return the requests so far for what is below a prefix, which begins with the bucket; lists count, too."""
        bucket, _, folder = prefix.partition("/")
        at = f"/{prefix}/"
        listed = f"prefix={folder.replace('/', '%2F')}"
        return [
            one
            for one in self.requests
            if one.path.startswith(at) or (one.path.strip("/") == bucket and listed in one.query)
        ]


@contextmanager
def s3_server(*buckets: str) -> Iterator[S3Server]:
    """Run a server with empty buckets."""
    server = S3Server()
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        asked = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        server.requests.append(asked)
        try:
            answer = server.fault(asked)
        except ConnectionResetError:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise
        if answer is None:
            return moto(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(answer[0], [("Content-Type", "application/xml"), ("Content-Length", str(len(answer[1])))])
        return [answer[1]]

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    running = make_server("127.0.0.1", 0, application, threaded=True)
    server.url = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        for bucket in buckets:
            _make_bucket(server, bucket)
        yield server
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def _make_bucket(server: S3Server, bucket: str) -> None:
    import boto3  # noqa: PLC0415 - comes with moto

    keys = {"aws_access_key_id": "somebody", "aws_secret_access_key": "hush-hush", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=server.url, **keys).create_bucket(Bucket=bucket)
