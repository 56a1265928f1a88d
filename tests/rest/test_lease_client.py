"""Tasks, driver, network and API in virtual time: the limit at the API, an outage, a limit that changes, lost tasks."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_rest.channel.client import Gone
from router_rest.channel.protocol import MAX_SILENT_TICKS, TICK_SECONDS
from router_rest.limits.lease_client import (
    CATCH_UP_STEP_SHARE,
    STRICT_STEP_SHARE,
    CallToken,
    LeaseClient,
    Leave,
    TaskTokens,
)
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit, Run
from tests.rest.virtual import Api, World, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE = (RateLimit(1000, None, 1.0),)


async def posted(pace: Pace, api: Api, tasks: Sequence[int], *, in_flight: int = 32, late: float = 0.002) -> World:
    """Let tasks take so many calls each, all at once."""
    world = World(pace, api, late=late)
    assert await asyncio.gather(*(world.post([1] * many, in_flight=in_flight) for many in tasks)) == list(tasks)
    return world


@pytest.mark.parametrize(
    "tasks",
    [[750] * 4, [375] * 8, [188] * 16, [2100, 300, 300, 300]],
    ids=["4 tasks", "8 tasks", "16 tasks", "70 percent of the rows in one task"],
)
def test_tasks_use_one_limit_together_and_keep_it(tasks: list[int]) -> None:
    api = Api(limit=1000)
    world: World = simulate(posted(Pace(ONE, 128), api, tasks, in_flight=64))

    start, end = api.arrivals[0][0], api.arrivals[-1][0]
    assert api.highest(1.0) <= 1000
    assert {status for _, _, status in api.arrivals} == {200}
    assert len(api.arrivals) / (end - start) >= 930
    assert api.most_at_once <= 128
    assert world.messages < 2.2 * sum(tasks)


def test_a_task_is_as_fast_as_its_calls_in_flight() -> None:
    """The limit is far away: nobody waits for the driver."""
    api = Api()
    world: World = simulate(posted(Pace((RateLimit(50_000, None, 1.0),), 128), api, [2000] * 4))

    seconds = api.arrivals[-1][0] - api.arrivals[0][0]
    assert 8000 / seconds >= 0.93 * 128 / api.latency
    assert api.most_at_once <= 128
    assert world.messages < 8000 / 8


@settings(max_examples=25)
@given(
    calls=st.integers(5, 60),
    rows=st.sampled_from([None, 40]),
    long=st.sampled_from([None, 90]),
    tasks=st.lists(
        st.tuples(st.lists(st.integers(1, 12), max_size=40), st.integers(1, 20), st.floats(0, 2)), max_size=5
    ),
    late=st.sampled_from([0.001, 0.01, 0.2]),
    stalls=st.sampled_from([0.003, 0.3]),
    seed=st.integers(0, 1000),
)
def test_no_window_at_the_api_is_above_any_limit(
    calls: int,
    rows: int | None,
    long: int | None,
    tasks: list[tuple[list[int], int, float]],
    late: float,
    stalls: float,
    seed: int,
) -> None:
    """Whenever tasks come, however slow the driver's network is, and however long a new connection takes."""
    limits = [RateLimit(calls, None, 1.0)]
    limits += [RateLimit(None, rows, 1.0)] if rows else []
    limits += [RateLimit(long, None, 8.0)] if long else []
    api = Api()

    async def story() -> None:
        world = World(Pace(tuple(limits), 16), api, late=late, seed=seed)
        await asyncio.gather(
            *(world.post(sizes, in_flight=workers, begins=begins, stalls=stalls) for sizes, workers, begins in tasks)
        )

    simulate(story())
    assert api.highest(1.0) <= calls
    assert rows is None or api.highest(1.0, rows=True) <= rows
    assert long is None or api.highest(8.0) <= long
    assert api.most_at_once <= 16


async def troubled(pace: Pace, api: Api, changes: dict[float, dict[str, object]], seconds: float) -> World:
    """Let four tasks with calls without end run while the API changes at some moments."""
    world = World(pace, api)
    begin = world.loop.time()
    for at, change in changes.items():
        world.loop.call_at(begin + at, api.__dict__.update, change)
    jobs = asyncio.ensure_future(world.drain([1_000_000] * 4, in_flight=64))
    await asyncio.sleep(seconds)
    jobs.cancel()
    return world


@pytest.mark.parametrize("pace", [Pace(ONE, 64), Pace((), 64)], ids=["a limit", "no limit"])
@pytest.mark.parametrize("trouble", [{"down": True}, {"limit": 0}], ids=["503", "429 for all"])
def test_all_of_the_limit_is_used_again_soon_after_an_outage(pace: Pace, trouble: dict[str, object]) -> None:
    """Eight seconds of 503 at 64 in flight must not cost minutes at a tenth of the limit."""
    api = Api()
    simulate(troubled(pace, api, {2.0: trouble, 10.0: {"down": False, "limit": float("inf")}}, 16.2))

    begin = api.arrivals[0][0]
    before = api.rate(begin + 1.0, begin + 2.0)
    assert api.rate(begin + 4.0, begin + 9.5, 503) + api.rate(begin + 4.0, begin + 9.5, 429) <= 2
    assert api.rate(begin + 15.0, begin + 16.0) >= 0.9 * before
    if pace.limits:
        assert api.highest(1.0) <= 1000


@pytest.mark.parametrize("retry_after", [None, 1.0], ids=["429", "429 with Retry-After"])
@pytest.mark.parametrize("pace", [Pace(ONE, 256), Pace((), 64)], ids=["stated too high", "not stated"])
def test_a_limit_that_is_cut_is_found(pace: Pace, retry_after: float | None) -> None:
    api = Api(retry_after=retry_after)
    simulate(troubled(pace, api, {2.0: {"limit": 400}}, 58.0))

    begin = api.arrivals[0][0]
    assert api.rate(begin + 10, begin + 58) >= 400 * (0.93 if retry_after is None else 0.88)
    # 5 % are tolerated, and a higher pace is tried now and then, for two seconds: the median second has none of that
    assert median(api.rate(begin + second, begin + second + 1, 429) for second in range(48, 58)) <= 0.06 * 400


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "moving"])
def test_calls_are_spread_over_a_long_window_that_is_not_stated(fixed: bool) -> None:
    """Without it such an API refuses as many calls as it takes."""
    api = Api(limit=200, window=20.0, fixed=fixed)

    async def story() -> None:
        world = World(Pace((), 32), api)
        end = world.loop.time() + 180
        while world.loop.time() < end:
            await world.post([1] * 300)

    simulate(story())

    begin = api.arrivals[0][0]
    accepted, refused = api.rate(begin + 60, begin + 180), api.rate(begin + 60, begin + 180, 429)
    assert accepted >= 0.9 * 200 / 20
    assert refused <= 0.05 * (accepted + refused)


def test_a_limit_that_is_back_is_used() -> None:
    api = Api()
    simulate(troubled(Pace(ONE, 128), api, {1.0: {"limit": 400}, 4.0: {"limit": 1000}}, 20.0))

    begin = api.arrivals[0][0]
    assert api.rate(begin + 18, begin + 20) >= 930
    assert api.highest(1.0) <= 1000


def test_a_pause_is_not_cut_short() -> None:
    api = Api(limit=0, retry_after=2.0)
    simulate(troubled(Pace((RateLimit(40, None, 1.0),), 8), api, {}, 6.0))

    fifth = api.arrivals[4][0]  # of fewer most may be one call's
    later = [now - fifth for now, _, _ in api.arrivals if now > fifth + api.latency + 0.005]
    assert later[0] >= 2.0


def test_what_a_lost_task_had_lapses() -> None:
    """A worker that is killed keeps neither tokens nor places in flight."""
    api = Api()

    async def story() -> None:
        world = World(Pace(ONE, 64), api)
        lease, serving = world.lease()
        lost = asyncio.ensure_future(world.post([1] * 10_000, in_flight=64, lease=lease))
        others = asyncio.ensure_future(world.drain([10_000] * 3))
        await asyncio.sleep(2.0)
        lost.cancel()
        serving.cancel()
        await asyncio.sleep(3.0)
        others.cancel()

    simulate(story())
    begin = api.arrivals[0][0]
    assert api.highest(1.0) <= 1000
    assert api.rate(begin + 2.0, begin + 3.0) >= 0.85 * 1000
    assert api.rate(begin + 3.0, begin + 5.0) >= 0.93 * 1000


async def call(lease: LeaseClient, many: int) -> None:
    """Make calls one after the other."""
    for _ in range(many):
        await lease.acquire()
        lease.release(200, ok=True, throttled=False)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("silent", [False, True], ids=["closed", "silent"])
def test_without_a_driver_nothing_goes_out(silent: bool) -> None:
    """Nobody knows what the other tasks send."""

    async def story() -> float:
        world = World(Pace(ONE, 64), Api())
        lease, serving = world.lease()
        await lease.acquire()
        lease.release(200, ok=True, throttled=False)
        gone_at = world.loop.time()
        if silent:
            lease._reader.feed_data = lambda text: None  # type: ignore[method-assign]
        else:
            lease._reader.feed_eof()
        with pytest.raises(Gone):
            await call(lease, 1000)
        with pytest.raises(Gone):
            lease.may_retry()
        with pytest.raises(Gone):
            await lease.fetch_credentials()
        lasted = world.loop.time() - gone_at
        await lease.close()
        serving.cancel()
        return lasted

    lasted: float = simulate(story())
    assert lasted <= (MAX_SILENT_TICKS + 5) * TICK_SECONDS if silent else lasted < 0.5


def test_a_call_that_is_given_up_takes_no_place() -> None:
    async def story() -> int:
        world = World(Pace((RateLimit(20, None, 1.0),), 4), Api())
        lease, _ = world.lease()
        for _ in range(30):
            waiting = [asyncio.ensure_future(lease.acquire()) for _ in range(4)]
            await asyncio.sleep(0.06)
            for one in waiting:
                one.cancel()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            for one in ended:
                if isinstance(one, CallToken):
                    lease.release(200, ok=True, throttled=False)
        out = lease._tokens.in_flight
        await lease.close()
        return out

    assert simulate(story()) == 0


def test_a_call_that_goes_out_twice_has_two_tokens_and_one_place() -> None:
    async def story() -> tuple[float, list[float], int]:
        world = World(Pace((RateLimit(2, None, 1.0),), 1), Api())
        lease, _ = world.lease()
        times = []
        for _ in range(2):
            await lease.acquire()
            times.append(world.loop.time())
            await lease.replace_token(1, "")
            times.append(world.loop.time())
            lease.release(200, ok=True, throttled=False)
        await lease.close()
        await asyncio.sleep(0.1)
        return world.coordinator.totals["sent"], times, lease._tokens.in_flight

    sent, times, out = simulate(story())
    assert (sent, out) == (4, 0)
    assert all(later - earlier >= 0.5 for earlier, later in pairwise(times))


def test_a_task_that_is_sent_away_is_told_for_how_long() -> None:
    async def story() -> float:
        world = World(Pace((RateLimit(5, None, 600.0),), 4), Api())
        lease, _ = world.lease()
        with pytest.raises(Leave) as caught:
            await call(lease, 6)
        with pytest.raises(Leave):
            await lease.acquire()
        await lease.close()
        return caught.value.retry_after

    assert 590 < simulate(story()) < 620


def test_retries_come_from_the_budget_of_all() -> None:
    async def story() -> list[int]:
        world = World(Pace((), 64), Api())

        async def task() -> int:
            lease, _ = world.lease()
            made = 0
            for _ in range(200):
                await lease.acquire()
                made += lease.may_retry()
                lease.release(500, ok=True, throttled=False)
                await asyncio.sleep(0.01)
            await lease.close()
            return made

        return list(await asyncio.gather(*(task() for _ in range(5))))

    made = simulate(story())
    assert min(made) >= 10
    assert sum(made) <= 0.2 * 1000 + 10 * 13


def next_opens_after_a_late_call(tokens: TaskTokens) -> float:
    """Return how long after a call that went out 15 ms late the next one may."""
    tokens.apply_allowance(1, 10, 0)
    tokens.add_runs([Run(100.0, 0.02, 5, 1, 0.5)], 0.0)
    assert tokens.acquire(100.015) is not None
    due = tokens.next_due(100.015)
    assert due is not None
    return due - 100.015


def test_calls_make_up_for_time_unless_the_api_wants_them_apart() -> None:
    """nginx without a burst refuses a call that comes early; elsewhere a task that stood still would lose its share."""
    catching_up, apart = TaskTokens(), TaskTokens()
    for _ in range(5):
        apart.note_early(100.0, refused=True)

    assert next_opens_after_a_late_call(catching_up) == pytest.approx(CATCH_UP_STEP_SHARE * 0.02)
    assert next_opens_after_a_late_call(apart) == pytest.approx(STRICT_STEP_SHARE * 0.02)


def test_early_calls_that_are_refused_by_chance_keep_no_calls_apart() -> None:
    """An API that refuses 2 % of its calls at random also refuses early ones: apart, a tenth of the limit is lost."""
    tokens = TaskTokens()
    for number in range(1_000):
        tokens.note_early(100.0, refused=number % 50 in {0, 7})

    assert next_opens_after_a_late_call(tokens) == pytest.approx(CATCH_UP_STEP_SHARE * 0.02)


def test_a_token_knows_that_it_is_early() -> None:
    tokens = TaskTokens()
    next_opens_after_a_late_call(tokens)

    early, in_time = tokens.acquire(100.03), tokens.acquire(100.05)

    assert early is not None
    assert early.early
    assert in_time is not None
    assert not in_time.early
