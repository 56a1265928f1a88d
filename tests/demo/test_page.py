"""The page of the API: who looks sees the limit and what came, and changes neither."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from router_demo.api import Api, Failure, Limit

if TYPE_CHECKING:
    import requests

LOOK = {"Accept": "text/html,application/xhtml+xml"}


def test_curl_shows_the_limit_and_the_calls(api: Api, session: requests.Session) -> None:
    api.play(limits=[Limit(rate=200, burst=10)], latency=0.001)
    for key in ("one", "two", "two"):
        session.post(f"{api.url}/events", data="{}", headers={"Idempotency-Key": key}, timeout=20)

    seen = session.get(f"{api.url}/", timeout=20)

    assert seen.headers["Content-Type"] == "text/plain; charset=utf-8"
    words = " ".join(seen.text.split())
    assert "takes 200 calls a second (10 of them at once), and answers 429 to more." in words
    assert "Now it takes calls, in 1 ms each." in words
    assert "most in any second 3 of 200" in words
    assert "calls 3 200 3 OK taken twice 1" in words


def test_a_browser_shows_an_outage(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(status=503)], limits=[Limit(rate=200)])
    session.post(f"{api.url}/events", data="{}", timeout=20)

    for url in (api.url, api.control_url.removesuffix("/_control")):
        seen = session.get(f"{url}/", headers=LOOK, timeout=20)
        assert seen.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "Now it answers 503 to every call." in seen.text
        assert '<rect class="all"' in seen.text
        assert '<rect class="taken"' not in seen.text


def test_who_looks_is_no_call(api: Api, session: requests.Session) -> None:
    """Else a look would take from the limit that is measured, and need a token to begin with."""
    api.play(wants={"Authorization": "Bearer x"}, limits=[Limit(rate=0.01, burst=1)])

    assert [session.get(f"{api.url}/", headers=LOOK, timeout=20).status_code for _ in range(3)] == [200] * 3
    assert api.stats().arrived == 0


def test_an_api_that_is_away_is_seen_on_its_control_port(api: Api, session: requests.Session) -> None:
    api.play(outage="refused")

    assert "it is unavailable: it accepts no connection" in session.get(f"{api.control_url}/../", timeout=20).text


def test_a_script_cannot_write_the_page(api: Api, session: requests.Session) -> None:
    api.play(limits=[Limit(name="<script>", rate=1)], failures=[Failure(how="hangup", share=0.5, times=3)])

    seen = session.get(f"{api.url}/", headers=LOOK, timeout=20).text

    assert "it fails (hangup) on 50% of the calls, 3 times at most" in seen
    assert "<script>" not in seen


def test_the_command_says_what_it_is_and_where() -> None:
    script = '{"limits": [{"rate": 200, "burst": 10}]}'
    command = [sys.executable, "-m", "router_demo.api_server", "--script", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            port = json.loads(process.stdout.readline())["port"]
            said = process.stderr.readline()
        finally:
            process.kill()

    assert said.startswith(f"the API at http://127.0.0.1:{port}/ takes 200 calls a second (10 of them at once)")
