"""Big wins: what the demo remembers of them is what it sent, and what it misses it says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import requests

from router_demo.api import Api, Failure, Poison
from router_demo.big_wins import BIG, MILLION, MILLIONS, Course, Posted, Win, Wins, used
from tests.lake_rows import append_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_demo.games import Record


def test_all_big_wins_are_known_and_some_are_of_a_million() -> None:
    """The demo holds table and API against them: if they are wrong, what is lost looks right."""
    wins = Wins()
    sent: list[Record] = [*wins.events(MILLIONS // 2), *wins.events(MILLIONS)]
    events = [json.loads(value or b"") for _, value, _ in sent]
    big = [Win.read(event["gamer_id"], event["amount"], event["ts"]) for event in events if event["amount"] > BIG]

    assert Counter(big) == wins.sent
    assert (len(big), len(sent)) == (MILLIONS, wins.records)
    assert [win.amount for win in wins.millions.elements()] == [MILLION]


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Api(idempotency="Idempotency-Key", poison=[Poison(field="amount", values=(MILLION,), status=422)]) as running:
        yield running


@pytest.fixture(scope="module")
def posted(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Posted:
    """Return what became of wins that are all where they should be."""
    wins, lake = Wins(), tmp_path_factory.mktemp("lake")
    events = [json.loads(value or b"") for _, value, _ in wins.events(MILLIONS // 2 + 5)]
    append_rows(lake, "silver.uno", events)
    big = [event for event in events if event["amount"] > BIG]
    times = [{**event, "ts": Win.read("", 0, event["ts"]).at} for event in big]
    append_rows(
        lake, "gold.big_wins", [{name: event[name] for name in ("gamer_id", "amount", "ts")} for event in times]
    )
    course = go_out(api)
    statuses = {f"key {at}": call(api, event, f"key {at}") for at, event in enumerate(big)}
    named = {200: "delivered", 422: "dead"}
    append_rows(lake, "ops.receipts", [{"status": named[one], "idempotency_key": key} for key, one in statuses.items()])
    append_rows(
        lake, "ops.dead_letters", [{"stage": "apply", "reason": "no"} for one in statuses.values() if one == 422]
    )
    return Posted.read(lake, api, wins, course, course.back, 200)


def call(api: Api, event: dict[str, Any], key: str) -> int:
    body = {"amount": event["amount"], "at": event["ts"]}
    with requests.Session() as client:
        client.trust_env = False
        url = f"{api.url}/players/{event['gamer_id']}/notes"
        return client.post(url, json=body, headers={"Idempotency-Key": key}, timeout=20).status_code


def go_out(api: Api) -> Course:
    script = {"idempotency": "Idempotency-Key", "poison": [Poison(field="amount", values=(MILLION,), status=422)]}
    out = api.play(**script, failures=[Failure(status=503)])
    assert call(api, {"amount": 1, "ts": "", "gamer_id": "g"}, "") == 503
    return Course(out, out, api.play(**script), 0)


def test_what_is_where_it_should_be_balances(posted: Posted) -> None:
    assert posted.wrong == []
    assert (posted.taken.total(), posted.receipts["dead"], posted.refused) == (MILLIONS // 2 + 4, 1, 1)
    assert posted.statuses == {200: MILLIONS // 2 + 4, 422: 1, 503: 1}


WIN = Win.read("g", 9001.0, "2026-01-31T12:00:00Z")


@pytest.mark.parametrize(
    ("field", "change", "said"),
    [
        pytest.param("landed", 1, "records in the games' tables", id="a record more in a table"),
        pytest.param("table", Counter({WIN: 1}), "big wins in the table", id="a win more in the table"),
        pytest.param("taken", Counter({WIN: 1}), "big wins at the API", id="a win more at the API"),
        pytest.param("keys", Counter({"key 1": 1}), "took effect twice", id="a call that took effect twice"),
        pytest.param("receipted", Counter({"key": 1}), "receipts do not name", id="a receipt of no call"),
        pytest.param("receipts", Counter(dead=1), "of what was refused", id="a receipt more of what was refused"),
        pytest.param("letters", Counter({("apply", "no"): 1}), "dead letters of the API", id="a dead letter more"),
        pytest.param("sent", Counter({WIN: 1}), "big wins at the API", id="a win that is nowhere"),
    ],
)
def test_what_does_not_balance_is_said(posted: Posted, field: str, change: Any, said: str) -> None:
    """Without it the demo calls lost or doubled calls a success."""
    changed = replace(posted, **{field: getattr(posted, field) + change})

    assert any(said in sentence for sentence in changed.wrong)


def test_other_wins_than_those_sent_are_no_balance(posted: Posted) -> None:
    """As many as were sent is not enough: they could be others."""
    one = next(iter(posted.taken))
    other = posted.taken - Counter([one]) + Counter([WIN])

    assert replace(posted, taken=other).wrong == ["the big wins at the API are not those that were sent"]


def test_of_the_limit_only_pauses_are_left_out() -> None:
    """Else the demo would call a slow sink a fast one."""
    at_half = [0.02 * number for number in range(50)]
    assert used([*at_half, *(10 + at for at in at_half)], 100) == pytest.approx(0.5)
    assert used([0.0, 10.0], 100) is None
