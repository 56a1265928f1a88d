"""A second run is refused, and a signal ends a run between two batches."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from router.errors import RunningError
from router_demo.api import Api, Failure
from tests.chaos import lakes
from tests.chaos.conftest import GAMES, SCHEMA, configuration
from tests.light import LIGHT
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_run_refuses_a_second_one_and_stops_while_its_next_batch_begins(drain, new_topic, tmp_path, monkeypatch):
    topic, lake, stop, original = new_topic(), tmp_path / "lake", threading.Event(), StreamingQuery.stop
    topic.simulate(400, games=2)
    config = configuration(tmp_path, topic, rows=40)

    def stop_late(query):
        wait_until(lambda: _begun(lake) > _done(lake), "the next batch has begun")
        with pytest.raises(RunningError, match="games is running already"):
            drain(config)
        original(query)

    monkeypatch.setattr(StreamingQuery, "stop", stop_late)
    drain(config, stop=stop, finished=lambda report, behind: stop.set())
    monkeypatch.undo()

    assert lakes.places(lake).total() < 400
    drain(config)
    assert len(lakes.places(lake)) == lakes.places(lake).total() == 400


def _begun(lake):
    """Return the batches that Spark has offsets of."""
    return _numbers(lake, "offsets")


def _done(lake):
    """Return the batches that Spark has committed."""
    return _numbers(lake, "commits")


def _numbers(lake, folder):
    return {int(path.name) for path in (lake / "_router/games/spark" / folder).glob("[0-9]*")}


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        pytest.param(signal.SIGTERM, LIGHT, id="SIGTERM", marks=pytest.mark.slow),
        # as users run it, everything compiled
        pytest.param(signal.SIGINT, {}, id="Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_a_second_run_is_refused_and_a_signal_ends_the_first_after_the_batch_at_hand(
    new_topic, router_run, drain, tmp_path, number, settings
):
    topic, lake = new_topic(), tmp_path / "lake"
    games = topic.simulate(300)
    config = configuration(tmp_path, topic, rows=100, spark=settings)
    router = router_run(config, "--continuous")
    router.says("games batch 1:")

    second = router_run(config, "--once")
    assert second.ended() == 1
    assert "games is running already" in second.said
    assert "Traceback" not in second.said

    games += topic.simulate(3_000, seed=1)
    router.says("games batch 5:")
    os.killpg(router.process.pid, number)  # as a terminal and `timeout` do: to all processes of the group

    assert router.ended() == 0, router.said
    assert "Traceback" not in router.said
    assert lakes.places(lake).total() > 300, "nothing came in after the second start"
    assert lakes.places(lake).total() < sum(games.values()), "it ended because nothing was left"
    done = _done(lake)
    assert {f"{name:010d}.json" for name in done} == {
        path.name for path in lake.glob("_router/games/store/manifests/*/*")
    }
    assert done == lakes.batches(lake, "ops.ledger") == lakes.batches(lake, "bronze.events")

    drain(configuration(tmp_path, topic, rows=5_000, spark=settings))
    assert len(lakes.places(lake)) == lakes.places(lake).total() == sum(games.values())
    assert {game: lakes.rows(lake, f"silver.{game}").total() for game in games} == games


def in_a_held_batch(topic, router_run, folder, hold):
    """Return a run whose first batch ends only when the file `hold` is gone, its configuration, and its events."""
    games = topic.simulate(300)
    troubled = {"inner": {"json": {"schema": SCHEMA}}, "folder": str(folder), "lake": str(folder / "lake")}
    config = configuration(folder, topic, decode={"troubled": troubled})
    hold.touch()
    router = router_run(config, "--continuous")
    wait_until(lambda: any((folder / "lake").glob("*/*/*.parquet")), "the batch at hand lands")
    return router, config, games


@pytest.mark.slow
def test_a_signal_to_all_processes_of_a_run_leaves_it_its_jvm(new_topic, router_run, tmp_path):
    """Without it `timeout`, and managers that stop a group, end the JVM first and cut the batch at hand off."""
    lake, hold = tmp_path / "lake", tmp_path / "hold"
    router, _, games = in_a_held_batch(new_topic(), router_run, tmp_path, hold)

    os.killpg(router.process.pid, signal.SIGTERM)
    time.sleep(2)
    hold.unlink()

    assert router.ended() == 0, router.said
    assert "Traceback" not in router.said
    assert lakes.places(lake).total() == sum(games.values())


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_batch_at_hand(new_topic, router_run, drain, tmp_path):
    lake, hold = tmp_path / "lake", tmp_path / "hold"
    router, config, games = in_a_held_batch(new_topic(), router_run, tmp_path, hold)

    for _ in range(2):
        os.killpg(router.process.pid, signal.SIGINT)
        time.sleep(1)
    assert router.ended() == 1, router.said

    hold.unlink()
    drain(config)
    assert len(lakes.places(lake)) == lakes.places(lake).total() == sum(games.values())


@pytest.mark.parametrize(
    ("where", "number", "seconds"),
    [
        ("apply", signal.SIGINT, 10),
        pytest.param("prepare", signal.SIGINT, 10, marks=pytest.mark.slow),
        pytest.param("task", signal.SIGTERM, 30, marks=pytest.mark.slow),
        pytest.param("apply", signal.SIGTERM, 30, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_run_with_a_sink_that_sleeps_for_ever(
    new_topic, router_run, drain, tmp_path, where, number, seconds
):
    """Without it only SIGKILL does, and Kubernetes sends it with no word of why."""
    topic, sign = new_topic(), tmp_path / "asleep"
    games = topic.simulate(300)

    def sleeping(where):
        sink = {"sleeper": {"where": where, "sign": str(sign)}}
        asleep = {"name": "asleep", "match": {"sql": "true"}, "sinks": [sink]}
        return configuration(
            tmp_path, topic, routes=[GAMES, asleep], ui={"address": "127.0.0.1:0", "stuck_after": "1 s"}
        )

    router = router_run(sleeping(where), "--continuous")
    wait_until(sign.exists, "the sink sleeps")
    if where != "prepare":
        router.says("(batch 0, apply asleep/sleeper)")
    began = time.monotonic()
    os.killpg(router.process.pid, number)

    assert router.ended() == 1, router.said
    # Python and the JVM need some seconds to end, and more on a busy machine.
    assert time.monotonic() - began < 3 * seconds
    assert "nothing has gone on for" in router.said
    drain(sleeping("nowhere"))
    assert len(lakes.places(tmp_path / "lake")) == sum(games.values())


SINKS, ROWS = 23, 200
PATIENT = {"read": "900 s", "total": "900 s"}
"""Longer than a test waits for the end of a run."""


@pytest.mark.slow
def test_ctrl_c_ends_a_run_whose_many_apis_wait_drip_or_are_silent(router_run, tmp_path):
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"n": number, "game": "uno"}) for number in range(ROWS)]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    config = tmp_path / "sinks.yaml"
    failures = [
        Failure(path="/1", status=429, headers={"Retry-After": "600"}),
        Failure(path="/2", how="silent"),
        Failure(path="/3", status=503),
        Failure(path="/4", how="drip"),
    ]
    with Api(latency=0.3, failures=failures) as api:
        options = [
            {"url": f"{api.url}/{at % 6}/{at}", "limit_name": f"l{at}", "timeouts": PATIENT} for at in range(SINKS)
        ]
        route = {"name": "all", "match": {"sql": "event.game IS NOT NULL"}, "sinks": [{"rest": one} for one in options]}
        text = {
            "name": "sinks",
            "lake": str(tmp_path / "lake"),
            "source": {"files": {"path": str(tmp_path / "in")}},
            "decode": {"json": "n int, game string"},
            "routes": [route],
            "dead_letters": "ops.dead",
            "spark": LIGHT,
        }
        config.write_text(json.dumps(text))
        router = router_run(config, "--continuous")
        router.says("sinks batch 0:")
        wait_until(
            lambda: {"/1", "/2", "/3", "/4"} <= {call["path"][:2] for call in api.requests(last=5_000)}, "calls arrive"
        )
        os.killpg(router.process.pid, signal.SIGINT)

        assert router.ended() == 0, router.said
        assert "Traceback" not in router.said

        api.play()
        again = router_run(config, "--once")
        assert again.ended() == 0, again.said
        arrived = api.rows("n")
        assert set(arrived) == set(range(ROWS))
        assert min(arrived.values()) >= SINKS
