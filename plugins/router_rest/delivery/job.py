"""Send a batch: run Spark jobs until every row has a receipt, or has waited for too long and is parked.

Runs on the driver, except for `park_task`. The outcome of a batch is counted by its receipts, in however many attempts
they were written.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from router import Outcome, StartError
from router_encoders.outbox_rows import PLACE, bounded_batches
from router_rest.delivery.batcher import TOLD_TO_WAIT, Call
from router_rest.delivery.call import MAX_UNREAD_ANSWERS
from router_rest.delivery.receipts import (
    PLACE_COLUMNS,
    RECEIPT_SCHEMA,
    RECORD_SCHEMA,
    KnownReceipts,
    Settled,
    make_receipts,
    merge_ranges,
    offsets_within,
    remove_call_logs,
)
from router_rest.delivery.worker import REPORT_SCHEMA, TaskEnd, send_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from router import Batch, Parts
    from router_rest.delivery.partitioner import PartitionPlan
    from router_rest.delivery.receipts import Range, Status
    from router_rest.delivery.worker import CallTried, TaskJob
    from router_rest.limits.lease_server import LeaseServer


@dataclass
class OutageClock:
    """The time since an API took any row, and the time since each call was first tried in vain.

    The second is for rows that an API never takes while it takes others, such as a call that it answers 500 every time:
    each delivery of another row would start the first count again, and these would block their batch for ever. So are
    `rounds`: the jobs that tried a call in vain and delivered others. When nothing is left but such calls, there are no
    others to tell: a job still counts, `alone`, when the API has answered each of them for itself. A call is
    recognised by its first row without a receipt. Its time begins at the end of the first job that tried it in vain,
    and continues as long as every job that delivers anything tries it again; when it is delivered, or belongs to
    another call, its time ends. Rows that were not tried, as those behind a limit of an hour, wait for their turn and
    not for the API.
    """

    clock: Callable[[], float] = time.monotonic
    _moved: float = field(init=False)
    _tried: dict[tuple[str | None, int, int], tuple[float, Sequence[Range], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moved = self.clock()

    def on_result(self, tried: Sequence[Sequence[Range]], *, moved: bool, alone: bool = False) -> None:
        """Note the result of a job: whether any row got its receipt, and the calls that were tried in vain."""
        now = self.clock()
        before = self._tried
        # If nothing was delivered, all that was left before is left.
        self._tried = {} if moved else dict(before)
        for rows in tried:
            first = rows[0][:3]
            since, _, rounds = before.get(first, (now, rows, 0))
            self._tried[first] = since, rows, rounds + (moved or alone)
        if moved:
            self._moved = now

    def forget_calls(self) -> None:
        """Forget all calls: those that were left have been parked."""
        self._tried = {}

    @property
    def seconds_away(self) -> float:
        """Return the seconds since the API took a row; since the beginning where it has taken none."""
        return self.clock() - self._moved

    def overdue_ranges(self, seconds: float) -> list[Range]:
        """Return the rows of calls that have been tried in vain for more than so many seconds."""
        now = self.clock()
        return [*chain.from_iterable(rows for since, rows, _ in self._tried.values() if now - since > seconds)]

    def failed_ranges(self, rounds: int) -> list[Range]:
        """Return the rows of calls that have failed in so many rounds."""
        return [*chain.from_iterable(rows for _, rows, failed in self._tried.values() if failed >= rounds)]


CALLS_PARKED_AT_ONCE = 1000
"""Calls whose receipts are written together when they are parked."""
PARKED_ROWS_DDL = "rows bigint"
"""What tasks that park rows return: how many rows got a receipt."""


def park_task(
    job: TaskJob, reason: str, only: Sequence[Range] | None = None, *, status: Status = "parked"
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that parks rows without a receipt, for mapInArrow. Needs `batcher.TASK_COLUMNS`.

    Calls are cut as for sending: rows in doubt were sent in these calls, and a replay sends them with the same keys.
    `only`: the ranges of the rows to park; None: all. They are dead instead of parked if `status` is dead.
    """

    def park_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # A row that got its receipt in the meantime keeps it.
        earlier_receipts = KnownReceipts.from_parts(job.parts)
        calls = _select_rows(job.plan.cut_calls(job.encoding, batches), only)
        # Each call drops the values of its rows before the next one is cut.
        settled = _settle_open_rows(job, earlier_receipts, calls, reason, status)
        while some := list(islice(settled, CALLS_PARKED_AT_ONCE)):
            table = make_receipts(job.owner, some)
            job.parts.write(table)
            yield pa.RecordBatch.from_pydict({"rows": [table.num_rows]}, pa.schema([("rows", pa.int64())]))

    return park_rows


def _select_rows(calls: Iterable[Call], only: Sequence[Range] | None) -> Iterator[Call]:
    """Yield calls with those of their rows that are in one of the ranges."""
    ranges = merge_ranges(only or ())
    for call in calls:
        if only is None:
            yield call
            continue
        inside = offsets_within(ranges.get((call.topic, call.partition), ()), call.offsets)
        yield call.select_rows([at for at, offset in enumerate(call.offsets) if offset in inside])


def _settle_open_rows(
    job: TaskJob, known: KnownReceipts, calls: Iterable[Call], reason: str, status: Status
) -> Iterator[Settled]:
    """Yield the parked rows of calls, but for those that have a receipt."""
    for call in calls:
        without_receipt = known.open_rows(call)
        if len(without_receipt):
            yield _settle_parked(job, without_receipt, reason, status)


def _settle_parked(job: TaskJob, call: Call, reason: str, status: Status) -> Settled:
    """Return the parked rows of a call; drop their values, which are not needed any more."""
    if call.rows == [b""]:  # no call can be made of it
        return Settled(call, status, time.time(), reason=reason)
    owner = job.owner.name.encode()
    name = call.call_id(job.plan.form.body.join_rows(call.rows), owner)
    call.drop_rows()
    return Settled(
        call, status, time.time(), id=name, key=job.plan.form.idempotency_key(call, name, owner), reason=reason
    )


log = logging.getLogger("router")
MIN_ALLOWED_DEAD_ROWS = 10
"""Rows of a batch that may be refused in any case: one refused row of three does not mean a wrong configuration."""
MIN_JOB_PAUSE_SECONDS = 0.5
"""Seconds between two jobs of one batch."""
MAX_LOOK_PAUSE_SECONDS = 2.0
"""Seconds after which the driver looks again whether the API may be called."""
FIRST_ROUND_PAUSE_SECONDS, MAX_ROUND_PAUSE_SECONDS = 10.0, 300.0
"""Seconds before another round of calls that alone are left, at first and at most; the pause doubles."""
LOG_PAUSE_SECONDS = 60.0
"""Seconds between two lines in the log about an API that is unavailable."""


@dataclass(frozen=True)
class JobResult:
    """The result of one job: counts of rows, the receipts of refused ones, and why others are left.

    `tried` are the calls that were sent in vain. `texts` are the first ones of each kind: see `TaskEnd`.
    """

    counts: Counter[str]
    refused: pa.Table
    texts: dict[str, str] = field(default_factory=dict)
    tried: list[CallTried] = field(default_factory=list)

    @classmethod
    def sum_reports(cls, reports: pa.Table) -> JobResult:
        """Add up the reports of tasks."""
        is_dead = pc.equal(reports["kind"], "dead")
        # The receipts of dead rows are many and stay in Arrow; all other reports are one of each task.
        refused = pa.Table.from_struct_array(reports.filter(is_dead)["receipt"].combine_chunks()).cast(RECEIPT_SCHEMA)
        result = cls(Counter(), refused)
        for text in reports.filter(pc.invert(is_dead))["text"].to_pylist():
            end = msgspec.json.decode(text, type=TaskEnd)
            result.counts.update(end.counts)
            result.texts.update(end.texts | result.texts)
            result.tried.extend(end.tried)
        return result

    @property
    def rows_left(self) -> int:
        """Return the rows without a receipt."""
        return self.counts["left"]

    @property
    def has_moved(self) -> bool:
        """Return whether any row got its receipt."""
        return bool(self.counts["delivered"] or self.refused.num_rows)

    @property
    def is_alone(self) -> bool:
        """Return whether nothing is left but calls that the API has answered, each for itself, and rows behind them."""
        answered = 0
        for call in self.tried:
            if call.answered:
                answered += sum(last - first + 1 for *_, first, last in call.rows)
        return not self.has_moved and 0 < answered == self.rows_left - self.counts["behind"]


@dataclass
class BatchJob:
    """The Spark jobs that send one batch.

    `columns` makes `batcher.TASK_COLUMNS` from events; `plan` says which task gets which rows, and `order` by which
    columns they are sorted. `job` is what each task gets; its limit is one of the server of `leases`.
    """

    events: DataFrame
    columns: Callable[[DataFrame], DataFrame]
    batch: Batch
    plan: PartitionPlan
    job: TaskJob
    leases: LeaseServer
    order: tuple[str, ...] = ("_topic", "_partition", "_offset")
    outage: OutageClock = field(default_factory=OutageClock)
    _said: float = 0.0
    _pause: float = 0.0
    _why: str = ""
    _unread: str = ""

    @property
    def limit(self) -> str:
        """Return the name of the limit that calls are under."""
        return self.job.plan.limit

    def run(self) -> Outcome:
        """Send all rows; return what became of them. Raises ConnectionError when stopped, StartError for a setting."""
        self.deliver_all()
        result = outcome_of(self.events, self.job.parts)
        if self.job.responses is not None:
            self.job.responses.commit(RECORD_SCHEMA)
        self.job.parts.commit(RECEIPT_SCHEMA)
        remove_call_logs(self.job.parts)
        return result

    def deliver_all(self) -> None:
        """Send until every row has a receipt. Raises as `run` does."""
        for notes, _ in self.job.parts.read([]):
            if self.job.plan.configuration and notes.get("stopped") == self.job.plan.configuration:
                raise StartError(notes["why"])
        while rows_left := self.run_job():
            if self.set_aside_failed() >= rows_left:
                break
            if self.wait_to_retry() >= rows_left:
                break
        if self._unread and not self._has_status():
            self._stop_sending(self._unread)

    def run_job(self) -> int:
        """Run the Spark job once; return how many rows are left that may be delivered later."""
        with bounded_batches(self.events.sparkSession):
            # All reports at once: Spark would send everything again for a second look at them.
            send = self.batch.guarded(send_task(self.job))
            reports = self._place_rows().mapInArrow(send, from_arrow_schema(REPORT_SCHEMA)).filter("kind != 'tick'")
            result = JobResult.sum_reports(reports.toArrow())
        self._unread = self._unread or result.texts.get("unread", "")
        if result.counts["unread"] >= MAX_UNREAD_ANSWERS and not self._has_status():
            self._stop_sending(self._unread)
        if result.texts.get("wrong") and not (result.is_alone and self._count_statuses()["delivered"]):
            raise StartError(f"{self.limit} does not take calls: {result.texts['wrong']}")
        if result.refused.num_rows:
            # So many may be refused only because the configuration is wrong.
            self._check_dead(result.refused.num_rows, result.refused["reason"][-1].as_py())
            self.job.parts.write(result.refused)
        trusted = self.leases.may_set_aside(self.limit)
        self.outage.on_result(
            [call.rows for call in result.tried], moved=result.has_moved, alone=result.is_alone and trusted
        )
        self._why = next((call.why for call in reversed(result.tried) if call.why), "")
        # Another round is another delivery, if the API takes rows and answers in a form that cannot be read.
        longer_pause = min(MAX_ROUND_PAUSE_SECONDS, max(FIRST_ROUND_PAUSE_SECONDS, 2 * self._pause))
        self._pause = longer_pause if result.is_alone else 0.0
        if result.texts.get("away") == TOLD_TO_WAIT and not result.counts["calls"]:
            # Nothing could be sent: the first row whose time comes begins the next round.
            self._pause = min(KnownReceipts.from_parts(self.job.parts).waits.values(), default=0.0) - time.time()
        if result.rows_left:
            self._log_waiting(result)
        return result.rows_left

    def wait_to_retry(self) -> int:
        """Wait until it is worth starting another job; return how many rows were parked, which had waited for too long.

        When the API has taken nothing for `max_outage.after`, these are all rows that are left. While it takes other
        rows, they are those of calls that it has failed for that long (see OutageClock): a few rows that it answers 500
        for ever block their batch until then, for they cannot be told from rows that it will take. Raises StartError
        where `max_outage` says to fail, ConnectionError when the batch is stopped.
        """
        until = time.monotonic() + self._pause
        seconds = MIN_JOB_PAUSE_SECONDS
        while seconds > 0:
            # The driver looks again now and then: the stream may be stopped, or the API may be back.
            if self.batch.stop.wait(min(max(seconds, MIN_JOB_PAUSE_SECONDS), MAX_LOOK_PAUSE_SECONDS)):
                raise ConnectionError(f"stopped while {self.limit} has not taken all rows of the batch")
            seconds = max(self.leases.outlook(self.limit).retry_after, until - time.monotonic())
            parked = self._park_overdue()
            if parked is not None:
                return parked
        return 0

    def _park_overdue(self) -> int | None:
        """Park rows that have waited for too long; None: there are none. Raises StartError if the stream is to stop."""
        limit = self.job.plan.max_outage
        if limit is None or limit.then == "wait":
            return None
        # Two clocks: nothing is taken, or others are and these calls are not.
        away = self.outage.seconds_away
        stuck = self.outage.overdue_ranges(limit.after)
        if away <= limit.after and not stuck:
            return None
        if limit.then == "park":
            only = None if away > limit.after else stuck
            return self._park_ranges("the API has not taken it for longer than max_outage", only, "parked")
        taken = f"others for {limit.after:.0f} s or more"
        if away > limit.after:
            taken = f"nothing for {away:.0f} s"
        if stuck:
            topic, partition, first, last = stuck[0]
            taken += f", but not offsets {first} to {last} of {topic}/{partition}"
            if len(stuck) > 1:
                taken += f" and {len(stuck) - 1} ranges more"
        raise StartError(f"{self.limit} has taken {taken}, and max_outage says to fail")

    def set_aside_failed(self) -> int:
        """Give calls that have failed in too many rounds a receipt; return how many rows."""
        only = self.outage.failed_ranges(self.job.plan.rounds)
        if not only:
            return 0
        self.leases.note_set_aside(self.limit)
        why = f"the API has not taken it in {self.job.plan.rounds} rounds, though it answers: {self._why}"
        if self.job.plan.set_aside_as == "dead":
            self._check_dead(sum(last - first + 1 for *_, first, last in only), why)
        return self._park_ranges(why, only, self.job.plan.set_aside_as)

    def _park_ranges(self, why: str, only: Sequence[Range] | None, status: Status) -> int:
        write_receipts = self.batch.guarded(park_task(self.job, why, only, status=status))
        parked = self._place_rows().mapInArrow(write_receipts, PARKED_ROWS_DDL)
        with bounded_batches(self.events.sparkSession):
            rows: int = sum(row["rows"] for row in parked.collect())
        log.warning("%s: %d rows are %s: %s", self.batch.key, rows, status, why)
        self.outage.forget_calls()
        return rows

    def _has_status(self) -> bool:
        """Return whether an answer of the batch has told what became of a row."""
        statuses = self._count_statuses()
        return bool(statuses["delivered"] or statuses["dead"])

    def _count_statuses(self) -> Counter[str]:
        statuses: Counter[str] = Counter()
        for _, rows in self.job.parts.read(["status"]):
            statuses.update(rows.column("status").to_pylist())
        return statuses

    def _stop_sending(self, why: str) -> None:
        """Record that nothing is sent again with this configuration, and raise a StartError."""
        parked = self._count_statuses()["parked"]
        text = (
            f"{self.limit} does not say what became of rows: {why}; nothing is sent until the configuration changes: "
            f"then the {parked} rows that were sent are parked, and `router replay` sends them"
        )
        self.job.parts.write(RECEIPT_SCHEMA.empty_table(), {"stopped": self.job.plan.configuration, "why": text})
        raise StartError(text)

    def _place_rows(self) -> DataFrame:
        """Return the rows of each task, in order; tasks encode them."""
        key = self.plan.partition_key()
        if self.plan.tasks == 1:
            dealt = self.events.coalesce(1)
        elif key is None:
            dealt = self.events.repartition(self.plan.tasks, F.col("_topic"), F.col("_partition"))
        else:
            dealt = self.events.repartition(self.plan.tasks, F.expr(key))
        return self.columns(dealt.sortWithinPartitions(*self.order))

    def _check_dead(self, more: int, why: str) -> None:
        dead = more + self._count_statuses()["dead"]
        if dead > self.job.dead_at_most:
            raise StartError(f"{self.limit} refuses {dead} of {self.plan.rows} rows, such as: {why}")

    def _log_waiting(self, result: JobResult) -> None:
        """Log why rows wait, once in LOG_PAUSE_SECONDS at most."""
        if time.monotonic() - self._said > LOG_PAUSE_SECONDS:
            self._said = time.monotonic()
            why = result.texts.get("away", "")
            log.warning("%s: %d rows wait for %s: %s", self.batch.key, result.rows_left, self.limit, why)


def allowed_refusals(rows: int, share: float) -> int:
    """Return how many rows of a batch may be refused."""
    return max(MIN_ALLOWED_DEAD_ROWS, int(rows * share))


STATUS_RANKS = ("parked", "dead", "delivered")
"""Statuses, in rising order of rank: two attempts may have sent the same row at the same time."""


def outcome_of(events: DataFrame, parts: Parts) -> Outcome:
    """Return the outcome of a batch by its receipts; `events` are its rows."""
    rows = count_receipts(parts)
    ranks = rows.column("rank").to_pylist()
    counts = {status: ranks.count(rank) for rank, status in enumerate(STATUS_RANKS)}
    doubtful = pc.sum(rows.column("in_doubt").cast(pa.int64())).as_py() or 0
    refused = None
    if counts["dead"]:
        dead = rows.filter(pc.equal(rows["rank"], STATUS_RANKS.index("dead"))).select([*PLACE_COLUMNS, "reason"])
        refused = join_by_place(events, F.broadcast(events.sparkSession.createDataFrame(dead)))
    return Outcome(counts["delivered"], refused, parked=counts["parked"], in_doubt=doubtful)


def count_receipts(parts: Parts) -> pa.Table:
    """Return one row for each row with a receipt: its place, rank, reason, and whether it is in doubt."""
    columns = [*PLACE_COLUMNS, "status", "reason", "in_doubt"]
    read = [rows.replace_schema_metadata() for _, rows in parts.read(columns)]
    whole = pa.concat_tables([RECEIPT_SCHEMA.empty_table().select(columns), *read])
    ranks = pc.index_in(whole.column("status"), value_set=pa.array(STATUS_RANKS))
    whole = whole.append_column("rank", ranks).append_column("times", pa.repeat(1, whole.num_rows))
    by_row = whole.group_by([*PLACE_COLUMNS]).aggregate(
        [("rank", "max"), ("reason", "max"), ("in_doubt", "any"), ("times", "sum")]
    )
    # A row with two receipts was sent twice.
    doubt = pc.or_(by_row.column("in_doubt_any"), pc.greater(by_row.column("times_sum"), 1))
    places = {name: by_row.column(name) for name in PLACE_COLUMNS}
    return pa.table({**places, "rank": by_row["rank_max"], "reason": by_row["reason_max"], "in_doubt": doubt})


def join_by_place(rows: DataFrame, others: DataFrame, names: Sequence[str] = PLACE, how: str = "inner") -> DataFrame:
    """Return rows with what others have of the same topic (which may be null), partition and offset.

    These have the given names in `rows`, and those of receipts in `others`.
    """
    # The places of others get names of their own, for both may come of one table.
    others_names = [f"_of_{name}" for name in PLACE_COLUMNS]
    renamed = others.withColumnsRenamed(dict(zip(PLACE_COLUMNS, others_names, strict=True)))
    same_row = [F.col(name).eqNullSafe(F.col(other)) for name, other in zip(names, others_names, strict=True)]
    return rows.join(renamed, same_row, how).drop(*others_names)
