"""Credentials on their way from the driver to a task, by the channel between them, and the login that a task has.

`CredentialsServer` answers on the driver; `CredentialsClient` asks in a task, for its `TaskLogin`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from router import StartError
from router_rest.channel.client import TaskEnded
from router_rest.channel.server import TaskListener
from router_rest.logins.credentials import SecretMask, make_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from requests import PreparedRequest
    from requests.auth import AuthBase

    from router_rest.channel.client import DriverChannel, Gone
    from router_rest.channel.server import TaskSession

log = logging.getLogger("router")
CREDENTIALS_RETRY_SECONDS = 5.0
"""Seconds after which a task that got no credentials asks for them again."""


class CredentialsServer(TaskListener):
    """The credentials of a sink, for those of its tasks that ask.

    `current_credentials` returns what tasks get; it is given the version that was refused, or "". It may ask a token
    server, so it runs on a thread of its own.
    """

    def __init__(self, current_credentials: Callable[[str], Mapping[str, Any]]) -> None:
        self._current_credentials = current_credentials
        self._answers: dict[TaskSession, set[asyncio.Future[None]]] = {}

    def on_message(self, session: TaskSession, message: Mapping[str, Any]) -> None:
        """Answer a task that asks for credentials."""
        if "credentials" not in message:
            return
        answer = asyncio.ensure_future(self._send_credentials(session, message["credentials"], message["refused"]))
        answers = self._answers.setdefault(session, set())
        answers.add(answer)
        answer.add_done_callback(answers.discard)

    def on_close(self, session: TaskSession) -> None:
        """Answer no more."""
        for answer in self._answers.pop(session, ()):
            answer.cancel()

    async def _send_credentials(self, session: TaskSession, number: int, refused: str) -> None:
        """Send a task credentials. What is wrong with them is logged here, for the message may hold a secret."""
        loop = asyncio.get_running_loop()
        try:
            given = await loop.run_in_executor(None, self._current_credentials, refused)
        except Exception as error:  # whatever a plugin raises; a StartError is the router's, and quotes no secret
            log.warning("sink %s: no credentials: %s", session.sink, error)
            failure = {"wrong": str(error)} if isinstance(error, StartError) else {"failed": type(error).__name__}
            session.send_message({"credentials": number, **failure})
            return
        session.send_message({"credentials": number, "given": dict(given)})


class CredentialsClient:
    """What a task asks the driver for credentials with."""

    def __init__(self, channel: DriverChannel) -> None:
        self._channel = channel
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        channel.listen(self)

    async def fetch_credentials(self, refused: str = "") -> Mapping[str, Any]:
        """Return the sink's credentials from the driver; `refused` is the version that the API did not take.

        Raises:
            Gone: The driver is not reached.
            LookupError: The driver has none; its log says why.
            StartError: There will be none until a configuration is changed.
        """
        if self._channel.gone is not None:
            raise self._channel.gone
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._channel.send_message({"credentials": number, "refused": refused})
        try:
            return await answer
        finally:
            del self._answers[number]

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Give an answer of the driver to the call that waits for it."""
        answer = self._answers.get(message.get("credentials", -1))
        if answer is None or answer.done():
            return
        if "wrong" in message:
            answer.set_exception(StartError(message["wrong"]))
        elif "failed" in message:
            answer.set_exception(LookupError(f"the driver has no credentials: {message['failed']}"))
        else:
            answer.set_result(message["given"])

    def on_gone(self, why: Gone) -> None:
        """End all waits: the driver is gone."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(why)


@dataclass
class TaskLogin:
    """The credentials of one task.

    `mask` hides the secrets in what is kept of answers.
    """

    credentials: CredentialsClient
    version: str = ""
    proxies: Mapping[str, str] | None = field(default=None, repr=False)
    mask: SecretMask = field(default_factory=SecretMask, repr=False)
    _auth: AuthBase | None = field(default=None, repr=False)
    _plugin: bool = False
    _given: SecretMask = field(default_factory=SecretMask, repr=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _asked: int = field(default=0, repr=False)
    _renew_at: float = float("inf")
    _good_until: float = float("inf")
    _renewal: asyncio.Task[None] | None = field(default=None, repr=False)
    clock: Callable[[], float] = time.monotonic

    async def open(self) -> None:
        """Get the first credentials. Raises LookupError when the driver has none."""
        self._use_credentials(await self.credentials.fetch_credentials())

    def authorise_request(self, request: PreparedRequest) -> PreparedRequest:
        """Return a request with its credentials."""
        assert self._auth is not None
        if not self._plugin:
            return self._auth(request)
        # What a plugin adds is taken for secret: only the plugin knows what of it is.
        before = {*request.headers, "Content-Length"}
        authorised: PreparedRequest = self._auth(request)
        headers = {name: value for name, value in authorised.headers.items() if name not in before}
        self.mask = self._given.and_of(headers)
        return authorised

    async def has_renewed(self, refused: str) -> bool:
        """Return whether there are other credentials than a refused version. One call asks for all that wait."""
        times_asked = self._asked
        async with self._lock:
            if self.version != refused:
                return True
            if self._asked != times_asked:  # another call has asked, in vain, while this one waited
                return False
            with suppress(LookupError, StartError):  # the driver has none now, and has logged it
                self._use_credentials(await self.credentials.fetch_credentials(refused))
            self._asked += 1
            return self.version != refused

    async def refresh_credentials(self) -> None:
        """Ask for new credentials when these are about to end; wait for them only if these have ended."""
        if self.clock() < self._renew_at:
            return
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._fetch_credentials())
        if self.clock() >= self._good_until:
            await asyncio.shield(self._renewal)  # a call that is cancelled ends only its own wait

    async def _fetch_credentials(self) -> None:
        async with self._lock:
            self._renew_at = self.clock() + CREDENTIALS_RETRY_SECONDS
            # The driver has none now, and has logged it; or it is gone, which calls find out by their lease.
            with suppress(LookupError, StartError, TaskEnded):
                self._use_credentials(await self.credentials.fetch_credentials())

    def _use_credentials(self, given: Mapping[str, Any]) -> None:
        self.version = str(given["version"])
        self._renew_at = self.clock() + given.get("renewal", float("inf"))
        self._good_until = self.clock() + given.get("good", float("inf"))
        self.proxies = given.get("proxies")
        self._plugin = "plugin" in given
        self._given = self.mask = SecretMask.for_credentials(given)
        self._auth = make_login(given)
