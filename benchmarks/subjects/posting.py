"""Posting rows to an HTTP API, and counting what arrived there: a figure of a run that lost a row is no figure.

`posting`: the router's REST sink on its own: a batch as its outbox holds it (Parquet files with their coordinates, one
per source partition), with retries, receipts and a limit. `udf_posts`: the way that is published and copied: a call per
batch of rows in a plain UDF, one in flight per partition. It is written from the description in the article "Scalable
Spark Structured Streaming for REST API Destinations" (2023), in its favour where it leaves room: rows are grouped only
if a call has several, and the body is an array that parses.
"""

from __future__ import annotations

import math
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import requests
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
from requests.adapters import HTTPAdapter

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from benchmarks.subjects.router import write_and_load
from benchmarks.verify import compare, count_rows, records_read
from router import ApplyingSink, Batch, Opening
from router.delta.commit import StagedParts
from router.delta.lake import Lake
from router.engine.spark.session import build_session
from router_demo.api import Api

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pyspark.sql import DataFrame

    from benchmarks.runs import Task
    from router import Outcome

LATENCY = {1: 0.034, 10: 0.100}
"""Seconds that the API takes, by the rows of a call: what the published figures were measured at."""
SLOW = 0.100
"""Seconds that it takes for calls of any other size."""


def api(rows_per_call: int, **script: Any) -> Api:
    """Return the API, to be used in a `with` block; a process of its own."""
    return Api(latency=LATENCY.get(rows_per_call, SLOW), **script)


def api_counts(served: Api) -> dict[str, float]:
    """Return what the API counted; `sending` are the seconds between the first call and the last."""
    stats = served.stats()
    rows = served.rows("id")
    counts = {
        "rows": len(rows),
        "rows_processed": sum(rows.values()),
        "calls": stats.arrived,
        "throttled": stats.statuses.get(429, 0),
        "connections": stats.connections,
        "in_flight": stats.busiest,
        "highest": stats.highest,
        "api_lag": stats.lag,
        "sending": (stats.last or 0.0) - (stats.first or 0.0),
    }
    limit_used = stats.limit_used.get("calls")
    if limit_used is not None:
        counts["limit_used"] = limit_used
    return counts


def not_once(events: int, counts: dict[str, float]) -> str:
    """Return "" when every event arrived once, and else what is wrong."""
    arrived = {name: int(counts[name]) for name in ("rows", "rows_processed")}
    return compare(dict.fromkeys(arrived, events), arrived)


SEED = 7
TOPIC = "big-wins"
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
NOTE_LENGTH = 300
"""Of a text without meaning, which lets an event be about 400 bytes as JSON."""


def write_outbox(folder: Path, sizes: Sequence[int]) -> Path:
    """Write so many events for each source partition; return the folder. Their `id` is unique."""
    outbox = folder / "outbox"
    outbox.mkdir(parents=True, exist_ok=True)
    first = 0
    for partition, size in enumerate(sizes):
        pq.write_table(_events(partition, first, size), outbox / f"part-{partition:05d}.parquet")
        first += size
    return outbox


def read_outbox(spark: SparkSession, outbox: Path, partitions: Sequence[int] | None = None) -> DataFrame:
    """Return the events of some source partitions, of all by default."""
    files = sorted(outbox.glob("*.parquet"))
    if partitions is not None:
        files = [files[partition] for partition in partitions]
    return spark.read.parquet(*map(str, files))


def _value_columns(events: DataFrame) -> list[str]:
    """Return the columns that are of the events and not of their records."""
    return [name for name in events.columns if not name.startswith("_")]


def as_json(events: DataFrame) -> DataFrame:
    """Return one column, `content`: each event as JSON."""
    return events.select(F.to_json(F.struct(*_value_columns(events))).alias("content"))


def evenly(events: int, partitions: int) -> list[int]:
    """Return the sizes of partitions that are as equal as can be."""
    size, remainder = divmod(events, partitions)
    return [size + 1] * remainder + [size] * (partitions - remainder)


def _events(partition: int, first: int, size: int) -> pa.Table:
    dice = random.Random(SEED + partition)
    numbers = range(first, first + size)
    return pa.table(
        {
            "_topic": pa.array([TOPIC] * size),
            "_partition": pa.array([partition] * size, pa.int32()),
            "_offset": pa.array(range(size), pa.int64()),
            "_timestamp": pa.array(
                [BEGAN + timedelta(milliseconds=number) for number in numbers], pa.timestamp("us", "UTC")
            ),
            "_key": pa.array([b"player-%d" % (number % 1000) for number in numbers]),
            "id": pa.array(numbers, pa.int64()),
            "game": pa.array([f"game-{number % 50}" for number in numbers]),
            "player": pa.array([f"player-{number % 1000}" for number in numbers]),
            "amount": pa.array([dice.randrange(1, 100_000) / 100 for _ in numbers]),
            "note": pa.array([f"{dice.getrandbits(4 * NOTE_LENGTH):0{NOTE_LENGTH}x}" for _ in numbers]),
        }
    )


RECEIPTS = "ops.receipts"
NOWHERE = "http://127.0.0.1:9/events"
FAR = 20_000
"""Calls per second: a limit that is held like any other, and is too far away to be reached."""
BURST = 20
"""Calls of a limited API that may come at once."""


def configuration(task: Task, url: str) -> dict[str, Any]:
    """Return a configuration with a route that posts to a URL, as people write it, or with several such (`queries`)."""
    rest: dict[str, Any] = {
        "url": url,
        "rows_per_call": int(task.options["rows_per_call"]),
        "calls_per_second": float(task.options.get("limit", FAR)),
        "limit_name": "benchmark",
        "receipts": RECEIPTS,
        "headers": {"Authorization": "Bearer demo"},
    }
    for name in ("max_in_flight", "tasks"):
        if name in task.options:
            rest[name] = int(task.options[name])
    if "rules" in task.options:
        rest["answers"] = [{"when": "body.ok = false", "then": "dead"}] * int(task.options["rules"])
    # The sinks of all routes have the same limit, by its name.
    routes = []
    for number in range(int(task.options.get("queries", "1"))):
        routes.append({"name": f"wins_{number}", "match": {"sql": "true"}, "sinks": [{"rest": rest}]})
    return {
        "name": "benchmark",
        "lake": str(task.lake),
        "checkpoint": str(task.checkpoint),
        "source": {"kafka": {"servers": "127.0.0.1:9", "topics": [TOPIC]}},
        "decode": {"json": {"schema": "id LONG"}},
        "routes": routes,
        "dead_letters": "ops.dead_letters",
        "spark": settings(),
    }


def _posting_session(task: Task) -> SparkSession:
    return build_session(write_and_load(task, configuration(task, NOWHERE)).config)


def _posting_run(spark: SparkSession, task: Task) -> Run:
    """Post everything, by one sink, or by several at once that share a limit (the option `queries`)."""
    queries = int(task.options.get("queries", "1"))
    outbox = write_outbox(Path(task.folder), sizes(task))
    with api(int(task.options["rows_per_call"]), **_script(task)) as served:
        # Partitions are dealt to the queries in turns. Everything is prepared before the clock starts.
        batches = [read_outbox(spark, outbox, range(number, task.partitions, queries)) for number in range(queries)]
        sinks = [_sink(task, served, events.limit(0)) for events in batches]
        began = time.perf_counter()
        with ThreadPoolExecutor(queries) as threads:
            outcomes = list(threads.map(_apply, sinks, batches, range(queries), [task] * queries))
        seconds = time.perf_counter() - began
        counts = api_counts(served)
    applied = sum(outcome.applied for outcome in outcomes)
    problem = compare({"applied": task.events}, {"applied": applied}) or not_once(task.events, counts)
    return Run(seconds, read=applied, batches=queries, counts=counts, problem=problem)


def sizes(task: Task) -> list[int]:
    """Return the events of each partition: equal parts, or those of `skew` (70/10/10/10)."""
    if "skew" not in task.options:
        return evenly(task.events, task.partitions)
    shares = [int(share) for share in task.options["skew"].split("/")]
    parts = [task.events * share // sum(shares) for share in shares]
    # Events that the division leaves over go to the first partition.
    parts[0] += task.events - sum(parts)
    return parts


def _script(task: Task) -> dict[str, Any]:
    limit = task.options.get("limit")
    if not limit:
        return {}
    return {"limits": [{"rate": float(limit), "burst": BURST}]}


def _sink(task: Task, served: Api, nothing: DataFrame) -> ApplyingSink:
    route = write_and_load(task, configuration(task, f"{served.url}/events")).config.routes[0]
    (sink,) = route.sinks
    assert isinstance(sink, ApplyingSink)
    return sink.prepare(Opening(Path(task.folder), nothing))


def _apply(sink: ApplyingSink, events: DataFrame, number: int, task: Task) -> Outcome:
    lake = Lake.at(str(task.lake))

    def keeps(table: str) -> StagedParts:
        return StagedParts(lake, table, owner=f"benchmark{number}:run/wins_0/rest", batch=0)

    batch = Batch(query=f"benchmark{number}", id=0, route="wins_0", sink="rest", keeps=keeps)
    return sink.apply(events, batch)


def _verify_posting(task: Task, run: Run) -> str:
    """Return "" if every row has one receipt; else what is wrong."""
    receipts = count_rows(task.lake / RECEIPTS.replace(".", "/"))
    expected = {"receipts": task.events, "applied": task.events}
    return compare(expected, {"receipts": receipts, "applied": run.read})


POSTING = Subject("posting", "router", _posting_session, _posting_run, _verify_posting)


WARM_UP_ROWS = 20
"""Per partition and row of a call: Spark and its Python workers have started when the clock does."""


def _udf_posts_session(task: Task) -> SparkSession:
    """Return a session with a core for every partition, as a large machine would have, whatever this one has."""
    builder = SparkSession.builder.appName("benchmark").master(f"local[{task.partitions}]")
    for name, value in settings().items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _udf_posts_run(spark: SparkSession, task: Task) -> Run:
    rows_per_call = int(task.options["rows_per_call"])
    folder = Path(task.folder)
    warm_up = write_outbox(folder / "some", [WARM_UP_ROWS * rows_per_call] * task.partitions)
    outbox = write_outbox(folder / "every", evenly(task.events, task.partitions))
    with api(rows_per_call) as served:
        post_all(read_outbox(spark, warm_up), f"{served.url}/events", task.partitions, rows_per_call)
        # What the warm-up sent does not count.
        served.reset()
        served.play(latency=LATENCY[rows_per_call])
        began = time.perf_counter()
        post_all(read_outbox(spark, outbox), f"{served.url}/events", task.partitions, rows_per_call)
        seconds = time.perf_counter() - began
        counts = api_counts(served)
    return Run(seconds, read=int(counts["rows"]), batches=1, counts=counts, problem=not_once(task.events, counts))


def post_all(events: DataFrame, url: str, partitions: int, rows_per_call: int) -> None:
    """Do what foreachBatch calls: count, group, spread over partitions, post, collect."""
    rows = events.count()
    bodies = as_json(events)
    if rows_per_call > 1:
        bodies = _group_into_calls(bodies, math.ceil(rows / rows_per_call))
    answers = bodies.repartition(partitions).withColumn("status", _posting(url)("content"))
    statuses = [row["status"] for row in answers.select("status").collect()]
    failed = [status for status in statuses if status not in (200, 201)]
    assert not failed, failed[:3]


def _group_into_calls(contents: DataFrame, calls: int) -> DataFrame:
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


UDF_POSTS = Subject("udf_posts", "a call per row in a UDF", _udf_posts_session, _udf_posts_run, records_read)
