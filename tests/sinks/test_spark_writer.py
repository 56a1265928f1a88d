"""The sink `spark`: what its messages show, and the way out if a data source does not take its rows."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from router.config.loader import load_config
from router.config.models import Trigger
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from router_sinks.spark_writer import SparkWriter

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def masked(options: dict[str, str], message: str) -> str:
    sink = SparkWriter.model_validate({"format": "jdbc", "options": options})
    return sink._mask_error(RuntimeError(f"Exception: {message}")).removeprefix("Exception: ")


@pytest.mark.parametrize("name", ["dbtable", "password"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("drive", "no driver for overdrive"),
        ("a", "can not add data as planned"),
        ("1", "ERROR 101 at line 11"),
        ("true", "untrue, construed as Trueish"),
        ("kafka", "no class KafkaProducer in kafka_2 and kafkas"),
        ("5432", "after 154321 ms and 54320 rows"),
        ("wins_1", "tables wins_12 and bigwins_1"),
        ("größe", "die größere, vergröße"),
        ("hunter", "hunters"),
    ],
)
def test_masked_values_do_not_cut_words(name: str, value: str, message: str) -> None:
    """Without it a message about drivers reads `jdbc.***r` because a table is called drive, and gives it away."""
    assert masked({name: value}, message) == message


@pytest.mark.parametrize(
    ("options", "message", "shown"),
    [
        ({"dbtable": "drive"}, "no driver for drive", "no driver for ***"),
        ({"pwd": "a"}, "password=a&x", "password=***&x"),
        ({"password": "p4ss", "user": "p4ss-and-more"}, "xp4ssx, p4ss-and-more", "x***x, ***"),
        ({"dbtable": "wins", "Password": "hunter"}, "jdbc:x?p%3Dhunter&wins", "jdbc:x?p%3D***&***"),
        ({"password": "hunter"}, r'"p\u003dhunter\nhunter"', r'"p\u003d***\n***"'),
        ({"password": "abcdefghijkl"}, "xabcdefghijklx", "x***x"),
        ({"pwd": "p/w", "token": "", "mode": "w"}, "jdbc:x?p=p/w", "jdbc:x?p=***"),
    ],
    ids=str,
)
def test_a_secret_is_masked_as_a_word_and_behind_escapes(options: dict[str, str], message: str, shown: str) -> None:
    """Without it a password is readable behind an escape in a URL."""
    assert masked(options, message) == shown


CONFIGURATION = """
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: {{schema: "n int, more struct<a: int>"}}}}
dead_letters: ops.dead
routes:
  - name: all
    match: {{sql: "true"}}
    select: {select}
    sinks: [{{spark: {{format: {format}, path: "{folder}/{format}"{options}}}}}]
"""


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"options": ", without: [more]"}, id="without"),
        pytest.param({"options": ", without: [more]", "select": "[event.n]"}, id="without, and select"),
        pytest.param({"format": "json"}, id="target"),
    ],
)
def test_a_sink_that_was_held_up_goes_on(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changed: dict[str, str],
) -> None:
    """Without it rows that a data source does not take hold up a sink for good, whatever its page says."""
    registry = load_registry()
    before = {"folder": str(tmp_path), "format": "csv", "select": "[event.n, event.more]", "options": ""}

    def start(values: dict[str, str], stop: threading.Event | None = None) -> None:
        loaded = load_config(tmp_path / "games.yaml", registry, text=CONFIGURATION.format_map(values))
        run(loaded, registry, spark, RunOptions(trigger=Trigger(once=True), stop=stop or threading.Event()))

    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"n": 1, "more": {"a": 1}}\n{"n": 2}\n')
    stop = threading.Event()
    held = threading.Thread(target=start, args=(before, stop))
    held.start()
    deadline = time.monotonic() + 200
    while held.is_alive() and "the format csv does not take the rows" not in caplog.text:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    stop.set()
    held.join()
    assert "the format csv does not take the rows" in caplog.text

    after = {**before, **changed}
    (tmp_path / "in/2.json").write_text('{"n": 3}\n')
    start(after)

    lines = [line for file in (tmp_path / after["format"]).glob("part-*") for line in file.read_text().split()]
    if after["format"] == "csv":
        assert sorted(lines) == ["1", "2", "3"]
    else:
        assert sorted(lines) == ['{"n":1,"more":{"a":1}}', '{"n":2}', '{"n":3}']
