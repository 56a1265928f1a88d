"""Limiters that nobody here wrote, each behind a thin server in a process of its own.

| `limiter` | what it is |
|---|---|
| `nginx` | nginx's `limit_req`, of Debian's packages |
| `bucket` | a token bucket of Go's x/time/rate |
| `sliding` | a sliding window of go-chi/httprate |
| `fixed`, `moving` | windows of Python's `limits` |
| `open` | nginx's `limit_conn`: so many calls at a time, each of which takes a part of a second |
| `none` | nginx without a limit |

Each client has a limit of its own, at /router and at /naive, and a log: a line per call, with the time and the status.
With `latency`, and `jitter`, calls and answers go through Toxiproxy, which holds each up for so many milliseconds.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import requests

from benchmarks.s3_server import wait_for_port
from router_demo.embedded import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
TOXIPROXY = "v2.5.0"
"""The version of Toxiproxy that is built."""
RATE = 1000
"""Bytes per second of an answer that takes its time."""
CONFIGURATION = """
worker_processes 1;
user {user};
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    log_format calls "$msec $status";
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    limit_req_zone $uri zone=calls:1m rate={rate}r/s;
    limit_req_status {status};
    limit_conn_zone $uri zone=open:1m;
    limit_conn_status {status};
    split_clients $request_id $unlucky {{ {random} * ""; }}
    upstream api {{ server unix:{folder}/api; keepalive 64; }}
    server {{ listen unix:{folder}/api; location / {{ return 200 "{answer}"; }} }}
    server {{
        listen 127.0.0.1:{port};
        {retry_after}
        location /refused {{ return 429; }}
{locations}
    }}
}}
"""
LOCATION = """\
        location {path} {{
            access_log {log};
            if ($unlucky) {{ return {status}; }}
            {limits}
            proxy_pass http://api;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
"""
"""A path that has a limit, in the configuration of nginx."""


@contextmanager
def limiter_server(folder: Path, options: dict[str, str]) -> Iterator[str]:
    """Run the limiter of `options`; yield its URL. Its `limit` is for `window` seconds, 1 by default."""
    with _limiter(folder, options) as url:
        if "latency" not in options:
            yield url
            return
        with toxiproxy(url, int(options["latency"]), int(options.get("jitter", "0"))) as slower_url:
            yield slower_url


def _limiter(folder: Path, options: dict[str, str]) -> AbstractContextManager[str]:
    kind = options.get("limiter", "nginx")
    if kind in {"nginx", "open", "none"}:
        return nginx(folder, options)
    limit = options["limit"]
    window = options.get("window", "1")
    if kind in {"fixed", "moving"}:
        return _server([sys.executable, str(HERE / "windows.py"), kind, limit, window, str(folder)])
    burst = options.get("burst", "1")
    program = _built_by_go("limiter-server", ".", HERE / "go")
    command = [str(program), "-kind", kind, "-limit", limit, "-window", f"{window}s", "-burst", burst]
    return _server([*command, "-folder", str(folder)])


def go() -> str | None:
    """Return the program `go`, which builds two of the limiters, and Toxiproxy; None if it is not here."""
    return shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin:/usr/lib/go/bin")


def _built_by_go(program: str, package: str, source: Path | None = None) -> Path:
    """Return a program that Go builds from a package; it is built if it is not there, or older than its source."""
    built = Path(tempfile.gettempdir()) / f"router-{program}-{getpass.getuser()}"
    source_changed = 0.0
    if source:
        source_changed = max((file.stat().st_mtime for file in source.iterdir()), default=0.0)
    if built.exists() and built.stat().st_mtime > source_changed:
        return built
    command = go()
    if command is None:
        raise RuntimeError("Go is not installed: apt-get install golang-go")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([command, "install", package], cwd=source, env={**os.environ, "GOBIN": folder}, check=True)
        (installed,) = Path(folder).iterdir()
        installed.replace(built)
    return built


@contextmanager
def toxiproxy(url: str, latency: int, jitter: int) -> Iterator[str]:
    """Run Toxiproxy in front of a server; yield the URL where all takes so many milliseconds longer, either way."""
    port, api_port = free_ports(2)
    proxy = {"name": "limiter", "listen": f"127.0.0.1:{port}", "upstream": urlsplit(url).netloc}
    toxic = {"type": "latency", "attributes": {"latency": latency, "jitter": jitter}}
    program = _built_by_go(f"toxiproxy-{TOXIPROXY}", f"github.com/Shopify/toxiproxy/v2/cmd/server@{TOXIPROXY}")
    command = [str(program), "-port", str(api_port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_port(api_port)
            api = f"http://127.0.0.1:{api_port}/proxies"
            requests.post(api, json=proxy, timeout=5).raise_for_status()
            # One holds up calls, the other answers.
            for stream in ("upstream", "downstream"):
                requests.post(f"{api}/limiter/toxics", json={**toxic, "stream": stream}, timeout=5).raise_for_status()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def _server(command: Sequence[str]) -> Iterator[str]:
    """Run a server that prints its port; yield its URL."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"{command[0]} does not start")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def nginx(folder: Path, options: dict[str, str]) -> Iterator[str]:
    """Run nginx with the limiter of `options`; yield its URL."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise RuntimeError("nginx is not installed: apt-get install nginx-light")
    (port,) = free_ports(1)
    configuration = folder.resolve() / "nginx.conf"
    configuration.write_text(_nginx_configuration(folder.resolve(), port, options))
    with subprocess.Popen(
        [program, "-p", str(folder.resolve()), "-c", str(configuration), "-g", "daemon off;"],
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for_port(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _nginx_configuration(folder: Path, port: int, options: dict[str, str]) -> str:
    limiter = options.get("limiter", "nginx")
    status = options.get("status", "429")
    limits = ""
    answer = ""
    if limiter == "nginx":
        burst = f" burst={options['burst']} nodelay" if "burst" in options else ""
        limits = f"limit_req zone=calls{burst};"
    elif limiter == "open":
        limits = f"limit_conn open {options.get('open', '4')}; limit_rate {RATE};"
        # The first second's bytes go out at once, those behind them later.
        answer = "." * (RATE + RATE // 5)
    retry_after = ""
    if "retry_after" in options:
        retry_after = f"add_header Retry-After {options['retry_after']} always;"
    # The same limit at each path, with a log of its own for each client.
    logs = {"/": "off", "= /router": f"{folder}/router.log calls", "= /naive": f"{folder}/naive.log calls"}
    locations = [LOCATION.format(path=path, log=log, status=status, limits=limits) for path, log in logs.items()]
    return CONFIGURATION.format(
        folder=folder,
        user=getpass.getuser(),
        port=port,
        rate=options.get("limit", "1000"),
        status=status,
        random=f"{options['random']}% 1;" if "random" in options else "",
        retry_after=retry_after,
        answer=answer,
        locations="".join(locations),
    )
