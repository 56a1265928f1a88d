"""Send one micro-batch, or rows of a replay: turn a REST sink into the job of its tasks. Runs on the driver.

`send_batch` sends a batch; `preview_calls` makes the same calls for a route test, and sends nothing. `resend_rows`
sends rows that were parked or refused: what went out in one call as the same call, with the same key. A key is made of
what a call says: its rows' places and its body. Rows that were in one call before are one again, so that its key is the
one of their receipts; where a row is missing, or the body is another one by now, so is the key.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from math import ceil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

from router import Resent, StartError
from router_encoders.outbox_rows import PLACE
from router_rest.answers.classifier import BulkResults, Policy, next_steps
from router_rest.delivery.batcher import FORMER_CALL_COLUMN, HOST_AS_LIMIT_KEY, Batcher, CallSize, RowReader
from router_rest.delivery.call import RequestBuilder, RequestForm
from router_rest.delivery.job import (
    STATUS_RANKS,
    BatchJob,
    allowed_refusals,
    count_receipts,
    load_or_make_plan,
    outcome_of,
)
from router_rest.delivery.receipts import PLACE_COLUMNS, RECEIPT_SCHEMA, Owner, Responses, remove_call_logs
from router_rest.delivery.worker import TaskJob
from router_rest.http_client.response import Response, ResponseHeaders
from router_rest.limits.lease_server import EarlierCall, lease_server
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit
from router_rest.logins.credentials import make_login
from router_rest.logins.task_login import CredentialsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from router import Batch, Encoding, GivenAnswer, Outcome, Parts
    from router_rest.channel.protocol import ServerAddress
    from router_rest.delivery.batcher import Call
    from router_rest.delivery.partitioner import PartitionPlan
    from router_rest.limits.lease_server import LeaseServer
    from router_rest.logins.credentials import Credentials
    from router_rest.options import RestOptions
    from router_rest.templates import Body

CALLS_IN_FLIGHT_PER_TASK = 64
"""Calls in flight that one task can handle."""
CALLS_PER_SECOND_PER_TASK = 1000.0
"""Calls per second that one task can make, with a reserve."""
ORDERS_PER_TASK = 256
"""Orders of a task where rows keep one: more than calls in flight, because some keys have more rows than others."""
MAX_OPEN_GROUPS = 4096
"""Keys of `group_by` whose calls are filled at once: with more, calls that are not full go out."""
DEFAULT_HEADERS = {
    "User-Agent": f"spark-event-router/{version('spark-event-router')}",
    "Accept": "application/json, */*;q=0.5",
}
"""Headers that every call has unless the configuration says otherwise."""
KEY_TOKENS_AHEAD_SECONDS = 0.05
"""Seconds for which tokens of one key are asked for at a time."""
MIN_REBUILT_LIMIT_SECONDS = 60.0
"""Seconds of the shortest limit that is rebuilt from receipts at the start."""
CALL_COLUMNS = ("query", "call_id", "attempts", "at", "limit_name", "limit_key")
EXCERPT_READ_BYTES, ANSWER_READ_BYTES, BULK_READ_BYTES = 1 << 16, 1 << 20, 1 << 24
"""Bytes of an answer that are read: for its receipt, to be landed or asked by rules, to be read by row."""
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


@dataclass(frozen=True)
class OpenSink:
    """A REST sink that is open: its options, the configuration's folder, and what the sink makes of rows.

    `encoding` says how rows with some columns are encoded, `columns` makes of rows those of `batcher.TASK_COLUMNS`, and
    `credentials` opens the API. All three may raise StartError.
    """

    options: RestOptions
    folder: Path
    encoding: Callable[[DataFrame], Encoding]
    columns: Callable[[DataFrame], DataFrame]
    credentials: Callable[[], Credentials]

    def plan_tasks(self, events: DataFrame, batch: Batch, *, whole: bool = False) -> PartitionPlan:
        """Assign rows to tasks; `whole`: each gets whole source partitions."""
        options = self.options
        return load_or_make_plan(
            events,
            batch.parts(options.receipts),
            cut_of(options),
            owner_of(batch),
            tasks_of(options, events.sparkSession),
            said=options.tasks is not None,
            whole=whole,
        )

    def task_columns(self, events: DataFrame) -> DataFrame:
        """Return the columns that tasks take; `_to` is null if all rows have one URL."""
        rows = self.columns(events)
        if self.options.template.fields or self.options.named_by_rows:
            return rows
        return rows.withColumn("_to", F.lit(None).cast("string"))


def send_batch(sink: OpenSink, events: DataFrame, batch: Batch) -> Outcome:
    """Send a batch; return what became of its rows. Raises as `BatchJob.run` does."""
    with open_batch_job(sink, events, batch, sink.plan_tasks(events, batch), sink.options.poison_share) as job:
        return job.run()


@contextmanager
def open_batch_job(
    sink: OpenSink, events: DataFrame, batch: Batch, plan: PartitionPlan, share: float
) -> Iterator[BatchJob]:
    """Admit the tasks of a batch for as long as a `with` block; yield the job that sends it.

    `share` of the rows may be refused.
    """
    options = sink.options
    address_for_tasks, listen_address = driver_hosts(events.sparkSession)
    leases = lease_server(address_for_tasks, listen_address)
    with admit_tasks(sink, leases, batch) as address:
        job = TaskJob(
            owner=replace(owner_of(batch), limit=options.limit),
            parts=batch.parts(options.receipts),
            encoding=sink.encoding(events),
            form=form_of(options),
            cut=plan.cut,
            policy=policy_of(options),
            address=address,
            client=client_arguments(options, sink.folder, plan.tasks),
            authorise=make_login,
            dead_at_most=allowed_refusals(plan.rows, share),
            responses=responses_of(options, batch),
            bytes_in_flight=options.bytes_in_flight,
            of_key=of_key(options),
            by_host=options.limit_by == HOST_AS_LIMIT_KEY,
        )
        yield BatchJob(
            events,
            sink.task_columns,
            batch,
            plan,
            job,
            leases,
            limit=options.limit,
            share=share,
            max_outage=options.max_outage,
            rounds=options.retry.rounds,
            odd="dead" if options.retry.then == "dead" else "parked",
            configuration=hashlib.sha256(options.model_dump_json().encode()).hexdigest(),
        )


def owner_of(batch: Batch) -> Owner:
    """Return the batch or replay that receipts belong to."""
    number = batch.id if batch.resending is None else None
    return Owner(batch.query, batch.route, batch.sink, number, batch.resending)


def responses_of(sink: RestOptions, batch: Batch) -> Responses | None:
    """Return the table in which answers are landed."""
    return Responses(batch.parts(sink.responses)) if sink.responses else None


@contextmanager
def admit_tasks(sink: OpenSink, leases: LeaseServer, batch: Batch) -> Iterator[ServerAddress]:
    """Admit the tasks of a batch to their limit for as long as a `with` block; yield where they reach it."""
    options = sink.options
    limits = tuple(RateLimit(limit.calls, limit.rows, limit.seconds) for limit in options.stated_limits())
    credentials = sink.credentials()
    # The tasks are told the address afterwards: none of them takes a token before the earlier calls are counted.
    try:
        address = leases.admit_sink(
            batch.key,
            options.limit,
            Pace(limits, options.max_in_flight, keyed=options.limit_by is not None),
            logins=CredentialsServer(credentials.current_credentials),
            stop=batch.stop.is_set,
        )
        count_earlier_calls(options, leases, batch)
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
        (one.seconds for one in options.stated_limits() if one.seconds >= MIN_REBUILT_LIMIT_SECONDS), default=0.0
    )
    if not longest:
        return
    table = f"{batch.query}: {options.receipts}"
    with leases.counting:
        if leases.is_counted(batch.key, options.limit):
            return
        table_is_counted = leases.is_counted(table, options.limit)
        earlier_calls = read_earlier_calls(options, batch, 0.0 if table_is_counted else longest)
        leases.count_earlier(options.limit, earlier_calls)
        # Only now: if the storage failed above, the next attempt has to read and count them.
        leases.mark_counted(batch.key, options.limit)
        leases.mark_counted(table, options.limit)


def read_earlier_calls(options: RestOptions, batch: Batch, longest: float) -> list[EarlierCall]:
    """Return the calls in the batch's own staged receipts, and in those of the table of the last `longest` seconds."""
    now = datetime.now(timezone.utc)
    parts = batch.parts(options.receipts)
    receipts = []
    if not parts.committed():
        receipts += [rows for _, rows in parts.read(CALL_COLUMNS)]
    if longest:
        recent = parts.recent(CALL_COLUMNS, "at", now - timedelta(seconds=longest))
        if recent is not None:
            receipts.append(recent)
    calls = []
    for rows in receipts:
        # A table of an older version does not say under which limit a call counts.
        if not rows.num_rows or "limit_name" not in rows.schema.names:
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


def tasks_of(sink: RestOptions, spark: SparkSession | None = None) -> int:
    """Return how many tasks send: as many as configured, else as few as the limits need, and one per core at most."""
    if sink.tasks is not None:
        return sink.tasks
    tasks = ceil(sink.max_in_flight / CALLS_IN_FLIGHT_PER_TASK)
    calls_per_second = _slowest_limit(sink)
    if calls_per_second is not None:
        tasks = max(tasks, ceil(calls_per_second / CALLS_PER_SECOND_PER_TASK))
    if spark is None:
        return tasks
    return min(tasks, spark.sparkContext.defaultParallelism)


def _slowest_limit(sink: RestOptions) -> float | None:
    """Return the calls per second that the limits allow; None if no limit counts calls."""
    return min((limit.calls / limit.seconds for limit in sink.stated_limits() if limit.calls is not None), default=None)


def cut_of(sink: RestOptions) -> CallSize:
    """Return the size of calls."""
    bytes_of_rows = sink.bytes_per_call - sink.body_maker.frame_bytes(1)
    return CallSize(
        sink.rows_per_call,
        max(1, bytes_of_rows),
        orders=ORDERS_PER_TASK if sink.ordered_by else 0,
        open=max(2 * bytes_of_rows, sink.bytes_in_flight // 4),
        groups=MAX_OPEN_GROUPS if sink.group_by else 0,
    )


def form_of(sink: RestOptions) -> RequestForm:
    """Return the form that all requests share, without secrets: these come with the credentials."""
    has_own_key = sink.idempotency_key == "uuid5"
    return RequestForm(
        method="" if sink.method.sql else sink.method.name,
        url="" if sink.template.fields else sink.url,
        headers=DEFAULT_HEADERS,
        body=sink.body_maker,
        key_header=sink.key_header if has_own_key else None,
        named=tuple(sink.rendered_headers),
        row_key=not has_own_key and sink.key_header is not None,
        quoted=sink.id_header is None,
    )


def policy_of(sink: RestOptions) -> Policy:
    """Return the rules by which calls are sent again."""
    policy = Policy(sink.retry.attempts, sink.retry.elapsed, rules=tuple(answer.rule for answer in sink.answers))
    if sink.retry.statuses is not None:
        policy = replace(policy, again=frozenset(sink.retry.statuses))
    if sink.results is not None:
        policy = replace(policy, results=BulkResults(**sink.results.model_dump()))
    return policy


def of_key(sink: RestOptions) -> int:
    """Return how many calls of one key may ask for a token at a time: as many as its limits allow soon."""
    if sink.limit_by is None:
        return 0
    calls_per_second = _slowest_limit(sink) or CALLS_PER_SECOND_PER_TASK
    return max(1, min(sink.max_in_flight // 2, ceil(calls_per_second * KEY_TOKENS_AHEAD_SECONDS)))


def client_arguments(sink: RestOptions, folder: Path, tasks: int) -> dict[str, Any]:
    """Return the arguments of a task's HttpClient.

    Tasks get about as many rows each. With an order a source partition is one task's, so a task may have twice its
    share of calls in flight while others need fewer.
    """
    tls = sink.tls.resolve_paths(folder)
    times = sink.timeouts
    shares = 2 if sink.ordered_by else 1
    answer_bytes = EXCERPT_READ_BYTES
    if sink.results:
        answer_bytes = BULK_READ_BYTES
    elif sink.responses or sink.answers:
        answer_bytes = ANSWER_READ_BYTES
    return {
        "connect": times.connect,
        "read": times.read,
        "total": times.total,
        "most": answer_bytes,
        "age": times.connection,
        "in_flight": min(sink.max_in_flight, shares * ceil(sink.max_in_flight / tasks)),
        "verify": tls.verify,
        "cert": tls.cert,
    }


def preview_calls(
    sink: RestOptions, rows: DataFrame, encoding: Encoding, answer: GivenAnswer | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the calls of a small batch, as one task would make them; rows of which no call can be made are left out.

    `rows` have the columns of `batcher.TASK_COLUMNS`. If an API is to give an `answer`, calls say what it comes to.

    Nothing here is secret: tasks add the login.
    """
    builder = RequestBuilder(form_of(sink))
    for call in _cut_calls(sink, rows, encoding):
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
            shown |= _preview_answer(policy_of(sink), call, answer, method)
        yield shown


def _preview_answer(policy: Policy, call: Call, answer: GivenAnswer, method: str) -> dict[str, Any]:
    """Return the `outcome` of a call, or of each of its rows where they differ, and the `reason`."""
    response = Response(answer.status, ResponseHeaders.from_pairs(answer.headers.items()), answer.body, 0.0, whole=True)
    steps = next_steps(policy, call, response, method)
    if len(set(steps)) == 1:
        outcome_of_all, reason_of_all = steps[0]
        return {"outcome": outcome_of_all, "reason": reason_of_all}
    return {"outcome": [outcome for outcome, _ in steps], "reason": [reason for _, reason in steps]}


def _cut_calls(sink: RestOptions, rows: DataFrame, encoding: Encoding) -> Iterator[Call]:
    reader = RowReader(encoding, sink.body_maker, urls=bool(sink.template.fields), values=sink.named_by_rows)
    batcher = Batcher(cut_of(sink))
    for batch in rows.coalesce(1).sortWithinPartitions(*PLACE).toArrow().to_batches():
        for taken in reader.read_rows(batch):
            if taken.why is None:
                yield from batcher.add_row(*taken[:6])
    yield from batcher.flush_calls()


def _show_body(body: bytes, made: Body) -> Any:
    """Return a body as its values where it is JSON, those of each line for lines; else as text, or in base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode()
    try:
        if made.between == b"\n":
            return [json.loads(line) for line in text.split("\n")[:-1]]
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


FIRST_OFFSET_COLUMN = "_first"
"""The first offset of a row's former call: calls are sent in its order, and rows of one call follow each other."""


def resend_rows(sink: OpenSink, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
    """Send rows again, and write their receipts; return what became of them."""
    parts = batch.parts(sink.options.receipts)
    why_left = ""
    if not parts.committed():
        try:
            _deliver_again(sink, events, aside, batch)
        except (StartError, ConnectionError) as error:
            why_left = str(error)
    responses = responses_of(sink.options, batch)
    if responses is not None:
        responses.commit()
    result = outcome_of(events, parts)
    parts.commit(RECEIPT_SCHEMA)
    remove_call_logs(parts)
    # Rows that were dead before have their dead letters: only parked ones get new ones.
    refused = result.refused
    if refused is not None:
        refused = _rows_in(refused, aside.filter(F.col("status") == "parked"))
    return Resent(_count_moves(aside, parts), refused, result.in_doubt, why_left)


def _deliver_again(sink: OpenSink, events: DataFrame, aside: DataFrame, batch: Batch) -> None:
    plan = sink.plan_tasks(events, batch, whole=True)
    with open_batch_job(sink, events, batch, plan, _refusable_share(sink.options, aside, plan)) as job:
        job.events = _in_calls(job.columns(job.events), aside)
        job.columns = _as_they_are
        job.order = ("_topic", "_partition", FIRST_OFFSET_COLUMN, "_offset")
        job.deliver_all()


def _refusable_share(sink: RestOptions, aside: DataFrame, plan: PartitionPlan) -> float:
    """Return the share of the rows that may be refused: all that were dead, and the usual share of the parked ones."""
    dead = aside.filter(F.col("status") == "dead").count()
    most = dead + sink.poison_share * (plan.rows - dead)
    return min(1.0, (most + 0.5) / max(1, plan.rows))  # half a row more, because rounding could lose one


def _in_calls(rows: DataFrame, aside: DataFrame) -> DataFrame:
    """Return rows with the call in which each was sent, and the first offset of that call."""
    calls = aside.select(*_prefixed_places("_of_"), F.col("call").alias(FORMER_CALL_COLUMN))
    of_call = Window.partitionBy("_topic", "_partition", FORMER_CALL_COLUMN)
    # A row that was in no call is sent alone, where its offset puts it.
    own = F.col(FORMER_CALL_COLUMN).isNull()
    first = F.when(own, F.col("_offset")).otherwise(F.min("_offset").over(of_call))
    same_row = [F.col(new).eqNullSafe(F.col(f"_of_{old}")) for new, old in _PLACE_PAIRS]
    return (
        rows.join(calls, same_row)
        .withColumn(FIRST_OFFSET_COLUMN, first)
        .drop(*(f"_of_{name}" for name in PLACE_COLUMNS))
    )


def _prefixed_places(prefix: str) -> list[Column]:
    """Return topic, partition and offset under names with a prefix, for a join with rows that also have them."""
    return [F.col(name).alias(f"{prefix}{name}") for name in PLACE_COLUMNS]


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows


def _rows_in(rows: DataFrame, aside: DataFrame) -> DataFrame:
    """Return the rows that another frame also has."""
    return rows.join(aside, [F.col(new).eqNullSafe(F.col(old)) for new, old in _PLACE_PAIRS], "left_semi")


def _count_moves(aside: DataFrame, parts: Parts) -> dict[tuple[str, str], int]:
    """Count rows by their status before the replay and after it."""
    counts = count_receipts(parts)
    if not counts.num_rows:
        return {}
    columns = {f"_of_{name}": counts.column(name) for name in PLACE_COLUMNS}
    now = pa.table({**columns, "now": pa.array(STATUS_RANKS).take(counts.column("rank"))})
    same_row = [F.col(name).eqNullSafe(F.col(f"_of_{name}")) for name in PLACE_COLUMNS]
    both = aside.join(aside.sparkSession.createDataFrame(now), same_row).groupBy("status", "now").count()
    return {(row["status"], row["now"]): row["count"] for row in both.collect()}


_PLACE_PAIRS = tuple(zip(PLACE, PLACE_COLUMNS, strict=True))


def set_aside(receipts: DataFrame, query: str, route: str, sink: str) -> DataFrame:
    """Return the last receipt of each row of a sink that has none with the status `delivered`.

    Columns: `topic`, `partition`, `offset`, `status`, `code`, `at`, `reason`, `call`. Most receipts say `delivered`, so
    only those of rows with another one are shuffled.
    """
    of_sink = receipts.filter((F.col("query") == query) & (F.col("route") == route) & (F.col("sink") == sink))
    undelivered = of_sink.filter(F.col("status") != "delivered").select(*_prefixed_places("_"))
    same_row = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in PLACE_COLUMNS]
    candidates = of_sink.join(undelivered.distinct(), same_row, "left_semi")
    receipt = F.struct("status", F.col("http_status").alias("code"), "at", "reason", F.col("call_id").alias("call"))
    last = candidates.groupBy(*PLACE_COLUMNS).agg(
        F.max_by(receipt, F.struct(F.col("status") == "delivered", "at")).alias("last")
    )
    return last.select(*PLACE_COLUMNS, "last.*").filter(F.col("status") != "delivered")
