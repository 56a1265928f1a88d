"""What the router is held against: what people ship without it, and what cannot be beaten by much.

`loop`: one query whose batches are kept and written with one filtered append per table, the usual recipe; `loop_tuned`:
the same in 8 threads, with the session and the consumer that the router sets up by itself. `queries`: one streaming
query per table, each with its own checkpoint, what a declarative pipeline makes of N tables. `kafka_noop`,
`decode_noop`: reading alone, reading and decoding. `partition_by`: one single table.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.verify import bronze_and_tables, one_partitioned_table, records_read, tables_only

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.runs import Task

TUNED_SESSION = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
TUNED_CONSUMER = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
"""What the router sets without being asked: a loop with the same shows how much of its speed comes from that alone."""


def settings() -> dict[str, str]:
    """Return the settings; shuffle partitions and snapshot partitions fit a small machine with many small tables."""
    cores = os.cpu_count() or 1
    return {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


KAFKA = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
# The same files whatever the contender: a resolver that runs once per session costs seconds of a cold start.
AVRO = f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"


def session(task: Task, *, tuned: bool = False) -> SparkSession:
    """Return a session with Delta and Kafka; `tuned` has the settings that the router sets by itself."""
    builder = SparkSession.builder.appName("benchmark").master("local[*,4]")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    session_settings = settings()
    if tuned:
        session_settings |= TUNED_SESSION
    for name, value in session_settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = configure_spark_with_delta_pip(builder, extra_packages=[KAFKA, AVRO]).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def source(spark: SparkSession, task: Task, *, headers: bool = False, tuned: bool = False) -> DataFrame:
    """Return the topic as a stream; `tuned` reads with the consumer options that the router sets by itself."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", task.servers)
    reader = reader.option("subscribe", task.topic).option("startingOffsets", "earliest")
    reader = reader.option("includeHeaders", str(headers).lower())
    if tuned:
        reader = reader.options(**TUNED_CONSUMER)
    return reader.option("maxOffsetsPerTrigger", task.rows_per_batch).load()


def decoded(raw: DataFrame, task: Task) -> DataFrame:
    """Add the column `event`."""
    return raw.withColumn("event", F.from_json(F.col("value").cast("string"), task.schema))


def timed(start: Callable[[], list[StreamingQuery]]) -> Run:
    """Return the run of queries that end by themselves: from before their start to the end of the last one."""
    began = time.perf_counter()
    queries = start()
    for query in queries:
        query.awaitTermination()
    seconds = time.perf_counter() - began
    batches = []
    for query in queries:
        batches += [progress for progress in query.recentProgress if progress.numInputRows]
    return Run(seconds, read=sum(progress.numInputRows for progress in batches), batches=len(batches))


RAW = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def _loop_run(spark: SparkSession, task: Task, threads: int = 1, *, tuned: bool = False) -> Run:
    steps: Counter[str] = Counter()

    def write(batch: DataFrame, batch_id: int) -> None:
        _batch(batch, batch_id, task, threads, steps)

    stream = source(spark, task, headers=True, tuned=tuned).writeStream.foreachBatch(write).trigger(availableNow=True)
    run = timed(lambda: [stream.option("checkpointLocation", str(task.checkpoint)).start()])
    return replace(run, steps=dict(steps), tables=len(task.expected))


def _batch(batch: DataFrame, batch_id: int, task: Task, threads: int, steps: Counter[str]) -> None:
    began = time.perf_counter()
    # Read by each of the appends, so it is kept in memory.
    events = decoded(batch, task).persist()
    try:
        _append(events.select(*RAW, F.lit(batch_id).alias("batch_id")), "bronze/game_events", task, batch_id)
        landed = time.perf_counter()
        games = [row.game for row in events.select("event.game").where("game IS NOT NULL").distinct().collect()]
        with ThreadPoolExecutor(threads) as pool:
            write = inheritable_thread_target(partial(_append_game, events, task, batch_id))
            list(pool.map(write, games))
    finally:
        events.unpersist()
    steps.update({"read, decode, bronze": landed - began, "tables": time.perf_counter() - landed})


def _append_game(events: DataFrame, task: Task, batch_id: int, game: str) -> None:
    rows = events.where(F.col("event.game") == game).select("event.*")
    _append(rows, f"silver/{game}", task, batch_id)


def _append(rows: DataFrame, table: str, task: Task, batch_id: int) -> None:
    writer = rows.write.format("delta").mode("append")
    # A batch that is repeated after a crash is not written again.
    writer = writer.option("txnAppId", f"{task.topic}/{table}").option("txnVersion", batch_id)
    writer.save(str(task.lake / table))


LOOP = Subject("loop", "loop of appends", session, _loop_run, bronze_and_tables)
TUNED = Subject(
    "loop_tuned",
    "loop, 8 threads, tuned",
    partial(session, tuned=True),
    partial(_loop_run, threads=8, tuned=True),
    bronze_and_tables,
)


def _queries_run(spark: SparkSession, task: Task) -> Run:
    run = timed(lambda: [_start(spark, task, game) for game in task.expected])
    return replace(run, tables=len(task.expected))


def _start(spark: SparkSession, task: Task, game: str) -> StreamingQuery:
    events = decoded(source(spark, task), task).where(F.col("event.game") == game).select("event.*")
    stream = events.writeStream.format("delta").trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(task.checkpoint / game))
    return stream.start(str(task.lake / "silver" / game))


QUERIES = Subject("queries", "N streaming queries", session, _queries_run, tables_only)


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
