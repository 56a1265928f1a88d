"""A schema registry on loopback that misbehaves on demand: a real HTTP server with few schemas and many faults."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import NAMESPACE_OID, UUID, uuid5

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

ID, VERSIONS_OF_ID, GUIDS = "id", "versions of id", "guids"
MISSING = {"subject": 40401, "version": 40402, "schema": 40403}


@dataclass(frozen=True)
class Seen:
    """A request that arrived; `path` is as it was on the wire."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Book:
    """Hold what is registered, as a registry would serve it."""

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, dict[int, int]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    def add(
        self, subject: str, text: str, kind: str | None = "PROTOBUF", references: Sequence[tuple[str, str, int]] = ()
    ) -> int:
        """Register a version of a subject; the same schema has the same id in every subject."""
        schema: dict[str, Any] = {"schema": text}
        schema |= {"schemaType": kind} if kind else {}
        if references:
            keys = ("name", "subject", "version")
            schema["references"] = [dict(zip(keys, reference, strict=True)) for reference in references]
        known = [number for number, one in self.schemas.items() if one == schema]
        number = known[0] if known else len(self.schemas) + 1
        self.schemas[number] = schema
        versions = self.subjects.setdefault(subject, {})
        versions[len(versions) + 1] = number
        return number

    def guid(self, number: int) -> UUID:
        """Return the GUID of an id: as in Confluent's registry it depends on the schema alone."""
        return uuid5(NAMESPACE_OID, json.dumps(self.schemas[number]))


class FaultyRegistry:
    """Serve a book of schemas in a `with` block; `contexts` have books of their own, with ids from 1 on.

    `fault` is one of: "" (none), "silent" (never answers), "drip" (a byte now and then, for ever), "endless" (as much
    as anybody reads), "garbage" (200, HTML), "wrong" (200, JSON of another kind), "cut" (less than announced), "hangup"
    (closes at once), "redirect" (to `elsewhere`), or a status such as "503". `times` limits it to so many requests.
    """

    def __init__(self, certificate: Path | None = None, *, ask_for_certificate: bool = False) -> None:
        self.book = Book()
        self.contexts: dict[str, Book] = {}
        """Context (`.games`) -> its book; subjects there begin with `:.games:`."""
        self.fault = ""
        self.times = -1
        self.refused: dict[str, int] = {}
        """Beginning of a path -> the status that its requests get, in a body without a registry's code."""
        self.delay = 0.0
        """Seconds before each answer."""
        self.elsewhere = ""
        self.repeats = ""
        """Text that error bodies repeat."""
        self.logins: set[str] | None = None
        """Authorization headers that are let in; None lets everybody in."""
        self.granted: list[dict[str, Any]] = []
        """Answers of the token server, used up from the front; the last one stays."""
        self.lacks: set[str] = set()
        """Routes that this registry does not have: ID, VERSIONS_OF_ID, GUIDS."""
        self.context = "."
        """The context that this registry says its ids are of."""
        self.seen: list[Seen] = []
        self.connections: set[socket.socket] = set()
        self.gathering: threading.Barrier | None = None
        """Where requests wait for each other before they are answered."""
        self.at_once: list[int] = [0]
        """How many requests were answered at the same time, at the start of each."""
        self._counting = threading.Lock()
        self._inside = 0
        self._ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if ask_for_certificate:
                context.load_verify_locations(certificate)
                context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> FaultyRegistry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def book_of(self, subject: str) -> Book:
        """Return the book of a subject's context, as a registry finds it by the qualified name."""
        match = re.match(r":([^:]*):", subject)
        return self.contexts.get(match[1], Book()) if match else self.book

    @property
    def paths(self) -> list[str]:
        return [seen.path for seen in self.seen]

    def stop(self) -> None:
        """Take the registry away for good: open connections end, new ones are refused."""
        if not self._ended.is_set():
            self._ended.set()
            self._server.shutdown()
            self._server.server_close()
            for connection in list(self.connections):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def fails(self, fault: str, times: int = -1) -> None:
        """Misbehave from now on, or for so many requests."""
        self.fault, self.times = fault, times

    def enter(self, more: int) -> None:
        """Count who is inside."""
        with self._counting:
            self._inside += more
            self.at_once.append(self._inside)

    def next_fault(self) -> str:
        """Return how to treat a request."""
        if self.times == 0:
            self.fault = ""
        self.times -= 1
        return self.fault

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the registry; say whether it came."""
        return self._ended.wait(seconds)


def _handler(registry: FaultyRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.registry = registry
    return Handler


class _Handler(BaseHTTPRequestHandler):
    registry: FaultyRegistry
    book: Book
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, or the kernel waits 40 ms between the two

    def setup(self) -> None:
        super().setup()
        self.registry.connections.add(self.connection)

    def finish(self) -> None:
        self.registry.connections.discard(self.connection)
        with suppress(OSError):  # the other side may be gone
            super().finish()

    def do_GET(self) -> None:
        self.take()

    def do_POST(self) -> None:
        self.take()

    def do_PUT(self) -> None:
        self.take()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name is inherited
        """Leave the terminal to the tests."""

    def take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.registry.seen.append(Seen(self.command, self.path, dict(self.headers), body))
        if self.path == "/token":
            self.grant()
            return
        self.registry.enter(1)
        try:
            if self.registry.gathering is not None:
                self.registry.gathering.wait(30)
            self.reply(body)
        finally:
            self.registry.enter(-1)

    def reply(self, body: bytes) -> None:
        self.registry.wait(self.registry.delay)
        fault = self.registry.next_fault()
        refused = [status for path, status in self.registry.refused.items() if self.path.startswith(path)]
        if fault:
            self.misbehave(fault)
        elif refused:
            self.answer(refused[0], b"<html>not for you</html>")
        elif self.registry.logins is not None and self.headers.get("Authorization") not in self.registry.logins:
            self.answer(401, {"error_code": 40101, "message": f"Unauthorized {self.registry.repeats}"})
        else:
            self.answer(*self.found(body))

    def grant(self) -> None:
        granted = self.registry.granted
        told = granted.pop(0) if len(granted) > 1 else granted[0]
        self.answer(int(told.get("status", 200)), told)

    def found(self, body: bytes) -> tuple[int, Any]:
        """Return status and content for a route of a registry."""
        parts = urlsplit(self.path)
        route = [unquote(part) for part in parts.path.strip("/").split("/")]
        query = parse_qs(parts.query)
        deleted = query.get("deleted") == ["true"]
        # The subject in the path, or else the parameter, names the context that an id is of.
        subject_of_path = route[1] if route[0] == "subjects" and len(route) > 1 else ""
        self.book = self.registry.book_of(subject_of_path or query.get("subject", [""])[0])
        told: tuple[int, Any] = 404, {"error": "no route"}
        match self.command, *route:
            case "GET", "schemas", "ids", number if ID not in self.registry.lacks:
                told = self.schema(int(number))
            case "GET", "schemas", "ids", number, "versions" if VERSIONS_OF_ID not in self.registry.lacks:
                told = self.pairs(int(number), deleted)
            case "GET", "schemas", "guids", guid, "ids" if GUIDS not in self.registry.lacks:
                told = self.ids(guid)
            case "GET", "subjects", subject, "versions":
                told = self.versions(subject)
            case "GET", "subjects", subject, "versions", version:
                told = self.version(subject, int(version), deleted)
            case "POST", "subjects", subject, "versions":
                told = self.register(subject, json.loads(body))
            case "POST", "subjects", subject:
                told = self.lookup(subject, json.loads(body))
            case "PUT", "config", _:
                told = 200, json.loads(body)
        return told

    def schema(self, number: int) -> tuple[int, Any]:
        schema = self.book.schemas.get(number)
        return _missing("schema") if schema is None else (200, schema)

    def pairs(self, number: int, deleted: bool) -> tuple[int, Any]:
        book = self.book
        found = [
            {"subject": subject, "version": version}
            for subject, versions in book.subjects.items()
            for version, known in versions.items()
            if known == number and (deleted or subject not in book.deleted)
        ]
        return (200, found) if number in book.schemas else _missing("schema")

    def ids(self, guid: str) -> tuple[int, Any]:
        told = []
        for context, book in ((self.registry.context, self.registry.book), *self.registry.contexts.items()):
            told += [{"context": context, "id": one} for one in book.schemas if str(book.guid(one)) == guid]
        return 200, told

    def versions(self, subject: str) -> tuple[int, Any]:
        book = self.book
        known = subject in book.subjects and subject not in book.deleted
        return (200, list(book.subjects[subject])) if known else _missing("subject")

    def version(self, subject: str, version: int, deleted: bool) -> tuple[int, Any]:
        book = self.book
        if subject not in book.subjects or (subject in book.deleted and not deleted):
            return _missing("subject")
        number = book.subjects[subject].get(version)
        if number is None:
            return _missing("version")
        return 200, {"subject": subject, "version": version, "id": number, **book.schemas[number]}

    def register(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body["schema"] == "incompatible":
            return 409, {"error_code": 409, "message": "incompatible: field 3 changed"}
        references = [(one["name"], one["subject"], one["version"]) for one in body["references"]]
        return 200, {"id": self.book.add(subject, body["schema"], body["schemaType"], references)}

    def lookup(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        book = self.book
        if subject not in book.subjects:
            return _missing("subject")
        for version, number in book.subjects[subject].items():
            if book.schemas[number]["schema"] == body["schema"]:
                return 200, {"subject": subject, "version": version, "id": number, **book.schemas[number]}
        return _missing("schema")

    def misbehave(self, fault: str) -> None:
        self.close_connection = True
        match fault:
            case "silent":
                self.registry.wait()
            case "hangup":
                pass
            case "drip" | "endless":
                self.pour(fault)
            case "cut":
                self.start(200, length=1000)
                self.wfile.write(b'{"schema": "')
            case "garbage":
                self.answer(200, b"<html>welcome to the hotel's network</html>")
            case "wrong":
                self.answer(200, {"schemas": 5})
            case "redirect":
                self.start(302, length=0, location=self.registry.elsewhere + self.path)
            case _:
                self.answer(int(fault), f"<html>{self.registry.repeats} is what I got</html>".encode())

    def pour(self, fault: str) -> None:
        """Send a body that does not end before the reader or the registry does."""
        self.start(200, length=None)
        block = b" " if fault == "drip" else b" " * (1 << 20)
        with suppress(OSError):  # the reader had enough
            while not self.registry.wait(0.01 if fault == "drip" else 0):
                self.wfile.write(block)
                self.wfile.flush()

    def answer(self, status: int, content: Any) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.start(status, length=len(body))
        self.wfile.write(body)

    def start(self, status: int, *, length: int | None, location: str = "") -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        if location:
            self.send_header("Location", location)
        self.end_headers()


def _missing(what: str) -> tuple[int, Any]:
    return 404, {"error_code": MISSING[what], "message": f"{what} not found"}
