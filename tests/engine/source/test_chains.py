"""Chained configurations: the tables of one are the source of another, with what changes in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from router import StartError
from router.config.loader import load_config
from router.config.models import Trigger
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from tests.engine.source_files import json_lines, put_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

FIRST = """
name: first
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: {{schema: "game string, gamer long"}}}}
bronze: bronze.events
routes:
  - {{name: games, match: {{sql: "event.game IS NOT NULL"}}, sinks: [{{tables: "silver.{{event.game}}"}}]}}
views:
  - name: players
    from: {{route: games}}
    into: gold.players
    every: 1 s
    changes: true
    sql: SELECT gamer, count(*) AS events FROM source GROUP BY gamer
dead_letters: ops.dead
"""
SECOND = """
name: second
lake: {folder}/other
source: {{delta: {{lake: {folder}/lake, table: gold.players, changes: true}}}}
decode: {{json: {{schema: "gamer long, events long, _change_type string, _commit_version long"}}}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks:
      - delta: silver.changes
      - upsert: {{table: silver.players, keys: [gamer], delete_when: "event._change_type = 'delete'"}}
dead_letters: ops.dead
"""
THIRD = """
name: third
lake: {folder}/third
source: {{delta: {{lake: {folder}/lake, table: bronze.events}}}}
decode: {{json: {{schema: "game string, gamer long"}}}}
routes:
  - {{name: all, match: {{sql: "true"}}, sinks: [{{delta: silver.all}}]}}
dead_letters: ops.dead
"""


def written(folder: Path) -> tuple[Path, ...]:
    (folder / "in").mkdir()
    files = []
    for name, text in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(text.format(folder=folder))
    return tuple(files)


def put_events(folder: Path, number: int, *gamers: int) -> None:
    """Put events of gamers into the source as one file."""
    put_file(folder, f"{number}.json", json_lines({"game": "uno", "gamer": gamer} for gamer in gamers))


def players(folder: Path) -> dict[int, int]:
    place = folder / "other" / "silver" / "players"
    rows: list[dict[str, Any]] = DeltaTable(str(place)).to_pyarrow_table().to_pylist() if place.exists() else []
    return {row["gamer"]: row["events"] for row in rows}


def test_what_a_view_changes_feeds_routes(spark: SparkSession, tmp_path: Path) -> None:
    """Without it gold of gold is another notebook."""
    first, second, third = written(tmp_path)

    def drain(file: Path) -> int:
        reports = run(
            load_config(file, load_registry(())), load_registry(()), spark, RunOptions(trigger=Trigger(once=True))
        )
        return sum(report.read for report in reports)

    with pytest.raises(StartError, match=r"there is no table gold\.players in .* yet"):
        drain(second)
    put_events(tmp_path, 1, 7, 7, 8)
    assert drain(first) == 3
    assert drain(second) == 2
    assert players(tmp_path) == {7: 2, 8: 1}
    put_events(tmp_path, 2, 7, 9)
    assert drain(first) == 2
    drain(second)
    assert players(tmp_path) == {7: 3, 8: 1, 9: 1}
    assert drain(second) == 0

    assert drain(third) == 5
    raw = DeltaTable(str(tmp_path / "third" / "silver" / "all")).to_pyarrow_table()
    assert sorted(raw.column("gamer").to_pylist()) == [7, 7, 7, 8, 9]


@pytest.mark.parametrize("every", ["1 s", "500 ms"])
def test_batches_come_at_an_interval(spark: SparkSession, tmp_path: Path, every: str) -> None:
    """Without it `--every "10 s"`, as README writes it, ends with a message of Spark about its own intervals."""
    first, *_ = written(tmp_path)
    put_events(tmp_path, 1, 7)
    stop = threading.Event()
    options = RunOptions(trigger=Trigger(every=every), finished=lambda *_: stop.set(), stop=stop)
    (report,) = run(load_config(first, load_registry(())), load_registry(()), spark, options)
    assert report.read == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_follow_each_other(tmp_path: Path) -> None:
    """Without it a chain works in one session only, or the second run stops where the first one rewrites a table."""
    first, second, _ = written(tmp_path)
    running = []

    def start(file: Path) -> None:
        command = [sys.executable, "-m", "router", "run", str(file), "--every", "1 s"]
        with (tmp_path / f"{file.stem}.log").open("wb") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def wait(wanted: dict[int, int]) -> None:
        until = time.monotonic() + 200
        while players(tmp_path) != wanted and time.monotonic() < until:
            assert all(one.poll() is None for one in running), [f.read_text()[-2000:] for f in tmp_path.glob("*.log")]
            time.sleep(0.5)
        assert players(tmp_path) == wanted

    try:
        put_events(tmp_path, 1, 7, 7, 8)
        start(first)
        until = time.monotonic() + 100
        while not (tmp_path / "lake" / "gold" / "players" / "_delta_log").exists() and time.monotonic() < until:
            time.sleep(0.5)
        start(second)
        wait({7: 2, 8: 1})
        put_events(tmp_path, 2, 7, 9)
        wait({7: 3, 8: 1, 9: 1})
        for one in running:
            one.send_signal(signal.SIGTERM)
        assert [one.wait(60) for one in running] == [0, 0]
    finally:
        for one in running:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait(60)
