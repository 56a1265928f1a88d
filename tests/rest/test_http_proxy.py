"""Calls by way of an HTTP proxy."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from router_rest.http_client.response import Unsent
from tests.rest.calls import ask, post
from tests.rest.scripted import PATIENCE, Scripted, Talk, server_tls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rest.conftest import Certificates

HUSH = "hush-hush"


def forward(talk: Talk) -> None:
    """Serve as a proxy: a tunnel where one is asked for, else a server that answers for others."""
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
    with Scripted(context=server_tls(certificates.here)) as server:
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


def unauthorised(talk: Talk, status: str = "407 Proxy Authentication Required") -> None:
    while talk.request() is not None:
        talk.answer(b"", status, 'Proxy-Authenticate: Basic realm="hush"')


@pytest.mark.parametrize("hook", [False, True], ids=["aiohttp", "requests"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_login_is_an_answer(proxy: Scripted, scheme: str, hook: bool) -> None:
    """Without it the sink waits for ever for a connection that a setting would open."""
    proxy.act = unauthorised
    call = post(f"{scheme}://api.invalid/")
    if hook:
        call.register_hook("response", lambda answer, **_: None)

    answer, again = ask(call, call, proxies=through(proxy))

    assert (answer.status, again.status) == (407, 407)


@pytest.mark.parametrize("hook", [False, True], ids=["aiohttp", "requests"])
@pytest.mark.parametrize("status", ["403 Forbidden", "502 Bad Gateway", "204 No Content"])
def test_a_proxy_that_refuses_a_tunnel_leaves_a_call_unsent(proxy: Scripted, status: str, hook: bool) -> None:
    """A proxy that says 204 has delivered nothing, and one that says 502 leaves nothing in doubt."""
    proxy.act = lambda talk: unauthorised(talk, status)
    call = post("https://api.invalid/")
    if hook:
        call.register_hook("response", lambda answer, **_: None)

    (error,) = ask(call, proxies=through(proxy))

    assert isinstance(error, Unsent)
    assert error.what == f"the proxy answers {status[:3]} to CONNECT"
    assert HUSH not in error.what
