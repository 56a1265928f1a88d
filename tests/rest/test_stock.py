"""Calls that go the way of `requests`: by proxies, by adapters and with hooks of others."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

from router import StartError
from router_rest.genuine import real_stack
from router_rest.wire import Answer, InDoubt, Unsent, Wire
from tests.rest.calls import MOST, OPTIONS, ask, outcome, post
from tests.rest.scripted import PATIENCE, Scripted, Talk, polite, silent, then_waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rest.conftest import Certificates

HUSH = "hush-hush"


class Marked(HTTPAdapter):
    """Be an adapter of somebody else, who tries a few times himself."""

    def __init__(self) -> None:
        super().__init__(max_retries=urllib3.Retry(5, allowed_methods=None, status_forcelist=[503]))

    def add_headers(self, request: requests.PreparedRequest, **arguments: Any) -> None:
        request.headers["X-Marked"] = "yes"


def forward(talk: Talk) -> None:
    """Be a proxy: a tunnel where one is asked for, else a server that answers for others."""
    seen = talk.request()
    if seen is None:
        return
    if not seen.line.startswith("CONNECT "):
        talk.answer(b"forwarded")
        return
    host, port = seen.line.split()[1].rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE) as onward:
        talk.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        back = threading.Thread(target=_pipe, args=(onward, talk.socket), daemon=True)
        back.start()
        _pipe(talk.socket, onward)
        back.join(PATIENCE)


def _pipe(source: socket.socket, target: socket.socket) -> None:
    try:
        while block := source.recv(1 << 16):
            target.sendall(block)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture
def proxy() -> Iterator[Scripted]:
    with Scripted(forward) as running:
        yield running


def through(proxy: Scripted) -> dict[str, str]:
    return dict.fromkeys(("http", "https"), f"http://me:{HUSH}@127.0.0.1:{proxy.port}")


def test_a_proxy_is_asked(proxy: Scripted) -> None:
    (answer,) = ask(post("http://api.invalid/events"), proxies=through(proxy))

    assert (answer.status, answer.body) == (200, b"forwarded")
    assert proxy.seen[0].line == "POST http://api.invalid/events HTTP/1.1"
    assert proxy.seen[0].headers["proxy-authorization"].startswith("Basic ")


def test_a_proxy_does_not_see_what_goes_to_a_server_with_tls(proxy: Scripted, certificates: Certificates) -> None:
    from tests.rest.test_wire_tls import context

    with Scripted(context=context(certificates.here)) as server:
        calls = [post(server.url, Authorization=HUSH)] * 3
        answers = ask(*calls, proxies=through(proxy), verify=certificates.here)

        assert [answer.status for answer in answers] == [200] * 3
        assert [seen.headers["authorization"] for seen in server.seen] == [HUSH] * 3
        assert (proxy.accepted, server.accepted) == (1, 1)
    assert [seen.line.rpartition(" ")[0] for seen in proxy.seen] == [f"CONNECT 127.0.0.1:{server.port}"]
    assert "authorization" not in proxy.seen[0].headers


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_away_leaves_a_call_unsent(scheme: str) -> None:
    proxies = dict.fromkeys(("http", "https"), f"http://me:{HUSH}@127.0.0.1:9")

    (error,) = ask(post(f"{scheme}://api.invalid/"), proxies=proxies)

    assert isinstance(error, Unsent)
    assert error.what == "Connection refused"


def test_a_proxy_that_refuses_a_tunnel_leaves_a_call_unsent(proxy: Scripted) -> None:
    proxy.act = then_waits(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    (error,) = ask(post("https://api.invalid/"), proxies=through(proxy))

    assert isinstance(error, Unsent)
    assert HUSH not in error.what


def test_an_adapter_of_others_sends_the_requests_and_tries_once(server: Scripted) -> None:
    """How often a call is tried is for the policy to say: what an adapter adds is beyond every limit."""
    server.act = then_waits(b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n")

    answers = ask(*[post(server.url)] * 3, adapter=Marked)

    assert [answer.status for answer in answers] == [503] * 3
    assert [seen.headers["x-marked"] for seen in server.seen] == ["yes"] * 3
    assert server.accepted == 1


def test_a_hook_sees_the_answer(server: Scripted) -> None:
    """Authorisation of others may answer a challenge by sending the request again."""
    seen = []
    request = post(server.url)
    request.register_hook("response", lambda response, **_: seen.append(response.content))

    (answer,) = ask(request)

    assert (answer.status, answer.body, seen) == (200, b"ok", [b"ok"])


def test_a_body_in_pieces_is_sent(server: Scripted) -> None:
    def chunked(talk: Talk) -> None:
        while b"0\r\n\r\n" not in talk.unread and talk._more():
            pass
        talk.answer(talk.unread.partition(b"\r\n\r\n")[2])

    server.act = chunked
    (answer,) = ask(post(server.url, iter([b"ab", b"c"])))

    assert answer.body == b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"


def test_no_more_calls_are_in_flight_than_allowed(server: Scripted) -> None:
    together = threading.Barrier(4)

    def gathering(talk: Talk) -> None:
        while talk.request() is not None:
            together.wait(PATIENCE)
            talk.answer()

    async def all_at_once() -> tuple[list[Answer], int]:
        wire = Wire(**OPTIONS, adapter=Marked)
        try:
            return await asyncio.gather(*[wire.send(post(server.url)) for _ in range(20)]), wire.connections
        finally:
            await wire.close()

    server.act = gathering
    answers, connections = asyncio.run(all_at_once())

    assert [answer.status for answer in answers] == [200] * 20
    assert connections == server.accepted == server.most_open == 4


def test_cookies_are_not_kept(server: Scripted) -> None:
    """They would tie one call to another, and grow."""
    server.act = polite(b"ok", "Set-Cookie: a=b")

    ask(*[post(server.url)] * 2, adapter=Marked)

    assert [seen.headers.get("cookie") for seen in server.seen] == [None, None]


def test_a_refused_connection_leaves_a_call_unsent() -> None:
    (error,) = ask(post("http://127.0.0.1:9/"), adapter=Marked)

    assert isinstance(error, Unsent)
    assert error.what == "Connection refused"


def test_a_server_with_an_unknown_certificate_gets_nothing(certificates: Certificates) -> None:
    from tests.rest.test_wire_tls import context

    with Scripted(context=context(certificates.here)) as server:
        (error,) = ask(post(server.url), adapter=Marked)

        assert isinstance(error, Unsent)
        assert "not trusted" in error.what
        assert server.seen == []


@pytest.mark.parametrize("ending", ["closes", "resets", "garbage"])
def test_a_connection_that_breaks_leaves_a_call_in_doubt(server: Scripted, ending: str) -> None:
    def crash(talk: Talk) -> None:
        talk.request()
        if ending == "resets":
            talk.reset()
        if ending == "garbage":
            talk.send(b"220 smtp.example.com\r\n")

    server.act = crash
    (error,) = ask(post(server.url, Authorization=HUSH), adapter=Marked)

    assert isinstance(error, InDoubt)
    assert not error.timeout
    assert HUSH not in error.what
    assert len(server.seen) == 1


def test_a_server_that_does_not_answer_leaves_a_call_in_doubt(server: Scripted) -> None:
    server.act = silent

    (error,) = ask(post(server.url), adapter=Marked, read=0.3)

    assert isinstance(error, InDoubt)
    assert error.timeout


def test_a_long_body_is_cut(server: Scripted) -> None:
    def endless(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\n\r\n")
        talk.pour(b"a" * 0x10000)

    server.act = endless
    (answer,) = ask(post(server.url), adapter=Marked)

    assert (answer.status, len(answer.body), answer.whole) == (200, MOST, False)


def test_a_body_that_trickles_ends_with_the_time_of_the_call(server: Scripted) -> None:
    def trickle(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        talk.pour(b"a", pause=0.02)

    server.act = trickle
    (answer,) = ask(post(server.url), adapter=Marked, total=0.5)

    assert (answer.status, answer.whole) == (200, False)


def test_a_head_that_trickles_ends_with_the_time_of_the_call(server: Scripted) -> None:
    def trickle(talk: Talk) -> None:
        talk.request()
        talk.pour(b"a", pause=0.02)

    server.act = trickle
    (error,) = ask(post(server.url), adapter=Marked, connect=0.2, total=0.3)

    assert isinstance(error, InDoubt)
    assert error.timeout


def test_a_cancelled_call_leaves_its_thread_to_end(server: Scripted) -> None:
    release = threading.Event()

    def late(talk: Talk) -> None:
        while talk.request() is not None:
            release.wait(PATIENCE)
            talk.answer()

    async def cancel() -> Any:
        wire = Wire(**{**OPTIONS, "in_flight": 1, "adapter": Marked})
        task = asyncio.create_task(wire.send(post(server.url, b"1")))
        while not server.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        answer = await outcome(wire, post(server.url, b"2"))
        await wire.close()
        return answer

    server.act = late

    assert asyncio.run(cancel()).status == 200
    assert (server.bodies, server.accepted) == ([b"1", b"2"], 1)


def test_the_http_stack_is_the_real_one() -> None:
    real_stack()


@pytest.mark.parametrize("module", [requests, urllib3], ids=["requests", "urllib3"])
def test_a_fork_of_the_http_stack_is_found(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__version__", "2.13.905")

    with pytest.raises(StartError, match=module.__name__):
        real_stack()
