"""The pace at a stated limit, in virtual time, at limiters that are played call by call.

`LimitedApi` accepts so many calls per second; the limiters below it decide on each call, as the real ones do that
tests/limiters and the benchmark measure in real time.
"""

from __future__ import annotations

import heapq
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import pytest

from router_rest.limits.backpressure import FIRST_TRY_WAIT_SECONDS, TRY_STEP_FACTOR, StatedPace

if TYPE_CHECKING:
    from collections.abc import Callable


class LimitedApi:
    """An API in steps of a tenth of a second: what of so many calls per second it accepts."""

    def __init__(self, pace: StatedPace, stated: float, accepts: Callable[[float], float]) -> None:
        self.pace, self.stated, self.accepts = pace, stated, accepts
        self.now = 100.0
        self.factors: list[float] = []
        self.accepted = 0.0
        self._rest = 0.0

    def run(self, seconds: float) -> None:
        """Send for some seconds, at the pace of each moment."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            sent = self.stated * self.pace.factor
            ok = self.accepts(sent) / 10 + self._rest
            self._rest = ok - int(ok)
            self.accepted += int(ok)
            self.pace.on_result(self.now, ok=int(ok), refused=max(0, round(sent / 10) - int(ok)))
            self.factors.append(self.pace.factor)


def test_a_few_refusals_leave_the_pace_as_it_is() -> None:
    """Without it an API that refuses two calls of a hundred by chance gets a fraction of what it takes."""
    api = LimitedApi(StatedPace(), 200.0, lambda sent: 0.97 * sent)
    api.run(60)

    assert {*api.factors} == {1.0}


def test_refusals_by_chance_lower_the_pace_for_a_try_only() -> None:
    """Where accepted calls fall with the pace, a lower pace is no help."""
    api = LimitedApi(StatedPace(), 200.0, lambda sent: 0.8 * sent)
    api.run(120)

    assert min(api.factors) < TRY_STEP_FACTOR
    assert api.pace.factor == 1.0
    lowered = [number for number, (a, b) in enumerate(pairwise(api.factors)) if b < a]
    waits = [after - before for before, after in pairwise(lowered)]
    assert waits[0] >= FIRST_TRY_WAIT_SECONDS * 10
    assert waits == sorted(waits)
    assert api.accepted >= 0.99 * 0.8 * 200 * 120


def test_a_limit_that_is_lower_than_stated_is_found() -> None:
    """Without it a third of the calls is refused for as long as the sink runs."""
    api = LimitedApi(StatedPace(), 200.0, lambda sent: min(sent, 130.0))
    api.run(30)
    api.accepted = 0.0
    api.run(60)

    assert 0.6 <= api.pace.factor <= 0.75
    assert api.accepted >= 0.93 * 130 * 60


def test_an_api_that_wants_calls_apart_gets_them_apart() -> None:
    """nginx refuses each call that comes a little too early: slower calls are more accepted calls."""
    api = LimitedApi(StatedPace(), 50.0, lambda sent: sent if sent <= 46 else 0.75 * sent)
    api.run(10)

    assert api.pace.factor < 1
    api.accepted = 0.0
    api.run(100)
    assert api.accepted >= 0.96 * 43 * 100


def test_a_limit_that_is_back_is_used_within_seconds() -> None:
    pace = StatedPace()
    LimitedApi(pace, 200.0, lambda sent: min(sent, 130.0)).run(60)
    assert pace.factor < 0.8
    later = LimitedApi(pace, 200.0, lambda sent: sent)
    later.now = 200.0
    later.run(180)

    assert pace.factor == 1.0


def test_answers_to_calls_at_another_pace_do_not_count() -> None:
    """On the ramp after a pause fewer calls are accepted, whatever the pace that is tried."""
    api = LimitedApi(StatedPace(), 200.0, lambda sent: 0.8 * sent)
    api.run(6)
    assert api.pace.factor < 1
    api.pace.restart_count()

    assert api.pace.factor == 1.0


def test_a_pause_of_all_lowers_the_pace() -> None:
    """Without it all calls go out as before, and are refused as before."""
    pace = StatedPace()
    pace.lower_pace(100.0)

    assert pace.factor == pytest.approx(TRY_STEP_FACTOR)


class Limiter(Protocol):
    def accepts(self, now: float) -> bool: ...


class Spaced:
    """As nginx without a burst: a call that comes too soon after the one before, in whole milliseconds, is refused."""

    def __init__(self, limit: float) -> None:
        self._step = 1000 / limit
        self._last = -1000

    def accepts(self, now: float) -> bool:
        accepted = int(now * 1000) - self._last >= self._step
        if accepted:
            self._last = int(now * 1000)
        return accepted


class Bucket:
    def __init__(self, limit: float, burst: int) -> None:
        self._limit = limit
        self._burst = burst
        self._tokens = float(burst)
        self._filled = 0.0

    def accepts(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._limit)
        self._filled = max(now, self._filled)
        accepted = self._tokens >= 1
        self._tokens -= accepted
        return accepted


class Windows:
    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._window = -1
        self._calls = 0

    def accepts(self, now: float) -> bool:
        if int(now / self._seconds) != self._window:
            self._window = int(now / self._seconds)
            self._calls = 0
        self._calls += 1
        return self._calls <= self._limit


class Chance:
    def __init__(self, refused: float) -> None:
        self._refused = refused
        self._chance = random.Random(1)

    def accepts(self, now: float) -> bool:
        return self._chance.random() >= self._refused


class Unchanged(StatedPace):
    """What a client does that backs off nowhere."""

    def on_result(self, now: float, *, ok: int, refused: int) -> None: ...


def simulate_sending(
    pace: StatedPace, limiter: Limiter, *, stated: float, jitter: float, seconds: float
) -> tuple[int, int]:
    """Send for some seconds over a network that moves each call, and each answer; return the accepted and refused."""
    chance = random.Random(7)
    way: list[float] = []
    answers: list[tuple[float, bool]] = []
    results = [0, 0]
    now = 0.0
    while now < seconds:
        now += 1 / (0.98 * stated * pace.factor)
        heapq.heappush(way, now + chance.uniform(0, 2 * jitter))
        while way and way[0] < now:
            arrived = heapq.heappop(way)
            accepted = limiter.accepts(arrived)
            results[accepted] += 1
            heapq.heappush(answers, (arrived + chance.uniform(0, 2 * jitter), accepted))
        while answers and answers[0][0] < now:
            _, accepted = heapq.heappop(answers)
            pace.on_result(now, ok=int(accepted), refused=int(not accepted))
    return results[True], results[False]


Case = tuple["Callable[[], Limiter]", float, float]
"""The limiter, the stated limit, and the jitter in seconds."""
NO_HELP: dict[str, Case] = {
    "spaced, much jitter": (lambda: Spaced(50), 50, 0.015),
    "spaced, more jitter": (lambda: Spaced(50), 50, 0.03),
    "spaced, much jitter, fast": (lambda: Spaced(500), 500, 0.015),
    "spaced, much jitter, half of what is stated": (lambda: Spaced(50), 100, 0.015),
    "chance, a tenth": (lambda: Chance(0.1), 200, 0.005),
    "chance, a third": (lambda: Chance(0.3), 50, 0.005),
}
"""Where the share of refused calls falls with the pace, but the accepted calls do also."""
LOWER: dict[str, Case] = {
    "bucket, half": (lambda: Bucket(50, 10), 100, 0.005),
    "bucket, two fifths, fast": (lambda: Bucket(400, 40), 1000, 0.005),
    "bucket, five sixths": (lambda: Bucket(50, 10), 60, 0.005),
    "windows of a second, five sixths": (lambda: Windows(50, 1), 60, 0.005),
    "windows of five seconds, five sixths": (lambda: Windows(250, 5), 60, 0.005),
    "spaced, half": (lambda: Spaced(50), 100, 0.001),
    "spaced, nine tenths": (lambda: Spaced(50), 55, 0.001),
}
"""Where the limit is lower than stated."""


@pytest.mark.parametrize(("limiter", "stated", "jitter"), NO_HELP.values(), ids=NO_HELP)
def test_a_pace_that_accepts_fewer_calls_does_not_stay(
    limiter: Callable[[], Limiter], stated: float, jitter: float
) -> None:
    """Without it small losses, each within what chance does, add up to a tenth and more of the accepted calls."""
    accepted, _ = simulate_sending(StatedPace(), limiter(), stated=stated, jitter=jitter, seconds=600)
    unchanged, _ = simulate_sending(Unchanged(), limiter(), stated=stated, jitter=jitter, seconds=600)

    assert accepted >= 0.97 * unchanged


@pytest.mark.parametrize(("limiter", "stated", "jitter"), LOWER.values(), ids=LOWER)
def test_a_limit_that_is_lower_than_stated_is_used_with_few_refusals(
    limiter: Callable[[], Limiter], stated: float, jitter: float
) -> None:
    accepted, refused = simulate_sending(StatedPace(), limiter(), stated=stated, jitter=jitter, seconds=600)
    unchanged, refused_unchanged = simulate_sending(Unchanged(), limiter(), stated=stated, jitter=jitter, seconds=600)

    assert accepted >= 0.97 * unchanged
    assert refused <= 0.1 * (accepted + refused) < refused_unchanged


def test_a_limit_far_below_the_stated_one_is_found_within_seconds() -> None:
    """Without it each step of a tenth takes its own try: half a minute in which most calls are refused."""
    pace = StatedPace()
    simulate_sending(pace, Bucket(400, 40), stated=1000, jitter=0.005, seconds=9)

    assert 0.35 <= pace.factor <= 0.45
