"""The way that is published and copied: a call per batch of rows in a plain UDF, one in flight per partition.

Written from the description in the article "Scalable Spark Structured Streaming for REST API Destinations" (2023), in
its favour where it leaves room: rows are grouped only where a call has several, and the body is an array that parses.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import requests
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
from requests.adapters import HTTPAdapter

from benchmarks import arrivals, lanes
from benchmarks.runs import Run
from benchmarks.settings import settings
from benchmarks.subjects import Subject
from benchmarks.verify import records_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.runs import Task

WARM_UP_ROWS = 20
"""Per partition and row of a call: Spark and its Python workers have started when the clock does."""


def _session(task: Task) -> SparkSession:
    """Return a session with a core for every partition, as a large machine would have, whatever this one has."""
    builder = SparkSession.builder.appName("benchmark").master(f"local[{task.partitions}]")
    for name, value in settings().items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _run(spark: SparkSession, task: Task) -> Run:
    rows_per_call = int(task.options["rows_per_call"])
    folder = Path(task.folder)
    some = lanes.write(folder / "some", [WARM_UP_ROWS * rows_per_call] * task.partitions)
    every = lanes.write(folder / "every", lanes.evenly(task.events, task.partitions))
    with arrivals.api(rows_per_call) as served:
        post_all(lanes.read(spark, some), f"{served.url}/events", task.partitions, rows_per_call)
        served.reset()
        served.play(latency=arrivals.LATENCY[rows_per_call])
        began = time.perf_counter()
        post_all(lanes.read(spark, every), f"{served.url}/events", task.partitions, rows_per_call)
        seconds = time.perf_counter() - began
        found = arrivals.counts(served)
    return Run(seconds, read=int(found["rows"]), batches=1, counts=found, problem=arrivals.wrong(task.events, found))


def post_all(events: DataFrame, url: str, partitions: int, rows_per_call: int) -> None:
    """Be what foreachBatch calls: count, group, spread over partitions, post, collect."""
    rows = events.count()
    contents = lanes.as_json(events)
    bodies = contents if rows_per_call == 1 else _grouped(contents, math.ceil(rows / rows_per_call))
    answers = bodies.repartition(partitions).withColumn("status", _posting(url)("content"))
    failed = [row["status"] for row in answers.select("status").collect() if row["status"] not in (200, 201)]
    assert not failed, failed[:3]


def _grouped(contents: DataFrame, calls: int) -> DataFrame:
    """Return one row per call: rows are numbered in one partition, and dealt out by their number."""
    number = F.row_number().over(Window.orderBy(F.monotonically_increasing_id()))
    dealt = contents.withColumn("call", number % calls)
    joined = F.concat(F.lit("["), F.array_join(F.collect_list("content"), ","), F.lit("]"))
    return dealt.groupBy("call").agg(joined.alias("content")).select("content")


def _posting(url: str):  # type: ignore[no-untyped-def] # what F.udf returns has no public type
    @F.udf("int")
    def post(content: str) -> int:
        session = requests.Session()
        session.mount("http://", HTTPAdapter(max_retries=3))
        headers = {"Authorization": "Bearer demo", "Content-Type": "application/json"}
        answer = session.post(url, data=content, headers=headers, verify=False)
        if answer.status_code not in (200, 201):
            raise RuntimeError(f"status {answer.status_code}: {answer.text[:200]}")
        return answer.status_code

    return post


UDF_POSTS = Subject("udf_posts", "a call per row in a UDF", _session, _run, records_read)
