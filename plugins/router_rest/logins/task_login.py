"""The login that a task has: credentials of the driver, renewed before they end and when the API refuses them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router import StartError
from router_rest.channel.client import TaskEnded
from router_rest.logins.credentials import SecretMask, make_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from requests import PreparedRequest
    from requests.auth import AuthBase

    from router_rest.channel.client import DriverChannel

CREDENTIALS_RETRY_SECONDS = 5.0
"""Seconds after which a task that got no credentials asks for them again."""


@dataclass
class TaskLogin:
    """The credentials of one task.

    `mask` hides the secrets in what is kept of answers.
    """

    channel: DriverChannel
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
        self._use_credentials(await self.channel.fetch_credentials())

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
                self._use_credentials(await self.channel.fetch_credentials(refused))
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
                self._use_credentials(await self.channel.fetch_credentials())

    def _use_credentials(self, given: Mapping[str, Any]) -> None:
        self.version = str(given["version"])
        self._renew_at = self.clock() + given.get("renewal", float("inf"))
        self._good_until = self.clock() + given.get("good", float("inf"))
        self.proxies = given.get("proxies")
        self._plugin = "plugin" in given
        self._given = self.mask = SecretMask.for_credentials(given)
        self._auth = make_login(given)
