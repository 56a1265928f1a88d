"""A thin HTTP server in front of the windows of the package `limits`: `python windows.py KIND LIMIT SECONDS FOLDER`.

KIND is `fixed` (windows that begin at whole seconds or minutes of the clock) or `moving`. Each path, /router and
/naive, has a limit and a log of its own: a line per answer, with the time and the status. Prints its port.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from aiohttp import web
from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

STRATEGIES = {"fixed": FixedWindowRateLimiter, "moving": MovingWindowRateLimiter}
PERIODS = {1: RateLimitItemPerSecond, 60: RateLimitItemPerMinute}


async def main(kind: str, limit: str, seconds: str, folder: str) -> None:
    """Serve until the process ends."""
    limiter = STRATEGIES[kind](MemoryStorage())
    item = PERIODS[int(seconds)](int(limit))
    logs = {client: Path(folder, f"{client}.log").open("w") for client in ("router", "naive")}  # noqa: SIM115

    async def answer(request: web.Request) -> web.Response:
        client = request.match_info["client"]
        arrived = time.time()
        status = 200 if limiter.hit(item, client) else 429
        logs[client].write(f"{arrived:.6f} {status}\n")
        logs[client].flush()
        await request.read()
        return web.Response(status=status)

    server = web.Application()
    server.router.add_post("/{client:router|naive}", answer)
    runner = web.AppRunner(server, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
