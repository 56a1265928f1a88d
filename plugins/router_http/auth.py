"""Log in with a request: user and password, a fixed token, or tokens for client credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from requests.auth import AuthBase, HTTPBasicAuth

if TYPE_CHECKING:
    import requests

    from router_http.logins import Basic
    from router_http.tokens import Tokens


def basic_auth(login: Basic) -> AuthBase:
    """Return how to log in with user and password."""
    # bytes, for requests would write Latin-1 where RFC 7617 wants UTF-8
    return HTTPBasicAuth(login.user.encode(), login.password.get_secret_value().encode())


class NoAuth(AuthBase):
    """A request left as it is; without any auth `requests` would take a login from ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class BearerAuth(AuthBase):
    """One token, sent with every request (RFC 6750, 2.1)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class ClientCredentialsAuth(AuthBase):
    """A token of a token server, and a new one once when a server says 401."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._tokens.current().text}"
        request.register_hook("response", self._again)
        return request

    def _again(self, response: requests.Response, **arguments: Any) -> requests.Response:
        """Send a request that was answered with 401 once more, with a new token; the hook does not run for it."""
        if response.status_code != 401:
            return response
        refused = str(response.request.headers["Authorization"]).removeprefix("Bearer ")
        response.close()  # unread: the body may be of any length
        request = response.request.copy()
        request.headers["Authorization"] = f"Bearer {self._tokens.other_than(refused).text}"
        again: requests.Response = response.connection.send(request, **arguments)
        again.history.append(response)
        again.request = request
        return again
