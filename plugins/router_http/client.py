"""Send a server one request, within limits."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests
import urllib3

from router import RouterError

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 64 << 20
"""Bytes of an answer: schemas of 10 MB are legal and grow in JSON, but a body must end."""
BLOCK = 1 << 16


class ExchangeError(RouterError):
    """A request without a good answer: `where` is the URL, `status` the answer's (0: none)."""

    def __init__(self, where: str, what: str, status: int = 0) -> None:
        super().__init__(where, what, status)
        self.where = where
        self.what = what
        self.status = status

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Away(ExchangeError):  # noqa: N818 - the two names say what happened
    """A server that cannot answer now: ask again later."""


class Refuses(ExchangeError):  # noqa: N818
    """An answer that will not change until somebody changes a configuration."""


@dataclass(frozen=True)
class Answer:
    """The answer of a server. `login` is the Authorization header that was sent."""

    status: int
    location: str
    body: bytes
    login: str = field(repr=False)


def send(session: requests.Session, method: str, url: str, *, seconds: float, **arguments: Any) -> Answer:
    """Send one request, follow no redirect, read the whole answer; `arguments` as for `requests`.

    Raises Away when no whole answer comes in time, Refuses when none ever will.
    """
    try:
        sent = session.request(method, url, timeout=seconds, allow_redirects=False, stream=True, **arguments)
        with sent as response:
            body = b"".join(_blocks(url, response, seconds))
            login = response.request.headers.get("Authorization", "")
            return Answer(response.status_code, response.headers.get("Location", ""), body, str(login))
    # the causes may hold headers, so they are not shown
    except (requests.Timeout, urllib3.exceptions.TimeoutError):
        raise Away(url, f"no answer within {seconds:g} s") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise _fault(url, error) from None


def busy(status: int) -> bool:
    """Say whether a status means: not now."""
    return status in {408, 425, 429} or status >= 500


def _blocks(url: str, response: requests.Response, seconds: float) -> Iterator[bytes]:
    """Yield the body as it arrives: `read1`, for `iter_content` waits for whole blocks, and so for any drip."""
    end, size = time.monotonic() + seconds, 0
    while block := response.raw.read1(BLOCK, decode_content=True):
        size += len(block)
        if size > LARGEST:
            raise Away(url, f"the answer does not end within {LARGEST} bytes")
        if time.monotonic() > end:
            raise Away(url, f"the answer does not end within {seconds:g} s")
        yield block


def _fault(url: str, error: Exception) -> ExchangeError:
    """Say in words why a request failed; `requests` wraps the reason several times."""
    causes = list(_causes(error))
    untrusted = next((cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        what = f"its certificate is not trusted ({untrusted.verify_message}); name its authority in `ca`"
        return Refuses(url, what)
    if isinstance(error, ValueError):
        return Refuses(url, f"no request can be made of it ({type(error).__name__}); check url and headers")
    reason = next((cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
    return Away(url, f"no answer: {reason or type(error).__name__}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
