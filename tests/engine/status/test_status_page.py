"""The page of a stream over HTTP, without a browser: its files, the login, and the events."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from contextlib import ExitStack
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
import requests
from pydantic import SecretStr

from router.config.models import Metrics, Ui
from router.engine.status import events as events_module
from router.engine.status.events import PAGES
from router.engine.status.page import ASSETS
from router.engine.status.server import StatusServer
from tests.engine.status.boards import batch_report, fetch, landed_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.engine.status.board import StatusBoard

ANY_PORT = "127.0.0.1:0"
TOKEN = "s3cret <token>"
HOSTILE = 'silver.<img src=x onerror="alert(1)">\n\ndata: {}\x1b[31m\u202e\ud800'
MOST_LINES = 850


@pytest.fixture
def server(board: StatusBoard) -> Iterator[StatusServer]:
    graph = {"kind": "source", "text": "kafka: events", "counts": {}, "below": []}
    with StatusServer(board, Ui(address=ANY_PORT), Metrics(), "games.yaml", graph) as made:
        yield made


@pytest.fixture
def guarded(board: StatusBoard) -> Iterator[StatusServer]:
    """Return a server that has a token."""
    with StatusServer(board, Ui(address=ANY_PORT, token=SecretStr(TOKEN)), Metrics()) as made:
        yield made


def address(server: StatusServer) -> str:
    assert server.address is not None
    return "{}:{}".format(*server.address)


def open_events(server: StatusServer) -> requests.Response:
    return requests.get(f"http://{address(server)}/api/events", stream=True, timeout=10)


def read_events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """Yield the events of a page."""
    for line in response.iter_lines(chunk_size=1):
        if line:
            assert line.startswith(b"data: ")
            yield json.loads(line[6:])


def log_in(server: StatusServer, token: str, **headers: str) -> requests.Response:
    url = f"http://{address(server)}/login"
    return requests.post(url, data={"token": token}, headers=headers, allow_redirects=False, timeout=10)


@pytest.mark.parametrize("path", ASSETS)
def test_the_page_runs_no_script_but_its_own(server: StatusServer, path: str) -> None:
    """Without it a name from the data that gets into the page runs as a script there."""
    answer = fetch(server, path)
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert fetch(server, path, Host="evil.example.org").status_code == 421
    # What the policy forbids would be missing in the page.
    inline = re.search(
        r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=\"|innerHTML|https?://(?!www\.w3\.org)", answer.text
    )
    assert inline is None


def test_script_and_style_are_small() -> None:
    """Without it the page grows until nobody reads it before a change."""
    folder = files("router.engine.status").joinpath("assets")
    names = [name for name, _ in ASSETS.values() if not name.endswith(".html")]
    assert sum(len(folder.joinpath(name).read_text().splitlines()) for name in names) <= MOST_LINES


def test_events_have_the_snapshot_then_what_changes(board: StatusBoard, server: StatusServer) -> None:
    """Without it the page shows the state of when it was opened, or half a megabyte goes to it each second."""
    board.carried_out(landed_manifest(0, HOSTILE), {}, {})
    with open_events(server) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        received = read_events(response)
        first = next(received)
        assert (first["query"], first["state"], first["findings"]) == ("games", "running", [])
        assert first["graph"]["text"] == "kafka: events"
        assert [table["table"] for table in first["tables"]] == [HOSTILE], "whatever is in it stays a text of JSON"
        assert first["tables"][0]["target"] == "r/s"

        board.note_report(batch_report(0))
        began = time.monotonic()
        second = next(received)
        assert [batch["batch"] for batch in second["batches"]] == [0]
        assert "tables" not in second
        assert time.monotonic() - began < 5
        board.enter_state("failed", "the batch does not balance")
        third = next(received)
        assert third["findings"][0]["command"] == "router run games.yaml"


def test_commands_on_the_page_have_the_file(board: StatusBoard, server: StatusServer) -> None:
    """Without it whoever pastes the command of a warning at night runs it on a file called FILE."""
    warning = "games: it cannot be read  $ router rebuild FILE silver.uno"
    board.emit(logging.LogRecord("router", logging.WARNING, __file__, 0, warning, (), None))
    hint = "it is damaged; `router quarantine release FILE`"
    board.carried_out(landed_manifest(0, "silver.uno"), {}, {"r/s/silver.uno": hint})
    status = fetch(server, "/api/status").json()
    assert status["warnings"][0]["message"].endswith("$ router rebuild games.yaml silver.uno")
    (blocked,) = (table["blocked"] for table in status["tables"] if table["blocked"])
    assert blocked == "it is damaged; `router quarantine release games.yaml`"
    assert "FILE" not in json.dumps(status)


def test_the_21st_page_is_refused_until_one_is_closed(server: StatusServer) -> None:
    """Without it a browser with a bug holds as many snapshots in the driver's memory as it likes."""
    with ExitStack() as pages:
        first = open_events(server)
        for _ in range(PAGES - 1):
            assert pages.enter_context(open_events(server)).status_code == 200
        with open_events(server) as refused:
            assert refused.status_code == 503
            assert "20 pages" in refused.text
        first.close()
        until = time.monotonic() + 10
        while (status := pages.enter_context(open_events(server)).status_code) == 503:
            assert time.monotonic() < until, "a page that is closed makes room"
            time.sleep(0.2)
        assert status == 200


def test_a_page_that_reads_too_slowly_is_dropped(board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what a sleeping laptop has not read stays in the driver's memory."""
    monkeypatch.setattr(events_module, "SLOW_SECONDS", 0.3)
    board.carried_out(landed_manifest(0, *(f"silver.table_{number}_{'x' * 2000}" for number in range(5_000))), {}, {})
    with StatusServer(board, Ui(address=ANY_PORT), Metrics()) as server:
        assert server.address is not None
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(server.address)
            slow.sendall(f"GET /api/events HTTP/1.1\r\nHost: {address(server)}\r\n\r\n".encode())
            until = time.monotonic() + 20
            while server._events.open_pages == 0:
                assert time.monotonic() < until
                time.sleep(0.01)
            while server._events.open_pages:
                assert time.monotonic() < until, "it is still served"
                time.sleep(0.1)
        assert fetch(server, "/healthz").status_code == 200


def test_the_server_ends_though_pages_are_open(board: StatusBoard) -> None:
    """Without it a stream ends a minute later whenever somebody looks at it."""
    with StatusServer(board, Ui(address=ANY_PORT), Metrics()) as server:
        response = open_events(server)
        next(read_events(response))
        began = time.monotonic()
    assert time.monotonic() - began < 4
    response.close()


def test_a_token_is_asked_for_by_a_form(guarded: StatusServer) -> None:
    """Without it either nobody reads the page of a guarded stream, or everybody does."""
    form = fetch(guarded, "/")
    assert form.status_code == 401
    assert '<form method="post" action="/login">' in form.text
    assert "default-src 'none'" in form.headers["Content-Security-Policy"]
    assert fetch(guarded, "/assets/page.css").status_code == 200
    for path in ("/assets/page.js", "/api/events", "/api/status", "/metrics"):
        assert fetch(guarded, path).status_code == 401
    assert fetch(guarded, "/", Authorization=f"Bearer {TOKEN}").status_code == 200


def test_the_cookie_of_the_login_opens_the_page(guarded: StatusServer) -> None:
    """Without it a browser cannot show the page, or a script of another server reads the token."""
    answer = log_in(guarded, TOKEN, Origin=f"http://{address(guarded)}", **{"Sec-Fetch-Site": "same-origin"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie, "over http the browser would not send it"
    assert "s3cret" not in cookie
    session = cookie.partition(";")[0]
    for path in ("/", "/api/status", "/metrics", "/assets/page.js"):
        assert fetch(guarded, path, Cookie=session).status_code == 200
        assert fetch(guarded, path, Cookie=f"{session}x").status_code == 401
        assert fetch(guarded, path, Cookie=session, Host="evil.example.org").status_code == 421
    with requests.get(
        f"http://{address(guarded)}/api/events", headers={"Cookie": session}, stream=True, timeout=10
    ) as response:
        assert next(read_events(response))["query"] == "games"


def test_a_wrong_token_gets_the_form_again(guarded: StatusServer) -> None:
    """Without it somebody who mistypes sees a line of text and no way on."""
    for token in ("", "s3cret", f"{TOKEN}x", "é", "x" * 10_000):
        answer = log_in(guarded, token)
        assert answer.status_code in (401, 413)
        assert "Set-Cookie" not in answer.headers
    assert "This is not the token" in log_in(guarded, "s3cret").text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example.org"},
    ],
    ids=str,
)
def test_the_form_of_another_site_is_refused(guarded: StatusServer, headers: dict[str, str]) -> None:
    """Without it another site finds out by tries of the reader's browser what the token is."""
    answer = log_in(guarded, TOKEN, **headers)
    assert answer.status_code in (403, 421)
    assert "Set-Cookie" not in answer.headers


def test_the_cookie_is_for_https_where_the_browser_speaks_it(guarded: StatusServer) -> None:
    """Without it a cookie that came by a proxy's https goes over http as well."""
    answer = log_in(guarded, TOKEN, Origin=f"https://{address(guarded)}")
    assert "Secure" in answer.headers["Set-Cookie"]
    assert requests.post(f"http://{address(guarded)}/api/status", timeout=10).status_code == 405


def luminance(colour: str) -> float:
    """Return how bright a colour is, as WCAG 2.2 has it ("relative luminance")."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(scheme: int) -> None:
    """Without it somebody with weak eyes, or in the sun, cannot read the page."""
    style = files("router.engine.status").joinpath("assets", "page.css").read_text()
    colours = dict(re.findall(r"--(\w+): (#\w{6});", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]))
    for behind in ("back", "panel"):
        for text in ("text", "quiet", "link", "well", "look", "act"):
            brighter, darker = sorted((luminance(colours[text]), luminance(colours[behind])), reverse=True)
            assert (brighter + 0.05) / (darker + 0.05) >= 4.5, f"{text} on {behind}"
