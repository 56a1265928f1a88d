"""Authorise the requests of a task with what the driver gives, and get something newer when an API refuses it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from requests import PreparedRequest
    from requests.auth import AuthBase

    from router_rest.lease import Lease


@dataclass
class Login:
    """Hold the credentials of one task. `make` turns what the driver gives into how `requests` authorises."""

    lease: Lease
    make: Callable[[Mapping[str, Any]], AuthBase] = field(repr=False)
    version: str = ""
    proxies: Mapping[str, str] | None = field(default=None, repr=False)
    _auth: AuthBase | None = field(default=None, repr=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _asked: int = field(default=0, repr=False)

    async def open(self) -> None:
        """Get the first credentials. Raises LookupError when the driver has none."""
        self._take(await self.lease.credentials())

    def auth(self, request: PreparedRequest) -> PreparedRequest:
        """Return a request with its credentials."""
        assert self._auth is not None
        authorised: PreparedRequest = self._auth(request)
        return authorised

    async def renewed(self, refused: str) -> bool:
        """Return whether there are other credentials than those of a version that was refused; asks once for all."""
        asked = self._asked
        async with self._lock:
            if self.version != refused:
                return True
            if self._asked != asked:  # in vain, while this one waited
                return False
            with suppress(LookupError):  # the driver has none now, and says so in its log
                self._take(await self.lease.credentials(refused))
            self._asked += 1
            return self.version != refused

    def _take(self, given: Mapping[str, Any]) -> None:
        self.version = str(given["version"])
        self.proxies = given.get("proxies")
        self._auth = self.make(given)
