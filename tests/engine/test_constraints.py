"""Tables that demand something of their rows: one that violates it is a dead letter, and its neighbours land.

Without that one record stops the stream, or a table holds what it says that it never holds.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable as SparkTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from router.config.models import Route
from router.delta.constraints import unsupported
from router.engine.quarantine.table import pending_releases
from router_decoders import Json
from router_rules import Sql
from router_sinks import Tables
from tests.engine.conftest import EITHER
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

SCHEMA = "game string, id bigint, name string, inner struct<x: bigint>"
COLUMNS = "(game STRING, id BIGINT, name STRING, inner STRUCT<x: BIGINT>)"
OLD = "'delta.minReaderVersion'='1', 'delta.minWriterVersion'='{}'"
"""Protocols without a list of features: what the table demands stands in its metadata only."""


def by_sql(sql: str) -> Callable[[SparkSession, str], None]:
    return lambda spark, address: spark.sql(f"CREATE TABLE delta.`{address}` {sql}")


def generated(spark: SparkSession, address: str) -> None:
    table = SparkTable.create(spark).location(address).addColumn("game", "STRING").addColumn("id", "BIGINT")
    table.addColumn("twice", "BIGINT", generatedAlwaysAs="id * 2").execute()


def generated_checked(spark: SparkSession, address: str) -> None:
    generated(spark, address)
    spark.sql(f"ALTER TABLE delta.`{address}` ADD CONSTRAINT low CHECK (twice < 100)")


def invariant(spark: SparkSession, address: str) -> None:
    rule = {"delta.invariants": json.dumps({"expression": {"expression": "id < 10"}})}
    kinds = StructType([StructField("game", StringType()), StructField("id", LongType(), metadata=rule)])
    spark.createDataFrame([], kinds).write.format("delta").save(address)


TABLES: dict[str, Callable[[SparkSession, str], None]] = {
    "checked": by_sql(f"{COLUMNS} USING delta TBLPROPERTIES ('delta.constraints.small'='id < 10')"),
    "checked_before_features": by_sql(
        f"{COLUMNS} USING delta TBLPROPERTIES ('delta.constraints.small'='id < 10', {OLD.format(3)})"
    ),
    "not_null": by_sql("(game STRING, id BIGINT, name STRING NOT NULL, inner STRUCT<x: BIGINT>) USING delta"),
    "nested": by_sql("(game STRING, id BIGINT, name STRING, inner STRUCT<x: BIGINT NOT NULL>) USING delta"),
    "short": by_sql("(game STRING, id BIGINT, name VARCHAR(3), inner STRUCT<x: BIGINT>) USING delta"),
    "invariant": invariant,
    "generated": generated,
    "spelled": by_sql(
        f"{COLUMNS} USING delta TBLPROPERTIES ('delta.constraints.known'='levenshtein(name, \\'no\\') > 0')"
    ),
    "generated_checked": generated_checked,
}
"""What makes each table; the table's name is the game of its records. Only Spark evaluates what the last two demand."""
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "checked": ({"id": 99, "name": "x"}, "the constraint small (id < 10) does not hold"),
    "checked_before_features": ({"id": 99, "name": "x"}, "the constraint small (id < 10) does not hold"),
    "not_null": ({"id": 3}, "NOT NULL of column name does not hold"),
    "nested": ({"id": 3, "name": "x", "inner": {}}, "NOT NULL of column inner.x does not hold"),
    "short": ({"id": 3, "name": "too long"}, "varchar(3) of column name does not hold"),
    "invariant": ({"id": 100}, "the invariant of column id (id < 10) does not hold"),
}
"""A record that violates what its table demands, and why it is refused."""
BY_SPARK: dict[str, tuple[dict[str, Any], str]] = {
    "spelled": ({"id": 3, "name": "no"}, "the constraint known (levenshtein(name, 'no') > 0) does not hold"),
    "generated_checked": ({"id": 99}, "the constraint low (twice < 100) does not hold"),
}
"""The same of tables that tasks cannot judge: their rows go by way of the quarantine."""
NULL_CHECK = {"game": "checked", "name": "no id"}
"""A check that is null does not hold either (Delta protocol, CHECK constraints)."""


def good(game: str) -> list[dict[str, Any]]:
    return [{"game": game, "id": number, "name": "ok", "inner": {"x": number}} for number in (1, 2)]


@pytest.fixture(scope="module", params=EITHER)  # `auto` asks Spark for such tables, too
def query(request: pytest.FixtureRequest, make_query: MakeQuery, spark: SparkSession, tmp_path_factory: Any) -> Query:
    """Take a batch of good records and one bad for every table, then another of good ones."""
    folder: Path = tmp_path_factory.mktemp("constraints")
    query = make_query(
        folder,
        decode=Json(schema=SCHEMA),
        commit=request.param,
        routes=(Route(name="games", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),)),),
    )
    for name, make in TABLES.items():
        make(spark, query.lake.address(f"silver.{name}"))
    batch = [row for name in TABLES for row in good(name)]
    bad = {**BAD, **BY_SPARK}
    query.take(records([*batch, *({"game": game, **row} for game, (row, _) in bad.items()), NULL_CHECK]))
    query.take(records(batch, first=1000))
    return query


def rows(spark: SparkSession, lake: Lake, table: str) -> list[dict[str, Any]]:
    frame = spark.read.format("delta").load(lake.address(f"silver.{table}"))
    return [row.asDict(recursive=True) for row in frame.orderBy("id").collect()]


@pytest.mark.parametrize("name", TABLES)
def test_the_neighbours_of_a_row_that_violates_a_constraint_land(spark: SparkSession, query: Query, name: str) -> None:
    assert [row["id"] for row in rows(spark, query.lake, name)] == [1, 1, 2, 2]


def test_a_row_that_violates_a_constraint_is_a_dead_letter_that_names_it(spark: SparkSession, query: Query) -> None:
    dead = spark.read.format("delta").load(query.lake.address("ops.dead")).collect()

    found = {json.loads(row["value"])["game"] + str(json.loads(row["value"]).get("id")): row for row in dead}
    bad = {**BAD, **BY_SPARK}
    expected = {f"{game}{row['id']}": f"table silver.{game}: {why}" for game, (row, why) in bad.items()}
    expected["checkedNone"] = f"table silver.checked: {BAD['checked'][1]}"
    assert {key: row["reason"] for key, row in found.items()} == expected
    assert {(row["stage"], row["route"], row["sink"]) for row in dead} == {("schema", "games", "tables")}


def test_rows_that_only_spark_can_judge_do_not_stay_in_the_quarantine(query: Query) -> None:
    """Without that one of them blocks its table until somebody discards its neighbours, too."""
    sums: Counter[str] = Counter()
    for row in query.rows("ops.ledger"):
        if row["sink"] == "tables":
            counts = ("matched", "landed", "quarantined", "released", "refused")
            sums.update({count: row[count] or 0 for count in counts})

    good_ones, bad = 4 * len(TABLES), len(BAD) + len(BY_SPARK) + 1
    assert not pending_releases(query.store, "blocked")
    assert not query.rows("quarantine.games__games__tables")
    assert sums["released"] == sums["quarantined"] == 2 * len(BY_SPARK)
    assert (sums["matched"], sums["refused"]) == (good_ones + bad, bad)
    assert sums["landed"] == good_ones - 2 * len(BY_SPARK)


def test_generated_columns_are_generated_under_an_old_protocol(spark: SparkSession, query: Query) -> None:
    assert [row["twice"] for row in rows(spark, query.lake, "generated")] == [2, 2, 4, 4]


@pytest.mark.parametrize("name", TABLES)
def test_delta_rs_gets_no_table_that_demands_something(query: Query, name: str) -> None:
    handle = query.lake.open(f"silver.{name}")

    assert handle is not None
    assert unsupported(handle), handle.protocol()


def test_the_batches_balance(query: Query) -> None:
    assert [report.dead_letters for report in query.reports] == [len(BAD) + 1, 0]
