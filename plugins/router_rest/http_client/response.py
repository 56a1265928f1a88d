"""The response of a server to one request, or why there is none."""

from __future__ import annotations

import os
import socket
import ssl
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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


class ResponseHeaders(dict[str, str]):
    """The headers of a response: names in lower case, which are found by names in any case."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> ResponseHeaders:
        """Return headers; the values of one that came several times are joined by commas."""
        headers: dict[str, str] = {}
        for name, value in pairs:
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        return cls(headers)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.lower() if isinstance(name, str) else name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a header, or the default where there is none."""
        return super().get(name.lower(), default)


class Unsent(OSError):  # noqa: N818 - it says what happened
    """A request that the server has certainly not processed. `what` holds no secret."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class InDoubt(OSError):  # noqa: N818
    """A request without an answer, which the server may have processed. `what` holds no secret.

    timeout: the server took too long, as opposed to a connection that broke or an answer that makes no sense.
    unreadable: there is an answer, and it is not HTTP/1; whoever asks again gets the same one.
    """

    def __init__(self, what: str, *, timeout: bool = False, unreadable: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.timeout = timeout
        self.unreadable = unreadable


def decoded(body: bytes, encoding: str, most: int) -> tuple[bytes, bool]:
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


def reason_of(error: BaseException) -> str:
    """Return why there is no answer, in own words: libraries wrap the cause several times, and quote the request."""
    for cause in causes(error):
        reason = _own_reason(cause)
        if reason:
            return reason
    return f"no connection ({type(error).__name__})"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it, one after the other."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _own_reason(error: BaseException) -> str | None:
    """Return what one error of a chain says of the cause; None if it only wraps another."""
    if isinstance(error, ssl.SSLCertVerificationError) and hasattr(error, "verify_message"):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        # aiohttp's own are some as well, and have no reason.
        reason = getattr(error, "reason", None)
        return f"TLS failed ({reason})" if reason else None
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror})"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return None
