"""Driver, JVM or a Python worker die alone, at every step of a batch: the next start loses and doubles nothing.

One lake lives through all of it: each process finishes the batch that the one before left, and dies in the next one.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos import lakes
from tests.chaos.conftest import GAMES, SCHEMA, WINS, configuration

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

POINTS = ("plan", "landing", "decide", "manifest", "commits", "quarantine", "apply", "ledger")
ROWS = 60
EVENTS = ROWS * (len(POINTS) + 2)
RELEASED = ("ops.ledger", "quarantine.games__games__tables")
"""Tables that show that rows have waited in the quarantine."""


@pytest.fixture(scope="module")
def topic(new_topic):
    topic = new_topic()
    topic.simulate(EVENTS, games=3, bad=0.05)
    return topic


@pytest.fixture(scope="module")
def undisturbed(topic, drain, tmp_path_factory):
    config = _configuration(tmp_path_factory.mktemp("undisturbed"), topic)
    drain(config)
    return lakes.contents(config.parent / "lake")


def _configuration(folder: Path, topic: Any) -> Path:
    decode = {"troubled": {"inner": {"json": {"schema": SCHEMA}}, "folder": str(folder), "lake": str(folder / "lake")}}
    gamers = {"name": "gamers", "match": {"sql": "event.gamer_id IS NOT NULL"}}
    upsert = {"upsert": {"table": "gold.gamers", "keys": ["event.gamer_id"]}}
    routes = [GAMES, WINS, {**gamers, "sinks": [upsert]}]
    return configuration(folder, topic, decode=decode, routes=routes, rows=ROWS)


@pytest.mark.parametrize("victim", ["driver", "jvm"])
def test_who_dies_at_every_step_costs_no_record(topic, undisturbed, start, drain, tmp_path, victim: str) -> None:
    """Without it a supervisor's restart, which is all that a night has, loses or doubles rows."""
    config, hold = _configuration(tmp_path, topic), tmp_path / "hold"
    for batch, point in enumerate(POINTS):
        died = start(config, "--kill", point, "--batch", str(batch), "--hold", str(hold), "--victim", victim)
        code = died.ended()
        hold.unlink(missing_ok=True)
        died.clear()
        if victim == "driver":
            assert code == -signal.SIGKILL, (point, died.said)
        else:
            assert code == 1, (point, died.said)
            assert "router: games: Spark has ended" in died.said, (point, died.said)
            assert "trying again" not in died.said, (point, died.said)

    drain(config)
    found = lakes.contents(tmp_path / "lake")
    assert sum(row["read"] or 0 for row in lakes.read(tmp_path / "lake", "ops.ledger")) == EVENTS
    left = {name: rows for name, rows in found.items() if name not in RELEASED}
    assert lakes.differences(left, {name: rows for name, rows in undisturbed.items() if name not in RELEASED}) == []


def test_workers_that_die_between_their_tasks_cost_nothing(topic, undisturbed, start, tmp_path) -> None:
    """Without it the end of one worker, for want of memory, ends the stream."""
    config = _configuration(tmp_path, topic)
    run = start(config, "--victim", "workers", "--batch", "1", "--hold", str(tmp_path / "hold"))
    assert run.ended() == 0, run.said
    assert lakes.differences(lakes.contents(tmp_path / "lake"), undisturbed) == []
