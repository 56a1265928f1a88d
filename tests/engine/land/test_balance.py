"""The balance of a batch, and what the log says of fields that the schema lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.engine.balance import MAX_NAMED_FIELDS, UnknownFieldReport, add_up_partitions

if TYPE_CHECKING:
    import pytest


def counts(topic: str, unknown: int, **fields: int) -> dict[str, Any]:
    """Return what a task counts of ten records."""
    sums = dict.fromkeys(("failed", "bare", "unmatched"), 0)
    return {"topic": topic, "partition": 0, "first": 0, "last": 9, "read": 10, **sums} | {
        "unknown": unknown,
        "unknown_fields": fields,
    }


def test_a_field_that_the_schema_lacks_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Without it a new field of the producers is dropped, and nobody finds out for months."""
    caplog.set_level("INFO", "router")
    report, counted = UnknownFieldReport(), add_up_partitions([counts("a", 3, bonus=3), counts("b", 1, bonus=1, p=1)])
    for _ in range(2):
        report.log_new_fields("games", counted)

    assert [record.args for record in caplog.records] == [("games", "bonus", 4, 20), ("games", "p", 1, 20)]
    assert [(one.unknown, one.unknown_fields) for one in counted] == [(3, {"bonus": 3}), (1, {"bonus": 1, "p": 1})]


def test_keys_made_of_data_do_not_fill_log_and_ledger(caplog: pytest.LogCaptureFixture) -> None:
    """Without it objects that are maps in truth write a line for each of their keys."""
    caplog.set_level("INFO", "router")
    report = UnknownFieldReport()
    for first in (0, 40, 80):
        fields = {f"{number}key": 1 for number in range(first, first + 40)}
        counted = add_up_partitions([counts("a", 10, **fields), counts("a", 10, **{f"x{name}": 1 for name in fields})])
        report.log_new_fields("games", counted)
        assert [(one.unknown, len(one.unknown_fields)) for one in counted] == [(20, MAX_NAMED_FIELDS)]

    assert len([record for record in caplog.records if len(record.args or ()) == 4]) == MAX_NAMED_FIELDS
    assert len(caplog.messages) == MAX_NAMED_FIELDS + 1
