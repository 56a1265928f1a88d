"""Send requests by `requests`, in threads: those with hooks on the response, such as a digest login has.

Such a hook gets a `requests.Response`, and may send the request again over the same connection.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3 import exceptions as wrong

from router_http.causes import causes_of
from router_rest.http_client.response import (
    PROXY_LOGIN_WANTED,
    InDoubt,
    Response,
    Unsent,
    reason_of,
    refuses_handshake,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router_rest.http_client.response import HttpOptions

READ_BLOCK_BYTES = 1 << 16
NO_REQUEST_ERRORS = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidHeader,
)
NOT_CONNECTED_ERRORS = (
    requests.exceptions.ConnectTimeout,
    requests.exceptions.ProxyError,  # urllib3 raises it only until the proxy, and the tunnel through it, are there
    wrong.NewConnectionError,
    wrong.ConnectTimeoutError,
    ssl.SSLCertVerificationError,
)
TUNNEL_REFUSED_PATTERN = re.compile(r"Tunnel connection failed: (\d{3}) ")
"""How `http.client` says with which status a proxy refused a tunnel."""
TIMEOUT_ERRORS = (requests.exceptions.Timeout, wrong.TimeoutError)


class RequestsClient:
    """A client that sends in threads, up to `in_flight` of them, each with a session of its own meanwhile.

    A thread cannot be stopped: where headers of an answer still arrive slowly when
    `total` is over, the thread stays busy until the server ends, and the request counts as in doubt.
    """

    def __init__(self, options: HttpOptions, proxies: Mapping[str, str]) -> None:
        self._options = options
        self._arguments: dict[str, Any] = {
            "timeout": (options.connect, min(options.read, options.total)),
            "verify": options.verify,
            "cert": options.cert,
            "proxies": dict(proxies),
            "allow_redirects": False,
            "stream": True,
        }
        self._free: deque[requests.Session] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    async def send(self, request: requests.PreparedRequest) -> Response:
        """Send a request and return the answer. Raises Unsent or InDoubt."""
        if self._closed:
            raise Unsent("the client is closed")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._options.in_flight, thread_name_prefix="rest")
        sent = self._threads.submit(self._send_blocking, request)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(sent), self._options.connect + self._options.total)
        except asyncio.TimeoutError:
            if sent.cancelled():
                raise Unsent("no thread was free in time") from None
            raise InDoubt("no answer came in time", timeout=True) from None

    def close(self) -> None:
        """Close idle sessions; a busy thread ends with its request."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        while self._free:
            self._free.pop().close()

    def _send_blocking(self, request: requests.PreparedRequest) -> Response:
        try:
            session = self._free.pop()
        except IndexError:
            session = self._make_session()
        # A login such as HTTPDigestAuth keeps what it knows of a request for the thread in which it was applied. That
        # was the thread of the event loop, and its hook runs in this one.
        login = None
        for hook in request.hooks["response"]:
            login = getattr(hook, "__self__", None)
        if isinstance(login, AuthBase):
            request.hooks["response"] = []
            login(request)
        began = time.monotonic()
        try:
            with closing(session.send(request, **self._arguments)) as response:
                body, whole = self._read_body(response, began + self._options.total)
                if not whole:
                    response.raw.close()
                return Response(response.status_code, response.headers, body, time.monotonic() - began, whole)
        except Exception as error:  # hooks are code of users
            fault = _result_for(error)
            if isinstance(fault, Response):
                return fault
            raise fault from None
        finally:
            self._free.append(session)
            if self._closed:
                session.close()

    def _make_session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        adapter = HTTPAdapter(max_retries=urllib3.Retry(0, read=False))
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        return session

    def _read_body(self, response: requests.Response, end: float) -> tuple[bytes, bool]:
        """Return at most `most` bytes of a body, and whether these are all of it."""
        parts: list[bytes] = []
        size = 0
        try:
            for block in _read_blocks(response):
                parts.append(block)
                size += len(block)
                if size > self._options.most or time.monotonic() > end:
                    return b"".join(parts)[: self._options.most], False
        except (wrong.TimeoutError, wrong.DecodeError):
            return b"".join(parts), False
        return b"".join(parts), True


def _read_blocks(response: requests.Response) -> Iterator[bytes]:
    """Yield the body as it arrives: `iter_content` would wait for whole blocks, however slowly they come."""
    if getattr(response, "_content_consumed", False) or not hasattr(response.raw, "read1"):
        yield response.content  # a hook has read it
        return
    while block := response.raw.read1(READ_BLOCK_BYTES, decode_content=True):
        yield block


def _result_for(error: Exception) -> Unsent | InDoubt | Response:
    """Return the error of a failed request, or a proxy's answer; `requests` wraps the cause several times."""
    chain = list(causes_of(error))
    if tunnel := TUNNEL_REFUSED_PATTERN.match(str(chain[-1])):
        status = int(tunnel[1])
        return (
            PROXY_LOGIN_WANTED
            if status == PROXY_LOGIN_WANTED.status
            else Unsent(f"the proxy answers {status} to CONNECT")
        )
    if isinstance(error, (*NO_REQUEST_ERRORS, UnicodeError)):
        return Unsent(f"no request can be made of it ({type(error).__name__})")
    if refuses_handshake(error) or any(isinstance(cause, NOT_CONNECTED_ERRORS) for cause in chain):
        return Unsent(reason_of(error))
    if any(isinstance(cause, TIMEOUT_ERRORS) for cause in chain):
        return InDoubt("no answer came in time", timeout=True)
    return InDoubt(f"no answer came: {reason_of(error)}")
