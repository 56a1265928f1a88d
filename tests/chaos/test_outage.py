"""A broker that goes away and comes back: the stream says that it waits, goes on by itself and loses nothing."""

from __future__ import annotations

import signal
import socket
import time

import pytest

from tests.chaos import lakes
from tests.chaos.conftest import PARTITIONS, Topic, configuration
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = 600
IMPATIENT = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1500", "fetchOffset.numRetries": "1"}
"""Kafka settings with which Spark gives up during the outage, so that the router has to begin again."""


@pytest.fixture
def own_topic(own_broker, tmp_path):
    """Make a topic of a broker that nobody else uses; return both."""
    own_broker.create_topic(tmp_path.name, PARTITIONS)
    return own_broker, Topic(own_broker.servers, tmp_path.name)


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        pytest.param(5, {}, id="spark waits 5 s"),
        pytest.param(20, {}, id="spark waits 20 s", marks=pytest.mark.slow),
        pytest.param(20, IMPATIENT, id="spark gives up", marks=pytest.mark.slow),
    ],
)
def test_the_stream_goes_on_when_the_broker_is_back(own_topic, router_run, tmp_path, seconds, options):
    broker, topic = own_topic
    source = {"kafka": {"servers": topic.servers, "topics": [topic.name], "options": options}}
    config, lake = configuration(tmp_path, topic, source=source), tmp_path / "lake"
    topic.simulate(EVENTS)
    router = router_run(config, "--continuous")
    wait_until(lambda: lakes.places(lake).total() == EVENTS, "the events before the outage are in the lake")

    broker.stop()
    gone = time.monotonic()
    router.says("trying again in" if options else "waiting for the source")
    time.sleep(max(0, gone + seconds - time.monotonic()))
    broker.start()
    games = topic.simulate(EVENTS, seed=1)

    wait_until(lambda: lakes.places(lake).total() >= 2 * EVENTS, "the events after the outage are in the lake")
    if not options:
        router.says("the source answers again")
    router.send(signal.SIGTERM)
    assert router.ended() == 0, router.said
    assert len(lakes.places(lake)) == lakes.places(lake).total() == 2 * EVENTS
    assert sum(lakes.rows(lake, f"silver.{game}").total() for game in games) == 2 * EVENTS
    if not options:
        assert router.said.count("waiting for the source") == 1
        assert router.said.count("the source answers again") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(IMPATIENT, "trying again in", id="spark gives up", marks=pytest.mark.slow),
        pytest.param({}, "waiting for the source", id="spark waits", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_run_that_waits_for_its_broker(router_run, tmp_path, options, words):
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        topic = Topic(f"127.0.0.1:{closed.getsockname()[1]}", "events")
        source = {"kafka": {"servers": topic.servers, "topics": [topic.name], "options": options}}
        router = router_run(configuration(tmp_path, topic, source=source), "--continuous")
        router.says(words)
        router.send(signal.SIGTERM)
        assert router.ended() == 0, router.said
