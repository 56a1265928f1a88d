"""Posts in order, whose outbox can take no rows for a while."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from router.config.models import Route
from router.engine.checkpoint_store import LearntSchemas
from router.engine.outbox.apply import open_sinks
from router.engine.quarantine.table import list_quarantined, try_now
from router_demo.api import Api
from router_rest.sink import Rest
from tests.engine.outbox.test_hopeless_outboxes import PROTOCOLS, Harm, try_three_times
from tests.engine.parts import Events, Where
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.conftest import MakeQuery

KEYS = 3


@pytest.fixture
def api() -> Iterator[Api]:
    """Run an API."""
    with Api() as running:
        yield running


def posted(api: Api) -> list[int]:
    """Return the numbers of the events that the API got, in the order of arrival."""
    return [json.loads(request["body"])["n"] for request in api.requests()]


def test_posts_in_order_stay_in_order_behind_rows_that_are_quarantined(
    make_query: MakeQuery, tmp_path: Path, api: Api
) -> None:
    """Without it the API gets the second change of an object before the first."""
    sink = Rest(url=api.url, ordering="per_key", key="event.k", mode="inline", calls_per_second=100)
    route = Route(name="all", match=Where(sql="true"), sinks=(sink,))
    unopened = make_query(tmp_path, decode=Events(ddl="n int, k int"), routes=(route,))
    query = unopened.restarted(
        routes=open_sinks(unopened.config, unopened.spark, tmp_path, LearntSchemas()).config.routes
    )
    first, second, third, last = ([{"n": n, "k": n % KEYS} for n in range(10 * b, 10 * b + 10)] for b in range(4))
    query.take(records(first))
    harm = Harm(query, "outbox.games__all__rest", PROTOCOLS["nobody writes it"])
    query.taken[1] = records(second, first=10)
    try_three_times(query, 1)
    query.taken[2] = records(third, first=20)
    after = query.restarted()
    after.again(2)
    assert set(posted(api)) == {row["n"] for row in first}, "later rows wait behind earlier ones"

    harm.undo()
    (waiting,) = list_quarantined(after.config, after.lake)
    assert waiting.rows == len(second) + len(third)
    try_now(after.store, waiting.place)
    release = after.batches.destination.release
    release.carry_out(release.due())
    after.take(records(last, first=30))

    arrived = posted(api)
    assert sorted(arrived) == list(range(40))
    for key in range(KEYS):
        of_key = [n for n in arrived if n % KEYS == key]
        assert of_key == sorted(of_key), f"the posts of key {key} came in another order"
