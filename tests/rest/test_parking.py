"""Which rows get a receipt that says that they are parked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router_demo.api import Api
from router_rest.delivery.batcher import CallSize
from router_rest.delivery.job import park
from tests.rest.tasks import Tasks, rows, tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.lake import Lake

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
