"""Send requests over kept connections, many at a time.

Callers see `requests`: they give a `PreparedRequest` with its login, and its bytes are sent as they were prepared.
aiohttp does the sending, for `requests` itself takes a thread and most of a millisecond for each call. Only hooks on
the response take a thread.
"""

from __future__ import annotations

import asyncio
import io
import re
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from http.client import responses
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import aiohttp
import requests
from requests.auth import AuthBase
from requests.hooks import dispatch_hook
from requests.structures import CaseInsensitiveDict
from requests.utils import DEFAULT_CA_BUNDLE_PATH, should_bypass_proxies
from yarl import URL

from router_http.options import is_header_name
from router_rest.http_client.response import (
    PROXY_LOGIN_WANTED,
    HttpOptions,
    InDoubt,
    NoAnswer,
    Response,
    Unsent,
    decode_body,
    join_headers,
    reason_of,
    refuses_handshake,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from aiohttp.client_proto import ResponseHandler
    from requests import PreparedRequest

MAX_DRAINED_BYTES, MAX_DRAIN_SECONDS = 1 << 20, 1.0
"""Bytes of a body that is too long which are read, and the seconds for it: a new connection may take longer."""
MAX_IDLE_SECONDS = 30.0
"""Seconds after which an idle connection is closed: many servers and proxies do so after a minute."""
MAX_HEAD_BYTES = 64 << 10
"""Bytes of a status line or of a header."""
HEADER_VALUE_PATTERN = re.compile(r"[\t\x20-\x7e]*")
"""The characters of values of headers here: others mean something else to every server (RFC 9110, 5.5)."""
MIN_BLOCKWISE_BYTES = 1 << 20
"""Bytes from which on a body is sent in blocks."""
ROUNDS_TO_CLOSE = 3
"""Rounds of the loop in which a connection that is closed tells its reader: one, with TLS two, and one to spare."""
HEADERS_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add: a request goes out as it was prepared, and signed."""


class HttpClient:
    """The connections and requests of one task; it belongs to one event loop, and is made there.

    `proxies` are as for `requests`, but variables of the environment have no effect; `no` in it are hosts without one.
    """

    def __init__(self, options: HttpOptions, proxies: Mapping[str, str] | None = None) -> None:
        self._options = options
        self._proxies = proxies or {}
        self._tls: ssl.SSLContext | None = None
        self._places = asyncio.Semaphore(options.in_flight)
        self._connections = Connections(options.in_flight, options.age)
        self._session = aiohttp.ClientSession(
            connector=self._connections,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=options.total, connect=options.connect, sock_read=options.read),
            skip_auto_headers=HEADERS_NOT_ADDED,
            auto_decompress=False,  # a small body may hold gigabytes: `decode_body` stops in time
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
        )
        self._threads = ThreadPoolExecutor(options.in_flight, thread_name_prefix="rest")

    async def send(
        self,
        request: PreparedRequest,
        again: Callable[[], Awaitable[None]] | None = None,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> Response:
        """Send a request and return the response; redirects are responses. Raises Unsent or InDoubt.

        A request is sent twice, with the same bytes, when a connection that served before is closed before a byte of
        the response comes: servers close idle connections whenever they like. `again` is awaited before the second
        time, for a server may have counted the first; what it raises ends the request, in doubt. So does a cancel.
        `ready` is awaited once there is a connection, right before the request goes out on it; what it raises ends the
        request unsent.
        """

        def send_request(request: PreparedRequest) -> Coroutine[Any, Any, Response]:
            return self._resent_once(request, again, ready)

        async with self._places:
            if not request.hooks.get("response"):
                return await send_request(request)
            return await self._send_with_hooks(HookConnection(send_request), request)

    async def _send_with_hooks(self, connection: HookConnection, request: PreparedRequest) -> Response:
        try:
            sent = self._threads.submit(connection.send_with_hooks, request)
        except RuntimeError:
            raise Unsent("the client is closed") from None
        try:
            # A hook may wait for whatever it likes, and a thread cannot be stopped.
            return await asyncio.wait_for(asyncio.wrap_future(sent), self._options.connect + self._options.total)
        except asyncio.TimeoutError:
            raise InDoubt("no answer came in time", timeout=True) from None

    async def close(self) -> None:
        """Close all connections; requests in flight end in doubt."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Not the session first: it forgets the bodies that are being read, and whoever reads one waits for ever.
        self._connections.abort_transports()
        for _ in range(ROUNDS_TO_CLOSE):
            await asyncio.sleep(0)
        await self._session.close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round, and may have no other

    async def _resent_once(
        self,
        request: PreparedRequest,
        again: Callable[[], Awaitable[None]] | None,
        ready: Callable[[], Awaitable[None]] | None,
    ) -> Response:
        arguments = _request_arguments(request)
        attempt = SendAttempt(ready=ready)
        try:
            return await self._send_once(arguments, attempt)
        except Dropped:
            if not attempt.reused:
                raise
        if again is not None:
            await again()
        try:
            return replace(await self._send_once(arguments, SendAttempt(fresh=True, ready=ready)), resent=True)
        except Unsent as error:  # of the second time; the first request may have arrived
            raise InDoubt(f"the connection was closed before an answer came, and then: {error.what}") from None

    async def _send_once(self, request: dict[str, Any], attempt: SendAttempt) -> Response:
        if self._session.closed:
            raise Unsent("the client is closed")
        arguments = {**request, "data": _in_blocks(request["data"]), **self._find_route(request["url"])}
        CURRENT_ATTEMPT.set(attempt)
        try:
            response = await self._session.request(**arguments, allow_redirects=False)
            try:
                return await self._read_response(response, attempt)
            finally:
                if not response.content.is_eof() or attempt.still_sending:
                    response.close()  # else the rest of either would be taken for the next one's
                response.release()
        except aiohttp.ClientHttpProxyError as error:
            if error.status == PROXY_LOGIN_WANTED.status:
                return PROXY_LOGIN_WANTED
            raise Unsent(f"the proxy answers {error.status} to CONNECT") from None
        except Exception as error:
            raise _exception_for(error, attempt) from None
        finally:
            self._connections.mark_idle(attempt.connection)

    def _find_route(self, url: URL) -> dict[str, Any]:
        """Return the proxy and the TLS context for a URL. Raises Unsent for a TLS file that cannot be used."""
        if url.scheme == "https" and self._tls is None:
            self._tls = tls_context(self._options.verify, self._options.cert)
        return {"ssl": self._tls or True, "proxy": self._find_proxy(url)}

    def _find_proxy(self, url: URL) -> str | None:
        without = self._proxies.get("no")
        if without and should_bypass_proxies(str(url), no_proxy=without):
            return None
        return self._proxies.get(url.scheme) or self._proxies.get("all")

    async def _read_response(self, response: aiohttp.ClientResponse, attempt: SendAttempt) -> Response:
        if response.status < 200:
            raise InDoubt("the answer is broken: the server wants to speak something else", unreadable=True)
        body, whole = await self._read_body(response)
        headers = join_headers(response.headers.items())
        if "content-encoding" in headers:
            body, all_of_it = decode_body(body, headers["content-encoding"], self._options.most)
            whole = whole and all_of_it
        return Response(response.status, headers, body, attempt.seconds, whole)

    async def _read_body(self, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """Return at most so much of a body, and whether that is all of it. Raises InDoubt when it breaks off."""
        parts: list[bytes] = []
        size = 0
        try:
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > self._options.most:
                    # the status holds, whatever comes: a connection that is read to its end can be used again
                    with suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
                        await asyncio.wait_for(_drain_body(response, MAX_DRAINED_BYTES), MAX_DRAIN_SECONDS)
                    return b"".join(parts)[: self._options.most], False
        except asyncio.TimeoutError:  # the status holds: to send it again would be a second delivery
            return b"".join(parts), False
        except (aiohttp.ClientError, OSError) as error:
            raise InDoubt(f"the answer breaks off: {reason_of(error)}") from None
        return b"".join(parts), True


class HookConnection:
    """The connection of responses as the hooks of a login see it: a digest login answers a challenge by it.

    A hook gets a `requests.Response`, may send the request again, and waits for that: so it runs in a thread, and
    `send_request` in the event loop, like all other requests.
    """

    def __init__(self, send_request: Callable[[PreparedRequest], Coroutine[Any, Any, Response]]) -> None:
        self._send_request = send_request
        self._loop = asyncio.get_running_loop()
        self._ended: BaseException | None = None

    def send(self, request: PreparedRequest, **arguments: Any) -> requests.Response:
        """Send a request, and wait for the response. Hooks give arguments of `requests`, which have no effect."""
        try:
            answer = asyncio.run_coroutine_threadsafe(self._send_request(request), self._loop).result()
        except BaseException as error:
            self._ended = error
            raise
        response: Any = requests.Response()
        response.status_code = answer.status
        response.reason = responses.get(answer.status, "")
        response.headers = CaseInsensitiveDict(answer.headers)
        response._content = answer.body
        response._content_consumed = True
        response.raw = _Answered(answer)
        response.url = request.url
        response.request = request
        response.connection = self
        return response  # type: ignore[no-any-return]

    def send_with_hooks(self, request: PreparedRequest) -> Response:
        """Send a request; return the response that its hooks leave. Raises as `send_request` does."""
        # A login such as HTTPDigestAuth keeps what it knows of a request for the thread in which it was applied. That
        # was the thread of the event loop, and its hook runs in this one.
        login = None
        for hook in request.hooks["response"]:
            login = getattr(hook, "__self__", None)
        if isinstance(login, AuthBase):
            request.hooks["response"] = []
            login(request)
        answer = self.send(request)
        try:
            final = dispatch_hook("response", request.hooks, answer)
            # A hook may have changed the response, or may have got another one by a client of its own.
            sent = final.raw if isinstance(final.raw, _Answered) else answer.raw
            headers = join_headers(final.headers.items())
            return replace(sent.answer, status=final.status_code, headers=headers, body=final.content)
        except Exception as error:  # hooks are code of users
            if error is self._ended:
                raise
            raise InDoubt(f"no answer came: {reason_of(error)}") from None


@dataclass(frozen=True)
class _Answered:
    """What hooks see in place of the raw response of urllib3: its connection is free already."""

    answer: Response

    def release_conn(self) -> None:
        """Do nothing: logins call this before they send a request again."""

    def close(self) -> None:
        """Do nothing, for the same reason."""


async def _drain_body(response: aiohttp.ClientResponse, most: int) -> None:
    """Read a body to its end, or so many bytes of it."""
    async for part in response.content.iter_any():
        most -= len(part)
        if most < 0:
            return


@dataclass(eq=False)
class SendAttempt:
    """The state of one attempt. `fresh`: it has to get a new connection; `ready` is awaited when it has one."""

    fresh: bool = False
    ready: Callable[[], Awaitable[None]] | None = None
    ended: BaseException | None = None
    """What `ready` raised."""
    connection: ResponseHandler | None = None
    reused: bool = False
    began: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds since it got its connection."""
        return asyncio.get_running_loop().time() - self.began

    @property
    def still_sending(self) -> bool:
        """Say whether the answer came before the whole request was sent."""
        transport = None if self.connection is None else self.connection.transport
        if not isinstance(transport, asyncio.Transport):
            return False
        try:
            return transport.get_write_buffer_size() > 0
        except AttributeError:  # before Python 3.11, of a TLS connection that is lost
            return False


CURRENT_ATTEMPT: ContextVar[SendAttempt] = ContextVar("CURRENT_ATTEMPT")
"""The attempt for which aiohttp asks for a connection: it asks in the attempt's own asyncio task."""


class Dropped(InDoubt):
    """A connection that was closed before a byte of the answer came."""


class Connections(aiohttp.TCPConnector):
    """aiohttp's pool of connections, at most `limit` of them open at once, wherever they lead.

    aiohttp bounds only those that are in use, gives out connections on which unexpected bytes have come, or however old
    they are, and sends idempotent requests a second time without telling: all are corrected where it asks for one.
    """

    def __init__(self, limit: int, age: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=MAX_IDLE_SECONDS, use_dns_cache=False)
        self._age = age
        self._born: WeakKeyDictionary[ResponseHandler, float] = WeakKeyDictionary()
        self._kept: dict[ResponseHandler, Any] = {}
        self._in_use: set[ResponseHandler] = set()
        self._transports: WeakSet[asyncio.Transport] = WeakSet()

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        """Return a connection, and note it in the attempt. Raises Dropped when this attempt has had one."""
        attempt = CURRENT_ATTEMPT.get()
        if attempt.connection is not None:
            raise Dropped("the connection was closed before an answer came")
        while True:
            self._make_room(req.connection_key)
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            assert protocol is not None
            reused = protocol in self._kept
            now = time.monotonic()
            old = now - self._born.setdefault(protocol, now) > self._age
            if not reused or not (attempt.fresh or protocol.should_close or old):
                break
            connection.close()
        self._kept.pop(protocol, None)  # the connection used last stands last
        self._kept[protocol] = req.connection_key
        self._in_use.add(protocol)
        if protocol.transport is not None:
            self._transports.add(protocol.transport)
        await self._wait_until_ready(attempt, connection)
        attempt.connection, attempt.reused = protocol, reused
        attempt.began = asyncio.get_running_loop().time()
        return connection

    async def _wait_until_ready(self, attempt: SendAttempt, connection: Any) -> None:
        """Wait until the request may go out on its connection; give that back where it may not."""
        if attempt.ready is None:
            return
        protocol = connection.protocol
        try:
            await attempt.ready()
        except BaseException as error:
            attempt.ended = error
            connection.close()
            self.mark_idle(protocol)
            raise

    def mark_idle(self, connection: ResponseHandler | None) -> None:
        """Note that a connection is not in use any more."""
        if connection is not None:
            self._in_use.discard(connection)
            if not connection.is_connected():
                self._kept.pop(connection, None)

    def abort_transports(self) -> None:
        """Close what TLS keeps open: after a connection is closed it waits for the server to say goodbye."""
        for transport in self._transports:
            transport.abort()

    def _make_room(self, key: Any) -> None:
        """Close the connection that has been idle longest where there are too many, and no idle one leads to `key`."""
        idle = []
        for connection in [*self._kept]:
            if connection in self._in_use:
                continue
            if connection.is_connected():
                idle.append(connection)
            else:
                del self._kept[connection]
        if idle and len(self._kept) >= self.limit and not any(self._kept[connection] == key for connection in idle):
            del self._kept[idle[0]]
            idle[0].close()


def _request_arguments(request: PreparedRequest) -> dict[str, Any]:
    """Return a request that was prepared and authorised as aiohttp takes it.

    aiohttp computes Content-Length, for with a wrong one the rest of the body would be a request of its own. Raises
    Unsent for an invalid request: a login writes headers after the checks of `requests`.
    """
    if not is_header_name(request.method or ""):  # both are tokens (RFC 9110, 5.6.2)
        raise Unsent("the method holds signs that none may hold")
    headers = {}
    # A line break in a header would begin another header, or another request.
    for written_name, written_value in request.headers.items():
        name = _header_text(written_name)
        value = _header_text(written_value)
        if not is_header_name(name):
            raise Unsent("the name of a header holds signs that none may hold")
        if not HEADER_VALUE_PATTERN.fullmatch(value):
            raise Unsent("a header holds a line break, or signs beyond ASCII: no request can be made of it")
        if name.lower() != "content-length":
            headers[name] = value
    body = request.body
    if isinstance(body, str):
        body = body.encode()
    return {"method": request.method, "url": _parse_url(request.url or ""), "headers": headers, "data": body}


def _in_blocks(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body as aiohttp takes it: it warns of large ones that are written at once."""
    if body is None or len(body) < MIN_BLOCKWISE_BYTES:
        return body
    return io.BytesIO(body)


def _header_text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


@lru_cache(maxsize=256)
def _parse_url(url: str) -> URL:
    """Return a URL that aiohttp sends unchanged; raise Unsent, which does not quote it. A user is a header already."""
    try:
        parsed = URL(url, encoded=True).with_user(None)
    except ValueError:
        raise Unsent("the URL is none") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise Unsent("the URL is not of the form http(s)://host/...")
    if not all("!" <= sign <= "~" for sign in str(parsed)):
        raise Unsent("the URL is not escaped: it holds blanks or signs beyond ASCII")
    return parsed


def _exception_for(error: Exception, attempt: SendAttempt) -> Exception:
    """Return the error for a request without a response, in words that never quote the request."""
    if isinstance(error, NoAnswer) or error is attempt.ended:
        return error
    late = isinstance(error, asyncio.TimeoutError)
    if attempt.connection is None:
        return Unsent("no connection in time" if late else reason_of(error))
    if late:
        return InDoubt("no answer came in time", timeout=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return InDoubt("the answer is broken: it is not HTTP/1", unreadable=True)
    disconnected = isinstance(error, aiohttp.ServerDisconnectedError)
    why = "the connection was closed" if disconnected else reason_of(error)
    if refuses_handshake(error) and not attempt.reused:
        return Unsent(why)
    # The message of a disconnection is what had come of an answer, or a text of aiohttp if nothing had.
    if isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str):
        return InDoubt(f"the answer breaks off: {why}")
    return Dropped(f"no answer came: {why}")


class UnusableFile(Unsent):
    """A file of a TLS option that cannot be used."""


def tls_context(verify: bool | str, cert: str | tuple[str, str] | None) -> ssl.SSLContext:
    """Return the TLS context of a client, made again when one of its files has changed.

    verify: True for the authorities that `requests` trusts, the path of a file or folder of others, False to trust any
    server. cert: the client's certificate, with its key in the same file or in a second one. Variables of the
    environment have no effect. Raises UnusableFile when a file is missing or holds something else.
    """
    authorities: str | None = None
    if verify is True:
        authorities = DEFAULT_CA_BUNDLE_PATH
    elif isinstance(verify, str):
        authorities = verify
    files: tuple[str, ...] = (cert,) if isinstance(cert, str) else cert or ()
    # The times of the files are a part of the cache's key: a file that has changed makes another context.
    stamps = tuple(_modified_at(file) for file in (*files, authorities) if file is not None)
    return _make_context(authorities, files, stamps)


def _modified_at(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError as error:
        raise UnusableFile(f"TLS: {file}: {error.strerror}") from None


# reading the authorities takes longer than a hundred calls
@lru_cache(maxsize=16)
def _make_context(authorities: str | None, files: tuple[str, ...], stamps: tuple[int, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    file = authorities
    try:
        if authorities is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif Path(authorities).is_dir():
            context.load_verify_locations(capath=authorities)
        else:
            context.load_verify_locations(authorities)
        if files:
            file = files[0]
            context.load_cert_chain(file, files[-1], password="")  # or OpenSSL asks a terminal for it
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror
        raise UnusableFile(f"TLS: {file} is not what it should be: {why}") from None
    return context
