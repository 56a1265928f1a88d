"""How long rows have waited, for an API that is away or one that takes all others, and which of them are parked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router_demo.api import Api
from router_rest.delivery.batcher import CallSize
from router_rest.delivery.job import OutageClock, park
from tests.rest.tasks import Tasks, rows, tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.lake import Lake

STUCK = (("events", 0, 7, 9),)
OTHER = (("events", 1, 3, 3),)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def after(outage: OutageClock, clock: Clock, seconds: float, *tried: tuple[tuple[str, int, int, int], ...]) -> None:
    """Let a job end that delivered something."""
    clock.now += seconds
    outage.heard(tried, moved=True)


def test_an_api_is_away_since_it_took_a_row() -> None:
    clock = Clock()
    outage = OutageClock(clock)
    clock.now += 5
    assert outage.away == 5
    outage.heard([STUCK], moved=False)
    assert outage.away == 5

    after(outage, clock, 1.0)

    assert outage.away == 0


def test_what_others_get_does_not_hide_a_call_that_is_never_taken() -> None:
    """Without it ten rows that an API answers 500 for ever hold their batch for ever."""
    clock = Clock()
    outage = OutageClock(clock)
    for _ in range(7):
        after(outage, clock, 10.0, STUCK)

    assert outage.away == 0
    assert outage.stuck(59) == [*STUCK]
    assert outage.stuck(61) == []


def test_calls_that_fail_in_turns_are_not_stuck() -> None:
    """Without it an API that fails now and then has rows parked that it would take."""
    clock = Clock()
    outage = OutageClock(clock)
    for _ in range(7):
        after(outage, clock, 10.0, STUCK)
        after(outage, clock, 10.0, OTHER)

    assert outage.stuck(5) == []


def test_an_outage_in_between_does_not_start_the_count_anew() -> None:
    """In an outage one call a second is tried: that the others were not says nothing about them."""
    clock = Clock()
    outage = OutageClock(clock)
    after(outage, clock, 10.0, STUCK)
    clock.now += 50
    outage.heard([OTHER], moved=False)
    after(outage, clock, 10.0, STUCK)

    assert outage.stuck(59) == [*STUCK]


def test_what_was_parked_is_forgotten() -> None:
    clock = Clock()
    outage = OutageClock(clock)
    after(outage, clock, 10.0, STUCK)
    clock.now += 50
    outage.forget()
    outage.heard([], moved=False)

    assert outage.stuck(10) == []


SOME = [("events", 0, 2, 3), ("events", 0, 7, 7), ("events", 1, 0, 9), ("other", 0, 0, 9)]


@pytest.fixture
def sending(lake: Lake) -> Iterator[Tasks]:
    """Return what jobs are made by; nothing is sent."""
    with Api() as api, tasks(api, lake) as made:
        yield made


@pytest.mark.parametrize(("only", "parked"), [(None, {*range(10)}), (SOME, {2, 3, 7}), ([], set())])
def test_rows_without_a_receipt_are_parked_all_or_some(sending: Tasks, only: Any, parked: set[int]) -> None:
    """Without it rows that wait for their turn are parked with those that an API never takes."""
    job = sending.job(cut=CallSize(rows=4))

    told = [one.to_pylist() for one in park(job, "why", only)(iter([rows(range(10))]))]
    again = [one.to_pylist() for one in park(job, "why", only)(iter([rows(range(10))]))]

    assert sum(row["rows"] for one in told for row in one) == len(parked)
    assert sum(row["rows"] for one in again for row in one) == 0
    assert {(row["offset"], row["status"], row["reason"]) for row in sending.receipts()} == {
        (at, "parked", "why") for at in parked
    }
