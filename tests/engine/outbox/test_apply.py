"""Sinks that apply: what they were given is counted, and given again only when they did not finish."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from router import Batch, SinkError
from router.config.models import Route
from router.engine.outbox.apply import append_dead_letters
from tests.engine.conftest import EITHER
from tests.engine.parts import Copy, Events, Fixed, Where, copied
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from tests.engine.query import Query

EVENTS = records([{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}, b"garbage"], partitions=2)


def routes(to: Path, **options: Any) -> tuple[Route, ...]:
    options = {"to": str(to), "refuses": "n = 3", **options}
    return (Route(name="all", match=Where(sql="event.n > 0"), sinks=(Copy(**options), Fixed(name="silver.t"))),)


@pytest.fixture(scope="module", params=EITHER)
def cut(
    request: pytest.FixtureRequest, make_query: Callable[..., Query], tmp_path_factory: Any
) -> tuple[Query, SinkError]:
    """Run a batch whose sink fails, then start again with the sink well; return the error of the first start."""
    folder = tmp_path_factory.mktemp(request.param)
    failing = routes(folder / "copy", fails_before=1)
    query = make_query(folder, commit=request.param, decode=Events(ddl="n int"), bronze="bronze.all", routes=failing)
    with pytest.raises(SinkError) as caught:
        query.take(EVENTS)
    assert not (folder / "copy").exists()
    assert query.lake.open("ops.ledger") is None
    again = query.restarted(routes=routes(folder / "copy"))
    again.again(0)
    return again, caught.value


def test_a_sink_that_fails_stops_the_batch_by_name(cut: tuple[Query, SinkError]) -> None:
    """Without it nobody knows which of the sinks is down."""
    error = cut[1]

    assert (error.query, error.batch, error.route, error.sink) == ("games", 0, "all", "copy")
    assert "ConnectionError" in error.what
    assert isinstance(error.__cause__, ConnectionError)


def test_the_tables_of_the_batch_are_there_once(cut: tuple[Query, SinkError]) -> None:
    """Without it a service that is down doubles the rows of tables."""
    query = cut[0]

    assert Counter(query.content("silver.t")["n"].to_pylist()) == Counter([1, 2, 3])
    assert query.content("outbox.games__all__copy").num_rows == 3
    assert query.content("bronze.all").num_rows == 5


def test_the_sink_gets_the_rows_and_where_they_came_from(cut: tuple[Query, SinkError]) -> None:
    """Without it a sink cannot order, deduplicate or answer for what it sends."""
    rows = sorted(copied(cut[0].folder / "copy"), key=lambda row: row["n"])

    assert [(row["n"], row["_topic"], row["_partition"], row["_offset"]) for row in rows] == [
        (1, "events", 1, 0),
        (2, "events", 0, 1),
    ]
    assert {(row["by"], row["batch"], row["replay"]) for row in rows} == {("games/all/copy", 0, True)}
    assert rows[0]["_key"] == str(b"key 1")
    assert rows[0]["_timestamp"].startswith("2026-01-01 12:00:01.123456")


def test_what_the_sink_refused_is_a_dead_letter(cut: tuple[Query, SinkError]) -> None:
    """Without it rows that a service will never take are lost, or block it for ever."""
    (letter,) = [row for row in cut[0].rows("ops.dead") if row["stage"] == "apply"]

    assert {
        name: letter[name] for name in ("reason", "route", "sink", "topic", "partition", "offset", "key", "batch_id")
    } == {
        **{"reason": "not wanted", "route": "all", "sink": "copy", "topic": "events", "partition": 1, "offset": 1},
        **{"key": b"key 3", "batch_id": 0},
    }
    assert letter["value"] == b'{"n":3}'


def test_first_dead_letters_of_several_sinks_may_come_at_once(spark: SparkSession, lake: Lake) -> None:
    """Without it the run ends with a trace of Java: each of the sinks tried to make the table."""
    rows = (
        "SELECT 't' AS _topic, 0 AS _partition, id AS _offset, now() AS _timestamp, CAST('k' AS binary) AS _key, 1 AS n"
    )
    events = spark.sql(f"{rows} FROM range(3)")
    refused = events.withColumn("reason", F.lit("not wanted"))
    sinks = [f"sink{number}" for number in range(6)]
    begin = threading.Barrier(len(sinks))

    def refuse(sink: str) -> int:
        batch = Batch(query="games", id=0, route="all", sink=sink, replay=False)
        begin.wait()
        return append_dead_letters(refused, events, batch, lake, "ops.dead", "games:run")

    with ThreadPoolExecutor(len(sinks)) as pool:
        assert list(pool.map(refuse, sinks)) == [3] * len(sinks)
    table = lake.open("ops.dead")
    assert table is not None
    assert Counter(table.to_pyarrow_table().column("sink").to_pylist()) == dict.fromkeys(sinks, 3)


def test_a_finished_batch_is_not_applied_again(cut: tuple[Query, SinkError]) -> None:
    """Without it every crash after a sink has finished sends its rows twice."""
    query = cut[0]
    before = copied(query.folder / "copy"), query.versions(), query.rows("ops.dead")

    for again in (query, query.restarted()):
        again.again(0)

    assert (copied(query.folder / "copy"), query.versions(), query.rows("ops.dead")) == before


def test_the_outcome_is_in_the_ledger(cut: tuple[Query, SinkError]) -> None:
    """Without it a row that a service did not get is not missed."""
    booked = [row for row in cut[0].rows("ops.ledger") if row["applied"] is not None]

    assert [(row["route"], row["sink"], row["applied"], row["dead"]) for row in booked] == [("all", "copy", 2, 1)]


@pytest.mark.parametrize("claims", [1, -1], ids=["too many", "too few"])
def test_a_sink_that_counts_wrong_stops_the_stream(
    make_query: Callable[..., Query], tmp_path: Path, claims: int
) -> None:
    """Without it a sink that loses rows is believed."""
    query = make_query(tmp_path, decode=Events(ddl="n int"), routes=routes(tmp_path / "copy", claims=claims))

    with pytest.raises(SinkError) as caught:
        query.take(EVENTS)

    assert (caught.value.route, caught.value.sink) == ("all", "copy")
    assert query.lake.open("ops.ledger") is None
    assert query.content("silver.t").num_rows == 3


def test_a_sink_without_rows_is_not_called(make_query: Callable[..., Query], tmp_path: Path) -> None:
    """Without it an empty batch calls a service, or fails for want of files."""
    query = make_query(tmp_path, decode=Events(ddl="n int"), routes=routes(tmp_path / "copy"))

    report = query.take(records([{"n": 0}]))

    assert (report.unmatched, report.dead_letters) == (1, 1)
    assert not (tmp_path / "copy").exists()
