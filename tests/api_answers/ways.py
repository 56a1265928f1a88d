"""Ways to a server, good and bad: TLS, proxies, addresses. `WAYS` has them by name.

Each is a context manager that yields a server and what a client needs to know of it.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.api_answers.answers import hangs_up
from tests.rest.scripted import Scripted, Talk, polite, server_tls, silent
from tests.rest.test_http_proxy import forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.rest.conftest import Certificates

NAME = "two.test"
"""A name whose addresses a way chooses."""


@dataclass(frozen=True)
class Way:
    """A server, its URL without a path, arguments of an HttpClient, and the URL of a proxy."""

    server: Scripted
    url: str
    client: dict[str, Any] = field(default_factory=dict)
    proxy: str | None = None


@contextmanager
def plain(certificates: Certificates) -> Iterator[Way]:
    """Serve HTTP on 127.0.0.1."""
    with Scripted() as server:
        yield Way(server, f"http://127.0.0.1:{server.port}")


def tls(
    change: Callable[[ssl.SSLContext, Certificates], None] | None = None, *, of: str = "here", trust: str = "here"
) -> Any:
    """Serve HTTPS with a certificate, to clients that trust one."""

    @contextmanager
    def way(certificates: Certificates) -> Iterator[Way]:
        context = server_tls(getattr(certificates, of))
        if change is not None:
            change(context, certificates)
        with Scripted(context=context) as server:
            yield Way(server, f"https://127.0.0.1:{server.port}", {"verify": getattr(certificates, trust)})

    return way


def no_tls(act: Callable[[Talk], Any]) -> Any:
    """Do something else with a connection on which the client begins TLS."""

    @contextmanager
    def way(certificates: Certificates) -> Iterator[Way]:
        with Scripted(act) as server:
            yield Way(server, f"https://127.0.0.1:{server.port}")

    return way


def answers_tls(act: Callable[[Talk], Any]) -> Any:
    """Serve HTTPS in an odd way."""

    @contextmanager
    def way(certificates: Certificates) -> Iterator[Way]:
        with Scripted(act, context=server_tls(certificates.here)) as server:
            yield Way(server, f"https://127.0.0.1:{server.port}", {"verify": certificates.here})

    return way


def proxied(act: Callable[[Talk], Any], *, secure: bool = True) -> Any:
    """Serve behind a proxy that does something with what it is asked."""

    @contextmanager
    def way(certificates: Certificates) -> Iterator[Way]:
        with ExitStack() as stack:
            proxy = stack.enter_context(Scripted(act))
            server = stack.enter_context(Scripted(context=server_tls(certificates.here) if secure else None))
            url = f"{'https' if secure else 'http'}://127.0.0.1:{server.port}"
            seen = server if secure else proxy
            yield Way(seen, url, {"verify": certificates.here}, f"http://127.0.0.1:{proxy.port}")

    return way


def addresses(*hosts: str, full: bool = False) -> Any:
    """Serve on 127.0.0.1 under a name with several addresses; `full`: others take no connection, else they refuse."""

    @contextmanager
    def way(certificates: Certificates) -> Iterator[Way]:
        with ExitStack() as stack:
            server = stack.enter_context(Scripted())
            if full:
                stack.enter_context(_full("127.0.0.2", server.port))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(socket, "getaddrinfo", _found(socket.getaddrinfo, hosts))
            yield Way(server, f"http://{NAME}:{server.port}")

    return way


def _found(usual: Callable[..., Any], hosts: Sequence[str]) -> Callable[..., Any]:
    """Return a look-up that knows the addresses of NAME."""

    def found(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host != NAME:
            return usual(host, port, *more, **named)
        if not hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [one for at in hosts for one in usual(at, port, 0, socket.SOCK_STREAM)]

    return found


@contextmanager
def _full(host: str, port: int) -> Iterator[None]:
    """Listen at an address and take no connection: what comes is neither refused nor answered."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((host, port), backlog=0))
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield


@contextmanager
def on_ipv6(certificates: Certificates) -> Iterator[Way]:
    """Serve HTTP on ::1."""
    with Scripted(host="::1") as server:
        yield Way(server, f"http://[::1]:{server.port}")


def cut_off(talk: Talk) -> None:
    """Answer one request, and close the connection without the goodbye of TLS."""
    if talk.request() is not None:
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")


def broken(talk: Talk) -> None:
    """Take a request, and go on in plain text where TLS is expected."""
    if talk.request() is not None:
        socket.socket(fileno=socket.dup(talk.socket.fileno())).sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        talk.wait()


def refuses_tunnel(status: bytes) -> Callable[[Talk], None]:
    """Answer what asks for a tunnel with a status."""

    def act(talk: Talk) -> None:
        while talk.request() is not None:
            talk.send(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    return act


def drops_tunnel(talk: Talk) -> None:
    """Open a tunnel that ends at once."""
    talk.request()
    talk.send(b"HTTP/1.1 200 Connection established\r\n\r\n")


def wants_certificate(context: ssl.SSLContext, certificates: Certificates) -> None:
    context.load_verify_locations(certificates.client)
    context.verify_mode = ssl.CERT_REQUIRED


def only(version: ssl.TLSVersion) -> Callable[[ssl.SSLContext, Certificates], None]:
    def change(context: ssl.SSLContext, certificates: Certificates) -> None:
        context.minimum_version = context.maximum_version = version

    return change


def speaks_http2(context: ssl.SSLContext, certificates: Certificates) -> None:
    context.set_alpn_protocols(["h2"])


WAYS: dict[str, Any] = {
    "HTTP": plain,
    "TLS 1.3": tls(only(ssl.TLSVersion.TLSv1_3)),
    "TLS 1.2": tls(only(ssl.TLSVersion.TLSv1_2)),
    "TLS, a server that wants HTTP/2": tls(speaks_http2),
    "TLS, an unknown authority": tls(trust="client"),
    "TLS, the certificate of another host": tls(of="elsewhere", trust="elsewhere"),
    "TLS, a certificate is wanted": tls(wants_certificate),
    "TLS, closed without a goodbye": answers_tls(cut_off),
    "TLS, plain text after the request": answers_tls(broken),
    "TLS, plain HTTP in its place": no_tls(polite()),
    "TLS, closed in the hello": no_tls(hangs_up),
    "TLS, silence in the hello": no_tls(lambda talk: talk.wait()),
    "a proxy": proxied(polite(), secure=False),
    "a proxy with CONNECT": proxied(forward),
    "a proxy that wants a login": proxied(refuses_tunnel(b"407 Proxy Authentication Required")),
    "a proxy that reaches nobody": proxied(refuses_tunnel(b"502 Bad Gateway")),
    "a tunnel that ends at once": proxied(drops_tunnel),
    "a proxy that is silent": proxied(silent),
    "IPv6": on_ipv6,
    "no address": addresses(),
    "two addresses, the first refuses": addresses("127.0.0.3", "127.0.0.1"),
    "two addresses, the first is silent": addresses("127.0.0.2", "127.0.0.1", full=True),
    "two addresses, IPv6 refuses": addresses("::1", "127.0.0.1"),
    "one address, it refuses": addresses("127.0.0.3"),
}
QUICK_WAYS = ("TLS 1.3", "a proxy with CONNECT", "two addresses, the first refuses")
"""Those that the normal suite takes."""
