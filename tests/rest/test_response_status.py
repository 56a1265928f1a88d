"""What an answer says is to be done: its status, what its headers tell of limits, what its body says of each row."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict

from router_rest.answers.actions import Action, action_for, is_doubtful, is_throttling
from router_rest.answers.bulk_results import UNKNOWN_STATUS, BulkResults, Unreadable
from router_rest.answers.pause_headers import MAX_RETRY_AFTER_SECONDS, Remaining, calls_left, retry_after

MEANT = {
    Action.DONE: {200, 201, 202, 204, 207, 299},
    Action.AGAIN: {408, 409, 423, 425, 429, 500, 502, 503, 504, 507, 520, 599},
    Action.LOGIN: {401},
    Action.REFUSED: {400, 422},
    Action.SPLIT: {413},
    Action.WRONG: {100, 301, 302, 304, 307, 308, 402, 403, 404, 405, 410, 415, 501},
}


@pytest.mark.parametrize(
    ("status", "meant"), [(status, meant) for meant, all_ in MEANT.items() for status in sorted(all_)]
)
def test_a_status_says_what_is_to_be_done(status: int, meant: Action) -> None:
    """Without it good rows become dead letters, or rows that nobody takes block the others."""
    assert action_for(status, doubt=True) is meant


def test_a_conflict_without_a_key_is_no_first_attempt_that_still_runs() -> None:
    """Without it a row that the API has already is sent until the end of days."""
    assert action_for(409, doubt=False) is Action.REFUSED
    assert action_for(409, doubt=False, again=frozenset({409})) is Action.AGAIN


@pytest.mark.parametrize("status", [403, 404, 410, 414])
def test_an_address_made_of_a_row_is_its_own_fault(status: int) -> None:
    """Without it one unknown name in a URL stops the stream."""
    assert action_for(status, doubt=True, url_of_data=True) is Action.REFUSED
    assert action_for(405, doubt=True, url_of_data=True) is Action.WRONG


def test_which_statuses_are_tried_again_can_be_said() -> None:
    """Without it an API that says 403 when it is busy, or 500 to a bad row, cannot be used."""
    again = frozenset({403, 503, 200})

    assert action_for(403, doubt=True, again=again) is Action.AGAIN
    assert action_for(503, doubt=True, again=again) is Action.AGAIN
    assert action_for(500, doubt=True, again=again) is Action.REFUSED
    assert action_for(200, doubt=True, again=again) is Action.DONE


def test_only_too_many_calls_slow_them_down() -> None:
    """Without it a broken server is taken for a busy one, or a busy one is not spared."""
    assert is_throttling(429, paused=False)
    assert is_throttling(503, paused=True)
    assert not is_throttling(503, paused=False)
    assert not is_throttling(500, paused=True)


def test_a_failure_that_may_have_been_processed_is_told_apart() -> None:
    """Without it duplicates are not reported, or every refusal by a busy server is one."""
    assert {status for status in range(100, 600) if is_doubtful(status)} == {*range(500, 600)} - {501, 503}


NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({"Retry-After": "7"}, 7, id="seconds"),
        pytest.param({"retry-after": " 7 "}, 7, id="in small letters, with blanks"),
        pytest.param({"Retry-After": "0"}, 0, id="at once"),
        pytest.param({"Retry-After": "1.5"}, 1.5, id="a fraction"),
        pytest.param({"Retry-After": "Sun, 06 Nov 1994 08:49:47 GMT"}, 10, id="a date"),
        pytest.param({"Retry-After": "Sunday, 06-Nov-94 08:49:47 GMT"}, 10, id="a date of RFC 850"),
        pytest.param({"Retry-After": "Sun Nov  6 08:49:47 1994"}, 10, id="a date of asctime"),
        pytest.param(
            {"Retry-After": "Sun, 06 Nov 1994 09:00:10 GMT", "Date": "Sun, 06 Nov 1994 09:00:00 GMT"},
            10,
            id="a date by the server's own clock",
        ),
        pytest.param({"Retry-After": "Sun, 06 Nov 1994 08:00:00 GMT"}, 0, id="a date in the past"),
        pytest.param({"retry-after-ms": "250"}, 0.25, id="milliseconds"),
        pytest.param({"Retry-After": "3599"}, 3599, id="nearly an hour"),
        pytest.param({"Retry-After": "99999999999"}, 3600, id="absurd"),
        pytest.param({"Retry-After": "9" * 29}, 3600, id="more than absurd"),
        pytest.param({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, MAX_RETRY_AFTER_SECONDS, id="an absurd date"),
        pytest.param({"Retry-After": "-5"}, None, id="negative"),
        pytest.param({"Retry-After": "soon"}, None, id="a word"),
        pytest.param({"Retry-After": ""}, None, id="nothing"),
        pytest.param({"Retry-After": "nan"}, None, id="not a number"),
        pytest.param({"Retry-After": "1e9"}, None, id="an exponent"),
        pytest.param({"Retry-After": "Sun, 99 Nov 1994 08:49:47 GMT"}, None, id="a day that is none"),
        pytest.param({"Retry-After": "9" * 5000}, None, id="endless"),
        pytest.param({}, None, id="not said"),
    ],
)
def test_an_api_is_left_alone_for_as_long_as_it_says(headers: dict[str, str], seconds: float | None) -> None:
    """Without it calls go on against a limit, or one header stops them for ever."""
    assert retry_after(CaseInsensitiveDict(headers), NOW) == seconds


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        pytest.param({"RateLimit": '"default";r=50;t=30'}, Remaining(50, 30), id="draft 11"),
        pytest.param({"ratelimit": '"a";r=50;t=30,"b";r=1;t=60'}, Remaining(1, 60), id="the tightest of several"),
        pytest.param(
            {"RateLimit": '"day";r=5', "RateLimit-Policy": '"hour";q=9;w=3600, "day";q=10;w=60'},
            Remaining(5, 60),
            id="the window of the policy, where it does not say when",
        ),
        pytest.param(
            {
                "RateLimit": '"bytes";r=1;t=1, "calls";r=9;t=3',
                "RateLimit-Policy": '"bytes";q=5;w=1;qu="content-bytes", "calls";q=9;w=1;qu="requests"',
            },
            Remaining(9, 3),
            id="bytes are no calls",
        ),
        pytest.param({"RateLimit": '"a;r=1";r=7;t=2;pk=:c2VjcmV0:'}, Remaining(7, 2), id="a name like parameters"),
        pytest.param({"RateLimit": "limit=100, remaining=4, reset=50"}, Remaining(4, 50), id="draft 7"),
        pytest.param({"RateLimit-Remaining": "3", "RateLimit-Reset": "9"}, Remaining(3, 9), id="three headers"),
        pytest.param({"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "9"}, Remaining(3, 9), id="X, seconds"),
        pytest.param(
            {"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": f"{NOW + 3e8 + 9:.0f}"}, Remaining(3, 9), id="X, a time"
        ),
        pytest.param(
            {"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": f"{(NOW + 3e8 + 9) * 1000:.0f}"},
            Remaining(3, 9),
            id="X, a time in milliseconds",
        ),
        pytest.param(
            {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "0.5"}, Remaining(0, 0.5), id="X, after"
        ),
        pytest.param({"X-Rate-Limit-Remaining": "3", "X-Rate-Limit-Reset": "9"}, Remaining(3, 9), id="X, three words"),
        pytest.param({"RateLimit": '"a";r=5;t=3599'}, Remaining(5, 3599), id="a limit of an hour"),
        pytest.param({"RateLimit": '"a";r=5;t=99999999'}, Remaining(5, 3600), id="absurd"),
        pytest.param({"RateLimit": '"default";r=-1;t=30'}, None, id="negative"),
        pytest.param({"RateLimit": '"default;r=50;t=30'}, None, id="no closing quote"),
        pytest.param({"RateLimit": '"a";r=5;t=3 "b";r=1;t=3'}, None, id="no comma"),
        pytest.param({"RateLimit": '"a";r=5'}, None, id="no time"),
        pytest.param({"X-RateLimit-Remaining": "3"}, None, id="no reset"),
        pytest.param({"X-RateLimit-Remaining": "many", "X-RateLimit-Reset": "9"}, None, id="a word"),
        pytest.param({}, None, id="not said"),
    ],
)
def test_what_an_api_still_takes_is_read(headers: dict[str, str], found: Remaining | None) -> None:
    """Without it an API has to refuse calls before they become fewer."""
    now = NOW + 3e8  # past 1e9 seconds, as any time is by now

    assert calls_left(CaseInsensitiveDict(headers), now) == found


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_header_of_a_stranger_raises(one: str, other: str) -> None:
    """Without it a server stops the stream with a header."""
    names = ("Retry-After", "Date", "RateLimit", "X-RateLimit-Remaining", "retry-after-ms")
    headers = CaseInsensitiveDict(
        {**dict.fromkeys(names, one), "RateLimit-Policy": other, "X-RateLimit-Reset": other, "Date": other}
    )

    seconds = retry_after(headers, NOW)
    still = calls_left(headers, NOW)

    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER_SECONDS
    assert still is None or (still.calls >= 0 and 0 <= still.seconds <= MAX_RETRY_AFTER_SECONDS)


ROWS = [b'{"id":"a","n":1}', b'{"id":"b","n":2}', b'{"id":"c","n":3}']


@pytest.mark.parametrize(
    ("results", "answer", "statuses"),
    [
        pytest.param(
            BulkResults(path="", status="status"),
            [{"status": 201}, {"status": 429}, {"status": "400"}],
            [201, 429, 400],
            id="in order",
        ),
        pytest.param(
            BulkResults(path="items", status="*.status", absent_ok=True),
            {"errors": True, "items": [{"index": {"status": 201}}, {"create": {"status": 409}}, {"index": {}}]},
            [201, 409, 200],
            id="below a field of any name",
        ),
        pytest.param(
            BulkResults(path="data.rows", status="ok", absent_ok=True),
            {"data": {"rows": [{"ok": True}, {"ok": False}, {}]}},
            [200, 400, 200],
            id="yes or no",
        ),
        pytest.param(
            BulkResults(path="Records", status="ErrorCode", absent_ok=True),
            {"Records": [{"Id": "1"}, {"ErrorCode": "TooFast"}, {"ErrorCode": None}]},
            [200, 400, 200],
            id="an error, or none",
        ),
        pytest.param(
            BulkResults(path="", status="state"),
            [{"state": "created"}, {"state": "OK"}, {"state": "?"}],
            [200, 200, 400],
            id="words",
        ),
        pytest.param(
            BulkResults(path="", status="state", ok=("in", 0)),
            [{"state": 0}, {"state": "created"}, {"state": 429}],
            [200, 400, 429],
            id="as said",
        ),
        pytest.param(
            BulkResults(path="", status="state", ok=(1,)),
            [{"state": 1}, {"state": True}, {}],
            [200, 400, UNKNOWN_STATUS],
            id="a number",
        ),
        pytest.param(
            BulkResults(path="failed", status="code", id="id", absent_ok=True),
            {"failed": [{"id": "b", "code": 422}]},
            [200, 422, 200],
            id="only failures",
        ),
        pytest.param(
            BulkResults(path="failed", status="code", id="number", row_id="n", absent_ok=True),
            {"failed": [{"number": 3, "code": 500}]},
            [200, 200, 500],
            id="by a number",
        ),
        pytest.param(
            BulkResults(path="failed", status="code", id="index", absent_ok=True),
            {"failed": [{"index": 0, "code": 500}]},
            [500, 200, 200],
            id="by position",
        ),
        pytest.param(
            BulkResults(path="items", status="statuz"),
            {"items": [{"status": 201}, {"status": 400}, {"status": None}]},
            [UNKNOWN_STATUS] * 3,
            id="a path that leads nowhere",
        ),
        pytest.param(
            BulkResults(path="items", status="status", id="id"),
            {"items": [{"id": "b", "status": 201}, {"id": "c", "status": None}]},
            [UNKNOWN_STATUS, 201, UNKNOWN_STATUS],
            id="rows that no item is about",
        ),
        pytest.param(
            BulkResults(path="items", status="status", id="id"), {"items": []}, [UNKNOWN_STATUS] * 3, id="no item"
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

    found = BulkResults(path="failed", status="code", id="id", absent_ok=True).by_row(json.dumps(answer).encode(), ROWS)

    assert [json.loads(one.text or b"null") for one in found] == [None, answer["failed"][0], None]

    said = BulkResults(path="failed", status="code", id="id", reason="why", absent_ok=True).by_row(
        json.dumps(answer).encode(), ROWS
    )
    assert [one.text for one in said] == [b"", b"too old", b""]


@pytest.mark.parametrize(
    ("results", "body"),
    [
        pytest.param(BulkResults(path="", status="status"), b"<html>", id="no JSON"),
        pytest.param(BulkResults(path="items", status="status"), b"{}", id="no list"),
        pytest.param(BulkResults(path="items", status="status"), b'{"items": {}}', id="an object"),
        pytest.param(BulkResults(path="", status="status"), b"[{}, {}]", id="too few"),
        pytest.param(
            BulkResults(path="", status="status", id="id"),
            b'[{"id": "z", "status": 400}]',
            id="a row that was not sent",
        ),
        pytest.param(BulkResults(path="", status="status"), b"[" * 100_000, id="deep"),
    ],
)
def test_an_answer_that_is_not_as_configured_is_told(results: BulkResults, body: bytes) -> None:
    """Without it rows that were refused count as delivered, all of them."""
    # A garbage collection at the very end of the stack would fail in its callbacks, of which hypothesis has one.
    gc.disable()
    try:
        with pytest.raises(Unreadable):
            results.by_row(body, ROWS)
    finally:
        gc.enable()


@given(st.binary(max_size=50), st.lists(st.binary(max_size=10), max_size=4), st.sampled_from([None, "id"]))
def test_no_answer_breaks_a_task(body: bytes, rows: list[bytes], named: str | None) -> None:
    """Without it one answer of an API stops the stream."""
    try:
        found = BulkResults(path="", status="a.*.b", id=named).by_row(body, rows)
    except Unreadable:
        return
    assert len(found) == len(rows)
