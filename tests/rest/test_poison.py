"""Rows that an API will never take, wherever in a call they are: only they are dead, and few calls find them."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2

import pytest

from router_demo.api import Failure, Poison
from router_rest.delivery.batcher import CallSize
from tests.rest.tasks import Tasks, rows


@pytest.mark.parametrize("size", [10, 100])
@pytest.mark.parametrize("where", ["first", "last", "two", "all"])
def test_few_calls_find_poison_wherever_it_is(api_tasks: Tasks, size: int, where: str) -> None:
    """Without it one bad row makes dead letters of its neighbours, or a hundred calls of one."""
    bad = {"first": {0}, "last": {size - 1}, "two": {size // 3, size - 2}, "all": set(range(size))}[where]
    api_tasks.api.play(poison=[Poison(field="bad", values=(1,))])

    # the second call has no poison
    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=size), dead_at_most=size), rows(range(2 * size), bad=bad))

    assert {row["offset"] for row in sent.dead} == bad
    assert {row["http_status"] for row in sent.dead} == {400}
    assert api_tasks.api.rows("offset") == Counter(set(range(2 * size)) - bad)
    extra = api_tasks.api.stats().arrived - 2
    assert extra <= min(2 * ceil(log2(size)) * len(bad), 2 * size - 2)
    keys = [one["key"] for one in api_tasks.api.requests(1000)]
    assert len(set(keys)) == len(keys)  # no part of a call has the key of the whole


@pytest.mark.parametrize("status", [400, 422, 409])
def test_poison_is_found_by_every_status_that_says_so(api_tasks: Tasks, status: int) -> None:
    """Without it an API that says 422 where another says 400 stops the stream."""
    api_tasks.api.play(poison=[Poison(field="bad", values=(1,), status=status)])

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=10), keyed=None), rows(range(20), bad={4}))

    assert {row["offset"] for row in sent.dead} == {4}
    assert api_tasks.api.rows("offset") == Counter(set(range(20)) - {4})


def test_poison_in_a_call_that_is_too_large_is_found(api_tasks: Tasks) -> None:
    """Without it a large call is cut, and what is wrong with a part of it is not seen."""
    api_tasks.api.play(largest=400, poison=[Poison(field="bad", values=(1,))])

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=100)), rows(range(100), bad={31}))

    assert {row["offset"] for row in sent.dead} == {31}
    assert api_tasks.api.rows("offset") == Counter(set(range(100)) - {31})


def test_poison_is_found_although_calls_fail(api_tasks: Tasks) -> None:
    """Without it a bad moment of the API is taken for a bad row, or hides one."""
    api_tasks.api.play(
        poison=[Poison(field="bad", values=(1,))], failures=[Failure(share=0.3)], idempotency="Idempotency-Key"
    )
    batch = rows(range(60), bad={0, 29})

    jobs = [api_tasks.run(api_tasks.job(cut=CallSize(rows=10)), batch)]
    while jobs[-1].counts["left"]:
        jobs.append(api_tasks.run(api_tasks.job(cut=CallSize(rows=10)), batch))

    assert {row["offset"] for sent in jobs for row in sent.dead} == {0, 29}
    assert api_tasks.api.rows("offset") == Counter(set(range(60)) - {0, 29})


def test_a_call_without_an_answer_stays_whole(api_tasks: Tasks) -> None:
    """Without it what an API has done before it closed a connection is done again, by halves with keys of their own."""
    api_tasks.api.play(failures=[Failure(how="hangup", processed=True)])
    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=10)), rows(range(10)))
    assert sent.counts["left"] == 10
    assert len({one["body"] for one in api_tasks.api.requests(1000)}) == 1
