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
from tests.rest.tasks import HTTP, KEYED, Tasks, hurry, rows, tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.lake import Lake

BRIEF = replace(HTTP, connect=0.4, read=0.4, total=0.8, in_flight=16)
THREE = [rows(range(80), partition=partition) for partition in range(3)]
TWO_HUNDRED = Pace((RateLimit(200, None, 1.0),), 16, share=0.85)
"""Calls that are late for a tenth of a second, on a machine that is busy, are still within the limit."""


@pytest.fixture
def sending(api: Api, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """Return what runs tasks against the API."""
    hurry(monkeypatch)
    with tasks(api, lake) as running:
        yield running


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
def test_an_api_that_was_away_gets_the_rest(sending: Tasks, way: str, keyed: bool) -> None:
    """Without it an outage loses rows, doubles them unseen, or is followed by a flood."""
    script = {"latency": 0.01, "idempotency": KEYED if keyed else ""}
    sending.api.play(**script)
    job = sending.job(pace=TWO_HUNDRED, http=BRIEF, keyed=KEYED if keyed else None)

    with sending.under_way(job, *THREE, after=40) as running:
        sending.api.play(**script, **AWAY[way])
        sent = running.result(60)
    sending.api.play(**script)
    sending.drain(job, *THREE)

    assert "away" in sent.texts
    assert sent.counts["left"] + sent.counts["delivered"] == 240
    assert 0 < sent.counts["left"] < 240
    sending.prove(*THREE, keyed=keyed, limit=200)


def test_nothing_more_is_sent_without_the_driver(sending: Tasks) -> None:
    """Without it tasks whose driver died call on, beside those of the next one, and above the limit."""
    job = sending.job(pace=Pace((RateLimit(100, None, 1.0),), 8), keyed=None)

    with sending.under_way(job, *THREE, after=20) as running:
        sending.leases.stop()
        stopped = sending.api.stats().arrived
        sent = running.result(60)
    ended = sending.api.stats().arrived

    assert "driver" in sent.texts["away"]
    assert ended <= stopped + 8
    assert sent.counts["left"] == 240 - ended
    sending.leases = LeaseServer().start()
    try:
        sending.drain(sending.job(keyed=None), *THREE)
    finally:
        sending.leases.stop()
    sending.prove(*THREE, keyed=True)  # what was in flight was waited for: nothing is sent twice


@pytest.mark.slow
def test_all_of_the_limit_is_used_again_soon_after_an_outage(api: Api, lake: Lake) -> None:
    """Eight seconds of 503 at 64 in flight must not cost minutes at a tenth of the limit.

    As it is, in real time; in virtual time: test_lease_client.
    """
    four = [rows(range(1250), partition=partition) for partition in range(4)]
    with tasks(api, lake) as sending, ThreadPoolExecutor(1) as thread:
        sending.api.play(latency=0.034)
        job = sending.job(pace=Pace((RateLimit(400, None, 1.0),), 64, share=0.95), http=replace(HTTP, in_flight=32))
        running = thread.submit(sending.drain, job, *four)
        while api.stats().arrived < 800:
            time.sleep(0.05)
        out = sending.api.play(failures=[Failure(status=503)], latency=0.034)
        time.sleep(8)
        back = sending.api.play(latency=0.034)
        running.result(120)

        assert api.stats(since=out + 2, until=back).arrived <= 2 * 6
        assert api.stats(since=back + 5, until=back + 8).arrived >= 0.9 * 0.95 * 400 * 3
        sending.prove(*four, keyed=False, limit=400)
