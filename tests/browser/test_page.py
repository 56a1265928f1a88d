"""The page of a stream in a real browser: Debian's Chromium, without a window, driven by selenium.

With PICTURES=docs/images the test of the pictures writes those of the documentation again.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from router.config.models import Metrics, Ui
from router.engine.status.board import StatusBoard
from router.engine.status.server import StatusServer
from router.engine.status.snapshot import DeadLetterSample, DeadLetterStatus, Warned
from tests.browser.page_reader import text_of, wait
from tests.browser.stream import BLOCKED, finish_batch, graph, table_names, told_board
from tests.engine.status.boards import batch_report, landed_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

HOSTILE = (
    '<img src=x onerror="document.title=1">',
    "<script>document.title = 1</script>",
    "line\nbreak\x1b[31m red\x07",
    "\u202egnitrevni",
    "a" * 70_000,
    "${alert(1)}{{7*7}}",
)


@pytest.fixture
def show(browser: Chrome) -> Iterator[Callable[..., str]]:
    """Show the page of a board at a width, dark or light; at the end nothing may have gone wrong in it."""
    servers = []

    def shown(board: StatusBoard, *, width: int = 1280, height: int = 900, dark: bool = False, token: str = "") -> str:
        ui = Ui(address="127.0.0.1:0", token=SecretStr(token) if token else None)
        server = StatusServer(board, ui, Metrics(), "big_wins.yaml", graph())
        servers.append(server)
        server.__enter__()
        assert server.address is not None
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        browser.get_log("browser")
        browser.get_log("performance")
        address = "http://{}:{}/".format(*server.address)
        browser.get(address)
        if not token:
            wait(browser, "return document.getElementById('connection').textContent.startsWith('Connected')")
        return address

    yield shown
    browser.get_log("performance")
    browser.get("about:blank")
    for server in servers:
        server.__exit__(None, None, None)


def element_of(browser: Chrome, selector: str) -> WebElement:
    return browser.find_element("css selector", selector)


def assert_nothing_went_wrong(browser: Chrome, address: str) -> None:
    """Look at the log of scripts, and at what was asked for: only the server, or data of the page itself."""
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
    urls = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])
    assert urls
    assert [url for url in urls if not url.startswith((address, "data:"))] == []


def test_the_state_is_seen_at_a_glance(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it somebody at night reads tables to find out whether all is well."""
    address = show(told_board(list(table_names(231)), has_trouble=True))
    assert text_of(browser, "#verdict") == "▲ Needs a look"
    assert "big_wins: running, 3,000 records behind" in text_of(browser, "#words")
    findings = text_of(browser, "#findings")
    assert "Tables that cannot be written: silver.poker" in findings
    assert "router tables big_wins.yaml" in findings
    assert "The API of big_wins/rest is unavailable" in findings
    assert "half ≤ 2 s, 99 % ≤ 30 s" in text_of(browser, "#figures")
    pictured = text_of(browser, "#graph")
    for words in ("kafka", "decode json", "games: ", "231 tables", "gold.big_wins", "bronze.game_events"):
        assert words in pictured
    assert "open: its API is unavailable" in text_of(browser, "#sinks")
    assert "31 failed, 4 timed out" in text_of(browser, "#sinks")
    width = "const table = document.querySelector('#sinks .scrolled'); return table.scrollWidth - table.clientWidth"
    assert browser.execute_script(width) <= 0, "its last column is cut off"
    assert text_of(browser, "#sinks caption") == "1 row"
    assert "18,204" in text_of(browser, "#quarantine")
    assert "no JSON: unexpected end of data" in text_of(browser, "#dead-letters")
    assert "the API answers 503" in text_of(browser, "#warnings")
    assert "Views that cannot be refreshed: players" in findings
    view = text_of(browser, "#views tbody")
    for words in ("7 of gold.{table}_players", "29,400", "by change (keys)", "2.31 s", "silver.poker cannot be read"):
        assert words in view
    assert "Spark" in text_of(browser, "#tables tbody")
    assert_nothing_went_wrong(browser, address)


def test_before_the_first_batch_nothing_is_said_to_be_none(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it a page that was opened early says that no field is lacking, when nobody has looked at one."""
    board = StatusBoard("big_wins")
    board.enter_state("running")
    address = show(board)
    assert text_of(browser, "#fields p") == "Not known yet."
    finish_batch(board, 0, list(table_names(7)), {})
    wait(browser, "return document.querySelector('#fields p').textContent === 'None.'")
    assert_nothing_went_wrong(browser, address)


def test_the_page_follows_the_stream(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it the page shows the state of when it was opened."""
    board = told_board(list(table_names(9)), has_trouble=False)
    address = show(board)
    assert text_of(browser, "#verdict") == "✓ All is well"
    board.enter_state("waiting", "no broker answers at broker:9092")
    wait(browser, "return document.getElementById('verdict').textContent.includes('Needs a look')")
    assert "no broker answers at broker:9092" in text_of(browser, "#words")
    board.enter_state("failed", "the batch does not balance")
    wait(browser, "return document.getElementById('verdict').textContent.includes('Action needed')")
    assert "router run big_wins.yaml" in text_of(browser, "#findings")
    assert_nothing_went_wrong(browser, address)


def test_what_is_expected_has_a_trend(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it somebody sees that 500 events of a million lack something, and not that it began an hour ago."""
    board = told_board(list(table_names(9)), has_trouble=False)
    address = show(board)
    rows = [row.text for row in browser.find_elements("css selector", "#expectations tbody tr")]
    assert [row.split()[0] for row in rows] == ["few_events", "has_gamer", "plausible"]
    assert "view players" in rows[0]
    assert "dead_letter" in rows[1]
    picture = element_of(browser, "#expectations tbody svg").get_attribute("aria-label")
    assert picture == "Share of the last 4: 0 %, 0.02 %, 0.05 %, 0.07 %"
    trend = "#expectations tbody tr:nth-child(2) svg"
    before = element_of(browser, trend).get_attribute("aria-label")
    finish_batch(board, 80, ["silver.uno"], {})
    wait(browser, f"return document.querySelector('{trend}').getAttribute('aria-label') !== {json.dumps(before)}")
    assert_nothing_went_wrong(browser, address)


def test_5000_tables_are_searched_and_sorted_at_once(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it the page of a large stream cannot be used."""
    address = show(told_board(list(table_names(5_000)), has_trouble=False))
    assert "rows 1 to 100 of 5,003 rows" in text_of(browser, "#tables caption")
    assert browser.execute_script("return document.querySelectorAll('#tables tbody tr').length") == 100
    search = element_of(browser, "#tables input")
    began = time.monotonic()
    search.send_keys("tournament_4321")
    wait(browser, "return document.querySelectorAll('#tables tbody tr').length === 1")
    assert time.monotonic() - began < 5
    assert "silver.tournament_4321" in text_of(browser, "#tables tbody")
    search.clear()
    search.send_keys("silver.")
    took = browser.execute_script(
        "const began = performance.now(); document.querySelectorAll('#tables th button')[1].click();"
        "return performance.now() - began"
    )
    assert took < 500
    heads = browser.execute_script("return [...document.querySelectorAll('#tables th')].map(h => h.ariaSort)")
    assert heads == ["none", "descending", "none", "none", "none", "none", "none"]
    assert "silver.uno" in text_of(browser, "#tables tbody tr")
    assert_nothing_went_wrong(browser, address)


def test_a_name_that_its_box_has_no_room_for_is_whole_below(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it two tables whose long names begin alike cannot be told apart, or copied."""
    name = f"silver.{'tournament_of_the_longest_evenings_' * 3}end"
    address = show(told_board([name], has_trouble=False))
    assert name in [
        title.get_attribute("textContent") for title in browser.find_elements("css selector", "#graph title")
    ]
    assert name in text_of(browser, "#graph ul")
    assert "gold.big_wins" not in text_of(browser, "#graph ul"), "it has room"
    assert_nothing_went_wrong(browser, address)


def test_hostile_names_are_text(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it whoever names a game runs a script in the browser of the one who looks."""
    board = StatusBoard("games")
    board.enter_state("running")
    board.carried_out(
        landed_manifest(0, *HOSTILE), {}, dict.fromkeys((f"r/s/{name}" for name in HOSTILE[:2]), HOSTILE[4])
    )
    board.note_report(batch_report(0))
    samples = (DeadLetterSample(HOSTILE[0], 0, 7, HOSTILE[1]),)
    board.add_dead_letters(
        DeadLetterStatus("decode", name, name, name, 1, time.time(), samples if name == HOSTILE[0] else ())
        for name in HOSTILE
    )
    board._warnings.extend(Warned(time.time(), "warning", name) for name in HOSTILE)
    address = show(board, width=320, height=640)
    shown = text_of(browser, "main")
    assert '<img src=x onerror="document.title=1">' in shown
    assert "<script>document.title = 1</script>" in shown
    assert f"{HOSTILE[0]}/0/7: {HOSTILE[1]}" in shown, "a record that was refused"
    assert "line\\u000abreak\\u001b[31m red" in shown
    assert "\\u202egnitrevni" in shown
    assert "a" * 200 in shown
    assert "a" * 2_000 not in shown
    assert browser.execute_script("return document.querySelectorAll('main img, main script').length") == 0
    assert browser.title != "1"
    assert_nothing_went_wrong(browser, address)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_all_of_it(browser: Chrome, show: Callable[..., str], dark: bool) -> None:
    """Without it whoever is called at night needs a computer first."""
    address = show(told_board(list(table_names(231)), has_trouble=True), width=320, height=640, dark=dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 320
    assert (
        browser.execute_script("const g = document.getElementById('graph'); return g.scrollWidth - g.clientWidth") <= 0
    )
    back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert_nothing_went_wrong(browser, address)


def test_all_of_it_is_reached_by_keys_and_has_a_name(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it somebody who cannot see the page, or use a mouse, does not know how the stream is."""
    board = told_board(list(table_names(231)), has_trouble=True)
    address = show(board)
    node = element_of(browser, "#graph [role=button]")
    browser.execute_script("arguments[0].focus()", node)
    for key in ("\ue007", " "):
        before = browser.execute_script("return document.activeElement.getAttribute('aria-expanded')")
        browser.switch_to.active_element.send_keys(key)
        after = browser.execute_script("return document.activeElement.getAttribute('aria-expanded')")
        assert {before, after} == {"true", "false"}, "it opens, and keeps the focus though it was drawn again"
    browser.execute_script("document.querySelector('#batches summary').click()")
    wait(browser, "return document.querySelector('#batches .inside')?.textContent.includes('commit')")
    assert text_of(browser, "#batches details[open]").count("What became of its records") == 1
    nameless = browser.execute_script(
        "const name = (e) => e.getAttribute('aria-label') || e.textContent.trim()"
        "  || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent;"
        "return [...document.querySelectorAll('button, input, section, [role=img], [role=region], [role=group]')]"
        ".filter((e) => !name(e)).map((e) => e.outerHTML.slice(0, 200))"
    )
    assert nameless == []
    captions = browser.execute_script("return [...document.querySelectorAll('table')].map(t => Boolean(t.caption))")
    assert all(captions)
    assert_nothing_went_wrong(browser, address)


def test_somebody_logs_in(browser: Chrome, show: Callable[..., str]) -> None:
    """Without it the page of a guarded stream is for nobody who has a browser only."""
    address = show(told_board(list(table_names(9)), has_trouble=False), token="s3cret", width=320, height=640)
    for token in ("wrong", "s3cret"):
        element_of(browser, "#token").send_keys(token)
        element_of(browser, "button").click()
        if token == "wrong":
            wait(browser, "return document.querySelector('[role=alert]')?.textContent.includes('not the token')")
    wait(browser, "return document.getElementById('connection')?.textContent.startsWith('Connected')")
    assert browser.current_url == address
    assert browser.execute_script("return document.cookie") == ""


@pytest.mark.parametrize(
    ("name", "width", "height", "dark", "has_trouble"),
    [
        ("page-light", 1200, 860, False, False),
        ("page-dark", 1200, 980, True, True),
        ("page-phone", 360, 1100, False, True),
    ],
)
def test_pictures_are_taken(
    browser: Chrome,
    show: Callable[..., str],
    tmp_path: Path,
    name: str,
    width: int,
    height: int,
    dark: bool,
    has_trouble: bool,
) -> None:
    """Without it the documentation shows a page of two versions ago."""
    tables = list(table_names(231))
    board = told_board(tables, has_trouble=has_trouble)
    show(board, width=width, height=height, dark=dark)
    # Rates are what has come while the page is open: one batch more.
    time.sleep(2)
    finish_batch(board, 80, tables, BLOCKED if has_trouble else {})
    wait(browser, "return /[0-9]\\/s/.test(document.getElementById('graph').textContent)")
    folder = Path(os.environ.get("PICTURES", tmp_path))
    assert browser.save_screenshot(str(folder / f"{name}.png"))
