"""Reach the driver from a task, and say why it is not reached or nothing may go out. Runs on executors."""

from __future__ import annotations

import asyncio
import hmac
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router_rest.handshake import Seal, nonce, proof

if TYPE_CHECKING:
    from router_rest.handshake import Address

WITHIN = 10.0
"""Seconds to reach the driver in."""
LONGEST = 1 << 20
"""Bytes of a line."""


class LeaseEnded(Exception):  # noqa: N818 - the two below say what happened
    """Report that no more calls may go out from this task."""


class Leave(LeaseEnded):
    """Report that the task is to end: the API is out for longer, or the sink stops. `again`: seconds until then."""

    def __init__(self, again: float) -> None:
        super().__init__(again)
        self.again = again

    def __str__(self) -> str:
        return f"nothing may go out for {self.again:.1f} s or more"


class Gone(LeaseEnded):
    """Report that the driver is not reached. Nobody knows what others send, so nothing goes out."""


@dataclass(frozen=True)
class Reached:
    """Hold a connection to the driver, both sides of which have proved who they are.

    `now`: the time by the driver's clock. `sized`: it limits rows, so that it must know how many a call has.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seal: Seal
    now: float
    sized: bool


async def reach(address: Address, sink: str) -> Reached:
    """Return a connection to the driver. Raises Gone."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(address.host, address.port, limit=LONGEST), WITHIN
        )
    except (OSError, asyncio.TimeoutError) as error:
        raise Gone(f"the driver at {address.host}:{address.port} is not reached: {error}") from error
    try:
        return await asyncio.wait_for(_introduced(reader, writer, address, sink), WITHIN)
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, (OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError)):
            raise Gone(f"{address.host}:{address.port} is not the driver of this task") from error
        raise


async def _introduced(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address, sink: str
) -> Reached:
    """Prove to be a task of the driver, and that it is the driver."""
    theirs, own = json.loads(await reader.readline())["nonce"], nonce()
    texts = theirs, own, address.name, sink
    introduction = {"nonce": own, "limit": address.name, "sink": sink, "proof": proof(address.token, "task", *texts)}
    writer.write(json.dumps(introduction).encode() + b"\n")
    answer = json.loads(await reader.readline())
    if "refused" in answer:
        raise Gone(f"sink {sink}: {answer['refused']}")
    if not hmac.compare_digest(proof(address.token, "driver", *texts), answer["proof"]):
        raise ValueError("no proof")
    return Reached(reader, writer, Seal(address.token, *texts), answer["now"], answer["sized"])
