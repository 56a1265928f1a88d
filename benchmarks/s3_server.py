"""An S3 server (moto) in a process of its own, which records its requests, and answers with faults on command.

It has a process of its own, because some calls of delta-rs wait for an answer while they keep Python's lock.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request as Call
from urllib.request import urlopen

from router_demo.embedded import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTROL = "/_control/"


@dataclass(frozen=True)
class Request:
    """A request of a client: `path` begins with the bucket, `key` is the access key that it signed with."""

    method: str
    path: str
    query: str
    key: str = ""


@dataclass(frozen=True)
class Fault:
    """What happens to the next requests of a method whose path contains a text.

    `answer` is a status line; without one the connection is cut. `done`: the request is still carried out.
    `unconditional`: the request is answered as usual, but its conditions are ignored.
    """

    method: str
    contains: str
    answer: str = ""
    times: int = 1
    done: bool = False
    seconds: float = 0.0
    unconditional: bool = False


@dataclass(frozen=True)
class S3Server:
    """The address of a running server."""

    url: str

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

    def asked(self, since: int = 0) -> list[Request]:
        """Return the requests so far, from a number on."""
        requests = json.loads(self._call("requests"))
        return [Request(*fields) for fields in requests[since:]]

    def fail(self, *faults: Fault) -> None:
        """Answer with these faults, and no longer with those of before."""
        self._call("faults", json.dumps([asdict(fault) for fault in faults]).encode())

    def faults_left(self) -> int:
        """Return how many faults no request has met yet."""
        return int(self._call("left"))

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        import boto3  # noqa: PLC0415 - comes with moto

        keys = {"aws_access_key_id": "somebody", "aws_secret_access_key": "hush-hush", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=self.url, **keys).create_bucket(Bucket=name)

    def _call(self, command: str, body: bytes | None = None) -> bytes:
        with urlopen(Call(f"{self.url}{CONTROL}{command}", data=body), timeout=60) as answer:
            return bytes(answer.read())


STRICT = "versitygw"
"""The program of the stricter server."""
_LOGGED = re.compile(r"\] \S+ (?P<key>\S+) \S+ s3_(?P<action>\w+) .*? (?P<target>/\S*) \d{3} ")
"""A line of its log: after the time the client, its key, a number, the action, the object and what was asked for.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/LogFormat.html
"""
_METHODS = {"Get": "GET", "List": "GET", "Head": "HEAD", "Put": "PUT", "Upload": "PUT", "Delete": "DELETE"}
"""Methods by the beginning of an action; others are POST."""


@dataclass(frozen=True)
class StrictS3Server(S3Server):
    """A versitygw, which logs its requests and has no faults."""

    log: Path

    def asked(self, since: int = 0) -> list[Request]:
        """Return the requests so far, from a number on."""
        requests = [_logged_request(match) for match in _LOGGED.finditer(self.log.read_text())]
        return requests[since:]


def _logged_request(match: re.Match[str]) -> Request:
    action = match["action"]
    verb = re.match("[A-Z][a-z]+", action)
    method = "POST"
    # Many objects are deleted by one POST.
    if verb and action != "DeleteObjects":
        method = _METHODS.get(verb[0], "POST")
    target = urlsplit(match["target"])
    return Request(method, unquote(target.path), target.query, match["key"])


@contextmanager
def s3_server(*buckets: str, google: bool = False) -> Iterator[S3Server]:
    """Run a server with empty buckets; with `google` it takes conditions as Google's storage has them."""
    command = [sys.executable, "-m", "benchmarks.s3_server"]
    if google:
        command.append("--google")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            server = S3Server(process.stdout.readline().strip())
            for bucket in buckets:
                server.make_bucket(bucket)
            yield server
        finally:
            process.kill()


@contextmanager
def strict_s3_server(*buckets: str) -> Iterator[StrictS3Server]:
    """Run versitygw with empty buckets: it takes S3's rules seriously."""
    (port,) = free_ports(1)
    keys = {"ROOT_ACCESS_KEY": "somebody", "ROOT_SECRET_KEY": "hush-hush"}
    with TemporaryDirectory() as folder, TemporaryDirectory() as logs:
        log = Path(logs, "requests.log")
        command = [STRICT, "--port", f"127.0.0.1:{port}", "--quiet", "--access-log", str(log), "posix", folder]
        with subprocess.Popen(command, env={**os.environ, **keys}) as process:
            try:
                server = StrictS3Server(f"http://127.0.0.1:{port}", log)
                wait_for_port(port)
                for bucket in buckets:
                    server.make_bucket(bucket)
                yield server
            finally:
                process.kill()


def wait_for_port(port: int) -> None:
    """Return when something listens on a port of this machine; raise TimeoutError after 30 seconds or more."""
    for _ in range(300):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port}")


class _Application:
    """moto, behind the faults."""

    def __init__(self, moto: Callable[..., Any]) -> None:
        self.moto = moto
        self.lock = threading.Lock()
        self.requests: list[tuple[str, ...]] = []
        self.faults: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ["PATH_INFO"]
        if path.startswith(CONTROL):
            body = self._control(path.removeprefix(CONTROL), environ)
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        method = environ["REQUEST_METHOD"]
        _, _, credential = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")
        key, _, _ = credential.partition("/")
        with self.lock:
            self.requests.append((method, path, environ.get("QUERY_STRING", ""), key))
            fault = self._take_fault(method, path)
        if fault is None:
            return self.moto(environ, start_response)
        if fault["unconditional"]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            return self.moto(environ, start_response)
        time.sleep(fault["seconds"])
        if fault["done"]:
            b"".join(self.moto(environ, lambda *_: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if not fault["answer"]:
            # The client sees a connection that is cut before the answer.
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        start_response(fault["answer"], [("Content-Length", "0")])
        return []

    def _take_fault(self, method: str, path: str) -> dict[str, Any] | None:
        for fault in self.faults:
            if fault["times"] and fault["method"] in (method, "*") and fault["contains"] in path:
                fault["times"] -= 1
                return fault
        return None

    def _control(self, command: str, environ: dict[str, Any]) -> bytes:
        """Do a command of `S3Server`; return the requests, or the number of faults that are left."""
        if command == "faults":
            self.faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        if command == "requests":
            return json.dumps(self.requests).encode()
        return str(sum(fault["times"] for fault in self.faults)).encode()


class _Google:
    """moto as Google's XML API is: that of S3, but for generations in place of ETags in conditions.

    https://cloud.google.com/storage/docs/xml-api/reference-headers
    """

    def __init__(self, moto: Callable[..., Any]) -> None:
        self.moto = moto
        self.tags: dict[str, str] = {}
        """ETags by generation."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        # Google's is a token, of which moto knows none.
        scope = "Credential=somebody/20260101/us-east-1/s3/aws4_request"
        environ["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=none"
        required_generation = environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None)
        if required_generation == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        elif required_generation is not None:
            environ["HTTP_IF_MATCH"] = self.tags.get(required_generation, '"none"')

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            tag = next((value for name, value in headers if name.lower() == "etag"), None)
            if tag is not None:
                generation = str(int(tag.strip('"')[:12], 16))
                self.tags[generation] = tag
                headers = [*headers, ("x-goog-generation", generation)]
            return start_response(status, headers, *more)

        return self.moto(environ, start)


def main() -> None:
    """Run the server; print its address."""
    from moto.server import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415 - of tests only
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto = DomainDispatcherApplication(create_backend_app)
    store = _Google(moto) if "--google" in sys.argv else moto
    application = _Application(store)
    running = make_server("127.0.0.1", 0, application, threaded=True)
    sys.stdout.write(f"http://127.0.0.1:{running.server_port}\n")
    sys.stdout.flush()
    threading.Thread(target=running.serve_forever, daemon=True).start()
    sys.stdin.read()  # until the process ends that began this one


if __name__ == "__main__":
    main()
