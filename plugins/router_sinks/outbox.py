"""Make of a REST sink's options what its tasks do with a batch. Runs on the driver."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from router import StartError
from router_rest.credentials import apply
from router_rest.cutting import Cut
from router_rest.lease_server import lease_server
from router_rest.making import Form
from router_rest.policy import Policy
from router_rest.posting import Posting, allowed, planned
from router_rest.receipts import Owner
from router_rest.responses import Responses
from router_rest.results import Results
from router_rest.sending import Job
from router_rest.terms import Pace
from router_rest.timeline import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router import Batch, Outcome
    from router_rest.handshake import Address
    from router_rest.lease_server import LeaseServer
    from router_rest.placing import Plan
    from router_sinks.rest import Rest

PER_TASK = 64
"""Calls in flight that one task is good for."""
SPEED = 1000.0
"""Calls per second that one task is good for, with something to spare."""
LANES = 256
"""Lanes of a task for `ordering: per_key`: more than calls in flight, for some keys have more to send than others."""
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
    """Send a batch; return what became of its rows. Raises as `Posting.run` does."""
    tasks, said = tasks_of(sink, events.sparkSession), sink.tasks is not None
    plan = planned(events, batch.parts(sink.receipts), cut_of(sink), owner_of(batch), tasks, said=said)
    with posting(sink, events, batch, plan, sink.poison_share) as opened:
        return opened.run()


@contextmanager
def posting(sink: Rest, events: DataFrame, batch: Batch, plan: Plan, share: float) -> Iterator[Posting]:
    """Let the tasks of a batch in for as long as a `with` block; yield what sends it."""
    leases = lease_server(*hosts(events.sparkSession))
    with admitted(sink, leases, batch) as address:
        job = Job(
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
        yield Posting(events, columns, batch, plan, job, leases, sink.limit, share, sink.max_outage)


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
def admitted(sink: Rest, leases: LeaseServer, batch: Batch) -> Iterator[Address]:
    """Let the tasks of a batch in for as long as a `with` block."""
    limits = tuple(Limit(one.calls, one.rows, one.seconds) for one in sink.pace())
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


def cut_of(sink: Rest) -> Cut:
    """Return how calls are cut."""
    room = sink.bytes_per_call - sink.joined.frame(1)
    return Cut(sink.rows_per_call, max(1, room), LANES if sink.ordering == "per_key" else 0)


def form_of(sink: Rest) -> Form:
    """Return what all requests have in common; what is secret comes with the credentials."""
    url = "" if sink.template.fields else sink.url
    return Form(sink.method, url, {}, sink.joined, sink.idempotency_header)


def policy_of(sink: Rest) -> Policy:
    """Return when calls are sent again."""
    again = None if sink.retry.statuses is None else frozenset(sink.retry.statuses)
    results = None if sink.results is None else Results(**sink.results.model_dump())
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
