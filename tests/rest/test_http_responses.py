"""Answers of every kind, whole and broken, as the HTTP client reads them."""

from __future__ import annotations

import gzip
import socket
import zlib
from typing import Any

import pytest

from router_rest.http_client.response import InDoubt
from tests.rest.calls import MOST, ask, hooked, post
from tests.rest.scripted import PATIENCE, Scripted, Talk, polite, replies, then_waits


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc", id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", id="nothing"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nab\r\n1\r\nc\r\n0\r\nX-Status: bad\r\n\r\n",
            200,
            b"abc",
            id="chunks and a trailer",
        ),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="no content"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", id="not modified"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\n"
            b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nwait",
            429,
            b"wait",
            id="interim answers",
        ),
    ],
)
def test_the_end_of_an_answer_is_found(server: Scripted, data: bytes, status: int, body: bytes) -> None:
    server.act = then_waits(data)

    answers = ask(post(server.url), post(server.url))

    assert [(one.status, one.body, one.whole) for one in answers] == [(status, body, True)] * 2
    assert server.accepted == 1
    assert not {"x", "x-status"} & set(answers[0].headers)


def test_an_answer_may_come_in_single_bytes(server: Scripted) -> None:
    data = b"HTTP/1.1 200 OK\r\nX-Name: value\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"

    def bytewise(talk: Talk) -> None:
        talk.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        talk.request()
        for sign in data:
            talk.send(bytes([sign]))
        talk.wait()

    server.act = bytewise
    (answer,) = ask(post(server.url))

    assert (answer.body, answer.headers["x-name"], answer.whole) == (b"ab", "value", True)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"], ids=["HTTP/1.1", "HTTP/1.0"])
def test_a_body_may_end_with_its_connection(server: Scripted, head: bytes) -> None:
    server.act = replies(head, b"abc")

    answers = ask(post(server.url), post(server.url))

    assert [(answer.body, answer.whole) for answer in answers] == [(b"abc", True)] * 2
    assert server.accepted == 2


def test_the_answer_to_head_has_no_body(server: Scripted) -> None:
    server.act = then_waits(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")

    answers = ask(post(server.url, None, "HEAD"), post(server.url, None, "HEAD"), read=5)

    assert [(answer.status, answer.body, answer.whole) for answer in answers] == [(200, b"", True)] * 2
    assert (server.seen[0].line, server.accepted) == ("HEAD /events HTTP/1.1", 1)


def test_a_body_is_read_up_to_a_limit(server: Scripted) -> None:
    def long(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            talk.answer(b"a" * int(seen.body))

    server.act = long
    just, more, after = ask(*[post(server.url, str(size).encode()) for size in (MOST, MOST + 1, 1)])

    assert (len(just.body), just.whole) == (MOST, True)
    assert (more.status, len(more.body), more.whole) == (200, MOST, False)
    assert after.body == b"a"


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 1000000000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n", b"\r\n"],
    ids=["length", "chunks", "no end"],
)
@pytest.mark.parametrize("prepare", [post, hooked])
def test_a_body_without_an_end_does_not_hold_a_call(server: Scripted, head: bytes, prepare: Any) -> None:
    def endless(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\n" + head)
        talk.pour(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")

    server.act = endless
    (answer,) = ask(prepare(server.url))

    assert (answer.status, len(answer.body), answer.whole) == (200, MOST, False)


def test_chunks_that_carry_next_to_nothing_end_as_well(server: Scripted) -> None:
    def padded(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;")
        talk.pour(b"a" * 0x10000)

    server.act = padded
    (answer,) = ask(post(server.url), total=1)

    assert (answer.status, answer.whole) == (200, False)


@pytest.mark.parametrize("prepare", [post, hooked])
def test_a_body_that_trickles_ends_with_the_time_of_the_call(server: Scripted, prepare: Any) -> None:
    """The status is known: sending it again would be a second delivery."""

    def trickle(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        talk.pour(b"a", pause=0.02)

    server.act = trickle
    (answer,) = ask(prepare(server.url), total=0.5)

    assert (answer.status, answer.whole) == (200, False)
    assert set(answer.body) == {ord("a")}


@pytest.mark.parametrize("piece", [b"X: 1\r\n", b"a", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["headers", "one", "100"])
def test_a_head_that_trickles_ends_with_the_time_of_the_call(server: Scripted, piece: bytes) -> None:
    def trickle(talk: Talk) -> None:
        talk.request()
        talk.send(b"" if piece.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\nX-Long: ")
        talk.pour(piece, pause=0.02)

    server.act = trickle
    (error,) = ask(post(server.url), total=0.5)

    assert isinstance(error, InDoubt)
    assert error.timeout


@pytest.mark.parametrize("piece", [b"X: 1\r\n", b"a", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["headers", "one", "100"])
def test_a_head_without_an_end_fills_no_memory(server: Scripted, piece: bytes) -> None:
    def endless(talk: Talk) -> None:
        talk.request()
        talk.send(b"" if piece.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\nX-Long: ")
        talk.pour(piece * 1000)

    server.act = endless
    interim = piece.startswith(b"HTTP")
    (error,) = ask(post(server.url), **({"total": 1} if interim else {}))

    assert isinstance(error, InDoubt)
    assert error.timeout == interim  # each is a head with an end: such a call ends with its time


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"220 smtp.example.com ESMTP\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 abc OK\r\n\r\n", id="no status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", id="cut body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Na", id="cut head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="no chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", id="no last chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
        pytest.param(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nabc", id="another way on"
        ),
    ],
)
def test_a_broken_answer_leaves_a_call_in_doubt(server: Scripted, data: bytes) -> None:
    server.act = replies(data)

    (error,) = ask(post(server.url))

    assert isinstance(error, InDoubt)
    assert not error.timeout
    assert len(server.seen) == 1


def test_a_redirect_is_an_answer(server: Scripted) -> None:
    """To follow it would take a login, and events, to wherever a server says."""
    server.act = then_waits(
        f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {server.url}/on\r\nContent-Length: 0\r\n\r\n".encode()
    )

    (answer,) = ask(post(server.url))

    assert (answer.status, answer.headers["location"]) == (307, f"{server.url}/on")
    assert len(server.seen) == 1


def test_an_answer_before_the_request_is_out_is_taken(server: Scripted) -> None:
    """A server may refuse a call by its size, and not read on: its verdict says that the call is to be split."""

    def early(talk: Talk) -> None:
        if talk.number:
            polite()(talk)
        talk.socket.recv(1000)
        talk.answer(b"", "413 Content Too Large")
        server.ended.wait(PATIENCE)

    server.act = early
    refused, taken = ask(post(server.url, b"a" * (16 << 20)), post(server.url))

    assert (refused.status, taken.status) == (413, 200)
    assert server.accepted == 2  # what is left of the first would be read before the second


COMPRESSED = {
    "gzip": gzip.compress(b"abc"),
    "x-gzip": gzip.compress(b"abc"),
    "deflate": zlib.compress(b"abc"),
    "Deflate": zlib.compress(b"abc")[2:-4],
    "identity": b"abc",
}


@pytest.mark.parametrize("encoding", COMPRESSED)
def test_a_compressed_answer_is_readable(server: Scripted, encoding: str) -> None:
    server.act = polite(COMPRESSED[encoding], f"Content-Encoding: {encoding}")

    (answer,) = ask(post(server.url, Accept_Encoding="gzip, deflate"))

    assert (answer.body, answer.whole) == (b"abc", True)


@pytest.mark.parametrize(
    ("body", "size"),
    [(gzip.compress(b"a" * 300_000), MOST), (gzip.compress(b"abc")[:-4], 3), (b"abc", 0)],
    ids=["bomb", "cut", "no gzip"],
)
def test_a_body_that_cannot_be_unpacked_as_a_whole_is_marked(server: Scripted, body: bytes, size: int) -> None:
    server.act = polite(body, "Content-Encoding: gzip")

    (answer,) = ask(post(server.url))

    assert (answer.status, len(answer.body), answer.whole) == (200, size, False)
