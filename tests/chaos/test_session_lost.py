"""Spark's JVM dies under a run: the run ends with a sentence, and the next one goes on where it ended."""

from __future__ import annotations

import psutil
import pytest

from tests.chaos import lakes
from tests.chaos.conftest import configuration
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = 600


def test_a_run_whose_jvm_is_killed_ends_and_can_be_started_again(new_topic, router_run, drain, tmp_path):
    topic, lake = new_topic(), tmp_path / "lake"
    games = topic.simulate(EVENTS)
    config = configuration(tmp_path, topic, rows=100)
    router = router_run(config, "--continuous")
    wait_until(lambda: lakes.places(lake).total() >= EVENTS // 3, "some batches are in the lake")

    (jvm,) = [child for child in psutil.Process(router.process.pid).children() if "java" in child.name()]
    jvm.kill()

    assert router.ended() == 1, router.said
    assert "router: games: Spark has ended" in router.said.rstrip().split("\n")[-1]
    assert "Traceback" not in router.said
    assert "trying again" not in router.said

    drain(config)
    assert len(lakes.places(lake)) == lakes.places(lake).total() == EVENTS
    assert sum(lakes.rows(lake, f"silver.{game}").total() for game in games) == EVENTS
