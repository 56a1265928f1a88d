"""Send a batch: as often as it takes until every row has a receipt. Runs on the driver."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from router import Outcome, StartError
from router_rest.outcome import outcome
from router_rest.parking import COUNTED, keep, park
from router_rest.placing import Extent, Plan, plan
from router_rest.receipts import SCHEMA, receipts
from router_rest.task import REPORT, task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from router import Batch, Parts
    from router_rest.cutting import Cut
    from router_rest.lease_server import LeaseServer
    from router_rest.options import MaxOutage
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
    """Be what one job came to: rows by what became of them, and why others are left."""

    counts: dict[str, int]
    away: str = ""
    wrong: str = ""

    @classmethod
    def of(cls, rows: list[Row]) -> Round:
        """Add up the reports of tasks."""
        counts: dict[str, int] = {}
        texts: dict[str, str] = {}
        for row in rows:
            counts[row["kind"]] = counts.get(row["kind"], 0) + (row["rows"] or 0)
            texts.setdefault(row["kind"], row["text"] or "")
        return cls(counts, texts.get("away", ""), texts.get("wrong", ""))

    @property
    def left(self) -> int:
        """Return the rows without a receipt."""
        return self.counts.get("left", 0)

    @property
    def moved(self) -> bool:
        """Return whether any row got its receipt."""
        return bool(self.counts.get("delivered") or self.counts.get("refused"))


@dataclass
class Posting:
    """Send the rows of one batch.

    `rows` has the columns of `feeding.TAKES`; `plan` says who gets which, and each gets them in an `order`. `job` is
    the tasks'. `share` of the rows may be refused; `limit` is the name of theirs at the `leases`.
    """

    events: DataFrame
    rows: DataFrame
    batch: Batch
    plan: Plan
    job: Job
    leases: LeaseServer
    limit: str
    share: float
    max_outage: MaxOutage | None = None
    order: tuple[str, ...] = ("_topic", "_partition", "_offset")
    _moved: float = field(default_factory=time.monotonic)
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
        while self.rows_left():
            if not self.patient():
                self.park()
                return

    def rows_left(self) -> bool:
        """Run the job once; return whether rows are left that may be delivered later."""
        placed = self._placed(self.rows)
        with bounded(self.events.sparkSession):
            # at once, and never again: whatever is asked of the reports later must not send anything
            reports = placed.mapInArrow(task(self.job), REPORT).localCheckpoint(eager=True)
        told = Round.of(reports.filter(F.col("kind") != "dead").collect())
        if told.wrong:
            raise StartError(f"{self.limit} does not take calls: {told.wrong}")
        self._bury(reports, told.counts.get("refused", 0))
        if told.moved:
            self._moved = time.monotonic()
        if told.left:
            self._say(told)
        return bool(told.left)

    def patient(self) -> bool:
        """Wait until another job is worth its start; False when the API has been away for too long, to park rows."""
        again = SHORTEST
        while again > 0:
            if self.batch.stop.wait(min(max(again, SHORTEST), LONGEST)):
                raise ConnectionError(f"stopped while {self.limit} has not taken all rows of the batch")
            again = self.leases.outlook(self.limit).again
            away = time.monotonic() - self._moved
            if self.max_outage is not None and self.max_outage.then != "wait" and away > self.max_outage.after:
                if self.max_outage.then == "park":
                    return False
                raise StartError(f"{self.limit} has taken nothing for {away:.0f} s, and max_outage says to fail")
        return True

    def park(self) -> None:
        """Give every row that is left a receipt that says so."""
        why = "the API was away for longer than max_outage"
        parked = self._placed(self.rows).mapInArrow(park(self.job, why), COUNTED)
        with bounded(self.events.sparkSession):
            rows = sum(row["rows"] for row in parked.collect())
        log.warning("%s: %d rows are parked: %s", self.batch.key, rows, why)

    def _placed(self, rows: DataFrame) -> DataFrame:
        key = self.plan.key()
        if self.plan.tasks == 1:
            return rows.coalesce(1).sortWithinPartitions(*self.order)
        by = [F.expr(key)] if key else [F.col("_topic"), F.col("_partition")]
        return rows.repartition(self.plan.tasks, *by).sortWithinPartitions(*self.order)

    def _bury(self, reports: DataFrame, refused: int) -> None:
        """Write the receipts of rows that were refused, if these are not too many to be the rows' fault."""
        if not refused:
            return
        before = sum(rows.column("status").to_pylist().count("dead") for _, rows in self.job.parts.read(["status"]))
        if before + refused > self.dead_at_most:
            last = reports.filter(F.col("kind") == "dead").select("receipt.reason").limit(1).collect()
            why = last[0]["reason"] if last else ""
            raise StartError(f"{self.limit} refuses {before + refused} of {self.plan.rows} rows, such as: {why}")
        dead = reports.filter(F.col("kind") == "dead").select("receipt.*").coalesce(1)
        dead.mapInArrow(keep(self.job.parts), COUNTED).collect()

    def _say(self, told: Round) -> None:
        """Tell the operator why it takes so long, now and then."""
        if time.monotonic() - self._said > SAID:
            self._said = time.monotonic()
            log.warning("%s: %d rows wait for %s: %s", self.batch.key, told.left, self.limit, told.away)


def allowed(rows: int, share: float) -> int:
    """Return how many rows of a batch may be refused."""
    return max(DEAD_AT_LEAST, int(rows * share))


def planned(events: DataFrame, parts: Parts, cut: Cut, tasks: int, job_owner: Any, *, whole: bool = False) -> Plan:
    """Return how the batch is sent: as it was begun, if it was; one job otherwise. Writes it down.

    `whole`: a source partition goes to one task.
    """
    for notes, _ in parts.read([]):
        if "plan" in notes:
            return Plan.read(notes["plan"])
    place = F.col("_topic"), F.col("_partition")
    counted = events.groupBy(*place).agg(F.min("_offset"), F.max("_offset"), F.count(F.lit(1)))
    made = plan((Extent(*row) for row in counted.collect()), cut, tasks, whole=whole)
    parts.write(receipts(job_owner, []), {"plan": made.note()})
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
