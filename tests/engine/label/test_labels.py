"""Labels: what Arrow evaluates in the task means what Spark would have made of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from router.config.models import Expectation, Route
from router.engine.expressions.evaluator import Untranslatable
from router.engine.label.route import RoutePlanner
from router_decoders import Json
from router_rules import All, Field, Not, Sql
from router_rules import Any as AnyOf
from router_sinks import Delta, Tables
from tests.engine.parts import Copy, Shouted, shouted
from tests.engine.query import Query, multiset, records, shape
from tests.engine.scenarios import GARBAGE, NAMES, any_bytes

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from router import ArrowDecoding
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


class Fragile(Shouted):
    """A decoder that raises on some texts."""

    def decoding(self) -> ArrowDecoding:
        return replace(super().decoding(), function=fragile)


def fragile(batch: pa.RecordBatch, end: str) -> pa.RecordBatch:
    if b"boom" in batch.column("value").to_pylist():
        raise RuntimeError("why")
    return shouted(batch, end)


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
        "rounds": [{"n": i}, {"n": None}, None, {"odd": 1} if i % 5 == 0 else {}],
    }
    if i % 7 == 0:
        found["bonus"] = i
    for k, name in enumerate(list(found)):
        if i % 17 == k:
            del found[name]
        elif i % 19 == k:
            found[name] = None
    return found


def played(make_query: MakeQuery, folder: Path) -> Query:
    """Take good events among all kinds of bad ones."""
    copy = Copy(to=str(folder / "copy"), refuses="amount % 2 = 1")
    routes = (ROUTES[0], ROUTES[1].model_copy(update={"sinks": (ROUTES[1].sinks[0], copy, ROUTES[1].sinks[2])}))
    query = make_query(folder, decode=Json(schema=SCHEMA), bronze="bronze.all", routes=routes)
    named = [{"game": name, "gamer": "g", "amount": 1, "small": k % 2} for k, name in enumerate(NAMES)]
    query.take(records([*map(event, range(60)), *GARBAGE, *named], partitions=3))
    query.take(records(map(event, range(60, 75)), first=100))
    query.take(records([*any_bytes(), *map(event, range(75, 80))], first=200))
    query.take(records([]))
    query.take(records([b"only", None, b"garbage"], first=1000, partitions=2))
    return query


def left_to_spark(query: Query) -> dict[str, str]:
    return query.batches.decider.planner.plan_batch(query.spark.createDataFrame(query.taken[0])).stages.routes_by_spark


@pytest.fixture(scope="module")
def both(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> tuple[Query, Query]:
    """Play the same records with expressions evaluated by Arrow, and with all routes left to Spark."""
    one = played(make_query, tmp_path_factory.mktemp("arrow"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoutePlanner, "in_tasks", untranslatable)
        return one, played(make_query, tmp_path_factory.mktemp("spark"))


def untranslatable(*_: Any) -> Any:
    raise Untranslatable("everything")


def test_arrow_makes_the_tables_that_spark_makes(both: tuple[Query, Query]) -> None:
    """Without it a rule means something else with the next function that somebody writes into it."""
    one, two = both
    assert left_to_spark(one) == {}
    assert [*two.batches.decider.planner.stages.routes_by_spark] == ["games", "wins"]
    assert one.tables() == two.tables()
    assert "silver.rummy" in one.tables()
    for table in one.tables():
        assert shape(one, table) == shape(two, table), table
        assert multiset(one, table) == multiset(two, table), table


def test_arrow_reports_what_spark_reports(both: tuple[Query, Query]) -> None:
    """Without it the ledger depends on who evaluates a rule."""
    one, two = ([{**vars(report), "seconds": None, "files": None} for report in query.reports] for query in both)
    assert one == two


@pytest.mark.parametrize("way", [0, 1], ids=["arrow", "spark"])
def test_the_ledger_counts_the_records_with_fields_that_the_schema_lacks(both: tuple[Query, Query], way: int) -> None:
    """Without it a new field of the producers is dropped, and nobody finds out for months."""
    values = [(row["value"] or b"") for row in both[way].rows("bronze.all")]
    sent = {"bonus": sum(b'"bonus": ' in value for value in values), "rounds[].odd": sum(b'"odd"' in v for v in values)}
    named: Counter[str] = Counter()
    for row in both[way].rows("ops.ledger"):
        named.update(dict(row["unknown_fields"] or ()))

    assert min(sent.values()) > 0
    assert {name: named[name] for name in sent} == sent
    unknown = sum(row["unknown"] or 0 for row in both[way].rows("ops.ledger"))
    assert sum(report.unknown for report in both[way].reports) == unknown > max(sent.values())


def test_arrow_finds_the_dead_letters_that_spark_finds(both: tuple[Query, Query]) -> None:
    """Without it the odd rows are lost, or have reasons of their own."""
    one, two = (query.letters("stage", "reason", "route", "sink") for query in both)
    assert one == two
    assert {stage for stage, *_ in one} == {"decode", "match", "expect", "name", "apply"}


@pytest.mark.parametrize("rule", ["true", "soundex(event.game) IS NOT NULL"], ids=["arrow", "spark"])
def test_a_record_on_which_the_decoder_raises_is_the_only_dead_letter(
    make_query: MakeQuery, tmp_path: Path, rule: str
) -> None:
    """Without it one record that a decoder's author did not think of stops the stream."""
    route = Route(name="all", match=Sql(where=rule), sinks=(Tables(table="silver.{event.game}"),))
    query = make_query(tmp_path, decode=Fragile(), routes=(route,))
    query.take(records([b"a", b"boom", b"b", b"\xff"]))

    assert [row["text"] for row in query.rows("silver.shouts")] == ["A!", "B!"]
    assert query.letters("stage", "reason") == {
        ("decode", "the decoder raises RuntimeError: why"): 1,
        ("decode", "no text"): 1,
    }


def test_an_arrow_decoder_works_in_the_stage_that_lands(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it every event goes through Python twice."""
    route = Route(name="all", match=Sql(where="event.text != 'B!'"), sinks=(Tables(table="silver.{event.game}"),))
    query = make_query(tmp_path, decode=Shouted(), routes=(route,))
    query.take(records([b"a", b"b", b"\xff", b"c"]))

    assert left_to_spark(query) == {}
    assert [row["text"] for row in query.rows("silver.shouts")] == ["A!", "C!"]
    assert query.letters("stage") == {"decode": 1, "match": 1}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"match": Sql(where="soundex(event.text) IS NOT NULL")}, "soundex"),
        ({"select": ("event.*", "soundex(event.text) AS loud")}, "soundex"),
        ({"expect": (Expectation(name="short", sql="length(soundex(event.text)) < 9"),)}, "soundex"),
    ],
    ids=["rule", "select", "expect"],
)
def test_one_expression_for_spark_leaves_its_route_to_spark(
    make_query: MakeQuery, tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    """Without it a rule that Arrow has no twin for does something else, or makes all other routes slower."""
    route = Route(name="all", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),))
    other = Route(name="other", match=Sql(where="upper(event.text) = 'A!'"), sinks=(Delta(table="gold.a"),))
    query = make_query(tmp_path, decode=Shouted(), routes=(route.model_copy(update=changes), other))
    query.take(records([b"a", b"b"]))

    assert [*left_to_spark(query)] == ["all"]
    assert what in left_to_spark(query)["all"].lower()
    assert [row["text"] for row in query.rows("silver.shouts")] == ["A!", "B!"]
    assert [row["text"] for row in query.rows("gold.a")] == ["A!"]
