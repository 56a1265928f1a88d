"""Answers of servers as they are met, good and bad, byte by byte: `ANSWERS` has what is done for one request, by name.

Each function gets the server's side of a connection, with the request read, and returns whether the connection goes on.
"""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from typing import TYPE_CHECKING

from tests.rest.scripted import Seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rest.scripted import Talk

    Act = Callable[[Talk], bool]

END = b"\r\n\r\n"
POURED = 2.0
"""Seconds after which a server that would go on for ever hangs up: a client with an end of its own is gone by then."""


def says(head: bytes, body: bytes = b"", *, close: bool = False) -> Act:
    """Send a head, whose lines are given with LF, and a body."""

    def act(talk: Talk) -> bool:
        talk.send(head.replace(b"\n", b"\r\n") + END + body)
        return not close

    return act


def sends(data: bytes, *, close: bool = False) -> Act:
    """Send bytes as they are."""

    def act(talk: Talk) -> bool:
        talk.send(data)
        return not close

    return act


def hangs_up(talk: Talk) -> bool:
    """Close without a byte."""
    return False


def resets(talk: Talk) -> bool:
    """Close with RST."""
    talk.reset()
    return False


def silent(talk: Talk) -> bool:
    """Say nothing until the client hangs up."""
    talk.wait()
    return False


def pours(head: bytes, piece: bytes, pause: float = 0.0) -> Act:
    """Send a head, and then the same again and again."""

    def act(talk: Talk) -> bool:
        talk.send(head)
        ends = time.monotonic() + POURED
        while time.monotonic() < ends and not talk.server.ended.wait(pause):
            talk.send(piece)
        return False

    return act


def half_closes(talk: Talk) -> bool:
    """Answer, and say that no more comes; read on."""
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    talk.socket.shutdown(socket.SHUT_WR)
    talk.wait()
    return False


def stops_reading(talk: Talk) -> bool:
    """Take nothing more from the client, and answer."""
    talk.socket.shutdown(socket.SHUT_RD)
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    return False


def status(code: int, reason: str, *headers: str) -> Act:
    """Answer with a status."""

    def act(talk: Talk) -> bool:
        talk.answer(b"{}", f"{code} {reason}", *headers)
        return True

    return act


OK = b"HTTP/1.1 200 OK\n"
TWO = b"Content-Length: 2"
CHUNKED = b"Transfer-Encoding: chunked"
PACKED = gzip.compress(b"{}")
HEADLESS = zlib.compress(b"{}")[2:-4]
BOMB = gzip.compress(bytes(16 << 20))

FRAMED: dict[str, Act] = {
    "a length": says(OK + TWO, b"ok"),
    "nothing": says(OK + b"Content-Length: 0"),
    "chunks": says(OK + CHUNKED, b"2\r\nok\r\n0\r\n\r\n"),
    "chunks and a trailer": says(OK + CHUNKED, b"2\r\nok\r\n0\r\nX-Status: bad\r\n\r\n"),
    "chunks with extensions": says(OK + CHUNKED, b'2;a="b"\r\nok\r\n0;c\r\n\r\n'),
    "chunks of one byte": says(OK + CHUNKED, b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n"),
    "HTTP/1.0 with a length": says(b"HTTP/1.0 200 OK\n" + TWO, b"ok", close=True),
    "HTTP/1.0 until the end": says(b"HTTP/1.0 200 OK", b"ok", close=True),
    "HTTP/1.1 until the end": says(OK.strip(), b"ok", close=True),
    "Connection: close": says(OK + TWO + b"\nConnection: close", b"ok", close=True),
    "no reason phrase": says(b"HTTP/1.1 200\n" + TWO, b"ok"),
    "100, then 200": sends(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    "103 with links, then 200": sends(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    ),
    "102 three times, then 200": sends(
        b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    ),
    "a cookie": says(OK + TWO + b"\nSet-Cookie: a=b", b"ok"),
    "gzip": says(OK + b"Content-Encoding: gzip\nContent-Length: %d" % len(PACKED), PACKED),
    "deflate without its header": says(
        OK + b"Content-Encoding: deflate\nContent-Length: %d" % len(HEADLESS),
        HEADLESS,
    ),
    "gzip that is none": says(OK + b"Content-Encoding: gzip\n" + TWO, b"ok"),
    "gzip that breaks off": says(OK + b"Content-Encoding: gzip\nContent-Length: 10", PACKED[:10]),
    "an unknown encoding": says(OK + b"Content-Encoding: br\n" + TWO, b"ok"),
    "a gzip bomb": says(OK + b"Content-Encoding: gzip\nContent-Length: %d" % len(BOMB), BOMB),
    "300 000 bytes": says(OK + b"Content-Length: 300000", b"a" * 300_000),
    "half closed after the answer": half_closes,
    "closed for reading, then an answer": stops_reading,
}

BROKEN: dict[str, Act] = {
    "lines that end with LF": sends(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok"),
    "a folded header": says(OK + b"X-A: a\n b\n" + TWO, b"ok"),
    "two equal lengths": says(OK + TWO + b"\n" + TWO, b"ok"),
    "two different lengths": says(OK + TWO + b"\nContent-Length: 3", b"ok"),
    "a list of lengths": says(OK + b"Content-Length: 2, 2", b"ok"),
    "a length and chunks": says(OK + TWO + b"\n" + CHUNKED, b"2\r\nok\r\n0\r\n\r\n"),
    "a negative length": says(OK + b"Content-Length: -2", b"ok"),
    "a length with a plus": says(OK + b"Content-Length: +2", b"ok"),
    "a length in hexadecimal digits": says(OK + b"Content-Length: 0x2", b"ok"),
    "a length that is a word": says(OK + b"Content-Length: two", b"ok"),
    "an unknown transfer coding": says(OK + b"Transfer-Encoding: rot13", b"ok", close=True),
    "gzip as transfer coding": says(OK + b"Transfer-Encoding: gzip, chunked", b"2\r\nok\r\n0\r\n\r\n"),
    "a chunk size that is none": says(OK + CHUNKED, b"zz\r\nok\r\n0\r\n\r\n", close=True),
    "a chunk that is longer than it says": says(OK + CHUNKED, b"1\r\nok\r\n0\r\n\r\n", close=True),
    "no last chunk": says(OK + CHUNKED, b"2\r\nok\r\n", close=True),
    "a body that breaks off": says(OK + b"Content-Length: 10", b"ok", close=True),
    "a head that breaks off": sends(b"HTTP/1.1 200 OK\r\nContent-Le", close=True),
    "more bytes than the length": says(OK + TWO, b"ok and more"),
    "two answers": says(OK + TWO, b"okHTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
    "empty lines first": sends(b"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    "status 99": says(b"HTTP/1.1 99 Low\n" + TWO, b"ok"),
    "status 600": says(b"HTTP/1.1 600 High\n" + TWO, b"ok"),
    "status 1000": says(b"HTTP/1.1 1000 High\n" + TWO, b"ok"),
    "a status that is a word": says(b"HTTP/1.1 OK\n" + TWO, b"ok"),
    "HTTP/3.0": says(b"HTTP/3.0 200 OK\n" + TWO, b"ok"),
    "HTTP/0.9": sends(b"<html>ok</html>", close=True),
    "another protocol": sends(b"220 smtp.test ESMTP\r\n", close=True),
    "a TLS alert": sends(b"\x15\x03\x03\x00\x02\x02\x28", close=True),
    "a header without a colon": says(OK + b"X-A\n" + TWO, b"ok"),
    "a blank before the colon": says(OK + b"X-A : a\n" + TWO, b"ok"),
    "a header without a name": says(OK + b": a\n" + TWO, b"ok"),
    "NUL in a header": says(OK + b"X-A: a\x00b\n" + TWO, b"ok"),
    "a header in Latin-1": says(OK + b"X-A: \xe4\n" + TWO, b"ok"),
    "a header of 100 000 bytes": says(OK + b"X-A: " + b"a" * 100_000 + b"\n" + TWO, b"ok"),
    "1000 headers": says(OK + b"X-A: a\n" * 1000 + TWO, b"ok"),
    "101, another protocol from here on": says(b"HTTP/1.1 101 Switching\nUpgrade: x\nConnection: Upgrade", b"abc"),
    "closed without a byte": hangs_up,
    "a reset": resets,
    "silence": silent,
    "an endless body": pours(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", b"a" * 0x10000),
    "a body that drips": pours(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"a", 0.05),
    "a head that drips": pours(b"HTTP/1.1 200 OK\r\nX-A: ", b"a", 0.05),
    "100 again and again": pours(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
}

STATUSES: dict[str, Act] = {
    f"{code}": status(code, reason, *headers)
    for code, reason, *headers in (
        (201, "Created"),
        (202, "Accepted"),
        (207, "Multi-Status"),
        (302, "Found", "Location: http://elsewhere.test/"),
        (307, "Temporary Redirect", "Location: /events"),
        (400, "Bad Request"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "Not Found"),
        (405, "Method Not Allowed"),
        (408, "Request Timeout"),
        (409, "Conflict"),
        (410, "Gone"),
        (413, "Content Too Large"),
        (415, "Unsupported Media Type"),
        (422, "Unprocessable Content"),
        (425, "Too Early"),
        (429, "Too Many Requests"),
        (451, "Unavailable For Legal Reasons"),
        (500, "Oops"),
        (501, "Not Implemented"),
        (502, "Bad Gateway"),
        (503, "Service Unavailable"),
        (504, "Gateway Timeout"),
        (507, "Insufficient Storage"),
    )
}
STATUSES |= {
    "204": says(b"HTTP/1.1 204 No Content"),
    "304": says(b"HTTP/1.1 304 Not Modified"),
    "429 and Retry-After: 15": status(429, "Too Many Requests", "Retry-After: 15"),
}


def says_json(text: bytes) -> Act:
    """Answer 200 with JSON."""
    return says(OK + b"Content-Type: application/json\nContent-Length: %d" % len(text), text)


PRESETS: dict[str, tuple[str, Act]] = {
    '`{"ok": false}`, `preset: slack`': ("slack", says_json(b'{"ok": false, "error": "channel_not_found"}')),
    "an error of the server, `preset: slack`": ("slack", says_json(b'{"ok": false, "error": "internal_error"}')),
    "GraphQL `errors`, `preset: graphql`": ("graphql", says_json(b'{"data": null, "errors": [{"message": "no"}]}')),
    "an error of the server, `preset: graphql`": (
        "graphql",
        says_json(b'{"errors": [{"message": "oops", "extensions": {"code": "INTERNAL_SERVER_ERROR"}}]}'),
    ),
}
"""Answers that say in the body that a call was not taken, with the preset that knows."""
SPOKEN: dict[str, Act] = {
    '`{"ok": false}` without a rule': says_json(b'{"ok": false, "error": "channel_not_found"}'),
    "GraphQL `errors` without a rule": says_json(b'{"data": null, "errors": [{"message": "no"}]}'),
}
SPOKEN |= {name: act for name, (_, act) in PRESETS.items()}


def before_the_body(line: str, *, close: bool) -> Act:
    """Answer while the body is unread; read it then, or close, which the client sees as a reset."""

    def act(talk: Talk) -> bool:
        talk.answer(b"{}", line)
        if close:
            talk.server.seen.append(Seen(talk.number, "", {}, talk.peek()))
        return not close and talk.request() is not None

    return act


EARLY: dict[str, Act] = {
    "200 before the body is read": before_the_body("200 OK", close=False),
    "200 before the body is read, then closed": before_the_body("200 OK", close=True),
    "413 before the body is read, then closed": before_the_body("413 Content Too Large", close=True),
}
"""These get the connection with the request unread."""
ANSWERS: dict[str, Act] = FRAMED | BROKEN | EARLY | STATUSES | SPOKEN
QUICK = (
    "chunks and a trailer",
    "two different lengths",
    "a reset",
    "409",
    "500",
    "gzip that is none",
    "413 before the body is read, then closed",
    "an error of the server, `preset: slack`",
)
"""Those that the normal suite plays."""
