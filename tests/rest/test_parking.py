"""Which rows get a receipt that says that they are parked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router.delta.kept import KeptParts
from router_rest.parking import park
from tests.rest.tasks import OWNER, rows

if TYPE_CHECKING:
    from router.delta.lake import Lake

SOME = [("events", 0, 2, 3), ("events", 0, 7, 7), ("events", 1, 0, 9), ("other", 0, 0, 9)]


@pytest.mark.parametrize(("only", "parked"), [(None, {*range(10)}), (SOME, {2, 3, 7}), ([], set())])
def test_rows_without_a_receipt_are_parked_all_or_some(lake: Lake, only: Any, parked: set[int]) -> None:
    """Without it rows that wait for their turn are parked with those that an API never takes."""
    parts = KeptParts(lake, "ops.receipts", "games:run/wins/rest", 0)

    told = [one.to_pylist() for one in park(parts, OWNER, "why", only)(iter([rows(range(10))]))]
    again = [one.to_pylist() for one in park(parts, OWNER, "why", only)(iter([rows(range(10))]))]

    assert told == [[{"rows": len(parked)}]]
    assert again == [[{"rows": 0}]]
    receipts = [row for _, part in parts.read() for row in part.to_pylist()]
    assert {(row["offset"], row["status"], row["reason"]) for row in receipts} == {
        (at, "parked", "why") for at in parked
    }
