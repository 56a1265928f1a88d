"""A router killed at any point of a batch goes on at the next start, and its lake shows nothing of it."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos import lakes
from tests.chaos.conftest import GAMES, SCHEMA, WINS, Topic, configuration
from tests.light import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.lakes import Rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = 3_000
KILLED = 1
"""The batch of the kill: one before it and one after it are whole."""
slow = pytest.mark.slow


@dataclass(frozen=True)
class Undisturbed:
    topic: Topic
    lake: dict[str, Rows]


@pytest.fixture(scope="module")
def undisturbed(new_topic, drain, tmp_path_factory) -> Undisturbed:
    """Run the topic of this module once without a fault."""
    topic = new_topic()
    games = topic.simulate(EVENTS, games=drawn(7), bad=0.02)
    config = _configuration(tmp_path_factory.mktemp("undisturbed"), topic)
    drain(config)
    lake = config.parent / "lake"
    found = lakes.contents(lake)
    assert {name: found[f"silver.{name}"].total() for name in games} == games
    assert len(lakes.places(lake)) == found["bronze.events"].total() == EVENTS
    assert lakes.batches(lake, "bronze.events") >= {KILLED - 1, KILLED, KILLED + 1}
    return Undisturbed(topic, found)


def _configuration(folder: Path, topic: Topic, commit: str = "auto", point: str = "") -> Path:
    """Add an applying sink, and for a kill in the middle of landing a decoder that can hold a task."""
    decode: dict[str, Any] = {"json": {"schema": SCHEMA}}
    if point == "landing":
        decode = {"troubled": {"inner": decode, "folder": str(folder), "lake": str(folder / "lake")}}
    wins = {**WINS, "sinks": [*WINS["sinks"], {"box": str(folder / "box")}]}
    return configuration(folder, topic, commit=commit, decode=decode, routes=[GAMES, wins])


def _state(lake: Path) -> dict[str, Any]:
    """Return how far the killed batch got."""
    manifests = [json.loads(path.read_text()) for path in (lake / "_router").rglob(f"manifests/**/{KILLED:010d}.json")]
    tables = {table for table in lakes.tables(lake) if table != "ops.ledger"}
    done = {table for table in tables if KILLED in lakes.batches(lake, table)}
    return {
        "files": any(path.parent.name != "ledger" for path in lake.glob(f"*/*/part-{KILLED:010d}-*.parquet")),
        "decided": bool(manifests),
        "committed": "none" if not done else "all" if done == tables else "some",
        "in ledger": KILLED in lakes.batches(lake, "ops.ledger"),
        "offsets": (lake / "_router/games/spark/commits" / str(KILLED)).exists(),
    }


FILES = {"files": True, "decided": True, "in ledger": False, "offsets": False}
ARROW = {
    "plan": {"files": False, "decided": False, "committed": "none", "in ledger": False, "offsets": False},
    "landing": {**FILES, "decided": False, "committed": "none"},
    "manifest": {**FILES, "committed": "none"},
    "commits": {**FILES, "committed": "some"},
    "apply": {**FILES, "committed": "all"},
    "ledger": {**FILES, "committed": "all", "in ledger": True},
}
SPARK = {point: {**state, "files": False} for point, state in ARROW.items()}
SMALL = {("auto", "commits")}


def _cases() -> list[Any]:
    cases = [("auto", point) for point in ARROW] + [("spark", point) for point in ("manifest", "commits", "ledger")]
    return [
        pytest.param(commit, point, id=f"{commit}-{point}", marks=() if (commit, point) in SMALL else slow)
        for commit, point in cases
    ]


@pytest.mark.parametrize(("commit", "point"), _cases())
def test_a_killed_router_loses_and_duplicates_nothing(undisturbed, start, drain, tmp_path, commit, point):
    lake, hold = tmp_path / "lake", tmp_path / "hold"
    config = _configuration(tmp_path, undisturbed.topic, commit, point)
    killed = start(config, "--kill", point, "--batch", str(KILLED), "--hold", str(hold))
    assert killed.ended() == -signal.SIGKILL, killed.said
    assert _state(lake) == {"auto": ARROW, "spark": SPARK}[commit][point], "the kill came at another point"
    hold.unlink(missing_ok=True)

    drain(config)  # at once, as a supervisor would: the killed one's JVM may still be there

    assert lakes.differences(lakes.contents(lake), undisturbed.lake) == []
