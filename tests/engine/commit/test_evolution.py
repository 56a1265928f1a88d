"""Schemas that change between batches: tables grow, and what cannot fit costs only the rows that hold it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from router.config.models import Route
from tests.engine import scenarios
from tests.engine.conftest import COMMITS, EITHER
from tests.engine.parts import Events, Named, Where
from tests.engine.query import records, shape
from tests.engine.scenarios import HUGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query


@pytest.fixture(params=COMMITS)
def evolved(request: pytest.FixtureRequest, played: Callable[..., Query]) -> Query:
    """Return the query after all changes."""
    return played(scenarios.evolution, request.param)


@pytest.fixture(params=COMMITS)
def shared(request: pytest.FixtureRequest, played: Callable[..., Query]) -> Query:
    """Return the query whose two routes share a table."""
    return played(scenarios.shared, request.param)


def types(spark: SparkSession, query: Query, table: str) -> dict[str, str]:
    schema = spark.read.format("delta").load(query.lake.address(table)).schema
    return {field.name: field.dataType.simpleString() for field in schema}


def rows_by_id(spark: SparkSession, query: Query, table: str) -> dict[int, dict[str, Any]]:
    """Return rows by id as Spark reads them, without their nulls."""
    frame = spark.read.format("delta").load(query.lake.address(table))
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return {row["id"]: {name: value for name, value in row.items() if value is not None} for row in found}


def test_a_table_widens_and_grows(spark: SparkSession, evolved: Query) -> None:
    """Without it a counter that outgrew its type, or a new field, stops the stream."""
    assert types(spark, evolved, "silver.old") == {
        **{"game": "string", "id": "int", "amount": "bigint", "price": "double", "note": "string"},
        **{"inner": "struct<x:bigint,z:string>", "Level": "int", "bonus": "double"},
    }
    assert rows_by_id(spark, evolved, "silver.old") == {
        1: {
            "game": "old",
            "id": 1,
            "amount": 1,
            "price": 1.5,
            "note": "text",
            "inner": {"x": 1, "z": None},
            "Level": 1,
        },
        2: {"game": "old", "id": 2},
        10: {"game": "old", "id": 10, "amount": HUGE, "price": 1e300, "inner": {"x": HUGE, "z": "new"}, "bonus": 0.5},
        14: {"game": "old", "id": 14},
        33: {"game": "old", "id": 33, "amount": 6, "note": "again", "inner": {"x": 2, "z": None}, "Level": 2},
        41: {"game": "old", "id": 41, "amount": HUGE},
        43: {"game": "old", "id": 43, "amount": HUGE},
    }


def test_narrower_rows_are_cast_to_a_wider_table(spark: SparkSession, evolved: Query) -> None:
    """Without it a producer that was rolled back stops the stream."""
    assert types(spark, evolved, "silver.wide") == {
        **{"game": "string", "id": "int", "amount": "bigint", "price": "double", "note": "bigint"},
        **{"inner": "struct<x:bigint,z:string>", "level": "int"},
    }
    assert rows_by_id(spark, evolved, "silver.wide") == {
        20: {
            "game": "wide",
            "id": 20,
            "amount": HUGE,
            "price": 1e300,
            "note": 7,
            "inner": {"x": None, "z": "z"},
            "level": 1,
        },
        30: {"game": "wide", "id": 30, "amount": 5, "price": 2.5, "inner": {"x": 1, "z": None}},
    }


def test_a_column_appears_with_its_first_value(spark: SparkSession, evolved: Query) -> None:
    """Without it every table has the columns of all games, or a value comes before its column."""
    assert types(spark, evolved, "silver.other") == {"game": "string", "id": "int", "note": "bigint", "amount": "int"}
    first: dict[str, int] = {}
    for version in range(evolved.open("silver.other").version() + 1):
        content = DeltaTable(evolved.lake.address("silver.other"), version=version).to_pyarrow_table()
        for row in content.to_pylist():
            assert {name for name, value in row.items() if value is not None} <= set(content.column_names)
            first.setdefault(row["id"], version)
        for name, needed in (("note", 21), ("amount", 34)):
            assert needed in first or name not in content.column_names or version + 1 in _versions_with(evolved, needed)
    assert list(first) == [3, 21, 34]


def _versions_with(query: Query, number: int) -> set[int]:
    """Return the versions of the table that hold a row."""
    handle = query.open("silver.other")
    tables = {v: DeltaTable(query.lake.address("silver.other"), version=v) for v in range(handle.version() + 1)}
    return {v for v, table in tables.items() if number in table.to_pyarrow_table()["id"].to_pylist()}


def test_a_table_of_all_columns_has_them_from_the_start(spark: SparkSession, evolved: Query) -> None:
    """Without it a query over a new table fails on the columns that had no value yet."""
    assert types(spark, evolved, "gold.whole") == {
        **{"game": "string", "id": "int", "amount": "bigint", "price": "double", "note": "string"},
        **{"inner": "struct<x:bigint,z:string>", "Level": "int", "bonus": "double"},
    }


def test_only_rows_with_a_value_that_cannot_fit_are_dead(evolved: Query) -> None:
    """Without it one producer with another idea of a field takes its whole batch, or the stream, with it."""
    found = [letter for letter in evolved.rows("ops.dead") if letter["sink"] == "named"]
    offsets = {
        letter["offset"]: (letter["stage"], "note" in letter["reason"], "case" in letter["reason"]) for letter in found
    }

    assert offsets == {
        101: ("schema", True, False),
        102: ("schema", False, True),
        103: ("schema", True, False),
        201: ("schema", True, False),
        202: ("schema", False, True),
        300: ("schema", True, False),
        400: ("schema", True, False),
    }
    assert len(found) == len(offsets)
    assert all(f"silver.{letter['value'].decode()[10:13]}" in letter["reason"] for letter in found)


def test_an_outbox_that_widens_is_still_applied(evolved: Query) -> None:
    """Without it a sink behind a table that Spark writes finds its files gone."""
    lane = evolved.content("outbox.games__all__copy")

    assert sorted(lane["id"].to_pylist()) == sorted(row["id"] for row in _copies(evolved))
    assert max(row["amount"] or 0 for row in _copies(evolved)) == HUGE


def _copies(query: Query) -> list[dict[str, Any]]:
    from tests.engine.parts import copied

    return copied(query.folder / "copy")


def test_a_table_that_widened_is_read_by_all(evolved: Query) -> None:
    """Without it one large number locks polars and other delta-rs readers out of a table."""
    for table in evolved.tables():
        assert DeltaTable(evolved.lake.address(table)).to_pyarrow_table().num_rows


def test_a_table_of_others_keeps_its_types(
    make_query: MakeQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it the router rewrites somebody's table, or locks its readers out, or holds back the rows that fit."""
    old = {"game": "old", "id": 1, "inner": {"x": 1}}
    schema = pa.schema([("game", pa.string()), ("id", pa.int32()), ("inner", pa.struct([("x", pa.int32())]))])
    write_deltalake(str(tmp_path / "lake/silver/old"), pa.Table.from_pylist([old], schema))
    route = Route(name="all", match=Where(sql="true"), sinks=(Named(sql="concat('silver.', event.game)"),))
    decode = Events(ddl="game string, id bigint, inner struct<x: bigint, z: string>, bonus double")
    query = make_query(tmp_path, decode=decode, routes=(route,))
    report = query.take(records([
        {"game": "old", "id": 2, "inner": {"x": 2, "z": "new"}, "bonus": 0.5},
        {"game": "old", "id": HUGE},
        {"game": "old", "id": 3, "inner": {"x": HUGE, "z": "lost"}},
        {"game": "new", "id": HUGE},
    ]))  # fmt: skip

    assert query.rows("silver.old") == [
        {"game": "old", "id": 1, "inner": {"x": 1, "z": None}, "bonus": None},
        {"game": "old", "id": 2, "inner": {"x": 2, "z": "new"}, "bonus": 0.5},
    ]
    assert [type_ for _, type_ in shape(query, "silver.old")][1] == pa.int32()
    assert [row["id"] for row in query.rows("silver.new")] == [HUGE]
    assert query.letters("stage", "offset") == {("schema", 1): 1, ("schema", 2): 1}
    assert all("`widening`" in row["reason"] for row in query.rows("ops.dead"))
    assert report.routes["all"]["frozen"] == 0
    assert "are dead letters; see `widening`" in caplog.text


def test_routes_that_share_a_table_judge_their_own_rows(shared: Query) -> None:
    """Without it the rows of one route are dead letters because those of another do not fit the table."""
    content = shared.content("silver.shared")
    found = Counter((row["id"], row["n"], row["twice"], row["kind"], repr(row["s"])) for row in content.to_pylist())

    assert found == Counter(
        row
        for first in (0, 100)
        for row in (
            (first + 1, 1, 2, None, "{'a': 1, 'b': None}"),
            (first + 4, 4, 8, None, "{'a': 4, 'b': None}"),
            (first + 5, None, None, None, "{'a': None, 'b': None}"),
            (first + 3, None, None, "text", "{'a': None, 'b': 'text'}"),
            (first + 5, None, None, "both", "{'a': None, 'b': 'both'}"),
        )
    )
    assert shared.letters("route", "stage", "offset") == Counter(
        {("texts", "schema", first + at): 1 for first in (0, 100) for at in (1, 3)}
    )


@pytest.mark.parametrize("commit", EITHER)
def test_a_sink_makes_no_more_tables_than_it_may(played: Callable[..., Query], commit: str) -> None:
    """Without it a field that was taken for a name makes a million tables, or a restart forgets the limit."""
    query = played(scenarios.cap, commit)

    assert query.tables() == ["ops.dead", "ops.ledger", "silver.a", "silver.c", "silver.d", "silver.every_game"]
    assert {table: query.content(table).num_rows for table in query.tables() if table[-2] == "."} == {
        **{"silver.a": 3, "silver.c": 4, "silver.d": 1},
    }
    found = Counter((row["batch_id"], row["stage"], row["value"]) for row in query.rows("ops.dead"))
    assert found == Counter({
        (1, "name", b'{"game": "e"}'): 2,
        (1, "name", b'{"game": "b"}'): 1,
        (2, "name", b'{"game": "b"}'): 1,
        (2, "name", b'{"game": "f"}'): 1,
        (3, "name", b'{"game": "e"}'): 1,
    })  # fmt: skip
    assert query.content("silver.every_game").num_rows == 14
