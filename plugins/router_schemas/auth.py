"""Log in at a registry: user and password, a fixed token, or tokens for client credentials."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import requests
from pydantic import BaseModel, Field, ValidationError
from requests.auth import AuthBase, HTTPBasicAuth

from router_schemas.connection import RegistryAway, RegistryRefuses
from router_schemas.exchange import busy, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_schemas.connection import OAuth, Registry

EARLY = 0.2
"""Share of a token's life that is not used, at most LONGEST_EARLY seconds: a request takes time, clocks differ."""
LONGEST_EARLY = 60.0


def login(registry: Registry) -> AuthBase:
    """Return how requests to a registry are authorised; raise RegistryRefuses when its secrets were lost on a way."""
    if not all(registry.secrets):
        raise RegistryRefuses(registry.url[0], "secrets do not travel to other processes: ask it on the driver")
    if registry.basic is not None:
        # bytes, for requests would write Latin-1 where RFC 7617 wants UTF-8
        return HTTPBasicAuth(registry.basic.user.encode(), registry.basic.password.get_secret_value().encode())
    if registry.bearer is not None:
        return BearerAuth(registry.bearer.get_secret_value())
    if registry.oauth is not None:
        return ClientCredentialsAuth(registry.oauth, seconds=registry.timeout, verify=registry.verify)
    return NoAuth()


class NoAuth(AuthBase):
    """Leave a request as it is; without any auth `requests` would take a login from ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class BearerAuth(AuthBase):
    """Send one token with every request (RFC 6750, 2.1)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _Granted(BaseModel):
    """Be the answer of a token server (RFC 6749, 5.1)."""

    access_token: str = Field(pattern=r"^[\x21-\x7e]+$")
    expires_in: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class ClientCredentialsAuth(AuthBase):
    """Get tokens for client credentials, renew them before they expire, and once when a server says 401.

    One token serves all threads. Raises RegistryAway when the token server does not answer, RegistryRefuses when it
    refuses; `seconds` and `verify` as for the registry, `clock` in seconds.
    """

    def __init__(
        self, options: OAuth, *, seconds: float, verify: bool | str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._seconds = seconds
        self._verify = verify
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._good_until = 0.0

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._current()}"
        request.register_hook("response", self._again)
        return request

    def _again(self, response: requests.Response, **arguments: Any) -> requests.Response:
        """Send a request that was answered with 401 once more, with a new token; the hook does not run for it."""
        if response.status_code != 401:
            return response
        refused = str(response.request.headers["Authorization"]).removeprefix("Bearer ")
        response.close()  # unread: the body may be of any length
        request = response.request.copy()
        request.headers["Authorization"] = f"Bearer {self._current(refused)}"
        again: requests.Response = response.connection.send(request, **arguments)
        again.history.append(response)
        again.request = request
        return again

    def _current(self, refused: str = "") -> str:
        """Return a token; a new one when there is none, when it is about to expire, or when it was refused."""
        with self._lock:
            if not self._token or self._token == refused or self._clock() >= self._good_until:
                granted = self._fetch()
                life = float("inf") if granted.expires_in is None else granted.expires_in
                self._good_until = self._clock() + life - min(LONGEST_EARLY, EARLY * life)
                self._token = granted.access_token
            return self._token

    def _fetch(self) -> _Granted:
        where = self._options.token_url
        form = {"grant_type": "client_credentials", "scope": self._options.scope}
        # both are form-encoded inside of the header: RFC 6749, 2.3.1
        user = quote_plus(self._options.client_id)
        password = quote_plus(self._options.client_secret.get_secret_value())
        with requests.Session() as session:
            session.auth = HTTPBasicAuth(user, password)
            answer = send(
                session,
                "POST",
                where,
                seconds=self._seconds,
                verify=self._verify,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                data={name: value for name, value in form.items() if value},
            )
        if busy(answer.status):
            raise RegistryAway(where, f"the token server answers {answer.status}", answer.status)
        if answer.status != 200:
            what = f"the token server answers {answer.status}; check token_url, client_id, client_secret and scope"
            raise RegistryRefuses(where, what, answer.status)
        try:
            return _Granted.model_validate_json(answer.body)
        except ValidationError:
            raise RegistryAway(where, "the token server's answer holds no token") from None
