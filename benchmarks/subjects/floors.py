"""What cannot be beaten by much: reading alone, reading and decoding, and one single table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.subjects import Subject
from benchmarks.subjects.spark import decoded, session, source, timed
from benchmarks.verify import one_partitioned_table, records_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Run, Task


def _kafka_noop(spark: SparkSession, task: Task) -> Run:
    return _drain(source(spark, task), task)


def _decode_noop(spark: SparkSession, task: Task) -> Run:
    return _drain(decoded(source(spark, task), task).select("event.*"), task)


def _drain(stream: DataFrame, task: Task) -> Run:
    writer = stream.writeStream.format("noop").trigger(availableNow=True)
    return timed(lambda: [writer.option("checkpointLocation", str(task.checkpoint)).start()])


def _partition_by(spark: SparkSession, task: Task) -> Run:
    events = decoded(source(spark, task), task).where("event IS NOT NULL").select("event.*")
    writer = events.writeStream.format("delta").partitionBy("game").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(task.checkpoint))
    run = timed(lambda: [writer.start(str(task.lake / "silver" / "all_games"))])
    return replace(run, tables=1)


KAFKA_NOOP = Subject("kafka_noop", "read only", session, _kafka_noop, records_read)
DECODE_NOOP = Subject("decode_noop", "read and from_json only", session, _decode_noop, records_read)
PARTITION_BY = Subject("partition_by", "one table, partitionBy", session, _partition_by, one_partitioned_table)
