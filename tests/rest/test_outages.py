"""An API that goes away while tasks call it, and a driver that does: nothing is lost, and doubles are told."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from router_demo.api import Api, Failure
from router_rest.limits.lease_server import LeaseServer
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit
from tests.rest.tasks import HTTP, KEYED, Tasks, rows, run_tasks

if TYPE_CHECKING:
    from router.delta.lake import Lake

BRIEF = replace(HTTP, connect=0.4, read=0.4, total=0.8, in_flight=16)
THREE = [rows(range(80), partition=partition) for partition in range(3)]
TWO_HUNDRED = Pace((RateLimit(200, None, 1.0),), 16, share=0.85)
"""Calls that are late for a tenth of a second, on a machine that is busy, are still within the limit."""


AWAY: dict[str, dict[str, Any]] = {
    "refuses": {"outage": "refused"},
    "drops packets": {"outage": "dropped"},
    "accepts and never answers": {"failures": [Failure(how="silent", processed=True)]},
}


@pytest.mark.parametrize(
    ("way", "keyed"),
    [
        ("refuses", False),
        ("drops packets", False),
        ("accepts and never answers", True),
        *(
            pytest.param(way, keyed, marks=pytest.mark.slow)
            for way, keyed in (
                ("refuses", True),
                ("drops packets", True),
                ("accepts and never answers", False),
            )
        ),
    ],
)
def test_an_api_that_was_away_gets_the_rest(hurried_tasks: Tasks, way: str, keyed: bool) -> None:
    """Without it an outage loses rows, doubles them unseen, or is followed by a flood."""
    script = {"latency": 0.01, "idempotency": KEYED if keyed else ""}
    hurried_tasks.api.play(**script)
    job = hurried_tasks.job(pace=TWO_HUNDRED, http=BRIEF, keyed=KEYED if keyed else None)

    with hurried_tasks.under_way(job, *THREE, after=40) as running:
        hurried_tasks.api.play(**script, **AWAY[way])
        sent = running.result(60)
    hurried_tasks.api.play(**script)
    hurried_tasks.drain(job, *THREE)

    assert "away" in sent.texts
    assert sent.counts["left"] + sent.counts["delivered"] == 240
    assert 0 < sent.counts["left"] < 240
    hurried_tasks.prove(*THREE, keyed=keyed, limit=200)


def test_nothing_more_is_sent_without_the_driver(hurried_tasks: Tasks) -> None:
    """Without it tasks whose driver died call on, beside those of the next one, and above the limit."""
    job = hurried_tasks.job(pace=Pace((RateLimit(100, None, 1.0),), 8), keyed=None)

    with hurried_tasks.under_way(job, *THREE, after=20) as running:
        hurried_tasks.leases.stop()
        stopped = hurried_tasks.api.stats().arrived
        sent = running.result(60)
    ended = hurried_tasks.api.stats().arrived

    assert "driver" in sent.texts["away"]
    assert ended <= stopped + 8
    assert sent.counts["left"] == 240 - ended
    hurried_tasks.leases = LeaseServer().start()
    try:
        hurried_tasks.drain(hurried_tasks.job(keyed=None), *THREE)
    finally:
        hurried_tasks.leases.stop()
    hurried_tasks.prove(*THREE, keyed=True)  # what was in flight was waited for: nothing is sent twice


@pytest.mark.slow
def test_all_of_the_limit_is_used_again_soon_after_an_outage(api: Api, lake: Lake) -> None:
    """Eight seconds of 503 at 64 in flight must not cost minutes at a tenth of the limit.

    As it is, in real time; in virtual time: test_lease_client.
    """
    four = [rows(range(1250), partition=partition) for partition in range(4)]
    with run_tasks(api, lake) as tasks, ThreadPoolExecutor(1) as thread:
        tasks.api.play(latency=0.034)
        job = tasks.job(pace=Pace((RateLimit(400, None, 1.0),), 64, share=0.95), http=replace(HTTP, in_flight=32))
        running = thread.submit(tasks.drain, job, *four)
        while api.stats().arrived < 800:
            time.sleep(0.05)
        out = tasks.api.play(failures=[Failure(status=503)], latency=0.034)
        time.sleep(8)
        back = tasks.api.play(latency=0.034)
        running.result(120)

        assert api.stats(since=out + 2, until=back).arrived <= 2 * 6
        assert api.stats(since=back + 5, until=back + 8).arrived >= 0.9 * 0.95 * 400 * 3
        tasks.prove(*four, keyed=False, limit=400)
