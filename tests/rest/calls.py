"""Make calls by a client."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import requests

from router_rest.http_client.client import HttpClient
from router_rest.http_client.response import HttpOptions
from tests.rest.scripted import PATIENCE

MOST = 1000
OPTIONS = HttpOptions(connect=PATIENCE, read=PATIENCE, total=PATIENCE, most=MOST, in_flight=4)


def post(url: str, body: Any = b'{"game": "chess"}', method: str = "POST", **headers: str) -> requests.PreparedRequest:
    """Prepare a request; `_` in the name of a header stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.Request(method, url, data=body, headers=named).prepare()


def hooked(*arguments: Any, **headers: str) -> requests.PreparedRequest:
    """Prepare a request as `post` does, with a hook on the response."""
    request = post(*arguments, **headers)
    request.register_hook("response", lambda response, **_: None)
    return request


def ask(*calls: requests.PreparedRequest, proxies: Any = None, **options: Any) -> list[Any]:
    """Send requests one after the other by one client; return the answers and errors."""

    async def all_of_them() -> list[Any]:
        client = HttpClient(replace(OPTIONS, **options), proxies)
        try:
            return [await outcome(client, request) for request in calls]
        finally:
            await client.close()

    return asyncio.run(all_of_them())


async def outcome(client: HttpClient, request: requests.PreparedRequest) -> Any:
    try:
        return await client.send(request)
    except OSError as error:
        return error


def open_count(client: HttpClient) -> int:
    """Return how many connections of a client are open."""
    return sum(connection.is_connected() for connection in client._connections._kept)
