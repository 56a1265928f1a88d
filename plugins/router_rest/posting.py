"""Send a batch: as often as it takes until every row has a receipt. Runs on the driver."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from router import Outcome, StartError
from router_rest.outcome import outcome
from router_rest.parking import COUNTED, park
from router_rest.patience import Patience
from router_rest.placing import Extent, Plan, plan
from router_rest.receipts import SCHEMA, ranges_in, receipts
from router_rest.task import REPORT, task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router import Batch, Parts
    from router_rest.cutting import Cut
    from router_rest.lease_server import LeaseServer
    from router_rest.options import MaxOutage
    from router_rest.patience import Tried
    from router_rest.receipts import Owner, Range
    from router_rest.sending import Job

log = logging.getLogger("router")
DEAD_AT_LEAST = 10
"""Rows of a batch that may be refused in any case: one of three is no sign that something else is wrong."""
SHORTEST = 0.5
"""Seconds between two jobs of one batch."""
LONGEST = 2.0
"""Seconds after which it is asked again whether the API takes something."""
SAID = 60.0
"""Seconds between two lines in the log about an API that is away."""
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
BOUNDED = str(32 << 20)
"""Bytes of an Arrow batch: the router leaves it open, for rows that are small."""


@dataclass(frozen=True)
class Round:
    """Be what one job came to: rows by what became of them, the receipts of those refused, why others are left.

    `tried` are the calls that were made in vain.
    """

    counts: dict[str, int]
    refused: pa.Table
    away: str = ""
    wrong: str = ""
    tried: tuple[Tried, ...] = ()

    @classmethod
    def of(cls, reports: pa.Table) -> Round:
        """Add up the reports of tasks."""
        counts: dict[str, int] = {}
        texts: dict[str, str] = {}
        tried: list[Tried] = []
        dead = pc.equal(reports["kind"], "dead")
        for row in reports.filter(pc.invert(dead)).select(["kind", "rows", "text"]).to_pylist():
            counts[row["kind"]] = counts.get(row["kind"], 0) + (row["rows"] or 0)
            texts.setdefault(row["kind"], row["text"] or "")
            if row["kind"] == "tried":
                tried.append(tuple(ranges_in(row["text"])))
        refused = pa.Table.from_struct_array(reports.filter(dead)["receipt"]).cast(SCHEMA)
        return cls(counts, refused, texts.get("away", ""), texts.get("wrong", ""), tuple(tried))

    @property
    def left(self) -> int:
        """Return the rows without a receipt."""
        return self.counts.get("left", 0)

    @property
    def moved(self) -> bool:
        """Return whether any row got its receipt."""
        return bool(self.counts.get("delivered") or self.refused.num_rows)


@dataclass
class Posting:
    """Send the rows of one batch.

    `columns` makes those of `feeding.TAKES` of events; `plan` says who gets which, and each gets them in an `order`.
    `job` is the tasks'. `share` of the rows may be refused; `limit` is the name of theirs at the `leases`.
    """

    events: DataFrame
    columns: Callable[[DataFrame], DataFrame]
    batch: Batch
    plan: Plan
    job: Job
    leases: LeaseServer
    limit: str
    share: float
    max_outage: MaxOutage | None = None
    order: tuple[str, ...] = ("_topic", "_partition", "_offset")
    patience: Patience = field(default_factory=Patience)
    _said: float = 0.0

    @property
    def dead_at_most(self) -> int:
        """Return how many rows may be refused."""
        return allowed(self.plan.rows, self.share)

    def run(self) -> Outcome:
        """Send all rows; return what became of them. Raises ConnectionError when stopped, StartError for a setting."""
        self.deliver()
        found = outcome(self.events, self.job.parts)
        if self.job.responses is not None:
            self.job.responses.commit()
        self.job.parts.commit(SCHEMA)
        return found

    def deliver(self) -> None:
        """Send until every row has a receipt. Raises as `run` does."""
        while left := self.rows_left():
            if not self.patient() and self.park() >= left:
                return

    def rows_left(self) -> int:
        """Run the job once; return how many rows are left that may be delivered later."""
        with bounded(self.events.sparkSession):
            # all at once: whatever else was asked of these reports would send everything again
            reports = self._placed().mapInArrow(task(self.job), REPORT).filter("kind != 'tick'")
            told = Round.of(reports.toArrow())
        if told.wrong:
            raise StartError(f"{self.limit} does not take calls: {told.wrong}")
        self._bury(told.refused)
        self.patience.heard(told.tried, moved=told.moved)
        if told.left:
            self._say(told)
        return told.left

    def patient(self) -> bool:
        """Wait until another job is worth its start; False when rows have waited for too long, and are to be parked.

        That is all that are left once the API has taken nothing for `max_outage.after`. While it takes others it is the
        calls that it has failed for that long by themselves (see Patience): a few rows that it answers 500 for ever
        block their batch until then, for nobody can tell them from those that it will take. Raises StartError where
        `max_outage` says to fail, ConnectionError when the batch is stopped.
        """
        again = SHORTEST
        while again > 0:
            if self.batch.stop.wait(min(max(again, SHORTEST), LONGEST)):
                raise ConnectionError(f"stopped while {self.limit} has not taken all rows of the batch")
            again = self.leases.outlook(self.limit).again
            if self._overdue():
                return False
        return True

    def _overdue(self) -> bool:
        """Return whether rows are to be parked. Raises StartError where the stream is to stop for them."""
        said = self.max_outage
        if said is None or said.then == "wait":
            return False
        away, stuck = self.patience.away, self.patience.stuck(said.after)
        if away <= said.after and not stuck:
            return False
        if said.then == "park":
            return True
        what = f"nothing for {away:.0f} s" if away > said.after else f"others for {said.after:.0f} s or more"
        such_as = f", but not {_named(stuck)}" if stuck else ""
        raise StartError(f"{self.limit} has taken {what}{such_as}, and max_outage says to fail")

    def park(self) -> int:
        """Give rows that have waited for too long a receipt that says so; return how many."""
        assert self.max_outage is not None
        why = "the API has not taken it for longer than max_outage"
        only = None if self.patience.away > self.max_outage.after else self.patience.stuck(self.max_outage.after)
        parked = self._placed().mapInArrow(park(self.job, why, only), COUNTED)
        with bounded(self.events.sparkSession):
            rows: int = sum(row["rows"] for row in parked.collect())
        log.warning("%s: %d rows are parked: %s", self.batch.key, rows, why)
        self.patience.forget()
        return rows

    def _placed(self) -> DataFrame:
        """Return the rows of each task, in order; they are encoded as they are sent."""
        key = self.plan.key()
        by = [F.expr(key)] if key else [F.col("_topic"), F.col("_partition")]
        several = self.plan.tasks > 1
        dealt = self.events.repartition(self.plan.tasks, *by) if several else self.events.coalesce(1)
        return self.columns(dealt.sortWithinPartitions(*self.order))

    def _bury(self, refused: pa.Table) -> None:
        """Write the receipts of rows that were refused, if these are not too many to be the rows' fault."""
        if not refused.num_rows:
            return
        before = sum(rows.column("status").to_pylist().count("dead") for _, rows in self.job.parts.read(["status"]))
        many = before + refused.num_rows
        if many > self.dead_at_most:
            why = refused["reason"][-1].as_py()
            raise StartError(f"{self.limit} refuses {many} of {self.plan.rows} rows, such as: {why}")
        self.job.parts.write(refused)

    def _say(self, told: Round) -> None:
        """Tell the operator why it takes so long, now and then."""
        if time.monotonic() - self._said > SAID:
            self._said = time.monotonic()
            log.warning("%s: %d rows wait for %s: %s", self.batch.key, told.left, self.limit, told.away)


def _named(ranges: list[Range]) -> str:
    """Return the first of some rows by where they came from, for a message."""
    topic, partition, first, last = ranges[0]
    more = f" and {len(ranges) - 1} ranges more" if ranges[1:] else ""
    return f"offsets {first} to {last} of {topic}/{partition}{more}"


def allowed(rows: int, share: float) -> int:
    """Return how many rows of a batch may be refused."""
    return max(DEAD_AT_LEAST, int(rows * share))


def planned(
    events: DataFrame, parts: Parts, cut: Cut, owner: Owner, tasks: int, *, said: bool, whole: bool = False
) -> Plan:
    """Return how the batch is sent: as it was begun, if it was; one job otherwise. Writes it down.

    `said`, `whole`: as for `plan`.
    """
    for notes, _ in parts.read([]):
        if "plan" in notes:
            return Plan.read(notes["plan"])
    place = F.col("_topic"), F.col("_partition")
    counted = (
        events.select(*place, "_offset")
        .coalesce(1)
        .groupBy(*place)
        .agg(F.min("_offset"), F.max("_offset"), F.count(F.lit(1)))
    )
    made = plan((Extent(*row) for row in counted.collect()), cut, tasks, said=said, whole=whole)
    parts.write(receipts(owner, []), {"plan": made.note()})
    return made


@contextmanager
def bounded(spark: SparkSession) -> Iterator[None]:
    """Let tasks get rows in Arrow batches of bounded bytes."""
    before: Any = spark.conf.get(BATCH_BYTES)
    spark.conf.set(BATCH_BYTES, BOUNDED)
    try:
        yield
    finally:
        spark.conf.set(BATCH_BYTES, before)
