"""What the status of an answer says is to be done."""

from __future__ import annotations

import pytest

from router_rest.delivery.response_status import Action, action_for, doubtful, throttles

MEANT = {
    Action.DONE: {200, 201, 202, 204, 207, 299},
    Action.AGAIN: {408, 409, 423, 425, 429, 500, 502, 503, 504, 507, 520, 599},
    Action.LOGIN: {401},
    Action.REFUSED: {400, 422},
    Action.SPLIT: {413},
    Action.WRONG: {100, 301, 302, 304, 307, 308, 402, 403, 404, 405, 410, 415, 501},
}


@pytest.mark.parametrize(("status", "meant"), [(status, meant) for meant, all_ in MEANT.items() for status in all_])
def test_a_status_says_what_is_to_be_done(status: int, meant: Action) -> None:
    """Without it good rows become dead letters, or rows that nobody takes block the others."""
    assert action_for(status, keyed=True) is meant


def test_a_conflict_without_a_key_is_no_first_attempt_that_still_runs() -> None:
    """Without it a row that the API has already is sent until the end of days."""
    assert action_for(409, keyed=False) is Action.REFUSED
    assert action_for(409, keyed=False, again=frozenset({409})) is Action.AGAIN


@pytest.mark.parametrize("status", [403, 404, 410, 414])
def test_an_address_made_of_a_row_is_its_own_fault(status: int) -> None:
    """Without it one unknown name in a URL stops the stream."""
    assert action_for(status, keyed=True, url_of_data=True) is Action.REFUSED
    assert action_for(405, keyed=True, url_of_data=True) is Action.WRONG


def test_which_statuses_are_tried_again_can_be_said() -> None:
    """Without it an API that says 403 when it is busy, or 500 to a bad row, cannot be used."""
    again = frozenset({403, 503, 200})

    assert action_for(403, keyed=True, again=again) is Action.AGAIN
    assert action_for(503, keyed=True, again=again) is Action.AGAIN
    assert action_for(500, keyed=True, again=again) is Action.REFUSED
    assert action_for(200, keyed=True, again=again) is Action.DONE


def test_only_too_many_calls_slow_them_down() -> None:
    """Without it a broken server is taken for a busy one, or a busy one is not spared."""
    assert throttles(429, paused=False)
    assert throttles(503, paused=True)
    assert not throttles(503, paused=False)
    assert not throttles(500, paused=True)


def test_a_failure_that_may_have_been_processed_is_told_apart() -> None:
    """Without it duplicates are not reported, or every refusal by a busy server is one."""
    assert {status for status in range(100, 600) if doubtful(status)} == {*range(500, 600)} - {501, 503}
