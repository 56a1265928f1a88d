"""The status of a stream over HTTP: JSON, metrics, health. A thread of the driver's process serves it.

| path | answers |
|---|---|
| `/` | the page, or the form of its login |
| `/api/status` | the snapshot as JSON |
| `/api/events` | the same for the page, whenever something has changed |
| `/metrics` | the same for Prometheus |
| `/healthz` | 200; 503 if the stream's thread made no step for `stuck_after` and waits for nothing that has a name |
| `/readyz` | 200 once the stream reads its source; 503 before, and after its end |

Nothing can be changed here: but for the login only GET is answered. No secret is shown, and no record unless the
configuration has `ui: {samples: true}`. A page of another site must not read it, even if its name points to this
machine (DNS rebinding), so the `Host` of a request has to be one of the server's own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from router.config.models import Metrics, Ui, parse_interval
from router.engine.land.record_ages import AGE_SECONDS
from router.engine.status.events import SnapshotEvents, status_text
from router.engine.status.findings import find_troubles
from router.engine.status.metrics import metrics_text
from router.engine.status.page import ASSETS, FORM_PATHS, OPEN_ASSETS, PAGE_HEADERS, Login, asset_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from router.engine.status.events import SnapshotSource

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger("router")
OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no token and answer to any Host: whoever probes a container knows neither."""
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **PAGE_HEADERS}
_CLOSING_SECONDS = 5.0
REQUEST_SECONDS = 1.0
"""How long requests may continue when the server ends."""
LARGEST_FORM = 4096
"""Bytes of a request's body."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class StatusServer:
    """The server of one stream's status. Use it as a context: it ends with the block.

    An address that is taken is a warning: a stream does not end because its page cannot be shown. `file` is the
    configuration as a user would type it, `graph` its document (`router graph`): the page shows both.
    """

    def __init__(
        self,
        board: SnapshotSource,
        ui: Ui,
        metrics: Metrics,
        file: str = "FILE",
        graph: Mapping[str, Any] | None = None,
    ) -> None:
        self.board = board
        self.ui = ui
        self.metrics = metrics
        self.stuck_after = parse_interval(ui.stuck_after).total_seconds()
        self.address: tuple[str, int] | None = None
        self._login = Login(board.snapshot().query, ui)
        self._events = SnapshotEvents(board, file, self.stuck_after, HEADERS, graph=graph, freshness_bounds=AGE_SECONDS)
        self._loop = asyncio.new_event_loop()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._run_server, name="status", daemon=True)

    def __enter__(self) -> StatusServer:
        self._thread.start()
        self._bound.wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self.address is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)

    def _run_server(self) -> None:
        asyncio.set_event_loop(self._loop)
        application = web.Application(middlewares=[self._check_access], client_max_size=LARGEST_FORM)
        application.on_shutdown.append(self._events.end_all)
        for path in ASSETS:
            application.router.add_get(path, self._get_asset)
        application.router.add_get("/login", self._to_page)
        application.router.add_post("/login", self._login.log_in)
        application.router.add_get("/api/events", self._events.send_events)
        application.router.add_get("/api/status", self._get_status)
        application.router.add_get("/metrics", self._get_metrics)
        application.router.add_get("/healthz", self._get_healthz)
        application.router.add_get("/readyz", self._get_readyz)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=REQUEST_SECONDS)
        try:
            self._loop.run_until_complete(self._bind_address(runner))
            self._bound.set()
            self._loop.run_forever()
        except OSError as error:
            log.warning("the status of the stream is not shown: %s cannot be served: %s", self.ui.address, error)
        finally:
            self._loop.run_until_complete(runner.cleanup())
            self._loop.close()
            # The start waits for this, also if nothing could be bound.
            self._bound.set()

    async def _bind_address(self, runner: web.AppRunner) -> None:
        await runner.setup()
        host, port = self.ui.host_and_port
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = runner.addresses[0]
        self.address = (str(bound[0]), int(bound[1]))

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer what may be answered. Only `OPEN` paths are for everybody."""
        is_login = request.path == "/login" and request.method == "POST"
        if request.method not in ("GET", "HEAD") and not is_login:
            return _text_response("only GET is answered", 405)
        if request.path not in OPEN:
            # The name before the token: a page that has rebound a name must not learn whether it has the right one.
            if not self._is_own(request.host):
                return _text_response("this name is not the server's; see `ui: {hosts: [...]}`", 421)
            needs_token = not is_login and request.path not in OPEN_ASSETS
            if needs_token and not self._login.may_read(request):
                if request.path in FORM_PATHS:
                    form = self._login.form_response()
                    form.headers.update(HEADERS)
                    return form
                response = _text_response("a token is needed: Authorization: Bearer TOKEN", 401)
                response.headers["WWW-Authenticate"] = "Bearer"
                return response
        try:
            response_of_path = await handler(request)
        except web.HTTPException as error:
            return _text_response(error.reason, error.status)
        if not response_of_path.prepared:
            response_of_path.headers.update(HEADERS)
        return response_of_path

    def _is_own(self, host: str) -> bool:
        """Say whether a request's Host is the address that is bound, one of the machine's, or one that is allowed."""
        name = _host_name(host)
        if name in self.ui.hosts:
            return True
        bound, _ = self.ui.host_and_port
        # These stand for every address of the machine.
        if bound in ("0.0.0.0", "::"):
            return name in LOCAL_NAMES or name in _addresses_of_machine()
        return name == bound or (_is_loopback(bound) and name in LOCAL_NAMES)

    async def _to_page(self, request: web.Request) -> web.Response:
        return web.Response(status=303, headers={"Location": "/"})

    async def _get_asset(self, request: web.Request) -> web.Response:
        return asset_response(request.path)

    async def _get_status(self, request: web.Request) -> web.Response:
        text = status_text(self.board.snapshot(), self._events.file, self.stuck_after)
        return web.Response(text=text, content_type="application/json")

    async def _get_metrics(self, request: web.Request) -> web.Response:
        body = metrics_text(self.board.snapshot(), self.metrics.tables_at_most)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _get_healthz(self, request: web.Request) -> web.Response:
        snapshot = self.board.snapshot()
        for finding in find_troubles(snapshot, self._events.file, self.stuck_after, time.time()):
            if finding.kind in ("failed", "stuck"):
                return _text_response(finding.text, 503)
        return _text_response(snapshot.words)

    async def _get_readyz(self, request: web.Request) -> web.Response:
        snapshot = self.board.snapshot()
        ready = snapshot.state == "running" and time.time() - snapshot.progress <= self.stuck_after
        return _text_response(snapshot.words, 200 if ready else 503)


def _text_response(text: str, status: int = 200) -> web.Response:
    return web.Response(text=f"{text}\n", status=status, headers=HEADERS)


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _addresses_of_machine() -> set[str]:
    """Return the addresses that this machine has by its own name."""
    names = {socket.gethostname().lower()}
    with suppress(OSError):
        names |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    return names
