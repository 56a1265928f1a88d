"""What the contenders share: the session, the source, the decoded events and the clock around a query."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.runs import Run
from benchmarks.settings import TUNED_CONSUMER, TUNED_SESSION, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.runs import Task

KAFKA = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
# The same files whatever the contender: a resolver that runs once per session costs seconds of a cold start.
AVRO = f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"


def session(task: Task, *, tuned: bool = False) -> SparkSession:
    """Return a session with Delta and Kafka; `tuned` has the settings that the router sets by itself."""
    builder = SparkSession.builder.appName("benchmark").master("local[*,4]")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    for name, value in {**settings(), **(TUNED_SESSION if tuned else {})}.items():
        builder = builder.config(name, value)
    spark: SparkSession = configure_spark_with_delta_pip(builder, extra_packages=[KAFKA, AVRO]).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def source(spark: SparkSession, task: Task, *, headers: bool = False, tuned: bool = False) -> DataFrame:
    """Return the topic as a stream; `tuned` reads with the consumer options that the router sets by itself."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", task.servers)
    reader = reader.option("subscribe", task.topic).option("startingOffsets", "earliest")
    reader = reader.option("includeHeaders", str(headers).lower())
    reader = reader.options(**TUNED_CONSUMER) if tuned else reader
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
    batches = [progress for query in queries for progress in query.recentProgress if progress.numInputRows]
    return Run(seconds, read=sum(progress.numInputRows for progress in batches), batches=len(batches))
