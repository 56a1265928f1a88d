"""Run the hooks that a login has on responses: a digest login answers the challenge of a server so.

A hook gets a `requests.Response`, and may send the request again by its `connection`. It waits for that, so it has a
thread; what it sends goes out by the event loop, like all other requests.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import requests
from requests.auth import AuthBase
from requests.hooks import dispatch_hook
from requests.structures import CaseInsensitiveDict

from router_rest.http_client.response import InDoubt, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from router_rest.http_client.response import Response

    SendRequest = Callable[[requests.PreparedRequest], Coroutine[Any, Any, Response]]


class HookConnection:
    """The connection of responses as hooks see it: `send_request` runs in the event loop, hooks in a thread."""

    def __init__(self, send_request: SendRequest) -> None:
        self._send_request = send_request
        self._loop = asyncio.get_running_loop()
        self._ended: BaseException | None = None

    def send(self, request: requests.PreparedRequest, **arguments: Any) -> requests.Response:
        """Send a request, and wait for the response. Hooks give arguments of `requests`, which have no effect."""
        try:
            answer = asyncio.run_coroutine_threadsafe(self._send_request(request), self._loop).result()
        except BaseException as error:
            self._ended = error
            raise
        response: Any = requests.Response()
        response.status_code = answer.status
        response.headers = CaseInsensitiveDict(answer.headers)
        response._content = answer.body
        response._content_consumed = True
        response.raw = answer
        response.url = request.url
        response.request = request
        response.connection = self
        return response  # type: ignore[no-any-return]

    def send_with_hooks(self, request: requests.PreparedRequest) -> Response:
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
            final: Response = dispatch_hook("response", request.hooks, answer).raw
        except Exception as error:  # hooks are code of users
            if error is self._ended:
                raise
            raise InDoubt(f"no answer came: {reason_of(error)}") from None
        return final
