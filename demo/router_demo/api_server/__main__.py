"""Run the mock API: `python -m router_demo.api --help`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from router_demo.api_server.page import limits_of
from router_demo.api_server.script import Script
from router_demo.api_server.server import Server


def main(words: list[str]) -> None:
    """Serve until the process is ended; print the ports as one line of JSON when they are open, and one for people."""
    options = _parser().parse_args(words)
    # It stands for a machine of its own: what else runs on this one must not show in the times of arrivals.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    # Requests are kept, and looking through all of them again and again would show in the times of arrivals.
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    server = Server(options.host, options.certificate, options.client_ca)
    port, control_port = await server.start(options.port, options.control_port)
    script = Script.model_validate_json(options.script)
    server.play(script)
    # For programs that start this one: the script is in force when they read the ports.
    sys.stdout.write(json.dumps({"port": port, "control_port": control_port}) + "\n")
    sys.stdout.flush()
    # For people.
    scheme = "https" if options.certificate else "http"
    sys.stderr.write(f"the API at {scheme}://{options.host}:{port}/ {limits_of(script)}; look at it there, ")
    sys.stderr.write(f"or at http://{options.host}:{control_port}/ while it is unavailable\n")
    await asyncio.Event().wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m router_demo.api", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any that is free")
    add("--control-port", type=int, default=0, help="takes scripts, and gives the figures of the calls")
    add("--script", default="{}", metavar="JSON", help='how it behaves, such as {"latency": 0.034}')
    add("--certificate", type=Path, metavar="PEM", help="speak TLS, with the certificate and key in this file")
    add("--client-ca", type=Path, metavar="PEM", help="ask clients for a certificate that this one signed")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
