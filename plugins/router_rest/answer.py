"""Say what a server answered to one request, or why it did not."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Answer:
    """Be what a server answered.

    headers: names in any case; those that came several times are joined by commas, as `requests` does.
    body: decoded where it came as gzip or deflate, at most as long as the wire was told to read.
    seconds: from the first byte out to the last byte in.
    whole: False when the body went on, in size or in time, or could not be decoded to its end: its connection was
    closed. The status holds all the same.
    resent: the request had been sent before, over a connection that was closed before a byte of an answer came: it may
    have been processed twice.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    seconds: float
    whole: bool
    resent: bool = False


class Headers(dict[str, str]):
    """Be the headers of an answer: made with names in lower case, found by names in any."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.lower() if isinstance(name, str) else name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a header, or the default where there is none."""
        return super().get(name.lower(), default)


class Unsent(OSError):  # noqa: N818 - it says what happened
    """Say why a request was not sent, or why for sure nothing was done with it. `what` holds no secret."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class InDoubt(OSError):  # noqa: N818
    """Say why no answer came to a request that the server may have processed. `what` holds no secret.

    timeout: the server took too long, as opposed to a connection that broke or an answer that makes no sense.
    """

    def __init__(self, what: str, *, timeout: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.timeout = timeout


def decoded(body: bytes, encoding: str, most: int) -> tuple[bytes, bool]:
    """Return a body without its Content-Encoding, at most so many bytes, and whether this is all of it.

    What is neither gzip nor deflate stays as it is. Of a body that breaks off comes what there is.
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
