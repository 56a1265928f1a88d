"""Send one micro-batch, or rows once more: turn a REST sink into the job of its tasks. Runs on the driver.

`post` sends a batch; `calls` makes the same calls for a route test, and sends nothing. `resend` sends rows that were
parked or refused: what went out in one call as the same call, with the same key. A key is made of what a call says: its
rows' places and its body. Rows that were in one call before are one again, so that its key is the one of their
receipts; where a row is missing, or the body is another one by now, so is the key.
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
from router_rest.credentials import apply
from router_rest.delivery.answer import BulkResults, Policy, next_steps
from router_rest.delivery.batcher import BY_HOST, FORMER, Batcher, CallSize, RowReader
from router_rest.delivery.call import RequestBuilder, RequestForm
from router_rest.delivery.job import RANKS, BatchJob, allowed, counted, outcome, planned
from router_rest.delivery.receipts import PLACES, SCHEMA, Owner, Responses, remove_call_logs
from router_rest.delivery.worker import TaskJob
from router_rest.http_client.response import Response, ResponseHeaders
from router_rest.rate_limit.protocol import Pace
from router_rest.rate_limit.server import EarlierCall, lease_server
from router_rest.rate_limit.sliding_window import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router import Batch, Encoding, GivenAnswer, Outcome, Parts
    from router_rest.credentials import Credentials
    from router_rest.delivery.batcher import Call
    from router_rest.delivery.partitioner import PartitionPlan
    from router_rest.options import RestOptions
    from router_rest.rate_limit.protocol import ServerAddress
    from router_rest.rate_limit.server import LeaseServer
    from router_rest.templates import Body

PER_TASK = 64
"""Calls in flight that one task can handle."""
SPEED = 1000.0
"""Calls per second that one task can make, with a reserve."""
ORDERS = 256
"""Orders of a task where rows keep one: more than calls in flight, because some keys have more rows than others."""
GROUPS = 4096
"""Keys of `group_by` whose calls are filled at once: with more, calls that are not full go out."""
PRODUCT = {"User-Agent": f"spark-event-router/{version('spark-event-router')}", "Accept": "application/json, */*;q=0.5"}
"""Headers that every call has unless the configuration says otherwise."""
ASKED_AHEAD = 0.05
"""Seconds for which tokens of one key are asked for at a time."""
REBUILT = 60.0
"""Seconds of the shortest limit that is rebuilt from receipts at the start."""
CALL_COLUMNS = ("query", "call_id", "attempts", "at", "limit_name", "limit_key")
EXCERPT, ANSWER, BULK = 1 << 16, 1 << 20, 1 << 24
"""Bytes of an answer that are read: for its receipt, to be landed or asked by rules, to be read by row."""
QUIETEST = 10
"""Seconds of silence that Spark has to allow a task at least: it reports every two, later on a busy machine."""
KILL = ("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "spark.python.worker.killOnIdleTimeout")
SILENT = ("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "spark.python.worker.idleTimeoutSeconds")
"""Settings of Spark 4.1 and later, each with the one that Spark takes where it is not set."""


def check_spark(spark: SparkSession) -> None:
    """Raise StartError where Spark would run a task twice, or end one that waits for its API."""
    if _set(spark, "spark.speculation") == "true":
        raise StartError("spark.speculation is on: a copy of a task would send its calls again; set it to false")
    silent = _set(spark, *SILENT) or "0"
    seconds = _seconds(silent)
    if _set(spark, *KILL) == "true" and 0 < seconds < QUIETEST:
        raise StartError(
            f"{SILENT[1]} is {silent}, and {KILL[1]} is on: Spark would kill a task that waits for its API; set it to "
            f"{QUIETEST} or more"
        )


def _seconds(span: str) -> float:
    """Return the seconds of a span as Spark's settings have it: 10, 10s, 5min; none where it is written otherwise."""
    found = re.fullmatch(r"\s*(\d+)\s*(us|ms|s|m|min|h|d)?\s*", span)
    units = {"us": 1e-6, "ms": 1e-3, "m": 60, "min": 60, "h": 3600, "d": 86400}
    return int(found[1]) * units.get(found[2] or "s", 1) if found else 0.0


def _set(spark: SparkSession, *names: str) -> str:
    """Return the first of some settings that is set; empty where none is."""
    found = (spark.conf.get(name, None) for name in names)
    return next((str(value).lower() for value in found if value is not None), "")


@dataclass(frozen=True)
class OpenSink:
    """A REST sink that is open: its options, the configuration's folder, and what the sink makes of rows.

    `encoding` says how rows with some columns are encoded, `columns` makes of rows those of `batcher.TAKES`, and
    `credentials` opens the API. All three may raise StartError.
    """

    options: RestOptions
    folder: Path
    encoding: Callable[[DataFrame], Encoding]
    columns: Callable[[DataFrame], DataFrame]
    credentials: Callable[[], Credentials]

    def plan(self, events: DataFrame, batch: Batch, *, whole: bool = False) -> PartitionPlan:
        """Return which task gets which rows; `whole`: each gets whole source partitions."""
        options = self.options
        tasks, said = tasks_of(options, events.sparkSession), options.tasks is not None
        parts = batch.parts(options.receipts)
        return planned(events, parts, cut_of(options), owner_of(batch), tasks, said=said, whole=whole)

    def task_columns(self, events: DataFrame) -> DataFrame:
        """Return what tasks take; `_to` is null where all rows have one URL."""
        rows = self.columns(events)
        return (
            rows
            if self.options.template.fields or self.options.named_by_rows
            else rows.withColumn("_to", F.lit(None).cast("string"))
        )


def post(sink: OpenSink, events: DataFrame, batch: Batch) -> Outcome:
    """Send a batch; return what became of its rows. Raises as `BatchJob.run` does."""
    with posting(sink, events, batch, sink.plan(events, batch), sink.options.poison_share) as job:
        return job.run()


@contextmanager
def posting(sink: OpenSink, events: DataFrame, batch: Batch, plan: PartitionPlan, share: float) -> Iterator[BatchJob]:
    """Admit the tasks of a batch for as long as a `with` block; yield the job that sends it.

    `share` of the rows may be refused.
    """
    options, leases = sink.options, lease_server(*hosts(events.sparkSession))
    with admitted(sink, leases, batch) as address:
        job = TaskJob(
            owner=replace(owner_of(batch), limit=options.limit),
            parts=batch.parts(options.receipts),
            encoding=sink.encoding(events),
            form=form_of(options),
            cut=plan.cut,
            policy=policy_of(options),
            address=address,
            client=client_arguments(options, sink.folder, plan.tasks),
            authorise=apply,
            dead_at_most=allowed(plan.rows, share),
            responses=responses_of(options, batch),
            bytes_in_flight=options.bytes_in_flight,
            of_key=of_key(options),
            by_host=options.limit_by == BY_HOST,
        )
        yield BatchJob(
            events,
            sink.task_columns,
            batch,
            plan,
            job,
            leases,
            options.limit,
            share,
            options.max_outage,
            rounds=options.retry.rounds,
            odd="dead" if options.retry.then == "dead" else "parked",
            configuration=hashlib.sha256(options.model_dump_json().encode()).hexdigest(),
        )


def owner_of(batch: Batch) -> Owner:
    """Return the batch or replay that receipts belong to."""
    number = batch.id if batch.resending is None else None
    return Owner(batch.query, batch.route, batch.sink, number, batch.resending)


def responses_of(sink: RestOptions, batch: Batch) -> Responses | None:
    """Return where answers are landed."""
    return Responses(batch.parts(sink.responses)) if sink.responses else None


@contextmanager
def admitted(sink: OpenSink, leases: LeaseServer, batch: Batch) -> Iterator[ServerAddress]:
    """Admit the tasks of a batch to their limit for as long as a `with` block; yield where they reach it."""
    options = sink.options
    limits = tuple(RateLimit(one.calls, one.rows, one.seconds) for one in options.pace())
    opened = sink.credentials()
    try:
        address = leases.admit(
            batch.key,
            options.limit,
            Pace(limits, options.max_in_flight, keyed=options.limit_by is not None),
            credentials=opened.current,
            stop=batch.stop.is_set,
        )
        count_earlier_calls(options, leases, batch)
    except ValueError as error:
        raise StartError(f"{error}; sinks that share a limit say the same of it, and of max_in_flight") from None
    try:
        yield address
    finally:
        leases.dismiss(batch.key)


def count_earlier_calls(options: RestOptions, leases: LeaseServer, batch: Batch) -> None:
    """Count what went out before this driver was started, by receipts, for limits of a minute and more.

    Those in the table are counted for all sinks under the limit at once: another of them may have no rows now.
    """
    longest = max((one.seconds for one in options.pace() if one.seconds >= REBUILT), default=0.0)
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
    now, parts = datetime.now(timezone.utc), batch.parts(options.receipts)
    found = [rows for _, rows in parts.read(CALL_COLUMNS) if rows.num_rows and not parts.committed()]
    if longest:
        before = parts.recent(CALL_COLUMNS, "at", now - timedelta(seconds=longest))
        found += [] if before is None else [before]
    calls = []
    for rows in found:
        if "limit_name" not in rows.schema.names:  # of an older version
            continue
        mine = pc.and_(pc.equal(rows["query"], batch.query), pc.equal(rows["limit_name"], options.limit))
        sent = rows.filter(pc.and_(mine, pc.is_valid(rows["call_id"]))).group_by(["call_id", "limit_key"])
        for one in sent.aggregate([("at", "max"), ("attempts", "max"), ("at", "count")]).to_pylist():
            attempts, ago = one["attempts_max"] or 0, (now - one["at_max"]).total_seconds()
            calls.append(EarlierCall(ago, one["limit_key"] or "", attempts, attempts * one["at_count"]))
    return calls


def hosts(spark: SparkSession) -> tuple[str, str]:
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
    per_second = [one.calls / one.seconds for one in sink.pace() if one.calls is not None]
    wanted = ceil(sink.max_in_flight / PER_TASK)
    if per_second:
        wanted = max(wanted, ceil(min(per_second) / SPEED))
    return wanted if spark is None else min(wanted, spark.sparkContext.defaultParallelism)


def cut_of(sink: RestOptions) -> CallSize:
    """Return how calls are cut."""
    room = sink.bytes_per_call - sink.joined.frame(1)
    orders, groups = ORDERS if sink.ordered_by else 0, GROUPS if sink.group_by else 0
    return CallSize(sink.rows_per_call, max(1, room), orders, max(2 * room, sink.bytes_in_flight // 4), groups)


def form_of(sink: RestOptions) -> RequestForm:
    """Return what all requests have in common, without secrets: these come with the credentials."""
    url = "" if sink.template.fields else sink.url
    own = sink.idempotency_key == "uuid5"
    header = sink.key_header if own else None
    row_key = not own and sink.key_header is not None
    method = "" if sink.method.sql else sink.method.name
    return RequestForm(method, url, PRODUCT, sink.joined, header, tuple(sink.rendered), row_key, sink.id_header is None)


def policy_of(sink: RestOptions) -> Policy:
    """Return when calls are sent again."""
    again = None if sink.retry.statuses is None else frozenset(sink.retry.statuses)
    results = None if sink.results is None else BulkResults(**sink.results.model_dump())
    rules = tuple(one.rule for one in sink.answers)
    return Policy(sink.retry.attempts, sink.retry.elapsed, again=again, results=results, rules=rules)


def of_key(sink: RestOptions) -> int:
    """Return how many calls of one key may ask for a token at a time: as many as its limits allow soon."""
    if sink.limit_by is None:
        return 0
    fastest = min((one.calls / one.seconds for one in sink.pace() if one.calls is not None), default=SPEED)
    return max(1, min(sink.max_in_flight // 2, ceil(fastest * ASKED_AHEAD)))


def client_arguments(sink: RestOptions, folder: Path, tasks: int) -> dict[str, Any]:
    """Return the arguments of a task's HttpClient.

    Tasks get about as many rows each. With an order a source partition is one task's, so a task may have twice its
    share of calls in flight while others need fewer.
    """
    tls, times = sink.tls.beside(folder), sink.timeouts
    shares = 2 if sink.ordered_by else 1
    return {
        "connect": times.connect,
        "read": times.read,
        "total": times.total,
        "most": BULK if sink.results else ANSWER if sink.responses or sink.answers else EXCERPT,
        "age": times.connection,
        "in_flight": min(sink.max_in_flight, shares * ceil(sink.max_in_flight / tasks)),
        "verify": tls.verify,
        "cert": tls.cert,
    }


def calls(
    sink: RestOptions, rows: DataFrame, encoding: Encoding, answer: GivenAnswer | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the calls of a small batch, as one task would make them; rows of which no call can be made are left out.

    `rows` have the columns of `batcher.TAKES`. Where an API is to give an `answer`, calls say what it comes to.

    Nothing here is secret: tasks add the login.
    """
    builder = RequestBuilder(form_of(sink))
    for call in _cut(sink, rows, encoding):
        body = sink.joined.join(call.rows)
        try:
            request = builder.request(call.url, body, "")
        except ValueError:  # its URL is none: a dead letter
            continue
        method, _, values = builder.form.target(call.url)
        headers = {**sink.joined.headers, **dict(zip(sink.rendered, values, strict=True))}
        shown = _shown(body, sink.joined)
        made = {"method": method, "url": request.url, "headers": headers, "body": shown, "rows": len(call)}
        yield made if answer is None else {**made, **_answered(policy_of(sink), call, answer, method)}


def _answered(policy: Policy, call: Call, answer: GivenAnswer, method: str) -> dict[str, Any]:
    """Return the `outcome` of a call, or of each of its rows where they differ, and the `reason`."""
    response = Response(answer.status, ResponseHeaders.of(answer.headers.items()), answer.body, 0.0, whole=True)
    steps = next_steps(policy, call, response, method)
    one = len(set(steps)) == 1
    return {
        name: values[0] if one else values
        for name, values in zip(("outcome", "reason"), map(list, zip(*steps, strict=True)), strict=True)
    }


def _cut(sink: RestOptions, rows: DataFrame, encoding: Encoding) -> Iterator[Call]:
    reader = RowReader(encoding, sink.joined, urls=bool(sink.template.fields), values=sink.named_by_rows)
    batcher = Batcher(cut_of(sink))
    for batch in rows.coalesce(1).sortWithinPartitions(*PLACE).toArrow().to_batches():
        for one in reader.rows(batch):
            if one.why is None:
                yield from batcher.add(*one[:6])
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


FIRST = "_first"
"""The first offset of a row's former call: calls are sent in its order, and rows of one call follow each other."""


def resend(sink: OpenSink, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
    """Send rows again, and write their receipts; return what became of them."""
    parts, left = batch.parts(sink.options.receipts), ""
    if not parts.committed():
        try:
            _deliver(sink, events, aside, batch)
        except (StartError, ConnectionError) as error:
            left = str(error)
    if (responses := responses_of(sink.options, batch)) is not None:
        responses.commit()
    found = outcome(events, parts)
    parts.commit(SCHEMA)
    remove_call_logs(owner_of(batch), of_this_batch=True)
    refused = None if found.refused is None else _with(found.refused, aside.filter(F.col("status") == "parked"))
    return Resent(_moved(aside, parts), refused, found.in_doubt, left)


def _deliver(sink: OpenSink, events: DataFrame, aside: DataFrame, batch: Batch) -> None:
    plan = sink.plan(events, batch, whole=True)
    with posting(sink, events, batch, plan, _share(sink.options, aside, plan)) as job:
        job.events, job.columns = _in_calls(job.columns(job.events), aside), _as_they_are
        job.order = ("_topic", "_partition", FIRST, "_offset")
        job.deliver()


def _share(sink: RestOptions, aside: DataFrame, plan: PartitionPlan) -> float:
    """Return what share of the rows may be refused: all that were dead, and the usual share of the parked ones."""
    dead = aside.filter(F.col("status") == "dead").count()
    most = dead + sink.poison_share * (plan.rows - dead)
    return min(1.0, (most + 0.5) / max(1, plan.rows))  # half a row more, because rounding could lose one


def _in_calls(rows: DataFrame, aside: DataFrame) -> DataFrame:
    """Return rows with the call in which each was sent, and the first offset of that call."""
    calls = aside.select(*(F.col(name).alias(f"_of_{name}") for name in PLACES), F.col("call").alias(FORMER))
    of_call = Window.partitionBy("_topic", "_partition", FORMER)
    own = F.col(FORMER).isNull()
    first = F.when(own, F.col("_offset")).otherwise(F.min("_offset").over(of_call))
    found = rows.join(calls, [F.col(new).eqNullSafe(F.col(f"_of_{old}")) for new, old in _PAIRS])
    return found.withColumn(FIRST, first).drop(*(f"_of_{name}" for name in PLACES))


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows


def _with(rows: DataFrame, aside: DataFrame) -> DataFrame:
    """Return the rows that another frame has too."""
    return rows.join(aside, [F.col(new).eqNullSafe(F.col(old)) for new, old in _PAIRS], "left_semi")


def _moved(aside: DataFrame, parts: Parts) -> dict[tuple[str, str], int]:
    """Count rows by their status before the replay and after it."""
    found = counted(parts)
    if not found.num_rows:
        return {}
    columns = {f"_of_{name}": found.column(name) for name in PLACES}
    now = pa.table({**columns, "now": pa.array(RANKS).take(found.column("rank"))})
    same = [F.col(name).eqNullSafe(F.col(f"_of_{name}")) for name in PLACES]
    both = aside.join(aside.sparkSession.createDataFrame(now), same).groupBy("status", "now").count()
    return {(row["status"], row["now"]): row["count"] for row in both.collect()}


_PAIRS = tuple(zip(PLACE, PLACES, strict=True))


def set_aside(receipts: DataFrame, query: str, route: str, sink: str) -> DataFrame:
    """Return what the last receipt says of each row of a sink that has none which says `delivered`.

    Columns: `topic`, `partition`, `offset`, `status`, `code`, `at`, `reason`, `call`. Most receipts say `delivered`, so
    only those of rows with another one are shuffled.
    """
    mine = receipts.filter((F.col("query") == query) & (F.col("route") == route) & (F.col("sink") == sink))
    open_ = mine.filter(F.col("status") != "delivered").select(*(F.col(name).alias(f"_{name}") for name in PLACES))
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in PLACES]
    theirs = mine.join(open_.distinct(), same, "left_semi")
    receipt = F.struct("status", F.col("http_status").alias("code"), "at", "reason", F.col("call_id").alias("call"))
    last = theirs.groupBy(*PLACES).agg(F.max_by(receipt, F.struct(F.col("status") == "delivered", "at")).alias("last"))
    return last.select(*PLACES, "last.*").filter(F.col("status") != "delivered")
