"""What bronze expects of records, and what it does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router import StartError
from router.config.models import Bronze, Route
from router.engine import ledger
from router.engine.audit.expectation_counts import expectation_counts
from router.engine.audit.verify import verify_tables
from router.errors import BatchError
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Upsert
from tests.engine.quarantine.test_held_rows import prepared
from tests.engine.query import Query, records
from tests.engine.reprocess.repairs import repair_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

EVENTS: list[dict[str, Any] | bytes | None] = [{"game": "uno", "n": 1}, None, b"garbage", {"game": "go", "n": 2}, None]
EXPECT = (
    {"name": "valued", "sql": "value IS NOT NULL"},
    {"name": "playable", "sql": "event.game IS NOT NULL"},
    {"name": "placed", "sql": "partition < 100", "otherwise": "fail"},
)


def query(make_query: MakeQuery, folder: Path, drop: str | None = None, **bronze: Any) -> Query:
    route = Route(name="r", match=Sql(where="true"), sinks=(Delta(table="silver.all"),))
    made = Bronze.model_validate({"table": "bronze.{topic}", "expect": EXPECT, **bronze})
    decode = Json(schema="game string, n int")
    return prepared(make_query(folder, decode=decode, routes=(route,), bronze=made, drop=drop))


@pytest.mark.parametrize("drop", [None, "nulls"])
def test_records_are_judged_counted_and_vanish(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, drop: str | None
) -> None:
    """Without it whoever wants no nulls in bronze filters them before Kafka, and nobody counts what comes."""
    made = query(make_query, tmp_path, drop=drop)
    report = made.take(records(EVENTS, partitions=2))
    vanished = 2 if drop else 0
    assert report.violated == {"valued": 2 - vanished, "playable": 3 - vanished, "placed": 0}
    assert len(made.rows("bronze.events")) == (3 if drop else 5)
    counts = {one.expectation.name: (one.of, one.events, one.violated) for one in expectation_counts(made.config)}
    violated = {"valued": 2 - vanished, "playable": 3 - vanished, "placed": 0}
    assert counts == {name: ("bronze", 5 - vanished, count) for name, count in violated.items()}
    source = ledger.read_totals(made.config)[None, None]
    assert [source[name] for name in ("read", "failed", "bare", "dropped")] == ([5, 1, 2, 2] if drop else [5, 3, 0, 0])
    assert sum(made.letters("stage").values()) == (1 if drop else 3)
    made.take(records([None, None], first=10))
    assert [problem for audit in verify_tables(made.config) for problem in audit.problems] == []
    (made.folder / "lake/silver/all").rename(tmp_path / "gone")
    repair_table(made, spark, "silver.all")
    assert sorted(row["n"] for row in made.rows("silver.all")) == [1, 2]


def test_a_record_stops_the_stream_before_anything_is_committed(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a topic that is filled by somebody else's mistake is in bronze before anybody knows."""
    made = query(make_query, tmp_path, expect=({"name": "placed", "sql": "offset < 3", "otherwise": "fail"},))
    with pytest.raises(BatchError, match="bronze/placed on 2 rows; nothing was committed"):
        made.take(records(EVENTS))
    assert made.tables() == []
    assert not list((tmp_path / "lake").rglob("*.parquet"))


def test_records_that_vanish_stop_no_stream(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it `drop: nulls` beside an expectation that forbids nulls stops at the first null."""
    expect = ({"name": "valued", "sql": "value IS NOT NULL", "otherwise": "fail"},)
    made = query(make_query, tmp_path, drop="nulls", expect=expect)
    assert made.take(records(EVENTS)).violated == {"valued": 0}


SIZES = {
    "by tasks": "length(value) < 12 AND octet_length(value) < 12 AND substring(value, 1, 1) != X'67'",
    "by Spark": "length(value) < 12 AND hash(value) IS NOT NULL AND startswith(decode(value, 'UTF-8'), '{')",
    "raises": "length(value) < 12 AND hash(value) IS NOT NULL AND 1 / (length(value) - 9) IS NOT NULL",
}


@pytest.mark.parametrize("by_spark_too", [False, True], ids=["routes by tasks", "a route by Spark"])
@pytest.mark.parametrize("sql", SIZES.values(), ids=SIZES)
def test_the_size_of_a_record_can_be_expected(
    make_query: MakeQuery, tmp_path: Path, sql: str, *, by_spark_too: bool
) -> None:
    """Without it the expectation that the documentation shows does not start."""
    expect = ({"name": "small", "sql": sql}, {"name": "same", "sql": sql})  # Spark computes what they share once
    made = query(make_query, tmp_path, expect=expect)
    if by_spark_too:
        route = Route(name="s", match=Sql(where="hash(event.n) != 0"), sinks=(Delta(table="silver.some"),))
        config = made.config.model_copy(update={"routes": (*made.config.routes, route)})
        made = prepared(make_query(tmp_path, decode=config.decode, routes=config.routes, bronze=config.bronze))
    report = made.take(records([b"{}", b"{'a': 1, 'b': 2}", b"garbage!!", None]))
    assert report.violated == {"small": 3, "same": 3}
    assert len(made.rows("bronze.events")) == 4


def test_what_cannot_be_is_said(make_query: MakeQuery, tmp_path: Path) -> None:
    made = query(make_query, tmp_path, expect=({"name": "odd", "sql": "nothing = 1"},))
    with pytest.raises(StartError, match=r"bronze, expectation odd: .*nothing"):
        made.take(records(EVENTS))


def test_a_sink_that_takes_tombstones_gets_them_all_the_same(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it rows that were deleted at the source stay for ever."""
    sink = Upsert(table="silver.all", keys=("event.id",), tombstones=True)
    route = Route(name="r", match=Sql(where="event.id IS NOT NULL"), sinks=(sink,))
    decode = Json(schema="id string, n int")
    made = make_query(tmp_path, decode=decode, routes=(route,), bronze=Bronze(table="bronze.all"), drop="nulls")
    made.take(records([{"id": "a", "n": 1}, {"id": "b", "n": 2}]))
    made.take(records([None], first=2).set_column(0, "key", pa.array([b"a"])))
    assert (len(made.rows("bronze.all")), [row["n"] for row in made.rows("silver.all")]) == (3, [2])
