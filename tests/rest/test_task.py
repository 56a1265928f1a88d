"""What a task does with its rows, against a real API that does what a test wants."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from router_demo.api import Api, Failure, Poison
from router_rest.cutting import Cut
from tests.rest.tasks import Tasks, rows, tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.lake import Lake


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """Run one API for all tests of the module."""
    with Api() as running:
        yield running


@pytest.fixture
def sending(api: Api, lake: Lake) -> Iterator[Tasks]:
    """Return what runs tasks against the API."""
    with tasks(api, lake) as running:
        yield running


@pytest.mark.parametrize("cut", [Cut(), Cut(rows=7)], ids=["alone", "by seven"])
def test_every_row_arrives_once_and_has_a_receipt(sending: Tasks, cut: Cut) -> None:
    """Without it rows are lost, doubled, or nobody can say what became of them."""
    batches = [rows(range(100)), rows(range(100, 250)), rows(range(50), partition=3)]

    sent = sending.run(sending.job(cut=cut), *batches)

    assert sent.counts == Counter(delivered=300, known=0, calls=sum(-(-many // cut.rows) for many in (250, 50)))
    assert set(sending.api.rows("partition", "offset").values()) == {1}
    receipts = sending.receipts()
    assert len(receipts) == len({(row["partition"], row["offset"]) for row in receipts}) == 300
    assert {(row["status"], row["http_status"], row["attempts"], row["in_doubt"]) for row in receipts} == {
        ("delivered", 200, 1, False)
    }
    assert len({row["call_id"] for row in receipts}) == sent.counts["calls"]


def test_a_task_that_comes_again_sends_nothing_twice(sending: Tasks) -> None:
    """Without it a lost executor, or a crash of the driver, sends its rows anew."""
    sending.run(sending.job(cut=Cut(rows=7)), rows(range(0, 60)))

    again = sending.run(sending.job(cut=Cut(rows=7)), rows(range(0, 100)))

    assert (again.counts["known"], again.counts["delivered"]) == (60, 40)
    assert sending.api.rows("offset") == Counter(range(100))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_what_fails_for_a_while_arrives_all_the_same(sending: Tasks, share: float) -> None:
    """Without it a row is lost, or dead, because a server had a bad moment."""
    sending.api.play(failures=[Failure(share=share)])

    left = 200
    while left:
        sent = sending.run(sending.job(), rows(range(200)))
        assert not sent.dead
        left = sent.counts["left"]

    assert sending.api.rows("offset") == Counter(range(200))


@pytest.mark.parametrize(
    "poison", [{0}, {9}, {3, 4}, {0, 9}, set(range(10))], ids=["first", "last", "two", "both ends", "all"]
)
def test_poison_is_found_and_its_neighbours_arrive(sending: Tasks, poison: set[int]) -> None:
    """Without it one bad row makes dead letters of nine good ones, or stops them all."""
    sending.api.play(poison=[Poison(field="bad", values=(1,))])

    sent = sending.run(sending.job(cut=Cut(rows=10)), rows(range(20), bad=poison))

    assert {row["offset"] for row in sent.dead} == poison
    assert {(row["http_status"], row["status"]) for row in sent.dead} == {(400, "dead")}
    assert sending.api.rows("offset") == Counter(set(range(20)) - poison)
    extra = sending.api.stats().arrived - 2
    assert extra <= 2 * 4 * len(poison)
