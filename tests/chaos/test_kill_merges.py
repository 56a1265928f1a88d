"""A router killed between landing and its last merge: each key has its newest row, and what was deleted stays so."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from router.own_names import DELETIONS
from tests.chaos import lakes
from tests.chaos.conftest import GAMES, Topic, configuration
from tests.light import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.lakes import Rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = 1_500
KILLED = 1
"""The batch of the kill: one before it and one after it are whole."""
LATEST = {
    "name": "latest",
    "match": {"sql": "event.gamer_id IS NOT NULL"},
    "sinks": [
        {"upsert": {
            "table": "silver.{event.game}_latest", "keys": ["event.gamer_id"], "newest_by": "event.ts",
            "delete_when": "event.amount > 5000",
        }}
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Undisturbed:
    topic: Topic
    lake: dict[str, Rows]
    deleted: dict[str, list[Any]]


@pytest.fixture(scope="module")
def undisturbed(new_topic, drain, tmp_path_factory) -> Undisturbed:
    """Run the topic of this module once without a fault."""
    topic = new_topic()
    topic.simulate(EVENTS, games=drawn(7), bad=0.02)
    config = _configuration(tmp_path_factory.mktemp("undisturbed"), topic)
    drain(config)
    lake = config.parent / "lake"
    assert _merged(lake, KILLED) == _latest(lake)
    return Undisturbed(topic, lakes.contents(lake), _deleted(lake))


def _configuration(folder: Path, topic: Topic, commit: str = "auto") -> Path:
    return configuration(folder, topic, rows=EVENTS // 3, commit=commit, routes=[GAMES, LATEST])


def _latest(lake: Path) -> set[str]:
    return {table for table in lakes.tables(lake) if table.endswith("_latest")}


def _merged(lake: Path, batch: int) -> set[str]:
    """Return the tables that a batch was merged into."""
    handles = {table: DeltaTable(lake / table.replace(".", "/")) for table in _latest(lake)}
    run = json.loads(next((lake / "_router").rglob("metadata")).read_text())["id"]
    ids = {table: f"games:{run}/latest/upsert/{table}" for table in handles}
    return {table for table, handle in handles.items() if (handle.transaction_version(ids[table]) or 0) >= batch}


def _deleted(lake: Path) -> dict[str, list[Any]]:
    """Return what is remembered of deletions."""
    found = {}
    for log in lake.glob(f"*/*/{DELETIONS}"):
        rows = DeltaTable(log).to_pyarrow_table().select(["gamer_id", "_partition", "_offset"])
        found[log.parent.name] = sorted(rows.to_pylist(), key=repr)
    return found


def _cases() -> list[Any]:
    cases = [(how, point) for point in ("merges", "deletions", "merged") for how in ("auto", "spark")]
    cases.append(("tasks", "merges"))
    small = ("auto", "merges")
    return [pytest.param(*case, id="-".join(case), marks=() if case == small else pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(("how", "point"), _cases())
def test_a_killed_merge_is_finished_once(undisturbed, start, drain, tmp_path, how, point):
    lake = tmp_path / "lake"
    config = _configuration(tmp_path, undisturbed.topic, "spark" if how == "spark" else "auto")
    by_tasks = ("--by-tasks",) if how == "tasks" else ()  # in workers, as where an outbox is large
    killed = start(config, "--kill", point, "--batch", str(KILLED), *by_tasks)
    assert killed.ended() == -signal.SIGKILL, killed.said
    merged = _merged(lake, KILLED)
    assert merged == _latest(lake) if point == "merged" else set() < merged < _latest(lake), "killed at another point"
    assert KILLED not in lakes.batches(lake, "ops.ledger")

    drain(config)  # at once, as a supervisor would: the killed one's JVM may still be there

    assert lakes.differences(lakes.contents(lake), undisturbed.lake) == []
    assert _deleted(lake) == undisturbed.deleted
