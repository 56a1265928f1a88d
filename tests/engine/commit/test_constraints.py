"""Tables that demand something of their rows: one that violates it is a dead letter, and its neighbours land.

Without that one record stops the stream, or a table holds what it says that it never holds.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from delta.tables import DeltaTable as SparkTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from router.config.models import Route
from router.delta.constraints import features_against_appends
from router.engine.quarantine.table import pending_releases
from router_decoders import Json
from router_rules import Sql
from router_sinks import Tables
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable

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
SAMPLE = ("checked", "nested", "spelled")
"""One of each kind: judged by a task, judged below a column, judged by Spark."""
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
ALL_BAD = {**BAD, **BY_SPARK}
NULL_CHECK = {"game": "checked", "name": "no id"}
"""A check that is null does not hold either (Delta protocol, CHECK constraints)."""


def good(game: str) -> list[dict[str, Any]]:
    return [{"game": game, "id": number, "name": "ok", "inner": {"x": number}} for number in (1, 2)]


class Played(NamedTuple):
    """A query after its two batches, and the tables that it met."""

    query: Query
    names: tuple[str, ...]

    @property
    def bad(self) -> int:
        """How many records were to be refused, the one of a null check included."""
        return sum(name in ALL_BAD for name in self.names) + 1

    @property
    def judged_by_spark(self) -> int:
        """How many of the tables are judged by Spark alone."""
        return sum(name in BY_SPARK for name in self.names)


PLAYS = (
    pytest.param(("auto", SAMPLE), id="auto-sample"),
    pytest.param(("auto", tuple(TABLES)), id="auto"),
    pytest.param(("spark", tuple(TABLES)), id="spark", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module", params=PLAYS)  # `auto` asks Spark for such tables, too
def played(request: pytest.FixtureRequest, make_query: MakeQuery, spark: SparkSession, tmp_path_factory: Any) -> Played:
    """Take a batch of good records and one bad for every table, then another of good ones."""
    commit, names = request.param
    query = make_query(
        tmp_path_factory.mktemp("constraints"),
        decode=Json(schema=SCHEMA),
        commit=commit,
        routes=(Route(name="games", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),)),),
    )
    for name in names:
        TABLES[name](spark, query.lake.address(f"silver.{name}"))
    batch = [row for name in names for row in good(name)]
    bad = [{"game": game, **row} for game, (row, _) in ALL_BAD.items() if game in names]
    query.take(records([*batch, *bad, NULL_CHECK]))
    query.take(records(batch, first=1000))
    return Played(query, names)


def rows_by_spark(spark: SparkSession, lake: Lake, table: str) -> list[dict[str, Any]]:
    frame = spark.read.format("delta").load(lake.address(f"silver.{table}"))
    return [row.asDict(recursive=True) for row in frame.orderBy("id").collect()]


def test_the_neighbours_of_a_row_that_violates_a_constraint_land(spark: SparkSession, played: Played) -> None:
    for name in played.names:
        assert [row["id"] for row in rows_by_spark(spark, played.query.lake, name)] == [1, 1, 2, 2], name


def test_a_row_that_violates_a_constraint_is_a_dead_letter_that_names_it(spark: SparkSession, played: Played) -> None:
    dead = spark.read.format("delta").load(played.query.lake.address("ops.dead")).collect()

    reasons = {
        json.loads(row["value"])["game"] + str(json.loads(row["value"]).get("id")): row["reason"] for row in dead
    }
    bad = {game: ALL_BAD[game] for game in played.names if game in ALL_BAD}
    expected = {f"{game}{row['id']}": f"table silver.{game}: {why}" for game, (row, why) in bad.items()}
    expected["checkedNone"] = f"table silver.checked: {BAD['checked'][1]}"
    assert reasons == expected
    assert {(row["stage"], row["route"], row["sink"]) for row in dead} == {("schema", "games", "tables")}


def test_rows_that_only_spark_can_judge_do_not_stay_in_the_quarantine(played: Played) -> None:
    """Without that one of them blocks its table until somebody discards its neighbours, too."""
    sums: Counter[str] = Counter()
    for row in played.query.rows("ops.ledger"):
        if row["sink"] == "tables":
            counts = ("matched", "landed", "quarantined", "released", "refused")
            sums.update({count: row[count] or 0 for count in counts})

    good_ones, released = 4 * len(played.names), 2 * played.judged_by_spark
    assert not pending_releases(played.query.store, "blocked")
    assert not played.query.rows("quarantine.games__games__tables")
    assert sums["released"] == sums["quarantined"] == released
    assert (sums["matched"], sums["refused"]) == (good_ones + played.bad, played.bad)
    assert sums["landed"] == good_ones - released


@pytest.mark.parametrize("played", PLAYS[1:], indirect=True)  # not of the sample
def test_generated_columns_are_generated_under_an_old_protocol(spark: SparkSession, played: Played) -> None:
    assert [row["twice"] for row in rows_by_spark(spark, played.query.lake, "generated")] == [2, 2, 4, 4]


def test_delta_rs_gets_no_table_that_demands_something(played: Played) -> None:
    for name in played.names:
        handle = played.query.lake.open(f"silver.{name}")

        assert handle is not None
        assert features_against_appends(handle), (name, handle.protocol())


def test_the_batches_balance(played: Played) -> None:
    judged_in_the_batch = played.bad - played.judged_by_spark
    assert [report.dead_letters for report in played.query.reports] == [judged_in_the_batch, 0]
