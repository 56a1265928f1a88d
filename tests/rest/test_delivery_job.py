"""How long rows have waited, for an API that is away or one that takes all others, and which of them are parked."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router import StartError
from router_rest.answers.bulk_results import BulkResults
from router_rest.delivery.batcher import CallSize
from router_rest.delivery.job import OutageClock, park_task
from router_rest.delivery.receipts import KnownReceipts
from router_rest.delivery.worker import send_task
from tests.rest.scripted import PATIENCE, Scripted, polite, then_waits
from tests.rest.tasks import HTTP, Tasks, changed, rows, shorten_rounds, whole
from tests.rest.virtual import ManualClock

if TYPE_CHECKING:
    from tests.rest.scripted import Talk

STUCK = (("events", 0, 7, 9),)
OTHER = (("events", 1, 3, 3),)


def after(
    outage: OutageClock, clock: ManualClock, seconds: float, *tried: tuple[tuple[str, int, int, int], ...]
) -> None:
    """Let a job end that delivered something."""
    clock.now += seconds
    outage.on_result(tried, moved=True)


def test_an_api_is_away_since_it_took_a_row() -> None:
    clock = ManualClock()
    outage = OutageClock(clock)
    clock.now += 5
    assert outage.seconds_away == 5
    outage.on_result([STUCK], moved=False)
    assert outage.seconds_away == 5

    after(outage, clock, 1.0)

    assert outage.seconds_away == 0


def test_what_others_get_does_not_hide_a_call_that_is_never_taken() -> None:
    """Without it ten rows that an API answers 500 for ever hold their batch for ever."""
    clock = ManualClock()
    outage = OutageClock(clock)
    for _ in range(7):
        after(outage, clock, 10.0, STUCK)

    assert outage.seconds_away == 0
    assert outage.overdue_ranges(59) == [*STUCK]
    assert outage.overdue_ranges(61) == []


def test_calls_that_fail_in_turns_are_not_stuck() -> None:
    """Without it an API that fails now and then has rows parked that it would take."""
    clock = ManualClock()
    outage = OutageClock(clock)
    for _ in range(7):
        after(outage, clock, 10.0, STUCK)
        after(outage, clock, 10.0, OTHER)

    assert outage.overdue_ranges(5) == []


def test_an_outage_in_between_does_not_start_the_count_anew() -> None:
    """In an outage one call a second is tried: that the others were not says nothing about them."""
    clock = ManualClock()
    outage = OutageClock(clock)
    after(outage, clock, 10.0, STUCK)
    clock.now += 50
    outage.on_result([OTHER], moved=False)
    after(outage, clock, 10.0, STUCK)

    assert outage.overdue_ranges(59) == [*STUCK]


def test_what_was_parked_is_forgotten() -> None:
    clock = ManualClock()
    outage = OutageClock(clock)
    after(outage, clock, 10.0, STUCK)
    clock.now += 50
    outage.forget_calls()
    outage.on_result([], moved=False)

    assert outage.overdue_ranges(10) == []


SOME = [("events", 0, 2, 3), ("events", 0, 7, 7), ("events", 1, 0, 9), ("other", 0, 0, 9)]


@pytest.mark.parametrize(("only", "parked"), [(None, {*range(10)}), (SOME, {2, 3, 7}), ([], set())])
def test_rows_without_a_receipt_are_parked_all_or_some(api_tasks: Tasks, only: Any, parked: set[int]) -> None:
    """Without it rows that wait for their turn are parked with those that an API never takes."""
    job = api_tasks.job(cut=CallSize(rows=4))

    told = [one.to_pylist() for one in park_task(job, "why", only)(iter([rows(range(10))]))]
    again = [one.to_pylist() for one in park_task(job, "why", only)(iter([rows(range(10))]))]

    assert sum(row["rows"] for one in told for row in one) == len(parked)
    assert sum(row["rows"] for one in again for row in one) == 0
    assert {(row["offset"], row["status"], row["reason"]) for row in api_tasks.receipts()} == {
        (at, "parked", "why") for at in parked
    }


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rounds and outages last for tenths of a second."""
    shorten_rounds(monkeypatch)


@pytest.fixture
def quick_tasks(quick: None, server_tasks: Tasks) -> Tasks:
    """Return what runs tasks against a server of the test; rounds and outages last for tenths of a second."""
    return server_tasks


ODD = b'"offset":3}'
"""How the body of the odd row ends."""
OK = b"HTTP/1.1 200 OK"
BROKEN = {
    "lines end with LF alone": OK + b"\nContent-Length: 2\n\nok",
    "two lengths": OK + b"\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    "length and chunks": OK + b"\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "a header that goes on": OK + b"\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
    "500": b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno",
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
    "409 in doubt": b"",
    "a reset": b"",
}


def odd_one(how: str, *, always: bool = False) -> Any:
    """Answer one row, or all, in an odd way."""

    def act(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            if not always and not seen.body.endswith(ODD):
                talk.answer()
                continue
            times = sum(body.endswith(ODD) for body in talk.server.bodies)
            if how == "a reset" or (how == "409 in doubt" and times == 1):
                talk.reset()
                return
            if how == "409 in doubt":
                talk.answer(b"there already", "409 Conflict")
            else:
                talk.send(BROKEN[how])

    return act


@pytest.mark.parametrize("others", [9, 0], ids=["with others", "alone"])
@pytest.mark.parametrize("how", BROKEN)
def test_one_odd_row_is_set_aside_and_stops_nobody(quick_tasks: Tasks, server: Scripted, how: str, others: int) -> None:
    """Without it a row that is answered in an odd way is delivered for ever, and no later one goes out."""
    server.act = odd_one(how)
    job = quick_tasks.job(cut=CallSize())
    offsets = range(others + 1) if others else [3]
    if how == "404" and not others:  # nothing says that it is the row
        with pytest.raises(StartError, match="404"):
            whole(quick_tasks, rows(offsets), job=job).deliver_all()
        return

    whole(quick_tasks, rows(offsets), job=changed(job, policy=replace(job.plan.policy, attempts=2))).deliver_all()

    receipts = {row["offset"]: row for row in quick_tasks.receipts()}
    times = sum(body.endswith(ODD) for body in server.bodies)
    assert {*receipts} == {*offsets}
    if how == "404":
        assert (receipts[3]["status"], receipts[3]["in_doubt"], times) == ("parked", False, 3)
    elif receipts[3]["status"] == "delivered":  # what aiohttp reads counts
        assert (how in {"a header that goes on", "lines end with LF alone"}, times) == (True, 1)
    else:
        assert (receipts[3]["status"], receipts[3]["in_doubt"]) == ("parked", True)
        assert "3 rounds" in receipts[3]["reason"]
        # a connection that served before, and is closed without an answer, gets a call once more
        assert times <= 3 * (2 if how in {"500", "409 in doubt", "a reset"} else 1) + (how == "a reset")
    assert {row["status"] for at, row in receipts.items() if at != 3} <= {"delivered"}


def test_an_api_that_never_answers_takes_no_row_aside(quick_tasks: Tasks, server: Scripted) -> None:
    """Without it the row that an outage met alone is parked, and said to be one that the API does not take."""
    silent_calls = 8

    def act(talk: Talk) -> None:
        while talk.request() is not None:
            if len(talk.server.bodies) <= silent_calls:
                talk.wait()
                return
            talk.answer()

    server.act = act
    job = quick_tasks.job(cut=CallSize())
    job = changed(job, http=replace(job.plan.http, read=0.1), policy=replace(job.plan.policy, attempts=1))

    whole(quick_tasks, rows([3]), job=job).deliver_all()

    (receipt,) = quick_tasks.receipts()
    assert (receipt["status"], len(server.bodies) > silent_calls) == ("delivered", True)


def test_an_odd_row_that_is_answered_before_all_others_stops_nobody(quick_tasks: Tasks, server: Scripted) -> None:
    """Without it the stream stops or goes on by chance: whether another row was answered before."""
    answered = threading.Event()

    def act(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            if seen.body.endswith(ODD):
                talk.send(BROKEN["404"])
                answered.set()
                return
            answered.wait(PATIENCE)
            talk.answer()

    server.act = act
    whole(quick_tasks, rows(range(8)), job=quick_tasks.job(cut=CallSize())).deliver_all()

    assert {row["offset"] for row in quick_tasks.receipts() if row["status"] == "delivered"} == {*range(8)} - {3}
    assert {row["offset"] for row in quick_tasks.receipts() if row["status"] == "parked"} == {3}


def fails_on(offsets: set[int]) -> Any:
    """Answer 500 to each call that has one of some rows."""

    def act(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            sent = {row["offset"] for row in json.loads(seen.body)}
            talk.answer(b"oops", "500 Oops" if sent & offsets else "200 OK")

    return act


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
@pytest.mark.parametrize("many", [4, 60], ids=["alone", "with others"])
def test_a_row_that_the_api_fails_on_is_found_in_its_call(
    quick_tasks: Tasks, server: Scripted, many: int, ordered: bool
) -> None:
    """Without it its neighbours are parked with it; and a second batch with such a call holds up the sink for ever."""
    server.act = fails_on({2})
    lanes = [b"odd" if at < 4 else b"k%d" % (at % 7) for at in range(many)] if ordered else None
    batch = rows(range(many), lanes=lanes)
    for number in range(2):
        quick_tasks.parts = replace(quick_tasks.parts, batch=number)
        cut = CallSize(rows=4, orders=256 if ordered else 0)
        job = quick_tasks.job(cut=cut)
        job = changed(job, policy=replace(job.plan.policy, attempts=2))
        made = whole(quick_tasks, batch, job=job)
        stopping = threading.Timer(30, made.batch.stop.set)
        stopping.start()
        made.deliver_all()
        stopping.cancel()

        statuses = {row["offset"]: row["status"] for row in quick_tasks.receipts()}
        assert statuses == {at: "parked" if at == 2 else "delivered" for at in range(many)}
        (parked,) = [row for row in quick_tasks.receipts() if row["status"] == "parked"]
        assert (parked["in_doubt"], "500" in parked["reason"]) == (True, True)
    assert len(server.seen) < 2 * (many / 4 + 80)


def test_an_api_that_fails_on_every_row_gets_no_halves_of_halves(quick_tasks: Tasks, server: Scripted) -> None:
    """Without it an outage that answers 500 makes a thousand calls of ten."""
    ends = threading.Event()

    def act(talk: Talk) -> None:
        while talk.request() is not None:
            talk.answer(b"oops", "200 OK" if ends.is_set() else "500 Oops")

    server.act = act
    made = whole(quick_tasks, rows(range(1000)), job=quick_tasks.job(cut=CallSize(rows=100)))
    seen_in_outage: list[int] = []

    def recover() -> None:
        seen_in_outage.append(len(server.seen))
        ends.set()

    threading.Timer(6, recover).start()

    made.deliver_all()

    assert seen_in_outage[0] < 200
    assert {row["status"] for row in quick_tasks.receipts()} == {"delivered"}


def test_calls_that_fail_often_are_dead_where_that_is_configured(quick_tasks: Tasks, server: Scripted) -> None:
    server.act = odd_one("500")

    whole(quick_tasks, rows(range(5)), job=quick_tasks.job(), set_aside_as="dead", rounds=1).deliver_all()

    assert {row["offset"]: row["status"] for row in quick_tasks.receipts() if row["offset"] == 3} == {3: "dead"}


@pytest.mark.parametrize("how", ["two lengths", "500"])
def test_an_api_that_answers_nobody_is_waited_for(quick_tasks: Tasks, server: Scripted, how: str) -> None:
    """Without it an outage parks a batch after the other, or an API gets the same row again and again."""
    server.act = odd_one(how, always=True)
    job = quick_tasks.job(http=replace(HTTP, in_flight=2))
    quick_tasks.leases.note_set_aside("api")  # as after one that was set aside, with no success since

    for offsets in (range(100), [3]):
        waiting = whole(quick_tasks, rows(offsets), job=job)
        threading.Timer(1.5, waiting.batch.stop.set).start()
        with pytest.raises(ConnectionError, match="stopped"):
            waiting.deliver_all()

    assert quick_tasks.receipts() == []


@pytest.mark.parametrize("many", [4, 60])
@pytest.mark.parametrize("body", [b'{"items": []}', b'{"things": [1, 2]}', b"<html>", b"[]"])
def test_answers_without_any_status_stop_the_sink(quick_tasks: Tasks, server: Scripted, body: bytes, many: int) -> None:
    """Without it a typing error in `results` counts what was refused as delivered; or sends it for ever."""
    server.act = polite(body)
    job = quick_tasks.job(cut=CallSize(rows=2))
    job = changed(job, policy=replace(job.plan.policy, results=BulkResults(path="items", status="statuz", id="offset")))

    def post(configuration: str) -> None:
        whole(quick_tasks, rows(range(many)), job=job, configuration=configuration).deliver_all()

    for _ in range(2):
        with pytest.raises(StartError, match="until the configuration changes"):
            post("first")
        assert 0 < len(server.seen) <= 20
    assert {(row["status"], row["in_doubt"]) for row in quick_tasks.receipts()} == {("parked", True)}
    sent = len(server.seen)
    if many == 4:
        post("second")  # its rows are parked, and the batch goes on
        assert len(server.seen) == sent
    else:
        with pytest.raises(StartError, match="until the configuration changes"):
            post("second")
        assert len(server.seen) > sent


def test_a_row_that_is_always_told_to_wait_keeps_no_other_waiting(quick_tasks: Tasks, server: Scripted) -> None:
    """Without it one row of thousands stops every sink on its host, 15 seconds at a time."""

    def busy(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            if seen.body.endswith(ODD):
                talk.answer(b"slow down", "429 Too Many Requests", "Retry-After: 15")
            else:
                talk.answer()

    server.act = busy
    job = quick_tasks.job()

    sent = quick_tasks.run(changed(job, policy=replace(job.plan.policy, elapsed=1.0)), rows(range(300)))

    assert (sent.counts["delivered"], sent.counts["left"], sent.tried) == (299, 1, ['[["events", 0, 3, 3]]'])


TOLD = 3.0
"""Seconds of a Retry-After: longer than a call may take in these tests."""


def told_once(times: dict[int, list[float]], waiting: set[int], answer: str = "429 Too Many Requests") -> Any:
    """Tell the calls of some rows to wait when they first come; note when each row came."""

    def act(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            offset = int(seen.body.rpartition(b":")[2].strip(b"}]"))
            came = times.setdefault(offset, [])
            came.append(time.monotonic())
            if offset not in waiting or len(came) > 1:
                talk.answer(b'{"items": [{"status": 200}]}')
            else:
                talk.answer(b'{"items": [{"status": 429}]}', answer, f"Retry-After: {TOLD:.0f}")

    return act


def waited(times: dict[int, list[float]], waiting: set[int]) -> None:
    """Assert that all rows came once, and those that were told to wait once more, and not before."""
    assert {offset: len(came) for offset, came in times.items() if len(came) > 1} == dict.fromkeys(waiting, 2)
    assert min(times[offset][1] - times[offset][0] for offset in waiting) >= TOLD


@pytest.mark.parametrize("results", [None, BulkResults(path="items", status="status")], ids=["calls", "rows of calls"])
def test_a_row_waits_as_long_as_it_was_told_over_rounds(
    quick_tasks: Tasks, server: Scripted, results: BulkResults | None
) -> None:
    """Without it a row that is told to wait longer than a call may take is sent again in each round, 25 times."""
    times: dict[int, list[float]] = {}
    waiting = {3, 9, 21, 22}
    server.act = told_once(times, waiting, "200 OK" if results else "429 Too Many Requests")
    job = quick_tasks.job()
    batch = whole(
        quick_tasks,
        rows(range(40)),
        job=changed(job, policy=replace(job.plan.policy, elapsed=1.0, results=results)),
    )

    batch.deliver_all()

    waited(times, waiting)
    receipts = quick_tasks.receipts()
    assert [(row["status"], row["in_doubt"]) for row in receipts] == [("delivered", False)] * 40
    assert sum(1 for _ in quick_tasks.parts.read([])) < 20, "rounds that send nothing come one after the other"


@pytest.mark.parametrize("elapsed", [1.0, 60.0], ids=["given up", "cut off"])
def test_a_row_waits_as_long_as_it_was_told_over_restarts(quick_tasks: Tasks, server: Scripted, elapsed: float) -> None:
    """Without it each start of the router sends what the API has told to wait for an hour."""
    times: dict[int, list[float]] = {}
    server.act = told_once(times, {3, 5})
    job = quick_tasks.job()
    job = changed(job, policy=replace(job.plan.policy, elapsed=elapsed))

    reports = send_task(job)(iter([rows(range(8))]))
    while len(times) < 8:
        next(reports)
    time.sleep(1.5)  # the wait is written within a second
    reports.close()  # type: ignore[attr-defined] # as Spark ends a task
    for _ in range(2):
        quick_tasks.run(job, rows(range(4)))
    whole(quick_tasks, rows(range(8)), job=job).deliver_all()

    waited(times, {3, 5})


def test_rows_behind_one_that_waits_keep_their_order(quick_tasks: Tasks, server: Scripted) -> None:
    """Without it the next round sends the newer state of a key before the one that was told to wait."""
    times: dict[int, list[float]] = {}
    server.act = told_once(times, {3})
    job = quick_tasks.job(cut=CallSize(orders=8))
    job = changed(job, policy=replace(job.plan.policy, elapsed=1.0))
    keys = [b"a" if offset in (3, 6) else b"b" for offset in range(8)]

    whole(quick_tasks, rows(range(8), lanes=keys), job=job).deliver_all()

    waited(times, {3})
    assert times[6][0] > times[3][1]
    assert times[7][0] < times[3][1]


@pytest.mark.parametrize("told", [3600, 10**9])
def test_no_row_waits_for_longer_than_the_reference_says(quick_tasks: Tasks, server: Scripted, told: int) -> None:
    """Without it one malformed header holds a row for ever."""
    server.act = then_waits(b"HTTP/1.1 429 Busy\r\nContent-Length: 0\r\nRetry-After: %d\r\n\r\n" % told)
    began = time.time()

    sent = quick_tasks.run(quick_tasks.job(), rows([3]))

    waits = KnownReceipts.from_parts(quick_tasks.parts).waits
    assert sent.counts["left"] == 1
    assert {row: round(until - began, -1) for row, until in waits.items()} == {("events", 0, 3): 3600}
    assert "an hour at most" in Path("docs/reference/rest.md").read_text()


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_large_calls_are_in_flight_within_their_bytes(quick_tasks: Tasks, server: Scripted, compressed: bool) -> None:
    """Without it a task with 64 calls of 1 MiB in flight, and four times as many ahead, takes 865 MB."""
    large = 1 << 16
    together = threading.Barrier(2 if compressed else 3)

    def slow(talk: Talk) -> None:
        while talk.request() is not None:
            with suppress(threading.BrokenBarrierError):
                together.wait(0.2)
            talk.answer()

    server.act = slow
    batch = rows(range(24)).set_column(5, "_row", pa.array([b"x" * large] * 24))
    job = quick_tasks.job(cut=CallSize(), http=replace(HTTP, in_flight=8), bytes_in_flight=7 * large)
    form = replace(job.plan.form, body=replace(job.plan.form.body, compressed=compressed))

    sent = quick_tasks.run(changed(job, form=form), batch)

    assert sent.counts["delivered"] == 24
    assert server.most_open == (2 if compressed else 3)


def test_a_right_that_ends_stops_the_sink_although_others_were_taken(quick_tasks: Tasks, server: Scripted) -> None:
    """Without it each row of a topic is sent, and refused, when the API has taken a right away."""

    def until(talk: Talk) -> None:
        while talk.request() is not None:
            if len(server.seen) <= 20:
                talk.answer()
            else:
                talk.answer(b"no", "403 Forbidden")

    server.act = until

    with pytest.raises(StartError, match="403"):
        whole(quick_tasks, rows(range(500)), job=quick_tasks.job(http=replace(HTTP, in_flight=2))).deliver_all()

    assert len(server.seen) <= 20 + 10 + 2
