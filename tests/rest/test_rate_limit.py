"""APIs that say that it is too much, in all the ways there are, or are slow: limits are kept, and every row comes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from math import floor
from typing import TYPE_CHECKING, Any

import pytest

from router_demo.api import Api, Failure
from router_demo.api import Limit as Bucket
from router_rest.answers import pause_headers
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit
from tests.rest import virtual
from tests.rest.tasks import HTTP, KEYED, Tasks, rows, run_tasks

if TYPE_CHECKING:
    from router.delta.lake import Lake

THREE = [rows(range(40), partition=partition) for partition in range(3)]
MANY = [rows(range(300), partition=partition) for partition in range(3)]


@pytest.mark.parametrize(
    "form",
    ["absurd", "malformed", *(pytest.param(one, marks=pytest.mark.slow) for one in ("none", "seconds", "date"))],
)
def test_a_storm_of_429_loses_nothing(hurried_tasks: Tasks, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it rows are dead letters because there were too many at a time, or wait for a year."""
    monkeypatch.setattr(pause_headers, "MAX_RETRY_AFTER_SECONDS", 0.3)  # an hour
    hurried_tasks.api.play(limits=[Bucket(rate=200, burst=20, retry_after=form)], idempotency=KEYED)
    pace = Pace((), 16, longest_pause=0.3, retry_floor=1000.0)

    jobs = hurried_tasks.drain(hurried_tasks.job(pace=pace), *THREE)

    assert not any(sent.dead for sent in jobs)
    assert hurried_tasks.api.stats().statuses[429] > 0
    hurried_tasks.prove(*THREE, keyed=True)
    assert not any(row["in_doubt"] for row in hurried_tasks.receipts())


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_nobody_calls_before_the_api_wants_it(hurried_tasks: Tasks, form: Any) -> None:
    """Without it an API that asks for a pause is asked again, and bans the caller."""
    hurried_tasks.api.play(failures=[Failure(status=429, times=2, retry_after=form, wait=1)])

    hurried_tasks.drain(hurried_tasks.job(pace=Pace((), 1)), rows(range(5)))

    arrived = hurried_tasks.api.requests(1000)
    for refused in arrived[:2]:
        again = [one["at"] for one in arrived if one["body"] == refused["body"]]
        assert again[1] - again[0] >= 0.99
    hurried_tasks.prove(rows(range(5)), keyed=True)


@pytest.mark.parametrize(
    ("told", "window"),
    [
        ("draft", 2),
        pytest.param("three", 2, marks=pytest.mark.slow),
        pytest.param("x", 2, marks=pytest.mark.slow),
        pytest.param("x_epoch", 4, marks=pytest.mark.slow),  # whole seconds take up to one off what is left of it
    ],
)
def test_what_headers_say_is_left_is_not_overdrawn(hurried_tasks: Tasks, told: Any, window: float) -> None:
    """Without it an API that tells its limit has to refuse calls all the same."""
    # without Retry-After: whoever does not read the headers is refused about ninety times here
    hurried_tasks.api.play(limits=[Bucket(rate=50 / window, window=window, headers=told, retry_after="none")])
    pace = Pace((), 8, retry_floor=1000.0)

    hurried_tasks.drain(hurried_tasks.job(pace=pace), rows(range(80)))

    hurried_tasks.prove(rows(range(80)), keyed=True)
    # whole seconds are told, so that the next window may be tried a moment too early
    assert hurried_tasks.api.stats().statuses.get(429, 0) <= 3 * 8


@pytest.mark.parametrize(
    ("rate", "many"), [(300, 120), pytest.param(1000, 3000, marks=pytest.mark.slow)], ids=["small", "large"]
)
def test_a_limit_that_is_cut_in_the_middle_loses_nothing(hurried_tasks: Tasks, rate: int, many: int) -> None:
    """Without it an API that is short of room for a while is stormed, and rows become dead letters."""
    batches = [rows(range(many), partition=partition) for partition in range(3)]
    script: dict[str, Any] = {"idempotency": KEYED}
    hurried_tasks.api.play(limits=[Bucket(rate=rate, burst=20)], **script)
    job = hurried_tasks.job(pace=Pace((RateLimit(rate, None, 1.0),), 32, share=0.85, retry_floor=50.0))

    with hurried_tasks.under_way(job, *batches, after=many) as running:
        cut = hurried_tasks.api.play(limits=[Bucket(rate=0.4 * rate, burst=20, retry_after="none")], **script)
        sent = running.result(120)
    hurried_tasks.drain(job, *batches)

    assert not sent.dead
    hurried_tasks.prove(*batches, keyed=True, limit=rate)
    stats = hurried_tasks.api.stats(since=cut)
    # whoever called on at the old pace would be refused three calls for two that are taken
    lowered = many >= 1000  # a pace is tried for two seconds before it is lowered further
    assert stats.statuses[429] <= (1.0 if lowered else 1.6) * stats.processed


def test_a_slow_api_gets_no_more_calls_at_once(hurried_tasks: Tasks) -> None:
    """Without it an API that takes ten times as long has ten times the calls to work on."""
    hurried_tasks.api.play(latency=0.03)
    job = hurried_tasks.job(pace=Pace((), 16), http=replace(HTTP, in_flight=16))

    with hurried_tasks.under_way(job, *MANY, after=60):
        hurried_tasks.api.play(latency=0.3)
        while hurried_tasks.api.stats().arrived < 120:
            time.sleep(0.01)
        hurried_tasks.api.play(latency=0.0)

    assert hurried_tasks.api.stats().busiest <= 16
    hurried_tasks.drain(job, *MANY)
    hurried_tasks.prove(*MANY, keyed=True)


def test_constant_timeouts_do_not_make_more_calls(hurried_tasks: Tasks) -> None:
    """A constant timeout looks like a steady latency: whoever adds calls then keeps an API from its recovery."""
    hurried_tasks.api.play(latency=0.05, idempotency=KEYED)
    job = hurried_tasks.job(pace=Pace((), 16), http=replace(HTTP, read=0.4, total=0.4, in_flight=16))

    with hurried_tasks.under_way(job, *MANY, after=60) as running:
        silent = hurried_tasks.api.play(failures=[Failure(how="silent")], idempotency=KEYED)
        sent = running.result(60)
    # each of these holds its place for 0.4 seconds
    assert hurried_tasks.api.stats(since=silent, window=0.35).highest <= 16
    assert sent.counts["left"] > 0
    hurried_tasks.api.play(idempotency=KEYED)
    hurried_tasks.drain(job, *MANY)
    hurried_tasks.prove(*MANY, keyed=True)


def test_no_second_is_above_the_limit_wherever_it_begins() -> None:
    """A limiter that counts by the seconds of a clock lets nearly twice its limit through around the turn of one."""
    limited, free = virtual.Api(), virtual.Api()

    async def calls(pace: Pace, api: virtual.Api) -> None:
        world = virtual.World(pace, api)
        await asyncio.gather(*(world.post([1] * 500, in_flight=11, begins=0.37) for _ in range(4)))

    virtual.simulate(calls(Pace((RateLimit(1000, None, 1.0),), 128), limited))
    virtual.simulate(calls(Pace((), 128), free))

    seconds: Counter[int] = Counter()
    let_in = virtual.Api()
    for arrival in free.arrivals:
        seconds[floor(arrival[0])] += 1
        if seconds[floor(arrival[0])] <= 1000:
            let_in.arrivals.append(arrival)
    assert let_in.highest(1.0) > 1253
    assert limited.highest(1.0) <= 1000


@pytest.mark.slow
def test_no_second_at_a_real_api_is_above_the_limit(api: Api, lake: Lake) -> None:
    """The same in real time, from four tasks that begin and end as they like."""
    four = [rows(range(900 * partition, 900 * partition + 900), partition=partition) for partition in range(4)]
    with run_tasks(api, lake) as tasks:
        tasks.api.play(latency=0.034)
        job = tasks.job(pace=Pace((RateLimit(1000, None, 1.0),), 64, share=0.95), http=replace(HTTP, in_flight=32))
        tasks.drain(job, *four)

        tasks.prove(*four, keyed=True, limit=1000)
