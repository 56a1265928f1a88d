"""What a task does with its rows, against a real API that does what a test wants."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from router_demo.api import Failure, Items, Poison, Token
from router_rest.answers.bulk_results import BulkResults
from router_rest.delivery import worker
from router_rest.delivery.batcher import CallSize
from router_rest.delivery.receipts import ReceiptWriter
from router_rest.logins.auth import Auth
from router_rest.logins.credentials import Credentials
from tests.rest.tasks import HTTP, KEYED, OWNER, Tasks, changed, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_demo.api_server.script import How


@pytest.mark.parametrize("cut", [CallSize(), CallSize(rows=7)], ids=["alone", "by seven"])
def test_every_row_arrives_once_and_has_a_receipt(api_tasks: Tasks, cut: CallSize) -> None:
    """Without it rows are lost, doubled, or nobody can say what became of them."""
    batches = [rows(range(100)), rows(range(100, 250)), rows(range(50), partition=3)]

    sent = api_tasks.run(api_tasks.job(cut=cut), *batches)

    assert sent.counts == Counter(delivered=300, known=0, calls=sum(-(-many // cut.rows) for many in (250, 50)))
    assert set(api_tasks.api.rows("partition", "offset").values()) == {1}
    receipts = api_tasks.receipts()
    assert len(receipts) == len({(row["partition"], row["offset"]) for row in receipts}) == 300
    assert {(row["status"], row["http_status"], row["attempts"], row["in_doubt"]) for row in receipts} == {
        ("delivered", 200, 1, False)
    }
    assert len({row["call_id"] for row in receipts}) == sent.counts["calls"]


def test_delivered_rows_are_told_while_their_batch_runs(api_tasks: Tasks) -> None:
    """Without it a sink that sends a million rows for an hour looks like one that sends none."""
    api_tasks.api.play(failures=[Failure(status=400, times=2)])
    job = api_tasks.job()
    sent = api_tasks.run(job, rows(range(60)))
    assert (sent.counts["delivered"], len(sent.dead)) == (58, 2)
    deadline = time.monotonic() + 10
    while (state := api_tasks.leases.limit_state("api")) is None or state.delivered != {OWNER.name: 58}:
        assert time.monotonic() < deadline, state
        time.sleep(0.01)

    api_tasks.run(api_tasks.job(), rows(range(100)))
    while (state := api_tasks.leases.limit_state("api")) is None or state.delivered != {OWNER.name: 98 + 2}:
        assert time.monotonic() < deadline, "rows with a receipt are sent no more, and counted once"
        time.sleep(0.01)


def test_a_task_that_comes_again_sends_nothing_twice(api_tasks: Tasks) -> None:
    """Without it a lost executor, or a crash of the driver, sends its rows anew."""
    api_tasks.run(api_tasks.job(cut=CallSize(rows=7)), rows(range(0, 60)))

    again = api_tasks.run(api_tasks.job(cut=CallSize(rows=7)), rows(range(0, 100)))

    assert (again.counts["known"], again.counts["delivered"]) == (60, 40)
    assert api_tasks.api.rows("offset") == Counter(range(100))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_what_fails_for_a_while_arrives_all_the_same(api_tasks: Tasks, share: float) -> None:
    """Without it a row is lost, or dead, because a server had a bad moment."""
    api_tasks.api.play(failures=[Failure(share=share)])

    left = 200
    while left:
        sent = api_tasks.run(api_tasks.job(), rows(range(200)))
        assert not sent.dead
        left = sent.counts["left"]

    assert api_tasks.api.rows("offset") == Counter(range(200))


@pytest.mark.parametrize(
    "poison", [{0}, {9}, {3, 4}, {0, 9}, set(range(10))], ids=["first", "last", "two", "both ends", "all"]
)
def test_poison_is_found_and_its_neighbours_arrive(api_tasks: Tasks, poison: set[int]) -> None:
    """Without it one bad row makes dead letters of nine good ones, or stops them all."""
    api_tasks.api.play(poison=[Poison(field="bad", values=(1,))])

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=10)), rows(range(20), bad=poison))

    assert {row["offset"] for row in sent.dead} == poison
    assert {(row["http_status"], row["status"]) for row in sent.dead} == {(400, "dead")}
    assert api_tasks.api.rows("offset") == Counter(set(range(20)) - poison)
    extra = api_tasks.api.stats().arrived - 2
    assert extra <= 2 * 4 * len(poison)


def test_a_call_that_is_too_large_is_sent_in_smaller_ones(api_tasks: Tasks) -> None:
    """Without it rows that an API takes one by one become dead letters, or block the rest."""
    api_tasks.api.play(largest=120)

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=16)), rows(range(40)))

    assert (sent.counts["delivered"], sent.dead) == (40, [])
    assert api_tasks.api.rows("offset") == Counter(range(40))


def test_a_row_that_is_too_large_by_itself_is_dead(api_tasks: Tasks) -> None:
    """Without it one large row blocks all others for ever."""
    api_tasks.api.play(largest=10)

    sent = api_tasks.run(api_tasks.job(), rows([5]))

    assert [(row["offset"], row["http_status"], row["attempts"]) for row in sent.dead] == [(5, 413, 1)]


@pytest.mark.parametrize("status", [302, 403, 404, 405, 501])
def test_what_no_call_can_solve_ends_the_task(api_tasks: Tasks, status: int) -> None:
    """Without it a wrong address makes dead letters of everything, or is tried for ever."""
    api_tasks.api.play(failures=[Failure(status=status)])

    sent = api_tasks.run(api_tasks.job(), rows(range(100)), rows(range(100, 300)))

    assert str(status) in sent.texts["wrong"]
    assert (sent.counts["left"], sent.dead, api_tasks.receipts()) == (300, [], [])
    assert api_tasks.api.stats().arrived <= 16


def test_too_many_refusals_end_the_task(api_tasks: Tasks) -> None:
    """Without it a schema that changed makes dead letters of a whole topic."""
    api_tasks.api.play(failures=[Failure(status=400)])

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=5)), rows(range(1000)))

    assert "400" in sent.texts["wrong"]
    assert len(sent.dead) <= 10 + 8 * 5
    assert sent.counts["left"] + len(sent.dead) == 1000


def test_what_comes_without_an_answer_is_in_doubt(api_tasks: Tasks) -> None:
    """Without it duplicates are not reported, and nobody looks for them."""
    api_tasks.api.play(failures=[Failure(how="reset", processed=True, times=5)])

    sent = api_tasks.run(api_tasks.job(keyed=None), rows(range(100)))

    assert sent.counts["delivered"] == 100
    arrived = api_tasks.api.rows("offset")
    doubtful = {row["offset"] for row in api_tasks.receipts() if row["in_doubt"]}
    assert set(arrived) == set(range(100))
    assert {at for at, times in arrived.items() if times > 1} <= doubtful
    assert len(doubtful) == 5


@pytest.mark.parametrize("how", ["silent", "drip"])
def test_a_sink_that_stops_waits_briefly_for_answers(
    api_tasks: Tasks, monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    """Without it Ctrl-C ends a run only after the longest time that a call may take."""
    monkeypatch.setattr(worker, "LAST_ANSWERS_SECONDS", 0.2)
    api_tasks.api.play(failures=[Failure(how=how)])
    stop = threading.Event()
    patient = replace(HTTP, read=900.0, total=900.0)  # longer than a test may take
    job = api_tasks.job(http=patient)
    api_tasks.leases.admit_sink(
        OWNER.name,
        "api",
        api_tasks.pace,
        credentials=Credentials(None).current_credentials,
        stop=stop.is_set,
    )

    def stop_when_calls_are_in_flight() -> None:
        while not api_tasks.leases.report_totals("api")["sent"]:
            stop.wait(0.01)
        stop.set()

    watcher = threading.Thread(target=stop_when_calls_are_in_flight)
    watcher.start()
    sent = api_tasks.run(job, rows(range(100)))
    watcher.join()

    assert sent.counts["left"] == 100
    in_flight = int(api_tasks.leases.report_totals("api")["sent"])
    api_tasks.api.play()
    while sent.counts["left"]:
        sent = api_tasks.run(api_tasks.job(), rows(range(100)))
    assert {row["offset"] for row in api_tasks.receipts() if row["in_doubt"]} == set(range(in_flight))


def test_a_task_whose_calls_all_wait_gives_its_core_back(api_tasks: Tasks) -> None:
    """Without it an API that refuses all calls for some minutes holds cores that tables need."""
    wait = 50.0
    api_tasks.api.play(failures=[Failure(status=429, retry_after="seconds", wait=wait)])
    begin = time.monotonic()

    sent = api_tasks.run(api_tasks.job(), rows(range(5)))

    assert sent.counts["left"] == 5
    assert time.monotonic() - begin < wait
    assert api_tasks.leases.outlook("api").retry_after > 0


def test_the_key_keeps_an_api_from_taking_a_call_twice(api_tasks: Tasks) -> None:
    """Without it every connection that breaks doubles a row."""
    api_tasks.api.play(failures=[Failure(how="reset", processed=True, times=5)], idempotency="Idempotency-Key")

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=3)), rows(range(100)))

    assert sent.counts["delivered"] == 100
    came = Counter((one["key"], one["body"]) for one in api_tasks.api.requests(1000))
    assert sorted(came.values()) == [1] * 29 + [2] * 5
    assert len({key for key, _ in came}) == len({body for _, body in came}) == 34


def test_rows_of_a_task_of_which_nothing_more_is_known_are_in_doubt(api_tasks: Tasks) -> None:
    """Without it rows that were in flight when a worker died arrive twice, and nobody knows."""
    crashed = ReceiptWriter(api_tasks.parts, OWNER)
    asyncio.run(crashed.reserve_ranges([("events", 0, 10, 29)]))

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=7)), rows(range(50)))

    crashed.close(keep=False)
    assert sent.counts["delivered"] == 50
    assert {row["offset"] for row in api_tasks.receipts() if row["in_doubt"]} == set(range(10, 30))


def test_rows_that_were_never_sent_are_in_no_doubt(api_tasks: Tasks) -> None:
    """Without it every outage puts all rows in doubt."""
    api_tasks.api.play(outage="refused")
    sent = api_tasks.run(api_tasks.job(http=replace(HTTP, connect=1.0)), rows(range(100)))
    assert (sent.counts["left"], "away" in sent.texts) == (100, True)
    api_tasks.api.play()

    sent = api_tasks.run(api_tasks.job(), rows(range(100)))
    while sent.counts["left"]:
        sent = api_tasks.run(api_tasks.job(), rows(range(100)))

    assert {row["in_doubt"] for row in api_tasks.receipts()} == {False}
    assert api_tasks.api.rows("offset") == Counter(range(100))


@pytest.mark.parametrize("cut", [CallSize(rows=3, orders=8), CallSize(rows=3, orders=2, groups=9)], ids=["", "grouped"])
def test_rows_of_a_key_arrive_in_their_order(api_tasks: Tasks, cut: CallSize) -> None:
    """Without it an older state of a player overwrites a newer one."""
    api_tasks.api.play(latency=0.002, failures=[Failure(share=0.2)])
    lanes = [b"key %d" % (at % 5) for at in range(150)]

    sent = api_tasks.run(api_tasks.job(cut=cut), rows(range(150), lanes=lanes))
    while sent.counts["left"]:
        sent = api_tasks.run(api_tasks.job(cut=cut), rows(range(150), lanes=lanes))

    taken = [json.loads(one["body"]) for one in api_tasks.api.requests(10_000) if one["status"] == 200]
    order = [row["offset"] for call in taken for row in call]
    assert sorted(order) == list(range(150))
    assert not cut.groups or {len({row["offset"] % 5 for row in call}) for call in taken} == {1}
    for key in range(5):
        of_key = [at for at in order if at % 5 == key]
        assert of_key == sorted(of_key)


def test_a_token_that_expired_is_replaced(api_tasks: Tasks) -> None:
    """Without it every row that is sent after the token's end is lost or dead."""
    api_tasks.api.play(token=Token(uses=20))
    url = f"{api_tasks.api.url}/token"
    auth = Auth.model_validate({"oauth": {"token_url": url, "client_id": "demo", "client_secret": "demo"}})

    sent = api_tasks.run(api_tasks.job(auth=auth), rows(range(100)))

    assert (sent.counts["delivered"], sent.dead) == (100, [])
    assert api_tasks.api.rows("offset") == Counter(range(100))


def test_a_bulk_answer_is_heard_row_by_row(api_tasks: Tasks) -> None:
    """Without it rows that a bulk API refused count as delivered."""
    api_tasks.api.play(poison=[Poison(field="bad", values=(1,))], items=Items(id="offset", busy=0.3, shuffled=True))
    policy = replace(
        api_tasks.job().plan.policy,
        attempts=50,
        results=BulkResults(path="items", status="status", id="id", row_id="offset"),
    )

    sent = api_tasks.run(api_tasks.job(cut=CallSize(rows=10), policy=policy), rows(range(40), bad={3, 17}))

    assert {row["offset"] for row in sent.dead} == {3, 17}
    assert sent.counts["delivered"] == 38
    assert api_tasks.api.rows("offset") == Counter(set(range(40)) - {3, 17})


def test_all_rows_are_taken_although_nothing_is_sent(api_tasks: Tasks) -> None:
    """Without it Spark waits for ever for a task that has ended early."""
    api_tasks.api.play(failures=[Failure(status=404)])
    taken = []

    def endless() -> Iterator[pa.RecordBatch]:
        for at in range(20):
            taken.append(at)
            yield rows(range(at * 1000, at * 1000 + 1000))

    sent = api_tasks.run(api_tasks.job(), *endless())

    assert (len(taken), sent.counts["left"]) == (20, 20_000)


def test_a_task_that_cannot_reach_the_driver_sends_nothing(api_tasks: Tasks) -> None:
    """Without it a task whose driver is gone calls the API past its limit."""
    job = api_tasks.job()
    api_tasks.leases.stop()

    sent = api_tasks.run(job, rows(range(10)))

    assert (sent.counts["left"], "away" in sent.texts) == (10, True)
    assert api_tasks.api.stats().arrived == 0


def test_rows_name_headers_and_keys(api_tasks: Tasks) -> None:
    """Without it a header made of data is sent as it is written, or the values of one row go with another."""
    values = [["uno", "k1"], ["uno", "k2"], ["go", "k3"]]
    to = pa.array([{"target": "\n".join(["", *one]), "fault": None} for one in values])
    batch = rows(range(3)).set_column(4, "_to", to)
    job = api_tasks.job(keyed=None)
    form = replace(job.plan.form, named=("X-Game", KEYED), row_key=True)

    sent = api_tasks.run(changed(job, form=form), batch)

    assert sent.counts["delivered"] == 3
    assert {one["key"] for one in api_tasks.api.requests(10)} == {"k1", "k2", "k3"}
    assert [row["idempotency_key"] for row in api_tasks.receipts()] == ["k1", "k2", "k3"]
