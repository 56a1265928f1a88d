"""Send one micro-batch, or rows of a replay: turn a REST sink into the job of its tasks. Runs on the driver.

`send_batch` sends a batch; `preview_calls` makes the same calls for a route test, and sends nothing. `resend_rows`
sends rows that were parked or refused: what went out in one call as the same call, with the same key. A key is made of
what a call says: its rows' places and its body. Rows that were in one call before are one again, so that its key is the
one of their receipts; where a row is missing, or the body is another one by now, so is the key.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

from router import Resent, StartError
from router_encoders.outbox_rows import PLACE, show_value
from router_rest.answers.classifier import Policy, next_steps
from router_rest.delivery.batcher import FORMER_CALL_COLUMN
from router_rest.delivery.call import RequestBuilder
from router_rest.delivery.job import (
    STATUS_RANKS,
    BatchJob,
    allowed_refusals,
    count_receipts,
    join_by_place,
    outcome_of,
)
from router_rest.delivery.partitioner import Extent, PartitionPlan, make_plan
from router_rest.delivery.receipts import PLACE_COLUMNS, RECEIPT_SCHEMA, RECORD_SCHEMA, Owner, remove_call_logs
from router_rest.delivery.send_plan import SendPlan, cut_of, tasks_of
from router_rest.delivery.worker import TaskJob
from router_rest.http_client.response import Response, join_headers
from router_rest.limits.lease_server import EarlierCall, lease_server
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router import Batch, GivenAnswer, Outcome, Parts
    from router_rest.channel.protocol import ServerAddress
    from router_rest.delivery.batcher import Call
    from router_rest.limits.lease_server import LeaseServer
    from router_rest.options import RestOptions
    from router_rest.templates import Body

MIN_REBUILT_LIMIT_SECONDS = 60.0
"""Seconds of the shortest limit that is rebuilt from receipts at the start."""
CALL_COLUMNS = ("query", "call_id", "attempts", "at", "limit_name", "limit_key")
MIN_SPARK_SILENCE_SECONDS = 10
"""Seconds of silence that Spark has to allow a task at least: it reports every two, later on a busy machine."""
KILL_SETTINGS = ("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "spark.python.worker.killOnIdleTimeout")
IDLE_TIMEOUT_SETTINGS = ("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "spark.python.worker.idleTimeoutSeconds")
"""Settings of Spark 4.1 and later, each with the one that Spark takes where it is not set."""


def check_spark(spark: SparkSession) -> None:
    """Raise StartError if Spark would run a task twice, or end one that waits for its API."""
    if _first_set(spark, "spark.speculation") == "true":
        raise StartError("spark.speculation is on: a copy of a task would send its calls again; set it to false")
    idle_timeout = _first_set(spark, *IDLE_TIMEOUT_SETTINGS) or "0"
    if _first_set(spark, *KILL_SETTINGS) == "true" and 0 < _span_seconds(idle_timeout) < MIN_SPARK_SILENCE_SECONDS:
        raise StartError(
            f"{IDLE_TIMEOUT_SETTINGS[1]} is {idle_timeout}, and {KILL_SETTINGS[1]} is on: "
            f"Spark would kill a task that waits for its API; set it to {MIN_SPARK_SILENCE_SECONDS} or more"
        )


def _span_seconds(span: str) -> float:
    """Return the seconds of a span as Spark's settings have it: 10, 10s, 5min; none if it is written otherwise."""
    number_and_unit = re.fullmatch(r"\s*(\d+)\s*(us|ms|s|m|min|h|d)?\s*", span)
    if number_and_unit is None:
        return 0.0
    units = {"us": 1e-6, "ms": 1e-3, "m": 60, "min": 60, "h": 3600, "d": 86400}
    return int(number_and_unit[1]) * units.get(number_and_unit[2] or "s", 1)


def _first_set(spark: SparkSession, *names: str) -> str:
    """Return the first of some settings that is set; empty if none is."""
    for name in names:
        value = spark.conf.get(name, None)
        if value is not None:
            return str(value).lower()
    return ""


def send_batch(sink: RestOptions, events: DataFrame, batch: Batch) -> Outcome:
    """Send a batch; return what became of its rows. Raises as `BatchJob.run` does."""
    with open_batch_job(sink, events, batch, plan_tasks(sink, events, batch), sink.poison_share) as job:
        return job.run()


@contextmanager
def open_batch_job(
    sink: RestOptions, events: DataFrame, batch: Batch, plan: PartitionPlan, poison_share: float
) -> Iterator[BatchJob]:
    """Admit the tasks of a batch for as long as a `with` block; yield the job that sends it.

    `poison_share` of the rows may be refused.
    """
    address_for_tasks, listen_address = driver_hosts(events.sparkSession)
    leases = lease_server(address_for_tasks, listen_address)
    # After the block no task is admitted, also if an error ends it: Spark may still start one for a batch that nobody
    # awaits.
    with admit_tasks(sink, leases, batch) as address:
        number = batch.id if batch.resending is None else None
        job = TaskJob(
            plan=SendPlan.from_options(sink, sink.folder, plan.cut, plan.tasks),
            owner=Owner(batch.query, batch.route, batch.sink, number, batch.resending, sink.limit),
            parts=batch.parts(sink.receipts),
            encoding=sink.encoding_of(events),
            address=address,
            dead_at_most=allowed_refusals(plan.rows, poison_share),
            responses=responses_of(sink, batch),
        )
        yield BatchJob(events, sink.task_columns, batch, plan, job, leases)


def plan_tasks(sink: RestOptions, events: DataFrame, batch: Batch, *, whole: bool = False) -> PartitionPlan:
    """Return the plan of a batch: the one it was begun with, else a new one, which is written down.

    `whole`: each task gets whole source partitions. A new plan takes one Spark job, which counts the rows.
    """
    parts = batch.parts(sink.receipts)
    for notes, _ in parts.read([]):
        if "plan" in notes:
            return PartitionPlan.from_note(notes["plan"])
    # One task is enough: it only counts.
    extents = (
        events.select("_topic", "_partition", "_offset")
        .coalesce(1)
        .groupBy("_topic", "_partition")
        .agg(F.min("_offset"), F.max("_offset"), F.count(F.lit(1)))
    )
    tasks = tasks_of(sink, events.sparkSession)
    rows_of_places = [Extent(*row) for row in extents.collect()]
    new_plan = make_plan(rows_of_places, cut_of(sink), tasks, said=sink.tasks is not None, whole=whole)
    parts.write(RECEIPT_SCHEMA.empty_table(), {"plan": new_plan.to_note()})
    return new_plan


def responses_of(sink: RestOptions, batch: Batch) -> Parts | None:
    """Return the table in which answers are landed."""
    return batch.parts(sink.responses) if sink.responses else None


@contextmanager
def admit_tasks(sink: RestOptions, leases: LeaseServer, batch: Batch) -> Iterator[ServerAddress]:
    """Admit the tasks of a batch to their limit for as long as a `with` block; yield where they reach it."""
    limits = tuple(RateLimit(limit.calls, limit.rows, limit.per) for limit in sink.stated_limits())
    credentials = sink.open_credentials(sink.folder)
    # The tasks are told the address afterwards: none of them takes a token before the earlier calls are counted.
    try:
        address = leases.admit_sink(
            batch.key,
            sink.limit,
            Pace(limits, sink.max_in_flight, keyed=sink.limit_by is not None),
            credentials=credentials.current_credentials,
            stop=batch.stop.is_set,
        )
        count_earlier_calls(sink, leases, batch)
    except ValueError as error:
        raise StartError(f"{error}; sinks that share a limit must give the same limits and max_in_flight") from None
    try:
        yield address
    finally:
        leases.dismiss_sink(batch.key)


def count_earlier_calls(options: RestOptions, leases: LeaseServer, batch: Batch) -> None:
    """Count what went out before this driver was started, by receipts, for limits of a minute and more.

    Those in the table are counted for all sinks under the limit at once: another of them may have no rows now.
    """
    longest = max(
        (limit.per for limit in options.stated_limits() if limit.per >= MIN_REBUILT_LIMIT_SECONDS), default=0.0
    )
    if not longest:
        return
    table = f"{batch.query}: {options.receipts}"
    with leases.counting:
        if (batch.key, options.limit) in leases.counted:
            return
        table_is_counted = (table, options.limit) in leases.counted
        earlier_calls = read_earlier_calls(options, batch, 0.0 if table_is_counted else longest)
        leases.count_earlier(options.limit, earlier_calls)
        # Only now: if the storage failed above, the next attempt has to read and count them.
        leases.counted |= {(batch.key, options.limit), (table, options.limit)}


def read_earlier_calls(options: RestOptions, batch: Batch, longest: float) -> list[EarlierCall]:
    """Return the calls in the batch's own staged receipts, and in those of the table of the last `longest` seconds."""
    now = datetime.now(timezone.utc)
    parts = batch.parts(options.receipts)
    receipts = [] if parts.committed() else [rows for _, rows in parts.read(CALL_COLUMNS)]
    if longest:
        receipts.append(parts.recent(CALL_COLUMNS, "at", now - timedelta(seconds=longest)))
    calls = []
    for rows in receipts:
        # There is no table yet, or one of an older version, which does not say under which limit a call counts.
        if rows is None or "limit_name" not in rows.schema.names:
            continue
        of_limit = pc.and_(pc.equal(rows["query"], batch.query), pc.equal(rows["limit_name"], options.limit))
        of_call = rows.filter(pc.and_(of_limit, pc.is_valid(rows["call_id"]))).group_by(["call_id", "limit_key"])
        for call in of_call.aggregate([("at", "max"), ("attempts", "max"), ("at", "count")]).to_pylist():
            attempts = call["attempts_max"] or 0
            seconds_ago = (now - call["at_max"]).total_seconds()
            calls.append(EarlierCall(seconds_ago, call["limit_key"] or "", attempts, attempts * call["at_count"]))
    return calls


def driver_hosts(spark: SparkSession) -> tuple[str, str]:
    """Return the address of the driver for its executors, and the one to listen at (empty: the same)."""
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return "127.0.0.1", ""
    settings = context.getConf()
    return str(settings.get("spark.driver.host", "127.0.0.1")), str(settings.get("spark.driver.bindAddress", ""))


def preview_calls(sink: RestOptions, events: DataFrame, answer: GivenAnswer | None = None) -> Iterator[dict[str, Any]]:
    """Yield the calls of a small batch, as one task would make them; rows of which no call can be made are left out.

    If an API is to give an `answer`, calls say what it comes to. Nothing here is secret: tasks add the login.
    """
    plan = SendPlan.from_options(sink, sink.folder, cut_of(sink), tasks=1)
    builder = RequestBuilder(plan.form)
    rows = sink.task_columns(events).coalesce(1).sortWithinPartitions(*PLACE)
    for call in plan.cut_calls(sink.encoding_of(events), rows.toArrow().to_batches()):
        if call.why:
            continue
        body = sink.body_maker.join_rows(call.rows)
        try:
            request = builder.build_request(call.url, body, "")
        except ValueError:  # its URL is none: a dead letter
            continue
        method, _, values = builder.form.call_target(call.url)
        shown = {
            "method": method,
            "url": request.url,
            "headers": {**sink.body_maker.headers, **dict(zip(sink.rendered_headers, values, strict=True))},
            "body": _show_body(body, sink.body_maker),
            "rows": len(call),
        }
        if answer is not None:
            shown |= _preview_answer(plan.policy, call, answer, method)
        yield shown


def _preview_answer(policy: Policy, call: Call, answer: GivenAnswer, method: str) -> dict[str, Any]:
    """Return the `outcome` of a call, or of each of its rows where they differ, and the `reason`."""
    response = Response(answer.status, join_headers(answer.headers.items()), answer.body, 0.0, whole=True)
    steps = next_steps(policy, call, response, method)
    if len(set(steps)) == 1:
        outcome_of_all, reason_of_all = steps[0]
        return {"outcome": outcome_of_all, "reason": reason_of_all}
    return {"outcome": [outcome for outcome, _ in steps], "reason": [reason for _, reason in steps]}


def _show_body(body: bytes, made: Body) -> Any:
    """Return a body as its values where it is JSON, those of each line for lines; else as text, or in base64."""
    if made.between == b"\n":
        with suppress(ValueError, RecursionError):
            return [json.loads(line) for line in body.split(b"\n")[:-1]]
    return show_value(body)


FIRST_OFFSET_COLUMN = "_first"
"""The first offset of a row's former call: calls are sent in its order, and rows of one call follow each other."""


def resend_rows(sink: RestOptions, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
    """Send rows again, and write their receipts; return what became of them."""
    parts = batch.parts(sink.receipts)
    why_left = ""
    if not parts.committed():
        try:
            _deliver_again(sink, events, aside, batch)
        except (StartError, ConnectionError) as error:
            why_left = str(error)
    responses = responses_of(sink, batch)
    if responses is not None:
        responses.commit(RECORD_SCHEMA)
    result = outcome_of(events, parts)
    parts.commit(RECEIPT_SCHEMA)
    remove_call_logs(parts)
    # Rows that were dead before have their dead letters: only parked ones get new ones.
    refused = result.refused
    if refused is not None:
        refused = join_by_place(refused, aside.filter(F.col("status") == "parked"), how="left_semi")
    return Resent(_count_moves(aside, parts), refused, result.in_doubt, why_left)


def _deliver_again(sink: RestOptions, events: DataFrame, aside: DataFrame, batch: Batch) -> None:
    plan = plan_tasks(sink, events, batch, whole=True)
    with open_batch_job(sink, events, batch, plan, _refusable_share(sink, aside, plan)) as job:
        job.events = _in_calls(job.columns(job.events), aside)
        job.columns = lambda rows: rows
        job.order = ("_topic", "_partition", FIRST_OFFSET_COLUMN, "_offset")
        job.deliver_all()


def _refusable_share(sink: RestOptions, aside: DataFrame, plan: PartitionPlan) -> float:
    """Return the share of the rows that may be refused: all that were dead, and the usual share of the parked ones."""
    dead = aside.filter(F.col("status") == "dead").count()
    most = dead + sink.poison_share * (plan.rows - dead)
    return min(1.0, (most + 0.5) / max(1, plan.rows))  # half a row more, because rounding could lose one


def _in_calls(rows: DataFrame, aside: DataFrame) -> DataFrame:
    """Return rows with the call in which each was sent, and the first offset of that call."""
    calls = aside.select(*PLACE_COLUMNS, F.col("call").alias(FORMER_CALL_COLUMN))
    of_call = Window.partitionBy("_topic", "_partition", FORMER_CALL_COLUMN)
    # A row that was in no call is sent alone, where its offset puts it.
    own = F.col(FORMER_CALL_COLUMN).isNull()
    first = F.when(own, F.col("_offset")).otherwise(F.min("_offset").over(of_call))
    return join_by_place(rows, calls).withColumn(FIRST_OFFSET_COLUMN, first)


def _count_moves(aside: DataFrame, parts: Parts) -> dict[tuple[str, str], int]:
    """Count rows by their status before the replay and after it."""
    counts = count_receipts(parts)
    if not counts.num_rows:
        return {}
    columns = {name: counts.column(name) for name in PLACE_COLUMNS}
    now = pa.table({**columns, "now": pa.array(STATUS_RANKS).take(counts.column("rank"))})
    both = join_by_place(aside, aside.sparkSession.createDataFrame(now), PLACE_COLUMNS).groupBy("status", "now").count()
    return {(row["status"], row["now"]): row["count"] for row in both.collect()}


def set_aside(receipts: DataFrame, query: str, route: str, sink: str) -> DataFrame:
    """Return the last receipt of each row of a sink that has none with the status `delivered`.

    Columns: `topic`, `partition`, `offset`, `status`, `code`, `at`, `reason`, `call`. Most receipts say `delivered`, so
    only those of rows with another one are shuffled.
    """
    of_sink = receipts.filter((F.col("query") == query) & (F.col("route") == route) & (F.col("sink") == sink))
    undelivered = of_sink.filter(F.col("status") != "delivered").select(*PLACE_COLUMNS).distinct()
    candidates = join_by_place(of_sink, undelivered, PLACE_COLUMNS, "left_semi")
    receipt = F.struct("status", F.col("http_status").alias("code"), "at", "reason", F.col("call_id").alias("call"))
    last = candidates.groupBy(*PLACE_COLUMNS).agg(
        F.max_by(receipt, F.struct(F.col("status") == "delivered", "at")).alias("last")
    )
    return last.select(*PLACE_COLUMNS, "last.*").filter(F.col("status") != "delivered")
