"""Make calls by a wire."""

from __future__ import annotations

import asyncio
from typing import Any

import requests

from router_rest.wire import Wire
from tests.rest.scripted import PATIENCE

MOST = 1000
OPTIONS: dict[str, Any] = {"connect": PATIENCE, "read": PATIENCE, "total": PATIENCE, "most": MOST, "in_flight": 4}


def post(url: str, body: Any = b'{"game": "chess"}', method: str = "POST", **headers: str) -> requests.PreparedRequest:
    """Prepare a request; `_` in the name of a header stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.Request(method, url, data=body, headers=named).prepare()


def ask(*calls: requests.PreparedRequest, **options: Any) -> list[Any]:
    """Send requests one after the other by one wire; return the answers and errors."""

    async def all_of_them() -> list[Any]:
        wire = Wire(**{**OPTIONS, **options})
        try:
            return [await outcome(wire, request) for request in calls]
        finally:
            await wire.close()

    return asyncio.run(all_of_them())


async def outcome(wire: Wire, request: requests.PreparedRequest) -> Any:
    try:
        return await wire.send(request)
    except OSError as error:
        return error
