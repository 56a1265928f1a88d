"""The page of a real stream: seven games, an API that is down, a table that cannot be written, a broker that stops."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from router.cli.run import serve_status
from router.config.loader import load_config
from router.config.models import Trigger
from router.engine.status.board import StatusBoard
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from router_demo.embedded import free_ports
from tests.browser.page_reader import text_of, wait

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from selenium.webdriver import Chrome

    from router_demo.kafka import EmbeddedKafka

YAML = """\
name: games
lake: {folder}/lake
source: {{kafka: {{servers: "{servers}", topics: [page-of-a-stream]}}}}
decode: {{json: {{schema: "game string, id long"}}}}
bronze: bronze.all
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    expect: [{{name: numbered, sql: "event.id IS NOT NULL", otherwise: dead_letter}}]
    sinks: [{{tables: {{table: "silver.{{event.game}}"}}}}]
  - name: wins
    match: {{sql: "event.id % 10 = 0"}}
    sinks: [{{rest: {{url: "http://127.0.0.1:{closed}/wins"}}}}]
dead_letters: ops.dead
ui: {{address: "127.0.0.1:{port}"}}
"""
GAMES = ("uno", "go", "chess", "poker", "skat", "ludo", "solitaire")
EACH = 50


def sent(broker: EmbeddedKafka) -> None:
    """Send events of all games, five records that are no JSON, and three without a number."""
    topic = "page-of-a-stream"
    broker.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(EACH):
        for game in GAMES:
            producer.produce(topic, json.dumps({"game": game, "id": number}))
    for _ in range(5):
        producer.produce(topic, b"no JSON")
    for _ in range(3):
        producer.produce(topic, b'{"game": "uno"}')
    assert producer.flush(30) == 0


@contextmanager
def streaming(file: Path, spark: SparkSession) -> Iterator[None]:
    """Run a configuration as the command does, with its page."""
    registry = load_registry(())
    loaded = load_config(file, registry, environ={})
    stop = threading.Event()
    board = StatusBoard(loaded.config.name)
    options = RunOptions(trigger=Trigger(continuous=True), stop=stop, status=board)
    with serve_status(loaded.config, board, file):
        stream = threading.Thread(target=run, args=(loaded, registry, spark, options))
        stream.start()
        try:
            yield
        finally:
            stop.set()
            stream.join()


def test_a_real_stream_is_on_its_page(
    browser: Chrome, spark: SparkSession, own_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Without it the page is right of what tests tell it, and wrong of what a run does."""
    port, closed = free_ports(2)
    file = tmp_path / "games.yaml"
    file.write_text(YAML.format(folder=tmp_path, servers=own_broker.servers, port=port, closed=closed))
    # A file in place of its folder: the table cannot be made.
    (tmp_path / "lake" / "silver").mkdir(parents=True)
    (tmp_path / "lake" / "silver" / "poker").write_text("a file")
    sent(own_broker)
    address = f"http://127.0.0.1:{port}/"

    with streaming(file, spark):
        browser.get(address)
        shows(browser, "#words", "games: running")
        shows(browser, "#sinks", "open: its API is unavailable")
        shows(browser, "#quarantine", "silver.poker")
        assert "Needs a look" in text_of(browser, "#verdict")
        findings = text_of(browser, "#findings")
        assert "Tables that cannot be written: silver.poker" in findings
        assert "The API of wins/rest is unavailable" in findings
        assert rows_of_tables(browser) == {
            **{f"silver.{game}": "0" if game == "poker" else str(EACH) for game in GAMES},
            "outbox.games__wins__rest": str(len(GAMES) * EACH // 10),
            "quarantine.games__games__tables": str(EACH),
            "bronze.all": str(len(GAMES) * EACH + 8),
            "ops.dead": "8",
        }
        assert str(EACH) in text_of(browser, "#quarantine")
        letters = text_of(browser, "#dead-letters")
        assert "decode" in letters
        assert "expect" in letters

    own_broker.stop()
    with streaming(file, spark):
        browser.get(address)
        shows(browser, "#words", "games: waiting")
        assert "no broker answers" in text_of(browser, "#words")
        own_broker.start()
        shows(browser, "#words", "games: running")

    looks_at_the_lake(browser, file, address)


def looks_at_the_lake(browser: Chrome, file: Path, address: str) -> None:
    """Look at the lake of the stream that is down, as `router status --page` shows it."""
    command = [sys.executable, "-m", "router", "status", str(file), "--page"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert address in process.stdout.readline()
            browser.get(address)
            shows(browser, "#tables tbody", "silver.chess")
            rows = rows_of_tables(browser)
            assert {rows[f"silver.{game}"] for game in GAMES if game != "poker"} == {str(EACH)}
            shows(browser, "#quarantine", "silver.poker")
        finally:
            process.terminate()


def shows(browser: Chrome, selector: str, text: str) -> None:
    """Wait until an element has a text; a busy machine takes its time to start a stream."""
    script = f"return (document.querySelector('{selector}')?.textContent ?? '').includes({json.dumps(text)})"
    wait(browser, script, 120)


def rows_of_tables(browser: Chrome) -> dict[str, str]:
    """Return the names of tables and their rows, as the page shows them."""
    script = """
      const heads = [...document.querySelectorAll('#tables thead th')].map(head => head.textContent.trim());
      const at = heads.findIndex(head => head.toLowerCase().startsWith('rows'));
      return [...document.querySelectorAll('#tables tbody tr')].map(row =>
        [row.children[0].textContent.trim(), row.children[at].textContent.trim()]);
    """
    return dict(browser.execute_script(script))
