"""One streaming query per table, each with its own checkpoint: what a declarative pipeline makes of N tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.subjects import Subject
from benchmarks.subjects.spark import decoded, session, source, timed
from benchmarks.verify import tables_only

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.runs import Run, Task


def _run(spark: SparkSession, task: Task) -> Run:
    run = timed(lambda: [_start(spark, task, game) for game in task.expected])
    return replace(run, tables=len(task.expected))


def _start(spark: SparkSession, task: Task, game: str) -> StreamingQuery:
    events = decoded(source(spark, task), task).where(F.col("event.game") == game).select("event.*")
    stream = events.writeStream.format("delta").trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(task.checkpoint / game))
    return stream.start(str(task.lake / "silver" / game))


QUERIES = Subject("queries", "N streaming queries", session, _run, tables_only)
