"""One call, delivered in virtual time by an HTTP client that answers as a test says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from requests.structures import CaseInsensitiveDict

from router_rest.delivery.batcher import Call
from router_rest.delivery.call import Delivery, RequestBuilder, RequestForm
from router_rest.delivery.receipts import Settled
from router_rest.http_client.response import Response
from router_rest.limits.messages import Pace
from router_rest.logins.task_login import TaskLogin
from router_rest.templates import body_of
from tests.rest.virtual import Api, World, simulate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from requests import PreparedRequest

    from router_rest.answers.classifier import Policy
    from router_rest.limits.lease_client import LeaseClient

KEY = "Idempotency-Key"
FORM = RequestForm("POST", "http://api.test/events", {}, body_of("array", "application/json"), KEY)
LATENCY = 0.05
ENOUGH = Pace((), 8, retry_floor=1000.0)


def answer(status: int, body: bytes = b"", *, resent: bool = False, **headers: str) -> Response:
    """Return an answer; `_` in the name of a header stands for `-`."""
    named = CaseInsensitiveDict({name.replace("_", "-"): text for name, text in headers.items()})
    return Response(status, named, body, LATENCY, True, resent)


@dataclass
class Line:
    """An HTTP client whose API gives one answer after the other, the last one for ever; it may be what is raised.

    `act` is given a request in place of that.
    """

    answers: list[Response | OSError] = field(default_factory=list)
    act: Callable[[PreparedRequest, Callable[[], Awaitable[None]]], Awaitable[Response]] | None = None
    begun: list[float] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def send(
        self, request: PreparedRequest, again: Callable[[], Awaitable[None]], ready: Callable[[], Awaitable[None]]
    ) -> Response:
        await ready()
        self.begun.append(asyncio.get_running_loop().time())
        self.bodies.append(bytes(request.body or b""))
        self.keys.append(request.headers[KEY])
        await asyncio.sleep(LATENCY)
        if self.act is not None:
            return await self.act(request, again)
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, OSError):
            raise given
        return given


@dataclass
class CallReport:
    """What became of a call."""

    left: list[Call]
    settled: list[Settled]
    seconds: float
    out: int
    """Places that are still held."""

    @property
    def statuses(self) -> dict[int, str]:
        return {at: one.status for one in self.settled for at in one.call.offsets}


def deliver_one_call(line: Line, policy: Policy, *, rows: int = 1, pace: Pace = ENOUGH) -> CallReport:
    """Deliver one call over a line."""

    async def story() -> CallReport:
        world = World(pace, Api())
        lease, serving = world.lease()
        settled: list[Settled] = []
        delivery = open_delivery(line, policy, lease)
        began = world.loop.time()
        call = Call("events", 3, list(range(10, 10 + rows)), [b'{"at":%d}' % at for at in range(rows)])
        left = await left_calls(delivery, call, settled)
        told = CallReport(left, settled, world.loop.time() - began, lease._tokens.in_flight)
        await lease.close()
        serving.cancel()
        return told

    told: CallReport = simulate(story())
    assert told.out == 0
    assert sorted([*told.statuses, *(at for one in told.left for at in one.offsets)]) == list(range(10, 10 + rows))
    return told


def open_delivery(line: Line, policy: Policy, lease: LeaseClient) -> Delivery:
    """Return what delivers calls over a line."""
    login = TaskLogin(lease)
    login._use_credentials({"version": "1", "headers": {}})
    client: Any = line
    return Delivery(policy, RequestBuilder(FORM), client, lease, login, b"games/wins/rest")


async def left_calls(delivery: Delivery, call: Call, settled: list[Settled]) -> list[Call]:
    """Deliver a call; return the calls that are left."""
    left = []
    async for ended in delivery.deliver_call(call):
        settled.append(ended) if isinstance(ended, Settled) else left.append(ended)
    return left
