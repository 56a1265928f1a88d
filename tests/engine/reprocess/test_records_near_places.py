"""Records of bronze that dead letters are of are found without reading all of bronze."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from router.engine.reprocess.records import are_near

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACES = "topic string, partition int, offset bigint"
A_FILE = 10_000
"""Offsets of a partition in a file of bronze."""


@pytest.fixture(scope="module")
def bronze(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return a table of two topics with two partitions each, a file for each 10,000 of 200,000 offsets."""
    path = str(tmp_path_factory.mktemp("bronze"))
    for topic in ("a", "b'"):
        for partition in (0, 1):
            for first in range(0, 200_000, A_FILE):
                offsets = pa.array(range(first, first + A_FILE, 50), pa.int64())
                columns = [pa.array([topic] * len(offsets)), pa.array([partition] * len(offsets), pa.int32()), offsets]
                write_deltalake(path, pa.table(columns, ["topic", "partition", "offset"]), mode="append")
    return spark.read.format("delta").load(path)


def near(bronze: DataFrame, places: list[tuple[object, ...]]) -> DataFrame:
    return bronze.filter(are_near(bronze.sparkSession.createDataFrame(places, PLACES)))


def test_letters_at_both_ends_of_a_topic_do_not_span_it(bronze: DataFrame) -> None:
    places = [("a", 0, 50), ("a", 0, 199_950), ("b'", 1, 100_000)]

    rows = near(bronze, places)

    assert len(rows.inputFiles()) == 3
    assert {tuple(row) for row in rows.collect()} == set(places)


@pytest.mark.parametrize("count", [10, 300])
def test_no_record_of_random_places_is_missed(bronze: DataFrame, count: int) -> None:
    """More than 64 places apart from each other share ranges, and these have all of them."""
    drawn = random.Random(count)
    places = {(drawn.choice(["a", "b'"]), drawn.choice([0, 1]), drawn.randrange(0, 200_000, 50)) for _ in range(count)}

    rows = near(bronze, sorted(places))

    assert places <= {tuple(row) for row in rows.collect()}
    assert len(rows.inputFiles()) <= (20 if count == 10 else 80)


@pytest.mark.parametrize(
    "places",
    [[(f"file-{number}", 0, 0) for number in range(65)], [("a", None, 50)], [("a", 0, None)], [(None, 0, 1)]],
    ids=["partitions", "no partition", "no offset", "no topic"],
)
def test_all_is_read_for_places_that_ranges_do_not_tell(bronze: DataFrame, places: list[tuple[object, ...]]) -> None:
    assert near(bronze, places).count() == bronze.count()


def test_nothing_is_read_for_no_place(bronze: DataFrame) -> None:
    assert near(bronze, []).count() == 0
