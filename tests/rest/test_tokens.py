"""The tokens that a task holds: used at their time, dropped after it, never beyond what may be in flight."""

from __future__ import annotations

import pytest

from router_rest.limits.lease_client import TaskTokens
from router_rest.limits.messages import Want
from router_rest.limits.sliding_window import Run


@pytest.fixture
def tokens() -> TaskTokens:
    tokens = TaskTokens()
    tokens.apply_allowance(1, 100, 0)
    return tokens


def test_a_token_is_not_used_before_its_time(tokens: TaskTokens) -> None:
    tokens.add_runs([Run(10.0, 0.1, 3, 1, 0.05)], 0.0)

    assert not tokens.acquire(9.99)
    assert tokens.next_due(9.99) == 10.0
    assert tokens.acquire(10.0)
    assert not tokens.acquire(10.0)


def test_the_clocks_of_driver_and_task_differ(tokens: TaskTokens) -> None:
    tokens.add_runs([Run(10.0, 0.0, 1, 1, 0.05)], 5000.0)

    assert not tokens.acquire(10.0)
    assert tokens.acquire(5010.0)


def test_tokens_that_a_stall_made_late_lapse(tokens: TaskTokens) -> None:
    """Used all at once when the task goes on, they would be more than a window holds."""
    tokens.add_runs([Run(10.0, 0.01, 100, 1, 0.015)], 0.0)

    assert [bool(tokens.acquire(now)) for now in (10.5, 10.5, 10.509, 10.509)] == [True, False, True, False]
    assert tokens.take_report(10.509, [], sized=False).lapsed == 49


def test_what_was_dropped_is_told(tokens: TaskTokens) -> None:
    tokens.add_runs([Run(10.0, 0.01, 7, 1, 1.0)], 0.0)
    tokens.drop_tokens()

    assert not tokens.acquire(10.5)
    assert tokens.take_report(10.5, [], sized=False).lapsed == 7


def test_no_more_are_in_flight_than_allowed(tokens: TaskTokens) -> None:
    tokens.apply_allowance(2, 1, 0)
    tokens.add_runs([Run(10.0, 0.0, 5, 1, 1.0)], 0.0)

    assert tokens.acquire(10.0)
    assert not tokens.acquire(10.0)
    assert tokens.next_due(10.0) is None
    tokens.in_flight -= 1
    assert tokens.acquire(10.0)


def test_an_older_message_does_not_raise_what_a_newer_one_lowered(tokens: TaskTokens) -> None:
    tokens.apply_allowance(3, 5, 0)
    tokens.apply_allowance(2, 50, 0)

    assert tokens.cap == 5


def test_a_call_takes_a_token_of_its_size(tokens: TaskTokens) -> None:
    tokens.add_runs([Run(10.0, 0.0, 1, 2, 1.0), Run(10.0, 0.0, 1, 5, 1.0)], 0.0)

    assert tokens.acquire(10.0, 4)
    assert not tokens.acquire(10.0, 4)
    assert tokens.acquire(10.0, 1)


def test_tokens_are_asked_for_by_size_and_only_for_those_without(tokens: TaskTokens) -> None:
    tokens.add_runs([Run(10.0, 0.0, 1, 2, 1.0)], 0.0)

    assert tokens.take_report(10.0, [(rows, "") for rows in (2, 3, 3, 1)], sized=True).wants == (Want(3, 2), Want(1, 1))
    assert tokens.take_report(10.0, [(1, "")] * 3, sized=False).wants == (Want(1, 2),)


def test_a_call_takes_a_token_of_its_key(tokens: TaskTokens) -> None:
    """Without it an account is called by the limits of another one."""
    tokens.add_runs(
        [Run(10.0, 0.0, 1, 1, 1.0, "a"), Run(10.5, 0.0, 1, 1, 1.0, "b"), Run(10.0, 0.0, 1, 1, 1.0, "c")], 0.0
    )

    assert tokens.take_report(10.0, [(1, "b"), (1, "b"), (1, "d")], sized=True).wants == (
        Want(1, 1, "b"),
        Want(1, 1, "d"),
    )
    assert [bool(tokens.acquire(10.0, 1, key)) for key in "abcac"] == [True, False, True, False, False]
    assert tokens.acquire(10.5, 1, "b")


def test_tokens_are_asked_for_before_they_are_missed(tokens: TaskTokens) -> None:
    """A call that waits for the driver each time would be a tenth slower."""
    tokens.estimate_rate(10.0)
    tokens.add_runs([Run(10.0, 0.0, 10, 1, 0.1)], 0.0)
    for _ in range(10):
        tokens.acquire(10.05)
    tokens.estimate_rate(10.1)

    ((rows, many, _),) = tokens.take_report(10.1, [], sized=False).wants
    assert (rows, many) == (1, 7)
    tokens.in_flight = 0  # nothing is under way that would want another token
    assert tokens.take_report(10.1, [], sized=False).wants == ()


def test_retries_are_those_that_were_granted(tokens: TaskTokens) -> None:
    tokens.apply_allowance(2, 1, 1)

    assert [tokens.take_retry(), tokens.take_retry()] == [True, False]
    told = tokens.take_report(10.0, [], sized=False)
    assert (told.retried, told.denied) == (1, 1)
