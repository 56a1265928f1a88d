"""Differences of results are found, and told so that somebody can judge them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.expectations import saved

BEFORE: dict[str, Any] = {
    "about": "",
    "stops": ["batch 1: it is over"],
    "recorded": [{"_offset": 1}],
    "tables": {
        "outbox.x": {"columns": ["id int", "note string"], "rows": [[1, "a"], [2, None]]},
        "ops.ledger": {"columns": ["read bigint", "parked bigint"], "rows": [{"read": 2, "parked": 1}]},
        "silver.none": {"columns": ["id int"], "rows": []},
    },
}


def changed(**tables: Any) -> dict[str, Any]:
    """Return the results with other tables."""
    return {**BEFORE, "tables": {**BEFORE["tables"], **tables}}


def told(after: dict[str, Any], renames: saved.Renames = saved.NONE) -> list[str]:
    return saved.differences(saved.lines(BEFORE, renames), saved.lines(after))


def test_the_same_results_differ_in_nothing() -> None:
    """Without it every run says that something changed."""
    assert told(json.loads(saved.text(BEFORE))) == []


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (
            changed(**{"outbox.x": {"columns": ["id int", "note string"], "rows": [[1, "b"], [2, None]]}}),
            ['- outbox.x | {"id": 1, "note": "a"}', '+ outbox.x | {"id": 1, "note": "b"}'],
        ),
        (
            changed(**{"outbox.x": {"columns": ["id bigint", "note string"], "rows": [[1, "a"], [2, None]]}}),
            ["- outbox.x | column id int", "+ outbox.x | column id bigint"],
        ),
        (
            changed(**{"outbox.x": {"columns": ["id int", "note string"], "rows": [[1, "a"], [2, None], [2, None]]}}),
            ['+ outbox.x | {"id": 2}'],
        ),
        ({**BEFORE, "stops": []}, ["- stop | batch 1: it is over"]),
        ({**BEFORE, "recorded": []}, ['- recorded | {"_offset": 1}']),
        (
            changed(**{"silver.new": {"columns": [], "rows": []}}),
            ["+ silver.new | in this order: "],
        ),
    ],
    ids=["value", "type", "row twice", "no stop", "nothing sent", "table"],
)
def test_a_difference_is_told_with_its_table(after: dict[str, Any], expected: list[str]) -> None:
    """Without it a difference stays unseen, or nobody knows where it is."""
    assert told(after) == expected


def test_what_was_renamed_is_no_difference() -> None:
    """Without it one new name hides what changed besides."""
    tables = {
        "outbox.x": BEFORE["tables"]["outbox.x"],
        "ops.ledger": {"columns": ["read bigint", "held bigint"], "rows": [{"read": 2, "held": 1}]},
        "silver.none": BEFORE["tables"]["silver.none"],
    }
    renames = saved.Renames({}, {"ops.ledger": {"parked": "held"}}, {"lanes.": "outbox.", "is over": "ends"})

    assert told({**BEFORE, "tables": tables, "stops": ["batch 1: it ends"]}, renames) == []
