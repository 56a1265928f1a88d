"""What a bulk API says of each of its rows, in the forms that are about."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_rest.delivery.response_status import BulkResults, Unreadable

ROWS = [b'{"id":"a","n":1}', b'{"id":"b","n":2}', b'{"id":"c","n":3}']


@pytest.mark.parametrize(
    ("results", "answer", "statuses"),
    [
        pytest.param(
            BulkResults("", "status"),
            [{"status": 201}, {"status": 429}, {"status": "400"}],
            [201, 429, 400],
            id="in order",
        ),
        pytest.param(
            BulkResults("items", "*.status"),
            {"errors": True, "items": [{"index": {"status": 201}}, {"create": {"status": 409}}, {"index": {}}]},
            [201, 409, 200],
            id="below a field of any name",
        ),
        pytest.param(
            BulkResults("data.rows", "ok"),
            {"data": {"rows": [{"ok": True}, {"ok": False}, {}]}},
            [200, 400, 200],
            id="yes or no",
        ),
        pytest.param(
            BulkResults("Records", "ErrorCode"),
            {"Records": [{"Id": "1"}, {"ErrorCode": "TooFast"}, {"ErrorCode": None}]},
            [200, 400, 200],
            id="an error, or none",
        ),
        pytest.param(
            BulkResults("", "state"),
            [{"state": "created"}, {"state": "OK"}, {"state": "?"}],
            [200, 200, 400],
            id="words",
        ),
        pytest.param(
            BulkResults("", "state", ok=("in", 0)),
            [{"state": 0}, {"state": "created"}, {"state": 429}],
            [200, 400, 429],
            id="as said",
        ),
        pytest.param(
            BulkResults("", "state", ok=(1,)), [{"state": 1}, {"state": True}, {}], [200, 400, 400], id="a number"
        ),
        pytest.param(
            BulkResults("failed", "code", id="id"),
            {"failed": [{"id": "b", "code": 422}]},
            [200, 422, 200],
            id="only failures",
        ),
        pytest.param(
            BulkResults("failed", "code", id="number", row_id="n"),
            {"failed": [{"number": 3, "code": 500}]},
            [200, 200, 500],
            id="by a number",
        ),
        pytest.param(
            BulkResults("failed", "code", id="index"),
            {"failed": [{"index": 0, "code": 500}]},
            [500, 200, 200],
            id="by position",
        ),
    ],
)
def test_every_row_gets_what_was_said_of_it(results: BulkResults, answer: Any, statuses: list[int]) -> None:
    """Without it a row that was refused counts as delivered, or one that was taken is sent again."""
    found = results.by_row(json.dumps(answer).encode(), ROWS)

    assert [one.status for one in found] == statuses


def test_a_failure_keeps_its_own_text() -> None:
    """Without it a dead letter does not say why it is one."""
    answer = {"failed": [{"id": "b", "code": 422, "why": "too old"}]}

    found = BulkResults("failed", "code", id="id").by_row(json.dumps(answer).encode(), ROWS)

    assert [json.loads(one.text or b"null") for one in found] == [None, answer["failed"][0], None]

    said = BulkResults("failed", "code", id="id", reason="why").by_row(json.dumps(answer).encode(), ROWS)
    assert [one.text for one in said] == [b"", b"too old", b""]


@pytest.mark.parametrize(
    ("results", "body"),
    [
        pytest.param(BulkResults("", "status"), b"<html>", id="no JSON"),
        pytest.param(BulkResults("items", "status"), b"{}", id="no list"),
        pytest.param(BulkResults("items", "status"), b'{"items": {}}', id="an object"),
        pytest.param(BulkResults("", "status"), b"[{}, {}]", id="too few"),
        pytest.param(BulkResults("", "status", id="id"), b'[{"id": "z", "status": 400}]', id="a row that was not sent"),
        pytest.param(BulkResults("", "status"), b"[" * 100_000, id="deep"),
    ],
)
def test_an_answer_that_is_not_as_configured_is_told(results: BulkResults, body: bytes) -> None:
    """Without it rows that were refused count as delivered, all of them."""
    with pytest.raises(Unreadable):
        results.by_row(body, ROWS)


@given(st.binary(max_size=50), st.lists(st.binary(max_size=10), max_size=4), st.sampled_from([None, "id"]))
def test_no_answer_breaks_a_task(body: bytes, rows: list[bytes], named: str | None) -> None:
    """Without it one answer of an API stops the stream."""
    try:
        found = BulkResults("", "a.*.b", id=named).by_row(body, rows)
    except Unreadable:
        return
    assert len(found) == len(rows)
