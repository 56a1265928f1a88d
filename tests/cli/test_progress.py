"""A command that takes long shows how far it is and how long it may still take; a quick one shows nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from router.cli.progress import Estimate, SparkProgress, in_pipe, progress_sentence, running_tasks
from tests.cli.terminal import run_in_terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW = """
import time
from router.cli import progress
progress.SHOWN_AFTER = progress.ASK_SPARK_SECONDS = 0.2
with progress.progress_line("games", "tables") as tell:
    for done in range(12):
        tell(done, 12)
        time.sleep(float("{pause}"))
print("done")
"""


def test_the_rest_is_what_the_others_took() -> None:
    now = 100.0
    estimate = Estimate(lambda: now)
    assert estimate.remaining_seconds(5, 25) is None, "nobody knows how long the first five took"
    now = 110.0
    assert estimate.remaining_seconds(6, 25) is None, "one is too few"
    now = 120.0
    assert estimate.remaining_seconds(10, 25) == pytest.approx(60.0)
    assert estimate.remaining_seconds(25, 25) is None


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        pytest.param(None, "games: 1,200 of 5,000 tables", id="not known"),
        pytest.param(0.2, "games: 1,200 of 5,000 tables, about 1 s left", id="short"),
        pytest.param(119.4, "games: 1,200 of 5,000 tables, about 119 s left", id="seconds"),
        pytest.param(300.0, "games: 1,200 of 5,000 tables, about 5 min left", id="minutes"),
    ],
)
def test_the_line_names_what_is_done_and_left(rest: float | None, text: str) -> None:
    assert progress_sentence("games", 1200, 5000, "tables", rest) == text


@pytest.mark.parametrize("pause", [pytest.param("0.15", id="slow"), pytest.param("0", id="quick")])
def test_a_terminal_shows_the_line_if_it_takes_long(pause: str) -> None:
    """Without it nobody knows whether a command hangs, or there is a flicker where nothing takes long."""
    shown, printed = run_in_terminal([sys.executable, "-c", SLOW.format(pause=pause)], "100", "stderr")

    assert printed == "done\n"
    assert ("of 12 tables" in shown) == (pause != "0")


def test_a_pipe_gets_no_line() -> None:
    """Without it the log of a job is full of lines that only a terminal can take back."""
    answer = subprocess.run(
        [sys.executable, "-c", SLOW.format(pause="0.1")], capture_output=True, check=True, text=True
    )

    assert (answer.stdout, answer.stderr) == ("done\n", "")


def test_a_pipe_gets_a_line_each_half_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without it the log of a rebuild of an hour does not say whether it goes on."""
    now = 100.0
    monkeypatch.setattr("router.cli.progress.time.monotonic", lambda: now)
    caplog.set_level("INFO", "router")
    show = in_pipe()
    for second in range(65):
        now = 100.0 + second
        show(f"games: {second} of 90 tasks of Spark")
    assert caplog.messages == ["games: 30 of 90 tasks of Spark", "games: 60 of 90 tasks of Spark"]


def test_the_tasks_of_spark_are_counted(spark: SparkSession) -> None:
    """Without it a repair of an hour looks like one that hangs."""
    lines: list[str] = []

    def wait(rows: object) -> object:
        time.sleep(0.4)
        return rows

    with SparkProgress(spark, "games", lines.append):
        spark.sparkContext.parallelize(range(10), 10).mapPartitions(wait).count()

    assert any("of 10 tasks of Spark" in line for line in lines), lines
    deadline = time.monotonic() + 30
    while running_tasks(spark)[0] and time.monotonic() < deadline:
        time.sleep(0.05)  # Spark's listeners hear of the end a little later
    assert running_tasks(spark) == ((), 0, 0)
