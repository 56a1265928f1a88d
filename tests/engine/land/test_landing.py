"""Landed files are Delta files like any other: Spark prunes by their statistics, and their size is bounded."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from router.config.models import Landing, Route
from tests.engine.parts import Events, Fixed, Where
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

DDL = (
    "n int, name string, at timestamp, price double, plain double, cost decimal(20,4), day date, "
    "inner struct<x: bigint>, tags array<string>"
)


def numbered(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "name": f"{'long name ' * 5}{n:06d}",
            "at": f"2026-01-{n // 1000 + 1:02d}T00:00:{n % 60:02d}.123456Z",
            "price": n * 1.5 if n % 7 else "NaN",
            "plain": n * 1.5,
            "cost": f"{n}.5",
            "day": f"{2000 + n // 100}-01-01",
            "inner": {"x": n},
            "tags": [str(n)],
        }
        for n in numbers
    ]


@pytest.fixture(scope="module")
def pruned(make_query: Callable[..., Query], tmp_path_factory: pytest.TempPathFactory) -> Query:
    """Fill a table with three batches of distinct ranges."""
    route = Route(name="all", match=Where(sql="true"), sinks=(Fixed(name="silver.numbers"),))
    query = make_query(tmp_path_factory.mktemp("pruned"), decode=Events(ddl=DDL), routes=(route,), bronze="bronze.all")
    for first in (0, 1000, 2000):
        query.take(records(numbered(range(first, first + 20)), first=first))
    return query


def files_read(frame: DataFrame) -> int:
    """Return how many files the scan of a frame that was run has read."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    metrics = [leaves.apply(i).metrics().get("numFiles") for i in range(leaves.size())]
    return sum(metric.get().value() for metric in metrics if metric.isDefined())


FILTERS = {
    "everything": ("true", 60, 1.0),
    "integer": ("n >= 2000", 20, 0.34),
    "text beyond what statistics keep": (f"name = '{'long name ' * 5}001003'", 1, 1.0),
    "timestamp": ("at < '2026-01-02'", 20, 0.34),
    "double": ("plain > 3000", 19, 0.34),
    "double among NaN": ("price > 2000 AND NOT isnan(price)", 17, 1.0),
    "decimal": ("cost = 1003.5", 1, 0.34),
    "date": ("day >= '2020-01-01'", 20, 0.34),
    "nested": ("inner.x BETWEEN 1000 AND 1999", 20, 0.34),
    "nothing": ("n > 5000", 0, 0.0),
    "nulls": ("n IS NULL", 0, 0.0),
}


@pytest.mark.parametrize(("sql", "rows", "share"), FILTERS.values(), ids=FILTERS)
def test_spark_reads_only_the_files_it_must(
    spark: SparkSession, pruned: Query, sql: str, rows: int, share: float
) -> None:
    """Without it every query over an hour reads the whole table; with wrong bounds it misses rows."""
    everything = spark.read.format("delta").load(pruned.lake.address("silver.numbers"))
    frame = everything.filter(sql)

    assert len(frame.collect()) == rows
    assert files_read(frame) <= share * len(pruned.open("silver.numbers").file_uris())


def test_nan_is_found(spark: SparkSession, pruned: Query) -> None:
    """Without it Spark, for which NaN is above every number, skips the files that hold it."""
    frame = spark.read.format("delta").load(pruned.lake.address("silver.numbers")).filter("price > 1e12")

    assert len(frame.collect()) == 9


def test_bronze_is_pruned_by_offset(spark: SparkSession, pruned: Query) -> None:
    """Without it looking for one record reads the archive."""
    bronze = spark.read.format("delta").load(pruned.lake.address("bronze.all"))
    frame = bronze.filter("offset = 1003 AND partition = 0")

    assert [row["batch_id"] for row in frame.collect()] == [1]
    assert files_read(frame) < len(pruned.open("bronze.all").file_uris())


def test_the_log_counts_the_rows(pruned: Query) -> None:
    """Without it `count(*)` reads files, and optimizers guess."""
    import pyarrow as pa

    for table in ("silver.numbers", "bronze.all"):
        actions = pa.table(pruned.open(table).get_add_actions(flatten=True))
        assert sum(actions["num_records"].to_pylist()) == 60


def test_a_large_batch_is_several_files(
    make_query: Callable[..., Query], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without it a batch of a million records needs its size in memory, and is one file that nobody can split."""
    values = [{"n": i, "name": random.Random(i).randbytes(50).hex()} for i in range(24_000)]
    route = Route(name="all", match=Where(sql="true"), sinks=(Fixed(name="silver.t"),))
    small = Landing(file_bytes=1 << 18, buffer_bytes=1 << 20)
    query = make_query(
        tmp_path_factory.mktemp("rolled"), decode=Events(ddl=DDL), routes=(route,), bronze="bronze.all", landing=small
    )
    query.take(records(values))

    paths = query.open("bronze.all").file_uris()
    assert len(paths) > 2
    assert Counter(query.content("silver.t")["n"].to_pylist()) == Counter(range(24_000))
    assert sorted(query.content("bronze.all")["value"].to_pylist()) == sorted(query.taken[0]["value"].to_pylist())


@pytest.mark.parametrize("spread", ["keep", "by_table"])
def test_a_table_is_written_by_one_task_when_asked(
    make_query: Callable[..., Query], tmp_path_factory: pytest.TempPathFactory, spread: str
) -> None:
    """Without it 200 tables in 200 tasks are 40 000 files."""
    from tests.engine.parts import Named

    route = Route(name="all", match=Where(sql="true"), sinks=(Named(sql="concat('silver.t', event.n % 3)"),))
    query = make_query(
        tmp_path_factory.mktemp(spread), decode=Events(ddl="n int"), routes=(route,), landing=Landing(spread=spread)
    )
    query.take(records([{"n": i} for i in range(60)]))

    files = {table: len(query.open(table).file_uris()) for table in query.tables() if table.startswith("silver")}
    assert files == dict.fromkeys(("silver.t0", "silver.t1", "silver.t2"), 1 if spread == "by_table" else 2)
    assert sum(query.content(table).num_rows for table in files) == 60
