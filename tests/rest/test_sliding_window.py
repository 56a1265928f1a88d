"""Tokens under several limits: no window ever holds more, however late within its life a token is used."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_rest.limits.sliding_window import LOOSE_LIFE_SECONDS, RateLimit, Run, SlidingWindows
from tests.rest.windows import USED_SHARE, most_in_a_window, token_times

LIMITS = st.builds(
    lambda many, seconds, rows: RateLimit(None if rows else many, many if rows else None, seconds),
    st.integers(1, 40),
    st.sampled_from([0.5, 1.0, 2.0, 7.0, 20.0]),
    st.booleans(),
)
QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.003, 0.05, 0.3, 2.0]),  # seconds since the last question
        st.integers(1, 30),  # calls
        st.integers(1, 6),  # rows of each
        st.sampled_from([1.0, 0.1]),  # of the pace
        st.sampled_from([None, 3.0]),  # calls per second that were found
    ),
    max_size=60,
)


@given(st.lists(LIMITS, min_size=1, max_size=3), QUESTIONS, st.data())
def test_no_window_holds_more_than_its_limit(
    limits: list[RateLimit], questions: list[tuple[float, int, int, float, float | None]], data: st.DataObject
) -> None:
    """A call too many is a refused call, and with some APIs a blocked customer."""
    windows, now = SlidingWindows(limits, USED_SHARE), 50.0
    calls: list[tuple[float, int]] = []
    rows_used: list[tuple[float, int]] = []
    most_rows = min((int(one.rows) for one in limits if one.rows is not None), default=6)
    for wait, many, rows, factor, rate in questions:
        now += wait
        size = min(rows, most_rows)
        run = windows.allocate_run(now, now + 0.1, calls=many, rows=size, factor=factor, rate=rate)
        if run is None:
            continue
        assert now <= run.first <= token_times(run)[-1] <= now + 0.1 + 1e-9
        assert run.calls <= many
        late = data.draw(st.sampled_from([0.0, 0.5, 1.0])) * run.lives
        for number, when in enumerate(token_times(run)):
            used = when + (late if number % 2 else 0.0)
            calls.append((used, 1))
            rows_used.append((used, size))

    for limit in limits:
        if limit.calls is not None:
            assert most_in_a_window(calls, limit.seconds) <= limit.calls
        if limit.rows is not None:
            assert most_in_a_window(rows_used, limit.seconds) <= limit.rows


def all_of(windows: SlidingWindows, seconds: float, rows: int = 1) -> list[float]:
    """Return the tokens that a task gets that always wants more."""
    dealt, now = [], 0.0
    while now < seconds:
        while run := windows.allocate_run(now, now + 0.1, calls=1000, rows=rows):
            dealt += token_times(run)
        now += 0.05
    return [when for when in dealt if when < seconds]


@pytest.mark.parametrize("most", [1, 10, 1000, 20_000])
def test_a_limit_is_used_and_calls_are_even(most: int) -> None:
    """What a limit allows is paid for; and an API with a small bucket refuses bursts."""
    dealt = all_of(SlidingWindows([RateLimit(most, None, 1.0)], USED_SHARE), 10.0)

    assert len(dealt) >= 0.96 * most * 10 - 1
    gaps = [after - before for before, after in pairwise(dealt)]
    assert min(gaps) >= 0.999 / (USED_SHARE * most)


def test_a_long_limit_is_used_as_fast_as_the_short_one_allows() -> None:
    """5000 per hour, spaced evenly, would let a batch of a hundred events wait for a minute."""
    windows = SlidingWindows([RateLimit(10, None, 1.0), RateLimit(500, None, 360.0)], USED_SHARE)

    dealt = all_of(windows, 360.0 + 60.0)

    assert 48 <= dealt[499] <= 55  # ten per second
    assert dealt[500] >= 360.0
    assert most_in_a_window([(when, 1) for when in dealt], 360.0) == 500


def test_rows_pay_for_rows() -> None:
    dealt = all_of(SlidingWindows([RateLimit(None, 100, 1.0)], USED_SHARE), 10.0, rows=10)

    assert 94 <= len(dealt) <= 99


def test_a_call_beyond_its_limit_goes_alone_and_pays_in_time() -> None:
    """It can never fit; to wait for ever would stall the table that it is from."""
    dealt = all_of(SlidingWindows([RateLimit(None, 10, 1.0)], USED_SHARE), 10.0, rows=25)

    assert len(dealt) == 4
    assert all(after - before >= 2.5 for before, after in pairwise(dealt))


def test_a_fraction_of_a_call_is_a_call_in_a_longer_time() -> None:
    assert len(all_of(SlidingWindows([RateLimit(0.2, None, 1.0)], USED_SHARE), 26.0)) == 6


def test_tokens_may_be_late_only_while_there_is_room() -> None:
    windows = SlidingWindows([RateLimit(100, None, 1.0)], USED_SHARE)

    first, full = windows.allocate_run(0.0, 0.1, calls=1, rows=1), all_of(windows, 2.0)
    last = windows.allocate_run(2.0, 2.1, calls=1, rows=1)

    assert first is not None
    assert last is not None
    assert len(full) > 100
    assert first.lives == LOOSE_LIFE_SECONDS
    assert last.lives < 0.02


def test_a_task_that_stands_still_at_its_start_sends_no_bunch_afterwards() -> None:
    windows, runs = SlidingWindows([RateLimit(1000, None, 1.0)], USED_SHARE), []
    while (run := windows.allocate_run(0.0, 0.1, calls=100, rows=1)) is not None:
        runs.append(run)

    ends = [(at, at + run.lives) for run in runs for at in token_times(run)]
    assert len(ends) == 98
    assert max(sum(at <= now <= end for at, end in ends) for now, _ in ends) <= 25


def test_no_limits_let_everything_go() -> None:
    run = SlidingWindows([], USED_SHARE).allocate_run(5.0, 5.1, calls=1000, rows=3)

    assert run == Run(5.0, 0.0, 1000, 3, LOOSE_LIFE_SECONDS)


def test_what_went_out_before_counts() -> None:
    """A driver that starts anew would else call 5000 times more within the same hour."""
    limits = [RateLimit(50, 500, 3600.0)]
    old, new = SlidingWindows(limits, USED_SHARE), SlidingWindows(limits, USED_SHARE)
    old.count_earlier(0.0, 50, 50)
    new.take_over(old)

    assert new.next_start(100.0, 1) >= 3600.0
    assert SlidingWindows(limits, USED_SHARE).next_start(100.0, 1) == 100.0


def test_memory_is_bounded_however_long_a_limit_is() -> None:
    windows = SlidingWindows([RateLimit(100_000, None, 3600.0), RateLimit(1000, None, 1.0)], USED_SHARE)

    all_of(windows, 60.0)

    assert sum(len(quota.window._lumps) for quota in windows._quotas) < 2_000
