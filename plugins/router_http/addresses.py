"""Check what goes into requests as it is written: URLs, names and values of headers."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_TEXT_OF_A_HEADER = re.compile(r"[\x20-\x7e]+")
_NAME_OF_A_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2


def is_header_name(name: str) -> bool:
    """Say whether a header can have a name."""
    return _NAME_OF_A_HEADER.fullmatch(name) is not None


def is_header_text(text: str) -> bool:
    """Say whether a header can have a value: printable ASCII, and some of it."""
    return _TEXT_OF_A_HEADER.fullmatch(text) is not None


def checked_url(url: str, *, query: bool = False) -> str:
    """Return a URL that can be shown in messages; never quote it in the refusal, for it may hold a password."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or re.search(r"[\s\x00-\x1f\\]", url):
        raise ValueError("a URL is http(s)://host[:port][/path]")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL holds no user and password here: URLs are logged; use `basic`")
    if parts.fragment or (parts.query and not query):
        raise ValueError("a URL holds no query and no fragment here: only the path of the API")
    return url
