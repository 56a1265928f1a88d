"""Send one micro-batch: turn the options of a REST sink into the job of its tasks. Runs on the driver.

`calls` makes the same calls for a route test, and sends nothing.
"""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from router import StartError
from router_encoders.outbox_rows import PLACE
from router_rest.credentials import apply
from router_rest.delivery.batcher import Batcher, CallSize, RowReader
from router_rest.delivery.call import Policy, RequestBuilder, RequestForm
from router_rest.delivery.job import BatchJob, allowed, planned
from router_rest.delivery.receipts import Owner, Responses
from router_rest.delivery.response_status import BulkResults
from router_rest.delivery.worker import TaskJob
from router_rest.rate_limit.protocol import Pace
from router_rest.rate_limit.server import lease_server
from router_rest.rate_limit.sliding_window import RateLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router import Batch, Outcome
    from router_rest.delivery.batcher import Call
    from router_rest.delivery.partitioner import PartitionPlan
    from router_rest.rate_limit.protocol import ServerAddress
    from router_rest.rate_limit.server import LeaseServer
    from router_rest.sink import Rest
    from router_rest.templates import Body

PER_TASK = 64
"""Calls in flight that one task is good for."""
SPEED = 1000.0
"""Calls per second that one task is good for, with something to spare."""
ORDERS = 256
"""Orders of a task for `ordering: per_key`: more than calls in flight, for some keys have more to send than others."""
EXCERPT, ANSWER, BULK = 1 << 16, 1 << 20, 1 << 24
"""Bytes of an answer that are read: for its receipt, to be landed, to be read by row."""
QUIETEST = 10
"""Seconds that a task may be silent for at least: it says something every two, unless its machine has more to do."""
KILL = ("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "spark.python.worker.killOnIdleTimeout")
SILENT = ("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "spark.python.worker.idleTimeoutSeconds")
"""Settings of Spark 4.1 and later, each with the one that holds where it is not set."""


def check_spark(spark: SparkSession) -> None:
    """Raise StartError where Spark would run a task twice, or end one that waits for its API."""
    if _set(spark, "spark.speculation") == "true":
        raise StartError("spark.speculation is on: a copy of a task would send its calls again; set it to false")
    silent, jvm = _set(spark, *SILENT) or "0", cast("Any", spark.sparkContext._jvm)
    seconds = jvm.org.apache.spark.network.util.JavaUtils.timeStringAsSec(silent)  # it may have a unit
    if _set(spark, *KILL) == "true" and 0 < seconds < QUIETEST:
        raise StartError(
            f"{SILENT[1]} is {silent}, and {KILL[1]} is on: Spark would kill a task that waits for its API; set it to "
            f"{QUIETEST} or more"
        )


def _set(spark: SparkSession, *names: str) -> str:
    """Return the first of some settings that is there; empty where none is."""
    found = (spark.conf.get(name, None) for name in names)
    return next((str(value).lower() for value in found if value is not None), "")


def post(sink: Rest, events: DataFrame, batch: Batch) -> Outcome:
    """Send a batch; return what became of its rows. Raises as `BatchJob.run` does."""
    tasks, said = tasks_of(sink, events.sparkSession), sink.tasks is not None
    plan = planned(events, batch.parts(sink.receipts), cut_of(sink), owner_of(batch), tasks, said=said)
    with posting(sink, events, batch, plan, sink.poison_share) as opened:
        return opened.run()


@contextmanager
def posting(sink: Rest, events: DataFrame, batch: Batch, plan: PartitionPlan, share: float) -> Iterator[BatchJob]:
    """Let the tasks of a batch in for as long as a `with` block; yield what sends it."""
    leases = lease_server(*hosts(events.sparkSession))
    with admitted(sink, leases, batch) as address:
        job = TaskJob(
            owner=owner_of(batch),
            parts=batch.parts(sink.receipts),
            encoding=sink.encoding(events),
            form=form_of(sink),
            cut=plan.cut,
            policy=policy_of(sink),
            address=address,
            wire=wire_of(sink, plan.tasks),
            authorise=apply,
            dead_at_most=allowed(plan.rows, share),
            responses=responses_of(sink, batch),
        )
        columns = partial(columns_of, sink)
        yield BatchJob(events, columns, batch, plan, job, leases, sink.limit, share, sink.max_outage)


def owner_of(batch: Batch) -> Owner:
    """Return what the receipts of a batch name."""
    number = batch.id if batch.resending is None else None
    return Owner(batch.query, batch.route, batch.sink, number, batch.resending)


def responses_of(sink: Rest, batch: Batch) -> Responses | None:
    """Return where answers are landed."""
    return Responses(batch.parts(sink.responses)) if sink.responses else None


def columns_of(sink: Rest, events: DataFrame) -> DataFrame:
    """Return what tasks take; without `_to` where all rows have one URL."""
    rows = sink.columns(events)
    return rows if sink.template.fields else rows.withColumn("_to", F.lit(None).cast("string"))


@contextmanager
def admitted(sink: Rest, leases: LeaseServer, batch: Batch) -> Iterator[ServerAddress]:
    """Let the tasks of a batch in for as long as a `with` block."""
    limits = tuple(RateLimit(one.calls, one.rows, one.seconds) for one in sink.pace())
    opened = sink.credentials(sink.folder)
    try:
        address = leases.admit(
            batch.key,
            sink.limit,
            Pace(limits, sink.max_in_flight),
            credentials=opened.current,
            stop=batch.stop.is_set,
        )
    except ValueError as error:
        raise StartError(f"{error}; sinks that share a limit say the same of it, and of max_in_flight") from None
    try:
        yield address
    finally:
        leases.dismiss(batch.key)


def hosts(spark: SparkSession) -> tuple[str, str]:
    """Return the address of the driver for its executors, and the one to listen at (empty: the same)."""
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return "127.0.0.1", ""
    settings = context.getConf()
    return str(settings.get("spark.driver.host", "127.0.0.1")), str(settings.get("spark.driver.bindAddress", ""))


def tasks_of(sink: Rest, spark: SparkSession | None = None) -> int:
    """Return how many tasks send: as few as the limits let; no more than the job has cores, unless it is said."""
    if sink.tasks is not None:
        return sink.tasks
    per_second = [one.calls / one.seconds for one in sink.pace() if one.calls is not None]
    wanted = ceil(sink.max_in_flight / PER_TASK)
    if per_second:
        wanted = max(wanted, ceil(min(per_second) / SPEED))
    return wanted if spark is None else min(wanted, spark.sparkContext.defaultParallelism)


def cut_of(sink: Rest) -> CallSize:
    """Return how calls are cut."""
    room = sink.bytes_per_call - sink.joined.frame(1)
    return CallSize(sink.rows_per_call, max(1, room), ORDERS if sink.ordering == "per_key" else 0)


def form_of(sink: Rest) -> RequestForm:
    """Return what all requests have in common; what is secret comes with the credentials."""
    url = "" if sink.template.fields else sink.url
    return RequestForm(sink.method, url, {}, sink.joined, sink.idempotency_header)


def policy_of(sink: Rest) -> Policy:
    """Return when calls are sent again."""
    again = None if sink.retry.statuses is None else frozenset(sink.retry.statuses)
    results = None if sink.results is None else BulkResults(**sink.results.model_dump())
    return Policy(sink.retry.attempts, sink.retry.elapsed, again=again, results=results)


def wire_of(sink: Rest, tasks: int) -> dict[str, Any]:
    """Return the arguments of a task's wire.

    Tasks get about as many rows each, but for an order, which keeps a source partition in one: such a task may have
    more in flight than its share while others need less.
    """
    tls, times = sink.tls.beside(sink.folder), sink.timeouts
    shares = 2 if sink.ordering == "per_key" else 1
    return {
        "connect": times.connect,
        "read": times.read,
        "total": times.total,
        "most": BULK if sink.results else ANSWER if sink.responses else EXCERPT,
        "in_flight": min(sink.max_in_flight, shares * ceil(sink.max_in_flight / tasks)),
        "verify": tls.verify,
        "cert": tls.cert,
    }


def calls(sink: Rest, events: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the calls of a small batch, as one task would make them; rows of which no call can be made are left out.

    A login is added later, by tasks: nothing here is secret.
    """
    builder = RequestBuilder(form_of(sink))
    for call in _cut(sink, events):
        body = sink.joined.join(call.rows)
        try:
            request = builder.request(call.url, body, "")
        except ValueError:  # its URL is none: a dead letter
            continue
        headers = sink.joined.headers
        shown = _shown(body, sink.joined)
        yield {"method": sink.method, "url": request.url, "headers": headers, "body": shown, "rows": len(call)}


def _cut(sink: Rest, events: DataFrame) -> Iterator[Call]:
    reader = RowReader(sink.encoding(events), sink.joined, urls=bool(sink.template.fields))
    batcher = Batcher(cut_of(sink))
    rows = sink.columns(events).coalesce(1).sortWithinPartitions(*PLACE)
    for batch in rows.toArrow().to_batches():
        for one in reader.rows(batch):
            if one.why is None:
                yield from batcher.add(*one[:5])
    yield from batcher.end()


def _shown(body: bytes, made: Body) -> Any:
    """Return a body as its values where it is JSON, those of each line for lines; else as text, or in base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode()
    try:
        return [json.loads(line) for line in text.split("\n")[:-1]] if made.between == b"\n" else json.loads(text)
    except (ValueError, RecursionError):
        return text
