"""The page of a stream for a browser, and the login of one that has a token.

The files of the page are in `assets`. They have no data of the stream: that comes by `/api/events`.

A browser cannot send a header with a page, so a form takes the token once, and a cookie stands for it from then on. The
cookie is not the token: a browser sends it to the servers of all ports of this host.
"""

from __future__ import annotations

import hashlib
import hmac
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.config.models import Ui

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    # With `no-referrer` a browser would send a form of this page with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ASSETS = {
    "/": ("page.html", "text/html"),
    "/assets/page.css": ("page.css", "text/css"),
    "/assets/page.js": ("page.js", "text/javascript"),
    "/assets/graph.js": ("graph.js", "text/javascript"),
    "/assets/table.js": ("table.js", "text/javascript"),
    "/assets/text.js": ("text.js", "text/javascript"),
}
FORM_PATHS = frozenset({"/", "/login"})
"""Where a browser without a token gets the form."""
OPEN_ASSETS = frozenset({"/assets/page.css"})
"""The form needs it before a login."""
WRONG_TOKEN = b'<p id="problem" role="alert">This is not the token of this stream.</p>'


def asset_response(path: str) -> web.Response:
    """Return the file of the page at a path."""
    name, content_type = ASSETS[path]
    return web.Response(body=_read_asset(name), content_type=content_type, charset="utf-8")


def _read_asset(name: str) -> bytes:
    # By way of the package: under spark-submit it may be an archive.
    return files("router.engine.status").joinpath("assets").joinpath(name).read_bytes()


class Login:
    """Who may read: everybody if there is no token, else whoever has it, or the cookie that stands for it."""

    def __init__(self, query: str, ui: Ui) -> None:
        token = "" if ui.token is None else ui.token.get_secret_value()
        self._token = token.encode()
        # It is the same after a restart, so that a page that is open gets on by itself.
        self._session = hmac.new(self._token, b"session of the page", hashlib.sha256).hexdigest()
        # Streams of one host, at several ports, share their cookies.
        self.cookie = f"router-{hashlib.sha256(query.encode()).hexdigest()[:12]}"

    def may_read(self, request: web.Request) -> bool:
        """Say whether a request has the token or the cookie."""
        if not self._token:
            return True
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(value.strip().encode(), self._token):
            return True
        cookie = request.cookies.get(self.cookie, "")
        return hmac.compare_digest(cookie.encode(), self._session.encode())

    def form_response(self, *, is_wrong: bool = False) -> web.Response:
        """Return the form that asks for the token."""
        body = _read_asset("login.html").replace(b'<p id="problem"></p>', WRONG_TOKEN if is_wrong else b"")
        response = web.Response(body=body, status=401, content_type="text/html", charset="utf-8")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def log_in(self, request: web.Request) -> web.Response:
        """Take the token of the form, and give the cookie for it."""
        if is_cross_site(request.headers, request.host):
            return web.Response(text="the form of another site is refused\n", status=403)
        posted = await request.post()
        value = posted.get("token")
        if not isinstance(value, str) or not hmac.compare_digest(value.strip().encode(), self._token):
            return self.form_response(is_wrong=True)
        response = web.Response(status=303, headers={"Location": "/"})
        # A proxy may speak https with the browser, and http with this server: the browser says which.
        is_https = urlsplit(request.headers.get("Origin", "")).scheme == "https"
        response.set_cookie(
            self.cookie, self._session, httponly=True, samesite="Strict", secure=is_https or request.secure
        )
        return response


def is_cross_site(headers: Mapping[str, str], host: str) -> bool:
    """Say whether a page of another site has sent a form. A client that is no browser sends neither header."""
    if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc != host
