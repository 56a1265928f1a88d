"""Write a request as the bytes that go out."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from router_rest.answer import Unsent

if TYPE_CHECKING:
    from requests import PreparedRequest

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""What names of methods and headers are made of (RFC 9110, 5.6.2)."""
HOST, LENGTH = "Host", "Content-Length"
"""Headers that are written here, whatever a request has."""
PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Be what a connection leads to."""

    tls: bool
    host: str
    port: int


class Outgoing(NamedTuple):
    """Be a request as it goes out. bodiless: the answer has no body, whatever its head says (HEAD)."""

    origin: Origin
    data: bytes
    bodiless: bool


def writable(request: PreparedRequest) -> bool:
    """Say whether a request is one that `outgoing` writes: its body is there as a whole."""
    return isinstance(request.body, (bytes, str, type(None))) and "Transfer-Encoding" not in request.headers


def outgoing(request: PreparedRequest) -> Outgoing:
    """Return the bytes of a request that was prepared and authorised.

    Content-Length is counted here, for a wrong one would make the rest of the body a request of its own. Raises Unsent
    for what is no request: authorisation and hooks write headers past the checks of `requests`.
    """
    body = _whole(request.body)
    origin, host, target = _place(request.url or "")
    method = _token(request.method or "")
    lines = [f"{method} {target} HTTP/1.1", ""]
    counted = bool(body)
    for name, value in request.headers.items():
        header = _header(name)
        if header == LENGTH:
            counted = True
        elif header == HOST:
            host = _text(value)
        else:
            lines.append(f"{header}: {_text(value)}")
    lines[1] = f"{HOST}: {host}"
    if counted:
        lines.append(f"{LENGTH}: {len(body)}")
    return Outgoing(origin, _head(lines) + body, method == "HEAD")


def _head(lines: list[str]) -> bytes:
    text = "\r\n".join(lines) + "\r\n\r\n"
    ends = len(lines) + 1
    if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:
        raise Unsent("a header holds a line break: no request can be made of it")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise Unsent("a header holds signs beyond Latin-1: no request can be made of it") from None


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _whole(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if body is None:
        return b""
    raise Unsent("the body is no bytes")


@lru_cache(maxsize=256)
def _header(name: str | bytes) -> str:
    """Return the name of a header, those that matter here as they are spelt here."""
    token = _token(_text(name))
    return {HOST.lower(): HOST, LENGTH.lower(): LENGTH}.get(token.lower(), token)


@lru_cache(maxsize=256)
def _token(name: str) -> str:
    if not TOKEN.fullmatch(name):
        raise Unsent("the name of a header, or the method, holds signs that none may hold")
    return name


@lru_cache(maxsize=256)
def _place(url: str) -> tuple[Origin, str, str]:
    """Return where a URL leads, its Host header and the target of its first line; what it says is never shown."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Unsent("the URL is none") from None
    if parts.scheme not in PORTS or not host:
        raise Unsent("the URL is not of the form http(s)://host/...")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not all("!" <= sign <= "~" for sign in host + target):
        raise Unsent("the URL is not escaped: it holds blanks or signs beyond ASCII")
    named = f"[{host}]" if ":" in host else host
    shown = named if port in {None, PORTS[parts.scheme]} else f"{named}:{port}"
    return Origin(parts.scheme == "https", host, PORTS[parts.scheme] if port is None else port), shown, target
