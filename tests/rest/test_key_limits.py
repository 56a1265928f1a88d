"""Limits that each value of a key has for itself: an account, a host."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router import Encoding
from router_encoders.outbox_rows import as_it_is
from router_rest.delivery.batcher import CallSize, RowReader
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import KeyedWindows, RateLimit
from router_rest.templates import body_of
from router_sinks import Rest
from tests.rest import virtual
from tests.rest.tasks import Tasks, rows, rows_of_accounts
from tests.rest.windows import USED_SHARE, most_in_a_window, token_times

if TYPE_CHECKING:
    from collections.abc import Sequence


FIVE = Pace((RateLimit(5, None, 1.0),), 8, share=0.8, retry_floor=1000.0, keyed=True)


def arrivals(api_tasks: Tasks, accounts: Sequence[str | None]) -> list[tuple[float, str | None]]:
    """Return when the rows of which accounts arrived."""
    calls = [(one["at"], json.loads(one["body"])) for one in api_tasks.api.requests(10_000)]
    found = [(at, row) for at, body in calls for row in (body if isinstance(body, list) else [body])]
    return sorted((at, accounts[row["offset"]]) for at, row in found)


@pytest.mark.parametrize("of_key", [1, 3])
def test_each_account_has_its_own_limit_and_a_hot_one_keeps_nobody_waiting(api_tasks: Tasks, of_key: int) -> None:
    """Without it an account with most of the rows is the pace of all, or takes what an API allows another one."""
    accounts = ["hot"] * 12 + [f"account {at % 20}" for at in range(40)] + [None]

    sent = api_tasks.run(api_tasks.job(pace=FIVE, calls_of_key=of_key), rows_of_accounts(accounts))

    assert sent.counts["delivered"] == len(accounts)
    came = arrivals(api_tasks, accounts)
    order = [account for _, account in came]
    # in order of offsets all others would come behind the twelfth
    assert max(at for at, account in enumerate(order) if account != "hot") < order.index("hot") + 41 + 6
    for account in {*accounts}:
        assert most_in_a_window([(at, 1) for at, one in came if one == account], 1.0) <= 5


def test_a_hot_key_is_left_for_the_next_round_when_too_much_of_it_waits(
    api_tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it memory fills with rows of one account, or those of others wait behind them."""
    monkeypatch.setattr("router_rest.delivery.batcher.STANDING_CALLS_PER_PLACE", 0.1)
    accounts = ["hot"] * 10 + ["cold"] * 2
    job = api_tasks.job(pace=FIVE, calls_of_key=1)

    sent = api_tasks.run(job, rows_of_accounts(accounts))

    assert (sent.counts["left"], sent.tried) == (10 - sent.counts["delivered"] + 2, [])
    assert {"hot", "cold"} == {account for _, account in arrivals(api_tasks, accounts)}
    assert "keys" in sent.texts["away"]
    while sent.counts["left"]:
        sent = api_tasks.run(job, rows_of_accounts(accounts))
    assert api_tasks.api.rows("offset") == Counter(range(12))


def test_calls_have_rows_of_one_account(api_tasks: Tasks) -> None:
    """Without it a call takes a token of one account for rows of another one."""
    accounts = ["a", "b"] * 10

    sent = api_tasks.run(api_tasks.job(pace=FIVE, calls_of_key=1, cut=CallSize(rows=4)), rows_of_accounts(accounts))

    bodies = [json.loads(one["body"]) for one in api_tasks.api.requests(100)]
    assert sent.counts["delivered"] == 20
    assert all(len({accounts[row["offset"]] for row in body}) == 1 for body in bodies)
    assert len(bodies) == 6


def test_tasks_share_the_limit_of_a_key() -> None:
    """Without it two tasks with rows of one account call it twice as often as it allows."""
    hosts: dict[str, virtual.Api] = {name: virtual.Api() for name in ("a", "b", "c")}

    async def story() -> None:
        world = virtual.World(Pace((RateLimit(20, None, 1.0), RateLimit(90, None, 6.0)), 32, keyed=True), virtual.Api())
        await virtual.together(
            world.post([1] * 60, in_flight=6, api=api, key=name) for name, api in hosts.items() for _ in range(2)
        )

    virtual.simulate(story())
    for api in hosts.values():
        assert len(api.arrivals) == 120
        assert api.highest(1.0) <= 20
        assert api.highest(6.0) <= 90
        assert api.arrivals[89][0] - api.arrivals[0][0] < 5.5  # the others do not share it


KEYS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.3, 1.5]), st.integers(0, 40), st.integers(1, 4)), min_size=20, max_size=150
)


@given(KEYS, st.integers(1, 6), st.sampled_from([1.0, 20.0]))
def test_a_key_that_is_forgotten_gets_no_more_than_its_limit(
    steps: list[tuple[float, int, int]], most: int, seconds: float
) -> None:
    """Memory is bounded; what an API allows an account is, too."""
    windows, now = KeyedWindows([RateLimit(3, None, seconds)], USED_SHARE, most), 50.0
    uses: dict[str, list[tuple[float, int]]] = {}
    for wait, number, calls in steps:
        now += wait
        key = f"account {number}"
        run = windows.of_key(key, now).allocate_run(now, now + 0.1, calls=calls, rows=1)
        assert len(windows._kept) <= most
        for when in token_times(run) if run else ():
            uses.setdefault(key, []).append((when + run.lives if run else 0.0, 1))

    assert all(most_in_a_window(used, seconds) <= 3 for used in uses.values())


def test_forgotten_keys_are_free_when_nothing_counts_any_more() -> None:
    windows = KeyedWindows([RateLimit(3, None, 1.0)], USED_SHARE, 2)
    for number in range(100):
        assert windows.of_key(f"early {number}", 10.0).allocate_run(10.0, 10.1, calls=1, rows=1) is not None

    assert all(windows.of_key(f"late {number}", 20.0).next_start(20.0, 1) == 20.0 for number in range(100))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"limit_by": "event.account"}, "no limit"),
        ({"limit_by": "host", "calls_per_second": 5}, "host is fixed"),
        ({"limit_by": "", "calls_per_second": 5}, "at least 1 character"),
    ],
)
def test_a_key_without_a_limit_is_refused(options: dict[str, Any], what: str) -> None:
    """Without it an option that has no effect is taken for one."""
    with pytest.raises(ValidationError, match=what):
        Rest.model_validate({"url": "https://api.test/events", **options})


def test_the_host_of_a_url_is_a_key() -> None:
    """Without it a slow host is called as often as a fast one."""
    urls = ["https://a.test/x", "https://b.test:8443/x/y?z", None]
    to = pa.array([{"target": one, "fault": None if one else "none"} for one in urls])
    reader = RowReader(Encoding(as_it_is, None, "JSON"), body_of("object", "application/json"), by_host=True)

    assert [row.limit for row in reader.read_rows(rows(range(3)).set_column(4, "_to", to))] == [
        "a.test",
        "b.test:8443",
        "",
    ]
