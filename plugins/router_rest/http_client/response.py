"""The response of a server to one request, or why there is none."""

from __future__ import annotations

import os
import socket
import ssl
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from multidict import CIMultiDict

from router_http.causes import causes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class HttpOptions:
    """How requests are sent: times in seconds."""

    connect: float
    """For the name, the connection and TLS together."""
    read: float
    """Of silence once a request is out."""
    total: float
    """For all of it."""
    most: int
    """Bytes of a body that are read."""
    in_flight: int
    """Requests that are sent, and connections that are open, at a time; further ones wait."""
    age: float = 300.0
    """For which a connection is used: a name may lead elsewhere afterwards."""
    verify: bool | str = True
    cert: str | tuple[str, str] | None = None


@dataclass(frozen=True)
class Response:
    """The answer of a server.

    headers: names in any case; those that came several times are joined by commas, as `requests` does.
    body: decoded where it came as gzip or deflate; at most as long as the client may read.
    seconds: from the first byte out to the last byte in.
    whole: False when the body was too long, took too long or could not be decoded to its end; its connection was
    closed then. The status is still valid.
    resent: the request had been sent before, over a connection that was closed before a byte of an answer came, so it
    may have been processed twice.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    seconds: float
    whole: bool
    resent: bool = False


def join_headers(pairs: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    """Return the headers of a response by names in any case; the values of one that came several times are joined."""
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in pairs:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


PROXY_LOGIN_WANTED = Response(407, join_headers(()), b"", 0.0, whole=True)
"""The answer of a proxy that wants a login before it opens a tunnel: without TLS it answers the call itself so."""


class NoAnswer(OSError):  # noqa: N818 - it says what happened
    """A request without an answer. `what` holds no secret.

    timeout: the server took too long, as opposed to a connection that broke or an answer that makes no sense.
    unreadable: there is an answer, and it is not HTTP/1; whoever asks again gets the same one.
    """

    def __init__(self, what: str, *, timeout: bool = False, unreadable: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.timeout = timeout
        self.unreadable = unreadable


class Unsent(NoAnswer):
    """A request that the server has certainly not processed."""


class InDoubt(NoAnswer):
    """A request that the server may have processed."""


def decode_body(body: bytes, encoding: str, most: int) -> tuple[bytes, bool]:
    """Return a body without its Content-Encoding, at most `most` bytes, and whether these are all of it.

    Other encodings than gzip and deflate are left as they are. Of a body that breaks off its beginning is returned.
    """
    name = encoding.strip().lower()
    if name not in {"gzip", "x-gzip", "deflate"} or not body:
        return body, True
    # deflate is meant to have zlib's header (RFC 9110, 8.4.1.2), which some servers leave out
    raw = name == "deflate" and (body[0] & 0x0F != 8 or int.from_bytes(body[:2], "big") % 31 != 0)
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)
    try:
        # never more than `most`: a small body may hold gigabytes
        text = unpacking.decompress(body, most)
    except zlib.error:
        return b"", False
    return text, unpacking.eof


CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
"""Words in a server's TLS alert when it refuses the client's certificate, or wants one."""
HANDSHAKE_ALERTS = (*CERTIFICATE_ALERTS, "HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "UNRECOGNIZED_NAME")
"""Words in an alert after which a server has read nothing but the handshake."""


def refuses_handshake(error: BaseException) -> bool:
    """Return whether a server's TLS alert ended the handshake: in TLS 1.3 a request is on its way before it comes."""
    return any(_has_alert(cause, HANDSHAKE_ALERTS) for cause in causes_of(error))


def reason_of(error: BaseException) -> str:
    """Return the cause of a missing answer in own words: libraries wrap it several times, and quote the request."""
    chain = [*causes_of(error)]
    # The class of a cause counts before any number: what wraps a TLS error or a failed look-up has the number of that,
    # which means something else to the system.
    for own_reason in (_reason_by_class, _reason_by_number):
        for cause in chain:
            reason = own_reason(cause)
            if reason:
                return reason
    return f"no connection ({type(error).__name__})"


def _reason_by_class(error: BaseException) -> str | None:
    """Return the cause that one error of a chain names; None if it only wraps another."""
    if isinstance(error, ssl.SSLCertVerificationError) and hasattr(error, "verify_message"):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        # aiohttp's own are some as well, and have no reason.
        reason = getattr(error, "reason", None)
        if _has_alert(error, CERTIFICATE_ALERTS):
            return f"the server does not take the client's certificate, or wants one ({reason})"
        return f"TLS failed ({reason})" if reason else None
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror})"
    return None


def _reason_by_number(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLError):  # its number is OpenSSL's
        return "TLS broke off"
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else None


def _has_alert(error: BaseException, words: tuple[str, ...]) -> bool:
    """Return whether an error is a TLS alert of the server with one of some words."""
    reason = str(getattr(error, "reason", None))
    return isinstance(error, ssl.SSLError) and "ALERT" in reason and any(word in reason for word in words)
