"""What is done for one call, in virtual time: attempts, waits, keys, doubts."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from requests.auth import AuthBase

from router_rest.answers.bulk_results import BulkResults
from router_rest.answers.classifier import Policy
from router_rest.delivery.batcher import Call
from router_rest.http_client.response import InDoubt, Response, Unsent
from router_rest.limits.messages import Grant, Pace
from tests.rest.lines import ENOUGH, LATENCY, Line, answer, deliver_one_call, left_calls, open_delivery
from tests.rest.virtual import Api, World, simulate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from requests import PreparedRequest


NO_RETRY = Pace((), 8, retry_share=0.0, retry_floor=0.0)


class Open(AuthBase):
    """Let everybody in."""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        return request


@pytest.mark.parametrize(
    "failure",
    [answer(503), answer(429), Unsent("refused"), InDoubt("reset")],
    ids=["503", "429", "not sent", "no answer"],
)
def test_a_call_is_tried_so_often_and_no_more(failure: Response | OSError) -> None:
    """Without it one call is tried for ever, and nobody hears of it."""
    line = Line([failure])

    told = deliver_one_call(line, Policy(attempts=4, first=0.01, longest=0.1))

    assert (len(line.begun), len(told.left), told.settled) == (4, 1, [])
    assert told.left[0].attempts == 4


def test_a_conflict_is_a_dead_letter_unless_the_row_may_have_arrived() -> None:
    """Without it a row that an API calls a duplicate is sent for ever; or one that arrived is a dead letter."""
    first = deliver_one_call(Line([answer(409)]), Policy(first=0.01, longest=0.1))
    later = Line([InDoubt("reset"), answer(409)])
    doubted = deliver_one_call(later, Policy(attempts=4, first=0.01, longest=0.1))

    assert (first.statuses, first.left) == ({10: "dead"}, [])
    assert (doubted.statuses, len(doubted.left), len(later.begun)) == ({}, 1, 4)
    assert len(set(later.keys)) == 1
    assert (doubted.left[0].doubtful, doubted.left[0].answered) == ({10}, True)


def test_an_answer_that_nobody_can_read_is_waited_for_once_a_round() -> None:
    """Without it a row that the API takes arrives as often as there are attempts."""
    line = Line([InDoubt("the answer is broken", unreadable=True)])

    told = deliver_one_call(line, Policy(attempts=5, first=0.01, longest=0.1))

    assert (len(line.begun), told.settled, told.left[0].doubtful) == (1, [], {10})
    assert told.left[0].answered


@pytest.mark.parametrize(
    ("failure", "answered"),
    [
        (answer(500), True),
        (answer(409), True),
        (InDoubt("reset"), True),
        (InDoubt("no answer came in time", timeout=True), False),
        (answer(429, Retry_After="1"), True),
        (answer(429, Retry_After="3600"), False),
        (answer(503), False),
        (answer(502), False),
        (Unsent("refused"), False),
    ],
    ids=["500", "409", "reset", "time out", "429 twice", "429 for an hour", "503", "502", "not sent"],
)
def test_an_answer_about_a_call_is_told_from_an_api_that_is_away(failure: Response | OSError, answered: bool) -> None:
    """Without it rows are set aside in an outage, or one odd row stops all others."""
    first = [InDoubt("reset")] if isinstance(failure, Response) and failure.status == 409 else []

    told = deliver_one_call(Line([*first, failure]), Policy(attempts=3, first=0.01, longest=0.1))

    assert told.left[0].answered is answered
    assert told.left[0].why


def test_rows_of_which_the_answer_says_nothing_are_parked_in_doubt() -> None:
    """Without it rows that an API refused inside of a 200 count as delivered."""
    some = Line([answer(200, b'{"items": [{"status": 201}, {}, {"status": 400}]}')])
    none = Line([answer(200, b'{"things": []}')])
    policy = Policy(results=BulkResults(path="items", status="status"))

    one, other = deliver_one_call(some, policy, rows=3), deliver_one_call(none, policy, rows=3)

    assert one.statuses == {10: "delivered", 11: "parked", 12: "dead"}
    assert other.statuses == {10: "parked", 11: "parked", 12: "parked"}
    parked = [entry for told in (one, other) for entry in told.settled if entry.status == "parked"]
    assert all(entry.call.doubtful == {*entry.call.offsets} for entry in parked)
    assert ["status" in str(entry.reason) or "items" in str(entry.reason) for entry in parked] == [True, True]


def test_no_attempt_begins_when_time_is_over() -> None:
    """Without it a call holds its place, and a core, for as long as its attempts happen to take."""
    line = Line([answer(503)])

    told = deliver_one_call(line, Policy(attempts=1000, elapsed=5.0, first=2.0, longest=2.0))

    assert len(line.begun) > 1
    assert max(line.begun) <= line.begun[0] + 5
    assert told.seconds <= 5 + LATENCY
    assert len(told.left) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_what_the_api_asks_for_is_waited_out(status: int) -> None:
    """Without it an API that asks for a pause is asked again within it."""
    line = Line([answer(status, Retry_After="2"), answer(200)])

    told = deliver_one_call(line, Policy(first=0.01, longest=0.1))

    assert told.statuses == {10: "delivered"}
    assert line.begun[1] - line.begun[0] >= 2.0 + LATENCY


def test_a_pause_that_is_longer_than_a_call_may_take_is_not_begun() -> None:
    """Without it a task holds its core for the hour that the API asks for."""
    line = Line([answer(429, Retry_After="3600"), answer(200)])

    told = deliver_one_call(line, Policy(elapsed=60.0))

    assert (len(line.begun), len(told.left)) == (1, 1)
    assert told.seconds < 1


@pytest.mark.parametrize(
    "results", [None, BulkResults(path="items", status="status")], ids=["a call", "rows of a call"]
)
def test_the_wait_for_the_retry_budget_ends(results: BulkResults | None) -> None:
    """Without it a call waits for ever when all others fail as well, and its task with it."""
    busy = answer(503) if results is None else answer(200, b'{"items": [{"status": 429}]}')
    line = Line([busy, answer(200, b'{"items": [{"status": 200}]}')])

    told = deliver_one_call(line, Policy(elapsed=3.0, results=results), pace=NO_RETRY)

    assert (len(line.begun), len(told.left)) == (1, 1)
    assert told.seconds <= 3.0 + 1.0


@pytest.mark.parametrize(
    "results", [None, BulkResults(path="items", status="status")], ids=["a call", "rows of a call"]
)
def test_a_call_that_waits_for_the_retry_budget_ends_with_the_lease(results: BulkResults | None) -> None:
    """Without it an outage that uses the budget up holds a task, and its core, for the time that a call may take."""

    async def story() -> tuple[list[Call], float]:
        world = World(NO_RETRY, Api())
        lease, serving = world.lease()

        async def busy(request: PreparedRequest, again: Any) -> Response:
            world.loop.call_later(1.0, lease._accept_grant, Grant("leave", (), 0, 0, 0, 30.0))
            return answer(503) if results is None else answer(200, b'{"items": [{"status": 429}]}')

        delivery = open_delivery(Line(act=busy), Policy(results=results), lease)
        began = world.loop.time()
        left = await left_calls(delivery, Call("events", 3, [10], [b"{}"]), [])
        seconds = world.loop.time() - began
        await lease.close()
        serving.cancel()
        return left, seconds

    left, seconds = simulate(story())

    assert [one.offsets for one in left] == [[10]]
    assert seconds < Policy().elapsed / 10


@pytest.mark.parametrize(
    ("answers", "doubt"),
    [
        ([answer(200)], False),
        ([answer(200, resent=True)], True),
        ([answer(500), answer(200)], True),
        ([InDoubt("reset"), answer(200)], True),
        ([InDoubt("late", timeout=True), answer(429), answer(200)], True),
        ([Unsent("refused"), answer(200)], False),
        ([answer(503), answer(200)], False),
        ([answer(429), answer(200)], False),
    ],
    ids=["at once", "resent by the client", "500", "reset", "late, then 429", "not sent", "503", "429"],
)
def test_what_may_have_arrived_twice_is_in_doubt(answers: list[Response | OSError], doubt: bool) -> None:
    """Without it duplicates are not reported; or all that was ever tried again is."""
    told = deliver_one_call(Line(answers), Policy(first=0.01, longest=0.1), rows=2)

    assert told.statuses == {10: "delivered", 11: "delivered"}
    assert [one.call.doubtful for one in told.settled] == [frozenset({10, 11} if doubt else ())]


def test_a_call_has_the_same_key_and_bytes_in_every_attempt() -> None:
    """Without it an API that honours keys takes the call twice."""
    line = Line([answer(500), InDoubt("reset"), answer(429), answer(200)])

    told = deliver_one_call(line, Policy(first=0.01, longest=0.1), rows=3)

    assert len(line.keys) == 4
    assert len(set(line.keys)) == len(set(line.bodies)) == 1
    assert {f'"{one.key}"' for one in told.settled} == set(line.keys)
    assert uuid.UUID(line.keys[0].strip('"')).version == 5
    assert str(told.settled[0].id).startswith("events/3/10-12/")


def test_the_parts_of_a_call_have_keys_of_their_own() -> None:
    """Without it an API says 422 to a part, for its key came with another body; or takes it for the whole."""

    async def picky(request: PreparedRequest, again: Any) -> Response:
        return answer(400, b"no") if b'{"at":5}' in (request.body or b"") else answer(200)

    line = Line(act=picky)

    told = deliver_one_call(line, Policy(), rows=8)

    assert [at for at, status in told.statuses.items() if status == "dead"] == [15]
    assert len(line.keys) == 7
    assert len(set(line.keys)) == len(set(line.bodies)) == 7
    dead = next(one for one in told.settled if one.status == "dead")
    assert f'"{dead.key}"' in line.keys
    assert str(dead.id).startswith("events/3/15-15/")
    assert "events" not in str(dead.key)


def test_a_driver_that_goes_before_a_call_is_sent_again_leaves_the_call_in_doubt() -> None:
    """Without it what may have arrived is sent by the next job as if it had not."""

    async def story() -> tuple[list[Call], int]:
        world = World(ENOUGH, Api())
        lease, serving = world.lease()

        async def dropped(request: PreparedRequest, again: Callable[[], Awaitable[None]]) -> Response:
            lease._reader.feed_eof()
            await asyncio.sleep(0.1)
            await again()
            return answer(200)

        delivery = open_delivery(Line(act=dropped), Policy(), lease)
        left = await left_calls(delivery, Call("events", 3, [10], [b"{}"]), [])
        serving.cancel()
        return left, lease._tokens.in_flight

    left, out = simulate(story())

    assert [one.doubtful for one in left] == [frozenset({10})]
    assert out == 0
