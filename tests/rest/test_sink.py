"""Posted batches through Spark: every row arrives once, has a receipt, or is a dead letter."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from router import Batch, Opening, Sink, StartError
from router.delta.commit import StagedParts
from router.registry import load_registry
from router_demo.api import Api, Failure, Poison
from tests.lake_rows import read_rows
from tests.rest.scripted import Scripted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router import Outcome
    from router.delta.lake import Lake
    from tests.rest.scripted import Talk


class Batches:
    """Apply batches of events to a REST sink: 250 rows of three partitions, with gaps."""

    def __init__(self, api: Api, spark: SparkSession, lake: Lake, folder: Path) -> None:
        self.api, self.spark, self.lake, self.folder = api, spark, lake, folder
        sizes = {0: 150, 1: 90, 4: 10}
        self.rows = [(p, 2 * at, f"player {at}", at) for p, size in sizes.items() for at in range(size)]
        self.guarded: list[Any] = []
        self.batch = Batch("games", 3, "wins", "rest", keeps=self.keeps, guards=self.guard)

    def keeps(self, table: str) -> StagedParts:
        """Return where the sink keeps rows."""
        return StagedParts(self.lake, table, "games:run/wins/rest", self.batch.id)

    def guard(self, task: Any) -> Any:
        """Note a task that is to look at its executor."""
        self.guarded.append(task)
        return task

    @property
    def events(self) -> DataFrame:
        """Return the events, as a lane has them."""
        columns = "_partition int, _offset bigint, player string, n int"
        frame = self.spark.createDataFrame(self.rows, columns)
        more = ["'events' AS _topic", "current_timestamp() AS _timestamp", "CAST(player AS BINARY) AS _key"]
        return frame.selectExpr("*", *more, "_partition AS part", "_offset AS at").repartition(3)

    def apply(self, **options: Any) -> Outcome:
        """Apply the batch with some options."""
        opened = load_registry().resolve(Sink, {"rest": {"url": f"{self.api.url}/wins", **options}})
        sink = opened.prepare(Opening(self.folder, self.events.limit(0)))
        return sink.apply(self.events, self.batch)

    def receipts(self) -> list[dict[str, Any]]:
        """Return the receipts in their table."""
        return read_rows(self.lake, "ops.receipts")

    @property
    def expected(self) -> Counter[Any]:
        """Return every row once."""
        return Counter((partition, at) for partition, at, *_ in self.rows)


@pytest.fixture
def batches(api: Api, spark: SparkSession, lake: Lake, tmp_path: Path) -> Batches:
    """Return batches for an API that remembers nothing yet."""
    api.reset()
    return Batches(api, spark, lake, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="alone"),
        pytest.param({"rows_per_call": 2, "tasks": 3}, id="by two in three tasks"),
        pytest.param(
            {
                "url": "{api}/{{event.player}}",
                "ordering": "per_key",
                "tasks": 2,
                "limit_by": "lower(event.player)",
                "calls_per_second": 50,
            },
            id="by URL, in order, with a limit for each player",
        ),
    ],
)
def test_every_row_arrives_once_and_has_a_receipt(batches: Batches, options: dict[str, Any]) -> None:
    """Without it rows are lost or doubled, and nobody knows."""
    if "url" in options:
        options["url"] = options["url"].format(api=batches.api.url)

    outcome = batches.apply(**options)

    assert (outcome.applied, outcome.refused, outcome.parked, outcome.in_doubt) == (250, None, 0, 0)
    assert batches.api.rows("part", "at") == batches.expected
    assert len(batches.guarded) == 1, "tasks look at their executors"
    receipts = batches.receipts()
    assert Counter((row["partition"], row["offset"]) for row in receipts) == batches.expected
    assert {(row["query"], row["route"], row["sink"], row["batch_id"]) for row in receipts} == {
        ("games", "wins", "rest", 3)
    }


def test_a_replay_sends_nothing_twice(batches: Batches) -> None:
    """Without it a crash after the last call sends the batch again."""
    first = batches.apply(rows_per_call=7)

    again = batches.apply(rows_per_call=50)

    assert (again.applied, again.in_doubt) == (first.applied, 0) == (250, 0)
    assert batches.api.rows("part", "at") == batches.expected
    assert len(batches.receipts()) == 250


def test_failures_are_tried_again_until_all_rows_arrived(batches: Batches) -> None:
    """Without it a tenth of the rows is lost when a tenth of the calls fails."""
    batches.api.play(failures=[Failure(share=0.1)])

    outcome = batches.apply(rows_per_call=3)

    assert outcome.applied == 250
    assert batches.api.rows("part", "at") == batches.expected


def test_poison_rows_are_dead_letters_and_their_neighbours_arrive(batches: Batches) -> None:
    """Without it one bad row stops a batch, or takes others with it."""
    batches.api.play(poison=[Poison(field="n", values=(13, 77))])

    outcome = batches.apply(rows_per_call=10)
    again = batches.apply(rows_per_call=10)

    bad = {(partition, at) for partition, at, _, n in batches.rows if n in {13, 77}}
    for one in (outcome, again):
        assert one.applied == 250 - len(bad)
        assert one.refused is not None
        letters = one.refused.collect()
        assert {(row["_partition"], row["_offset"]) for row in letters} == bad
        assert all(row["reason"].startswith("the API answers 400") for row in letters)
        assert one.refused.columns == [*batches.events.columns, "reason"]
    assert batches.api.rows("part", "at") == batches.expected - Counter(bad)
    assert Counter(row["status"] for row in batches.receipts()) == Counter(delivered=250 - len(bad), dead=len(bad))


def test_an_api_that_refuses_everything_stops_the_stream(batches: Batches) -> None:
    """Without it a wrong schema makes dead letters of a whole topic."""
    batches.api.play(failures=[Failure(status=422)])

    with pytest.raises(StartError, match="422"):
        batches.apply()

    batches.api.play()
    outcome = batches.apply()
    assert (outcome.applied, outcome.refused) == (250, None)
    assert batches.api.rows("part", "at") == batches.expected


def test_a_wrong_address_stops_the_stream(batches: Batches) -> None:
    """Without it a typing error in a URL is tried for ever."""
    batches.api.play(failures=[Failure(status=404)])

    with pytest.raises(StartError, match="404"):
        batches.apply()


def test_an_outage_is_waited_out(batches: Batches) -> None:
    """Without it an API that is away for a while fails the stream, or loses rows."""
    batches.api.play(outage="refused")
    back = threading.Timer(4, batches.api.play)
    back.start()

    outcome = batches.apply(timeouts={"connect": "1 s"})

    back.join()
    assert outcome.applied == 250
    assert batches.api.rows("part", "at") == batches.expected


def test_a_stop_in_an_outage_leaves_what_is_not_done(batches: Batches) -> None:
    """Without it a query cannot be stopped while an API is away, or its next start sends what arrived."""
    batches.api.play(failures=[Failure(times=10_000, status=503, share=0.9)])
    stop = threading.Event()
    batches.batch = replace(batches.batch, stop=stop)
    threading.Timer(3, stop.set).start()

    with pytest.raises(ConnectionError):
        batches.apply(retry={"attempts": 1, "rounds": 1000})

    batches.batch = replace(batches.batch, stop=threading.Event())
    batches.api.play()
    outcome = batches.apply()
    assert outcome.applied == 250
    assert batches.api.rows("part", "at") == batches.expected


def test_rows_are_parked_when_the_api_stays_away(batches: Batches) -> None:
    """Without it an API that is gone for good holds a lane for ever."""
    batches.api.play(outage="refused")

    outcome = batches.apply(timeouts={"connect": "1 s"}, max_outage={"after": "1 s", "then": "park"})

    assert (outcome.applied, outcome.parked, outcome.refused) == (0, 250, None)
    assert Counter(row["status"] for row in batches.receipts()) == Counter(parked=250)


def test_rows_that_are_never_taken_are_parked_although_others_are(batches: Batches) -> None:
    """Without it a few rows that an API answers 500 for ever hold their lane for ever."""
    batches.api.play(poison=[Poison(field="n", values=(13,), status=500)])

    outcome = batches.apply(retry={"attempts": 2}, max_outage={"after": "1 s", "then": "park"})

    bad = Counter({(partition, at): 1 for partition, at, _, n in batches.rows if n == 13})
    assert (outcome.applied, outcome.parked, outcome.refused) == (250 - len(bad), len(bad), None)
    assert batches.api.rows("part", "at") == batches.expected - bad
    receipts = batches.receipts()
    assert Counter((row["partition"], row["offset"]) for row in receipts if row["status"] == "parked") == bad
    assert len(receipts) == 250


@pytest.mark.slow
def test_rows_behind_a_limit_are_not_parked_with_those_that_are_never_taken(batches: Batches) -> None:
    """Without it the next job of a slow API starts the count anew each time, or has all of its rows parked."""
    batches.api.play(poison=[Poison(field="n", values=(13,), status=500)])

    outcome = batches.apply(
        limits=[{"calls": 60, "per": "8 s"}],
        limit_name="slow",
        retry={"attempts": 1},
        max_outage={"after": "14 s", "then": "park"},
    )

    assert (outcome.applied, outcome.parked, outcome.refused) == (248, 2, None)
    at = {
        status: [row["at"] for row in batches.receipts() if row["status"] == status]
        for status in ("parked", "delivered")
    }
    assert min(at["parked"]) < max(at["delivered"])


def test_the_stream_stops_for_rows_that_are_never_taken_where_that_is_wanted(batches: Batches) -> None:
    """Without it nobody is told which rows hold a order, and for how long."""
    batches.api.play(poison=[Poison(field="n", values=(13,), status=500)])

    with pytest.raises(StartError, match=r"but not offsets 26 to 26 of events/") as caught:
        batches.apply(retry={"attempts": 2}, max_outage={"after": "1 s", "then": "fail"})

    assert "max_outage" in str(caught.value)


def test_answers_are_landed_beside_their_events(batches: Batches) -> None:
    """Without it what an API returns about an event is lost."""
    batches.apply(rows_per_call=7, responses="silver.answers")

    table = batches.lake.open("silver.answers")
    assert table is not None
    found = batches.spark.read.format("delta").load(batches.lake.address("silver.answers"))
    parsed = found.selectExpr(
        "from_json(CAST(value AS STRING), 'event struct<part: int, at: bigint>, response string') AS v"
    )
    assert Counter(tuple(row) for row in parsed.selectExpr("v.event.part", "v.event.at").collect()) == batches.expected


def test_rows_sent_before_a_wrong_results_stopped_the_sink_are_parked_once_it_is_right(batches: Batches) -> None:
    """Without it rows of which nobody knows what became are sent again, or have no receipt."""

    def act(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            items = [{"status": 200}] * len(json.loads(seen.body))
            talk.answer(json.dumps({"items": items}).encode())

    with Scripted(act) as server:
        options: dict[str, Any] = {"url": server.url, "rows_per_call": 5, "tasks": 1, "max_in_flight": 2}
        with pytest.raises(StartError, match=r"finds no status.*until the configuration changes") as caught:
            batches.apply(**options, results={"path": "itemz", "status": "status"})
        sent = [json.loads(seen.body) for seen in server.seen]
        outcome = batches.apply(**options, results={"path": "items", "status": "status"})
        arrived = Counter((row["part"], row["at"]) for seen in server.seen for row in json.loads(seen.body))

    before = Counter((row["part"], row["at"]) for call in sent for row in call)
    assert f"then the {before.total()} rows that were sent are parked" in str(caught.value)
    assert 0 < before.total() < 250
    assert (outcome.applied, outcome.parked, outcome.refused) == (250 - before.total(), before.total(), None)
    assert arrived == batches.expected
    parked = [row for row in batches.receipts() if row["status"] == "parked"]
    assert Counter((row["partition"], row["offset"]) for row in parked) == before
    assert {(row["in_doubt"], "itemz" in row["reason"]) for row in parked} == {(True, True)}
    assert len(batches.receipts()) == 250


@pytest.mark.slow
def test_a_bulk_api_says_of_each_document_what_became_of_it(batches: Batches) -> None:
    """Without it documents that Elasticsearch refused count as delivered, or all of a call come once more."""
    arrived: Counter[tuple[int, int]] = Counter()

    def act(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            documents = [json.loads(line) for line in seen.body.splitlines()[1::2]]
            talk.answer(json.dumps({"errors": True, "items": [_item(one, arrived) for one in documents]}).encode())

    with Scripted(act) as server:
        action = {"create": {"_id": "{event.part}-{event.at}"}}
        options = {"preset": "elasticsearch_bulk", "rows_per_call": 40, "tasks": 2}
        outcome = batches.apply(url=server.url, body={"form": "ndjson", "action": action}, **options)

    bad = {(partition, at) for partition, at, _, n in batches.rows if n == 77}
    busy = {(partition, at) for partition, at, _, n in batches.rows if n % 10 == 3}
    assert (outcome.applied, outcome.parked) == (250 - len(bad), 0)
    assert outcome.refused is not None
    assert {(row["_partition"], row["_offset"], row["reason"]) for row in outcome.refused.collect()} == {
        (*place, "the API answers 400: no number") for place in bad
    }
    assert arrived == batches.expected + Counter(dict.fromkeys(busy, 1))


def _item(document: dict[str, Any], arrived: Counter[tuple[int, int]]) -> dict[str, Any]:
    """Answer one document as Elasticsearch does: one has a field of the wrong type, some meet a full queue once."""
    place = document["part"], document["at"]
    arrived[place] += 1
    if document["n"] == 77:
        return {
            "create": {
                "status": 400,
                "error": {"type": "mapper_parsing_exception", "reason": "no number"},
            }
        }
    if document["n"] % 10 == 3 and arrived[place] == 1:
        return {"create": {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "full"}}}
    if document["n"] == 5:
        return {"create": {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "is there"}}}
    return {"create": {"status": 201}}
