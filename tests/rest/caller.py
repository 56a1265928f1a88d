"""Run a task in a process of its own: hold a lease, and print the time of each call.

Run as `python -m tests.rest.caller SINK WORKERS`; the address, pickled, comes on stdin. The last line is the name of
what ended the lease.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import sys
import time

from router_rest.channel.client import TaskEnded
from router_rest.limits.lease_client import LeaseClient


async def call(lease: LeaseClient) -> None:
    """Call an API that answers after a while, for ever."""
    while True:
        await lease.acquire()
        print(time.monotonic(), flush=True)  # noqa: T201 - read by the test
        await asyncio.sleep(0.02)
        lease.release(200, ok=True, throttled=False, seconds=0.02)


async def main(sink: str, workers: int) -> None:
    """Run until the lease ends."""
    lease = await LeaseClient.open(pickle.loads(base64.b64decode(sys.stdin.readline())), sink)
    try:
        await asyncio.gather(*(call(lease) for _ in range(workers)))
    finally:
        await lease.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    except TaskEnded as error:
        print(type(error).__name__, flush=True)  # noqa: T201
