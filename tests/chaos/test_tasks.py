"""A task that fails and a Python worker that dies are tried again, and leave nothing in the tables."""

from __future__ import annotations

import json

import pytest

from tests.chaos import lakes
from tests.chaos.conftest import SCHEMA, configuration

pytestmark = pytest.mark.timeout(600)

EVENTS = 600
PADDED = 10_000
"""Bytes of an event: so many that a task has files in the lake before it has seen all of its rows."""


@pytest.fixture(scope="module")
def topic(new_topic):
    topic = new_topic()
    pad = "x" * PADDED
    events = [{"game": f"game_{n % 3}", "gamer_id": f"g{n}", "session_id": pad, "amount": n} for n in range(EVENTS)]
    topic.send([json.dumps(event).encode() for event in events])
    return topic


def _configuration(folder, topic):
    troubled = {"inner": {"json": {"schema": SCHEMA}}, "folder": str(folder), "lake": str(folder / "lake")}
    return configuration(folder, topic, decode={"troubled": troubled}, landing={"buffer_bytes": 1 << 20})


@pytest.mark.parametrize("trouble", [pytest.param("fail", marks=pytest.mark.slow), "kill"])
def test_a_task_that_is_tried_again_leaves_nothing_twice(spark, drain, topic, tmp_path, monkeypatch, trouble):
    # many Arrow batches in a task
    former = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        undisturbed = _configuration(tmp_path / "undisturbed", topic)
        drain(undisturbed)
        config = _configuration(tmp_path / "disturbed", topic)
        (config.parent / trouble).touch()
        drain(config)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", former)

    lake = config.parent / "lake"
    assert not (config.parent / trouble).exists(), "the trouble never came"
    left = lakes.unreferenced(lake)
    assert left if trouble == "kill" else not left, "who fails removes its files, and who is killed cannot"
    assert len(lakes.places(lake)) == lakes.places(lake).total() == EVENTS
    assert lakes.differences(lakes.contents(lake), lakes.contents(undisturbed.parent / "lake")) == []
