"""Records that are read again from a topic get the batch that read them first, however many batches there were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from router.engine.reprocess.records import SPANS, bucket_width, buckets, with_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Lengths = list[int]

EVEN = [100] * 200
UNEVEN = [1] * 150 + [20_000] * 2 + [1] * 150
"""Many small batches before and after two large ones, as a stream that stood still has."""


def spans_of(lengths: Lengths, gap: int = 0, partition: int = 0) -> pa.Table:
    """Return the spans of batches that follow each other, with offsets between them that nobody read."""
    rows = []
    first = 0
    for batch, length in enumerate(lengths):
        span = {"batch_id": batch, "topic": "events", "partition": partition}
        rows.append({**span, "first": first, "last": first + length - 1})
        first += length + gap
    return pa.Table.from_pylist(rows, SPANS)


@pytest.mark.parametrize("lengths", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_each_record_gets_its_batch(spark: SparkSession, lengths: Lengths) -> None:
    """Without it a record is merged with those of another batch, is there twice, or not at all."""
    spans = pa.concat_tables([spans_of(lengths, gap=3), spans_of(lengths[:10], partition=1)])
    last = max(spans.column("last").to_pylist()) + 10
    offsets = spark.range(0, last, numPartitions=2).withColumnRenamed("id", "offset")
    records = offsets.crossJoin(spark.range(3).select(F.col("id").cast("int").alias("partition")))
    records = records.withColumn("topic", F.lit("events"))

    counted = with_batches(records, spans).groupBy("partition", "batch_id").agg(F.count("*"), F.min("offset"))
    found = {(row[0], row[1]): (row[2], row[3]) for row in counted.collect()}
    expected = {}
    for row in spans.to_pylist():
        expected[row["partition"], row["batch_id"]] = row["last"] - row["first"] + 1, row["first"]
    assert found == expected


@pytest.mark.parametrize("lengths", [EVEN, UNEVEN, [5]], ids=["even", "uneven", "one"])
def test_a_record_is_compared_with_few_batches(spark: SparkSession, lengths: Lengths) -> None:
    """Without it ten times as many batches over the same records take ten times as long."""
    spans = spans_of(lengths)
    width = bucket_width(spans)
    bucketed = buckets(spark.createDataFrame(spans), width).toArrow()

    assert len(bucketed) <= 3 * len(spans)
    # The records of a bucket are compared with each of its spans.
    comparisons = len(bucketed) * width
    assert comparisons <= 4 * sum(lengths)


def test_batches_are_found_by_a_hash_of_partition_and_bucket(spark: SparkSession) -> None:
    """Without it each record is compared with every batch of its partition."""
    records = spark.range(10).selectExpr("'events' AS topic", "0 AS partition", "id AS offset")
    joined = with_batches(records, spans_of(EVEN))
    plan = joined._jdf.queryExecution().executedPlan().toString()

    (join,) = [line for line in plan.splitlines() if "BroadcastHashJoin" in line]
    assert "bucket" in join.partition("Inner")[0]
