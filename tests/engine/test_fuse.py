"""Decoding, labelling and landing in one stage makes what the two stages make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from router import ArrowDecoding
from router.config.models import Expectation, Landing, Route
from router.engine import arrow
from router.engine.fuse import Fused
from router_decoders import Json
from router_rules import All, Field, Not, Sql
from router_rules import Any as AnyOf
from router_sinks import Delta, Tables
from tests.engine.parts import Copy, Shouted
from tests.engine.query import Query, records
from tests.engine.scenarios import GARBAGE, NAMES, any_bytes
from tests.engine.test_engines import multiset, shape

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tests.engine.conftest import MakeQuery

SCHEMA = (
    "game string, gamer string, at timestamp, day date, amount bigint, price double, flag boolean, small smallint, "
    "tags array<string>, inner struct<x: int, deep: struct<y: string, at: timestamp>>, rounds array<struct<n: int>>"
)
ROUTES = (
    Route(
        name="games",
        match=All(rules=(Sql(where="event.game IS NOT NULL"), Not(rule=Field(column="event.game", equals="hidden")))),
        expect=(
            Expectation(name="gamer", sql="event.gamer IS NOT NULL"),
            Expectation(name="priced", sql="event.price < 90"),
            Expectation(name="sane", sql="event.amount >= 0", otherwise="warn"),
            Expectation(name="low", sql="event.amount < 9", otherwise="drop"),
            Expectation(name="possible", sql="event.amount IS NULL OR event.amount > -5", otherwise="fail"),
        ),
        sinks=(Tables(table="silver.{event.game}"), Tables(table="gold.{event.game}_{event.small}", columns="all")),
    ),
    Route(
        name="wins",
        match=AnyOf(rules=(Sql(where="event.amount > 3"), Field(column="event.flag", exists=True))),
        select=("event.*", "offset", "concat(event.game, ' of ', topic) AS named", "key"),
        sinks=(Delta(table="gold.wins"), Copy(to="", refuses="amount % 2 = 1"), Delta(table="gold.wins_again")),
    ),
)


def broken(decoder: Json) -> ArrowDecoding:
    return ArrowDecoding(fails, "why", StructType.fromDDL("event struct<game: string>, _error string"))


def fails(batch: pa.RecordBatch, why: str) -> pa.RecordBatch:
    raise RuntimeError(why)


def event(i: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "game": ["poker", "Rummy", "uno", "hidden"][i % 4],
        "gamer": f"g{i}",
        "at": f"2026-01-{i % 28 + 1:02d}T23:59:59.{i:06d}Z",
        "day": f"19{i % 90 + 10}-02-03",
        "amount": i % 11 - 1,
        "price": i * 1.1,
        "flag": i % 3 == 0,
        "small": i - 20,
        "tags": ["a", None, "é" * (i % 3)],
        "inner": {"x": i, "deep": {"y": f"y{i}", "at": f"2026-01-01T00:00:{i % 60:02d}Z"}},
        "rounds": [{"n": i}, {"n": None}, None, {}],
    }
    for k, name in enumerate(list(found)):
        if i % 17 == k:
            del found[name]
        elif i % 19 == k:
            found[name] = None
    return found


def played(make_query: MakeQuery, folder: Path, *, fuse: bool) -> Query:
    """Take good events among all kinds of bad ones."""
    lane = Copy(to=str(folder / "copy"), refuses="amount % 2 = 1")
    routes = (ROUTES[0], ROUTES[1].model_copy(update={"sinks": (ROUTES[1].sinks[0], lane, ROUTES[1].sinks[2])}))
    query = make_query(
        folder, decode=Json(schema=SCHEMA), bronze="bronze.all", routes=routes, landing=Landing(fuse=fuse)
    )
    named = [{"game": name, "gamer": "g", "amount": 1, "small": k % 2} for k, name in enumerate(NAMES)]
    query.take(records([*map(event, range(60)), *GARBAGE, *named], partitions=3))
    query.take(records(map(event, range(60, 75)), first=100))
    query.take(records([*any_bytes(), *map(event, range(75, 80))], first=200))
    query.take(records([]))
    query.take(records([b"only", None, b"garbage"], first=1000, partitions=2))
    return query


def fuses(query: Query) -> bool:
    planned = query.batches.planner.plan(query.spark.createDataFrame(query.taken[0]))
    return isinstance(planned.fused, Fused)


@pytest.fixture(scope="module")
def both(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> tuple[Query, Query]:
    """Play the same records in one stage and in two."""
    one = played(make_query, tmp_path_factory.mktemp("one"), fuse=True)
    return one, played(make_query, tmp_path_factory.mktemp("two"), fuse=False)


def test_one_stage_makes_the_tables_that_two_make(both: tuple[Query, Query]) -> None:
    """Without it a faster way is another result."""
    one, two = both
    assert fuses(one)
    assert not fuses(two)
    assert one.tables() == two.tables()
    assert "silver.rummy" in one.tables()
    for table in one.tables():
        assert shape(one, table) == shape(two, table), table
        assert multiset(one, table) == multiset(two, table), table


def test_one_stage_reports_what_two_report(both: tuple[Query, Query]) -> None:
    """Without it the ledger depends on the way a batch landed."""
    one, two = ([{**vars(report), "seconds": None, "files": None} for report in query.reports] for query in both)
    assert one == two


def test_what_a_task_cannot_decide_lands_from_spark(both: tuple[Query, Query]) -> None:
    """Without it the odd rows are lost, or have reasons of their own."""
    one, two = (query.letters("stage", "reason", "route", "sink") for query in both)
    assert one == two
    assert {stage for stage, *_ in one} == {"decode", "match", "expect", "name", "apply"}


def test_more_undecided_records_than_a_task_hands_over_land_from_spark(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a topic of records that only Spark reads fills the driver's memory."""
    monkeypatch.setattr(arrow, "HANDED_OVER", 1000)
    route = Route(name="all", match=Sql(where="event.game IS NOT NULL"), sinks=(Tables(table="silver.{event.game}"),))
    query = make_query(tmp_path, decode=Json(schema="game string"), routes=(route,))
    odd = [{"game": 5}] * 300  # a text field that is given a number
    for first in (0, 1000):
        query.take(records([*odd, {"game": "uno"}], first=first))

    assert len(query.rows("silver.5")) == 600
    assert len(query.rows("silver.uno")) == 2
    assert len(query.open("silver.uno").file_uris()) == 2  # no file of the stage that was in vain


def test_a_stage_that_fails_leaves_the_batch_to_two(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a fault in the faster way stops a stream that the other one would not."""
    route = Route(name="all", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),))
    query = make_query(tmp_path, decode=Json(schema="game string"), routes=(route,))
    monkeypatch.setattr(Json, "decoding", broken)
    query.take(records([{"game": "uno"}]))
    query.take(records([{"game": "uno"}], first=100))

    assert len(query.rows("silver.uno")) == 2
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "landing in two stages, one stage failed: RuntimeError: why"
    ]


def test_an_arrow_decoder_works_in_the_stage_that_lands(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it every event goes through Python twice."""
    route = Route(name="all", match=Sql(where="event.text != 'B!'"), sinks=(Tables(table="silver.{event.game}"),))
    query = make_query(tmp_path, decode=Shouted(), routes=(route,))
    query.take(records([b"a", b"b", b"\xff", b"c"]))

    assert fuses(query)
    assert [row["text"] for row in query.rows("silver.shouts")] == ["A!", "C!"]
    assert query.letters("stage") == {"decode": 1, "match": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"match": Sql(where="event.text RLIKE '[AB]!'")},
        {"select": ("event.*", "upper(event.text) AS loud")},
        {"expect": (Expectation(name="short", sql="length(event.text) < 9"),)},
    ],
    ids=["rule", "select", "expect"],
)
def test_one_expression_for_spark_leaves_the_labels_to_spark(
    make_query: MakeQuery, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Without it a rule that Arrow has no twin for does something else."""
    route = Route(name="all", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),))
    query = make_query(tmp_path, decode=Shouted(), routes=(route.model_copy(update=changes),))
    query.take(records([b"a", b"b"]))

    assert not fuses(query)
    assert [row["text"] for row in query.rows("silver.shouts")] == ["A!", "B!"]
