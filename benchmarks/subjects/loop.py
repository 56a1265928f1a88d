"""One query whose batches are kept and written with one filtered append per table: the usual recipe."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.sql import functions as F

from benchmarks.subjects import Subject
from benchmarks.subjects.spark import decoded, session, source, timed
from benchmarks.verify import bronze_and_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Run, Task

RAW = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def _run(spark: SparkSession, task: Task, threads: int = 1, *, tuned: bool = False) -> Run:
    steps: Counter[str] = Counter()

    def write(batch: DataFrame, batch_id: int) -> None:
        _batch(batch, batch_id, task, threads, steps)

    stream = source(spark, task, headers=True, tuned=tuned).writeStream.foreachBatch(write).trigger(availableNow=True)
    run = timed(lambda: [stream.option("checkpointLocation", str(task.checkpoint)).start()])
    return replace(run, steps=dict(steps), tables=len(task.expected))


def _batch(batch: DataFrame, batch_id: int, task: Task, threads: int, steps: Counter[str]) -> None:
    began = time.perf_counter()
    kept = decoded(batch, task).persist()
    try:
        _append(kept.select(*RAW, F.lit(batch_id).alias("batch_id")), "bronze/game_events", task, batch_id)
        landed = time.perf_counter()
        games = [row.game for row in kept.select("event.game").where("game IS NOT NULL").distinct().collect()]
        with ThreadPoolExecutor(threads) as pool:
            write = inheritable_thread_target(partial(_append_game, kept, task, batch_id))
            list(pool.map(write, games))
    finally:
        kept.unpersist()
    steps.update({"read, decode, bronze": landed - began, "tables": time.perf_counter() - landed})


def _append_game(kept: DataFrame, task: Task, batch_id: int, game: str) -> None:
    _append(kept.where(F.col("event.game") == game).select("event.*"), f"silver/{game}", task, batch_id)


def _append(rows: DataFrame, table: str, task: Task, batch_id: int) -> None:
    writer = rows.write.format("delta").mode("append")
    # A batch that is repeated after a crash is not written again.
    writer = writer.option("txnAppId", f"{task.topic}/{table}").option("txnVersion", batch_id)
    writer.save(str(task.lake / table))


LOOP = Subject("loop", "loop of appends", session, _run, bronze_and_tables)
TUNED = Subject(
    "loop_tuned",
    "loop, 8 threads, tuned",
    partial(session, tuned=True),
    partial(_run, threads=8, tuned=True),
    bronze_and_tables,
)
