"""Log calls in: the driver holds secrets and fetches tokens, tasks ask it and write them into requests."""

from __future__ import annotations

import base64
import importlib
import time
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from requests.auth import AuthBase

from router import StartError
from router_http.exchange import Away, Refuses
from router_http.secret import Secret
from router_http.tokens import Tokens
from router_rest.signing import Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import requests

    from router_rest.auth import ApiKey, Auth, Hmac

FIXED = "1"
"""The version of credentials that do not change."""


class Credentials:
    """Hold what opens an API. For the driver; any thread may ask, and it is never pickled.

    `headers` are those of every call, `proxy` the URL of a proxy, `seconds` and `verify` are for the token server,
    `clock` returns seconds.
    """

    def __init__(
        self,
        auth: Auth | None,
        headers: Mapping[str, Secret] | None = None,
        *,
        seconds: float = 10.0,
        verify: bool | str = True,
        proxy: Secret | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._auth = auth
        self._headers = {name: _open(value) for name, value in (headers or {}).items()}
        self._proxies = proxies_of(_open(proxy)) if proxy is not None else None
        self._tokens: Tokens | None = None
        if auth is not None and auth.oauth is not None:
            _open(auth.oauth.client_secret)
            self._tokens = Tokens(auth.oauth, seconds=seconds, verify=verify, proxies=self._proxies, clock=clock)
        self._fixed = {"headers": self._headers, "proxies": self._proxies, **_fixed(auth, self._headers)}

    @property
    def renewable(self) -> bool:
        """Say whether credentials that were refused can be replaced by others."""
        return self._tokens is not None

    def current(self, refused: str = "") -> dict[str, Any]:
        """Return what `apply` takes, as JSON has it; `refused` is the `version` of one that was answered with 401.

        May ask a token server. Raises ConnectionError while that is away, StartError when it refuses this client.
        """
        if self._tokens is None:
            return {"version": FIXED, **self._fixed}
        try:
            number = int(refused) if refused.isascii() and refused.isdigit() else 0
            token = self._tokens.other_than(number) if number else self._tokens.current()
        except Away as fault:
            raise ConnectionError(str(fault)) from None
        except Refuses as fault:
            raise StartError(str(fault)) from None
        headers = {**self._headers, "Authorization": f"Bearer {token.text}"}
        return {"version": str(token.number), **self._fixed, "headers": headers}

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials stay on the driver")


def _fixed(auth: Auth | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return what a login that does not change adds to, or has in place of, the headers of every call."""
    if auth is None or auth.oauth is not None:
        return {}
    if auth.basic is not None:
        login = f"{auth.basic.user}:{_open(auth.basic.password)}".encode()
        return {"headers": {**headers, "Authorization": f"Basic {base64.b64encode(login).decode()}"}}
    if auth.bearer is not None:
        return {"headers": {**headers, "Authorization": f"Bearer {_open(auth.bearer)}"}}
    if auth.api_key is not None:
        return _api_key(auth.api_key, headers)
    if auth.hmac is not None:
        return {"hmac": _hmac(auth.hmac)}
    options = {name: _open(one) if isinstance(one, Secret) else one for name, one in auth.options.items()}
    return {"plugin": auth.plugin, "options": options}


def _api_key(key: ApiKey, headers: Mapping[str, str]) -> dict[str, Any]:
    if key.header is not None:
        return {"headers": {**headers, key.header: _open(key.value)}}
    return {"query": {key.query: _open(key.value)}}


def _hmac(options: Hmac) -> dict[str, Any]:
    _open(options.key)
    plain = options.model_dump(exclude={"key", "key_encoding"})
    return {**plain, "key": base64.b64encode(options.secret()).decode()}


def _open(secret: Secret) -> str:
    text = secret.get_secret_value()
    if not text:
        raise StartError("secrets do not travel to other processes: ask for credentials on the driver")
    return text


def proxies_of(proxy: str) -> dict[str, str]:
    """Return a proxy as `requests` takes it."""
    return {"http": proxy, "https": proxy}


def apply(given: Mapping[str, Any], clock: Callable[[], float] = time.time) -> AuthBase:
    """Return what writes credentials into a request, made of what `Credentials.current` gave. Runs on executors.

    Call it on a copy of the request for every attempt: a signature holds the time. Afterwards neither the request nor
    its URL may be logged. `clock` returns seconds since 1970.
    """
    signer: AuthBase | None = None
    if "hmac" in given:
        signer = Signature(given["hmac"], clock)
    elif "plugin" in given:
        signer = load(given["plugin"], given["options"])
    return Login(given["headers"], given.get("query") or {}, signer)


class Login(AuthBase):
    """Write headers and query of a login into a request, and sign it then."""

    def __init__(self, headers: Mapping[str, str], query: Mapping[str, str], signer: AuthBase | None) -> None:
        self._headers = headers
        self._query = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        self._signer = signer

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name, value in self._headers.items():  # `update` looks at what it is given first
            request.headers[name] = value
        if self._query:
            url = str(request.url)
            request.url = f"{url}{'&' if '?' in url else '?'}{self._query}"
        return request if self._signer is None else self._signer(request)


def load(named: str, options: Mapping[str, Any]) -> AuthBase:
    """Return the object of a plugin's class; raise StartError, without its text, for it may hold an option."""
    module, _, name = named.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
        made = kind(**options)
    except Exception as error:
        raise StartError(f"auth: {named} cannot be made: {type(error).__name__}") from None
    if not isinstance(made, AuthBase):
        raise StartError(f"auth: {named} makes no requests.auth.AuthBase")
    return made
